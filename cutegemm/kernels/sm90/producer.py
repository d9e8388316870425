"""The producer of a Hopper kernel: fills the queue with k-tiles by TMA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int16, Int32
from cutlass.cute.nvgpu import cpasync

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.queue import Queue, QueueOfTiles
from cutegemm.layout.inttuple import product


@dataclass
class Load:
    """How tiles of A, or of B, come by TMA.

    gX        (box, tiles, k_tiles, L)
    sX        (box, stages)
    options   multicast and L2 policy
    """

    atom: cute.CopyAtom
    gX: cute.Tensor
    sX: cute.Tensor
    options: dict[str, Any]


class Producer(QueueOfTiles):
    """Methods without a decorator are plain Python, run while tracing."""

    def loads(self, tma_a, mA, tma_b, mB, queue: Queue, rank) -> tuple[Load, Load]:
        """What this CTA loads: its share of the A of its row of the cluster, and of the B of its column."""
        plan = self.plan
        bM, bN, bK = plan.cta_tile
        cm, cn = plan.cluster_mn
        m_rank, n_rank = rank % cm, rank // cm
        row = sum(1 << (n * cm) for n in range(cn))  # the ranks with the same m_rank, for m_rank = 0
        column = (1 << cm) - 1
        a = self.load(plan.load_a, tma_a, mA, queue.sA, (bM, bK), n_rank, row << m_rank)
        b = self.load(plan.load_b, tma_b, mB, queue.sB, (bN, bK), m_rank, column << (n_rank * cm))
        return a, b

    def load(self, box, atom, mX, sX, tile, share, mask) -> Load:
        gX = cute.local_tile(mX, tile, (None, None, None))  # (b_MN, bK, tiles, k_tiles, L)
        tXsX, tXgX = cpasync.tma_partition(
            atom,
            share,
            cute.make_layout(box.multicast),
            cute.group_modes(sX, 0, 2),
            cute.group_modes(gX, 0, 2),
        )
        options = lower.l2_policy(box)
        if box.multicast > 1:
            options["mcast_mask"] = Int16(mask)
        return Load(atom, tXgX, tXsX, options)

    def fill(self, loads, queue: Queue, tile_mnl, k_tile, stage) -> None:
        """One warp: asks for a k-tile of A and of B."""
        a, b = loads
        m_tile, n_tile, batch = tile_mnl
        full = queue.full + stage
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, self.plan.barrier("full").transaction_bytes)
        cute.copy(a.atom, a.gX[None, m_tile, k_tile, batch], a.sX[None, stage], tma_bar_ptr=full, **a.options)
        cute.copy(b.atom, b.gX[None, n_tile, k_tile, batch], b.sX[None, stage], tma_bar_ptr=full, **b.options)

    @cute.jit
    def produce(self, tma_a, mA, tma_b, mB, queue: cutlass.Constexpr, work: cutlass.Constexpr):
        """One warp: the k-tiles of every unit of this CTA, in the order of the units."""
        loads = self.loads(tma_a, mA, tma_b, mB, queue, work.rank)
        stage, phase = Int32(0), Int32(0)
        number = work.first
        while number < work.units:
            unit = self.unit(work, number)
            tile_mnl = self.tile_of(work, unit.tile)
            for k_tile in cutlass.range(unit.k_count, unroll=1):
                cute.arch.mbarrier_wait(queue.empty + stage, phase ^ 1)
                self.fill(loads, queue, tile_mnl, unit.k_first + k_tile, stage)
                stage, phase = self.next_stage(stage, phase)
            number = self.following(work, number)
        # No CTA leaves while a consumer of another may still arrive at its barriers
        if cutlass.const_expr(product(self.plan.cluster_mn) > 1):
            for _ in cutlass.range(self.plan.stages, unroll=1):
                cute.arch.mbarrier_wait(queue.empty + stage, phase ^ 1)
                stage, phase = self.next_stage(stage, phase)
