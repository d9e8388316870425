"""Batch invariance of the choice: all plans that serve a weight have one order of accumulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.build.fused import fused
from cutegemm.choice.names import recipe_named
from cutegemm.choice.order import ROWS, Orders, Weight, restored, served_rows
from cutegemm.choice.rows import looked_at
from cutegemm.dtypes import round_to
from cutegemm.errors import PlanError
from cutegemm.machine.device import device_named
from cutegemm.plan import Operands
from cutegemm.run.emulated import emulate
from cutegemm.run.question import EpilogueSpec, Question, decide
from cutegemm.simulator import simulate

DEVICE = device_named("h100")
BF16 = Operands.of("bf16", layout="nt")


def question(operands, m, n, k, ending=None, accumulate="fast", batch_invariant=True):
    operands = operands.fitted(m, n, k)
    return Question(
        lambda _: operands, (m, n, k, 1), False, ending, accumulate, DEVICE.arch, DEVICE, batch_invariant
    )  # fmt: skip


TYPES = {
    "bf16": (BF16, 4096, 4096),
    "bf16 nn, ragged": (Operands.of("bf16"), 1000, 1001),
    "e4m3": (Operands.of("e4m3", layout="nt", out="bf16"), 1024, 8192),
    "tf32": (Operands.of("tf32", layout="nt"), 3072, 768),
    "f32": (Operands.of("f32", layout="nt"), 1024, 1024),
    "f64": (Operands.of("f64", layout="nt"), 512, 512),
    "narrow": (BF16, 8, 4160),
    "short": (BF16, 4096, 16),
}


@pytest.mark.parametrize("varying_rows", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_all_numbers_of_rows_have_one_order(name, varying_rows):
    operands, n, k = TYPES[name]
    orders, free = set(), set()
    for rows in (*looked_at()[:: 4 if varying_rows else 2], 16384):
        asked = question(operands, rows, n, k)
        decision = decide(asked, varying_rows=varying_rows)
        orders.add(decision.plan.accumulation_order(decision.problem))
        decision = decide(replace(asked, batch_invariant=False), varying_rows=varying_rows)
        free.add(decision.plan.accumulation_order(decision.problem))
    assert len(orders) == 1
    assert next(iter(orders)).is_uniform
    assert name in ("short",) or len(free) > 1, "the test has rows for which the free choice has another order"


@pytest.mark.parametrize("name", ["bf16", "e4m3", "f32"])
def test_every_candidate_has_the_order_of_the_weight(name):
    """The candidates are selected by `Recipe.accumulates_as`; here each plan is built."""
    operands, n, k = TYPES[name]
    seen = set()
    for rows in (1, 24, 128, 1000, 8192):
        asked = question(operands, rows, n, k)
        for candidate in asked.ranked():
            if candidate.recipe not in seen:
                seen.add(candidate.recipe)
                decision = asked.served(candidate.recipe)
                order = candidate.recipe and decision and decision.plan.accumulation_order(decision.problem)
                assert order == asked.served_rows.order, candidate.recipe
    assert len(seen) > 20


def test_the_order_does_not_depend_on_alignment_and_majorness_of_a_and_d():
    ragged = replace(BF16, a=replace(BF16.a, major="m"), d=replace(BF16.d, major="m", align_bytes=2), batched=True)
    a, b = (Weight.of(each, 512, 512, DEVICE.arch, DEVICE, "fast") for each in (BF16, ragged))
    assert a == b


def test_recipes_restore_the_order():
    weight = Weight.of(BF16, 1024, 512, DEVICE.arch, DEVICE, "fast")
    served = served_rows(weight)
    assert restored(weight, served.recipes) == served
    assert restored(weight, served.recipes[1:]) is None
    assert restored(weight, (recipe_named("gemv_16x8"), *served.recipes[1:])) is None
    assert served.nearest(ROWS[5])[0] == served.recipes[5]


def test_orders_of_recipes():
    weight = Weight.of(BF16, 1024, 512, DEVICE.arch, DEVICE, "fast")
    orders = Orders(weight.operands, weight.operands, weight)
    split = (orders.of(recipe_named(name)) for name in ("sm90_128x128/k2", "sm90_128x128/fixup", "mma_64x64/s132"))
    assert [*split] == [None] * 3
    assert orders.of(recipe_named("sm90_128x128")) == orders.of(recipe_named("swap_ab:sm90_64x16_deep_2x1"))
    assert orders.of(recipe_named("gemv_16x8")) != orders.of(recipe_named("gemv_16x16")) is not None


def test_a_plan_of_another_order_is_refused():
    asked = question(BF16, 64, 4096, 4096)
    assert decide(asked, recipe_named("sm90_128x128")).plan.name == "sm90_128x128"
    for name in ("sm90_128x128/k4", "gemv_16x16", "mma_64x64"):
        with pytest.raises(PlanError, match=r"batch_invariant=True.*\n.*has the order of accumulation"):
            decide(asked, recipe_named(name))


def test_reductions_of_rows_are_refused():
    from cutegemm.epilogue import row_sum

    ending = EpilogueSpec(fused(lambda acc: (acc, row_sum(acc)), {}).epilogue, {})
    with pytest.raises(PlanError, match="the epilogue reduces rows"):
        decide(question(BF16, 64, 256, 256, ending))


def test_a_gemm_without_products_needs_no_order():
    assert decide(question(BF16, 64, 64, 0)).plan is decide(question(BF16, 64, 64, 0, batch_invariant=False)).plan


def rows_of_batches(operands, n, k, run):
    """Assert that rows have the same bits in batches of 1 to 40 rows, at other places; return the plans used."""
    rng = np.random.default_rng(0)
    shapes = ((40, k), (k, n))
    a, b = [
        round_to(operands.a.dtype, (rng.standard_normal(s) * 2.0 ** rng.integers(-4, 4, s)).astype(np.float32))
        for s in shapes
    ]
    expected, names = None, set()
    for first, count in ((0, 40), (39, 1), (3, 2), (5, 17), (8, 32)):
        plan = decide(question(operands, count, n, k)).plan
        names.add((plan.name, plan.swap_ab))
        d = run(plan, a[first : first + count], b)
        expected = d if expected is None else expected
        assert np.array_equal(d, expected[first : first + count]), (plan.name, first, count)
    return names


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_rows_in_batches_by_the_simulator(dtype):
    """SIMT plans: the simulator adds products one by one."""
    operands = Operands.of(dtype, layout="nt")
    rows_of_batches(operands, 96, 320, lambda plan, a, b: simulate(plan, a, b).d)


@pytest.mark.parametrize("dtype", ["bf16", "tf32"])
def test_rows_in_batches_by_the_emulator(dtype):
    """wgmma plans, as they are compiled, with and without swap A/B."""
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    operands = Operands.of(dtype, layout="nt", out="f32")
    names = rows_of_batches(operands, 96, 320, lambda plan, a, b: emulate(plan, a, b, check_races=False).d)
    assert {swap_ab for _, swap_ab in names} == {False, True}
