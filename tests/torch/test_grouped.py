"""`grouped_mm` on the CPU: forms, ends of groups, gradients, epilogues, graphs, errors, and simulated kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import cutegemm  # noqa: E402
from cutegemm.epilogue import gelu, halves, pairs, row_sum, silu, swiglu, tanh  # noqa: E402
from cutegemm.errors import CopyWarning, UnsupportedError  # noqa: E402
from cutegemm.run.calls import How  # noqa: E402
from cutegemm.simulator import simulate  # noqa: E402
from cutegemm.torch import grouped_mm, scaled_grouped_mm  # noqa: E402
from cutegemm.torch.grouped import launch  # noqa: E402
from cutegemm.torch.grouped.reference import grouped_by_torch  # noqa: E402
from tests.grouped import bounds  # noqa: E402
from tests.torch.cases import close, gradients, normal  # noqa: E402
from tests.torch.grouped_kernels import run_by  # noqa: E402

EXTENT, GROUPS = 24, 4  # extent of the mode that groups divide
ENDS_OF_GROUPS = {
    "equal": [6, 12, 18, 24],
    "empty groups": [0, 7, 7, 24],
    "one giant": [1, 24, 24, 24],
    "rows after the last end": [3, 5, 16, 17],
    "beyond the extent": [5, 20, 31, 1000],
    "decreasing": [9, 20, 11, 2],
    "below zero": [-3, -1, 4, 24],
    "nothing": [0, 0, 0, 0],
}
SHAPES = {  # form: shapes of a and b
    "m": ((EXTENT, 10), (GROUPS, 10, 12)),
    "n": ((GROUPS, 12, 10), (10, EXTENT)),
    "k": ((10, EXTENT), (EXTENT, 12)),
}


def offsets(ends):
    return torch.tensor(ends, dtype=torch.int32)


def by_loop(form, a, b, ends, function=lambda acc, group, rows: acc):
    """Return the result of each group by torch, and 0 for rows without a group.

    function   epilogue: of the group's product, its index, and the slice of its rows
    """
    parts = [slice(*bound) for bound in bounds(ends, EXTENT)]
    if form == "k":
        return torch.stack([function(a[:, part] @ b[part], g, part) for g, part in enumerate(parts)])
    rows = torch.zeros(EXTENT, function(a[:1] @ b[0], 0, slice(0, 1)).shape[1] if form == "m" else 12, dtype=a.dtype)
    for g, part in enumerate(parts):
        if part.start < part.stop:
            product = a[part] @ b[g] if form == "m" else a[g] @ b[:, part]
            value = function(product, g, part)
            rows = rows.index_put((torch.arange(part.start, part.stop),), value if form == "m" else value.mT)
    rows = rows + 0 * (a.sum() + b.sum())  # a gradient, also if all groups are empty
    return rows if form == "m" else rows.mT


def inside(form, result, ends):
    """Return a result with 0 in the rows without a group, which are not written."""
    if form == "k":
        return result
    is_inside = torch.zeros(EXTENT, dtype=torch.bool)
    for begin, end in bounds(ends, EXTENT):
        is_inside[begin:end] = True
    return torch.where(is_inside[:, None] if form == "m" else is_inside, result, 0)


@pytest.mark.parametrize("ends", ENDS_OF_GROUPS.values(), ids=ENDS_OF_GROUPS)
@pytest.mark.parametrize("form", SHAPES)
def test_forms_and_ends_of_groups(form, ends):
    a, b = [normal(*shape, grad=True) for shape in SHAPES[form]]
    ours = inside(form, grouped_mm(a, b, offs=offsets(ends)), ends)
    theirs = by_loop(form, a, b, ends)
    close([ours, *gradients(ours, (a, b))], [theirs, *gradients(theirs, (a, b))])


@pytest.mark.parametrize("ends", ENDS_OF_GROUPS.values(), ids=ENDS_OF_GROUPS)
@pytest.mark.parametrize("form", ["m", "k"])
def test_epilogues_have_gradients(form, ends):
    """Operands are a bias of each group and of all, a number for each row, and a tensor like the result."""
    a, b = [normal(*shape, grad=True) for shape in SHAPES[form]]
    rows = EXTENT if form == "m" else 10
    bias, scale = normal(GROUPS, 12, seed=1, grad=True), normal(rows, 1, seed=2, grad=True)
    shift, c = normal(12, seed=3, grad=True), normal(rows, 12, seed=4, grad=True)

    def function(acc, scale, shift, c, factor):
        return tanh(acc) * scale + factor * shift + c

    def own(acc, group, part):
        part = part if form == "m" else slice(None)
        return torch.tanh(acc + bias[group]) * scale[part] + 0.5 * shift + c[part]

    inputs = (a, b, bias, scale, shift, c)
    ours = grouped_mm(
        a, b, offs=offsets(ends), bias=bias, epilogue=function, scale=scale, shift=shift, c=c, factor=0.5
    )  # fmt: skip
    ours, theirs = inside(form, ours, ends), by_loop(form, a, b, ends, own)
    found, wanted = [
        torch.autograd.grad(result.sum() + (result * result).sum(), inputs, allow_unused=True)
        for result in (ours, theirs)
    ]
    wanted = [torch.zeros_like(x) if g is None else g for g, x in zip(wanted, inputs, strict=True)]
    close([ours, *found], [theirs, *wanted], 1e-11)


@pytest.mark.parametrize("interleaved", [False, True])
def test_gated_epilogue_with_an_auxiliary_output(interleaved):
    ends = ENDS_OF_GROUPS["empty groups"]
    a, b = [normal(*shape, grad=True) for shape in SHAPES["m"]]
    bias = normal(GROUPS, 12, seed=1, grad=True)
    parts = pairs if interleaved else halves
    ours = grouped_mm(
        a, b, offs=offsets(ends), bias=bias, epilogue=lambda acc: (silu(parts(acc)[0]) * parts(acc)[1], acc)
    )
    preact = by_loop("m", a, b, ends, lambda acc, group, _: acc + bias[group])
    gate, up = (preact[:, 0::2], preact[:, 1::2]) if interleaved else preact.chunk(2, -1)
    theirs = torch.nn.functional.silu(gate) * up, preact
    assert [tuple(each.shape) for each in ours] == [(EXTENT, 6), (EXTENT, 12)]
    close([*ours, *gradients(ours, (a, b, bias))], [*theirs, *gradients(theirs, (a, b, bias))], 1e-11)


def test_a_batch_without_offsets():
    a, b, bias = normal(3, 4, 10), normal(3, 10, 12), normal(3, 12)
    close([grouped_mm(a, b)], [a @ b])
    found = grouped_mm(a, b, bias=bias, epilogue=lambda acc, scale: tanh(acc) * scale, scale=0.5)
    close([found], [0.5 * torch.tanh(a @ b + bias[:, None])])


@pytest.mark.parametrize("form", SHAPES)
def test_as_torch_computes(form):
    function = getattr(torch.nn.functional, "grouped_mm", None)
    if function is None:
        pytest.skip("torch has no grouped_mm")
    a, b = [torch.ones(48, 16), torch.ones(2, 16, 32)] if form == "m" else [torch.ones(16, 48), torch.ones(48, 32)]
    if form == "n":
        a, b = torch.ones(2, 16, 32), torch.ones(32, 48)
    a, b, offs = a.bfloat16(), b.bfloat16(), offsets([16, 48])
    if form == "m":
        b = b.mT.contiguous().mT
    close([grouped_mm(a, b, offs=offs)], [function(a, b, offs=offs)])


# --- torch's modes ------------------------------------------------------------------------------------------------


def test_torch_compile_has_one_graph():
    def step(a, b, bias, offs):
        return grouped_mm(a, b, offs=offs, bias=bias, epilogue=lambda acc: gelu(acc)).square().sum()

    inputs = [normal(*shape, grad=True) for shape in (*SHAPES["m"], (GROUPS, 12))]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for ends in (ENDS_OF_GROUPS["equal"], ENDS_OF_GROUPS["one giant"]):
        ours, theirs = [function(*inputs, offsets(ends)) for function in (compiled, step)]
        close([ours, *gradients(ours, inputs)], [theirs, *gradients(theirs, inputs)])


def test_torch_compile_with_a_dynamic_number_of_rows():
    compiled = torch.compile(lambda a, b, offs: grouped_mm(a, b, offs=offs), fullgraph=True, backend="aot_eager")
    b = normal(*SHAPES["m"][1])
    for rows in (24, 31, 40):
        a, offs = normal(rows, 10), offsets([5, 5, 20, rows])
        torch._dynamo.mark_dynamic(a, 0)
        close([compiled(a, b, offs)], [grouped_mm(a, b, offs=offs)])


@pytest.mark.parametrize("compute", [grouped_by_torch, launch.compute_grouped])
def test_no_groups_at_all(compute):
    """No row belongs to a group, and no kernel runs: a factor without memory has no tensor map."""
    a, b, ends = torch.ones(EXTENT, 10), torch.ones(0, 10, 12), offsets([])
    how = () if compute is grouped_by_torch else (How(),)
    (result,) = compute(a, b, ends, "lambda acc: acc", (), (), None, *how, True)
    assert (tuple(result.shape), result.count_nonzero().item()) == ((EXTENT, 12), 0)
    assert grouped_mm(a, b, offs=ends).shape == (EXTENT, 12)
    assert grouped_mm(a.mT, torch.ones(EXTENT, 12), offs=ends).shape == (0, 10, 12)


CHECKED = {  # ends of groups: the parts of the message, by hand for 24 rows
    (5, 20, 31, 1000): ["offs[2] is 31. Pass 0 to 24"],
    (9, 20, 11, 2): ["offs[2] is 11, less than offs[1], which is 20"],
    (-3, -1, 4, 24): ["offs[0] is -3. Pass 0 to 24"],
    (25, 3, 4, 24): ["2 rules", "offs[1] is 3, less than offs[0], which is 25", "offs[0] is 25"],
}


def test_the_environment_makes_calls_check_the_ends():
    """In a process of its own, as the variable is read at the import."""
    script = """if True:
        import torch
        from cutegemm.torch import grouped_mm

        def rows(ends):
            return grouped_mm(torch.ones(24, 4), torch.ones(4, 4, 8), offs=torch.tensor(ends, dtype=torch.int32))

        def padded(counts):
            return grouped_mm(torch.ones(2, 6, 4), torch.ones(2, 4, 8), counts=torch.tensor(counts, dtype=torch.int32))

        compiled = torch.compile(rows, fullgraph=True, backend="aot_eager")
        rows([0, 7, 7, 24]), compiled([0, 7, 7, 24]), padded([6, 0])
        calls = [(call, list(ends)) for ends in ENDS for call in (rows, compiled)]
        for call, ends in [*calls, (padded, [3, 7])]:
            try:
                call(ends)
                print("no error")
            except Exception as error:
                print(type(error).__name__, " ".join(str(error).split()))
    """
    env = os.environ | {"CUTEGEMM_CHECK_GROUPS": "1"}
    run = [sys.executable, "-c", script.replace("ENDS", str(list(CHECKED)))]
    ran = subprocess.run(run, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    *lines, last = ran.stdout.splitlines()
    for line, parts in zip(lines, [parts for parts in CHECKED.values() for _ in range(2)], strict=True):
        assert line.startswith("UnsupportedError grouped_mm of mat_a (24, 4)")
        assert [part for part in parts if part not in line] == []
    assert "counts[1] is 7. Pass 0 to 6, the rows of each matrix." in last


@pytest.mark.parametrize("form", SHAPES)
def test_transformations_of_torch(form):
    """Batches, tangents, gradients of torch.func, and batches of gradients are those of single calls."""
    a, b = [normal(*shape) for shape in SHAPES[form]]
    offs, bias = offsets([5, 5, 16, EXTENT]), normal(b.shape[-1], seed=3)
    directions = [normal(*x.shape, seed=4) for x in (a, b, bias)]

    def run(a, b, bias):
        return grouped_mm(a, b, offs=offs, epilogue=lambda acc, c: gelu(acc + c), c=bias)

    def total(a, b, bias):
        return (run(a, b, bias) * weight).sum()

    tensors = a, b, bias
    weight = normal(*run(*tensors).shape, seed=5)
    for i, x in enumerate(tensors):
        batch = torch.stack([x, 2 * x])
        dims = tuple([0 if j == i else None for j in range(3)])
        others = [[batch[n] if j == i else each for j, each in enumerate(tensors)] for n in range(2)]
        ours = torch.vmap(run, dims)(*[batch if j == i else each for j, each in enumerate(tensors)])
        close([ours], [torch.stack([run(*each) for each in others])])
    trained = [x.detach().requires_grad_() for x in tensors]
    theirs = torch.autograd.grad(total(*trained), trained)
    close(torch.func.grad(total, (0, 1, 2))(*tensors), theirs)
    along = sum((g * direction).sum() for g, direction in zip(theirs, directions, strict=True))
    close([torch.func.jvp(total, tensors, tuple(directions))[1]], [along])
    batched = torch.autograd.grad(run(*trained), trained, torch.stack([weight, 3 * weight]), is_grads_batched=True)
    close(batched, [torch.stack([g, 3 * g]) for g in theirs])


def test_groups_that_differ_in_a_batch_of_vmap_are_refused():
    a, b = [normal(*shape) for shape in SHAPES["m"]]
    ends = torch.stack([offsets([1, 2, 3, EXTENT]), offsets([2, 2, 5, EXTENT])])
    with pytest.raises(UnsupportedError, match=r"the ends of groups are a batch of torch\.vmap\. Call it for each"):
        torch.vmap(lambda offs: grouped_mm(a, b, offs=offs))(ends)


def test_the_operator_obeys_torch():
    a, b = [normal(*shape, grad=True) for shape in SHAPES["m"]]
    bias = normal(GROUPS, 1, 12, grad=True)
    args = (a, b, offsets(ENDS_OF_GROUPS["equal"]), "lambda acc, bias: (gelu(acc + bias), acc + bias)", [bias], [])
    torch.library.opcheck(torch.ops.cutegemm.grouped_mm, (*args, None, None, "fast", False))


def test_meta_tensors_and_flops():
    from torch.utils.flop_counter import FlopCounterMode

    for form, (of_a, of_b) in SHAPES.items():
        a, b = torch.ones(of_a, device="meta"), torch.ones(of_b, device="meta")
        found = grouped_mm(a, b, offs=torch.ones(GROUPS, device="meta", dtype=torch.int32), out_dtype=torch.float32)
        assert tuple(found.shape) == ((GROUPS, 10, 12) if form == "k" else (a.shape[-2], b.shape[-1]))
    a, b = [normal(*shape) for shape in SHAPES["m"]]
    with FlopCounterMode(display=False) as counter:
        grouped_mm(a, b, offs=offsets([6, 12, 18, 24]))
    assert counter.get_total_flops() == 2 * EXTENT * 10 * 12


def test_autocast():
    a, b = [normal(*shape, dtype=torch.float32) for shape in SHAPES["m"]]
    offs = offsets(ENDS_OF_GROUPS["equal"])
    with torch.autocast("cpu", torch.bfloat16):
        found = grouped_mm(a, b, offs=offs)
    close([found], [grouped_mm(a.bfloat16(), b.bfloat16(), offs=offs)])


# --- errors -------------------------------------------------------------------------------------------------------

A, B = torch.ones(8, 4), torch.ones(3, 4, 6)
OFFS = offsets([2, 2, 8])
ERRORS = {
    "not a tensor": ((A, [1], OFFS), {}, "mat_b is a list. Pass a torch tensor."),
    "types": ((A, B.double(), OFFS), {}, "mat_a is of float32, mat_b of float64. Pass two tensors of one type"),
    "integers": ((A.long(), B.long(), OFFS), {}, "mat_a is of int64. Supported are"),
    "type of the result": ((A, B, OFFS), {"out_dtype": torch.int8}, "out_dtype = torch.int8, which is not supported"),
    "no offs": ((A, B, None), {}, "mat_a has 2 dimensions and mat_b 3. Pass offs, the end of each group."),
    "offs of a batch": ((A[None], B[:1], OFFS), {}, "whose groups have equal sizes. Leave out offs."),
    "ranks": ((A[0], B, OFFS), {}, r"mat_a has shape \(4,\), mat_b \(3, 4, 6\). Pass \(M, K\) by \(L, K, N\)"),
    "extents": ((A, B.mT, OFFS), {}, "mat_a has 4 columns, mat_b has 6 rows, but both are K. Pass mat_b.mT, which"),
    "type of offs": ((A, B, OFFS.long()), {}, r"offs has shape \(3,\) and is of torch.int64. Pass one dimension"),
    "length of offs": ((A, B, OFFS[:2]), {}, "offs has 2 elements, but there are 3 matrices. Pass one end of each."),
    "bias": ((A, B, OFFS), {"bias": torch.ones(4)}, r"bias has shape \(4,\), which does not broadcast to groups"),
    "operand": (
        (A, B, OFFS),
        {"epilogue": lambda acc, c: acc + c, "c": torch.ones(7, 1)},
        r"c has shape \(7, 1\), which does not broadcast to groups. Pass \(\), \(6,\), \(3, 1, 6\), \(8, 1\)",
    ),
    "a row of each group": (
        (A[:1], B, OFFS),
        {"epilogue": lambda acc, c: acc + c, "c": torch.ones(3, 1, 1)},
        r"does not broadcast to groups. Pass \(\), \(6,\), \(3, 1, 6\), \(1, 1\), or the shape of the result",
    ),
    "groups of gated columns": (
        (B.mT, torch.ones(4, 8), OFFS),
        {"epilogue": lambda acc: swiglu(acc)},
        "groups divide the columns of mat_b, which the epilogue takes as gate and up. Pass groups of rows",
    ),
    "not a number": (
        (A, B, OFFS), {"epilogue": lambda acc, c: acc + c, "c": None}, "c = None is not a real number. Pass a real"
    ),
    "a name of the kernel": (
        (A, B, OFFS), {"epilogue": lambda acc, ends: acc + ends, "ends": torch.ones(6)}, "operand has the name 'ends'"
    ),
    "plan": ((A, B, OFFS), {"plan": 5}, "plan is a int. Pass a GemmPlan or the name of a plan."),
    "operands without an epilogue": ((A, B, OFFS), {"c": 1.0}, "c is passed without an epilogue"),
    "reduction": ((A, B, OFFS), {"epilogue": lambda acc: (acc, row_sum(acc))}, "the epilogue reduces"),
}  # fmt: skip


@pytest.mark.parametrize(("factors", "options", "message"), ERRORS.values(), ids=ERRORS)
def test_errors(factors, options, message):
    a, b, offs = factors
    with pytest.raises(UnsupportedError, match=message):
        grouped_mm(a, b, offs=offs, **options)


def test_batch_invariance_is_refused():
    with cutegemm.batch_invariant(), pytest.raises(UnsupportedError, match="grouped kernels are not batch invariant"):
        grouped_mm(A, B, offs=OFFS)


# --- kernels, in the simulator ------------------------------------------------------------------------------------


@pytest.fixture
def simulated(monkeypatch):
    """Let kernels of grouped GEMMs run in the simulator, on tensors of the CPU. Returns the plans that ran."""
    return run_by(simulate, monkeypatch)


def kernel(a, b, offs, text, operands=(), out_dtype=None):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return launch.compute_grouped(a, b, offs, text, operands, (), out_dtype, How(), False)


EPILOGUES = {  # text, and shapes of operands
    "plain": ("lambda acc: acc", ()),
    "a bias of each group": ("lambda acc, bias: gelu(acc + bias)", [(GROUPS, 1, 64)]),
    "a weight of each row": ("lambda acc, bias, w: ((acc + bias) * w, acc + bias)", [(64,), (40, 1)]),
    "a weighted bias": ("lambda acc, w, bias: acc + w * bias", [(40, 1), (GROUPS, 1, 64)]),
    "gated": ("lambda acc, bias, w: (swiglu(acc + bias) * w, acc + bias)", [(GROUPS, 1, 64), (40, 1)]),
    "gated by pairs": (
        "lambda acc, bias: (silu(pairs(acc + bias)[0]) * pairs(acc + bias)[1], acc + bias)", [(GROUPS, 1, 64)]
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "shapes"), EPILOGUES.values(), ids=EPILOGUES)
def test_kernels(text, shapes, simulated):
    """Kernels of groups of rows compute what torch does."""
    a, b = normal(40, 32, dtype=torch.bfloat16), normal(GROUPS, 64, 32, dtype=torch.bfloat16).mT
    operands = [normal(*shape, seed=i, dtype=torch.bfloat16) for i, shape in enumerate(shapes)]
    ends = [3, 3, 30, 37]
    ours = kernel(a, b, offsets(ends), text, operands)
    theirs = launch_by_torch(a, b, offsets(ends), text, operands)
    close([each[:37] for each in ours], [each[:37] for each in theirs], 2.0**-7)
    assert len(simulated) == 1


@pytest.mark.parametrize("form", ["n", "k"])
def test_kernels_of_other_forms(form, simulated):
    a, b = [normal(GROUPS, 48, 64), normal(40, 64).mT] if form == "n" else [normal(40, 64).mT, normal(40, 48)]
    a, b, ends = a.bfloat16(), b.bfloat16(), [3, 3, 30, 40]
    ours = kernel(a, b, offsets(ends), "lambda acc: acc")
    close(ours, launch_by_torch(a, b, offsets(ends), "lambda acc: acc"), 2.0**-7)
    assert len(simulated) == 1


def test_a_kernel_serves_all_ends(simulated):
    """A signature of the arguments does not contain the ends, so that a second call finds the first one's kernel."""
    a, b = normal(40, 32, dtype=torch.bfloat16), normal(GROUPS, 64, 32, dtype=torch.bfloat16).mT
    for offs in map(offsets, ([0, 0, 0, 40], [1, 2, 3, 40], [10, 20, 30, 40])):
        close(kernel(a, b, offs, "lambda acc: acc"), launch_by_torch(a, b, offs, "lambda acc: acc"), 2.0**-7)
    assert len(simulated) == 1


