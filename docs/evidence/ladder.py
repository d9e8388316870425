"""The steps of a ladder compared with cuBLAS: times, and predictions of the analysis next to counters.

    python -m docs.evidence ladder simt --json > ladder_simt.json    on a GPU; with ncu, its counters too
    python -m docs.evidence report                                   docs/measured/ladder_simt.md, its plot; anywhere

Times come from `benchmark`. Counters are those of one launch at a smaller size, which is predicted as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutegemm.analysis import check
from cutegemm.choice.ladders.mma_sync import TENSOROP_LADDERS
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.choice.ladders.sm90 import HOPPER_LADDER
from cutegemm.errors import CutegemmError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.profile import Case as Counted
from cutegemm.profile import compare
from docs.evidence.benchmark import Case, contests, record
from docs.evidence.counters.recorded import measure
from docs.evidence.gemm import expand
from docs.evidence.measure import LIBRARY, machine, need_gpu
from docs.evidence.rows import by_plan

LADDERS = {ladder.name: ladder for ladder in (SIMT_LADDER, *TENSOROP_LADDERS, HOPPER_LADDER)}
SIZES = (4096, 6144)
COUNTED_SIZE = 2048
DEVICE = "h200"
_COUNT_SECONDS = 150.0  # for ncu: it takes about 50 for 22 steps at 2048 cubed, in 10 passes each
_MESSAGE = 500
_BESIDE = {"mma": "mma_*", "sm90": "sm90_*"}  # what else is timed, by how the name of a ladder begins
_LEVELS = ("register", "shared", "L2", "DRAM")
# What is kept of the counters, by the names of `profile.compare`.
COUNTERS = {
    "shared load wavefronts": "load_wavefronts",
    "shared store wavefronts": "store_wavefronts",
    "cp.async wavefronts, by instructions": "async_wavefronts",
    "global load sectors, cp.async too": "load_sectors",
    "global store sectors": "store_sectors",
}


def run(
    name: str = "simt",
    sizes: Sequence[int] = SIZES,
    counted: int | None = COUNTED_SIZE,
    seconds: float = 0.5,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Measure every step of a ladder on a GPU; without one, only compile and analyse the steps.

    A step that fails gets a row with the error. If counters or times are missing, the result says why.

    sizes     N of the problems N x N x N
    counted   size for the counters of ncu; None for predictions only
    returns   {"ladder": ..., "machine": ..., "rows": [...], "steps": {...}}, which `report` reads. `rows` are those of
              `benchmark`, also for other plans of the family; `steps` describes the kernel of each step by name
    """
    from cutegemm.compile.plans import compile_plans

    ladder = LADDERS[name]
    plans = {step.name: step.build(ladder.operands) for step in ladder.steps}
    operands = plans[ladder.steps[0].name].operands
    say("compiling")
    errors = dict(zip(plans, compile_plans(plans.values()), strict=True))
    plans = {step: plan for step, plan in plans.items() if errors[step] is None}
    size = counted or COUNTED_SIZE
    found: dict[str, Any] = {
        "ladder": name, "counted_size": size,
        "rows": [{"plan": step, "error": str(why)} for step, why in errors.items() if why is not None],
        "steps": {step: _known(plan, size) for step, plan in plans.items()},
    }  # fmt: skip
    if not _has_gpu():
        return found
    found["machine"] = machine()
    beside = expand([names for start, names in _BESIDE.items() if name.startswith(start)])
    contestants = [*plans.values(), *(other for other in beside if other not in plans)]
    cases = [Case(Problem(n, n, n, operands=operands), contestants) for n in sizes]
    try:
        record(found, contests(cases, seconds, say=say), None)
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


def _known(plan: GemmPlan, size: int) -> dict[str, Any]:
    """Return what is known of a step without running it."""
    from cutegemm.compile.plans import compile_plan
    from cutegemm.run.executed import executed_accesses

    report = compile_plan(plan, DEFAULT_ARCH).resources
    small, large = (
        check(plan, problem, None, DEVICE, report, search=False, executed=executed_accesses(plan, problem))
        for problem in (_square(plan, size), _square(plan, SIZES[0]))
    )
    roof = large.roofline
    assert roof is not None
    predicted = compare(Counted(plan.name, plan, _square(plan, size)), small, {})
    own = next(o for o in ("HGMMA", "HMMA", "DFMA", "FFMA") if report.count(o))
    return {
        "threads": plan.threads, "registers": report.registers, "spills": report.spills,
        "smem_bytes": sum(plan.smem_bytes().values()), "ctas_per_sm": large.occupancy.ctas,
        "occupancy": round(large.occupancy.theoretical, 3), "bound": roof.bound.name,
        "bound_tflops": round(roof.tflops, 2), "peak_tflops": large.device.peak_tflops(plan.tiled_mma.atom),
        "conflicts": sum(small.counts(op)[1] - small.counts(op)[2] for op in ("load", "store", "cp.async")),
        "intensity": {level: round(roof.level(level).intensity, 2) for level in _LEVELS},
        "instructions": {o: report.count(o) for o in (own, "LDS", "LDSM", "STS", "S2R", "BAR", "IADD3")},
        "predicted": _kept({row.name: row.predicted for row in predicted.rows}), "measured": {},
    }  # fmt: skip


def _square(plan: GemmPlan, n: int) -> Problem:
    return Problem(n, n, n, operands=plan.operands)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MESSAGE]


def _count(steps: Mapping[str, dict[str, Any]], plans: Mapping[str, GemmPlan], size: int) -> None:
    """Add the counters of ncu to the steps."""
    cases = [Counted(name, plan, _square(plan, size)) for name, plan in plans.items()]
    for compared in measure(cases, device=DEVICE, limit_seconds=_COUNT_SECONDS)[0]:
        steps[compared.case]["measured"] = _kept({row.name: row.measured for row in compared.rows})


def _kept(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the counters of `COUNTERS` that exist, by their short names."""
    return {short: value for long, short in COUNTERS.items() if (value := values.get(long)) is not None}


def table(found: Mapping[str, Any]) -> str:
    """Return steps, then other plans, as lines of text."""
    timed = by_plan(found["rows"])
    shapes = list(dict.fromkeys(at for of in timed.values() for at in of))
    ladder = LADDERS[found["ladder"]]
    lines = [f"{ladder.title}: {ladder.data}"]
    lines += [" ".join([" " * 24, *(at.rjust(15) for at in shapes)])] if shapes else []
    for name in dict.fromkeys([*found["steps"], *timed]):
        of = timed.get(name, {})
        rates = " ".join(f"{of[at]['tflops']:7.2f} ({of[at]['ratio']:5.3f})" if at in of else " " * 15 for at in shapes)
        lines.append(f"{name:24} {rates} {_resources(found['steps'].get(name))}".rstrip())
    library = {at: of[at] for of in timed.values() for at in of}
    if library:
        rates = " ".join(f"{library[at]['library_tflops']:7.2f} (1.000)" for at in shapes)
        lines.append(f"{LIBRARY:24} {rates}")
    lines += [f"{row['plan']:24} failed: {row['error']}" for row in found["rows"] if "error" in row]
    return "\n".join(lines)


def _resources(step: Mapping[str, Any] | None) -> str:
    if step is None:
        return ""
    return (
        f"{step['registers']:4} regs {step['ctas_per_sm']} x {step['threads']:4} threads, "
        f"{step['conflicts'] / 1e6:8.1f} M conflicts, bound {step['bound']} {step['bound_tflops']:5.1f}"
    )
