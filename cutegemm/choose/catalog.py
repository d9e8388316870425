"""The plans that have a name, and the choice among them.

A name stands for tile sizes; what else the plan is follows from the operands: how a tile is loaded from their
majorness and alignment, how wide the accesses are from their types.
"""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from functools import cache, lru_cache

from cutegemm.choose.mma_sync.named import choose_mma_sync, mma_sync_named, mma_sync_names
from cutegemm.choose.simt.choice import choose_simt
from cutegemm.choose.simt.ladder import ladder_named, ladder_names
from cutegemm.choose.simt.named import simt_named, simt_names
from cutegemm.choose.sm90.choice import best_predicted_us, choose_sm90, packing_pays
from cutegemm.choose.sm90.named import sm90_named, sm90_names
from cutegemm.dtypes import DType, f32, f64
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.machine.arch import DEFAULT_ARCH
from cutegemm.machine.device import H200_MULTIPROCESSORS
from cutegemm.plan.arguments import not_operands
from cutegemm.plan.memory.packing import to_pack_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.tile.mma_atoms import WGMMA_M

TRANSPOSED_GAIN = 1.01  # by which it must be faster
TRANSPOSED = "transposed:"  # in front of a name: the plan is to serve D^T = B^T A^T


def plans() -> list[tuple[str, str]]:
    """Every name, with what is behind it.

    >>> plans()[0][0]
    'simt_256x128'
    """
    return simt_names() + ladder_names() + mma_sync_names() + sm90_names()


def plan_named(name: str, operands: Operands, with_c: bool = False, arch: str = DEFAULT_ARCH) -> GemmPlan:
    """The plan of a name, or of a text that spells out the arguments of a builder.

    name     one of `plans()`, "simt:block=128x128x8,warp=64x32,thread=8x8,stages=3,mma_order=n" for
             `simt_plan`, "mma_sync:block=128x128x64,stages=3" for `mma_sync_plan`,
             "mma_tma:block=256x128x64,warp=64x64" for `mma_tma_plan`, or
             "sm90:tile=128x128x64,cluster=2x1,slots=4" for `sm90_plan`. After "transposed:" the plan of
             the rest for `operands.transposed`, as `gemm` then calls it
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
    return _named(name, operands, with_c, arch)


@cache
def _named(name: str, operands: Operands, with_c: bool, arch: str) -> GemmPlan:
    if name.startswith(TRANSPOSED):
        try:
            return _named(name.removeprefix(TRANSPOSED), operands.transposed, with_c, arch)
        except PlanError as error:
            subject = f"{error.subject} for D^T = B^T A^T, whose A is B^T"
            raise PlanError(subject, error.violations) from None
    by_threads = simt_named(name, operands) or ladder_named(name, operands)
    if by_threads is not None:
        return by_threads
    by_mma_sync = mma_sync_named(name, operands, arch)
    if by_mma_sync is not None:
        return by_mma_sync
    if name.startswith("sm90"):
        plan = sm90_named(name, operands, with_c)
        if plan is not None:
            return plan
    close = get_close_matches(name, [known for known, _ in plans()], n=4, cutoff=0.5)
    meant = f" Is it {' or '.join(close)}?" if close else ""
    raise UnsupportedError(
        f"plan_named: no plan is called {name!r}.{meant} `cutegemm plans` lists them; simt:block=..., "
        "mma_sync:block=... and sm90:tile=... spell one out."
    )


def loads_boxes(name: str) -> bool:
    """Whether the plan of a name loads A and B by TMA, which takes rows of any length, but no stride of 0.

    >>> [loads_boxes(name) for name in ("sm90_slots", "mma_tma_128x256", "mma_64x64")]
    [True, True, False]
    """
    return name.startswith(("sm90", "mma_tma"))


def by_simt(dtype: DType) -> bool:
    """Whether elements are multiplied by SIMT plans, and not by tensor cores.

    >>> by_simt(f32), by_simt(DType.parse("tf32"))
    (True, False)
    """
    return dtype in (f32, f64)


def prefers_transposed(operands: Operands, problem: Problem, arch: str = DEFAULT_ARCH) -> bool:
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
    best_us = best_predicted_us(operands, problem)
    return best_predicted_us(operands.transposed, problem.transposed) * gain < best_us


def by_wgmma(
    operands: Operands, problem: Problem, multiprocessors: int, with_c: bool = False, accumulate: str = "fast"
) -> GemmPlan | None:
    """The Hopper plan to take; None where mma.sync is held to be faster, or alone serves the operands.

    raises   PlanError where nothing serves operands of 8 bits

    >>> [by_wgmma(Operands.of("tf32"), Problem(n, n, n), 132) is None for n in (256, 4096)]
    [True, False]
    """
    if operands.a.dtype.bits == 8:
        return choose_sm90(operands, problem, multiprocessors, with_c, accumulate)
    if to_pack_for_wgmma(operands) and not packing_pays(operands, problem, multiprocessors):
        return None
    with suppress(PlanError):
        return choose_sm90(operands, problem, multiprocessors, with_c, accumulate)
    return None


@lru_cache(maxsize=4096)
def choose(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    multiprocessors: int = H200_MULTIPROCESSORS,
    with_c: bool = False,
) -> GemmPlan:
    """The named plan that a simple model holds to be the fastest.

    f32 and f64 are multiplied by SIMT plans: see `choose_simt`. Other inputs are by wgmma on sm_90a: see `choose_sm90`.
    Where they would have to be packed for it and that does not pay, those of 16 bits, and tf32, are by mma.sync.

    raises   PlanError where no named plan serves the operands on the architecture

    >>> small, large = Problem(128, 128, 512), Problem(8192, 8192, 512)
    >>> choose(Operands.of("f32"), small).name, choose(Operands.of("f32"), large).name
    ('simt_128x16/k2', 'simt_256x128+pack')
    """
    if operands.a.dtype.bits == 8 and arch != "sm_90a":
        only = f"{operands.a.dtype} is multiplied by wgmma alone, which sm_90a has and {arch} has not."
        raise PlanError(f"choose: no named plan for {operands}", [only])
    if by_simt(operands.a.dtype):
        return choose_simt(operands, problem, arch, multiprocessors)
    found = by_wgmma(operands, problem, multiprocessors, with_c) if arch == "sm_90a" else None
    return found or choose_mma_sync(operands, problem, arch, multiprocessors)
