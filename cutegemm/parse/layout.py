"""Parser of layouts as users type them: in CuTe's notation, in C++ CuTe, in its DSL, and as what `print` writes.

    statement    [NAME "="] expression              C++ writes `auto NAME = ...` and `using NAME = ...`
    expression   pointer "o" term                   what `print` writes for a tensor; the pointer is dropped
                 term ["o" term "o" term]           inner, offset and outer of a composed layout
    term         product [":" product] {"(" arguments ")" | "[" mode "]"}
    product      factor {"*" factor}
    factor       integer ["@" modes]                2@0@1 and 2@(1,0) are strides of coordinates; _8 is static
                 "(" expressions ")"                a tuple
                 NAME ["<" arguments ">"] ["{}"]    a type
                 NAME "(" arguments ")"             a function; `stride=(8,1)` names an argument

A shape alone is its compact layout. "(8)" is a mode of rank 1 next to a colon; elsewhere it is 8.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Any, NoReturn

from cutegemm.errors import LayoutError, PlanError
from cutegemm.layout import ComposedLayout, Layout, ScaledBasis, Swizzle
from cutegemm.layout.layout import cute_text
from cutegemm.layout.scanner import Scanner
from cutegemm.parse.layout_names import OPERATIONS, PointerFlag, function_named, in_elements, word

Call = Callable[[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]

_TOKEN = re.compile(
    r"\s*(?:(?P<pointer>_?(?:[a-z]+_)?ptr\[(?P<bits>[0-9]+)b\]\([^()]*\))"
    r"|(?P<number>_?(?:-\s*)?[0-9]+)(?:[uUlL]+\b)?"
    r"|(?P<name>[A-Za-z_]\w*(?:::\w+)*)"
    r"|(?P<sign>[<>(){}\[\],*:@=]))"
)
_TARGET = re.compile(r"\s*(?:(?:using|auto|const|constexpr|static|Layout|Tensor)\b[\s&]*)*([A-Za-z]\w*)\s*=(?!=)")
_NAMED_ARGUMENT = re.compile(r"\s*([A-Za-z]\w*)\s*=(?!=)")
_COMMENT = re.compile(r"(#|//).*")
CONSTANTS = {"_": None, "None": None}
_MOST_DEPTH = 60  # parentheses inside each other; Python's recursion limit allows about twice this depth


def parse_layout(text: str, operation: str = "parse_layout") -> Layout | ComposedLayout | Swizzle:
    """Return the layout or swizzle that a user typed in CuTe's notation, in C++ CuTe or in the Python DSL.

    A swizzle that is written before a pointer permutes byte addresses, as in CuTe. The result permutes element offsets
    instead.

    text        one or more statements, separated by line breaks or ";", e.g. "(4,8):(8,1)" or "make_layout((4,8),
                stride=(8,1))". The value of the last one is returned
    operation   name of the calling operation, for messages
    raises      LayoutError with a caret under the first character that is wrong, or if the value is not a layout

    >>> print(parse_layout("make_layout((4,8), stride=(8,1))"))
    (4,8):(8,1)
    >>> print(parse_layout("auto x = make_layout(make_shape(_4{}, _8{}), LayoutRight{});"))
    (4,8):(8,1)
    >>> print(parse_layout("blocked_product((2,2):(1,2), (3,4))"))
    ((2,3),(2,4)):((1,4),(2,12))
    >>> print(parse_layout("Sw<3,4,3>_smem_ptr[16b](0x7f00) o (_8,_64):(_64,_1)"))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    if not isinstance(text, str):
        raise LayoutError(f"{operation}: {text!r} is a {type(text).__name__}. Pass a string.")
    value, names = None, dict(CONSTANTS)
    for _, statement in statements(text):
        value = Reader(statement, names, operation=operation).statement()
    if not isinstance(value, (Layout, ComposedLayout, Swizzle)):
        what = "the text is empty" if value is None else f"{cute_text(value)} is not a layout"
        raise LayoutError(f"{operation}: {what}. Write a layout such as (4,8):(8,1) or a swizzle such as S<3,3,3>.")
    return value


