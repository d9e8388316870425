"""Hierarchical integers: an integer, or a tuple of hierarchical integers.

Shapes, coordinates and integer strides are hierarchical integers. `(4, (2, 3))` has rank 2 (two modes), depth 2
and product 24. Its *leaves* are the integers 4, 2 and 3. Two values are *congruent* if they have the same
hierarchy. Coordinates are counted colexicographically: the leftmost leaf varies fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import index as to_int
from typing import Any

from cutegemm.errors import LayoutError

IntTuple = Any  # int | tuple[IntTuple, ...]; a recursive alias costs more in the type checker than it gives


# These bounds keep every coordinate of a layout in memory.
MAX_DEPTH = 100  # deepest nesting of tuples; Python's recursion limit allows about three times this depth
MAX_RANK = 1000  # largest number of modes of a coordinate, and of what `append` and `prepend` return
_MAX_SHOWN = 200  # longest text of a value in a message, in characters

INTEGERS = "an integer or a tuple of integers"


def shown(value: Any) -> str:
    """Return `repr(value)` for a message, cut to 200 characters; an integer too long to print is described by its bits.

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
    """Return the LayoutError for an argument of the wrong kind.

    what       the call and the argument, such as "size(value, mode): mode"
    value      the user's argument
    expected   what the argument may be, such as "an integer or a tuple of integers"
    remedy     a sentence; by default, advice for a layout: pass its shape, or check the order of the arguments

    >>> print(wrong_kind("size(value, mode): mode", "a", "an integer"))
    size(value, mode): mode is 'a', a str; an integer is expected.
    """
    name = type(value).__name__
    kind = "" if value is None else f", {'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
    if (not remedy and hasattr(value, "stride")) or hasattr(value, "outer") or hasattr(value, "layout"):
        remedy = "Pass its .shape." if what.endswith("shape") else "Check the order of the arguments."
    return LayoutError(f"{what} is {shown(value)}{kind}; {expected} is expected.{remedy and ' ' + remedy}")


def as_int_tuple(value: Any, what: str = "value") -> IntTuple:
    """Return `value` as a hierarchical integer (int or nested tuple): lists become tuples, numpy integers become int.

    what     the call and the argument as text for messages, such as "size(value, mode): mode"
    raises   LayoutError for a leaf that is not an integer, for a layout, and for tuples nested more than 100 deep

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
    """Raised internally for a leaf of a nested tuple that is not an integer; the exception's argument is the leaf."""


def as_integer(value: Any, what: str) -> int:
    """Return `value` as a Python integer.

    what     the call and the argument as text for messages, such as "size(value, mode): mode"
    raises   LayoutError for a value of another type, also a bool
    """
    number = integer_of(value)
    if number is None:
        raise wrong_kind(what, value, "an integer")
    return number


def _holds_integers(value: Any, depth: int) -> bool:
    """Return True if `value` is a tuple of Python integers and such tuples, nested at most 100 deep.

    depth   number of tuples around `value`
    """
    if type(value) is not tuple or depth > MAX_DEPTH:
        return False
    for v in value:  # noqa: SIM110 - `all` with a generator takes three times as long
        if type(v) is not int and not _holds_integers(v, depth + 1):
            return False
    return True


