"""The class `Tensor`: an array with a layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import hooks
from cutegemm.layout.construction import make_identity_layout
from cutegemm.layout.inttuple import (
    IntTuple,
    as_int_tuple,
    as_integer,
    as_tuples,
    product,
    product_each,
    shown,
    wrong_kind,
)
from cutegemm.layout.layout import MAX_OFFSETS, Layout, has_none
from cutegemm.layout.stride import ScaledBasis, add
from cutegemm.layout.swizzle import ComposedLayout

_CALL = "Tensor(array, layout, offset)"


class Tensor(hooks.Shown):
    """Accesses the elements of an array by coordinates of a layout: element c is array[offset + layout(c)].

    Slices and partitions are views, which share the array. Without an array, the element at a coordinate is the
    offset itself, or the coordinate that the layout returns.

    array    one-dimensional numpy array, or None
    layout   Layout or ComposedLayout, whose offsets are indices of the array
    offset   index of the element at coordinate 0; without an array also a coordinate
    raises   LayoutError if an offset lies outside of the array

    >>> T = Tensor(np.arange(32), Layout((4, 8), (8, 1)))
    >>> int(T[1, 3]), T[2, None].numpy()
    (11, array([16, 17, 18, 19, 20, 21, 22, 23]))
    >>> T[2, None] = 0
    >>> int(T.numpy().sum())
    340
    """

    __slots__ = ("array", "layout", "offset")

    def __init__(self, array: np.ndarray | None, layout: Layout | ComposedLayout, offset: Any = 0) -> None:
        if not isinstance(layout, (Layout, ComposedLayout)):
            raise wrong_kind(f"{_CALL}: layout", layout, "a Layout or a ComposedLayout")
        if array is not None:
            if type(offset) is not int:
                offset = as_integer(offset, f"{_CALL}: offset")
            if not isinstance(array, np.ndarray):
                raise wrong_kind(f"{_CALL}: array", array, "a numpy array or None")
            if array.ndim != 1:
                raise LayoutError(
                    f"Tensor: the array has shape {array.shape}, but the layout returns offsets into a "
                    "one-dimensional array. Pass array.reshape(-1)."
                )
            low, high = _reach(layout, offset)
            if low < 0 or high >= len(array):
                raise LayoutError(
                    f"Tensor: {layout} at offset {offset} has offsets from {low} to {high}, but the array has "
                    f"{len(array)} elements."
                )
        elif not isinstance(offset, int):
            offset = as_int_tuple(offset, f"{_CALL}: offset")
        if array is None and isinstance(layout, Layout) and not layout.is_integral:
            # The first coordinate has an entry for every mode. After a divide, no stride moves along a mode of
            # extent 1.
            offset = add(offset, layout.offset_of(0))
        self.array, self.layout, self.offset = array, layout, offset

    @staticmethod
    def _unchecked(array: np.ndarray | None, layout: Layout | ComposedLayout, offset: Any) -> Tensor:
        """Return a view whose layout may reach past the array, as the last tile of a ragged divide does.

        array    one-dimensional numpy array, or None
        layout   layout whose offsets are indices of the array
        offset   index of the element at coordinate 0
        """
        out = object.__new__(Tensor)
        out.array, out.layout, out.offset = array, layout, offset
        return out

    def with_layout(self, function: Callable[[Any], Any]) -> Tensor:
        """Return the tensor with the same array and offset whose layout is `function` of this tensor's layout.

        function   from a Layout to a Layout; it receives the outer layout of a composed one
        """
        if isinstance(self.layout, ComposedLayout):
            return Tensor._unchecked(self.array, self.layout.with_outer(function(self.layout.outer)), self.offset)
        return Tensor._unchecked(self.array, function(self.layout), self.offset)

    @property
    def shape(self) -> IntTuple:
        """Shape of this tensor's layout, a nested tuple of extents."""
        return self.layout.shape

    def size(self) -> int:
        """Return the number of elements of this tensor: the product of its extents."""
        return product(self.layout.shape)

    __iter__ = None

    def __getitem__(self, coord: Any) -> Any:
        """Return the element of this tensor at a coordinate, or a view if the coordinate contains None.

        coord    integer or nested tuple; None stands for all coordinates of a mode
        raises   LayoutError for a coordinate that does not fit the shape or whose element lies outside of the
                 array
        """
        coord = as_tuples(coord)
        if has_none(coord):
            return self._view(coord)
        offset = add(self.offset, self.layout(coord))
        if self.array is None:
            return offset
        return self.array[self._checked(offset, coord)]

    def _view(self, coord: Any) -> Tensor:
        """Return the view of this tensor with the modes at None in a coordinate; the other modes are fixed.

        coord   nested tuple of integers (fixed modes) and None (kept modes)
        """
        if isinstance(self.layout, ComposedLayout):
            return Tensor._unchecked(self.array, self.layout(coord), self.offset)
        layout, offset = self.layout.slice(coord)
        return Tensor._unchecked(self.array, layout, add(self.offset, offset))

    def _checked(self, offset: int, coord: Any) -> int:
        """Return `offset` if it lies in the array of this tensor; raise LayoutError otherwise.

        coord   coordinate that has this offset, for the message
        """
        assert self.array is not None
        if not 0 <= offset < len(self.array):
            raise LayoutError(
                f"Tensor: coordinate {coord} of {self.layout} has offset {offset}, but the array has "
                f"{len(self.array)} elements."
            )
        return offset

    def __setitem__(self, coord: Any, value: Any) -> None:
        """Assign an element of this tensor, or all elements of a view, if the coordinate contains None.

        coord    integer or nested tuple; None stands for all coordinates of a mode
        value    a scalar, a Tensor, or as many values as the view has elements, in colexicographic order
        raises   LayoutError for a tensor without an array, or for values that do not fit
        """
        if self.array is None:
            raise LayoutError(f"Tensor: {self} has no array, so nothing can be assigned. Make it with an array.")
        try:
            self._assign(as_tuples(coord), value)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, LayoutError):
                raise
            raise LayoutError(f"Tensor: {value!r} cannot be assigned to elements of {self}: {error}") from error

    def _assign(self, coord: Any, value: Any) -> None:
        """Assign a value to an element of this tensor or to a view; errors of numpy are not converted to LayoutError.

        coord   integer or nested tuple; None stands for all coordinates of a mode
        value   a scalar, a Tensor, or as many values as the view has elements
        """
        assert self.array is not None
        if not has_none(coord):
            self.array[self._checked(add(self.offset, self.layout(coord)), coord)] = value
            return
        view = self._view(coord)
        if isinstance(value, Tensor):
            value = value.values()
        values = np.asarray(value)
        if values.ndim and values.size != view.size():
            raise LayoutError(
                f"Tensor: {values.size} values do not fill {view.layout}, which has {view.size()} elements."
            )
        self.array[view.offsets()] = values.reshape(-1, order="F") if values.ndim else values

    def offsets(self) -> np.ndarray:
        """Return the offset of every element of this tensor, in colexicographic order.

        returns   integer array with an entry for each element. If the layout returns coordinates, a row for each
                  element, with a column for each entry of the coordinate
        raises    LayoutError if an offset lies outside of the array
        """
        if self.array is None:
            return _coordinates(self)
        out = self.layout.offsets() + self.offset
        if len(out) and (out.min() < 0 or out.max() >= len(self.array)):
            raise LayoutError(
                f"Tensor: {self.layout} at offset {self.offset} has offsets from {out.min()} to {out.max()}, but the "
                f"array has {len(self.array)} elements."
            )
        return out

    def values(self) -> np.ndarray:
        """Return all elements of this tensor in colexicographic order; without an array, the offsets or coordinates."""
        return self.offsets() if self.array is None else self.array[self.offsets()]

    def numpy(self) -> np.ndarray:
        """Return a copy of this tensor's elements as a numpy array with an axis for each mode.

        returns   array of the shape of the tensor. If the layout returns coordinates, a last axis
                  holds the entries of each coordinate
        raises    LayoutError for an axis of more than 2**28 elements

        >>> Tensor(np.arange(6), Layout((2, 3), (3, 1))).numpy()
        array([[0, 1, 2],
               [3, 4, 5]])
        """
        extents = product_each(self.shape)
        axes = extents if isinstance(extents, tuple) else (extents,)
        if max(axes, default=0) > MAX_OFFSETS:
            raise LayoutError(
                f"Tensor.numpy: an axis of {shown(max(axes))} elements; at most {MAX_OFFSETS} are allowed."
            )
        values = self.values()
        if values.ndim == 2:
            return values.reshape((*axes, values.shape[1]), order="F")
        return values.reshape(axes, order="F")

    def __repr__(self) -> str:
        elements = "coordinates" if self.array is None else f"{self.array.dtype}"
        return f"Tensor<{elements} at {self.offset} o {self.layout}>"


