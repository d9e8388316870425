"""The recipes of mma.sync plans.

A name fixes the tiles. The number of stages follows from the shared memory of the architecture, and the copies of A and
B from their majorness and alignment. f32 operands are multiplied as tf32: whoever names such a plan asks for that.
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

_DEEPEST_BYTES = 128  # bytes of a k-tile along K, at most
_MOST_STAGES = 4
# A stage of at most _SMALL_BYTES has few MMAs to cover the latency of memory, so there may be _STAGES_OF_SMALL stages.
# Not so for copies of 4 bytes, which go through L1: more stages leave less of it (33.6 us with 4 stages, 41.2 us with
# 6; 18 x 11054 x 2512 in 32 x 64, H200, 2026-11-22).
_SMALL_BYTES, _SMALL_ALIGN_BYTES, _STAGES_OF_SMALL = 12288, 8, 6
_WARP = (64, 64)  # warp tile of a recipe that does not have the option
# If elements of 16 bits are loaded one at a time, one k-tile is in flight. It is twice as deep if a thread then loads
# at most this many elements.
_MOST_HALVES = 64
_HALVES_STAGES = 2
# Elements of a k-tile per thread, at most, if they are loaded one at a time. With more, registers spill: 51 us instead
# of 26 us (846 x 111 x 8390 in 128 x 64, H100, 2026-11-22).
_MOST_ELEMENTS = 72
_LARGE = 128 * 128  # elements of a large tile
_PER_ACCESS = 2  # registers that the compiler keeps for each cp.async access of a thread


def _shared(text: str) -> Shared | str:
    """Convert a text to the argument `shared` of `mma_sync_plan`, which says how tiles lie in shared memory.

    text   "swizzled", "padded" or "plain", which are returned unchanged; or the text of a `Shared`: "k+4" is contiguous
           along K, with rows padded by 4 elements
    """
    major, _, pad = text.partition("+")
    return text if major not in ("k", "mn") else Shared(major=major, pad=int(pad or 0))


def _least(arch: str) -> str:
    """Return the architecture's name without the suffix "a": "sm_90a" becomes "sm_90".

    mma.sync plans do not need the instructions that only the "a" variant has.
    """
    return arch.rstrip("a")


def spills(plan: GemmPlan) -> bool:
    """Return whether a plan without split-K is predicted to spill registers, because of many narrow cp.async accesses.

    The compiler keeps the addresses of these accesses in registers during the whole mainloop, in addition to the
    registers of the epilogue. 14890 x 126 x 82 of bf16 takes 16.3 us with 128 x 128 tiles, which spill 320 bytes, and
    11.8 us with 128 x 64 tiles (H100, 2026-11-22).

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
    """Return whether a plan loads a large tile through registers 2 bytes at a time, which takes too many registers.

    114 x 8536 x 4937 of bf16 (nt) takes 164 us with such a plan of 128 x 256 tiles, and 113 us with repack passes and
    wgmma (H100, 2026-11-22).

    >>> plans = [MmaSyncRecipe("mine", "", {"block": (128, columns)}) for columns in (64, 128)]
    >>> [by_halves(plan.build(Operands.of("bf16", align_bytes=2))) for plan in plans]
    [False, True]
    """
    bm, bn, _ = plan.cta_tile
    loads = [load for load in (plan.a.load, plan.b.load) if isinstance(load, TiledCopy)]
    return bm * bn >= _LARGE and any(load.atom.bits == HALF_BITS for load in loads)