def _as_int_tuple(value: Any, what: str, depth: int) -> IntTuple:
    """Return `value` as a hierarchical integer (int or nested tuple of them), for `as_int_tuple`.

    value    integer, or nested lists and tuples of integers
    what     the call and the argument as text for messages
    depth    number of tuples around the value
    raises   _NotInteger for a leaf of another type, LayoutError for tuples nested too deep
    """
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
    """Return `value` as a Python integer, or None for a value of another type.

    Integers of numpy are accepted. A bool counts as another type.

    >>> integer_of(3), integer_of(True), integer_of("3")
    (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else to_int(value)
    except TypeError:
        return None


def _check_depth(what: str, depth: int) -> None:
    """Raise LayoutError if a user's argument has tuples nested more than 100 deep, so that no recursion overflows.

    what    the call and the argument as text for the message
    depth   number of tuples around the value
    """
    if depth > MAX_DEPTH:
        raise LayoutError(f"{what}: tuples are nested more than {MAX_DEPTH} deep.")


def as_tuples(value: Any, depth: int = 0) -> Any:
    """Return `value` with every list replaced by a tuple; leaves of any type stay as they are.

    depth    number of tuples around `value`
    raises   LayoutError for tuples nested more than 100 deep

    >>> as_tuples([None, [2, 3]])
    (None, (2, 3))
    """
    kind = type(value)
    if kind is not list and (kind is not tuple or not _holds_lists(value, depth)):
        return value
    _check_depth("tuple", depth)
    return tuple([as_tuples(v, depth + 1) for v in value])


def _holds_lists(value: tuple[Any, ...], depth: int) -> bool:
    """Return True if a tuple contains a list at any level, or is nested more than 100 deep.

    depth   number of tuples around `value`
    """
    for v in value:  # noqa: SIM110 - see `_holds_integers`
        if type(v) is list or (type(v) is tuple and (depth > MAX_DEPTH or _holds_lists(v, depth + 1))):
            return True
    return False


def flatten(value: Any) -> tuple[Any, ...]:
    """Return the leaves of a nested tuple as a flat tuple, from left to right: (1, (2, 3)) becomes (1, 2, 3).

    value   a tuple of any leaves; a value that is not a tuple is its own only leaf

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
    """Arrange a sequence of leaves in the hierarchy of `profile`: [1, 2, 3] with (0, (0, 0)) becomes (1, (2, 3)).

    leaves    list or tuple, as long as `profile` has leaves
    profile   nested tuple; only its hierarchy counts, not its leaves
    raises    LayoutError if the number of leaves differs from that of the profile

    >>> unflatten((4, 2, 3), (0, (0, 0)))
    (4, (2, 3))
    """
    if not isinstance(leaves, Sequence) or isinstance(leaves, (str, bytes)):
        raise wrong_kind("unflatten(leaves, profile): leaves", leaves, "a list or tuple")
    profile = as_tuples(profile)
    count = len(flatten(profile))
    if len(leaves) != count:
        raise LayoutError(
            f"unflatten: {len(leaves)} leaves {tuple(leaves)} do not fill the profile {profile}, which has {count}. "
            "Give one leaf for each leaf of the profile."
        )
    return refill(iter(leaves), profile)


def refill(leaves: Iterator[Any], profile: Any) -> Any:
    """Take leaves from an iterator and arrange them in the hierarchy of `profile`.

    leaves    iterator of leaves; as many are taken as the profile has
    profile   nested tuple; only its hierarchy counts, not its leaves
    """
    if isinstance(profile, tuple):
        return tuple([refill(leaves, p) for p in profile])
    return next(leaves)


