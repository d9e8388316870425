"""Plans of all kinds that reduce over rows, columns and all of D, for tests of the simulator and of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegemm.build import mma_sync_plan, mma_tma_plan, simt_plan, sm90_plan
from cutegemm.dtypes import round_to
from cutegemm.plan import GemmPlan, Operands
from tests.epilogues import CASES, reference

BF16, F32, F64 = (Operands.of(dtype, layout="nt") for dtype in ("bf16", "f32", "f64"))
NN = Operands.of("bf16", layout="nn")
M_MAJOR = Operands.of("f32", out_major="m")
# Few accumulators per thread: faster to compile
WARPS = {"block": (32, 64, 8), "warp": (16, 32), "thread": (4, 4)}
TILE = {"tile": (64, 32, 64), "ctas": 2}
SHARED = {"tile": (128, 32, 64), "schedule": "cooperative", "ctas": 4}

PLANS: dict[str, Callable[[], GemmPlan]] = {
    "simt": lambda: simt_plan(F32, **WARPS),
    "simt, one warp": lambda: simt_plan(F32, block=(16, 32, 8), warp=(16, 32), thread=(4, 4)),
    "simt, m-major": lambda: simt_plan(M_MAJOR, **WARPS),
    "simt, f64": lambda: simt_plan(F64, **WARPS),
    "simt, packed": lambda: simt_plan(F32, **WARPS, repack="a"),
    "simt, split, kernel": lambda: simt_plan(F32, **WARPS, split_k=2),
    "simt, split, kernel, m-major": lambda: simt_plan(M_MAJOR, **WARPS, split_k=2),
    "simt, split, last": lambda: simt_plan(F32, **WARPS, split_k=2, reduction="last"),
    "simt, waves": lambda: simt_plan(F32, **WARPS, waves=1, persistent=4),
    "mma.sync": lambda: mma_sync_plan(NN, block=(32, 32, 32), warp=(16, 16)),
    "mma.sync, TMA": lambda: mma_tma_plan(NN, block=(32, 32, 64), warp=(16, 16)),
    "pingpong": lambda: sm90_plan(BF16, **TILE, epi_tile_n=16),
    "cooperative": lambda: sm90_plan(BF16, **SHARED),
    "cooperative, rows of two": lambda: sm90_plan(BF16, **{**SHARED, "tile": (256, 32, 64)}),
    "cluster along N": lambda: sm90_plan(BF16, **SHARED, cluster=(1, 2)),
    "cluster along M": lambda: sm90_plan(BF16, **SHARED, cluster=(2, 1)),
    "overlapped": lambda: sm90_plan(BF16, **SHARED, overlapped=True),
    "single": lambda: sm90_plan(BF16, tile=(64, 32, 64), schedule="single"),
    "direct": lambda: sm90_plan(BF16, **TILE, store="direct"),
    "direct, cluster": lambda: sm90_plan(BF16, **SHARED, cluster=(1, 2), store="direct"),
    "split": lambda: sm90_plan(BF16, **TILE, split_k=3),
    "fixup": lambda: sm90_plan(BF16, tile=(64, 32, 64), ctas=4, fixup=True),
    "fp8": lambda: sm90_plan(Operands.of("e4m3", layout="nt", out="bf16"), tile=(64, 32, 128), ctas=2),
}
REDUCED = ("rms", "absmax", "reduced")
EMPTY = ((40, 0, 8), (0, 48, 8), (0, 0, 0))  # M, N and K of a D without elements


def takes(name: str, case: str) -> bool:
    """Whether a plan reads what a case passes: one that holds tiles reads none."""
    return name != "overlapped" or case != "rms"


def operands(plan: GemmPlan, case: str, m: int, n: int, k: int, batch: int | None = None) -> dict[str, Any]:
    """A and B of small whole numbers, whose sums are exact, and what the epilogue takes, as memory holds it."""
    rng = np.random.default_rng(m + n + k)
    lead = () if batch is None else (batch,)
    of_epilogue = {
        name: value if isinstance(value, float) else round_to(plan.operands.matrix(name).dtype, value)
        for name, value in CASES[case].operands(rng, m, n, batch).items()
    }
    a, b = (rng.integers(-3, 4, (*lead, *shape)).astype(np.float32) for shape in ((m, k), (k, n)))
    return {"a": a, "b": b, **of_epilogue}


def hold_against_float64(plan: GemmPlan, found: Any, given: dict[str, Any]) -> None:
    """Shapes and values of all that was stored."""
    acc = given["a"].astype(np.float64) @ given["b"]
    others = {name: value for name, value in given.items() if name not in ("a", "b")}
    reduced = dict(plan.epilogue.reductions)
    for name, want in reference(plan.epilogue, acc, others).items():
        got = found.d if name == "d" else found.aux[name]
        assert got.shape == want.shape
        exact = name in reduced and plan.operands.matrix(name).dtype.bits == 64
        rounding = 1e-13 if exact else 2e-6 if name in reduced else 2.0**-8 if got.dtype != np.float64 else 1e-13
        largest = np.abs(want).max(initial=0, where=np.isfinite(want))
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=rounding, atol=rounding * largest)
