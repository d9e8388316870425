"""Parse and evaluate a typed expression of the layout algebra, and record each operation.

    A = (6,2):(8,2)                           assign a layout to a name
    composition(A, (4,3):(3,1))               call an operation that `cutegemm` exports
    S<3,3,3> o 0 o (64,64):(64,1)             a swizzled layout
    A(3, _)                                   a layout at a coordinate; _ keeps the mode
    tv(((8,4),(2,2)):((16,2),(8,1)), (8,16))  a thread-value layout over a tile

No other Python is evaluated, because anyone can write a link.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from cutegemm import layout as algebra
from cutegemm.errors import CutegemmError, LayoutError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, parse
from cutegemm.layout.layout import cute_text
from cutegemm.tile.tv import make_layout_tv

OPERATIONS = (
    "coalesce", "composition", "complement", "right_inverse", "left_inverse",
    "logical_divide", "zipped_divide", "tiled_divide", "flat_divide",
    "logical_product", "zipped_product", "tiled_product", "flat_product", "blocked_product", "raked_product",
    "tile_to_shape", "make_layout", "make_ordered_layout", "make_layout_like", "make_identity_layout",
    "make_composed_layout", "group_modes", "select", "flatten", "append", "prepend", "filter_zeros",
    "to_xor", "to_swizzled", "recast_layout", "max_common_layout", "max_common_vector",
    "size", "cosize", "rank", "depth", "crd2idx", "idx2crd",
)  # fmt: skip
_MOST_CALLS = 40  # limit of the operations of an expression
_SWIZZLE = re.compile(r"Sw?<\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*>")


@dataclass(frozen=True)
class HeldBy:
    """A thread-value layout over a tile: the element of the tile that each thread holds as each of its values.

    layout   (thread, value) -> column-major index in the tile
    tile     extents (M, N) of the tile
    """

    layout: Layout
    tile: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.layout} over {cute_text(self.tile)}"


@dataclass(frozen=True)
class Call:
    """One evaluated operation of an expression.

    text    the operation with its arguments as values, such as "composition(8:1, 4:2)"
    name    name of the operation; "" for a layout that was typed, or that was called with a coordinate
    args    values of the arguments
    value   the result; None if the operation failed
    error   message of the error; "" if it succeeded
    target  name that the result was assigned to; "" for none
    """

    text: str
    name: str
    args: tuple[Any, ...]
    value: Any = None
    error: str = ""
    target: str = ""


def evaluated(text: str) -> list[Call]:
    """Evaluate an expression and return its operations, inner ones first, up to the first that fails.

    text    lines of the notation above; "#" begins a comment and ";" ends a statement
    raises  nothing: an error is in `Call.error` of the last operation

    >>> [(call.name, str(call.value)) for call in evaluated("coalesce(zipped_divide(8:1, 4))")]
    [('zipped_divide', '(4,2):(1,4)'), ('coalesce', '8:1')]
    >>> evaluated("__import__('os')")[0].error
    "line 1: there is no operation '__import__'. docs/explorer.md lists them."
    """
    evaluation = _Evaluation()
    try:
        for number, line in _statements(text):
            evaluation.run(number, line)
    except CutegemmError as error:
        if not (evaluation.calls and evaluation.calls[-1].error):
            evaluation.calls.append(Call("", "", (), error=str(error)))
    return evaluation.calls


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, statement). A statement continues on the next line while a parenthesis is open."""
    statement, first = "", 1
    for number, raw in enumerate(text.replace(";", "\n").splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not statement:
            first = number
        statement = f"{statement} {line}".strip()
        if statement and statement.count("(") <= statement.count(")"):
            yield first, statement
            statement = ""
    if statement:
        yield first, statement


class _Evaluation:
    """The state of an evaluation: assigned names, recorded operations, and layouts that `quoted` put aside."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"_": None, "None": None}
        self.calls: list[Call] = []
        self.literals: list[Any] = []

    def run(self, number: int, line: str) -> None:
        """Evaluate one statement. Raises LayoutError if it cannot be parsed or an operation fails."""
        target, _, rest = re.fullmatch(r"(?:([A-Za-z]\w*)\s*(=)(?!=))?\s*(.*)", line).groups()  # type: ignore[union-attr]
        source = self.quoted(rest)
        try:
            tree = ast.parse(source.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise LayoutError(
                f"line {number}: {rest!r} cannot be parsed. Write a layout such as (4,8):(8,1), or an operation "
                "such as composition((4,8):(8,1), 4:2)."
            ) from None
        before = len(self.calls)
        try:
            value = self.value(tree)
        except _NotUnderstood as what:
            raise LayoutError(f"line {number}: {what}") from None
        if len(self.calls) == before:
            if isinstance(value, (int, tuple)):  # a shape stands for its compact layout
                value = parse(rest)
            self.calls.append(Call(rest, "", (), value))
        if target:
            self.names[target] = value
            last = self.calls[-1]
            self.calls[-1] = Call(last.text, last.name, last.args, last.value, last.error, target)

    def quoted(self, text: str) -> str:
        """Replace each layout in CuTe's notation by `_0`, `_1`, ..., and append its value to `self.literals`."""
        while True:
            swizzle = _SWIZZLE.search(text)
            colon = text.find(":")
            if swizzle is None and colon < 0:
                return text
            if swizzle is not None:
                start, end = swizzle.span()
                outer = re.match(r"\s*o\s*(-?\d+)\s*o\s*", text[end:])
                if outer is None:
                    self.literals.append(Swizzle(*map(int, swizzle.groups())))
                else:
                    end += outer.end()
                    colon = text.find(":", end)
                    end = _right_of(text, colon + 1) if colon >= 0 else _right_of(text, end)
                    self.literals.append(parse(text[start:end]))
            else:
                start, end = _left_of(text, colon), _right_of(text, colon + 1)
                self.literals.append(parse(text[start:end]))
            text = f"{text[:start]} _{len(self.literals) - 1} {text[end:]}"

    def value(self, node: ast.expr) -> Any:
        """Evaluate a node of the syntax tree. Raises _NotUnderstood for unsupported syntax."""
        if isinstance(node, ast.Constant) and (isinstance(node.value, int) or node.value is None):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.integer(node.operand)
        if isinstance(node, ast.Tuple):
            return tuple([self.value(element) for element in node.elts])
        if isinstance(node, ast.Name):
            return self.named(node.id)
        if isinstance(node, ast.Subscript):
            return self.called("", lambda whole, mode: whole[mode], node.value, [node.slice], "[{}]")
        if isinstance(node, ast.Call) and not node.keywords:
            return self.call(node)
        raise _NotUnderstood(f"{ast.unparse(node)} is not a layout, a coordinate or an operation on them.")

    def integer(self, node: ast.expr) -> int:
        """Evaluate the operand of a minus sign, which must be an integer."""
        value = self.value(node)
        if not isinstance(value, int):
            raise _NotUnderstood(f"-{ast.unparse(node)} is not a number.")
        return value

    def named(self, name: str) -> Any:
        """Return the value of an assigned name, or of a layout that `quoted` put aside."""
        if re.fullmatch(r"_\d+", name):
            return self.literals[int(name[1:])]
        if name not in self.names:
            raise _NotUnderstood(f"the name {name!r} is not defined. Write {name} = ... before.")
        return self.names[name]

    def call(self, node: ast.Call) -> Any:
        """Evaluate a call: an operation of the algebra, a constructor, or a layout at a coordinate."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("tv", "make_layout_tv"):
            return self.called(name, _held_by if name == "tv" else _made_tv, None, node.args)
        if name in OPERATIONS:
            return self.called(name, getattr(algebra, name), None, node.args)
        if name in ("F2", "E", "Layout", "Swizzle"):
            return self.called("", getattr(algebra, name), None, node.args, name + "({})")
        if name and name not in self.names and not re.fullmatch(r"_\d+", name):
            raise _NotUnderstood(f"there is no operation {name!r}. docs/explorer.md lists them.")
        return self.called("", _at, node.func, node.args, "({})")

    def called(
        self,
        name: str,
        function: Callable[..., Any],
        on: ast.expr | None,
        arguments: list[ast.expr],
        form: str = "",
    ) -> Any:
        """Evaluate the arguments, call `function`, append the operation to `self.calls`, and return the result.

        name      name of the operation; "" if `form` gives the text
        on        layout that is called or indexed, passed as the first argument; None for none
        form      format of the text if `name` is "", with {} for the arguments
        raises    LayoutError if the function fails, _NotUnderstood if there are too many operations
        """
        first = () if on is None else (self.value(on),)
        values = tuple([self.value(argument) for argument in arguments])
        listed = ", ".join(map(cute_text, values))
        text = f"{name}({listed})" if name else f"{cute_text(first[0]) if first else ''}{form.format(listed)}"
        if len(self.calls) >= _MOST_CALLS:
            raise _NotUnderstood(f"the expression has more than {_MOST_CALLS} operations.")
        record = partial(Call, text, name, (*first, *values))
        try:
            value = function(*first, *values)
        except CutegemmError as error:
            self.calls.append(record(error=str(error)))
            raise
        except (TypeError, AttributeError, IndexError, ValueError) as error:
            self.calls.append(record(error=f"{text}: wrong arguments. {error}"))
            raise LayoutError(str(error)) from None
        self.calls.append(record(value))
        return value


class _NotUnderstood(Exception):
    """A typed expression has syntax or names that the explorer does not evaluate."""


def _at(layout: Any, *coordinate: Any) -> Any:
    """Return a layout at a coordinate. Raises LayoutError if `layout` is not a layout or swizzle."""
    if not isinstance(layout, (Layout, ComposedLayout, Swizzle)):
        raise LayoutError(f"{cute_text(layout)} is not a layout, so it takes no coordinate.")
    return layout(*coordinate)


def _held_by(layout: Layout, tile: tuple[int, int]) -> HeldBy:
    """Return a thread-value layout over a tile. Raises LayoutError if the tile is not two positive extents."""
    if not (isinstance(tile, tuple) and len(tile) == 2 and all(isinstance(e, int) and e > 0 for e in tile)):
        raise LayoutError(f"tv: the tile {cute_text(tile)} is not two extents. Write a tile such as (8, 16).")
    return HeldBy(layout, (tile[0], tile[1]))


def _made_tv(threads: Layout, values: Layout) -> HeldBy:
    """Return the thread-value layout of `make_layout_tv` over its tile. A tile of one mode gets a second extent, 1."""
    tile, layout = make_layout_tv(threads, values)
    return _held_by(layout, tile if len(tile) == 2 else (tile[0], 1))


def _left_of(text: str, end: int) -> int:
    """Return the start of the shape that ends before `end`: of a number, or of a group in parentheses."""
    at = len(text[:end].rstrip()) - 1
    depth = 0
    while at >= 0:
        depth += (text[at] == ")") - (text[at] == "(")
        if depth < 0:
            return at + 1
        if depth == 0 and text[at] == "(":
            return at
        if depth == 0 and not (text[at].isalnum() or text[at] in "_)"):
            return at + 1
        at -= 1
    return 0


def _right_of(text: str, start: int) -> int:
    """Return the end of the strides that begin at `start`."""
    at, depth = start + len(text[start:]) - len(text[start:].lstrip()), 0
    while at < len(text):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth < 0 or (depth == 0 and not (text[at].isalnum() or text[at] in "_@-)")):
            return at
        at += 1
    return at
