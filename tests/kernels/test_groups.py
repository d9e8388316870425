"""Machine code of grouped GEMMs: tiles of a real size without spills, and tensor maps of the planned rank."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import sm90_plan
from cutegemm.compile.plans import CompiledKernel
from cutegemm.layout import product
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.memory.groups import is_clipped, with_group_ends, with_index
from cutegemm.plan.problem import D_INDEX, INDEX
from cutegemm.plan.work.grouped import MOST_TILES
from tests.grouped import LAYOUTS
from tests.kernels.plans import check_each


def plan_of(groups: str, index: str = "", **options: object) -> GemmPlan:
    layout, major = LAYOUTS[groups]
    operands = Operands.of("bf16", layout=layout, batched=True, groups=groups, out_major=major)
    if index:
        operands = with_index(with_group_ends(operands), index)
    return sm90_plan(operands, name=f"grouped_{groups}{index}", **options)  # type: ignore[arg-type]


def rank(plan: GemmPlan, name: str) -> int:
    """Return the number of modes of an operand's tensor map: four if it clips at ends of groups."""
    return 4 if is_clipped(plan.operands, name) else 2 + plan.operands.has_batch(name)


def check(kernel: CompiledKernel) -> None:
    plan, report = kernel.plan, kernel.resources
    assert kernel.violations() == []
    assert (report.count("LDL"), report.count("STL"), report.stack_bytes) == (0, 0, 0)
    assert not [name for name in report.instructions if name.startswith("I2F.")]  # no division of integers
    m, n, k = plan.tiled_mma.atom.shape_mnk
    atoms = product(plan.consumer_mma_tile) // (m * n)
    assert report.count(f"HGMMA.{m}x{n}x{k}") % (plan.k_blocks * atoms) == 0
    for dimensions in (2, 3, 4):
        loads = [name for name in "ab" if rank(plan, name) == dimensions]
        assert (report.count(f"UTMALDG.{dimensions}D") > 0) == bool(loads)
        stores = "UTMAREDG.{}D.ADD" if plan.operands.scattered else "UTMASTG.{}D"
        assert (report.count(stores.format(dimensions)) > 0) == (rank(plan, "d") == dimensions)


PLANS = {
    "m": {"tile": (128, 256, 64), "schedule": "cooperative"},
    "n": {"tile": (128, 192, 64), "schedule": "cooperative", "cluster": (2, 1)},
    "k": {"tile": (128, 128, 64)},
}


def test_compiled() -> None:
    rows = [(INDEX, "m"), (D_INDEX, "m"), (D_INDEX, "n")]
    of_rows = [plan_of(groups, index=index, **PLANS[groups]) for index, groups in rows]
    check_each([*[plan_of(groups, **options) for groups, options in PLANS.items()], *of_rows], check)


def test_quotients_in_f32() -> None:
    """The formula of `kernels.work.Divisor`, at the multiples of a divisor, for each reciprocal within 1 ulp."""
    most = np.int64(MOST_TILES)
    numbers = np.random.default_rng(1).integers(1, most, 2000)
    for divisor in {*range(1, 300), *numbers.tolist()}:
        quotient = np.unique(np.concatenate([np.arange(300), most // divisor - np.arange(300)]).clip(0))
        dividends = np.concatenate([quotient * divisor, quotient * divisor - 1])
        dividends = dividends[(dividends >= 0) & (dividends < most)]
        nearest = np.float32(1) / np.float32(divisor)
        for reciprocal in (np.nextafter(nearest, np.float32(0)), nearest, np.nextafter(nearest, np.float32(2))):
            found = ((dividends.astype(np.float32) + np.float32(0.5)) * reciprocal).astype(np.int64)
            assert (found == dividends // divisor).all(), divisor
