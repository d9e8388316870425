"""Building blocks of the measured pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from docs.evidence.files import read_record
from docs.evidence.rows import with_rates

_NUMBER = re.compile(r"[-+]?[\d,.]*%?( \*\*!\*\*)?( \(.*\))?$|not yet counted$|exact$")


def recorded(benchmarks: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the content of the files of these names, without .json, that exist and have more than errors."""
    found = {}
    for name in names:
        file = benchmarks / f"{name}.json"
        if file.exists():
            held = read_record(file)
            rows = held.get("rows")
            if not rows or held.get("steps") or any("error" not in row for row in rows):
                found[name] = held | ({"rows": [*map(with_rates, rows)]} if rows else {})
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table; columns of numbers are aligned to the right.

    >>> print(table(("step", "ratio"), [("a", "1.0")]))
    | step | ratio |
    | --- | ---: |
    | a | 1.0 |
    """
    heads, cells = list(head), [list(row) for row in rows]
    rules = ["---:" if cells and all(_NUMBER.match(row[i]) for row in cells) else "---" for i in range(len(heads))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rules, *cells))


def source(machine: Mapping[str, Any], name: str) -> str:
    """Return a sentence with the machine, the versions, the date and the file of a measurement."""
    return (
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, DSL "
        f"{machine['nvidia-cutlass-dsl']}, {machine['date']}: `{name}`."
    )


def picture(what: str, name: str) -> str:
    """Return a Markdown image of docs/plots, as a page in docs/measured refers to it."""
    return f"![{what}](../plots/{name}.svg)"
