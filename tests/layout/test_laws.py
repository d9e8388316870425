"""Each operation obeys its law, on random arguments; what it refuses has no answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cutegemm.layout as cg
from cutegemm.errors import LayoutError
from cutegemm.layout import Layout, Swizzle
from cutegemm.layout.layout import at_indices
from cutegemm.tile import tv
from tests.layout import cases, laws
from tests.layout.naive import modes, table


def perform(operation: str, *args, **options):
    if operation == "call":
        return args[0](args[1])
    return getattr(tv if operation == "make_layout_tv" else cg, operation)(*args, **options)


@pytest.mark.parametrize("operation", laws.LAWS)
@settings(deadline=None, max_examples=60)
@given(rng=st.randoms(use_true_random=False))
def test_law(operation, rng):
    args, options = cases.ARGUMENTS[operation](rng)
    try:
        result = perform(operation, *args, **options)
    except LayoutError:
        missed = laws.UNANSWERABLE.get(operation, lambda *_, **__: "any")(*args, **options)
    else:
        missed = None
        assert laws.LAWS[operation](result, *args, **options) is None
    assert missed is None, "refused, but there is an answer"


@given(bits=st.integers(0, 4), base=st.integers(0, 3), more=st.integers(0, 2), below=st.booleans())
def test_a_swizzle_is_its_own_inverse_and_moves_aligned_groups(bits, base, more, below):
    swizzle = Swizzle(bits, base, (-1 if below else 1) * (bits + more))
    period = 1 << (base + 2 * bits + more)
    image = [swizzle(i) for i in range(period)]
    assert sorted(image) == list(range(period))
    assert [swizzle(i) for i in image] == list(range(period))
    assert all(image[i] == image[i >> base << base] + i % (1 << base) for i in range(period))
    assert (bits == 0) == (image == list(range(period)))


@given(rng=st.randoms(use_true_random=False))
def test_offsets_are_the_whole_table(rng):
    layout = cases.maybe_composed(rng, cases.layout(rng, "ppggzrrn"))
    if isinstance(layout, Layout) or min(table(layout.outer)) >= 0:
        assert layout.offsets().tolist() == table(layout)


@given(rng=st.randoms(use_true_random=False))
def test_offsets_of_coordinate_strides_are_rows_of_coordinates(rng):
    layout = cg.make_identity_layout(cases.layout(rng).shape)
    if layout.is_integral:
        return
    rows = [cg.flatten(layout(i)) for i in range(layout.size())]
    assert [tuple(row) for row in layout.offsets().tolist()] == [tuple(map(int, row)) for row in rows]


@given(rng=st.randoms(use_true_random=False))
def test_the_value_at_any_depth_of_coordinate_is_the_same(rng):
    layout = cases.layout(rng, "pgr")
    index = rng.randrange(layout.size())
    deep = cg.idx2crd(index, layout.shape)
    by_mode = layout.size() if isinstance(layout.shape, int) else tuple(layout[m].size() for m in range(len(layout)))
    assert layout(index) == layout(deep) == layout(cg.idx2crd(index, by_mode)) == table(layout)[index]


def scaled(stride, factor):
    return tuple(scaled(d, factor) for d in stride) if isinstance(stride, tuple) else stride * factor


@given(rng=st.randoms(use_true_random=False), power=st.sampled_from([40, 61, 62, 63, 64, 80]))
def test_composition_scales_with_strides_of_any_size(rng, power):
    """(k A) o B == k (A o B), or neither is a layout: 64 bits must not show."""
    a, b = cases.layout(rng, "pgr"), cases.layout(rng, "pgr")
    large = Layout(a.shape, scaled(a.stride, 2**power))
    try:
        want = cg.composition(a, b)
    except LayoutError:
        with pytest.raises(LayoutError):
            cg.composition(large, b)
    else:
        got = cg.composition(large, b)
        assert got == Layout(want.shape, scaled(want.stride, 2**power))
        assert [int(i) for i in got.offsets()] == table(got)


@given(rng=st.randoms(use_true_random=False))
def test_extents_of_zero_hold_nothing(rng):
    layout = cases.layout(rng, "pgr")
    empty = cg.append(layout, Layout(0, 1))
    assert (empty.size(), empty.cosize(), len(empty.offsets())) == (0, 0, 0)


@given(st.integers(1, 12), st.integers(2**40, 2**70), st.integers(1, 9))
def test_integers_do_not_overflow(extent, stride, more):
    layout = Layout((extent, more), (stride, extent * stride))
    assert layout((extent - 1, more - 1)) == (extent * more - 1) * stride
    assert cg.coalesce(layout).size() == extent * more
    assert [int(i) for i in layout.offsets()] == [i * stride for i in range(extent * more)]
    assert cg.composition(layout, Layout(more, extent)).offsets().tolist() == [i * extent * stride for i in range(more)]
    assert all(s != 1 for s, _ in modes(cg.coalesce(layout))) or extent * more == 1


def test_offsets_of_indices_past_the_end_do_not_overflow():
    """Indices run on along the last mode: i of (2,3):(1,2^40) is at i % 2 + (i // 2) * 2^40."""
    layout = Layout((2, 3), (1, 2**40))
    found = at_indices(layout, np.array([5, 2**24 + 1, -(2**26)]))
    assert [int(offset) for offset in found] == [1 + 2 * 2**40, 1 + 2**63, -(2**65)]
    assert at_indices(layout, np.array([5, 7])).dtype == np.int64
    assert at_indices(layout, np.zeros(0, np.int64)).size == 0
