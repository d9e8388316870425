"""Layouts as matrices over F2, and the algebra of layouts with XOR strides.

The index of a layout with extents 2**k is a string of bits. Where the contributions of the bits are XORed, or added
without a carry, the layout is linear over F2: it is the matrix whose column j is the offset of index 2**j. A swizzle
is such a matrix too, and a swizzled layout is the product of two. So compositions, divides and inverses of layouts with
strides `F2(...)` are products, inverses and bases of subspaces.

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

MAX_BITS = 2 * MAX_SWIZZLE_BIT  # of the argument of a matrix
_MAX_SEARCHED_BITS = 64  # of the offsets that `to_swizzled` looks for a swizzle of


@dataclass(frozen=True)
class F2Matrix(hooks.Shown):
    """A linear map of bit strings.

    columns   the contribution of each bit of the argument, the lowest bit first

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
        """The image of a bit string."""
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
        """First the other, then this one."""
        _require_matrix("F2Matrix @ other: other", other)
        return F2Matrix(tuple([self(column) for column in other.columns]))

    @property
    def height(self) -> int:
        """Bits of the images."""
        return max((c.bit_length() for c in self.columns), default=0)

    @property
    def rank(self) -> int:
        """Dimension of the images."""
        return len(_eliminated(self.columns))

    def __str__(self) -> str:
        """Rows of 0 and 1; row and column 0, which are of the lowest bits, first."""
        return "\n".join(" ".join(str(c >> row & 1) for c in self.columns) for row in range(self.height))


