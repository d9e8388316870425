"""The choice among Hopper plans: held against the times that were recorded, and its model."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from cutegemm.errors import PlanError
from cutegemm.plan import Operands, Problem
from cutegemm.plan.catalog import FEW_ROWS, TRANSPOSED, choose, plan_named, prefers_transposed
from cutegemm.plan.sm90_catalog import SM90_LADDER, SM90_TWO_LEVEL
from cutegemm.plan.sm90_choice import LEAST_GAIN, choose_sm90, predicted_us, ranked, splits
from cutegemm.plan.split import Split

BF16 = Operands.of("bf16", layout="nt")
TIMED = [named for named in SM90_LADDER if named.turn_us is not None]
# Of plans that are chosen, among themselves: beside the first steps of the ladder, which draw less power, the chip is
# cooler, and who does best is another.
CONTESTS = ("hopper_llama", "hopper_small", "hopper_turns", "hopper_turns_squares")
BENCHMARKS = Path(__file__).parents[2] / "docs" / "benchmarks"


def recorded(*files):
    """Microseconds by shape and plan; each file is a run of its own."""
    found = defaultdict(dict)
    for file in files:
        for row in json.loads((BENCHMARKS / f"{file}.json").read_text())["rows"]:
            if "us" in row and not row.get("chosen"):
                found[file, row["m"], row["n"], row["k"]][row["plan"]] = row["us"]
    return found


# --- against what was measured -----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", recorded(*CONTESTS), ids=str)
def test_the_choice_is_near_the_best_that_was_timed(shape):
    """Of the plans that were timed on a shape, the one that ranks first took at most 3% more than the best."""
    times = recorded(shape[0])[shape]
    in_order = [name for name in in_the_order_of_choice(Problem(*shape[1:])) if name in times]
    assert len(in_order) >= (2 if shape[1] <= FEW_ROWS else 7)
    assert times[in_order[0]] <= 1.03 * min(times[name] for name in in_order)


def in_the_order_of_choice(problem):
    """Names of plans, for few rows those of the transposed problem."""
    if not prefers_transposed(BF16, problem):
        return ranked(SM90_LADDER, BF16, problem, 132)
    turned = Problem(problem.n, problem.m, problem.k)
    return [TRANSPOSED + name for name in ranked(SM90_LADDER, BF16.transposed, turned, 132)]


def test_the_model_tells_fast_plans_from_slow_ones():
    """Where two plans differ by a third, the model has them in this order; all shapes, all pairs."""
    wrong = []
    for (file, m, n, k), times in recorded(*CONTESTS).items():
        if m <= FEW_ROWS:
            continue
        us = {t.name: predicted_us(t, BF16, Problem(m, n, k), 132) for t in TIMED if t.name in times}
        wrong += [
            (file, m, n, k, fast, slow)
            for fast in us
            for slow in us
            if times[fast] * 4 / 3 < times[slow] and us[fast] >= us[slow]
        ]
    assert len(wrong) <= 5, wrong


@pytest.mark.parametrize("n", [4096, 8192])
def test_fp8_is_by_default_near_the_fastest_that_was_timed(n):
    rows = json.loads((BENCHMARKS / "hopper_fp8_fast.json").read_text())["rows"]
    timed = [row for row in rows if "us" in row and row["n"] == n]
    chosen = next(row for row in timed if row.get("chosen"))
    assert chosen["us"] <= 1.02 * min(row["us"] for row in timed)
    assert choose_sm90(Operands.of("e4m3", layout="nt", out="bf16"), Problem(n, n, n)).name == chosen["plan"]


# --- what is chosen ----------------------------------------------------------------------------------------


def test_the_choice():
    """Many short tiles want pingpong, many long ones the large tiles, few the small ones."""
    assert choose(BF16, Problem(8448, 9216, 64)).pipeline.kind == "pingpong"
    assert choose(BF16, Problem(1024, 8192, 8192)).pipeline.kind == "cooperative"
    assert max(choose(BF16, Problem(256, 512, 512)).cta_tile[:2]) <= 64
    assert choose(BF16, Problem(4096, 4096, 4096), multiprocessors=114).pipeline.ctas == 114
    assert choose(BF16, Problem(4096, 4096, 4096), "sm_80").family != "sm90"
    assert choose(Operands.of("bf16", align_bytes=2), Problem(4096, 4096, 4096)).family != "sm90"
    assert choose(BF16, Problem(4096, 4096, 4096), with_c=True).has_c
    assert choose_sm90(BF16, Problem(0, 0, 0)) is not None


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2"])
def test_how_fp8_is_summed_up(dtype):
    fp8 = Operands.of(dtype, layout="nt", out="bf16")
    for shape in ((4096, 4096, 4096), (64, 4096, 4096), (128, 128, 65536)):
        assert not choose_sm90(fp8, Problem(*shape)).pipeline.two_level
        assert choose_sm90(fp8, Problem(*shape), accumulate="two_level").pipeline.two_level
    whole = Operands.of("s8", layout="nt", out="s32")
    assert not choose_sm90(whole, Problem(4096, 4096, 4096), accumulate="two_level").pipeline.two_level
    with pytest.raises(PlanError, match="accumulate = 'slow'; fast or two_level is expected"):
        choose_sm90(fp8, Problem(64, 64, 64), accumulate="slow")
    assert {named.options["two_level"] for named in SM90_TWO_LEVEL} == {True}


@pytest.mark.parametrize("shape", [(128, 128, 16384), (256, 256, 131072), (512, 512, 8192)])
def test_k_is_split_where_few_tiles_have_many_k_tiles(shape):
    plan = choose_sm90(BF16, Problem(*shape))
    assert plan.split.is_split
    assert choose_sm90(BF16, Problem(*shape), with_c=True).has_c


@pytest.mark.parametrize(
    "shape",
    [
        (512, 512, 512), (1024, 1024, 1024), (4096, 4096, 4096), (2048, 8192, 8192), (2048, 8192, 28672),
        (128, 8192, 8192), (64, 4096, 4096), (8448, 9216, 64),
    ],
)  # fmt: skip
def test_k_is_not_split_where_that_was_not_seen_to_gain(shape):
    assert not choose_sm90(BF16, Problem(*shape)).split.is_split


def test_a_wave_is_shared_where_half_of_it_would_be_empty():
    """896 x 4 tiles of 128 x 256 are 27.15 turns of 132: 28, or with a shared wave 27.15 and a quarter."""
    by_name = {named.name: named for named in TIMED}
    deferred, problem = by_name["sm90_deferred_2x1"], Problem(4096, 28672, 8192)
    whole, shared = [
        predicted_us(deferred, BF16, problem, 132, s) for s in (Split(), Split(waves=1, reduction="last"))
    ]
    assert shared / whole == pytest.approx((27.15 + 0.25) / 28, rel=2e-3)
    assert choose_sm90(BF16, problem).split.waves == 1


@pytest.mark.parametrize(("m", "columns"), [(1, 16), (16, 16), (17, 32), (32, 32)])
def test_few_rows_are_columns_of_the_transposed_problem(m, columns):
    problem = Problem(m, 4096, 4096)
    assert prefers_transposed(BF16, problem)
    assert choose(BF16.transposed, Problem(4096, m, 4096)).cta_tile[:2] == (64, columns)
    assert not prefers_transposed(BF16, problem, "sm_90")
    assert not prefers_transposed(Operands.of("bf16", align_bytes=8), problem)
    assert not prefers_transposed(Operands.of("f32"), problem)


def test_a_split_must_promise_to_gain():
    """Whatever splits K and ranks first is 5% faster, by the model, than the best that does not."""
    by_name = {named.name: named for named in TIMED}
    for shape in ((128, 4096, 16384), (64, 4096, 4096), (1024, 1024, 16384), (512, 28672, 8192)):
        problem = Problem(*shape)
        whole = min(predicted_us(named, BF16, problem, 132) for named in TIMED)
        for name in ranked(SM90_LADDER, BF16, problem, 132):
            base, _, split = name.partition("/")
            if split.startswith("k"):
                how = plan_named(name, BF16).split
                assert predicted_us(by_name[base], BF16, problem, 132, how) * LEAST_GAIN <= whole


# --- the model ---------------------------------------------------------------------------------------------


def test_the_model_grows_with_the_work():
    for named in TIMED:
        times = [
            predicted_us(named, BF16, Problem(m, 4096, k), 132)
            for m, k in ((512, 64), (512, 512), (4096, 512), (4096, 4096))
        ]
        assert times == sorted(times)


def test_more_parts_cost_more_to_add_up():
    """One tile of 64 x 64 and no more k-tiles than a part needs: each part more is 16 KiB more to read."""
    named = next(named for named in TIMED if named.name == "sm90_64x64")
    long = Problem(64, 64, 1 << 20)
    meeting = [
        predicted_us(named, BF16, long, 132, Split(parts, reduction="last"))
        - predicted_us(named, BF16, Problem(64, 64, (1 << 20) // parts), 132)
        for parts in (2, 4, 8)
    ]
    assert meeting == sorted(meeting)
    assert meeting[2] - meeting[1] == pytest.approx(2 * (meeting[1] - meeting[0]))


def test_parts_are_long_enough():
    named = next(named for named in TIMED if named.name == "sm90_64x64")
    fp8 = Operands.of("e4m3", layout="nt", out="bf16")

    def parts(operands, m, k):
        return [split.parts for split in splits(named, operands, Problem(m, 64, k), 132)]

    assert parts(BF16, 64, 511) == []
    assert parts(BF16, 64, 2048) == [2, 3, 4]
    assert parts(fp8, 64, 2048) == [2]
    assert parts(BF16, 64 * 132 * 4, 2048) == [2, 3, 4, 1]  # four whole waves, and one to be shared
