"""Which Hopper plan gemm takes, for tensors of every majorness, alignment and type; on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm import launch, torch_ops  # noqa: E402
from cutegemm.errors import PlanError, UnsupportedError  # noqa: E402
from cutegemm.launch import gemm  # noqa: E402
from cutegemm.plan import Operands, sm90_plan  # noqa: E402


class Noted:
    """Stands for a compiled kernel."""

    needs_workspace = False

    def __init__(self, plan, arch):
        self.plan, self.calls = plan, []

    def function(self, *arguments):
        self.calls.append(arguments)


@pytest.fixture
def taken(monkeypatch):
    """The kernels that gemm takes, as if the CPU were an H200."""
    kernels = []

    def take(plan, arch):
        assert arch == "sm_90a"
        assert plan.violations(arch) == []
        kernels.append(Noted(plan, arch))
        return kernels[-1]

    monkeypatch.setattr(launch, "_calls", {})
    monkeypatch.setattr(launch, "compile_plan", take)
    monkeypatch.setattr(launch, "_check_devices", lambda given: None)
    monkeypatch.setattr(torch_ops, "device_arch", lambda index: "sm_90a")
    monkeypatch.setattr(torch_ops, "multiprocessors", lambda index: 114)
    monkeypatch.setattr(torch_ops, "devices", lambda: 1)
    return kernels


def plan_for(taken, *args, **options):
    gemm(*args, **options)
    return taken[-1].plan


def matrix(rows, cols, kind=torch.bfloat16):
    return torch.zeros(rows, cols, dtype=kind)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_aligned_halves_go_to_wgmma(taken, kind, transposed):
    a = matrix(264, 200, kind).t() if transposed[0] else matrix(200, 264, kind)
    b = matrix(304, 264, kind).t() if transposed[1] else matrix(264, 304, kind)
    plan = plan_for(taken, a, b)
    assert plan.family == "sm90"
    assert plan.pipeline.ctas == 114
    assert (plan.operands.a.major, plan.operands.b.major) == ("mk"[not transposed[0]], "nk"[transposed[1]])
    assert plan.epilogue is not None
    assert not plan.has_c


def test_a_ragged_k_needs_aligned_rows_alone(taken):
    assert plan_for(taken, matrix(64, 104)[:, :99], matrix(64, 104)[:, :99].t()).family == "sm90"
    assert plan_for(taken, matrix(64, 99), matrix(64, 99).t()).family != "sm90"


def test_a_ragged_n_is_stored_out_of_registers(taken):
    plan = plan_for(taken, matrix(64, 104), matrix(99, 104).t())
    assert (plan.family, plan.epilogue, plan.store_d.bits) == ("sm90", None, 16)
    plan = plan_for(taken, matrix(64, 104), matrix(99, 104).t(), out=matrix(64, 104)[:, :99])
    assert plan.epilogue is None
    plan = plan_for(taken, matrix(64, 104), matrix(96, 104).t(), out=matrix(64, 104)[:, :96])
    assert plan.epilogue is not None


def test_float32_results(taken):
    plan = plan_for(taken, matrix(64, 64), matrix(64, 64), out=torch.zeros(64, 64))
    assert (plan.family, plan.operands.d.dtype.name) == ("sm90", "f32")


def test_c_is_read_where_it_is_given(taken):
    a, b, c = matrix(64, 64), matrix(64, 64), matrix(64, 64)
    plan = plan_for(taken, a, b, c=c, beta=0.5)
    assert plan.has_c
    assert plan.epilogue.load_c is not None
    plan = plan_for(taken, a, b, c=c.t(), beta=0.5)  # of another majorness than D
    assert plan.has_c
    assert plan.epilogue is None


def test_a_plan_of_the_caller_that_does_not_read_c(taken):
    a, b, c = matrix(64, 64), matrix(64, 64).t(), matrix(64, 64)
    plan = sm90_plan(Operands.of("bf16", layout="nt"))
    assert plan_for(taken, a, b, plan=plan) is plan
    with pytest.raises(PlanError, match=r"does not read C. Make it with_c=True"):
        gemm(a, b, c=c, beta=1.0, plan=plan)
    assert plan_for(taken, a, b, c=c, beta=1.0, plan="sm90_wide_2x1").has_c


@pytest.mark.parametrize(
    ("kind", "result"), [(torch.float8_e4m3fn, "bf16"), (torch.float8_e5m2, "bf16"), (torch.int8, "s32")]
)
def test_bytes(taken, kind, result):
    a, b = matrix(64, 128, kind), matrix(96, 128, kind).t()
    plan = plan_for(taken, a, b)
    assert (plan.family, plan.operands.d.dtype.name) == ("sm90", result)
    assert plan.pipeline.two_level == (kind != torch.int8)
    assert plan.cta_tile[2] == 128
    assert plan_for(taken, a, b, out=torch.zeros(64, 96)).operands.d.dtype.name == "f32"
    with pytest.raises((PlanError, UnsupportedError), match="k-major"):
        gemm(a, matrix(128, 96, kind))


def test_a_batch(taken):
    plan = plan_for(taken, torch.zeros(3, 64, 64).bfloat16(), torch.zeros(3, 64, 64).bfloat16())
    assert plan.family == "sm90"
    assert plan.operands.batched
