"""Names that a typed layout may use: operations of the algebra, and types and functions of C++ CuTe and its DSL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import signature
from typing import Any

from cutegemm import layout as algebra
from cutegemm.dtypes import DType, f16, f32, f64, s8
from cutegemm.errors import LayoutError
from cutegemm.layout import (
    F2,
    ComposedLayout,
    E,
    Layout,
    ScaledBasis,
    Swizzle,
    composition,
    make_layout,
    make_ordered_layout,
    tile_to_shape,
)
from cutegemm.layout.inttuple import flatten, unflatten
from cutegemm.tile.smem_atoms import smem_atom

OPERATIONS = (
    "coalesce", "composition", "complement", "right_inverse", "left_inverse",
    "logical_divide", "zipped_divide", "tiled_divide", "flat_divide",
    "logical_product", "zipped_product", "tiled_product", "flat_product", "blocked_product", "raked_product",
    "tile_to_shape", "make_layout", "make_ordered_layout", "make_layout_like", "make_identity_layout",
    "make_composed_layout", "group_modes", "select", "flatten", "append", "prepend", "filter_zeros",
    "to_xor", "to_swizzled", "recast_layout", "max_common_layout", "max_common_vector",
    "size", "cosize", "rank", "depth", "crd2idx", "idx2crd",
)  # fmt: skip
_INTEGERS = ("int", "long", "int32_t", "int64_t", "uint32_t", "uint64_t", "size_t", "unsigned")
_COLUMNS, _ROWS = ("LayoutLeft", "GenColMajor"), ("LayoutRight", "GenRowMajor")
# Element types of C++; an atom of shared memory depends only on the number of bits.
_ELEMENTS: Mapping[str, DType] = {
    **dict.fromkeys(("int8_t", "uint8_t", "float_e4m3_t", "float_e5m2_t", "float_ue8m0_t"), s8),
    **dict.fromkeys(("half_t", "bfloat16_t", "half", "__half", "__nv_bfloat16", "int16_t", "uint16_t"), f16),
    **dict.fromkeys(("float", "tfloat32_t", "int", "int32_t", "uint32_t"), f32),
    **dict.fromkeys(("double", "int64_t", "uint64_t"), f64),
}
_WORDS = {*_COLUMNS, *_ROWS, *_INTEGERS, *_ELEMENTS}
_ATOM = re.compile(r"Layout_(K|MN)_(INTER|SW32|SW64|SW128)_Atom")
_BYTE_BITS = 8


class PointerFlag:
    """Represents `smem_ptr_flag_bits<bits>` in a layout that a user pasted from C++ CuTe.

    CuTe prints it between a swizzle and a layout, as in Sw<3,4,3> o smem_ptr_flag_bits<16> o (8,64):(64,1). Then the
    swizzle permutes byte addresses instead of element offsets.

    bits   size in bits of an element of the layout, e.g. 16
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits


def function_named(name: str) -> Callable[..., Any] | None:
    """Return the Python function for a name in a typed layout, such as Layout, make_shape or composition.

    None if no function has the name.
    """
    atom = _ATOM.fullmatch(name)
    return _atom(atom[1], atom[2]) if atom else _FUNCTIONS.get(name)


def word(name: str) -> Any:
    """Return the value of a name without arguments that occurs in a typed layout; None if the name is unknown.

    For a static integer it is the number, e.g. -1 for _m1. For a C++ type or tag, such as int or LayoutLeft, it is the
    name itself.

    >>> word("_m3"), word("half_t"), word("half")
    (-3, 'half_t', 'half')
    """
    static = re.fullmatch(r"_m([0-9]+)", name)
    return -int(static[1]) if static else name if name in _WORDS else None


def in_elements(inner: Any, bits: int, outer: Any) -> ComposedLayout:
    """Convert a swizzle of byte addresses to one of element offsets, and return it composed with a layout.

    C++ CuTe writes such a swizzle before a pointer. For 16-bit elements, Sw<3,4,3> of bytes is Sw<3,3,3> of elements.

    inner    the swizzle of byte addresses
    bits     width of an element
    outer    the layout that maps coordinates to element offsets
    raises   LayoutError if `inner` is not a Swizzle
    """
    if not isinstance(inner, Swizzle):
        raise LayoutError(f"{inner} stands before a pointer. A swizzle such as Sw<3,4,3> is expected.")
    return ComposedLayout(inner.recast(_BYTE_BITS, bits), 0, outer)


