"""Kernels of plans with one schedule that need a workspace: for a repack pass, for K splits, or for both.

| plan             | launches, in order                                                                       |
|------------------|------------------------------------------------------------------------------------------|
| repacks A or B   | `repack.Repacker`, then the GEMM, which reads the repacked operands                      |
| splits K         | the GEMM, then `add_kernel` if a kernel adds the K splits: see `split_k`                 |

`plan.memory.workspace.regions` says where each region of the workspace starts.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from cutegemm.kernels import lower
from cutegemm.kernels.arguments import launch_arguments
from cutegemm.kernels.glu import columns_of_b
from cutegemm.kernels.launches import SMEM_CARVEOUT_PERCENT
from cutegemm.kernels.reduce import Reducer
from cutegemm.kernels.repack import Repacker, region
from cutegemm.kernels.threads.split_k import SplitKGemm
from cutegemm.kernels.values import Values
from cutegemm.kernels.work import TRACED
from cutegemm.plan.launches import GEMM, REPACK, SUMS, uses_pdl
from cutegemm.plan.memory.workspace import regions, repacked_bytes_of


class WorkspaceGemm(SplitKGemm):
    """Host code for kernels that need a workspace in global memory, if all threads of a CTA follow the same schedule.

    A workspace is needed for K splits (accumulators), for a repack pass (a copy of A or B before the GEMM), or for
    both. The host code divides the workspace and launches the kernels one after the other.
    """

    @cute.jit
    def __call__(self, *arguments):
        plan, given = self.plan, launch_arguments(self.plan, arguments)
        mA, mB, mD, (tensors, results) = self.matrices(given)
        (space,), stream = given.spaces, given.stream
        (bM, bN, _), M, K, L = plan.cta_tile, mD.shape[0], mA.shape[1], mD.shape[2]
        work = self.tiles(mD).along(K)
        reducer = Reducer(plan, self.launches)
        partials = reducer.partials(given, mD, K)
        of_d = (tensors, (*results, *partials))
        extents = [Int64(extent) for extent in (M, columns_of_b(plan, mD), K, L)]
        parts = regions(plan, *extents, TRACED)
        firsts = {r.name: r.first for r in parts}
        whole = {"a": mA, "b": mB}
        if cutlass.const_expr(plan.repacks):
            whole |= Repacker(plan.repacks, self.launches[REPACK]).launch(whole, space, firsts, stream)
        accumulators, arrivals = [
            region(space, firsts[name], kind) if name in firsts else mD
            for name, kind in (("accumulators", lower.dtype(plan.operands.acc)), ("arrivals", Int32))
        ]
        tiles = self.handed(work.tiles)
        self.split_k_kernel(whole["a"], whole["b"], of_d, mD, accumulators, arrivals, given.scalars, tiles).launch(
            grid=(work.tiles.count if not plan.scheduler.grid.is_persistent else work.clusters, plan.split_k, 1),
            block=(plan.threads, 1, 1),
            stream=stream,
            min_blocks_per_mp=plan.ctas_per_sm,
            preferred_smem_carveout=SMEM_CARVEOUT_PERCENT,
            use_pdl=uses_pdl(self.launches[GEMM], repacked_bytes_of(parts)),
        )
        if cutlass.const_expr(SUMS in self.launches):
            vectors = bM * bN // (plan.threads * plan.store.atom.values)
            added = work.tiles.count if not plan.scheduler.grid.is_persistent else cutlass.max(work.shared, 1)
            of_d, scalars = Values.of(plan, of_d, given.scalars).operands_of(plan.epilogue.tail)
            self.add_kernel(K, of_d, mD, accumulators, scalars, tiles).launch(
                grid=(added, vectors, 1),
                block=(plan.threads, 1, 1),
                stream=stream,
                use_pdl=self.launches[SUMS].waits,
            )
        reducer.launch(partials, given, stream)