def _reach(layout: Layout | ComposedLayout, offset: Any) -> tuple[int, int]:
    """Return the smallest and the largest index that a tensor of this layout accesses; (0, -1) if it is empty.

    layout   layout of the tensor
    offset   index of the element at coordinate 0, added to the layout's offsets
    """
    if product(layout.shape) == 0:
        return 0, -1
    if isinstance(layout, ComposedLayout) or layout.is_xor:
        offsets = layout.offsets() + offset
        return int(offsets.min()), int(offsets.max())
    if not layout.is_integral:
        raise LayoutError(f"Tensor: {layout} returns coordinates, but an array needs offsets. Pass None as the array.")
    ends = [(s - 1) * d for s, d in zip(*layout.flat(), strict=True)]
    return offset + sum(min(e, 0) for e in ends), offset + sum(max(e, 0) for e in ends)


def _coordinates(tensor: Tensor) -> np.ndarray:
    """Return all elements of a tensor without an array, such as an identity tensor, in colexicographic order.

    An element of such a tensor is what the layout returns, a coordinate or an offset, plus the tensor's offset.

    tensor    tensor without an array
    returns   integer array with an entry for each element; for coordinates, a row for each element and a column for
              each entry of the coordinate
    """
    layout = tensor.layout
    if isinstance(layout, ComposedLayout) or not isinstance(tensor.offset, tuple):
        return layout.offsets() + tensor.offset
    extents, strides = layout.flat()
    columns = []
    for path, start in _leaves(tensor.offset, ()):
        along = [d.value if isinstance(d, ScaledBasis) and d.mode == path else 0 for d in strides]
        columns.append(Layout._unchecked(extents, tuple(along)).offsets() + start)
    return np.stack(columns, axis=-1)


