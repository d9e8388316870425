"""Sliced-K and cluster split-K: add accumulators of warps, or of CTAs of a cluster, in shared memory.

The warps or CTAs multiply different k of the same tile of D.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

ACCUMULATOR_ALIGN_BYTES = 16  # alignment of accumulators in shared memory
ACCUMULATOR_VECTOR = 4  # accumulators that a thread sends or stores in one access: 16 bytes


@dataclass(frozen=True)
class SlicedK:
    """Describe sliced-K: the warps of a CTA split K, and their accumulators are added in shared memory.

    The warps of a CTA multiply different k of the same rows and columns. If the CTAs of a cluster along M split K too,
    each CTA multiplies the rows of all of them, and stores its own rows. After the mainloop:

    1. Each warp writes its accumulators to its own region of shared memory.
    2. Each thread of `added` adds the accumulators of all warps, in the order of the warps, for its elements of every
    CTA's tile. Sums for another CTA's tile are written to that CTA's shared memory.
    3. These threads add the sums from all CTAs, in the order of their ranks.

    added      tiled MMA whose C layout maps threads to the elements of the CTA's tile (bM, bN) that they add and store
    by_warp    layout (bM * CTAs, bN, warps) of the warps' accumulators in shared memory; offsets in elements
    by_cta     layout (bM, bN, CTAs) of the sums received from each CTA, stored after those of `by_warp`; None if the
               CTAs of a cluster do not split K
    """

    added: TiledMma
    by_warp: Layout
    by_cta: Layout | None = None

    @property
    def warps(self) -> int:
        """Return the number of warps of a CTA that split K among them."""
        return self.by_warp[2].size()


def exchanged(plan: GemmPlan) -> Layout:
    """Return the layout of the accumulators that a CTA receives in shared memory if its cluster splits K.

    The layout maps (vector, threads, vectors, CTAs, consumers) to an offset in elements. CTAs are the senders, the CTA
    itself included; the first mode has the 4 accumulators of a 16-byte vector. Each thread sends its accumulators of
    another CTA's columns to the thread of the same index there. Vectors of neighbouring threads are adjacent. The
    receiving thread adds the vectors in the order of the CTAs.

    plan   plan with warp roles (producer and consumers)

    >>> from cutegemm.build import sm90_plan
    >>> str(exchanged(sm90_plan(tile=(64, 64, 64), cluster_k=4)))
    '(4,128,2,4,2):(1,4,512,1024,4096)'
    """
    threads, own = plan.consumer_threads, product(plan.consumer_tile)
    vectors = own // (threads * ACCUMULATOR_VECTOR)
    return Layout((ACCUMULATOR_VECTOR, threads, vectors, plan.cluster_k, plan.body.consumers))


def sent(plan: GemmPlan) -> Layout:
    """Return which accumulators a thread sends to each CTA of its cluster when the CTAs split K, as a layout.

    The layout maps (element of a vector, vector, receiving CTA) to the index of the accumulator in the thread's
    registers. Vectors have 16 bytes and are in the order of `exchanged`, the layout of the received accumulators.

    plan   plan with warp roles (producer and consumers)

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
