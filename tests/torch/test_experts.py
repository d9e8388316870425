"""`experts`: a mixture of experts against a loop over tokens, its gradients, graphs, and errors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.torch import experts  # noqa: E402
from cutegemm.torch.dispatch import is_exporting  # noqa: E402
from cutegemm.torch.grouped import experts as experts_module  # noqa: E402
from cutegemm.torch.grouped import launch, library, mixture  # noqa: E402
from cutegemm.torch.grouped.prepared import Call  # noqa: E402
from cutegemm.torch.grouped.rows import add_rows, copy_rows, inverse, placed  # noqa: E402
from tests.torch.cases import ACTIVATIONS, GATED, close, gradients, normal, parted  # noqa: E402
from tests.torch.grouped_kernels import run_by  # noqa: E402

T, K, L, H, N, CHOSEN = 9, 6, 5, 4, 7, 2
COMPUTE = library.compute


def inputs(is_gated=True, has_bias=False, dtype=torch.float64):
    """x, weights of the router, up and down, and their biases or None; and the indices."""
    rows = 2 * H if is_gated else H
    x, up, down = [normal(*shape, grad=True, dtype=dtype) for shape in ((T, K), (L, rows, K), (L, N, H))]
    weights = normal(T, CHOSEN, seed=1, grad=True, dtype=dtype)
    biases = [normal(L, width, seed=2, grad=True, dtype=dtype) for width in (rows, N)] if has_bias else [None, None]
    generator = torch.Generator().manual_seed(0)
    index = torch.stack([torch.randperm(L - 1, generator=generator)[:CHOSEN] for _ in range(T)])  # expert 4 has no row
    return index, (x, weights, up, down, *biases)


def by_loop(index, x, weights, up, down, up_bias, down_bias, function):
    """The result, one token and one expert after the other."""
    results = []
    for token, row in enumerate(x):
        total = torch.zeros(N, dtype=x.dtype)
        for choice, expert in enumerate(index[token].tolist()):
            if expert < L:
                preact = up[expert] @ row + (0 if up_bias is None else up_bias[expert])
                y = down[expert] @ function(preact) + (0 if down_bias is None else down_bias[expert])
                total = total + weights[token, choice] * y
        results.append(total)
    return torch.stack(results)


def compared(ours, theirs, tensors):
    tensors = [x for x in tensors if x is not None]
    close([ours, *gradients(ours, tensors)], [theirs, *gradients(theirs, tensors)], 1e-11)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", GATED)
def test_gated_experts(name, interleaved, has_bias):
    index, (x, weights, up, down, *biases) = inputs(has_bias=has_bias)
    ours = experts(x, index, weights, up, down, name, *biases, interleaved=interleaved)
    theirs = by_loop(
        index, x, weights, up, down, *biases, lambda preact: GATED[name](*parted(preact, interleaved))
    )  # fmt: skip
    compared(ours, theirs, (x, weights, up, down, *biases))


@pytest.mark.parametrize("name", GATED)
def test_pairs_of_weights_that_are_contiguous_along_their_rows(name, monkeypatch):
    """Weights as gpt-oss has them: no kernel pairs their columns, so that products have no gated epilogue."""
    texts, product = [], mixture.product
    monkeypatch.setattr(
        mixture, "product", lambda *given, **options: texts.append(given[3]) or product(*given, **options)
    )
    index, (x, weights, up, down, *biases) = inputs(has_bias=True)
    stored = up.mT.contiguous()
    ours = experts(x, index, weights, stored.mT, down, name, *biases, interleaved=True)
    theirs = by_loop(index, x, weights, up, down, *biases, lambda preact: GATED[name](*parted(preact, True)))
    assert len(texts) == 2
    assert not any("pairs" in text for text in texts)
    compared(ours, theirs, (x, weights, up, down, *biases))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_experts_that_are_not_gated(name):
    index, tensors = inputs(is_gated=False)
    x, weights, up, down, *_ = tensors
    ours = experts(x, index, weights, up, down, name)
    compared(ours, by_loop(index, *tensors, ACTIVATIONS[name]), tensors)


def test_a_string_of_a_class_of_its_own_names_an_activation():
    """A call with one that names a gated activation does not make others right."""
    index, (x, weights, up, down, *_) = inputs()
    gated, plain, unknown = [type("Name", (str,), {})(name) for name in ("geglu", "gelu", "mish")]
    assert torch.equal(experts(x, index, weights, up, down, gated), experts(x, index, weights, up, down, "geglu"))
    for name in (plain, unknown):
        with pytest.raises(UnsupportedError, match=r"down has rows of 4|'mish' is unknown"):
            experts(x, index, weights, up, down, name)


@pytest.mark.parametrize("has_bias", [False, True])
def test_an_activation_of_torch(has_bias):
    index, (x, weights, up, down, *biases) = inputs(has_bias=has_bias)

    def function(preact):
        gate, up = preact.chunk(2, -1)
        return torch.sin(gate) * up

    ours = experts(x, index, weights, up, down, function, *biases)
    compared(ours, by_loop(index, x, weights, up, down, *biases, function), (x, weights, up, down, *biases))


@pytest.mark.parametrize("activation", ["swiglu", lambda preact: GATED["swiglu"](*preact.chunk(2, -1))])
@pytest.mark.parametrize(("has_bias", "deterministic"), [(False, True), (True, True), (True, False)])
def test_experts_on_other_devices_contribute_nothing(has_bias, deterministic, activation, monkeypatch):
    """Rows of no expert are not computed: memory that was never written holds NaN here."""
    index, (x, weights, up, down, *biases) = inputs(has_bias=has_bias)
    index = torch.where(index == 1, L, index)
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(
        torch.Tensor, "new_empty", lambda *args, **options: new_empty(*args, **options).fill_(torch.nan)
    )
    options = {"is_partial": True, "deterministic": deterministic}
    ours = experts(x, index, weights, up, down, activation, *biases, **options)
    theirs = by_loop(index, x, weights, up, down, *biases, lambda preact: GATED["swiglu"](*preact.chunk(2, -1)))
    compared(ours, theirs, (x, weights, up, down, *biases))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", ["swiglu", "gelu"])
def test_gradients_of_gradients(name, has_bias):
    index, (x, weights, up, down, *biases) = inputs(is_gated=name in GATED, has_bias=has_bias)
    tensors = [each for each in (x, weights, up, down, *biases) if each is not None]

    def function(x, weights, up, down, *biases):
        return experts(x, index, weights, up, down, name, *biases)

    assert torch.autograd.gradgradcheck(function, tensors, atol=1e-4, fast_mode=True)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", ["swiglu", "gelu"])
def test_transformations_of_torch(name, has_bias):
    """Batches, tangents, gradients of torch.func, and batches of gradients are those of single calls."""
    index, tensors = inputs(is_gated=name in GATED, has_bias=has_bias)
    tensors = [each.detach() for each in tensors if each is not None]
    directions = tuple([normal(*each.shape, seed=4) for each in tensors])
    weight = normal(T, N, seed=5)

    def run(x, weights, up, down, *biases):
        return experts(x, index, weights, up, down, name, *biases)

    def total(*tensors):
        return (run(*tensors) * weight).sum()

    close([torch.vmap(run)(*[torch.stack([each, 2 * each]) for each in tensors])],
          [torch.stack([run(*tensors), run(*[2 * each for each in tensors])])])  # fmt: skip
    trained = [each.clone().requires_grad_() for each in tensors]
    theirs = torch.autograd.grad(total(*trained), trained)
    close(torch.func.grad(total, tuple(range(len(tensors))))(*tensors), theirs)
    along = sum((g * direction).sum() for g, direction in zip(theirs, directions, strict=True))
    close([torch.func.jvp(total, tuple(tensors), directions)[1]], [along])
    batched = torch.autograd.grad(run(*trained), trained, torch.stack([weight, 3 * weight]), is_grads_batched=True)
    close(batched, [torch.stack([g, 3 * g]) for g in theirs])


def test_what_the_backward_pass_keeps():
    """x, and gate and up of the rows: no gathered rows, hidden values or results."""
    index, tensors = inputs()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.shape) or each, lambda each: each):
        experts(tensors[0], index, *tensors[1:4])
    assert [shape for shape in kept if shape[0] == T * CHOSEN and len(shape) == 2] == [(T * CHOSEN, H)] * 2


def test_gradients_of_some_tensors():
    index, tensors = inputs(has_bias=True)
    ours, theirs = [
        function(index, *[each.detach() for each in tensors[:4]], *tensors[4:])
        for function in (
            lambda index, x, *others: experts(x, index, *others[:3], "swiglu", *others[3:]),
            lambda *args: by_loop(*args, lambda preact: GATED["swiglu"](*preact.chunk(2, -1))),
        )
    ]
    compared(ours, theirs, tensors[4:])


def test_narrow_types_and_wide_weights():
    """The error of bfloat16 is at most twice that of torch's operations, one by one."""
    index, tensors = inputs(dtype=torch.bfloat16)
    x, weights, up, down = [each.detach() for each in tensors[:4]]

    def run(*tensors):
        return by_loop(index, *tensors, None, None, lambda preact: GATED["swiglu"](*preact.chunk(2, -1)))

    theirs, exact = run(x, weights, up, down), run(x.double(), weights.double(), up.double(), down.double())
    ours = experts(x, index, weights.float(), up, down)
    assert ours.dtype == torch.bfloat16
    assert (ours - exact).norm() <= 2 * (theirs - exact).norm()


