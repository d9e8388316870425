"""The operators of torch.library: in graphs that are compiled or exported, under transformations, from threads."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.nn.functional as F  # noqa: E402
from torch._dynamo.testing import CompileCounterWithBackend  # noqa: E402

import cutegemm  # noqa: E402
from cutegemm.epilogue import gelu, row_sum, tanh  # noqa: E402
from cutegemm.errors import PlanError, UnsupportedError  # noqa: E402
from cutegemm.torch import addmm, bmm, gemm_act, gemm_gated, linear, mm  # noqa: E402
from cutegemm.torch import library as registered  # noqa: E402
from cutegemm.torch.distributed import library as of_ranks  # noqa: E402
from cutegemm.torch.grouped import library as grouped  # noqa: E402
from cutegemm.torch.grouped import mixture_library as mixtures  # noqa: E402
from tests.torch.block_scaled import factors, of_gemm  # noqa: E402
from tests.torch.cases import close, gradients, normal  # noqa: E402
from tests.torch.every import FUNCTIONS as EVERY  # noqa: E402
from tests.torch.every import N as EVERY_N  # noqa: E402
from tests.torch.every import Of, results  # noqa: E402

OPS = torch.ops.cutegemm
HOW = (None, "fast", False, False, False, False)
A, W, BIAS = normal(5, 8, grad=True), normal(6, 8, seed=1, grad=True), normal(6, seed=2, grad=True)
BLOCKS = factors(5, 48, 300, "1x128", "128x128")
CALLS = [
    (OPS.mm, (A, W.t())),
    (OPS.mm, (normal(2, 5, 8, grad=True), normal(2, 8, 3, grad=True))),
    (OPS.mm, (A.detach().to(torch.bfloat16), W.detach().to(torch.bfloat16).t(), torch.float32)),
    (OPS.mm_out, (A.detach(), W.detach().t(), torch.empty(5, 6, dtype=torch.float64))),
    (OPS.gemm, (A, [W.t()], "lambda acc, bias: (gelu(acc + bias), acc + bias)", [BIAS], [], None, *HOW)),
    (OPS.gemm, (A, [W.t()], "lambda acc, bias, s: tanh(acc + bias) * s", [BIAS], [2.0], None, *HOW)),
    (OPS.gemm, (A, [W[:3].t(), W[3:].t()], "lambda acc: silu(halves(acc)[0]) * halves(acc)[1]", [], [], None, *HOW)),
    (OPS.gemm, (A, [W.t()], "lambda acc, c: minimum(acc * c, 1)", [normal(5, 1, grad=True)], [], None, *HOW)),
    (
        OPS.gemm_out,
        (A.detach(), [W.detach().t()], "lambda acc, bias: relu(acc + bias)", [BIAS.detach()], [],
         torch.empty(5, 6, dtype=torch.float64), *HOW),
    ),
    (OPS.gemm_dgated, (A.detach(), W.detach().t(), normal(5, 12), "swiglu")),
    (OPS.quantize, (normal(5, 300).float(), 128, torch.float8_e4m3fn, True)),
    (OPS.mm_parts, (normal(5, 6), [W[:2].detach().t(), W[2:].detach().t()])),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "given"), CALLS)
def test_opcheck(operator, given):
    """torch's own examination: schema, fake, autograd, and both in a graph of dynamic shapes."""
    found = torch.library.opcheck(operator.default, given)
    assert set(found.values()) == {"SUCCESS"}
    assert len(found) == 4


def test_opcheck_of_block_scales():
    """Without the test of the schema: it multiplies its arguments, and torch does not multiply float8 on the CPU."""
    given = (BLOCKS.a, BLOCKS.b, *of_gemm(BLOCKS), "lambda acc, bias: acc + bias", [normal(48)], [], None, *HOW)
    tests = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    assert set(torch.library.opcheck(OPS.scaled_gemm.default, given, test_utils=tests).values()) == {"SUCCESS"}


def test_the_table_of_operators_has_the_registered_schemas():
    """docs/torch.md has a row with the name and the schema of each operator that is registered."""
    page = (Path(__file__).parents[2] / "docs" / "torch.md").read_text()
    rows = re.findall(r"^\| `(cutegemm::\w+)` \| `(.*)` \|$", page, re.MULTILINE)
    assert sorted(dict(rows)) == sorted(
        {**registered.SCHEMAS, **grouped.SCHEMAS, **mixtures.SCHEMAS, **of_ranks.SCHEMAS}
    )
    for name, schema in rows:
        assert str(getattr(OPS, name.partition("::")[2]).default._schema) == f"{name}{schema}"


