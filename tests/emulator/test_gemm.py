"""`gemm` on the CPU, from its arguments to the emulated kernel: chosen plans and values of the results."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm import gemm  # noqa: E402
from tests.emulator.on_cpu import emulate_launches  # noqa: E402

SPLIT = "sm90:tile=64x32x64,epi_tile_n=16,ctas=4,split_k=3"


@pytest.fixture
def launched(monkeypatch):
    """Return the list of plans that gemm launches, as on a Hopper GPU of four SMs."""
    return emulate_launches(monkeypatch, 4)


def whole(*shape, kind=torch.float32, seed=0):
    """Return a tensor of small whole numbers, whose sums are exact."""
    torch.manual_seed(seed)
    return torch.randint(-3, 4, shape).to(kind)


def wide(matrix, gap=8):
    """Return a view with the same values, whose rows are followed by `gap` elements of NaN."""
    outer = torch.full((*matrix.shape[:-1], matrix.shape[-1] + gap), float("nan"), dtype=torch.float32)
    outer[..., : matrix.shape[-1]] = matrix.float()
    return outer.to(matrix.dtype)[..., : matrix.shape[-1]]


def exact(a, b, c=None, alpha=1.0, beta=0.0):
    found = alpha * (a.double() @ b.double())
    return found if c is None else found + beta * c.double()


def test_f32_with_a_chosen_plan(launched):
    """Rows have odd lengths, one B serves the whole batch, and C is read in place and overwritten by D."""
    a, b, c = wide(whole(2, 37, 45), 3), wide(whole(45, 18)), wide(whole(2, 37, 18), 1)
    want = exact(a, b, c, 0.5, -2.0)
    assert gemm(a, b.expand(2, -1, -1), c=c, alpha=0.5, beta=-2.0, out=c) is c
    assert torch.equal(c.double(), want)
    assert torch.isnan(c.as_strided((2, 37), (37 * 19, 19), 18)).all()  # the gaps between the rows of C
    assert [plan.family for plan in launched] == ["simt"]


def test_split_k_reuses_its_semaphores(launched):
    for rows, k in ((70, 1200), (9, 1096), (70, 1200)):
        a, b = wide(whole(rows, k, kind=torch.bfloat16)), whole(24, k, kind=torch.bfloat16).t()
        assert torch.equal(gemm(a, b, out=torch.empty(rows, 24), plan=SPLIT).double(), exact(a, b))
    assert all(plan.scheduler.split.is_split for plan in launched)


@pytest.mark.parametrize("rows", [1, 5])
def test_fp8_with_unaligned_rows(launched, rows):
    """fp8 operands with K = 99 or 0, and a bias that all rows share. A single row may have any stride."""
    kind = torch.float8_e4m3fn
    bias = whole(40).bfloat16().expand(rows, -1)
    for k in (99, 0):
        a, b = whole(rows, k, kind=kind), whole(40, 112, kind=kind)[:, :k].t()
        a = a if rows == 1 or not k else wide(a, 13)
        found = gemm(a, b, c=bias, beta=2.0)
        assert torch.equal(found, exact(a, b, bias, 1.0, 2.0).to(found.dtype))
    assert {plan.family for plan in launched} == {"sm90"}


def test_the_transposed_problem(launched):
    a, b = wide(whole(21, 72, kind=torch.float16)), whole(72, 48, kind=torch.float16)
    out = torch.full((48, 24), float("nan")).half()[:, :21].t()
    gemm(a, b, out=out, plan="swap_ab:sm90_64x16")
    assert torch.equal(out.double(), exact(a, b))
    assert launched[-1].operands.d.major == "n"
