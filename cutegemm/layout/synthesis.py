"""`synthesize`: the smallest layout with a given table of offsets, or the reason why no layout has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import f2
from cutegemm.layout.algebra import from_flat, strides_of
from cutegemm.layout.inttuple import IntTuple, as_int_tuple, flatten, idx2crd, product, shown, unflatten
from cutegemm.layout.layout import INT64_MAX, Layout, cute_text
from cutegemm.layout.swizzle import ComposedLayout


def synthesize(offsets: Any, shape: IntTuple | None = None) -> Layout | ComposedLayout:
    """Return the layout with the fewest modes that gives a table of offsets: 0, 1, 8, 9 gives (2,2):(1,8).

    The layout is plain if possible, else a swizzle of a plain one, else one with strides over F2, whose contributions
    are XORed.

    offsets   integers: the offset of every coordinate in colexicographic order, or an array with an axis for
              each mode. The offset of coordinate 0 is 0
    shape     shape of the layout; it may refine the axes. None for the shape of the array, one mode for a list
    raises    LayoutError if no layout gives the offsets, with the first coordinate that shows it

    >>> synthesize([0, 8, 16, 24, 1, 9, 17, 25])
    Layout((4, 2), (8, 1))
    >>> print(synthesize([0, 1, 2, 3, 5, 4, 7, 6]))
    S<1,0,2> o 0 o 8:1
    >>> synthesize([0, 1, 3, 2, 4])
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: synthesize: no layout over 5 elements gives these offsets.
      Strides that give 0, 1 up to there do not give 3 at index 2.
      Strides over F2 do not either: 5 is not a power of two.
    """
    try:
        table = np.asarray(offsets)
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"synthesize(offsets, shape): offsets is {shown(offsets)}; integers are expected, in a list or an array "
            f"({error})."
        ) from error
    if not table.size:
        raise LayoutError("synthesize(offsets, shape): offsets is empty. Give at least the offset of coordinate 0.")
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
        raise LayoutError(f"synthesize: {len(flat)} offsets do not fill the shape {cute_text(shape)}.")
    if flat[0] != 0:
        raise LayoutError(
            f"synthesize: the first offset is {flat[0]}, but a layout maps coordinate 0 to offset 0. Subtract it."
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
            f"synthesize: no layout over {cute_text(shape)} elements gives these offsets.\n"
            f"  Strides that give {before} up to there do not give {flat[plain]} at {where} {cute_text(coord)}.\n"
            f"  Strides over F2 do not either: {linear}."
        )
    try:
        return f2.to_swizzled(linear, shape)
    except LayoutError:
        return linear


def _plain(flat: np.ndarray, shape: IntTuple) -> Layout | int:
    """Return the layout with integer strides that gives a table of offsets, or the first index whose offset none gives.

    flat    offset of each index
    shape   shape of the layout
    """
    extents = flatten(shape)
    leaves, unit = [], 1
    for extent in extents:
        along = flat[: unit * extent : unit]
        flat_mode = strides_of(along)
        if isinstance(flat_mode, int):
            return flat_mode * unit
        leaves.append(from_flat(*flat_mode))
        unit *= extent
    layout = Layout._unchecked(
        unflatten([x.shape for x in leaves], shape), unflatten([x.stride for x in leaves], shape)
    )
    wrong = np.flatnonzero(layout.offsets() != flat)
    return int(wrong[0]) if len(wrong) else layout


def _linear(flat: np.ndarray, shape: IntTuple) -> Layout | str:
    """Return the layout with strides over F2 (XORed) for a table of offsets, or the reason as text why none fits.

    flat    offset of each index
    shape   shape of the layout
    """
    for extent in flatten(shape):
        if extent & (extent - 1):
            return f"{extent} is not a power of two"
    if flat.min() < 0:
        return f"{flat.min()} is negative"
    bits = len(flat).bit_length() - 1
    layout = f2.from_f2(f2.F2Matrix(tuple([int(flat[1 << p]) for p in range(bits)])), shape, plain=False)
    wrong = np.flatnonzero(layout.offsets() != flat)
    if len(wrong):
        index = int(wrong[0])
        return f"index {index} has offset {flat[index]}, but the offsets of its bits XOR to {layout.offsets()[index]}"
    return layout
