"""HTML for objects that a notebook shows as text: expressions, programs and simulation results."""

from __future__ import annotations

from html import escape
from typing import Any

from cutegemm.errors import CutegemmError
from cutegemm.layout import hooks
from cutegemm.plan.epilogue import Epilogue, Expression, Input, operations
from cutegemm.simulator import SimulationResult

_KINDS = {
    "Scalar": "scalar",
    "Row": "row of N",
    "Column": "column of M",
    "Tile": "tile",
    "Element": "one element",
}


def described(thing: Any) -> str | None:
    """Return the HTML that a Jupyter notebook shows for an epilogue, a program or a simulation's result.

    Objects of these types are shown as formatted text, not as a drawing. For other objects the result is None.

    thing   any object; an Expression, Epilogue, Program, ThreadSchedule or SimulationResult has such HTML

    >>> from cutegemm.plan.epilogue import parse_epilogue
    >>> print(described(parse_epilogue("relu(acc)")))
    <pre><b>relu(acc)</b>
    of an element: 1 FP32 instruction, 0 of the special-function unit</pre>
    """
    if isinstance(thing, (Expression, Epilogue)):
        return _expression(thing)
    if isinstance(thing, hooks.Listing):
        return _program(str(thing))
    return _simulated(thing) if isinstance(thing, SimulationResult) else None


def _expression(thing: Expression | Epilogue) -> str:
    """Return the HTML of an epilogue expression: its text, its operands, and its instructions per element of D.

    The instructions are left out for an expression that a kernel cannot use.
    """
    lines = [f"<b>{escape(str(thing))}</b>"]
    parts = [thing] if isinstance(thing, Expression) else [result for _, result in thing.results]
    operands = {node.name: node for part in parts for node in part.nodes() if isinstance(node, Input)}
    lines += [f"{escape(name)}: {_KINDS[type(node).__name__]}" for name, node in operands.items()]
    try:
        cost = operations(thing if isinstance(thing, Epilogue) else Epilogue(thing))
    except CutegemmError:  # an expression without an accumulator
        return _lines(lines)
    counted = f"{cost.fp32} FP32 instruction{'' if cost.fp32 == 1 else 's'}"
    return _lines([*lines, f"of an element: {counted}, {cost.special} of the special-function unit"])


def _program(text: str) -> str:
    """Return the HTML of a warp role's program: its text with the first word of each line, the operation, in bold."""
    lines = []
    for line in text.splitlines():
        body = line.lstrip()
        verb, space, rest = body.partition(" ")
        lines.append(f"{' ' * (len(line) - len(body))}<b>{escape(verb)}</b>{space}{escape(rest)}")
    return _lines(lines)


def _simulated(result: SimulationResult) -> str:
    """Return the HTML of a simulation's result: the output arrays, statistics and faults."""
    stats, arrays = result.stats, {"D": result.d, **result.aux}
    lines = [
        f"<b>{escape(name)}</b> {' x '.join(map(str, array.shape))} {array.dtype}" for name, array in arrays.items()
    ]
    lines.append(f"{stats.ctas} CTAs, {stats.k_tiles} k-tiles each, in {stats.seconds:.2f} s")
    return _lines([*lines, *([escape(str(fault)) for fault in result.faults] or ["no fault in any access"])])


def _lines(lines: list[str]) -> str:
    """Return lines of HTML, joined, as one preformatted (`<pre>`) element."""
    return "<pre>" + "\n".join(lines) + "</pre>"
