"""The choice among plans that stream a weight, for problems of few rows or columns."""

from __future__ import annotations

from dataclasses import replace

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.skinny.named import SKINNY_PLANS
from cutegemm.choose.skinny.time import COLD_US, bound, predicted_us
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem

MOST_COLUMNS = 16  # for which such plans were timed
LEAST_ROWS = 1024  # of A: fewer tiles do not fill a GPU
_MOST_BITS = 16  # of an element


def ranked(
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    transposed: bool | None = None,
) -> list[Candidate]:
    """The plans that stream a weight, the fastest first; none where D has many rows and many columns.

    A recipe says whether it is for the transposed problem: of few rows it is, as B is the weight then.

    operands     as threads load them
    transposed   whether the plans are to be for D^T, or for D; both where left out

    Times are those behind a flush of L2, as the other families' are: among them the plans compete.

    >>> for found in ranked(Operands.of("bf16", layout="nt"), Problem(4, 4096, 4096)):
    ...     print(f"{found.recipe}: {found.us:.1f} us, most of it {found.bound}")
    transposed:skinny_16x8: 13.7 us, most of it memory
    transposed:skinny_16x8_short: 13.7 us, most of it memory
    transposed:skinny_16x16: 13.7 us, most of it memory
    transposed:skinny_16x8_wide: 14.1 us, most of it memory
    transposed:skinny_32x16: 15.5 us, most of it latency
    """
    found = []
    for turned in (False, True) if transposed is None else (transposed,):
        if not 0 < (problem.m if turned else problem.n) <= MOST_COLUMNS:
            continue
        ops, own = (operands.transposed, problem.transposed) if turned else (operands, problem)
        if not _serves(ops, own):
            continue
        for recipe in SKINNY_PLANS:
            if recipe.is_chosen and own.n <= recipe.tile[1]:
                us, most = COLD_US + predicted_us(recipe, ops, own, device), bound(recipe, ops, own, device)
                found.append(Candidate(replace(recipe, transposed=turned), us, most))
    return sorted(found, key=_first)


def _first(candidate: Candidate) -> tuple[float, int]:
    """The fastest comes first; of such as are held to be alike that of more warps."""
    return round(candidate.us, 2), -int(candidate.recipe.options.get("warps", 0))


def _serves(operands: Operands, problem: Problem) -> bool:
    """Whether A and B are such as are streamed: see `skinny_plan`."""
    a, b = operands.a, operands.b
    if problem.m < LEAST_ROWS or operands.gated:
        return False
    if a.dtype != b.dtype or not a.dtype.is_float or a.dtype.bits > _MOST_BITS:
        return False
    along_k = a.major == b.major == "k" and problem.k * a.dtype.bits % ACCESS_BITS == 0
    return along_k and min(a.align_bytes, b.align_bytes) * 8 >= ACCESS_BITS
