"""C++ CuTe as text: types, calls that make layouts, and what `cute::print` writes.

Layout<Shape<_4,_8>,Stride<_8,_1>>                                   a type, also as a compiler spells it out
make_layout(make_shape(Int<4>{}, _8{}), make_stride(8, 1))           a call
(_4,_8):(_8,_1)                                                      what is printed
Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)                 the same, of a swizzle on addresses of bytes
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
    """The type of C++ CuTe that is the same function; every number is static.

    raises   LayoutError for strides over F2, which C++ has not

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
        raise LayoutError(f"to_cpp: a Layout, a ComposedLayout or a Swizzle is expected, not {layout!r}.")
    if layout.is_xor:
        raise LayoutError(f"to_cpp: {layout} has strides over F2, which C++ has not. Try to_swizzled(layout).")
    return f"Layout<{_type(layout.shape, 'Shape')},{_type(layout.stride, 'Stride')}>"


def _type(value: Any, of_tuple: str) -> str:
    if isinstance(value, tuple):
        return f"{of_tuple}<{','.join([_type(each, of_tuple) for each in value])}>"
    if isinstance(value, ScaledBasis):
        return f"ScaledBasis<Int<{value.value}>,{','.join(map(str, value.mode))}>"
    return f"Int<{value}>"


def from_cpp(text: str) -> Layout | ComposedLayout | Swizzle:
    """The layout or swizzle that a text of C++ CuTe describes: see the top of this module for its forms.

    A swizzle on a shared-memory pointer permutes addresses of bytes; here it is measured in elements.

    raises   LayoutError with the place from which on it does not read, and for numbers known at run time alone

    >>> from_cpp("cute::Layout<cute::tuple<cute::C<4>, cute::C<8> >, cute::tuple<cute::C<8>, cute::C<1> > >")
    Layout((4, 8), (8, 1))
    >>> print(from_cpp("Sw<3,4,3> o smem_ptr[16b](unset) o (_8,_64):(_64,_1)"))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    if not isinstance(text, str):
        raise LayoutError(f"from_cpp: {text!r} is a {type(text).__name__}; a text is expected.")
    if _PRINTED.match(text):
        return _printed(text)
    reader = _Reader(text)
    found = _layout(reader.value(), reader)
    reader.end()
    return found


def _printed(text: str) -> Layout | ComposedLayout | Swizzle:
    """What `cute::print` writes: the notation of `parse`, and a flag in the place of the offset."""
    flag = _FLAG.search(text)
    if flag is not None:
        found = parse(_FLAG.sub("0", text, count=1))
        assert isinstance(found, ComposedLayout)
        return _in_elements(found.inner, int(flag[1]), found.outer)
    alone = re.fullmatch(r"\s*Sw?\s*<\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*>\s*", text)
    return parse(text) if alone is None else Swizzle(*map(int, alone.groups()))


def _in_elements(inner: Any, bits: int, outer: Layout) -> ComposedLayout:
    """A swizzle of bytes on a layout of elements of so many bits."""
    return ComposedLayout(inner.recast(_BYTE_BITS, bits), 0, outer)


class _Reader:
    """The grammar of types and calls: name ["<" values ">"] [("(" values ")") | "{}"]; values are integers or such.

    A value is read as what it stands for at once: an integer, a tuple, a ScaledBasis, a Layout, ...
    """

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0

    def fail(self, expected: str) -> NoReturn:
        """raises LayoutError with the place"""
        at = self.position
        raise LayoutError(f"from_cpp: {expected} is expected.\n  {self.text}\n  {' ' * at}^")

    def peek(self) -> re.Match[str] | None:
        """The next token, which stays the next."""
        return _TOKEN.match(self.text, self.position)

    def accept(self, sign: str) -> bool:
        """Whether the next token is this sign, which is passed then."""
        token = self.peek()
        if token is None or token["sign"] != sign:
            return False
        self.position = token.end()
        return True

    def end(self) -> None:
        """raises LayoutError where there is more"""
        if self.text[self.position :].strip(" ;\n\t"):
            self.fail("the end of the text")

    def value(self) -> Any:
        """An integer, or what a name with its arguments stands for; and products, as of a number and a basis."""
        found = self.single()
        while self.accept("*"):
            factor = self.single()
            found = found * factor
        return found

    def single(self) -> Any:
        """One factor of a value."""
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
            called = self.listed("(", ")")
            if called:
                self.fail("one list of arguments")
            self.braces()
        try:
            return _made(name, arguments)
        except (LayoutError, TypeError, ValueError) as error:
            self.position = start
            raise LayoutError(f"from_cpp: {error}\n  {self.text}\n  {' ' * start}^") from error

    def listed(self, first: str, last: str) -> list[Any] | None:
        """Values between two signs, parted by commas; None where the first sign does not come next."""
        if not self.accept(first):
            return None
        found: list[Any] = []
        while not self.accept(last):
            found.append(self.value())
            if not self.accept(","):
                if not self.accept(last):
                    self.fail(f"',' or {last!r}")
                break
        return found

    def braces(self) -> None:
        """The {} behind a type, which makes an object of it."""
        if self.accept("{") and not self.accept("}"):
            self.fail("'}'")


def _constant(value: int) -> int:
    """C<value>"""
    if not isinstance(value, int):
        raise LayoutError(f"{value!r} is no integer.")
    return value


def _typed_constant(kind: str, value: int) -> int:
    """integral_constant<kind, value>"""
    if kind not in _INTEGERS:
        raise LayoutError(f"{kind!r} is no type of integers; {', '.join(_INTEGERS)} are read.")
    return _constant(value)


def _path(*modes: int) -> Any:
    """E<modes...>; of no modes it is the 1 that a basis of one mode has."""
    return E(modes) if modes else 1


def _scaled(value: int, *path: int) -> Any:
    """ScaledBasis<value, path...>"""
    return ScaledBasis(value, path) if path else value


def _byte_flag() -> _Flag:
    return _Flag(_BYTE_BITS)


def _laid_out(shape: Any, stride: Any = None, *others: Any) -> Layout:
    """Layout<shape, stride>; make_layout of layouts is the layout of these modes.

    Strides of LayoutRight grow from the last leaf of the shape to the first, across its modes: `compact_row_major`.
    """
    if isinstance(shape, Layout):
        return make_layout([each for each in (shape, stride, *others) if each is not None])
    if others:
        raise LayoutError(f"{2 + len(others)} arguments; a shape and its strides are expected.")
    _known(shape, stride)
    if stride in _ROWS:
        leaves = range(len(flatten(shape)))
        return make_ordered_layout(shape, unflatten(leaves[::-1], shape))
    return Layout(shape, None if stride in _COLUMNS else stride)


def _composed(inner: Any, offset: Any, outer: Layout | None = None) -> Layout | ComposedLayout:
    """ComposedLayout<inner, offset, outer>, and composition(inner, outer)."""
    if outer is None and isinstance(inner, Layout):
        return composition(inner, offset)
    if outer is None:
        offset, outer = 0, offset
    _known(offset)
    if isinstance(offset, _Flag):
        return _in_elements(inner, offset.bits, outer)
    return ComposedLayout(inner, offset, outer)


class _Flag:
    """smem_ptr_flag_bits<16>: the layout's elements have so many bits, its swizzle is of bytes."""

    def __init__(self, bits: int) -> None:
        self.bits = bits


