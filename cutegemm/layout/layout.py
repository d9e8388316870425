"""The class `Layout`: a function from coordinates to offsets, written as a shape and congruent strides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import hooks
from cutegemm.layout.inttuple import (
    MAX_DEPTH,
    IntTuple,
    as_int_tuple,
    as_tuples,
    flat_coord,
    flatten,
    is_congruent,
    map_leaves,
    product,
    shown,
    unflatten,
    wrong_kind,
)
from cutegemm.layout.stride import F2, MAX_F2_BITS, ScaledBasis, add

if TYPE_CHECKING:
    from cutegemm.layout.swizzle import ComposedLayout

INT64_MAX = 2**63 - 1
_CALL = "Layout(shape, stride)"
MAX_TABLE = 1 << 20  # largest number of coordinates that a decision evaluates; 2**20 take 0.1 s
MAX_OFFSETS = 1 << 28  # longest int64 array that `offsets` returns, 2 GiB


class Layout(hooks.Shown):
    """A function from coordinates to offsets: the sum of coordinate times stride over all leaves of the shape.

    A coordinate is an integer (the colexicographic index), a tuple as deep as the shape, or anything in
    between. A call accepts coordinates past the shape, as in CuTe: an index continues along the last mode, and
    a coordinate of a tuple along its own. `at` refuses both. A layout is immutable and hashable.

    shape    hierarchical extents, each 0 or more
    stride   congruent with the shape; None for the compact strides, which start with 1. Strides are all integers
             (also negative or zero), all scaled basis vectors, or all strides over F2 (XORed instead of added); 0 may
             stand among any of them
    raises   LayoutError for a negative extent, a stride that is not congruent with the shape, a leaf of another type,
             strides of different kinds, and basis vectors that overlap, such as E(0) and E((0, 1))
    source   CuTe, `Layout`

    >>> L = Layout((4, (2, 3)), (6, (1, 2)))
    >>> L(1, (1, 2)), L(13), L(1, 3), str(L)
    (11, 9, 9, '(4,(2,3)):(6,(1,2))')
    >>> L(None, 0)
    Layout((4,), (6,))
    """

    __slots__ = ("_flat", "_hash", "shape", "stride")

    shape: IntTuple
    stride: Any
    _flat: tuple[tuple[int, ...], tuple[Any, ...]] | None
    _hash: int  # set when first asked for

    def __init__(self, shape: IntTuple, stride: Any = None) -> None:
        if not _is_plain(shape, stride):
            shape, stride = _checked(shape, stride)
        _set_shape(self, shape)
        _set_stride(self, stride)
        _set_flat(self, None)

    @staticmethod
    def _unchecked(shape: IntTuple, stride: Any) -> Layout:
        """Return the layout of a valid shape and valid strides, without the checks of the constructor.

        shape, stride   nested tuples of one hierarchy
        """
        out = _new(Layout)
        _set_shape(out, shape)
        _set_stride(out, stride)
        _set_flat(out, None)
        return out

    @staticmethod
    def _joined(shape: IntTuple, stride: Any) -> Layout:
        """Return the layout of a shape and strides that come from valid layouts; only the kinds of strides are checked.

        raises   LayoutError if the strides are of different kinds
        """
        out = Layout._unchecked(shape, stride)
        if not _integers(stride):
            _check_kinds(shape, stride, *out.flat())
        return out

    @staticmethod
    def parse(text: str) -> Layout | ComposedLayout:
        """Return the layout that a text in CuTe's notation describes, such as "(4,8):(8,1)".

        text     the layout; it may have a swizzle: "S<3,4,3> o 0 o (8,64):(64,1)"
        raises   LayoutError with a caret under the first character that is wrong

        >>> Layout.parse("((2,4),8):((1,16),2)")
        Layout(((2, 4), 8), ((1, 16), 2))
        """
        layout: Layout | ComposedLayout = hooks.parse(text)
        return layout

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Layout is immutable; {name} cannot be set")

    def flat(self) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """Extents of all leaves of this layout, and their strides, from left to right, as two tuples."""
        flat = self._flat
        if flat is None:
            flat = (flatten(self.shape), flatten(self.stride))
            _set_flat(self, flat)
        return flat

    def __eq__(self, other: object) -> bool:
        return type(other) is Layout and self.shape == other.shape and self.stride == other.stride

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash((self.shape, self.stride)))
            return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Layout, (self.shape, self.stride))

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"

    def __str__(self) -> str:
        try:
            text = f"{self.shape}:{self.stride}"
        except ValueError:  # an integer that is too long for Python to print
            text = "S"
        if "S" in text or "F" in text:  # of ScaledBasis, F2
            return f"{cute_text(self.shape)}:{cute_text(self.stride)}"
        return text.replace(" ", "").replace(",)", ")")

    __iter__ = None

    def __len__(self) -> int:
        return len(self.shape) if isinstance(self.shape, tuple) else 1

    def __getitem__(self, mode: int) -> Layout:
        """Return the layout of one mode of this layout, such as 8:1 for mode 1 of (4,8):(8,1).

        mode     index; a negative one counts from the end
        raises   LayoutError for a mode that the layout does not have
        """
        if not isinstance(self.shape, tuple):
            if mode in (0, -1):
                return self
        elif isinstance(mode, int) and -len(self.shape) <= mode < len(self.shape):
            return Layout._unchecked(self.shape[mode], self.stride[mode])
        raise LayoutError(f"{self} of rank {len(self)} has no mode {shown(mode)}. Use 0 to {len(self) - 1}.")

    def __call__(self, *coord: Any) -> Any:
        """Return the offset of a coordinate in this layout, or the layout of the modes that have the entry None.

        coord     one coordinate, or its modes as separate arguments; None stands for all coordinates of a mode
        returns   offset; or Layout, which does not include the offset of the other modes
        """
        c = coord[0] if len(coord) == 1 else coord
        offset = _plain_offset(c, self)
        if offset is not None:
            return offset
        c = as_tuples(c)
        if has_none(c):
            return self.slice(c)[0]
        return self.offset_of(c)

    def at(self, *coord: Any) -> Any:
        """Return the offset of a coordinate, after checking that the coordinate lies in the shape of this layout.

        coord    one coordinate, or its modes as separate arguments
        raises   LayoutError for a coordinate outside of the shape; the plain call `layout(*coord)` accepts it

        >>> L = Layout((4, 8))
        >>> L.at(3, 7), L.at(31), L(4, 8)
        (31, 31, 36)
        >>> L.at(4, 8)
        Traceback (most recent call last):
            ...
        cutegemm.errors.LayoutError: (4,8):(1,4).at(4,8) lies outside: 4 is not below 4, 8 is not below 8.
        """
        c = as_tuples(coord[0] if len(coord) == 1 else coord)
        if has_none(c):
            raise LayoutError(
                f"{self}.at({cute_text(c)}): a coordinate with None is a slice. Call the layout to slice it."
            )
        wrong = [*_outside(c, self.shape)]
        if wrong:
            where = cute_text(c)[1:-1] if isinstance(c, tuple) else cute_text(c)
            raise LayoutError(f"{self}.at({where}) lies outside: {', '.join(wrong)}.")
        return self.offset_of(c)

    def offset_of(self, coord: IntTuple) -> Any:
        """Return the offset of a coordinate without None in this layout; a layout of coordinates returns a coordinate.

        raises   LayoutError if the coordinate does not fit the shape

        >>> Layout((4, 8), (8, 1)).offset_of((1, 2))
        10
        """
        try:
            leaves = flat_coord(coord, self.shape)
        except LayoutError as error:
            raise LayoutError(f"{self}(coord): {error}") from error
        except TypeError:
            as_int_tuple(coord, f"{self}(coord): coord")
            raise
        out: Any = 0
        for c, d in zip(leaves, self.flat()[1], strict=True):
            if type(d) is int and type(out) is int:
                out = out + c * d
            else:
                out = add(out, d.at(c) if type(d) is F2 else c * d)
        return out.value if type(out) is F2 else out

    def with_shape(self, *shape: IntTuple) -> Layout:
        """Return the layout of another shape that gives the same offset for each index as this layout.

        shape    extents, or one tuple of them; if their product is larger than the size, the last mode
                 continues
        raises   LayoutError for a shape of another kind, or if no strides give these offsets in that shape
        source   CuTe, `Layout::with_shape`: the composition with the compact layout of the shape

        >>> Layout(32, 2).with_shape(4, 8)
        Layout((4, 8), (2, 8))
        """
        reshaped: Layout = hooks.composition(self, _compact_layout(shape))
        return reshaped

    def slice(self, coord: Any) -> tuple[Layout, Any]:
        """Return (layout of the modes at None in `coord`, offset of the fixed modes), for this layout.

        coord    coordinate with None for each mode to keep: (2, None) of (4,8):(8,1) gives (8):(1) and 16
        raises   LayoutError if the coordinate does not fit the shape, or for a layout with strides over F2 (XORed)

        >>> Layout((4, (2, 4)), (8, (1, 2))).slice((None, (1, None)))
        (Layout((4, 4), (8, 2)), 1)
        """
        if self.is_xor:
            raise LayoutError(
                f"slice: {self} has strides over F2; the contribution of a fixed coordinate is XORed, not added.\n"
                "  Evaluate the layout, or compose it with a layout of the coordinates that you want."
            )
        kept: list[tuple[IntTuple, Any]] = []
        offset = _slice(coord, self.shape, self.stride, kept, self)
        if coord is None:
            return self, offset
        return Layout._unchecked(tuple([k[0] for k in kept]), tuple([k[1] for k in kept])), offset

    @property
    def is_integral(self) -> bool:
        """True if this layout returns offsets, so that every stride is an integer."""
        return {*map(type, self.flat()[1])} <= {int}  # `all` with a generator takes three times as long

    @property
    def is_coordinates(self) -> bool:
        """True if this layout returns coordinates, so that at least one stride is a scaled basis vector such as 2@1."""
        return ScaledBasis in {*map(type, self.flat()[1])}

    @property
    def is_xor(self) -> bool:
        """True if this layout has strides over F2, whose contributions are XORed instead of added."""
        return _over_f2(self.stride)

    def size(self) -> int:
        """Return the number of coordinates of this layout: the product of its extents."""
        return product(self.shape)

    def cosize(self) -> IntTuple:
        """Return the number of offsets that this layout spans: 1 + the sum of (extent - 1) * |stride|.

        An empty layout spans 0 offsets.

        returns   an integer; for a layout of coordinates the span of each mode of the coordinate; for strides
                  over F2 one more than the largest offset

        >>> Layout((4, 8), (8, 1)).cosize(), Layout((4, 2), (-1, 4)).cosize()
        (32, 8)
        """
        extents, strides = self.flat()
        if 0 in extents:
            return 0
        if self.is_integral:
            return 1 + sum([(s - 1) * abs(d) for s, d in zip(extents, strides, strict=True)])
        if self.is_xor:
            return _largest_xor(extents, strides) + 1
        reach: Any = 0
        for s, d in zip(extents, strides, strict=True):
            reach = add(reach, (s - 1) * (abs(d) if type(d) is int else ScaledBasis(abs(d.value), d.mode)))
        return map_leaves(lambda r: r + 1, reach)

    def _check_size(self) -> None:
        """Raise LayoutError if a table of all offsets of this layout is too large for memory.

        raises   LayoutError for more than 2**28 coordinates, or 2**20 if the offsets do not fit 64 bits
        """
        most = MAX_OFFSETS if all(reach <= INT64_MAX for reach in flatten(self.cosize())) else MAX_TABLE
        if self.size() > most:
            raise LayoutError(
                f"offsets: {self} has {shown(self.size())} coordinates; at most {most} are evaluated. "
                "Call the layout at the coordinates that you need."
            )

    def offsets(self) -> np.ndarray:
        """Return the offsets of all coordinates of this layout, as an array in colexicographic order.

        The array has one axis and the type int64, or holds Python integers if 64 bits are too few. If the layout
        returns coordinates, there is one row for each, with a column for each entry.

        raises    LayoutError for more than 2**28 coordinates, or 2**20 if the offsets do not fit 64 bits

        >>> Layout((2, 3), (3, 1)).offsets()
        array([0, 3, 1, 4, 2, 5])
        """
        extents, strides = self.flat()
        if self.size() > MAX_TABLE:
            self._check_size()
        if self.is_integral:
            return _outer_sum(extents, strides)
        if self.is_xor:
            return _xor_table(extents, strides)
        modes = sorted({d.mode for d in strides if isinstance(d, ScaledBasis)})
        columns = [[d.value if isinstance(d, ScaledBasis) and d.mode == mode else 0 for d in strides] for mode in modes]
        return np.stack([_outer_sum(extents, column) for column in columns], axis=-1)


def _compact_layout(extents: tuple[IntTuple, ...]) -> Layout:
    """Return the compact layout (strides start with 1, no gaps) of the shape that `with_shape` was called with.

    extents   one entry for each mode, or one tuple of them
    """
    shape = extents[0] if len(extents) == 1 else extents
    return Layout(as_int_tuple(shape, "with_shape(*shape): shape"))


# A layout is immutable from the outside; this module sets its `__slots__` directly, which is faster.
_new = object.__new__
_set_shape, _set_stride, _set_flat = (Layout.__dict__[n].__set__ for n in ("shape", "stride", "_flat"))


def _outer_sum(extents: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """Return the offsets of a layout with integer strides in colexicographic order.

    extents   extents of all leaves
    strides   their strides
    """
    if 0 in extents:
        return np.zeros(0, np.int64)
    reach = sum([(s - 1) * abs(d) for s, d in zip(extents, strides, strict=True)])
    dtype: Any = np.int64 if reach <= INT64_MAX else object
    out = np.zeros(1, dtype=dtype)
    for s, d in zip(extents, strides, strict=True):
        if s != 1:
            out = (np.arange(s, dtype=dtype)[:, None] * d + out[None, :]).reshape(-1)
    return out


def at_indices(layout: Layout, indices: np.ndarray) -> np.ndarray:
    """Return the offsets of a layout with integer strides for given indices, which may lie past its end.

    indices   integer array
    returns   array of the same shape: int64, or Python integers if 64 bits may be too few
    """
    extents, strides = layout.flat()
    furthest = int(abs(indices).max()) if indices.size else 0
    reach = (furthest + 1) * sum([s * abs(d) for s, d in zip(extents, strides, strict=True)])
    indices = indices.astype(object if reach > INT64_MAX else np.int64, copy=False)
    out = np.zeros_like(indices)
    for s, d in zip(extents[:-1], strides[:-1], strict=True):
        out = out + (indices % s) * d
        indices = indices // s
    return out + indices * strides[-1] if strides else out


def _is_plain(shape: Any, stride: Any, depth: int = 0) -> bool:
    """Return True if a shape and a stride make a layout as they are, without conversion or further checks.

    They must be congruent nested tuples of Python integers, and no extent may be negative.

    depth   number of tuples around these values
    """
    if type(shape) is not tuple or type(stride) is not tuple or len(shape) != len(stride):
        return type(shape) is int and type(stride) is int and shape >= 0
    mode = 0  # counted by hand, because `zip` takes 1.5 times as long
    for s in shape:
        d = stride[mode]
        mode += 1  # noqa: SIM113
        if type(s) is int:
            if s < 0 or type(d) is not int:
                return False
        elif depth >= MAX_DEPTH or not _is_plain(s, d, depth + 1):
            return False
    return True


def _checked(shape: Any, stride: Any) -> tuple[IntTuple, Any]:
    """Check the shape and stride that a user passed to `Layout`; return them as nested tuples of Python integers.

    A stride of None becomes the compact strides.

    raises   LayoutError for a shape and strides that make no layout
    """
    shape = as_int_tuple(shape, f"{_CALL}: shape")
    extents = flatten(shape)
    for extent in extents:
        if extent < 0:
            raise LayoutError(f"Layout: the shape {cute_text(shape)} has the negative extent {extent}. Give 0 or more.")
    if stride is None:
        return shape, unflatten(_compact(extents), shape)
    stride = _as_stride(stride)
    if not is_congruent(shape, stride):
        raise LayoutError(
            f"Layout: the stride {cute_text(stride)} is not congruent with the shape {cute_text(shape)}. "
            "Give one stride for each extent, in the same hierarchy."
        )
    strides = flatten(stride)
    _check_kinds(shape, stride, extents, strides)
    return shape, stride


def _outside(coord: Any, shape: IntTuple) -> Iterator[str]:
    """Yield a sentence of an error message for each entry of a coordinate that is negative or too large."""
    if type(coord) is int and not 0 <= coord < product(shape):
        yield f"{coord} is negative" if coord < 0 else f"{coord} is not below {product(shape)}"
    elif isinstance(coord, tuple) and isinstance(shape, tuple):
        for part, extent in zip(coord, shape, strict=False):
            yield from _outside(part, extent)


def _plain_offset(coord: Any, layout: Layout) -> int | None:
    """Return the offset of a coordinate of integers by a fast path; None if `Layout.offset_of` has to compute it.

    coord    integer or tuple of integers
    layout   layout with integer strides
    """
    if type(coord) is tuple:
        return _dot(coord, layout.shape, layout.stride)
    if type(coord) is not int or coord < 0:
        return None
    out = 0
    extents, strides = layout.flat()
    last = len(extents) - 1
    for m, d in enumerate(strides):
        if type(d) is not int:
            return None
        if m == last or coord < extents[m]:
            return out + coord * d
        if extents[m] == 0:
            return None
        coord, digit = divmod(coord, extents[m])
        out += digit * d
    return None


def _dot(coord: Any, shape: Any, stride: Any) -> int | None:
    """Return the offset of a coordinate that is a tuple, by a fast path; None if the general method has to compute it.

    coord           tuple of integers
    shape, stride   shape and integer strides of the layout
    """
    if type(shape) is not tuple or len(coord) != len(shape):
        return None
    out = 0
    for c, s, d in zip(coord, shape, stride):  # noqa: B905 - see `_is_plain`
        if type(c) is int and type(d) is int:
            out += c * d
        else:
            part = _dot(c, s, d) if type(c) is tuple else _plain_offset(c, Layout._unchecked(s, d))
            if part is None:
                return None
            out += part
    return out


def _xor_table(extents: Iterable[int], strides: Iterable[Any]) -> np.ndarray:
    """Return the offsets of a layout with strides over F2 (contributions XORed) in colexicographic order.

    extents   extents of all leaves
    strides   their strides
    """
    modes = [(s, d.value if type(d) is F2 else 0) for s, d in zip(extents, strides, strict=True)]
    dtype: Any = np.int64 if all(d * s <= INT64_MAX for s, d in modes) else object
    out = np.zeros(1, dtype=dtype)
    for s, d in modes:
        for place in range(s.bit_length() - 1):  # every bit of the coordinate doubles the table
            out = np.concatenate([out, out ^ (d << place)])
    return out


def _largest_xor(extents: Iterable[int], strides: Iterable[Any]) -> int:
    """Return the largest offset of a layout with strides over F2, whose contributions are XORed.

    It is the largest element of the span of the contributions of all bits, found by Gaussian elimination.

    extents   extents of all leaves
    strides   their strides
    """
    basis: dict[int, int] = {}  # leading bit -> column with that leading bit
    for s, d in zip(extents, strides, strict=True):
        for place in range(s.bit_length() - 1 if type(d) is F2 else 0):
            column = d.value << place
            while column and column.bit_length() in basis:
                column ^= basis[column.bit_length()]
            if column:
                basis[column.bit_length()] = column
    out = 0
    for lead in sorted(basis, reverse=True):
        out = max(out, out ^ basis[lead])
    return out


def _over_f2(stride: Any) -> bool:
    """Return True if a nested tuple of strides contains a stride over F2, whose contribution is XORed."""
    if type(stride) is not tuple:
        return type(stride) is F2
    for d in stride:  # noqa: SIM110 - `any` with a generator takes three times as long
        if type(d) is not int and _over_f2(d):
            return True
    return False


def _integers(stride: Any) -> bool:
    """Return True if a nested tuple of strides contains only Python integers."""
    if type(stride) is not tuple:
        return type(stride) is int
    for d in stride:  # noqa: SIM110 - see `_over_f2`
        if type(d) is not int and (type(d) is not tuple or not _integers(d)):
            return False
    return True


def _check_kinds(shape: IntTuple, stride: Any, extents: tuple[int, ...], strides: tuple[Any, ...]) -> None:
    """Raise LayoutError if a layout mixes strides of different kinds, or violates the rules of its kind.

    The kinds are integers, basis vectors (such as 1@0) and strides over F2, whose contributions are XORed.

    shape, stride      shape and strides of the layout
    extents, strides   their leaves
    """
    kinds = {*map(type, strides)}
    if F2 in kinds:
        _check_xor(shape, stride, extents, strides)
    elif ScaledBasis in kinds:
        _check_coordinates(shape, stride, extents, strides)


def _check_coordinates(shape: IntTuple, stride: Any, extents: tuple[int, ...], strides: tuple[Any, ...]) -> None:
    """Raise LayoutError unless a layout with basis vectors returns only coordinates, and no mode lies within another.

    E(0) and E((0, 1)), for example, may not occur together: mode (0, 1) lies within mode 0.

    shape, stride      shape and strides of the layout
    extents, strides   their leaves
    raises             LayoutError for an integer stride other than 0, or for a mode within another
    """
    paths = set()
    for s, d in zip(extents, strides, strict=True):
        if type(d) is ScaledBasis:
            paths.add(d.mode)
        elif d != 0 and s != 1:
            raise LayoutError(
                f"Layout: {cute_text(shape)}:{cute_text(stride)} mixes coordinates with offsets: its stride {d} is an "
                "integer, others are basis vectors.\n  Give every mode a basis vector or 0."
            )
    in_order = sorted(paths)  # a path comes directly before the paths that begin with it
    for path, following in pairwise(in_order):
        if following[: len(path)] == path:
            raise LayoutError(
                f"Layout: {cute_text(shape)}:{cute_text(stride)} moves along {ScaledBasis(1, path)} and along "
                f"{ScaledBasis(1, following)}, which lies within that mode. Give both the same path."
            )


def _check_xor(shape: IntTuple, stride: Any, extents: tuple[int, ...], strides: tuple[Any, ...]) -> None:
    """Raise LayoutError if a layout with strides over F2 has other strides but 0, or an extent is not a power of two.

    Contributions of strides over F2 are XORed instead of added.

    shape, stride      shape and strides of the layout
    extents, strides   their leaves
    raises             LayoutError if a rule is broken, or for more than 2**1024 coordinates
    """
    for extent, d in zip(extents, strides, strict=True):
        if extent < 1 or extent & (extent - 1):
            rule = f"the extent {extent} is not a power of two"
        elif type(d) is not F2 and d != 0:
            rule = f"the stride {d} is not over F2"
        else:
            continue
        raise LayoutError(
            f"Layout: {cute_text(shape)}:{cute_text(stride)} has strides over F2, but {rule}.\n"
            "  Give every mode a stride over F2 or 0, and a power of two for an extent."
        )
    bits = sum([extent.bit_length() - 1 for extent in extents])
    if bits > MAX_F2_BITS:
        raise LayoutError(
            f"Layout: {cute_text(shape)}:{cute_text(stride)} has strides over F2 and 2**{bits} coordinates. "
            f"Use at most 2**{MAX_F2_BITS}."
        )


def _compact(extents: tuple[int, ...]) -> tuple[int, ...]:
    """Return the compact strides of a flat shape, leftmost fastest: (2, 3, 4) gives (1, 2, 6).

    As in CuTe, the stride of an extent of 1 is 0.
    """
    out, running = [], 1
    for s in extents:
        out.append(0 if s == 1 else running)
        running *= s
    return tuple(out)


def _as_stride(stride: Any) -> Any:
    """Return a nested tuple of strides with lists replaced by tuples and numpy's integers by Python's."""
    if type(stride) is int or isinstance(stride, (ScaledBasis, F2)):
        return stride
    if isinstance(stride, (tuple, list)):
        return tuple([_as_stride(d) for d in stride])
    if type(stride) is Layout:
        raise wrong_kind(
            f"{_CALL}: stride", stride, "an integer, ScaledBasis, F2 or a tuple of them", "Pass its .stride."
        )
    return as_int_tuple(stride, f"{_CALL}: stride")


def cute_text(value: Any) -> str:
    """Return a nested tuple as text in CuTe's notation: no spaces, no trailing comma, and `_` for None."""
    try:
        if isinstance(value, tuple):
            text = str(value)
            if text.lower() == text.upper():  # no letters: integers alone
                return text.replace(" ", "").replace(",)", ")")
            return "(" + ",".join([cute_text(v) for v in value]) + ")"
        return "_" if value is None else str(value)
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        if isinstance(value, tuple):
            return "(" + ",".join([cute_text(v) for v in value]) + ")"
        return f"<an integer of {value.bit_length()} bits>"


