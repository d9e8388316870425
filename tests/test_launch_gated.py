"""`gemm` with gated epilogues, with kernels that only record their arguments."""

from __future__ import annotations

import contextlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm import gemm  # noqa: E402
from cutegemm.epilogue import halves, relu, silu, swiglu  # noqa: E402
from cutegemm.errors import CutegemmError  # noqa: E402
from cutegemm.run.gemm import plan_of  # noqa: E402
from cutegemm.torch.activations import dgated, gated  # noqa: E402
from cutegemm.torch.launch import by_gemm  # noqa: E402
from tests.noted import note_launches  # noqa: E402

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@pytest.fixture
def launched(monkeypatch):
    return note_launches(monkeypatch, 132)


def matrices(dtype=BF16, layout="nt", m=256, n=1024, k=1024):
    a = torch.zeros(k, m, dtype=dtype).mT if layout[0] == "t" else torch.zeros(m, k, dtype=dtype)
    return a, torch.zeros(n, k, dtype=dtype).mT if layout[1] == "t" else torch.zeros(k, n, dtype=dtype)


def pairs(acc):
    return swiglu(acc, interleaved=True)


@pytest.mark.parametrize("epilogue", [swiglu, pairs], ids=["halves", "pairs"])
@pytest.mark.parametrize("dtype", [BF16, F32, E4M3], ids=["bf16", "f32", "e4m3"])
@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_a_plan_is_found(launched, layout, dtype, epilogue):
    a, b = matrices(dtype, layout, 2048, 4096)
    d = gemm(a, b, epilogue=lambda acc: epilogue(acc))
    plan = launched[-1].plan
    assert plan_of(a, b, epilogue=lambda acc: epilogue(acc)) == plan
    assert tuple(d.shape) == (2048, 2048)
    assert plan.operands.gated == ("halves" if epilogue is swiglu else "pairs")
    assert plan.family == ("simt" if dtype is F32 else "sm90")
    if dtype is BF16:
        assert plan.store.epi_tile[1] >= 32