FUNCTIONS = {
    "mm": lambda x, w, bias: mm(x, w.t()),
    "addmm": lambda x, w, bias: addmm(bias, x, w.t(), alpha=0.5),
    "bmm": lambda x, w, bias: bmm(x.expand(2, *x.shape), w.t()),
    "linear": linear,
    "linear, gelu": lambda x, w, bias: linear(x[None], w, bias, "gelu"),
    "gemm_act": lambda x, w, bias: gemm_act(x, w.t(), bias, activation="silu"),
    "gemm_gated": lambda x, w, bias: gemm_gated(x, (w[:3].t(), w[3:].t()), bias, store_preact=False)[1],
    "gemm": lambda x, w, bias: cutegemm.gemm(x, w.t(), alpha=2.0),
}


@pytest.fixture
def on_cpu(monkeypatch):
    """`cutegemm.gemm` as if the CPU were a GPU."""
    monkeypatch.setattr("cutegemm.torch.gemm.wrong_devices", lambda given: [])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_whole_graph_of_dynamic_rows(name, on_cpu):
    """torch.compile without a break; the second number of rows compiles nothing anew; gradients too."""
    torch._dynamo.reset()
    FUNCTIONS[name](normal(3, 8), W, BIAS)  # the first call of a process stores how the state of torch is read
    compiles = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(FUNCTIONS[name], fullgraph=True, dynamic=True, backend=compiles)
    counts = []
    for rows in (5, 9, 12):
        x = normal(rows, 8, grad=True)
        ours, eager = compiled(x, W, BIAS), FUNCTIONS[name](x, W, BIAS)
        given = [t for t in (x, W) if t is not None]
        close(gradients(ours, given), gradients(eager, given))
        counts.append(compiles.frame_count)
    assert len(set(counts)) == 1, counts


def test_the_graph_holds_the_operator_and_its_epilogue():
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(lambda x: linear(x, W, BIAS, "gelu"), fullgraph=True, backend=keep)(A)
    code = graphs[0].code
    assert "torch.ops.cutegemm.gemm" in code
    assert "lambda acc, bias: gelu(acc + bias)" in code


def biased_gelu(acc, bias, scale):
    return gelu(acc + bias) * scale, acc + bias


def test_gemm_with_an_epilogue(on_cpu):
    """In a graph and with gradients: a function of the module, and one that is made while the graph is."""
    torch._dynamo.reset()

    def named(x):
        return cutegemm.gemm(x, W.t(), epilogue=biased_gelu, bias=BIAS, scale=0.5)

    def anonymous(x):
        def epilogue(acc, bias, scale):
            return biased_gelu(acc, bias, scale)

        return cutegemm.gemm(x, W.t(), epilogue=epilogue, bias=BIAS, scale=0.5)

    preact = F.linear(A, W, BIAS)
    expected = F.gelu(preact) * 0.5, preact
    wanted = gradients(expected, (A, W, BIAS))
    for call in (named, anonymous):
        for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
            result = run(A)
            close(result, expected)
            close(gradients(result, (A, W, BIAS)), wanted)
    close([cutegemm.gemm(A, W.t(), c=preact.detach(), alpha=0.5, beta=2.0)], [2.5 * preact - 0.5 * BIAS])


FRESH = """
import os, sys
import torch
import torch._dynamo
import cutegemm
from cutegemm.torch import gemm as entry

def by_statement(acc):
    import cutegemm.epilogue
    return cutegemm.epilogue.gelu(acc)

def by_name(acc):
    from cutegemm.epilogue import gelu
    return gelu(acc)

def by_attribute(acc):
    return cutegemm.epilogue.gelu(acc)

entry.wrong_devices = lambda given: []
assert "cutegemm.epilogue" not in sys.modules
a, b = torch.randn(5, 8), torch.randn(8, 6)
for function in by_statement, by_name, by_attribute:
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0, function
        continue
    compiled = torch.compile(lambda a, b: cutegemm.gemm(a, b, epilogue=function), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(a, b), torch.nn.functional.gelu(a @ b))
    os._exit(0)
"""