def _tuple(*values: Any) -> tuple[Any, ...]:
    _known(*values)
    return values


def _known(*values: Any) -> None:
    """raises LayoutError for a number of which the type alone is said"""
    for value in values:
        if isinstance(value, str) and value in _INTEGERS:
            raise LayoutError(f"the type {value} is a number known at run time alone; write it, or Int<...>.")


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
    """What a name with arguments stands for."""
    short = re.fullmatch(r"_(m?)(\d+)", name)
    if short is not None and not arguments:
        return -int(short[2]) if short[1] else int(short[2])
    if name in (*_COLUMNS, *_ROWS) and not arguments:
        return name
    if name in _INTEGERS and not arguments:
        return name
    if name not in _MAKERS:
        raise LayoutError(f"{name!r} is no part of a layout that is read here.")
    maker = _MAKERS[name]
    expected = signature(maker)
    try:
        expected.bind(*arguments)
    except TypeError as error:
        given = f"{len(arguments)} {'argument' if len(arguments) == 1 else 'arguments'}"
        listed = ", ".join(str(each).partition(":")[0] for each in expected.parameters.values())
        raise LayoutError(f"{name} has {given}; ({listed}) are expected.") from error
    return maker(*arguments)


def _layout(value: Any, reader: _Reader) -> Layout | ComposedLayout | Swizzle:
    if not isinstance(value, (Layout, ComposedLayout, Swizzle)):
        reader.position = 0
        reader.fail("a layout or a swizzle")
    return value