@pytest.mark.parametrize(("n", "family"), [(1002, "sm90"), (34, "sm90")])
def test_ragged_columns(launched, n, family):
    a, b = matrices(n=n)
    assert tuple(gemm(a, b, epilogue=lambda acc: swiglu(acc)).shape) == (256, n // 2)
    assert launched[-1].plan.family == family


def test_operands_and_results(launched):
    """A row inside of halves() has N elements; a row and a tile outside have N / 2 columns. gate is a second result."""

    def epilogue(acc, bias, row, tile):
        gate, up = halves(acc + bias)
        return silu(gate) * up + row + tile, gate

    a, b = matrices()
    given = {"bias": torch.zeros(1024), "row": torch.zeros(512), "tile": torch.zeros(256, 512, dtype=BF16)}
    d, gate = gemm(a, b, epilogue=epilogue, **given)
    assert tuple(d.shape) == tuple(gate.shape) == (256, 512)
    operands = launched[-1].plan.operands
    assert (operands.matrix("bias").gated, operands.matrix("row").gated) == ("halves", "")
    out = torch.zeros(256, 512, dtype=BF16)
    assert gemm(a, b, epilogue=lambda acc: swiglu(acc), out=out) is out


def seen_by(kernel, shape):
    """Return the tensors of a shape from the last call of a kernel."""
    return [x for x in kernel.calls[-1] if isinstance(x, torch.Tensor) and tuple(x.shape) == shape]


@pytest.mark.parametrize("interleaved", [False, True])
def test_all_columns_beside_half_of_them_are_stored_by_one_kernel(launched, interleaved):
    """One kernel stores D, and the gate and up columns that the backward pass needs, to the halves of one tensor."""
    text = gated("swiglu", ("bias",), interleaved, True)
    postact, preact = by_gemm(*matrices(), text, [torch.zeros(1024)])
    assert (tuple(postact.shape), tuple(preact.shape)) == ((256, 512), (256, 1024))
    (kernel,) = launched
    gates, ups = seen_by(kernel, (256, 512))[-2:]
    if interleaved:
        assert preact.is_contiguous()
    else:
        assert (gates.data_ptr(), ups.data_ptr()) == (preact.data_ptr(), preact[:, 512:].data_ptr())
        assert gates.stride() == ups.stride() == (1024, 1)


def test_results_of_two_types_into_tensors_of_the_caller(launched):
    out, types = torch.empty(256, 1024), (torch.float16, BF16)
    postact, preact = by_gemm(*matrices(), gated("swiglu", (), False, True), (), (), types, outs=(None, out))
    assert (postact.dtype, preact is out) == (torch.float16, True)
    (kernel,) = launched
    d, gates, ups = seen_by(kernel, (256, 512))[-3:]
    assert (d.data_ptr(), d.dtype) == (postact.data_ptr(), torch.float16)
    assert (gates.data_ptr(), ups.data_ptr()) == (out.data_ptr(), out[:, 512:].data_ptr())


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_tile_in_halves_is_read_as_two_tiles(launched, interleaved):
    """A residual with all columns of A @ B, which is added before the gate, is read as two tiles."""
    c = torch.zeros(256, 1024, dtype=BF16)
    by_gemm(*matrices(), gated("swiglu", ("bias", "c"), interleaved, False), [torch.zeros(1024), c])
    (kernel,) = launched
    assert str(kernel.plan.epilogue) == ("silu(acc.gate + bias.gate + c_gate) * (acc.up + bias.up + c_up)")
    tiles = [x for x in seen_by(kernel, (256, 512)) if x.data_ptr() in (c.data_ptr(), c[:, 512:].data_ptr())]
    if interleaved:
        assert tiles == []  # interleaved columns are copied, so that they have stride 1
    else:
        assert [x.stride() for x in tiles] == [(1024, 1)] * 2


def test_gradients_of_gates_and_ups_are_stored_side_by_side(launched):
    a, b = matrices()
    dx, preact = torch.empty(256, 2048, dtype=BF16), torch.zeros(256, 2048, dtype=BF16)
    halves_of_dx = dx.split(1024, -1)
    *_, postact = by_gemm(a, b, dgated("swiglu"), preact.split(1024, -1), outs=(*halves_of_dx, None))
    assert tuple(postact.shape) == (256, 1024)
    (kernel,) = launched
    assert {dx.data_ptr(), dx[:, 1024:].data_ptr(), postact.data_ptr()} <= {
        x.data_ptr() for x in kernel.calls[-1] if isinstance(x, torch.Tensor)
    }


@pytest.mark.parametrize(
    ("epilogue", "given", "n", "rule"),
    [
        (lambda acc, x: swiglu(acc + x), {"x": (512,)}, 1024, "x has shape (512,), but D has half of the 1024 columns"),
        (lambda acc, x: swiglu(acc) + x, {"x": (1024,)}, 1024, "512 columns"),
        (lambda acc, x: acc + x, {"x": (512,)}, 1024, "x has shape (512,), but b has 1024 columns"),
        (lambda acc: (swiglu(acc), acc), {}, 1024, "aux = acc has all N columns of A @ B; D has N / 2. Return gate"),
        (lambda acc: swiglu(acc), {}, 1023, "b has 1023 columns, but a gated epilogue reads halves of them"),
        (lambda acc: swiglu(acc), {"out": (256, 1024)}, 1024, "out has shape (256, 1024). Pass a tensor of shape"),
    ],
)  # fmt: skip
def test_what_is_refused(launched, epilogue, given, n, rule):
    a, b = matrices(n=n)
    kinds = {"out": BF16}
    with pytest.raises(CutegemmError) as refused:
        gemm(a, b, epilogue=epilogue, **{k: torch.zeros(s, dtype=kinds.get(k, F32)) for k, s in given.items()})
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        ("swap_ab:sm90_epi_stages", "with swap A/B these are rows"),
        ("mma_tma:block=256x160x64,warp=64x80", "80 columns hold 40 gate and as many up columns"),
    ],
)
def test_named_plans_that_cannot(launched, plan, rule):
    a, b = matrices()
    with pytest.raises(CutegemmError) as refused:
        gemm(a, b, plan=plan, epilogue=lambda acc: swiglu(acc))
    assert rule in str(refused.value)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("ending", [None, lambda acc: relu(acc)], ids=["product", "relu"])
def test_a_layer_passes_the_tensors_that_it_has(launched, ending, has_bias):
    """A layer passes x, the transpose of w, its bias if it has one, and D; also D as C if the plan can read C."""
    from cutegemm.run.gemm import layer

    if has_bias and ending is not None:
        ending = lambda acc, bias: relu(acc + bias)  # noqa: E731
    elif has_bias:
        ending = lambda acc, bias: acc + bias  # noqa: E731
    x, w = torch.zeros(64, 128, dtype=BF16), torch.zeros(256, 128, dtype=BF16)
    bias = torch.zeros(256, dtype=BF16) if has_bias else None
    d = layer(x, w, bias, ending)(x, w, bias)
    passed = launched[-1].passed()
    assert {*passed} - {"c", "alpha", "beta"} == {"a", "b", "d", *(["bias"] if has_bias else [])}
    wanted = {"a": x, "b": w, "bias": bias, "c": d, "d": d}
    for name, seen in passed.items():
        assert name in ("alpha", "beta") or seen.data_ptr() == wanted[name].data_ptr()


@pytest.mark.parametrize("ending", [None, lambda acc: relu(acc)], ids=["product", "relu"])
def test_a_weight_of_one_row_is_seen_as_its_kernel_reads_it(launched, ending, monkeypatch):
    """A (1, 128) weight with strides (1, 1) becomes a K-major B whose columns are 128 elements apart."""
    from cutegemm.run.gemm import layer

    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    x, w = torch.zeros(64, 128, dtype=BF16), torch.zeros(128, 1, dtype=BF16).t()
    layer(x, w, None, ending)(x, w, None)
    seen = launched[-1].calls[-1][1]
    assert (seen.shape, seen.stride(), seen.data_ptr()) == ((128, 1), (1, 128), w.data_ptr())
