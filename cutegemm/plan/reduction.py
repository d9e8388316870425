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
    """How accumulators are added in sliced-K, where the warps of a CTA multiply different k of the same tile.

    CTAs of a cluster along M may split K too: then each multiplies the rows of all of them, and stores its own. After
    the mainloop:

    1. Each warp writes its accumulators to its own region of shared memory.
    2. Each thread of `added` adds the accumulators of all warps, in order, for its elements of every CTA's tile. It
    writes sums for another CTA's tile to that CTA's shared memory.
    3. These threads add the sums from all CTAs, in the order of their ranks.

    added      tiled MMA whose C layout says which elements of the tile (bM, bN) each thread adds and stores
    by_warp    layout (bM * CTAs, bN, warps) of the warps' accumulators in shared memory; offsets in elements
    by_cta     layout (bM, bN, CTAs) of the sums from each CTA, after those of `by_warp`; None if only warps split K
    """

    added: TiledMma
    by_warp: Layout
    by_cta: Layout | None = None

    @property
    def warps(self) -> int:
        """Return the number of warps of a CTA that split K among them."""
        return self.by_warp[2].size()


def exchanged(plan: GemmPlan) -> Layout:
    """Return the layout of the shared memory where a CTA receives accumulators, if the CTAs of its cluster split K.

    It maps (element of a vector, thread, vector, sending CTA, consumer) to an offset in elements. A vector has 4
    accumulators, 16 bytes; a CTA also sends to itself. Thread t of a sender writes the vectors of thread t of the
    receiver, which adds them in the order of the CTAs. Vectors of neighbouring threads are adjacent.

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

    It maps (element of a vector, vector, receiving CTA) to the index of the accumulator among the thread's registers. A
    vector has 4 accumulators, 16 bytes. The receiver's memory has the layout `exchanged`.

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
