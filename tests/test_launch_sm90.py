"""The Hopper plans that `gemm` chooses for tensors of each majorness, alignment and type, on the CPU."""

from __future__ import annotations

import itertools
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.build import mma_tma_plan, simt_plan, sm90_plan  # noqa: E402
from cutegemm.compile import cuda, spaces  # noqa: E402
from cutegemm.compile.plans import CompiledKernel  # noqa: E402
from cutegemm.errors import PlanError, UnsupportedError  # noqa: E402
from cutegemm.plan import Operands  # noqa: E402
from cutegemm.plan.epilogue import Accumulator, Epilogue, Scalar, Tile  # noqa: E402
from cutegemm.run import gemm as launch  # noqa: E402
from cutegemm.run import torch_ops  # noqa: E402
from cutegemm.run.gemm import gemm  # noqa: E402
from cutegemm.run.launches import new_like  # noqa: E402
from tests.noted import note_launches  # noqa: E402


@pytest.fixture
def taken(monkeypatch):
    """Return the list of the kernels that `gemm` launches, as if the CPU were a Hopper GPU with 114 SMs."""
    return note_launches(monkeypatch, 114)


def plan_for(taken, *args, **options):
    gemm(*args, **options)
    return taken[-1].plan


def packed(plan):
    return "".join(repack.name for repack in plan.repacks)


def either_way(names):
    """Return the sets of operands that a plan may repack: `names`, or their counterparts if it swaps A and B."""
    return {names, names.translate(str.maketrans("ab", "ba"))} if len(names) == 1 else {names}


SIDE = 2048  # rows or columns of a D that is large enough to be stored through epilogue stages


def matrix(rows, cols, kind=torch.bfloat16):
    return torch.zeros(rows, cols, dtype=kind)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
def test_aligned_halves_go_to_wgmma(taken, kind, transposed):
    a = matrix(264, 2000, kind).t() if transposed[0] else matrix(2000, 264, kind)
    b = matrix(3040, 264, kind).t() if transposed[1] else matrix(264, 3040, kind)
    plan = plan_for(taken, a, b)
    assert plan.family == "sm90"
    assert plan.scheduler.grid.ctas == 114
    of = {
        "d": ("mk"[not transposed[0]], "nk"[transposed[1]]),
        "d^t": ("mk"[transposed[1]], "nk"[not transposed[0]]),
    }
    assert (plan.operands.a.major, plan.operands.b.major) in of.values()
    assert not plan.has_c


def test_a_ragged_k_needs_aligned_rows_alone(taken):
    assert plan_for(taken, matrix(64, 104)[:, :99], matrix(64, 104)[:, :99].t()).family == "sm90"
    assert plan_for(taken, matrix(64, 99), matrix(64, 99).t()).family != "sm90"


def test_a_ragged_n_is_stored_by_threads(taken):
    """Threads store single elements in rotated lines if rows of D are not multiples of 16 bytes; else TMA stores D."""
    a, b = matrix(2048, 104), matrix(800, 104)
    plan = plan_for(taken, a, b[:799].t())
    assert (plan.family, plan.store.line_copy.atom.bits, plan.store.rotates_lines) == ("sm90", 16, True)
    plan = plan_for(taken, a, b[:799].t(), out=matrix(2048, 800)[:, :799])
    assert plan.store.rotates_lines
    plan = plan_for(taken, a, b[:792].t(), out=matrix(2048, 800)[:, :792])
    assert plan.store.stored_by_tma


def test_float32_results(taken):
    plan = plan_for(taken, matrix(128, 128), matrix(128, 128), out=torch.zeros(128, 128))
    assert (plan.family, plan.operands.d.dtype.name) == ("sm90", "f32")


def test_c_is_read_where_it_is_given(taken):
    a, b, c = matrix(SIDE, 64), matrix(64, SIDE), matrix(SIDE, SIDE)
    plan = plan_for(taken, a, b, c=c, beta=0.5)
    assert plan.has_c
    assert plan.store.fetched is not None
    plan = plan_for(taken, a, b, c=c.t(), beta=0.5)  # C is column-major, D is row-major
    assert plan.has_c
    assert plan.store.fetched is None


