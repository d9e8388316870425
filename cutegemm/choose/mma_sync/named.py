"""The mma.sync plans that have a name, and the choice among them.

A name stands for tiles; how deep the queue of k-tiles is follows from the architecture's shared memory, and
how tiles travel from majorness and alignment. Operands of f32 are multiplied as tf32: who asks for such a
plan by its name asks for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from cutegemm.build.building import Shared
from cutegemm.build.mma_sync import mma_sync_plan
from cutegemm.build.mma_sync_tma import mma_tma_plan
from cutegemm.choose.common import busiest_cost, by_reason, parse_options, parse_tuple
from cutegemm.errors import PlanError
from cutegemm.machine.arch import SMEM_RESERVED_BYTES, arch_named
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits

# What `choose_mma_sync` adds to K for each tile: filling the pipeline and writing D, in steps of K.
_START_STEPS = 512
_DEEPEST_BYTES = 128  # of a k-tile along K
_MOST_STAGES = 4


@dataclass(frozen=True)
class NamedMmaSync:
    """A plan by name.

    options   arguments of `mma_sync_plan`. block is (bM, bN): bK and the stages follow from what fits, or are
              told by k_bytes, the bytes of a k-tile along K, and stages
    rate      speed on large problems, that of the fastest being 1; None: not to be chosen
    """

    name: str
    summary: str
    options: Mapping[str, Any]
    rate: float | None = None

    def build(self, operands: Operands, arch: str) -> GemmPlan:
        """The plan for operands: the deepest k-tiles and then the most stages that fit an architecture.

        raises   PlanError where nothing does
        """
        ops, options = operands.as_tf32, {"name": self.name, "summary": self.summary, **self.options}
        block = options.pop("block")
        if "k_bytes" in options:
            deep = options.pop("k_bytes") * 8 // ops.a.dtype.bits
            if "load_bytes" in options:
                options["load_bytes"] = max(options["load_bytes"], ops.a.dtype.bits // 8)
            return mma_sync_plan(ops, block=(*block, deep), arch=_least(arch), **options)
        limits, ctas = arch_named(_least(arch)), options.get("ctas_per_sm", 1)
        room = min(limits.smem_per_block_bytes, limits.smem_per_sm_bytes // ctas - SMEM_RESERVED_BYTES)
        of_d = block[0] * block[1] * ops.d.dtype.bits // 8
        options.setdefault("store", "shared" if of_d <= room else "direct")
        error: PlanError | None = None
        for share in (1, 2, 4):
            tile = (*block, _DEEPEST_BYTES * 8 // ops.a.dtype.bits // share)
            fit = room * share // ((block[0] + block[1]) * _DEEPEST_BYTES)
            most = max(2, min(fit, min(share, 2) * _MOST_STAGES))
            try:
                return mma_sync_plan(ops, block=tile, stages=most, arch=_least(arch), **options)
            except PlanError as found:
                error = found
        assert error is not None
        raise error


def _least(arch: str) -> str:
    """The architecture without the instructions of its own, which these plans do not need."""
    return arch.rstrip("a")


# Rates of the large ones: one H200, bf16, 4096 and 8192 cubed, normal data, 2026-11-20; others are estimates.
MMA_SYNC_PLANS = (
    NamedMmaSync(
        "mma_128x256", "8 warps of 64 x 64; columns of B outermost",
        {"block": (128, 256), "raster": "grouped_n:8"}, 1.0,
    ),
    NamedMmaSync(
        "mma_256x128", "8 warps of 64 x 64; rows of A outermost",
        {"block": (256, 128), "mma_order": "m"}, 0.98,
    ),
    NamedMmaSync(
        "mma_128x128",
        "4 warps of 64 x 64; two CTAs a multiprocessor, so that one covers the other's barriers",
        {"block": (128, 128), "ctas_per_sm": 2},
        0.90,
    ),
    NamedMmaSync(
        "mma_128x64", "4 warps of 64 x 32; for middling problems",
        {"block": (128, 64), "warp": (64, 32), "ctas_per_sm": 2}, 0.75,
    ),
    NamedMmaSync(
        "mma_64x64", "4 warps of 32 x 32; for small problems",
        {"block": (64, 64), "warp": (32, 32), "ctas_per_sm": 2}, 0.6,
    ),
    NamedMmaSync(
        "mma_32x64", "2 warps of 32 x 32; for problems of few tiles",
        {"block": (32, 64), "warp": (32, 32), "ctas_per_sm": 3}, 0.4,
    ),
    NamedMmaSync(
        "mma_16x128", "4 warps of 16 x 32; for few rows",
        {"block": (16, 128), "warp": (16, 32), "ctas_per_sm": 3}, 0.35,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class NamedMmaTma(NamedMmaSync):
    """A plan by name whose k-tiles a producer brings by TMA.

    options   arguments of `mma_tma_plan`. block is (bM, bN): bK and the stages follow from what fits
    """

    def build(self, operands: Operands, arch: str) -> GemmPlan:
        """The plan for operands: k-tiles of 128 bytes along K, or where there is no room for two of 64.

        raises   PlanError where nothing does
        """
        ops, options = operands.as_tf32, {"name": self.name, "summary": self.summary, **self.options}
        block, deep = options.pop("block"), _DEEPEST_BYTES * 8 // ops.a.dtype.bits
        try:
            return mma_tma_plan(ops, block=(*block, deep), arch=arch, **options)
        except PlanError:
            return mma_tma_plan(ops, block=(*block, deep // 2), arch=arch, **options)


# For sm_90. What passes shared memory's 128 bytes a cycle for four
# products of mma.sync: 5.5 rows of 128 bytes with warps of 64 x 64 in 256 x 128, 4.9 with 64 x 80 in 256 x 160;
# the tensor cores take 6.1 to 6.7 cycles for them by the ceiling of an H200 at 1.8 to 2.0 GHz.
MMA_SYNC_FED = (
    NamedMmaTma(
        "mma_tma_128x256", "as mma_128x256, by a producer and warps that go on by themselves",
        {"block": (128, 256), "raster": "grouped_n:8"}, 1.07,
    ),
    NamedMmaTma(
        "mma_tma_256x128", "as mma_256x128, by a producer and warps that go on by themselves",
        {"block": (256, 128), "mma_order": "m"}, 1.08,
    ),
    NamedMmaTma(
        "mma_tma_256x160",
        "8 warps of 64 x 80: a tenth fewer reads a product, in the registers that the producer leaves",
        {"block": (256, 160), "warp": (64, 80)},
    ),
)  # fmt: skip


@cache
def _by_name() -> dict[str, NamedMmaSync]:
    from cutegemm.choose.mma_sync.ladder import MMA_SYNC_LADDER

    return {named.name: named for named in (*MMA_SYNC_PLANS, *MMA_SYNC_FED, *MMA_SYNC_LADDER)}


def mma_sync_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; the steps of the ladder last."""
    return [(named.name, named.summary) for named in _by_name().values()]


