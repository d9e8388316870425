"""Everything that `gemm` decides before the launch, with tensors on the CPU and kernels that record their arguments."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cutegemm.build import simt_plan  # noqa: E402
from cutegemm.choice.catalog import plan_named  # noqa: E402
from cutegemm.errors import CopyWarning, CutegemmError, PlanError, UnsupportedError  # noqa: E402
from cutegemm.plan import Operands  # noqa: E402
from cutegemm.run import gemm as launch  # noqa: E402
from cutegemm.run import torch_ops  # noqa: E402
from cutegemm.run.gemm import gemm  # noqa: E402
from cutegemm.run.views import Region, View, share_memory  # noqa: E402
from tests.noted import Noted, note_launches  # noqa: E402


@pytest.fixture
def launched(monkeypatch):
    """Return the list of the kernels that `gemm` launches, as if the CPU were a GPU."""
    return note_launches(monkeypatch, 132)


def operands_of_last(kernels):
    ops = kernels[-1].plan.operands
    return [(o.major, o.align_bytes) for o in (ops.a, ops.b, ops.d)]


def test_the_compiled_kernel_checks_its_arguments():
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    from cutegemm.compile.plans import compile_plan

    kernel, on_cpu = compile_plan(plan_named("simt_64x64", Operands.of("f32"))), torch.zeros(8, 8)
    with pytest.raises(ValueError, match="device_type=cuda"):
        kernel(on_cpu, on_cpu, on_cpu, on_cpu, 1.0, 0.0)


A, B = torch.randn(8, 12), torch.randn(12, 16)
VIEWS = [
    # a, b, (major, alignment) of a, b, d
    (A, B, [("k", 16), ("n", 16), ("n", 16)]),
    (A.t().contiguous().t(), B, [("m", 16), ("n", 16), ("n", 16)]),
    (A, B.t().contiguous().t(), [("k", 16), ("k", 16), ("n", 16)]),
    (A[:, :11], B[:11], [("k", 4), ("n", 16), ("n", 16)]),  # K is 11
    (torch.randn(8, 13)[:, 1:], B, [("k", 4), ("n", 16), ("n", 16)]),  # neither the address nor the strides are aligned
    (A[:, :8], B[:8], [("k", 16), ("n", 16), ("n", 16)]),
    (torch.randn(3, 8, 12), torch.randn(12, 16).expand(3, -1, -1), [("k", 16), ("n", 16), ("n", 16)]),
    (A.double(), B.double(), [("k", 16), ("n", 16), ("n", 16)]),
    (A[:7].half(), B.half(), [("k", 8), ("n", 16), ("n", 16)]),  # K is 12, elements have 2 bytes
]


@pytest.mark.parametrize(("a", "b", "wanted"), VIEWS)
def test_majorness_and_alignment(launched, a, b, wanted):
    result = gemm(a, b)
    assert result.shape == (*a.shape[:-1], b.shape[-1])
    assert operands_of_last(launched) == wanted
    (kernel,) = launched
    assert len(kernel.calls) == 1
    seen = kernel.passed()
    assert (seen["a"] is a, seen["b"] is b, seen["d"] is result) == (True,) * 3
    assert seen.get("c", result) is result
    assert (seen["alpha"], seen.get("beta", 0.0)) == (1.0, 0.0)


def test_strides_of_extents_of_one_are_made_good(launched, monkeypatch):
    """A (1, 8) tensor with strides (1, 1) becomes one row of 8 elements. The other tensors keep their strides.

    The device of a is current during the launch.
    """
    current = []
    monkeypatch.setattr(torch.cuda, "device", lambda index: current.append(index) or contextlib.nullcontext())
    a, b = torch.randn(8, 1).t(), torch.randn(8, 4)
    result = gemm(a, b)
    seen = launched[-1].passed()
    assert (seen["a"].shape, seen["a"].stride(), seen["a"].data_ptr()) == ((1, 8), (8, 1), a.data_ptr())
    assert (seen["b"] is b, seen["c"] is result, seen["d"] is result) == (True,) * 3
    assert (current, seen["alpha"], seen["beta"]) == ([a.get_device()], 1.0, 0.0)
    assert operands_of_last(launched)[0] == ("k", 16)


def test_a_signature_is_prepared_once(launched):
    for _ in range(3):
        gemm(A, B)
    assert len(launched) == 1
    assert len(launched[0].calls) == 3
    gemm(A, B, plan="simt_64x64")
    gemm(A[:4], B)
    assert [k.plan.name for k in launched[1:2]] == ["simt_64x64"]
    assert len(launched) == 3


def test_first_calls_from_several_threads(launched):
    """Each of four threads calls two new signatures at the same time, and each call is launched."""
    gate, shapes = threading.Barrier(4), [(9, 12), (10, 12)]

    def call(_):
        gate.wait()
        return [gemm(torch.randn(shape), B).shape for shape in shapes]

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(call, range(4)))
    assert found == [[(9, 16), (10, 16)]] * 4
    assert sum(len(kernel.calls) for kernel in launched) == 8


def test_a_fork_calls_what_the_parent_prepared(launched):
    """A process that `fork` made launches with the caches of its parent, and prepares new signatures."""
    gemm(A, B)
    child = os.fork()
    if child == 0:
        try:
            gemm(A, B)
            gemm(A[:5], B)
            os._exit(sum(len(kernel.calls) for kernel in launched))
        finally:
            os._exit(255)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_out_of_other_majorness_and_alignment(launched):
    gemm(A, B, out=torch.zeros(16, 8).t())
    assert operands_of_last(launched)[2] == ("m", 16)
    gemm(A, B, out=torch.zeros(8, 17)[:, :16])
    assert operands_of_last(launched)[2] == ("n", 4)


def test_a_plan_of_the_caller(launched):
    wanted = simt_plan(Operands.of("f32"), block=(64, 64, 8), warp=(32, 32), thread=(8, 4))
    gemm(A, B, plan=wanted)
    assert launched[-1].plan is wanted
    with pytest.raises(PlanError, match="A is f32 m-major"):
        gemm(A.t().contiguous().t(), B, plan=wanted)
    with pytest.raises(PlanError, match="A is aligned to 4 bytes"):
        gemm(A[:, :11], B[:11], plan=wanted)
    with pytest.raises(PlanError, match="batch mode"):
        gemm(A[None], B[None], plan=wanted)


def test_factors_of_alpha_0_are_not_read(launched):
    """If alpha is 0, the kernel gets an A without columns and a B without rows."""
    c, out = torch.ones(8, 16), torch.empty(8, 16)
    assert gemm(A, B, c=c, alpha=0, beta=2.0, out=out) is out
    a, b, *_, alpha, beta = launched[-1].calls[-1]
    assert (a.shape, b.shape, alpha, beta) == ((8, 0), (0, 16), 1.0, 2.0)
    gemm(A[None], B[None], alpha=0.0)
    assert launched[-1].calls[-1][0].shape == (1, 8, 0)
    with pytest.raises(UnsupportedError, match="a has 12 columns, b has 11 rows"):
        gemm(A, B[:11], alpha=0)


def test_nothing_is_launched_for_an_empty_result(launched):
    assert gemm(torch.randn(0, 12), B).shape == (0, 16)
    assert gemm(torch.randn(0, 8, 12), torch.randn(0, 12, 4)).shape == (0, 8, 4)
    assert gemm(torch.randn(0, 8, 12)[..., ::2], torch.randn(0, 6, 4)).shape == (
        0,
        8,
        4,
    )  # an empty tensor is not copied
    assert launched == []


def test_a_copy_is_said(launched):
    wide = torch.randn(8, 24)
    with pytest.warns(CopyWarning, match=r"gemm of \(8, 12\) by \(12, 16\): a contiguous copy of a is made") as record:
        gemm(wide[:, ::2], B)
    assert record[0].filename == __file__
    assert launched[-1].calls[0][0].is_contiguous()
    out = torch.zeros(8, 32)[:, ::2]
    with pytest.warns(CopyWarning, match="copy of out is made"):
        assert gemm(A, B, out=out) is out


REFUSED = [
    (lambda: gemm(A, B.double()), "a is of float32, b of float64. Pass two tensors of one type"),
    (
        lambda: gemm(A.int(), B.int()),
        "a and b are of int32. Supported are float16, bfloat16, float32, float64, float8_e4m3fn, float8_e5m2, int8",
    ),
    (lambda: gemm(A, A), r"gemm of \(8, 12\) by \(8, 12\): a has 12 columns, b has 8 rows, .* Pass b.mT"),
    (lambda: gemm(A, B[:5]), "a has 12 columns, b has 5 rows, but both are K.$"),
    (
        lambda: gemm(A.expand(2, -1, -1), B.expand(3, -1, -1)),
        "a is a batch of 2 matrices, b of 3. Pass batches of one length",
    ),
    (lambda: gemm(A[0], B), "two matrices, or two batches"),
    (lambda: gemm(A[None], B), "Expand a matrix"),
    (lambda: gemm(A, B, out=torch.zeros(8, 17)), r"out has shape \(8, 17\). Pass a tensor of shape \(8, 16\)"),
    (
        lambda: gemm(A, B, c=torch.zeros(8, 16).double()),
        "c is of float64. For a of float32, pass float32 or float16 or bfloat16",
    ),
    (lambda: gemm(A.half(), B.half(), c=torch.zeros(8, 16), out=torch.zeros(8, 16).half()), "of one type"),
    (lambda: gemm(A, B, beta=1.0), "beta = 1.0, but no c is given"),
    (lambda: gemm(A, B, plan="nope"), "no plan is called 'nope'. `cutegemm plans` lists them"),
    (lambda: gemm([1.0], B), "a is a list. Pass a torch tensor, or an array with DLPack"),
    (lambda: gemm([1.0], 2), "(?s)a is a list. Pass .* b is a int. Pass a torch tensor"),
    (lambda: gemm(A.to_sparse(), B), "Pass a dense tensor on a CUDA device: a.to_dense"),
    (lambda: gemm(A.clone().requires_grad_(), B), "a and b are on cpu"),  # tests/torch tests calls with gradients
    (
        lambda: gemm(A, B, out=torch.zeros(16).expand(8, 16)),
        "may share memory. Pass a tensor whose elements do not overlap",
    ),
    (
        lambda: gemm(A, B, out=torch.zeros(8, 16, requires_grad=True)),
        "out requires gradients, but a call with out= does not record them",
    ),
    (
        lambda: gemm(A.clone().requires_grad_(), B, out=torch.zeros(8, 16)),
        "a requires gradients, but a call with out= does not record them",
    ),
    (lambda: gemm(A, B, plan=3), "plan is a int. Pass a GemmPlan or the name of a plan"),
    (lambda: gemm(None, B), "a is a NoneType. Pass a torch tensor"),
    (lambda: gemm(A, None), "b is a NoneType. Pass a torch tensor"),
    (lambda: gemm(torch.tensor(1.0), B), r"a has shape \(\); b|two matrices, or two batches"),
    (lambda: gemm(torch.zeros(1, 1).expand(2**31, 1), A[:1]), "M is 2147483648. The largest extent is 2147482624"),
    (lambda: gemm(Wrapped(A), B), "a is a Wrapped without memory of its own. Pass the tensor inside of it"),
    (lambda: gemm(A, B, out=Wrapped(torch.zeros(8, 16))), "out is a Wrapped without memory"),
    (lambda: gemm(torch._neg_view(A), B), "a is a view whose elements are negated. Pass a.resolve_neg()"),
    (lambda: gemm(A, B, c=torch._neg_view(A @ B), beta=1.0), "c is a view whose elements are negated"),
]


class Wrapped(torch.Tensor):
    """A tensor subclass around another tensor, without memory of its own, such as DTensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise NotImplementedError(f"{function}")


