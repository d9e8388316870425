"""Layouts as matrices over F2, the field of one bit, and the algebra of layouts with XOR strides.

The index of a layout with extents 2**k is a string of bits. If the contributions of the bits are XORed, or
added without a carry, the layout is linear over F2: it is the matrix whose column j is the offset of index
2**j. A swizzle is such a matrix too, and a swizzled layout is the product of two. Compositions, divides and
inverses of layouts with strides `F2(...)` are therefore products, inverses and bases of subspaces of matrices.

Source: Cecka, "CuTe Layout Representation and Algebra" (2026), on strides from F2; Zhou et al., "Linear
Layouts" (2025), on layouts as matrices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import hooks
from cutegemm.layout.inttuple import (
    as_int_tuple,
    as_integer,
    flatten,
    integer_of,
    shown,
    unflatten,
    wrong_kind,
)
from cutegemm.layout.layout import MAX_TABLE, Layout, at_indices
from cutegemm.layout.stride import F2
from cutegemm.layout.swizzle import MAX_SWIZZLE_BIT, ComposedLayout, Swizzle

MAX_BITS = 2 * MAX_SWIZZLE_BIT  # longest argument of a matrix, in bits
_MAX_SEARCHED_BITS = 64  # longest offset for which `to_swizzled` searches a swizzle, in bits


@dataclass(frozen=True)
class F2Matrix(hooks.Shown):
    """A matrix over F2 (bits, with XOR as addition): a linear map from bit strings to bit strings, written as integers.

    columns   tuple of integers, 0 or more: for each bit of the argument, lowest first, the bits that it is mapped to
    raises    LayoutError for columns that are not such integers

    >>> M = F2Matrix((1, 2, 4, 9))
    >>> M(0b1010), M.rank, str(M @ M) == str(F2Matrix((1, 2, 4, 8)))
    (11, 4, True)
    """

    columns: tuple[int, ...]

    def __post_init__(self) -> None:
        columns = self.columns
        if not isinstance(columns, tuple) or any(integer_of(c) is None or c < 0 for c in columns):
            raise wrong_kind("F2Matrix(columns): columns", columns, "a tuple of integers of 0 or more")

    def __call__(self, bits: int) -> int:
        """Return the image of a bit string under this matrix: the XOR of the columns at its set bits.

        raises   LayoutError if the argument is negative or has more bits than the matrix has columns
        """
        value = as_integer(bits, "F2Matrix: bits")
        if value < 0 or value >> len(self.columns):
            raise LayoutError(
                f"F2Matrix: bits = {shown(value)} is not in [0, 2**{len(self.columns)}), the arguments of the matrix."
            )
        out = 0
        for place, column in enumerate(self.columns):
            if bits >> place & 1:
                out ^= column
        return out

    def __matmul__(self, other: F2Matrix) -> F2Matrix:
        """Return the product of two matrices over F2: the map that applies `other` first and then `self`."""
        _require_matrix("F2Matrix @ other: other", other)
        return F2Matrix(tuple([self(column) for column in other.columns]))

    @property
    def height(self) -> int:
        """Number of rows of this matrix over F2: the number of bits of its longest image."""
        return max((c.bit_length() for c in self.columns), default=0)

    @property
    def rank(self) -> int:
        """Rank of this matrix over F2 (bits, with XOR as addition): the number of linearly independent columns."""
        return len(_eliminated(self.columns))

    def __str__(self) -> str:
        """Return the rows of this matrix as lines of 0 and 1; row 0 and column 0 belong to the lowest bits."""
        return "\n".join(" ".join(str(c >> row & 1) for c in self.columns) for row in range(self.height))


def _eliminated(columns: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Return a basis of all values that XORs of the columns give; no two of its elements have the same top bit.

    columns   columns of a matrix over F2 (bits, with XOR as addition), as integers
    returns   top bit -> (basis element with that top bit, argument that the matrix maps to this element)
    """
    basis: dict[int, tuple[int, int]] = {}
    for place, column in enumerate(columns):
        image, bits = _reduced(basis, column, 1 << place)
        if image:
            basis[image.bit_length() - 1] = (image, bits)
    return basis


