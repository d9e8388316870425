"""Plans changed by chance: each violates a rule with a message, or is simulated without a fault."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cutegemm.errors import CutegemmError, PlanError, UnsupportedError
from cutegemm.plan import GemmPlan
from cutegemm.simulator import simulate
from tests.plan.mutants import mutant, seeds

MUTANTS, SEED = 400, 20000


def is_carried_out(plan: GemmPlan) -> bool:
    """Whether a ragged problem of two k-tiles and some more comes out exactly; faults are raised."""
    bm, bn, bk = plan.cta_tile
    m, n, k = bm + 16, bn + 16, max(32, 2 * bk + 16)
    numbers = np.random.default_rng(0)
    a, b = (numbers.integers(-2, 3, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    if plan.operands.batched:
        a, b = a[None], b[None]
    return np.array_equal(simulate(plan, a, b).d, a @ b)


@pytest.mark.parametrize("plan", seeds(), ids=lambda plan: f"{plan.name}:{plan.operands.layout}")
def test_the_plans_that_are_changed_are_sound(plan: GemmPlan) -> None:
    assert plan.violations() == []
    assert is_carried_out(plan)


def test_a_changed_plan_breaks_a_rule_or_works() -> None:
    refused = worked = 0
    said: list[str] = []
    for seed in range(SEED, SEED + MUTANTS):
        try:
            what, plan, changes = mutant(random.Random(seed))
        except (CutegemmError, TypeError):
            continue  # the part that was changed says it
        try:
            changed = plan.with_(**changes)
        except PlanError as error:
            said += error.violations
            refused += 1
            continue
        except UnsupportedError:
            assert "arch" in changes, what
            continue
        assert changed.describe(), what
        if changed == plan:
            continue
        try:
            assert is_carried_out(changed), what
        except PlanError as error:  # "problem": the rules for a problem that is too large
            said += error.violations
        else:
            worked += 1
    assert len(said) >= refused > MUTANTS // 3
    assert all(rule.endswith((".", ":", ")")) or "\n" in rule for rule in said)
    assert worked > MUTANTS // 20
