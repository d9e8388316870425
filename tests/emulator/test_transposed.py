"""Plans with swap A/B, which compute D^T = B^T A^T, take A, B and the operands of the epilogue as for D."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import mma_sync_plan, sm90_plan
from cutegemm.build.epilogue import with_epilogue
from cutegemm.dtypes import f32, round_to
from cutegemm.errors import PlanError
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.epilogue import Column, Row, Tile, parse_epilogue
from cutegemm.plan.problem import Operand
from cutegemm.run.emulated import emulate
from cutegemm.run.executed import executed_accesses
from cutegemm.simulator import simulate

_KINDS = {"bias": Row, "scale": Column, "residual": Tile}
_TEXT = "relu(acc * scale + bias) + residual, preact = acc + bias, total = row_sum(acc), most = column_max(acc)"


def ended(build, layout: str, batched: bool = False) -> GemmPlan:
    """Return a plan for D^T with an epilogue that is written for D."""
    operands = Operands.of("bf16", layout=layout, batched=batched)
    more = {name: Operand.of_kind(kind, f32, major="n") for name, kind in _KINDS.items()}
    more |= {
        name: Operand.of_kind(kind, f32, major="n")
        for name, kind in (("preact", Tile), ("total", Column), ("most", Row))
    }
    turned = {name: operand.transposed for name, operand in more.items()}
    plan = with_epilogue(parse_epilogue(_TEXT, _KINDS).transposed, build(operands.transposed), turned)
    return plan.with_(swap_ab=True)


@pytest.mark.parametrize("run", [simulate, emulate])
@pytest.mark.parametrize(
    ("build", "layout", "batch"),
    [
        (lambda of: sm90_plan(of, tile=(64, 32, 64), ctas=2), "nt", ()),
        (lambda of: sm90_plan(of, tile=(64, 24, 64), ctas=2), "nn", (2,)),
        (lambda of: mma_sync_plan(of, block=(32, 32, 32), warp=(16, 16), stages=3), "tn", ()),
    ],
)
def test_rows_stay_rows_and_columns_columns(run, build, layout, batch):
    plan = ended(build, layout, bool(batch))
    m, n, k = 40, 72, 136
    rng = np.random.default_rng(0)
    shapes = ((m, k), (k, n), (m, n))
    a, b, c = (rng.integers(-3, 4, (*batch, *shape)).astype(np.float32) for shape in shapes)
    bias, scale = np.arange(n, dtype=np.float32) - 30, np.arange(m, dtype=np.float32)[:, None] - 20
    found = run(plan, a, b, bias=bias, scale=scale, residual=c)
    accumulators = a @ b
    assert np.array_equal(found.d, round_to(plan.operands.d.dtype, np.maximum(accumulators * scale + bias, 0) + c))
    assert np.array_equal(found.aux["preact"], accumulators + bias)
    assert np.array_equal(found.aux["total"].reshape(*batch, m), accumulators.sum(axis=-1))
    assert np.array_equal(found.aux["most"].reshape(*batch, n), accumulators.max(axis=-2))


@pytest.mark.parametrize("run", [simulate, emulate])
def test_the_problem_is_given_as_for_d(run):
    operands = Operands.of("bf16", layout="nt")
    plan = sm90_plan(operands.transposed, tile=(64, 64, 64), ctas=2).with_(swap_ab=True)
    problem = Problem(24, 40, 72, operands=operands, ld=(("a", 80), ("b", 88), ("d", 48)))
    a, b = np.ones((24, 72), np.float32), np.tile(np.arange(40, dtype=np.float32), (72, 1))
    assert np.array_equal(run(plan, a, b, problem=problem).d, round_to(operands.d.dtype, a @ b))
    with pytest.raises(PlanError):
        run(plan, a, b, problem=problem.transposed)
    with pytest.raises(PlanError, match=r"of D\^T = B\^T A\^T: 1 rule is broken.\n.*do not fit D = A @ B"):
        run(plan, a, b[:70])


def test_accesses_are_the_same_with_swap_ab():
    """Swap A/B exchanges A and B at the launch; the accesses of the kernel are the same without it."""
    turned = Operands.of("bf16", layout="nt").transposed
    plan = sm90_plan(turned, tile=(64, 64, 64), ctas=2)
    problem = Problem(88, 40, 136, operands=turned)
    assert executed_accesses(plan.with_(swap_ab=True), problem) == executed_accesses(plan, problem)