def _constant(value: int) -> int:
    """Return the value of `C<value>` or `Int<value>` in C++ CuTe: the integer itself.

    raises   LayoutError if it is not an integer
    """
    if not isinstance(value, int):
        raise LayoutError(f"{value!r} is not an integer.")
    return value


def _typed_constant(kind: str, value: int) -> int:
    """Return the value of `integral_constant<kind, value>` in C++: the integer itself.

    kind     name of an integer type, such as "int"
    raises   LayoutError if `kind` is not an integer type or `value` is not an integer
    """
    if kind not in _INTEGERS:
        raise LayoutError(f"{kind!r} is not an integer type. Use {', '.join(_INTEGERS)}.")
    return _constant(value)


def _path(*modes: Any) -> Any:
    """Return the basis vector (unit stride of a mode) that C++ CuTe writes as `E<modes...>`; the integer 1 for `E<>`.

    modes   path to the mode, outermost index first; e.g. (1, 0) is mode 0 of mode 1
    """
    return E(modes[0] if len(modes) == 1 else modes) if modes else 1


def _scaled(value: int, *path: Any) -> Any:
    """Return the stride that C++ CuTe writes as `ScaledBasis<value, path...>`; just `value` if the path is empty.

    path   path to the mode of the basis vector, outermost index first; e.g. (1, 0) is mode 0 of mode 1
    """
    return ScaledBasis(value, path[0] if len(path) == 1 else path) if path else value


def _byte_flag() -> PointerFlag:
    """Return the value of `smem_ptr_flag` in a printed C++ CuTe layout: the mark `smem_ptr_flag_bits<8>`.

    Such a mark stands between a swizzle and a layout. It says that the layout's offsets count 8-bit elements, and that
    the swizzle permutes byte addresses.
    """
    return PointerFlag(_BYTE_BITS)


def _laid_out(shape: Any, stride: Any = None, *others: Any) -> Layout:
    """Return the layout that C++ CuTe writes as `Layout<shape, stride>` or `make_layout(...)`.

    If `shape` is a layout, all arguments are layouts, and they become the modes of the result.

    shape    the shape, or the layout that becomes mode 0
    stride   the strides; None or "LayoutLeft" for compact column-major strides, "LayoutRight" for compact row-major
             strides, which grow from the last extent of the shape to the first. Or the layout that becomes mode 1
    others   layouts that become modes 2, 3 and so on
    """
    if isinstance(shape, Layout):
        return make_layout([mode for mode in (shape, stride, *others) if mode is not None])
    if others:
        raise LayoutError(f"{2 + len(others)} arguments. Pass a shape and its strides.")
    _known(shape, stride)
    if stride in _ROWS:
        leaves = range(len(flatten(shape)))
        return make_ordered_layout(shape, unflatten(leaves[::-1], shape))
    return make_layout(shape, stride=None if stride in _COLUMNS else stride)


def _composed(lhs: Any, rhs: Any, outer: Layout | None = None) -> Any:
    """Return the layout that a user typed as `composition(lhs, rhs)` or as `ComposedLayout<lhs, rhs, outer>`.

    With two arguments, it is the composition of `lhs` with the layout or tiler `rhs`. With three arguments, it is the
    composed layout that maps a coordinate to lhs(rhs + outer(coordinate)).

    lhs     a layout, or the inner function of a composed layout, such as Swizzle<3,4,3>
    rhs     the second layout, or a tiler. With three arguments it is the offset: an integer, or the mark
            smem_ptr_flag_bits<16>. The mark means offset 0, and that the swizzle permutes byte addresses of 16-bit
            elements
    outer   outer layout of a composed layout; None for a composition of two
    """
    if outer is None:
        return composition(lhs, rhs)
    _known(rhs)
    if isinstance(rhs, PointerFlag):
        return in_elements(lhs, rhs.bits, outer)
    return ComposedLayout(lhs, rhs, outer)


