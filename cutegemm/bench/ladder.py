"""The steps of a ladder beside the library: times, and what the analysis predicts beside what counters read.

    cutegemm bench ladder simt --json > docs/benchmarks/ladder_simt.json    on a GPU; with ncu, its counters too
    cutegemm bench report                                                   docs/ladder_simt.md, its plot; anywhere

Times are medians of rounds in which every step and the library run once, on the same normally distributed
data: see `bench.measure`. Counters are those of one launch at a smaller size, for which the prediction is made
as well.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Sequence
from typing import Any

from cutegemm.analysis import check
from cutegemm.arch import DEFAULT_ARCH
from cutegemm.bench.measure import LIBRARY, in_turns, machine, need_gpu
from cutegemm.errors import CutegemmError
from cutegemm.plan.mma_sync_ladder import TENSOROP_LADDERS
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.simt_ladder import SIMT_LADDER
from cutegemm.plan.sm90_ladder import HOPPER_LADDER

LADDERS = {ladder.name: ladder for ladder in (SIMT_LADDER, *TENSOROP_LADDERS, HOPPER_LADDER)}
SIZES = (4096, 6144)
COUNTED_SIZE = 2048
DEVICE = "h200"
_TOLERANCE = 1e-2  # of the largest element: what is wrong, not what is rounded
_COUNT_SECONDS = 150.0  # for ncu: it takes about 50 for 22 steps at 2048 cubed, in 10 passes each
_MESSAGE = 500
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

    A step that fails is left out, and why is told; so are counters that cannot be had.

    sizes     N of the problems N x N x N
    counted   the size at which ncu counts; None, or no ncu: only predictions
    returns   {"ladder": ..., "machine": ..., "steps": [...], "failed": {...}}: what `report` reads
    """
    ladder = LADDERS[name]
    from cutegemm.compile import compile_plans

    plans = {step.name: step.build(ladder.operands) for step in ladder.steps}
    say("compiling")
    errors = compile_plans(plans.values())
    failed = {name: str(error) for name, error in zip(plans, errors, strict=True) if error is not None}
    size = counted or COUNTED_SIZE
    steps = [_known(step, plans[step.name], size) for step in ladder.steps if step.name not in failed]
    found: dict[str, Any] = {
        "ladder": ladder.name, "title": ladder.title, "data": ladder.data, "steps": steps,
        "counted_size": size, "failed": failed,
    }  # fmt: skip
    if not _has_gpu():
        return found
    found["machine"] = machine()
    found["library"] = LIBRARY
    found["library_tflops"] = {}
    try:
        for size in sizes:
            say(f"timing at {size} cubed")
            _time(found, plans, size, seconds)
    except Exception as error:  # whatever it is: what was found so far is worth having
        found["not_timed"] = _told(error)
    if counted is not None and shutil.which("ncu"):
        say("counting")
        try:
            _count(found["steps"], plans, counted)
        except Exception as error:
            found["not_counted"] = _told(error)
    return found


def _has_gpu() -> bool:
    try:
        need_gpu()
    except (ImportError, CutegemmError):
        return False
    return True


def _known(step: Any, plan: Any, size: int) -> dict[str, Any]:
    """What is known of a step without running it."""
    from cutegemm.compile import compile_plan

    report = compile_plan(plan, DEFAULT_ARCH).resources
    small, large = (
        check(plan, _square(plan, n), None, DEVICE, report, search=False) for n in (size, SIZES[0])
    )
    roof = large.roofline
    assert roof is not None
    own = next(o for o in ("HGMMA", "HMMA", "DFMA", "FFMA") if report.count(o))
    predicted = {
        "load_wavefronts": sum(small.counts(op)[1] for op in ("load", "ldmatrix")),
        "store_wavefronts": sum(small.counts(op)[1] for op in ("store", "stmatrix")),
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
        "instructions": {o: report.count(o) for o in (own, "LDS", "LDSM", "STS", "S2R", "BAR", "IADD3")},
        "predicted": predicted, "measured": {}, "tflops": {}, "ratio": {},
    }  # fmt: skip


def _square(plan: GemmPlan, n: int) -> Problem:
    return Problem(n, n, n, operands=plan.operands)


class Contest:
    """Plans beside the library on one pair of matrices: on the GPU."""

    def __init__(self, operands: Operands, size: int) -> None:
        import torch

        torch.backends.cuda.matmul.allow_tf32 = operands.a.dtype.name == "tf32"
        kind = {"f16": torch.float16, "bf16": torch.bfloat16}.get(operands.a.dtype.name, torch.float32)
        a, b = (torch.randn((size, size), device="cuda").to(kind) for _ in range(2))
        self.a = a if operands.a.major == "k" else a.t()
        self.b = b if operands.b.major == "n" else b.t()
        self.out = torch.empty((size, size), device="cuda", dtype=kind)
        self.wanted = torch.matmul(self.a, self.b)

    def difference(self, plan: GemmPlan) -> float:
        """Of a plan's D from the library's, as a share of the largest element."""
        self.out.fill_(float("nan"))
        self._call(plan)
        return float((self.out - self.wanted).abs().max() / self.wanted.abs().max())

    def times(self, plans: Sequence[GemmPlan], seconds: float) -> list[float]:
        """The library's seconds, then those of each plan."""
        import torch

        library: Callable[[], Any] = lambda: torch.matmul(self.a, self.b, out=self.out)  # noqa: E731
        return in_turns(
            [library, *(functools.partial(self._call, plan) for plan in plans)], seconds, warm_seconds=0.0
        )

    def _call(self, plan: GemmPlan) -> None:
        from cutegemm.launch import gemm

        gemm(self.a, self.b, out=self.out, plan=plan)


def _time(found: dict[str, Any], plans: dict[str, GemmPlan], size: int, seconds: float) -> None:
    """Fills in times at a size; steps that do not run, or are wrong, go to "failed"."""
    contest = Contest(plans[found["steps"][-1]["name"]].operands, size)
    for step in list(found["steps"]):
        try:
            difference = contest.difference(plans[step["name"]])
            if not difference < _TOLERANCE:
                raise CutegemmError(f"D is {difference:.2g} of its largest element from the library's.")
        except Exception as error:  # one step must not cost the others
            found["failed"][step["name"]] = f"at {size} cubed: {_told(error)}"
            found["steps"].remove(step)
    library, *times = contest.times([plans[step["name"]] for step in found["steps"]], seconds)
    found["library_tflops"][str(size)] = round(2 * size**3 / library * 1e-12, 2)
    for step, own in zip(found["steps"], times, strict=True):
        step["tflops"][str(size)] = round(2 * size**3 / own * 1e-12, 3)
        step["ratio"][str(size)] = round(library / own, 4)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MESSAGE]


def _count(steps: list[dict[str, Any]], plans: dict[str, GemmPlan], size: int) -> None:
    """Fills in what ncu counts."""
    from cutegemm.profile import Case, profile

    cases = [Case(step["name"], plans[step["name"]], _square(plans[step["name"]], size)) for step in steps]
    comparisons, _ = profile(cases, device=DEVICE, limit_seconds=_COUNT_SECONDS)
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
    lines += [f"{name:24} failed: {why}" for name, why in found.get("failed", {}).items()]
    if sizes:
        lines.append(
            f"{found['library']:24} " + " ".join(f"{found['library_tflops'][n]:7.2f} (1.000)" for n in sizes)
        )
    return "\n".join(lines)
