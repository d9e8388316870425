"""Speed of the algebra: microseconds of each operation, and of the other libraries that are installed.

Every library gets the same arguments, in alternating order in one run; a number is the median of the repeats. The
result of each library is compared with ours, value by value. The constructor of pycute only stores its arguments; ours
also checks them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import io
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cutegemm.layout import Layout, parse
from docs.evidence.machine import cpu

REPEATS = 9
SECONDS_A_REPEAT = 0.002
TABLE_SHAPE = "((32,8),(16,16)):((8,256),(1,2048))"


@dataclass(frozen=True)
class Library:
    """A module with the operations of the algebra.

    package   distribution whose version is reported
    names     name of an operation in this library, if it differs from ours
    """

    module: str
    package: str
    names: dict[str, str] = field(default_factory=dict)

    def is_installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def version(self) -> str:
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return "unknown"

    def value(self, argument: Any) -> Any:
        """Return an argument as a value of this library; a text is parsed as a layout."""
        if isinstance(argument, str):
            layout = parse(argument)
            assert isinstance(layout, Layout)
            return importlib.import_module(self.module).Layout(layout.shape, layout.stride)
        return tuple(map(self.value, argument)) if isinstance(argument, tuple) else argument

    def call(self, operation: str, arguments: tuple[Any, ...]) -> Callable[[], Any] | None:
        """Return a call of the operation with converted arguments, or None if the library lacks it."""
        values = [self.value(a) for a in arguments]
        if operation == "evaluate":
            layout, coord = values
            return lambda: layout(*coord)
        module = importlib.import_module(self.module)
        function = getattr(module, self.names.get(operation, operation), None)
        return None if function is None else lambda: function(*values)


OURS = Library("cutegemm.layout", "cutegemm")
PEERS = (
    Library("pycute", "nvidia-cutlass"),
    Library("tensor_layouts", "tensor-layouts", {"composition": "compose"}),
)

# (operation, arguments); coordinates and shapes are tuples, layouts are texts.
ROWS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("Layout", ((4, (2, 3)), (6, (1, 2)))),
    ("evaluate", ("((4,8),(2,3)):((6,24),(1,2))", ((3, 5), (1, 2)))),
    ("evaluate", ("((4,8),(2,3)):((6,24),(1,2))", (101,))),
    ("size", ("((4,8),(2,3)):((6,24),(1,2))",)),
    ("cosize", ("((4,8),(2,3)):((6,24),(1,2))",)),
    ("idx2crd", (101, ((4, 8), (2, 3)))),
    ("slice_and_offset", ((None, (1, None)), "((4,8),(2,3)):((6,24),(1,2))")),
    ("coalesce", ("((2,4),(2,3)):((1,2),(8,16))",)),
    ("coalesce", ("((2,4),(8,2)):((1,4),(32,2))",)),
    ("composition", ("(4,8):(8,1)", "(2,2):(1,4)")),
    ("composition", ("((4,2),(4,8)):((1,128),(4,16))", "((2,2),(4,4)):((1,4),(8,32))")),
    ("composition", ("((8,16),(64,4)):((64,512),(1,8192))", "((4,8),(8,4)):((2,128),(16,2048))")),
    ("composition", ("(128,64):(64,1)", ("8:4", "(4,2):(1,8)"))),
    ("complement", ("((2,2),2):((1,8),32)", 256)),
    ("right_inverse", ("((4,2),(4,8)):((1,128),(4,16))",)),
    ("left_inverse", ("((4,2),(4,8)):((1,128),(4,16))",)),
    ("logical_divide", ("(128,64):(64,1)", (32, 16))),
    ("logical_divide", ("((4,2),(4,8)):((1,128),(4,16))", "(4,4):(1,8)")),
    ("zipped_divide", ("(128,64):(64,1)", (32, 16))),
    ("tiled_divide", ("(128,64):(64,1)", (32, 16))),
    ("logical_product", ("(8,8):(8,1)", "(4,2):(2,1)")),
    ("zipped_product", ("(8,8):(8,1)", "(4,2):(2,1)")),
    ("blocked_product", ("(8,8):(8,1)", "(4,2):(2,1)")),
    ("raked_product", ("(8,8):(8,1)", "(4,2):(2,1)")),
    ("max_common_vector", ("(64,32):(1,64)", "(64,32):(1,80)")),
)


def run() -> dict[str, Any]:
    """Measure every operation.

    returns   machine, python, numpy, date; versions: version of each installed library; rows: operation, arguments,
              us (microseconds by library, None if it lacks the operation), agrees (whether the library's result equals
              ours); offsets: time of a whole offset table, and of each coordinate by itself
    """
    libraries = [OURS, *[peer for peer in PEERS if peer.is_installed()]]
    return {
        **cpu(),
        "versions": {library.module: library.version() for library in libraries},
        "rows": [_row(libraries, operation, arguments) for operation, arguments in ROWS],
        "offsets": _offsets(),
    }


def _row(libraries: list[Library], operation: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    calls = {library.module: library.call(operation, arguments) for library in libraries}
    answers = {name: _answer(call) for name, call in calls.items() if call is not None}
    ours = answers[OURS.module]
    present = {name: call for name, call in calls.items() if call is not None and answers[name] != "raises"}
    us = _median_us(present)
    return {
        "operation": operation,
        "arguments": [str(a).replace(" ", "") for a in arguments],
        "us": {name: us.get(name) for name in calls},
        "agrees": {name: answer == ours for name, answer in answers.items() if name != OURS.module},
    }


def _answer(call: Callable[[], Any]) -> Any:
    try:
        return _plain(call())
    except Exception:
        return "raises"


def _plain(value: Any) -> Any:
    """Return a layout of any library as its extents and its offset table, and any other result unchanged."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if not hasattr(value, "shape"):
        return value
    layout = Layout(value.shape, value.stride)
    return [layout[m].size() for m in range(len(layout))], layout.offsets().tolist()


