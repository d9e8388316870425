"""`scaled_mm` with block scales, `quantize` and `from_deep_gemm` on the CPU, in graphs, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.dtypes import e4m3, e5m2, round_to  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.run.calls import How  # noqa: E402
from cutegemm.run.scales import NAMES  # noqa: E402
from cutegemm.torch import from_deep_gemm, quantize, scaled_mm  # noqa: E402
from cutegemm.torch.gemm import gemm_by_torch  # noqa: E402
from tests.torch.block_scaled import check, factors, of_gemm  # noqa: E402

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ALL = [("1x128", "128x128"), ("1x128", "1x128"), ("128x128", "1x128"), ("128x128", "128x128")]
CASE = factors(150, 200, 600, "1x128", "128x128")


# --- scaled_mm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ALL, ids="-".join)
@pytest.mark.parametrize("shape", [(150, 201, 600), (128, 256, 512), (1, 5, 1), (7, 130, 0)], ids=str)
def test_scaled_mm(shape, recipe):
    case = factors(*shape, *recipe)
    bias = torch.randn(shape[1])
    check(case, scaled_mm(*case.arguments, output_dtype=torch.float32))
    check(case, scaled_mm(*case.arguments, bias=bias, output_dtype=torch.float32), lambda exact: exact + bias.double())
    assert scaled_mm(*case.arguments).dtype == torch.bfloat16
    assert scaled_mm(*case.arguments, output_dtype=None).dtype == E4M3


def test_scales_without_torchs_padding():
    """torch pads the 5 blocks of K to 8. The scales may be unpadded, members of the enum, and in lists."""
    case, kinds = CASE, getattr(F, "ScalingType", None)
    a, b, scale_a, _, scale_b, _ = case.arguments
    recipes = ("BlockWise1x128", 5) if kinds is None else (kinds.BlockWise1x128, [kinds.BlockWise128x128])
    want = scaled_mm(*case.arguments)
    assert scale_b.shape == (8, 2)
    assert torch.equal(scaled_mm(a, b, [scale_a], recipes[0], scale_b[:5].contiguous(), recipes[1]), want)


@pytest.mark.skipif(not hasattr(F, "scaled_mm"), reason="torch 2.10 has torch.nn.functional.scaled_mm")
@pytest.mark.parametrize("recipe", ALL[:3], ids="-".join)
def test_shapes_and_strides_are_those_of_torch(recipe):
    """The meta function of torch checks them."""
    case = factors(256, 384, 640, *recipe)
    kinds = [getattr(F.ScalingType, name) for name in (case.arguments[3], case.arguments[5])]
    a, b, scale_a, scale_b = (x.to("meta") for x in (case.a, case.b, case.scale_a, case.scale_b))
    result = F.scaled_mm(a, b, scale_a, kinds[0], scale_b, kinds[1])
    assert result.shape == scaled_mm(*case.arguments).shape


@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs(dynamic):
    bias = torch.randn(200)
    compiled = torch.compile(scaled_mm, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    assert torch.equal(compiled(*CASE.arguments, bias=bias), scaled_mm(*CASE.arguments, bias=bias))


def test_gemm_in_a_graph(monkeypatch):
    monkeypatch.setattr("cutegemm.torch.gemm.wrong_devices", lambda given: [])
    scales, bias = of_gemm(CASE), torch.randn(200)

    def call(a, b, scale_a, scale_b, bias):
        return cutegemm.gemm(a, b, scales=(scale_a, scale_b), epilogue=lambda acc, bias: acc + bias, bias=bias)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(CASE.a, CASE.b, *scales, bias), scaled_mm(*CASE.arguments, bias=bias))


def test_a_call_that_torch_computes_until_its_kernel_is_compiled():
    out, bias = torch.empty(150, 200), torch.randn(200)
    scales = dict(zip(NAMES, of_gemm(CASE), strict=True))
    args = {"a": CASE.a, "b": CASE.b, "c": None, "alpha": None, "beta": None, "out": out, "out_dtype": None}
    args |= {"epilogue": lambda acc, bias: acc + bias, "operands": {"bias": bias, **scales}, "how": How()}
    assert gemm_by_torch(args) is out
    check(CASE, out, lambda exact: exact + bias.double())


def test_meta_tensors():
    found = cutegemm.gemm(*[x.to("meta") for x in (CASE.a, CASE.b)], scales=[x.to("meta") for x in of_gemm(CASE)])
    assert (found.shape, found.dtype, found.is_meta) == ((150, 200), torch.bfloat16, True)


def changed(**changes):
    """Return a call of `scaled_mm` with some arguments of `CASE` changed."""
    names = ("mat_a", "mat_b", "scale_a", "scale_recipe_a", "scale_b", "scale_recipe_b")
    return lambda: scaled_mm(**{**dict(zip(names, CASE.arguments, strict=True)), **changes})


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            changed(scale_a=CASE.scale_a.t()),
            r"scale_a has shape \(5, 150\), but .* needs \(150, 5\): \(M, K/128\) rounded up. Pass scale_a.t\(\)",
        ),
        (
            changed(scale_b=torch.ones(5, 3)),
            r"scale_b has shape \(5, 3\), but .* needs \(5, 2\) or \(8, 2\): \(K/128, N/128\)",
        ),
        (
            changed(scale_b=CASE.scale_b.half()),
            r"scale_b is of torch.float16, but must be float32. Pass scale_b.float\(\)",
        ),
        (changed(scale_b=torch.ones(()), scale_recipe_b=0), "both recipes must be block-wise, or neither"),
        (changed(mat_a=CASE.a.float().bfloat16()), "mat_a must be of float8 for block scales"),
        (changed(bias=torch.ones(200, requires_grad=True)), r"bias requires gradients; .*Pass bias.detach\(\)"),
        (changed(scale_a=torch.ones(150, 5, requires_grad=True)), "no derivatives, here or in torch"),
        (lambda: cutegemm.gemm(CASE.a, CASE.b, scales=CASE.scale_a), "scales is a Tensor. Pass a pair of tensors"),
        (lambda: cutegemm.gemm(CASE.a, CASE.b, scales=of_gemm(CASE), beta=2.0), "beta = 2.0, but no c is given"),
        (lambda: cutegemm.gemm(CASE.a, CASE.b, scales=of_gemm(CASE), bias=1.0), "bias passed without an epilogue"),
        (
            lambda: cutegemm.gemm(CASE.a.to("meta"), CASE.b.to("meta"), scales=(CASE.scale_a.t(), CASE.scale_b)),
            r"(?s)scales\[0\] has shape \(5, 150\). Pass one scale for each row of a and 128 of K, of shape \(150, 5\)"
            r", or for each block of 128 x 128, of shape \(2, 5\). scales\[0\].mT fits.*scales\[1\] has shape \(8, 2\)",
        ),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(UnsupportedError, match=words):
        call()


def test_gradients_that_are_not_recorded():
    with torch.no_grad():
        assert not changed(bias=torch.ones(200, requires_grad=True))().requires_grad


# --- quantize --------------------------------------------------------------------------------------------------------


def by_numpy(x, rows, kind, power_of_two):
    """Return values and scales (rows or blocks of rows, blocks of K) block by block, in float32 of numpy."""
    m, k = x.shape
    values, scales = np.zeros((m, k), np.float32), np.zeros((-(-m // rows), -(-k // 128)), np.float32)
    for i, j in np.ndindex(*scales.shape):
        own = slice(i * rows, (i + 1) * rows), slice(j * 128, (j + 1) * 128)
        top = np.abs(x[own]).max()
        scale = np.float32(max(top / np.float32(kind.largest), np.float32(2.0**-126)))
        if power_of_two:
            scale = np.float32(2.0 ** np.ceil(np.log2(np.float64(scale))))
        scales[i, j] = np.float32(1) if top == 0 else scale
        values[own] = round_to(kind, x[own] * (np.float32(1) / scales[i, j]))
    return values, scales


@pytest.mark.parametrize("power_of_two", [False, True])
@pytest.mark.parametrize(("block", "dtype"), [((1, 128), E4M3), ((1, 128), E5M2), ((128, 128), E4M3)])
@pytest.mark.parametrize("shape", [(150, 600), (128, 256), (1, 1)], ids=str)
def test_quantize(shape, block, dtype, power_of_two):
    torch.manual_seed(0)
    x = torch.randn(shape) * torch.exp(3 * torch.randn(shape[0], 1))
    x[-1] *= 1e-38  # the scale is the least one
    x[0] = 0
    values, scales = quantize(x, block, dtype, power_of_two)
    want, of_blocks = by_numpy(x.numpy(), block[0], {E4M3: e4m3, E5M2: e5m2}[dtype], power_of_two)
    deep = of_blocks.shape[1]
    own = scales if block[0] == 1 else scales.t()
    assert np.array_equal(values.float().numpy(), want)
    assert np.array_equal(own[:, :deep].numpy(), of_blocks)
    assert (own[:, deep:] == 1).all()  # torch's padding of the blocks of K
    assert values.is_contiguous()
    if block[0] == 1:
        assert scales.stride() == (1, -(-shape[0] // 4) * 4)
    else:
        assert scales.stride() == (1, -(-deep // 4) * 4)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_a_block_that_is_not_finite(value):
    """Its scale and its values are NaN; the other blocks are as without it."""
    x = torch.randn(3, 300)
    want, of_want = quantize(x)
    x[1, 130] = value
    values, scales = quantize(x)
    assert scales[1, 1].isnan()
    assert values[1, 128:256].float().isnan().all()
    values[1, 128:256], scales[1, 1] = want[1, 128:256], of_want[1, 1]
    assert torch.equal(values.float(), want.float())
    assert torch.equal(scales, of_want)


def test_quantize_without_elements_and_of_other_strides():
    for block, shape in (((1, 128), (5, 0)), ((128, 128), (0, 1))):
        values, scales = quantize(torch.ones(5, 0), block)
        assert (values.shape, scales.shape) == ((5, 0), shape)
    x = torch.randn(300, 40)
    for ours, theirs in zip(quantize(x.t()), quantize(x.t().contiguous()), strict=True):
        assert torch.equal(ours.float(), theirs.float())


def test_products_of_quantized_matrices():
    """The values and scales go straight into `scaled_mm`; the error is that of float8."""
    torch.manual_seed(0)
    x, w = torch.randn(150, 600), torch.randn(200, 600)
    a, scale_a = quantize(x)
    b, scale_b = quantize(w, (128, 128), power_of_two=True)
    found = scaled_mm(a, b.t(), scale_a, "BlockWise1x128", scale_b, "BlockWise128x128", output_dtype=torch.float32)
    exact = x @ w.t()
    assert (found - exact).norm() / exact.norm() < 0.05


def test_quantize_in_a_graph():
    x = torch.randn(20, 300)
    compiled = torch.compile(lambda x: quantize(x, (128, 128)), fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(x), quantize(x, (128, 128)), strict=True):
        assert torch.equal(ours.float(), theirs.float())
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: quantize(torch.ones(4)), r"x has shape \(4,\), which is not that of a matrix"),
        (lambda: quantize(torch.ones(4, 4).double()), r"x is of torch.float64. Supported are .* Pass x.float\(\)"),
        (
            lambda: quantize(torch.ones(4, 4), (1, 32)),
            r"block = \(1, 32\) is not supported. Pass \(1, 128\) or \(128, 128\)",
        ),
        (
            lambda: quantize(torch.ones(4, 4), dtype=torch.int8),
            "dtype = torch.int8 is not supported. Pass torch.float8_e4m3fn or",
        ),
        (lambda: quantize(torch.ones(4, 4, requires_grad=True)), r"x requires gradients; .*Pass x.detach\(\)"),
        (
            lambda: torch.func.jvp(quantize, (torch.ones(4, 4),), (torch.ones(4, 4),)),
            "tangents of x are passed for forward differentiation; .*Call it without tangents",
        ),
        (lambda: quantize([1.0]), "x is a list. Pass a torch tensor."),
        (
            lambda: from_deep_gemm(torch.ones(4, 2).int()),
            "but must be float32. Packed powers of two belong to Blackwell",
        ),
        (lambda: from_deep_gemm(torch.ones(4)), r"scales has shape \(4,\), which is not that of a matrix"),
    ],
)
def test_what_quantize_refuses(call, words):
    with pytest.raises(UnsupportedError, match=words):
        call()


# --- scales of DeepGEMM ----------------------------------------------------------------------------------------------


def aligned(scales):
    """Return scales as DeepGEMM's get_col_major_tma_aligned_tensor: column-major, M padded to a multiple of 4."""
    m, deep = scales.shape
    out = torch.full((deep, -(-m // 4) * 4), float("nan")).t()
    out[:m] = scales
    return out[:m]


@pytest.mark.parametrize("m", [150, 152, 1])
def test_scales_of_deep_gemm(m):
    case = factors(m, 200, 600, "1x128", "128x128")
    theirs = aligned(case.scale_a)
    assert from_deep_gemm(theirs) is theirs
    of_b = from_deep_gemm(case.scale_b[:5].t().contiguous(), (128, 128))  # (N/128, K/128), row-major
    assert of_b.untyped_storage().data_ptr() != 0
    assert of_b.stride(0) == 1
    found = scaled_mm(case.a, case.b, theirs, "BlockWise1x128", of_b, "BlockWise128x128")
    assert torch.equal(found, scaled_mm(*case.arguments))
    copied = from_deep_gemm(case.scale_a.contiguous())
    assert torch.equal(copied, case.scale_a)
    assert copied.stride(1) % 4 == 0