def _reduced(basis: dict[int, tuple[int, int]], image: int, bits: int) -> tuple[int, int]:
    """Cancel the bits of `image` that a basis can cancel by XORs, and XOR the basis's arguments into `bits` alongside.

    This is one step of Gaussian elimination over F2, where values are integers and XOR is addition. A matrix maps each
    argument to a value. If it maps `bits` to `image`, it maps the returned argument to the returned rest.

    basis     top bit -> (value with that top bit, argument that the matrix maps to this value)
    image     the value to reduce
    bits      argument to change along with it; 0 to collect the argument for the cancelled bits
    returns   (rest of `image`, which is 0 if the basis generates it; `bits` XOR the arguments of all basis elements
              used)
    """
    for lead in sorted(basis, reverse=True):
        if image >> lead & 1:
            image, bits = image ^ basis[lead][0], bits ^ basis[lead][1]
    return image, bits


def _solve(basis: dict[int, tuple[int, int]], image: int) -> int | None:
    """Return an argument that a matrix over F2 (bits, with XOR as addition) maps to `image`; None if no argument does.

    basis   top bit -> (value with that top bit, argument that the matrix maps to this value)
    image   the wanted value, written as an integer
    """
    rest, bits = _reduced(basis, image, 0)
    return None if rest else bits


# --- conversion to a matrix and back ------------------------------------------------------------------------


def to_f2(layout: Layout | ComposedLayout | Swizzle, bits: int | None = None) -> F2Matrix:
    """Return the matrix over F2 (bits, with XOR as addition) that maps the bits of an index to the bits of its offset.

    layout   layout, composed layout or swizzle; its extents are powers of two, and it has no offset
    bits     number of bits of a swizzle's argument, up to 1024; None for as many as the swizzle reads or changes
    raises   LayoutError if the layout is not linear over F2, with an index that shows it

    >>> to_f2(Layout((4, 8), (8, 1))).columns
    (8, 16, 1, 2, 4)
    >>> to_f2(Swizzle(1, 0, 2), bits=4).columns
    (1, 2, 5, 8)
    >>> to_f2(Layout((2, 2), (1, 1)))
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: to_f2: (2,2):(1,1) is not linear over F2:
      at index 3 = 1 XOR 2 it gives 2, not 1 XOR 1 = 0.
    """
    if bits is not None and type(bits) is not int:
        raise wrong_kind("to_f2(layout, bits): bits", bits, "an integer or None")
    if bits is not None and not 0 <= bits <= MAX_BITS:
        raise LayoutError(f"to_f2(layout, bits): bits = {shown(bits)} is not in [0, {MAX_BITS}].")
    if isinstance(layout, Swizzle):
        touched = layout.base + layout.bits + abs(layout.shift)
        count = touched if bits is None else bits
        if layout.bits and count < touched:
            raise LayoutError(f"to_f2: {layout} reads or changes {touched} bits. Give bits = {touched} or more.")
        return F2Matrix(tuple([layout(1 << place) for place in range(count)]))
    if isinstance(layout, ComposedLayout):
        if layout.offset != 0 or not isinstance(layout.inner, Swizzle):
            raise LayoutError(f"to_f2: {layout} has an offset or no swizzle. Give a swizzle of a layout at offset 0.")
        outer = to_f2(layout.outer)
        inner = layout.inner
        width = max(outer.height, inner.base + inner.bits + abs(inner.shift))
        return to_f2(inner, width) @ outer
    if not isinstance(layout, Layout):
        raise wrong_kind("to_f2(layout, bits): layout", layout, "a Layout, a ComposedLayout or a Swizzle")
    total_bits = sum([extent.bit_length() - 1 for extent in layout.flat()[0]])
    if total_bits > MAX_BITS:
        raise LayoutError(
            f"to_f2: {layout} has 2**{total_bits} coordinates or more; at most 2**{MAX_BITS} are allowed."
        )
    columns: list[int] = []
    for extent, stride in zip(*layout.flat(), strict=True):
        if extent < 1 or extent & (extent - 1):
            raise LayoutError(f"to_f2: {layout} has the extent {extent}, which is not a power of two.")
        for place in range(extent.bit_length() - 1):
            if not isinstance(stride, F2) and (not isinstance(stride, int) or stride < 0):
                raise LayoutError(f"to_f2: {layout} has the stride {stride}. Give a layout with offsets of 0 or more.")
            columns.append(stride.at(1 << place).value if isinstance(stride, F2) else stride << place)
    if not layout.is_xor:
        _check_no_carry(layout, columns)
    return F2Matrix(tuple(columns))


