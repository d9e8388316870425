"""Coalesce, filter and composition of layouts. Complements and inverses are in `inverses`.

The docstring of an operation states its law, a property of every result. If no layout has that property, the
operation raises LayoutError. If CuTe's result has it, the result here has the same shape and strides.

The *rules of divisibility* compute A o B from shapes and strides alone. They apply if each stride of B divides,
or is divided by, the extents of A. Otherwise a table of the offsets decides whether a layout is A o B.
"""

from __future__ import annotations

from typing import Any, TypeVar, overload

import numpy as np

from cutegemm.errors import LayoutError
from cutegemm.layout import coordinates, f2
from cutegemm.layout.inttuple import (
    as_tuples,
    idx2crd,
    integer_of,
    map_leaves,
    refill,
    shown,
    unflatten,
    wrong_kind,
)
from cutegemm.layout.layout import MAX_TABLE, Layout, at_indices, cute_text, regroup
from cutegemm.layout.modes import AnyLayout, get, on_layout
from cutegemm.layout.stride import F2, ScaledBasis, XorArithmetic
from cutegemm.layout.swizzle import ComposedLayout, Swizzle
from cutegemm.layout.tensor import Tensor

L = TypeVar("L", Layout, ComposedLayout, Tensor)
_FILTER_ZEROS = "filter_zeros(layout, target_profile)"


def coalesce(layout: L, target_profile: Any = None) -> L:
    """Return the layout with the fewest modes that gives the same offset for every index.

    For example, (2,4):(1,2) becomes 8:1. Law: coalesce(L)(i) == L(i) for every i < size(L). No extent of the result
    is 1, and no two neighbours can be merged. A layout whose extents are all 1 becomes 1:0; the layout without modes,
    ():(), stays.

    layout           layout, composed layout or tensor
    target_profile   None, or a tuple: each of its entries coalesces one mode by itself; further modes stay as
                     they are
    returns          a Layout, ComposedLayout or Tensor, whichever `layout` is
    raises           LayoutError if the profile has more entries than the layout has modes
    source           CuTe layout algebra, `coalesce`

    >>> coalesce(Layout((2, (1, 6)), (1, (6, 2))))
    Layout(12, 1)
    >>> coalesce(Layout(((2, 4), (2, 3))), target_profile=(1, 1))
    Layout((8, 6), (1, 8))
    """
    if type(layout) is not Layout:
        return on_layout("coalesce(layout, target_profile): layout", coalesce, layout, target_profile)
    target_profile = as_tuples(target_profile)
    if target_profile is not None:
        _require_profile("coalesce(layout, target_profile): target_profile", target_profile)
    if isinstance(target_profile, tuple):
        if len(target_profile) > len(layout):
            raise LayoutError(
                f"coalesce: target_profile {cute_text(target_profile)} has {len(target_profile)} entries, {layout} has "
                f"{_modes_of(layout)}. Give one entry for each mode, or fewer."
            )
        head = [coalesce(layout[m], p) for m, p in enumerate(target_profile)]
        return regroup(head + [layout[m] for m in range(len(head), len(layout))])
    if layout.shape == ():
        return layout
    try:
        return from_flat(*coalesce_leaves(*layout.flat(), keep_last=False))
    except XorArithmetic:
        return f2.coalesce(layout)


def _require_profile(what: str, profile: Any) -> None:
    """Raise LayoutError unless an argument is a valid target profile of `coalesce`: a nested tuple of integers or None.

    Leaves may also be strides such as 2@1.

    what      the call and the argument as text for the message, such as "coalesce(layout, target_profile):
              target_profile"
    profile   the argument
    raises    LayoutError for a profile that is or contains anything else
    """
    if isinstance(profile, tuple):
        for part in profile:
            _require_profile(what, part)
    elif not (profile is None or isinstance(profile, (ScaledBasis, F2)) or integer_of(profile) is not None):
        raise wrong_kind(what, profile, "an integer, None or a tuple of them")


def _modes_of(layout: Layout) -> str:
    """Return the number of modes of a layout as text: '1 mode' or '3 modes'."""
    return "1 mode" if len(layout) == 1 else f"{len(layout)} modes"


def coalesce_leaves(extents: Any, strides: Any, keep_last: bool) -> tuple[list[int], list[Any]]:
    """Return extents and strides of the coalesced layout: neighbours are merged, and extents of 1 are removed.

    For example, extents (2, 4, 1) with strides (1, 2, 5) become [8] with [1].

    extents     extents of all leaves, as a flat tuple
    strides     their strides
    keep_last   True to keep a last extent of 1 whose stride does not continue the mode before it: indices past the end
                of the layout then continue along this mode, so its stride counts
    """
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


