"""Programmatic dependent launch: each kernel waits for the previous launch, or the emulator reports an error."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import mma_sync_plan, simt_plan
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import f32, round_to
from cutegemm.emulator.decode import programs
from cutegemm.emulator.launch import TensorArgument, host_function
from cutegemm.errors import EmulationError
from cutegemm.machine.arch import arch_named
from cutegemm.plan import Operands, Problem
from cutegemm.plan.launches import launches_of
from cutegemm.plan.memory.workspace import workspace_bytes
from cutegemm.run.emulated import emulate
from tests.emulator.snippets import run
from tests.epilogues import CASES
from tests.kernels.sm90_forms import fitting, form
from tests.reductions import PLANS, operands

SMALL = {"block": (32, 32, 8), "warp": (16, 32), "thread": (4, 4)}
WAIT = "griddepcontrol.wait;"
MADE = {
    "simt": lambda: simt_plan(Operands.of("f32"), **SMALL),
    "hopper, packed": lambda: form("pack_tf32", 2),
    "simt, packed and split": lambda: simt_plan(Operands.of("f32", layout="nt"), **SMALL, repack="ab", split_k=2),
    "mma.sync, split": lambda: mma_sync_plan(
        Operands.of("bf16", layout="nt"), block=(32, 32, 32), warp=(16, 16), split_k=2
    ),
    "mma.sync, reduced": lambda: CASES["reduced"].on(PLANS["mma.sync"]()),
    "hopper, reduced": lambda: CASES["reduced"].on(PLANS["pingpong"]()),
}
# By launch: how the names of its kernels begin in the PTX
_NAMES = {
    "repack": "repack_kernel",
    "gemm": r"(?:split_k_)?kernel",
    "accumulators": "add_kernel",
    "reduce": "reduce_kernel",
}


def given(plan):
    """Return the operands of a plan by name: small whole numbers."""
    found = operands(plan, "reduced", *fitting(plan, 70, 72, 40))
    return found if plan.epilogue.reductions else {name: found[name] for name in "ab"}


def kernels(ptx, launch):
    """Return the PTX of each kernel of a launch."""
    found = [text for text in ptx.split(".entry kernel_cutlass_")[1:]
             if re.match(_NAMES[launch.split()[0]] + "_cutegemm", text)]  # fmt: skip
    assert found, launch
    return found


@pytest.mark.parametrize("name", MADE)
def test_each_kernel_waits_as_the_plan_says(name):
    """The PTX and the launches wait for the previous launch, and trigger the next one after that, as the plan says."""
    plan = MADE[name]()
    planned = launches_of(plan, arch_named("sm_90a"))
    ptx = compile_plan(plan).ptx
    for launch, said in planned.items():
        wanted = ["wait"] * said.waits + ["launch_dependents"] * said.releases
        assert wanted in [re.findall(r"griddepcontrol\.(\w+);", text) for text in kernels(ptx, launch)]
    found = emulate(plan, **given(plan))
    assert [launch.uses_pdl for launch in found.launches] == [said.waits for said in planned.values()]


def repacked(ctas):
    """Return a plan that repacks A and B, for `ctas` CTAs per multiprocessor."""
    return simt_plan(Operands.of("f32", layout="nt"), **SMALL, repack="ab", ctas_per_sm=ctas)


@pytest.mark.parametrize("ctas", [1, 2])
def test_where_packing_lets_the_gemm_begin(ctas):
    """After the last store if CTAs of the GEMM share a multiprocessor, else before the first load."""
    for text in kernels(compile_plan(repacked(ctas)).ptx, "repack"):
        steps = re.findall(r"griddepcontrol\.launch_dependents|ld\.global|st\.global", text)
        assert steps.count("griddepcontrol.launch_dependents") == 1
        assert steps.index("griddepcontrol.launch_dependents") == (0 if ctas == 1 else len(steps) - 1)


@pytest.mark.thorough
def test_no_pdl_on_ampere():
    plan = MADE["simt, packed and split"]()
    assert "griddepcontrol" not in compile_plan(plan, "sm_80").ptx
    of = given(plan)
    found = emulate(plan, **of, arch="sm_80")
    assert [launch.uses_pdl for launch in found.launches] == [False] * 3
    assert np.array_equal(found.d, round_to(plan.operands.d.dtype, of["a"] @ of["b"]))


@pytest.mark.parametrize("rows", [4096, 8192])
def test_much_is_packed_before_the_gemm_begins(rows):
    """8 and 16 MiB of A, and a tile of B; nothing is executed."""
    plan = repacked(1)
    kernel = compile_plan(plan)
    of = (((rows, 512), (512, 1)), ((512, 64), (1, 512)), *[((rows, 64), (64, 1))] * 2)  # A, B, C and D
    tensors = [TensorArgument(1 << 32 + i, f32, *each) for i, each in enumerate(of)]
    size = workspace_bytes(plan, Problem(rows, 64, 512, operands=plan.operands))[0]
    space = TensorArgument(1 << 40, "u8", (size,), (1,))
    decoded = {name: found for name, (found, _) in programs(kernel.ptx).items()}
    made = host_function(kernel.folder / "kernel.so").launches(decoded, [*tensors, space], (1.0, 0.0))
    assert [launch.uses_pdl for launch in made] == [True, rows == 4096]
    assert made[0].ctas == (rows // 64 + 1) * (512 // 64)


@pytest.mark.parametrize(
    ("name", "launch", "line"),
    [
        ("simt", "gemm", "ld.global"),
        ("hopper, packed", "repack", "ld.global"),
        ("hopper, packed", "gemm", "cp.async.bulk.tensor"),
        ("simt, packed and split", "gemm", "cp.async"),
        ("simt, packed and split", "accumulators", "ld.global"),
        ("hopper, reduced", "reduce", "ld.global"),
    ],
)
def test_a_kernel_without_its_wait_is_found(name, launch, line):
    """Remove the wait from the PTX. It is an error although the emulator runs launches one after another."""
    plan = MADE[name]()
    ptx = compile_plan(plan).ptx
    own = kernels(ptx, launch)[0]
    assert WAIT in own
    with pytest.raises(EmulationError, match=rf"{re.escape(line)}.*with no griddepcontrol\.wait before"):
        emulate(plan, **given(plan), ptx=ptx.replace(own, own.replace(WAIT, "")))


def test_every_thread_needs_its_own_wait():
    """A thread may access global memory only after its own wait; shared memory and parameters need no wait."""
    wait_of = "setp.lt.u32 %p0, %r0, {0}; @!%p0 bra ON; griddepcontrol.wait; ON: "
    store = "mul.wide.u32 %d2, %r0, 4; add.u64 %d2, %d1, %d2; st.global.b32 [%d2], %r0;"
    words = np.zeros(1, np.uint32)
    assert run(wait_of.format(32) + store, words, 32, early=True).tolist() == list(range(32))
    with pytest.raises(EmulationError, match="thread 20: it accesses global memory with no griddepcontrol"):
        run(wait_of.format(20) + store, words, 32, early=True)
    for access in ("ld.global.b32 %r1, [%d0];", "atom.global.add.u32 %r5, [%d0], 1;"):
        with pytest.raises(EmulationError, match=r"with no griddepcontrol\.wait before"):
            run(access, words, 32, early=True)
        run(access, words, 32)
