"""The algebra of layouts: coalesce, filter, composition, complement, inverses.

Each operation states its law. Where the arguments admit no layout that obeys it, the operation raises
LayoutError; it never returns a layout that breaks its law. Where CuTe's result obeys the law, the result
here is the same in shape and stride.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import f2
from cutegemm.layout.inttuple import IntTuple, as_int_tuple, product, transform_leaf, unflatten
from cutegemm.layout.layout import Layout, _text, at_indices, concatenate
from cutegemm.layout.modes import AnyLayout, require_layout
from cutegemm.layout.stride import F2, ScaledBasis, XorArithmetic
from cutegemm.layout.swizzle import ComposedLayout, Swizzle

L = TypeVar("L", Layout, ComposedLayout)

# Past this many coordinates, a composition that the divisibility rules do not settle is refused instead of
# being decided by evaluating all of them: 2**24 take about a second.
_MAX_TABLE = 1 << 24


def coalesce(layout: L, target_profile: Any = None) -> L:
    """The same function of the index with the fewest modes.

    Law: coalesce(L)(i) == L(i) for every i < size(L); no extent is 1 and no two neighbours merge (an
    all-1 layout becomes 1:0).

    target_profile   a hierarchy; each of its leaves is coalesced by itself, and modes beyond it are kept
    raises           LayoutError where the profile does not fit the layout
    source           CuTe layout algebra, `coalesce`

    >>> coalesce(Layout((2, (1, 6)), (1, (6, 2))))
    Layout(12, 1)
    >>> coalesce(Layout(((2, 4), (2, 3))), target_profile=(1, 1))
    Layout((8, 6), (1, 8))
    """
    if isinstance(layout, ComposedLayout):
        return layout.with_outer(coalesce(layout.outer, target_profile))
    require_layout("coalesce", layout)
    if isinstance(target_profile, tuple):
        if not isinstance(layout.shape, tuple) or len(target_profile) > len(layout.shape):
            raise LayoutError(
                f"coalesce: the profile {_text(target_profile)} does not fit {layout}; it may have one entry "
                "for each mode."
            )
        head = [coalesce(layout[m], p) for m, p in enumerate(target_profile)]
        return concatenate(head + [layout[m] for m in range(len(head), len(layout))])
    try:
        return _from_flat(*_coalesced(*layout.flat(), keep_last=False))
    except XorArithmetic:
        return f2.coalesce(layout)


def _coalesced(extents: Any, strides: Any, keep_last: bool) -> tuple[list[int], list[Any]]:
    """The merged leaves. With `keep_last` a trailing extent of 1 stays, along which the layout runs on."""
    shape: list[int] = []
    stride: list[Any] = []
    for s, d in zip(extents, strides):  # noqa: B905 - the leaves of one layout
        if s == 1:
            continue
        if shape and d == shape[-1] * stride[-1]:
            shape[-1] *= s
        else:
            shape.append(s)
            stride.append(d)
    if keep_last and extents and extents[-1] == 1 and shape and strides[-1] != shape[-1] * stride[-1]:
        shape.append(1)
        stride.append(strides[-1])
    return shape, stride


def _from_flat(extents: list[int], strides: list[Any]) -> Layout:
    if len(extents) == 1:
        return Layout._of(extents[0], strides[0])
    if not extents:
        return Layout._of(1, 0)
    return Layout._of(tuple(extents), tuple(strides))


def filter_zeros(layout: L, target_profile: Any = None) -> L:
    """The layout with extent 1 wherever the stride is 0: each offset once, in the same hierarchy.

    target_profile   strides congruent with the layout that are looked at instead of its own

    >>> filter_zeros(Layout((2, 6, 3), (1, 2, 0)))
    Layout((2, 6, 1), (1, 2, 0))
    """
    if isinstance(layout, ComposedLayout):
        return layout.with_outer(filter_zeros(layout.outer, target_profile))
    require_layout("filter_zeros", layout)
    profile = layout.stride if target_profile is None else target_profile
    try:
        shape = transform_leaf(lambda s, p: 1 if _stands_still(p) else s, layout.shape, profile)
    except LayoutError:
        raise LayoutError(
            f"filter_zeros: the profile {_text(profile)} is not congruent with {layout}."
        ) from None
    return Layout._of(shape, layout.stride)


def _stands_still(stride: Any) -> bool:
    return (stride.value if isinstance(stride, (ScaledBasis, F2)) else stride) == 0


def filter(layout: L) -> L:
    """The layout without its modes of stride 0 and extent 1, coalesced.

    Law: it takes the same offsets as `layout` does.

    >>> filter(Layout((2, 1, 6, 3), (1, 7, 2, 0)))
    Layout(12, 1)
    """
    return coalesce(filter_zeros(layout))


@overload
def composition(lhs: Layout, rhs: Any) -> Layout: ...
@overload
def composition(lhs: ComposedLayout | Swizzle, rhs: Any) -> ComposedLayout: ...
def composition(lhs: AnyLayout | Swizzle, rhs: Any) -> AnyLayout:
    """The layout R = A o B on the coordinates of B.

    Law: R(c) == A(B(c)) for every coordinate c of B with B(c) < size(A), and the shape of R refines that of
    B. Past its end A runs on along its last mode, unless that has the extent 1: then nothing is promised.

    lhs      A: a layout, a composed layout or a swizzle
    rhs      B: a layout, or a tiler, that is an integer n (for n:1) or a tuple of layouts, integers, tuples
             and None, which acts mode by mode; None keeps the mode whole, modes beyond it are dropped
    raises   LayoutError where no layout of the shape of B has these offsets
    source   CuTe layout algebra, `composition`

    >>> composition(Layout((4, 8), (8, 1)), Layout((2, 2), (1, 4)))
    Layout((2, 2), (8, 1))
    >>> composition(Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: composition: A o B is no layout, for A = (6,2):(1,7) and B = (3,2):(2,3).
      A(B(2,1)) = A(7) = 8, but the strides (2,3) that its other offsets ask for give 7.
      Choose the strides of B so that each divides, or is divided by, the extents of A: 6, 2.
    """
    if isinstance(lhs, Swizzle):
        if not isinstance(rhs, Layout):
            raise LayoutError(f"composition: {lhs} is composed with a Layout, not with {rhs!r}.")
        return ComposedLayout(lhs, 0, rhs)
    if isinstance(lhs, ComposedLayout):
        return lhs.with_outer(composition(lhs.outer, rhs))
    require_layout("composition", lhs)
    if type(rhs) is Layout:
        try:
            return _compose(lhs, rhs)
        except XorArithmetic:
            return f2.composition(lhs, rhs)
    if rhs is None:
        return lhs
    if isinstance(rhs, tuple):
        if len(rhs) > len(lhs) or not isinstance(lhs.shape, tuple):
            raise LayoutError(
                f"composition: the tiler {_text(rhs)} has {len(rhs)} modes, {lhs} has {len(lhs)}; "
                "give one entry for each mode, or fewer."
            )
        return concatenate([composition(lhs[m], t) for m, t in enumerate(rhs)])
    if isinstance(rhs, ComposedLayout):
        raise LayoutError(
            f"composition: {rhs} cannot stand to the right of {lhs}; no composed layout has its swizzle in "
            "the middle. Apply it on the left."
        )
    return composition(lhs, Layout(as_int_tuple(rhs, "composition: tiler")))


def _compose(a: Layout, b: Layout) -> Layout:
    extents, strides = _coalesced(*a.flat(), keep_last=True)
    if not extents:  # every extent of A is 1: it runs on along its last leaf
        extents, strides = [1], [a.flat()[1][-1] if a.flat()[1] else 0]
    b_extents, b_strides = b.flat()
    last = len(extents) - 1
    if last == 0:
        d0 = strides[0]
        if all(type(d) is int for d in b_strides):
            return Layout._of(b.shape, transform_leaf(lambda d: d * d0 if d else 0, b.stride))
    reach = [0] * (last + 1)  # the largest digit that all leaves of B together reach in each mode of A
    leaves = [_compose_leaf(extents, strides, s, d, reach) for s, d in zip(b_extents, b_strides, strict=True)]
    bounded = last - 1 if extents[last] == 1 else last
    if None in leaves or any(reach[j] >= extents[j] for j in range(bounded)):
        return _compose_by_table(a, b, Layout._of(tuple(extents), tuple(strides)))
    if type(b.shape) is int:
        return Layout._of(*leaves[0])
    return Layout._of(
        unflatten([leaf[0] for leaf in leaves], b.shape), unflatten([leaf[1] for leaf in leaves], b.shape)
    )


def _compose_leaf(extents: list[int], strides: list[Any], s: int, d: Any, reach: list[int]) -> Any:
    """The modes of A that s:d walks through, its digits added to `reach`; None where it does not divide."""
    if type(d) is not int:
        return None
    if d == 0 or s == 0:
        return s, 0
    if s == 1:  # never moves: CuTe's stride for it, the step past all modes but the last, rounded up
        for n in extents[:-1]:
            d = -(-d // n)
        return 1, d * strides[-1]
    if d < 0:
        return None
    shape: list[int] = []
    stride: list[Any] = []
    last = len(extents) - 1
    for j in range(last):
        n = extents[j]
        if d >= n:
            if d % n:
                return None
            d //= n
            continue
        room = -(-n // d)
        take = room if room < s else s
        if take > 1:
            ends = j + 1 == last and extents[last] == 1  # past the end, where nothing is promised
            if s % take or (take < s and n % d and not ends):
                return None
            shape.append(take)
            stride.append(d * strides[j])
            reach[j] += (take - 1) * d
            s //= take
        if s == 1:
            break
        d = 1
    else:
        shape.append(s)
        stride.append(d * strides[last])
    if len(shape) == 1:
        return shape[0], stride[0]
    return tuple(shape), tuple(stride)


def _compose_by_table(a: Layout, b: Layout, flat_a: Layout) -> Layout:
    """A o B found from its offsets, where the divisibility rules do not settle it."""
    if a.is_xor or b.is_xor:
        raise XorArithmetic
    if not (a.is_integral and b.is_integral):
        raise LayoutError(
            f"composition: A o B is no layout that the divisibility rules give, for A = {a} and B = {b}.\n"
            f"  {_advice(flat_a)}"
        )
    extents, strides = b.flat()
    if b.size() > _MAX_TABLE:
        raise LayoutError(
            f"composition: the divisibility rules do not settle A o B for A = {a} and B = {b}, and its "
            f"{b.size()} coordinates are too many to decide it by evaluating them.\n  {_advice(flat_a)}"
        )
    if any(d < 0 and s > 1 for s, d in zip(extents, strides, strict=True)):
        raise LayoutError(
            f"composition: B = {b} takes negative values, where A = {a} with several modes is not defined.\n"
            "  Reverse the order of A's modes instead, or start B at an offset."
        )
    leaves = []
    last_index = b.cosize() - 1
    reach = flat_a.cosize() + last_index * abs(flat_a.stride[-1])
    dtype = np.int64 if max(last_index, reach) < 2**62 else object
    for position, (s, d) in enumerate(zip(extents, strides, strict=True)):
        values = at_indices(flat_a, np.arange(s, dtype=dtype) * d)
        found = _synthesize(values)
        if isinstance(found, int):
            coord = unflatten([found if p == position else 0 for p in range(len(extents))], b.shape)
            seen = ", ".join(map(str, values[: found + 1]))
            raise LayoutError(
                f"composition: A o B is no layout, for A = {a} and B = {b}.\n"
                f"  A(B({_plain(coord)})) = {values[found]}, but no strides over {s} elements give the "
                f"offsets {seen}{', ...' if found + 1 < s else ''}.\n"
                f"  {_advice(flat_a)}"
            )
        leaves.append(_from_flat(*found))
    result = Layout._of(
        unflatten([x.shape for x in leaves], b.shape), unflatten([x.stride for x in leaves], b.shape)
    )
    if type(b.shape) is int:
        return result
    expected, given = at_indices(flat_a, b.offsets().astype(dtype)), result.offsets()
    if not np.array_equal(expected, given):
        index = int(np.argmax(expected != given))
        coord = _coordinate(index, b.shape)
        raise LayoutError(
            f"composition: A o B is no layout, for A = {a} and B = {b}.\n"
            f"  A(B({_plain(coord)})) = A({b(index)}) = {expected[index]}, but the strides "
            f"{_text(result.stride)} that its other offsets ask for give {given[index]}.\n"
            f"  {_advice(flat_a)}"
        )
    return result


def _advice(flat_a: Layout) -> str:
    extents = ", ".join(str(s) for s in flat_a.shape)
    return f"Choose the strides of B so that each divides, or is divided by, the extents of A: {extents}."


def _plain(coord: Any) -> str:
    return _text(coord)[1:-1] if isinstance(coord, tuple) else str(coord)


def _coordinate(index: int, shape: IntTuple) -> IntTuple:
    from cutegemm.layout.inttuple import idx2crd

    return idx2crd(index, shape)


def _synthesize(values: np.ndarray) -> tuple[list[int], list[int]] | int:
    """The coalesced layout with the given offsets, from 0 on; or the first index that no layout reaches."""
    shape: list[int] = []
    stride: list[int] = []
    unit = 1
    while len(values) > 1:
        step = int(values[1] - values[0])
        run_end = np.flatnonzero(values != np.arange(len(values), dtype=values.dtype) * step)
        run = int(run_end[0]) if len(run_end) else len(values)
        if len(values) % run:
            return run * unit
        block = values.reshape(-1, run)
        wrong = np.flatnonzero((block - block[:, :1]) != block[0])
        if len(wrong):
            return int(wrong[0]) * unit
        shape.append(run)
        stride.append(step)
        values = block[:, 0]
        unit *= run
    return shape, stride


def complement(layout: Layout, cotarget: IntTuple | Layout) -> Layout:
    """The layout C that fills the gaps of L: every offset below the cotarget is one of L plus one of C.

    Law: the sums L(i) + C(j), over the distinct offsets of L, are distinct and cover [0, N), where N is the
    size of the cotarget rounded up to a multiple of the period of L, its last stride times extent. C
    increases.

    layout     offsets distinct but for modes of stride 0; strides not negative, and each sorted stride a
               multiple of the extent times stride before it
    cotarget   elements: an integer, a shape or a layout, of which the size counts
    raises     LayoutError where L repeats an offset or leaves gaps that no layout fills
    source     CuTe layout algebra, `complement`

    >>> complement(Layout(4, 2), 16)
    Layout((2, 2), (1, 8))
    """
    require_layout("complement", layout)
    if isinstance(cotarget, Layout):
        total = cotarget.size()
    else:
        total = product(as_int_tuple(cotarget, "complement: cotarget"))
    if total < 0:
        raise LayoutError(f"complement: a cotarget of {total} elements; 0 or more are expected.")
    if not layout.is_integral:
        if layout.is_xor:
            return f2.complement(layout, total)
        raise LayoutError(f"complement: {layout} gives coordinates; a complement is of offsets.")
    if layout.size() == 0:
        raise LayoutError(f"complement: {layout} is empty, it covers nothing.")
    shape, stride, period = [], [], 1
    for d, s in _sorted_modes(layout):
        if d < 0:
            raise LayoutError(
                f"complement: {layout} has the negative stride {d}; offsets from 0 on are expected. "
                "Reverse that mode."
            )
        if d % period or d < period:
            raise LayoutError(
                f"complement: {layout} repeats an offset or leaves a gap that no layout fills:\n"
                f"  the mode {s}:{d} does not start at a multiple of {period}, where the modes of smaller "
                "stride end.\n  Each stride must be a multiple of the extent times stride before it."
            )
        shape.append(d // period)
        stride.append(period)
        period = s * d
    shape.append(-(-total // period))
    stride.append(period)
    return _from_flat(*_coalesced(shape, stride, keep_last=False))


def _sorted_modes(layout: Layout) -> list[tuple[int, int]]:
    """(stride, extent) of the modes with more than one offset, by stride."""
    extents, strides = layout.flat()
    return sorted([(d, s) for s, d in zip(extents, strides, strict=True) if s != 1 and d != 0])


def right_inverse(layout: Layout) -> Layout:
    """The layout R that finds the contiguous offsets of L: from offset to index.

    Law: L(R(i)) == i for every i < size(R). Where the offsets of L are distinct, R is as long as its modes
    of strides 1, s, s*s', ... reach.

    raises   LayoutError for coordinate strides or an empty layout
    source   CuTe layout algebra, `right_inverse`

    >>> right_inverse(Layout((4, 8), (8, 1)))
    Layout((8, 4), (4, 1))
    >>> right_inverse(Layout((4, 8), (2, 8)))
    Layout(1, 0)
    """
    if _is_xor("right_inverse", layout):
        return f2.right_inverse(layout)
    shape, stride, current = [], [], 1
    for d, start, s in _positions(layout):
        if d == current:
            shape.append(s)
            stride.append(start)
            current *= s
        elif d > current:
            break
    return _from_flat(*_coalesced(shape, stride, keep_last=False))


def _positions(layout: Layout) -> list[tuple[int, int, int]]:
    """(stride, index at which its second element stands, extent) of the coalesced modes, by stride."""
    out, start = [], 1
    for s, d in zip(*_coalesced(*layout.flat(), keep_last=False), strict=True):
        out.append((d, start, s))
        start *= s
    return sorted(out, key=lambda mode: mode[0])


def _is_xor(operation: str, layout: Layout) -> bool:
    """Whether its strides are over F2; it must give offsets."""
    require_layout(operation, layout)
    if not layout.is_integral:
        if layout.is_xor:
            return True
        raise LayoutError(f"{operation}: {layout} gives coordinates; a layout of offsets is expected.")
    if layout.size() == 0:
        raise LayoutError(f"{operation}: {layout} is empty.")
    return False


def left_inverse(layout: Layout) -> Layout:
    """The layout R that takes each offset of L back to its index.

    Law: R(L(i)) == i for every i < size(L).

    raises   LayoutError where L repeats an offset, has a negative stride, or has sorted strides that do not
             divide one another
    source   CuTe layout algebra, `left_inverse`

    >>> left_inverse(Layout((4, 8), (1, 5)))
    Layout((5, 8), (1, 4))
    """
    if _is_xor("left_inverse", layout):
        return f2.left_inverse(layout)
    modes = _positions(layout)
    if not modes:
        return Layout._of(1, 0)
    shape, stride = [], []
    before, extent_before, start_before = 1, 1, 0
    for d, start, s in modes:
        if d <= 0 or d < before * extent_before:
            reason = (
                f"the stride {d} is negative" if d < 0 else f"the mode {s}:{d} repeats offsets of other modes"
            )
            raise LayoutError(
                f"left_inverse: {layout} has none: {reason}.\n"
                "  Strides must be positive, and each at least the extent times stride before it."
            )
        if d % before:
            raise LayoutError(
                f"left_inverse: no layout that the strides give inverts {layout}: the stride {d} is no "
                f"multiple of {before}.\n  Each sorted stride must be a multiple of the one before it."
            )
        if d != before:
            shape.append(d // before)
            stride.append(start_before)
        before, extent_before, start_before = d, s, start
    shape.append(extent_before)
    stride.append(start_before)
    return _from_flat(*_coalesced(shape, stride, keep_last=False))


def nullspace(layout: Layout) -> Layout:
    """The indices at which L repeats its offset 0 through modes of stride 0.

    Law: L(N(i)) == 0 for every i < size(N), and the N(i) are distinct.

    >>> nullspace(Layout((2, 3, 4), (0, 1, 0)))
    Layout((2, 4), (1, 6))
    """
    require_layout("nullspace", layout)
    shape, stride, start = [], [], 1
    for s, d in zip(*layout.flat(), strict=True):
        if _stands_still(d):
            shape.append(s)
            stride.append(start)
        start *= s
    return _from_flat(shape, stride)


def max_common_layout(a: Layout, b: Layout) -> Layout:
    """The indices over which A and B are contiguous together: the vector that a copy may move at once.

    Law: A(R(i)) == B(R(i)) == i for every i < size(R).

    >>> max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1)))
    Layout(8, 4)
    """
    shape, stride = [], []
    inverses = [right_inverse(x) for x in (a, b)]
    if a.is_xor or b.is_xor:
        return f2.common(*inverses)
    modes = [zip(*inverse.flat(), strict=True) for inverse in inverses]
    for (s_a, start_a), (s_b, start_b) in zip(*modes, strict=False):
        if start_a != start_b:
            break
        shape.append(min(s_a, s_b))
        stride.append(start_a)
        if s_a != s_b:
            break
    return _from_flat(shape, stride)


def max_common_vector(a: Layout, b: Layout) -> int:
    """How many elements `max_common_layout` holds.

    >>> max_common_vector(Layout((4, 8), (1, 4)), Layout((4, 8), (1, 8)))
    4
    """
    return max_common_layout(a, b).size()
