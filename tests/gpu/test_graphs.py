"""CUDA graphs that torch.compile makes, and exported programs: every function of the API for torch."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.plan.memory.workspace import needs_workspace  # noqa: E402
from tests.torch.cases import normal  # noqa: E402
from tests.torch.every import FUNCTIONS, N, Of, results  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("arch")]

M, K = 72, 8192  # few tiles and a deep K: kernels split it, and take a workspace


def on_gpu(*shape, seed=0, dtype=torch.bfloat16):
    return normal(*shape, seed=seed).to("cuda", dtype)


def weight(dtype=torch.bfloat16):
    return on_gpu(K, N, seed=1, dtype=dtype) * K**-0.5


def alike(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        error = (one.double() - other.double()).norm() / other.double().norm()
        assert float(error) < 2.0**-7


@pytest.fixture
def skipped():
    """The number of graphs that torch.compile has not made in this test."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["inductor"]["cudagraph_skips"]
    torch._dynamo.reset()
    gc.collect()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_graphs_of_torch_compile(name, skipped):
    """The first call, the one that records the graph, and two replays; each followed by a call in eager mode."""
    function = FUNCTIONS[name]
    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)
    b = weight()
    with torch.no_grad():
        for call in range(4):
            a = on_gpu(M, K, seed=2 + call)
            torch.compiler.cudagraph_mark_step_begin()
            found = results(compiled(a, b))
            alike(found, results(function(a, b)))
    assert skipped() == 0


@pytest.mark.parametrize("name", ["linear", "gemm_act", "gemm_gated", "mlp", "gemm with an epilogue"])
def test_graphs_of_a_training_step(name, skipped):
    function = FUNCTIONS[name]
    compiled = torch.compile(function, mode="reduce-overhead", fullgraph=True)

    def step(call, a, b):
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        out = call(a, b)
        out = out if isinstance(out, tuple) else (out,)
        total = sum([each.float().square().sum() for each in out if each is not None])
        return results((total.detach(), *torch.autograd.grad(total, (a, b))))

    b = weight()
    for call in range(4):
        a = on_gpu(M, K, seed=2 + call)
        torch.compiler.cudagraph_mark_step_begin()
        alike(step(compiled, a, b), step(function, a, b))
    assert skipped() == 0


@pytest.mark.parametrize(
    ("dtype", "plan"),
    [
        (torch.float32, "simt_64x64/k4"),
        (torch.bfloat16, "mma_64x64/k4"),
        (torch.bfloat16, "sm90_64x128/k4"),
    ],
)
def test_graphs_of_a_kernel_with_a_workspace(dtype, plan, skipped, arch):
    """Two graphs of one kernel that splits K, and the kernel in eager mode, in turns."""
    if plan.startswith("sm90") and arch != "sm_90a":
        pytest.skip("a plan of Hopper")
    b = weight(dtype)
    assert needs_workspace(cutegemm.plan_of(on_gpu(M, K, dtype=dtype), b, plan=plan))

    def call(a, b):
        return cutegemm.gemm(a, b, plan=plan)

    compiled, other = [
        torch.compile(lambda a, b, sign=sign: sign * call(a, b), mode="reduce-overhead", fullgraph=True)
        for sign in (2.0, -2.0)
    ]
    with torch.no_grad():
        for step in range(4):
            a = on_gpu(M, K, seed=2 + step, dtype=dtype)
            exact = a.double() @ b.double()
            torch.compiler.cudagraph_mark_step_begin()
            alike([compiled(a, b).clone(), call(a, b), other(a, b).clone()], [2.0 * exact, exact, -2.0 * exact])
    assert skipped() == 0


def live(pool):
    """Blocks of a pool that are in use."""
    gc.collect()
    torch.cuda.synchronize()
    segments = [each for each in torch.cuda.memory_snapshot() if tuple(each["segment_pool_id"]) == tuple(pool.id)]
    return [block for each in segments for block in each["blocks"] if block["state"] == "active_allocated"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_left_in_a_pool(name):
    """The first call of a signature, on a new stream, allocates its results alone from the pool that is in use."""
    function, pool, stream = FUNCTIONS[name], torch.cuda.MemPool(), torch.cuda.Stream()
    rows = M + 1 + list(FUNCTIONS).index(name)  # a signature that no other test has
    a, b = on_gpu(rows, K), weight()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(stream), torch.cuda.use_mem_pool(pool):
            found = function(a, b)
            found = results(function(a, b))
        torch.cuda.current_stream().wait_stream(stream)
        alike(found, results(function(a, b)))
    del found
    assert live(pool) == []


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_exported(name, strict):
    """With a number of rows that varies."""
    b = weight()
    rows = {"a": {0: torch.export.Dim("rows", min=2, max=4096)}, "b": None}
    with torch.no_grad():
        exported = torch.export.export(
            Of(FUNCTIONS[name]), (on_gpu(M, K), b), dynamic_shapes=rows, strict=strict
        ).module()
        for count in (M, 200):
            a = on_gpu(count, K, seed=2)
            alike(results(exported(a, b)), results(FUNCTIONS[name](a, b)))
