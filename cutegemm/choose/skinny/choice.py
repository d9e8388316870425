"""The choice among plans that stream A to registers: for problems of few rows or columns, and for small ones."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.skinny.named import SKINNY_PLANS
from cutegemm.choose.skinny.recipe import SkinnyRecipe
from cutegemm.choose.skinny.time import Stream, predicted
from cutegemm.dtypes import tf32
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem

FEW_COLUMNS = 16  # of which A may have any number of rows
SMALL = 1 << 16  # elements of D, as many as plans were timed for by which CTAs share K, or of more columns
_MOST_COLUMNS = 128


def ranked(
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    transposed: bool | None = None,
) -> list[Candidate]:
    """The plans that stream A, the fastest first; none where D is large.

    A recipe says whether it is for the transposed problem: of few rows it is, as B is the weight then.

    operands     as threads load them
    transposed   whether the plans are to be for D^T, or for D; both where left out

    >>> for found in ranked(Operands.of("bf16", layout="nt"), Problem(64, 16, 8192), transposed=False)[:3]:
    ...     print(f"{found.recipe}: {found.us:.1f} us, most of it {found.bound}")
    skinny_16x16_k8_wide: 8.6 us, most of it latency
    skinny_16x16_k8: 8.6 us, most of it latency
    skinny_16x16_k4: 9.0 us, most of it latency
    """
    found = []
    for turned in (False, True) if transposed is None else (transposed,):
        ops, own = (operands.transposed, problem.transposed) if turned else (operands, problem)
        if not _is_small(own) or not _serves(ops, own):
            continue
        bits, is_large = ops.a.dtype.bits, own.m * own.n * own.l > SMALL
        for recipe, stream in _streams(turned, bits):
            if own.n > stream.columns and (own.n <= FEW_COLUMNS or recipe.for_one):
                continue
            if (is_large and stream.ctas > 1) or not device.clusters_by_size[stream.ctas]:
                continue
            us, bounds = predicted(stream, bits, own, device)
            found.append(Candidate(recipe, round(us, 2), max(bounds, key=bounds.__getitem__)))
    return sorted(found, key=_first)


@lru_cache
def _streams(turned: bool, bits: int) -> tuple[tuple[SkinnyRecipe, Stream], ...]:
    chosen = [replace(recipe, transposed=turned) for recipe in SKINNY_PLANS if recipe.is_chosen]
    return tuple([(recipe, Stream.of(recipe.fitted(bits), bits)) for recipe in chosen])


def _first(candidate: Candidate) -> tuple[float, int]:
    """The fastest comes first; of such as are held to be alike that of more warps."""
    return candidate.us, -int(candidate.recipe.options.get("warps", 0))


def _is_small(problem: Problem) -> bool:
    elements = problem.m * problem.n * problem.l
    return elements > 0 and (problem.n <= FEW_COLUMNS or (problem.n <= _MOST_COLUMNS and elements <= SMALL))


def _serves(operands: Operands, problem: Problem) -> bool:
    """Whether A and B are such as are streamed: see `skinny_plan`."""
    a, b = operands.a, operands.b
    if operands.gated:
        return False
    if a.dtype != b.dtype or not a.dtype.is_float or (a.dtype.bits > tf32.bits // 2 and a.dtype is not tf32):
        return False
    along_k = a.major == b.major == "k" and problem.k * a.dtype.bits % ACCESS_BITS == 0
    return along_k and min(a.align_bytes, b.align_bytes) * 8 >= ACCESS_BITS