def test_a_row_that_all_of_c_shares_is_read_by_threads(taken):
    """TMA does not load a C with stride 0 between rows, as it does not load such an A or B."""
    a, b, bias = matrix(SIDE, 64), matrix(64, SIDE), torch.zeros(SIDE).bfloat16()
    plan = plan_for(taken, a, b, c=bias.expand(SIDE, -1), beta=1.0)
    assert (plan.family, plan.store.fetched) == ("sm90", None)
    plan = plan_for(taken, a.expand(1, -1, -1), b[None], c=bias.expand(1, SIDE, -1), beta=1.0)
    assert plan.store.fetched is None


def test_a_plan_of_the_caller_that_does_not_read_c(taken):
    a, b, c = matrix(64, 64), matrix(64, 64).t(), matrix(64, 64)
    plan = sm90_plan(Operands.of("bf16", layout="nt"))
    assert plan_for(taken, a, b, plan=plan) is plan
    with pytest.raises(PlanError, match=r"does not read C. Make the plan with with_c=True"):
        gemm(a, b, c=c, beta=1.0, plan=plan)
    assert plan_for(taken, a, b, c=c, beta=1.0, plan="sm90_wide_2x1").has_c


@pytest.mark.parametrize(
    ("kind", "result"), [(torch.float8_e4m3fn, "bf16"), (torch.float8_e5m2, "bf16"), (torch.int8, "s32")]
)
def test_bytes(taken, kind, result):
    a, b = matrix(64, 128, kind), matrix(96, 128, kind).t()
    plan = plan_for(taken, a, b)
    assert (plan.family, plan.operands.d.dtype.name) == ("sm90", result)
    assert not plan.body.promoted
    many = matrix(512, 256, kind), matrix(384, 256, kind).t()  # K has more than one k-tile
    assert plan_for(taken, *many, accumulate="promoted").body.promoted == (kind != torch.int8)
    assert launch.plan_of(*many, accumulate="promoted") is taken[-1].plan
    with pytest.raises(UnsupportedError, match=r"accumulate = 'exact' is unknown. Pass 'fast' or 'promoted'"):
        gemm(a, b, accumulate="exact")
    assert plan.cta_tile[2] == 128
    assert plan_for(taken, a, b, out=torch.zeros(64, 96)).operands.d.dtype.name == "f32"
    with pytest.raises(PlanError, match="k-major"):
        gemm(a, matrix(128, 96, kind), plan="sm90_epi_stages")


def test_float8_of_two_types(taken):
    """An A and B of different float8 types use wgmma, also with few rows. Each has its own type in the plan."""
    for m, n, k, is_turned in (
        (64, 96, 128, True),
        (2048, 2048, 512, True),
        (3, 4096, 4096, True),
        (200, 96, 80, False),
    ):
        a, b = matrix(m, k, torch.float8_e4m3fn), matrix(n, k, torch.float8_e5m2).t()
        a, b = (a, b) if is_turned else (a, b.contiguous())
        plan = plan_for(taken, a, b)
        of = {False: ("e4m3", "e5m2"), True: ("e5m2", "e4m3")}[plan.swap_ab]
        assert (plan.family, plan.operands.a.dtype.name, plan.operands.b.dtype.name) == ("sm90", *of)
        assert plan.operands.d.dtype.name == "bf16"
        assert packed(plan) == ("" if is_turned else "a" if plan.swap_ab else "b")
    mixed = plan_for(taken, b.t().contiguous(), a.t(), accumulate="promoted", out_dtype=torch.float32)
    assert mixed.family == "sm90"
    with pytest.raises(UnsupportedError, match="Pass two tensors of one type, or two of float8"):
        gemm(a, b.to(torch.bfloat16))


