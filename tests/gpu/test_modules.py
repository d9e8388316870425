"""Modules and `use` on a GPU: what the tests of tests/torch show on a CPU, of the kernels."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from cutegemm import gemm  # noqa: E402
from cutegemm.errors import CopyWarning  # noqa: E402
from cutegemm.torch import GatedMLP, use  # noqa: E402
from tests.torch.cases import normal  # noqa: E402
from tests.torch.test_copies import VIEWS, both, dense, negated, with_gaps  # noqa: E402
from tests.torch.test_memory import CALLS, check_results, tensors_of  # noqa: E402
from tests.torch.test_modules import LlamaMLP  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("arch")]


def near(ours, theirs, tolerance=2e-2):
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == other.shape
        assert float((one - other).float().norm()) <= tolerance * float(other.float().norm())


@pytest.mark.parametrize("name", CALLS)
def test_results_have_memory_of_their_own(name):
    call, *shapes = CALLS[name]
    check_results(call, [normal(*shape, dtype=torch.bfloat16).cuda() for shape in shapes])


def test_an_activation_in_place_follows_a_replaced_layer():
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(inplace=True), nn.Linear(128, 64)).cuda().bfloat16()
    for shape in ((64,), (4, 64), (2, 3, 64)):
        x, found = normal(*shape, dtype=torch.bfloat16).cuda().requires_grad_(), []
        for is_ours in (False, True):
            replaced = use(model) if is_ours else None
            found.append(torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()]))
            if replaced:
                replaced.undo()
        near(found[1], found[0])


def test_a_result_without_gradients_is_modified_where_they_are_recorded():
    scale = torch.ones(64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    for model in (nn.Linear(64, 64), GatedMLP(64, 128)):
        model.cuda().bfloat16()
        use(model)
        for shape in ((64,), (4, 64), (2, 3, 64)):
            for _ in range(2):
                with torch.no_grad():
                    found = model(torch.ones(shape, device="cuda", dtype=torch.bfloat16))
                found.mul_(scale).sum().backward()


def test_workspaces_of_inference_serve_training():
    """2 x 2 tiles and a long K are split; the workspace of the first call serves those of every mode."""
    layer = nn.Linear(65536, 256, bias=False).cuda().bfloat16()
    x = normal(256, 65536, dtype=torch.bfloat16).cuda()
    expected = layer(x).detach()
    use(layer)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            near([layer(x).detach()], [expected])


def test_models_that_are_made_under_inference_mode():
    with torch.inference_mode():
        model = LlamaMLP(64, 128).cuda().bfloat16()
        x = normal(4, 64, dtype=torch.bfloat16).cuda()
        expected = model(x)
        use(model)
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            near([model(x)], [expected])
            near([copy.deepcopy(model)(x)], [expected])


OF_VIEWS = ("mm", "bmm", "addmm of a matrix", "linear of three dimensions", "linear and gelu", "gemm_act and gelu",
            "gemm_gated", "gemm_dgated", "mlp with a gate")  # fmt: skip


@pytest.mark.filterwarnings("ignore::cutegemm.errors.CopyWarning")
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", OF_VIEWS)
def test_functions_take_views(name, view):
    call, *shapes = CALLS[name]
    dtype = torch.float32 if view is negated else torch.bfloat16
    for place in range(len(shapes)):
        given = [normal(*shape, dtype=dtype).cuda() for shape in shapes]
        given[place] = view(given[place])
        near(*both(call, given))


@pytest.mark.filterwarnings("ignore::cutegemm.errors.CopyWarning")
@pytest.mark.parametrize("view", VIEWS)
def test_gradients_of_views(view):
    call, *shapes = CALLS["linear and gelu"]
    found = []
    for change in (view, lambda x: dense(view(x))):
        dtype = torch.float32 if view is negated else torch.bfloat16
        given = [change(normal(*shape, dtype=dtype).cuda()).detach().requires_grad_() for shape in shapes]
        result = call(*given)
        found.append(torch.autograd.grad(result, given, change(normal(*result.shape, dtype=dtype).cuda())))
    near(*found)


def test_a_layer_of_a_view_warns_of_the_copy():
    model = nn.Linear(64, 128).cuda().bfloat16()
    x = with_gaps(normal(4, 64, dtype=torch.bfloat16).cuda())
    expected = model(x).detach()
    use(model)
    for mode in (torch.no_grad, torch.enable_grad):
        with mode(), pytest.warns(CopyWarning, match="a contiguous copy of (x|the first factor) is made"):
            near([model(x).detach()], [expected])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", OF_VIEWS)
def test_functions_are_traced_by_jit(name):
    """The trace computes with its inputs, though it records no kernel."""
    call, *shapes = CALLS[name]
    given = tuple([normal(*shape, dtype=torch.bfloat16).cuda() for shape in shapes])
    traced = torch.jit.trace(lambda *given: tuple(tensors_of(call(*given))), given)
    others = [2 * x for x in given]
    near(traced(*others), tensors_of(call(*others)))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_gemm_is_traced_by_jit():
    a, b, c = (normal(64, 64, seed=seed, dtype=torch.bfloat16).cuda() for seed in range(3))
    for call in (
        lambda a, b, c: gemm(a, b),
        lambda a, b, c: gemm(a, b, c=c, beta=1.0),
        lambda a, b, c: gemm(a, b, epilogue=lambda acc, c: acc + c, c=c),
    ):
        traced = torch.jit.trace(call, (a, b, c))
        near([traced(b, a, c)], [call(b, a, c)])


@pytest.mark.parametrize("make", [lambda: LlamaMLP(64, 128), lambda: GatedMLP(64, 128), lambda: nn.Linear(64, 64)])
def test_models_are_traced(make):
    model = nn.Sequential(make(), nn.Linear(64, 64)).cuda().bfloat16()
    use(model)
    x, other = (normal(2, rows, 64, dtype=torch.bfloat16).cuda() for rows in (3, 5))
    for mode in (torch.no_grad, torch.enable_grad):
        with mode():
            near([torch.jit.trace(model, x)(other)], [model(other)])
            near([torch.fx.symbolic_trace(model)(other)], [model(other)])