def test_a_graph_imports_the_functions_of_epilogues():
    """In processes that have not imported them: forks of one that has imported torch, which takes four seconds."""
    subprocess.run([sys.executable, "-c", FRESH], check=True)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(normal(6, 8, seed=1))
        self.bias = torch.nn.Parameter(normal(6, seed=2))

    def forward(self, x):
        return linear(x, self.weight, self.bias, "gelu_tanh")


@pytest.mark.parametrize("strict", [False, True])
def test_export_of_dynamic_rows(strict, tmp_path):
    layer = Layer()
    dynamic = {"x": {0: torch.export.Dim("rows", min=2, max=4096)}}
    exported = torch.export.export(layer, (normal(5, 8),), dynamic_shapes=dynamic, strict=strict)
    assert any(node.target is OPS.gemm.default for node in exported.graph.nodes)
    torch.export.save(exported, tmp_path / "layer.pt2")
    again = torch.export.load(tmp_path / "layer.pt2").module()
    x = normal(11, 8, seed=5)
    close([again(x)], [layer(x)])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", EVERY)
def test_export_of_every_function(name, strict, on_cpu):
    """With any number of rows, and of an epilogue that is a lambda."""
    function, b = EVERY[name], normal(2 * EVERY_N, EVERY_N, seed=1, dtype=torch.float32)
    rows = {"a": {0: torch.export.Dim("rows")}, "b": None}
    given = normal(24, 2 * EVERY_N, dtype=torch.float32), b
    exported = torch.export.export(Of(function), given, dynamic_shapes=rows, strict=strict).module()
    for count in (24, 50):
        a = normal(count, 2 * EVERY_N, seed=2, dtype=torch.float32)
        close(results(exported(a, b)), results(function(a.requires_grad_(), b)), 1e-5)


def test_export_of_a_callable_object(on_cpu):
    class Scaled:
        def __init__(self, scale):
            self.scale = scale

        def __call__(self, acc):
            return acc * self.scale

    scaled, w = Scaled(2.0), normal(8, 6, seed=1)
    call = Of(lambda a, b: cutegemm.gemm(a, b, epilogue=scaled))
    for strict in (False, True):
        exported = torch.export.export(call, (A.detach(), w), strict=strict).module()
        close([exported(A.detach(), w)], [2.0 * A @ w])


@pytest.mark.parametrize("size", [3, 1, 0])
def test_vmap(size):
    x, w, bias = normal(size, 5, 8), normal(size, 6, 8, seed=1), normal(size, 6, seed=2)

    def by_torch(x, w, bias):
        return F.gelu(x @ w.t() + bias)

    call = lambda *t: linear(*t, "gelu")  # noqa: E731
    one = normal(5, 8), normal(6, 8, seed=1), normal(6, seed=2)
    for dims in ((0, 0, 0), (0, None, None), (None, 0, None), (0, None, 0), (None, None, 0), (0, 0, None)):
        given = [t if dim == 0 else each for t, each, dim in zip((x, w, bias), one, dims, strict=True)]
        close([torch.vmap(call, dims)(*given)], [torch.vmap(by_torch, dims)(*given)])
    turned = torch.vmap(call, (1, None, None))(x.transpose(0, 1), *one[1:])
    close([turned], [by_torch(x, *one[1:])])
    close([torch.vmap(mm)(x, w.mT)], [x @ w.mT])
    nested = torch.vmap(torch.vmap(mm, (0, None)), (None, 0))(x, w.mT)
    close([nested], [x[None] @ w.mT[:, None]])
    pairs = torch.vmap(bmm)(x[:, None].expand(size, 2, 5, 8), w.mT[:, None].expand(size, 2, 8, 6))
    close([pairs], [(x @ w.mT)[:, None].expand(size, 2, 5, 6)])
    empty = torch.vmap(mm, (0, None))(x[:, :0], one[1].t())
    close([empty], [x.new_empty(size, 0, 6)])
    per_sample = torch.vmap(torch.func.grad(lambda x, w: mm(x, w.t()).square().sum()), (0, None))(x, one[1])
    close([per_sample], [2 * x @ one[1].t() @ one[1]])


