"""From a name to its plan, and from a problem to the plan that a model holds to be the fastest.

A name stands for tile sizes; what else the plan is follows from the operands: how a tile is loaded from their
majorness and alignment, how wide the accesses are from their types.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import lru_cache

import cutegemm.choose.mma_sync.choice as mma_sync
import cutegemm.choose.simt.choice as simt
import cutegemm.choose.sm90.choice as sm90
from cutegemm.choose.candidate import Candidate
from cutegemm.choose.mma_sync.choice import choose_mma_sync
from cutegemm.choose.names import plans as plans
from cutegemm.choose.names import recipe_named
from cutegemm.choose.simt.choice import choose_simt
from cutegemm.choose.sm90.choice import Suits, best_predicted_us, choose_sm90, packing_pays
from cutegemm.dtypes import DType, f32, f64
from cutegemm.errors import PlanError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.arguments import not_operands
from cutegemm.plan.memory.packing import to_pack_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.tile.mma_atoms import WGMMA_M

TRANSPOSED_GAIN = 1.01  # by which it must be faster


def plan_named(name: str, operands: Operands, with_c: bool = False, arch: str = DEFAULT_ARCH) -> GemmPlan:
    """The plan of a name, or of a text that spells out the arguments of a builder.

    name     one of `plans()`, "simt:block=128x128x8,warp=64x32,thread=8x8,stages=3,mma_order=n" for
             `simt_plan`, "mma_sync:block=128x128x64,stages=3" for `mma_sync_plan`,
             "mma_tma:block=256x128x64,warp=64x64" for `mma_tma_plan`, or
             "sm90:tile=128x128x64,cluster=2x1,slots=4" for `sm90_plan`. After "transposed:" the plan of
             the rest for `operands.transposed`, as `gemm` then calls it. See `choose.names`
    with_c   whether the kernel of an `sm90_plan` must be able to read C; the others always are
    arch     whose shared memory mma.sync plans fill
    raises   UnsupportedError for another name; PlanError where the operands break the plan's rules, or are none

    >>> plan_named("simt_64x64", Operands.of("f32")).cta_tile
    (64, 64, 16)
    >>> plan_named("simt:block=64x64x8,warp=32x32,thread=8x4,stages=4", Operands.of("f32")).stages
    4
    """
    wrong = not_operands(operands)
    if not isinstance(name, str):
        wrong.append(f"name = {name!r}; the name of a plan is expected, as `cutegemm plans` lists them.")
    if wrong:
        raise PlanError(f"plan_named: {name!r}", wrong)
    return recipe_named(name).build(operands, with_c, arch)


def by_simt(dtype: DType) -> bool:
    """Whether elements are multiplied by SIMT plans, and not by tensor cores.

    >>> by_simt(f32), by_simt(DType.parse("tf32"))
    (True, False)
    """
    return dtype in (f32, f64)


def prefers_transposed(
    operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH, device: Device = DEFAULT_DEVICE
) -> bool:
    """Whether D^T = B^T A^T is the better problem for wgmma.

    So it is where its tiles are held to fill the grid better, as those of few rows do: tiles have any number of
    columns, but rows by 64; and for an m-major D of bytes, which threads hold in pairs along N.

    operands   as TMA loads A and B; those of 16 bits or more that would be packed may be multiplied by mma.sync

    >>> bf16, e4m3 = Operands.of("bf16", layout="nt"), Operands.of("e4m3", layout="nt", out_major="m")
    >>> prefers_transposed(bf16, Problem(16, 4096, 4096)), prefers_transposed(bf16, Problem(4096, 4096, 4096))
    (True, False)
    >>> prefers_transposed(e4m3, Problem(4096, 4096, 4096))
    True
    """
    a, d = operands.a, operands.d
    if arch != "sm_90a" or by_simt(a.dtype) or (a.dtype.bits != 8 and to_pack_for_wgmma(operands)):
        return False
    if d.dtype.bits == 8:
        return d.major == "m"
    gain = 1.0 if problem.m < WGMMA_M else TRANSPOSED_GAIN  # rows of A that no tile has so few of
    best_us = best_predicted_us(operands, problem, device)
    return best_predicted_us(operands.transposed, problem.transposed, device) * gain < best_us


def by_wgmma(
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    with_c: bool = False,
    accumulate: str = "fast",
    suits: Suits | None = None,
) -> GemmPlan | None:
    """The Hopper plan to take; None where mma.sync is held to be faster, or alone serves the operands.

    suits    see `choose_sm90`
    raises   PlanError where nothing serves operands of 8 bits

    >>> [by_wgmma(Operands.of("tf32"), Problem(n, n, n)) is None for n in (256, 4096)]
    [True, False]
    """
    if not _wgmma_pays(operands, problem, device):
        return None
    with nullcontext() if operands.a.dtype.bits == 8 else suppress(PlanError):
        return choose_sm90(operands, problem, device, with_c, accumulate, suits)
    return None


def _wgmma_pays(operands: Operands, problem: Problem, device: Device) -> bool:
    """Whether wgmma is held to be faster than mma.sync, or alone serves the operands."""
    alone = operands.a.dtype.bits == 8
    return alone or not to_pack_for_wgmma(operands) or packing_pays(operands, problem, device)


@lru_cache(maxsize=4096)
def choose(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    with_c: bool = False,
) -> GemmPlan:
    """The named plan that a simple model holds to be the fastest.

    f32 and f64 are multiplied by SIMT plans: see `choose_simt`. Other inputs are by wgmma on sm_90a: see `choose_sm90`.
    Where they would have to be packed for it and that does not pay, those of 16 bits, and tf32, are by mma.sync.

    device   whose rates the model takes
    raises   PlanError where no named plan serves the operands on the architecture

    >>> small, large = Problem(128, 128, 512), Problem(8192, 8192, 512)
    >>> choose(Operands.of("f32"), small).name, choose(Operands.of("f32"), large).name
    ('simt_128x16/k2', 'simt_256x128+pack')
    """
    if operands.a.dtype.bits == 8 and arch != "sm_90a":
        only = f"{operands.a.dtype} is multiplied by wgmma alone, which sm_90a has and {arch} has not."
        raise PlanError(f"choose: no named plan for {operands}", [only])
    if by_simt(operands.a.dtype):
        return choose_simt(operands, problem, arch, device)
    found = by_wgmma(operands, problem, device, with_c) if arch == "sm_90a" else None
    return found or choose_mma_sync(operands, problem, arch, device)


def candidates(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    device: Device = DEFAULT_DEVICE,
    accumulate: str = "fast",
) -> list[Candidate]:
    """The plans that `choose` weighs, with what a model predicts for each: the fastest first.

    Families are not compared plan by plan: all are of the one that is held to serve the problem best.

    raises   PlanError where no named plan serves the operands on the architecture

    >>> for found in candidates(Operands.of("bf16", layout="nt"), Problem(4096, 4096, 4096))[:2]:
    ...     print(f"{found.recipe}: {found.us:.0f} us, most of it {found.bound}")
    sm90_cluster_2x1/fill: 200 us, most of it tensor cores
    sm90_cluster_1x2/fill: 200 us, most of it tensor cores
    """
    if by_simt(operands.a.dtype):
        return simt.candidates(operands, problem, arch, device)
    if arch == "sm_90a" and _wgmma_pays(operands, problem, device):
        return sm90.candidates(operands, problem, device, accumulate)
    return mma_sync.candidates(operands, problem, arch, device)