@pytest.mark.parametrize("out", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_results_of_bytes(taken, out):
    a, b = matrix(SIDE, 128, torch.float8_e4m3fn), matrix(SIDE, 128, torch.float8_e4m3fn).t()
    plan = plan_for(taken, a, b, out=matrix(SIDE, SIDE, out))
    assert plan.operands.d.dtype is torch_ops.DTYPES[out]
    assert plan.store.box.dtype is torch_ops.DTYPES[out]
    ragged = plan_for(taken, a, matrix(99, 128, torch.float8_e4m3fn).t(), out=matrix(SIDE, 99, out))
    assert (ragged.store.line_copy.atom.bits, ragged.store.rotates_lines) == (8, True)
    with pytest.raises(UnsupportedError, match="out is of float8_e4m3fn"):
        gemm(torch.zeros(64, 64), torch.zeros(64, 64), out=matrix(64, 64, torch.float8_e4m3fn))
    quantized = plan_for(taken, matrix(SIDE, 128), matrix(SIDE, 128).t(), out=matrix(SIDE, SIDE, out))
    assert [getattr(quantized.operands, name).dtype.name for name in "ab"] == ["bf16", "bf16"]
    assert quantized.operands.d.dtype is torch_ops.DTYPES[out]


def test_c_of_another_type_beside_bytes(taken):
    kind = torch.float8_e4m3fn
    a, b, c = matrix(SIDE, 128, kind), matrix(SIDE, 128, kind).t(), matrix(SIDE, SIDE)
    plan = plan_for(taken, a, b, c=c, beta=1.0, out=matrix(SIDE, SIDE, kind))
    assert (plan.operands.c.dtype.name, plan.operands.d.dtype.name, plan.store.fetched) == (
        "bf16",
        "e4m3",
        None,
    )
    assert gemm(a, b, c=c, beta=1.0).dtype == torch.bfloat16
    with pytest.raises(UnsupportedError, match="Pass two tensors of one type"):
        gemm(matrix(64, 64), matrix(64, 64), c=torch.zeros(64, 64), beta=1.0, out=matrix(64, 64))


def test_bytes_of_columns_are_the_rows_of_the_transposed_problem(taken):
    kind = torch.float8_e4m3fn
    a, b, out = matrix(SIDE, 128, kind), matrix(640, 128, kind).t(), matrix(640, SIDE, kind).t()
    plan = plan_for(taken, a, b, out=out)
    assert (plan.operands.d.major, plan.store.to_shared.atom.bits) == ("n", 16)
    seen_a, seen_b, seen_d, _ = taken[-1].calls[0]
    assert [t.data_ptr() for t in (seen_a, seen_b, seen_d)] == [
        t.data_ptr() for t in (a, b, out)
    ]  # gemm passes them unchanged; the kernel's function swaps A and B
    assert plan.swap_ab
    assert (seen_a.stride(), seen_b.stride(), seen_d.stride()) == (a.stride(), b.stride(), out.stride())
    assert (
        plan_for(taken, a, b, out=out, plan="sm90_epi_stages").operands.d.major == "m"
    )  # a named plan is used as it is


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_plan_for_the_transposed_problem(taken, batch):
    a, b, c = (torch.zeros(*batch, *shape).bfloat16() for shape in ((32, 64), (64, 256), (32, 256)))
    plan = plan_for(taken, a, b, c=c, beta=0.5, plan="swap_ab:sm90_64x64")
    assert (plan.name, plan.operands.a.major, plan.operands.b.major) == ("sm90_64x64", "m", "k")
    assert (plan.operands.c.major, plan.operands.d.major) == ("m", "m")
    seen_a, seen_b, seen_c, seen_d, alpha, beta = taken[-1].calls[-1]
    assert (seen_a.shape, seen_b.shape, seen_c.shape) == (a.shape, b.shape, c.shape)
    assert (seen_d.shape, alpha, beta) == (c.shape, 1.0, 0.5)
    whole = launch.plan_of(a, b, plan="swap_ab:sm90_64x64")
    assert (whole.operands.d.major, whole.swap_ab) == ("m", True)
    # Pass the same plan as an object. It is checked against the operands of D^T.
    assert plan_for(taken, a, b, plan=whole) is whole
    with pytest.raises(PlanError, match=r"as D\^T = B\^T A\^T, by .*\n  - A is bf16 k-major"):
        plan_for(taken, a, b.mT.contiguous().mT, plan=whole)
    assert plan_for(taken, a.float(), b.float(), plan="swap_ab:simt_64x64").operands.d.major == "m"


def test_a_batch(taken):
    plan = plan_for(taken, torch.zeros(3, 128, 128).bfloat16(), torch.zeros(3, 128, 128).bfloat16())
    assert plan.family == "sm90"
    assert plan.operands.batched


def test_a_matrix_that_a_batch_shares_is_not_loaded_by_tma(taken):
    """TMA does not load a matrix with stride 0 between batches or rows: a tensor map is not documented to take it."""
    a, b = torch.zeros(3, 128, 128).bfloat16(), torch.zeros(128, 128).bfloat16()
    assert plan_for(taken, a, b.expand(3, -1, -1)).family == "mma_sync"
    assert plan_for(taken, b[:1].expand(128, -1), b).family == "mma_sync"
    assert plan_for(taken, a[:1], b[None].expand(1, -1, -1)).family == "sm90"
    for plan in (
        "mma_tma_128x256",
        mma_tma_plan(Operands.of("bf16", batched=True)),
    ):
        with pytest.raises(PlanError, match=r"B is aligned to 2 bytes"):
            gemm(a, b.expand(3, -1, -1), plan=plan)
    bytes_of_one = matrix(512, 128, torch.float8_e4m3fn).expand(3, -1, -1)
    assert packed(plan_for(taken, bytes_of_one, bytes_of_one.mT)) == "ab"
    with pytest.raises(PlanError, match="A is aligned to 1 bytes; TMA needs an alignment of 16 bytes"):
        gemm(bytes_of_one, bytes_of_one.mT, plan="sm90_epi_stages")


def test_a_lone_row_and_no_elements_have_any_stride(taken):
    """TMA loads a single row of any length, and tensors without elements: their strides have no meaning.

    No other plans multiply one-byte elements of Hopper.
    """
    for kind in (torch.bfloat16, torch.float8_e4m3fn):
        a, b = matrix(2, 112, kind)[:, :99], matrix(96, 112, kind)[:, :99].t()
        for rows in (a[:1], matrix(1, 99, kind), a):
            assert plan_for(taken, rows, b).family == "sm90"
        assert plan_for(taken, matrix(5, 0, kind), matrix(96, 0, kind).t()).family == "sm90"
        assert plan_for(taken, a, matrix(99, 1, kind)).family == "sm90"  # both of its strides are 1


@pytest.fixture
def large():
    """Return a function of rows, columns and type that makes a matrix without touching its memory."""
    return lambda rows, cols, kind=torch.float32: torch.empty(rows, cols, dtype=kind)


@pytest.mark.parametrize(
    ("transposed", "repacks"),
    [((False, True), ""), ((False, False), ""), ((True, True), ""), ((True, False), "b")],
)
def test_large_tf32_is_read_or_packed_where_it_is_not_k_major(taken, large, transposed, repacks):
    n = 4096
    a, b = (large(n, n).t() if turned else large(n, n) for turned in transposed)
    plan = plan_for(taken, a, b, allow_tf32=True)
    assert (plan.family, packed(plan)) == ("sm90", repacks)
    assert plan.operands.a.dtype.name == "tf32"
    assert (plan.tiled_mma.atom.a_source, plan.loaded.a.major, plan.loaded.b.major) in (
        ("shared", "k", "k"), ("register", "m", "k"),
    )  # fmt: skip
    assert plan_for(taken, a, b).family == "simt"
    small = plan_for(taken, a[:64, :64], b[:64, :64], allow_tf32=True)  # a repack pass takes longer than it saves
    assert not small.repacks


def test_large_halves_are_packed_where_their_rows_are_not_aligned(taken, large):
    a, b = large(4097, 4093, torch.bfloat16), large(4093, 4096, torch.bfloat16)
    plan = plan_for(taken, a, b)
    assert plan.family == "sm90"
    (name,) = packed(plan)
    assert sorted(x.align_bytes for x in (plan.operands.a, plan.operands.b)) == [2, 16]
    assert (getattr(plan.operands, name).align_bytes, getattr(plan.loaded, name).align_bytes) == (2, 16)
    plan = plan_for(taken, a, b[:, :4095])  # the stride between rows of b is still aligned
    (name,) = packed(plan)
    assert (getattr(plan.operands, name).align_bytes, plan.store.line_copy.atom.bits) == (2, 16)
    assert packed(plan_for(taken, a, large(4093, 4095, torch.bfloat16))) == "ab"
    assert packed(plan_for(taken, a, b, plan="sm90_epi_stages+repack/k2")) == "a"
    assert packed(plan_for(taken, large(4096, 4096, torch.bfloat16)[:, :4093], b)) == ""


def test_what_is_packed_is_read_by_threads(taken, large):
    """Threads read the operand of a repack pass, so the length of a row limits its alignment, unlike with TMA."""
    kind = torch.float8_e4m3fn
    a, b = large(4096, 4096, kind), large(4096, 4096, kind)
    assert plan_for(taken, a, b[:, :4090]).operands.b.align_bytes == 2
    assert plan_for(taken, a[:, :4093], b[:4093]).operands.a.align_bytes == 16
    plan = plan_for(taken, a, b[:, :4090], plan="sm90:tile=128x128x128,repack=b")
    assert (packed(plan), plan.operands.a.align_bytes, plan.operands.b.align_bytes) == ("b", 16, 2)
    mine = sm90_plan(plan.operands, tile=(128, 128, 128), repack="b", store="direct")
    assert plan_for(taken, a, b[:, :4090], plan=mine) is mine
    plan = plan_for(taken, b[:, :4090].t(), a.t(), plan="swap_ab:sm90:tile=128x128x128,repack=b")
    assert (packed(plan), plan.operands.a.align_bytes, plan.operands.b.align_bytes) == ("b", 16, 2)


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_bytes_of_every_layout(taken, kind):
    for a, b, repacks in (
        (matrix(64, 128, kind), matrix(128, 96, kind), "b"),
        (matrix(128, 64, kind).t(), matrix(96, 128, kind).t(), "a"),
        (matrix(128, 64, kind).t(), matrix(128, 96, kind), "ab"),
        (matrix(64, 99, kind), matrix(96, 99, kind).t(), "ab"),
        (matrix(64, 99, kind), matrix(96, 112, kind)[:, :99].t(), "a"),
    ):
        plan = plan_for(taken, a, b)
        assert plan.family == "sm90"
        assert packed(plan) in either_way(repacks)
    few = plan_for(taken, matrix(16, 99, kind), matrix(99, 4096, kind))
    assert (few.operands.a.major, few.operands.b.major, packed(few)) == ("m", "k", "ab")  # D^T = B^T A^T


def test_mma_sync_fed_by_tma_takes_rows_of_any_length(taken):
    a, b = matrix(64, 104)[:, :99], matrix(99, 64)
    assert plan_for(taken, a, b, plan="mma_tma_128x256").operands.a.align_bytes == 16


def test_k_is_split_where_few_tiles_have_many_k_tiles(taken):
    """The chosen plan splits K, and the kernel is called through a function that provides its workspace."""
    a, b = matrix(512, 16384), matrix(512, 16384).t()
    gemm(a, b)
    assert taken[-1].plan.scheduler.split.is_split
    assert len(taken[-1].calls) == 1


class Memory:
    """A replacement for a tensor that records the allocations that are made through it."""

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
    """Return the state of a fake CUDA stream: its handle, and whether a graph is captured."""
    state = {"cuda_stream": 1, "captured": False}
    spaces.spaces.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["captured"])
    monkeypatch.setattr(cuda, "current_stream", lambda index: state["cuda_stream"])
    yield state
    spaces.spaces.cache_clear()