def from_flat(extents: list[int], strides: list[Any]) -> Layout:
    """Return the layout of flat lists of extents and strides, with one mode for each entry.

    A single entry gives an integer shape, and empty lists give 1:0.
    """
    if len(extents) == 1:
        return Layout._unchecked(extents[0], strides[0])
    if not extents:
        return Layout._unchecked(1, 0)
    return Layout._unchecked(tuple(extents), tuple(strides))


def filter_zeros(layout: L, target_profile: Any = None) -> L:
    """Return the layout with extent 1 wherever the stride is 0, in the same hierarchy: (2,4):(0,1) becomes (1,4):(0,1).

    layout           layout, composed layout or tensor
    target_profile   values that are compared with 0 instead of the strides, congruent with the layout; None for the
                     strides
    returns          a Layout, ComposedLayout or Tensor, whichever `layout` is
    raises           LayoutError if the profile is not congruent with the layout
    source           CuTe layout algebra, `filter_zeros`

    >>> filter_zeros(Layout((2, 6, 3), (1, 2, 0)))
    Layout((2, 6, 1), (1, 2, 0))
    """
    if type(layout) is not Layout:
        return on_layout(f"{_FILTER_ZEROS}: layout", filter_zeros, layout, target_profile)
    profile = layout.stride
    if target_profile is not None:
        profile = as_tuples(target_profile)
        _require_profile(f"{_FILTER_ZEROS}: target_profile", profile)
    try:
        shape = map_leaves(lambda s, p: 1 if is_zero_stride(p) else s, layout.shape, profile)
    except LayoutError:
        raise LayoutError(
            f"{_FILTER_ZEROS}: target_profile {cute_text(profile)} is not congruent with {layout}. "
            "Give one entry for each extent, in the same hierarchy."
        ) from None
    return Layout._unchecked(shape, layout.stride)


def is_zero_stride(stride: Any) -> bool:
    """Return True if a stride is 0: as an integer, a multiple of a basis vector, or a stride over F2 (bits XORed)."""
    return (stride.value if isinstance(stride, (ScaledBasis, F2)) else stride) == 0


def filter(layout: L) -> L:
    """Return the coalesced layout without modes of stride 0: (2,4):(0,1) becomes 4:1.

    Law: its set of offsets is that of `layout`.

    layout    layout, composed layout or tensor
    returns   a Layout, ComposedLayout or Tensor, whichever `layout` is
    source    CuTe layout algebra, `filter`

    >>> filter(Layout((2, 1, 6, 3), (1, 7, 2, 0)))
    Layout(12, 1)
    """
    if type(layout) is not Layout:
        return on_layout("filter(layout): layout", filter, layout)
    return coalesce(filter_zeros(layout))


@overload
def composition(lhs: Layout, rhs: Any) -> Layout: ...
@overload
def composition(lhs: ComposedLayout | Swizzle, rhs: Any) -> ComposedLayout: ...
@overload
def composition(lhs: Tensor, rhs: Any) -> Tensor: ...
def composition(lhs: AnyLayout | Swizzle | Tensor, rhs: Any) -> AnyLayout | Tensor:
    """Return the composition R = A o B, which applies B first and then A.

    For example, (4,8):(8,1) o 4:2 is (2,2):(16,1). Law: R(c) == A(B(c)) for every coordinate c of B with B(c) <
    size(A), and the shape of R refines that of B. Past its end, A continues along its last mode; if its last extent
    is 1, results past the end are unspecified.

    lhs       A: a layout, composed layout, tensor or swizzle
    rhs       B: a layout whose offsets are indices or coordinates of A; or a tiler: an integer n (for n:1),
              None, or a tuple of tilers with one for each mode of A or for fewer. None keeps its mode. Modes of
              A after the tuple are dropped
    returns   a Layout, ComposedLayout or Tensor, whichever `lhs` is; for a swizzle, a ComposedLayout
    raises    LayoutError if no layout obeys the law, or if only a table of more than 2**20 offsets could decide
              it
    source    CuTe layout algebra, `composition`

    >>> composition(Layout((4, 8), (8, 1)), Layout((2, 2), (1, 4)))
    Layout((2, 2), (8, 1))
    >>> from cutegemm.layout.stride import E
    >>> composition(Layout((4, 8), (8, 1)), Layout((8, 4), (E(1), E(0))))
    Layout((8, 4), (1, 8))
    >>> composition(Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: composition: no layout is A o B for A = (6,2):(1,7) and B = (3,2):(2,3).
      A(B(2,1)) = A(7) = 8, but the strides (2,3), which its other offsets require, give 7.
      Choose the strides of B so that each divides, or is divided by, the extents of A: 6, 2.
    """
    if isinstance(lhs, Swizzle):
        if not isinstance(rhs, Layout):
            raise wrong_kind(f"composition(lhs, rhs): lhs is the swizzle {lhs}, and rhs", rhs, "a Layout")
        return ComposedLayout(lhs, 0, rhs)
    if type(lhs) is not Layout:
        return on_layout("composition(lhs, rhs): lhs", composition, lhs, rhs)
    if type(rhs) is Layout:
        try:
            return _compose(lhs, rhs)
        except XorArithmetic:
            return f2.composition(lhs, rhs)
        except ZeroDivisionError:
            raise LayoutError(f"composition: lhs {lhs} is empty, so rhs {rhs} has no offset in it.") from None
    if rhs is None:
        return lhs
    rhs = as_tuples(rhs)
    if isinstance(rhs, tuple):
        require_fit("composition", lhs, rhs)
        return regroup([composition(lhs[m], t) for m, t in enumerate(rhs)])
    if isinstance(rhs, ComposedLayout):
        raise LayoutError(
            f"composition: rhs {rhs} cannot follow the layout {lhs}; a composed layout has its swizzle on the left. "
            "Compose in the other order."
        )
    count = integer_of(rhs)
    if count is None:
        raise wrong_kind("composition(lhs, rhs): rhs", rhs, "a Layout, an integer, None or a tuple of them")
    if count < 0:
        raise LayoutError(f"composition(lhs, rhs): rhs = {shown(count)} is negative. Give the size of a tile.")
    return composition(lhs, Layout(count))


