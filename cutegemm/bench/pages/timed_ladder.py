"""Pages of ladders whose steps `bench.gemm` timed: what each step changes, its speed, and the counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from cutegemm.bench.gemm import SUITES
from cutegemm.bench.pages import charts
from cutegemm.bench.pages.markdown import picture, recorded, shape, source, table
from cutegemm.plan.catalog import plans
from cutegemm.profile.cases import GROUPS
from cutegemm.profile.compare import Comparison
from cutegemm.profile.evidence import Evidence, replay

CHOSEN = "chosen by `gemm`"
_CASES = "sm90_"
_MILLION = 1e6
# What is shown of each Hopper plan: by the name in `profile.compare`, in millions, with so many digits.
_COUNTERS = (
    ("shared store conflicts", "conflicts of storing D, millions", 2),
    ("sectors read into L1", "sectors into L1, millions", 1),
    ("L2 read sectors from another partition", "sectors from the far L2, millions", 1),
    ("DRAM bytes read", "DRAM read, MB", 0),
)


@dataclass(frozen=True)
class TimedLadder:
    """A page.

    name     of the page
    about    page of the family, without .md
    files    label -> name of a file of measurements, without .json
    counters whether the Hopper plans that counters were read of belong to it
    """

    name: str
    about: str
    title: str
    says: str
    files: Mapping[str, str]
    counters: bool = False


LADDERS = (
    TimedLadder(
        "ladder_hopper",
        "hopper",
        "The Hopper ladder: wgmma and TMA",
        "Each step is one change to the one before it; the later ones are what `gemm` chooses among.",
        {"bf16": "hopper_ladder"},
        counters=True,
    ),
    TimedLadder(
        "ladder_mma_sync",
        "mma_sync",
        "The mma.sync ladder",
        "Ratios are to cuBLAS, which multiplies by wgmma on this GPU; mma.sync cannot reach it.",
        {"tf32": "mma_ladder_tf32", "bf16": "mma_ladder_bf16"},
    ),
)


def pages(benchmarks: Path) -> dict[str, str]:
    """Text by file name, of the pages whose measurements are there and of their plots."""
    made = {}
    for ladder in LADDERS:
        files = recorded(benchmarks, ladder.files.values())
        found = {label: files[name] for label, name in ladder.files.items() if name in files}
        if found:
            made[f"{ladder.name}.md"] = _page(ladder, found, benchmarks)
            made[f"plots/{ladder.name}.svg"] = _plot(ladder, found)
    return made


class _Timed:
    """The times of one file.

    by_step   by step, then by shape
    suites    the shapes of each suite that were timed; of two suites the first one has what both have
    """

    def __init__(self, label: str, rows: Iterable[Mapping[str, Any]]) -> None:
        self.label = label
        self.by_step: dict[str, dict[str, Mapping[str, Any]]] = {}
        for row in rows:
            if "ratio" in row:
                step = CHOSEN if row["plan"].endswith("(chosen)") else row["plan"]
                self.by_step.setdefault(step, {})[shape(row)] = row
        left = list(dict.fromkeys(at for timed in self.by_step.values() for at in timed))
        self.suites: dict[str, list[str]] = {}
        for name, suite in SUITES.items():
            found = [at for at in (shape({"m": m, "n": n, "k": k}) for m, n, k in suite) if at in left]
            if found:
                self.suites[name] = found
                left = [at for at in left if at not in found]

    def mean(self, step: str, suite: str) -> float | None:
        """The geometric mean of a step's ratios over a suite, where it ran on all of it."""
        timed, wanted = self.by_step.get(step, {}), self.suites.get(suite, [])
        return (
            geometric_mean([timed[s]["ratio"] for s in wanted]) if all(s in timed for s in wanted) else None
        )

    def cell(self, step: str, at: str) -> str:
        row = self.by_step.get(step, {}).get(at)
        return "" if row is None else f"{row['tflops']:.1f} ({row['ratio']:.3f})"


def _timed(found: Mapping[str, Mapping[str, Any]]) -> list[_Timed]:
    return [_Timed(label, data["rows"]) for label, data in found.items()]


