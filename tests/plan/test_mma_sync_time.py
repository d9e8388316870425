"""The model of the time of mma.sync plans, and the choice by it: terms by hand, and what must follow from them."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.choice.candidate import Request, Variants, ranked
from cutegemm.choice.catalog import choose, chosen, plan_named
from cutegemm.choice.mma_sync.choice import SPLITS, family
from cutegemm.choice.mma_sync.time import MmaCosts, Model, Tiles
from cutegemm.machine.device import DEFAULT_DEVICE, device_named
from cutegemm.plan import Operands, Problem

# Powers of ten, so that the sum shows each term; what goes on at the same time: the slowest
COSTS = MmaCosts(
    start=1000.0, round=100.0, fill=40.0, hot=0.0, latency=3.0, own_halves=0.25,
    quads=0.0, doubles=0.0, words=0.0, halves=0.0, peak=1.0, store=0.0, last=0.0, written=0.0, launch=10_000.0,
    added=1.0, accumulators=1.0, within=64.0,
)  # fmt: skip
ALIGNED, ODD = (Operands.of("bf16", layout="nt", align_bytes=align) for align in (16, 2))


def us(name, operands, problem, splits=1, costs=COSTS, device=DEFAULT_DEVICE, peak=1e9):
    tiles = Tiles.of([plan_named(name, operands)], [1.0])
    model = Model(tiles, peak, operands, device, costs)
    found = model.predict(Variants(np.array([0]), np.array([splits])), problem)
    return float(found.us[0]), found.bound(0)


def candidates(operands, problem, arch="sm_90a", device=DEFAULT_DEVICE):
    return list(ranked(family(Request(operands, arch=arch, device=device)), problem))


def test_a_tile_by_hand():
    """One tile of 32 x 32 and 10 k-tiles of 64: each waits for a fifth of the latency, as five more are under way."""
    plan = plan_named("mma_32x32", ALIGNED)
    assert (plan.stages, plan.cta_tile) == (6, (32, 32, 64))
    found, bound = us("mma_32x32", ALIGNED, Problem(32, 32, 640, operands=ALIGNED))
    first = 40 / 4  # bytes of (32 + 32) x 64 elements, a quarter of a k-tile of 128 x 128 x 64
    assert found == pytest.approx(1000 + 100 + first + 10 * 3 / 5, rel=1e-6)
    assert bound == "start and end"


def test_rows_that_begin_anywhere():
    """Through registers one k-tile of 128 is under way: 64 elements for each of 128 threads, one after the other."""
    found, _ = us("mma_32x32", ODD, Problem(32, 32, 640, operands=ODD))
    assert found == pytest.approx(1000 + 100 + 40 / 2 + 5 * (3 + 64 * 0.25), rel=1e-6)


def test_lines_that_all_ask_for():
    """29 rows of A, 48 bytes each, are 10.875 lines; each of the 382 CTAs of 32 columns asks for 2 sectors of each row.
    Of 96 CTAs with 16 rows, a half asks for 32 sectors of 6 lines."""
    problem, free = Problem(29, 12212, 24, operands=ALIGNED), MmaCosts(**{**vars(COSTS), "hot": 1.0})
    for name, asked in (("mma_32x32_short", 382 * 29 * 2 / 10.875), ("mma_16x128_short", 96 * 16 * 2 / 6)):
        found, without = (us(name, ALIGNED, problem, costs=costs)[0] for costs in (free, COSTS))
        assert found - without == pytest.approx(asked, rel=1e-6)
    # Each long row has lines of its own. At most 64 lines arrive at a time: 8 CTAs across ask for A
    wide = Problem(4096, 1024, 4096, operands=ALIGNED)
    found, without = (us("mma_128x128", ALIGNED, wide, costs=costs)[0] for costs in (free, COSTS))
    assert found - without == pytest.approx(32 * 128 * 4 / 64, rel=1e-6)  # and 32 CTAs along M for B


def test_nothing_overlaps_the_store_of_the_last_tile():
    """D of bf16 leaves 16 bytes a lane: 32 x 32 of it by 4 accesses of a warp, 256 x 128 by 128, however many tiles."""
    dear = MmaCosts(**{**vars(COSTS), "last": 1.0})
    for name, accesses in (("mma_32x32", 4), ("mma_256x128", 128)):
        for m in (256, 256 * 132 * 4):
            problem = Problem(m, 32, 64, operands=ALIGNED)
            found, without = (us(name, ALIGNED, problem, costs=costs)[0] for costs in (dear, COSTS))
            assert found - without == pytest.approx(accesses, rel=1e-6)


def test_parts_of_k():
    """4 parts of 3, 3, 2 and 2 k-tiles: the longest counts, and their sums of 4 x 1024 x 4 bytes go both ways."""
    problem = Problem(32, 32, 640, operands=ALIGNED)
    found, bound = us("mma_32x32", ALIGNED, problem, splits=4)
    moved = 2 * 4 * 1024 * 4 / (DEFAULT_DEVICE.measured.partials_gb_s * 1e3)
    assert found == pytest.approx(1000 + 100 + 40 / 4 + 3 * 3 / 5 + 10_000 + 1 + moved, rel=1e-6)
    assert bound == "adding K splits"


def test_products_and_rounds():
    """264 tiles on 132 multiprocessors, whose CTAs run three at a time.

    Two at once, which hide less latency, and both wait for their first k-tiles.
    """
    problem = Problem(32 * 264, 32, 64, operands=ALIGNED)
    free = MmaCosts(**{**vars(COSTS), "latency": 0.0})
    found, bound = us("mma_32x32", ALIGNED, problem, costs=free, peak=0.01)
    products = 2 * 2 * 32 * 32 * 64 / (0.01 * 1e6 / 132)
    memory = (32 * 264 + 32) * 64 * 2 / (DEFAULT_DEVICE.measured.thread_read_gb_s * 1e3)
    assert memory < products / 10
    assert found == pytest.approx(1000 + 100 + 2 * 40 / 4 + products * 1.5**0.5, rel=1e-6)
    assert bound == "tensor cores"
    assert us("mma_32x32", ALIGNED, problem, peak=None)[0] == np.inf


@pytest.mark.parametrize(
    ("operands", "mnk"), [(ALIGNED, (16, 32, 3536)), (ODD, (16, 29, 3537))], ids=["aligned", "odd"]
)
def test_few_tiles_and_a_deep_k_are_split(operands, mnk):
    problem = Problem(*mnk, operands=operands)
    plan = choose(operands, problem, "sm_90")
    assert plan.split_k > 4
    assert plan.violations("sm_90", problem) == []
    _, whole = chosen(operands, problem, "sm_90", can_implement=lambda plan: not plan.scheduler.split.is_split)
    assert whole.split_k == 1


def test_candidates():
    """Each recipe once as it is, and with at most as many K splits as k-tiles; none twice, the fastest first."""
    problem = Problem(16, 64, 640, operands=ALIGNED)
    found = candidates(ALIGNED, problem, "sm_90a")
    names = [str(one.recipe) for one in found]
    assert len(set(names)) == len(names)
    assert [one.us for one in found] == sorted(one.us for one in found)
    parts = {one.recipe.split.splits for one in found if one.recipe.split is not None}
    assert parts == {*(each for each in SPLITS if each <= 20), 10, 20}  # k-tiles of 64, or of 32
    assert {"mma_32x32", "mma_32x32/k10", "mma_32x32_short/k20"} < set(names)


def test_what_would_spill_is_not_taken_whole():
    """Two accesses of 4 bytes fill a register each, in addition to 128 accumulators and their fragments.

    Split, they are considered.
    """
    narrow = Operands.of("bf16", layout="nn", align_bytes=4)
    for operands, expected in ((ALIGNED, True), (narrow, False)):
        found = {str(one.recipe) for one in candidates(operands, Problem(14890, 126, 822, operands=operands))}
        assert ("mma_128x128" in found) == expected
        assert {"mma_128x128/k2", "mma_128x64", "mma_64x64_short"} <= found


@pytest.mark.parametrize(
    ("layout", "mnk", "deep"),
    [("tn", (846, 111, 8390), 32), ("nn", (1150, 1153, 1158), 32), ("nn", (1152, 1152, 1152), 64)],
)
def test_elements_that_come_by_themselves_are_few(layout, mnk, deep):
    """B in rows of an odd length: 48 elements of a thread from a k-tile of 32 in 128 x 64, and 96 from one of 64."""
    operands = Operands.of("f16", layout=layout).fitted(*mnk)
    assert plan_named("mma_128x64", operands).cta_tile == (128, 64, deep)


def test_other_devices_have_other_times():
    problem = Problem(4096, 4096, 4096, operands=ALIGNED)
    times = [
        candidates(ALIGNED, problem, arch, device_named(name))[0].us
        for name, arch in (("h200", "sm_90"), ("a100-80gb", "sm_80"))
    ]
    assert times[1] > 1.5 * times[0]