@dataclass(frozen=True)
class MmaSyncRecipe(Recipe):
    """An mma.sync plan that is not built yet: its name, and its options; `build` makes it for given operands.

    Options that a user spelled out are passed to `mma_sync_plan` unchanged. In the options of a built-in plan, "block"
    is (bM, bN) only. Its bK is computed from "k_bytes", the size of a k-tile along K in bytes. If these options do not
    have "stages", the largest bK that fits shared memory is used, at most "k_bytes", with a suitable number of stages.

    rate   speed on large problems relative to the plan `mma_128x256`; None: `choose` does not consider the plan
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
        """Build the mma.sync plan for operands as the kernel sees them, with the largest bK that fits shared memory.

        operands   transposed already if the plan swaps A and B
        target     architecture and device properties that the plan is built for
        raises     PlanError if no pair (bK, stages) fits
        """
        arch, ops = _least(target.arch), operands.as_tf32
        texts = {"name": self.plan_name, "summary": self.summary}
        options = {**texts, **self.options, **self.split_options}
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
        d_bytes = block[0] * block[1] * ops.d.dtype.bits // 8
        options.setdefault("store", "shared" if d_bytes <= room and self.split is None else "direct")
        error: PlanError | None = None
        for deep, stages in self._depths(ops, (*block, deepest), room):
            try:
                return mma_sync_plan(ops, block=(*block, deep), stages=stages, arch=arch, **options)
            except PlanError as plan_error:
                error = plan_error
        assert error is not None
        raise error

    def _depths(self, operands: Operands, tile: tuple[int, int, int], room: int) -> Iterator[tuple[int, int]]:
        """Yield the pairs (bK, stages) to try for a tile, largest bK first; the caller uses the first pair that works.

        operands   operands as the kernel sees them: transposed if it swaps A and B
        tile       (bM, bN, largest size of a k-tile along K in bytes)
        room       shared memory in bytes that a CTA may use
        """
        (bm, bn, k_bytes), bits = tile, operands.a.dtype.bits
        rows, deepest = bm + bn, k_bytes * 8 // bits
        align = min(operands.a.align_bytes, operands.b.align_bytes)
        if align < min(CP_ASYNC_BYTES["ca"]):  # through registers, a k-tile at a time
            warp_m, warp_n = self.options.get("warp", _WARP)
            threads = bm * bn // (warp_m * warp_n) * WARP_THREADS
            if k_bytes == _DEEPEST_BYTES and 2 * deepest * rows <= _MOST_HALVES * threads:
                yield 2 * deepest, _HALVES_STAGES
            for divisor in (1, 2, 4):
                if rows * deepest // divisor <= _MOST_ELEMENTS * threads or divisor == 4:
                    yield deepest // divisor, _HALVES_STAGES
            return
        is_small = rows * k_bytes <= _SMALL_BYTES and align >= _SMALL_ALIGN_BYTES
        for divisor in (1, 2, 4):
            most = _STAGES_OF_SMALL if is_small else min(divisor, 2) * _MOST_STAGES
            yield deepest // divisor, max(2, min(room * divisor // (rows * k_bytes), most))


@dataclass(frozen=True)
class MmaTmaRecipe(MmaSyncRecipe):
    """An `mma_tma_plan` that is not built yet: its name, and its options; `build` makes it for given operands.

    Such a plan multiplies by mma.sync, and a producer warp loads k-tiles by TMA. Options that a user spelled out are
    passed on unchanged. In the options of a built-in plan, "block" is (bM, bN) only; its k-tiles have 128 bytes along
    K, or 64 if they would not fit shared memory.
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
        """Build the TMA plan for the operands as the kernel sees them, with k-tiles of 128 bytes, else of 64 bytes.

        operands   transposed already if the plan swaps A and B
        target     architecture and device properties that the plan is built for
        raises     PlanError if neither size fits shared memory
        """
        ops = operands.as_tf32
        defaults = {"name": self.name, "summary": self.summary, "arch": target.arch, "ctas": target.sms}
        options = {**defaults, **self.options}
        if self.spelled_out:
            return mma_tma_plan(ops, **options)
        block, deep = options.pop("block"), _DEEPEST_BYTES * 8 // ops.a.dtype.bits
        try:
            return mma_tma_plan(ops, block=(*block, deep), **options)
        except PlanError:
            return mma_tma_plan(ops, block=(*block, deep // 2), **options)
