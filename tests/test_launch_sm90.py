"""Which Hopper plan gemm takes, for tensors of every majorness, alignment and type; on the CPU."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm import launch, torch_ops  # noqa: E402
from cutegemm.compile import CompiledKernel  # noqa: E402
from cutegemm.errors import PlanError, UnsupportedError  # noqa: E402
from cutegemm.launch import gemm  # noqa: E402
from cutegemm.plan import Operands, mma_tma_plan, sm90_plan  # noqa: E402
from tests.noted import note_launches  # noqa: E402


@pytest.fixture
def taken(monkeypatch):
    """The kernels that gemm takes, as if the CPU were an H200."""
    return note_launches(monkeypatch, 114)


def plan_for(taken, *args, **options):
    gemm(*args, **options)
    return taken[-1].plan


def matrix(rows, cols, kind=torch.bfloat16):
    return torch.zeros(rows, cols, dtype=kind)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_aligned_halves_go_to_wgmma(taken, kind, transposed):
    a = matrix(264, 200, kind).t() if transposed[0] else matrix(200, 264, kind)
    b = matrix(304, 264, kind).t() if transposed[1] else matrix(264, 304, kind)
    plan = plan_for(taken, a, b)
    assert plan.family == "sm90"
    assert plan.pipeline.ctas == 114
    assert (plan.operands.a.major, plan.operands.b.major) == ("mk"[not transposed[0]], "nk"[transposed[1]])
    assert not plan.has_c


def test_a_ragged_k_needs_aligned_rows_alone(taken):
    assert plan_for(taken, matrix(64, 104)[:, :99], matrix(64, 104)[:, :99].t()).family == "sm90"
    assert plan_for(taken, matrix(64, 99), matrix(64, 99).t()).family != "sm90"


def test_a_ragged_n_is_stored_out_of_registers(taken):
    a, b = matrix(640, 104), matrix(800, 104)
    plan = plan_for(taken, a, b[:799].t())
    assert (plan.family, plan.epilogue, plan.store_d.bits) == ("sm90", None, 16)
    plan = plan_for(taken, a, b[:799].t(), out=matrix(640, 800)[:, :799])
    assert plan.epilogue is None
    plan = plan_for(taken, a, b[:792].t(), out=matrix(640, 800)[:, :792])
    assert plan.epilogue is not None


def test_float32_results(taken):
    plan = plan_for(taken, matrix(64, 64), matrix(64, 64), out=torch.zeros(64, 64))
    assert (plan.family, plan.operands.d.dtype.name) == ("sm90", "f32")


def test_c_is_read_where_it_is_given(taken):
    a, b, c = matrix(64, 64), matrix(64, 64), matrix(64, 64)
    plan = plan_for(taken, a, b, c=c, beta=0.5)
    assert plan.has_c
    assert plan.epilogue.load_c is not None
    plan = plan_for(taken, a, b, c=c.t(), beta=0.5)  # of another majorness than D
    assert plan.has_c
    assert plan.epilogue.load_c is None


def test_a_row_that_all_of_c_shares_is_read_by_threads(taken):
    """As for A and B: no descriptor of TMA has a stride of 0."""
    a, b, bias = matrix(64, 64), matrix(64, 64), torch.zeros(64).bfloat16()
    plan = plan_for(taken, a, b, c=bias.expand(64, -1), beta=1.0)
    assert (plan.family, plan.epilogue.load_c) == ("sm90", None)
    plan = plan_for(taken, a.expand(1, -1, -1), b[None], c=bias.expand(1, 64, -1), beta=1.0)
    assert plan.epilogue.load_c is None


def test_a_plan_of_the_caller_that_does_not_read_c(taken):
    a, b, c = matrix(64, 64), matrix(64, 64).t(), matrix(64, 64)
    plan = sm90_plan(Operands.of("bf16", layout="nt"))
    assert plan_for(taken, a, b, plan=plan) is plan
    with pytest.raises(PlanError, match=r"does not read C. Make it with_c=True"):
        gemm(a, b, c=c, beta=1.0, plan=plan)
    assert plan_for(taken, a, b, c=c, beta=1.0, plan="sm90_wide_2x1").has_c


@pytest.mark.parametrize(
    ("kind", "result"), [(torch.float8_e4m3fn, "bf16"), (torch.float8_e5m2, "bf16"), (torch.int8, "s32")]
)
def test_bytes(taken, kind, result):
    a, b = matrix(64, 128, kind), matrix(96, 128, kind).t()
    plan = plan_for(taken, a, b)
    assert (plan.family, plan.operands.d.dtype.name) == ("sm90", result)
    assert not plan.pipeline.two_level
    assert plan_for(taken, a, b, accumulate="two_level").pipeline.two_level == (kind != torch.int8)
    assert launch.plan_of(a, b, accumulate="two_level") is taken[-1].plan
    with pytest.raises(UnsupportedError, match=r"accumulate = 'exact'; 'fast' or 'two_level' is expected"):
        gemm(a, b, accumulate="exact")
    assert plan.cta_tile[2] == 128
    assert plan_for(taken, a, b, out=torch.zeros(64, 96)).operands.d.dtype.name == "f32"
    with pytest.raises((PlanError, UnsupportedError), match="k-major"):
        gemm(a, matrix(128, 96, kind))


@pytest.mark.parametrize("out", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_results_of_bytes(taken, out):
    a, b = matrix(64, 128, torch.float8_e4m3fn), matrix(96, 128, torch.float8_e4m3fn).t()
    plan = plan_for(taken, a, b, out=matrix(64, 96, out))
    assert plan.operands.d.dtype is torch_ops.DTYPES[out]
    assert plan.epilogue.store.dtype is torch_ops.DTYPES[out]
    ragged = plan_for(taken, a, matrix(99, 128, torch.float8_e4m3fn).t(), out=matrix(64, 99, out))
    assert (ragged.epilogue, ragged.store_d.bits) == (None, 8)
    with pytest.raises(UnsupportedError, match="out is of float8_e4m3fn"):
        gemm(matrix(64, 64), matrix(64, 64), out=matrix(64, 64, torch.float8_e4m3fn))


def test_c_of_another_type_beside_bytes(taken):
    kind = torch.float8_e4m3fn
    a, b, c = matrix(64, 128, kind), matrix(96, 128, kind).t(), matrix(64, 96)
    plan = plan_for(taken, a, b, c=c, beta=1.0, out=matrix(64, 96, kind))
    assert (plan.operands.c.dtype.name, plan.operands.d.dtype.name, plan.epilogue.load_c) == (
        "bf16",
        "e4m3",
        None,
    )
    assert gemm(a, b, c=c, beta=1.0).dtype == torch.bfloat16
    with pytest.raises(UnsupportedError, match="they must be of one type"):
        gemm(matrix(64, 64), matrix(64, 64), c=torch.zeros(64, 64), beta=1.0, out=matrix(64, 64))


def test_bytes_of_columns_are_the_rows_of_the_transposed_problem(taken):
    kind = torch.float8_e4m3fn
    a, b, out = matrix(64, 128, kind), matrix(96, 128, kind).t(), matrix(96, 64, kind).t()
    plan = plan_for(taken, a, b, out=out)
    assert (plan.operands.d.major, plan.epilogue.to_shared.atom.bits) == ("n", 16)
    ((seen_a, seen_b, seen_c, seen_d, *_),) = taken[-1].calls
    assert [t.data_ptr() for t in (seen_a, seen_b, seen_c, seen_d)] == [
        t.data_ptr() for t in (b, a, out, out)
    ]
    assert (seen_a.shape, seen_b.shape, seen_d.shape) == ((96, 128), (128, 64), (96, 64))
    assert (seen_a.stride(), seen_b.stride(), seen_d.stride()) == ((128, 1), (1, 128), (64, 1))
    assert plan_for(taken, a, b, out=out, plan="sm90_slots").operands.d.major == "m"  # as it is named


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_plan_for_the_transposed_problem(taken, batch):
    a, b, c = (torch.zeros(*batch, *shape).bfloat16() for shape in ((32, 64), (64, 256), (32, 256)))
    plan = plan_for(taken, a, b, c=c, beta=0.5, plan="transposed:sm90_64x64")
    assert (plan.name, plan.operands.a.major, plan.operands.b.major) == ("sm90_64x64", "m", "k")
    assert (plan.operands.c.major, plan.operands.d.major) == ("m", "m")
    seen_a, seen_b, seen_c, seen_d, alpha, beta = taken[-1].calls[-1]
    assert (seen_a.shape, seen_b.shape, seen_c.shape) == (
        (*batch, 256, 64),
        (*batch, 64, 32),
        (*batch, 256, 32),
    )
    assert (seen_d.shape, alpha, beta) == ((*batch, 256, 32), 1.0, 0.5)
    assert launch.plan_of(a, b, plan="transposed:sm90_64x64").operands.d.major == "m"
    assert plan_for(taken, a.float(), b.float(), plan="transposed:simt_64x64").operands.d.major == "m"


def test_a_batch(taken):
    plan = plan_for(taken, torch.zeros(3, 64, 64).bfloat16(), torch.zeros(3, 64, 64).bfloat16())
    assert plan.family == "sm90"
    assert plan.operands.batched


def test_a_matrix_that_a_batch_shares_is_not_loaded_by_tma(taken):
    """Nor are equal rows: a stride of 0 is none that the descriptor of a tensor is documented to take."""
    a, b = torch.zeros(3, 64, 64).bfloat16(), torch.zeros(64, 64).bfloat16()
    assert plan_for(taken, a, b.expand(3, -1, -1)).family == "mma_sync"
    assert plan_for(taken, b[:1].expand(64, -1), b).family == "mma_sync"
    assert plan_for(taken, a[:1], b[None].expand(1, -1, -1)).family == "sm90"
    for plan in (
        "mma_tma_128x256",
        mma_tma_plan(Operands.of("bf16", batched=True)),
    ):
        with pytest.raises(PlanError, match=r"B is aligned to 2 bytes"):
            gemm(a, b.expand(3, -1, -1), plan=plan)
    bytes_of_one = matrix(64, 128, torch.float8_e4m3fn).expand(3, -1, -1)
    with pytest.raises(
        PlanError, match=r"A is aligned to 1 bytes; TMA needs 16"
    ):  # not: that no FMA takes them
        gemm(bytes_of_one, bytes_of_one.mT)


def test_a_lone_row_and_no_elements_have_any_stride(taken):
    """So TMA loads them, whatever their length: nothing else multiplies bytes."""
    for kind in (torch.bfloat16, torch.float8_e4m3fn):
        a, b = matrix(2, 112, kind)[:, :99], matrix(96, 112, kind)[:, :99].t()
        for rows in (a[:1], matrix(1, 99, kind), a):
            assert plan_for(taken, rows, b).family == "sm90"
        assert plan_for(taken, matrix(5, 0, kind), matrix(96, 0, kind).t()).family == "sm90"
        assert plan_for(taken, a, matrix(99, 1, kind)).family == "sm90"  # its strides are 1 both


def test_mma_sync_fed_by_tma_takes_rows_of_any_length(taken):
    a, b = matrix(64, 104)[:, :99], matrix(99, 64)
    assert plan_for(taken, a, b, plan="mma_tma_128x256").operands.a.align_bytes == 16


def test_k_is_split_where_few_tiles_have_many_k_tiles(taken):
    """The kernel is then called through what gives it a workspace."""
    a, b = matrix(64, 16384), matrix(128, 16384).t()
    gemm(a, b)
    assert taken[-1].plan.split.is_split
    assert len(taken[-1].calls) == 1


class Memory:
    """Stands for a tensor: what it is asked for is noted."""

    ndim, dtype, device = 2, torch.bfloat16, torch.device("cpu")

    def __init__(self, *shape):
        self.shape, self.asked = shape, []

    def get_device(self):
        return 0

    def new_empty(self, count, dtype):
        self.asked.append((count, dtype))
        return torch.full((count,), 255, dtype=dtype)

    def new_zeros(self, count, dtype):
        self.asked.append((count, dtype))
        return torch.zeros(count, dtype=dtype)


@pytest.fixture
def stream(monkeypatch):
    """The current stream, and whether it is captured."""
    state = {"cuda_stream": 1, "captured": False}
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["captured"])
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=state["cuda_stream"])
    )
    return state


def test_counters_are_kept_for_each_stream(stream):
    """8 tiles of 128 x 128, 2 parts each: 256 bytes of counters, 16 slots of 64 KiB."""
    plan = sm90_plan(Operands.of("bf16", layout="nt"), split_k=2)
    calls = []
    kernel = CompiledKernel(plan, "sm_90a", None, lambda *arguments: calls.append(arguments))
    a, b = Memory(256, 1024), Memory(1024, 512)
    kernel(a, b, None, "d", 1.0, 0.0)
    first, space = calls[-1][4:6]
    assert (first.dtype, len(first), first.any().item()) == (torch.int32, 64, False)
    assert (space.dtype, len(space)) == (torch.uint8, 16 * 65536)
    assert calls[-1][6:] == (1.0, 0.0)
    kernel(a, b, None, "d", 1.0, 0.0)
    assert calls[-1][4] is first
    stream["cuda_stream"] = 2
    kernel(a, b, None, "d", 1.0, 0.0)
    assert calls[-1][4] is not first
    stream["cuda_stream"] = 1
    kernel(Memory(128 * 100, 1024), b, None, "d", 1.0, 0.0)  # 400 tiles need more
    larger = calls[-1][4]
    assert len(larger) == 448
    kernel(a, b, None, "d", 1.0, 0.0)
    assert calls[-1][4] is larger
    stream["captured"] = True
    kernel(a, b, None, "d", 1.0, 0.0)
    assert calls[-1][4] is not larger
    assert not calls[-1][4].any()


def test_c_of_another_type_in_the_place_of_the_result(taken):
    """Row i of C, of 2 bytes an element, lies where rows 2i and 2i + 1 of D will."""
    a, b = matrix(64, 128, torch.float8_e4m3fn), matrix(128, 128, torch.float8_e4m3fn).t()
    c = matrix(64, 128)
    out = c.view(torch.float8_e4m3fn).view(-1)[: 64 * 128].view(64, 128)
    assert gemm(a, b, c=c, beta=1.0, out=out.clone()) is not None
    with pytest.raises(UnsupportedError, match="out overlaps c"):
        gemm(a, b, c=c, beta=1.0, out=out)
    assert gemm(a, b, c=c, beta=1.0, out=c) is c
