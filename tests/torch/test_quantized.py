"""Results that an epilogue quantizes, on the CPU, on the meta device, and in graphs of torch.compile."""

from __future__ import annotations

from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm import gemm, quantize, scaled_mm  # noqa: E402
from cutegemm.epilogue import gelu, swiglu  # noqa: E402
from cutegemm.epilogue import quantize as in_epilogue  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch.epilogue import formula, text_of_function  # noqa: E402
from cutegemm.torch.launch import allocated, compute  # noqa: E402
from tests.torch.block_scaled import RECIPES, factors  # noqa: E402

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def check_bits(found, want):
    """Check that values and scales have the same bits, shapes and strides."""
    for ours, theirs in zip(found, want, strict=True):
        assert (ours.dtype, ours.shape, ours.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        assert torch.equal(ours.float().nan_to_num(-1), theirs.float().nan_to_num(-1))


@pytest.mark.parametrize("recipe", [*product(RECIPES, RECIPES)], ids="-".join)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_block_scaled(recipe, dtype):
    case, bias = factors(70, 200, 300, *recipe), torch.randn(200)
    for more in ({}, {"bias": bias}):
        wide = scaled_mm(*case.arguments, output_dtype=torch.float32, **more)
        check_bits(
            scaled_mm(*case.arguments, output_dtype=dtype, quantize=(1, 128), **more), quantize(wide, dtype=dtype)
        )


@pytest.mark.parametrize("recipe", ["TensorWise", "RowWise"])
def test_other_scales(recipe):
    a, b = torch.randn(70, 64).to(E4M3), torch.randn(200, 64).to(E4M3).t()
    scales = (
        (torch.tensor(0.5), torch.tensor(3.0)) if recipe == "TensorWise" else (torch.rand(70, 1), torch.rand(1, 200))
    )
    given = a, b, scales[0], recipe, scales[1], recipe
    wide = scaled_mm(*given, output_dtype=torch.float32)
    check_bits(scaled_mm(*given, output_dtype=E4M3, quantize=(1, 128)), quantize(wide))


@pytest.mark.parametrize("power_of_two", [False, True])
def test_special_values_and_batches(power_of_two):
    """Zeros, infinities, NaN and tiny numbers; by the reference of the kernels, which `gemm` uses on no GPU."""
    a = torch.randn(2, 10, 16)
    a[0, 1], a[0, 2, 3], a[0, 3, 4], a[1, 5] = 0, float("inf"), float("nan"), a[1, 5] * 1e-30
    b, text = torch.randn(2, 16, 200), f"lambda acc: quantize(acc, 'e4m3'{', 1' if power_of_two else ''})"
    (wide,) = compute(a, (b,), "lambda acc: acc")
    values, scales = compute(a, (b,), text)
    for i in range(2):
        check_bits((values[i], scales[i]), quantize(wide[i], power_of_two=power_of_two))
    fake = allocated(a, (b,), text, None)
    assert [(each.shape, each.stride()) for each in fake] == [(each.shape, each.stride()) for each in (values, scales)]


def test_texts():
    written = text_of_function(lambda acc, bias: in_epilogue(swiglu(acc + bias), "e5m2", True), ("bias",), ())
    assert written.count("quantize(") == 2
    assert text_of_function(formula(written).function, ("bias",), ()) == written
    assert formula(written).shapes((5,), 600) == [(5, 300), (5, 3)]


def test_graphs():
    case = factors(70, 200, 300, "1x128", "128x128")

    def quantized(a, b, scale_a, scale_b):
        values, scales = scaled_mm(
            a, b, scale_a, "BlockWise1x128", scale_b, "BlockWise128x128", output_dtype=E4M3, quantize=(1, 128)
        )
        return values.view(torch.uint8), 2 * scales

    given = case.a, case.b, case.scale_a, case.scale_b
    compiled = torch.compile(quantized, backend="aot_eager", fullgraph=True)
    check_bits(compiled(*given), quantized(*given))

    def on_meta(a, b):
        return gemm(a, b, epilogue=lambda acc: in_epilogue(gelu(acc), "e5m2"))

    a, b = torch.empty(70, 64, device="meta").bfloat16(), torch.empty(64, 200, device="meta").bfloat16()
    found = torch.compile(on_meta, backend="eager", fullgraph=True)(a, b)
    assert [(each.dtype, each.shape, each.stride()) for each in found] == [
        (E5M2, (70, 200), (200, 1)),
        (torch.float32, (70, 2), (1, 72)),
    ]


def test_refused():
    case, bias = factors(70, 200, 300, "1x128", "128x128"), torch.randn(200, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"quantize = \(1, 128\), but output_dtype is torch.bfloat16. Pass"):
        scaled_mm(*case.arguments, quantize=(1, 128))
    with pytest.raises(UnsupportedError, match=r"quantize = \(128, 128\). Pass \(1, 128\) or None"):
        scaled_mm(*case.arguments, output_dtype=E4M3, quantize=(128, 128))
    with pytest.raises(UnsupportedError, match=r"bias requires gradients; block-scaled float8 has no derivatives"):
        scaled_mm(*case.arguments, bias=bias, output_dtype=E4M3, quantize=(1, 128))
    a, b = torch.empty(70, 64, device="meta").bfloat16(), torch.empty(64, 200, device="meta").bfloat16()
    with pytest.raises(UnsupportedError, match=r"a requires gradients; quantize has no derivatives. Pass a.detach\(\)"):
        gemm(a.requires_grad_(), b, epilogue=lambda acc: in_epilogue(acc))
    with pytest.raises(UnsupportedError, match=r"out_dtype names torch.float16, but quantize\(acc, 'e4m3'\)\[0\] is"):
        gemm(a.detach(), b, epilogue=lambda acc: in_epilogue(acc), out_dtype=torch.float16)
