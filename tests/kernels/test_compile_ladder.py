"""Machine code of the SIMT ladder, of packing and of split K."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm import cubin
from cutegemm.compile import compile_plan
from cutegemm.plan import Operands, simt_plan
from cutegemm.plan.ladder_simt import SIMT_LADDER
from cutegemm.plan.simt_catalog import simt_named


@pytest.mark.parametrize("step", SIMT_LADDER.steps, ids=lambda step: step.name)
def test_no_step_spills_or_takes_more_than_it_may(step):
    kernel = compile_plan(step.build())
    assert kernel.violations() == []
    report = kernel.resources
    assert report.count("FFMA") > 0
    assert (report.count("BAR") == 0) == (kernel.plan.stages == 0)
    assert (report.count("LDGSTS") > 0) == any(
        x.atom.is_async for x in (kernel.plan.load_a, kernel.plan.load_b)
    )


def test_thread_numbers_are_read_outside_of_the_loops():
    """What step 3 of the ladder is about: they are read at the start, and once more before the end."""
    kernel = compile_plan(SIMT_LADDER.step("sgemm_02_tiles").build())
    lines = cubin.listing_of(kernel.sass, kernel.resources.kernel).splitlines()
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"\s*(\.L_x_\d+):", line))}
    jumps = [
        (labels[m[1]], i)
        for i, line in enumerate(lines)
        if "BRA" in line and (m := re.search(r"(\.L_x_\d+)", line))
    ]
    loops = [
        (first, last) for first, last in jumps if first < last and any("FFMA" in x for x in lines[first:last])
    ]
    assert loops
    for first, last in loops:
        assert not any(re.search(r"\bS2U?R\b.*TID", line) for line in lines[first:last])


@pytest.mark.parametrize("layout", ["nt"])
def test_packing_leaves_the_mainloop_of_operands_that_need_none(layout):
    """The kernel that multiplies is the one for m-major A and n-major B, all of it by 128-bit cp.async."""
    packed = simt_named("simt_256x128+pack", Operands.of("f32", layout=layout))
    plain = simt_named("simt_256x128", Operands.of("f32", layout="tn"))
    reports = [compile_plan(plan).resources for plan in (packed, plain)]
    for opcode in ("FFMA", "LDS", "LDGSTS", "BAR"):
        assert reports[0].count(opcode) == reports[1].count(opcode)
    assert reports[0].registers <= reports[1].registers + 8
    sass = compile_plan(packed).sass
    assert sass.count(".section\t.text.kernel_cutlass_pack_kernel") == (2 if layout == "nt" else 1)


@pytest.mark.parametrize("reduction", ["kernel", "last"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16"])
def test_split(reduction, dtype):
    plan = simt_plan(
        Operands.of(dtype),
        block=(64, 64, 8),
        warp=(32, 32),
        thread=(8, 4),
        quad=(2, 2),
        split_k=3,
        reduction=reduction,
    )
    kernel = compile_plan(plan)
    assert kernel.violations() == []
    assert (kernel.resources.count("ATOMG") + kernel.resources.count("ATOM") > 0) == (reduction == "last")
    assert kernel.needs_workspace
