"""The steps of a ladder beside the library: times, and what the analysis predicts beside what counters read.

    cutegemm bench ladder simt --json > docs/benchmarks/ladder_simt.json     on a GPU; with ncu, its counters
    too cutegemm bench report                                                    docs/ladder_simt.md and .svg,
    anywhere

Times are medians of rounds in which every step and the library run once, on the same normally distributed
data: see `bench.gemm`. Counters are those of one launch at a smaller size, for which the prediction is made
as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

from cutegemm.analysis import check
from cutegemm.bench.gemm import LIBRARY, _in_turns, _need_gpu, machine
from cutegemm.errors import CutegemmError
from cutegemm.plan.catalog import DEFAULT_ARCH
from cutegemm.plan.ladder_simt import LADDERS, Ladder
from cutegemm.plan.problem import Problem

SIZES = (4096, 6144)
COUNTED_SIZE = 2048
DEVICE = "h200"
_LEVELS = ("register", "shared", "L2", "DRAM")
# What is shown of the counters, by the names of `profile.compare`.
_COUNTERS = {
    "shared load wavefronts": "load_wavefronts",
    "shared store wavefronts": "store_wavefronts",
    "cp.async wavefronts": "async_wavefronts",
    "global load sectors": "load_sectors",
    "cp.async sectors": "async_sectors",
    "global store sectors": "store_sectors",
}


def run(
    name: str = "simt",
    sizes: Sequence[int] = SIZES,
    counted: int | None = COUNTED_SIZE,
    seconds: float = 0.5,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Every step of a ladder, measured where there is a GPU, else only compiled and analysed.

    sizes     N of the problems N x N x N
    counted   the size at which ncu counts; None, or no ncu: only predictions
    returns   {"ladder": ..., "machine": ..., "steps": [...]}: what `report` reads
    """
    ladder = LADDERS[name]
    from cutegemm.compile import compile_plans

    plans = {step.name: step.build() for step in ladder.steps}
    say("compiling")
    compile_plans(plans.values())
    steps = [_known(step, plans[step.name], counted or COUNTED_SIZE) for step in ladder.steps]
    found: dict[str, Any] = {
        "ladder": ladder.name, "title": ladder.title, "counted_size": counted or COUNTED_SIZE, "steps": steps,
    }  # fmt: skip
    if not _has_gpu():
        return found
    found["machine"] = machine()
    found["library"] = LIBRARY
    found["library_tflops"] = {}
    for size in sizes:
        say(f"timing at {size} cubed")
        times = _timed(ladder, plans, size, seconds)
        found["library_tflops"][str(size)] = round(2 * size**3 / times[0] * 1e-12, 2)
        for step, own in zip(steps, times[1:], strict=True):
            step["tflops"][str(size)] = round(2 * size**3 / own * 1e-12, 3)
            step["ratio"][str(size)] = round(times[0] / own, 4)
    if counted is not None and shutil.which("ncu"):
        say("counting")
        try:
            _count(ladder, plans, steps, counted)
        except CutegemmError as error:
            found["not_counted"] = str(error)[:500]
    return found


def _has_gpu() -> bool:
    try:
        _need_gpu()
    except (ImportError, CutegemmError):
        return False
    return True


def _known(step: Any, plan: Any, size: int) -> dict[str, Any]:
    """What is known of a step without running it."""
    from cutegemm.compile import compile_plan

    report = compile_plan(plan, DEFAULT_ARCH).resources
    small, large = (
        check(plan, Problem(n, n, n), None, DEVICE, report, search=False) for n in (size, SIZES[0])
    )
    roof = large.roofline
    assert roof is not None
    own = max((o for o in ("FFMA", "DFMA") if report.count(o)), key=report.count)
    predicted = {
        "load_wavefronts": small.counts("load")[1], "store_wavefronts": small.counts("store")[1],
        "async_wavefronts": small.counts("cp.async")[1], "load_sectors": small.sector_count("ld")[1],
        "async_sectors": small.sector_count("ldgsts")[1], "store_sectors": small.sector_count("st")[1],
    }  # fmt: skip
    return {
        "name": step.name, "number": step.number, "change": step.change, "why": step.why,
        "threads": plan.threads, "registers": report.registers, "spills": report.spills,
        "smem_bytes": sum(plan.smem_bytes().values()), "ctas_per_sm": large.occupancy.ctas,
        "occupancy": round(large.occupancy.theoretical, 3), "bound": roof.bound.name,
        "bound_tflops": round(roof.tflops, 2), "peak_tflops": large.device.peak_tflops(plan.tiled_mma.atom),
        "conflicts": sum(small.counts(op)[1] - small.counts(op)[2] for op in ("load", "store", "cp.async")),
        "intensity": {level: round(roof.level(level).intensity, 2) for level in _LEVELS},
        "instructions": {o: report.count(o) for o in (own, "LDS", "STS", "S2R", "BAR", "IADD3")},
        "predicted": predicted, "measured": {}, "tflops": {}, "ratio": {},
    }  # fmt: skip


def _timed(ladder: Ladder, plans: dict[str, Any], size: int, seconds: float) -> list[float]:
    import torch

    from cutegemm.launch import gemm

    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn((size, size), device="cuda") for _ in range(2))
    out = torch.empty((size, size), device="cuda")
    calls: list[Callable[[], Any]] = [lambda: torch.matmul(a, b, out=out)]
    for step in ladder.steps:
        calls.append(lambda plan=plans[step.name]: gemm(a, b, out=out, plan=plan))  # type: ignore[misc]
        calls[-1]()
    return _in_turns(calls, seconds, warm_seconds=0.0)


def _count(ladder: Ladder, plans: dict[str, Any], steps: list[dict[str, Any]], size: int) -> None:
    """Fills in what ncu counts."""
    from cutegemm.profile import Case, profile

    cases = [Case(step.name, plans[step.name], Problem(size, size, size)) for step in ladder.steps]
    comparisons, _ = profile(cases, device=DEVICE)
    by_name = {c.case: c for c in comparisons}
    for step in steps:
        if step["name"] in by_name:
            rows = {row.name: row.measured for row in by_name[step["name"]].rows}
            step["measured"] = {
                short: rows[long] for long, short in _COUNTERS.items() if rows.get(long) is not None
            }


def table(found: dict[str, Any]) -> str:
    """The steps as lines of text."""
    sizes = list(found.get("library_tflops", {}))
    lines = []
    for step in found["steps"]:
        rates = " ".join(f"{step['tflops'][n]:7.2f} ({step['ratio'][n]:5.3f})" for n in sizes)
        lines.append(
            f"{step['name']:24} {rates} {step['registers']:4} regs {step['ctas_per_sm']} x "
            f"{step['threads']:4} threads, "
            f"{step['conflicts'] / 1e6:8.1f} M conflicts, bound {step['bound']} {step['bound_tflops']:5.1f}"
        )
    if sizes:
        lines.append(
            f"{found['library']:24} " + " ".join(f"{found['library_tflops'][n]:7.2f} (1.000)" for n in sizes)
        )
    return "\n".join(lines)
