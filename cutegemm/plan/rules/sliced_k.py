"""Rules for sliced-K and cluster split-K: warps or CTAs split K and add their accumulators through shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.errors import PlanError
from cutegemm.layout import Layout, product_each
from cutegemm.machine.arch import MAX_CLUSTER_CTAS, WARP_THREADS
from cutegemm.plan.program.sliced_schedule import sliced_schedule
from cutegemm.plan.rules.boxes import overlapping
from cutegemm.tile.atoms import runs_on
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


def sliced_k_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each rule on sliced-K (warps of a CTA split K) that a plan breaks.

    The rules are on the threads that add accumulators, and on the layouts of accumulators in shared memory.
    """
    if plan.body.has_roles and plan.cluster_k > 1:
        yield from _own_columns(plan)
    mma = plan.tiled_mma
    sliced_k = sliced_schedule(plan).sliced_k if plan.body.slices_k else None
    along_k = mma.thr_layout_vmnk[3].size()
    if plan.pdl and (sliced_k is None or not runs_on("sm_90", plan.arch)):
        yield (
            f"pdl = True needs a gemv plan (sliced-K) on sm_90 or later; this plan is for {plan.arch}. Leave pdl out."
        )
    if sliced_k is None:
        if not plan.body.has_roles and along_k > 1:
            yield (
                f"{along_k} threads of the tiled MMA split K; use a SlicedSchedule, which says how their "
                "accumulators are added."
            )
        return
    scheduler = plan.scheduler
    if plan.stages or scheduler.split.is_split or plan.repacks or scheduler.grid.is_persistent:
        yield (
            "sliced-K does not support shared-memory stages, split-K, repack passes and a persistent grid. "
            "Leave them out."
        )
    if plan.store.layout is not None:
        yield "with sliced-K the threads that add the accumulators also store D, from registers. Use a RegisterStore."
    if plan.operands.gated:
        yield "sliced-K cannot compute a gated epilogue. Use another plan."
    bm, bn, _ = plan.cta_tile
    (ctas, along_n), rows = plan.cluster_mn, plan.mma_tile[0]
    if along_n != 1:
        yield f"the cluster is {plan.cluster_mn}; with sliced-K the CTAs of a cluster are along M, as (CTAs, 1)."
    if ctas > 1 and plan.operands.acc.bits != 32:
        yield f"the accumulators are {plan.operands.acc}; CTAs of a cluster exchange only 32-bit accumulators."
    if ctas > MAX_CLUSTER_CTAS:
        yield f"{ctas} CTAs of a cluster split K; a cluster has at most {MAX_CLUSTER_CTAS} CTAs."
    if along_k * WARP_THREADS != plan.threads:
        yield (
            f"{along_k} warps of the tiled MMA split K, but the CTA has {plan.threads} threads. All warps must split K."
        )
    shapes = [("by_warp", sliced_k.by_warp, (rows, bn, along_k))]
    if sliced_k.by_cta is not None:
        shapes.append(("by_cta", sliced_k.by_cta, (bm, bn, ctas)))
    elif ctas > 1:
        yield (
            f"by_cta is None, but {ctas} CTAs split K and exchange accumulators of a tile of {bm} x {bn}. Pass "
            "their layout."
        )
    for name, layout, want in shapes:
        if product_each(layout.shape) != want:
            yield f"{name} is {layout}; its extents must be {want}."
        else:
            yield from overlapping(f"the accumulators {name}", layout)
    if sliced_k.added.atom.threads != 1:
        yield (
            f"{sliced_k.added} has atoms of {sliced_k.added.atom.threads} threads; `added` needs atoms of one thread."
        )
    elif sliced_k.added.thr_layout_vmnk[3].size() != 1:
        yield f"{sliced_k.added} has several threads for an element of D; `added` needs one thread for each element."
    elif any(tile % step for tile, step in zip((bm, bn), sliced_k.added.tile_mnk[:2], strict=True)):
        yield (
            f"{sliced_k.added} covers {sliced_k.added.tile_mnk[:2]} of D, which does not divide the tile, {(bm, bn)}."
        )
    if sliced_k.added.threads > plan.threads or sliced_k.added.threads % WARP_THREADS:
        yield (
            f"{sliced_k.added.threads} threads of `added` add the accumulators; their number must be a multiple of "
            f"32 and at most the {plan.threads} threads of a CTA."
        )


def _own_columns(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence if a CTA cannot store its columns as a wgmma of its width would, with cluster split-K.

    Each CTA multiplies the columns of all CTAs of the cluster and stores its own, so the layout must be that of a
    narrower wgmma.
    """
    try:
        _ = plan.epilogue_mma
    except PlanError as error:
        yield (
            f"each of {plan.cluster_k} CTAs of the cluster split-K stores {plan.cta_tile[1]} of "
            f"{plan.mma_tile[1]} columns: {'; '.join(error.violations)}."
        )


def fragment_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence if threads load other fragments from global memory than those that they multiply.

    The rule is for plans without shared memory.
    """
    if not plan.body.slices_k:
        return
    rows, bn, bk = plan.mma_tile
    for name, extent, copy in (("A", rows, plan.a.load), ("B", bn, plan.b.load)):
        assert isinstance(copy, TiledCopy)
        wrong = _not_read(copy, plan.tiled_mma, name, (extent, bk))
        if wrong is not None:
            yield (
                f"{copy} loads other elements of {name} to thread {wrong} than this thread multiplies by "
                f"{plan.tiled_mma}."
            )


def _not_read(copy: TiledCopy, mma: TiledMma, name: str, tile: tuple[int, int]) -> int | None:
    """Return the index of the first thread that loads other elements than it multiplies; None if all threads agree.

    A vector that a thread loads has the fragments of several successive k-blocks, for one row. So the elements are
    compared for these k-blocks together, as sets.

    copy   tiled copy from global memory to registers
    mma    tiled MMA, which says what each thread multiplies
    name   "A" or "B"
    tile   extents (M or N, K) of the tile
    """
    held = (mma.offsets_a if name == "A" else mma.offsets_b)(Layout(tile))  # (threads, values, rest_mn, rest_k)
    read = copy.offsets_s(Layout(tile))
    if read.shape[0] != held.shape[0] or read.size != held.size:
        return 0
    threads, per = held.shape[0], _blocks_of_vector(copy, mma, name)
    if per is None:
        return 0
    by_share = held.transpose(0, 3, 1, 2).reshape(threads, held.shape[3] // per, -1)
    vectors = read.reshape(threads, copy.atom.values, -1, *read.shape[2:], order="F")
    of_share = vectors.transpose(0, 4, 2, 1, 3).reshape(by_share.shape)
    bad = (np.sort(by_share, axis=2) != np.sort(of_share, axis=2)).any(axis=(1, 2))
    return int(np.flatnonzero(bad)[0]) if bad.any() else None


def _blocks_of_vector(copy: TiledCopy, mma: TiledMma, name: str) -> int | None:
    """Return the number of k-blocks that one loaded vector of a row has fragments for; None if it is not an integer.

    copy   tiled copy from global memory to registers
    mma    tiled MMA, which says what each thread multiplies
    name   "A" or "B"
    """
    rows = 2 if name == "A" else 1  # rows of the atom with elements of one thread
    of_row = mma.atom.layout_tv(name.lower())[1].size() // rows
    return copy.atom.values // of_row if copy.atom.values % of_row == 0 else None
