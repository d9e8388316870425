"""The measurements that the explorer shows, in one small file: counters of plans, and speeds of named plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cutegemm.profile import Case
from cutegemm.profile.compare import QUANTITIES
from docs.evidence.counters.cases import GROUPS
from docs.evidence.counters.recorded import Evidence, describe
from docs.evidence.files import lines, read_record, significant
from docs.evidence.rows import with_rates

FILE = Path("cutegemm/explore/assets/measured.json")  # from the root of the repository
# If several files have times of a plan at a shape, the first of them is shown.
_SPEEDS = (
    "hopper", "hopper_shapes", "hopper_llama", "hopper_tf32", "hopper_fp8_fast", "hopper_small", "hopper_ladder",
    "simt", "ladder_simt", "mma_layouts_bf16", "mma_layouts_f16", "mma_layouts_tf32", "ladder_mma_bf16",
    "ladder_mma_tf32",
)  # fmt: skip
Shape = tuple[int, int, int]
_METRICS = sorted({name for quantity in QUANTITIES for name in (*quantity.metrics, *quantity.less)})


def measured(data: Path) -> str:
    """Return the text of the file.

    data   folder of the measurements
    """
    counted = [case for group in GROUPS for case in _counted(data / f"analysis_{group}.json", group)]
    speeds = _speeds(data)
    shapes = sorted({shape for found in speeds.values() for shape in found})
    place = {shape: number for number, shape in enumerate(shapes)}
    rows = [
        [*key, [[place[shape], significant(us), ratio and round(ratio, 3)] for shape, (us, ratio) in times]]
        for key, times in ((key, sorted(found.items())) for key, found in sorted(speeds.items()))
    ]
    parts = [
        f'"metrics": {json.dumps(_METRICS)}',
        f'"counted": {lines(counted)}',
        f'"shapes": {json.dumps(shapes, separators=(",", ":"))}',
        f'"speeds": {lines(rows)}',
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _counted(path: Path, group: str) -> list[dict[str, Any]]:
    """Return the cases of plans whose launch has not changed since it was counted."""
    if not path.exists():
        return []
    evidence = Evidence.load(path)
    out = []
    for case in GROUPS[group]():
        recorded = evidence.cases.get(case.name)
        if not isinstance(case, Case) or recorded is None or describe(case) != recorded.what:
            continue
        counters, problem = recorded.counters(), case.problem
        align = problem.operands.a.align_bytes
        if align < 16 or not case.plan.summary:
            continue  # no name says so
        out.append(
            {
                "case": case.name,
                "plan": case.plan.summary,
                "dtype": problem.operands.a.dtype.name,
                "layout": problem.operands.layout,
                "problem": f"{problem.m}x{problem.n}x{problem.k}",
                "device": evidence.device,
                "date": evidence.machine["date"][:10],
                "registers": recorded.registers,
                "counters": [counters.get(name) for name in _METRICS],
            }
        )
    return out


def _speeds(data: Path) -> dict[tuple[str, ...], dict[Shape, tuple[float, float | None]]]:
    """Return by (plan, type, letters, device, date) and (m, n, k): microseconds, and the ratio to cuBLAS or None."""
    found: dict[tuple[str, ...], dict[Shape, tuple[float, float | None]]] = {}
    for name in _SPEEDS:
        path = data / f"{name}.json"
        if not path.exists():
            continue
        read = read_record(path)
        gpu, date = read["machine"]["gpu"].removeprefix("NVIDIA ").lower(), read["machine"]["date"][:10]
        for row in map(with_rates, read["rows"]):
            if row.get("l", 1) == 1:
                of = found.setdefault((row["plan"], row["dtype"], row["layout"], gpu, date), {})
                of.setdefault((row["m"], row["n"], row["k"]), (row["us"], row.get("ratio")))
    return found
