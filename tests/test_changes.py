"""After a change of something that an epilogue function reads, `gemm` computes with the new value."""

from __future__ import annotations

import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.epilogue import gelu, where  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.plan.epilogue import epilogue_of  # noqa: E402
from cutegemm.plan.epilogue.dependencies import state_of  # noqa: E402
from cutegemm.run import fused  # noqa: E402
from cutegemm.run.calls import Calls  # noqa: E402
from tests.changes import CHANGES  # noqa: E402
from tests.noted import note_launches  # noqa: E402

A, B = torch.randn(4, 8, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
PRODUCT = A @ B

module = types.ModuleType("module")
scale = 2.0


@pytest.fixture
def launched(monkeypatch):
    """Return the list of the kernels that `gemm` launches, as if the CPU were a GPU."""
    monkeypatch.setattr(fused, "_calls", Calls())
    monkeypatch.setattr(fused, "wrong_devices", lambda given: [])
    return note_launches(monkeypatch, 132)


@pytest.fixture
def on_cpu(monkeypatch):
    """Let `gemm` compute on the CPU with gradients and in graphs, as if the CPU were a GPU."""
    monkeypatch.setattr("cutegemm.torch.gemm.wrong_devices", lambda given: [])


def epilogue_of_last(kernels):
    return str(kernels[-1].plan.epilogue)


@pytest.mark.parametrize("name", CHANGES)
def test_a_launch(name, launched, monkeypatch):
    function, change = CHANGES[name](monkeypatch)
    for _ in range(3):
        cutegemm.gemm(A, B, epilogue=function)
    before = epilogue_of_last(launched)
    assert [len(each.calls) for each in launched] == [3]
    change()
    for _ in range(2):
        cutegemm.gemm(A, B, epilogue=function)
    assert [len(each.calls) for each in launched] == [3, 2]
    assert epilogue_of_last(launched) != before


@pytest.mark.parametrize("name", CHANGES)
def test_gradients(name, on_cpu, monkeypatch):
    function, change = CHANGES[name](monkeypatch)
    a = A.clone().requires_grad_()
    for factor in (2.0, 3.0):
        result = cutegemm.gemm(a, B, epilogue=function)
        torch.testing.assert_close(result.detach(), factor * PRODUCT)
        (gradient,) = torch.autograd.grad(result.sum(), a)
        torch.testing.assert_close(gradient, factor * B.sum(1).expand(4, 8))
        change()


def follows(name, call):
    """Return whether torch.compile computes with the new value after a change.

    name   name of the change in `CHANGES`
    call   function of the epilogue function and a that is compiled
    """
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        function, change = CHANGES[name](patch)
        compiled = torch.compile(lambda a: call(function, a), fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(A), 2.0 * PRODUCT)
        change()
        try:
            return torch.allclose(compiled(A), 3.0 * PRODUCT)
        except torch._dynamo.exc.Unsupported:
            return False


@pytest.mark.parametrize("name", CHANGES)
def test_a_graph(name, on_cpu):
    """torch.compile notices at least the changes that it notices in the same function of tensors.

    Some versions of torch do not notice changes of defaults and classes.
    """
    if not follows(name, lambda function, a: cutegemm.gemm(a, B, epilogue=function)):
        assert not follows(name, lambda function, a: function(a @ B))


def counted():
    """Return a function that multiplies by the number of its calls."""
    calls = 0

    def function(acc):
        nonlocal calls
        calls += 1
        return acc * float(calls)

    return function


def test_a_function_that_changes_itself_is_called_each_time(launched, on_cpu):
    function = counted()
    for call in range(1, 4):
        cutegemm.gemm(A, B, epilogue=function)
        assert epilogue_of_last(launched) == f"acc * {call}"
    function, a = counted(), A.clone().requires_grad_()
    for call in range(1, 4):
        torch.testing.assert_close(cutegemm.gemm(a, B, epilogue=function).detach(), call * PRODUCT)


def test_what_is_returned_when_it_is_called_is_what_is_computed(launched):
    """The first call of a signature calls the epilogue function once, not twice."""
    several = iter([2.0, 3.0, 2.0])

    class Next:
        def __call__(self, acc, bias):
            return (acc + bias) * next(several)

    function, bias = Next(), torch.zeros(6, dtype=torch.float64)
    for _ in range(3):
        cutegemm.gemm(A, B, epilogue=function, bias=bias)
    assert [str(each.plan.epilogue) for each in launched] == ["(acc + bias) * 2", "(acc + bias) * 3"]
    assert [len(each.calls) for each in launched] == [2, 1]


def test_an_operand_without_memory_has_a_signature_of_its_own(launched):
    bias = torch.zeros(6, dtype=torch.float64)
    freed = bias.clone()
    freed.untyped_storage().resize_(0)
    cutegemm.gemm(A, B, epilogue=lambda acc, bias: acc + bias, bias=bias)
    with pytest.raises(UnsupportedError, match="bias is a Tensor without memory of its own"):
        cutegemm.gemm(A, B, epilogue=lambda acc, bias: acc + bias, bias=freed)


def test_zeros_of_either_sign(launched):
    def function(zero):
        return lambda acc: where(acc > 0.0, acc, zero)

    for zero in (0.0, -0.0, 0.0, 0, -0.0):
        cutegemm.gemm(A, B, epilogue=function(zero))
    assert [str(each.plan.epilogue) for each in launched] == [
        "where(acc > 0, acc, 0)", "where(acc > 0, acc, -0.0)", "where(acc > 0, acc, 0)"
    ][: len(launched)]  # fmt: skip
    assert len({each.plan for each in launched}) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda acc, bias: gelu(acc + bias),
        lambda acc, bias: cutegemm.epilogue.gelu(acc + bias) * scale,
        (lambda s: lambda acc, bias: gelu(acc + bias) * s)(2.0),
        (lambda acc, bias, s=2.0: gelu(acc + bias) * s),
        gelu,
    ],
    ids=["global", "module", "closure", "default", "itself"],
)
def test_common_functions_have_a_key(function):
    """Common epilogue functions have a key, so that later calls of a signature do not call them."""
    assert state_of(function) is not None
    assert state_of(function) == state_of(function)


