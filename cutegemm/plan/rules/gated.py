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
            f"B is {ops.b}, but the epilogue {epilogue} takes {epilogue.gated or 'no two'} of its columns. Use "
            "`with_epilogue`, which makes a plan for both."
        )
        return
    marked = {name for name, operand in ops.aux if operand.gated}
    if marked != set(epilogue.halved):
        both = " and ".join(sorted(marked ^ set(epilogue.halved)))
        yield (
            f"{both} is a row of N numbers in only one of the operands and the epilogue {epilogue}. Use "
            "`with_epilogue`, which changes both."
        )
    if not ops.gated:
        return
    yield from wide_results(epilogue)
    pairs = plan.pairs
    if pairs is None:
        yield (
            f"{epilogue}: in tiles of {plan.cta_tile[1]} columns no thread has the gate and the up accumulator "
            "of a pair. Change the width of the tile to an even multiple of the distance between a thread's "
            "columns."
        )
        return
    if plan.body.has_roles:
        if 2 * pairs.block != plan.cta_tile[1]:
            yield (
                f"{epilogue}: a thread has the gate and the up accumulator of a pair if blocks of "
                f"{pairs.block} gate and {pairs.block} up columns alternate, but TMA loads all gate columns of "
                f"a tile of {plan.cta_tile[1]} columns before its up columns. Use `with_epilogue`, which makes "
                "a plan for this."
            )
            return
        try:
            _ = plan.consumer_d_mma
        except PlanError as error:
            yield (
                f"tiles of {plan.cta_tile[1]} columns give {plan.cta_tile[1] // 2} columns of D: "
                f"{'; '.join(error.violations)}. Take a multiple of 32 columns."
            )
            return
    elif not plan.paired_vectors:
        yield (
            f"D is stored {plan.store.atom.values} adjacent elements at a time, but only {pairs.block} gate "
            f"columns are adjacent in a tile of {plan.cta_tile[1]} columns. Take a wider tile, or narrower "
            "stores."
        )
    if not plan.body.has_roles and plan.scheduler.split.is_split and plan.scheduler.split.reduction == "kernel":
        yield (
            "reduction = 'kernel': a second kernel adds the accumulators of the K splits and cannot compute a "
            "gated epilogue. Use reduction = 'last', or split_k = 1."
        )
    if plan.loaded.b.major == "n":
        yield from _along_n(plan, pairs.block)


def wide_results(epilogue: Epilogue) -> Iterator[str]:
    """Yield a sentence for each result of a gated epilogue that has all N columns of A @ B, not N / 2 as D."""
    for name, expression in (*epilogue.results, *epilogue.reductions):
        if name in epilogue.wide:
            has = "reduces" if isinstance(expression, Reduction) else "has"
            yield (
                f"{name} = {expression} {has} all N columns of A @ B; D has N / 2. Return gate and up as two results."
            )


def _along_n(plan: GemmPlan, block: int) -> Iterator[str]:
    """Yield a sentence if vectors or TMA boxes of an n-major B would contain both gate and up columns (GLU).

    block   number of adjacent gate columns in the tile; as many up columns follow them
    """
    box = plan.b.load
    width = box.box[0] if isinstance(box, TmaBox) else box.atom.values if isinstance(box, TiledCopy) else 1
    if plan.operands.gated == "pairs" and width > 1:
        yield (
            f"B is n-major with alternating gate and up columns, and is loaded {width} adjacent elements at a "
            "time. Pass B k-major, such as b.mT.contiguous().mT, or use halves(). For wgmma, append +repack "
            "to the name of the plan."
        )
    elif isinstance(box, TiledCopy) and block % size(box.tiler_mn[0]) and size(box.tiler_mn[0]) % block:
        yield (
            f"B is n-major and copied {size(box.tiler_mn[0])} columns at a time, but only {block} gate columns "
            f"are adjacent in a tile of {plan.cta_tile[1]} columns. Make the tile width a multiple of "
            f"{2 * size(box.tiler_mn[0])}."
        )
    elif block % width:
        yield (
            f"B is n-major and loaded {width} adjacent elements at a time, but only {block} gate columns are "
            f"adjacent in a tile of {plan.cta_tile[1]} columns. Make the tile width a multiple of {2 * width}."
        )


def gated_problem_rules(plan: GemmPlan, problem: Problem) -> Iterator[str]:
    """Yield a sentence for each rule of gated GEMMs (GLU) that a problem breaks with a plan.

    The arrangement of gate and up columns in B must be the plan's. N must be even, and its halves aligned as the plan
    expects.

    plan      plan, built for operands with an arrangement and alignments
    problem   extents, types and strides of the matrices
    """
    by, have = plan.operands.gated, problem.operands.gated
    if by != have:
        yield f"B's columns are {have or 'not gated'}; the plan is made for {by or 'columns that are not gated'}."
    elif by and problem.n % 2:
        yield f"N = {problem.n}; {by} need an even number of columns."
    elif by == "halves" and plan.loaded.b.major == "n":
        size_bytes, align_bytes = problem.n // 2 * plan.loaded.b.dtype.bits // 8, plan.loaded.b.align_bytes
        if size_bytes % align_bytes:
            yield (
                f"N / 2 = {problem.n // 2} columns of an n-major B take {size_bytes} bytes, which is not a "
                f"multiple of {align_bytes}, the alignment of the plan's accesses. Pass B k-major, or pad each "
                "half with columns of zeros."
            )
