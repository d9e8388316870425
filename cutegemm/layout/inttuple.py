"""Hierarchical integers: an integer, or a tuple of hierarchical integers.

Shapes, coordinates and integer strides are hierarchical integers. `(4, (2, 3))` has rank 2, depth 2 and
product 24. Coordinates run colexicographically: the leftmost leaf varies fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import index as to_int
from typing import Any

from cutegemm.errors import LayoutError

IntTuple = Any  # int | tuple[IntTuple, ...]; a recursive alias costs more in the type checker than it gives


# Bounds, so that no layout can be written whose coordinates do not fit into memory.
MAX_DEPTH = 100  # of nested tuples; Python's own recursion ends at about three times this depth
MAX_RANK = 1000  # modes that a coordinate has, or that `append` and `prepend` extend to
_MAX_SHOWN = 200  # characters of a value in a message

INTEGERS = "an integer or a tuple of integers"


def shown(value: Any) -> str:
    """Return `repr(value)` for a message, cut to 200 characters.

    An integer that is too long for Python to print is described by its number of bits.

    >>> shown((4, 8)), shown(10**5000)
    ('(4, 8)', '<an integer of 16610 bits>')
    """
    if type(value) is int and value.bit_length() > 10_000:
        return f"<an integer of {value.bit_length()} bits>"
    try:
        text = repr(value)
    except Exception:  # an integer inside is too long, or the object cannot print itself
        text = f"<a {type(value).__name__}>"
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."


def wrong_kind(what: str, value: Any, expected: str, remedy: str = "") -> LayoutError:
    """Return the error for an argument of the wrong kind.

    what       the call and the argument, such as "size(value, mode): mode"
    expected   what the argument may be, such as "an integer or a tuple of integers"
    remedy     a sentence; by default advice for a layout: to pass its shape, or to check the order of the arguments

    >>> print(wrong_kind("size(value, mode): mode", "a", "an integer"))
    size(value, mode): mode is 'a', a str; an integer is expected.
    """
    name = type(value).__name__
    kind = "" if value is None else f", {'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
    if (not remedy and hasattr(value, "stride")) or hasattr(value, "outer") or hasattr(value, "layout"):
        remedy = "Pass its .shape." if what.endswith("shape") else "Check the order of the arguments."
    return LayoutError(f"{what} is {shown(value)}{kind}; {expected} is expected.{remedy and ' ' + remedy}")


def as_int_tuple(value: Any, what: str = "value") -> IntTuple:
    """Return `value` with lists as tuples and integer scalars (also numpy's) as Python integers.

    what     the call and the argument for messages, such as "size(value, mode): mode"
    raises   LayoutError for a leaf of another type (also a layout), and for tuples nested more than 100 deep

    >>> as_int_tuple([4, (2, 3)])
    (4, (2, 3))
    """
    if type(value) is int or _holds_integers(value, 0):
        return value
    try:
        return _as_int_tuple(value, what, 0)
    except _NotInteger as error:
        leaf = error.args[0]
    whole = "" if leaf is value else f" is {shown(value)}; its leaf"
    raise wrong_kind(what + whole, leaf, INTEGERS)


class _NotInteger(Exception):
    """Raised internally for a leaf that is not an integer; its argument is that leaf."""


def as_integer(value: Any, what: str) -> int:
    """Return `value` as a Python integer.

    what     the call and the argument for messages, such as "size(value, mode): mode"
    raises   LayoutError for a value of another type, also a bool
    """
    number = integer_of(value)
    if number is None:
        raise wrong_kind(what, value, "an integer")
    return number


def _holds_integers(value: Any, depth: int) -> bool:
    """Whether it is a tuple of Python integers and such tuples, not too deep."""
    if type(value) is not tuple or depth > MAX_DEPTH:
        return False
    for v in value:  # noqa: SIM110 - `all` of a generator takes three times as long
        if type(v) is not int and not _holds_integers(v, depth + 1):
            return False
    return True


def _as_int_tuple(value: Any, what: str, depth: int) -> IntTuple:
    if type(value) is int:
        return value
    if isinstance(value, (tuple, list)):
        _check_depth(what, depth)
        return tuple([_as_int_tuple(v, what, depth + 1) for v in value])
    number = integer_of(value)
    if number is None:
        raise _NotInteger(value)
    return number


def integer_of(value: Any) -> int | None:
    """A Python integer, also of numpy's integer scalars; None for a value of another kind.

    >>> integer_of(3), integer_of(True), integer_of("3")
    (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else to_int(value)
    except TypeError:
        return None


def _check_depth(what: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise LayoutError(f"{what}: the tuples are nested more than {MAX_DEPTH} deep.")


def as_tuples(value: Any, depth: int = 0) -> Any:
    """`value` with lists as tuples; its leaves (None, layouts, integers) stay as they are.

    >>> as_tuples([None, [2, 3]])
    (None, (2, 3))
    """
    kind = type(value)
    if kind is not list and (kind is not tuple or not _holds_lists(value, depth)):
        return value
    _check_depth("tuple", depth)
    return tuple([as_tuples(v, depth + 1) for v in value])


def _holds_lists(value: tuple[Any, ...], depth: int) -> bool:
    """Whether a tuple holds a list, or is too deep to tell."""
    for v in value:  # noqa: SIM110 - see `_holds_integers`
        if type(v) is list or (type(v) is tuple and (depth > MAX_DEPTH or _holds_lists(v, depth + 1))):
            return True
    return False


def flatten(value: Any) -> tuple[Any, ...]:
    """The leaves of a hierarchical value, left to right; a leaf by itself gives a tuple of one.

    >>> flatten((4, (2, 3)))
    (4, 2, 3)
    """
    if not isinstance(value, tuple):
        return (value,)
    out: list[Any] = []
    for v in value:
        if isinstance(v, tuple):
            out.extend(flatten(v))
        else:
            out.append(v)
    return tuple(out)


def unflatten(leaves: Sequence[Any], profile: Any) -> Any:
    """The leaves in the hierarchy of `profile`.

    raises   LayoutError where the number of leaves differs from that of the profile

    >>> unflatten((4, 2, 3), (0, (0, 0)))
    (4, (2, 3))
    """
    if not isinstance(leaves, Sequence) or isinstance(leaves, (str, bytes)):
        raise wrong_kind("unflatten(leaves, profile): leaves", leaves, "a list or tuple")
    profile = as_tuples(profile)
    count = len(flatten(profile))
    if len(leaves) != count:
        raise LayoutError(
            f"unflatten: {len(leaves)} leaves {tuple(leaves)} do not fill the profile {profile}, "
            f"which has {count}."
        )
    return refill(iter(leaves), profile)


def refill(leaves: Iterator[Any], profile: Any) -> Any:
    """As many leaves as a profile needs, in its hierarchy."""
    if isinstance(profile, tuple):
        return tuple([refill(leaves, p) for p in profile])
    return next(leaves)


def product(value: IntTuple) -> int:
    """The product of all leaves; 1 for the empty tuple.

    >>> product((4, (2, 3)))
    24
    """
    if type(value) is int:
        return value
    if not isinstance(value, tuple):
        return product(as_int_tuple(value, "product(value): value"))
    out = 1
    for v in value:
        out *= v if type(v) is int else product(v)
    return out


def product_each(value: IntTuple) -> IntTuple:
    """The product of each mode.

    >>> product_each((4, (2, 3)))
    (4, 6)
    """
    value = as_int_tuple(value, "product_each(value): value")
    return tuple([product(v) for v in value]) if isinstance(value, tuple) else value


def inner_product(a: IntTuple, b: IntTuple) -> int:
    """The sum of the products of the leaves of two congruent values.

    >>> inner_product((1, (2, 3)), (10, (100, 1000)))
    3210
    """
    a, b = as_int_tuple(a, "inner_product(a, b): a"), as_int_tuple(b, "inner_product(a, b): b")
    if not is_congruent(a, b):
        raise LayoutError(f"inner_product(a, b): a = {a} and b = {b} are not congruent.")
    return sum(x * y for x, y in zip(flatten(a), flatten(b), strict=True))


def is_congruent(a: Any, b: Any) -> bool:
    """Whether `a` and `b` have the same hierarchy.

    >>> is_congruent((1, (2, 3)), (4, (5, 6))), is_congruent((1, 2), 3)
    (True, False)
    """
    a_is, b_is = isinstance(a, tuple), isinstance(b, tuple)
    if a_is and b_is:
        return len(a) == len(b) and all(is_congruent(x, y) for x, y in zip(a, b, strict=True))
    return not a_is and not b_is


def is_weakly_congruent(a: Any, b: Any) -> bool:
    """Whether `b` refines `a`: the same hierarchy down to the leaves of `a`.

    >>> is_weakly_congruent(4, (5, 6)), is_weakly_congruent((5, 6), 4)
    (True, False)
    """
    if isinstance(a, tuple):
        return (
            isinstance(b, tuple)
            and len(a) == len(b)
            and all(is_weakly_congruent(x, y) for x, y in zip(a, b, strict=True))
        )
    return True


def transform_leaf(function: Callable[..., Any], *values: Any) -> Any:
    """`function` applied to the leaves of congruent values, in their hierarchy.

    >>> transform_leaf(lambda s, d: s * d, (4, (2, 3)), (1, (4, 8)))
    (4, (8, 24))
    """
    if not callable(function):
        raise wrong_kind("transform_leaf(function, *values): function", function, "a function")
    if not values:
        raise LayoutError("transform_leaf(function, *values): no values are given. Pass at least one.")
    return map_leaves(function, *[as_tuples(v) for v in values])


def map_leaves(function: Callable[..., Any], *values: Any) -> Any:
    """`transform_leaf` of values that hold no lists."""
    first = values[0]
    if isinstance(first, tuple):
        if any(not isinstance(v, tuple) or len(v) != len(first) for v in values):
            raise LayoutError(f"transform_leaf: {' and '.join(map(str, values))} are not congruent.")
        return tuple([map_leaves(function, *vs) for vs in zip(*values, strict=True)])
    return function(*values)


def prefix_product(shape: IntTuple, start: int = 1) -> IntTuple:
    """The compact strides of a shape: the product of the extents before each one, times `start`.

    >>> prefix_product((4, (2, 3)))
    (1, (4, 8))
    """
    shape = as_int_tuple(shape, "prefix_product(shape, start): shape")
    running = as_integer(start, "prefix_product(shape, start): start")
    out = []
    for extent in flatten(shape):
        out.append(running)
        running *= extent
    return unflatten(out, shape)


def ceil_div(a: IntTuple, tiler: IntTuple) -> IntTuple:
    """a / tiler rounded up, leaf by leaf; modes of `a` beyond those of the tiler stay as they are.

    raises   LayoutError for a divisor that is not positive, or one with more modes than `a`

    >>> ceil_div((10, 7, 3), (4, 2))
    (3, 4, 3)
    """
    a, tiler = as_int_tuple(a, "ceil_div(a, tiler): a"), as_int_tuple(tiler, "ceil_div(a, tiler): tiler")
    if isinstance(tiler, tuple):
        if not isinstance(a, tuple) or len(a) < len(tiler):
            raise LayoutError(f"ceil_div(a, tiler): the tiler {tiler} has more modes than a = {a}.")
        return tuple([ceil_div(x, y) for x, y in zip(a, tiler, strict=False)]) + a[len(tiler) :]
    if tiler <= 0:
        raise LayoutError(
            f"ceil_div(a, tiler): the tiler {shown(tiler)} is not positive. Divide by 1 or more."
        )
    return -(-product(a) // tiler)


def round_up(a: IntTuple, b: IntTuple) -> IntTuple:
    """a rounded up to a multiple of b, leaf by leaf.

    >>> round_up((10, 7), (4, 2))
    (12, 8)
    """
    a, b = as_int_tuple(a, "round_up(a, b): a"), as_int_tuple(b, "round_up(a, b): b")
    if isinstance(b, tuple):
        if not isinstance(a, tuple) or len(a) < len(b):
            raise LayoutError(f"round_up(a, b): b = {b} has more modes than a = {a}.")
        return tuple([round_up(x, y) for x, y in zip(a, b, strict=False)]) + a[len(b) :]
    return ceil_div(a, b) * b


def shape_div(a: IntTuple, b: IntTuple) -> IntTuple:
    """The quotient of two shapes: the shape of `a` in units of `b` elements.

    Of two integers one must divide the other; the result is 1 where `b` is the larger. A tuple is consumed
    mode by mode, from the left.

    raises   LayoutError where neither of two extents divides the other

    >>> shape_div((12, 4), 6), shape_div((6, 2), (3, 4))
    ((2, 4), (2, 1))
    """
    a, b = as_int_tuple(a, "shape_div(a, b): a"), as_int_tuple(b, "shape_div(a, b): b")
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            if len(a) != len(b):
                raise LayoutError(f"shape_div(a, b): a = {a} and b = {b} differ in rank.")
            return tuple([shape_div(x, y) for x, y in zip(a, b, strict=True)])
        out = []
        for x in a:
            out.append(shape_div(x, b))
            b = shape_div(b, product(x))
        return tuple(out)
    if isinstance(b, tuple):
        return shape_div(a, product(b))
    if b > 0 and a % b == 0:
        return a // b
    if 0 < a < b and b % a == 0:
        return 1
    raise LayoutError(f"shape_div(a, b): neither of a = {shown(a)} and b = {shown(b)} divides the other.")


def elem_less(a: IntTuple, b: IntTuple) -> bool:
    """Whether every leaf of the coordinate `a` is less than that of `b`: the predicate of a ragged tile.

    >>> elem_less((3, 7), (4, 8)), elem_less((3, 8), (4, 8))
    (True, False)
    """
    a, b = as_int_tuple(a, "elem_less(a, b): a"), as_int_tuple(b, "elem_less(a, b): b")
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a) != len(b):
            raise LayoutError(f"elem_less(a, b): a = {a} and b = {b} differ in rank.")
        return all(elem_less(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, tuple) or isinstance(b, tuple):
        raise LayoutError(f"elem_less(a, b): a = {a} and b = {b} are not congruent.")
    return a < b


_IDX2CRD = "idx2crd(index, shape, stride)"


def idx2crd(index: IntTuple, shape: IntTuple, stride: IntTuple | None = None) -> IntTuple:
    """Return the coordinate in `shape` of a colexicographic index, or of an offset under `stride`.

    Without a stride, an index past the product of `shape` continues along the last leaf, as in CuTe.

    index    integer; or a tuple, which is converted mode by mode
    shape    extents
    stride   congruent with `shape`, all positive where the extent is not 1; each leaf is then
             (index // stride) % extent, which inverts a compact layout. None for colexicographic order
    returns  a coordinate congruent with `shape`
    raises   LayoutError for an argument of another kind, a negative index into several leaves, hierarchies that do
             not fit each other, and a stride of 0 or less
    source   CuTe, `idx2crd`

    >>> idx2crd(13, (4, (2, 3)))
    (1, (1, 1))
    >>> idx2crd(10, (4, 8), (8, 1))
    (1, 2)
    """
    if type(index) is not int:
        index = as_int_tuple(index, f"{_IDX2CRD}: index")
    if type(shape) is not int and not _holds_integers(shape, 0):
        shape = as_int_tuple(shape, f"{_IDX2CRD}: shape")
    if stride is None:
        return _idx2crd(index, shape)
    stride = as_int_tuple(stride, f"{_IDX2CRD}: stride")
    if not is_congruent(shape, stride):
        raise LayoutError(f"{_IDX2CRD}: stride {stride} is not congruent with shape {shape}.")
    return _offset2crd(index, shape, stride)


def _idx2crd(index: IntTuple, shape: IntTuple) -> IntTuple:
    if not isinstance(shape, tuple):
        if isinstance(index, tuple):
            raise LayoutError(f"{_IDX2CRD}: index {index} is nested deeper than shape {shown(shape)}.")
        return index
    if isinstance(index, tuple):
        if len(index) != len(shape):
            raise LayoutError(f"{_IDX2CRD}: index {index} does not fit shape {shape}; their ranks differ.")
        return tuple([_idx2crd(i, s) for i, s in zip(index, shape, strict=True)])
    return refill(iter(_idx2flat(index, flatten(shape))), shape)


def _offset2crd(index: IntTuple, shape: IntTuple, stride: IntTuple) -> IntTuple:
    if isinstance(index, tuple):
        if not isinstance(shape, tuple) or len(index) != len(shape):
            raise LayoutError(
                f"{_IDX2CRD}: index {index} does not fit shape {shown(shape)}; their ranks differ."
            )
        return tuple([_offset2crd(i, s, d) for i, s, d in zip(index, shape, stride, strict=True)])
    if index < 0:
        raise LayoutError(f"{_IDX2CRD}: index {shown(index)} is negative. Count from 0.")
    return map_leaves(lambda extent, step: _digit(index, extent, step), shape, stride)


def _digit(index: int, extent: int, stride: int) -> int:
    if extent == 1:
        return 0
    if extent == 0:
        raise LayoutError(f"{_IDX2CRD}: the shape has an extent of 0, so it has no index {shown(index)}.")
    if stride <= 0:
        raise LayoutError(
            f"{_IDX2CRD}: stride {stride} of the extent {extent} is not positive, so no offset tells that coordinate. "
            "Give positive strides; `left_inverse` inverts other layouts."
        )
    return index // stride % extent


def _idx2flat(index: int, extents: tuple[int, ...]) -> list[int]:
    if index < 0 and len(extents) > 1:
        raise LayoutError(f"{_IDX2CRD}: index {shown(index)} into shape {extents} is negative. Count from 0.")
    out = []
    last = len(extents) - 1
    for position, extent in enumerate(extents):
        if position == last:
            out.append(index)
        elif extent == 0:
            raise LayoutError(f"{_IDX2CRD}: shape {extents} is empty, it has no index {shown(index)}.")
        else:
            index, digit = divmod(index, extent)
            out.append(digit)
    return out


def flat_coord(coord: IntTuple, shape: IntTuple) -> list[int]:
    """The leaves of a coordinate that is weakly congruent to `shape`, each integer split over its mode.

    >>> flat_coord((1, 3), (4, (2, 3)))
    [1, 1, 1]
    """
    if type(coord) is list:
        coord = tuple(coord)
    if not isinstance(shape, tuple):
        if isinstance(coord, tuple):
            raise LayoutError(f"coordinate {shown(coord)} is nested deeper than shape {shown(shape)}.")
        return [to_int(coord)]
    if not isinstance(coord, tuple):
        return _idx2flat(to_int(coord), flatten(shape))
    if len(coord) != len(shape):
        raise LayoutError(
            f"coordinate {shown(coord)} of rank {len(coord)} does not fit shape {shown(shape)} of rank {len(shape)}."
        )
    out: list[int] = []
    for c, s in zip(coord, shape, strict=True):
        if type(c) is int and type(s) is int:
            out.append(c)
        else:
            out.extend(flat_coord(c, s))
    return out


def leaves_in(call: str, coord: IntTuple, shape: IntTuple) -> list[int]:
    """Return `flat_coord(coord, shape)`; its error names the call."""
    try:
        return flat_coord(coord, shape)
    except LayoutError as error:
        raise LayoutError(f"{call}: {error}") from None


def crd2crd(coord: IntTuple, shape: IntTuple, target: IntTuple) -> IntTuple:
    """The coordinate of `target` with the same colexicographic index as `coord` has in `shape`.

    raises   LayoutError where the two shapes differ in size

    >>> crd2crd((1, (1, 1)), (4, (2, 3)), (3, 8))
    (1, 4)
    """
    call = "crd2crd(coord, shape, target)"
    coord = as_int_tuple(coord, f"{call}: coord")
    shape, target = as_int_tuple(shape, f"{call}: shape"), as_int_tuple(target, f"{call}: target")
    if product(shape) != product(target):
        raise LayoutError(
            f"{call}: shape {shape} has {shown(product(shape))} elements, target {target} has "
            f"{shown(product(target))}. Give two shapes of one size."
        )
    index, stride = 0, 1
    for c, s in zip(leaves_in(call, coord, shape), flatten(shape), strict=True):
        index += c * stride
        stride *= s
    return idx2crd(index, target)


def increment_coord(coord: IntTuple, shape: IntTuple) -> IntTuple:
    """The next coordinate of `shape` in colexicographic order; after the last one comes the first.

    raises   LayoutError for a coordinate outside the shape

    >>> increment_coord((3, 0), (4, 2))
    (0, 1)
    """
    call = "increment_coord(coord, shape)"
    coord, shape = as_int_tuple(coord, f"{call}: coord"), as_int_tuple(shape, f"{call}: shape")
    leaves, extents = leaves_in(call, coord, shape), flatten(shape)
    if any(not 0 <= c < s for c, s in zip(leaves, extents, strict=True)):
        raise LayoutError(f"{call}: coord {coord} lies outside of shape {shape}.")
    for position, extent in enumerate(extents):
        leaves[position] += 1
        if leaves[position] < extent:
            break
        leaves[position] = 0
    return unflatten(leaves, shape)
