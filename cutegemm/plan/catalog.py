"""The plans that have a name, and the choice among them.

A name stands for tile sizes; what else the plan is follows from the operands: how a tile is loaded from their
majorness and alignment, how wide the accesses are from their types.
"""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from functools import cache, lru_cache

from cutegemm.arch import DEFAULT_ARCH
from cutegemm.dtypes import tf32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.choice import H200_MULTIPROCESSORS
from cutegemm.plan.mma_sync_catalog import choose_mma_sync, mma_sync_named, mma_sync_names
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.simt_catalog import simt_named, simt_names
from cutegemm.plan.simt_choice import choose_simt
from cutegemm.plan.simt_ladder import ladder_named, ladder_names
from cutegemm.plan.sm90_catalog import sm90_named, sm90_names
from cutegemm.plan.sm90_choice import choose_sm90

TRANSPOSED = "transposed:"  # in front of a name: the plan is to serve D^T = B^T A^T


def plans() -> list[tuple[str, str]]:
    """Every name, with what is behind it.

    >>> plans()[0][0]
    'simt_256x128'
    """
    return simt_names() + ladder_names() + mma_sync_names() + sm90_names()


@cache
def plan_named(name: str, operands: Operands, with_c: bool = False, arch: str = DEFAULT_ARCH) -> GemmPlan:
    """The plan of a name, or of a text that spells out the arguments of a builder.

    name     one of `plans()`, "simt:block=128x128x8,warp=64x32,thread=8x8,stages=3,mma_order=n" for
             `simt_plan`, "mma_sync:block=128x128x64,stages=3" for `mma_sync_plan`, or
             "sm90:tile=128x128x64,cluster=2x1,slots=4" for `sm90_plan`. After "transposed:" the plan of
             the rest for `operands.transposed`, as `gemm` then calls it
    with_c   whether the kernel must be able to read C; those of `simt_plan` and `mma_sync_plan` always are
    arch     whose shared memory mma.sync plans fill
    raises   UnsupportedError for another name; PlanError where the operands break the plan's rules

    >>> plan_named("simt_64x64", Operands.of("f32")).cta_tile
    (64, 64, 16)
    >>> plan_named("simt:block=64x64x8,warp=32x32,thread=8x4,stages=4", Operands.of("f32")).stages
    4
    """
    if name.startswith(TRANSPOSED):
        return plan_named(name.removeprefix(TRANSPOSED), operands.transposed, with_c, arch)
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


def prefers_transposed(operands: Operands) -> bool:
    """Whether D^T = B^T A^T is the better problem: an m-major D of bytes, which threads hold in pairs along N.

    >>> prefers_transposed(Operands.of("e4m3", layout="nt", out_major="m"))
    True
    """
    return operands.d.major == "m" and operands.d.dtype.bits == 8


@lru_cache(maxsize=4096)
def choose(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    multiprocessors: int = H200_MULTIPROCESSORS,
    with_c: bool = False,
) -> GemmPlan:
    """The named plan that a simple model holds to be the fastest.

    On sm_90a narrow inputs that TMA can load are multiplied by wgmma: see `choose_sm90`. Other ones of 16
    bits, and tf32, are by mma.sync; f32 and f64 by SIMT plans: see `choose_simt`.

    raises   PlanError where no named plan serves the operands on the architecture

    >>> small, large = Problem(128, 128, 512), Problem(8192, 8192, 512)
    >>> choose(Operands.of("f32"), small).name, choose(Operands.of("f32"), large).name
    ('simt_128x16/k2', 'simt_256x128+pack')
    """
    if arch == "sm_90a" and operands.a.dtype.bits <= 16:
        with suppress(PlanError):
            return choose_sm90(operands, problem, multiprocessors, with_c)
    if operands.a.dtype.bits == 16 or operands.a.dtype is tf32:
        return choose_mma_sync(operands, problem, arch, multiprocessors)
    return choose_simt(operands, problem, arch, multiprocessors)