def test_copies_are_announced(simulated):
    a, b = normal(40, 33, dtype=torch.bfloat16), normal(GROUPS, 33, 64, dtype=torch.bfloat16)
    with pytest.raises(CopyWarning, match=r"grouped_mm: a copy of a, of shape \(40, 33\)"):
        kernel(a, b, offsets([3, 3, 30, 40]), "lambda acc: acc")


@pytest.mark.parametrize(("columns", "is_copied"), [(48, False), (40, True)])
def test_halves_of_columns(columns, is_copied, simulated):
    """TMA loads gate and up where each begins: 24 columns take 48 bytes, a multiple of 16, and 20 take 40."""
    a, b, offs = normal(40, 32).bfloat16(), normal(GROUPS, 32, columns).bfloat16(), offsets([3, 3, 30, 40])
    text = "lambda acc: (swiglu(acc), acc)"
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ours = launch.compute_grouped(a, b, offs, text, (), (), None, How(), False)
    assert [each.category for each in found] == [CopyWarning] * is_copied
    close(ours, launch_by_torch(a, b, offs, text), 2.0**-7)


@pytest.mark.parametrize("form", ["m", "n"])
@pytest.mark.parametrize("which", ["rows", "columns", "every second"])
def test_operands_of_the_shape_of_the_result(form, which, simulated):
    """TMA clips them at the end of a group along a mode that is not contiguous. Others are copied, with a warning."""
    if form == "m":
        a, b = normal(40, 32).bfloat16(), normal(GROUPS, 32, 48).bfloat16()
    else:
        a, b = normal(GROUPS, 40, 32).bfloat16(), normal(48, 32).bfloat16().mT
    wide = normal(40, 96).bfloat16()
    c = {"rows": wide[:, :48], "columns": wide.view(96, 40)[:48].mT, "every second": wide[:, ::2]}[which]
    offs, text = offsets([3, 3, 30, 40]), "lambda acc, c: acc + c"
    theirs = launch_by_torch(a, b, offs, text, [c])
    for _ in range(2):
        if which == ("rows" if form == "m" else "columns"):
            ours = kernel(a, b, offs, text, [c])
        else:
            with pytest.warns(CopyWarning, match=r"grouped_mm: a copy of c, of shape \(40, 48\)"):
                ours = launch.compute_grouped(a, b, offs, text, [c], (), None, How(), False)
        close([each[:, :40] for each in ours], [each[:, :40] for each in theirs], 2.0**-7)