def test_counters_are_kept_for_each_stream(stream):
    """8 tiles of 128 x 128 with 2 K splits: 64 semaphores, and 16 accumulator tiles of 64 KiB."""
    plan = sm90_plan(Operands.of("bf16", layout="nt"), split_k=2)
    calls = []
    kernel = CompiledKernel(plan, "sm_90a", None, lambda *arguments: calls.append(arguments))
    a, b = Memory(256, 1024), Memory(1024, 512)
    kernel(a, b, "d", 1.0)
    first, space = calls[-1][3:5]
    assert (first.dtype, len(first), first.any().item()) == (torch.int32, 64, False)
    assert (space.dtype, len(space)) == (torch.uint8, 16 * 65536)
    assert calls[-1][5:] == (1.0,)
    kernel(a, b, "d", 1.0)
    assert calls[-1][3] is first
    stream["cuda_stream"] = 2
    kernel(a, b, "d", 1.0)
    assert calls[-1][3] is not first
    stream["cuda_stream"] = 1
    kernel(Memory(128 * 100, 1024), b, "d", 1.0)  # 400 tiles need more semaphores
    larger = calls[-1][3]
    assert len(larger) == 448
    kernel(a, b, "d", 1.0)
    assert calls[-1][3] is larger
    stream["captured"] = True
    kernel(a, b, "d", 1.0)
    assert calls[-1][3] is not larger
    assert not calls[-1][3].any()