def _tiled(block: Any, trg_shape: Any, order: Any = None) -> Any:
    """Return C++ CuTe's `tile_to_shape(block, trg_shape, order)`: a layout, repeated until it fills a shape.

    block       the layout to repeat
    trg_shape   shape of the result
    order       one number for each mode; copies are placed along the mode with the smallest number first, e.g. (1, 0)
                to fill mode 1 first. None for C++'s default, mode 0 first
    """
    if order is None or order in _COLUMNS:
        order = tuple(range(len(trg_shape))) if isinstance(trg_shape, tuple) else 0
    return tile_to_shape(block, trg_shape, order)


def _tuple(*values: Any) -> tuple[Any, ...]:
    """Return the arguments of a typed call such as `make_shape(4, 8)` as a tuple.

    raises   LayoutError if a value is the name of an integer type, such as "int", which stands for a number known only
             at run time
    """
    _known(*values)
    return values


def _same(value: Any) -> Any:
    """Return the value of C++'s `decltype(value)`: the value itself, since the parser has values only and no types."""
    return value


def _known(*values: Any) -> None:
    """Raise LayoutError if a value is not a number but the name of an integer type, such as "int".

    In printed C++ types, such a name stands for a number that is known only at run time.
    """
    for value in values:
        if isinstance(value, str) and value in _INTEGERS:
            raise LayoutError(f"the type {value} is a number known only at run time. Write the number or Int<...>.")


def _atom(major: str, kind: str) -> Callable[[str], ComposedLayout]:
    """Return the value of a C++ name such as `GMMA::Layout_K_SW128_Atom`, a shared-memory layout for wgmma.

    In C++, it is a template with one parameter, the element type. The value is a function that takes the name of that
    type, such as "half_t", and returns the layout.

    major   contiguous mode, "K" or "MN"
    kind    swizzle in CuTe's names: "INTER", "SW32", "SW64" or "SW128"
    """

    def atom(element_type: str) -> ComposedLayout:
        if element_type not in _ELEMENTS:
            raise LayoutError(f"{element_type!r} is not an element type. Use {', '.join(_ELEMENTS)}.")
        size = "interleave" if kind == "INTER" else f"{kind.removeprefix('SW')}B"
        return smem_atom(_ELEMENTS[element_type], major.lower(), size)

    return atom


def _of_layouts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an operation of the layout algebra so that it also accepts a shape where it needs a layout.

    A shape stands for its compact layout: coalesce((4, 8)) is coalesce(Layout((4, 8))).
    """
    parameters = signature(function).parameters
    needed = [
        name
        for name, parameter in parameters.items()
        if parameter.annotation in ("L", "Target")
        or ("Layout" in str(parameter.annotation) and "IntTuple" not in str(parameter.annotation))
    ]

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        values = {**dict(zip(parameters, arguments, strict=False)), **named}
        for name in needed:
            if isinstance(values.get(name), (int, tuple)):
                values[name] = Layout(values[name])
        return function(**values)

    return call


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: _of_layouts(getattr(algebra, name)) for name in OPERATIONS},
    **dict.fromkeys(("C", "Int"), _constant),
    **dict.fromkeys(("constant", "integral_constant"), _typed_constant),
    **dict.fromkeys(
        ("tuple", "Shape", "Stride", "Step", "Coord", "Tile", "make_shape", "make_stride", "make_step", "make_tuple",
         "make_coord", "make_tile"),
        _tuple,
    ),
    "E": _path,
    "F2": F2,
    "ScaledBasis": _scaled,
    **dict.fromkeys(("Layout", "make_layout"), _laid_out),
    **dict.fromkeys(("Swizzle", "Sw", "S"), Swizzle),
    **dict.fromkeys(("ComposedLayout", "make_composed_layout", "composition"), _composed),
    "tile_to_shape": _tiled,
    "smem_ptr_flag_bits": PointerFlag,
    "smem_ptr_flag": _byte_flag,
    "decltype": _same,
}  # fmt: skip