def _steps(timed: Sequence[_Timed]) -> list[str]:
    """In the order in which they were named; what was chosen comes last."""
    names = dict.fromkeys(step for one in timed for step in one.by_step)
    return [*(name for name in names if name != CHOSEN), *([CHOSEN] if CHOSEN in names else [])]


def _series(timed: Sequence[_Timed]) -> list[tuple[str, _Timed, str]]:
    return [
        (f"{one.label}, {suite}" if len(one.suites) > 1 else one.label, one, suite)
        for one in timed
        for suite in one.suites
    ]


def _page(ladder: TimedLadder, found: Mapping[str, Mapping[str, Any]], benchmarks: Path) -> str:
    timed, what = _timed(found), dict(plans())
    steps = _steps(timed)
    parts = [f"# {ladder.title}", ladder.says]
    parts += [
        f"{label}: {source(data['machine'], f'{ladder.files[label]}.json')}" for label, data in found.items()
    ]
    parts += [
        "Made by `cutegemm bench evidence` and `cutegemm bench report`. "
        f"[What the words mean]({ladder.about}.md), [all speeds](speed.md).",
        picture("Ratio to cuBLAS of each step", ladder.name),
        "## What each step changes",
        table(
            ("step", "change", *[f"mean ratio: {label}" for label, _, _ in _series(timed)]),
            [
                (
                    _code(step),
                    what.get(step, ""),
                    *[_ratio(one.mean(step, s)) for _, one, s in _series(timed)],
                )
                for step in steps
            ],
        ),
    ]
    for label, one, suite in _series(timed):
        shapes = one.suites[suite]
        parts += [
            f"## TFLOP/s (ratio to cuBLAS): {label}",
            table(
                ("step", *shapes),
                [
                    ("cuBLAS", *[_library(one, at) for at in shapes]),
                    *[(_code(step), *[one.cell(step, at) for at in shapes]) for step in steps],
                ],
            ),
        ]
    if ladder.counters:
        parts += _counted(benchmarks)
    return "\n\n".join(parts) + "\n"


def _code(step: str) -> str:
    return step if step == CHOSEN else f"`{step}`"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _library(one: _Timed, at: str) -> str:
    row = next(timed[at] for timed in one.by_step.values() if at in timed)
    return f"{row['library_tflops']:.1f}"


def _counted(benchmarks: Path) -> list[str]:
    """What was predicted and counted of the Hopper plans."""
    rows = []
    for group in ("hopper", "traffic"):
        recorded = benchmarks / f"analysis_{group}.json"
        if recorded.exists():
            evidence = Evidence.load(recorded)
            compared = replay(evidence, GROUPS[group]())[0]
            rows += [_counters(c, evidence.cases[c.case].what) for c in compared if c.case.startswith(_CASES)]
    if not rows:
        return []
    return [
        "## Predicted / counted",
        "By `analysis` / by ncu. Conflicts are bank conflicts of stmatrix as the store pipe counts them, with "
        "its waits for TMA. [All counters](analysis.md).",
        table(("plan", "what", *[title for _, title, _ in _COUNTERS]), rows),
    ]


def _counters(compared: Comparison, what: str) -> list[str]:
    by_name = {row.name: row for row in compared.rows}
    cells = []
    for name, _, digits in _COUNTERS:
        both = (by_name[name].predicted, by_name[name].measured)
        cells.append(
            " / ".join(["-" if value is None else f"{value / _MILLION:,.{digits}f}" for value in both])
        )
    return [f"`{compared.case}`", what, *cells]


def _plot(ladder: TimedLadder, found: Mapping[str, Mapping[str, Any]]) -> str:
    timed = _timed(found)
    steps = _steps(timed)
    series = {label: [one.mean(step, suite) for step in steps] for label, one, suite in _series(timed)}
    names = [step.replace("`", "") for step in steps]
    notes = [", ".join(_ratio(values[i]) for values in series.values()) for i in range(len(steps))]
    title = f"{ladder.title}: ratio to cuBLAS, geometric means"
    return charts.bars(title, names, series, {"cuBLAS": 1.0}, notes=notes)
