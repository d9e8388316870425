"""Plans that stream a weight on a GPU: what `gemm` takes for few rows, against float64, and launches that overlap."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.run.gemm import gemm, plan_of  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("compiled")]

EARLY = "swap_ab:gemv_16x8_pdl"


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("such plans are chosen on Hopper")


def made(rows: int, columns: int, kind: str, seed: int = 0):
    """Normal numbers of a type, row-major."""
    generator = torch.Generator("cuda").manual_seed(seed)
    numbers = torch.randn(rows, columns, device="cuda", generator=generator)
    return numbers.to(getattr(torch, kind))


def allowed(plan, kind: str, x, weight):
    """What results may be off by: sums of float8 by wgmma have about 14 bits, others those of f32."""
    of_sums = 2.0**-10 if plan.family == "sm90" and kind.startswith("float8") else 2.0**-20
    exact = (x.double() @ weight.double().t()).abs()
    scale = (x.double().abs() @ weight.double().abs().t()).max()
    return (2.0**-11 if kind == "float16" else 2.0**-8) * exact + of_sums * scale


@pytest.mark.parametrize("plan", [None, "swap_ab:gemv_16x16"])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 4096, 4096), (7, 1032, 2064), (16, 5000, 11008), (13, 2048, 512)])
def test_few_rows(rows, n, k, kind, plan):
    x, weight = made(rows, k, kind), made(n, k, kind, 1)
    out_dtype = torch.bfloat16 if kind.startswith("float8") else None
    guarded = torch.full((rows + 2, n), float("nan"), device="cuda", dtype=out_dtype or x.dtype)
    out = guarded[1:-1]
    gemm(x, weight.t(), out=out, plan=plan)
    taken = plan_of(x, weight.t(), out=out, plan=plan)
    exact = x.double() @ weight.double().t()
    assert ((out.double() - exact).abs() <= allowed(taken, kind, x, weight)).all()
    assert guarded[0].isnan().all()
    assert guarded[-1].isnan().all()
    for _ in range(20):
        assert torch.equal(gemm(x, weight.t(), out_dtype=out_dtype, plan=plan), out)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize(
    ("rows", "n", "k"),
    [(64, 64, 4096), (112, 32, 12032), (45, 80, 1664), (848, 32, 7728), (24, 48, 640), (33, 17, 48)],
)
def test_small_problems(rows, n, k, kind):
    """Return the kernels of each chosen plan, and of every plan with cluster split-K."""
    x, weight = made(rows, k, kind), made(n, k, kind, 1)
    out_dtype = torch.bfloat16 if kind.startswith("float8") else x.dtype
    exact = x.double() @ weight.double().t()
    for plan in (
        None,
        "gemv_16x8_k4",
        "swap_ab:gemv_16x16_k8_wide",
        "gemv_16x32_k2",
        "gemv_32x32_k8",
    ):
        out = torch.full((rows, n), float("nan"), device="cuda", dtype=out_dtype)
        gemm(x, weight.t(), out=out, plan=plan)
        taken = plan_of(x, weight.t(), out=out, plan=plan)
        assert ((out.double() - exact).abs() <= allowed(taken, kind, x, weight)).all(), plan


def test_an_epilogue_of_few_rows():
    x, weight, bias = (
        made(4, 4096, "bfloat16"),
        made(2048, 4096, "bfloat16", 1),
        made(1, 2048, "float32", 2)[0],
    )
    found = gemm(x, weight.t(), epilogue=lambda acc, bias: acc + bias, bias=bias)
    exact = x.double() @ weight.double().t() + bias.double()
    assert (found.double() - exact).abs().max() <= 2.0**-8 * exact.abs().max()


@pytest.mark.parametrize("captured", [False, True])
def test_launches_that_overlap_read_what_the_one_ahead_wrote(captured):
    """A chain of products, each of what the one before it stored."""
    weights = [made(2048, 2048, "bfloat16", i) / 2048**0.5 for i in range(12)]
    x = made(3, 2048, "bfloat16")
    plain = [torch.empty_like(x) for _ in weights]
    early = [torch.empty_like(x) for _ in weights]

    def chain(outs, plan):
        given = x
        for weight, out in zip(weights, outs, strict=True):
            gemm(given, weight.t(), out=out, plan=plan)
            given = out

    chain(plain, "swap_ab:gemv_16x8")
    chain(early, EARLY)
    torch.cuda.synchronize()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain(early, EARLY)
        for _ in range(50):
            for out in early:
                out.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(early[-1], plain[-1])
    assert all(torch.equal(one, other) for one, other in zip(early, plain, strict=True))
