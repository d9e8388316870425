"""Composed layouts: of coordinates, of offsets beyond 64 bits, and of more coordinates than a table holds."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm.layout as cg
from cutegemm.errors import LayoutError
from cutegemm.layout import F2, ComposedLayout, E, Layout, Swizzle, make_identity_layout
from tests.layout import cases, naive

OPERATIONS = {
    "coalesce": lambda rng, layout: (cg.coalesce,),
    "coalesce by mode": lambda rng, layout: (cg.coalesce, (1,) * len(layout)),
    "flatten": lambda rng, layout: (cg.flatten,),
    "zipped_divide": lambda rng, layout: (cg.zipped_divide, cases.tiler(rng, layout)),
    "logical_divide": lambda rng, layout: (cg.logical_divide, cases.tiler(rng, layout)),
    "flat_divide": lambda rng, layout: (cg.flat_divide, cases.tiler(rng, layout)),
    "composition": lambda rng, layout: (cg.composition, cases.tiler(rng, layout)),
    "group_modes": lambda rng, layout: (cg.group_modes, 0, len(layout)),
}


@pytest.mark.parametrize("name", OPERATIONS)
@settings(max_examples=80, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_through_coordinates_an_operation_is_that_on_offsets(name, rng):
    """A o identity is A: what an operation does to the one, it does to the other, with modes of extent 1 too."""
    plain = cases.layout(rng, "pg", most=48)
    through = ComposedLayout(plain, 0, make_identity_layout(plain.shape))
    operation, *arguments = OPERATIONS[name](rng, plain)
    try:
        want = operation(plain, *arguments)
        got = operation(through, *arguments)
    except LayoutError:
        return
    if got.size() == want.size() and max(cg.flatten((want.shape,))) > 0:
        ends = naive.size(plain)
        offsets = [naive.at(want, i) for i in range(want.size())]
        inside = [i for i in range(want.size()) if _index_below(arguments, plain, i, ends, want)]
        assert [got(i) for i in inside] == [offsets[i] for i in inside], (plain, arguments)


def _index_below(arguments, plain, index, ends, want):
    """Whether an element of the result is one of the layout's own: ragged tiles run over its end."""
    return want.size() <= ends or naive.at(want, index) in _table(plain)


def _table(plain, kept={}):  # noqa: B006 - one table for each layout
    return kept.setdefault(plain, set(naive.table(plain)))


def test_modes_of_extent_1_keep_their_place():
    """The coordinate of mode (4,4) is (i % 4, i // 4), also if the next mode is dropped."""
    through = ComposedLayout(Layout(((4, 4), 1), ((4, 1), 4)), 0, make_identity_layout(((4, 4), 1)))
    assert through(4) == 1
    assert cg.coalesce(through)(4) == 1
    assert cg.zipped_divide(through, (4, 1))(4) == 1
    assert through.offsets().tolist() == cg.coalesce(through).offsets().tolist() == [through(i) for i in range(16)]
    with pytest.raises(LayoutError, match="more modes than the inner shape"):
        ComposedLayout(Layout(8), 0, make_identity_layout((2, 4)))(1, 1)


def test_offsets_of_coordinates_are_rows():
    layout = ComposedLayout(make_identity_layout((4, 2)), 0, Layout((2, 2), (1, 4)))
    assert layout.offsets().tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]
    assert ComposedLayout(Layout((4, 2)), (1, 0), make_identity_layout((2, 2))).offsets().tolist() == [
        1,
        2,
        5,
        6,
    ]
    with pytest.raises(LayoutError, match="returns coordinates"):
        layout.cosize()
    with pytest.raises(LayoutError, match="no coordinate for index -1"):
        ComposedLayout(Layout((4, 2)), -1, Layout(3)).offsets()


