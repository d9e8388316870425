"""Convert layouts from and to C++ CuTe as text.

These forms are read:

Layout<Shape<_4,_8>,Stride<_8,_1>>                                   a type, also as a compiler writes it in messages
make_layout(make_shape(Int<4>{}, _8{}), make_stride(8, 1))           a call
(_4,_8):(_8,_1)                                                      output of cute::print
Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)                 the same for a swizzle of byte addresses
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any, NoReturn

from cutegemm.errors import LayoutError
from cutegemm.layout import (
    ComposedLayout,
    E,
    Layout,
    ScaledBasis,
    Swizzle,
    composition,
    make_layout,
    make_ordered_layout,
    parse,
)
from cutegemm.layout.inttuple import flatten, unflatten

_TOKEN = re.compile(r"\s*(?:(?P<number>-?\d+)[uUlL]*|(?P<name>[A-Za-z_][\w]*(?:::\w+)*)|(?P<sign>[<>(){},*]))")
_FLAG = re.compile(r"smem_ptr\[(\d+)b\]\(unset\)")
_PRINTED = re.compile(r"\s*(?:Sw\s*<|S\s*<|\(|_?-?\d+\s*:)")
_BYTE_BITS = 8
_INTEGERS = ("int", "long", "int32_t", "int64_t", "uint32_t", "uint64_t", "size_t", "unsigned")
_COLUMNS, _ROWS = ("LayoutLeft", "GenColMajor"), ("LayoutRight", "GenRowMajor")


def to_cpp(layout: Layout | ComposedLayout | Swizzle) -> str:
    """Return the C++ CuTe type that is the same function as a layout or swizzle, with static numbers only.

    raises   LayoutError if the layout has strides over F2, which C++ CuTe does not have

    >>> to_cpp(Layout((4, (2, 3)), (6, (1, 2))))
    'Layout<Shape<Int<4>,Shape<Int<2>,Int<3>>>,Stride<Int<6>,Stride<Int<1>,Int<2>>>>'
    >>> to_cpp(ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1))))
    'ComposedLayout<Swizzle<3,4,3>,Int<0>,Layout<Shape<Int<8>,Int<64>>,Stride<Int<64>,Int<1>>>>'
    """
    if isinstance(layout, Swizzle):
        return f"Swizzle<{layout.bits},{layout.base},{layout.shift}>"
    if isinstance(layout, ComposedLayout):
        return f"ComposedLayout<{to_cpp(layout.inner)},{_type(layout.offset, 'Coord')},{to_cpp(layout.outer)}>"
    if not isinstance(layout, Layout):
        raise LayoutError(
            f"to_cpp: {layout!r} is a {type(layout).__name__}. Pass a Layout, a ComposedLayout or a Swizzle."
        )
    if layout.is_xor:
        raise LayoutError(f"to_cpp: {layout} has strides over F2; C++ does not have them. Try to_swizzled(layout).")
    return f"Layout<{_type(layout.shape, 'Shape')},{_type(layout.stride, 'Stride')}>"


def _type(value: Any, tuple_name: str) -> str:
    """Return the C++ type of a hierarchical value; tuples become `tuple_name<...>`."""
    if isinstance(value, tuple):
        return f"{tuple_name}<{','.join([_type(entry, tuple_name) for entry in value])}>"
    if isinstance(value, ScaledBasis):
        return f"ScaledBasis<Int<{value.value}>,{','.join(map(str, value.mode))}>"
    return f"Int<{value}>"


def from_cpp(text: str) -> Layout | ComposedLayout | Swizzle:
    """Return the layout or swizzle that a text of C++ CuTe describes.

    A swizzle on a shared-memory pointer permutes byte addresses. It is converted to one that permutes element offsets.

    text     a type, a call that makes a layout, or output of `cute::print`; all numbers are static
    raises   LayoutError if the text has another form, with the position of the error, or if a number is known only at
             run time

    >>> from_cpp("cute::Layout<cute::tuple<cute::C<4>, cute::C<8> >, cute::tuple<cute::C<8>, cute::C<1> > >")
    Layout((4, 8), (8, 1))
    >>> print(from_cpp("Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)"))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    if not isinstance(text, str):
        raise LayoutError(f"from_cpp: {text!r} is a {type(text).__name__}. Pass a string.")
    if _PRINTED.match(text):
        return _printed(text)
    reader = _Reader(text)
    layout = _layout(reader.value(), reader)
    reader.end()
    return layout