def test_a_kernel_takes_the_operands_of_its_epilogue(stream):
    """The workspace is passed after the matrices. The error for another number of arguments names all of them."""
    acc, alpha, gamma = Accumulator(), Scalar("alpha"), Scalar("gamma")
    plan = simt_plan(split_k=2).with_(epilogue=Epilogue(alpha * acc + gamma * Tile("e")))
    calls = []
    kernel = CompiledKernel(plan, "sm_90a", None, lambda *arguments: calls.append(arguments))
    kernel(Memory(256, 64), Memory(64, 512), "e", "d", 1.0, 2.0)
    ((_, _, e, d, space, *scalars),) = calls
    assert (e, d, space.dtype, scalars) == ("e", "d", torch.uint8, [1.0, 2.0])
    with pytest.raises(UnsupportedError, match=r"got 7 arguments. .*\. Pass \(a, b, e, d, alpha, gamma\)"):
        kernel(Memory(256, 64), Memory(64, 512), "c", "e", "d", 1.0, 2.0)


@pytest.mark.parametrize("split_k", [1, 2])
def test_operands_are_packed_into_memory_of_the_stream(stream, split_k):
    """The workspace has 256 and 512 repacked rows of 1024 bytes, and 2 x 4 tiles of 64 KiB for each K split."""
    ops = Operands.of("e4m3", layout="tn", out="f32")
    plan = sm90_plan(ops, tile=(128, 128, 128), repack="ab", split_k=split_k)
    calls = []
    kernel = CompiledKernel(plan, "sm_90a", None, lambda *arguments: calls.append(arguments))
    a, b = Memory(256, 1000), Memory(1000, 512)
    for _ in range(2):
        kernel(a, b, "d", 1.0)
        *counters, space, alpha = calls[-1][3:]
        assert [len(one) for one in counters] == ([64] if split_k > 1 else [])
        assert (space.dtype, len(space)) == (
            torch.uint8,
            (256 + 512) * 1024 + (split_k * 8 * 65536 if split_k > 1 else 0),
        )
        assert alpha == 1.0
    assert calls[0][-2] is calls[1][-2]
    stream["cuda_stream"] = 2
    kernel(a, b, "d", 1.0)
    assert calls[1][-2] is not calls[2][-2]


