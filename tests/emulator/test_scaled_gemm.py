"""Block-scaled `gemm` and `scaled_mm` from their arguments to the emulated kernel, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm import batch_invariant, gemm  # noqa: E402
from cutegemm.epilogue import relu  # noqa: E402
from cutegemm.errors import PlanError  # noqa: E402
from tests.emulator.on_cpu import emulate_launches  # noqa: E402
from tests.torch.block_scaled import check, factors, of_gemm  # noqa: E402


@pytest.fixture
def launched(monkeypatch):
    """Return the list of plans that gemm launches, as on a Hopper GPU of four SMs."""
    return emulate_launches(monkeypatch, 4)


@pytest.mark.parametrize(
    ("shape", "recipe", "swaps"),
    [
        ((150, 201, 600), ("1x128", "128x128"), False),
        ((16, 256, 256), ("1x128", "128x128"), True),
        ((130, 64, 304), ("128x128", "1x128"), None),
        ((70, 96, 0), ("1x128", "1x128"), None),
    ],
    ids=str,
)
def test_chosen_plans(launched, shape, recipe, swaps):
    """M, N and K that are not multiples of 128 or 16, K = 0, and few rows, which swap A and B."""
    case = factors(*shape, *recipe)
    check(case, gemm(case.a, case.b, scales=of_gemm(case), out_dtype=torch.float32))
    assert launched[-1].name.startswith("sm90_promoted")
    if swaps is not None:
        assert launched[-1].swap_ab is swaps


def test_bias_and_types_of_the_result(launched):
    case = factors(40, 128, 256, "1x128", "128x128")
    bias = torch.randn(128)
    function = lambda acc, bias: relu(acc + bias)  # noqa: E731
    wide = gemm(case.a, case.b, scales=of_gemm(case), epilogue=function, bias=bias, out_dtype=torch.float32)
    check(case, wide, lambda exact: (exact + bias.double()).relu())
    for kind in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        found = gemm(case.a, case.b, scales=of_gemm(case), epilogue=function, bias=bias, out_dtype=kind)
        largest = torch.finfo(kind).max
        assert torch.equal(found.float(), wide.clamp(-largest, largest).to(kind).float())


def test_c_alpha_and_beta(launched):
    case, c = factors(33, 64, 128, "1x128", "1x128"), torch.randn(33, 64)
    found = gemm(case.a, case.b, scales=of_gemm(case), c=c, alpha=0.5, beta=-2.0, out=torch.empty(33, 64))
    check(case, found, lambda exact: 0.5 * exact - 2 * c.double())


def test_scales_of_any_strides(launched):
    """M-major with a pitch of 16 bytes is read in place; the others are copied. The results are equal bit by bit."""
    case = factors(36, 64, 300, "1x128", "128x128")
    of_a, of_b = of_gemm(case)
    wide = torch.full((9, 80), float("nan"))
    wide[::3, 4:76:2] = of_a.t()
    views = [(of_a, of_b), (of_a.contiguous(), of_b.contiguous()), (wide[::3, 4:76:2].t(), of_b.t().contiguous().t())]
    found = [gemm(case.a, case.b, scales=pair) for pair in views]
    assert all(torch.equal(each, found[0]) for each in found)


def test_a_batch(launched):
    cases = [factors(20, 48, 140, "1x128", "128x128", seed) for seed in (0, 1)]
    a, b = (torch.stack([getattr(case, name) for case in cases]) for name in "ab")
    pairs = [of_gemm(case) for case in cases]
    scales = tuple([torch.stack([pair[i] for pair in pairs]) for i in (0, 1)])
    for case, found in zip(cases, gemm(a, b, scales=scales, out_dtype=torch.float32), strict=True):
        check(case, found)


def test_a_plan_by_name_or_value(launched):
    case = factors(64, 64, 256, "1x128", "128x128")
    check(case, gemm(case.a, case.b, scales=of_gemm(case), plan="sm90_promoted_64x64", out_dtype=torch.float32))
    plan = launched[-1]
    check(case, gemm(case.a, case.b, scales=of_gemm(case), plan=plan, out_dtype=torch.float32))
    with pytest.raises(
        PlanError, match=r"made for scale_a by \(m, k/128\) and scale_b .*, the call has no block scales"
    ):
        gemm(case.a, case.b, plan=plan, out_dtype=torch.float32)
    with pytest.raises(PlanError, match=r"does not read scale_a and scale_b. Block scales are read by an sm90_plan"):
        gemm(case.a, case.b, scales=of_gemm(case), plan="gemv_16x16")


def test_rows_of_a_batch_invariant_call(launched):
    """Seven rows alone, by another plan, have the bits that they have among 150."""
    case = factors(150, 96, 600, "1x128", "128x128")
    of_a, of_b = of_gemm(case)
    with batch_invariant():
        whole = gemm(case.a, case.b, scales=(of_a, of_b), out_dtype=torch.float32)
        alone = gemm(case.a[:7], case.b, scales=(of_a[:7], of_b), out_dtype=torch.float32)
    assert torch.equal(whole[:7], alone)
    assert launched[0].name != launched[1].name