def _printed(text: str) -> Layout | ComposedLayout | Swizzle:
    """Return the layout or swizzle that `cute::print` wrote.

    The notation is that of `parse`, except that a pointer flag can replace the offset of a composed layout.
    """
    flag = _FLAG.search(text)
    if flag is not None:
        composed = parse(_FLAG.sub("0", text, count=1))
        assert isinstance(composed, ComposedLayout)
        return _in_elements(composed.inner, int(flag[1]), composed.outer)
    alone = re.fullmatch(r"\s*Sw?\s*<\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*>\s*", text)
    return parse(text) if alone is None else Swizzle(*map(int, alone.groups()))


def _in_elements(inner: Any, bits: int, outer: Layout) -> ComposedLayout:
    """Return the composed layout of a swizzle of byte addresses and a layout of elements of `bits` bits."""
    return ComposedLayout(inner.recast(_BYTE_BITS, bits), 0, outer)


class _Reader:
    """A parser for types and calls of C++ CuTe.

    The grammar of a value is: integer | name ["<" values ">"] ["(" values ")" | "{}"]. Each value is converted as soon
    as it is read, to an integer, a tuple, a ScaledBasis, a Layout or another object.

    text       text to parse
    position   index of the next character
    """

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def fail(self, expected: str) -> NoReturn:
        """Raise LayoutError that shows the current position in the text."""
        raise LayoutError(f"from_cpp: expected {expected}.\n  {self.text}\n  {' ' * self.position}^")

    def peek(self) -> re.Match[str] | None:
        """Return the next token without reading it, or None at the end."""
        return _TOKEN.match(self.text, self.position)

    def accept(self, sign: str) -> bool:
        """Read the next token and return True if it is this sign; else return False."""
        token = self.peek()
        if token is None or token["sign"] != sign:
            return False
        self.position = token.end()
        return True

    def end(self) -> None:
        """Raise LayoutError if more text follows."""
        if self.text[self.position :].strip(" ;\n\t"):
            self.fail("the end of the text")

    def value(self) -> Any:
        """Read a value: one factor, or a product such as that of a number and a basis vector."""
        product = self.single()
        while self.accept("*"):
            factor = self.single()
            product = product * factor
        return product

    def single(self) -> Any:
        """Read one factor of a value: an integer, or a name with its arguments."""
        token = self.peek()
        if token is None or token["sign"]:
            self.fail("a type, a call or an integer")
        if token["number"]:
            self.position = token.end()
            return int(token["number"])
        start, name = self.position, token["name"].rpartition("::")[2]
        self.position = token.end()
        arguments = self.listed("<", ">")
        if arguments is None:
            arguments = self.listed("(", ")")
            if arguments is None:
                arguments = []
                self.braces()
        else:
            if self.listed("(", ")"):
                self.fail("one list of arguments")
            self.braces()
        try:
            return _made(name, arguments)
        except (LayoutError, TypeError, ValueError) as error:
            self.position = start
            raise LayoutError(f"from_cpp: {error}\n  {self.text}\n  {' ' * start}^") from error

    def listed(self, first: str, last: str) -> list[Any] | None:
        """Read values between two signs, separated by commas; return None if the next token is not the first sign."""
        if not self.accept(first):
            return None
        values: list[Any] = []
        while not self.accept(last):
            values.append(self.value())
            if not self.accept(","):
                if not self.accept(last):
                    self.fail(f"',' or {last!r}")
                break
        return values

    def braces(self) -> None:
        """Read the optional {} after a type, which constructs an object."""
        if self.accept("{") and not self.accept("}"):
            self.fail("'}'")


def _constant(value: int) -> int:
    """Return the value of C<value>."""
    if not isinstance(value, int):
        raise LayoutError(f"{value!r} is not an integer.")
    return value


def _typed_constant(kind: str, value: int) -> int:
    """Return the value of integral_constant<kind, value>."""
    if kind not in _INTEGERS:
        raise LayoutError(f"{kind!r} is not an integer type. Use {', '.join(_INTEGERS)}.")
    return _constant(value)


def _path(*modes: int) -> Any:
    """Return the basis vector E<modes...>, or the integer 1 without modes."""
    return E(modes) if modes else 1


