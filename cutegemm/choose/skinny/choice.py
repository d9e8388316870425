"""The choice among plans that stream A to registers: for problems of few rows or columns, and for small ones."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from cutegemm.choose.candidate import Candidate
from cutegemm.choose.columns import Column
from cutegemm.choose.skinny.named import SKINNY_PLANS
from cutegemm.choose.skinny.recipe import SkinnyRecipe
from cutegemm.choose.skinny.time import Streams, predicted
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
) -> Iterator[Candidate]:
    """The plans that stream A, the fastest first; none where D is large.

    A recipe says whether it is for the transposed problem: of few rows it is, as B is the weight then.

    operands     as threads load them
    transposed   whether the plans are to be for D^T, or for D; both where left out

    >>> from itertools import islice
    >>> for found in islice(ranked(Operands.of("bf16", layout="nt"), Problem(64, 16, 8192), transposed=False), 3):
    ...     print(f"{found.recipe}: {found.us:.1f} us, most of it {found.bound}")
    skinny_16x16_k8_wide: 8.6 us, most of it latency
    skinny_16x16_k8: 8.6 us, most of it latency
    skinny_16x16_k4: 9.0 us, most of it latency
    """
    found = []
    for turned in (False, True) if transposed is None else (transposed,):
        ops, own = (operands.transposed, problem.transposed) if turned else (operands, problem)
        if _is_small(own) and _serves(ops, own):
            found.append(_of_one_way(turned, ops.a.dtype.bits, own, device))
    return heapq.merge(*found, key=_first)


def _first(candidate: Candidate) -> tuple[float, int]:
    """The fastest comes first; of such as are held to be alike that of more warps."""
    return candidate.us, -int(candidate.recipe.options.get("warps", 0))


def _of_one_way(turned: bool, bits: int, own: Problem, device: Device) -> Iterator[Candidate]:
    """In the order of `_first`."""
    recipes, streams, for_one = _streams(turned, bits)
    serves = np.ones(len(recipes), bool)
    if own.m * own.n * own.l > SMALL:
        serves &= streams.ctas == 1
    if own.n > 1:
        serves &= (own.n <= streams.columns) | (~for_one & (own.n > FEW_COLUMNS))
    found = predicted(streams, bits, own, device)
    rounded = np.where(serves, np.round(found.us, 2), np.inf)
    for place in np.lexsort((-streams.warps, rounded)).tolist():
        if np.isinf(rounded[place]):
            break
        yield Candidate(recipes[place], float(rounded[place]), partial(found.bound, place))


@lru_cache
def _streams(turned: bool, bits: int) -> tuple[tuple[SkinnyRecipe, ...], Streams, Column]:
    """The recipes that are considered, their columns, and whether each is for one tile of columns."""
    chosen = [replace(recipe, transposed=turned) for recipe in SKINNY_PLANS if recipe.is_chosen]
    streams = Streams.of([recipe.fitted(bits) for recipe in chosen], bits)
    return tuple(chosen), streams, np.array([recipe.for_one for recipe in chosen])


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
