"""mma.sync kernels on a GPU: against float64, on ragged shapes, between guards, over poisoned outputs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.choice.catalog import plan_named  # noqa: E402
from cutegemm.choice.ladders.mma_sync import MMA_SYNC_LADDER  # noqa: E402
from cutegemm.choice.mma_sync.named import MMA_SYNC_FED, MMA_SYNC_PLANS  # noqa: E402
from cutegemm.errors import PlanError  # noqa: E402
from cutegemm.plan import GemmPlan, Operands  # noqa: E402
from cutegemm.run.gemm import gemm, plan_of  # noqa: E402
from tests.gpu.cases import LAYOUTS, matrix  # noqa: E402
from tests.kernels.mma_sync_forms import FORMS, form  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("compiled")]

KINDS = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "tf32": "float32"}
SCALES = [(1.0, 0.0), (1.5, 0.5), (-0.5, 1.0), (2, 0)]
NAMES = [named.name for named in (*MMA_SYNC_PLANS, *MMA_SYNC_FED, *MMA_SYNC_LADDER)]
# Relative error of a product of tf32 operands whose low bits are ignored, or rounded to nearest.
_TF32_ERROR = {"rz": 2.0**-9, "rna": 2.0**-10, "rne": 2.0**-10}


def plans_of(name: str, dtype: str, arch: str) -> list[GemmPlan]:
    """Return the plans for each majorness, without those that TMA or the device does not support."""
    found = []
    for layout in LAYOUTS:
        try:
            found.append(plan_named(name, Operands.of(dtype, layout=layout), arch=arch))
        except PlanError:
            assert name.startswith("mma_tma"), name
    return found


def forms_of(arch: str) -> list[str]:
    """The forms that run there."""
    return [name for name in FORMS if not name.startswith("tma") or arch.startswith("sm_9")]


def all_plans(arch: str) -> list[GemmPlan]:
    """All plans of this file that have a name or a form."""
    named = [plan for name in NAMES for dtype in ("bf16", "f32") for plan in plans_of(name, dtype, arch)]
    return [*map(form, forms_of(arch)), *named]


def check(plan: GemmPlan, m, n, k, *, alpha=1.0, beta=0.0, fill="normal", batch=None, gap=0, given=None):
    """One product: its error against float64, the guard bands, the poison.

    given   argument `plan` of `gemm`; None: the plan itself
    """
    ops = plan.operands

    def of(operand, rows, columns, first, how):
        kind = getattr(torch, KINDS[operand.dtype.name])
        return matrix(
            rows, columns, transposed=operand.major == first, dtype=KINDS[operand.dtype.name], fill=how,
            align_elems=operand.align_elems, gap=gap * operand.align_elems, batch=batch,
            shift=0 if operand.align_bytes == 16 else max(1, operand.align_bytes // kind.itemsize),
        )  # fmt: skip

    a, b = of(ops.a, m, k, "m", fill), of(ops.b, k, n, "k", fill)
    c, d = of(ops.c, m, n, "m", "nan" if beta == 0 else fill), of(ops.d, m, n, "m", "nan")
    gemm(a.view, b.view, c=c.view, alpha=alpha, beta=beta, out=d.view, plan=given or plan)
    said = f"{plan} on {m}x{n}x{k}, alpha {alpha}, beta {beta}, batch {batch}"
    assert d.outside_is_untouched(), f"{said}: wrote outside of D"
    assert all(x.outside_is_untouched() for x in (a, b, c)), f"{said}: wrote to an input"
    wide_a, wide_b = a.view.double(), b.view.double()
    exact = alpha * (wide_a @ wide_b) + (beta * c.view.double() if beta else 0)
    if fill == "integer":
        assert torch.equal(d.view.double(), exact.to(d.view.dtype).double()), f"{said}: not exact"
        return
    magnitude = abs(alpha) * (wide_a.abs() @ wide_b.abs()) + (abs(beta) * c.view.double().abs() if beta else 0)
    of_inputs = 1.01 * _TF32_ERROR[plan.rounding] if ops.a.dtype.name == "tf32" else 0.0
    of_sums = 2.0**-7 if ops.acc.name == "f16" else 2.0**-19
    bound = magnitude * (of_inputs + of_sums) + exact.abs() * torch.finfo(d.view.dtype).eps + 1e-30
    off = (d.view.double() - exact).abs() / bound
    worst = off.max().item() if off.numel() else 0.0
    assert worst <= 1, f"{said}: {worst:.3g} of what rounding explains, at {(~(off <= 1)).nonzero()[:1].tolist()}"


def shapes_of(plan: GemmPlan) -> list[tuple[int, int, int]]:
    """Ragged and even ones, rounded up to what its accesses need."""
    ops = plan.operands
    unit = max(o.align_elems for o in (ops.a, ops.b, ops.c, ops.d))
    bm, bn, bk = plan.cta_tile
    wanted = [
        (1, 1, 1), (bm - 1, bn + 1, 7), (2 * bm + 1, bn - 3, bk + 1), (bm, bn, bk), (5, 300, 0), (300, 7, 1),
        (3 * bm + 9, 2 * bn + 17, 7 * bk - 1), (2 * bm, bn, 4 * bk),
    ]  # fmt: skip
    return [tuple(-(-x // unit) * unit for x in shape) for shape in wanted]


@pytest.mark.parametrize("name", FORMS)
def test_forms(name, arch):
    if name not in forms_of(arch):
        pytest.skip(f"{arch} has no TMA")
    plan = form(name)
    for i, (m, n, k) in enumerate(shapes_of(plan)):
        alpha, beta = SCALES[i % 4]
        for batch in (3, 1) if plan.operands.batched else (None,):
            check(plan, m, n, k, alpha=alpha, beta=beta, gap=i % 3, batch=batch)
    if not plan.operands.batched:
        check(plan, *shapes_of(plan)[2], fill="integer")


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("name", NAMES)
def test_names(name, dtype, arch):
    for plan in plans_of(name, dtype, arch):
        for i, (m, n, k) in enumerate([(304, 528, 136), (8, 1000, 24), (1000, 8, 72), (512, 768, 1024)]):
            alpha, beta = SCALES[i]
            check(plan, m, n, k, alpha=alpha, beta=beta, given=name)
        check(plan, 264, 264, 520, fill="integer", given=name)


@pytest.mark.parametrize("name", [named.name for named in MMA_SYNC_FED])
def test_rows_that_end_anywhere(name, arch):
    """TMA asks of strides alone that they are multiples of 16 bytes, and of D that rows end there."""
    if not arch.startswith("sm_9"):
        pytest.skip(f"{arch} has no TMA")
    for k in (1, 67, 131, 200):
        a, b = (torch.randn(rows, 1024, device="cuda").bfloat16()[:, :k] for rows in (301, 264))
        wanted = a.double() @ b.double().t()
        found = gemm(a, b.t(), plan=name).double()
        assert (found - wanted).abs().max() <= wanted.abs().max() * 2.0**-8


def test_persistent_ctas_take_all_tiles(arch):
    """Many tiles a CTA, and a number of them that its count does not divide; twice the same."""
    if not arch.startswith("sm_9"):
        pytest.skip(f"{arch} has no TMA")
    plan = form("tma_eight_warps", ctas=5)
    check(plan, 128 * 7 + 8, 64 * 9 + 8, 7 * 64, fill="integer")
    check(plan, 128 * 7 + 8, 64 * 9 + 8, 8, fill="integer", beta=1.0)
    check(plan, 128 * 3, 64 * 3, 0, beta=0.5)


def test_tf32_is_taken_bit_by_bit(arch):
    """The low 13 bits are not looked at: as the simulator has it, to the last bit."""
    from cutegemm.dtypes import round_to, tf32

    a = torch.randn(256, 64, device="cuda")
    eye = torch.eye(64, device="cuda")
    for rounding in ("rz", "rna"):
        name = f"mma_sync:block=64x64x32,warp=32x32,rounding={rounding}"
        wanted = torch.from_numpy(round_to(tf32, a.cpu().numpy(), rounding)).cuda()
        assert torch.equal(gemm(a, eye, plan=name), wanted)
    if arch.startswith("sm_9"):  # TMA rounds them to nearest
        ties = 0x3F800000 + (torch.arange(256 * 32, device="cuda", dtype=torch.int32) << 12)
        a[:, 32:] = ties.view(torch.float32).view(256, 32)
        wanted = torch.from_numpy(round_to(tf32, a.cpu().numpy(), "rne")).cuda()
        for plan, right in (("mma_tma_256x128", eye), ("sm90_epi_stages", eye.t()), ("mma_tma_128x256", eye.t())):
            assert torch.equal(gemm(a, right, plan=plan), wanted)


def test_the_plan_that_is_chosen():
    """Where TMA cannot load: by mma.sync, or packed first for wgmma."""
    for dtype in (torch.float16, torch.bfloat16):
        base = torch.randn(700, 701, device="cuda").to(dtype)
        for a, b in ((base[:600, :500], base[:500, :333]), (base[:333, :64], base[:96, :64].t())):
            wanted, found, plan = a.double() @ b.double(), gemm(a, b), plan_of(a, b)
            assert plan.family == "mma_sync" or plan.repacks
            assert (found.double() - wanted).abs().max() <= wanted.abs().max() * torch.finfo(dtype).eps


def test_the_same_every_time(arch):
    """Races show as differences between runs."""
    a, b = (torch.randn(1000, 1000, device="cuda").bfloat16() for _ in range(2))
    for name in NAMES:
        fed = name.startswith("mma_tma")  # warps of 64 x 80 take tf32 of B only where rows lie along K
        if fed and not plans_of(name, "bf16", arch):
            continue
        for x, y in ((a, b), (a.float(), b.float().t() if fed else b.float())):
            first = gemm(x, y, plan=name)
            out = torch.empty_like(first)
            for _ in range(10):
                out.fill_(float("nan"))
                assert torch.equal(gemm(x, y, out=out, plan=name), first), name


def test_a_plan_for_other_operands():
    a = torch.randn(64, 64, device="cuda")
    with pytest.raises(PlanError, match="the plan is made for bf16"):
        gemm(a, a, plan=form("bf16_nn_16"))


@pytest.mark.parametrize("out", [torch.bfloat16, torch.float8_e4m3fn])
@pytest.mark.parametrize("name", ["mma_64x64_short", "mma_128x256", "mma_32x32/k4"])
def test_float8(name, out):
    """k-major, as torch._scaled_mm has it; summed up in f32, and rounded once."""
    a, b = (torch.randn(rows, 272, device="cuda").to(torch.float8_e4m3fn) for rows in (333, 208))
    d = gemm(a, b.t(), plan=name, alpha=0.25, out_dtype=out).double()
    wide_a, wide_b = a.double(), b.double().t()
    exact, magnitude = 0.25 * wide_a @ wide_b, 0.25 * wide_a.abs() @ wide_b.abs()
    bound = magnitude * 2.0**-12 + exact.abs() * torch.finfo(out).eps + 2.0**-9
    assert ((d - exact).abs() <= bound).all()
