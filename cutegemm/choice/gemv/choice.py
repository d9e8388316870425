"""Candidates among the gemv plans, which load A straight to registers: for few rows or columns, or a small D."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from cutegemm.choice.candidate import Request, Variants
from cutegemm.choice.columns import Column
from cutegemm.choice.gemv.named import GEMV_PLANS
from cutegemm.choice.gemv.recipe import GemvRecipe
from cutegemm.choice.gemv.time import Model
from cutegemm.dtypes import tf32
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.machine.device import Device
from cutegemm.plan.problem import Operands, Problem

FEW_COLUMNS = 16  # with at most as many columns of D, A may have any number of rows
SMALL = 1 << 16  # elements of a small D, for which plans with cluster split-K, or for more columns, are candidates
_MOST_COLUMNS = 128  # columns of a small D; plans were not timed with more


@dataclass(frozen=True, eq=False)
class GemvFamily(Model):
    """Selects the gemv plans to try for a problem with given operands, and predicts their times.

    A gemv plan is a kernel for a D of few columns or, if it computes D^T, of few rows. Only plans that can implement
    the operands are considered.
    """

    recipes: tuple[GemvRecipe, ...] = ()

    def candidates(self, problem: Problem) -> Variants:
        """Return the gemv candidates for a problem: plans suited to few columns of D (or of D^T), or to a small D.

        The result is empty if a row of K elements is not a multiple of 16 bytes.
        """
        can_implement = np.zeros(len(self.recipes), bool)
        elements = problem.m * problem.n * problem.l
        if elements and problem.k * self.bits % ACCESS_BITS == 0:
            for swap_ab, columns in ((False, problem.n), (True, problem.m)):
                if columns <= FEW_COLUMNS or (columns <= _MOST_COLUMNS and elements <= SMALL):
                    can_implement |= (self.swap_ab == swap_ab) & self._can_implement(columns, elements <= SMALL)
        return Variants(np.flatnonzero(can_implement))

    def _can_implement(self, columns: int, is_small: bool) -> Column:
        """Return an array of flags, one per plan: may the plan be the fastest for a D with `columns` columns?

        columns    columns of D as the kernel sees it, i.e. rows of the problem's D with swap A/B
        is_small   whether D has few elements, at most `SMALL`. Plans whose CTAs split K are tried only for a small D
        """
        streams = self.streams
        can_implement = is_small | (streams.ctas == 1)
        if columns > 1:
            can_implement &= (columns <= streams.columns) | (~self._is_for_one & (columns > FEW_COLUMNS))
        return can_implement

    @cached_property
    def _is_for_one(self) -> Column:
        """Return an array of flags, one per gemv plan: is it tried only if a single tile holds all columns of D?"""
        return np.array([recipe.for_one for recipe in self.recipes])


def family(request: Request) -> GemvFamily:
    """Return the gemv plans that can implement the operands of a request, with their time model.

    A gemv plan is a kernel for a D of few columns. Plans with swap A/B, which compute D^T = B^T A^T, are included
    because they suit a D of few rows. If no plan can implement the operands, the result has no plans.

    request   operands, architecture and other conditions of the choice

    >>> from itertools import islice
    >>> from cutegemm.choice.candidate import ranked
    >>> plans = family(Request(Operands.of("bf16", layout="nt"), swap_ab=False))
    >>> for one in islice(ranked(plans, Problem(64, 16, 8192)), 3):
    ...     print(f"{one.recipe}: {one.us:.1f} us, most of it {one.bound}")
    gemv_16x16_k8_wide: 8.6 us, most of it latency
    gemv_16x16_k8: 8.6 us, most of it latency
    gemv_16x16_k4: 9.0 us, most of it latency
    """
    return _family(request.loaded, request.variants, request.device)


@lru_cache(maxsize=256)
def _family(operands: Operands, variants: tuple[bool, ...], device: Device) -> GemvFamily:
    """Return the gemv plans that can implement `operands`, with their time model. The result is cached.

    operands   types, majorness and alignment of A to D
    variants   values of `swap_ab` to include: False for plans that compute D, True for plans that compute D^T
    device     device whose rates the time model uses
    """
    chosen = [recipe for recipe in GEMV_PLANS if recipe.is_chosen and _may_stream(operands)]
    recipes = [replace(recipe, swap_ab=swap_ab) for swap_ab in variants for recipe in chosen]
    # If predicted times are equal the first plan is chosen: the one with more warps
    recipes.sort(key=lambda recipe: -int(recipe.options.get("warps", 0)))
    model = Model.of(recipes, operands, device)
    return GemvFamily(model.streams, model.swap_ab, model.bits, device, recipes=tuple(recipes))


def _may_stream(operands: Operands) -> bool:
    """Return whether gemv plans can load A and B, judged by their types, majorness and alignment.

    They must be K-major and aligned to 16 bytes. Whether K has a suitable length is checked later, for each problem.
    """
    a, b = operands.a, operands.b
    is_streamed = a.dtype.is_float and (a.dtype.bits <= tf32.bits // 2 or a.dtype is tf32)
    along_k = a.major == b.major == "k" and min(a.align_bytes, b.align_bytes) * 8 >= ACCESS_BITS
    return a.dtype == b.dtype and is_streamed and along_k and not operands.gated