def _leaves(coord: Any, path: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """Return (path of mode indices from the outside in, value) for each leaf of a nested coordinate.

    For example, (3, (4, 5)) gives ((0,), 3), ((1, 0), 4) and ((1, 1), 5).

    coord   coordinate
    path    path of the mode that has this coordinate; () for the whole coordinate
    """
    if isinstance(coord, tuple):
        return [leaf for mode, part in enumerate(coord) for leaf in _leaves(part, (*path, mode))]
    return [(path, coord)]


def domain_offset(coord: Any, tensor: Tensor) -> Tensor:
    """Return the tensor of the same shape whose first element is the one of `tensor` at `coord`.

    coord     coordinate without None
    tensor    Tensor
    returns   Tensor, which may reach past the array
    raises    LayoutError for a coordinate that does not fit, and for strides over F2 (XORed)
    source    CuTe, `domain_offset`

    >>> domain_offset((2, 3), make_identity_tensor((4, 8)))[1, 1]
    (3, 4)
    """
    call = "domain_offset(coord, tensor)"
    coord = as_int_tuple(coord, f"{call}: coord")
    if not isinstance(tensor, Tensor):
        raise wrong_kind(f"{call}: tensor", tensor, "a Tensor")
    layout, start = tensor.layout, tensor.offset
    if isinstance(layout, ComposedLayout):
        moved = add(layout.offset, layout.outer.offset_of(coord))
        return Tensor._unchecked(tensor.array, ComposedLayout(layout.inner, moved, layout.outer), start)
    if layout.is_xor:
        raise LayoutError(
            f"domain_offset: {layout} has strides over F2; the contribution of {coord} is XORed, not added."
        )
    return Tensor._unchecked(tensor.array, layout, add(start, layout.offset_of(coord)))


def make_identity_tensor(shape: IntTuple) -> Tensor:
    """Return the tensor without an array whose element at a coordinate of `shape` is that coordinate.

    Partitioned like a matrix, it gives each thread the coordinates of its elements, for predicates and TMA.

    source   CuTe, `make_identity_tensor`

    >>> make_identity_tensor((4, 8))[2, 5]
    (2, 5)
    """
    return Tensor(None, make_identity_layout(as_int_tuple(shape, "make_identity_tensor(shape): shape")))