def has_none(coord: Any) -> bool:
    """Return True if a coordinate contains None, which stands for a whole mode."""
    if coord is None:
        return True
    return isinstance(coord, tuple) and any(has_none(c) for c in coord)


def _slice(coord: Any, shape: IntTuple, stride: Any, kept: list[tuple[IntTuple, Any]], whole: Layout) -> Any:
    """Slice a layout: append the modes at None in `coord` to `kept`, and return the offset of the fixed modes.

    coord           nested tuple of integers (fixed modes) and None (kept modes)
    shape, stride   shape and strides of the part of the layout that `coord` belongs to
    kept            list of (shape, stride) that the kept modes are appended to
    whole           the whole layout, for messages
    """
    if coord is None:
        kept.append((shape, stride))
        return 0
    if type(coord) is list:
        coord = tuple(coord)
    if isinstance(coord, tuple):
        if not isinstance(shape, tuple) or len(coord) != len(shape):
            raise LayoutError(
                f"slice: coordinate {cute_text(coord)} does not fit {cute_text(shape)} in {whole}. "
                "Give one entry for each mode."
            )
        offset: Any = 0
        for c, s, d in zip(coord, shape, stride, strict=True):
            offset = add(offset, _slice(c, s, d, kept, whole))
        return offset
    return Layout._unchecked(shape, stride).offset_of(coord)


def concatenate(layouts: Iterable[Layout]) -> Layout:
    """Return the layout whose modes are the given layouts.

    raises   LayoutError if their strides are of different kinds
    """
    parts = tuple(layouts)
    return Layout._joined(tuple([p.shape for p in parts]), tuple([p.stride for p in parts]))


def regroup(parts: Iterable[Layout]) -> Layout:
    """Return the layout whose modes are the given layouts, without checks; they are modes of one valid layout."""
    parts = tuple(parts)
    return Layout._unchecked(tuple([p.shape for p in parts]), tuple([p.stride for p in parts]))
