"""The arguments that `gemm` passes to kernels with epilogues, checked against their signatures on the CPU."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cutegemm import gemm  # noqa: E402
from cutegemm.build import sm90_plan  # noqa: E402
from cutegemm.epilogue import row_sum, swiglu  # noqa: E402
from cutegemm.errors import PlanError, UnsupportedError  # noqa: E402
from cutegemm.plan import Operands  # noqa: E402
from cutegemm.plan.epilogue import parse_epilogue  # noqa: E402
from cutegemm.run.gemm import plan_of  # noqa: E402
from tests.noted import note_launches  # noqa: E402
from tests.random_epilogues import Place, random_call  # noqa: E402

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@pytest.fixture
def launched(monkeypatch):
    return note_launches(monkeypatch, 132)


def launch(call):
    """Run a random call on CPU tensors and return its results, which no kernel has written."""

    def made(place):
        if not isinstance(place, Place):
            return place
        return place.memory("cpu").as_strided(place.shape, place.strides, place.offset)

    operands = {name: made(of) for name, of in call.operands.items()}
    outs = None if call.outs is None else tuple(map(made, call.outs))
    found = call.run(made(call.a), made(call.b), operands, outs)
    for result, out in zip(found, outs or (), strict=False):
        assert out is None or result is out
    return found


# Choosing a plan takes 0.1 seconds, so that shrinking a failing example would take minutes. It is switched off.
@settings(
    max_examples=50,
    deadline=None,
    phases=(Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_a_kernel_takes_what_it_is_passed(launched, data):
    """Types, ranks, strides, alignment and extents of all arguments match the signature of the kernel.

    `Noted` asserts that.
    """
    call = random_call(lambda options: data.draw(st.sampled_from(options)))
    launched.clear()
    try:
        launch(call)
    except (PlanError, UnsupportedError):
        assert call.options["plan"] is not None
        return
    (kernel,) = launched
    assert len(kernel.calls) == 1


def normal(*shape, dtype=BF16):
    return torch.randn(shape).to(dtype)


A, B = normal(64, 128), normal(128, 96)


@pytest.mark.parametrize(
    ("r", "d"),
    [
        (normal(64, 96, dtype=F32), BF16),
        (normal(64, 96), F32),
        (normal(96, 64).t(), BF16),
        (normal(96, dtype=F32).expand(64, 96), BF16),
        (normal(64, 104, dtype=torch.float64)[:, 3:99], torch.float8_e4m3fn),
    ],
    ids=["type of the operand", "type of D", "majorness", "one row for all", "alignment"],
)
@pytest.mark.parametrize(
    "plan", [None, "simt_64x64", "sm90_epi_stages", "swap_ab:sm90_epi_stages", "sm90_epi_stages/k3"]
)
def test_a_tile_that_is_not_like_d(launched, plan, r, d):
    """A tile operand of another type or majorness than D is passed as it is, without a C."""
    gemm(A, B, epilogue=lambda acc, r: acc + r, r=r, out_dtype=d, plan=plan)
    passed = launched[-1].passed()
    assert [*passed] == ["a", "b", "r", "d"]
    assert (passed["r"] is r, passed["d"].dtype) == (True, d)


def test_c_among_several_tiles(launched):
    r, c, x = normal(64, 96, dtype=F32), normal(96, 64).t(), normal(64, 96, dtype=torch.float16)
    gemm(A, B, c=c, epilogue=lambda acc, r, c, x: (acc * r + c, acc - x), r=r, x=x)
    passed = launched[-1].passed()
    assert [*passed] == ["a", "b", "r", "c", "x", "d", "aux"]
    assert (passed["r"] is r, passed["c"] is c, passed["x"] is x) == (True,) * 3


@pytest.mark.parametrize("shape", [(64, 96), (1, 64, 96)])
def test_a_tile_that_a_batch_shares(launched, shape):
    """All matrices of the batch read the same tile operand, whose batch stride is 0."""
    a, b, r = normal(3, 64, 128), normal(3, 128, 96), normal(*shape)
    gemm(a, b, epilogue=lambda acc, r: acc + r, r=r)
    seen = launched[-1].passed()["r"]
    assert (seen.shape, seen.stride(), seen.data_ptr()) == ((3, 64, 96), (0, 96, 1), r.data_ptr())


def test_strides_of_extents_of_one(launched):
    """In modes of extent 1, such as a batch of one with an odd stride, tensors get the strides of aligned memory."""
    a, b = normal(1, 64, 128), normal(1, 128, 96)
    r = normal(64, 96).as_strided((1, 64, 96), (3, 96, 1))
    gemm(a, b, epilogue=lambda acc, r: acc + r, r=r)
    assert launched[-1].passed()["r"].stride() == (64 * 96, 96, 1)
    outs = torch.zeros(64 * 7).as_strided((64, 1), (7, 3)), torch.zeros(64, 1)
    gemm(A, B[:, :1], epilogue=lambda acc: (acc, acc), out=outs)
    passed = launched[-1].passed()
    assert [passed[name].stride()[0] for name in ("d", "aux")] == [7, 1]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: two(torch.empty(64, 95)), r"out\[1\] has shape \(64, 95\). Pass a tensor of shape \(64, 96\)"),
        (lambda: two(torch.empty(64, 192)[:, ::2]), r"out\[1\] has strides \(192, 2\). Pass a tensor with stride 1 in"),
        (lambda: two(torch.empty(96).expand(64, 96)), "several of its elements may share memory"),
        (lambda: two(torch.empty(64, 96, dtype=torch.int32)), r"out\[1\] is of int32. Pass a tensor of a floating"),
        (lambda: two(torch.empty(64, 96, dtype=torch.int64)), r"out\[1\] is of int64. Pass a tensor of a floating"),
        (lambda: two(3), r"out\[1\] is a int. Pass a torch tensor"),
        (lambda: two(torch._neg_view(torch.empty(64, 96))), r"out\[1\] is a view whose elements are negated"),
        (lambda: rows(torch.empty(63)), r"out\[1\], for row_sum\(acc\), has shape \(63,\). Pass a tensor of shape"),
        (lambda: rows(torch.empty(128)[::2]), r"out\[1\], for row_sum\(acc\), has strides \(2,\). Pass a contiguous"),
        (lambda: rows(torch.empty(64, dtype=BF16)), r"out\[1\], for .*, is of bfloat16. Pass a tensor of float32"),
        (lambda: gemm(A, B, epilogue=lambda acc: acc, out=(None, None)), "has 2 tensors, but the epilogue returns 1"),
        (lambda: gemm(A, B, epilogue=lambda acc, r: acc + r, r=normal(64, 192)[:, ::2]), r"Pass r.contiguous\(\)"),
        (
            lambda: gemm(A.to(E4M3), B.to(E4M3), epilogue=lambda acc: swiglu(acc), out=normal(48, 64, dtype=E4M3).t()),
            "out is column-major, but a gated epilogue stores float8 to row-major tensors only",
        ),
        (lambda: gemm(A.short(), B.short(), epilogue=lambda acc: acc), "a and b are of int16. Supported are float16"),
    ],
)  # fmt: skip
def test_what_is_refused(launched, call, words):
    with pytest.raises(UnsupportedError, match=words):
        call()
    assert launched == []


def two(out):
    return gemm(A, B, epilogue=lambda acc: (acc, acc * 2), out=(None, out))


def rows(out):
    return gemm(A, B, epilogue=lambda acc: (acc, row_sum(acc)), out=(None, out))


def test_one_column_of_gated_bytes(launched):
    """A D of one column is both row-major and column-major. It is stored as row-major."""
    d = gemm(A.to(E4M3), B[:, :2].to(E4M3), epilogue=lambda acc: swiglu(acc), out_dtype=E4M3)
    assert (tuple(d.shape), launched[-1].plan.operands.d.major) == ((64, 1), "n")


def test_a_plan_that_ends_otherwise(launched):
    """Without an epilogue D is alpha * acc + beta * c, so that a plan with a function in its epilogue is refused."""
    plan = sm90_plan(Operands.of("bf16", layout="nn"))
    ended = plan.with_(epilogue=parse_epilogue("relu(acc)", {}))
    with pytest.raises(PlanError, match=r"the plan computes relu\(acc\), but without an epilogue D is alpha \* acc"):
        gemm(A, B, plan=ended)
    gemm(A, B, plan=ended, epilogue=lambda acc, s: acc * s, s=2.0)
    assert str(launched[-1].plan.epilogue) == "acc * s"


RESULTS = [
    # out_dtype, and the types of D, an auxiliary output and a row sum
    (None, (BF16, BF16, F32)),
    (F32, (F32, F32, F32)),
    ((BF16, F32, None), (BF16, F32, F32)),
    ([F32, E4M3, F32], (F32, E4M3, F32)),
    ((None, torch.float64, None), (BF16, torch.float64, F32)),
    ((E4M3, None, None), (E4M3, E4M3, F32)),
]


@pytest.mark.parametrize(("asked", "dtypes"), RESULTS, ids=[str(asked) for asked, _ in RESULTS])
def test_types_of_results(launched, asked, dtypes):
    """out_dtype is one type for D and all auxiliary outputs, or a type for each result. Row sums are float32."""

    def epilogue(acc):
        return acc, acc * 2, row_sum(acc)

    for _ in range(2):
        found = gemm(A, B, epilogue=epilogue, out_dtype=asked)
        assert tuple(result.dtype for result in found) == dtypes
    assert [len(kernel.calls) for kernel in launched] == [2]
    given = (None, torch.empty(64, 96, dtype=torch.float16), None)
    d, aux, rows = gemm(A, B, epilogue=epilogue, out=given, out_dtype=asked and F32)
    assert (d.dtype, aux is given[1], rows.dtype) == (F32 if asked else BF16, True, F32)


def test_the_type_of_one_result(launched):
    """out_dtype may be a sequence of one type, with an epilogue and without."""
    for kind in ((F32,), [F32]):
        assert gemm(A, B, out_dtype=kind).dtype == F32
        assert gemm(A, B, epilogue=lambda acc: acc + 1, out_dtype=kind).dtype == F32
        assert plan_of(A, B, out_dtype=kind).operands.d.dtype.name == "f32"


TYPES_REFUSED = [
    (
        (BF16, F32),
        r"out_dtype has 2 types, but the number of results is 3. Pass a type or None for each result",
    ),
    ((), "out_dtype has 0 types, but the number of results is 3"),
    (
        (torch.int32, F32, None),
        r"out_dtype\[0\] = torch.int32 is not supported\. For a of bfloat16, pass torch.bfloat16 or .*\.$",
    ),
    (
        (BF16, torch.int8, None),
        r"out_dtype\[1\] = torch.int8 is not supported\. .*, pass torch.float16 or torch.bfloat16 or .*\.$",
    ),
    ((BF16, "float32", None), r"out_dtype\[1\] = 'float32' is not supported"),
    ((BF16, F32, BF16), r"out_dtype\[2\] = torch.bfloat16 is not supported\. For row_sum\(acc\), pass torch.float32"),
    (
        ("x", 3, BF16),
        "(?s)3 rules are broken.*out_dtype.0. = 'x' is.*out_dtype.1. = 3 is .*out_dtype.2. = torch.bfloat16",
    ),
    ("float32", "out_dtype = 'float32' is not supported"),
]


@pytest.mark.parametrize(("asked", "words"), TYPES_REFUSED, ids=[str(asked) for asked, _ in TYPES_REFUSED])
def test_types_that_are_refused(launched, asked, words):
    with pytest.raises(UnsupportedError, match=words):
        gemm(A, B, epilogue=lambda acc: (acc, acc * 2, row_sum(acc)), out_dtype=asked)
    assert launched == []


def test_types_beside_given_tensors(launched):
    out = torch.empty(64, 96, dtype=torch.float16)
    for outs, asked, words in (
        ((out, None), F32, r"out\[0\] is of float16, but out_dtype = torch.float32. Leave out one of the two"),
        ((None, out), (None, F32), r"out\[1\] is of float16, but out_dtype\[1\] = torch.float32"),
    ):
        with pytest.raises(UnsupportedError, match=words):
            gemm(A, B, epilogue=lambda acc: (acc, acc * 2), out=outs, out_dtype=asked)
    with pytest.raises(UnsupportedError, match="out_dtype has 2 types, but the number of results is 1"):
        gemm(A, B, out_dtype=(BF16, F32))
    with pytest.raises(UnsupportedError, match="out_dtype has 2 types, but the number of results is 1"):
        gemm(A, B, out_dtype=[BF16, F32])


@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (1, 0), (2.0, 0.0), (1.0, 0.5)])
def test_operands_named_alpha_and_beta(launched, alpha, beta):
    """Operands named alpha and beta are passed like others, also with the values 1 and 0."""
    gemm(A, B, alpha=alpha, beta=beta, epilogue=lambda acc, alpha, beta: alpha * acc + beta)
    passed = launched[-1].passed()
    assert (passed["alpha"], passed["beta"]) == (alpha, beta)
    by_column = normal(96, dtype=F32)
    gemm(A, B, alpha=by_column, epilogue=lambda acc, alpha: alpha * acc)
    assert launched[-1].passed()["alpha"] is by_column


def test_an_epilogue_with_a_default_of_its_own(launched):
    """An operand that is not passed has the default of the epilogue's function, not that of gemm."""

    def scaled(acc, alpha=0.5):
        return alpha * acc

    gemm(A, B, epilogue=scaled)
    assert str(launched[-1].plan.epilogue) == "0.5 * acc"
    gemm(A, B, alpha=1.0, epilogue=scaled)
    assert launched[-1].passed()["alpha"] == 1.0
    with pytest.raises(PlanError, match="it has the parameter 'alpha', which is not passed"):
        gemm(A, B, epilogue=lambda acc, alpha: alpha * acc)
    with pytest.raises(PlanError, match="'alpha' is passed, but it has no parameter of this name"):
        gemm(A, B, alpha=1.0, epilogue=lambda acc: acc)