def _check_no_carry(layout: Layout, columns: Sequence[int]) -> None:
    """Raise LayoutError unless adding the columns gives the same as XORing them: no two columns may share a bit.

    layout    layout with integer strides, for the message
    columns   columns of its matrix, as integers
    raises    LayoutError with an index that shows a carry
    """
    if not _share_a_bit(columns):
        return
    for i, first in enumerate(columns):
        for j in range(i + 1, len(columns)):
            if first & columns[j]:
                a, b = 1 << i, 1 << j
                total, xor = first + columns[j], first ^ columns[j]
                raise LayoutError(
                    f"to_f2: {layout} is not linear over F2:\n  at index {a + b} = {a} XOR {b} it gives "
                    f"{total}, not {first} XOR {columns[j]} = {xor}."
                )


def _share_a_bit(columns: Iterable[int]) -> bool:
    """Return True if two of the integers have a bit in common, so that their sum differs from their XOR."""
    union = 0
    for column in columns:
        if column & union:
            return True
        union |= column
    return False


def from_f2(matrix: F2Matrix, shape: Any = None, *, plain: bool = True) -> Layout:
    """Return the layout whose offsets have the bits that a matrix over F2 computes from the bits of an index.

    matrix   F2Matrix
    shape    extents, powers of two with as many bits as the argument; None for the fewest modes
    plain    True for integer strides if sums equal XORs; False for strides over F2 (whose contributions are XORed) in
             any case
    raises   LayoutError if the shape has another number of bits

    >>> from_f2(F2Matrix((8, 16, 1, 2, 4)))
    Layout((4, 8), (8, 1))
    >>> from_f2(F2Matrix((9, 18, 36, 1, 2, 4)))
    Layout((8, 8), (F2(9), F2(1)))
    """
    _require_matrix("from_f2(matrix, shape, plain): matrix", matrix)
    columns = matrix.columns
    as_integers = plain and not _share_a_bit(columns)
    if shape is None:
        return _merged(columns, as_integers)
    shape = as_int_tuple(shape, "from_f2(matrix, shape, plain): shape")
    leaves, first = [], 0
    for extent in flatten(shape):
        bits = extent.bit_length() - 1
        if extent < 1 or extent & (extent - 1) or first + bits > len(columns):
            raise _wrong_bits(shape, len(columns))
        leaves.append(_merged(columns[first : first + bits], as_integers))
        first += bits
    if first != len(columns):
        raise _wrong_bits(shape, len(columns))
    parts = ([x.shape for x in leaves], [x.stride for x in leaves])
    return Layout._unchecked(*[unflatten(part, shape) for part in parts])


def _wrong_bits(shape: Any, bits: int) -> LayoutError:
    """Return the LayoutError for a shape whose size has another number of bits (log2) than a matrix has columns.

    bits   number of columns of the matrix
    """
    return LayoutError(
        f"from_f2: shape {shape} does not have {bits} bits. Give powers of two whose product is 2**{bits}."
    )


