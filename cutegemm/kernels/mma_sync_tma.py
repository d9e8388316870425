"""mma.sync fed by TMA: the schedule of `mainloop`, whose tiles one thread asks for instead of all.

| step    | here                                                                                        |
|---------|---------------------------------------------------------------------------------------------|
| Fetch   | the first warp: the bytes to come told to the stage's barrier, a box or several of A and B   |
| Commit  | -                                                                                           |
| Wait    | all threads: for the barrier of the oldest stage under way                                  |
| Sync    | as ever: what all have read may be overwritten by what is asked for next                    |

What lies outside of A and B arrives as zeros, so nothing is cleared and no predicate is kept. Threads hold no
addresses of global memory: warps of 64 x 80 fit their registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.cute.nvgpu import cpasync

from cutegemm.arch import WARP_THREADS
from cutegemm.kernels import lower
from cutegemm.kernels.mainloop import Parts
from cutegemm.kernels.mma_sync import MmaSyncGemm
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.schedule import Wait


@dataclass
class Feed:
    """How tiles of A, or of B, come.

    gX   (box, k_tiles)
    sX   (box, stages)
    """

    atom: cute.CopyAtom
    gX: cute.Tensor
    sX: cute.Tensor
    is_async: bool = True


class TmaFedGemm(MmaSyncGemm):
    """The kernel of an mma.sync plan whose A and B come by TMA."""

    def __init__(self, plan: GemmPlan) -> None:
        super().__init__(plan)
        assert plan.load_a is not plan.load_b  # they tell `load` which operand is meant

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        d: cute.Tensor,
        alpha: cutlass.Numeric,
        beta: cutlass.Numeric,
        stream,
    ):
        plan = self.plan
        bM, bN, bK = plan.cta_tile
        mA, mB, mC, mD = self.matrices(a, b, c, d)
        tma_a, tA = self.described(plan.load_a, mA, plan.smem_a, (bM, bK))
        tma_b, tB = self.described(plan.load_b, mB, plan.smem_b, (bN, bK))
        self.fed(tma_a, tA, tma_b, tB, mC, mD, alpha, beta).launch(
            grid=(self.tiles(mD), 1, 1),
            block=(plan.threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=plan.ctas_per_sm,
        )

    def described(self, box, tensor: cute.Tensor, given, tile) -> tuple[cute.CopyAtom, cute.Tensor]:
        """The copy of tiles of an operand, and its coordinates. A descriptor has no extent of 0."""
        shape = tensor.layout.shape
        some = cute.make_layout((shape[0], cutlass.max(shape[1], 1), shape[2]), stride=tensor.layout.stride)
        atom, coordinates = lower.tma_atom(box, cute.make_tensor(tensor.iterator, some), given, tile)
        layout = cute.make_layout(shape, stride=coordinates.layout.stride)
        return atom, cute.make_tensor(coordinates.iterator, layout)

    @cute.kernel
    def fed(
        self,
        tma_a: cute.CopyAtom,
        mA: cute.Tensor,
        tma_b: cute.CopyAtom,
        mB: cute.Tensor,
        mC: cute.Tensor,
        mD: cute.Tensor,
        alpha: cutlass.Numeric,
        beta: cutlass.Numeric,
    ):
        self.atoms = (tma_a, tma_b)
        self.warp = cute.arch.make_warp_uniform(cute.arch.thread_idx()[0] // WARP_THREADS)
        self.tile(mA, mB, mC, mD, alpha, beta)

    def set_up_barriers(self, at: cute.Pointer) -> None:
        """One for each stage."""
        self.full = cute.recast_ptr(at, dtype=cutlass.Int64)
        self.initialize(self.full)

    @cute.jit
    def initialize(self, first: cute.Pointer):
        """The barriers, for all threads."""
        if self.warp == 0:
            for atom in cutlass.range_constexpr(2):
                cpasync.prefetch_descriptor(self.atoms[atom])
            with cute.arch.elect_one():
                for stage in cutlass.range_constexpr(self.plan.stages):
                    cute.arch.mbarrier_init(first + stage, self.plan.barrier("full").arrivals)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

    def k_vector(self) -> int:
        """A box may begin anywhere."""
        return 1

    def load(self, copy, mX, sX, tile_mn_l, residue, tid) -> Feed:
        """The row of tiles of A, or of B, that this CTA needs."""
        tile, batch = tile_mn_l
        atom = self.atoms[0 if copy is self.plan.load_a else 1]
        tiler = tuple(cute.size(sX, mode=[mode]) for mode in (0, 1))
        gX = cute.local_tile(cute.domain_offset((0, residue), mX[None, None, batch]), tiler, (tile, None))
        tXsX, tXgX = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(sX, 0, 2), cute.group_modes(gX, 0, 2)
        )
        return Feed(atom, tXgX, tXsX)

    def clear(self, load: Feed) -> None:
        """Nothing: TMA writes the whole tile."""

    @cute.jit
    def fetch(
        self,
        parts: cutlass.Constexpr,
        step: cutlass.Constexpr,
        k_tile: Int32,
        stage: Int32,
        ragged: cutlass.Constexpr,
    ):
        """A k-tile of A and of B, where there is one."""
        if self.warp == 0 and k_tile < parts.k_tiles:
            full = self.full + stage
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, self.plan.barrier("full").transaction_bytes)
            for load in cutlass.range_constexpr(2):
                feed = parts.loads[load]
                cute.copy(feed.atom, feed.gX[None, k_tile], feed.sX[None, stage], tma_bar_ptr=full)

    def commit(self) -> None:
        """Nothing: a stage's barrier knows what belongs to it."""

    def wait(self, parts: Parts, step: Wait, k_tile, stage) -> None:
        """For the newest k-tile that is asked for but the last `pending`."""
        newest = self.plan.stages - (2 if isinstance(k_tile, int) else 1)
        ahead = newest - step.pending
        self.wait_for(parts, k_tile + ahead, self.stage_of(stage, ahead))

    @cute.jit
    def wait_for(self, parts: cutlass.Constexpr, k_tile: Int32, stage: Int32):
        """A k-tile, where there is one."""
        if k_tile < parts.k_tiles:
            cute.arch.mbarrier_wait(self.full + stage, (k_tile // self.plan.stages) & 1)
