"""Evaluate a typed expression of the layout algebra, and record each operation.

    A = (6,2):(8,2)                           assign a layout to a name
    composition(A, (4,3):(3,1))               call an operation that `cutegemm` exports
    S<3,3,3> o 0 o (64,64):(64,1)             a swizzled layout
    make_layout((4,8), stride=(8,1))          C++ CuTe and its DSL
    A(3, _)                                   a layout at a coordinate; _ keeps the mode
    tv(((8,4),(2,2)):((16,2),(8,1)), (8,16))  a thread-value layout over a tile

No other Python is evaluated, because anyone can write a link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.errors import CutegemmError, LayoutError
from cutegemm.layout import Layout
from cutegemm.layout.layout import cute_text
from cutegemm.parse.layout import CONSTANTS, Reader, call_checked, mode_of, statements
from cutegemm.tile.tv import make_layout_tv

_MOST_CALLS = 40  # limit of the operations of an expression


@dataclass(frozen=True)
class HeldBy:
    """A thread-value layout together with its tile, so that a picture can show which thread holds each element.

    It is the value of `tv(layout, tile)` in a layout expression that a user types into the explorer.

    layout   maps (thread, value) to the column-major index of the element in the tile
    tile     extents (M, N) of the tile
    """

    layout: Layout
    tile: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.layout} over {cute_text(self.tile)}"


@dataclass(frozen=True)
class Call:
    """Records one evaluated operation of a layout expression that a user typed, such as a composition.

    text     the operation with its arguments as values, such as "composition(8:1, 4:2)"
    name     name of the operation; "" for a layout that was typed, or that was called with a coordinate
    args     values of the arguments: layouts, shapes or integers
    value    the result; None if the operation failed
    error    message of the error; "" if it succeeded
    target   name that the result was assigned to; "" for none
    """

    text: str
    name: str
    args: tuple[Any, ...]
    value: Any = None
    error: str = ""
    target: str = ""


def evaluated(text: str) -> list[Call]:
    """Evaluate a typed layout expression; return its operations with their results, inner ones first.

    The list ends at the first operation that fails: its error is in `Call.error`, and nothing is raised.

    text   statements such as "A = zipped_divide(8:1, 4)"; "#" begins a comment and ";" ends a statement

    >>> [(call.name, str(call.value)) for call in evaluated("coalesce(zipped_divide(8:1, 4))")]
    [('zipped_divide', '(4,2):(1,4)'), ('coalesce', '8:1')]
    >>> print(evaluated("__import__('os')")[0].error.splitlines()[0])
    line 1: '__import__' is not a known name. Write __import__ = ... before, or use an operation of docs/explorer.md.
    """
    evaluation = _Evaluation()
    try:
        for number, statement in statements(text):
            evaluation.run(number, statement)
    except CutegemmError as error:
        if not (evaluation.calls and evaluation.calls[-1].error):
            evaluation.calls.append(Call("", "", (), error=str(error)))
    return evaluation.calls


class _Evaluation:
    """Evaluates the statements of a typed layout expression one by one, and records their operations.

    names   values by name: constants, and what the expression has assigned so far
    calls   operations in the order of their evaluation
    """

    def __init__(self) -> None:
        self.names: dict[str, Any] = dict(CONSTANTS)
        self.calls: list[Call] = []

    def run(self, number: int, statement: str) -> None:
        """Evaluate one statement of a layout expression, and append its operations to `self.calls`.

        number      line number, for error messages
        statement   text of the statement
        raises      LayoutError if it cannot be parsed or an operation fails
        """
        before = len(self.calls)
        reader = Reader(statement, self.names, self.record, _OPERATIONS, f"line {number}")
        value = reader.statement()
        if len(self.calls) == before:
            self.calls.append(Call(statement[reader.start :].strip(), "", (), value))
        if reader.target:
            self.calls[-1] = replace(self.calls[-1], target=reader.target)

    def record(self, name: str, function: Callable[..., Any], values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call an operation of a layout expression, record it in `self.calls` with its result, and return the result.

        name       name of the operation; "" for a layout with a coordinate or the index of a mode
        function   Python function that computes the operation
        values     positional arguments
        named      keyword arguments
        raises     LayoutError if the function fails, or if there are too many operations
        """
        texts = [*map(cute_text, values), *(f"{key}={cute_text(value)}" for key, value in named.items())]
        text = f"{name}({', '.join(texts)})"
        if not name:
            listed = ", ".join(texts[1:])
            text = f"{texts[0]}[{listed}]" if function is mode_of else f"{texts[0]}({listed})"
        if len(self.calls) >= _MOST_CALLS:
            raise LayoutError(f"the expression has more than {_MOST_CALLS} operations.")
        call = Call(text, name, (*values, *named.values()))
        try:
            value = call_checked(name or text, function, values, named)
        except CutegemmError as error:
            self.calls.append(replace(call, error=str(error)))
            raise
        except (TypeError, AttributeError, IndexError, ValueError) as error:
            self.calls.append(replace(call, error=f"{text}: wrong arguments. {error}"))
            raise LayoutError(str(error)) from None
        self.calls.append(replace(call, value=value))
        return value


def _held_by(layout: Layout, tile: tuple[int, int]) -> HeldBy:
    """Combine a thread-value layout with the extents of its tile, so that a picture of the tile can be drawn.

    It computes `tv(layout, tile)` in an expression that a user types.

    layout   maps (thread, value) to the column-major index of an element in the tile
    tile     extents (M, N) of the tile
    raises   LayoutError if the tile is not two positive extents
    """
    if not (isinstance(tile, tuple) and len(tile) == 2 and all(isinstance(e, int) and e > 0 for e in tile)):
        raise LayoutError(f"tv: the tile {cute_text(tile)} is not two extents. Write a tile such as (8, 16).")
    return HeldBy(layout, (tile[0], tile[1]))


def _made_tv(threads: Layout, values: Layout) -> HeldBy:
    """Return the thread-value layout that CuTe's `make_layout_tv(threads, values)` builds, together with its tile.

    threads   layout of the threads over the tile
    values    layout of the values of one thread
    returns   the layout and its tile (M, N); a tile of one mode gets a second extent, 1
    """
    tile, layout = make_layout_tv(threads, values)
    return _held_by(layout, tile if len(tile) == 2 else (tile[0], 1))


_OPERATIONS: Mapping[str, Callable[..., Any]] = {"tv": _held_by, "make_layout_tv": _made_tv}