@pytest.mark.parametrize("size", [3, 0])
def test_gemm_with_an_epilogue_under_vmap(size, on_cpu):
    x, w, bias = normal(size, 5, 8), normal(8, 6, seed=1), normal(size, 6, seed=2)

    def call(x, bias):
        return cutegemm.gemm(x, w, epilogue=lambda acc, bias: gelu(acc + bias), bias=bias)

    close([torch.vmap(call)(x, bias)], [F.gelu(x @ w + bias[:, None])])
    one, other = normal(5, 8), normal(6, seed=2)
    close([torch.vmap(call, (None, 0))(one, bias)], [F.gelu(one @ w + bias[:, None])])
    close([torch.vmap(call, (0, None))(x, other)], [F.gelu(x @ w + other)])


def test_operators_alone_under_vmap():
    """As a graph has them, without the functions."""
    x, w, c = normal(3, 5, 8), normal(8, 6, seed=1), normal(3, 5, 6, seed=2)
    text = "lambda acc, c: relu(acc + c)"
    found = torch.vmap(lambda x, c: OPS.gemm(x, [w], text, [c], [], None, *HOW)[0])(x, c)
    close([found], [F.relu(x @ w + c)])
    batches = normal(3, 2, 5, 8)
    close([torch.vmap(lambda x: OPS.mm(x, w.expand(2, 8, 6)))(batches)], [batches @ w])


def test_transformations():
    """Gradients of each sample, and derivatives forward and twice."""
    x, w, bias = normal(3, 4, 8), normal(6, 8, seed=1), normal(6, seed=2)

    def loss(w, x, act):
        return act(x, w).square().sum()

    ours = lambda x, w: linear(x, w, bias, "gelu")  # noqa: E731
    theirs = lambda x, w: F.gelu(F.linear(x, w, bias))  # noqa: E731
    per_sample = [torch.vmap(torch.func.grad(loss), (None, 0, None))(w, x, act) for act in (ours, theirs)]
    close(per_sample[:1], per_sample[1:])
    forward = [torch.func.jvp(lambda x, act=act: act(x, w), (x[0],), (x[1],))[1] for act in (ours, theirs)]
    close(forward[:1], forward[1:])
    twice = [torch.func.hessian(loss)(w, x[0, :1], act) for act in (ours, theirs)]
    close(twice[:1], twice[1:])
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x[0], x[1])
        close([torch.autograd.forward_ad.unpack_dual(ours(dual, w)).tangent], forward[1:])


def test_forward_differentiation_inside_of_a_graph_is_refused():
    """Operators would drop the tangent. Without fullgraph, Dynamo leaves the call to eager mode."""
    x, w = normal(4, 8), normal(6, 8, seed=1)

    def step(x):
        return torch.func.jvp(lambda x: linear(x, w), (x,), (x,))[1]

    with pytest.raises(Exception, match=r"(?s)Observed exception.*UnsupportedError"):
        torch.compile(step, fullgraph=True, backend="aot_eager")(x)
    close([torch.compile(step, backend="aot_eager")(x)], [x @ w.mT])


def test_several_threads():
    x, w, bias = A.detach(), W.detach(), BIAS.detach()
    found = [None] * 8

    def work(i):
        found[i] = linear(x * i, w, bias, "silu")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    close(found, [F.silu(F.linear(x * i, w, bias)) for i in range(8)])


def test_gemm_records_gradients(on_cpu):
    given = normal(5, 8, grad=True), normal(8, 6, seed=1, grad=True), normal(5, 6, seed=2, grad=True)
    assert torch.autograd.gradcheck(lambda a, b, c: cutegemm.gemm(a, b, c=c, alpha=0.5, beta=-2.0), given)
    assert torch.autograd.gradgradcheck(lambda a, b, c: cutegemm.gemm(a, b), given)
    with pytest.raises(
        UnsupportedError, match=r"a and b require gradients, but a call with out= does not record them. Leave out"
    ):
        cutegemm.gemm(*given[:2], out=torch.empty(5, 6, dtype=torch.float64))
    with pytest.raises(UnsupportedError, match=r"beta = 1\.0, but no c is given"):
        cutegemm.gemm(*given[:2], beta=1.0)
    with pytest.raises(UnsupportedError, match="bias passed without an epilogue that reads them"):
        cutegemm.gemm(*given[:2], bias=torch.zeros(6))


