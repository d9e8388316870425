"""Machine code of mma.sync plans that TMA feeds: what the roles are made of, and that nothing spills."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import cutlass

from cutegemm.choice.catalog import plan_named
from cutegemm.compile.plans import compile_plan
from cutegemm.kernels.arguments import fake_arguments
from cutegemm.layout import ComposedLayout, product
from cutegemm.plan import Operands
from tests.kernels.mma_sync_forms import FED, form, small
from tests.kernels.plans import check_each
from tests.kernels.test_mma_sync import ldmatrices

# k-blocks whose products stand in the code: of a k-tile in the loop, and of the last one of a tile. So do the
# reads of the fragments, one k-block early; the first k-block of a tile is read before the loop.
_K_TILES = 2


def check(kernel):
    """The instructions of the roles, and no others of their kind; no spills."""
    plan, report = kernel.plan, kernel.resources
    assert kernel.violations() == []
    assert (report.spills, report.stack_bytes) == (0, 0)
    bm, bn, bk = plan.cta_tile
    atoms_m, atoms_n = (product(mode) for mode in plan.tiled_mma.partition_shape_C((bm, bn))[1:])
    blocks = _K_TILES * plan.k_blocks
    assert report.count("HMMA") == blocks * atoms_m * atoms_n
    plain, transposed = ldmatrices(plan, atoms_m, atoms_n)
    found = {op: n for op, n in report.instructions.items() if op.startswith("LDSM")}
    assert sum(n for op, n in found.items() if ".M" in op and "MT" not in op) == blocks * plain, found
    assert sum(n for op, n in found.items() if ".MT" in op) == blocks * transposed, found
    assert report.count("UTMALDG") == sum(
        extent * bk // product(load.box) for extent, load in ((bm, plan.a.load), (bn, plan.b.load))
    )
    by_tma = plan.store.stored_by_tma
    epi_tiles = product(plan.store.epi_tiles(plan.consumer_tile)) if by_tma else 0
    assert report.count("UTMASTG") == epi_tiles
    assert report.count("LDGSTS") == 0
    assert report.count("BAR") == 1  # when the mbarriers have been made; none holds the consumers together
    assert report.count("USETMAXREG") == (2 if plan.roles[0].registers else 0)
    return report


NAMED = [("mma_tma_256x128", "f32", "tn"), ("mma_tma_256x160", "bf16", "nn")]


@pytest.mark.thorough
def test_the_named_plans():
    check_each([plan_named(name, Operands.of(dtype, layout=way)) for name, dtype, way in NAMED], check_named)


def check_named(kernel):
    """Two warps of a multiprocessor's partition take 1,560 cycles at least for 128 products each; issuing must not
    take as long."""
    plan, report = kernel.plan, check(kernel)
    assert report.registers == 168  # that 384 threads are launched with; the consumers have 240 then
    assert [role.registers for role in plan.roles] == [24] + 8 * [240]
    of_16_bits = plan.operands.d.dtype.bits == 16
    assert report.count("STSM") == of_16_bits * product(plan.consumer_tile) // 256


@pytest.mark.parametrize(
    ("by_two", "others"),
    [
        (("tma_bf16_nn", "tma_tf32_m_major"), ("tma_unaligned_d", "tma_lines_m_major")),
        pytest.param(("tma_m_major",), ("tma_lines_tf32",), marks=pytest.mark.thorough),
    ],
)
def test_forms(by_two, others):
    """Forms that tests/emulator executes, so that each is compiled once: for 2 CTAs, and for the default grid."""
    check_each([*[small(name, ctas=2) for name in by_two], *map(small, others)], check, are_kept=True)


@pytest.mark.thorough
def test_another_architecture_with_tma():
    """99 KiB of shared memory: k-tiles of 64 bytes along K."""
    plan = plan_named("mma_tma_256x128", Operands.of("bf16", layout="nt"), arch="sm_120a")
    assert plan.cta_tile == (256, 128, 32)
    check(compile_plan(plan, "sm_120a"))


def test_where_an_address_is_the_xor_of_its_parts():
    from cutegemm.kernels.threads.fragments import lies_apart

    for name in FED:
        plan = form(name)
        for operand, atom, given in (("a", plan.a.read, plan.a.smem), ("b", plan.b.read, plan.b.smem)):
            assert isinstance(given, ComposedLayout)
            assert lies_apart(plan.tiled_mma, operand, atom, given), (name, operand)


def test_a_plan_from_another_process_is_traced_alike():
    """TMA rounds operands that the tensor map declares as tf32, as the plan says, also if a pool of processes
    compiles."""
    plan = plan_named("mma_tma_256x128", Operands.of("f32", layout="nt"))
    sent = pickle.loads(pickle.dumps(plan))
    kinds = [[x.element_type for x in fake_arguments(p)[:4]] for p in (plan, sent)]
    assert kinds[0] == kinds[1] == [cutlass.TFloat32] * 2 + [cutlass.Float32] * 2
    assert fake_arguments(sent.with_(rounding="rz"))[0].element_type is cutlass.Float32