def _eliminated(columns: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Leading bit -> (an image with that leading bit, the bits of the argument that have this image)."""
    basis: dict[int, tuple[int, int]] = {}
    for place, column in enumerate(columns):
        image, bits = _reduced(basis, column, 1 << place)
        if image:
            basis[image.bit_length() - 1] = (image, bits)
    return basis


def _reduced(basis: dict[int, tuple[int, int]], image: int, bits: int) -> tuple[int, int]:
    for lead in sorted(basis, reverse=True):
        if image >> lead & 1:
            image, bits = image ^ basis[lead][0], bits ^ basis[lead][1]
    return image, bits


def _solve(basis: dict[int, tuple[int, int]], image: int) -> int | None:
    rest, bits = _reduced(basis, image, 0)
    return None if rest else bits


# --- to a matrix and back -----------------------------------------------------------------------------------


def to_f2(layout: Layout | ComposedLayout | Swizzle, bits: int | None = None) -> F2Matrix:
    """The matrix of a layout or a swizzle.

    bits     of a swizzle's argument: as many as it touches where left out
    raises   LayoutError where it is not linear, with an index that shows it

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
            raise LayoutError(f"to_f2: {layout} touches {touched} bits, more than {count}.")
        return F2Matrix(tuple([layout(1 << place) for place in range(count)]))
    if isinstance(layout, ComposedLayout):
        if layout.offset != 0 or not isinstance(layout.inner, Swizzle):
            raise LayoutError(f"to_f2: {layout} is no swizzle of a layout without an offset.")
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
            raise LayoutError(f"to_f2: {layout} has the extent {extent}, which is no power of two.")
        for place in range(extent.bit_length() - 1):
            if not isinstance(stride, F2) and (not isinstance(stride, int) or stride < 0):
                raise LayoutError(f"to_f2: {layout} has the stride {stride}; offsets from 0 on are expected.")
            columns.append(stride.at(1 << place).value if isinstance(stride, F2) else stride << place)
    if not layout.is_xor:
        _check_no_carry(layout, columns)
    return F2Matrix(tuple(columns))


def _check_no_carry(layout: Layout, columns: Sequence[int]) -> None:
    """Sums are XORs exactly where no two columns share a bit."""
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
    """Return whether two of the columns have a bit in common, so that their sum carries."""
    union = 0
    for column in columns:
        if column & union:
            return True
        union |= column
    return False


def from_f2(matrix: F2Matrix, shape: Any = None, *, plain: bool = True) -> Layout:
    """The layout of a matrix.

    shape    extents 2**k with as many bits as the argument; None for the fewest modes
    plain    integer strides where no XOR differs from a sum; else strides over F2 throughout
    raises   LayoutError where the shape has another number of bits

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
    leaves, taken = [], 0
    for extent in flatten(shape):
        bits = extent.bit_length() - 1
        if extent < 1 or extent & (extent - 1) or taken + bits > len(columns):
            raise LayoutError(f"from_f2: the shape {shape} does not have {len(columns)} bits.")
        leaves.append(_merged(columns[taken : taken + bits], as_integers))
        taken += bits
    if taken != len(columns):
        raise LayoutError(f"from_f2: the shape {shape} does not have {len(columns)} bits.")
    parts = ([x.shape for x in leaves], [x.stride for x in leaves])
    return Layout._of(*[unflatten(part, shape) for part in parts])


def _require_matrix(what: str, matrix: Any) -> None:
    if not isinstance(matrix, F2Matrix):
        raise wrong_kind(what, matrix, "an F2Matrix", "Make one by `to_f2`.")


def _merged(columns: Sequence[int], as_integers: bool) -> Layout:
    """The fewest modes: a column that is twice the one before it belongs to the same one."""
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
        return Layout._of(1, 0)
    if len(shape) == 1:
        return Layout._of(shape[0], stride[0])
    return Layout._of(tuple(shape), tuple(stride))


def to_swizzle(matrix: F2Matrix) -> Swizzle:
    """The swizzle of a matrix.

    raises   LayoutError where it is none: a swizzle XORs neighbouring bits into as many others, and
             leaves the rest as they are

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
        found = Swizzle(bits, min(first, first - shift), shift)
        touched = found.base + found.bits + abs(found.shift)
        if touched <= len(matrix.columns) and to_f2(found, len(matrix.columns)) == matrix:
            return found
    raise LayoutError(f"to_swizzle: no swizzle has the columns {matrix.columns}.")


def to_xor(layout: Layout | ComposedLayout) -> Layout:
    """The same function with strides over F2, in the same shape.

    raises   LayoutError where it is not linear

    >>> print(to_xor(ComposedLayout(Swizzle(3, 0, 3), 0, Layout((8, 8), (8, 1)))))
    (8,8):(F2(9),F2(1))
    """
    _require_shape("to_xor(layout): layout", layout)
    return from_f2(to_f2(layout), layout.shape, plain=False)


def _require_shape(what: str, layout: Any) -> None:
    if not isinstance(layout, (Layout, ComposedLayout)):
        raise wrong_kind(what, layout, "a Layout or a ComposedLayout")


def to_swizzled(layout: Layout, shape: Any = None) -> Layout | ComposedLayout:
    """The same function as a plain layout, or else as a swizzle of one.

    shape    of the plain layout; None for that of `layout`
    raises   LayoutError where no swizzle of a plain layout gives it

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
            found = from_f2(outer, layout.shape if shape is None else shape)
            return found if swizzle.bits == 0 else ComposedLayout(swizzle, 0, found)
    raise LayoutError(f"to_swizzled: {layout} is no swizzle of a layout with integer strides.")


# --- the algebra; the public operations come here for layouts with strides over F2 --------------------------


def coalesce(layout: Layout) -> Layout:
    """The same function of the index with the fewest modes."""
    return from_f2(to_f2(layout), plain=False)


def composition(a: Layout, b: Layout) -> Layout:
    """A o B, whose matrix is the product.

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
        raise LayoutError(
            f"composition: A o B has no strides over F2, for A = {a} and B = {b}.\n  {error}"
        ) from error
    return from_f2(left @ right, b.shape, plain=False)


def _through(a: Layout, b: Layout) -> Layout:
    """A o B of an A with integer strides, which need not be linear: its offsets decide."""
    if not a.is_integral:
        raise LayoutError(f"{a} gives coordinates, which are not XORed.")
    if a.size() == 0:
        raise LayoutError(f"{a} is empty.")
    if b.size() > MAX_TABLE:
        raise LayoutError(f"The {b.size()} coordinates of B are too many to decide it by evaluating them.")
    offsets = b.offsets()
    want = at_indices(a, offsets)
    columns = [int(want[1 << place]) for place in range(b.size().bit_length() - 1)]
    found = from_f2(F2Matrix(tuple(columns)), b.shape, plain=False)
    wrong = np.flatnonzero(found.offsets() != want)
    if len(wrong):
        i = int(wrong[0])
        raise LayoutError(
            f"A(B({i})) = A({offsets[i]}) = {want[i]}, but the bits of {i} XOR to {found.offsets()[i]}."
        )
    return found


def _running_on(layout: Layout, bits: int) -> list[int]:
    """Columns past the end: a layout runs on along its last mode."""
    extent, stride = layout.flat()[0][-1], layout.flat()[1][-1]
    places = range(extent.bit_length() - 1, extent.bit_length() - 1 + bits)
    return [stride.at(1 << p).value if isinstance(stride, F2) else 0 for p in places]


def complement(layout: Layout, total: int) -> Layout:
    """The layout C with which every number below N is L(i) XOR C(j) once; N is a power of two of at least
    `total` and past every offset of L."""
    matrix = to_f2(layout)
    basis = _eliminated(matrix.columns)
    if len(basis) < sum(1 for c in matrix.columns if c):
        raise LayoutError(f"complement: {layout} repeats an offset, so that nothing covers the rest once.")
    width = max(matrix.height, (total - 1).bit_length())
    return from_f2(F2Matrix(tuple([1 << p for p in range(width) if p not in basis])), plain=False)


def right_inverse(layout: Layout) -> Layout:
    """R with L(R(i)) == i, as long as the offsets 0, 1, 2, ... of L reach."""
    basis = _eliminated(to_f2(layout).columns)
    columns: list[int] = []
    while (found := _solve(basis, 1 << len(columns))) is not None:
        columns.append(found)
    return from_f2(F2Matrix(tuple(columns)), plain=False)


def common(first: Layout, second: Layout) -> Layout:
    """The part from 0 on that two right inverses have in common, as far as it is linear."""
    columns: list[int] = []
    for a, b in zip(_from_zero(first), _from_zero(second), strict=False):
        if a != b:
            break
        columns.append(a)
    return from_f2(F2Matrix(tuple(columns)))


def _from_zero(layout: Layout) -> Iterator[int]:
    """The columns of a layout, up to where it is not linear."""
    taken = 0
    for extent, stride in zip(*layout.flat(), strict=True):
        for place in range(extent.bit_length() - 1):
            column = stride.at(1 << place).value if isinstance(stride, F2) else stride << place
            if column & taken and not layout.is_xor:
                return
            taken |= column
            yield column
        if extent & (extent - 1):
            return


def left_inverse(layout: Layout) -> Layout:
    """R with R(L(i)) == i for every index."""
    matrix = to_f2(layout)
    basis = _eliminated(matrix.columns)
    if len(basis) < len(matrix.columns):
        raise LayoutError(f"left_inverse: {layout} has none: it repeats an offset.")
    whole = [*matrix.columns, *[1 << p for p in range(matrix.height) if p not in basis]]
    all_of_it = _eliminated(whole)
    kept = (1 << len(matrix.columns)) - 1
    columns = [(_solve(all_of_it, 1 << p) or 0) & kept for p in range(matrix.height)]
    return from_f2(F2Matrix(tuple(columns)), plain=False)