def test_overlaps(launched):
    """A result may be stored to a tile operand with the same elements. It may not overlap anything else."""
    pool = torch.zeros(100_000)
    a, b = A.float(), B.float()
    r, out = pool[:6144].view(64, 96), pool[6144:12288].view(64, 96)
    bias, column, one = pool[6144:6240], pool[20000:20064].view(64, 1), pool[30000]

    def of(**operands):
        return gemm(a, b, epilogue=lambda acc, r, x: (acc + r, acc * x), **operands)

    assert of(r=r, x=column, out=(out, r))[1] is r
    assert of(r=r, x=column, out=(r, None))[0] is r
    shifted = pool[6100:12244].view(64, 96)
    for operands, words in (
        ({"r": r, "x": column, "out": (out, shifted)}, r"out\[1\] overlaps r in memory"),
        ({"r": out, "x": column, "out": (out, out)}, r"out\[0\] and out\[1\] overlap in memory"),
        ({"r": r, "x": bias, "out": (out, None)}, r"out\[0\] overlaps x in memory"),
        (
            {"r": r, "x": column, "out": (None, pool[20063:26207].view(64, 96))},
            r"out\[1\] overlaps x in memory",
        ),
        ({"r": r, "x": one, "out": (pool[29999:36143].view(64, 96), None)}, r"out\[0\] overlaps x in memory"),
        (
            {"r": r.t().contiguous().t(), "x": r, "out": (r.view(96, 64).t(), None)},
            r"out\[0\] overlaps x in memory",
        ),
    ):
        with pytest.raises(UnsupportedError, match=words):
            of(**operands)
    rows = pool[5000:5064]
    with pytest.raises(UnsupportedError, match=r"out\[1\] overlaps r in memory"):
        gemm(a, b, epilogue=lambda acc, r: (acc + r, row_sum(acc)), r=r, out=(None, rows))
    batch = pool[:18432].view(3, 64, 96)
    wide = a.expand(3, -1, -1), b.expand(3, -1, -1)
    assert gemm(*wide, epilogue=lambda acc, r: acc + r, r=batch, out=batch) is batch
    with pytest.raises(UnsupportedError, match="out overlaps r in memory"):
        gemm(*wide, epilogue=lambda acc, r: acc + r, r=batch[:1], out=batch)