def test_threads_of_one_stream_have_workspaces_of_their_own(stream):
    """A call may launch a repack pass and then a GEMM. Another thread may launch its kernels between the two."""
    ops = Operands.of("e4m3", layout="tn", out="f32")
    plan, calls = sm90_plan(ops, tile=(128, 128, 128), repack="ab", split_k=2), {}
    kernel = CompiledKernel(plan, "sm_90a", None, lambda *arguments: calls[threading.get_ident()].append(arguments))

    def call():
        calls[threading.get_ident()] = []
        for _ in range(2):
            kernel(Memory(256, 1000), Memory(1000, 512), "d", 1.0)

    call()
    other = threading.Thread(target=call)
    other.start()
    other.join()
    (first, again), (second, _) = calls.values()
    for place in (3, 4):  # semaphores and workspace
        assert first[place] is again[place]
        assert first[place] is not second[place]


@pytest.mark.parametrize("modes", list(itertools.product([torch.inference_mode, torch.enable_grad], repeat=2)))
def test_a_workspace_serves_calls_in_every_mode(stream, modes):
    """A workspace that was allocated under `torch.inference_mode` can be zeroed by later calls outside of it."""
    take = spaces.Spaces().taker(spaces.Sizes(counters=None, zeroed=8, total=16))
    for mode in modes:
        with mode():
            (space,) = take(torch.ones(2))
            assert not space[:8].any()
            space.fill_(1)


