"""Plans that end with a case of `tests.epilogues`, carried out on the CPU and held against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cutegemm.build import mma_sync_plan, mma_tma_plan, simt_plan
from cutegemm.dtypes import round_to
from cutegemm.plan import GemmPlan, Operands
from cutegemm.tile.tiled_copy import TiledCopy
from tests.epilogues import Case, reference
from tests.kernels.sm90_forms import form
from tests.simulator.plans import small_plan

# |value - exact| <= this of |exact|, and of 1, besides half a place of the type: functions of f32 one after the other
FUNCTIONS_ERR = 2e-5
_HALF_PLACE = {
    "f64": 2.0**-53,
    "f32": 2.0**-24,
    "tf32": 2.0**-11,
    "f16": 2.0**-11,
    "bf16": 2.0**-8,
    "e4m3": 2.0**-4,
    "e5m2": 2.0**-3,
}
_SUBNORMAL = {"f16": 2.0**-25, "e4m3": 2.0**-10, "e5m2": 2.0**-17}

# Each family, and each way for a tile to leave.
PLANS: dict[str, Callable[[], GemmPlan]] = {
    "simt": small_plan,
    "simt, m-major": lambda: small_plan(Operands.of("f32", out_major="m")),
    "simt, f64": lambda: small_plan(Operands.of("f64", layout="tn")),
    "simt, f16": lambda: small_plan(Operands.of("f16", layout="nt")),
    "simt, split, last": lambda: small_plan(split_k=2, reduction="last"),
    "simt, split, kernel": lambda: small_plan(split_k=3),
    "simt, packed": lambda: small_plan(Operands.of("f32"), repack="a"),
    "simt, no shared memory": lambda: simt_plan(
        Operands.of("f32"), block=(32, 32, 1), warp=(32, 32), thread=(8, 4), stages=0
    ),
    "mma.sync": lambda: mma_sync_plan(Operands.of("bf16"), block=(64, 64, 32), warp=(32, 32), stages=3),
    "mma.sync, direct": lambda: mma_sync_plan(
        Operands.of("f16", out="f32", layout="tt"), block=(64, 64, 32), warp=(32, 32), stages=3, store="direct"
    ),
    "mma_tma": lambda: mma_tma_plan(Operands.of("bf16", layout="nn"), block=(64, 64, 64), warp=(32, 32)),
    "pingpong": lambda: form("f16", 2),
    "pingpong, f32": lambda: form("f32_out", 2),
    "pingpong, m-major": lambda: form("nn_m", 2),
    "pingpong, warps store": lambda: form("warps_store", 2),
    "pingpong, padded": lambda: form("padded_f32", 2),
    "cooperative": lambda: form("one_consumer", 2),
    "cooperative, cluster": lambda: form("cluster_2x2_mn", 4),
    "overlapped": lambda: form("overlapped", 2),
    "single": lambda: form("single_three_stages", None),
    "direct": lambda: form("direct", 2),
    "direct, elements": lambda: form("direct_elements", 2),
    "direct, m-major": lambda: form("direct_m_major", 2),
    "split": lambda: form("split", 3),
    "split, direct": lambda: form("split_direct", 3, with_c=False),
    "stream": lambda: form("stream", 3),
    "fixup": lambda: form("fixup", 4),
    "K shared by CTAs": lambda: form("shared_k", 4),
    "K shared by CTAs, pingpong": lambda: form("shared_k_pingpong_2x1", 4),
    "e4m3": lambda: form("e4m3", 2),
    "e4m3, two levels": lambda: form("two_level_pingpong", 2),
    "e4m3, e4m3 out": lambda: form("e4m3_out", 2),
    "e5m2": lambda: form("e5m2", 2),
    "packed": lambda: form("pack_tf32", 2),
    "A out of registers": lambda: form("read_a_2x1", 4),
    "packed, e4m3": lambda: form("pack_e4m3", 2),
    "batched": lambda: form("batched", 2),
    "s8, float D": lambda: form("deferred_s8", 2),
}  # fmt: skip


def extents_of(plan: GemmPlan, m: int, n: int, k: int) -> tuple[int, int, int]:
    """The extents, or as much larger as accesses of threads, and those to results, need them."""
    step = {"m": 1, "n": 1, "k": 1}
    names = [name for name in ("a", "b") if isinstance(plan.stream(name).load, TiledCopy)]
    names += [repack.name for repack in plan.repacks]
    for name in (*names, *plan.epilogue.tiles, *plan.epilogue.outputs):
        operand = plan.operands.matrix(name)
        step[operand.major] = max(step[operand.major], operand.align_elems)
    return tuple(-(-extent // step[mode]) * step[mode] for mode, extent in zip("mnk", (m, n, k), strict=True))  # type: ignore[return-value]


def whole_numbers(plan: GemmPlan, m: int, n: int, k: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A and B whose sums are exact in every kernel; of a batch of two where the plan is for one."""
    rng = np.random.default_rng(seed)
    lead = (2,) if plan.operands.batched else ()
    scale = 0.25 if plan.operands.a.dtype.is_float else 1
    return tuple(rng.integers(-3, 4, (*lead, *shape)) * scale for shape in ((m, k), (k, n)))  # type: ignore[return-value]


def hold(by: Callable[..., Any], case: Case, plan: GemmPlan, m: int, n: int, k: int, seed: int = 0, **how: Any) -> None:
    """Carries out a plan, which ends with the case, and asserts that all its results are those of float64.

    by    `simulate` or `emulate`
    how   further arguments of it
    """
    a, b = whole_numbers(plan, m, n, k, seed)
    rng = np.random.default_rng(seed + 1)
    given = case.operands(rng, m, n, 2 if plan.operands.batched else None)
    for name, values in given.items():
        if not isinstance(values, float):
            given[name] = round_to(plan.operands.matrix(name).dtype, values)
    found = by(plan, a, b, **given, **how)
    with np.errstate(all="ignore"):
        wanted = reference(plan.epilogue, a @ b, given)
    for name, want in wanted.items():
        got = found.d if name == "d" else found.aux[name]
        hold_values(plan, name, got, want)


def hold_values(plan: GemmPlan, name: str, got: np.ndarray, want: np.ndarray) -> None:
    """Asserts that a result is what it should be, to half a place of its type and the errors of functions."""
    kind = plan.operands.matrix(name).dtype
    assert got.shape == want.shape
    if kind.saturates and kind.is_float:
        want = np.clip(want, -kind.largest, kind.largest)
    if not kind.is_float:
        assert np.array_equal(got, round_to(kind, want))
        return
    functions = 1e-12 if plan.operands.acc.bits == 64 else FUNCTIONS_ERR
    room = (_HALF_PLACE[kind.name] + functions) * np.abs(want) + functions + _SUBNORMAL.get(kind.name, 0.0)
    with np.errstate(invalid="ignore"):
        is_near = (np.abs(got - want) <= room) | (got == want) | (np.isnan(got) & np.isnan(want))
    assert is_near.all(), (name, np.argwhere(~is_near)[:3], got[~is_near][:3], want[~is_near][:3])
