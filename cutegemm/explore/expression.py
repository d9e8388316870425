"""What is typed of the algebra: CuTe's notation and the operations' own names, evaluated call by call.

    A = (6,2):(8,2)                           a name, for what follows
    composition(A, (4,3):(3,1))               operations, as `cutegemm` exports them
    S<3,3,3> o 0 o (64,64):(64,1)             a swizzled layout
    A(3, _)                                   a layout at a coordinate; _ keeps a mode
    tv(((8,4),(2,2)):((16,2),(8,1)), (8,16))  who holds what: a thread-value layout over a tile

Nothing else of Python is understood: a link may come from anybody.
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
_MOST_CALLS = 40
_SWIZZLE = re.compile(r"Sw?<\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(-?\d+)\s*>")


@dataclass(frozen=True)
class HeldBy:
    """A thread-value layout over a tile."""

    layout: Layout
    tile: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.layout} over {cute_text(self.tile)}"


@dataclass(frozen=True)
class Call:
    """One operation that was carried out.

    text    with its arguments as values
    name    of the operation; "" of what was typed as it is
    value   the result, or None where it was refused
    error   why
    target  the name that it was given
    """

    text: str
    name: str
    args: tuple[Any, ...]
    value: Any = None
    error: str = ""
    target: str = ""


def evaluated(text: str) -> list[Call]:
    """Every call of a text, the inner ones first, up to one that is refused; never raises CutegemmError.

    >>> [(call.name, str(call.value)) for call in evaluated("coalesce(zipped_divide(8:1, 4))")]
    [('zipped_divide', '(4,2):(1,4)'), ('coalesce', '8:1')]
    >>> evaluated("__import__('os')")[0].error
    "line 1: there is no operation '__import__'; docs/explorer.md lists them."
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
    """(number, statement) of each line that says something; one goes on while a parenthesis is open."""
    held, first = "", 1
    for number, raw in enumerate(text.replace(";", "\n").splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not held:
            first = number
        held = f"{held} {line}".strip()
        if held and held.count("(") <= held.count(")"):
            yield first, held
            held = ""
    if held:
        yield first, held


class _Evaluation:
    def __init__(self) -> None:
        self.names: dict[str, Any] = {"_": None, "None": None}
        self.calls: list[Call] = []
        self.literals: list[Any] = []

    def run(self, number: int, line: str) -> None:
        target, _, rest = re.fullmatch(r"(?:([A-Za-z]\w*)\s*(=)(?!=))?\s*(.*)", line).groups()  # type: ignore[union-attr]
        source = self.quoted(rest)
        try:
            tree = ast.parse(source.strip(), mode="eval").body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            raise LayoutError(
                f"line {number}: {rest!r} does not read. Write a layout such as (4,8):(8,1), or an operation "
                "such as composition((4,8):(8,1), 4:2)."
            ) from None
        before = len(self.calls)
        try:
            value = self.value(tree)
        except _NotUnderstood as what:
            raise LayoutError(f"line {number}: {what}") from None
        if len(self.calls) == before:
            if isinstance(value, (int, tuple)):  # a shape: the compact layout of it
                value = parse(rest)
            self.calls.append(Call(rest, "", (), value))
        if target:
            self.names[target] = value
            last = self.calls[-1]
            self.calls[-1] = Call(last.text, last.name, last.args, last.value, last.error, target)

    def quoted(self, text: str) -> str:
        """The text with each layout in CuTe's notation put aside, as `_0`, `_1`, ..."""
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
        if isinstance(node, ast.Constant) and (isinstance(node.value, int) or node.value is None):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.integer(node.operand)
        if isinstance(node, ast.Tuple):
            return tuple([self.value(each) for each in node.elts])
        if isinstance(node, ast.Name):
            return self.named(node.id)
        if isinstance(node, ast.Subscript):
            return self.called("", lambda whole, mode: whole[mode], node.value, [node.slice], "[{}]")
        if isinstance(node, ast.Call) and not node.keywords:
            return self.call(node)
        raise _NotUnderstood(f"{ast.unparse(node)} is no layout, no coordinate and no operation on them.")

    def integer(self, node: ast.expr) -> int:
        value = self.value(node)
        if not isinstance(value, int):
            raise _NotUnderstood(f"-{ast.unparse(node)} is no number.")
        return value

    def named(self, name: str) -> Any:
        if re.fullmatch(r"_\d+", name):
            return self.literals[int(name[1:])]
        if name not in self.names:
            raise _NotUnderstood(f"nothing is called {name!r} so far; write {name} = ... before.")
        return self.names[name]

    def call(self, node: ast.Call) -> Any:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("tv", "make_layout_tv"):
            return self.called(name, _held_by if name == "tv" else _made_tv, None, node.args)
        if name in OPERATIONS:
            return self.called(name, getattr(algebra, name), None, node.args)
        if name in ("F2", "E", "Layout", "Swizzle"):
            return self.called("", getattr(algebra, name), None, node.args, name + "({})")
        if name and name not in self.names and not re.fullmatch(r"_\d+", name):
            raise _NotUnderstood(f"there is no operation {name!r}; docs/explorer.md lists them.")
        return self.called("", _at, node.func, node.args, "({})")

    def called(
        self,
        name: str,
        function: Callable[..., Any],
        on: ast.expr | None,
        arguments: list[ast.expr],
        form: str = "",
    ) -> Any:
        """The value of a call, which is written down."""
        whole = () if on is None else (self.value(on),)
        given = tuple([self.value(each) for each in arguments])
        told = ", ".join(map(cute_text, given))
        text = f"{name}({told})" if name else f"{cute_text(whole[0]) if whole else ''}{form.format(told)}"
        if len(self.calls) >= _MOST_CALLS:
            raise _NotUnderstood(f"there are more than {_MOST_CALLS} operations.")
        write = partial(Call, text, name, (*whole, *given))
        try:
            value = function(*whole, *given)
        except CutegemmError as error:
            self.calls.append(write(error=str(error)))
            raise
        except (TypeError, AttributeError, IndexError, ValueError) as error:
            self.calls.append(write(error=f"{text}: these are not arguments of it. {error}"))
            raise LayoutError(str(error)) from None
        self.calls.append(write(value))
        return value


class _NotUnderstood(Exception):
    """What is typed is none of what the explorer reads."""


def _at(layout: Any, *coordinate: Any) -> Any:
    if not isinstance(layout, (Layout, ComposedLayout, Swizzle)):
        raise LayoutError(f"{cute_text(layout)} is no layout, and takes no coordinate.")
    return layout(*coordinate)


def _held_by(layout: Layout, tile: tuple[int, int]) -> HeldBy:
    if not (isinstance(tile, tuple) and len(tile) == 2 and all(isinstance(e, int) and e > 0 for e in tile)):
        raise LayoutError(f"tv: the tile {cute_text(tile)}; two extents such as (8, 16) are expected.")
    return HeldBy(layout, (tile[0], tile[1]))


def _made_tv(threads: Layout, values: Layout) -> HeldBy:
    tile, layout = make_layout_tv(threads, values)
    return _held_by(layout, tile if len(tile) == 2 else (tile[0], 1))


def _left_of(text: str, end: int) -> int:
    """Where the shape that ends before `end` begins: a number, or a group in parentheses."""
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
    """Where the strides that begin at `start` end."""
    at, depth = start + len(text[start:]) - len(text[start:].lstrip()), 0
    while at < len(text):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth < 0 or (depth == 0 and not (text[at].isalnum() or text[at] in "_@-)")):
            return at
        at += 1
    return at
