"""`synthesize`: the smallest layout with a given table of offsets, or the reason why there is none."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import f2
from cutegemm.layout.algebra import from_flat, strides_of
from cutegemm.layout.inttuple import IntTuple, as_int_tuple, flatten, idx2crd, product, shown, unflatten
from cutegemm.layout.layout import INT64_MAX, Layout, _text
from cutegemm.layout.swizzle import ComposedLayout


def synthesize(offsets: Any, shape: IntTuple | None = None) -> Layout | ComposedLayout:
    """The layout with the fewest modes that gives these offsets: plain, else a swizzle of a plain one, else
    one with strides over F2.

    offsets   of every coordinate in colexicographic order, or an array with an axis for each mode
    shape     of the layout, which may refine its modes; None for the shape of the array, one mode of a list
    raises    LayoutError where no layout gives them, with the first coordinate that shows it

    >>> synthesize([0, 8, 16, 24, 1, 9, 17, 25])
    Layout((4, 2), (8, 1))
    >>> print(synthesize([0, 1, 2, 3, 5, 4, 7, 6]))
    S<1,0,2> o 0 o 8:1
    >>> synthesize([0, 1, 3, 2, 4])
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: synthesize: no layout over 5 elements gives these offsets.
      Strides that give 0, 1 up to there do not give 3 at index 2.
      Over F2 there is none, as 5 is no power of two.
    """
    try:
        table = np.asarray(offsets)
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"synthesize(offsets, shape): offsets is {shown(offsets)}; integers are expected, in a list or an array "
            f"({error})."
        ) from error
    if not table.size:
        raise LayoutError(
            "synthesize(offsets, shape): offsets is empty. Give at least the offset of coordinate 0."
        )
    if table.dtype.kind not in "iu":
        raise LayoutError(
            f"synthesize(offsets, shape): offsets is {shown(offsets)}, of type {table.dtype}; "
            "integers of at most 64 bits are expected."
        )
    if table.max() > INT64_MAX:
        raise LayoutError(
            f"synthesize(offsets, shape): the offset {table.max()} does not fit a signed integer of 64 bits."
        )
    if shape is None:
        shape = tuple(table.shape) if table.ndim != 1 else len(table)
    shape = as_int_tuple(shape, "synthesize(offsets, shape): shape")
    flat = table.reshape(-1, order="F").astype(np.int64)
    if product(shape) != len(flat):
        raise LayoutError(f"synthesize: {len(flat)} offsets do not fill the shape {_text(shape)}.")
    if flat[0] != 0:
        raise LayoutError(
            f"synthesize: the first offset is {flat[0]}; a layout takes coordinate 0 to 0. Subtract it."
        )
    plain = _plain(flat, shape)
    if isinstance(plain, Layout):
        return plain
    linear = _linear(flat, shape)
    if isinstance(linear, str):
        coord = idx2crd(plain, shape)
        where = "index" if isinstance(coord, int) else "coordinate"
        before = ", ".join(str(v) for v in flat[: min(plain, 6)]) + (", ..." if plain > 6 else "")
        raise LayoutError(
            f"synthesize: no layout over {_text(shape)} elements gives these offsets.\n"
            f"  Strides that give {before} up to there do not give {flat[plain]} at {where} {_text(coord)}.\n"
            f"  Over F2 there is none, as {linear}."
        )
    try:
        return f2.to_swizzled(linear, shape)
    except LayoutError:
        return linear


def _plain(flat: np.ndarray, shape: IntTuple) -> Layout | int:
    """The layout with integer strides, or the first index whose offset no strides give."""
    extents = flatten(shape)
    leaves, unit = [], 1
    for extent in extents:
        along = flat[: unit * extent : unit]
        found = strides_of(along)
        if isinstance(found, int):
            return found * unit
        leaves.append(from_flat(*found))
        unit *= extent
    layout = Layout._of(
        unflatten([x.shape for x in leaves], shape), unflatten([x.stride for x in leaves], shape)
    )
    wrong = np.flatnonzero(layout.offsets() != flat)
    return int(wrong[0]) if len(wrong) else layout


def _linear(flat: np.ndarray, shape: IntTuple) -> Layout | str:
    """The layout with strides over F2, or why there is none."""
    for extent in flatten(shape):
        if extent & (extent - 1):
            return f"{extent} is no power of two"
    if flat.min() < 0:
        return f"{flat.min()} is negative"
    bits = len(flat).bit_length() - 1
    layout = f2.from_f2(f2.F2Matrix(tuple([int(flat[1 << p]) for p in range(bits)])), shape, plain=False)
    wrong = np.flatnonzero(layout.offsets() != flat)
    if len(wrong):
        index = int(wrong[0])
        return f"index {index} has {flat[index]}, and its bits XOR to {layout.offsets()[index]}"
    return layout