def test_a_step_by_emulated_kernels(monkeypatch):
    """All kernels of a forward and a backward pass, compiled for Hopper, on the emulator."""
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    shapes = (20, 64), (20, 2), (3, 128, 64), (3, 64, 64), (3, 128), (3, 64)
    tensors = [(normal(*shape, seed=i) / 4).bfloat16() for i, shape in enumerate(shapes)]
    index = torch.stack([torch.arange(20) % 3, (torch.arange(20) + 1) % 2], -1)

    def run(dtype):
        x, weights, up, down, *biases = found = [each.to(dtype, copy=True).requires_grad_() for each in tensors]
        y = experts(x, index, weights, up, down, "swiglu_oai", *biases, interleaved=True)
        return [y.detach(), *torch.autograd.grad(y.float().square().sum(), found)]

    exact, theirs = run(torch.float64), run(torch.bfloat16)
    plans = run_by(cutegemm.emulate, monkeypatch)
    monkeypatch.setattr(library, "compute", launch.compute_grouped)
    for right, other, one in zip(exact, theirs, run(torch.bfloat16), strict=True):
        assert (one - right).norm() <= 1.1 * (other - right).norm()
    assert [plan.operands.groups for plan in plans].count("k") == 2


VARIANTS = {
    "plain": {},
    "tokens": {"tokens": 24},
    "stride": {"stride": 72},
    "address": {"first": 1},
    "weights": {"dtype": torch.float32},
    "biases": {"has_bias": True},
    "activation": {"activation": "geglu"},
    "interleaved": {"interleaved": True},
    "partial": {"is_partial": True},
    "added": {"deterministic": False, "has_bias": True, "is_partial": True},
    "untrained": {"grad": False},
}


