"""Size, rank, selection, grouping, extension and slicing of the modes of layouts and hierarchical values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union

from cutegemm.errors import LayoutError
from cutegemm.layout import inttuple
from cutegemm.layout.inttuple import (
    MAX_RANK,
    IntTuple,
    as_int_tuple,
    as_tuples,
    integer_of,
    shown,
    wrong_kind,
)
from cutegemm.layout.layout import Layout, cute_text, has_none
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import Tensor

AnyLayout = Union[Layout, ComposedLayout]
T = TypeVar("T")
_AROUND_A_LAYOUT = (ComposedLayout, Tensor)
_WITH_LAYOUT = (Layout, *_AROUND_A_LAYOUT)
_CRD2IDX = "crd2idx(coord, layout)"


def on_layout(what: str, function: Callable[..., Layout], value: Any, *args: Any) -> Any:
    """Apply `function` to a layout, to the outer layout of a composed one, or to the layout of a tensor.

    what       the call and the argument as text for messages, such as "coalesce(layout, target_profile): layout"
    function   from a Layout to a Layout
    args       further arguments of `function`
    returns    a Layout, ComposedLayout or Tensor, whichever `value` is
    raises     LayoutError for a value of another kind
    """
    if type(value) is Layout:
        return function(value, *args)
    if isinstance(value, ComposedLayout):
        return value.with_outer(function(value.outer, *args))
    if isinstance(value, Tensor):
        return value.with_layout(lambda layout: function(layout, *args))
    raise wrong_kind(what, value, "a Layout, ComposedLayout or Tensor")


def require_layout(what: str, value: Any) -> None:
    """Raise LayoutError unless `value` is a Layout.

    what     the call and the argument as text for messages, such as "complement(layout, cotarget): layout"
    raises   LayoutError for a value of another kind, also a ComposedLayout or a Tensor
    """
    if type(value) is not Layout:
        raise wrong_kind(what, value, "a Layout")


def _shape_of(call: str, value: Any) -> IntTuple:
    """Return the shape of a layout or tensor; another value is a shape itself.

    call    text of the call, for messages
    value   layout, tensor or shape
    """
    if isinstance(value, (int, tuple, list)):
        return as_tuples(value)
    if isinstance(value, _WITH_LAYOUT):
        return value.shape
    raise wrong_kind(f"{call}: value", value, "a layout, a tensor or a shape")


def is_congruent(a: Any, b: Any) -> bool:
    """Return True if two layouts, tensors or nested tuples have the same hierarchy, like (1, (2, 3)) and (4, (5, 6)).

    >>> is_congruent((1, (2, 3)), (4, (5, 6))), is_congruent(Layout((4, 8)), Layout(32))
    (True, False)
    """
    return inttuple.is_congruent(_profile_of(a), _profile_of(b))


def is_weakly_congruent(a: Any, b: Any) -> bool:
    """Return True if `b` refines `a`: any leaf of `a` may be a tuple in `b`, such as for (1, 2) and (4, (5, 6)).

    a, b   layouts, tensors or nested tuples

    >>> is_weakly_congruent(4, Layout((5, 6))), is_weakly_congruent((5, 6), 4)
    (True, False)
    """
    return inttuple.is_weakly_congruent(_profile_of(a), _profile_of(b))


def _profile_of(value: Any) -> Any:
    """Return the shape of a layout or tensor; any other value is a nested tuple, returned with lists as tuples."""
    return value.shape if isinstance(value, _WITH_LAYOUT) else as_tuples(value)


def _path(call: str, mode: int | Sequence[int]) -> tuple[int, ...]:
    """Return a mode as a path, a tuple of indices from the outermost mode inwards: the index 2 becomes (2,).

    call   text of the call, for messages
    mode   index, or sequence of indices
    """
    path = tuple(mode) if isinstance(mode, (list, tuple)) else (mode,)
    if any(isinstance(m, bool) or not isinstance(m, int) for m in path):
        raise wrong_kind(f"{call}: mode", mode, "an integer or a list of integers")
    return path


def _walk(call: str, value: Any, path: Sequence[int]) -> Any:
    """Return the part of a nested tuple at a path of mode indices: (1, 0) leads to 3 in (2, (3, 4)).

    call     text of the call, for messages
    value    the nested tuple
    path     indices from the outermost mode inwards
    raises   LayoutError for an index of a mode that does not exist
    """
    for m in path:
        here = value if isinstance(value, tuple) else (value,)
        if not 0 <= m < len(here):
            raise LayoutError(
                f"{call}: {cute_text(value)} of rank {len(here)} has no mode {shown(m)}. Use 0 to {len(here) - 1}."
            )
        value = here[m]
    return value


def size(value: Any, mode: Sequence[int] = ()) -> int:
    """Return the number of coordinates of a layout, tensor or shape, or of one of its modes.

    mode     index or path of indices from the outermost mode inwards; () for the whole value
    raises   LayoutError for a mode that does not exist
    source   CuTe, `size`

    >>> size(Layout((4, (2, 3)))), size((4, (2, 3)), mode=[1, 0])
    (24, 2)
    """
    call = "size(value, mode)"
    return inttuple.product(_walk(call, _shape_of(call, value), _path(call, mode)))


def cosize(value: AnyLayout | Tensor, mode: Sequence[int] = ()) -> Any:
    """Return the number of offsets that a layout, or one of its modes, spans: 1 + the sum of (extent - 1) * |stride|.

    For a composed layout, it is 1 + the largest offset.

    value    layout, composed layout or tensor
    mode     index or path of indices; () for the whole layout
    raises   LayoutError for a mode that does not exist
    source   CuTe, `cosize`

    >>> cosize(Layout((4, 8), (8, 1)), mode=[0])
    25
    """
    if isinstance(value, Tensor):
        value = value.layout
    if not isinstance(value, (Layout, ComposedLayout)):
        raise wrong_kind("cosize(value, mode): value", value, "a Layout, ComposedLayout or Tensor")
    path = _path("cosize(value, mode)", mode)
    return (get(value, path) if path else value).cosize()


def rank(value: Any, mode: Sequence[int] = ()) -> int:
    """Return the number of modes of a layout, a tensor or a nested tuple: (2, (3, 4)) has 2, an integer 1.

    mode     index or path of indices; () for the whole value
    raises   LayoutError for a mode that does not exist
    source   CuTe, `rank`

    >>> rank(Layout((4, (2, 3)))), rank(7)
    (2, 1)
    """
    call = "rank(value, mode)"
    part = _walk(call, _shape_of(call, value), _path(call, mode))
    return len(part) if isinstance(part, tuple) else 1


def depth(value: Any, mode: Sequence[int] = ()) -> int:
    """Return how deep a layout, a tensor or a nested tuple is nested: an integer has depth 0, (2, (3, 4)) depth 2.

    mode     index or path of indices; () for the whole value
    raises   LayoutError for a mode that does not exist
    source   CuTe, `depth`

    >>> depth((4, (2, 3))), depth(7)
    (2, 0)
    """
    call = "depth(value, mode)"
    part = _walk(call, _shape_of(call, value), _path(call, mode))
    return 1 + max((depth(v) for v in part), default=0) if isinstance(part, tuple) else 0


def shape(value: Any, mode: int | Sequence[int] | None = None) -> IntTuple:
    """Return the shape of a layout or tensor, or of one of its modes.

    value    layout or tensor; a nested tuple is a shape itself
    mode     index or path of indices; None for the whole shape
    raises   LayoutError for a mode that does not exist

    >>> shape(Layout((4, (2, 3)))), shape(Layout((4, (2, 3))), 1)
    ((4, (2, 3)), (2, 3))
    """
    call = "shape(value, mode)"
    path = () if mode is None else _path(call, mode)
    return _walk(call, _shape_of(call, value), path)


def get(value: Any, mode: int | Sequence[int] = ()) -> Any:
    """Return one mode of a layout, tensor or nested tuple: the path (1, 0) leads to 3 in (2, (3, 4)).

    mode      index or path of indices from the outermost mode inwards; () for the whole value
    returns   a layout for a layout, a tensor for a tensor, else an entry of the tuple
    raises    LayoutError for a mode that does not exist
    source    CuTe, `get`

    >>> get(Layout((4, (8, 3))), mode=[1, 0])
    Layout(8, 4)
    """
    call = "get(value, mode)"
    path = _path(call, mode)
    if isinstance(value, Layout):
        return Layout._unchecked(_walk(call, value.shape, path), _walk(call, value.stride, path))
    if isinstance(value, _AROUND_A_LAYOUT):
        return on_layout(call, get, value, path)
    return _walk(call, as_tuples(value), path)


def select(value: T, mode: Sequence[int]) -> T:
    """Return several modes of a layout, tensor or nested tuple, in the given order: [2, 0] selects modes 2 and 0.

    mode      list of indices
    returns   a layout for a layout, a tensor for a tensor, else a tuple
    raises    LayoutError for a mode that does not exist
    source    CuTe, `select`

    >>> select(Layout((4, 8, 3)), mode=[2, 0])
    Layout((3, 4), (32, 1))
    """
    call = "select(value, mode)"
    path = _path(call, mode)
    if isinstance(value, _AROUND_A_LAYOUT):
        return on_layout(call, select, value, path)
    if isinstance(value, Layout):
        return _both(lambda part: select(part, path), value)  # type: ignore[return-value]
    value = as_tuples(value)
    return tuple([_walk(call, value, (m,)) for m in path])  # type: ignore[return-value]


def _both(function: Callable[[Any], Any], layout: Layout) -> Layout:
    """Return the layout whose shape and stride are `function` of the given layout's shape and stride.

    function   function from a nested tuple to a nested tuple
    """
    return Layout._unchecked(function(layout.shape), function(layout.stride))


def flatten(value: Any) -> Any:
    """Return a layout, tensor or nested tuple with all leaves as modes: (2, (3, 4)) becomes (2, 3, 4).

    source   CuTe, `flatten`

    >>> flatten(Layout((4, (2, 3))))
    Layout((4, 2, 3), (1, 4, 8))
    >>> flatten(7)
    7
    """
    if isinstance(value, _AROUND_A_LAYOUT):
        return on_layout("flatten(value)", flatten, value)
    if isinstance(value, Layout):
        return _both(flatten, value)
    value = as_tuples(value)
    return inttuple.flatten(value) if isinstance(value, tuple) else value


def group_modes(value: T, begin: int, end: int | None = None) -> T:
    """Join the modes `begin` to `end` - 1 of a layout, tensor or nested tuple into one: (2, 3, 4) gives ((2, 3), 4).

    value    layout, tensor or nested tuple
    begin    index of the first mode of the group
    end      index after the last mode of the group; None for all modes from `begin` on
    raises   LayoutError if the range is empty or exceeds the modes
    source   CuTe, `group_modes`

    >>> group_modes(Layout((4, 2, 3, 5)), 1, 3)
    Layout((4, (2, 3), 5), (1, (4, 8), 24))
    """
    if isinstance(value, _AROUND_A_LAYOUT):
        return on_layout("group_modes(value, begin, end)", group_modes, value, begin, end)
    if isinstance(value, Layout):
        return _both(lambda part: group_modes(part, begin, end), value)  # type: ignore[return-value]
    value = as_tuples(value)
    modes: Any = value if isinstance(value, tuple) else (value,)
    call = "group_modes(value, begin, end)"
    begin = inttuple.as_integer(begin, f"{call}: begin")
    stop = len(modes) if end is None else inttuple.as_integer(end, f"{call}: end")
    if not 0 <= begin < stop <= len(modes):
        raise LayoutError(
            f"{call}: the range [{shown(begin)}, {shown(stop)}) is empty or not within the {len(modes)} modes of "
            f"{cute_text(value)}. Give 0 <= begin < end <= {len(modes)}."
        )
    return (*modes[:begin], modes[begin:stop], *modes[stop:])  # type: ignore[return-value]


def append(value: T, elem: Any, up_to_rank: int | None = None) -> T:
    """Return a layout, tensor or nested tuple with one or more modes added at the end.

    elem         the mode: a layout for a layout or tensor, else an integer or nested tuple
    up_to_rank   rank of the result, at most 1000: `elem` is repeated until it is reached. None for one more
                 mode
    raises       LayoutError if the rank is already higher
    source       CuTe, `append`

    >>> append(Layout((4, 2)), Layout(3, 8))
    Layout((4, 2, 3), (1, 4, 8))
    >>> append(Layout((4, 2)), Layout(1, 0), up_to_rank=4)
    Layout((4, 2, 1, 1), (1, 4, 0, 0))
    """
    return _extend("append", value, elem, up_to_rank, at_end=True)


def prepend(value: T, elem: Any, up_to_rank: int | None = None) -> T:
    """Return a layout, tensor or nested tuple with one or more modes added at the front.

    elem         the mode: a layout for a layout or tensor, else an integer or nested tuple
    up_to_rank   rank of the result, at most 1000: `elem` is repeated until it is reached. None for one more
                 mode
    raises       LayoutError if the rank is already higher
    source       CuTe, `prepend`

    >>> prepend(Layout((4, 2)), Layout(3, 8))
    Layout((3, 4, 2), (8, 1, 4))
    """
    return _extend("prepend", value, elem, up_to_rank, at_end=False)


def _extend(operation: str, value: Any, elem: Any, up_to_rank: int | None, at_end: bool) -> Any:
    """Return a layout, tensor or nested tuple with copies of the mode `elem` added at one end.

    operation    "append" or "prepend", for messages
    up_to_rank   rank of the result; None for one more mode
    at_end       True for append, False for prepend
    """
    call = f"{operation}(value, elem, up_to_rank)"
    if isinstance(value, _AROUND_A_LAYOUT):
        return on_layout(call, lambda layout: _extend(operation, layout, elem, up_to_rank, at_end), value)
    if isinstance(value, Layout):
        require_layout(f"{call}: elem", elem)
        return Layout._joined(
            _extend(operation, value.shape, elem.shape, up_to_rank, at_end),
            _extend(operation, value.stride, elem.stride, up_to_rank, at_end),
        )
    value, elem = as_tuples(value), as_tuples(elem)
    if isinstance(elem, _WITH_LAYOUT):
        raise wrong_kind(f"{call}: value", value, "a layout, as elem is one,")
    modes = value if isinstance(value, tuple) else (value,)
    count = 1
    if up_to_rank is not None:
        rank_wanted = inttuple.as_integer(up_to_rank, f"{call}: up_to_rank")
        count = rank_wanted - len(modes)
        if rank_wanted > MAX_RANK or count < 0:
            raise LayoutError(
                f"{call}: up_to_rank = {shown(up_to_rank)} is out of bounds for {cute_text(value)}. "
                f"Give an integer from {len(modes)}, its rank, to {MAX_RANK}."
            )
    if count == 0:
        return value
    return modes + (elem,) * count if at_end else (elem,) * count + modes


def slice_(value: Any, coord: Any) -> Any:
    """Return the modes that a coordinate keeps, those with the entry None: (2, None) of (4,8):(8,1) gives (8):(1).

    value     layout, composed layout, tensor or nested tuple
    coord     an integer for each mode to fix, None for each mode to keep
    returns   a Layout, ComposedLayout, Tensor or tuple, whichever `value` is. A composed layout and a tensor keep the
              offset of the fixed modes; a plain layout drops it
    raises    LayoutError if the coordinate does not fit
    source    CuTe, `slice_`

    >>> slice_(Layout((4, (2, 4)), (8, (1, 2))), (None, (1, None)))
    Layout((4, 4), (8, 2))
    """
    return _sliced("slice_(value, coord)", value, coord)[0]


def slice_and_offset(coord: Any, value: Any) -> tuple[Any, Any]:
    """Return (modes with the entry None in a coordinate, offset of the fixed modes): (8):(1) and 16 for (2, None).

    coord     an integer for each mode to fix, None for each mode to keep
    value     layout, composed layout, tensor or nested tuple
    returns   (Layout, ComposedLayout, Tensor or tuple, whichever `value` is; offset). The offset is 0 for values
              other than a plain layout
    raises    LayoutError if the coordinate does not fit
    source    CuTe, `slice_and_offset`

    >>> slice_and_offset((None, (1, None)), Layout((4, (2, 4)), (8, (1, 2))))
    (Layout((4, 4), (8, 2)), 1)
    """
    return _sliced("slice_and_offset(coord, value)", value, coord)


def _sliced(call: str, value: Any, coord: Any) -> tuple[Any, Any]:
    """Return the modes with the entry None in a coordinate, and the offset of the fixed modes.

    call    text of the call that the user made, which error messages begin with
    value   layout, composed layout, tensor or nested tuple
    coord   an integer for each mode to fix, None for each mode to keep
    """
    coord = as_tuples(coord)
    require_coord(call, "coord", coord)
    if isinstance(value, Layout):
        return value.slice(coord)
    if isinstance(value, Tensor):
        return (value[coord] if has_none(coord) else value.with_layout(lambda _: Layout((), ()))), 0
    if isinstance(value, ComposedLayout):
        return (value(coord) if has_none(coord) else value.with_outer(Layout((), ()))), 0
    return _pick(call, as_tuples(value), coord, keep_none=True), 0


def make_layout_image_mask(lay: Layout, coord: Any, mode: int) -> int:
    """Return the mask with a bit set at each offset along one mode of a layout: the multicast mask of a TMA load.

    lay       layout from the coordinate of a CTA in its cluster to its rank
    coord     coordinate of the CTA, with an entry for each mode
    mode      index of the mode along which the CTAs receive the data
    returns   integer with bits 0 to 15: for (2,4):(1,2), coordinate (0, 0) and mode 1, bits 0, 2, 4 and 6
    raises    LayoutError for a mode that the coordinate does not have, or an offset that is not in [0, 16)
    source    CuTe, `make_layout_image_mask`

    >>> bin(make_layout_image_mask(Layout((2, 4)), (1, 0), mode=1))
    '0b10101010'
    """
    call = "make_layout_image_mask(lay, coord, mode)"
    require_layout(f"{call}: lay", lay)
    if lay.is_coordinates:
        raise LayoutError(f"{call}: lay {lay} gives coordinates. Give a layout whose offsets are the ranks of CTAs.")
    coord, mode = as_int_tuple(coord, f"{call}: coord"), inttuple.as_integer(mode, f"{call}: mode")
    if not isinstance(coord, tuple) or not 0 <= mode < len(coord):
        modes = len(coord) if isinstance(coord, tuple) else 0
        raise LayoutError(
            f"{call}: coord {cute_text(coord)} of {lay} has {modes} entries, but mode is {shown(mode)}. "
            "Give a tuple with an entry for each mode, and the index of one of them."
        )
    row, start = lay.slice((*coord[:mode], None, *coord[mode + 1 :]))
    offsets = [start + offset for offset in row.offsets().tolist()]
    if offsets and not 0 <= min(offsets) <= max(offsets) < 16:
        raise LayoutError(
            f"{call}: mode {mode} of {lay} at {cute_text(coord)} has the offsets {offsets}. "
            "Give a layout with offsets from 0 to 15, the bits of a mask."
        )
    return sum({1 << offset for offset in offsets})


def dice(value: Any, dicer: Any) -> Any:
    """Return the modes with an integer entry in a coordinate: (2, None) of (4,8):(8,1) gives (4):(8).

    value     layout, composed layout, tensor or nested tuple
    dicer     an integer for each mode to keep, None for each mode to remove
    returns   a Layout, ComposedLayout, Tensor or tuple, whichever `value` is
    raises    LayoutError if the coordinate does not fit
    source    CuTe, `dice`

    >>> dice(Layout((4, (2, 4)), (8, (1, 2))), (None, (1, 1)))
    Layout((2, 4), (1, 2))
    """
    call = "dice(value, dicer)"
    dicer = as_tuples(dicer)
    require_coord(call, "dicer", dicer)
    if isinstance(value, _AROUND_A_LAYOUT):
        return on_layout(call, dice, value, dicer)
    if isinstance(value, Layout):
        return _both(lambda part: dice(part, dicer), value)
    return _pick(call, as_tuples(value), dicer, keep_none=False)


def require_coord(call: str, argument: str, coord: Any) -> None:
    """Raise LayoutError unless a coordinate is an integer, None or a tuple of coordinates.

    call       text of the call for messages, such as "dice(value, dicer)"
    argument   name of the argument
    coord      the coordinate
    """
    if coord is not None and type(coord) is not int:
        if isinstance(coord, tuple):
            for part in coord:
                require_coord(call, argument, part)
        elif integer_of(coord) is None:
            raise wrong_kind(f"{call}: {argument}", coord, "an integer, None or a tuple of them")


def _pick(call: str, value: Any, coord: Any, keep_none: bool) -> Any:
    """Return the entries of a nested tuple that a coordinate selects: those at None, or those at an integer.

    For example, of (4, 8) and the coordinate (2, None), the entry with None is 8, and that with an integer is 4.

    call        text of the user's call, for messages
    value       nested tuple
    coord       nested tuple of integers and None
    keep_none   True to return the entries with None, False to return those with an integer
    """
    if isinstance(coord, tuple):
        if not isinstance(value, tuple) or len(value) != len(coord):
            raise LayoutError(
                f"{call}: coordinate {cute_text(coord)} does not fit {cute_text(value)}. Give one entry for each mode."
            )
        out: list[Any] = []
        for v, c in zip(value, coord, strict=True):
            picked = _pick(call, v, c, keep_none)
            if isinstance(c, tuple):
                out.extend(picked)
            elif (c is None) is keep_none:
                out.append(v)
        return tuple(out)
    return value if (coord is None) is keep_none else ()


def crd2idx(coord: IntTuple, layout: Any) -> Any:
    """Return the offset of a coordinate under a layout, or its colexicographic index in a shape.

    coord    integer, or a tuple that fits the shape; None for a mode to keep, which returns a layout
    layout   layout, composed layout or shape
    raises   LayoutError if the coordinate does not fit, or if the arguments are in the other order
    source   CuTe, `crd2idx`

    >>> crd2idx((1, (1, 2)), (4, (2, 3))), crd2idx((1, 2), Layout((4, 8), (8, 1)))
    (21, 10)
    """
    if not isinstance(layout, (Layout, ComposedLayout)):
        layout = Layout(as_int_tuple(layout, f"{_CRD2IDX}: layout"))
    try:
        return layout(coord)
    except LayoutError as error:
        require_coord(_CRD2IDX, "coord", as_tuples(coord))
        raise LayoutError(f"{_CRD2IDX}: {error}") from None
