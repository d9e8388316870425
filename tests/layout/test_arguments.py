"""Arguments of every kind: lists are tuples, and an operation refuses invalid arguments with a message."""

from __future__ import annotations

import inspect
import re
from itertools import permutations
from pathlib import Path
from random import Random

import numpy as np
import pytest

import cutegemm.layout as cg
from cutegemm import tile
from cutegemm.dtypes import f32
from cutegemm.errors import CutegemmError, LayoutError
from cutegemm.layout import F2, ComposedLayout, E, Layout, Swizzle, Tensor, make_identity_layout
from cutegemm.layout.inttuple import shown
from tests.layout import cases, laws
from tests.layout.test_laws import perform

SOURCE = "\n".join([file.read_text() for file in Path(cg.__file__).parent.glob("*.py")])


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
    """Lists and tuples give equal results as a shape, a coordinate, an order, a profile or a tiler."""
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


TENSOR = cg.make_identity_tensor((8, 8))
# Arguments of each public function of the algebra, one of each that it takes.
CALLS = {
    "ComposedLayout": (Swizzle(1, 0, 1), 0, Layout(8)),
    "E": (1,),
    "F2": (3,),
    "F2Matrix": ((1, 2, 4),),
    "Layout": ((4, 8), (8, 1)),
    "ScaledBasis": (2, 1),
    "Swizzle": (1, 0, 1),
    "Tensor": (np.arange(8), Layout(8), 0),
    "append": (Layout((4, 2)), Layout(3, 8), 3),
    "blocked_product": (Layout((2, 2)), Layout((3, 4))),
    "ceil_div": ((10, 7), (4, 2)),
    "coalesce": (Layout((2, 4)), (1, 1)),
    "complement": (Layout(4, 2), 16),
    "composition": (Layout((4, 8), (8, 1)), Layout((2, 2), (1, 4))),
    "cosize": (Layout((4, 8)), [0]),
    "crd2crd": (13, (4, 6), (3, 8)),
    "crd2idx": ((1, 2), Layout((4, 8), (8, 1))),
    "depth": (Layout((4, (2, 3))), [1]),
    "dice": (Layout((4, 8)), (None, 1)),
    "domain_offset": ((2, 3), TENSOR),
    "elem_less": ((3, 7), (4, 8)),
    "explain": ("coalesce", Layout((2, 4))),
    "filter": (Layout((2, 4), (0, 1)),),
    "filter_zeros": (Layout((2, 4), (0, 1)), (1, 0)),
    "flat_divide": (Layout((10, 8)), (4, 2)),
    "flat_product": (Layout((2, 2)), Layout((3, 4))),
    "flatten": (Layout((4, (2, 3))),),
    "from_f2": (cg.F2Matrix((1, 2, 4)), (2, 4)),
    "get": (Layout((4, (8, 3))), [1, 0]),
    "group_modes": (Layout((4, 2, 3)), 1, 3),
    "idx2crd": (13, (4, 8), (8, 1)),
    "increment_coord": ((3, 0), (4, 2)),
    "inner_product": ((1, 2), (10, 100)),
    "is_congruent": ((1, 2), (4, 5)),
    "is_weakly_congruent": (4, (5, 6)),
    "left_inverse": (Layout((4, 8)),),
    "local_partition": (TENSOR, Layout((2, 4), (4, 1)), 5, (1, 1)),
    "local_tile": (TENSOR, (4, 2), (1, None), (1, 1)),
    "logical_divide": (Layout((10, 8)), (4, 2)),
    "logical_product": (Layout((2, 2)), Layout((3, 4))),
    "make_composed_layout": (Swizzle(1, 0, 1), 0, Layout(8)),
    "make_identity_layout": ((4, 8),),
    "make_identity_tensor": ((4, 8),),
    "make_layout": ((4, 8),),
    "make_layout_image_mask": (Layout((2, 4)), (1, 0), 1),
    "make_layout_like": (Layout((4, 8), (8, 1)),),
    "make_ordered_layout": ((4, 2), (1, 0)),
    "make_swizzle": (1, 0, 1),
    "max_common_layout": (Layout((4, 8)), Layout((4, 8))),
    "max_common_vector": (Layout((4, 8)), Layout((4, 8))),
    "nullspace": (Layout((2, 3), (0, 1)),),
    "parse": ("(4,8):(8,1)",),
    "prefix_product": ((4, 2), 3),
    "prepend": (Layout((4, 2)), Layout(3, 8), 3),
    "product": ((4, 2),),
    "product_each": ((4, (2, 3)),),
    "raked_product": (Layout((2, 2)), Layout((3, 4))),
    "rank": (Layout((4, 2)), [1]),
    "recast_layout": (8, 16, Layout((4, 2))),
    "right_inverse": (Layout((4, 8), (8, 1)),),
    "round_up": ((10, 7), (4, 2)),
    "select": (Layout((4, 8, 3)), [2, 0]),
    "shape": (Layout((4, 8)), 1),
    "shape_div": ((12, 4), 6),
    "size": (Layout((4, 8)), [1]),
    "slice_": (Layout((4, 8)), (None, 1)),
    "slice_and_offset": ((None, 1), Layout((4, 8))),
    "synthesize": ([0, 8, 1, 9], (2, 2)),
    "tile_to_shape": (Layout((2, 4), (4, 1)), (4, 8), (1, 0)),
    "tiled_divide": (Layout((10, 8)), (4, 2)),
    "tiled_product": (Layout((2, 2)), Layout((3, 4))),
    "to_f2": (Swizzle(1, 0, 2), 4),
    "to_swizzle": (cg.F2Matrix((1, 2, 5, 10)),),
    "to_swizzled": (Layout((8, 8), (F2(9), F2(1))), (8, 8)),
    "to_xor": (Layout((4, 8)),),
    "transform_leaf": (lambda s, d: (s, d), (4, 2), (1, 4)),
    "unflatten": ((4, 2, 3), (0, (0, 0))),
    "zipped_divide": (Layout((10, 8)), (4, 2)),
    "zipped_product": (Layout((2, 2)), Layout((3, 4))),
}
# Parameters whose leaves may be anything: these functions look at the hierarchy alone.
ANY_LEAF = {
    *[("flatten", "value"), ("unflatten", "profile"), ("transform_leaf", "values"), ("get", "value")],
    *[(name, side) for name in ("is_congruent", "is_weakly_congruent") for side in "ab"],
    *[(name, "value") for name in ("select", "slice_", "slice_and_offset", "dice", "group_modes")],
}
NO_SUCH = (object(), 1.5, {"a": 1}, b"b")  # no parameter takes these
FUNCTIONS = sorted({name for name in cg.__all__ if callable(getattr(cg, name))} | {"filter", "parse"})