@pytest.fixture
def on_kernels(monkeypatch):
    """Let grouped products of CPU tensors run by simulated kernels."""
    run_by(cutegemm.simulate, monkeypatch)
    monkeypatch.setattr(library, "compute", launch.compute_grouped)
    monkeypatch.setattr(mixture, "_steps", type(mixture._steps)())
    return monkeypatch


def layer(tokens=16, stride=64, first=0, dtype=torch.bfloat16, has_bias=False, grad=True, seed=0, **options):
    """Return a function that computes the output of a layer and, if `grad`, its gradients."""
    x = normal(tokens * stride + first, seed=seed).bfloat16().as_strided((tokens, 64), (stride, 1), first)
    up, down = [(normal(3, *shape, seed=seed) / 8).bfloat16() for shape in ((128, 64), (64, 64))]
    biases = [(normal(3, width, seed=seed)).bfloat16() for width in (128, 64)] if has_bias else [None, None]
    weights, index = normal(tokens, 2, seed=seed).to(dtype), torch.arange(2 * tokens).view(tokens, 2) % 3
    options = {"activation": "swiglu", **options}

    def run():
        found = [each.detach().requires_grad_(grad) for each in (x, weights, up, down)]
        y = experts(found[0], index, *found[1:], up_bias=biases[0], down_bias=biases[1], **options)
        return [y.detach(), *(torch.autograd.grad(y.square().sum(), found) if grad else ())]

    return run


