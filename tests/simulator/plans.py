"""Plans that the tests carry out, and ways to break them without the checks of the constructor."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from cutegemm.build import Shared, simt_plan
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.plan import GemmPlan, Operands, OperandStream, TileScheduler
from cutegemm.plan.program.thread_schedule import multistage
from cutegemm.plan.role import Role
from cutegemm.plan.store import RegisterStore
from cutegemm.tile.copy_atoms import cp_async, ldmatrix, universal_copy
from cutegemm.tile.mma_atoms import mma_sync
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import make_tiled_copy_tv
from cutegemm.tile.tiled_mma import TiledMma
from tests.streams import stream_changes

SMALL = {"block": (32, 32, 8), "warp": (32, 32), "thread": (8, 4)}
WARPS = {"block": (64, 64, 8), "warp": (32, 32), "thread": (8, 4)}


def small_plan(operands: Operands | None = None, **changes: Any) -> GemmPlan:
    """One warp: a tile of 32 x 32 x 8."""
    return simt_plan(operands, **{**SMALL, **changes})


def violations(thing: Any, **changes: Any) -> Any:
    """A plan, or a part of one, with fields changed, whatever its rules say."""
    if isinstance(thing, GemmPlan):
        changes = stream_changes(thing, **changes)
    out = object.__new__(type(thing))
    for field in fields(thing):
        object.__setattr__(out, field.name, changes.pop(field.name, getattr(thing, field.name)))
    assert not changes
    return out


def mma_sync_plan(dtype: str, k: int, *, matrices: int | None = None, acc: str | None = None) -> GemmPlan:
    """A tensor-core plan from registers: 2 x 2 warps, tiles of 64 x 32, both operands k-major.

    matrices   matrices of an ldmatrix; default: plain reads
    """
    ops = Operands.of(dtype, layout="nt", acc=acc, out="s32" if dtype == "s8" else None)
    kind, bk = ops.a.dtype, 4 * k
    mma = TiledMma(mma_sync(kind, k, ops.acc), Layout((2, 2, 1)), (64, 32, k))
    vector = 128 // kind.bits
    thr = Layout((128 // (bk // vector), bk // vector), (bk // vector, 1))
    load = make_tiled_copy_tv(cp_async(kind, 16, "cg"), thr, Layout((1, vector)))
    smem = [Layout((extent, bk, 3), (bk + vector, 1, extent * (bk + vector))) for extent in (64, 32)]
    read = ldmatrix(kind, matrices) if matrices else universal_copy(kind, kind.bits)
    return GemmPlan(
        name=f"mma_sync.{dtype}.k{k}",
        family="mma_sync",
        arch="sm_80",
        operands=ops,
        cta_tile=(64, 32, bk),
        tiled_mma=mma,
        streams=(
            OperandStream("a", "m", load, smem[0], read),
            OperandStream("b", "n", load, smem[1], ldmatrix(kind, min(2, matrices)) if matrices else read),
        ),
        store=RegisterStore(universal_copy(ops.d.dtype, 2 * ops.d.dtype.bits)),
        scheduler=TileScheduler(Raster("along_n")),
        body=multistage(3, 4),
        roles=(Role("all", 4),),
    )


LAYOUTS = {
    "plain": Shared(),
    "padded": Shared(pad=4),
    "swizzled": Shared(swizzle=Swizzle(2, 3, 3)),
    "k-major": Shared("k"),
    "k-major, padded": Shared("k", pad=4),
}


def overlapping(layout: Layout | ComposedLayout) -> Layout:
    """The layout with its rows half as far apart."""
    assert isinstance(layout, Layout)
    return Layout(layout.shape, tuple([d // 2 if d > 1 else d for d in layout.stride]))