def product(value: IntTuple) -> int:
    """Return the product of all leaves of a nested tuple: the number of coordinates of a shape. It is 1 for ().

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
    """Return the product of each mode of a shape, as a flat tuple: (2, (3, 4)) becomes (2, 12). An integer stays.

    >>> product_each((4, (2, 3)))
    (4, 6)
    """
    value = as_int_tuple(value, "product_each(value): value")
    return tuple([product(v) for v in value]) if isinstance(value, tuple) else value


def inner_product(a: IntTuple, b: IntTuple) -> int:
    """Return the sum of the products of corresponding leaves: coordinate (1, 2), strides (3, 4) have the offset 11.

    a, b     integers or nested tuples of one hierarchy
    raises   LayoutError if `a` and `b` are not congruent

    >>> inner_product((1, (2, 3)), (10, (100, 1000)))
    3210
    """
    a, b = as_int_tuple(a, "inner_product(a, b): a"), as_int_tuple(b, "inner_product(a, b): b")
    if not is_congruent(a, b):
        raise LayoutError(f"inner_product(a, b): a = {a} and b = {b} are not congruent.")
    return sum(x * y for x, y in zip(flatten(a), flatten(b), strict=True))


def is_congruent(a: Any, b: Any) -> bool:
    """Return True if two nested tuples have the same hierarchy, like (1, (2, 3)) and (4, (5, 6)); leaves do not count.

    >>> is_congruent((1, (2, 3)), (4, (5, 6))), is_congruent((1, 2), 3)
    (True, False)
    """
    a_is, b_is = isinstance(a, tuple), isinstance(b, tuple)
    if a_is and b_is:
        return len(a) == len(b) and all(is_congruent(x, y) for x, y in zip(a, b, strict=True))
    return not a_is and not b_is


def is_weakly_congruent(a: Any, b: Any) -> bool:
    """Return True if `b` refines `a`: any leaf of `a` may be a tuple in `b`, such as for (1, 2) and (4, (5, 6)).

    A coordinate fits a shape if the coordinate is weakly congruent with the shape.

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
    """Apply a function to corresponding leaves of nested tuples, and return the results in the same hierarchy.

    function   takes one leaf of each value
    values     one or more congruent values; leaves may have any type
    raises     LayoutError if the values are not congruent, or if no value is passed

    >>> transform_leaf(lambda s, d: s * d, (4, (2, 3)), (1, (4, 8)))
    (4, (8, 24))
    """
    if not callable(function):
        raise wrong_kind("transform_leaf(function, *values): function", function, "a function")
    if not values:
        raise LayoutError("transform_leaf(function, *values): no values are given. Pass at least one.")
    return map_leaves(function, *[as_tuples(v) for v in values])


def map_leaves(function: Callable[..., Any], *values: Any) -> Any:
    """Apply a function to corresponding leaves of nested tuples; the results have the same hierarchy.

    Unlike in `transform_leaf`, the tuples contain no lists.

    function   takes one leaf of each value
    values     one or more tuples of the same hierarchy
    """
    first = values[0]
    if isinstance(first, tuple):
        if any(not isinstance(v, tuple) or len(v) != len(first) for v in values):
            raise LayoutError(f"transform_leaf: {' and '.join(map(str, values))} are not congruent.")
        return tuple([map_leaves(function, *vs) for vs in zip(*values, strict=True)])
    return function(*values)