def test_ends_with_other_strides(simulated):
    a, b = normal(40, 32).bfloat16(), normal(GROUPS, 32, 64).bfloat16()
    offs = torch.stack([offsets([3, 3, 30, 40]), offsets([0, 40, 0, 0])], 1)[:, 0]
    assert offs.stride() == (2,)
    close(kernel(a, b, offs, "lambda acc: acc"), launch_by_torch(a, b, offs, "lambda acc: acc"), 2.0**-7)


@pytest.mark.parametrize("negated", [(0,), (1,), (2,), (0, 1, 2)])
def test_negated_views(negated, simulated):
    """Kernels read memory, where the elements of such a view have the other sign."""
    tensors = [normal(40, 32).bfloat16(), normal(GROUPS, 32, 64).bfloat16(), normal(GROUPS, 1, 64, seed=1).bfloat16()]
    others = [torch._neg_view(x) if i in negated else x for i, x in enumerate(tensors)]
    offs, text = offsets([3, 3, 30, 40]), "lambda acc, bias: acc + bias"
    for a, b, bias in (tensors, others, tensors, others):
        close(kernel(a, b, offs, text, [bias]), launch_by_torch(a, b, offs, text, [bias]), 2.0**-7)
    assert len({id(plan) for plan in simulated}) == 1


