"""Arguments of every kind: lists are tuples, and what an operation cannot take it refuses in words."""

from __future__ import annotations

import inspect
from random import Random

import numpy as np
import pytest

import cutegemm.layout as cg
from cutegemm import tile
from cutegemm.dtypes import f32
from cutegemm.errors import CutegemmError, LayoutError
from cutegemm.layout import F2, ComposedLayout, E, Layout, Swizzle, Tensor, make_identity_layout
from tests.layout import cases, laws
from tests.layout.test_laws import perform


def listed(value):
    """Every tuple as a list; layouts as they are."""
    return [listed(v) for v in value] if isinstance(value, tuple) else value


def outcome(operation, args, options):
    try:
        return perform(operation, *args, **options)
    except LayoutError:
        return "refused"


@pytest.mark.parametrize("operation", laws.LAWS)
def test_lists_are_tuples(operation):
    """The same answer, whichever of the two says a shape, a coordinate, an order, a profile or a tiler."""
    rng = Random(f"lists for {operation}")
    seen = 0
    for _ in range(120):
        args, options = cases.ARGUMENTS[operation](rng)
        as_lists = [listed(a) for a in args], {k: listed(v) for k, v in options.items()}
        assert outcome(operation, *as_lists) == outcome(operation, args, options), (operation, args, options)
        seen += as_lists != ([*args], options)
    assert seen or not any(isinstance(a, tuple) for a in args)


@pytest.mark.parametrize(
    ("call", "want"),
    [
        (lambda: cg.composition(Layout((4, 6), (6, 1)), [2, 2]), Layout((2, 2), (6, 1))),
        (lambda: cg.idx2crd(5, [2, 3]), (1, 2)),
        (lambda: cg.crd2crd(5, [2, 3], [3, 2]), (2, 1)),
        (lambda: cg.elem_less([1, 5], [3, 3]), False),
        (lambda: cg.prefix_product([2, 3]), (1, 2)),
        (lambda: cg.ceil_div([10, 7], [4, 2]), (3, 4)),
        (lambda: cg.shape_div([12, 4], 6), (2, 4)),
        (lambda: cg.flatten([4, [2, 3]]), (4, 2, 3)),
        (lambda: cg.append([4, 2], 3), (4, 2, 3)),
        (lambda: cg.is_congruent([1, [2, 3]], (1, (2, 3))), True),
        (lambda: Layout((4, 8))([1, 2]), 9),
        (lambda: Layout((4, 8))([None, 2]), Layout((4,), (1,))),
        (lambda: E([1, 0]), E((1, 0))),
        (lambda: cg.make_layout([4, 8], stride=[8, 1]), Layout((4, 8), (8, 1))),
    ],
)
def test_a_list_has_the_answer_of_a_tuple(call, want):
    assert call() == want


JUNK = (
    None, "a", 1.5, True, -1, 0, 2**70, (), [], (2, None), ("a",), [[]], {}, {1}, object(), np.int64(3),
    np.array([1, 2]), np.float32(2), Layout(4), Layout((2, 2), (1, 2)), Layout((4, 0)), Layout(4, -1),
    Layout((2, 2), (F2(1), F2(2))),
    make_identity_layout((4, 2)), E(1), Swizzle(1, 0, 1), ComposedLayout(Swizzle(1, 0, 1), 0, Layout(8)),
    ComposedLayout(Layout(8, 2), 0, Layout(4)), Tensor(None, Layout((4, 2))), Tensor(np.arange(8), Layout((4, 2))), len,
    (Layout(2), 2), ((1, (2,)), 3), f32,
)  # fmt: skip
OPERATIONS = [
    *[(name, getattr(cg, name)) for name in cg.__all__ if callable(getattr(cg, name))],
    ("filter", cg.filter),
    ("parse", cg.parse),
    *[(name, getattr(tile, name)) for name in tile.__all__ if not inspect.isclass(getattr(tile, name))],
    *[(name, getattr(tile, name)) for name in ("Raster", "TiledMma", "TiledCopy", "TmaBox")],
]