def test_memory_of_a_stream_serves_all_its_kernels_and_has_a_limit(stream, monkeypatch):
    """Kernels of one stream share a workspace of 16 tiles of 64 KiB, which grows to 32.

    Calls that need more than the limit of 32 tiles, and calls in a captured graph, get new memory.
    """
    calls = []
    kernels = [
        CompiledKernel(sm90_plan(ops, split_k=2), "sm_90a", None, lambda *arguments: calls.append(arguments))
        for ops in (Operands.of("bf16", layout="nt"), Operands.of("f16", layout="nt"))
    ]
    monkeypatch.setattr(spaces, "MOST_KEPT", 32 * 65536)

    def space(kernel, rows):
        kernel(Memory(rows, 1024), Memory(1024, 512), "d", 1.0)
        return calls[-1][4]

    small = space(kernels[0], 256)
    assert space(kernels[1], 256) is small
    large = space(kernels[1], 512)
    assert (len(small), len(large)) == (16 * 65536, 32 * 65536)
    assert space(kernels[0], 256) is large
    assert space(kernels[0], 1024) is not space(kernels[0], 1024)
    assert space(kernels[0], 256) is large
    stream["captured"] = True
    assert space(kernels[0], 256) is not large


def test_what_is_kept_is_allocated_by_another_thread(stream):
    """Shared workspaces are allocated by another thread.

    In this thread, torch could allocate them in the pool of a graph, or as inference tensors.
    """
    threads = []

    class Watched(Memory):
        def new_empty(self, count, dtype):
            threads.append(threading.get_ident())
            return super().new_empty(count, dtype)

    plan, calls = sm90_plan(Operands.of("bf16", layout="nt"), split_k=2), []
    kernel = CompiledKernel(plan, "sm_90a", None, lambda *arguments: calls.append(arguments))
    with torch.inference_mode():
        kernel(Watched(256, 1024), Watched(1024, 512), "d", 1.0)
    assert len(threads) == 2
    assert threading.get_ident() not in threads
    assert not any(space.is_inference() for space in calls[-1][3:5])
    assert not calls[-1][3].any()
    stream["captured"] = True
    kernel(Watched(256, 1024), Watched(1024, 512), "d", 1.0)
    assert threads[2:] == [threading.get_ident()]


def test_the_model_of_a_result_has_no_memory():
    a = torch.zeros(3, 4)
    with torch.inference_mode():
        new = new_like(a, (2, 3, 4), torch.bfloat16)
    (kept,) = [cell.cell_contents for cell in new.__closure__ if isinstance(cell.cell_contents, torch.Tensor)]
    assert kept.untyped_storage().nbytes() == 0
    first, second = new(), new()
    assert (first.shape, first.dtype, first.is_contiguous()) == ((2, 3, 4), torch.bfloat16, True)
    assert first.data_ptr() != second.data_ptr()
    assert not first.is_inference()


def test_c_of_another_type_in_the_place_of_the_result(taken):
    """A bf16 C shares memory with a float8 out: row i of C is where rows 2i and 2i + 1 of D are."""
    a, b = matrix(64, 128, torch.float8_e4m3fn), matrix(128, 128, torch.float8_e4m3fn).t()
    c = matrix(64, 128)
    out = c.view(torch.float8_e4m3fn).view(-1)[: 64 * 128].view(64, 128)
    assert gemm(a, b, c=c, beta=1.0, out=out.clone()) is not None
    with pytest.raises(UnsupportedError, match="out overlaps c"):
        gemm(a, b, c=c, beta=1.0, out=out)
    assert gemm(a, b, c=c, beta=1.0, out=c) is c