def launch_by_torch(a, b, offs, text, operands=()):
    return grouped_by_torch(a, b, offs, text, operands, (), None, False)


# --- float8 with scales -------------------------------------------------------------------------------------------


def quantized(*shape, seed=0):
    return normal(*shape, seed=seed).clamp(-8, 8).to(torch.float8_e4m3fn)


SCALED_FORMS = {  # form: shapes of scale_a and scale_b with the recipe RowWise
    "m": ((EXTENT,), (GROUPS, 16)),
    "n": ((GROUPS, 16), (EXTENT,)),
    "": ((GROUPS, 16), (GROUPS, 16)),
}


@pytest.mark.parametrize("recipes", [("RowWise", "RowWise"), ("TensorWise", "RowWise"), ("TensorWise", "TensorWise")])
@pytest.mark.parametrize("form", SCALED_FORMS)
def test_scaled_products(form, recipes):
    a = quantized(*((EXTENT, 32) if form == "m" else (GROUPS, 16, 32)))
    b = quantized(*((32, EXTENT) if form == "n" else (GROUPS, 32, 16)), seed=1)
    scales = [
        normal(*shape, seed=2 + i).float() if recipe == "RowWise" else torch.tensor(0.5 + i)
        for i, (shape, recipe) in enumerate(zip(SCALED_FORMS[form], recipes, strict=True))
    ]
    offs = None if form == "" else offsets(ENDS_OF_GROUPS["empty groups"])
    found = scaled_grouped_mm(
        a, b, scales[0], recipes[0], scales[1], recipes[1], offs=offs, output_dtype=torch.float32
    )  # fmt: skip
    of_a = scales[0][..., None] * a.double()
    of_b = b.double() * (scales[1][..., None, :] if recipes[1] == "RowWise" and form != "n" else scales[1])
    close([found.double()], [grouped_mm(of_a, of_b, offs=offs)], 1e-5)