@pytest.mark.filterwarnings("ignore::cutegemm.errors.CopyWarning")
def test_prepared_calls_are_those_of_their_signature(on_kernels):
    """Each variant is called twice, with others between its calls, and with other values."""
    for seed in range(2):
        for options in VARIANTS.values():
            run = layer(seed=seed, **options)
            ours = run()
            with on_kernels.context() as by_torch:
                by_torch.setattr(library, "compute", COMPUTE)
                by_torch.setattr(mixture, "_steps", type(mixture._steps)())
                close(ours, run(), 2.0**-5)


@pytest.mark.filterwarnings("ignore::cutegemm.errors.CopyWarning")
def test_hooks_may_change_the_strides_of_saved_tensors(on_kernels):
    """A kernel was chosen for the strides of its tensors, so that it only gets tensors with the same."""
    run, strides = layer(), {}
    launched = Call.launch

    def noted(call, passed, allocated, scalars):
        known = strides.setdefault(id(call), [x.stride() for x in passed])
        assert known == [x.stride() for x in passed]
        return launched(call, list(passed), allocated, scalars)

    on_kernels.setattr(Call, "launch", noted)
    first = run()

    def packed(x):
        return x.mT.contiguous().mT if x.shape == (32, 64) else x  # gate and up

    with torch.autograd.graph.saved_tensors_hooks(packed, lambda x: x):
        second = run()
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_rows_are_added_unless_torch_is_deterministic(monkeypatch):
    plans = run_by(cutegemm.simulate, monkeypatch)
    monkeypatch.setattr(library, "compute", launch.compute_grouped)
    monkeypatch.setattr(mixture, "_steps", type(mixture._steps)())
    run = layer(grad=False, deterministic=False)
    run()
    try:
        torch.use_deterministic_algorithms(True)
        run()
    finally:
        torch.use_deterministic_algorithms(False)
    assert [plan.operands.scattered for plan in plans] == [False, True, False]  # the first product is the same


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_warm_call_checks_and_looks_up_nothing(on_kernels, deterministic):
    """The second call of a signature neither checks its arguments nor forms the signature of a grouped product."""
    run = layer(deterministic=deterministic)
    first = run()
    on_kernels.delattr(experts_module, "_check")
    on_kernels.delattr(launch, "_signature")
    on_kernels.setattr(library, "formula", None)
    for one, other in zip(run(), first, strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore::cutegemm.errors.CopyWarning")
@pytest.mark.parametrize("compute", [None, launch.compute_grouped])
def test_no_tokens(compute, monkeypatch):
    if compute is not None:
        run_by(cutegemm.simulate, monkeypatch)
        monkeypatch.setattr(library, "compute", compute)
    index, tensors = inputs(dtype=torch.bfloat16)
    x, weights, up, down, *_ = tensors
    for deterministic in (True, False):
        y = experts(x[:0], index[:0], weights[:0], up, down, deterministic=deterministic)
        assert y.shape == (0, N)
        assert all(not g.any() for g in torch.autograd.grad(y.sum(), (x, weights, up, down)))


def test_order_of_rows():
    index = torch.tensor([[3, 0], [0, 5], [2, 3]])
    place, ends = placed(index, 4)
    assert inverse(place).tolist() == [1, 2, 4, 0, 5, 3]  # experts 0, 0, 2, 3, 3; 5 is not one of them
    assert ends.tolist() == [2, 2, 3, 5]


def test_numbers_beyond_32_bits_are_not_of_an_expert():
    place, ends = placed(torch.tensor([[2**32, 1], [2**31, 2**63 - 1]]), 2)
    assert place.tolist() == [1, 0, 2, 3]
    assert ends.tolist() == [0, 1]


def test_copies_and_sums_of_rows_are_transposes():
    index, (x, *_) = inputs()
    place, _ = placed(index, L)
    order = inverse(place)
    assert torch.autograd.gradcheck(lambda x: copy_rows(x, order, place, CHOSEN), (x,))
    y = normal(T * CHOSEN, 3, grad=True)
    assert torch.autograd.gradcheck(lambda y: add_rows(y, order, place, CHOSEN), (y,))
    assert torch.autograd.gradgradcheck(lambda y: add_rows(y, order, place, CHOSEN).square(), (y,))


@pytest.mark.parametrize("deterministic", [True, False])
def test_torch_compile_has_one_graph(deterministic):
    index, (x, weights, up, down, *biases) = inputs(has_bias=True)
    options = {"interleaved": True, "deterministic": deterministic}

    def step(x, index, weights, up, down, *biases):
        return experts(x, index, weights, up, down, "swiglu_oai", *biases, **options)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    tensors = (x, weights, up, down, *biases)
    for seen in (index, index.flip(0)):
        ours, theirs = [function(x, seen, *tensors[1:]) for function in (compiled, step)]
        compared(ours, theirs, tensors)


@pytest.mark.parametrize(("activation", "interleaved", "has_bias"), [("swiglu", True, True), ("relu", False, False)])
def test_operators_of_graphs(activation, interleaved, has_bias):
    """Fakes have the shapes, types and strides of the results; a mixture is one operator in each direction."""
    index, (x, weights, *parameters) = inputs(activation == "swiglu", has_bias, torch.float32)
    x, weights, *parameters = [None if each is None else each.detach() for each in (x, weights, *parameters)]
    operators, options = torch.ops.cutegemm, (activation, interleaved, False)
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    for deterministic, is_trained in ((True, False), (False, False), (False, True), (True, True)):
        given = (x, index, weights, *parameters, *options, deterministic, is_trained)
        found = torch.library.opcheck(operators.experts.default, given, test_utils=checks)
        assert set(found.values()) == {"SUCCESS"}
    y, place, ends, *preact = operators.experts(*given)
    for needs in ([True] * 4 + [has_bias] * 2, [False, True, True, False, False, False]):
        given = (y, x, place, ends, weights, *parameters, preact, *options, needs)
        found = torch.library.opcheck(operators.experts_backward.default, given, test_utils=checks)
        assert set(found.values()) == {"SUCCESS"}

    targets = []

    def kept(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes if "cutegemm" in str(node.target))
        return graph.forward

    backend = torch._dynamo.backends.common.aot_autograd(fw_compiler=kept)
    tensors = [x, weights, *parameters]
    wanted = [None if each is None else each.clone().requires_grad_() for each in tensors]
    compiled = torch.compile(experts, fullgraph=True, backend=backend)

    def step(x, weights, up, down, *biases):
        return compiled(x, index, weights, up, down, activation, *biases, interleaved=interleaved)

    step(*tensors)
    step(*wanted).sum().backward()
    assert targets == ["cutegemm.experts.default"] * 2 + ["cutegemm.experts_backward.default"]


@pytest.mark.parametrize("has_gradients", [False, True])
def test_transformations_inside_of_a_graph_are_refused(has_gradients):
    """Dynamo would take the derivatives of the operator as 0."""
    index, (x, weights, up, down, *_) = inputs()
    x, weights, up, down = [each.detach().requires_grad_(has_gradients) for each in (x, weights, up, down)]

    def product(x):
        return experts(x, index, weights, up, down)

    transformed = (
        lambda x: torch.func.grad(lambda x: product(x).sum())(x),
        lambda x: torch.func.jvp(product, (x,), (x,))[1],
        lambda x: torch.vmap(product)(x.unsqueeze(0)),
    )
    for step in transformed:
        assert step(x).any()
        with pytest.raises(Exception, match=r"(?s)Observed exception.*UnsupportedError"):
            torch.compile(step, fullgraph=True, backend="aot_eager")(x)


def test_a_graph_of_single_operations_has_gradients(monkeypatch):
    """An activation of torch is computed between the products; so is any if Dynamo takes the graph as exported."""
    index, (x, weights, up, down, *_) = inputs()
    tensors = (x, weights, up, down)
    for activation in (lambda rows: torch.nn.functional.glu(rows, -1), "swiglu"):

        def step(x, weights, up, down, activation=activation):
            return experts(x, index, weights, up, down, activation)

        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        compared(compiled(*tensors), step(*tensors), tensors)
        monkeypatch.setattr(mixture, "is_exporting", lambda: True)


def test_torch_compile_is_not_an_export():
    """torch before 2.13 takes torch.compiler.is_exporting() as True in each graph."""
    compiled = torch.compile(lambda x: x + is_exporting(), fullgraph=True, backend="eager")
    assert compiled(torch.zeros(1)).item() == 0

    class Module(torch.nn.Module):
        def forward(self, x):
            return x + is_exporting()

    for strict in (False, True):
        exported = torch.export.export(Module(), (torch.zeros(1),), strict=strict)
        assert exported.module()(torch.zeros(1)).item() == 1


def test_torch_compile_with_a_dynamic_number_of_tokens():
    index, (x, weights, up, down, *_) = inputs()
    compiled = torch.compile(experts, fullgraph=True, backend="aot_eager")
    for tokens in (T, 4, 7):
        found = [each[:tokens].detach() for each in (x, index, weights)]
        for each in found:
            torch._dynamo.mark_dynamic(each, 0)
        close([compiled(*found, up, down)], [experts(*found, up, down)])


def test_meta_tensors_and_autocast():
    index, (x, weights, up, down, *_) = inputs(dtype=torch.float32)
    on_meta = [each.to("meta") for each in (x, index, weights, up, down)]
    assert tuple(experts(*on_meta).shape) == (T, N)
    with torch.autocast("cpu", torch.bfloat16):
        assert experts(x, index, weights, up, down).dtype == torch.bfloat16


SHAPES = {"x": (T, K), "up": (L, 2 * H, K), "down": (L, N, H)}
ERRORS = {
    "activation": ({"activation": "mish"}, "activation = 'mish' is unknown"),
    "interleaved": ({"activation": "gelu", "interleaved": True}, "activation = 'gelu' is unknown. Use one of 'swiglu'"),
    "type of index": ({"index": torch.ones(T, CHOSEN)}, "index is of torch.float32. Pass integers"),
    "float8": (
        {name: torch.ones(*shape).to(torch.float8_e4m3fn) for name, shape in SHAPES.items()},
        "x is of torch.float8_e4m3fn, but hidden values are not. Pass a wider type for all, as x.bfloat16",
    ),
    "complex index": ({"index": torch.ones(T, CHOSEN).cfloat()}, "index is of torch.complex64. Pass integers"),
    "no experts of a token": (
        {"index": torch.ones(T, 0).long(), "weights": torch.ones(T, 0).double()},
        r"index has shape \(9, 0\). Pass at least one expert",
    ),
    "shape of index": ({"index": torch.ones(T, 1).long()}, r"index has shape \(9, 1\), weights \(9, 2\)"),
    "type of weights": ({"weights": torch.ones(T, CHOSEN).long()}, "weights is of int64"),
    "ranks": ({"x": torch.ones(2, T, K).double()}, r"shapes are x \(2, 9, 6\).*Pass x of shape \(T, K\)"),
    "types": ({"up": torch.ones(L, 2 * H, K)}, "x is of float64, up of float32"),
    "K": ({"x": torch.ones(T, K + 1).double()}, "x has rows of 7, up of 6, but both are K"),
    "experts": ({"down": torch.ones(L - 1, N, H).double()}, "up has weights of 5 experts, down of 4"),
    "rows of up": ({"activation": "relu"}, "down has rows of 4, up has 8 rows for each expert. Pass as many"),
    "gate and up": ({"up": torch.ones(L, H, K).double()}, "up has 4 rows for each expert. Pass twice as many"),
    "bias": ({"up_bias": torch.ones(2 * H)}, r"up_bias has shape \(8,\). Pass a tensor of shape \(5, 8\)"),
}


@pytest.mark.parametrize(("options", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(options, message):
    index, (x, weights, up, down, *_) = inputs()
    with pytest.raises(UnsupportedError, match=message):
        experts(**{"x": x, "index": index, "weights": weights, "up": up, "down": down, **options})


def test_batch_invariance_is_refused():
    index, (x, weights, up, down, *_) = inputs()
    with cutegemm.batch_invariant(), pytest.raises(UnsupportedError, match="grouped kernels are not batch invariant"):
        experts(x, index, weights, up, down)
