"""Predicted and counted values of the plans of a page, from docs/evidence/data/analysis_*.json."""

from __future__ import annotations

from pathlib import Path

from cutegemm.profile.compare import Comparison
from docs.evidence.counters.cases import GROUPS
from docs.evidence.counters.recorded import Evidence, replay
from docs.evidence.pages.markdown import table

_GROUPS = ("hopper", "traffic")
_MILLION = 1e6
# (name in `profile.compare`, title, digits); counts are in millions
_COUNTERS = (
    ("shared store conflicts", "conflicts of storing D, millions", 2),
    ("sectors read into L1", "sectors into L1, millions", 1),
    ("L2 read sectors from another partition", "sectors from the far L2, millions", 1),
    ("DRAM bytes read", "DRAM read, MB", 0),
)


def counters(benchmarks: Path, begin: str) -> list[str]:
    """Return a section with the counters of the cases whose names start with `begin`; nothing without one."""
    rows = []
    for group in _GROUPS:
        file = benchmarks / f"analysis_{group}.json"
        if file.exists():
            evidence = Evidence.load(file)
            compared = replay(evidence, GROUPS[group]())[0]
            rows += [_row(c, evidence.cases[c.case].what) for c in compared if c.case.startswith(begin)]
    if not rows:
        return []
    return [
        "## Predicted / counted",
        "By `analysis` / by ncu. Conflicts are bank conflicts of stmatrix as the store pipe counts them, with "
        "its waits for TMA. [All counters](counters.md).",
        table(("plan", "what", *[title for _, title, _ in _COUNTERS]), rows),
    ]


def _row(compared: Comparison, what: str) -> list[str]:
    by_name = {row.name: row for row in compared.rows}
    cells = []
    for name, _, digits in _COUNTERS:
        both = (by_name[name].predicted, by_name[name].measured)
        cells.append(" / ".join(["-" if value is None else f"{value / _MILLION:,.{digits}f}" for value in both]))
    return [f"`{compared.case}`", what, *cells]