def test_functions_that_are_made_anew_share_a_kernel(launched):
    for s in (2.0, 2.0, 3.0, 2.0):
        cutegemm.gemm(A, B, epilogue=lambda acc, s=s: (lambda x: x * s)(acc))
    assert len(launched) == 2


module.inner = types.ModuleType("module.inner")  # type: ignore[attr-defined]
hidden = 2.0
PLACES = ("scale", "module.scale", "module.inner.scale", "helper(acc)", "closed", "default", "named")


def helper(acc):
    return acc + (lambda: hidden)()


def made(places, scale, closed, default, named):
    """Return an epilogue function that reads variables of several kinds.

    places   names of the variables that it multiplies by; the other arguments are their values
    """
    source = (
        "def outer(closed):\n"
        "    def function(acc, default=default, *, named=named):\n"
        f"        return acc * ({' + '.join(places)}) + (lambda: 0.0 * closed)()\n"
        "    return function\n"
    )
    variables = {"scale": scale, "module": module, "helper": helper, "default": default, "named": named}
    exec(source, variables)
    return variables["outer"](closed)


# On a busy machine the first example takes seconds, which does not mean that the strategy is slow.
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_equal_keys_are_of_equal_expressions(data):
    places = data.draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3, unique=True))
    values = st.sampled_from([0.0, -0.0, 1.0, 1, True, 2.0, -2.0])
    seen = {}
    for _ in range(4):
        module.scale, module.inner.scale = data.draw(values), data.draw(values)
        helper.__globals__["hidden"] = data.draw(values)
        function = made(places, *[data.draw(values) for _ in range(4)])
        state = state_of(function)
        assert state is not None
        try:
            text = repr(epilogue_of(function, {}))
        except cutegemm.PlanError as error:  # an epilogue does not accept a bool
            text = str(error)
        assert seen.setdefault(state, text) == text
