"""docs/speed.md: what the kernels reach beside the library, as tables made from docs/benchmarks/*.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_TITLES = {
    "simt": "f32 without TF32, SIMT",
    "hopper": "bf16, Hopper: wgmma and TMA",
    "hopper_llama": "bf16, Hopper, the sizes of language models and small ones",
    "hopper_fp8": "e4m3, Hopper, beside the library without fast accumulation",
    "hopper_fp8_fast": "e4m3, Hopper, beside the library with fast accumulation",
    "hopper_ladder": "bf16, Hopper, step by step",
    "mma_ladder_tf32": "tf32, mma.sync, step by step (the library uses wgmma)",
    "mma_ladder_bf16": "bf16, mma.sync, step by step (the library uses wgmma)",
}
_BY_PLAN = ("hopper_ladder", "mma_ladder_tf32", "mma_ladder_bf16")
_HOST = "simt_host"


def page(benchmarks: Path) -> str:
    """The page of all measurements in a folder; those that are not there are left out."""
    parts = [
        "# Speed",
        "Ratios are to cuBLAS through torch, in the same process, in turns, on the same normally distributed "
        "data: above 1 is faster. The chip throttles by power, so a ratio moves by a few percent from run to "
        "run. Made from `docs/benchmarks/*.json` by `cutegemm bench report`; each file holds the machine, the "
        "versions, the date and the command.",
    ]
    for name, title in _TITLES.items():
        source = benchmarks / f"{name}.json"
        if source.exists():
            found = json.loads(source.read_text())
            table = _by_plan(found["rows"]) if name in _BY_PLAN else _by_shape(found["rows"])
            parts += [f"## {title}", _source(found["machine"], source.name), table]
    host = benchmarks / f"{_HOST}.json"
    if host.exists():
        found = json.loads(host.read_text())
        rows = [(call, f"{us:.1f}") for call, us in found["host_us"].items()]
        parts += [
            "## Host time of a call",
            _source(found["machine"], host.name),
            _table(("call", "µs"), rows),
        ]
    return "\n\n".join(parts) + "\n"


def _source(machine: dict[str, Any], name: str) -> str:
    return (
        f"{machine['gpu']}, driver {machine['driver']}, torch {machine['torch']}, DSL "
        f"{machine['nvidia-cutlass-dsl']}, {machine['date']}: `{name}`."
    )


def _shape(row: dict[str, Any]) -> str:
    batch = f"×{row['l']}" if row.get("l", 1) != 1 else ""
    return f"{row['m']}×{row['n']}×{row['k']}{batch}"


def _by_shape(rows: list[dict[str, Any]]) -> str:
    """The plan that is chosen, or the best where none is said to be, and the best of those timed."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((_shape(row), row["layout"]), []).append(row)
    cells, ratios = [], []
    for (shape, layout), timed in groups.items():
        best = max(timed, key=lambda row: row["ratio"])
        chosen = next((row for row in timed if row.get("chosen") or "(chosen)" in row["plan"]), best)
        ratios.append(chosen["ratio"])
        cells.append(
            (shape, layout, f"{chosen['library_tflops']:.1f}", f"{chosen['tflops']:.1f}", f"{chosen['ratio']:.3f}",
             f"`{chosen['plan'].removesuffix(' (chosen)')}`", f"{best['ratio']:.3f}")
        )  # fmt: skip
    mean = math.exp(sum(math.log(ratio) for ratio in ratios) / len(ratios))
    head = ("M×N×K", "layout", "cuBLAS TFLOP/s", "TFLOP/s", "ratio", "plan", "best of those timed")
    return _table(head, cells) + f"\n\nGeometric mean of the ratios: {mean:.3f}."


def _by_plan(rows: list[dict[str, Any]]) -> str:
    shapes = list(dict.fromkeys(_shape(row) for row in rows))
    plans = list(dict.fromkeys(row["plan"] for row in rows))
    at = {(row["plan"], _shape(row)): row for row in rows}
    cells = [
        (f"`{plan}`", *(f"{at[plan, s]['ratio']:.3f}" if (plan, s) in at else "" for s in shapes))
        for plan in plans
    ]
    return _table(("plan", *shapes), cells)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(head)
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "\n".join(f"| {line} |" for line in lines)
