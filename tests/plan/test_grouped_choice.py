"""The choice of plans for grouped GEMMs: mean numbers of tiles, candidates, and problems that were measured."""

from __future__ import annotations

import random
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest

from cutegemm.choice.grouped import chosen_grouped, mean_tiles, ranked_grouped
from cutegemm.machine.device import device_named
from cutegemm.plan import Operands, Problem
from docs.evidence import grouped
from docs.evidence.files import read_record

H100 = device_named("h100")
RECORD = read_record(Path(grouped.__file__).parent / "data/grouped_h100.json")


def problem(groups: int, rows: int, n: int, k: int, mode: str = "m") -> Problem:
    """Return a problem of bf16 whose rows, or K, are divided among groups."""
    extents = (k, n, rows) if mode == "k" else (rows, n, k)
    operands = Operands.of("bf16", layout="tn" if mode == "k" else "nt", batched=True, groups=mode)
    return Problem(*extents, groups, operands)


@pytest.mark.parametrize(("mean", "tile", "tiles"), [(3, 2, 12 / 7), (1, 1, 1), (1, 64, 0.5)])
def test_mean_tiles_by_hand(mean: int, tile: int, tiles: float) -> None:
    """The sum of P(rows > j * tile) over j.

    For a mean of 3, P(rows > j) = 0.75^(j + 1), and the sum is 0.75 / (1 - 0.75^2) = 12 / 7 for tiles of 2 rows. With
    tiles of one row, their number is that of the rows. For a mean of 1, half of the groups have a row.
    """
    assert float(mean_tiles(mean, np.array(tile))) == pytest.approx(tiles)


def test_mean_tiles_of_random_groups() -> None:
    """Rows divided among groups at random, as the benchmark does, take about as many tiles as the formula says."""
    for mean, tile in ((64, 128), (256, 128), (256, 64), (1000, 256)):
        ends = [0, *grouped.random_ends(4000, 4000 * mean, 7)]
        tiles = sum(-(-(end - begin) // tile) for begin, end in pairwise(ends))
        assert tiles / 4000 == pytest.approx(float(mean_tiles(mean, np.array(tile))), rel=0.03)


def test_deep_k_tiles_suit_few_rows_only() -> None:
    for rows, is_deep in ((64, True), (192, True), (200, False), (4096, False)):
        found = ranked_grouped(problem(64, 64 * rows, 4096, 4096), device=H100)
        assert any("_deep" in one.recipe.name for one in found) == is_deep
    assert not any("_deep" in one.recipe.name for one in ranked_grouped(problem(64, 640, 512, 512, "k"), device=H100))


def test_times_grow_with_the_work() -> None:
    numbers = random.Random(3)
    for _ in range(20):
        groups, rows, n, k = (numbers.choice(each) for each in ((4, 64), (256, 8192), (512, 4096), (512, 4096)))
        first = next(ranked_grouped(problem(groups, rows, n, k), device=H100)).us
        assert first < next(ranked_grouped(problem(groups, 4 * rows, 2 * n, k), device=H100)).us
        assert first < next(ranked_grouped(problem(groups, rows, n, 4 * k), device=H100)).us


@pytest.mark.parametrize(
    "row", [row for row in RECORD["rows"] if row["form"] != "fp8"], ids=lambda row: str(row["groups"])
)
def test_the_first_choice_is_near_the_best_that_was_measured(row: dict) -> None:
    """The chosen plan takes at most 1.03 times as long as itself and the next two, and 1.05 times as all in the record.

    The plans of the record are in the order of their predicted times.
    """
    own = {name: us for name, us in row["us"].items() if name not in ("torch", "loop", "dense", "copy")}
    near = min(islice(own.values(), 3))
    extents = [row[name] for name in ("groups", "rows", "n", "k")]
    recipe, plan = chosen_grouped(problem(*extents, row["form"]), device=H100)
    assert plan.scheduler.mode in (row["form"], "n")
    most = min(1.03 * near, 1.05 * min(own.values()))
    assert own[str(recipe)] <= most
    if str(recipe) == next(islice(own, 1, None)):  # it was the first choice in the record too
        assert own["chosen"] <= most
    assert (
        len({str(one.recipe) for one in islice(ranked_grouped(problem(*extents, row["form"]), device=H100), 20)}) == 20
    )
