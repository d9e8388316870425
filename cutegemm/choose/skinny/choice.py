"""The choice among plans that stream a weight, for problems of few rows or columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.skinny.named import SKINNY_PLANS
from cutegemm.choose.skinny.time import bound, predicted_us
from cutegemm.errors import PlanError
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits

MOST_COLUMNS = 16  # for which such plans were timed
LEAST_ROWS = 1024  # of A: fewer tiles do not fill a GPU
_MOST_BITS = 16  # of an element


def skinny_candidates(
    operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE
) -> list[Candidate]:
    """The plans that stream a weight, the fastest first; none where D has many rows and many columns.

    A recipe says whether it is for the transposed problem: of few rows it is, as B is the weight then.

    operands   as threads, or TMA, load A and B

    >>> for found in skinny_candidates(Operands.of("bf16", layout="nt"), Problem(4, 4096, 4096)):
    ...     print(f"{found.recipe}: {found.us:.1f} us, most of it {found.bound}")
    transposed:skinny_16x8: 10.4 us, most of it memory
    transposed:skinny_16x8_short: 10.4 us, most of it memory
    transposed:skinny_16x16: 10.4 us, most of it memory
    transposed:skinny_16x8_wide: 10.8 us, most of it memory
    transposed:skinny_32x16: 12.4 us, most of it latency
    """
    found = []
    for transposed in (False, True):
        ops, own = (operands.transposed, problem.transposed) if transposed else (operands, problem)
        if own.n > MOST_COLUMNS or own.m < LEAST_ROWS:
            continue
        for recipe in SKINNY_PLANS:
            if recipe.is_chosen and own.n <= recipe.tile[1] and _serves(ops, own):
                us, most = predicted_us(recipe, ops, own, device), bound(recipe, ops, own, device)
                found.append(Candidate(replace(recipe, transposed=transposed), us, most))
    return sorted(found, key=_first)


def _first(candidate: Candidate) -> tuple[float, int]:
    """The fastest comes first; of such as are held to be alike that of more warps."""
    return round(candidate.us, 2), -int(candidate.recipe.options.get("warps", 0))


def _serves(operands: Operands, problem: Problem) -> bool:
    """Whether A and B are such as are streamed: see `skinny_plan`."""
    a, b = operands.a, operands.b
    if a.dtype != b.dtype or not a.dtype.is_float or a.dtype.bits > _MOST_BITS or operands.gated:
        return False
    along_k = a.major == b.major == "k" and problem.k * a.dtype.bits % ACCESS_BITS == 0
    return along_k and min(a.align_bytes, b.align_bytes) * 8 >= ACCESS_BITS


def choose_skinny(
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    suits: Callable[[GemmPlan], bool] | None = None,
) -> GemmPlan | None:
    """The plan to take for a problem that is not transposed any more; None where there is none.

    suits   of a plan: whether it is one that is wanted, beside its time

    >>> str(choose_skinny(Operands.of("bf16", layout="nt", out_major="m"), Problem(4096, 16, 4096)))
    'skinny_16x16'
    """
    for candidate in skinny_candidates(operands, problem, device):
        if candidate.recipe.transposed:
            continue
        try:
            plan = candidate.recipe.build(operands, device=device)
        except PlanError:
            continue
        if not list(limits(plan, problem)) and (suits is None or suits(plan)):
            return plan
    return None