@pytest.mark.parametrize("is_compiled", [False, True])
def test_gemm_under_autocast(on_cpu, is_compiled):
    """Factors and c are cast as torch.addmm's are; operands of an epilogue, results and an out are not."""
    torch._dynamo.reset()
    gemm = cutegemm.gemm
    if is_compiled:
        gemm = torch.compile(gemm, fullgraph=True, backend="aot_eager")
    a, b, c = (normal(*shape, dtype=torch.float32, grad=True) for shape in ((5, 8), (8, 6), (5, 6)))
    halves = [t.bfloat16() for t in (a, b, c)]
    want = cutegemm.gemm(halves[0], halves[1], c=halves[2], beta=1.0)
    accumulators, in_full = halves[0].float() @ halves[1].float(), a @ b
    with torch.autocast("cpu", torch.bfloat16):
        close([gemm(a, b, c=c, beta=1.0)], [want])
        assert gemm(halves[0], b).dtype == torch.bfloat16
        assert gemm(a.double(), b.double()).dtype == torch.float64
        assert gemm(a.double(), b.double(), c=c.double(), beta=1.0).dtype == torch.float64
        wide = gemm(a, b, epilogue=lambda acc, e: acc + e, e=c, out_dtype=torch.float32)
        close([wide], [accumulators + c], 1e-6)
        (by_a,) = torch.autograd.grad(gemm(a, b, c=c, beta=1.0).sum(), a)
        assert by_a.dtype == torch.float32
        with torch.no_grad():
            out = torch.empty(5, 6)
            if is_compiled:
                close([gemm(a, b, out=out)], [in_full], 1e-6)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_operands_with_the_names_of_gemm(on_cpu, is_compiled):
    """c, alpha and beta are operands of the epilogue, also if they are 1 and 0."""
    torch._dynamo.reset()

    def call(a, b, c):
        return cutegemm.gemm(a, b, c=c, alpha=1.0, beta=0, epilogue=lambda acc, c, beta, alpha: alpha * acc * c + beta)

    if is_compiled:
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    given = normal(5, 8, grad=True), normal(8, 6, seed=1, grad=True), normal(5, 6, seed=2, grad=True)
    wanted = given[0] @ given[1] * given[2]
    found = call(*given)
    close([found, *gradients([found], given)], [wanted, *gradients([wanted], given)])
    with pytest.raises(UnsupportedError, match=r"bias passed without an epilogue that reads them. Pass epilogue=\."):
        cutegemm.gemm(*given[:2], bias=given[2])


TYPES = [
    None,
    torch.float32,
    (torch.float32, None, None),
    (None, torch.float16, None),
    [torch.bfloat16, torch.float32, None],
]


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("asked", TYPES, ids=map(str, TYPES))
def test_types_of_results(on_cpu, asked, is_compiled):
    """Each result in its own type, also where the backward pass keeps one more; rounded once."""
    torch._dynamo.reset()
    a, w, bias = (normal(*shape, dtype=torch.bfloat16, grad=True) for shape in ((5, 8), (6, 8), (6,)))

    def call(a, w, bias):
        def epilogue(acc, bias):
            return gelu(acc + bias), tanh(acc) * bias, row_sum(acc)

        return cutegemm.gemm(a, w.t(), epilogue=epilogue, bias=bias, out_dtype=asked)

    acc = a.float() @ w.float().t()
    wanted = F.gelu(acc + bias.float()), acc.tanh() * bias.float(), acc.sum(-1)
    kinds = [*asked] if isinstance(asked, (tuple, list)) else [asked]
    of_d = kinds[0] or torch.bfloat16
    kinds = [of_d, kinds[1] if len(kinds) > 1 and kinds[1] else of_d, torch.float32]
    wanted = [x.to(kind) for x, kind in zip(wanted, kinds, strict=True)]
    found = torch.compile(call, fullgraph=True, backend="aot_eager")(a, w, bias) if is_compiled else call(a, w, bias)
    assert [x.dtype for x in found] == kinds
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want)
    for got, want in zip(gradients(found, (a, w, bias)), gradients(wanted, (a, w, bias)), strict=True):
        torch.testing.assert_close(got, want, rtol=0.05, atol=0.05)
    over = torch.vmap(call, in_dims=(0, None, None))(torch.stack([a, a]), w, bias)
    assert [x.dtype for x in over] == kinds
    meta = cutegemm.gemm(
        a.detach().to("meta"),
        w.detach().t().to("meta"),
        epilogue=lambda acc: (acc, acc, row_sum(acc)),
        out_dtype=asked,
    )
    assert [x.dtype for x in meta] == kinds