def _require_matrix(what: str, matrix: Any) -> None:
    """Raise LayoutError unless `matrix` is an F2Matrix.

    what   the call and the argument as text for the message, such as "inverse_f2: matrix"
    """
    if not isinstance(matrix, F2Matrix):
        raise wrong_kind(what, matrix, "an F2Matrix", "Make one by `to_f2`.")


def _merged(columns: Sequence[int], as_integers: bool) -> Layout:
    """Return the layout with the fewest modes whose matrix over F2 has the given columns.

    A column that is twice the one before it extends the same mode: columns 1, 2, 8 give (4,2):(1,8).

    columns       the offset of each bit of the index, lowest bit first
    as_integers   True for integer strides, False for strides over F2, whose contributions are XORed
    """
    shape: list[int] = []
    values: list[int] = []
    for place, column in enumerate(columns):
        if place and column == columns[place - 1] << 1 and (column or not values[-1]):
            shape[-1] *= 2
        else:
            shape.append(2)
            values.append(column)
    stride: list[Any] = [v if as_integers else F2(v) for v in values]
    if not shape:
        return Layout._unchecked(1, 0)
    if len(shape) == 1:
        return Layout._unchecked(shape[0], stride[0])
    return Layout._unchecked(tuple(shape), tuple(stride))


def to_swizzle(matrix: F2Matrix) -> Swizzle:
    """Return the swizzle that a matrix over F2 (bits, with XOR as addition) describes.

    matrix   F2Matrix that XORs one field of bits with another and leaves all other bits
    raises   LayoutError for any other matrix

    >>> to_swizzle(F2Matrix((1, 2, 5, 10)))
    Swizzle(2, 0, 2)
    """
    _require_matrix("to_swizzle(matrix): matrix", matrix)
    extra = {place: c ^ (1 << place) for place, c in enumerate(matrix.columns) if c != 1 << place}
    if not extra:
        return Swizzle(0, 0, 0)
    first = min(extra)
    shift = first - (extra[first].bit_length() - 1)
    bits = len(extra)
    if abs(shift) >= bits:
        swizzle = Swizzle(bits, min(first, first - shift), shift)
        touched = swizzle.base + swizzle.bits + abs(swizzle.shift)
        if touched <= len(matrix.columns) and to_f2(swizzle, len(matrix.columns)) == matrix:
            return swizzle
    raise LayoutError(f"to_swizzle: no swizzle has the columns {shown(matrix.columns)}.")


def to_xor(layout: Layout | ComposedLayout) -> Layout:
    """Return the layout of the same shape and offsets with strides over F2, whose contributions are XORed.

    layout   layout, or composed layout with a swizzle, that is linear over F2
    raises   LayoutError for a layout that is not linear

    >>> print(to_xor(ComposedLayout(Swizzle(3, 0, 3), 0, Layout((8, 8), (8, 1)))))
    (8,8):(F2(9),F2(1))
    """
    _require_shape("to_xor(layout): layout", layout)
    return from_f2(to_f2(layout), layout.shape, plain=False)


def _require_shape(what: str, layout: Any) -> None:
    """Raise LayoutError unless `layout` is a Layout or a ComposedLayout.

    what   the call and the argument as text for the message, such as "to_xor(layout): layout"
    """
    if not isinstance(layout, (Layout, ComposedLayout)):
        raise wrong_kind(what, layout, "a Layout or a ComposedLayout")