@pytest.mark.parametrize(("call", "words"), REFUSED)
def test_what_is_refused(launched, call, words):
    with pytest.raises(UnsupportedError, match=words):
        call()
    assert all(kernel.calls == [] for kernel in launched)


def test_tensors_on_the_cpu_are_refused():
    """Tensors on the CPU, also of other frameworks, raise an error that names the simulator and the emulator."""
    served = r"a and b are on cpu. Pass tensors on a CUDA device: a.cuda\(\), b.cuda\(\). Without a GPU, .*simulate"
    for call in (lambda: gemm(A, B), lambda: gemm(A.numpy(), B.numpy()), lambda: gemm(A, B.numpy())):
        with pytest.raises(UnsupportedError, match=served):
            call()


def test_every_broken_rule_is_said_at_once():
    a, b = A.clone().requires_grad_(), torch.zeros(7, 5, dtype=torch.int32)
    with pytest.raises(UnsupportedError) as refused:
        gemm(a, b, out=torch.zeros(3), beta=1.0, plan=3, accumulate="exact")
    subject, *rules = str(refused.value).split("\n  - ")
    assert subject == "gemm of (8, 12) by (7, 5): 9 rules are broken."
    said = (
        "accumulate = 'exact'", "plan is a int", "a is of float32, b of int32", "b is of int32", "a has 12 columns",
        "out has shape (3,). Pass", "beta = 1.0, but no c", "a requires gradients, ", "a, b and out are on cpu",
    )  # fmt: skip
    assert [rule[: len(words)] for rule, words in zip(rules, said, strict=True)] == list(said)


