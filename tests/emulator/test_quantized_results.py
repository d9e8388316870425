"""`gemm` and `scaled_mm` that quantize their result: the emulated kernel has the bits of `quantize` of a f32 result."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import numpy as np  # noqa: E402

from cutegemm import Operands, PlanError, Problem, gemm, scaled_mm, sm90_plan  # noqa: E402
from cutegemm.analysis import check  # noqa: E402
from cutegemm.epilogue import gelu, quantize, relu, row_sum, swiglu  # noqa: E402
from cutegemm.run.emulated import emulate  # noqa: E402
from cutegemm.simulator import play_interleavings, protocol_of, simulate  # noqa: E402
from cutegemm.torch.quantization import by_torch  # noqa: E402
from tests.emulator.on_cpu import emulate_launches  # noqa: E402
from tests.marks import with_thorough  # noqa: E402
from tests.quantized import FORMS, form  # noqa: E402
from tests.torch.block_scaled import factors, of_gemm  # noqa: E402

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture
def launched(monkeypatch):
    """Return the list of plans that gemm launches, as on a Hopper GPU of four SMs."""
    return emulate_launches(monkeypatch, 4)


def check_bits(found, wide, dtype=E4M3, power_of_two=False):
    """Check values and scales against those of `quantize` of the f32 result."""
    values, scales = by_torch(wide, 1, dtype, power_of_two)
    assert torch.equal(found[0].view(torch.uint8), values.view(torch.uint8))
    assert torch.equal(found[1].view(torch.int32), scales.view(torch.int32))
    assert (found[1].shape, found[1].stride()) == (scales.shape, scales.stride())


@pytest.mark.parametrize("name", with_thorough(FORMS, {"cluster_2x1", "cluster_k", "split", "single"}))
def test_forms(name):
    """Simulated and emulated: blocks of zeros, infinities and NaN; ragged M and N."""
    plan, m = form(name), 200
    n, k = {"lines": 300, "gated": 608}.get(name, 304), 80
    rng = np.random.default_rng(len(name))
    a, b = [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n))]
    bias = rng.integers(-4, 5, n).astype(np.float32)
    a[5], bias[128:256] = 0, 0
    b[:, 64] *= 2**-4
    a[7, 3] = np.nan
    if plan.operands.a.dtype.bits > 8:  # e4m3 has no infinity
        a[9, 2] = np.inf
    extents = {"m": m, "n": n, "k": k}
    scales = {}  # block scales of A and B, all 1
    for operand in plan.operands.of_mainloop:
        shape = [-(-extents[mode[0]] // int(mode[2:] or 1)) for mode in plan.operands.modes(operand)]
        scales[operand] = np.ones(shape, np.float32)
    with np.errstate(invalid="ignore"):
        wide = a @ b + bias
        if name == "gated":
            wide = np.maximum(wide[:, : n // 2], 0) * wide[:, n // 2 :]
    values, of_blocks = by_torch(torch.from_numpy(wide), 1, E4M3, name == "lines")
    for run in (simulate, emulate):
        found = run(plan, a, b, bias=bias, **scales)
        assert np.array_equal(found.d, values.float().numpy(), equal_nan=True)
        assert np.array_equal(found.aux["aux"], of_blocks.numpy(), equal_nan=True)


@pytest.mark.parametrize(("shape", "dtype"), [((150, 208, 600), E4M3), ((16, 256, 256), E5M2), ((70, 130, 0), E4M3)])
def test_block_scaled_calls(launched, shape, dtype):
    case, bias = factors(*shape, "1x128", "128x128"), torch.randn(shape[1])
    given = {"scales": of_gemm(case), "bias": bias}
    wide = gemm(case.a, case.b, epilogue=lambda acc, bias: gelu(acc + bias), out_dtype=torch.float32, **given)
    kind = str(launched[-1].operands.a.dtype) if dtype is E4M3 else "e5m2"
    found = gemm(case.a, case.b, epilogue=lambda acc, bias: quantize(gelu(acc + bias), kind), **given)
    check_bits(found, wide, dtype)
    assert not launched[-1].swap_ab
    assert launched[-1].consumer_d_tile[1] % 128 == 0


def test_results_are_operands_of_the_next_product(launched):
    case, w = factors(100, 256, 384, "1x128", "128x128"), factors(40, 200, 256, "1x128", "128x128")
    recipes = "BlockWise1x128", "BlockWise128x128"
    hidden, scales = scaled_mm(
        case.a, case.b, case.scale_a, recipes[0], case.scale_b, recipes[1], output_dtype=E4M3, quantize=(1, 128)
    )
    found = scaled_mm(hidden, w.b, scales, recipes[0], w.scale_b, recipes[1], output_dtype=torch.float32)
    wide = scaled_mm(case.a, case.b, case.scale_a, recipes[0], case.scale_b, recipes[1], output_dtype=torch.float32)
    check_bits((hidden, scales), wide)
    again = scaled_mm(hidden, w.b, scales.contiguous(), recipes[0], w.scale_b, recipes[1], output_dtype=torch.float32)
    assert torch.equal(found, again)


def test_a_batch_and_tensors_of_the_caller(launched):
    a, b = torch.randn(2, 70, 64).bfloat16(), torch.randn(2, 64, 144).bfloat16()
    wide = gemm(a, b, out_dtype=torch.float32)
    found = gemm(a, b, epilogue=lambda acc: quantize(acc))
    for i in range(2):
        check_bits((found[0][i], found[1][i]), wide[i])
    out = torch.empty(70, 144, dtype=E4M3), torch.full((2, 80), torch.nan).t()[:70]
    assert gemm(a[0], b[0], epilogue=lambda acc: quantize(acc), out=out)[1] is out[1]
    assert torch.equal(out[1], found[1][0])


@pytest.mark.parametrize("interleaved", [False, True])
def test_gated(launched, interleaved):
    """D has half of the columns of A @ B, and a scale for every 128 columns of D."""
    a, b, bias = torch.randn(140, 128).bfloat16(), torch.randn(128, 608).bfloat16(), torch.randn(608)
    wide = gemm(a, b, epilogue=lambda acc, bias: swiglu(acc + bias, interleaved), bias=bias, out_dtype=torch.float32)
    found = gemm(a, b, epilogue=lambda acc, bias: quantize(swiglu(acc + bias, interleaved)), bias=bias)
    assert [tuple(each.shape) for each in found] == [(140, 304), (140, 3)]
    check_bits(found, wide)
    assert launched[-1].d_tile[1] % 128 == 0
    as_meta = gemm(a.to("meta"), b.to("meta"), epilogue=lambda acc: quantize(swiglu(acc, interleaved)))
    assert [(each.shape, each.stride()) for each in as_meta] == [(each.shape, each.stride()) for each in found]


def test_the_analysis_counts_the_stores_of_scales():
    operands = Operands.of("bf16", layout="nt", out="e4m3")
    plan = sm90_plan(operands, tile=(128, 128, 64), epilogue="quantize(relu(acc))", schedule="cooperative")
    problem = Problem(200, 288, 64, operands=plan.operands)
    (stores,) = [each for each in check(plan, problem).global_ if each.name == "store AUX"]
    assert (stores.instruction, stores.requests, stores.in_grid.requests) == ("STG.32", 16, 25 * 3)
    instructions = emulate(plan, np.ones((200, 64)), np.ones((64, 288))).instructions
    assert instructions["st.global.b32"] == 8 * stores.in_grid.requests
    assert "quantize to aux" in plan.describe()


def test_no_order_of_the_warps_breaks_a_barrier():
    plan = sm90_plan(Operands.of("bf16", layout="nt", out="e4m3"), tile=(64, 128, 64), epilogue="quantize(acc)")
    assert play_interleavings(protocol_of(plan, k_tiles=3, tiles=4)).faults == ()


def test_refused(launched):
    a, b = torch.randn(64, 64).bfloat16(), torch.randn(64, 128).bfloat16()
    with pytest.raises(PlanError, match=r"both results of quantize\(\) its only results"):
        gemm(a, b, epilogue=lambda acc: (*quantize(acc), row_sum(acc)))
    with pytest.raises(PlanError, match=r"quantizes with the M x N operand c"):
        gemm(a, b, epilogue=lambda acc, c: quantize(acc + c), c=torch.ones(64, 128))
    with pytest.raises(PlanError, match=r"quantize needs a plan with wgmma that stores D through epilogue stages"):
        gemm(a, b, epilogue=lambda acc: quantize(relu(acc)), plan="simt_128x128")
    with pytest.raises(PlanError, match=r"a consumer's tile of D has 64 columns"):
        sm90_plan(Operands.of("bf16", layout="nt", out="e4m3"), tile=(64, 64, 64), epilogue="quantize(acc)")
    with pytest.raises(PlanError, match=r"quantize makes e5m2, but D is e4m3"):
        sm90_plan(Operands.of("bf16", layout="nt", out="e4m3"), tile=(64, 128, 64), epilogue="quantize(acc, 'e5m2')")
    with pytest.raises(PlanError, match=r"it quantizes rows of D; with swap A/B these are columns"):
        gemm(a, b, epilogue=lambda acc: quantize(acc), plan="swap_ab:sm90_128x128")