@pytest.mark.parametrize(
    ("shape", "stride"),
    [
        ((2, 2), (1, E(0))),
        ((2, 2), (E(0), E((0, 1)))),
        ((2, 2, 2), (E((1, 0)), E(0), E(1))),
        ((4, 2), (E(0), 3)),
    ],
)
def test_coordinates_and_offsets_do_not_mix(shape, stride):
    parts = [Layout(s, d) for s, d in zip(shape, stride, strict=True)]
    for make in (lambda: Layout(shape, stride), lambda: cg.make_layout(parts)):
        with pytest.raises(LayoutError, match=r"mixes coordinates with offsets|lies within that mode"):
            make()


big = st.integers(-(2**70), 2**70)


@given(offset=big, strides=st.lists(big, min_size=1, max_size=3), swizzle=st.tuples(
    st.integers(0, 4), st.integers(0, 70), st.integers(0, 66)))  # fmt: skip
def test_offsets_beyond_64_bits_are_exact(offset, strides, swizzle):
    bits, base, more = swizzle
    layout = ComposedLayout(Swizzle(bits, base, bits + more), offset, Layout((2,) * len(strides), tuple(strides)))
    want = [layout(i) for i in range(layout.size())]
    table = layout.offsets()
    assert table.tolist() == want
    assert (table.dtype == np.int64) == all(-(2**63) <= i < 2**63 for i in want)
    assert layout.cosize() == max(want) + 1


def test_tables_that_do_not_fit():
    layout = ComposedLayout(Swizzle(3, 3, 3), 2**62, Layout(2, 2**62 + 5))
    assert layout.offsets().tolist() == [layout(0), layout(1)]
    assert ComposedLayout(Swizzle(3, 4, 63), 5, Layout(8)).offsets().tolist() == list(range(5, 13))
    with pytest.raises(LayoutError, match="9223372036854775808 does not fit a signed integer of 64 bits"):
        cg.synthesize(np.array([0, 2**63], np.uint64))
    assert Swizzle(1, 40, 1)(np.arange(4, dtype=np.int32)).tolist() == [0, 1, 2, 3]


@settings(max_examples=150, deadline=None)
@given(rng=st.randoms(use_true_random=False), offset=st.integers(0, 300))
def test_the_cosize_is_one_more_than_the_largest_offset(rng, offset):
    outer = cases.layout(rng, "pgdzrrn", most=400)
    layout = ComposedLayout(Swizzle(*rng.choice(cases.SWIZZLES)), offset, outer)
    assert layout.cosize() == max(layout(i) for i in range(layout.size())) + 1


@settings(max_examples=200, deadline=None)
@given(
    extents=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    values=st.lists(st.integers(0, 99), min_size=3),
)
def test_the_cosize_over_f2_is_one_more_than_the_largest_offset(extents, values):
    layout = Layout(
        tuple(1 << e for e in extents), tuple(F2(v) for v in values[: len(extents)])
    )  # fmt: skip
    table = [layout(i) for i in range(layout.size())]
    assert layout.cosize() == max(table) + 1
    assert layout.offsets().tolist() == table


def test_large_layouts_are_answered_at_once():
    start = time.process_time()
    swizzled = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((2**20, 2**20), (2**20, 1)))
    assert swizzled.cosize() == 2**40
    assert ComposedLayout(Swizzle(3, 3, 3), 5, Layout(2**40 + 3)).cosize() == 2**40 + 8
    assert cg.to_xor(Layout((2**40, 2))).cosize() == 2**41
    assert cg.to_xor(Layout((2**24, 2), (2, 1))).cosize() == 2**25
    with pytest.raises(LayoutError, match="1099511627776 coordinates; at most 1048576 are evaluated"):
        ComposedLayout(Layout((4, 2**50)), 0, Layout(2**40)).cosize()
    with pytest.raises(LayoutError, match="at most 1048576 are evaluated"):
        cg.composition(Layout((6, 2**40), (1, 7)), Layout((2**20, 4), (4, 2**30)))
    assert time.process_time() - start < 1.0