def to_swizzled(layout: Layout, shape: Any = None) -> Layout | ComposedLayout:
    """Return the layout of the same offsets with integer strides, if necessary composed with a swizzle.

    layout    layout or composed layout that is linear over F2, such as one with strides that are XORed
    shape     shape of the result; None for the shape of `layout`
    returns   Layout, or ComposedLayout with a swizzle
    raises    LayoutError if no swizzle of a plain layout has these offsets, or if they have more than 64 bits

    >>> print(to_swizzled(Layout((8, 8), (F2(9), F2(1)))))
    S<3,0,3> o 0 o (8,8):(8,1)
    """
    _require_shape("to_swizzled(layout, shape): layout", layout)
    if shape is not None:
        shape = as_int_tuple(shape, "to_swizzled(layout, shape): shape")
    matrix = to_f2(layout)
    width = matrix.height
    if width > _MAX_SEARCHED_BITS:
        raise LayoutError(
            f"to_swizzled: {layout} has offsets of {width} bits. A swizzle is searched for up to "
            f"{_MAX_SEARCHED_BITS} bits."
        )
    candidates = [
        Swizzle(bits, base, sign * shift)
        for bits in range(width // 2 + 1)
        for base in range(width if bits else 1)
        for shift in range(bits, max(width, 1))
        for sign in (1, -1)
        if base + bits + shift <= width
    ]
    for swizzle in candidates:
        if not _share_a_bit(map(swizzle, matrix.columns)):  # a swizzle is its own inverse
            outer = F2Matrix(tuple(map(swizzle, matrix.columns)))
            plain = from_f2(outer, layout.shape if shape is None else shape)
            return plain if swizzle.bits == 0 else ComposedLayout(swizzle, 0, plain)
    raise LayoutError(f"to_swizzled: no swizzle of a layout with integer strides has the offsets of {layout}.")


# --- the algebra: the public operations call these functions for layouts with strides over F2 ---------------


def coalesce(layout: Layout) -> Layout:
    """Return the layout with the fewest modes and strides over F2 (contributions XORed) that has the same offsets."""
    return from_f2(to_f2(layout), plain=False)


def composition(a: Layout, b: Layout) -> Layout:
    """Return A o B for layouts that are linear over F2; its matrix is the product of the matrices of A and B.

    The result applies B first and then A. Its strides are over F2, so that contributions are XORed.

    raises   LayoutError if A o B is not linear over F2

    >>> from cutegemm.layout import composition
    >>> L = Layout((8, 8), (F2(9), F2(1)))
    >>> R = composition(L, Layout((4, 4), (16, 1)))
    >>> str(R), R(2, 3) == L(35)
    ('(4,4):(F2(2),F2(9))', True)
    """
    try:
        if not a.is_xor:
            return _through(a, b)
        left, right = to_f2(a), to_f2(b)
        if right.height > len(left.columns):
            left = F2Matrix((*left.columns, *_running_on(a, right.height - len(left.columns))))
    except LayoutError as error:
        raise LayoutError(f"composition: no strides over F2 are A o B for A = {a} and B = {b}.\n  {error}") from error
    return from_f2(left @ right, b.shape, plain=False)


def _through(a: Layout, b: Layout) -> Layout:
    """Return A o B from a table of offsets, for an A with integer strides, which may not be linear over F2.

    a        layout with integer strides
    b        layout with strides over F2, whose contributions are XORed
    raises   LayoutError if A o B is not linear over F2, with an index that shows it
    """
    if not a.is_integral:
        raise LayoutError(f"A = {a} returns coordinates, which are not XORed.")
    if a.size() == 0:
        raise LayoutError(f"A = {a} is empty.")
    if b.size() > MAX_TABLE:
        raise LayoutError(f"B has {b.size()} coordinates; at most {MAX_TABLE} are evaluated.")
    offsets = b.offsets()
    want = at_indices(a, offsets)
    columns = [int(want[1 << place]) for place in range(b.size().bit_length() - 1)]
    linear = from_f2(F2Matrix(tuple(columns)), b.shape, plain=False)
    wrong = np.flatnonzero(linear.offsets() != want)
    if len(wrong):
        i = int(wrong[0])
        raise LayoutError(
            f"A(B({i})) = A({offsets[i]}) = {want[i]}, but the offsets of its bits XOR to {linear.offsets()[i]}."
        )
    return linear


def _running_on(layout: Layout, bits: int) -> list[int]:
    """Return the matrix columns, i.e. offsets, of the next `bits` bits of an index past the end of a layout.

    Past its end, a layout continues along its last mode. E.g. 4:F2(2), whose two bits have the offsets 2 and 4,
    continues with 8, 16, 32.

    layout   layout with strides over F2 (bits, with XOR as addition)
    """
    extent, stride = layout.flat()[0][-1], layout.flat()[1][-1]
    places = range(extent.bit_length() - 1, extent.bit_length() - 1 + bits)
    return [stride.at(1 << p).value if isinstance(stride, F2) else 0 for p in places]


def complement(layout: Layout, total: int) -> Layout:
    """Return the layout C for which every number below N is L(i) XOR C(j) for exactly one pair (i, j).

    N is the smallest power of two that is at least `total` and larger than every offset of L.

    layout   L, with strides over F2
    total    size of the space to cover, in elements
    raises   LayoutError if L repeats an offset
    """
    matrix = to_f2(layout)
    basis = _eliminated(matrix.columns)
    if len(basis) < sum(1 for c in matrix.columns if c):
        raise LayoutError(f"complement: {layout} repeats an offset. Give a layout with distinct offsets.")
    width = max(matrix.height, (total - 1).bit_length())
    return from_f2(F2Matrix(tuple([1 << p for p in range(width) if p not in basis])), plain=False)


def right_inverse(layout: Layout) -> Layout:
    """Return the right inverse of a layout with strides over F2 (contributions XORed): the layout R with L(R(i)) == i.

    The indices i are the offsets 0, 1, 2, ... that L reaches without a gap.
    """
    basis = _eliminated(to_f2(layout).columns)
    columns: list[int] = []
    while (index := _solve(basis, 1 << len(columns))) is not None:
        columns.append(index)
    return from_f2(F2Matrix(tuple(columns)), plain=False)


def common(first: Layout, second: Layout) -> Layout:
    """Return the indices whose elements two layouts both store at offsets 0, 1, 2, ..., as a layout.

    The result maps an offset to the index that has this offset in both layouts. It is as long as the layouts agree, so
    that its elements can be copied as one vector.

    first, second   right inverses of the two layouts, which map an offset to an index. They need be linear over F2
                    (bits, with XOR as addition) only for the lowest bits
    """
    columns: list[int] = []
    for a, b in zip(_from_zero(first), _from_zero(second), strict=False):
        if a != b:
            break
        columns.append(a)
    return from_f2(F2Matrix(tuple(columns)))


def _from_zero(layout: Layout) -> Iterator[int]:
    """Yield a layout's offsets of the indices 1, 2, 4, 8, ..., as long as the layout is linear over F2.

    It is linear up to an index if the offset of each smaller index is the XOR of the offsets of the index's bits: the
    offset of 3 is that of 1 XOR that of 2. E.g. (4,4):(4,1) yields 4, 8, 1, 2.
    """
    union = 0
    for extent, stride in zip(*layout.flat(), strict=True):
        for place in range(extent.bit_length() - 1):
            column = stride.at(1 << place).value if isinstance(stride, F2) else stride << place
            if column & union and not layout.is_xor:
                return
            union |= column
            yield column
        if extent & (extent - 1):
            return


def left_inverse(layout: Layout) -> Layout:
    """Return the left inverse of a layout with strides over F2 (contributions XORed): R with R(L(i)) == i for all i.

    raises   LayoutError if L repeats an offset
    """
    matrix = to_f2(layout)
    basis = _eliminated(matrix.columns)
    if len(basis) < len(matrix.columns):
        raise LayoutError(f"left_inverse: {layout} has no left inverse, because it repeats an offset.")
    whole = [*matrix.columns, *[1 << p for p in range(matrix.height) if p not in basis]]
    full_basis = _eliminated(whole)
    mask = (1 << len(matrix.columns)) - 1
    columns = [(_solve(full_basis, 1 << p) or 0) & mask for p in range(matrix.height)]
    return from_f2(F2Matrix(tuple(columns)), plain=False)