def _median_us(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    counts = {name: _count_for(call) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            seconds[name].append(_time(call, counts[name]) / counts[name])
    return {name: 1e6 * statistics.median(times) for name, times in seconds.items()}


def _count_for(call: Callable[[], Any]) -> int:
    """Return how many calls take about SECONDS_A_REPEAT."""
    count = 1
    while (took := _time(call, count)) < SECONDS_A_REPEAT / 4:
        count *= 4
    return max(1, int(count * SECONDS_A_REPEAT / took))


def _time(call: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def _offsets() -> dict[str, Any]:
    layout = parse(TABLE_SHAPE)
    coordinates = range(layout.size())
    us = _median_us(
        {
            "offsets()": layout.offsets,
            "each": lambda: [layout(i) for i in coordinates],
        }
    )
    return {
        "layout": TABLE_SHAPE,
        "elements": layout.size(),
        "us": us["offsets()"],
        "us_each_coordinate": us["each"],
        "ratio": us["each"] / us["offsets()"],
    }


def table(result: dict[str, Any]) -> str:
    """Return the result of `run` as text: one row per operation, the fastest time in bold."""
    from rich.console import Console
    from rich.table import Table

    names = list(result["versions"])
    grid = Table(title="microseconds an operation, median", title_justify="left")
    grid.add_column("operation")
    grid.add_column("arguments", overflow="fold", max_width=56)
    for name in names:
        grid.add_column(f"{name.split('.')[0]}\n{result['versions'][name]}", justify="right")
    for row in result["rows"]:
        best = min(us for us in row["us"].values() if us is not None)
        cells = [_cell(row["us"][name], best, row["agrees"].get(name, True)) for name in names]
        grid.add_row(row["operation"], " ".join(row["arguments"]), *cells)
    offsets = result["offsets"]
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    console.print(grid)
    console.print(f"[!] where the answer is another than ours. {result['machine']}", markup=False)
    console.print(f"Python {result['python']}, numpy {result['numpy']}, {result['date']}", highlight=False)
    console.print(
        f"offsets() of {offsets['elements']} elements: {offsets['us']:.0f} us, "
        f"{offsets['ratio']:.0f} times as fast as each coordinate by itself"
    )
    return console.file.getvalue()  # type: ignore[attr-defined]


def _cell(us: float | None, best: float, agrees: bool) -> str:
    if us is None:
        return "-"
    mark = "" if agrees else " [!]"
    return f"[bold]{us:.2f}[/bold]{mark}" if us == best else f"{us:.2f}{mark}"
