"""Calls with block scales on the device, against float64 of the dequantized factors, between NaN; and `quantize`."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

from cutegemm import gemm, quantize, scaled_mm  # noqa: E402
from cutegemm.epilogue import gelu, relu  # noqa: E402
from cutegemm.epilogue import quantize as in_epilogue  # noqa: E402
from cutegemm.torch import from_deep_gemm  # noqa: E402
from cutegemm.torch.quantization import by_torch  # noqa: E402
from tests.torch.block_scaled import RECIPES, Case, dequantized, factors, of_gemm  # noqa: E402

pytestmark = pytest.mark.gpu

GUARD = 64  # elements of NaN around a matrix, and after each row
ERROR = 2.0**-11  # error of a sum of products by wgmma, as a share of the sum of their magnitudes
ALL = [*product(RECIPES, RECIPES)]
SHAPES = [(1, 4096, 4096), (16, 576, 1024), (130, 200, 300), (512, 1024, 4096), (1000, 2112, 896), (77, 96, 0)]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@pytest.fixture(autouse=True)
def only_on_hopper(arch):
    if arch != "sm_90a":
        pytest.skip("block scales are read on Hopper")


def guarded(x, pitch=16):
    """Return a copy of a matrix, contiguous along K or along its rows, with NaN around it and after each row."""
    if x.stride(1) != 1 and x.stride(0) == 1:
        return guarded(x.t(), pitch).t()
    rows, columns = x.shape
    leading = -(-columns // pitch) * pitch + GUARD
    room = torch.full((2 * GUARD + rows * leading,), float("nan"), device=x.device).to(x.dtype)
    view = room.as_strided((rows, columns), (leading, 1), GUARD)
    view.copy_(x)
    return view


def between_nan(case):
    """Return a case whose matrices and scales have NaN around them."""
    return Case(*[guarded(x) for x in (case.a, case.b, case.scale_a, case.scale_b)], case.recipe)


def check(case, found, ending=lambda exact: exact, error=ERROR):
    a, b = dequantized(case)
    assert found.isfinite().all()
    assert ((found.double() - ending(a @ b)).abs() <= error * (a.abs() @ b.abs()) + 1e-5).all()


@pytest.mark.parametrize("recipe", ALL, ids="-".join)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scaled_mm(shape, recipe):
    for case in (plain := factors(*shape, *recipe, device="cuda"), between_nan(plain)):
        bias = torch.randn(shape[1], device="cuda")
        check(case, scaled_mm(*case.arguments, output_dtype=torch.float32))
        found = scaled_mm(*case.arguments, bias=bias, output_dtype=torch.float32)
        check(case, found, lambda exact, bias=bias: exact + bias.double())


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, E4M3, E5M2])
def test_types_of_the_result(kind):
    case = factors(300, 512, 640, "1x128", "128x128", device="cuda")
    wide = scaled_mm(*case.arguments, output_dtype=torch.float32)
    found = scaled_mm(*case.arguments, output_dtype=kind)
    largest = torch.finfo(kind).max
    assert torch.equal(found.float(), wide.clamp(-largest, largest).to(kind).float())


def test_an_epilogue_and_a_result_between_nan():
    case, bias = between_nan(factors(150, 264, 520, "1x128", "128x128", device="cuda")), torch.randn(264, device="cuda")
    out = guarded(torch.zeros(150, 264, device="cuda"))
    whole = torch.empty(0, device="cuda").set_(out.untyped_storage())
    out.fill_(float("nan"))
    found = gemm(case.a, case.b, scales=of_gemm(case), epilogue=lambda acc, bias: gelu(acc + bias), bias=bias, out=out)
    check(case, found, lambda exact: F.gelu(exact + bias.double()), 2 * ERROR)
    assert int(whole.isfinite().sum()) == out.numel()


def test_a_cuda_graph_and_a_hundred_runs():
    case = factors(200, 512, 1024, "1x128", "128x128", device="cuda")  # 200 rows: no copy of the scales
    first = scaled_mm(*case.arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = scaled_mm(*case.arguments)
    for _ in range(100):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, first)


def test_scales_of_deep_gemm():
    case = factors(150, 256, 512, "1x128", "128x128", device="cuda")
    room = torch.full((4, 152), float("nan"), device="cuda").t()
    room[:150] = case.scale_a
    theirs = from_deep_gemm(room[:150])
    assert theirs.data_ptr() == room.data_ptr()
    found = scaled_mm(case.a, case.b, theirs, "BlockWise1x128", case.scale_b, "BlockWise128x128")
    assert torch.equal(found, scaled_mm(*case.arguments))


@pytest.mark.skipif(not hasattr(F, "scaled_mm"), reason="torch 2.10 has torch.nn.functional.scaled_mm")
@pytest.mark.parametrize("recipe", ALL[:3], ids="-".join)
def test_the_error_is_at_most_twice_that_of_torch(recipe):
    case = factors(1024, 1024, 4096, *recipe, device="cuda")
    kinds = [getattr(F.ScalingType, RECIPES[each]) for each in recipe]
    theirs = F.scaled_mm(case.a, case.b, case.scale_a, kinds[0], case.scale_b, kinds[1], output_dtype=torch.float32)
    a, b = dequantized(case)
    ours = scaled_mm(*case.arguments, output_dtype=torch.float32)
    assert (ours - a @ b).abs().max() <= 2 * (theirs - a @ b).abs().max()


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("block", [(1, 128), (128, 128)], ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_quantize(kind, block, power_of_two):
    """The bits are those of torch on the CPU, for aligned and ragged matrices, and NaN between them is not read."""
    torch.manual_seed(0)
    for rows, k in ((1024, 4096), (1001, 1300), (5, 131), (129, 77), (1, 1)):
        x = (torch.randn(rows, k) * torch.exp(2 * torch.randn(rows, 1))).to(kind)
        x[rows // 2] = 0
        if rows > 4:
            x[3, k // 2], x[2, -1] = float("inf"), float("nan")
        for target in (E4M3, E5M2):
            want = by_torch(x, block[0], target, power_of_two)
            for given in (x.cuda(), guarded(x.cuda()), x.cuda().t().contiguous().t()):
                for ours, theirs in zip(quantize(given, block, target, power_of_two), want, strict=True):
                    found = ours.cpu().float()
                    assert torch.equal(found.isnan(), theirs.float().isnan())
                    assert torch.equal(found.nan_to_num(), theirs.float().nan_to_num())


def are_equal(found, want):
    """Return whether two tensors have the same bits, except in NaN."""
    found, want = found.float(), want.float()
    return torch.equal(found.isnan(), want.isnan()) and torch.equal(found.nan_to_num(), want.nan_to_num())


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize("plan", ["sm90_64x128", "sm90_cluster_2x1", "sm90_cooperative"])
def test_a_quantized_result(plan, power_of_two):
    """Values and scales of one kernel are those of `quantize` of the f32 result; tensors have NaN around them."""
    for m, n, k in ((1000, 1040, 512), (129, 2048, 300), (1, 128, 64), (500, 16, 4096)):
        a, b = (
            guarded(torch.randn(m, k, device="cuda").bfloat16()),
            guarded(torch.randn(n, k, device="cuda").bfloat16()),
        )
        a[m // 2], bias = 0, torch.randn(n, device="cuda")
        if m > 9:
            a[3, k // 2], a[9, -1] = float("inf"), float("nan")
        for name, dtype in (("e4m3", E4M3), ("e5m2", E5M2)):
            given = {"bias": bias, "plan": plan}
            wide = gemm(a, b.t(), epilogue=lambda acc, bias: relu(acc + bias), out_dtype=torch.float32, **given)
            pitch = -(-m // 4) * 4
            out = (
                guarded(torch.zeros(m, n, device="cuda").to(dtype)),
                guarded(torch.zeros(-(-n // 128), m, device="cuda"), 4).t(),
            )
            around = [torch.empty(0, device="cuda", dtype=each.dtype).set_(each.untyped_storage()) for each in out]
            for each in out:
                each.fill_(float("nan"))
            quantized = lambda acc, bias, name=name: in_epilogue(relu(acc + bias), name, power_of_two)  # noqa: E731
            found = gemm(a, b.t(), epilogue=quantized, out=out, **given)
            assert all(map(are_equal, found, quantize(wide, (1, 128), dtype, power_of_two)))
            finite = [int(each.float().isfinite().sum()) for each in around]
            assert all(count <= each.numel() for count, each in zip(finite, out, strict=True))
            again = gemm(a, b.t(), epilogue=quantized, **given)
            assert all(map(are_equal, again, found))
            assert again[1].stride(1) == pitch or again[1].shape[1] == 1


@pytest.mark.parametrize("recipe", ALL, ids="-".join)
def test_a_quantized_result_is_the_next_operand(recipe):
    """By the chosen plan: values and scales give the f32 result back, and a second product reads them."""
    for m, n, k in ((1000, 2112, 896), (16, 576, 1024), (130, 200, 300)):
        case = between_nan(factors(m, n, k, *recipe, device="cuda"))
        wide = scaled_mm(*case.arguments, output_dtype=torch.float32)
        values, scales = scaled_mm(*case.arguments, output_dtype=E4M3, quantize=(1, 128))
        back = values.float() * scales.repeat_interleave(128, 1)[:, :n]
        assert ((back - wide).abs() <= wide.abs() * 2.0**-4 + scales.max() * 2.0**-9).all()
        w, of_w = quantize(torch.randn(256, n, device="cuda"), (128, 128))
        second = scaled_mm(
            values, w.t(), scales, "BlockWise1x128", of_w, "BlockWise128x128", output_dtype=torch.float32
        )
        check(Case(values, w.t(), scales, of_w, ("1x128", "128x128")), second)


def test_quantized_results_of_a_thousand_runs():
    case = factors(1000, 1024, 1536, "1x128", "128x128", device="cuda")
    first = scaled_mm(*case.arguments, output_dtype=E4M3, quantize=(1, 128))
    for _ in range(1000):
        assert all(map(are_equal, scaled_mm(*case.arguments, output_dtype=E4M3, quantize=(1, 128)), first))