def statements(text: str) -> Iterator[tuple[int, str]]:
    """Split typed layout expressions into statements; yield (number of the first line, statement).

    A statement ends with its line or with ";", but continues in the next line while a bracket is open or after "=".
    Comments that start with # or // are removed.
    """
    statement, first = "", 1
    for number, raw in enumerate(text.replace(";", "\n").splitlines(), 1):
        line = _COMMENT.sub("", raw).strip()
        if not statement:
            first = number
        statement = f"{statement} {line}".strip()
        opened = sum(map(statement.count, "([{<")) - sum(map(statement.count, ")]}>"))
        if statement and opened <= 0 and not statement.endswith("="):
            yield first, statement
            statement = ""
    if statement:
        yield first, statement


def call_checked(name: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return `function(*arguments, **named)`; raise LayoutError if the arguments do not fit the function's parameters.

    name   name of the operation as the user wrote it, for the message
    """
    expected = signature(function)
    try:
        expected.bind(*arguments, **named)
    except TypeError as error:
        parameters = ", ".join(str(parameter).partition(":")[0] for parameter in expected.parameters.values())
        count, unknown = len(arguments) + len(named), [key for key in named if key not in expected.parameters]
        what = f"{count} {'argument' if count == 1 else 'arguments'}"
        if unknown:
            what = f"the unknown argument {unknown[0]!r}"
        raise LayoutError(f"{name} has {what}. Pass ({parameters}).") from error
    return function(*arguments, **named)


class Reader(Scanner):
    """Recursive-descent parser of one typed layout statement, which it also evaluates.

    Each method reads one rule of the grammar at the current position and moves the position past it.

    text         the statement, such as "x = composition((4,8):(8,1), (2,2))"
    names        values of assigned names; an assignment adds to them
    call         how operations are called: `call(name, function, arguments, named)` returns the value of
                 `function(*arguments, **named)`. A caller can record the operations that way. The name is "" if a
                 layout is applied to a coordinate
    operations   further operations by name
    operation    name of the calling operation, for messages
    """

    def __init__(
        self,
        text: str,
        names: dict[str, Any],
        call: Call = call_checked,
        operations: Mapping[str, Callable[..., Any]] = {},
        operation: str = "parse_layout",
    ) -> None:
        super().__init__(text, operation)
        self.names, self.call, self.operations = names, call, operations
        self.start = self.depth = 0
        self.target = ""  # name that the statement assigns to
        self.computed = False  # whether an operation was called: its result is not a shape

    def statement(self) -> Any:
        """Parse and evaluate the whole statement of this parser, and return its value.

        A shape alone is returned as its compact layout. An assignment stores the value under the assigned name.
        """
        target = _TARGET.match(self.text)
        if target is not None:
            self.target, self.position = target[1], target.end()
        self.start = self.here()
        value = self.expression()
        if self.here() < len(self.text):
            self.fail("the end of the text")
        if self.target:
            self.names[self.target] = _plain(value)
        return _plain(value) if self.computed else self.build(self.start, _as_layout, value)

    def expression(self) -> Any:
        """Parse and evaluate one whole expression at the current position of this parser.

        It is a term such as (4,8):(8,1), a composed layout "inner o offset o outer", or a tensor as `cute::print`
        prints it.
        """
        if self.pointer() is not None:
            self.expect_o()
            return self.term()
        start = self.position
        value = self.term()
        bits = self.pointer()
        if bits is None and not self.accept_o():
            return value
        if bits is None:
            bits = self.pointer()
        offset = None if bits is not None else self.term()
        self.expect_o()
        outer = self.term()
        if bits is not None:
            return self.build(start, in_elements, value, bits, outer)
        if isinstance(offset, PointerFlag):
            return self.build(start, in_elements, value, offset.bits, outer)
        return self.build(start, ComposedLayout, _plain(value), _plain(offset), _as_layout(outer))

    def term(self) -> Any:
        """Parse and evaluate a term: a value, or a layout "shape:stride".

        Coordinates in parentheses or a mode in brackets may follow, as in (4,8):(8,1)[0](2).
        """
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self.refuse(f"parentheses are nested more than {_MOST_DEPTH} deep.", self.position)
        start = self.here()
        value = self.product()
        if self.accept(":"):
            value = self.build(start, Layout, _modes(value), _modes(self.product()))
        while True:
            if self.accept("("):
                arguments, _ = self.arguments(")")
                value = self.compute("", _at, (_plain(value), *arguments), {})
            elif self.accept("["):
                arguments, _ = self.arguments("]")
                value = self.compute("", mode_of, (_plain(value), *arguments), {})
            else:
                self.depth -= 1
                return value

    def product(self) -> Any:
        """Parse and evaluate a product such as 2*E<0>, or a single factor."""
        start = self.here()
        value = self.factor()
        while self.accept("*"):
            other = self.factor()
            try:
                value = value * other
            except (TypeError, LayoutError) as error:
                self.refuse(str(error), start, error)
        return value

    def factor(self) -> Any:
        """Parse and evaluate an integer, a tuple in parentheses, or a name with its arguments, such as Int<4>."""
        start, token = self.here(), self.peek()
        if token is None or token["pointer"]:
            self.fail("a layout, a number or a name")
        if token["number"]:
            self.position = token.end()
            return self.number(token["number"], start)
        if token["name"]:
            self.position = token.end()
            return self.named(token["name"].rpartition("::")[2], start)
        if not self.accept("("):
            self.fail("a layout, a number or a name")
        values: list[Any] = []
        while not self.accept(")"):
            values.append(self.expression())
            if not self.accept(","):
                self.expect(")", "',' or ')'")
                return _Grouped(values) if len(values) == 1 else tuple(values)
        return tuple(values)

    def number(self, digits: str, start: int) -> Any:
        """Return the value of an integer such as 2, or of a scaled basis vector such as 2@0@1 in CuTe's notation.

        The parser has already read the digits. This method reads what follows them in the statement: nothing for an
        integer, or "@" and a mode, once or several times, for a basis vector.

        digits   text of the integer, such as "2"
        start    position of the integer in the statement, for error messages
        """
        value = self.value_of(digits, start)
        self.braces()
        modes: list[int] = []
        while self.accept("@"):
            token = self.peek()
            if not modes and token is not None and token["sign"] == "(":
                return self.build(start, ScaledBasis, value, _plain(self.factor()))
            if token is None or not token["number"]:
                self.fail("a mode of 0 or more")
            self.position = token.end()
            modes.append(self.value_of(token["number"], token.start()))
        return self.build(start, ScaledBasis, value, tuple(reversed(modes))) if modes else value

    def named(self, name: str, start: int) -> Any:
        """Return the value of a name that was just read; a function is called with the arguments that follow it.

        name    the name without namespace, such as x, Int or composition
        start   position of the name in the statement, for error messages
        """
        follows = self.peek()
        sign = follows["sign"] if follows else None
        value = self.names[name] if name in self.names and sign != "<" else word(name)
        if value is not None or name in CONSTANTS:
            self.braces()
            return value
        function = self.operations.get(name) or function_named(name)
        if function is None:
            self.unknown(name, start)
        if sign not in ("<", "("):
            self.braces()
            if sign != "{":
                self.fail(f"'(' or '<' after {name}")
            return self.build(start, call_checked, name, function, (), {})
        self.accept(sign)
        arguments, named = self.arguments(">" if sign == "<" else ")")
        if sign == "<" and not self.braces() and self.accept("("):
            self.expect(")", f"one list of arguments of {name}")
        if sign == "(" and (name in self.operations or name in OPERATIONS):
            return self.compute(name, function, arguments, named)
        return self.build(start, call_checked, name, function, arguments, named)

    def compute(self, name: str, function: Callable[..., Any], arguments: Any, named: dict[str, Any]) -> Any:
        """Call an operation of the layout algebra through the function `call` of this parser, and return its result.

        name        name of the operation; "" if a layout is applied to a coordinate, or a mode is taken
        function    Python function that computes it
        arguments   positional arguments
        named       keyword arguments
        """
        self.computed = True
        return self.call(name, function, arguments, named)

    def unknown(self, name: str, start: int) -> NoReturn:
        """Raise LayoutError for a name that has no value; the message suggests the most similar known name.

        start   position of the name in the statement
        """
        near = get_close_matches(name, (*OPERATIONS, *self.operations, *self.names), 1)
        hint = "use an operation of docs/explorer.md"
        hint = f"Did you mean {near[0]}?" if near else f"Write {name} = ... before, or {hint}."
        self.refuse(f"{name!r} is not a known name. {hint}", start)

    def arguments(self, last: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Parse arguments up to and including the closing sign; return (positional values, keyword values by name).

        last   the closing sign, ")", ">" or "]"
        """
        values: list[Any] = []
        named: dict[str, Any] = {}
        while not self.accept(last):
            name = _NAMED_ARGUMENT.match(self.text, self.position)
            if name is not None:
                self.position = name.end()
                named[name[1]] = _plain(self.expression())
            else:
                values.append(_plain(self.expression()))
            if not self.accept(","):
                self.expect(last, f"',' or {last!r}")
                break
        return tuple(values), named

    def braces(self) -> bool:
        """Read "{}" if it comes next in the statement; return True if it does.

        In C++, it follows a type that is constructed, as in Layout<...>{}.
        """
        if not self.accept("{"):
            return False
        self.expect("}")
        return True

    def pointer(self) -> int | None:
        """Read a pointer such as smem_ptr[16b](unset) if it comes next; return the bits of its elements, else None."""
        token = self.peek()
        if token is None or not token["pointer"]:
            return None
        self.position = token.end()
        return int(token["bits"])

    def accept_o(self) -> bool:
        """Read the letter "o" at the current position of this parser, if it is the next token; return True if it was.

        The letter is the operator of a composed layout, as in "Sw<3,4,3> o 0 o (8,64):(64,1)".
        """
        token = self.peek()
        if token is None or token["name"] != "o":
            return False
        self.position = token.end()
        return True

    def expect_o(self) -> None:
        """Read the letter "o" at the current position of this parser; raise LayoutError if another token comes next.

        The letter is the operator of a composed layout, as in "Sw<3,4,3> o 0 o (8,64):(64,1)".
        """
        if not self.accept_o():
            self.fail("'o'")

    def peek(self) -> re.Match[str] | None:
        """Return the next token as a regular-expression match without moving past it; None at the statement's end."""
        return _TOKEN.match(self.text, self.position)

    def build(self, at: int, make: Callable[..., Any], *parts: Any) -> Any:
        """Return `make(*parts)`; if that fails, raise a LayoutError that shows where in the statement.

        make   function that makes a value of the statement, such as `Layout`
        at     index in the statement of the character that the caret of the message points to
        """
        try:
            return make(*parts)
        except (LayoutError, PlanError, TypeError, ValueError) as error:
            self.refuse(str(error), at, error)


class _Grouped(tuple[Any, ...]):
    """Marks one parsed value in parentheses, such as (8), which can mean a tuple or an integer.

    As the shape or stride of a layout, such as (8):(1), it means the tuple (8,), i.e. one mode. Elsewhere it means
    the value 8. The parser decides when it has read what follows.
    """


def _plain(value: Any) -> Any:
    """Return a parsed value without redundant parentheses: a single value (8) becomes 8, at any depth."""
    if isinstance(value, _Grouped):
        return _plain(value[0])
    return tuple([_plain(entry) for entry in value]) if isinstance(value, tuple) else value


def _modes(value: Any) -> Any:
    """Return a parsed shape or strides as nested tuples, where (8) becomes the tuple (8,).

    value   integer or nested tuple, as parsed. A single value in parentheses, such as (8), is an object of the class
            `_Grouped`, which marks it
    """
    return tuple([_modes(entry) for entry in value]) if isinstance(value, tuple) else value


def _as_layout(value: Any) -> Any:
    """Return the compact column-major layout of a shape; any other value, such as a layout, is returned as it is."""
    return Layout(_modes(value)) if type(value) is int or isinstance(value, tuple) else _plain(value)


def _at(layout: Any, *coordinate: Any) -> Any:
    """Return `layout(*coordinate)`, for an expression such as A(1, 2) in a text that a user typed.

    layout   what stands before the parentheses
    raises   LayoutError if `layout` is not a layout or swizzle
    """
    if not isinstance(layout, (Layout, ComposedLayout, Swizzle)):
        raise LayoutError(f"{cute_text(layout)} is not a layout, so it takes no coordinate.")
    return layout(*coordinate)


def mode_of(layout: Any, mode: Any) -> Any:
    """Return one mode of a layout or shape, for an expression such as A[0] in a text that a user typed.

    mode     index of the mode
    raises   LayoutError if `layout` is not a layout or a shape
    """
    if not isinstance(layout, (Layout, ComposedLayout, tuple)):
        raise LayoutError(f"{cute_text(layout)} is not a layout, so it has no modes.")
    return layout[mode]
