"""Emulated sm_90 kernels: exact results, and faults that are planted in their PTX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.choice.catalog import plan_named
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import round_to
from cutegemm.errors import EmulationError
from cutegemm.machine.arch import arch_named
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.launches import launches_of
from cutegemm.run.emulated import Emulation, emulate
from tests.emulator.snippets import edited
from tests.kernels.plans import asks_for_the_shared_memory_of
from tests.kernels.sm90_forms import covering, fitting, form, on_few_ctas


def plan_of(name: str) -> GemmPlan:
    """Return a form or a named plan. "pingpong on 2" is the form "pingpong" with a grid of 2 CTAs."""
    name, _, ctas = name.partition(" on ")
    if not name.startswith("sm90_"):
        return form(name, int(ctas or 132))
    return plan_named(name, Operands.of("bf16", layout="nt"))


def run(plan: GemmPlan, mnk: tuple[int, int, int], batch: int = 0, **options: Any) -> tuple[Emulation, Any]:
    """Emulate a plan on small whole numbers. Return the emulation and the expected D."""
    m, n, k = mnk
    rng = np.random.default_rng(m + n + k)
    lead = (batch,) if batch else ()
    kind = np.int8 if plan.operands.a.dtype.name == "s8" else np.float32
    a, b, c = (rng.integers(-3, 4, (*lead, *shape)) for shape in ((m, k), (k, n), (m, n)))
    alpha, beta = options.pop("alpha", 1.0), options.pop("beta", 0.0)
    given = c.astype(np.float32) if beta else None
    found = emulate(plan, a.astype(kind), b.astype(kind), given, alpha=alpha, beta=beta, **options)
    return found, round_to(plan.operands.d.dtype, alpha * (a @ b) + beta * c)


@pytest.mark.parametrize("name", covering())
def test_forms_are_exact(name):
    """Run ragged problems of a few tiles and k-tiles. Launches use PDL as the plan says."""
    plan = on_few_ctas(name)
    bm, bn, bk = plan.cta_tile
    batch = 2 if plan.operands.batched else 0
    scalars = {"alpha": 1.5, "beta": -0.5} if plan.has_c else {}
    found, expected = run(plan, fitting(plan, bm + 9, bn + 11, 2 * bk + 5), batch, **scalars)
    assert asks_for_the_shared_memory_of(plan, found)
    assert found.d.dtype == expected.dtype
    assert (found.d == expected).all()
    planned = launches_of(plan, arch_named("sm_90a")).values()
    assert [launch.uses_pdl for launch in found.launches] == [launch.waits for launch in planned]


@pytest.mark.parametrize(
    ("name", "mnk", "options"),
    [
        ("sm90_multistage", (256, 256, 128), {}),
        ("sm90_64x32_multistage", (130, 72, 264), {"alpha": 0.5}),
        pytest.param("sm90_64x16_deep_2x1", (200, 40, 328), {}, marks=pytest.mark.thorough),
        ("sm90_64x16_deep_occ2", (200, 40, 904), {"seed": 1}),
        pytest.param("sm90_64x32_deep_1x1x2_occ2", (200, 40, 2184), {"seed": 1}, marks=pytest.mark.thorough),
        ("pingpong on 2", (256, 512, 640), {}),
        ("pingpong on 2", (128, 256, 0), {}),
        ("overlapped on 2", (384, 256, 320), {"alpha": 0.5}),
        ("overlapped on 2", (256, 256, 0), {}),
        pytest.param("read_a_2x1 on 4", (128, 64, 0), {}, marks=pytest.mark.thorough),
        pytest.param("pack_bf16_c on 4", (64, 128, 0), {"batch": 2}, marks=pytest.mark.thorough),
        ("two_level_pingpong on 4", (64, 136, 512), {}),  # an even number of k-tiles, one, none
        ("two_level_pingpong on 4", (64, 128, 128), {}),
        ("two_level_pingpong on 4", (64, 128, 0), {}),
    ],
)
def test_kernels_are_exact(name, mnk, options):
    plan = plan_of(name)
    found, expected = run(plan, mnk, **options)
    assert asks_for_the_shared_memory_of(plan, found)
    assert (found.d == expected).all()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ["pingpong on 2", "cluster_2x2_mn on 4"])
def test_any_order_of_warps_and_copies(name, seed):
    found, expected = run(plan_of(name), (256, 264, 200), seed=seed)
    assert (found.d == expected).all()


# --- faults ------------------------------------------------------------------------------------------------


FAULTS = {
    "no fence.proxy.async": (
        edited(r"fence\.proxy\.async\.shared::cta;", ""),
        r"reads shared memory at .* wrote by an ordinary store with no fence\.proxy\.async",
    ),
    "no fence.mbarrier_init": (
        edited(r"fence\.mbarrier_init\.release\.cluster;", ""),
        r"mbarrier at shared address \d+ is used .* no fence\.mbarrier_init",
    ),
    "no bar.sync after the barriers are made": (
        edited(r"bar\.sync\s+0;", "", 0),
        r"race: it reads shared memory at .* written by warp 1",
    ),
    "an arrival of empty too few": (
        edited(r"mov\.b32 (\s*%r\d+), 4;(\s*mbarrier\.init)", r"mov.b32 \1, 3;\2", 0),
        r"race: it writes shared memory at .* read by warp \d+",
    ),
    "an arrival of empty too many": (
        edited(r"mov\.b32 (\s*%r\d+), 4;(\s*mbarrier\.init)", r"mov.b32 \1, 5;\2", 0),
        r"deadlock(.|\n)*warp 0.* waits at line (.|\n)*lacks 1 of 5 arrivals and 0 bytes",
    ),
    "an arrival of full too many": (
        edited(r"mov\.b32 (\s*%r\d+), 1;(\s*mbarrier\.init)", r"mov.b32 \1, 2;\2", 0),
        r"deadlock(.|\n)*lacks 1 of 2 arrivals and 0 bytes",
    ),
    "fewer bytes than come": (
        edited(r"mov\.b32 (\s*%r\d+), 32768;", r"mov.b32 \1, 16384;"),
        r"wgmma.* reads shared memory at .* a copy to it is still under way",
    ),
    "more bytes than come": (
        edited(r"mov\.b32 (\s*%r\d+), 32768;", r"mov.b32 \1, 32784;"),
        r"deadlock(.|\n)*lacks 0 of 1 arrivals and 16 bytes",
    ),
    "the producer's parity never flips": (
        edited(r"(xor\.b32 \s*%r\d+, %r\d+), 1;", r"\1, 0;", 0),
        r"deadlock(.|\n)*waits for parity 0: phase 0 of the mbarrier",
    ),
    "a consumer does not wait for its stage": (
        edited(r"mbarrier\.try_wait\.parity\.shared\.b64 P1,[^;]*;\s*@P1", "@!P1", 1),
        r"wgmma.* reads shared memory at .* a copy to it is still under way",
    ),
    "no order barrier": (
        edited(r"bar\.sync\s+%r\d+, 256;", "", 0),
        r"wgmma.* reads shared memory at .* a copy to it is still under way",
    ),
    "a store without its epilogue tile's barrier": (
        edited(r"bar\.sync\s+%r\d+, 128;", "", 0),
        r"race: it reads shared memory at .* written by warp \d+",
    ),
    "an epilogue stage is written while it is stored": (
        edited(r"(cp\.async\.bulk\.wait_group\.read\s+)2;", r"\g<1>3;"),
        r"bulk_group.*race: it reads shared memory at .* written by warp 4 with no barrier in between",
    ),
    "stores are not waited for": (
        edited(r"cp\.async\.bulk\.wait_group\.read\s+\d;", ""),
        r"thread ends before this copy has read shared memory",
    ),
    "no wgmma.fence": (edited(r"wgmma\.fence\.sync\.aligned;", "", 0), r"no wgmma\.fence"),
    "accumulators are used too early": (
        edited(r"(wgmma\.wait_group\.sync\.aligned\s+)0;", r"\g<1>1;"),
        r"it uses %r\d+ while the wgmma of line \d+ is under way",
    ),
    "a stage is released too early": (
        edited(r"(wgmma\.wait_group\.sync\.aligned\s+)1;", r"\g<1>2;"),
        r"wgmma.* reads shared memory at .* a copy to it is still under way",
    ),
    "more registers than an SM has": (
        edited(r"(setmaxnreg\.inc\.sync\.aligned\.u32\s+)232;", r"\g<1>240;"),
        r"deadlock(.|\n)*warp \d+ waits at line \d+: setmaxnreg",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault):
    edit, says = FAULTS[fault]
    plan = plan_of("pingpong on 2")
    with pytest.raises(EmulationError, match=says):
        run(plan, (256, 512, 448), ptx=edit(compile_plan(plan).ptx))


@pytest.mark.parametrize("which", [0, -1])
def test_a_fence_must_precede_the_store(which):
    """The fence must precede the store instruction. A later one, of the next epilogue tile, is too late."""
    edit, says = edited(r"fence\.proxy\.async\.shared::cta;", "", which), FAULTS["no fence.proxy.async"][1]
    plan = plan_of("pingpong on 2")
    with pytest.raises(EmulationError, match=says):
        run(plan, (256, 256, 64), ptx=edit(compile_plan(plan).ptx))


@pytest.mark.parametrize(
    ("name", "edit", "says"),
    [
        (
            "cluster_2x2_mn on 4",
            edited(r"barrier\.cluster\.(arrive\.relaxed|wait);", ""),
            r"race: it reads shared memory at .* written by warp 1 with no barrier",
        ),
        (  # all threads arrive at the cluster barrier, but none waits
            "cluster_2x2_mn on 4",
            edited(r"barrier\.cluster\.wait;", ""),
            r"mbarrier at shared address \d+ in CTA .* is used by a thread that has not waited at barrier\.cluster",
        ),
        (  # consumers release stages to the first CTA only, which overwrites those of the others
            "cluster_2x2_mn on 4",
            edited(r"(mapa\.shared::cluster\.u32 \s*%r\d+, %r\d+), %r\d+;", r"\1, 0;"),
            r"wgmma.* reads shared memory at .* a copy to it is still under way",
        ),
        (  # the producer does not wait for the release of its last stages
            "cluster_2x2_mn on 4",
            edited(r"mbarrier\.try_wait\.parity\.shared\.b64 P1,[^;]*;\s*@P1", "@!P1", 1),
            r"mbarrier\.arrive.* in CTA .*, which has ended",
        ),
        (
            "c_f32_batched",
            edited(r"mbarrier\.try_wait\.parity\.shared\.b64 P1,[^;]*;\s*@P1", "@!P1", 2),
            r"ld\.shared.*race: it reads shared memory at .* written by an asynchronous copy",
        ),
        (  # A of the next k-tile is read to registers that a wgmma still uses
            "read_a_2x1 on 4",
            edited(r"(wgmma\.wait_group\.sync\.aligned\s+)0;", r"\g<1>1;", 0),
            r"ld\.shared.*it uses %r\d+ while the wgmma of line \d+ is under way",
        ),
        (
            "sm90_multistage",
            edited(r"bar\.sync\s+0;", "", 1),
            r"cp\.async\.bulk.*race: it writes shared memory at .* read by warp \d+",
        ),
    ],
)
def test_faults_of_other_kernels_are_found(name, edit, says):
    plan = plan_of(name)
    batch = {"batch": 2, "beta": 1.0} if plan.operands.batched else {}
    with pytest.raises(EmulationError, match=says):
        run(plan, (256, 256, 640) if not batch else (128, 128, 64), ptx=edit(compile_plan(plan).ptx), **batch)
