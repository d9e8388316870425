"""Arrays and tensors: a shape and a stride for each axis, in elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout, coalesce


def from_strides(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """The layout of an array's elements: a mode an axis.

    strides   in elements
    raises    LayoutError where they are not as many as the extents, or no integers

    >>> from_strides((4, 8), (8, 1))
    Layout((4, 8), (8, 1))
    """
    return Layout(tuple(shape), tuple(strides))


def to_strides(layout: Layout) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(shape, strides) in elements, an axis a mode; a mode of several strides is merged into one where that is so.

    raises   LayoutError where a mode has no single stride, and where the layout gives no offsets

    >>> to_strides(Layout((4, (2, 3)), (6, (1, 2))))
    ((4, 6), (6, 1))
    >>> to_strides(Layout((4, (2, 4)), (2, (1, 16))))
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: to_strides: mode 1 of (4,(2,4)):(2,(1,16)) is (2,4):(1,16), which has no single stride.
      Flatten it: each of its leaves is an axis then.
    """
    if not isinstance(layout, Layout) or not layout.is_integral:
        raise LayoutError(f"to_strides: {layout} has no strides of an array: a Layout of integers is expected.")
    shape, strides = [], []
    for position in range(len(layout)):
        mode = coalesce(layout[position])
        extents, steps = mode.flat()
        if len(extents) > 1:
            raise LayoutError(
                f"to_strides: mode {position} of {layout} is {layout[position]}, which has no single stride.\n"
                "  Flatten it: each of its leaves is an axis then."
            )
        shape.append(extents[0])
        strides.append(steps[0])
    return tuple(shape), tuple(strides)


def from_numpy(array: np.ndarray) -> Layout:
    """The layout of an array's elements, from its first one on.

    raises   LayoutError where a stride is no multiple of an element's bytes

    >>> from_numpy(np.zeros((4, 8), order="F")), from_numpy(np.zeros((4, 8))[::2, ::-1])
    (Layout((4, 8), (1, 4)), Layout((2, 8), (16, -1)))
    """
    if any(stride % array.itemsize for stride in array.strides):
        raise LayoutError(
            f"from_numpy: the strides {array.strides} in bytes are no multiples of the {array.itemsize} of an element."
        )
    return from_strides(array.shape, [stride // array.itemsize for stride in array.strides])


def to_numpy(layout: Layout, array: np.ndarray, offset: int = 0) -> np.ndarray:
    """A view of a one-dimensional array through a layout: an axis a mode, as many as it has.

    offset   elements to that of coordinate 0
    raises   LayoutError where the layout reaches outside the array; see `to_strides` for others

    >>> to_numpy(Layout((2, 3), (3, 1)), np.arange(6))
    array([[0, 1, 2],
           [3, 4, 5]])
    """
    shape, strides = to_strides(layout)
    if array.ndim != 1:
        raise LayoutError(f"to_numpy: the array has {array.ndim} axes; one is expected. Pass array.reshape(-1).")
    _check_reach("to_numpy", layout, shape, strides, offset, len(array))
    in_bytes = [stride * array.strides[0] for stride in strides]
    return np.lib.stride_tricks.as_strided(array[offset:], shape, in_bytes)


def from_torch(tensor: Any) -> Layout:
    """The layout of a tensor's elements, from its first one on.

    tensor   anything with torch's `shape` and `stride()`
    """
    return from_strides(tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride())))


def to_torch(layout: Layout, tensor: Any, offset: int = 0) -> Any:
    """A view of a one-dimensional contiguous tensor through a layout: an axis a mode.

    offset   elements to that of coordinate 0
    raises   LayoutError where the layout reaches outside the tensor or has a negative stride, which torch has not; see
             `to_strides` for others
    """
    shape, strides = to_strides(layout)
    if any(stride < 0 for stride in strides):
        raise LayoutError(f"to_torch: {layout} has a negative stride, and torch's tensors have none.")
    if tensor.ndim != 1 or not tensor.is_contiguous():
        raise LayoutError(
            f"to_torch: a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}; one contiguous axis is "
            "expected. Pass tensor.reshape(-1)."
        )
    _check_reach("to_torch", layout, shape, strides, offset, len(tensor))
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _check_reach(
    operation: str, layout: Layout | ComposedLayout, shape: Any, strides: Any, offset: int, count: int
) -> None:
    """raises LayoutError where an element would lie outside of so many"""
    if 0 in shape:
        return
    ends = [(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)]
    low, high = offset + sum(min(end, 0) for end in ends), offset + sum(max(end, 0) for end in ends)
    if low < 0 or high >= count:
        raise LayoutError(
            f"{operation}: {layout} at offset {offset} reaches from {low} to {high}; there are {count} elements."
        )