def _scaled(value: int, *path: int) -> Any:
    """Return ScaledBasis<value, path...>, or the value alone without a path."""
    return ScaledBasis(value, path) if path else value


def _byte_flag() -> _Flag:
    """Return the flag of a pointer to 8-bit elements, smem_ptr_flag."""
    return _Flag(_BYTE_BITS)


def _laid_out(shape: Any, stride: Any = None, *others: Any) -> Layout:
    """Return Layout<shape, stride>, or the layout whose modes are the given layouts.

    LayoutRight is `compact_row_major` in CuTe: strides grow from the last leaf of the whole shape to the first.
    """
    if isinstance(shape, Layout):
        return make_layout([mode for mode in (shape, stride, *others) if mode is not None])
    if others:
        raise LayoutError(f"{2 + len(others)} arguments. Pass a shape and its strides.")
    _known(shape, stride)
    if stride in _ROWS:
        leaves = range(len(flatten(shape)))
        return make_ordered_layout(shape, unflatten(leaves[::-1], shape))
    return Layout(shape, None if stride in _COLUMNS else stride)


def _composed(inner: Any, offset: Any, outer: Layout | None = None) -> Layout | ComposedLayout:
    """Return ComposedLayout<inner, offset, outer> or composition(inner, outer)."""
    if outer is None and isinstance(inner, Layout):
        return composition(inner, offset)
    if outer is None:
        offset, outer = 0, offset
    _known(offset)
    if isinstance(offset, _Flag):
        return _in_elements(inner, offset.bits, outer)
    return ComposedLayout(inner, offset, outer)


class _Flag:
    """The pointer flag smem_ptr_flag_bits<bits>: elements have `bits` bits, and the swizzle permutes byte addresses."""

    def __init__(self, bits: int) -> None:
        self.bits = bits


def _tuple(*values: Any) -> tuple[Any, ...]:
    """Return the values as a tuple; raise LayoutError if one is known only at run time."""
    _known(*values)
    return values


def _known(*values: Any) -> None:
    """Raise LayoutError if a value is an integer type, whose number is known only at run time."""
    for value in values:
        if isinstance(value, str) and value in _INTEGERS:
            raise LayoutError(f"the type {value} is a number known only at run time. Write the number or Int<...>.")


_MAKERS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(("C", "Int"), _constant),
    **dict.fromkeys(("constant", "integral_constant"), _typed_constant),
    **dict.fromkeys(
        (
            "tuple",
            "Shape",
            "Stride",
            "Step",
            "Coord",
            "make_shape",
            "make_stride",
            "make_tuple",
            "make_coord",
        ),
        _tuple,
    ),
    "E": _path,
    "ScaledBasis": _scaled,
    **dict.fromkeys(("Layout", "make_layout"), _laid_out),
    "Swizzle": Swizzle,
    **dict.fromkeys(("ComposedLayout", "make_composed_layout", "composition"), _composed),
    "smem_ptr_flag_bits": _Flag,
    "smem_ptr_flag": _byte_flag,
}


def _made(name: str, arguments: list[Any]) -> Any:
    """Return the value of a name with arguments, such as Int<4>, _4 or Shape<_4,_8>."""
    short = re.fullmatch(r"_(m?)(\d+)", name)
    if short is not None and not arguments:
        return -int(short[2]) if short[1] else int(short[2])
    if name in (*_COLUMNS, *_ROWS) and not arguments:
        return name
    if name in _INTEGERS and not arguments:
        return name
    if name not in _MAKERS:
        raise LayoutError(f"{name!r} is not a known name in a layout. Use {', '.join(_MAKERS)}.")
    maker = _MAKERS[name]
    expected = signature(maker)
    try:
        expected.bind(*arguments)
    except TypeError as error:
        count = f"{len(arguments)} {'argument' if len(arguments) == 1 else 'arguments'}"
        parameters = ", ".join(str(parameter).partition(":")[0] for parameter in expected.parameters.values())
        raise LayoutError(f"{name} has {count}. Pass ({parameters}).") from error
    return maker(*arguments)


def _layout(value: Any, reader: _Reader) -> Layout | ComposedLayout | Swizzle:
    """Return the value if it is a layout or a swizzle; raise LayoutError otherwise."""
    if not isinstance(value, (Layout, ComposedLayout, Swizzle)):
        reader.position = 0
        reader.fail("a layout or a swizzle")
    return value