def named(operation):
    """The parameters by position; one that takes any number stands for two."""
    out = []
    for parameter in inspect.signature(operation).parameters.values():
        out += [parameter.name] * (2 if parameter.kind is parameter.VAR_POSITIONAL else 1)
    return out


def test_the_table_of_calls_is_complete():
    assert sorted(CALLS) == FUNCTIONS
    for name, args in CALLS.items():
        getattr(cg, name)(*args)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_argument_of_the_wrong_kind_is_named(name):
    """The message begins with the function and says the argument, its value and what is expected."""
    operation, args = getattr(cg, name), CALLS[name]
    for position, parameter in zip(range(len(args)), named(operation), strict=False):
        for value in NO_SUCH:
            wrong = (*args[:position], value, *args[position + 1 :])
            if (name, parameter) in ANY_LEAF:
                continue
            with pytest.raises(LayoutError) as refused:
                operation(*wrong)
            message = str(refused.value)
            assert re.match(rf"{name}\b", message), message
            assert re.search(rf"\b{parameter}\b", message) or parameter == "args", message
            assert shown(value)[:40] in message, message
            assert re.search(r"expected|Give|Pass|Make", message), message


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_in_another_order_are_answered_or_refused_by_name(name):
    operation, args = getattr(cg, name), CALLS[name]
    for order in permutations(args):
        message = name
        try:
            operation(*order)
        except LayoutError as error:
            message = str(error)
        assert re.match(rf"{name}\b", message), (order, message)


def test_the_order_of_the_arguments_is_in_the_message():
    with pytest.raises(LayoutError) as refused:
        cg.crd2idx(Layout((4, 8)), (1, 2))
    assert str(refused.value) == (
        "crd2idx(coord, layout): coord is Layout((4, 8), (1, 4)), a Layout; an integer, None or a tuple of them is "
        "expected. Check the order of the arguments."
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_in_messages_are_signatures(name):
    """`crd2idx(coord, layout)` in a message has the parameters of the function, in their order."""
    names = [str(p).split("=")[0].split(":")[0] for p in inspect.signature(getattr(cg, name)).parameters.values()]
    for text in re.findall(rf"\"{name}\(([a-z_, *]+)\)", SOURCE):
        assert text.split(", ") == names


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
    with pytest.raises(CutegemmError, match="Call the layout to slice it"):
        layout.at(None, 0)
