"""Machine code of mma.sync plans, on four architectures: what must be there, and what must not."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import mma_sync_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.choice.ladders.mma_sync import STEPS
from cutegemm.compile.plans import compile_plan
from cutegemm.layout import ComposedLayout, Layout, Swizzle, product
from cutegemm.plan import Operands
from cutegemm.plan.program.thread_schedule import Fetch, Multiply, Read
from tests.kernels.mma_sync_forms import FLOAT8, form
from tests.kernels.plans import check_each, in_groups


def check(kernel):
    """The instructions that the schedule asks for, no others of their kind, and no spills."""
    plan, report = kernel.plan, kernel.resources
    assert kernel.violations() == []
    assert (report.spills, report.stack_bytes) == (0, 0)
    assert f".target {kernel.arch}" in kernel.ptx
    schedule = plan.body
    steps = [*schedule.prologue, *schedule.k_tile]
    counts = {kind: sum(isinstance(step, kind) for step in steps) for kind in (Multiply, Read)}
    bm, bn, _ = plan.cta_tile
    atoms_m, atoms_n = (product(mode) for mode in plan.tiled_mma.partition_shape_C((bm, bn))[1:])
    products = counts[Multiply] * atoms_m * atoms_n
    if plan.operands.a.dtype.bits > 8:
        assert report.count("HMMA") == products
    elif kernel.arch == "sm_89":
        assert report.count("QMMA") == products
    else:  # operands that are converted have k-tiles half as deep
        assert (report.count("QMMA"), report.count("HMMA")) == (0, 2 * products)
    plain, transposed = ldmatrices(plan, atoms_m, atoms_n)
    found = {op: n for op, n in report.instructions.items() if op.startswith("LDSM")}
    assert sum(n for op, n in found.items() if ".M" in op and "MT" not in op) == counts[Read] * plain, found
    assert sum(n for op, n in found.items() if ".MT" in op) == counts[Read] * transposed, found
    tiles = len([step for step in steps if isinstance(step, Fetch) and step.chunk == 0])
    by_cp_async = [load for load in (plan.a.load, plan.b.load) if load.atom.is_async]
    assert report.count("LDGSTS") == sum(accesses(plan, load) for load in by_cp_async) * tiles
    return report


def accesses(plan, load):
    """Accesses of a thread for a tile."""
    extent = plan.cta_tile[0] if load is plan.a.load else plan.cta_tile[1]
    return extent * plan.cta_tile[2] // (load.threads * load.atom.values)


def ldmatrices(plan, atoms_m, atoms_n):
    """Instructions of a Read without and with transposition: a matrix for each register of the fragments."""
    plain = transposed = 0
    mma, bits = plan.tiled_mma.atom, plan.operands.a.dtype.bits
    for read, held, atoms in (
        (plan.a.read, mma.layout_a_tv, atoms_m),
        (plan.b.read, mma.layout_b_tv, atoms_n),
    ):
        if read.name.startswith("ldmatrix"):
            count = held[1].size() * bits // 32 * atoms // 4
            transposed += count if "trans" in read.name else 0
            plain += 0 if "trans" in read.name else count
    return plain, transposed


@pytest.mark.thorough
def test_the_large_plan():
    """With each operand transposed on its way to registers, and with elements that are read one by one."""
    operands = (Operands.of("bf16", layout="tt"), Operands.of("f32", layout="tn"))
    plans = [plan_named("mma_128x256", each) for each in operands]
    check_each(plans, check_large)


def check_large(kernel):
    report = check(kernel)
    assert report.registers <= 255
    assert any(re.match(r"LDGSTS\.E\.BYPASS.*128$", op) for op in report.instructions)
    assert any(op.startswith("STG") and op.endswith("128") for op in report.instructions)
    kind = kernel.plan.operands.a.dtype.name.upper()
    assert any(kind in op for op in report.instructions if op.startswith("HMMA"))


@pytest.mark.parametrize(
    ("dtype", "layout", "arch"),
    [
        ("f16", "nt", "sm_80"),
        pytest.param("f16", "tn", "sm_89", marks=pytest.mark.thorough),
        pytest.param("f32", "nn", "sm_120", marks=pytest.mark.thorough),
    ],
)
def test_other_architectures(dtype, layout, arch):
    """Each type and each architecture once; the ladder's steps are compiled for sm_80, all types and ways."""
    check(compile_plan(plan_named("mma_64x64", Operands.of(dtype, layout=layout), arch=arch), arch))