def test_torch_is_asked_for_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cutegemm.run.torch_ops", None)
    monkeypatch.delattr("cutegemm.run.torch_ops")
    with pytest.raises(UnsupportedError, match=r"pip install -e '\.\[torch\]'.* Without a GPU, .*simulate"):
        gemm(A.numpy(), B.numpy())


def test_gradients_are_no_matter_where_none_are_recorded(launched):
    with torch.no_grad():
        gemm(A.clone().requires_grad_(), B)
    assert len(launched) == 1


def test_overlaps(launched):
    pool = torch.zeros(4096)
    a, b, c = pool[:96].view(8, 12), pool[96:288].view(12, 16), pool[400:528].view(8, 16)
    for first, name in ((0, "a"), (90, "a"), (95, "a"), (96, "b"), (287, "b")):
        with pytest.raises(UnsupportedError, match=f"out overlaps {name}"):
            gemm(a, b, out=pool[first : first + 128].view(8, 16))
    gemm(a, b, out=pool[288:416].view(8, 16))
    gemm(a, b, c=c, beta=1.0, out=c)
    assert launched[-1].calls[-1][2] is c
    for out in (pool[404:532].view(8, 16), c.view(16, 8).t(), pool[300:428].view(8, 16)):
        with pytest.raises(UnsupportedError, match="out overlaps c"):
            gemm(a, b, c=c, beta=1.0, out=out)