def test_scaled_products_with_a_scale_of_each_matrix_and_a_bias():
    a, b, offs = quantized(EXTENT, 32), quantized(GROUPS, 32, 16, seed=1), offsets(ENDS_OF_GROUPS["equal"])
    scale, bias = normal(GROUPS, seed=2).float(), normal(GROUPS, 16, seed=3).float()
    found = scaled_grouped_mm(a, b, torch.tensor(2.0), "TensorWise", [scale], ["TensorWise"], None, None, bias, offs)
    of_b = b.double() * scale[:, None, None]
    close([found.double()], [grouped_mm(2 * a.double(), of_b, offs=offs, bias=bias.double())], 2.0**-7)
    assert found.dtype == torch.bfloat16


def test_scaled_kernels(simulated):
    a, b, offs = quantized(40, 64), quantized(GROUPS, 48, 64, seed=1).mT, offsets([3, 3, 30, 40])
    text, operands = "lambda acc, x, y: acc * x * y", [normal(40, 1).float(), normal(GROUPS, 1, 48, seed=1).float()]
    for accumulate in ("fast", "promoted"):
        ours = launch.compute_grouped(a, b, offs, text, operands, (), None, How(accumulate=accumulate), False)
        close(ours, launch_by_torch(a, b, offs, text, operands), 2.0**-7)
    assert len(simulated) == 2


