"""`gemm_act`, `gemm_gated` and the ways back through them: factors, residuals, types and memory of results, sums."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import gemm_act, gemm_dact, gemm_dgated, gemm_gated  # noqa: E402
from cutegemm.torch.activations import gated_by_torch  # noqa: E402
from tests.torch.cases import ACTIVATIONS, GATED, close, gradients, normal, parted  # noqa: E402

M, N, K = 4, 8, 6
A, B = normal(M, K, grad=True), normal(K, N, seed=1, grad=True)
BIAS = normal(N, seed=2, grad=True)
SHAPES_OF_C = [(M, N), (N,), (M, 1), (1, N), ()]


def alphas():
    return 0.5, torch.tensor([-1.5], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", GATED)
def test_gated_activations_by_torch_in_a_graph(name):
    gate, up = normal(9, 5).mul(6), normal(9, 5, seed=1).mul(6)
    compiled = torch.compile(gated_by_torch, fullgraph=True, backend="aot_eager")
    close([gated_by_torch(name, gate, up), compiled(name, gate, up)], [GATED[name](gate, up)] * 2)


@pytest.mark.parametrize("shape", SHAPES_OF_C)
@pytest.mark.parametrize("alpha", alphas(), ids=["number", "tensor"])
@pytest.mark.parametrize("activation", [None, "gelu", "relu_sq"])
def test_alpha_multiplies_the_product_alone(activation, alpha, shape):
    c = normal(*shape, seed=3, grad=True)
    ours = gemm_act(A, B, BIAS, c, activation, alpha=alpha)
    preact = alpha * (A @ B) + BIAS + c
    theirs = preact, ACTIVATIONS[activation](preact)
    close(ours, theirs)
    given = [A, B, BIAS, c, *([alpha] if isinstance(alpha, torch.Tensor) else [])]
    close(gradients(ours, given), gradients(theirs, given))


@pytest.mark.parametrize("shape", SHAPES_OF_C)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("store_preact", [False, True])
def test_a_residual_in_front_of_a_gate(store_preact, interleaved, shape):
    c, alpha = normal(*shape, seed=3, grad=True), alphas()[1]

    def ours(a, b, bias, c, alpha):
        found = gemm_gated(a, b, bias, "swiglu", store_preact, interleaved, c=c, alpha=alpha)
        return found if store_preact else found[1]

    preact = alpha * (A @ B) + BIAS + c
    postact = GATED["swiglu"](*parted(preact, interleaved))
    theirs, given = (preact, postact) if store_preact else postact, (A, B, BIAS, c, alpha)
    result = ours(*given)
    close(result if store_preact else [result], theirs if store_preact else [theirs])
    close(gradients(result, given), gradients(theirs, given))
    if store_preact == interleaved:  # with each shape both values of both
        assert torch.autograd.gradgradcheck(ours, given)


@pytest.mark.parametrize("is_gated", [False, True])
def test_types_of_two_results(is_gated):
    a, b = A.detach().bfloat16(), B.detach().bfloat16()

    def call(**types):
        found = gemm_gated(a, b, **types) if is_gated else gemm_act(a, b, activation="silu", **types)
        return [each.dtype for each in found if each is not None]

    assert call() == [torch.bfloat16, torch.bfloat16]
    assert call(out_dtype=torch.float16) == [torch.float16, torch.float16]
    assert call(postact_dtype=torch.float32) == [torch.bfloat16, torch.float32]
    assert call(out_dtype=torch.float32, postact_dtype=torch.float16) == [torch.float32, torch.float16]
    assert call(out_dtype=torch.float32, postact_dtype=torch.float16, store_preact=False) == [torch.float16]
    of_dact = gemm_dact(a, b, torch.ones(M, N).bfloat16(), "gelu", torch.float32, postact_dtype=torch.float16)
    assert [each.dtype for each in of_dact] == [torch.float32, torch.float16]
    preact = torch.ones(M, 2 * N).bfloat16()
    of_dgated = gemm_dgated(a, b, preact, postact_dtype=torch.float32, colvec_reduce=True)
    assert [each.dtype for each in of_dgated] == [torch.bfloat16, torch.float32, torch.float32]


def test_gradients_through_results_of_two_types():
    a, b = (x.detach().float().requires_grad_() for x in (A, B))
    preact, postact = gemm_act(a, b, activation="gelu", postact_dtype=torch.float16)
    assert (preact.dtype, postact.dtype) == (torch.float32, torch.float16)
    given = (a, b)
    expected = a @ b, torch.nn.functional.gelu(a @ b).half()
    close(gradients((preact, postact), given), gradients(expected, given), 1e-3)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_results_go_where_they_are_to(interleaved, is_compiled):
    """Into tensors of the caller, each of its own type and of any strides; others are new."""
    a, b, x = A.detach(), B.detach(), normal(M, N, seed=5)
    expected = gemm_gated(a, b, interleaved=interleaved)
    back = gemm_dgated(a, b[:, : N // 2], x, interleaved=interleaved, colvec_reduce=True)

    def call(*outs):
        found = gemm_gated(a, b, None, "swiglu", False, interleaved, preact_out=outs[0], postact_out=outs[1])
        alone = gemm_gated(a, b, None, "swiglu", False, interleaved, postact_out=outs[2])
        both = gemm_act(a, b, activation="relu", postact_out=outs[3])
        of_dact = gemm_dact(a, b, x, "tanh", dx_out=outs[4], postact_out=outs[5])
        of_dgated = gemm_dgated(
            a,
            b[:, : N // 2],
            x,
            "swiglu",
            interleaved,
            dx_out=outs[6],
            postact_out=outs[7],
            colvec_reduce=True,
        )
        return found, alone, both, of_dact, of_dgated

    shapes = [(M, N), (M, N // 2), (M, N // 2), (M, N), (M, N), (M, N), (M, N), (M, N // 2)]
    outs = [torch.full(shape[::-1], torch.nan, dtype=torch.float64).t() for shape in shapes]
    run = torch.compile(call, fullgraph=True, backend="aot_eager") if is_compiled else call
    found, alone, both, of_dact, of_dgated = run(*outs)
    close(outs[:2], expected)
    close(outs[2:3], expected[1:])
    close([both[0], outs[3]], gemm_act(a, b, activation="relu"))
    close(outs[4:6], gemm_dact(a, b, x, "tanh"))
    close([*outs[6:], of_dgated[2]], back)
    returned = [*found, alone[1], both[1], *of_dact, *of_dgated[:2]]
    assert alone[0] is None
    assert all(each.data_ptr() == out.data_ptr() for each, out in zip(returned, outs, strict=True))


@pytest.mark.parametrize("shape", [(M,), (M, 1)])
@pytest.mark.parametrize("name", ["gelu", "relu", None, *GATED])
def test_a_scale_of_rows_and_its_gradient(name, shape):
    """What follows is multiplied by a number for each row, as by a router of experts."""
    is_gated, columns = name in GATED, N if name in GATED else N // 2
    dout, w = normal(M, K, seed=4), normal(K, N // 2, seed=5)
    x, scale = normal(M, columns, seed=6, grad=True), normal(*shape, seed=7, grad=True)
    inner = GATED[name](*parted(x, False)) if is_gated else ACTIVATIONS[name](x)
    scaled = inner * scale.view(M, 1)
    of_x, of_scale = torch.autograd.grad(scaled, (x, scale), dout @ w)
    call = gemm_dgated if is_gated else gemm_dact
    given = {"colvec_scale": scale.detach(), "colvec_reduce": True}
    found = call(dout, w, x.detach(), name, **given)
    close(found, [of_x, scaled.detach(), of_scale.view(M)])
    close(call(dout, w, x.detach(), name, colvec_scale=scale.detach()), found[:2])
    alone = call(dout, w, x.detach(), name, colvec_reduce=True)
    close([alone[2]], [of_scale.view(M)])
    if is_gated:
        mixed = torch.stack(parted(x.detach(), False), -1).flatten(-2)
        dx, *others = call(dout, w, mixed, name, True, **given)
        close([torch.cat(parted(dx, True), -1), *others], found)


def test_gradients_of_the_ways_back():
    """With a scale of rows and their sums: gradients of gradients."""
    dout, w, scale = (
        normal(M, K, seed=4, grad=True),
        normal(K, 4, seed=5, grad=True),
        normal(M, seed=6, grad=True),
    )

    def act(dout, w, preact, scale):
        return gemm_dact(dout, w, preact, "gelu", colvec_scale=scale, colvec_reduce=True)

    def gated(dout, w, preact, scale):
        return gemm_dgated(dout, w, preact, "swiglu", colvec_scale=scale, colvec_reduce=True)

    assert torch.autograd.gradcheck(act, (dout, w, normal(M, 4, seed=7, grad=True), scale))
    assert torch.autograd.gradcheck(gated, (dout, w, normal(M, 8, seed=7, grad=True), scale))


def test_batches():
    a, b, c = normal(3, M, K), normal(3, K, N, seed=1), normal(3, M, N, seed=2)
    preact = 2 * (a @ b) + c
    close(gemm_gated(a, b, c=c, alpha=2), [preact, GATED["swiglu"](*parted(preact, False))])
    for shape in ((3, M), (M,), (3, M, 1), (M, 1)):
        scale = normal(*shape, seed=3)
        column = scale if scale.shape[-1] == 1 else scale.unsqueeze(-1)
        dx, postact, accumulators = gemm_dact(a, b, c, "relu", colvec_scale=scale, colvec_reduce=True)
        relu = torch.relu(c)
        close([dx, postact], [(a @ b) * column * (c > 0), relu * column])
        close([accumulators], [((a @ b) * relu).sum(-1)])


@pytest.mark.parametrize("dynamic", [False, True])
def test_in_a_graph(dynamic):
    def call(a, b, c, scale):
        preact, postact = gemm_gated(a, b, c=c, alpha=0.5, postact_dtype=torch.float64)
        dx, again, accumulators = gemm_dgated(
            postact, b[:4, :4], preact, colvec_scale=scale, colvec_reduce=True, out_dtype=torch.float64
        )
        return preact, postact, dx, again, accumulators

    given = (A, B, normal(M, N, seed=2, grad=True), normal(M, seed=3, grad=True))
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    close(compiled(*given), call(*given))
    close(gradients(compiled(*given), given), gradients(call(*given), given))


def test_the_operator_takes_types_of_results_as_text():
    text = "lambda acc, c: (silu(halves(acc + c)[0]) * halves(acc + c)[1], acc + c)"
    a, b, c = A.detach().float().requires_grad_(), [B.detach().float().requires_grad_()], [torch.ones(M, N)]
    given = (a, b, text, c, [], "float16, float32", None, "fast", False, False, False, False)
    found = torch.library.opcheck(torch.ops.cutegemm.gemm.default, given)
    assert set(found.values()) == {"SUCCESS"}
    assert [each.dtype for each in torch.ops.cutegemm.gemm(*given)] == [torch.float16, torch.float32]


REFUSED = [
    (lambda a, b: gemm_act(a, b, alpha=2j), "alpha = 2j is not a number"),
    (lambda a, b: gemm_act(a, b, alpha=BIAS), r"alpha is of float64 and has shape \(8,\). Pass one floating-point"),
    (lambda a, b: gemm_act(a, b, postact_dtype=torch.int8), "postact_dtype = torch.int8, which is not supported. For"),
    (lambda a, b: gemm_act(a, b, preact_out=a), r"preact_out has shape \(4, 6\). Pass a tensor of shape \(4, 8\)"),
    (lambda a, b: gemm_gated(a, b, postact_out=1), "postact_out is a int. Pass a torch tensor."),
    (lambda a, b: gemm_gated(a, b, c=torch.ones(M, 3).double()), r"c has shape \(4, 3\). Pass a number, \(8,\)"),
    (
        lambda a, b: gemm_gated(a, b, postact_out=torch.ones(M, 4).int()),
        "postact_out is of torch.int32, which is not supported. For float64, pass",
    ),
    (
        lambda a, b: gemm_act(a, b, preact_out=(out := torch.ones(M, N).double()), postact_out=out),
        "preact_out and postact_out begin at the same address",
    ),
    (
        lambda a, b: gemm_dact(a, b, torch.ones(M, N).double(), colvec_scale=torch.ones(N).double()),
        r"colvec_scale has shape \(8,\). Pass \(4,\) or \(4, 1\), one number for each row.",
    ),
    (
        lambda a, b: gemm_dgated(a, b, torch.ones(M, 16).double(), dx_out=torch.ones(M, 8).double()),
        r"dx_out has shape \(4, 8\). Pass a tensor of shape \(4, 16\)",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_is_refused(call, words):
    with pytest.raises(UnsupportedError, match=words):
        call(A.detach(), B.detach())


def test_no_gradients_are_recorded_into_memory_of_the_caller():
    out = torch.empty(M, N, dtype=torch.float64)
    with pytest.raises(
        UnsupportedError,
        match=r"a and b require gradients, but a call with postact_out= does not record them. Leave out",
    ):
        gemm_act(A, B, postact_out=out)
    with torch.no_grad():
        assert gemm_act(A, B, postact_out=out)[1] is out
