"""Pieces of the pages that are made from measurements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_NUMBER = re.compile(r"[-+]?[\d,.]*%?( \*\*!\*\*)?( \(.*\))?$|not yet counted$|exact$")


def recorded(benchmarks: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the files of these names hold, without .json: of those that are there and hold more than errors."""
    found = {}
    for name in names:
        file = benchmarks / f"{name}.json"
        if file.exists():
            held = json.loads(file.read_text())
            rows = held.get("rows")
            if not rows or held.get("steps") or any("error" not in row for row in rows):
                found[name] = held
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Rows of cells under a head; columns of numbers to the right.

    >>> print(table(("step", "ratio"), [("a", "1.0")]))
    | step | ratio |
    | --- | ---: |
    | a | 1.0 |
    """
    heads, cells = list(head), [list(row) for row in rows]
    rules = ["---:" if cells and all(_NUMBER.match(row[i]) for row in cells) else "---" for i in range(len(heads))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *cells))


def source(machine: Mapping[str, Any], name: str) -> str:
    """Where numbers come from: the machine, the versions, the date, the file."""
    return (
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, DSL "
        f"{machine['nvidia-cutlass-dsl']}, {machine['date']}: `{name}`."
    )


def picture(what: str, name: str) -> str:
    """Return a Markdown image of docs/plots, as a page in docs/measured refers to it."""
    return f"![{what}](../plots/{name}.svg)"