def prefix_product(shape: IntTuple, start: int = 1) -> IntTuple:
    """Return the compact strides of a shape, products of the extents to the left: (2, 3, 4) has (1, 2, 6).

    shape   extents
    start   stride of the first leaf; all strides are multiplied by it

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
    """Return `a` divided by `tiler` and rounded up, mode by mode: (10, 6) in tiles of (4, 4) gives (3, 2).

    a        extents
    tiler    positive tile sizes, for as many modes as `a` has or fewer; further modes of `a` stay as they are.
             An integer for a nested mode divides the product of that mode
    raises   LayoutError for a tile size that is not positive, or a tiler with more modes than `a`

    >>> ceil_div((10, 7, 3), (4, 2)), ceil_div(((4, 3), 7), (8, 2))
    ((3, 4, 3), (2, 4))
    """
    a, tiler = as_int_tuple(a, "ceil_div(a, tiler): a"), as_int_tuple(tiler, "ceil_div(a, tiler): tiler")
    if isinstance(tiler, tuple):
        if not isinstance(a, tuple) or len(a) < len(tiler):
            raise LayoutError(f"ceil_div(a, tiler): the tiler {tiler} has more modes than a = {a}.")
        return tuple([ceil_div(x, y) for x, y in zip(a, tiler, strict=False)]) + a[len(tiler) :]
    if tiler <= 0:
        raise LayoutError(f"ceil_div(a, tiler): the tiler {shown(tiler)} is not positive. Divide by 1 or more.")
    return -(-product(a) // tiler)


def round_up(a: IntTuple, b: IntTuple) -> IntTuple:
    """Return `a` rounded up to a multiple of `b`, mode by mode: (10, 6) and (4, 4) give (12, 8).

    a        extents
    b        positive integers, for as many modes as `a` has or fewer; further modes of `a` stay as they are.
             For a nested mode, an integer rounds the product of that mode
    raises   LayoutError for an integer that is not positive, or a `b` with more modes than `a`

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
    """Return the shape `a` counted in units of `b` elements: (12, 6) in units of 4 is (3, 6).

    An integer `b` divides the modes of `a` from left to right: it divides the first mode, and the quotient that
    is left divides the next. One of two extents must divide the other; the result is 1 if `b` is the larger.

    a        extents
    b        positive integer, or a tuple with one for each mode of `a`
    raises   LayoutError if neither of two extents divides the other, or if the ranks differ

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
    """Return True if every leaf of `a` is less than the corresponding leaf of `b`: the predicate of a ragged tile.

    a        coordinate
    b        extents, congruent with `a`
    raises   LayoutError if `a` and `b` are not congruent

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
    """Return the coordinate of a colexicographic index in `shape`, or of an offset under `stride`.

    For example, index 5 of shape (2, 4) has the coordinate (1, 2). Without a stride, an index past the product of
    `shape` continues along the last leaf, as in CuTe.

    index     integer; or a tuple, which is converted mode by mode
    shape     extents
    stride    congruent with `shape`, positive if the extent is not 1: each leaf of the result is (index //
              stride) % extent, which inverts a compact layout. None for colexicographic order
    returns   a coordinate congruent with `shape`
    raises    LayoutError for an argument of another kind, a negative index, hierarchies that do not fit each
              other, and a stride that is not positive
    source    CuTe, `idx2crd`

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
    """Return the coordinate of a colexicographic index: a nested tuple like the shape. Index 5 of (2, 4) is (1, 2)."""
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
    """Return the coordinate in a shape of an offset: each leaf is (offset // stride) % extent.

    index   the offset
    """
    if isinstance(index, tuple):
        if not isinstance(shape, tuple) or len(index) != len(shape):
            raise LayoutError(f"{_IDX2CRD}: index {index} does not fit shape {shown(shape)}; their ranks differ.")
        return tuple([_offset2crd(i, s, d) for i, s, d in zip(index, shape, stride, strict=True)])
    if index < 0:
        raise LayoutError(f"{_IDX2CRD}: index {shown(index)} is negative. Count from 0.")
    return map_leaves(lambda extent, step: _digit(index, extent, step), shape, stride)


def _digit(index: int, extent: int, stride: int) -> int:
    """Return (index // stride) % extent: the coordinate of an index along one leaf of a shape."""
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
    """Return the coordinate of a colexicographic index in a flat shape, as a list: index 5 of (2, 4) is [1, 2].

    index     integer; past the size, the last entry continues
    extents   the shape
    """
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
    """Return the leaves of a coordinate, one for each leaf of the shape: (1, 3) in (2, (2, 4)) becomes [1, 1, 1].

    coord    integer or nested tuple; an integer for a nested mode counts the mode's elements colexicographically
    raises   LayoutError if the coordinate does not fit the shape, TypeError if a leaf is not an integer

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
    """Return the leaves of a coordinate, one for each leaf of the shape; error messages begin with `call`.

    call    text of the call that the user made, which the message begins with
    coord   integer or nested tuple; an integer for a nested mode counts the mode's elements colexicographically
    shape   extents
    """
    try:
        return flat_coord(coord, shape)
    except LayoutError as error:
        raise LayoutError(f"{call}: {error}") from None


def crd2crd(coord: IntTuple, shape: IntTuple, target: IntTuple) -> IntTuple:
    """Convert a coordinate of `shape` to the one of `target` with the same colexicographic index.

    coord    coordinate of `shape`, or an index; (1, 2) in (2, 4) becomes (1, 1) in (4, 2)
    shape    extents
    target   extents of the same product
    raises   LayoutError if the products of the two shapes differ

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
    """Return the next coordinate of `shape` in colexicographic order: in (4, 2), (0, 1) follows (3, 0).

    The first coordinate follows the last one.

    coord    coordinate of `shape`
    shape    extents
    raises   LayoutError for a coordinate outside of the shape

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