@pytest.mark.parametrize(("name", "operation"), OPERATIONS, ids=[name for name, _ in OPERATIONS])
def test_whatever_is_given_is_answered_or_refused_in_words(name, operation):
    """No other error than this package's own escapes, and none of those without a word."""
    rng = Random(f"junk for {name}")
    parameters = inspect.signature(operation).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for _ in range(400):
        count = rng.randint(sum(p.default is p.empty for p in positional), len(positional))
        args, options = [rng.choice(JUNK) for _ in range(count)], {}
        if name in cases.ARGUMENTS and rng.random() < 0.6:  # one argument that does not belong there
            given, options = cases.ARGUMENTS[name](rng)
            args = [*given]
            args[rng.randrange(len(args))] = rng.choice(JUNK)
        if name == "transform_leaf":
            args[0] = lambda *leaves: leaves
        silent = False
        try:
            operation(*args, **options)
        except CutegemmError as error:
            silent = not str(error).strip()
        except Exception as error:
            raise AssertionError(f"{name}{tuple(args)} ends in {type(error).__name__}: {error}") from error
        assert not silent


MMA = tile.make_tiled_mma(tile.fma(f32), (4, 2, 1))
COPY = tile.make_tiled_copy_tv(tile.universal_copy(f32, 32), Layout((4, 2)), Layout((2, 1)))
METHODS = [
    (f"{type(value).__name__}.{name}", getattr(value, name))
    for value, names in (
        (Layout((4, (2, 3))), ("__call__", "at", "__getitem__", "slice", "offset_of")),
        (make_identity_layout((4, 2)), ("__call__", "slice")),
        (
            ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 4))),
            ("__call__", "at", "__getitem__", "with_outer"),
        ),
        (ComposedLayout(Layout((4, 2)), 0, make_identity_layout((4, 2))), ("__call__", "__getitem__")),
        (Swizzle(2, 0, 3), ("__call__", "recast")),
        (Tensor(np.arange(8), Layout((4, 2))), ("__getitem__", "__setitem__")),
        (Tensor(None, Layout((4, 2))), ("__getitem__",)),
        (cg.make_identity_tensor((4, 2)), ("__getitem__",)),
        (F2(3), ("at",)),
        (cg.F2Matrix((1, 2)), ("__call__", "__matmul__")),
        (MMA, ("get_slice", "thrfrg", "partition_shape_A", "offsets_c")),
        (MMA.get_slice(1), ("partition_A", "partition_C")),
        (COPY, ("get_slice", "retile", "offsets_s", "tidfrg_d")),
        (COPY.get_slice(1), ("partition_S", "retile")),
        (tile.Raster("grouped_m", 2), ("order", "as_layout")),
        (tile.fma(f32), ("layout_tv", "runs_on")),
    )
    for name in names
]


@pytest.mark.parametrize(("name", "method"), METHODS, ids=[name for name, _ in METHODS])
def test_a_method_answers_or_refuses_in_words(name, method):
    rng = Random(f"junk for {name}")
    parameters = inspect.signature(method).parameters.values()
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needed = sum(p.default is p.empty for p in positional)
    for _ in range(400):
        args = [rng.choice(JUNK) for _ in range(rng.randint(needed, 3 if many else len(positional)))]
        try:
            method(*args)
        except CutegemmError as error:
            silent = not str(error).strip()
        except Exception as error:
            raise AssertionError(f"{name}{tuple(args)} ends in {type(error).__name__}: {error}") from error
        else:
            silent = False
        assert not silent


@pytest.mark.parametrize(
    "layout", [Layout((4, (2, 3)), (6, (1, 2))), ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 6)))]
)
def test_the_checked_call_is_the_call_within_the_shape(layout):
    """Every coordinate of it and every index gives the same; those next to the shape on either side give an error."""
    for index in range(layout.size()):
        assert layout.at(index) == layout(index)
    for row in range(-1, 5):
        for column in range(-1, 7):
            if 0 <= row < 4 and 0 <= column < 6:
                assert layout.at(row, column) == layout(row, column)
            else:
                with pytest.raises(CutegemmError, match="lies outside"):
                    layout.at(row, column)
    for outside in (-1, layout.size()):
        with pytest.raises(CutegemmError, match="lies outside"):
            layout.at(outside)
    with pytest.raises(CutegemmError, match="call the layout for a slice"):
        layout.at(None, 0)
