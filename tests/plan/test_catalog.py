"""The named plans: which operands they serve, what their text says, and which one is chosen."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.choice.catalog import choose, chosen, plan_named, plans
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan import Operands, Problem
from cutegemm.simulator import simulate

LAYOUTS = ("nn", "nt", "tn", "tt")
SIMT = [name for name, _ in plans() if name.startswith("simt")]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SIMT)
def test_every_name_serves_f32_of_any_layout_and_alignment(name, layout):
    for align, out_major in ((16, "n"), (8, "m"), (4, "n")):
        plan = plan_named(name, Operands.of("f32", layout=layout, align_bytes=align, out_major=out_major))
        assert plan.name == name
        assert plan.summary
        assert plan.violations("sm_90a") == []


def test_what_other_architectures_refuse():
    """`refusals` says all that `violations` says of a plan that exists."""
    refused = dict.fromkeys(("sm_80", "sm_89", "sm_90", "sm_90a", "sm_120a"), 0)
    for name, _ in plans():
        for dtype in ("f32", "bf16", "e4m3"):
            try:
                plan = plan_named(name, Operands.of(dtype, layout="nt"))
            except PlanError:
                continue
            for arch in refused:
                assert plan.refusals(arch) == plan.violations(arch)
                refused[arch] += bool(plan.refusals(arch))
    assert refused["sm_90a"] == 0
    assert min(count for arch, count in refused.items() if arch != "sm_90a") > 100  # wgmma alone


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_other_types_are_served_by_some(dtype):
    for layout in LAYOUTS:
        for align in (16, Operands.of(dtype).a.dtype.bits // 8):
            assert choose(Operands.of(dtype, layout=layout, align_bytes=align), Problem(300, 300, 300), "sm_80")


@pytest.mark.parametrize(
    ("name", "layout"), [(name, LAYOUTS[(i + more) % 4]) for i, name in enumerate(SIMT) for more in (0, 2)]
)
def test_simulated(name, layout):
    rng = np.random.default_rng(0)
    plan = plan_named(name, Operands.of("f32", layout=layout, align_bytes=4))
    m, n, k = plan.cta_tile[0] + 3, plan.cta_tile[1] + 5, 2 * plan.cta_tile[2] + 7
    a, b = (rng.integers(-4, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    assert (simulate(plan, a, b).d == a @ b).all()


def test_a_name_that_there_is_not():
    with pytest.raises(UnsupportedError, match=r"no plan is called 'simt_9x9'.*Is it simt_96x192.*cutegemm plans"):
        plan_named("simt_9x9", Operands.of("f32"))


def test_a_plan_spelled_out():
    text = "simt:block=128x128x16,warp=64x64,thread=8x16,stages=3,mma_order=n,load_b=register,shared_b=mn+8"
    plan = plan_named(text, Operands.of("f32"))
    assert (plan.cta_tile, plan.stages, plan.mma_order) == ((128, 128, 16), 3, "n")
    assert not plan.b.load.atom.is_async
    assert str(plan.b.smem) == "(128,16,3):(1,136,2176)"
    with pytest.raises(PlanError, match="'blok' is not an argument; the arguments are block"):
        plan_named("simt:blok=1x1x1", Operands.of("f32"))
    with pytest.raises(PlanError, match="'stages=two': a whole number is expected"):
        plan_named("simt:stages=two", Operands.of("f32"))


def test_the_choice_by_size():
    def chosen(m, n, k, layout="nn"):
        return choose(Operands.of("f32", layout=layout), Problem(m, n, k)).name

    assert chosen(8192, 8192, 8192, "tn") == "simt_256x128"
    assert chosen(8192, 8192, 8192, "nn") == chosen(8192, 8192, 8192, "nt") == "simt_256x128+repack"
    assert "/k" in chosen(64, 64, 4096)
    sizes = [chosen(n, n, n) for n in (128, 1024, 4096)]
    tiles = [np.prod(plan_named(name, Operands.of("f32")).cta_tile[:2]) for name in sizes]
    assert tiles == sorted(tiles)


def test_the_choice_is_remembered():
    problem = Problem(777, 555, 333)
    assert choose(Operands.of("f32"), problem) is choose(Operands.of("f32"), problem)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["f32", "tf32", "bf16", "e4m3"])
@pytest.mark.parametrize("extents", [(0, 64, 4096), (64, 0, 40960), (64, 64, 0), (0, 0, 0), (1, 1, 1)])
def test_an_empty_problem_has_a_plan(kind, extents):
    operands = Operands.of(kind, layout="nt")
    assert chosen(operands, Problem(*extents, operands=operands))[1].operands.a.dtype.name == kind