def _shared(text: str) -> Shared | str:
    """swizzled, padded or plain; or k+4: along K, with 4 elements of padding."""
    major, _, pad = text.partition("+")
    return text if major not in ("k", "mn") else Shared(major=major, pad=int(pad or 0))


_OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("block", "warp"), parse_tuple),
    **dict.fromkeys(
        ("atom_k", "stages", "fragments", "shares", "load_bytes", "k_run", "store_elems", "ctas_per_sm"), int
    ),
    **dict.fromkeys(
        ("load", "cache", "read", "store", "rounding", "warps_along", "raster", "mma_order", "arch"), str
    ),
    "shared": _shared,
}
_TMA_OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("block", "warp"), parse_tuple),
    **dict.fromkeys(("stages", "ctas"), int),
    **dict.fromkeys(("store", "raster", "mma_order", "arch"), str),
}


@cache
def mma_sync_named(name: str, operands: Operands, arch: str) -> GemmPlan | None:
    """The plan of a name, or of a text that spells out a builder's arguments; None for another name.

    name     one of `mma_sync_names()`, "mma_sync:block=128x128x32,warp=64x64,stages=4" for `mma_sync_plan`, or
             "mma_tma:block=128x128x32,warp=64x32" for `mma_tma_plan`
    arch     whose shared memory is the limit
    raises   PlanError where the operands break the plan's rules

    >>> mma_sync_named("mma_128x256", Operands.of("bf16"), "sm_90a").stages
    4
    >>> mma_sync_named("mma_128x256", Operands.of("f32"), "sm_80").cta_tile
    (128, 256, 32)
    """
    if name.startswith("mma_sync:"):
        options = {"arch": _least(arch), **parse_options(name, _OPTIONS)}
        return mma_sync_plan(operands.as_tf32, name=name, **options)
    if name.startswith("mma_tma:"):
        options = {"arch": arch, **parse_options(name, _TMA_OPTIONS)}
        return mma_tma_plan(operands.as_tf32, name=name, **options)
    named = _by_name().get(name)
    return None if named is None else named.build(operands, arch)


def _on(named: NamedMmaSync, multiprocessors: int) -> NamedMmaSync:
    """Its persistent grid on a device with so many."""
    return replace(named, options={**named.options, "ctas": multiprocessors})


def choose_mma_sync(operands: Operands, problem: Problem, arch: str, multiprocessors: int) -> GemmPlan:
    """The named plan that a simple model, `busiest_cost`, holds to be the fastest.

    raises   PlanError where none serves the operands

    >>> small, large = Problem(256, 512, 4096), Problem(8192, 8192, 8192)
    >>> [choose_mma_sync(Operands.of("bf16"), p, "sm_80", 108).name for p in (small, large)]
    ['mma_32x64', 'mma_128x256']
    """
    best: tuple[float, GemmPlan] | None = None
    refusals: list[tuple[str, str]] = []
    fed = [_on(named, multiprocessors) for named in MMA_SYNC_FED] if arch.startswith("sm_90") else []
    for named in (*MMA_SYNC_PLANS, *fed):
        if named.rate is None:
            continue
        try:
            plan = named.build(operands, arch)
        except PlanError as error:
            refusals += [(named.name, rule) for rule in error.violations]
            continue
        too_large = list(limits(plan, problem))
        if too_large:
            refusals += [(named.name, rule) for rule in too_large]
            continue
        cost = busiest_cost(plan, problem, named.rate, multiprocessors, _START_STEPS)
        if best is None or cost < best[0]:
            best = (cost, plan)
    if best is None:
        raise PlanError(f"choose_mma_sync: no named plan for {operands} on {arch}", by_reason(refusals))
    return best[1]
