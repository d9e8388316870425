"""What is passed to a builder or to the catalog by mistake is reported, all of it at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cutegemm import (
    LayoutError,
    Operands,
    PlanError,
    Problem,
    UnsupportedError,
    mma_sync_plan,
    plan_named,
    simt_plan,
    sm90_plan,
)
from cutegemm.analysis import check, search_plan
from cutegemm.build.mma_sync_tma import mma_tma_plan
from cutegemm.choice.catalog import choose
from cutegemm.plan import GemmPlan
from cutegemm.simulator import simulate


@pytest.mark.parametrize(
    ("call", "rules"),
    [
        (lambda: simt_plan("f32"), ["operands = 'f32'; Operands are expected"]),
        (
            lambda: simt_plan(block=128, warp=[64, 32], thread=(8.0, 8), quad=(True, 4), stages="3"),
            ["block = 128; 3", "warp = [64, 32]; 2", "thread = (8.0, 8); 2", "quad = (True, 4); 2", "stages = '3'; an"],
        ),
        (lambda: simt_plan(block=(128, -128, 8)), ["block = (128, -128, 8); 3 positive integers are expected."]),
        (lambda: mma_sync_plan("bf16", block=(128, 128)), ["operands = 'bf16'", "block = (128, 128); 3"]),
        (lambda: mma_tma_plan("bf16", block=128), ["operands = 'bf16'", "block = 128; 3 positive"]),
        (lambda: mma_sync_plan(stages=None), ["stages = None; an integer is expected."]),
        (
            lambda: sm90_plan(tile=(128, 128), cluster=2, stages=2.5, split_k="4"),
            ["tile = (128, 128); 3", "cluster = 2; 2", "split_k = '4'; an integer", "stages = 2.5; a positive"],
        ),
        (
            lambda: sm90_plan(registers=(40,), consumers=-1, stages=0, epi_stages="2", ctas=1.5),
            ["registers = (40,); 2", "consumers = -1; a positive integer", "stages = 0; a", "epi_stages = '2'; a",
             "ctas = 1.5; a positive integer is expected."],
        ),
        (
            lambda: sm90_plan(schedule="what", store="now", shared_d="no", raster="q", l2=("evict_last",), repack="c"),
            ["schedule = 'what' is neither 'pingpong' nor", "store = 'now' is neither", "shared_d = 'no' is neither",
             "Raster.parse: 'q' is not a ras", "l2 = ('evict_last',); three of evict_normal", "repack = 'c' is"],
        ),
        (
            lambda: sm90_plan(Operands.of("tf32"), tile=(64, 24, 32), cluster=(1, 3), split_k=0),
            ["B is n-major, but wgmma takes only k-major tf32",
             "TMA stores D of f32 in epilogue tiles of 16 or 32 columns, but none divides a tile of",
             "tile = (64, 24, 32), cluster = (1, 3): A: 64 rows of ", "splits = 0; at least 1"],
        ),
        (
            lambda: plan_named("sm90:tile=128x128x64,l2=last,epi_tile_n=24", Operands.of("bf16", layout="nt")),
            ["l2 = ('evict_last',); three of",
             "epi_tile_n = 24: epilogue tiles of 24 columns do not divide a tile of 128 columns; 16,"],
        ),
        (lambda: simt_plan(raster="zigzag", repack="c"), ["Raster.parse: 'zigzag' is not a ras", "repack = 'c' is"]),
        (lambda: mma_sync_plan(stages=0), ["stages = 0; at least 1 is expected."]),
        (lambda: mma_sync_plan(raster="zigzag", read="no"), ["Raster.parse: 'zigzag'", "read = 'no' is neither"]),
        (lambda: plan_named("simt:block=128x128", Operands.of("f32")), ["block = (128, 128); 3"]),
        (
            lambda: plan_named("simt:stages=two,warp=8,warp=9,prefetch=?,block=8xx", Operands.of("f32")),
            ["'stages=two': a whole number is expected.", "'warp' is given twice.",
             "'prefetch=?': 1 for yes or 0 for no is expected.",
             "'block=8xx': numbers joined by x are expected."],
        ),
        (lambda: simt_plan().with_(stages=3, name="x", tile=1), ["'stages' is not a field of a plan", "'tile' is not"]),
        (
            lambda: simt_plan().with_stream("a", shared=3),
            ["'shared' is not a field of an operand stream; the fields are name, mode, load, smem"],
        ),
        (lambda: Problem(1, -2, 3, operands="f32"), ["n = -2; an integer", "operands = 'f32'; Operands are"]),
        (lambda: plan_named(3, "f32"), ["operands = 'f32'", "name = 3; expected the name of a plan, as listed by"]),
    ],
)  # fmt: skip
def test_arguments_of_another_kind(call: Callable[[], object], rules: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        call()
    assert [said[: len(rule)] for said, rule in zip(caught.value.violations, rules, strict=True)] == rules


def test_a_part_that_a_plan_has_not() -> None:
    with pytest.raises(UnsupportedError, match="'full' is not the name of one; the names are cta"):
        simt_plan().barrier("full")
    with pytest.raises(
        UnsupportedError, match="'all' is not the name of one; the names are producer, consumer 0, consumer 1"
    ):
        sm90_plan().role("all")
    with pytest.raises(UnsupportedError, match="'nosuch' is not the name of one; the names are full, empty"):
        sm90_plan().barrier_id("nosuch")
    with pytest.raises(UnsupportedError, match="'all' is not a role; the roles are producer, consumer 0"):
        sm90_plan().program("all")
    with pytest.raises(UnsupportedError, match=r"'all' is not a role; all threads follow"):
        simt_plan().program("all")
    with pytest.raises(UnsupportedError, match=r"architecture \[\] is not known. Use one of sm_"):
        mma_tma_plan(arch=[])
    with pytest.raises(UnsupportedError, match=r"device 3 is not known. Use one of "):
        check(simt_plan(), device=3)
    with pytest.raises(UnsupportedError, match=r"architecture 3 is not known. Use one of sm_"):
        check(simt_plan(), arch=3)
    with pytest.raises(LayoutError, match="does not have X in shared memory"):
        search_plan(simt_plan(), "x")


@pytest.mark.parametrize(
    "call",
    [
        lambda plan: plan.describe("4x4x4"),
        lambda plan: plan.violations(problem="4x4x4"),
        lambda plan: check(plan, "4x4x4"),
        lambda plan: simulate(plan, [[1.0]], [[1.0]], problem="4x4x4"),
    ],
)
def test_what_is_no_problem(call: Callable[[GemmPlan], object]) -> None:
    with pytest.raises(UnsupportedError, match="problem = '4x4x4'; a Problem is expected, of the plan's operands"):
        call(simt_plan())


def test_a_reason_is_said_once() -> None:
    """No plan counts so far, whatever its tile."""
    fp8 = Operands.of("e4m3", layout="nt")
    with pytest.raises(PlanError) as caught:
        choose(fp8, Problem(128, 128, 2**31 - 1, operands=fp8))
    assert [rule.split(": ")[1].split(",")[0] for rule in caught.value.violations] == ["K = 2147483647"]
    with pytest.raises(
        PlanError,
        match=r"e4m3 is multiplied by wgmma, which sm_90a has, or by mma\.sync from sm_89 on; sm_80 has neither",
    ):
        choose(Operands.of("e4m3", layout="nt"), Problem(128, 128, 128), "sm_80")
