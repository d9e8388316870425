"""int8 results: rounded to nearest even, and saturated."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import simt_plan, sm90_plan
from cutegemm.dtypes import round_to, s8
from cutegemm.plan import Operands
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate
from tests.marks import with_thorough

WHOLE, BF16 = Operands.of("s8", layout="nt"), Operands.of("bf16", layout="nt", out="s8")
SMALL = {"tile": (64, 64, 64), "ctas": 2}
SIMT = {"block": (32, 32, 8), "warp": (16, 32), "thread": (4, 4)}
MADE = {
    "epilogue stages": lambda: sm90_plan(WHOLE, **SMALL),
    "direct": lambda: sm90_plan(WHOLE, **SMALL, store="direct"),
    "overlapped": lambda: sm90_plan(WHOLE, tile=(128, 128, 64), ctas=2, schedule="cooperative", overlapped=True),
    "split": lambda: sm90_plan(WHOLE, **SMALL, split_k=2),
    "c": lambda: sm90_plan(WHOLE, **SMALL, with_c=True),
    "of bf16": lambda: sm90_plan(BF16, **SMALL),
    "of bf16, direct": lambda: sm90_plan(BF16, **SMALL, store="direct"),
    "simt": lambda: simt_plan(Operands.of("f32", out="s8"), **SIMT),
    "simt, split": lambda: simt_plan(Operands.of("f32", out="s8"), **SIMT, split_k=2),
}
# Pairs of what the others have
THOROUGH = ("overlapped", "split", "of bf16, direct", "simt, split")


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("name", with_thorough(MADE, THOROUGH))
def test_whole_results(name, scale):
    """Results exceed both ends of int8, and with scale 0.5 some are ties. Emulator and simulator agree."""
    plan, rng = MADE[name](), np.random.default_rng(len(name))
    kind = np.int8 if plan.operands.a.dtype is s8 else np.float32
    a, b, c = (rng.integers(-4, 5, shape).astype(kind) for shape in ((80, 144), (144, 96), (80, 96)))
    given = {"c": c.astype(np.int8), "beta": 3.0} if name == "c" else {}
    exact = scale * (a.astype(float) @ b) + given.get("beta", 0.0) * c
    want = round_to(s8, exact)
    assert {-128, 127} <= {*want.flat}
    assert scale == 1 or ((exact % 1 == 0.5) & (np.abs(exact) < 100)).any()
    for carried_out in (simulate, emulate):
        assert np.array_equal(carried_out(plan, a, b, alpha=scale, **given).d, want)
