"""Hopper plans that split K, on the CPU: exact, the same whoever ends last, and planted faults are found."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.build import sm90_plan
from cutegemm.dtypes import round_to
from cutegemm.plan import Operands, Problem
from cutegemm.plan.program.operations import (
    AwaitAccumulators,
    IncrementSemaphore,
    NamedSync,
    ReadAccumulators,
    ResetCounter,
    SignalAccumulators,
    WriteAccumulators,
)
from cutegemm.plan.work.scheduler import WorkGrid
from cutegemm.plan.work.tiles import TileGrid
from cutegemm.simulator import play_interleavings, protocol_of, search_interleavings, simulate
from cutegemm.simulator.report import Report
from cutegemm.simulator.work import Workspace
from cutegemm.tile.raster import Raster

BF16 = Operands.of("bf16", layout="nt")
SMALL = {"tile": (64, 64, 64), "epi_tile_n": 32, "ctas": 4}
TALL = {"tile": (128, 64, 64), "schedule": "cooperative"}
PLANS = {
    "split": {"split_k": 3},
    "split, C": {"split_k": 2, "with_c": True, "epi_stages": 2},
    "split, clusters": {"split_k": 5, "cluster": (1, 2)},
    "split, cooperative": {"split_k": 2, **TALL},
    "split, one CTA for each work tile": {"split_k": 4, "ctas": None, **TALL},
    "split, direct": {"split_k": 3, "store": "direct"},
    "stream": {"stream": 1},
    "stream of two waves": {"stream": 2},
    "stream, clusters": {"stream": 2, "cluster": (2, 1)},
    "stream, cooperative, C": {"stream": 1, "with_c": True, **TALL},
    "fixup": {"fixup": True},
    "fill, clusters": {"fixup": True, "cluster": (2, 1), "ctas": 6},
    "fill, cooperative, C": {"fixup": True, "with_c": True, **TALL},
    "fill, three in turn": {"fixup": True, "consumers": 3, "tile": (64, 64, 64)},
    "stream, three in turn": {"stream": 2, "consumers": 3, "tile": (64, 64, 64)},
}


def plan_of(name):
    return sm90_plan(BF16, **{**SMALL, **PLANS[name]})


def integers(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mnk", [(70, 136, 100), (64 * 5 - 3, 64 * 3, 777), (3, 8, 0)], ids=str)
def test_exact(name, mnk):
    plan, (m, n, k) = plan_of(name), mnk
    a, b, c = integers((m, k), (k, n), (m, n))
    if plan.has_c:
        got, want = simulate(plan, a, b, c, alpha=2, beta=-1).d, 2 * (a @ b) - c
    else:
        got, want = simulate(plan, a, b).d, a @ b
    assert np.array_equal(got, round_to(plan.operands.d.dtype, want))


@pytest.mark.parametrize("raster", ["along_m", "grouped_n:2", "hilbert:2"])
@pytest.mark.parametrize("options", [{"stream": 2}, {"fixup": True}, {"split_k": 3}], ids=str)
@pytest.mark.parametrize("mnk", [(64, 128, 64), (0, 128, 64), (64, 0, 64)], ids=str)
def test_work_tiles_past_the_last_tile(raster, options, mnk):
    """CTAs take a wave of work tiles at a time; some of them lie past the last tile."""
    alone = {"schedule": "cooperative", "consumers": 1, "raster": Raster.parse(raster)}
    plan, (m, n, k) = sm90_plan(BF16, **SMALL, **alone, **options), mnk
    a, b = integers((m, k), (k, n))
    assert np.array_equal(simulate(plan, a, b).d, round_to(plan.operands.d.dtype, a @ b))


def test_a_batch():
    plan = sm90_plan(Operands.of("bf16", layout="tt", batched=True), **SMALL, stream=2)
    a, b = integers((3, 130, 600), (3, 600, 72))
    assert np.array_equal(simulate(plan, a, b).d, round_to(plan.operands.d.dtype, a @ b))


def test_the_last_one_does_not_matter():
    """Sums in f32, of parts that arrive in every order, are the same to the last bit."""
    plan = sm90_plan(Operands.of("bf16", layout="nt", out="f32"), **SMALL, split_k=3)
    problem = Problem(64, 64, 192, operands=plan.operands)
    report = Report()
    grid = plan.work(problem)
    splits = [grid.tile((number,)) for number in range(3)]
    held = np.arange(64 * 64).reshape(1, 128, 32)
    rng = np.random.default_rng(1)
    accumulators = [rng.normal(size=(64, 64)).astype(np.float32) * 10.0**i for i in (6, 0, 3)]
    found = []
    for *before, last in ((0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
        workspace = Workspace(plan, problem, held, report)
        for i in before:
            workspace.write(accumulators[i], splits[i], 0, 0)
        found.append(workspace.total(accumulators[last], splits[last], 0, 0))
    assert report.faults() == ()
    assert all(np.array_equal(found[0], other) for other in found)
    assert np.array_equal(found[0], (accumulators[0] + accumulators[1]) + accumulators[2])
    assert not np.array_equal(found[0], accumulators[0] + (accumulators[1] + accumulators[2]))


def test_as_many_products_as_without_a_split():
    a, b = integers((130, 700), (700, 136))
    whole = simulate(sm90_plan(BF16, **SMALL), a, b).stats
    split = simulate(plan_of("split"), a, b).stats
    assert split.multiply_adds == whole.multiply_adds
    assert split.ctas == 3 * whole.ctas


# --- planted faults in the division ------------------------------------------------------------------------


def faults_of(monkeypatch, edit, **options):
    """What is found where all work tiles, in arrays, go through `edit`."""
    plan = sm90_plan(BF16, **{**SMALL, "split_k": 2, **options})
    real = WorkGrid.work_tile
    monkeypatch.setattr(WorkGrid, "work_tile", lambda self, number: edit(real(self, number), number))
    a, b = integers((130, 700), (700, 136))
    return {fault.kind: str(fault) for fault in simulate(plan, a, b, check="report").faults}


def test_a_k_tile_that_nobody_takes(monkeypatch):
    found = faults_of(monkeypatch, lambda w, i: replace(w, k_count=w.k_count - (i == 1)))
    assert "k-tile 10 of the tile (0, 0, 0) is multiplied 0 times" in found["split"]


def test_a_k_tile_that_two_parts_take(monkeypatch):
    found = faults_of(monkeypatch, lambda w, i: replace(w, k_first=w.k_first - (i == 3)))
    assert "is multiplied 2 times" in found["split"]


def test_a_part_in_the_slot_of_another_tile(monkeypatch):
    found = faults_of(monkeypatch, lambda w, i: replace(w, slot=w.slot - w.slot % 4))
    assert "are written to slot 0, which still has those of tile 0" in found["protocol"]


def test_sums_that_are_read_from_the_wrong_slot(monkeypatch):
    found = faults_of(monkeypatch, lambda w, i: replace(w, slot=w.slot + (i == 1)))
    assert "where this warp of the other K split has written" in found["protocol"]
    assert "early read of accumulators" in found["protocol"]


def test_fewer_parts_than_there_are(monkeypatch):
    found = faults_of(monkeypatch, lambda w, i: replace(w, splits=3), split_k=4)
    assert "result" in found


def test_a_tile_that_nobody_takes(monkeypatch):
    found = faults_of(monkeypatch, lambda w, i: replace(w, splits=w.splits * (w.tile != 2)))
    assert "no CTA takes the tile" in found["raster"]


def test_a_rank_that_takes_the_tile_of_another(monkeypatch):
    """In a cluster of 2 along M, where the second CTA is a tile too far along N."""
    real = TileGrid.tile_mnl

    def wrong(self, tile, rank=0):
        m, n, batch = real(self, tile, rank)
        return m - rank, n + rank, batch

    monkeypatch.setattr(TileGrid, "tile_mnl", wrong)
    a, b = integers((130, 64), (64, 136))
    plan = sm90_plan(BF16, **{**SMALL, "cluster": (2, 1)})
    found = {fault.kind: str(fault) for fault in simulate(plan, a, b, check="report").faults}
    assert "no CTA takes the tile (1, 0, 0)" in found["raster"]


# --- who adds up, and when: faults in operations -----------------------------------------------------------


def texts(protocol, **options):
    return " | ".join(fault.text for fault in play_interleavings(protocol, **options).faults)


@pytest.mark.parametrize("name", PLANS)
def test_the_programs_of_all_clusters(name):
    plan = plan_of(name)
    for tiles, k_tiles in ((3, 20), (7, 9), (2, 0)) if plan.scheduler.grid.is_persistent else ((1, 40),):
        protocol = protocol_of(plan, tiles=tiles, k_tiles=k_tiles)
        assert texts(protocol, random_runs=3, extremes=False) == ""


def alone(splits=2, warps=True, **options):
    """One tile, and a CTA of one consumer for each of its parts."""
    options = {
        "schedule": "cooperative", "consumers": 1, "tile": (64, 64, 64), "store": "direct", "ctas": splits, **options
    }  # fmt: skip
    return protocol_of(sm90_plan(BF16, split_k=splits, **options), tiles=1, k_tiles=splits, warps=warps)


@pytest.mark.parametrize("splits", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_parts_in_all_interleavings(splits):
    report = search_interleavings(alone(splits, warps=False))
    assert (report.faults, report.exhaustive) == ((), True)


def without(kind, splits=2):
    return texts(alone(splits).edited(lambda _, op: None if isinstance(op, kind) else op))


def test_a_forgotten_wait_is_an_early_read():
    assert "early read of accumulators" in without(AwaitAccumulators)


def test_a_forgotten_signal_is_a_deadlock():
    assert "waits for 1 other K splits of tile 0; 0 of them are written" in without(SignalAccumulators)


def test_a_forgotten_barrier():
    text = without(NamedSync)
    assert "the semaphore of tile 0 is read, but shared memory has nothing: early read" in text


def test_a_barrier_that_only_the_ticket_has():
    """Without the one before the signal the other warps' sums may be read before they are written."""

    def first_only(process, op):
        seen.setdefault(process, 0)
        seen[process] += isinstance(op, NamedSync)
        return None if isinstance(op, NamedSync) and seen[process] > 1 else op

    seen = {}
    assert "early read of accumulators" in texts(alone().edited(first_only))


@pytest.mark.parametrize(("others", "what"), [(1, "early read of accumulators"), (3, "deadlock")])
def test_a_wrong_number_of_parts_that_are_awaited(others, what):
    edited = alone(3).edited(lambda _, op: replace(op, others=others) if isinstance(op, AwaitAccumulators) else op)
    assert what in texts(edited)


def test_a_counter_that_is_not_reset():
    assert "the semaphore of tile 0 ends at 2 increments and 1 K splits, not at zero" in without(ResetCounter)


def test_sums_that_are_written_nowhere():
    assert "has written nothing" in without(WriteAccumulators)


def test_a_counter_of_another_tile():
    def other(process, op):
        return replace(op, tile=7) if isinstance(op, IncrementSemaphore) and process.cta == 1 else op

    assert "early read" in texts(alone().edited(other))


def test_slots_of_another_part():
    def other(process, op):
        return replace(op, slot=1) if isinstance(op, (WriteAccumulators, ReadAccumulators)) else op

    assert "which still has those of tile" in texts(alone(3).edited(other))
