"""Texts with huge numbers.

A layout that the parser accepts, every operation answers or refuses with a message, in time.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

import cutegemm.layout as cg
from cutegemm.errors import CutegemmError, LayoutError
from cutegemm.layout import F2, ComposedLayout, E, F2Matrix, Layout, Swizzle, Tensor, parse
from cutegemm.layout.inttuple import MAX_DEPTH, MAX_RANK

SECONDS = 20  # for an operation that takes milliseconds
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 64, 2**31, 2**32, 2**40, 2**63, 2**64 - 1, 10**30, 2**500, 2**3000, 10**900)
POWERS = (0, 1, 2, 5, 40, 63, 64, 100, 500, 3000)
OPERATIONS = {
    "str": str,
    "repr": repr,
    "hash": hash,
    "size": Layout.size,
    "cosize": lambda x: x.cosize(),
    "first": lambda x: x(0),
    "last": lambda x: x(x.size() - 1),
    "past the end": lambda x: x(10**40),
    "at": lambda x: x.at(x.size() - 1),
    "offsets": lambda x: x.offsets(),
    "with_shape": lambda x: x.with_shape(x.size()),
    "complement": lambda x: cg.complement(x, 64),
    "complement in a large space": lambda x: cg.complement(x, 10**40),
    "complement in itself": lambda x: cg.complement(x, x),
    "composition with a tile": lambda x: cg.composition(x, 4),
    "composition with itself": lambda x: cg.composition(x, x),
    "composition on the right": lambda x: cg.composition(Layout((4, 8)), x),
    "composition with a long layout": lambda x: cg.composition(x, Layout((2**40, 3), (5, 7))),
    "divide by an integer": lambda x: cg.logical_divide(x, 2),
    "divide by a layout": lambda x: cg.zipped_divide(x, Layout(4, 2)),
    "product": lambda x: cg.logical_product(x, 4),
    "product on the right": lambda x: cg.logical_product(Layout(4, 2), x),
    "blocked_product": lambda x: cg.blocked_product(x, Layout((2, 2))),
    "raked_product": lambda x: cg.raked_product(Layout((2, 2)), x),
    "tile_to_shape": lambda x: cg.tile_to_shape(x, (8, 8, 8, 8), (0, 1, 2, 3)),
    "narrower elements": lambda x: cg.recast_layout(8, 16, x),
    "wider elements": lambda x: cg.recast_layout(32, 8, x),
    "common layout": lambda x: cg.max_common_layout(x, x),
    "mask": lambda x: cg.make_layout_image_mask(x, (0, 0), 0),
    "slice": lambda x: cg.slice_and_offset((None, 0), x),
    "tensor": lambda x: Tensor(None, x)[0],
    "numpy": lambda x: Tensor(None, x).numpy(),
    "local_tile": lambda x: cg.local_tile(Tensor(None, x), (2, 2), (0, 0)),
    "local_partition": lambda x: cg.local_partition(Tensor(None, x), Layout((2, 2)), 1),
    "domain_offset": lambda x: cg.domain_offset(0, Tensor(None, x)),
    "idx2crd": lambda x: cg.idx2crd(10**40, x.shape),
    "crd2crd": lambda x: cg.crd2crd(3, x.shape, x.shape),
    "increment_coord": lambda x: cg.increment_coord(0, x.shape),
    "make_ordered_layout": lambda x: cg.make_ordered_layout(x.shape, 0),
    "make_identity_tensor": lambda x: cg.make_identity_tensor(x.shape),
    "shape_div": lambda x: cg.shape_div(x.shape, 4),
    **{
        operation.__name__: operation
        for operation in (
            cg.coalesce, cg.filter, cg.filter_zeros, cg.flatten, cg.right_inverse, cg.left_inverse, cg.nullspace,
            cg.make_layout_like, cg.to_f2, cg.to_xor, cg.to_swizzled,
        )
    },
    **{
        f"explain {name}": lambda x, name=name, args=args: cg.explain(name, x, *args)
        for name, args in {
            "coalesce": (), "right_inverse": (), "left_inverse": (), "composition": (4,), "complement": (4,),
            "logical_divide": (4,), "logical_product": (4,),
        }.items()
    },
}  # fmt: skip


def shape(rng: Random, numbers: tuple[int, ...], depth: int = 0):
    if depth > 2 or rng.random() < 0.5:
        return rng.choice(numbers)
    return tuple([shape(rng, numbers, depth + 1) for _ in range(rng.randint(0, 4))])


def stride(rng: Random, extents, kind: str) -> str:
    if isinstance(extents, tuple):
        return f"({','.join([stride(rng, extent, kind) for extent in extents])})"
    if kind == "xor":
        return f"F2({rng.choice(NUMBERS)})"
    value = str(rng.choice((1, -1)) * rng.choice(NUMBERS))
    if kind == "offset":
        return value
    modes = [str(rng.choice(NUMBERS) if rng.random() < 0.2 else rng.randint(0, 3)) for _ in range(rng.randint(1, 3))]
    return "@".join([value, *modes])


def text(rng: Random) -> str:
    """A text of the grammar, with huge numbers at any place."""
    kind = rng.choice(("offset", "coordinate", "xor", ""))
    numbers = tuple([2**power for power in POWERS]) if kind == "xor" else NUMBERS
    extents = shape(rng, numbers)
    written = str(extents).replace(" ", "").replace(",)", ")")
    if kind:
        written += ":" + stride(rng, extents, kind)
    if kind in ("offset", "") and rng.random() < 0.2:
        numbers = [
            rng.choice((0, 1, 3, 100, 256)),
            rng.choice((0, 3, 200)),
            rng.choice((-3, 0, 1, 3, 200, -200)),
        ]
        written = f"S<{','.join(map(str, numbers))}> o {rng.choice(NUMBERS)} o {written}"
    return written


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Raise AssertionError if the block takes longer than SECONDS."""

    def late(*_):
        raise AssertionError(f"{what} takes more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("seed", range(4))
def test_every_operation_answers_or_refuses(seed):
    rng = Random(f"huge numbers {seed}")
    accepted = 0
    for _ in range(20):
        written = text(rng)
        try:
            with in_time(f"parse of {written[:200]}"):
                layout = parse(written)
        except LayoutError:
            continue
        accepted += 1
        for name, operation in OPERATIONS.items():
            with in_time(f"{name} of {written[:200]}"):
                try:
                    operation(layout)
                except CutegemmError:
                    pass
                except (ArithmeticError, MemoryError, RecursionError, TypeError, ValueError) as error:
                    raise AssertionError(f"{name} of {written[:300]}: {type(error).__name__}: {error}") from error
    assert accepted >= 5


@pytest.mark.parametrize("mode", [MAX_RANK, 9999999999999999999999999999991, (0,) * (MAX_DEPTH + 1), (1, MAX_RANK), -1])
def test_modes_of_basis_vectors_have_bounds(mode):
    with pytest.raises(LayoutError, match=r"out of bounds\. Use indices from 0 to 999, and at most 100 of them"):
        E(mode)


def test_the_largest_modes():
    assert E(MAX_RANK - 1).coordinate()[-1] == 1
    deep = Layout(4, E((1,) * MAX_DEPTH))
    assert parse(str(deep)) == deep
    assert deep.cosize() is not None


def test_a_mode_out_of_bounds_is_shown_with_a_caret():
    with pytest.raises(LayoutError) as refused:
        parse("4:2@0@9999999999999999999999999999991")
    first, shown, caret = str(refused.value).split("\n")
    assert "mode (9999999999999999999999999999991, 0) is out of bounds" in first
    assert (shown, caret) == ("  4:2@0@9999999999999999999999999999991", "    ^")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: F2(2**1024), r"F2\(value\): value .* is not in \[0, 2\*\*1024\)"),
        (
            lambda: Layout(2**1025, F2(1)),
            r"has strides over F2 and 2\*\*1025 coordinates. Use at most 2\*\*1024",
        ),
        (lambda: cg.to_f2(Layout(2**1025)), r"has 2\*\*1025 coordinates or more; at most 2\*\*1024"),
        (lambda: Layout(2**40).offsets(), "has 1099511627776 coordinates; at most 268435456 are evaluated"),
        (lambda: Layout(2**21, 2**60).offsets(), "has 2097152 coordinates; at most 1048576 are evaluated"),
        (
            lambda: ComposedLayout(Swizzle(1, 0, 70), 0, Layout(2**21)).offsets(),
            "at most 1048576 are evaluated",
        ),
        (lambda: cg.to_swizzled(cg.from_f2(F2Matrix((3, 1 << 64)))), "offsets of 65 bits"),
    ],
)
def test_what_does_not_fit_into_memory_is_refused(call, said):
    with pytest.raises(LayoutError, match=said):
        call()