def test_scaled_factors_with_other_strides_are_copied(simulated):
    a, b, offs = quantized(40, 64), quantized(GROUPS, 64, 48, seed=1), offsets([3, 3, 30, 40])
    with pytest.warns(CopyWarning, match="a copy of b.*contiguous along K, as tensor cores need torch.float8_e4m3fn"):
        ours = launch.compute_grouped(a, b, offs, "lambda acc: acc", (), (), None, How(), False)
    close(ours, launch_by_torch(a, b, offs, "lambda acc: acc"), 2.0**-7)


A8, B8, ONE = torch.ones(8, 16).to(torch.float8_e4m3fn), torch.ones(3, 16, 6).to(torch.float8_e4m3fn), torch.ones(())
SCALED_ERRORS = {
    "blocks of 32": ((A8, B8, ONE, "BlockWise1x32", ONE, "TensorWise"), "scale_recipe_a = 'BlockWise1x32' is not"),
    "type": ((A8.float(), B8.float(), ONE, "TensorWise", ONE, "TensorWise"), "mat_a is of torch.float32. Pass float8"),
    "rows": ((A8, B8, torch.ones(7), "RowWise", ONE, "TensorWise"), r"scale_a has shape \(7,\).*Pass shape \(8,\)"),
    "columns": ((A8, B8, ONE, "TensorWise", torch.ones(6), "RowWise"), r"scale_b has shape \(6,\).*shape \(3, 6\)"),
    "one": ((A8, B8, torch.ones(8), "TensorWise", ONE, "TensorWise"), r"scale_a has shape \(8,\).*Pass one element"),
    "each": ((A8, B8, ONE, "TensorWise", torch.ones(4), "TensorWise"), "Pass one element, or 3, one of each matrix"),
    "type of a scale": ((A8, B8, ONE.double(), "TensorWise", ONE, "TensorWise"), "scale_a is of torch.float64"),
    "groups of K": ((A8, torch.ones(16, 6).to(A8.dtype), ONE, "TensorWise", ONE, "TensorWise"), "groups divide K"),
    "older signature": ((A8, B8, ONE, ONE), "arguments are those of torch._scaled_grouped_mm"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), SCALED_ERRORS.values(), ids=SCALED_ERRORS)