def test_parts_of_one_matrix_that_lie_side_by_side(launched):
    """A matrix of 40 columns has a in 0 to 11, b in 12 to 27 and out in 24 to 39: their address ranges overlap.

    Only b and out have elements in common.
    """
    whole = torch.zeros(12, 40)
    a, b, out = whole[:8, :12], whole[:, 12:28], whole[:8, 24:40]
    with pytest.raises(UnsupportedError, match="out overlaps b"):
        gemm(a, b, out=out)
    b = torch.zeros(12, 16)
    assert gemm(a, b, out=out) is out
    assert gemm(whole[:8, 28:], b, out=whole[:8, :16]) is not None
    with pytest.raises(UnsupportedError, match="out overlaps a"):
        gemm(a, b, out=whole[:8, 11:27])
    with pytest.raises(UnsupportedError, match="out overlaps a"):
        gemm(
            whole[:8, 26:38], b, out=whole[1:9, 30:].as_strided((8, 16), (40, 1))
        )  # out reaches into the next rows of a
    batch = torch.zeros(3, 12, 40)
    gemm(batch[:, :8, :12], torch.zeros(3, 12, 16), out=batch[:, :8, 24:])


@st.composite
def placed(draw):
    """Return a small random tensor: (shape, strides, bytes of an element, address). Strides may be 0 and overlap."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = draw(st.lists(st.integers(0, 12), min_size=len(shape), max_size=len(shape)))
    return tuple(shape), tuple(strides), draw(st.sampled_from([1, 2, 4])), draw(st.integers(0, 60))


def bytes_of(shape, strides, size, address):
    """Return the addresses of all bytes of a tensor."""
    found = {0}
    for extent, stride in zip(shape, strides, strict=True):
        found = {at + i * stride for at in found for i in range(extent)}
    return {address + at * size + byte for at in found for byte in range(size)}


@settings(max_examples=600, deadline=None)
@given(placed(), placed())
def test_shared_memory_by_brute_force(first, second):
    """`share_memory` is True exactly for tensors that have a byte in common."""
    regions = Region(*first[:3]), Region(*second[:3])
    said = share_memory(regions[0], first[3], regions[1], second[3])
    assert said == bool(bytes_of(*first) & bytes_of(*second))
    assert said == share_memory(regions[1], second[3], regions[0], first[3])
    assert regions[0].span == 1 + max(bytes_of(*first)) - first[3]


def test_heads_that_lie_in_turn(launched):
    """In a tensor (S, H, 2D), the first half of each head is a factor, and the second half is a result."""
    whole = torch.zeros(32, 4, 2 * 16)
    q, out = whole[..., :16].transpose(0, 1), whole[..., 16:].transpose(0, 1)
    b = torch.zeros(4, 16, 16)
    assert gemm(q, b, out=out) is out
    assert gemm(q, b, epilogue=lambda acc, r: acc + r, r=q, out=out) is out
    for wrong in (whole[..., 15:31].transpose(0, 1), whole.view(32, 8, 16)[:, 3:7].transpose(0, 1)):
        with pytest.raises(UnsupportedError, match="out overlaps a"):
            gemm(q, b, out=wrong)


def test_many_steps_end_soon():
    """For strides that no order of the modes nests, `share_memory` stops after a while and returns True."""
    steps = [2 * 3 * 5 * 7 * 11 * n for n in (13, 17, 19, 23)]
    lattice, odd = Region([1000] * 4, steps, 1), Region([1000] * 4, [step + 1 for step in steps], 1)
    assert not share_memory(lattice, 0, lattice, 1)
    start = time.perf_counter()
    share_memory(lattice, 0, odd, 12345)
    assert time.perf_counter() - start < 1


def test_a_result_that_is_given_counts_as_changed(launched):
    """Autograd notices that a tensor that it saved for the backward pass was changed by `out`."""
    x, out = torch.randn(8, 16, requires_grad=True), torch.randn(8, 16)
    kept = (x * out).sum()
    gemm(A, B, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.backward()
    with torch.inference_mode():
        gemm(A, B, out=torch.zeros(8, 16))


def test_a_plain_tensor_of_the_same_signature_vouches_for_no_other(launched):
    gemm(A, B)
    freed = A.clone()
    freed.untyped_storage().resize_(0)
    for odd in (Wrapped(A), torch._neg_view(A), torch._efficientzerotensor((8, 12)), freed):
        with pytest.raises(UnsupportedError):
            gemm(odd, B)
    assert gemm(torch.nn.Parameter(A, requires_grad=False), B).__class__ is torch.Tensor
    assert all(type(call[0]) is not Wrapped for kernel in launched for call in kernel.calls)


def test_in_a_compiled_function_the_same_is_refused():
    """Calls in functions that torch.compile traces raise the same errors. tests/torch has the other tests of them."""
    with pytest.raises(Exception, match="a and b are on cpu"):
        torch.compile(lambda a, b: gemm(a * 2, b), backend="eager", fullgraph=True)(A, B)


def test_negative_strides_of_another_framework():
    """An array with negative strides raises an error before torch converts it, which would abort the process."""
    numpy = pytest.importorskip("numpy")
    with pytest.raises(UnsupportedError, match=r"a has a negative stride: \(-48, 4\) bytes"):
        gemm(numpy.zeros((8, 12), numpy.float32)[::-1], B)


def test_a_result_is_of_the_framework_of_a():
    class Array:
        """An array whose `__array_namespace__` is not its module, as in JAX."""

        def __array_namespace__(self):
            return types.SimpleNamespace(from_dlpack=lambda tensor: ("array", tensor))

    assert torch_ops.like(Array(), A) == ("array", A)
    assert torch_ops.like(A, A) is A
    assert torch_ops.like(object(), A) is A


def test_what_the_kernel_says_is_wrapped(launched, monkeypatch):
    def refuse(self, *arguments):
        raise ValueError("Mismatched Tensor on argument #0")

    monkeypatch.setattr(Noted, "function", refuse)
    with pytest.raises(CutegemmError, match=r"gemm of \(8, 12\) by \(12, 16\) .*Mismatched Tensor"):
        gemm(A, B)


def test_signatures_do_not_pile_up(launched, monkeypatch):
    monkeypatch.setattr(launch._calls, "most", 3)
    for m in range(1, 9):
        gemm(torch.randn(m, 12), B)
    assert 1 <= len(launch._calls.found) <= 3


@pytest.mark.parametrize(
    ("shape", "strides", "major", "align", "seen"),
    [
        ((8, 12), (12, 1), 1, 16, None),
        ((8, 12), (1, 8), 0, 16, None),
        ((8, 12), (14, 1), 1, 8, None),  # rows are 56 bytes apart
        ((8, 12), (24, 2), None, 4, None),
        ((1, 12), (5, 1), 1, 16, (12, 1)),
        ((12, 1), (1, 3), 0, 16, (1, 12)),
        ((12, 1), (7, 3), 1, 4, (7, 1)),
        ((12, 1), (1, 1), 0, 16, (1, 12)),
        ((1, 1), (9, 9), 1, 4, (4, 1)),
        ((1, 11), (11, 1), 1, 4, (12, 1)),  # as if the next row started at a multiple of 16 bytes
        ((8, 0), (1, 1), 1, 16, (4, 1)),
        ((8, 12), (0, 1), 1, 16, None),  # all rows are the same row
        ((0, 12), (12, 1), 1, 16, None),
    ],
)
def test_views(shape, strides, major, align, seen):
    view = View(shape, strides, 4, 256, False)
    assert (view.major, view.align, view.strides) == (major, align, seen)


def test_spans():
    assert Region((8, 12), (14, 1), 4).span == (7 * 14 + 11 + 1) * 4
    assert Region((0, 12), (14, 1), 4).span == 0
    assert Region((3, 8, 12), (200, 1, 8), 8).span == (2 * 200 + 7 + 11 * 8 + 1) * 8


def test_a_fresh_result_is_what_torch_allocates():
    for shape in ((8, 12), (1, 12), (8, 1), (3, 8, 12), (1, 1, 7)):
        ours = View.fresh(shape, 4, len(shape) == 3)
        real = View.of("out", torch.empty(shape), len(shape) == 3)
        assert (ours.major, ours.strides, ours.region.span) == (real.major, real.strides, real.region.span)
