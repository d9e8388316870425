"""Pieces of the pages that are made from measurements."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def recorded(benchmarks: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What the files of these names hold, without .json; those are left out that are not there or have no times."""
    found = {}
    for name in names:
        file = benchmarks / f"{name}.json"
        if file.exists():
            held = json.loads(file.read_text())
            if "rows" not in held or not held["rows"] or any("error" not in row for row in held["rows"]):
                found[name] = held
    return found


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Rows of cells under a head.

    >>> print(table(("step", "ratio"), [("a", "1.0")]))
    | step | ratio |
    | --- | --- |
    | a | 1.0 |
    """
    heads = list(head)
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)


def source(machine: Mapping[str, Any], name: str) -> str:
    """Where numbers come from: the machine, the versions, the date, the file."""
    return (
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, DSL "
        f"{machine['nvidia-cutlass-dsl']}, {machine['date']}: `{name}`."
    )


def shape(row: Mapping[str, Any]) -> str:
    """M×N×K, and the batch where there is one.

    >>> shape({"m": 4, "n": 5, "k": 6, "l": 2})
    '4×5×6×2'
    """
    batch = f"×{row['l']}" if row.get("l", 1) != 1 else ""
    return f"{row['m']}×{row['n']}×{row['k']}{batch}"


def picture(what: str, name: str) -> str:
    """A picture of the folder `plots`."""
    return f"![{what}](plots/{name}.svg)"