def test_scaled_errors(arguments, message):
    with pytest.raises(UnsupportedError, match=message):
        scaled_grouped_mm(*arguments, offs=OFFS)


# --- matrices with a number of valid rows -------------------------------------------------------------------------

COUNTS_OF_ROWS = {"some": [3, 0, 7, 5], "all": [7, 7, 7, 7], "none": [0, 0, 0, 0], "out of range": [-2, 99, 1, 7]}


@pytest.mark.parametrize("counts", COUNTS_OF_ROWS.values(), ids=COUNTS_OF_ROWS)
def test_counts_of_rows(counts):
    """Rows after the count are NaN in a and in the upstream gradient, and are not read."""
    valid = torch.arange(7) < torch.tensor(counts)[:, None]
    a, b = normal(GROUPS, 7, 10), normal(GROUPS, 10, 12, grad=True)
    bias, scale, c = normal(GROUPS, 12, seed=1, grad=True), normal(GROUPS, 7, 1, grad=True), normal(GROUPS, 7, 12)
    a, c = torch.where(valid[..., None], a, torch.nan).requires_grad_(), c.requires_grad_()

    def function(acc, scale, c):
        return tanh(acc) * scale + c

    ours = grouped_mm(a, b, counts=offsets(counts), bias=bias, epilogue=function, scale=scale, c=c)
    known = torch.where(valid[..., None], a, 0)
    theirs = torch.tanh(known @ b + bias[:, None]) * scale + c
    upstream = torch.where(valid[..., None], normal(GROUPS, 7, 12, seed=5), torch.nan)
    inputs = (a, b, bias, scale, c)
    found = torch.autograd.grad(ours, inputs, upstream)
    wanted = torch.autograd.grad(theirs, inputs, upstream.nan_to_num())
    close([ours[valid], *[g.nan_to_num() for g in found]], [theirs[valid], *wanted], 1e-11)