def require_fit(operation: str, layout: Layout, tiler: tuple[Any, ...]) -> None:
    """Raise LayoutError if a tiler has more entries than a layout has modes.

    operation   name of the calling operation, for the message
    layout      the layout
    tiler       tuple with an entry for each mode of the layout, or for fewer
    """
    if len(tiler) > len(layout):
        raise LayoutError(
            f"{operation}: the tiler {cute_text(tiler)} has {len(tiler)} entries, {layout} has {_modes_of(layout)}. "
            "Give one entry for each mode, or fewer."
        )


def _compose(a: Layout, b: Layout) -> Layout:
    """Return the composition A o B, which applies layout B first and then layout A.

    CuTe's rules give its strides if the strides and extents of A and B divide each other. Otherwise it is found from a
    table of its offsets.

    raises   LayoutError if no layout is A o B, ZeroDivisionError if A is empty, XorArithmetic for strides over F2,
             whose contributions are XORed
    """
    extents, strides = coalesce_leaves(*a.flat(), keep_last=True)
    if not extents:  # every extent of A is 1, and A continues along its last leaf
        extents, strides = [1], [a.flat()[1][-1] if a.flat()[1] else 0]
    b_extents, b_strides = b.flat()
    last = len(extents) - 1
    if last == 0:
        d0 = strides[0]
        if all(type(d) is int for d in b_strides):
            return Layout._unchecked(b.shape, map_leaves(lambda d: d * d0 if d else 0, b.stride))
    reach = [0] * (last + 1)  # largest digit of a value of B in each mode of A
    leaves = [_compose_leaf(extents, strides, s, d, reach) for s, d in zip(b_extents, b_strides, strict=True)]
    bounded = last - 1 if extents[last] == 1 else last
    if None in leaves or any(reach[j] >= extents[j] for j in range(bounded)):
        return _compose_by_table(a, b, Layout._unchecked(tuple(extents), tuple(strides)))
    if type(b.shape) is int:
        return Layout._unchecked(*leaves[0])
    return Layout._unchecked(
        refill(iter([leaf[0] for leaf in leaves]), b.shape),
        refill(iter([leaf[1] for leaf in leaves]), b.shape),
    )


