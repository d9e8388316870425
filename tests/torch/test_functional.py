"""The functions against torch's own, in values and in gradients, on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import (  # noqa: E402
    addmm,
    bmm,
    gemm_act,
    gemm_dact,
    gemm_dgated,
    gemm_gated,
    linear,
    mm,
    reference,
    scaled_mm,
)
from cutegemm.torch.autograd import product  # noqa: E402
from tests.torch.cases import ACTIVATIONS, GATED, close, gradients, normal, parted  # noqa: E402


def test_the_package_has_them_at_its_top():
    assert cutegemm.linear is linear
    assert "use" in dir(cutegemm)
    assert "linear" not in cutegemm.__all__  # `import *` needs no torch


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("lead", [(5,), (2, 3), (), (2, 1, 2)])
def test_linear(activation, has_bias, lead):
    x, w = normal(*lead, 8, grad=True), normal(6, 8, seed=1, grad=True)
    bias = normal(6, seed=2, grad=True) if has_bias else None
    theirs = ACTIVATIONS[activation](F.linear(x, w, bias))
    ours = linear(x, w, bias, activation)
    given = [t for t in (x, w, bias) if t is not None]
    close([ours.detach(), *gradients(ours, given)], [theirs.detach(), *gradients(theirs, given)])


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name not in ("relu", "relu_sq")])
def test_gradients_of_linear_and_theirs(activation):
    given = normal(3, 4, grad=True), normal(5, 4, seed=1, grad=True), normal(5, seed=2, grad=True)
    assert torch.autograd.gradcheck(lambda *t: linear(*t, activation), given)
    assert torch.autograd.gradgradcheck(lambda *t: linear(*t, activation), given)


def test_products():
    a, b, c = normal(4, 6, grad=True), normal(6, 8, seed=1, grad=True), normal(4, 8, seed=2, grad=True)
    close([mm(a, b)], [a @ b])
    assert torch.autograd.gradcheck(mm, (a, b))
    assert torch.autograd.gradgradcheck(mm, (a, b))
    for shape in ((4, 8), (8,), (1, 8), (4, 1), ()):
        part = normal(*shape, seed=3, grad=True)
        close([addmm(part, a, b, beta=0.5, alpha=-2.0)], [torch.addmm(part, a, b, beta=0.5, alpha=-2.0)])
        assert torch.autograd.gradcheck(lambda *t: addmm(*t, beta=0.5, alpha=-2.0), (part, a, b))
    missing = torch.full_like(c, torch.nan)
    assert addmm(missing, a, b, beta=0).isfinite().all()
    missing.requires_grad_()
    addmm(missing, a, b, beta=0).sum().backward()
    assert torch.equal(missing.grad, torch.zeros_like(missing))


@pytest.mark.parametrize("shape", [(4, 8), (8,), ()])
def test_factors_of_alpha_0_are_not_read(shape):
    """As BLAS has it, and torch.addmm on CUDA but for a row (torch 2.11): NaN and infinity in them do not count."""
    a, b, c = normal(4, 6), normal(6, 8, seed=1), normal(*shape, seed=2)
    a[0, 0], b[0, 0] = torch.nan, torch.inf
    want = (2 * c).expand(4, 8)
    close([addmm(c, a, b, alpha=0, beta=2)], [want])
    close([addmm(c, a, b, alpha=0, beta=2, out=torch.empty(4, 8, dtype=torch.float64))], [want])
    close([addmm(torch.full_like(c, torch.nan), a, b, alpha=0, beta=0)], [torch.zeros_like(want)])
    given = [t.requires_grad_() for t in (c, a, b)]
    call = lambda *t: addmm(*t, alpha=0, beta=2)  # noqa: E731
    for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        found = run(*given)
        by_c, by_a, by_b = torch.autograd.grad(found, given, torch.ones_like(found))
        close([found, by_c], [want, torch.full_like(c, 2 * 32 / c.numel())])
        assert not by_a.any()
        assert not by_b.any()
    assert torch.func.jvp(lambda b: call(c.detach(), a.detach(), b), (b.detach(),), (b.detach(),))[1].eq(0).all()
    batch = torch.vmap(call, (None, 0, None))(c.detach(), a.detach().expand(3, 4, 6), b.detach())
    close([batch], [want.expand(3, 4, 8)])


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.bool, torch.complex64])
def test_operands_of_a_type_that_is_not_floating(kind):
    """Refused on every device, as torch refuses them; on a GPU the reason is that no kernel reads them."""
    x, w, row, tile = torch.ones(2, 4), torch.ones(6, 4), torch.ones(6).to(kind), torch.ones(2, 6).to(kind)
    for name, call in (
        ("bias", lambda: linear(x, w, row)),
        ("input", lambda: addmm(tile, x, w.t())),
        ("bias", lambda: gemm_act(x, w.t(), row)),
        ("c", lambda: gemm_act(x, w.t(), None, tile)),
        ("bias", lambda: gemm_gated(x, w.t(), row)),
        ("preact", lambda: gemm_dact(x, w.t(), tile)),
        ("preact", lambda: gemm_dgated(x, w.t()[:, :3], tile)),
        ("up_bias", lambda: cutegemm.mlp(x, w, w.t(), "relu", row)),
        ("bias", lambda: scaled_mm(x.to(A8.dtype), w.t().to(A8.dtype), ONE, 0, ONE, 0, bias=row)),
    ):
        with pytest.raises(UnsupportedError, match=rf"{name} is of {str(kind)[6:]}. Pass float64, .*{name}\.to\("):
            call()
    assert (
        linear(x, w, torch.ones(6).half()).dtype == torch.float32
    )  # a floating type that differs from that of the factors


def test_an_integer_beside_integers():
    a, b = torch.ones(2, 4).char(), torch.ones(4, 6).char()
    assert addmm(torch.ones(6).int(), a, b).eq(5).all()
    with pytest.raises(UnsupportedError, match=r"input is of int64. Pass .* or int32 or int8, such as"):
        addmm(torch.ones(6).long(), a, b)


def test_batches():
    a, b = normal(3, 4, 6, grad=True), normal(3, 6, 5, seed=1, grad=True)
    close([bmm(a, b)], [a @ b])
    assert torch.autograd.gradcheck(bmm, (a, b))
    for x, y in ((a, b[0]), (a[0], b), (a[:1], b), (a, b[:1])):
        close([bmm(x, y)], [x @ y])
        assert torch.autograd.gradcheck(bmm, (x.detach().requires_grad_(), y.detach().requires_grad_()))


def test_results_of_another_type_and_where_they_are_wanted():
    a, b = normal(4, 6, dtype=torch.bfloat16), normal(6, 8, seed=1, dtype=torch.bfloat16)
    exact = a.double() @ b.double()
    assert mm(a, b).dtype == torch.bfloat16
    assert (mm(a, b, out_dtype=torch.float32).double() - exact).abs().max() < 1e-5
    out = torch.empty(4, 8, dtype=torch.float32)
    assert mm(a, b, out=out) is out
    assert torch.equal(out, mm(a, b, out_dtype=torch.float32))
    batch = torch.empty(3, 4, 8, dtype=torch.bfloat16)
    assert bmm(a.expand(3, 4, 6), b, out=batch) is batch
    assert torch.equal(batch[1], mm(a, b))
    c = normal(8, seed=2, dtype=torch.bfloat16)
    assert addmm(c, a, b, out=out) is out
    assert (out.double() - (exact + c.double())).abs().max() < 1e-5
    with pytest.raises(
        UnsupportedError, match=r"a requires gradients, but a call with out= does not record them. Leave out"
    ):
        mm(a.clone().requires_grad_(), b, out=out)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gemm_act_and_the_way_back(activation):
    a, b = normal(4, 6, grad=True), normal(6, 8, seed=1, grad=True)
    bias, c = normal(8, seed=2, grad=True), normal(4, 8, seed=3, grad=True)
    act = ACTIVATIONS[activation]
    preact, postact = gemm_act(a, b, bias, c, activation)
    expected = a @ b + bias + c
    close([preact, postact], [expected, act(expected)])
    given = (a, b, bias, c)
    close(gradients((preact, postact), given), gradients((expected, act(expected)), given))
    alone = gemm_act(a, b, bias, c, activation, store_preact=False)
    assert alone[0] is None
    close([alone[1]], [postact])
    up, w = normal(4, 3, seed=4), normal(3, 8, seed=5)
    dx, again = gemm_dact(up, w, preact.detach(), activation)
    x = preact.detach().requires_grad_()
    close([dx, again], [*torch.autograd.grad(act(x), x, up @ w), act(x).detach()])


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("activation", GATED)
def test_gemm_gated_and_the_way_back(activation, interleaved):
    a, b, bias = normal(4, 6, grad=True), normal(6, 8, seed=1, grad=True), normal(8, seed=2, grad=True)

    def by_torch(x):
        gate, up = parted(x, interleaved)
        return GATED[activation](gate, up)

    preact, postact = gemm_gated(a, b, bias, activation, interleaved=interleaved)
    expected = a @ b + bias
    close([preact, postact], [expected, by_torch(expected)])
    given = (a, b, bias)
    close(gradients((preact, postact), given), gradients((expected, by_torch(expected)), given))
    alone = gemm_gated(a, b, bias, activation, False, interleaved)
    assert alone[0] is None
    close(gradients(alone[1], given), gradients(by_torch(a @ b + bias), given))
    if activation != "reglu":
        calls = lambda *t: gemm_gated(*t, activation, False, interleaved)[1]  # noqa: E731
        assert torch.autograd.gradgradcheck(calls, given)
    up, w = normal(4, 3, seed=4), normal(3, 4, seed=5)
    dx, again = gemm_dgated(up, w, preact.detach(), activation, interleaved)
    x = preact.detach().requires_grad_()
    close([dx, again], [*torch.autograd.grad(by_torch(x), x, up @ w), by_torch(x).detach()])


def test_gpt_oss_clamps_gate_and_up():
    """At the limits the gradient is whole, as torch.clamp has it."""
    a = torch.tensor([[9.0, 8], [7, 7], [-9, -7], [1, -9]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(4, 1, dtype=torch.float64)
    preact, postact = gemm_gated(a, torch.eye(2, dtype=torch.float64), activation="swiglu_oai")
    expected = GATED["swiglu_oai"](*a.chunk(2, -1))
    (of_a,) = torch.autograd.grad(expected, a, one)
    close([postact, *torch.autograd.grad(postact, a, one)], [expected, of_a])
    dx, again = gemm_dgated(one, one[:1], preact.detach(), "swiglu_oai")
    close([dx, again], [of_a, expected])


def test_a_weight_in_two_parts():
    """Each has its gradient; where they lie side by side they are one matrix, and else are copied together."""
    whole = normal(8, 6, seed=1)
    x = normal(5, 6, grad=True)
    for gate, up in ((whole[:4], whole[4:]), (whole[4:].clone(), whole[:4].clone())):
        gate, up = gate.detach().requires_grad_(), up.detach().requires_grad_()
        ours = gemm_gated(x, (gate.t(), up.t()), store_preact=False)[1]
        theirs = F.silu(x @ gate.t()) * (x @ up.t())
        close([ours, *gradients(ours, (x, gate, up))], [theirs, *gradients(theirs, (x, gate, up))])


def test_gradients_have_the_order_of_memory_of_their_parameters():
    """Else autograd copies them once more."""
    x, w = normal(5, 8, grad=True), normal(6, 8, seed=1, grad=True)
    gate, up = normal(3, 8, grad=True), normal(3, 8, seed=1, grad=True)
    for result, given in ((linear(x, w), (x, w)), (gemm_gated(x, (gate.t(), up.t()))[1], (x, gate, up))):
        assert all(g.stride() == t.stride() for g, t in zip(gradients(result, given), given, strict=True))


def test_what_is_saved_for_the_way_back():
    """Without an activation no result; of gelu what it is computed of; of relu its value alone."""

    def saved(activation, has_bias=True):
        x, w, bias = normal(5, 8, grad=True), normal(6, 8, seed=1, grad=True), normal(6, grad=True)
        kept = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
            linear(x, w, bias if has_bias else None, activation)
        return sorted(tuple(shape) for shape in kept)

    assert saved(None) == [(5, 8), (8, 6)]
    assert saved("gelu") == saved("relu") == [(5, 6), (5, 8), (8, 6)]


def test_of_bfloat16_it_errs_as_torch_does():
    """Against float64, in values and gradients."""
    x, w, bias = normal(64, 128), normal(96, 128, seed=1) / 11, normal(96, seed=2)
    for activation in ("gelu", "silu", "relu"):
        errors = []
        exact_in = [t.clone().requires_grad_() for t in (x, w, bias)]
        exact = ACTIVATIONS[activation](F.linear(*exact_in))
        wanted = [exact.detach(), *gradients(exact, exact_in)]
        for call in (
            lambda *t: linear(*t, activation),  # noqa: B023
            lambda *t: ACTIVATIONS[activation](F.linear(*t)),  # noqa: B023
        ):
            given = [t.to(torch.bfloat16).requires_grad_() for t in (x, w, bias)]
            result = call(*given)
            found = [result.detach(), *gradients(result, given)]
            errors.append([float((f.double() - e).norm() / e.norm()) for f, e in zip(found, wanted, strict=True)])
        assert all(ours <= 1.1 * theirs for ours, theirs in zip(*errors, strict=True)), (activation, errors)


def test_scales():
    a, b = normal(4, 16).to(torch.float8_e4m3fn), normal(8, 16, seed=1).to(torch.float8_e4m3fn).t()
    rows, columns = normal(4, 1, dtype=torch.float32).abs(), normal(1, 8, dtype=torch.float32).abs()
    bias = normal(8, seed=3, dtype=torch.bfloat16)
    exact = (a.double() @ b.double()) * rows * columns + bias
    by_rows = a, b, rows, "RowWise", columns, "RowWise"
    for ours in (
        scaled_mm(*by_rows, None, None, bias, torch.float32),
        scaled_mm(*by_rows, "NO_SWIZZLE", 0, bias, torch.float32, (1, 0), True),
        scaled_mm(a, b, [rows.view(4)], [1], [columns.t()], ["RowWise"], bias=bias, output_dtype=torch.float32),
    ):
        assert (ours.double() - exact).abs().max() < 1e-4
    assert scaled_mm(*by_rows).dtype == torch.bfloat16
    assert scaled_mm(*by_rows, output_dtype=None).dtype == torch.float8_e4m3fn
    half, two = torch.tensor(0.5), torch.tensor([2.0])
    one = scaled_mm(a, b, half, "TensorWise", two, "TensorWise", output_dtype=torch.float32)
    assert (one.double() - a.double() @ b.double()).abs().max() < 1e-4
    mixed = scaled_mm(a, b, rows, "RowWise", two, "TensorWise", output_dtype=torch.float32)
    assert (mixed.double() - 2 * rows * (a.double() @ b.double())).abs().max() < 1e-4
    into8 = scaled_mm(a, b, 1e4 * half, 0, half, 0, output_dtype=torch.float8_e4m3fn)
    assert into8.float().abs().max() == 448


@pytest.mark.skipif(not hasattr(F, "scaled_mm"), reason="torch 2.10 has torch.nn.functional.scaled_mm")
@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("recipe", ["TensorWise", "RowWise"])
def test_scales_by_the_arguments_of_torch(recipe, is_compiled):
    a, b = normal(4, 16).to(torch.float8_e4m3fn), normal(32, 16, seed=1).to(torch.float8_e5m2).t()
    scales = torch.tensor(0.5), torch.tensor(3.0)
    if recipe == "RowWise":
        scales = normal(4, 1, dtype=torch.float32).abs(), normal(1, 32, dtype=torch.float32).abs()
    member = getattr(F.ScalingType, recipe)
    swizzle = F.SwizzleType.NO_SWIZZLE
    given = a, b, scales[0], member, scales[1], [member], swizzle, swizzle, None, torch.float32
    torch._dynamo.reset()
    ours = torch.compile(scaled_mm, fullgraph=True, backend="aot_eager") if is_compiled else scaled_mm
    close([ours(*given)], [F.scaled_mm(*given)], 1e-6)


def test_autocast():
    x, w, bias = (normal(*shape, dtype=torch.float32) for shape in ((5, 8), (6, 8), (6,)))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, w, bias, "gelu").dtype == torch.bfloat16
        assert linear(x.double(), w.double()).dtype == torch.float64
        cast = linear(x, w, bias, "gelu")
    assert torch.equal(
        cast, linear(x.bfloat16(), w.bfloat16(), bias.bfloat16(), "gelu")
    )  # rounding of accumulators in float32
    w.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        linear(x, w, bias).sum().backward()
    assert w.grad.dtype == torch.float32


A, B = normal(4, 6), normal(6, 8, seed=1)
A8, B8, ONE = A.to(torch.float8_e4m3fn), B.to(torch.float8_e4m3fn), torch.tensor(1.0)
REFUSED = [
    (lambda: mm(A, A), r"mm of a \(4, 6\), b \(4, 6\): a has 6 columns, b has 4 rows, but both are K. Pass b.mT"),
    (lambda: mm(A, B[0]), r"a has shape \(4, 6\), b \(8,\). Pass two matrices"),
    (lambda: mm(A, B.float()), r"a is of float64, b of float32. Pass two tensors of one type, such as b.to\(a.dtype\)"),
    (lambda: mm(A.int(), B.int()), "a is of int32. Supported are .*float16, bfloat16"),
    (lambda: mm(A, [1.0]), "b is a list. Pass a torch tensor."),
    (lambda: mm(A, B.to("meta")), "a is on cpu, b is on meta. Pass tensors on one device"),
    (lambda: mm(A, B, out_dtype=torch.int8), "out_dtype = torch.int8, which is not supported. For float64, pass"),
    (lambda: mm(A, B, out=torch.empty(4, 7)), r"out has shape \(4, 7\). Pass a tensor of shape \(4, 8\)"),
    (lambda: bmm(A.expand(2, 4, 6), B.expand(3, 6, 8)), "a is a batch of 2 matrices, b of 3. Pass batches of one"),
    (lambda: addmm(normal(3), A, B), r"input has shape \(3,\). Pass a number, \(8,\), \(4, 1\), \(4, 8\)"),
    (lambda: addmm(A, A, B, alpha=2j, beta="2"), r"(?s)beta = '2' is not a real number.*alpha = 2j is not a real"),
    (lambda: addmm(A, A, B, alpha=normal(2)), r"alpha = tensor\(\[.* is not a real number"),
    (lambda: linear(A, B), "x has rows of 6, w of 8, but both are K. Pass w.t"),
    (lambda: linear(A, B.t(), normal(6)), r"bias has shape \(6,\). Pass a tensor of shape \(8,\)"),
    (lambda: linear(A, B.t(), None, "mish"), "activation = 'mish' is unknown. Use one of None, 'relu', .*'gelu_new'"),
    (lambda: gemm_act(A, B, activation="swiglu"), "activation = 'swiglu' is unknown. Use one of None, 'relu'"),
    (lambda: gemm_gated(A, B[:, :7]), "b has 7 columns. Pass an even number of them, for gate and up."),
    (lambda: gemm_gated(A, (B, B), interleaved=True), "interleaved = True. Pass two matrices of one shape, or one"),
    (lambda: gemm_gated(A, (B, B, B)), "b has 3 matrices. Pass one, or a pair of gate and up."),
    (lambda: gemm_act(A[0], B[0], normal(7)), r"a has shape \(6,\), b \(8,\). Pass two matrices, or two batches of"),
    (lambda: gemm_gated(A, B, normal(7), preact_out=A), r"(?s)2 rules.*bias has shape \(7,\).*preact_out has shape"),
    (lambda: gemm_dgated(A, B, A), r"preact has shape \(4, 6\). Pass the preactivations of gate and up, of shape \(4"),
    (
        lambda: scaled_mm(A8, B8, normal(4), "TensorWise", normal(1), 1, contraction_dim=(0, 1), bias=A),
        r"(?s)mm of mat_a.*6 rules.*contraction_dim = \(0, 1\).*scale_a has shape \(4,\). Pass one element, or "
        r'scale_recipe_a="RowWise".*scale_a is of torch.float64. Pass float32.*scale_b has shape \(1,\). Pass 8 '
        r"elements, one of each column of mat_b.*scale_b is of.*bias has shape",
    ),
    (
        lambda: scaled_mm(A8, B8, ONE, "BlockWise1x32", ONE, 7, 1),
        "(?s)scale_recipe_a = 'BlockWise1x32' is not supported. Pass 'TensorWise' or .*'BlockWise128x128'.*"
        "scale_recipe_b = 7 .*swizzle_a = 'SWIZZLE_32_4_4' is not supported. Pass 'NO_SWIZZLE'",
    ),
    (lambda: scaled_mm(A8, B8, ONE, True, [ONE, ONE], 0), "scale_b is a list. Pass a torch tensor."),
    (lambda: scaled_mm(A8[0], B8, ONE, 0, ONE, 0), "Pass two matrices"),
    (lambda: scaled_mm(A8, B8, ONE, 0, ONE, 0, output_dtype=torch.float64), "output_dtype = torch.float64"),
    (lambda: scaled_mm(A.char(), B.char(), ONE, 0, ONE, 0), "output_dtype = torch.bfloat16, which is not supported."),
    (lambda: scaled_mm(A8, B8, ONE, ONE), r"are those of torch._scaled_mm. Pass .*scaled_mm\(mat_a, mat_b, s"),
    (lambda: scaled_mm(A8, B8, ONE, ONE, None, None, torch.float16), "are those of torch._scaled_mm"),
    (lambda: scaled_mm(A8, B8, scale_a=ONE, scale_b=ONE, out_dtype=torch.float16), "are those of torch._scaled_mm"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_is_refused(call, words):
    with pytest.raises(UnsupportedError, match=words):
        call()


def test_every_broken_rule_is_said_at_once():
    with pytest.raises(UnsupportedError) as refused:
        linear(A, B.float(), normal(3), "mish")
    first, *rules = str(refused.value).split("\n  - ")
    assert first == "linear of x (4, 6), w (6, 8), bias (3,): 4 rules are broken."
    assert [rule.split()[0] for rule in rules] == ["activation", "x", "x", "bias"]


LEAKY = (
    ("lambda acc: where(acc > 0, acc, 0.1 * acc)", lambda acc: torch.where(acc > 0, acc, 0.1 * acc)),
    ("lambda acc: acc * where(acc > 0, 1.0, 0.1)", lambda acc: acc * torch.where(acc > 0, 1.0, 0.1).double()),
    ("lambda acc: where(acc > 0, acc, exp(acc) - 1.0)", lambda acc: torch.where(acc > 0, acc, acc.exp() - 1)),
)


@pytest.mark.parametrize(("text", "exact"), LEAKY)
@pytest.mark.parametrize("needs", [(True, True), (True, False), (False, True)])
def test_gradients_through_what_is_chosen_by_a_comparison(text, exact, needs):
    a, b = (
        torch.randn(shape, dtype=torch.float64).requires_grad_(need)
        for shape, need in zip(((3, 4), (4, 5)), needs, strict=True)
    )
    wanted = [x for x in (a, b) if x.requires_grad]
    got = product(a, (b,), text)[0]
    want = exact(a @ b)
    torch.testing.assert_close(got, want.to(got.dtype), rtol=1e-6, atol=1e-6)
    for mine, theirs in zip(
        torch.autograd.grad(got.sum(), wanted), torch.autograd.grad(want.sum(), wanted), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_numbers_are_of_the_type_of_the_sums():
    """0.1 in f32 is off by 1.5e-9."""
    a, b = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    acc = a @ b
    for text, want in (
        ("lambda acc: acc * where(acc > 0, 1.0, 0.1)", acc * (0.1 + 0.9 * (acc > 0).double())),
        ("lambda acc: acc + exp(0.1)", acc + torch.tensor(0.1, dtype=torch.float64).exp()),
    ):
        got = product(a, (b,), text)[0]
        assert got.dtype is torch.float64
        torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: mm(x, w),
        lambda x, w: bmm(x[None], w[None])[0],
        lambda x, w: addmm(torch.zeros(4), x, w),
        lambda x, w: gemm_dact(x, w, torch.ones(2, 4), "relu")[0],
        lambda x, w: gemm_dgated(x, w, torch.ones(2, 8))[0],
    ],
)
def test_all_follow_autocast(call):
    x, w = torch.randn(2, 3), torch.randn(3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert call(x, w).dtype is torch.bfloat16
        assert call(x, w.bfloat16()).dtype is torch.bfloat16


def test_results_have_memory_of_their_own():
    a, b, c = torch.randn(3, 4), torch.randn(4, 5), torch.randn(3, 5)
    once, again = gemm_act(a, b)
    kept = once.clone()
    again.zero_()
    assert torch.equal(once, kept)
    of_sum, of_operand = product(a, (b,), "lambda acc, c: (acc + c, c)", (c,))
    assert of_operand.data_ptr() not in (c.data_ptr(), of_sum.data_ptr())
    assert torch.equal(of_operand.float(), c)


@pytest.mark.parametrize("activation", ["gelu", "silu", "gelu_tanh", "tanh", "relu"])
def test_activations_of_whole_numbers(activation):
    a, b = torch.randint(-3, 4, (3, 8), dtype=torch.int8), torch.randint(-3, 4, (8, 4), dtype=torch.int8)
    got = gemm_act(a, b, activation=activation, out_dtype=torch.float32)[1]
    function = {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}.get(activation) or getattr(F, activation)
    close(got, function((a.int() @ b.int()).float()), 1e-5)


def test_no_k_and_no_products():
    assert linear(torch.zeros(2, 3, 0), torch.zeros(4, 0)).shape == (2, 3, 4)
    assert bmm(torch.zeros(2, 3, 0), torch.zeros(0, 5)).shape == (2, 3, 5)
    assert bmm(torch.zeros(0, 3, 4), torch.zeros(1, 4, 5)).shape == (0, 3, 5)
    with pytest.raises(UnsupportedError, match=r"a and b are matrices, not batches. Call mm."):
        bmm(torch.zeros(3, 4), torch.zeros(4, 5))


@pytest.mark.parametrize(("of_a", "of_b", "length"), [((1,), (2,), 2), ((2,), (1,), 2), ((2,), (), 2), ((), (3,), 3)])
def test_a_batch_of_one_is_that_of_each_product(of_a, of_b, length):
    a, b = torch.randn(*of_a, 3, 4), torch.randn(*of_b, 4, 6)
    want = (a @ b).expand(length, 3, 6)
    close(gemm_act(a, b, activation="relu")[1], F.relu(want), 1e-5)
    gate, up = want.chunk(2, -1)
    close(gemm_gated(a, b)[1], F.silu(gate) * up, 1e-5)
    close(gemm_dact(a, b, torch.ones(length, 3, 6), "relu")[0], want, 1e-5)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_tensor_cores_multiply_16_bit_matrices_that_torch_computes(monkeypatch, shape):
    """Their sums are in float32, as those of a kernel; torch without this option multiplies in float32."""
    name = "bmm" if shape else "mm"
    calls, known = [], getattr(torch, name)

    def multiply(a, b, **options):
        calls.append(options)
        return known(a.float(), b.float())

    a, b = [normal(*shape, 4, 4, seed=i).bfloat16() for i in range(2)]
    exact = a.float() @ b.float()
    monkeypatch.setattr(reference, "is_direct", lambda a, b: True)
    monkeypatch.setattr(torch, name, multiply)
    assert torch.equal(reference.accumulator(a, b), exact)
    assert calls == [{"out_dtype": torch.float32}]
    assert torch.equal(reference.accumulator(a.float(), b.float()), exact)
    monkeypatch.setattr(torch, name, lambda a, b: None)
    assert torch.equal(reference.accumulator(a, b), exact)
    assert len(calls) == 1
