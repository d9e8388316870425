"""Rules for gated epilogues: each thread must have both accumulators of a gate and up pair."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cutegemm.errors import PlanError
from cutegemm.layout import size
from cutegemm.plan.epilogue import Reduction
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.epilogue import Epilogue
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


def gated_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each rule on gated epilogues (GLU) that a plan breaks.

    These rules are checked before those that use the tile of D, which is half as wide as the CTA tile.
    """
    ops, epilogue = plan.operands, plan.epilogue
    if ops.gated != epilogue.gated:
        yield (
            f"B is {ops.b}, but the epilogue, {epilogue}, takes {epilogue.gated or 'no two'} of its columns. "
            "`with_epilogue` makes a plan for both."
        )
        return
    marked = {name for name, operand in ops.aux if operand.gated}
    if marked != set(epilogue.halved):
        both = " and ".join(sorted(marked ^ set(epilogue.halved)))
        yield f"{both} is a row of N numbers in the operands or in the epilogue, {epilogue}, but not in both."
    if not ops.gated:
        return
    yield from wide_results(epilogue)
    pairs = plan.pairs
    if pairs is None:
        yield (
            f"of {epilogue}, no thread has both sums of a pair in tiles of {plan.cta_tile[1]} columns. Take a tile of "
            "an even number of the columns that a thread's sums lie apart."
        )
        return
    if plan.body.has_roles:
        if 2 * pairs.block != plan.cta_tile[1]:
            yield (
                f"of {epilogue}, a thread would have both sums of a pair if {pairs.block} gates and as many ups lay in "
                f"turn, but TMA brings all gates of a tile of {plan.cta_tile[1]} columns before its ups. Take the plan "
                "that `with_epilogue` makes, which divides the columns among the warps accordingly."
            )
            return
        try:
            _ = plan.consumer_d_mma
        except PlanError as error:
            yield (
                f"tiles of {plan.cta_tile[1]} columns have {plan.cta_tile[1] // 2} of D: "
                f"{'; '.join(error.violations)}. Take a multiple of 32."
            )
            return
    elif not plan.paired_vectors:
        yield (
            f"D is stored {plan.store.atom.values} neighbours at a time, but {pairs.block} gates lie together in a "
            f"tile of {plan.cta_tile[1]} columns. Take a wider tile, or narrower stores."
        )
    if not plan.body.has_roles and plan.scheduler.split.is_split and plan.scheduler.split.reduction == "kernel":
        yield (
            "the parts of K are added by a second kernel, vector by vector, which knows no pairs. Take "
            "reduction = 'last', or all of K in one part."
        )
    if plan.loaded.b.major == "n":
        yield from _along_n(plan, pairs.block)


def wide_results(epilogue: Epilogue) -> Iterator[str]:
    """Yield a sentence for each result of a gated epilogue that has all N columns of A @ B, not N / 2 as D."""
    for name, expression in (*epilogue.results, *epilogue.reductions):
        if name in epilogue.wide:
            has = "reduces" if isinstance(expression, Reduction) else "has"
            yield (
                f"{name} = {expression} {has} all columns of A @ B, D half of them. Take gate and up of it as two "
                "results."
            )


def _along_n(plan: GemmPlan, block: int) -> Iterator[str]:
    """Yield a sentence if the vectors or TMA boxes of an n-major B contain columns of gates and of up projections.

    block   number of adjacent gate columns in the tile
    """
    box = plan.b.load
    width = box.box[0] if isinstance(box, TmaBox) else box.atom.values if isinstance(box, TiledCopy) else 1
    if plan.operands.gated == "pairs" and width > 1:
        yield (
            f"B is n-major, where gates and ups alternate, and loaded {width} neighbours at a time. Pass B k-major, as "
            "b.mT.contiguous().mT is, or take halves(). For wgmma, +repack behind the plan's name copies it first."
        )
    elif isinstance(box, TiledCopy) and block % size(box.tiler_mn[0]) and size(box.tiler_mn[0]) % block:
        yield (
            f"B is n-major and copied {size(box.tiler_mn[0])} columns at a time, but {block} gates lie together in a "
            f"tile of {plan.cta_tile[1]} columns. Take a tile of a multiple of {2 * size(box.tiler_mn[0])}."
        )
    elif block % width:
        yield (
            f"B is n-major and loaded {width} neighbours at a time, but {block} gates lie together in a tile of "
            f"{plan.cta_tile[1]} columns. Take a tile of a multiple of {2 * width}."
        )


def gated_problem_rules(plan: GemmPlan, problem: Problem) -> Iterator[str]:
    """Yield a sentence for each rule that a problem breaks because its gating or its N does not fit the plan."""
    by, have = plan.operands.gated, problem.operands.gated
    if by != have:
        yield f"B's columns are {have or 'not gated'}; the plan is made for {by or 'ones that are not'}."
    elif by and problem.n % 2:
        yield f"N = {problem.n}; {by} of an even number of columns are expected."
    elif by == "halves" and plan.loaded.b.major == "n":
        size_bytes, align_bytes = problem.n // 2 * plan.loaded.b.dtype.bits // 8, plan.loaded.b.align_bytes
        if size_bytes % align_bytes:
            yield (
                f"N / 2 = {problem.n // 2} columns of an n-major B take {size_bytes} bytes, no multiple of the "
                f"{align_bytes} that the plan's accesses need. Pass B k-major, or columns of zeros behind each half."
            )
