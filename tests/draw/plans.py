"""Plans to draw: one of each family."""

from __future__ import annotations

from cutegemm.build import Shared, simt_plan
from cutegemm.dtypes import bf16
from cutegemm.layout import Layout, Swizzle, tile_to_shape
from cutegemm.plan import GemmPlan, Operands, OperandStream, Role, TileScheduler
from cutegemm.plan.program.thread_schedule import multistage
from cutegemm.plan.store import RegisterStore
from cutegemm.tile.copy_atoms import cp_async, ldmatrix, universal_copy
from cutegemm.tile.mma_atoms import mma_sync, wgmma
from cutegemm.tile.raster import Raster
from cutegemm.tile.smem_atoms import smem_atom
from cutegemm.tile.tiled_copy import make_tiled_copy_tv
from cutegemm.tile.tiled_mma import TiledMma


def simt() -> GemmPlan:
    """With padding on the one operand, a swizzle on the other, and three stages."""
    return simt_plan(
        name="simt",
        summary="for the tests",
        shared_a=Shared(pad=4),
        shared_b=Shared(swizzle=Swizzle(2, 2, 5)),
        stages=3,
    )


def tensor_cores() -> GemmPlan:
    """mma.sync m16n8k16: the lane that holds an element of D does not hold all that feeds it."""
    smem = tile_to_shape(smem_atom(bf16, "k", "64B"), (128, 32, 3), (0, 1, 2))
    load = make_tiled_copy_tv(cp_async(bf16, 16, "cg"), Layout((32, 4), (4, 1)), Layout((1, 8)))
    return GemmPlan(
        name="mma_sync",
        family="mma_sync",
        arch="sm_80",
        operands=Operands.of("bf16", layout="nt"),
        cta_tile=(128, 128, 32),
        tiled_mma=TiledMma(mma_sync(bf16, 16), Layout((2, 2, 1)), (32, 32, 16)),
        streams=tuple([OperandStream(name, mode, load, smem, ldmatrix(bf16, 4)) for name, mode in ("am", "bn")]),
        store=RegisterStore(universal_copy(bf16, 32)),
        scheduler=TileScheduler(Raster("grouped_m", 8)),
        body=multistage(3, 2),
        roles=(Role("all", 4),),
    )


def warpgroups() -> TiledMma:
    """Two warpgroups, each with one wgmma atom."""
    return TiledMma(wgmma(bf16, 128), Layout((2, 1, 1)))
