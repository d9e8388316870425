"""Gated epilogues: what is written, which columns of B a tile has, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm import epilogue as e
from cutegemm.build import mma_sync_plan, mma_tma_plan, simt_plan, sm90_plan, with_epilogue
from cutegemm.dtypes import bf16
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.plan import Operands, Problem
from cutegemm.plan.epilogue import Accumulator, Column, Epilogue, Row, Scalar, Tile, epilogue_of
from cutegemm.plan.glu import Glu
from cutegemm.plan.store import RegisterStore
from cutegemm.tile.copy_atoms import universal_copy
from tests.epilogues import CASES
from tests.gated import BF16, BF16_NN, FORMS

TF32_NN = Operands.of("tf32", layout="nn")
SWIGLU = Epilogue(e.swiglu(Accumulator()))


@pytest.mark.parametrize(
    ("function", "kinds", "by", "text"),
    [
        (lambda acc: e.swiglu(acc), {}, "halves", "silu(acc.gate) * acc.up"),
        (lambda acc: e.geglu(acc, interleaved=True), {}, "pairs", "gelu(acc.gate) * acc.up"),
        (lambda acc: e.reglu(acc * 2), {}, "halves", "relu(acc.gate * 2) * (acc.up * 2)"),
        (lambda acc, s: e.glu(acc * s), {"s": Scalar}, "halves", "sigmoid(acc.gate * s) * (acc.up * s)"),
        (lambda acc, c: e.halves(acc * c)[1], {"c": Column}, "halves", "acc.up * c"),
        (lambda acc, r, t: e.pairs(acc + r)[0] + t, {"r": Row, "t": Tile}, "pairs", "acc.gate + r.gate + t"),
    ],
)
def test_what_is_written(function, kinds, by, text):
    found = epilogue_of(function, kinds)
    assert (str(found), found.gated) == (text, by)
    assert (found.head, found.tail) == (Epilogue(Accumulator()), found)


@pytest.mark.parametrize(
    ("function", "kinds", "rule"),
    [
        (lambda acc: e.halves(acc)[0] * acc, {}, "acc is used both in halves() and outside of it, where D has N / 2"),
        (lambda acc: e.halves(acc)[0] * e.pairs(acc)[1], {}, "it uses both halves() and pairs() of the accumulator."),
        (lambda acc, r: e.swiglu(acc + r) + r, {"r": Row}, "'r' is used in halves(), as a row of N numbers, and"),
        (lambda acc, t: e.swiglu(acc + t), {"t": Tile}, "t is an argument of halves(), but a tile operand has the N /"),
        (lambda acc: e.pairs(e.halves(acc)[0])[1], {}, "it already uses a gate or an up value. Divide the accumulator"),
    ],
)  # fmt: skip
def test_what_is_refused(function, kinds, rule):
    with pytest.raises(PlanError) as refused:
        epilogue_of(function, kinds)
    assert rule in str(refused.value)


@pytest.mark.parametrize("by", ["halves", "pairs"])
@pytest.mark.parametrize("block", [4, 8, 16])
def test_a_tile_has_each_pair_once(by, block):
    """The columns of all tiles, by a list of pairs."""
    glu, n = Glu(by, block, 32), 96
    pairs = [(j, j + n // 2) if by == "halves" else (2 * j, 2 * j + 1) for j in range(n // 2)]
    seen = {}
    for tile in range(3):
        for column in range(32):
            j = tile * 16 + glu.d_column(column)
            seen.setdefault(j, []).append(glu.column_of_b(tile, column, n))
    assert [tuple(seen[j]) for j in sorted(seen)] == pairs


@pytest.mark.parametrize("form", FORMS)
def test_threads_have_both_sums_of_what_they_store(form):
    plan = CASES[FORMS[form][1]].on(FORMS[form][0])
    bm, bn, _ = plan.cta_tile
    table = plan.tiled_mma.offsets_c(Layout((bm, bn)))
    held = table.reshape(table.shape[0], -1, order="F")
    gates, ups = held[:, list(plan.pairs.gates)], held[:, list(plan.pairs.ups)]
    assert (ups - gates == bm * plan.pairs.block).all()
    assert np.array_equal(np.unique([gates, ups]), np.arange(bm * bn))
    assert np.array_equal(np.unique(plan.stored_by_threads), np.arange(bm * bn // 2))


def test_extents():
    problem = Problem(64, 48, 32, operands=BF16.as_gated("halves"))
    assert [problem.layout(name).shape[:2] for name in "abcd"] == [(64, 32), (48, 32), (64, 24), (64, 24)]
    assert problem.min_bytes == 2 * (64 * 32 + 48 * 32 + 64 * 24)
    assert Operands.of("bf16").as_gated("pairs").fitted(64, 36, 64).d.align_bytes == 4


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (lambda: sm90_plan(BF16, tile=(128, 144, 64)), "none divides a tile of 72"),
        (lambda: sm90_plan(BF16_NN), "B is n-major with alternating gate and up columns, and is loaded 64 adjacent"),
        (lambda: sm90_plan(BF16_NN, tile=(128, 192, 64)), "only 96 gate columns are adjacent in a tile of 192 columns"),
        (lambda: mma_tma_plan(BF16, block=(256, 160, 64), warp=(64, 80)), "80 columns hold 40 gate and as many up"),
        (lambda: mma_tma_plan(BF16_NN, block=(128, 192, 64), warp=(32, 96)), "96 columns hold 48 gate and as many"),
        (lambda: mma_tma_plan(TF32_NN, block=(128, 128, 32)), "permuted within lines of shared memory"),
        (lambda: simt_plan(split_k=2), "reduction = 'kernel': a second kernel adds the accumulators of the K splits"),
        (lambda: simt_plan(block=(64, 64, 8), warp=(32, 32), thread=(8, 4)), "2 gate columns are adjacent in a tile"),
    ],
)  # fmt: skip
def test_plans_that_cannot(plan, rule):
    by_pairs = "alternating" in rule
    with pytest.raises(PlanError) as refused:
        with_epilogue(Epilogue(e.swiglu(Accumulator(), interleaved=by_pairs)), plan())
    assert rule in str(refused.value)


@pytest.mark.parametrize(("is_gated", "but"), [(False, "a thread does not hold"), (True, "a thread's gates are not")])
def test_what_is_stored_at_once_lies_side_by_side_and_is_aligned(is_gated, but):
    """Stores of gates obey the rules of stores of accumulators, and the messages give an equal remedy."""
    plan = mma_sync_plan(BF16, block=(128, 128, 64), store="direct")
    if is_gated:
        plan = with_epilogue(SWIGLU, plan)
    with pytest.raises(PlanError) as refused:
        plan.with_(
            operands=replace(plan.operands, d=replace(plan.operands.d, align_bytes=4)),
            store=RegisterStore(universal_copy(bf16, 64)),
        )
    assert [*refused.value.violations] == [
        "D is stored 64 bits at a time, but is aligned to 4 bytes only. Store 32 bits at a time, or align D.",
        f"D, which is n-major, is stored 64 bits at a time, but {but} 4 adjacent, aligned elements of it.",
    ]


def test_warps_side_by_side_take_gates_of_one_half_and_ups_of_the_other():
    """128 columns, two warps of 64: the second one sums up 32 to 63 and 96 to 127, which are D's columns 32 to 63."""
    plan = mma_tma_plan(BF16, block=(64, 128, 64), warp=(64, 64))
    gated = with_epilogue(SWIGLU, plan)
    assert (gated.glu.block, gated.glu.blocks, gated.consumer_d_tile) == (64, 1, (64, 32))
    columns = gated.tiled_mma.offsets_c(Layout((64, 128))) // 64
    assert set(columns[32:].ravel().tolist()) == {*range(32, 64), *range(96, 128)}
    assert set((gated.stored_by_threads[32:] // 64).ravel().tolist()) == set(range(32, 64))
    with pytest.raises(
        PlanError,
        match=r"32 gate and 32 up columns alternate, but TMA loads all gate columns of a tile of 128 columns before",
    ):
        gated.with_(tiled_mma=plan.tiled_mma)


def test_operands_and_epilogue_say_the_same():
    plan = sm90_plan(BF16)
    with pytest.raises(PlanError, match=r"Use `with_epilogue`, which makes a plan for both."):
        plan.with_(epilogue=SWIGLU)
    with pytest.raises(PlanError, match="it takes halves of the columns of A @ B; with swap A/B these are rows"):
        _ = SWIGLU.transposed
    wide = Epilogue(SWIGLU.expression, (("preact", Accumulator()),))
    with pytest.raises(
        PlanError, match=r"preact = acc has all N columns of A @ B; D has N / 2. Return gate and up as two results."
    ):
        with_epilogue(wide, plan)


def test_problems_that_do_not_fit():
    plan = with_epilogue(SWIGLU, sm90_plan(BF16_NN))
    gated = BF16_NN.as_gated("halves")
    odd, torn = Problem(64, 33, 64, operands=gated), Problem(64, 72, 64, operands=gated)
    assert "N = 33; halves need an even number of columns." in plan.violations(problem=odd)
    assert any("N / 2 = 36 columns of an n-major B take 72 bytes" in rule for rule in plan.violations(problem=torn))
    plain = Problem(64, 64, 64, operands=BF16_NN)
    assert "B's columns are not gated; the plan is made for halves." in plan.violations(problem=plain)


def test_mma_sync_has_lines_of_its_own_for_d():
    plan = mma_sync_plan(BF16, block=(128, 128, 64))
    assert with_epilogue(SWIGLU, plan).store.layout.size() * 2 == plan.store.layout.size()
