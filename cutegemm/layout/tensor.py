"""Tensor: an array seen through a layout."""

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
    """An array seen through a layout: at a coordinate c it has the element array[offset + layout(c)].

    Slices and partitions are views: they share the array. Without an array the elements are the offsets
    themselves, or the coordinates that the layout gives.

    array    one-dimensional numpy array, or None
    layout   of offsets into the array, plain or composed
    offset   of coordinate 0
    raises   LayoutError where the layout reaches outside the array

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
                    f"Tensor: the array has shape {array.shape}; the layout gives offsets into a "
                    "one-dimensional array. Pass `array.reshape(-1)`."
                )
            low, high = _reach(layout, offset)
            if low < 0 or high >= len(array):
                raise LayoutError(
                    f"Tensor: {layout} at offset {offset} reaches from {low} to {high}, the array has "
                    f"{len(array)} elements."
                )
        elif not isinstance(offset, int):
            offset = as_int_tuple(offset, f"{_CALL}: offset")
        if array is None and isinstance(layout, Layout) and not layout.is_integral:
            # The coordinate that it starts at names every mode, also those of extent 1, which no stride
            # moves along after a divide.
            offset = add(offset, layout.offset_of(0))
        self.array, self.layout, self.offset = array, layout, offset

    @staticmethod
    def _of(array: np.ndarray | None, layout: Layout | ComposedLayout, offset: Any) -> Tensor:
        """A view whose layout may run past the end, as the last tile of a ragged divide does."""
        out = object.__new__(Tensor)
        out.array, out.layout, out.offset = array, layout, offset
        return out

    def with_layout(self, function: Callable[[Any], Any]) -> Tensor:
        """The same array at the same offset, with `function` of the layout."""
        if isinstance(self.layout, ComposedLayout):
            return Tensor._of(self.array, self.layout.with_outer(function(self.layout.outer)), self.offset)
        return Tensor._of(self.array, function(self.layout), self.offset)

    @property
    def shape(self) -> IntTuple:
        """The shape of the layout."""
        return self.layout.shape

    def size(self) -> int:
        """How many elements it has."""
        return product(self.layout.shape)

    __iter__ = None

    def __getitem__(self, coord: Any) -> Any:
        """The element at a coordinate; where the coordinate holds None, a view of those modes."""
        coord = as_tuples(coord)
        if has_none(coord):
            return self._view(coord)
        offset = add(self.offset, self.layout(coord))
        if self.array is None:
            return offset
        return self.array[self._checked(offset, coord)]

    def _view(self, coord: Any) -> Tensor:
        if isinstance(self.layout, ComposedLayout):
            return Tensor._of(self.array, self.layout(coord), self.offset)
        layout, offset = self.layout.slice(coord)
        return Tensor._of(self.array, layout, add(self.offset, offset))

    def _checked(self, offset: int, coord: Any) -> int:
        assert self.array is not None
        if not 0 <= offset < len(self.array):
            raise LayoutError(
                f"Tensor: the coordinate {coord} of {self.layout} has the offset {offset}, the array has "
                f"{len(self.array)} elements."
            )
        return offset

    def __setitem__(self, coord: Any, value: Any) -> None:
        """Assigns an element, or all elements of a view: a scalar, a Tensor, or values in index order."""
        if self.array is None:
            raise LayoutError(f"Tensor: {self} holds its own coordinates; nothing can be assigned.")
        try:
            self._assign(as_tuples(coord), value)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, LayoutError):
                raise
            raise LayoutError(
                f"Tensor: {value!r} cannot be assigned to elements of {self}: {error}"
            ) from error

    def _assign(self, coord: Any, value: Any) -> None:
        assert self.array is not None
        if not has_none(coord):
            self.array[self._checked(add(self.offset, self.layout(coord)), coord)] = value
            return
        view = self._view(coord)
        if isinstance(value, Tensor):
            value = value.values()
        values = np.asarray(value)
        if values.ndim and values.size != view.size():
            raise LayoutError(f"Tensor: {values.size} values do not fill the {view.size()} of {view.layout}.")
        self.array[view.offsets()] = values.reshape(-1, order="F") if values.ndim else values

    def offsets(self) -> np.ndarray:
        """The offset of every element in colexicographic order; rows of coordinates without an array.

        raises   LayoutError where one lies outside the array
        """
        if self.array is None:
            return _coordinates(self)
        out = self.layout.offsets() + self.offset
        if len(out) and (out.min() < 0 or out.max() >= len(self.array)):
            raise LayoutError(
                f"Tensor: {self.layout} at offset {self.offset} reaches from {out.min()} to {out.max()}, the "
                f"array has {len(self.array)} elements."
            )
        return out

    def values(self) -> np.ndarray:
        """Every element in colexicographic order."""
        return self.offsets() if self.array is None else self.array[self.offsets()]

    def numpy(self) -> np.ndarray:
        """A copy with an axis for each mode.

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
        held = "coordinates" if self.array is None else f"{self.array.dtype}"
        return f"Tensor<{held} at {self.offset} o {self.layout}>"


def _reach(layout: Layout | ComposedLayout, offset: Any) -> tuple[int, int]:
    """The smallest and the largest offset; (0, -1) where there is none."""
    if product(layout.shape) == 0:
        return 0, -1
    if isinstance(layout, ComposedLayout) or layout.is_xor:
        offsets = layout.offsets() + offset
        return int(offsets.min()), int(offsets.max())
    if not layout.is_integral:
        raise LayoutError(f"Tensor: {layout} gives coordinates, which are no offsets into an array.")
    ends = [(s - 1) * d for s, d in zip(*layout.flat(), strict=True)]
    return offset + sum(min(e, 0) for e in ends), offset + sum(max(e, 0) for e in ends)


def _coordinates(tensor: Tensor) -> np.ndarray:
    layout = tensor.layout
    if isinstance(layout, ComposedLayout) or not isinstance(tensor.offset, tuple):
        return layout.offsets() + tensor.offset
    extents, strides = layout.flat()
    columns = []
    for path, start in _leaves(tensor.offset, ()):
        along = [d.value if isinstance(d, ScaledBasis) and d.mode == path else 0 for d in strides]
        columns.append(Layout._of(extents, tuple(along)).offsets() + start)
    return np.stack(columns, axis=-1)


def _leaves(coord: Any, path: tuple[int, ...]) -> list[tuple[tuple[int, ...], int]]:
    """The leaves of a coordinate, each with its path of modes from the outside in."""
    if isinstance(coord, tuple):
        return [leaf for mode, part in enumerate(coord) for leaf in _leaves(part, (*path, mode))]
    return [(path, coord)]


def domain_offset(coord: Any, tensor: Tensor) -> Tensor:
    """The tensor whose first element is the one at `coord`; it keeps its shape, and may run over the end.

    source   CuTe, `domain_offset`

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
        return Tensor._of(tensor.array, ComposedLayout(layout.inner, moved, layout.outer), start)
    if layout.is_xor:
        raise LayoutError(
            f"domain_offset: {layout} has strides over F2; the part of {coord} is XORed, not added."
        )
    return Tensor._of(tensor.array, layout, add(start, layout.offset_of(coord)))


def make_identity_tensor(shape: IntTuple) -> Tensor:
    """The tensor that holds each coordinate of `shape`: a predicate or a TMA coordinate is read off it.

    >>> make_identity_tensor((4, 8))[2, 5]
    (2, 5)
    """
    return Tensor(None, make_identity_layout(as_int_tuple(shape, "make_identity_tensor(shape): shape")))
