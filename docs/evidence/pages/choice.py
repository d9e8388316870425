"""docs/measured/choice.md: the choice on random problems, made from docs/evidence/data/choice_*.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.evidence.choice import by_default, distribution, where_of, with_tuner
from docs.evidence.pages.markdown import recorded, source, table

_FILES = ("choice_h200", "choice_h100")
_CLASSES = ("choice_classes_h200", "choice_classes_h100")
_LOSERS = 30
_TEXT = """# The choice, measured

[How `gemm` chooses a plan](../choice.md) explains the model of time. This page measures it on problems that had no
part in its fit when they were timed. A ratio is the time of cuBLAS, called through torch, divided by the time of
`gemm` with default arguments: above 1, `gemm` is faster.

The problems are random. Extents are uniform in their logarithm from 16 to 16384: multiples of 16 in two thirds of
the problems, any numbers in the others. All four layouts occur. The types have the proportion 8 bf16 : 3 f16 : 3
e4m3 (layout nt, half of them with fast accumulation on both sides) : 3 tf32 : 3 f32. Both sides multiply the same
normally distributed matrices in alternating order, each call after a flush of L2, and D is compared with the D of
cuBLAS.

    python -m docs.evidence choice --seed 155 --count 300 --seconds 0.05 --tune-below 0.97 --json choice_h100.json

- Each round runs all plans in one order and then in its reverse, because a kernel of 5 µs takes up to 1 µs more or
  less when it is the first after an idle time. A problem is timed again if the medians of the first and the last
  rounds differ.
- The machine has one GPU. On a machine with several GPUs the smallest kernels of both sides take 2 µs longer.
- `--tune-below 0.97` also times the plans of [the tuner](../tuning.md) if the ratio is below 0.97. Of the 1,200
  problems of seeds 152 to 155, 58 have a ratio below 0.97 with the default plan, and 15 with the tuner.
- 0.05 seconds are few for a kernel of several milliseconds: the clock of the chip is not yet steady then.

## What the choice loses

The loss is the time of the chosen plan over the time of the fastest plan that was timed with it, minus 1. These
problems are part of the fit.

| problems | number | mean loss | lose more than 8% |
| --- | ---: | ---: | ---: |
| wgmma | 2,178 | 1.65% | 3.2% |
| f32 by SIMT | 816 | 1.1% | 2.3% |
| mma.sync | 531 | 1.5% | 5.5% |

60 linear layers of public models have no part in the fit: geometric mean 1.083 of cuBLAS, minimum 0.917; 1.129 for
nt (forward), 1.025 for nn (gradient of the input), 1.073 for tn (gradient of the weight). No layer loses more than
7% (one H100, 2026-11-26, seed 3107).

A larger model would gain little. Boosted trees that know all that the model knows, and its prediction, lose 1.43%
on 1,911 problems that they had not seen, where the model loses 1.70%."""


def pages(benchmarks: Path) -> dict[str, str]:
    """Return the text of the page by its path below `docs`; nothing without measurements."""
    found = recorded(benchmarks, [*_FILES, *_CLASSES])
    parts = [_TEXT]
    for name in _FILES:
        if name in found:
            parts += _drawn(name, found[name])
    for name in _CLASSES:
        if name in found:
            parts += _classes(name, found[name])
    return {"measured/choice.md": "\n".join(parts)} if len(parts) > 1 else {}


def _drawn(name: str, found: Mapping[str, Any]) -> list[str]:
    rows = by_default(found["rows"])
    machine, tuned = found["machine"], with_tuner(found["rows"])
    failed = [row for row in found["rows"] if "error" in row]
    said = f"{len(rows)} problems of seed {found['seed']}; {len(failed)} others failed. {found.get('note', '')}".strip()
    has_tuned = any(row.get("tuner") for row in found["rows"])
    heads, by_type = ["problem", "chosen", "µs", "ratio"], _by_type(rows)
    worst = [[_problem(row), f"`{row['plan']}`", f"{row['us']:.1f}", f"{row['ratio']:.3f}"] for row in rows[:_LOSERS]]
    if has_tuned:
        heads.append("tuned")
        worst = [[*cells, f"{tuned[where_of(row)]:.3f}"] for cells, row in zip(worst, rows, strict=False)]
        by_type.append(["all, tuned", *_distribution(sorted(tuned.values()))])
    return [
        f"\n## {machine['gpu']}, seed {found['seed']}: lowest ratios\n",
        table(heads, worst),
        f"\n### {machine['gpu']}, seed {found['seed']}: all\n",
        table(("type", "problems", "geometric mean", "10th percentile", "minimum"), by_type),
        f"\n{said} {source(machine, f'{name}.json')}\n",
    ]


def _by_type(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    made = []
    for kind in [*sorted({row["dtype"] for row in rows}), "all"]:
        made.append([kind, *_distribution([row["ratio"] for row in rows if kind in ("all", row["dtype"])])])
    return made


def _distribution(ratios: Sequence[float]) -> list[str]:
    """Return the result of `distribution` as cells of a table."""
    count, *numbers = distribution(ratios)
    return [str(count), *[f"{number:.3f}" for number in numbers]]


def _classes(name: str, found: Mapping[str, Any]) -> list[str]:
    tuned = with_tuner(found["rows"])
    rows = sorted(
        (row for row in found["rows"] if "ratio" in row and not row.get("tuner")),
        key=lambda row: row["ratio"],
    )
    cells = [
        [
            _problem(row),
            f"`{row['plan']}`",
            f"{row['tflops']:.0f}",
            f"{row['ratio']:.3f}",
            f"{tuned[where_of(row)]:.3f}",
        ]
        for row in rows
    ]
    said = f"{found.get('note', '')} {source(found['machine'], f'{name}.json')}".strip()
    return [
        f"\n## {found['machine']['gpu']}: common sizes\n",
        table(("problem", "chosen", "TFLOP/s", "ratio", "tuned"), cells),
        f"\n{said}\n",
    ]


def _problem(row: Mapping[str, Any]) -> str:
    return f"{row['m']}×{row['n']}×{row['k']} {row['layout']} {row['dtype']}"
