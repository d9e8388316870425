"""The recipes of mma.sync plans.

A name stands for tiles; how many stages there are follows from the architecture's shared memory, and
how tiles travel from majorness and alignment. Operands of f32 are multiplied as tf32: who asks for such a
plan by its name asks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cutegemm.build.building import Shared
from cutegemm.build.mma_sync import mma_sync_plan
from cutegemm.build.mma_sync_tma import mma_tma_plan
from cutegemm.choice.options import parse_tuple
from cutegemm.choice.recipe import BuildTarget, Recipe
from cutegemm.errors import PlanError
from cutegemm.machine.arch import MAX_REGISTERS_PER_THREAD, WARP_THREADS, arch_named
from cutegemm.plan.plan import HALF_BITS, GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.tile.copy_atoms import CP_ASYNC_BYTES
from cutegemm.tile.tiled_copy import TiledCopy

_DEEPEST_BYTES = 128  # of a k-tile along K
_MOST_STAGES = 4
# A stage so small has few products for the latency of memory. Where copies of 4 bytes go through L1, more stages leave
# less of it: 33.6 us with 4 stages, 41.2 with 6 (18 x 11054 x 2512 in 32 x 64, one H200, 2026-11-22).
_SMALL_BYTES, _SMALL_ALIGN_BYTES, _STAGES_OF_SMALL = 12288, 8, 6
_WARP = (64, 64)  # where a recipe does not say
# Where elements of 16 bits come by themselves, a k-tile at a time: a deeper one, as far as a thread has so many of it
_MOST_HALVES = 64
_HALVES_STAGES = 2
# Elements of a k-tile of a thread, where some come by themselves. Of more it spilled: 51 us in place of 26 (846 x 111 x
# 8390 in 128 x 64, an H100, 2026-11-22)
_MOST_ELEMENTS = 72
_LARGE = 128 * 128  # elements of a tile
_PER_ACCESS = 2  # registers of the compiler's for each access of a thread by cp.async


def _shared(text: str) -> Shared | str:
    """swizzled, padded or plain; or k+4: along K, with 4 elements of padding."""
    major, _, pad = text.partition("+")
    return text if major not in ("k", "mn") else Shared(major=major, pad=int(pad or 0))


def _least(arch: str) -> str:
    """The architecture without the instructions of its own, which these plans do not need."""
    return arch.rstrip("a")


def spills(plan: GemmPlan) -> bool:
    """Whether threads are held to spill registers where K is whole: for the places of narrow accesses by cp.async,
    which the compiler keeps from one k-tile to the next, beside what the end of a tile takes.

    14890 x 126 x 82 of bf16 took 16.3 us in 128 x 128, which spills 320 bytes, and 11.8 in 128 x 64 (H100, 2026-11-22).

    >>> plan = MmaSyncRecipe("mine", "", {"block": (128, 128), "ctas_per_sm": 2})
    >>> [spills(plan.build(Operands.of("bf16", align_bytes=align))) for align in (16, 4)]
    [False, True]
    """
    (bm, bn, bk), accesses = plan.cta_tile, 0
    for extent, load in ((bm, plan.a.load), (bn, plan.b.load)):
        if isinstance(load, TiledCopy) and load.atom.is_async:
            accesses += extent * bk // (load.atom.values * plan.threads)
    return sum(plan.registers().values()) + _PER_ACCESS * accesses > MAX_REGISTERS_PER_THREAD


def by_halves(plan: GemmPlan) -> bool:
    """Whether a large tile comes by loads of 2 bytes, which pass through registers: threads have too many under way.

    114 x 8536 x 4937 of bf16, nt, took 164 us in 128 x 256 and 146 in 128 x 128, K split in 3; packed first, by wgmma,
    113 (H100, 2026-11-22).

    >>> plans = [MmaSyncRecipe("mine", "", {"block": (128, columns)}) for columns in (64, 128)]
    >>> [by_halves(plan.build(Operands.of("bf16", align_bytes=2))) for plan in plans]
    [False, True]
    """
    bm, bn, _ = plan.cta_tile
    loads = [load for load in (plan.a.load, plan.b.load) if isinstance(load, TiledCopy)]
    return bm * bn >= _LARGE and any(load.atom.bits == HALF_BITS for load in loads)


@dataclass(frozen=True)
class MmaSyncRecipe(Recipe):
    """What a plan of mma.sync is before its operands are known.

    rate   speed on large problems, that of `mma_128x256` being 1; None: not to be chosen

    Of `options`, block is (bM, bN) where they are not spelled out: bK and the stages follow from what fits. k_bytes are
    the bytes of a k-tile along K, at most where stages are not told.
    """

    family: ClassVar[str] = "mma_sync"
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        **dict.fromkeys(("block", "warp"), parse_tuple),
        **dict.fromkeys(("atom_k", "stages", "fragments", "load_chunks", "load_bytes", "load_run", "k_run"), int),
        **dict.fromkeys(("store_elems", "ctas_per_sm", "split_k", "waves", "persistent"), int),
        **dict.fromkeys(("load", "cache", "read", "store", "rounding"), str),
        **dict.fromkeys(("warps_along", "raster", "mma_order", "arch"), str),
        **dict.fromkeys(("split_order", "reduction"), str),
        "shared": _shared,
    }
    splits: ClassVar[frozenset[str]] = frozenset({"k", "last", "s"})
    reduction: ClassVar[str] = "kernel"
    repacks: ClassVar[bool] = False

    rate: float | None = None

    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """The plan for operands: the deepest k-tiles and then the most stages that fit an architecture.

        raises   PlanError where nothing does
        """
        arch, ops = _least(target.arch), operands.as_tf32
        called = {"name": self.plan_name, "summary": self.summary}
        options = {**called, **self.options, **self.split_options}
        if self.spelled_out:
            return mma_sync_plan(ops, **{"arch": arch, **options})
        block = options.pop("block")
        deepest = options.pop("k_bytes", _DEEPEST_BYTES)
        if "stages" in options:
            deep = deepest * 8 // ops.a.dtype.bits
            if "load_bytes" in options:
                options["load_bytes"] = max(options["load_bytes"], ops.a.dtype.bits // 8)
            return mma_sync_plan(ops, block=(*block, deep), arch=arch, **options)
        room = arch_named(arch).smem_of_each_bytes(options.get("ctas_per_sm", 1))
        of_d = block[0] * block[1] * ops.d.dtype.bits // 8
        options.setdefault("store", "shared" if of_d <= room and self.split is None else "direct")
        error: PlanError | None = None
        for deep, stages in self._depths(ops, (*block, deepest), room):
            try:
                return mma_sync_plan(ops, block=(*block, deep), stages=stages, arch=arch, **options)
            except PlanError as found:
                error = found
        assert error is not None
        raise error

    def _depths(self, operands: Operands, tile: tuple[int, int, int], room: int) -> Iterator[tuple[int, int]]:
        """bK and the stages, to be tried one after the other.

        tile   (bM, bN, bytes of a k-tile along K, at most)
        room   bytes of shared memory
        """
        (bm, bn, k_bytes), bits = tile, operands.a.dtype.bits
        rows, deepest = bm + bn, k_bytes * 8 // bits
        align = min(operands.a.align_bytes, operands.b.align_bytes)
        if align < min(CP_ASYNC_BYTES["ca"]):  # through registers, a k-tile at a time
            warp_m, warp_n = self.options.get("warp", _WARP)
            threads = bm * bn // (warp_m * warp_n) * WARP_THREADS
            if k_bytes == _DEEPEST_BYTES and 2 * deepest * rows <= _MOST_HALVES * threads:
                yield 2 * deepest, _HALVES_STAGES
            for share in (1, 2, 4):
                if rows * deepest // share <= _MOST_ELEMENTS * threads or share == 4:
                    yield deepest // share, _HALVES_STAGES
            return
        is_small = rows * k_bytes <= _SMALL_BYTES and align >= _SMALL_ALIGN_BYTES
        for share in (1, 2, 4):
            most = _STAGES_OF_SMALL if is_small else min(share, 2) * _MOST_STAGES
            yield deepest // share, max(2, min(room * share // (rows * k_bytes), most))


@dataclass(frozen=True)
class MmaTmaRecipe(MmaSyncRecipe):
    """What a plan is whose k-tiles a producer brings by TMA.

    Of `options`, block is (bM, bN) where they are not spelled out: bK and the stages follow from what fits.
    """

    family: ClassVar[str] = "mma_tma"
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        **dict.fromkeys(("block", "warp"), parse_tuple),
        **dict.fromkeys(("stages", "ctas"), int),
        **dict.fromkeys(("store", "raster", "mma_order", "arch"), str),
    }
    loads_boxes: ClassVar[bool] = True
    splits: ClassVar[frozenset[str]] = frozenset()

    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """The plan for operands: k-tiles of 128 bytes along K, or where there is no room for two of 64.

        raises   PlanError where nothing does
        """
        ops = operands.as_tf32
        given = {"name": self.name, "summary": self.summary, "arch": target.arch, "ctas": target.sms}
        options = {**given, **self.options}
        if self.spelled_out:
            return mma_tma_plan(ops, **options)
        block, deep = options.pop("block"), _DEEPEST_BYTES * 8 // ops.a.dtype.bits
        try:
            return mma_tma_plan(ops, block=(*block, deep), **options)
        except PlanError:
            return mma_tma_plan(ops, block=(*block, deep // 2), **options)
