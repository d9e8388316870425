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
from cutegemm.layout.text import MAX_DIGITS
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
_SHOWN = 100  # characters that a message shows on each side of an error


def parse_layout(text: str, operation: str = "parse_layout") -> Layout | ComposedLayout | Swizzle:
    """Return the layout or swizzle that a text describes: the value of its last statement.

    A swizzle before a pointer permutes byte addresses. It is converted to one that permutes element offsets.

    text        one or more statements of the grammar above, separated by line breaks or ";"
    operation   name for messages
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
    """Split a text into statements: yield (line number, statement). A statement ends with its line or with ";".

    It goes on in the next line while a bracket is open, and after "=".
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
    """Return `function(*arguments, **named)`; raise LayoutError if the function does not accept these arguments.

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


class Reader:
    """A statement, and a position in it. Each method reads one rule of the grammar and moves the position past it.

    text        the statement
    names       values of assigned names; an assignment adds to them
    call        calls an operation of the algebra, or a layout with a coordinate: (name, function, arguments, named
                arguments) -> value. The name is "" for a coordinate. The explorer records the calls
    operations  further operations by name
    operation   name for messages
    """

    def __init__(
        self,
        text: str,
        names: dict[str, Any],
        call: Call = call_checked,
        operations: Mapping[str, Callable[..., Any]] = {},
        operation: str = "parse_layout",
    ) -> None:
        self.text, self.names, self.call, self.operations = text, names, call, operations
        self.operation = operation
        self.position = self.start = self.depth = 0
        self.target = ""  # name that the statement assigns to
        self.computed = False  # whether an operation was called: its result is not a shape

    def statement(self) -> Any:
        """Read and evaluate the whole statement, and return its value. A shape alone is returned as its layout."""
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
        """Read and evaluate an expression: a term, a composed layout, or a tensor as `print` writes it.

        A composed layout is written "inner o offset o outer".
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
        """Read and evaluate a term: a value, or a shape and its strides "shape:stride".

        Coordinates in parentheses or a mode in brackets may follow.
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
        """Read and evaluate a product "factor * factor", such as a number times a basis vector, or a single factor."""
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
        """Read and evaluate an integer, a tuple in parentheses, or a name with its arguments."""
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
        """Return the value of an integer token, times a basis vector if "@" and modes follow, as in 2@0@1.

        digits   digits of the token
        start    position of the token in the statement, for error messages
        """
        value = self.integer(digits, start)
        self.braces()
        modes: list[int] = []
        while self.accept("@"):
            token = self.peek()
            if not modes and token is not None and token["sign"] == "(":
                return self.build(start, ScaledBasis, value, _plain(self.factor()))
            if token is None or not token["number"]:
                self.fail("a mode of 0 or more")
            self.position = token.end()
            modes.append(self.integer(token["number"], token.start()))
        return self.build(start, ScaledBasis, value, tuple(reversed(modes))) if modes else value

    def integer(self, digits: str, start: int) -> int:
        """Return the integer that digits stand for. Raises LayoutError if there are too many digits.

        start   position of the digits in the statement, for the message
        """
        if len(digits) > MAX_DIGITS:
            self.refuse(f"an integer of {len(digits)} characters; at most {MAX_DIGITS} are allowed.", start)
        return int(re.sub(r"[_\s]", "", digits))

    def named(self, name: str, start: int) -> Any:
        """Return the value of a name; if the name is a function, call it with the arguments that follow.

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
        """Call an operation and return its result. Error messages show the operation's position in the statement.

        name       name of the operation; "" for a layout with a coordinate or the index of a mode
        function   Python function that computes it
        arguments  positional arguments
        named      keyword arguments
        """
        self.computed = True
        return self.call(name, function, arguments, named)

    def unknown(self, name: str, start: int) -> NoReturn:
        """Raise LayoutError for a name without a value; the message suggests the most similar known name.

        start   position of the name in the statement
        """
        near = get_close_matches(name, (*OPERATIONS, *self.operations, *self.names), 1)
        hint = "use an operation of docs/explorer.md"
        hint = f"Did you mean {near[0]}?" if near else f"Write {name} = ... before, or {hint}."
        self.refuse(f"{name!r} is not a known name. {hint}", start)

    def arguments(self, last: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Read arguments up to the closing sign `last`, such as ")": return (positional values, keyword -> value)."""
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
        """Read the optional {} after a C++ type, which constructs an object; return True if it comes next."""
        if not self.accept("{"):
            return False
        self.expect("}")
        return True

    def pointer(self) -> int | None:
        """Read a pointer such as smem_ptr[16b](unset); return the bits of its elements, or None if none comes next."""
        token = self.peek()
        if token is None or not token["pointer"]:
            return None
        self.position = token.end()
        return int(token["bits"])

    def accept_o(self) -> bool:
        """Move past the "o" of a composed layout if it comes next in the statement; return whether it does."""
        token = self.peek()
        if token is None or token["name"] != "o":
            return False
        self.position = token.end()
        return True

    def expect_o(self) -> None:
        """Move past the "o" of a composed layout; raise LayoutError if it does not come next in the statement."""
        if not self.accept_o():
            self.fail("'o'")

    def peek(self) -> re.Match[str] | None:
        """Return the next token of the statement without moving past it, or None at the end."""
        return _TOKEN.match(self.text, self.position)

    def here(self) -> int:
        """Move past whitespace, and return the position in the statement."""
        while self.text[self.position : self.position + 1].isspace():
            self.position += 1
        return self.position

    def accept(self, sign: str) -> bool:
        """Move past `sign`, such as ":", if it comes next in the statement; return whether it does."""
        if not self.text.startswith(sign, self.here()):
            return False
        self.position += len(sign)
        return True

    def expect(self, sign: str, expected: str | None = None) -> None:
        """Move past `sign`, such as ")"; raise LayoutError if it does not come next in the statement.

        expected   what the message names as missing; None for the sign itself
        """
        if not self.accept(sign):
            self.fail(expected or repr(sign))

    def fail(self, expected: str) -> NoReturn:
        """Raise LayoutError with a message that `expected` is missing at the present position in the statement."""
        at = self.here()
        found = "the end of the text" if at == len(self.text) else repr(self.text[at])
        self.refuse(f"{expected} is expected at {found}.", at)

    def refuse(self, reason: str, at: int, cause: Exception | None = None) -> NoReturn:
        """Raise LayoutError with a reason, an excerpt of the statement, and a caret under the position `at`.

        cause   exception that the error is raised from; None for none
        """
        start = max(0, at - _SHOWN)  # a long text is cut on both sides
        before, after = "..." if start else "", "..." if at + _SHOWN < len(self.text) else ""
        shown = before + re.sub(r"\s", " ", self.text[start : at + _SHOWN]) + after
        raise LayoutError(f"{self.operation}: {reason}\n  {shown}\n  {' ' * (at - start + len(before))}^") from cause

    def build(self, at: int, make: Callable[..., Any], *parts: Any) -> Any:
        """Return `make(*parts)`. If it fails, raise LayoutError whose message shows position `at` of the statement."""
        try:
            return make(*parts)
        except (LayoutError, PlanError, TypeError, ValueError) as error:
            self.refuse(str(error), at, error)


class _Grouped(tuple[Any, ...]):
    """One value in parentheses, such as (8), as the parser keeps it until the context decides what it means.

    Next to a colon it is a mode of rank 1, a tuple of one entry. Elsewhere it is the value itself.
    """


def _plain(value: Any) -> Any:
    """Return a parsed value with each `_Grouped` (one value in parentheses) replaced by the value in it."""
    if isinstance(value, _Grouped):
        return _plain(value[0])
    return tuple([_plain(entry) for entry in value]) if isinstance(value, tuple) else value


def _modes(value: Any) -> Any:
    """Return a parsed shape or strides as nested tuples; a single entry in parentheses becomes a tuple of one."""
    return tuple([_modes(entry) for entry in value]) if isinstance(value, tuple) else value


def _as_layout(value: Any) -> Any:
    """Return the compact column-major layout of a shape; a value that is already a layout is returned unchanged."""
    return Layout(_modes(value)) if type(value) is int or isinstance(value, tuple) else _plain(value)


def _at(layout: Any, *coordinate: Any) -> Any:
    """Return `layout(*coordinate)`, for a coordinate in parentheses after a layout.

    raises   LayoutError if `layout` is not a layout or swizzle
    """
    if not isinstance(layout, (Layout, ComposedLayout, Swizzle)):
        raise LayoutError(f"{cute_text(layout)} is not a layout, so it takes no coordinate.")
    return layout(*coordinate)


def mode_of(layout: Any, mode: Any) -> Any:
    """Return mode `mode` of a layout or shape, for an index in brackets after it: A[0].

    raises   LayoutError if `layout` is not a layout or a shape
    """
    if not isinstance(layout, (Layout, ComposedLayout, tuple)):
        raise LayoutError(f"{cute_text(layout)} is not a layout, so it has no modes.")
    return layout[mode]