COMPILED = (
    "bf16_tn_2", "tf32_tt_4", "bf16_nn_4", "f16_sums", "f16_tt_m_major", "direct_m_major", "one_stage",
    "one_buffer_registers", "five_stages", "shallow_atom", "rna", "batched", "wide_warps", "split", "deep_halves",
)  # fmt: skip


@pytest.mark.slow
@in_groups("names", COMPILED)
def test_forms(names):
    check_each([form(name) for name in names], check)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_float8(arch):
    check_each([form(name) for name in FLOAT8 if name != "e4m3_split"], check, arch)


# Every majorness where fragments are read by plain loads a half at a time, which is where registers run short.
_CHECKED = {
    "f32": {STEPS[0]: ("nt",), STEPS[3]: ("tn",), STEPS[6]: ("tt",), STEPS[9]: ("tn",)},
    "bf16": {STEPS[2]: ("tt",), STEPS[4]: ("tn",), STEPS[7]: ("nn",), STEPS[8]: ("nn", "nt", "tn", "tt")},
}


_STEPS = [(kind, name, way) for kind, steps in _CHECKED.items() for name, ways in steps.items() for way in ways]


@pytest.mark.slow
@in_groups("steps", _STEPS, 4)
def test_steps_of_the_ladder(steps):
    plans = [plan_named(name, Operands.of(dtype, layout=layout)) for dtype, name, layout in steps]
    check_each(plans, check, "sm_80")


@pytest.mark.thorough
def test_a_swizzle_costs_tf32_hardly_an_address():
    """Along M and N nothing but plain loads reads tf32: 128 LDS a k-tile and thread, of 4 addresses an operand."""
    swizzled, padded = (
        compile_plan(mma_sync_plan(Operands.of("tf32", layout="tn"), block=(128, 128, 32), warp=(64, 32), shared=how))
        for how in ("swizzled", "padded")
    )
    extra = sum(swizzled.resources.instructions.values()) - sum(padded.resources.instructions.values())
    assert extra < 64
    assert swizzled.resources.count("LDS") == padded.resources.count("LDS")


def test_where_an_address_is_the_xor_of_its_parts():
    """All that the builder swizzles; not a period of 2048 bytes, which no buffer is aligned to, nor a row of 48
    elements, whose carries run through the bits of the swizzle."""
    from cutegemm.kernels.threads.fragments import lies_apart

    for name in ("bf16_nn_16", "tf32_tn_16", "plain", "wide_warps"):
        plan = form(name)
        for operand, atom, given in (("a", plan.a.read, plan.a.smem), ("b", plan.b.read, plan.b.smem)):
            if isinstance(given, ComposedLayout):
                assert lies_apart(plan.tiled_mma, operand, atom, given), (name, operand)
    plan = form("plain_nn")
    for outer, swizzle in (
        (Layout((64, 64, 3), (64, 1, 4096)), Swizzle(3, 3, 4)),
        (Layout((64, 64, 3), (80, 1, 5120)), Swizzle(3, 3, 3)),
    ):
        given = ComposedLayout(swizzle, 0, outer)
        assert not lies_apart(plan.tiled_mma, "a", plan.a.read, given)


def test_sums_of_16_bits_take_half_the_registers():
    operands = [Operands.of("f16", layout="nt", acc=acc) for acc in ("f32", "f16")]
    wide, narrow = (compile_plan(mma_sync_plan(o, block=(32, 64, 32), warp=(16, 32))) for o in operands)
    assert narrow.resources.registers <= wide.resources.registers
    assert narrow.plan.registers()["accumulators"] == wide.plan.registers()["accumulators"] // 2