def test_counts_under_torch_compile_and_on_meta():
    a, b, counts = normal(GROUPS, 7, 10), normal(GROUPS, 10, 12), offsets([7, 7, 7, 7])
    compiled = torch.compile(lambda *args: grouped_mm(*args[:2], counts=args[2]), fullgraph=True, backend="aot_eager")
    close([compiled(a, b, counts)], [a @ b])
    assert grouped_mm(*[x.to("meta") for x in (a, b)], counts=counts.to("meta")).shape == (GROUPS, 7, 12)


@pytest.mark.parametrize(("text", "shapes"), EPILOGUES.values(), ids=EPILOGUES)
def test_kernels_with_counts(text, shapes, simulated):
    a, b = normal(GROUPS, 40, 32, dtype=torch.bfloat16), normal(GROUPS, 64, 32, dtype=torch.bfloat16).mT
    shapes = [(GROUPS, *shape) if shape == (40, 1) else shape for shape in shapes]
    operands = [normal(*shape, seed=i, dtype=torch.bfloat16) for i, shape in enumerate(shapes)]
    counts = [3, 0, 40, 17]
    ours = kernel(a, b, offsets(counts), text, operands)
    theirs = launch_by_torch(a, b, offsets(counts), text, operands)
    for group, count in enumerate(counts):
        close([each[group, :count] for each in ours], [each[group, :count] for each in theirs], 2.0**-7)
    assert simulated[0].scheduler.sizes == "counts"


def test_an_emulated_kernel_with_counts(monkeypatch):
    """The compiled kernel, with A and B swapped or not, writes the valid rows alone."""
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    plans = run_by(cutegemm.emulate, monkeypatch)
    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda *args, **options: new_empty(*args, **options).fill_(-4096))
    for rows in (24, 80):
        a, b = normal(3, rows, 64, dtype=torch.bfloat16), normal(3, 64, 64, dtype=torch.bfloat16).mT
        counts = offsets([rows, 0, 17])
        (ours,), (theirs,) = kernel(a, b, counts, "lambda acc: acc"), launch_by_torch(a, b, counts, "lambda acc: acc")
        close([ours], [theirs], 2.0**-7)
        assert (ours[2, 17:] == -4096).all()
    assert len(plans) == 2


def test_matrices_with_gaps_are_copied(simulated):
    a, b = normal(GROUPS, 41, 32, dtype=torch.bfloat16)[:, :40], normal(GROUPS, 64, 32, dtype=torch.bfloat16).mT
    with pytest.raises(CopyWarning, match="matrices must follow each other without gaps"):
        kernel(a, b, offsets([1, 2, 3, 4]), "lambda acc: acc")


A3, COUNTS = torch.ones(3, 8, 4), offsets([2, 2, 8])
WRONG_COUNTS = {
    "offs too": ((A3, B), {"offs": OFFS, "counts": COUNTS}, "offs and counts are passed"),
    "ranks": ((A, B), {"counts": COUNTS}, r"With counts, pass \(L, M, K\) by \(L, K, N\)"),
    "length": ((A3, B), {"counts": COUNTS[:2]}, "Pass 3 numbers of int32"),
    "operand": (
        (A3, B),
        {"counts": COUNTS, "epilogue": lambda acc, c: acc + c, "c": torch.ones(8, 1)},
        r"c has shape \(8, 1\), which does not broadcast to groups. Pass \(\), \(6,\), \(3, 1, 6\), \(3, 8, 1\)",
    ),
}


@pytest.mark.parametrize(("factors", "options", "message"), WRONG_COUNTS.values(), ids=WRONG_COUNTS)
def test_wrong_counts(factors, options, message):
    with pytest.raises(UnsupportedError, match=message):
        grouped_mm(*factors, **options)


def test_plans_are_chosen_once_for_similar_extents(simulated, monkeypatch):
    """33 to 63 rows have one plan. 65 rows have another, and so has another epilogue."""
    choices, chosen = [], launch.chosen_grouped
    monkeypatch.setattr(launch, "chosen_grouped", lambda *args: choices.append(args) or chosen(*args))
    launch._chosen.cache_clear()
    b = normal(GROUPS, 64, 32, dtype=torch.bfloat16).mT
    for rows in (33, 40, 50, 63):
        kernel(normal(rows, 32, dtype=torch.bfloat16), b, offsets([1, 2, 3, rows]), "lambda acc: acc")
    assert len(choices) == 1
    kernel(normal(65, 32, dtype=torch.bfloat16), b, offsets([1, 2, 3, 65]), "lambda acc: acc")
    kernel(normal(63, 32, dtype=torch.bfloat16), b, offsets([1, 2, 3, 63]), "lambda acc: relu(acc)")
    assert len(choices) == 3
