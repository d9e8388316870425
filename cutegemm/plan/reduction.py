"""Accumulators of warps, or CTAs of a cluster, that multiply different k of one tile, added in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

ACCUMULATOR_ALIGN_BYTES = 16  # of where they lie in shared memory
ACCUMULATOR_VECTOR = 4  # of a thread of a pipeline, which go to other CTAs, or to the workspace, at once: 16 bytes


@dataclass(frozen=True)
class SlicedK:
    """How the sums of warps that share K become those of a tile of D.

    The warps of a CTA multiply different k of the same rows and columns. So do the CTAs of a cluster along M: each
    multiplies the rows of all of them, and stores its own. When K is done,

        write   each warp its sums of these rows to a place of its own
        add     each thread of `added` the sums of all warps, of its elements of the tile of every CTA, in the order of
                the warps; those of another CTA's tile are written to that CTA's shared memory
        add     the same threads those of all CTAs, in the order of their ranks: the sums of the CTA's tile

    added      threads -> elements of a CTA's tile (bM, bN), whose totals they have and store
    by_warp    (bM * CTAs, bN, warps) of sums, to places in shared memory
    by_cta     (bM, bN, CTAs) of the sums that have come from each CTA, behind these; None where a CTA is by itself
    """

    added: TiledMma
    by_warp: Layout
    by_cta: Layout | None = None

    @property
    def warps(self) -> int:
        """Return the number of warps of a CTA that split K."""
        return self.by_warp[2].size()


def exchanged(plan: GemmPlan) -> Layout:
    """Of a pipeline whose CTAs share K: where the sums of a CTA's columns lie in its shared memory, in elements:
    (vector, threads, vectors, CTAs, consumers), from each of the CTAs that share K, itself among them.

    Each thread sends vectors of its sums to the same thread of the CTA that stores these columns, 16 bytes at a time,
    and neighbours side by side; that one adds what has come to its own places, in the order of the CTAs.

    >>> from cutegemm.build import sm90_plan
    >>> str(exchanged(sm90_plan(tile=(64, 64, 64), cluster_k=4)))
    '(4,128,2,4,2):(1,4,512,1024,4096)'
    """
    threads, own = plan.consumer_threads, product(plan.consumer_tile)
    vectors = own // (threads * ACCUMULATOR_VECTOR)
    return Layout((ACCUMULATOR_VECTOR, threads, vectors, plan.cluster_k, plan.body.consumers))


def sent(plan: GemmPlan) -> Layout:
    """Return which accumulators of a thread go to each of the CTAs that split K: (vector, vectors, CTAs) to registers,
    in the order of `exchanged`. The plan has warp roles.

    >>> from cutegemm.build import sm90_plan
    >>> str(sent(sm90_plan(tile=(128, 64, 64), cluster_k=2)))
    '(4,(4,2),2):(1,(4,32),16)'
    """
    downs = plan.consumer_mma.partition_shape_C(plan.consumer_mma_tile)[1]
    across = exchanged(plan)[2].size() // downs
    own = ACCUMULATOR_VECTOR * across
    return Layout(
        (ACCUMULATOR_VECTOR, (across, downs), plan.cluster_k), (1, (ACCUMULATOR_VECTOR, own * plan.cluster_k), own)
    )
