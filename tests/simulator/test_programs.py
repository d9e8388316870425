"""Programs: sound ones have no fault in any order, with data neither; a step that is planted wrong is found.

Every fault is planted in the program that kernel, simulator and protocol share, and found on the CPU.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest

from cutegemm.build import mma_tma_plan, sm90_plan
from cutegemm.dtypes import round_to
from cutegemm.layout import product
from cutegemm.plan import Operands, Problem
from cutegemm.plan.mainloop.promoted import Promote
from cutegemm.plan.mainloop.warp_mma import MultiplyBlock, ReadFirst
from cutegemm.plan.program import steps as step
from cutegemm.simulator import play_interleavings, protocol_of, search_interleavings
from cutegemm.simulator.arguments import laid_out
from cutegemm.simulator.report import Report
from cutegemm.simulator.roles import run_roles
from cutegemm.simulator.task import Task
from tests.kernels.sm90_forms import covering, on_few_ctas
from tests.marks import with_thorough

BF16 = Operands.of("bf16", layout="nt")
E4M3 = Operands.of("e4m3", layout="nt", out="bf16")
SHARED = {"schedule": "cooperative", "tile": (128, 64, 64), "epi_tile_n": 32, "ctas": 2, "stages": 3}
IN_TURN = {"tile": (64, 64, 64), "epi_tile_n": 32, "epi_stages": 2, "ctas": 2, "stages": 3}
PLANS = {
    "pingpong": (BF16, IN_TURN),
    "pingpong, C": (BF16, {**IN_TURN, "with_c": True}),
    "pingpong, four epilogue tiles of C": (BF16, {**IN_TURN, "tile": (64, 128, 64), "with_c": True}),
    "pingpong of three": (BF16, {**IN_TURN, "consumers": 3}),
    "cooperative": (BF16, SHARED),
    "staggered": (BF16, {**SHARED, "stagger_cycles": 100}),
    "overlapped": (BF16, {**SHARED, "overlapped": True}),
    "deferred, staggered": (BF16, {**SHARED, "overlapped": True, "stagger_cycles": 100}),
    "two-level": (E4M3, {**SHARED, "tile": (128, 64, 128), "promoted": True}),
    "two-level, halves": (E4M3, {**SHARED, "tile": (128, 160, 128), "promoted": True}),
    "two-level, pingpong": (E4M3, {**IN_TURN, "tile": (64, 64, 128), "promoted": True}),
    "two-level, at once": (E4M3, {**SHARED, "tile": (128, 64, 128), "promoted": True, "at_once": True}),
    "epilogue stages left over": (BF16, {**SHARED, "tile": (128, 80, 64), "epi_tile_n": 16, "epi_stages": 2}),
    "epilogue stages left over, rows of a warp": (
        BF16,
        {**IN_TURN, "tile": (64, 80, 64), "epi_tile_n": 16, "epi_stages": 3, "store": "tma_warp"},
    ),
    "two wgmmas wide": (
        BF16,
        {**SHARED, "tile": (64, 272, 64), "consumers": 1, "epi_tile_n": 16, "cluster": (2, 1), "epi_stages": 2},
    ),
    "odd groups of columns": (BF16, {**SHARED, "tile": (128, 120, 64), "epi_tile_n": 40, "epi_stages": 3}),
    "multistage": (BF16, {"schedule": "single", "tile": (64, 64, 64), "epi_tile_n": 32, "stages": 3}),
    "split": (BF16, {**IN_TURN, "split_k": 3}),
    "split, C": (BF16, {**IN_TURN, "split_k": 2, "with_c": True}),
    "split, cooperative": (BF16, {**SHARED, "split_k": 2}),
    "stream": (BF16, {**IN_TURN, "stream": 1}),
    "fixup": (BF16, {**IN_TURN, "fixup": True, "ctas": 3}),
    "fill, deferred": (BF16, {**SHARED, "fixup": True, "overlapped": True, "ctas": 3}),
    "fill, two-level": (E4M3, {**SHARED, "tile": (128, 64, 128), "promoted": True, "fixup": True, "ctas": 3}),
    "rows of a warp": (BF16, {**IN_TURN, "store": "tma_warp"}),
    "epilogue stages by threads": (BF16, {**IN_TURN, "shared_d": "padded"}),
    "direct": (BF16, {**IN_TURN, "store": "direct", "epi_stages": None}),
    "cluster": (BF16, {**IN_TURN, "cluster": (2, 1)}),
}


def plan_of(name):
    operands, options = PLANS[name]
    if name == "warps":
        return mma_tma_plan(Operands.of("bf16"), block=(64, 64, 64), warp=(32, 32), stages=3, ctas=2)
    return sm90_plan(operands, **options)


PLANS["warps"] = (BF16, {})


def cases(plan):
    """(k-tiles, tiles) that go twice around the mainloop pipeline, and none, one, two and few."""
    stages = plan.stages
    if plan.scheduler.split.is_split:
        return [(17, 7), (0, 2)]
    most = 4 if plan.scheduler.grid.is_persistent else 1
    return [(2 * stages + 1, most), (2, most), (1, most), (0, 2)]


def played(plan, programs=None, until=None, **options):
    """What is found in the cases, warps told apart; `until` a text is found that is looked for."""
    found = []
    for k_tiles, tiles in cases(plan):
        protocol = protocol_of(
            plan, k_tiles=k_tiles, tiles=tiles, programs=programs, warps=not plan.scheduler.split.is_split
        )
        found += [f.text for f in play_interleavings(protocol, **{"random_runs": 1, **options}).faults]
        if until is not None and any(text in each for text in until for each in found):
            break
    return " | ".join(dict.fromkeys(found))


def with_data(plan, programs=None):
    """What is found with data: (faults by kind, whether D is right)."""
    bm, bn, bk = plan.cta_tile
    rows = plan.scheduler.grid.ctas or 1
    m, n, k = 2 * rows * bm - 3, 2 * bn - 8, (2 * plan.stages + 1) * bk - 7
    if not plan.scheduler.grid.is_persistent:
        m, n = bm - 3, bn - 8
    rng = np.random.default_rng(0)
    given = {
        name: rng.integers(-3, 4, shape).astype(np.float32)[None]
        for name, shape in (("a", (m, k)), ("b", (k, n)), ("c", (m, n)))
        if name != "c" or plan.has_c
    }
    problem = Problem(m, n, k, 1, plan.operands.fitted(m, n, k))
    scalars = {"alpha": 2.0, "beta": -1.0 if plan.has_c else 0.0}
    report = Report()
    matrices = laid_out(problem, given)
    run_roles(Task(plan, problem, matrices, scalars, report, True), programs)
    d = np.moveaxis(matrices["d"].view(matrices["d"].buffer), 2, 0)[0]
    want = 2 * (given["a"][0] @ given["b"][0]) - (given["c"][0] if plan.has_c else 0)
    return {fault.kind: str(fault) for fault in report.faults()}, np.array_equal(
        d, round_to(plan.operands.d.dtype, want)
    )


# Each of their steps is in a program of the others.
THOROUGH = (
    "pingpong of three", "staggered", "deferred, staggered", "epilogue stages left over, rows of a warp",
    "two wgmmas wide",
    "odd groups of columns", "two-level, halves", "split, cooperative", "stream", "fill, two-level",
)  # fmt: skip


@pytest.mark.parametrize("name", with_thorough(PLANS, THOROUGH))
def test_a_sound_program_has_no_fault(name):
    plan = plan_of(name)
    assert played(plan) == ""
    assert with_data(plan) == ({}, True)


def test_programs_in_all_orders():
    for options in ({"store": "direct"}, {"epi_stages": 2, "epi_tile_n": 32, "tile": (64, 64, 64)}):
        plan = sm90_plan(
            BF16, **{"tile": (64, 64, 64), "consumers": 1, "schedule": "cooperative", "stages": 2, **options}
        )
        report = search_interleavings(protocol_of(plan, k_tiles=2, tiles=2))
        assert (report.faults, report.exhaustive) == ((), True)


@functools.cache
def faults_in_many_interleavings(protocol):
    """Forms that differ in what is moved and multiplied have one protocol, which is played once."""
    return play_interleavings(protocol, random_runs=1).faults


@pytest.mark.parametrize("name", covering())
def test_the_program_of_every_form_in_many_interleavings(name):
    plan = on_few_ctas(name)
    is_large = product(plan.cluster_mn) > 4  # interleavings take as many times as long
    k_tiles = plan.stages + 1 if is_large else 2 * plan.stages + 1
    protocol = protocol_of(plan, k_tiles=k_tiles, tiles=3 if plan.scheduler.grid.is_persistent else 1)
    assert faults_in_many_interleavings(protocol) == ()


# --- planted faults ------------------------------------------------------------------------------------------


def planted(name, edit, role="consumer"):
    """What is found where each step of a role goes through `edit`; the barriers are those of the sound programs."""
    plan = plan_of(name)
    programs = {r: p.edited(edit) for r, p in plan.programs.items() if r.startswith(role)}
    assert any(programs[r] != plan.programs[r] for r in programs), "nothing was planted"
    return plan, programs


def without(kind, **values):
    """An edit that takes steps of a kind out, those with some values alone."""
    return lambda each: (
        None if isinstance(each, kind) and all(getattr(each, k) == v for k, v in values.items()) else each
    )


def changed(kind, where=lambda each: True, **values):
    """An edit that changes steps of a kind."""
    return lambda each: replace(each, **values) if isinstance(each, kind) and where(each) else each


IN_A_TILE = ("pingpong", "cooperative", "overlapped", "split", "fill, deferred", "cluster")
STAGE_FAULTS = "overwritten stage|early read|wrong read|deadlock|never happen"


def is_found(name, edit, *what, role="consumer"):
    plan, programs = planted(name, edit, role)
    found = played(plan, programs, until=what)
    assert any(text in found for text in what), found or "nothing was found"


@pytest.mark.parametrize("name", [*IN_A_TILE, "multistage"])
def test_a_consumer_that_does_not_wait_for_a_stage(name):
    is_found(name, without(step.Wait, barrier="full"), "early read", "wrong read", "deadlock")


@pytest.mark.parametrize("name", [*IN_A_TILE, "two-level", "two-level, halves", "warps"])
def test_a_producer_that_does_not_wait_for_a_stage(name):
    edit = without(step.Wait, barrier="empty")
    is_found(name, edit, "overwritten stage", "which has ended", "wrong arrival count", role="producer")


@pytest.mark.parametrize("name", [*IN_A_TILE, "two-level", "two-level, halves"])
def test_a_release_too_few(name):
    """After the last k-tile of a tile: its stage is never free."""

    def forget(each):
        is_last = isinstance(each, step.If) and each.condition == step.HAS_K_TILES
        return None if is_last else each

    is_found(name, forget, "deadlock", "wrong arrival count")


@pytest.mark.parametrize("name", [*IN_A_TILE, "two-level", "two-level, halves"])
def test_a_release_of_a_stage_that_products_still_read(name):
    is_found(name, changed(step.Release, previous=False), *STAGE_FAULTS.split("|"))


@pytest.mark.parametrize("name", IN_A_TILE)
@pytest.mark.parametrize("which", [step.FIRST_BLOCK, step.OTHER_BLOCKS])
def test_k_blocks_that_are_multiplied_twice_and_never(name, which):
    other = {step.FIRST_BLOCK: step.OTHER_BLOCKS, step.OTHER_BLOCKS: step.FIRST_BLOCK}[which]
    edit = changed(step.Multiply, lambda each: each.k_blocks == which, k_blocks=other)
    plan, programs = planted(name, edit)
    assert " instead of " in str(with_data(plan, programs)[0])


TWO_LEVEL = ("two-level", "fill, two-level", "two-level, pingpong", "two-level, halves")


@pytest.mark.parametrize("name", TWO_LEVEL)
@pytest.mark.parametrize("pending", [0, 1])
def test_sums_of_a_k_tile_that_are_not_waited_for(name, pending):
    """Its sums are added while its products may still be under way; a wait for all of them guards its stage too."""

    def fault(each):
        is_meant = isinstance(each, step.WaitMma) and each.pending == pending
        return replace(each, pending=pending + 1) if is_meant else each

    plan, programs = planted(name, fault)
    if plan.b_column_blocks == 1 or not pending:
        assert "overwritten stage" in played(plan, programs, until=("overwritten stage",))
    assert "while MMAs write them" in str(with_data(plan, programs)[0])


@pytest.mark.parametrize("name", TWO_LEVEL)
@pytest.mark.parametrize("which", [(step.FIRST, step.LEFT), (step.SECOND, step.RIGHT)])
@pytest.mark.parametrize("kind", [step.Multiply, Promote])
def test_sums_that_are_mistaken_for_others(name, which, kind):
    """Products to the sums that are being added, or sums that are added twice, and the others never."""
    other = {
        step.FIRST: step.SECOND,
        step.SECOND: step.FIRST,
        step.LEFT: step.RIGHT,
        step.RIGHT: step.LEFT,
    }

    def fault(each):
        return (
            replace(each, accumulators=other[each.accumulators])
            if isinstance(each, kind) and each.accumulators in which
            else each
        )

    plan, programs = planted(name, fault)
    faults, is_right = with_data(plan, programs)
    assert faults or not is_right


@pytest.mark.parametrize("name", TWO_LEVEL)
@pytest.mark.parametrize("fault", [without(Promote), without(step.Clear)])
def test_levels_that_are_not_kept_apart(name, fault):
    plan, programs = planted(name, fault)
    faults, is_right = with_data(plan, programs)
    assert faults or not is_right


@pytest.mark.parametrize("name", TWO_LEVEL)
def test_the_odd_k_tile_of_two_at_a_time(name):
    """Left out, or not gone past: the k-tiles after it are read from the wrong stages."""
    is_found(name, without(step.If, condition=step.HAS_ODD_K_TILES), *STAGE_FAULTS.split("|"))
    is_found(name, without(step.Advance), *STAGE_FAULTS.split("|"))


@pytest.mark.parametrize("name", ["pingpong", "pingpong of three", "two-level, pingpong", "fixup"])
def test_a_turn_that_is_not_handed_over(name):
    is_found(name, without(step.PassOrder), "deadlock")
    is_found(name, without(step.OpenOrder), "deadlock")


@pytest.mark.parametrize("name", ["pingpong", "pingpong of three", "stream", "fixup"])
@pytest.mark.parametrize("whose", [step.BEFORE, step.OTHERS])
def test_a_wrong_skip(name, whose):
    is_found(name, without(step.Skip, whose=whose), *STAGE_FAULTS.split("|"))


@pytest.mark.parametrize("name", ["multistage"])
def test_a_stage_that_others_may_still_read(name):
    is_found(name, without(step.WaitMma, pending=1), "overwritten stage")


@pytest.mark.parametrize("name", ["pingpong", "cooperative", "overlapped", "split", "fill, deferred", "rows of a warp"])
def test_a_slot_that_is_written_too_early(name):
    is_found(name, without(step.WaitStores), "overwritten epilogue stage")


@pytest.mark.parametrize(
    ("name", "by"),
    [("epilogue stages left over", step.FIRST_WARP), ("epilogue stages left over, rows of a warp", step.EACH_WARP)],
)
def test_a_tile_that_begins_with_slots_in_use(name, by):
    is_found(name, without(step.WaitStores, pending=0, by=by), "overwritten epilogue stage")


@pytest.mark.parametrize("name", ["pingpong", "cooperative", "overlapped", "epilogue stages by threads"])
def test_a_slot_that_not_all_have_written(name):
    is_found(name, without(step.SyncEpiTile), "early store")


@pytest.mark.parametrize("name", ["pingpong, C", "pingpong, four epilogue tiles of C"])
def test_c_that_comes_to_a_slot_in_use(name):
    is_found(name, without(step.WaitStores), "bulk copy of epilogue tile", "which still has")


def test_c_that_is_not_asked_for():
    is_found("pingpong, four epilogue tiles of C", without(step.LoadEpiTile, ahead=2), "deadlock")
    is_found("pingpong, C", without(step.LoadEpiTile, ahead=None), "deadlock")


@pytest.mark.parametrize("name", ["overlapped", "fill, deferred", "deferred, staggered"])
def test_a_tile_that_is_held_and_never_stored(name):
    """Return the epilogue tiles that are left over because the next tile has too few k-tiles."""
    plan, programs = planted(
        name, lambda each: None if isinstance(each, step.ForEpiTiles) and each.overlapped else each
    )
    assert "is stored by no consumer" in played(plan, programs, until=("is stored by no",))
    faults, is_right = with_data(plan, programs)
    assert faults or not is_right


@pytest.mark.parametrize("name", ["overlapped", "fill, deferred"])
def test_a_last_tile_that_nobody_comes_back_for(name):
    plan, programs = planted(name, changed(step.ForTiles, lasting=False))
    assert "is stored by no consumer" in played(plan, programs, until=("is stored by no",))
    assert "result" in with_data(plan, programs)[0]


@pytest.mark.parametrize("name", ["overlapped", "fill, deferred"])
def test_subtiles_of_a_tile_that_another_one_has_replaced(name):
    plan, programs = planted(name, without(step.OverlappedEpiTile))
    faults, is_right = with_data(plan, programs)
    assert faults or not is_right


@pytest.mark.parametrize(
    "name", ["split", "split, cooperative", "stream", "fixup", "fill, deferred", "fill, two-level"]
)
def test_parts_that_nobody_adds(name):
    is_found(name, without(step.ReduceSplits), "is stored", "left at")
    is_found(name, without(step.IncrementSemaphore), "early read")


@pytest.mark.parametrize("name", ["split", "stream", "fixup"])
def test_every_part_that_stores(name):
    def always(each):
        return (
            replace(each, condition=step.HAS_K_TILES) if getattr(each, "condition", "") == step.IS_LAST_SPLIT else each
        )

    is_found(name, always, "is stored 2 times", "is stored 3 times")


@pytest.mark.parametrize(
    "name", [*IN_A_TILE, "multistage", "two-level", "rows of a warp", "epilogue stages by threads", "direct", "warps"]
)
def test_a_tile_that_is_not_stored(name):
    plan, programs = planted(name, without((step.ForEpiTiles, step.StoreTile, step.KeepTile)))
    assert "is stored by no consumer" in played(plan, programs, until=("is stored by no",))
    faults, _ = with_data(plan, programs)
    assert "written 0 times" in faults["result"]


@pytest.mark.parametrize("name", PLANS)
def test_products_that_are_left_out(name):
    plan, programs = planted(name, without((step.Multiply, MultiplyBlock, ReadFirst)))
    assert played(plan, programs, until=("",)) != ""


def test_a_k_block_that_is_left_out():
    plan, programs = planted("warps", without(MultiplyBlock, k_block=1, ahead=0))
    assert "multiplies k-block 2 instead of 1" in str(with_data(plan, programs)[0])


def test_consumers_that_begin_together_where_they_should_not():
    """Stagger is a matter of time, and of nothing else: without it the program is as sound."""
    plan, programs = planted("staggered", without(step.Stagger))
    assert played(plan, programs) == ""