def test_results_in_turn(launched):
    """Two results are stored to the halves of every second row of a tensor, and a tile is read from its other rows."""
    whole, a = torch.zeros(128, 192, dtype=BF16), normal(64, 128)
    gate, up, r = whole[::2, :96], whole[::2, 96:], whole[1::2, :96]
    found = gemm(a, B, epilogue=lambda acc, r: (acc + r, acc), r=r, out=(gate, up))
    assert (found[0] is gate, found[1] is up) == (True, True)
    with pytest.raises(UnsupportedError, match=r"out\[0\] and out\[1\] overlap"):
        gemm(a, B, epilogue=lambda acc, r: (acc + r, acc), r=r, out=(gate, whole[::2, 95:191]))


def test_a_result_that_is_to_have_gradients(launched):
    """A result tensor that requires gradients raises an error, also after a call of the same signature without them."""
    for is_wanted in (False, True, False):
        outs = (None, torch.empty(64, 96, requires_grad=is_wanted))
        if is_wanted:
            with pytest.raises(
                UnsupportedError, match=r"out\[1\] requires gradients, but a call with out= does not record them"
            ):
                gemm(A, B, epilogue=lambda acc: (acc, acc), out=outs)
        else:
            gemm(A, B, epilogue=lambda acc: (acc, acc), out=outs)


def test_arrays_of_another_framework(launched):
    """Arrays are passed as tensors over the same memory, and the results are arrays of the framework of a."""
    numpy = pytest.importorskip("numpy")
    a, b, r = A.float().numpy(), B.float().numpy(), normal(64, 96, dtype=F32).numpy()
    out = numpy.empty((64, 96), numpy.float32)
    d, aux = gemm(a, b, epilogue=lambda acc, r, s: (acc + r * s, acc), r=r, s=2.0, out=(None, out))
    passed = launched[-1].passed()
    assert [passed[name].data_ptr() for name in ("a", "b", "r", "aux")] == [x.ctypes.data for x in (a, b, r, out)]
    assert (type(d), aux is out, d.ctypes.data) == (numpy.ndarray, True, passed["d"].data_ptr())
    only = gemm(A.float(), B.float(), epilogue=lambda acc, r: acc + r, r=r)
    assert isinstance(only, torch.Tensor)
    with pytest.raises(UnsupportedError, match=r"(?s)b is a list. .*r is a str"):
        gemm(a, [1.0], epilogue=lambda acc, r: acc + r, r="x")