def test_types_that_are_refused(on_cpu):
    """By the same words in a graph and with gradients as without."""
    a, w = (normal(*shape, dtype=torch.bfloat16, grad=True) for shape in ((5, 8), (6, 8)))
    for asked, words in (
        ((torch.float32,), "out_dtype has 1 types, but the number of results is 2"),
        ((torch.int32, torch.int8), r"(?s)2 rules .*out_dtype.0. = torch.int32 is.*out_dtype.1. = torch.int8 is"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            cutegemm.gemm(a, w.t(), epilogue=lambda acc: (acc, acc + 1), out_dtype=asked)
    assert cutegemm.gemm(a, w.t(), out_dtype=(torch.float32,)).dtype == torch.float32
    with pytest.raises(UnsupportedError, match=r"out_dtype names int3, float. Supported are .*float16"):
        OPS.gemm(a, [w.t()], "lambda acc: (acc, acc)", [], [], "int3, float", *HOW)


def test_several_results_and_out(on_cpu):
    """Which the direct way alone serves."""
    a, b, out = A.detach(), W.detach().t(), torch.empty(5, 6, dtype=A.dtype)
    epilogue = lambda acc: (acc, 2.0 * acc)  # noqa: E731
    for given, words in (
        ((out, out), "out is a tuple when torch sees"),
        (out, "one tensor, and the epilogue returns 2"),
    ):
        on_meta = tuple(x.to("meta") for x in given) if isinstance(given, tuple) else given.to("meta")
        with pytest.raises(UnsupportedError, match=words):
            cutegemm.gemm(a.to("meta"), b.to("meta"), epilogue=epilogue, out=on_meta)
    with pytest.raises(UnsupportedError, match="out is a tuple when torch sees the call: in a graph, with gradients"):
        cutegemm.gemm(A, b, epilogue=epilogue, out=(out, None))


def test_alpha_0_and_wrong_numbers(on_cpu):
    a, b, c = (normal(*shape, grad=True) for shape in ((5, 8), (8, 6), (5, 6)))
    lost = torch.full_like(a, torch.nan).requires_grad_()
    close([cutegemm.gemm(lost, b, c=c, alpha=0, beta=2.0)], [2 * c])
    close([cutegemm.gemm(lost, b, alpha=0)], [torch.zeros_like(c)])
    compiled = torch.compile(
        lambda a, out: cutegemm.gemm(a, b.detach(), alpha=0, out=out), fullgraph=True, backend="eager"
    )
    close([compiled(lost.detach(), torch.ones(5, 6, dtype=a.dtype))], [torch.zeros_like(c)])
    with pytest.raises(UnsupportedError, match="alpha = 2j is not a real number"):
        cutegemm.gemm(a, b, alpha=2j)


def test_gemm_with_gradients_is_refused_in_words_as_without():
    with pytest.raises(UnsupportedError, match=r"(?s)a has 8 columns, b has 6 rows, .*a and b are on cpu"):
        cutegemm.gemm(A, W)


def test_what_a_graph_cannot_hold(on_cpu):
    from cutegemm.build import simt_plan

    with pytest.raises(UnsupportedError, match="plan is a GemmPlan, which no graph can hold"):
        torch.vmap(lambda x: cutegemm.gemm(x, W.detach().t(), plan=simt_plan()))(normal(2, 5, 8))
    with pytest.raises(
        PlanError,
        match=r"cannot be used in an epilogue",
    ):
        OPS.gemm(A, [W.t()], "lambda acc: acc.detach()", [], [], None, *HOW)
    with pytest.raises(PlanError, match="1 operands are passed, but the epilogue takes none"):
        OPS.gemm(A, [W.t()], "lambda acc: acc * 2", [BIAS], [], None, *HOW)


def test_the_direct_way_meets_no_dispatcher():
    """What is plain goes to the kernel without torch in between."""
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    from cutegemm.torch.dispatch import Route, route_of

    assert route_of(A.detach(), W.detach()) is Route.DIRECT
    assert route_of(A, W.detach()) is Route.RECORDED
    with torch.no_grad():
        assert route_of(A, torch.nn.Parameter(W)) is Route.DIRECT
    with Watch():
        assert route_of(A, W) is Route.OPERATOR
        linear(A.detach(), W.detach())
    assert "cutegemm.mm.default" in seen