def _compose_leaf(extents: list[int], strides: list[Any], s: int, d: Any, reach: list[int]) -> Any:
    """Return the shape and strides of A o s:d, the composition of A with a single mode s:d of B, or None.

    None means that the strides and extents do not divide each other as CuTe's rules require.

    extents   extents of A, coalesced
    strides   strides of A, coalesced
    s, d      extent and stride of one leaf of B
    reach     for each mode of A, the largest coordinate that the leaves of B before this one reach together. This
              function updates the list
    """
    if type(d) is not int:
        return None
    if d == 0 or s == 0:
        return s, 0
    if s == 1:  # CuTe's stride for an extent of 1: the step past all modes but the last, rounded up
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
            ends = j + 1 == last and extents[last] == 1  # results past the end are unspecified
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
    """Return A o B from a table of its offsets, if CuTe's rules do not apply to its strides and extents.

    flat_a   A, coalesced
    raises   LayoutError if no layout gives these offsets, or if the table is too long
    """
    if a.is_xor or b.is_xor:
        raise XorArithmetic
    if b.is_coordinates:
        return _compose_mode_by_mode(a, b)
    if b.size() == 0:
        return Layout._unchecked(b.shape, map_leaves(lambda _: 0, b.shape))
    if a.size() == 0:
        raise ZeroDivisionError
    if not a.is_integral:
        raise LayoutError(
            f"composition: the rules of divisibility do not give A o B for A = {a} and B = {b}.\n  {_advice(flat_a)}"
        )
    extents, strides = b.flat()
    if b.size() > MAX_TABLE:
        raise LayoutError(
            f"composition: the rules of divisibility do not decide A o B for A = {a} and B = {b}, and B has "
            f"{shown(b.size())} coordinates; at most {MAX_TABLE} are evaluated.\n  {_advice(flat_a)}"
        )
    if any(d < 0 and s > 1 for s, d in zip(extents, strides, strict=True)):
        raise LayoutError(
            f"composition: B = {b} has negative offsets. A = {a} has several modes, so it has no negative indices.\n"
            "  Reverse a mode of A instead, or start B at an offset."
        )
    leaves = []
    for position, (s, d) in enumerate(zip(extents, strides, strict=True)):
        values = at_indices(flat_a, Layout._unchecked(s, d).offsets())
        flat = strides_of(values)
        if isinstance(flat, int):
            coord = unflatten([flat if p == position else 0 for p in range(len(extents))], b.shape)
            before = ", ".join(map(str, values[: flat + 1]))
            raise LayoutError(
                f"composition: no layout is A o B for A = {a} and B = {b}.\n"
                f"  A(B({_plain(coord)})) = {values[flat]}, but no strides over {s} elements give the "
                f"offsets {before}{', ...' if flat + 1 < s else ''}.\n"
                f"  {_advice(flat_a)}"
            )
        leaves.append(from_flat(*flat))
    result = Layout._unchecked(
        unflatten([x.shape for x in leaves], b.shape), unflatten([x.stride for x in leaves], b.shape)
    )
    if type(b.shape) is int:
        return result
    expected, offsets = at_indices(flat_a, b.offsets()), result.offsets()
    if not np.array_equal(expected, offsets):
        index = int(np.argmax(expected != offsets))
        coord = idx2crd(index, b.shape)
        raise LayoutError(
            f"composition: no layout is A o B for A = {a} and B = {b}.\n"
            f"  A(B({_plain(coord)})) = A({b(index)}) = {expected[index]}, but the strides "
            f"{cute_text(result.stride)}, which its other offsets require, give {offsets[index]}.\n"
            f"  {_advice(flat_a)}"
        )
    return result


def _compose_mode_by_mode(a: Layout, b: Layout) -> Layout:
    """Return A o B for a layout B that returns coordinates of A.

    For example, a leaf of B with the stride 2@1 moves along mode 1 of A. So each mode of A is composed with the leaves
    of B that move along this mode.
    """
    shape, stride = list(b.flat()[0]), [0] * len(b.flat()[0])
    for path in coordinates.paths_of(b):
        part = coordinates.along(b, path)
        try:
            composed = composition(get(a, path), part)
        except LayoutError as error:
            raise LayoutError(
                f"composition: no layout is A o B for A = {a} and B = {b}, along {ScaledBasis(1, path)}:\n  {error}"
            ) from error
        for m, place in enumerate(coordinates.leaves_along(b, path)):
            shape[place], stride[place] = composed.shape[m], composed.stride[m]
    return Layout._joined(unflatten(shape, b.shape), unflatten(stride, b.shape))


def _advice(flat_a: Layout) -> str:
    """Return the advice to end the error message with if no layout is equal to the composition A o B.

    flat_a   A, coalesced; the message lists its extents
    """
    extents = ", ".join(str(s) for s in flat_a.shape)
    return f"Choose the strides of B so that each divides, or is divided by, the extents of A: {extents}."


def _plain(coord: Any) -> str:
    """Return a coordinate as text in CuTe's notation without the outer parentheses: "1,2" for (1, 2)."""
    return cute_text(coord)[1:-1] if isinstance(coord, tuple) else str(coord)


def strides_of(values: np.ndarray) -> tuple[list[int], list[int]] | int:
    """Return the coalesced extents and strides of the layout that has given offsets, or the first index without any.

    For example, 0, 1, 8, 9 gives ([2, 2], [1, 8]); 0, 1, 5, 9 gives the index 3.

    values    integer array, the offset of each index, starting with 0
    returns   (extents, strides), or an integer: the first index whose offset no strides give
    """
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
