"""Strides of arrays and tensors: compared with numpy itself and, if it is installed, with torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutegemm.errors import LayoutError
from cutegemm.interop import from_numpy, from_torch, to_numpy, to_strides, to_torch
from cutegemm.layout import Layout, Swizzle, flatten, make_composed_layout, make_identity_layout


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """Views of numbers 0, 1, 2, ...: of any axes in any order, backwards, with steps, of no elements."""
    extents = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=4)))
    array = np.arange(int(np.prod(extents))).reshape(extents).transpose(draw(st.permutations(range(len(extents)))))
    steps = st.sampled_from([None, -1, 2, -2, 3])
    return array[tuple(slice(None, None, draw(steps)) for _ in extents)]


@given(views())
def test_a_layout_of_an_array_gives_its_elements(view: np.ndarray) -> None:
    """`base[start + layout(c)] == view[c]` for every coordinate."""
    layout = from_numpy(view)
    assert layout.shape == view.shape
    if view.size == 0:
        return
    base = view
    while base.base is not None:
        base = base.base
    start = (view.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // view.itemsize
    flat = base.reshape(-1)
    assert [flat[start + layout(c)] for c in np.ndindex(view.shape)] == [view[c] for c in np.ndindex(view.shape)]
    again = to_numpy(layout, flat, start)
    assert np.array_equal(again, view)
    assert np.shares_memory(again, flat)


def test_modes_of_several_strides() -> None:
    """(2,3) with strides (1,2) is six elements in steps of one; with (1,16) it is two axes."""
    assert to_strides(Layout((4, (2, 3)), (6, (1, 2)))) == ((4, 6), (6, 1))
    two = Layout((4, (2, 4)), (2, (1, 16)))
    with pytest.raises(LayoutError, match=r"mode 1 of \(4,\(2,4\)\):\(2,\(1,16\)\).*no single stride"):
        to_strides(two)
    assert to_strides(flatten(two)) == ((4, 2, 4), (2, 1, 16))


@pytest.mark.parametrize("thing", [make_identity_layout((2, 2)), make_composed_layout(Swizzle(1, 0, 1), 0, Layout(4))])
def test_what_has_no_strides(thing: object) -> None:
    with pytest.raises(LayoutError, match="has no strides of an array"):
        to_strides(thing)


@pytest.mark.parametrize(("layout", "offset"), [(Layout(9), 0), (Layout(4, 2), 2), (Layout(3, -1), 1)])
def test_a_view_stays_inside(layout: Layout, offset: int) -> None:
    with pytest.raises(LayoutError, match=r"outside \[0, 8\)"):
        to_numpy(layout, np.arange(8), offset)
    with pytest.raises(LayoutError, match="axes, not one"):
        to_numpy(Layout(4), np.zeros((2, 4)))


def test_torn_elements() -> None:
    torn = np.lib.stride_tricks.as_strided(np.zeros(4, np.int32), (3,), (2,))
    with pytest.raises(LayoutError, match="not multiples of the 4 of an element"):
        from_numpy(torn)


def test_torch() -> None:
    """Compare with numpy, and with torch's own views and their strides."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    flat = torch.arange(5 * 6 * 7)
    for tensor in (flat.view(5, 6, 7), flat.view(5, 6, 7).permute(2, 0, 1), flat.view(30, 7)[::3, 2:5]):
        layout = from_torch(tensor)
        start = tensor.storage_offset()
        assert [int(flat[start + layout(c)]) for c in np.ndindex(*tensor.shape)] == tensor.reshape(-1).tolist()
        again = to_torch(layout, flat, start)
        assert torch.equal(again, tensor)
        assert (again.stride(), again.data_ptr()) == (tensor.stride(), tensor.data_ptr())
    with pytest.raises(LayoutError, match="negative stride"):
        to_torch(Layout(3, -1), flat, 2)
    with pytest.raises(LayoutError, match="reaches from 0 to 210"):
        to_torch(Layout(211), flat)
    with pytest.raises(LayoutError, match="one contiguous axis"):
        to_torch(Layout(2), flat.view(30, 7))
