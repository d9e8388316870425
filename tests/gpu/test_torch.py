"""The face to torch on a GPU: against float64, beside torch in the same type; graphs, streams, models."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm import gemm  # noqa: E402
from cutegemm.epilogue import gelu, row_sum, square, swiglu  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import (  # noqa: E402
    addmm,
    bmm,
    gemm_act,
    gemm_dact,
    gemm_dgated,
    gemm_gated,
    linear,
    mlp,
    mm,
    scaled_mm,
)
from cutegemm.torch.launch import joined  # noqa: E402
from tests.torch.cases import ACTIVATIONS, GATED, normal, parted  # noqa: E402
from tests.torch.functions import FUNCTIONS, differentiable  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("arch")]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# What is not computed in one rounding of the library: a unit in the last place of the largest value.
# float64 is held against the library's own, whose order of sums is another one.
_FLOOR = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float32: 2.0**-22,
    torch.float64: 2.0**-50,
}


def on_gpu(*shape, seed=0, dtype=torch.bfloat16, grad=False, scale=1.0):
    return (normal(*shape, seed=seed) * scale).to("cuda", dtype).requires_grad_(grad)


def relative(found, exact):
    return float((found.double() - exact.double()).norm() / exact.double().norm().clamp_min(1e-30))


def as_good(ours, theirs, exact, said=""):
    """Each at most twice the error of the library against float64, or of one rounding."""
    for i, (one, other, right) in enumerate(zip(ours, theirs, exact, strict=True)):
        assert one.shape == right.shape, (said, i)
        assert torch.isfinite(one).all(), (said, i)
        allowed = 2 * relative(other, right) + _FLOOR.get(one.dtype, 0.0)
        assert relative(one, right) <= allowed, (said, i, relative(one, right), allowed)


def compared(ours, theirs, given, said=""):
    """Results and gradients of a function of tensors beside another's, and that one's in float64.

    given   tensors that require gradients, and others
    """
    outcomes = []
    for call, dtype in ((ours, None), (theirs, None), (theirs, torch.float64)):
        inputs = [t.detach().to(dtype or t.dtype).requires_grad_(t.requires_grad) for t in given]
        results = call(*inputs)
        results = [each for each in (results if isinstance(results, tuple) else (results,)) if each is not None]
        upstream = [on_gpu(*each.shape, seed=9 + i).to(each.dtype) for i, each in enumerate(results)]
        wanted = [t for t in inputs if t.requires_grad]
        found = torch.autograd.grad(results, wanted, upstream) if wanted else ()
        outcomes.append([*[each.detach() for each in results], *found])
    as_good(*outcomes, said)


SHAPES = [(256, 384, 128), (200, 136, 72), (1, 264, 64), (129, 64, 520)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(dtype, activation, has_bias):
    for m, n, k in SHAPES:
        x, w = (
            on_gpu(m, k, dtype=dtype, grad=True),
            on_gpu(n, k, seed=1, dtype=dtype, grad=True, scale=k**-0.5),
        )
        given = [x, w, *([on_gpu(n, seed=2, dtype=dtype, grad=True)] if has_bias else [])]
        compared(
            lambda x, w, bias=None: linear(x, w, bias, activation),
            lambda x, w, bias=None: ACTIVATIONS[activation](F.linear(x, w, bias)),
            given,
            (m, n, k),
        )


def test_the_direct_way_gives_what_the_recorded_one_does():
    x, w, bias = on_gpu(4, 96, 128), on_gpu(256, 128, seed=1), on_gpu(256, seed=2)
    for activation in (None, "gelu"):
        for b in (None, bias):
            with torch.no_grad():
                direct = linear(x, w, b, activation)
            recorded = linear(x, w.clone().requires_grad_(), b, activation)
            assert relative(direct, recorded.detach()) < 2.0**-8
            assert direct.shape == (4, 96, 256)


def test_errors_are_of_the_function_that_was_called():
    x, w = on_gpu(8, 16), on_gpu(32, 24)
    with pytest.raises(UnsupportedError, match=r"linear of x \(8, 16\), w \(32, 24\): x has rows of 16, w of 24"):
        linear(x, w)
    with pytest.raises(UnsupportedError, match="activation = 'mish'"):
        linear(x, on_gpu(32, 16), None, "mish")
    with pytest.raises(UnsupportedError, match=r"mm of a .*a has 16 columns, b has 32 rows"):
        mm(x, w)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_products(dtype):
    a, b = on_gpu(200, 136, dtype=dtype, grad=True), on_gpu(136, 264, seed=1, dtype=dtype, grad=True)
    compared(mm, torch.mm, (a, b))
    for shape in ((200, 264), (264,), (200, 1), ()):
        c = on_gpu(*shape, seed=2, dtype=dtype, grad=True)
        compared(
            lambda c, a, b: addmm(c, a, b, beta=0.5, alpha=-2.0),
            lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=-2.0),
            (c, a, b),
            shape,
        )
    x, y = on_gpu(3, 72, 64, dtype=dtype, grad=True), on_gpu(3, 64, 136, seed=3, dtype=dtype, grad=True)
    compared(bmm, torch.bmm, (x, y))
    compared(bmm, torch.matmul, (x, y[0].detach().requires_grad_()))


def test_gradients_of_gradients_in_float64():
    given = [
        on_gpu(8, 12, dtype=torch.float64, grad=True),
        on_gpu(16, 12, seed=1, dtype=torch.float64, grad=True),
    ]
    assert torch.autograd.gradcheck(lambda x, w: linear(x, w, None, "gelu"), given)
    assert torch.autograd.gradgradcheck(mm, (given[0], given[1].detach().t().requires_grad_()))


@pytest.mark.parametrize(
    "name",
    [
        "mm",
        "addmm of a row",
        "linear, gelu",
        "gemm with c",
        "gemm_gated, two weights",
        "gemm_dact",
        "mlp",
        "gated mlp",
    ],
)
def test_derivatives_by_torchs_checks(name):
    """Recorded and carried forward, of one and of a batch, and of gradients."""
    function, shapes = FUNCTIONS[name]
    tensors = [x.detach().cuda().requires_grad_() for x in differentiable(*shapes)]
    assert torch.autograd.gradcheck(
        function,
        tensors,
        check_batched_grad=True,
        check_forward_ad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(function, tensors, check_batched_grad=True)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_factors_of_alpha_0_are_not_read(dtype):
    """NaN in a factor does not reach the result, as in BLAS. torch.addmm reads the factors for some shapes (2.11)."""
    a, b = on_gpu(72, 136, dtype=dtype), on_gpu(136, 264, seed=1, dtype=dtype)
    a[0, 0], b[0, 0] = torch.nan, torch.inf
    for shape in ((72, 264), (264,), (72, 1), ()):
        c = on_gpu(*shape, seed=2, dtype=dtype)
        want = (0.5 * c).expand(72, 264)
        out = torch.full((72, 264), torch.nan, dtype=dtype, device="cuda")
        assert torch.equal(addmm(c, a, b, beta=0.5, alpha=0), want)
        assert torch.equal(addmm(c, a, b, beta=0.5, alpha=0, out=out), want)
        found = addmm(c.clone().requires_grad_(), a, b.clone().requires_grad_(), beta=0.5, alpha=0)
        assert torch.equal(found.detach(), want)
    tile = on_gpu(72, 264, seed=2, dtype=dtype)
    assert torch.equal(cutegemm.gemm(a, b, c=tile, alpha=0, beta=0.5), 0.5 * tile)
    assert not cutegemm.gemm(a, b, alpha=0).any()


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.bool])
def test_operands_of_a_type_that_is_not_floating(kind):
    x, w = on_gpu(8, 16), on_gpu(24, 16, seed=1)
    row, tile = torch.ones(24, device="cuda").to(kind), torch.ones(8, 24, device="cuda").to(kind)
    for call in (
        lambda: linear(x, w, row),
        lambda: linear(x, w.clone().requires_grad_(), row),
        lambda: addmm(tile, x, w.t()),
        lambda: gemm_act(x, w.t(), row),
        lambda: gemm_gated(x, w.t(), row),
        lambda: gemm_dact(x, w.t(), tile),
    ):
        with pytest.raises(UnsupportedError, match=r"float16, bfloat16 or float8 is expected\. Pass .*bfloat16"):
            call()


def test_numbers_that_are_not_real():
    a, b = on_gpu(8, 16), on_gpu(16, 24)
    for call in (lambda: cutegemm.gemm(a, b, alpha=2j), lambda: addmm(a.new_ones(24), a, b, alpha=2j)):
        with pytest.raises(UnsupportedError, match="alpha = 2j is not a real number"):
            call()


def test_gemm_under_autocast():
    """Factors and c are cast as torch.addmm's are; operands of an epilogue, results and an out are not."""
    a, b, c = (on_gpu(*shape, dtype=torch.float32) for shape in ((64, 96), (96, 128), (64, 128)))
    halves = [t.to(torch.bfloat16) for t in (a, b, c)]
    out = torch.empty(64, 128, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found = cutegemm.gemm(a, b, c=c, beta=1.0)
        assert torch.equal(found, cutegemm.gemm(halves[0], halves[1], c=halves[2], beta=1.0))
        assert cutegemm.gemm(halves[0], b).dtype == torch.bfloat16
        assert cutegemm.gemm(a.double(), b.double()).dtype == torch.float64
        wide = cutegemm.gemm(a, b, out_dtype=torch.float32)
        fused = cutegemm.gemm(a, b, epilogue=lambda acc, e: acc + e, e=c, out_dtype=torch.float32)
        assert cutegemm.gemm(a, b, out=out) is out
    assert (found.dtype, wide.dtype) == (torch.bfloat16, torch.float32)
    assert relative(fused - wide, c) < 1e-5
    assert relative(out, a.double() @ b.double()) < 1e-6


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gemm_act_and_the_way_back(activation):
    act = ACTIVATIONS[activation]
    a, b = on_gpu(264, 128, grad=True), on_gpu(128, 392, seed=1, grad=True, scale=128**-0.5)
    bias, c = on_gpu(392, seed=2, grad=True), on_gpu(264, 392, seed=3, grad=True)

    def by_torch(a, b, bias, c):
        x = a @ b + bias + c
        return x, act(x)

    compared(lambda *t: gemm_act(*t, activation), by_torch, (a, b, bias, c))
    up, w, preact = on_gpu(264, 64), on_gpu(64, 392, seed=1, scale=0.125), on_gpu(264, 392, seed=4)

    def back(up, w, preact):
        x = preact.detach().requires_grad_()
        y = act(x)
        return torch.autograd.grad(y, x, up @ w)[0], y.detach()

    compared(lambda *t: gemm_dact(*t, activation), back, (up, w, preact))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("activation", GATED)
def test_gemm_gated_and_the_way_back(activation, interleaved):
    act = GATED[activation]
    a, b = on_gpu(264, 128, grad=True), on_gpu(128, 512, seed=1, grad=True, scale=128**-0.5)
    bias = on_gpu(512, seed=2, grad=True)

    def gate_of(x):
        gate, up = parted(x, interleaved)
        return act(gate, up)

    def by_torch(a, b, bias):
        x = a @ b + bias
        return x, gate_of(x)

    compared(lambda *t: gemm_gated(*t, activation, True, interleaved), by_torch, (a, b, bias))
    with torch.no_grad():
        _, alone = gemm_gated(a, b, bias, activation, False, interleaved)
        _, both = gemm_gated(a, b, bias, activation, True, interleaved)
    assert relative(alone, both) < 2.0**-8
    up, w, preact = on_gpu(264, 64), on_gpu(64, 256, seed=1, scale=0.125), on_gpu(264, 512, seed=4)

    def back(up, w, preact):
        x = preact.detach().requires_grad_()
        y = gate_of(x)
        return torch.autograd.grad(y, x, up @ w)[0], y.detach()

    compared(lambda *t: gemm_dgated(*t, activation, interleaved), back, (up, w, preact))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_factor_and_a_residual_in_front_of_a_gate(dtype, interleaved):
    """Also of shapes whose halves are not aligned to 16 bytes."""
    for m, n, k in ((264, 512, 128), (72, 84, 104)):
        a, b = (
            on_gpu(m, k, dtype=dtype, grad=True),
            on_gpu(k, n, seed=1, dtype=dtype, grad=True, scale=k**-0.5),
        )
        c, alpha = (
            on_gpu(m, n, seed=2, dtype=dtype, grad=True),
            on_gpu(1, seed=3, dtype=torch.float32),
        )

        def theirs(a, b, c, alpha):
            x = alpha.to(a.dtype) * (a @ b) + c
            return x, GATED["swiglu"](*parted(x, interleaved))

        compared(
            lambda a, b, c, alpha: gemm_gated(a, b, interleaved=interleaved, c=c, alpha=alpha),
            theirs,
            (a, b, c, alpha),
            (m, n, k),
        )


@pytest.mark.parametrize("name", ["gelu", "relu", "swiglu", "swiglu_oai"])
def test_a_scale_of_rows_and_its_gradient(name):
    is_gated = name in GATED
    columns = 512 if is_gated else 256
    up, w, preact = on_gpu(264, 64), on_gpu(64, 256, seed=1, scale=0.125), on_gpu(264, columns, seed=4)
    scale = on_gpu(264, seed=5, dtype=torch.float32)

    def back(up, w, preact, scale):
        x, s = preact.detach().requires_grad_(), scale.detach().to(up.dtype).requires_grad_()
        y = (GATED[name](*x.chunk(2, -1)) if is_gated else ACTIVATIONS[name](x)) * s[:, None]
        dx, ds = torch.autograd.grad(y, (x, s), up @ w)
        return dx, y.detach(), ds.to(torch.promote_types(ds.dtype, torch.float32))

    call = gemm_dgated if is_gated else gemm_dact
    compared(
        lambda up, w, preact, scale: call(up, w, preact, name, colvec_scale=scale, colvec_reduce=True),
        back,
        (up, w, preact, scale),
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_results_of_two_types_into_tensors_of_the_caller(interleaved):
    a, b = on_gpu(264, 128), on_gpu(128, 512, seed=1, scale=128**-0.5)
    preact, postact = gemm_gated(a, b, interleaved=interleaved, postact_dtype=torch.float32)
    assert (preact.dtype, postact.dtype) == (torch.bfloat16, torch.float32)
    outs = torch.empty_like(preact), torch.full((264, 512), torch.nan, device="cuda")
    found = gemm_gated(a, b, interleaved=interleaved, preact_out=outs[0], postact_out=outs[1][:, 128:384])
    assert found[0] is outs[0]
    assert torch.equal(outs[0], preact)
    assert relative(outs[1][:, 128:384], postact) < 2.0**-20
    assert outs[1].isnan().sum() == 264 * 256
    dx, again = torch.empty_like(preact), torch.empty_like(postact)
    back = gemm_dgated(a, b[:, :256], preact, interleaved=interleaved, dx_out=dx, postact_out=again)
    assert back[0] is dx
    assert relative(again, postact) < 2.0**-7
    assert torch.isfinite(dx).all()


@pytest.mark.parametrize("is_gated", [False, True])
def test_sums_of_rows_with_gradients(is_gated):
    """A residual and the sums of squares that RMSNorm needs, behind a product or a gated one."""
    a, b = on_gpu(264, 128, grad=True), on_gpu(128, 512, seed=1, grad=True, scale=128**-0.5)
    residual = on_gpu(264, 256 if is_gated else 512, seed=2, grad=True)

    def ours(a, b, residual):
        def epilogue(acc, residual):
            x = (swiglu(acc) if is_gated else acc) + residual
            return x, row_sum(square(x))

        return gemm(a, b, epilogue=epilogue, residual=residual)

    def theirs(a, b, residual):
        x = a @ b
        if is_gated:
            gate, up = x.chunk(2, -1)
            x = F.silu(gate) * up
        return x + residual, (x + residual).to(torch.promote_types(x.dtype, torch.float32)).square().sum(-1)

    compared(ours, theirs, (a, b, residual))
    with torch.no_grad():
        eager = ours(a, b, residual)
        for one, other in zip(torch.compile(ours, fullgraph=True)(a, b, residual), eager, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", *GATED])
def test_mlp(activation, dtype):
    for m, k, hidden, n, has_bias in ((256, 128, 384, 192, False), (200, 72, 136, 64, True)):
        parts = 1 + (activation in GATED)
        x = on_gpu(m, k, dtype=dtype, grad=True)
        up = on_gpu(parts * hidden, k, seed=1, dtype=dtype, grad=True, scale=k**-0.5)
        down = on_gpu(n, hidden, seed=2, dtype=dtype, grad=True, scale=hidden**-0.5)
        biases = [
            on_gpu(parts * hidden, seed=3, dtype=dtype, grad=True),
            on_gpu(n, seed=4, dtype=dtype, grad=True),
        ]

        def ours(x, up, down, *biases):
            weights = tuple(up.chunk(2)) if activation in GATED else up
            return mlp(x, weights, down, activation, *biases)

        def theirs(x, up, down, up_bias=None, down_bias=None):
            inner = F.linear(x, up, up_bias)
            if activation in GATED:
                gate, through = inner.chunk(2, -1)
                return F.linear(GATED[activation](gate, through), down, down_bias)
            return F.linear(ACTIVATIONS[activation](inner), down, down_bias)

        compared(ours, theirs, (x, up, down, *(biases if has_bias else ())), (activation, dtype))


@pytest.mark.parametrize("has_bias", [False, True])
def test_an_mlp_of_interleaved_weights(has_bias):
    x, down = on_gpu(264, 128, grad=True), on_gpu(192, 384, seed=2, grad=True, scale=384**-0.5)
    up = on_gpu(768, 128, seed=1, grad=True, scale=128**-0.5)
    biases = [on_gpu(768, seed=3, grad=True), on_gpu(192, seed=4, grad=True)] if has_bias else []

    def theirs(x, up, down, up_bias=None, down_bias=None):
        gate, through = parted(F.linear(x, up, up_bias), True)
        return F.linear(GATED["swiglu_oai"](gate, through), down, down_bias)

    compared(lambda *t: mlp(*t[:3], "swiglu_oai", *t[3:], interleaved=True), theirs, (x, up, down, *biases))


def test_a_weight_in_two_parts_is_read_where_it_lies():
    whole = on_gpu(512, 128, scale=128**-0.5)
    x = on_gpu(264, 128, seed=1)
    gate, up = whole[:256], whole[256:]
    assert joined([gate.t(), up.t()]).data_ptr() == whole.data_ptr()
    with torch.no_grad():
        _, found = gemm_gated(x, (gate.t(), up.t()), store_preact=False)
        _, apart = gemm_gated(x, (gate.clone().t(), up.clone().t()), store_preact=False)
        exact = F.silu(x.double() @ gate.double().t()) * (x.double() @ up.double().t())
    assert relative(found, exact) < 2.0**-7
    assert relative(found, apart) < 2.0**-8


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("of_b", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scales(of_b, by_rows, fast, arch):
    if arch != "sm_90a":
        pytest.skip("float8 is multiplied on Hopper")
    a, b = on_gpu(256, 512).to(torch.float8_e4m3fn), on_gpu(384, 512, seed=1).to(of_b).t()
    scales = [on_gpu(256, 1, dtype=torch.float32).abs(), on_gpu(1, 384, dtype=torch.float32).abs()]
    if not by_rows:
        scales = [torch.tensor(0.25, device="cuda"), torch.tensor([2.0], device="cuda")]
    recipe = "RowWise" if by_rows else "TensorWise"
    given = a, b, scales[0], recipe, scales[1], recipe
    bias = on_gpu(384, seed=3)
    exact = (a.double() @ b.double()) * scales[0].double() * scales[1].double() + bias.double()
    assert relative(scaled_mm(*given, bias=bias, use_fast_accum=fast), exact) < 2.0**-7
    wide = scaled_mm(*given, output_dtype=torch.float32, use_fast_accum=fast)
    assert relative(wide, exact - bias.double()) < (2.0**-10 if fast else 2.0**-12)


OPS = torch.ops.cutegemm
HOW = (None, "fast", False, False, False, False)


def test_opcheck():
    x, w, bias = on_gpu(64, 128, grad=True), on_gpu(96, 128, seed=1, grad=True), on_gpu(96, seed=2, grad=True)
    texts = ("lambda acc, bias: relu(acc + bias)", "lambda acc, bias: (gelu(acc + bias), acc + bias)")
    calls = [
        (OPS.mm, (x, w.t())),
        (OPS.mm_out, (x.detach(), w.detach().t(), torch.empty(64, 96, dtype=x.dtype, device="cuda"))),
        *[(OPS.gemm, (x, [w.t()], text, [bias], [], None, *HOW)) for text in texts],
    ]
    for operator, given in calls:
        found = torch.library.opcheck(operator.default, given, rtol=0.02, atol=0.02)
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_compiled_without_a_break(backend):
    """Of dynamic rows, forward and back; `gemm` with an epilogue too."""

    def layer(x, w, bias):
        y = linear(x.float().to(torch.bfloat16), w, bias, "gelu")
        return cutegemm.gemm(y, w, epilogue=lambda acc, scale: acc * scale, scale=0.5).sin()

    def by_torch(x, w, bias):
        return (F.gelu(F.linear(x, w, bias)) @ w * 0.5).sin()

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=backend)
    w, bias = on_gpu(256, 128, seed=1, grad=True, scale=128**-0.5), on_gpu(256, seed=2, grad=True)
    for rows in (64, 200):
        compared(compiled, by_torch, (on_gpu(rows, 128, grad=True), w, bias), rows)


_factor = 2.0


def test_an_epilogue_follows_what_it_reads(monkeypatch):
    """A global variable, an attribute and a closure that change, in eager mode, with gradients and in a graph."""
    a, b = on_gpu(128, 64, dtype=torch.float32), on_gpu(64, 192, seed=1, dtype=torch.float32)
    exact = a.double() @ b.double()

    class Scaled:
        scale = 2.0

        def __call__(self, acc):
            return acc * self.scale

    of_object, closed = Scaled(), 2.0
    functions = (lambda acc: acc * _factor, of_object, lambda acc: acc * closed)
    compiled = [torch.compile(lambda a, f=f: cutegemm.gemm(a, b, epilogue=f), fullgraph=True) for f in functions]
    for factor in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "_factor", factor)
        of_object.scale = closed = factor
        for function, graph in zip(functions, compiled, strict=True):
            x = a.clone().requires_grad_()
            with_gradients = cutegemm.gemm(x, b, epilogue=function)
            (gradient,) = torch.autograd.grad(with_gradients.sum(), x)
            for found in (cutegemm.gemm(a, b, epilogue=function), with_gradients, graph(a)):
                assert relative(found, factor * exact) < 1e-5
            assert relative(gradient, factor * b.double().sum(1).expand(128, 64)) < 1e-5


def test_export():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(on_gpu(96, 128))

        def forward(self, x):
            return linear(x, self.weight, None, "silu")

    layer = Layer()
    dynamic = {"x": {0: torch.export.Dim("rows", min=2, max=4096)}}
    exported = torch.export.export(layer, (on_gpu(64, 128),), dynamic_shapes=dynamic)
    x = on_gpu(200, 128, seed=1)
    assert relative(exported.module()(x), layer(x)) < 2.0**-8


def test_vmap_and_gradients_of_each_sample():
    x, w = on_gpu(4, 32, 64, dtype=torch.float32), on_gpu(48, 64, seed=1, dtype=torch.float32)
    ours = torch.vmap(lambda x: linear(x, w, None, "tanh"))(x)
    assert relative(ours, torch.tanh(x.double() @ w.double().t())) < 1e-5
    loss = lambda w, x, act: act(x, w).square().sum()  # noqa: E731
    found = [
        torch.vmap(torch.func.grad(loss), (None, 0, None))(w, x, act)
        for act in (lambda x, w: linear(x, w, None, "tanh"), lambda x, w: torch.tanh(F.linear(x, w)))
    ]
    assert relative(*found) < 1e-4


def test_a_cuda_graph():
    x, w, bias = on_gpu(256, 128), on_gpu(384, 128, seed=1), on_gpu(384, seed=2)
    with torch.no_grad():
        expected = linear(x, w, bias, "gelu")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            linear(x, w, bias, "gelu")
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = linear(x, w, bias, "gelu")
        graph.replay()
        assert torch.equal(found, expected)
        x.mul_(2)
        graph.replay()
        assert torch.equal(found, linear(x, w, bias, "gelu"))


def test_streams_and_threads():
    w, bias = on_gpu(384, 128, seed=1), on_gpu(384, seed=2)
    inputs = [on_gpu(256, 128, seed=i) for i in range(6)]
    with torch.no_grad():
        expected = [linear(x, w, bias, "silu") for x in inputs]
    torch.cuda.synchronize()
    found = [None] * len(inputs)

    def work(i):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                found[i] = linear(inputs[i], w, bias, "silu")
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_gemm_records_gradients():
    a, b = on_gpu(200, 128, grad=True), on_gpu(128, 264, seed=1, grad=True, scale=128**-0.5)
    bias, c = on_gpu(264, seed=2, grad=True), on_gpu(200, 264, seed=3, grad=True)
    compared(cutegemm.gemm, torch.mm, (a, b))
    compared(
        lambda a, b, c: cutegemm.gemm(a, b, c=c, alpha=0.5, beta=2.0),
        lambda a, b, c: 0.5 * (a @ b) + 2.0 * c,
        (a, b, c),
    )
    compared(
        lambda a, b, bias, c: cutegemm.gemm(a, b, epilogue=lambda acc, bias, e: gelu(acc + bias) + e, bias=bias, e=c),
        lambda a, b, bias, c: F.gelu(a @ b + bias) + c,
        (a, b, bias, c),
    )


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_models(name, is_compiled):
    """A small stack before and after `use`: at most twice torch's error against float32, in output and gradients."""
    from docs.evidence import decoders, models

    size = decoders.Size(256, 704, 4, 2 if name == "llama" else 4, 2, 2, 128)
    torch.manual_seed(0)
    model = decoders.stack(name, size).to("cuda")
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    x, upstream = on_gpu(2, 128, 256), on_gpu(2, 128, 256, seed=1)

    def step(run, dtype):
        model.zero_grad()
        given = x.to(dtype, copy=True).requires_grad_()
        output = decoders.through(run, given)
        output.backward(upstream.to(dtype))
        return [
            output.detach(),
            given.grad,
            *[p.grad.clone() for p in model.parameters() if p.grad is not None],
        ]

    exact = step(model, torch.float32)
    model.bfloat16()
    theirs = models.errors(step(model, torch.bfloat16), exact)
    with cutegemm.use(model) as replaced:
        assert replaced.left == {}
        torch._dynamo.reset()
        ours = models.errors(step(torch.compile(model) if is_compiled else model, torch.bfloat16), exact)
    for what, error in ours.items():
        assert error <= 2 * theirs[what], (what, error, theirs[what])


def test_gradients_have_the_order_of_memory_of_their_parameters():
    x, w = on_gpu(64, 128, grad=True), on_gpu(96, 128, seed=1, grad=True)
    given = gradients_on(linear(x, w), (x, w))
    assert [g.stride() for g in given] == [x.stride(), w.stride()]


def gradients_on(result, inputs):
    return torch.autograd.grad(result, inputs, torch.ones_like(result))
