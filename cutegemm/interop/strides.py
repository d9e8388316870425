"""Convert layouts from and to the shapes and strides of numpy arrays and torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout, coalesce


def from_strides(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """Return the layout of an array with the given shape and strides, with one mode per axis.

    shape     extent of each axis
    strides   stride of each axis, in elements (numpy's strides are in bytes)
    raises    LayoutError if the number of strides is not the number of extents, or a value is not an integer

    >>> from_strides((4, 8), (8, 1))
    Layout((4, 8), (8, 1))
    """
    return Layout(tuple(shape), tuple(strides))


def to_strides(layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return (shape, strides) of an array with the given layout: one axis per mode, strides in elements.

    A hierarchical mode becomes one axis if its leaves follow each other at one stride, e.g. (2, 3):(1, 2) is 6:1.

    raises   LayoutError if a mode does not have a single stride, or if the layout does not map to integer offsets

    >>> to_strides(Layout((4, (2, 3)), (6, (1, 2))))
    ((4, 6), (6, 1))
    >>> to_strides(Layout((4, (2, 4)), (2, (1, 16))))
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: to_strides: mode 1 of (4,(2,4)):(2,(1,16)) is (2,4):(1,16), which has no single stride.
      Flatten the layout, so that each leaf is an axis.
    """
    if not isinstance(layout, Layout) or not layout.is_integral:
        raise LayoutError(f"to_strides: {layout} has no strides of an array. Pass a Layout with integer strides.")
    shape, strides = [], []
    for position in range(len(layout)):
        mode = coalesce(layout[position])
        extents, steps = mode.flat()
        if len(extents) > 1:
            raise LayoutError(
                f"to_strides: mode {position} of {layout} is {layout[position]}, which has no single stride.\n"
                "  Flatten the layout, so that each leaf is an axis."
            )
        shape.append(extents[0])
        strides.append(steps[0])
    return tuple(shape), tuple(strides)


def from_numpy(array: np.ndarray) -> Layout:
    """Return the layout of a numpy array: one mode per axis, strides in elements (not bytes).

    Offsets count from the array's first element, so strides may be negative.

    raises   LayoutError if a stride is not a multiple of the element size, as in a field of a structured array

    >>> from_numpy(np.zeros((4, 8), order="F")), from_numpy(np.zeros((4, 8))[::2, ::-1])
    (Layout((4, 8), (1, 4)), Layout((2, 8), (16, -1)))
    """
    if any(stride % array.itemsize for stride in array.strides):
        raise LayoutError(
            f"from_numpy: the strides {array.strides} in bytes are not multiples of the {array.itemsize} of an "
            "element. Pass array.copy()."
        )
    return from_strides(array.shape, [stride // array.itemsize for stride in array.strides])


def to_numpy(layout: Layout, array: np.ndarray, offset: int = 0) -> np.ndarray:
    """Return a view of a one-dimensional numpy array, shaped and strided by a layout.

    layout   layout of the view: one axis per mode; the view's element at a coordinate is `array[offset +
             layout(coordinate)]`
    offset   index in `array` of the element at coordinate 0
    raises   LayoutError if the array does not have one axis, if the layout reaches outside the array, or if a
             hierarchical mode is not equal to a single extent and stride: (2, 3):(1, 2) is 6:1, but (2, 3):(1, 4) is
             not

    >>> to_numpy(Layout((2, 3), (3, 1)), np.arange(6))
    array([[0, 1, 2],
           [3, 4, 5]])
    """
    shape, strides = to_strides(layout)
    if array.ndim != 1:
        raise LayoutError(f"to_numpy: the array has {array.ndim} axes, not one. Pass array.reshape(-1).")
    _check_reach("to_numpy", layout, shape, strides, offset, len(array))
    in_bytes = [stride * array.strides[0] for stride in strides]
    return np.lib.stride_tricks.as_strided(array[offset:], shape, in_bytes)


def from_torch(tensor: Any) -> Layout:
    """Return the layout of a torch tensor: one mode per axis, strides in elements.

    Offsets count from the tensor's first element.

    tensor   a tensor, or any object with torch's `shape` and `stride()`
    """
    return from_strides(tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())))


def to_torch(layout: Layout, tensor: Any, offset: int = 0) -> Any:
    """Return a view of a one-dimensional torch tensor, shaped and strided by a layout.

    layout   layout of the view, without negative strides: one axis per mode; the view's element at a coordinate is
             `tensor[offset + layout(coordinate)]`
    tensor   contiguous tensor with one axis
    offset   index in `tensor` of the element at coordinate 0
    raises   LayoutError if the tensor is not of this kind, if the layout has a negative stride or reaches outside the
             tensor, or if a hierarchical mode is not equal to a single extent and stride: (2, 3):(1, 2) is 6:1, but (2,
             3):(1, 4) is not
    """
    shape, strides = to_strides(layout)
    if any(stride < 0 for stride in strides):
        raise LayoutError(f"to_torch: {layout} has a negative stride; torch does not support them.")
    if tensor.ndim != 1 or not tensor.is_contiguous():
        raise LayoutError(
            f"to_torch: the tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()} does not have one "
            "contiguous axis. Pass tensor.reshape(-1)."
        )
    _check_reach("to_torch", layout, shape, strides, offset, len(tensor))
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _check_reach(
    operation: str, layout: Layout | ComposedLayout, shape: Any, strides: Any, offset: int, count: int
) -> None:
    """Raise LayoutError if an element of a layout, placed at `offset`, lies outside a memory of `count` elements.

    operation        name of the function, for the message
    layout           the layout as the user passed it, for the message
    shape, strides   extent and stride of each axis of that layout, strides in elements
    offset           index of the element at coordinate 0
    count            number of elements of the memory
    """
    if 0 in shape:
        return
    ends = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low, high = offset + sum(min(end, 0) for end in ends), offset + sum(max(end, 0) for end in ends)
    if low < 0 or high >= count:
        raise LayoutError(
            f"{operation}: {layout} at offset {offset} reaches from {low} to {high}, outside [0, {count})."
        )
