"""Parser of layouts in CuTe's notation and in the notation of `repr`.

    composed  inner "o" offset "o" layout      S<3,4,3> o 0 o (8,64):(64,1)
    inner     "S<" bits "," base "," shift ">" | layout
    layout    shape [":" stride]               ((2,4),8):((1,16),2); without strides the compact layout
    stride    an integer or a scaled basis     2@0@1, innermost mode first, or 2@(1,0), from the outside in
              or a stride over F2              F2(9)

"(8)" is a mode of rank 1. Integers may be marked as static, as CuTe's C++ prints them: (_4,_8):(_1,_4).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from cutegemm.errors import LayoutError
from cutegemm.layout.inttuple import MAX_DEPTH, wrong_kind
from cutegemm.layout.layout import Layout
from cutegemm.layout.scanner import Scanner
from cutegemm.layout.stride import F2, ScaledBasis
from cutegemm.layout.swizzle import ComposedLayout, Swizzle

_INTEGER = re.compile(r"_?(-?\s*[0-9]+)")
T = TypeVar("T")


def parse(text: str) -> Layout | ComposedLayout:
    """Return the layout that a text describes. `parse` reads what `str` and `repr` of a layout return.

    text     in CuTe's notation, or Python source of a layout
    raises   LayoutError with a caret under the first character that is wrong

    >>> parse("((2,4),8):((1,16),2)")
    Layout(((2, 4), 8), ((1, 16), 2))
    >>> parse("(4,8):(1@0,1@1)")(3, 5)
    (3, 5)
    >>> parse("S<3,4,3> o 0 o (8,64):(64,1)")
    ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 64), (64, 1)))
    >>> parse("(4,8:(1,4)")
    Traceback (most recent call last):
        ...
    cutegemm.errors.LayoutError: parse: ',' or ')' is expected at ':'.
      (4,8:(1,4)
          ^
    """
    if not isinstance(text, str):
        raise wrong_kind("parse(text): text", text, "a str")
    reader = _Reader(text)
    layout = reader.composed()
    if reader.here() < len(text):
        reader.fail("the end of the text" if isinstance(layout, ComposedLayout) else "'o' or the end of the text")
    return layout


class _Reader(Scanner):
    """Parses a text such as "(4,8):(8,1)", or the Python source Layout((4, 8), (8, 1)), and returns the layout.

    Each method reads one rule of the grammar at the current position and moves the position past it.

    start     position of the first character that is not a space
    in_repr   True for Python source, where (8) is the integer 8; in CuTe's notation it is a tuple
    """

    def __init__(self, text: str) -> None:
        super().__init__(text, "parse")
        self.start, self.in_repr = self.here(), False

    def composed(self) -> Layout | ComposedLayout:
        """Read a plain or composed layout at the current position of this parser's text, and return it.

        It may be written in CuTe's notation, such as "(4,8):(8,1)" or "S<3,4,3> o 0 o (8,64):(64,1)", or as Python
        source, such as "Layout((4, 8), (8, 1))". Text that follows is not read.
        """
        start = self.here()
        if self.accept("ComposedLayout("):
            self.in_repr = True
            return self.composition(start, separator=",", end=")")
        if self.text.startswith("S", start):
            return self.composition(start)
        layout = self.layout("a layout, 'S<' or a repr")
        if not self.text.startswith("o", self.here()):
            return layout
        return self.composition(start, layout)

    def composition(self, start: int, inner: Any = None, separator: str = "o", end: str = "") -> ComposedLayout:
        """Read a composed layout, such as "S<3,4,3> o 0 o (8,64):(64,1)", at the current position, and return it.

        Its three components are the inner function, the offset and the outer layout.

        start       position of its first character, for error messages
        inner       the inner function if it has been read already; None to read it first
        separator   text between the components: "o", or "," in Python source
        end         text after the last component: "", or ")" in Python source
        """
        if inner is None:
            inner = self.inner()
        self.expect(separator)
        offset = self.nested(lambda: self.integer("an offset"))
        self.expect(separator)
        outer = self.layout("a layout")
        self.expect(end)
        return self.build(start, ComposedLayout, inner, offset, outer)

    def inner(self) -> Swizzle | Layout:
        """Read the inner function of a composed layout from the text: a swizzle or a layout."""
        start = self.here()
        for name, end in (("Swizzle(", ")"), ("Sw<", ">"), ("S<", ">")):
            if self.accept(name):
                bits = self.integer("the bits of the swizzle")
                self.expect(",")
                base = self.integer("the base of the swizzle")
                self.expect(",")
                shift = self.integer("the shift of the swizzle")
                self.expect(end)
                return self.build(start, Swizzle, bits, base, shift)
        return self.layout("a swizzle or a layout")

    def layout(self, expected: str) -> Layout:
        """Read a plain layout at the current position of this parser's text: a shape with optional strides.

        For example "(4,8):(8,1)", "(4,8)" or, as Python source, "Layout((4, 8), (8, 1))".

        expected   what the error message says is expected if there is no layout, such as "a layout"
        """
        is_repr = self.accept("Layout(")
        self.in_repr = self.in_repr or is_repr
        start = self.here()
        shape = self.nested(lambda: self.extent(expected))
        stride = None
        if self.accept("," if is_repr else ":"):
            start = self.here()
            stride = self.nested(self.stride)
        if is_repr:
            self.expect(")")
        return self.build(start, Layout, shape, stride)

    def nested(self, leaf: Callable[[], Any], depth: int = 0) -> Any:
        """Read one leaf such as 4, or a nested tuple such as (4,(2,8)), at the current position of this parser's text.

        leaf    method of this parser that reads a leaf
        depth   number of parentheses that are open around the value; 0 for the outermost call. Used to limit nesting
        """
        start = self.here()
        if not self.accept("("):
            return leaf()
        if depth > MAX_DEPTH:
            self.refuse(f"parentheses are nested more than {MAX_DEPTH} deep.", start)
        items: list[Any] = []
        while not self.accept(")"):
            items.append(self.nested(leaf, depth + 1))
            if not self.accept(","):
                self.expect(")", "',' or ')'")
                return items[0] if self.in_repr and len(items) == 1 else tuple(items)
        return tuple(items)

    def integer(self, expected: str, at_least: int | None = None) -> int:
        """Read an integer from the text; raise LayoutError if it is less than `at_least`.

        expected   description of the text for the error if it is missing
        """
        start = self.here()
        match = _INTEGER.match(self.text, start)
        value = self.value_of(match[1], start) if match else 0
        if match is None or (at_least is not None and value < at_least):
            self.fail(expected)
        self.position = match.end()
        return value

    def extent(self, expected: str) -> int:
        """Read an extent of a shape from the text: an integer, 0 or more.

        expected   description of the missing text for the error, such as "an extent"
        """
        return self.integer(expected if self.here() == self.start else "an extent of 0 or more", 0)

    def stride(self) -> int | ScaledBasis | F2:
        """Read one leaf of a stride from the text: an integer, a basis vector (2@1) or a stride over F2 (F2(9))."""
        start = self.here()
        if self.accept("F2("):
            value = self.integer("the value of the stride over F2", 0)
            self.expect(")")
            return self.build(start, F2, value)
        if self.accept("ScaledBasis("):
            value = self.integer("the value of the basis vector")
            self.expect(",")
            path = self.path()
            self.expect(")")
            return self.build(start, ScaledBasis, value, path)
        value = self.integer("a stride")
        modes: list[int] = []
        while self.accept("@"):
            if not modes and self.text.startswith("(", self.here()):
                return self.build(start, ScaledBasis, value, self.path())
            modes.append(self.integer("a mode of 0 or more", 0))
        return self.build(start, ScaledBasis, value, tuple(reversed(modes))) if modes else value

    def path(self) -> tuple[int, ...]:
        """Read the path of a mode from the text: an integer, or a tuple of integers."""
        start = self.here()
        path = self.nested(lambda: self.integer("a mode of 0 or more", 0))
        path = path if isinstance(path, tuple) else (path,)
        if not path or any(isinstance(m, tuple) for m in path):
            self.refuse("a path of modes is expected.", start)
        return path

    def build(self, at: int, make: Callable[..., T], *parts: Any) -> T:
        """Return `make(*parts)`, e.g. a layout of a shape and strides that were read; its errors point at the text.

        A LayoutError shows the text with a caret at position `at`.
        """
        try:
            return make(*parts)
        except LayoutError as error:
            self.refuse(str(error), at, error)
