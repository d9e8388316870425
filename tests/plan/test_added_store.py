"""A component from outside the package: a store that waits for all earlier bulk stores before it writes a stage.

It is slower than `TmaStore`. Its rules, its program, and its text are in this file; the class that
traces a `TmaStore` traces it too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest

from cutegemm.build import sm90_plan
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan import GemmPlan, Operands, Problem, Store, TmaStore
from cutegemm.plan.program.steps import FIRST_WARP, Step, StoreEpiStage, SyncEpiTile, WaitStores, WriteEpiStage
from cutegemm.plan.rows import Row
from cutegemm.plan.store.base import Steps
from cutegemm.simulator import play_interleavings, protocol_of, simulate


class PatientStore(TmaStore):
    """TMA stores one epilogue stage, and the consumer waits for it before it writes the next epilogue tile."""

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        yield from super().rules(plan)
        if self.fetched is not None:
            yield "a PatientStore does not load C by TMA."

    def epi_tile_steps(self, plan: GemmPlan) -> Steps:
        body: list[Step] = []
        for name in plan.epi_stage_results:
            body += [WaitStores(0, FIRST_WARP), SyncEpiTile(), WriteEpiStage(name), SyncEpiTile()]
            body.append(StoreEpiStage(FIRST_WARP, result=name))
        return tuple(body)

    def rows(self, plan: GemmPlan) -> tuple[Row, ...]:
        return (*super().rows(plan), ("patience", "1", "stage", "each store is waited for"))


def patient(plan: GemmPlan) -> Store:
    """Return the store of a plan as a PatientStore."""
    assert isinstance(plan.store, TmaStore)
    return PatientStore(**{field.name: getattr(plan.store, field.name) for field in fields(plan.store)})


def plan_of() -> GemmPlan:
    """Return a plan with a PatientStore, whose consumers have two epilogue stages for four epilogue tiles."""
    operands = Operands.of("bf16", layout="nt", out="f32")
    plan = sm90_plan(operands, tile=(64, 64, 64), epi_tile_n=16, epi_stages=2, ctas=3)
    return plan.with_(store=patient(plan))


def test_text_and_rules() -> None:
    plan = plan_of()
    assert "each store is waited for" in plan.describe()
    assert "wait     until all stores have read their epilogue stages, by warp 0" in str(plan.program("consumer 0"))
    with_c = sm90_plan(Operands.of("bf16", layout="nt"), tile=(64, 64, 64), with_c=True)
    with pytest.raises(PlanError, match="a PatientStore does not load C by TMA"):
        with_c.with_(store=patient(with_c))


def test_simulated_in_any_order() -> None:
    plan, rng = plan_of(), np.random.default_rng(0)
    a, b = rng.integers(-3, 4, (200, 136)), rng.integers(-3, 4, (136, 72))
    np.testing.assert_array_equal(simulate(plan, a, b).d, a @ b)
    assert not play_interleavings(protocol_of(plan, k_tiles=3, tiles=4)).faults


def test_a_missing_wait_is_found() -> None:
    plan = plan_of()
    hasty = plan.program("consumer 0").edited(lambda each: None if isinstance(each, WaitStores) else each)
    faults = play_interleavings(protocol_of(plan, k_tiles=3, tiles=4, programs={"consumer 0": hasty})).faults
    assert any("overwritten epilogue stage" in fault.text for fault in faults)


def test_compiled_and_emulated() -> None:
    """The class that traces a TmaStore traces this one too, as its program says what is done."""
    pytest.importorskip("cutlass")
    from cutegemm.run.emulated import emulate

    plan, rng = plan_of(), np.random.default_rng(1)
    a, b = rng.integers(-3, 4, (130, 136)), rng.integers(-3, 4, (136, 72))
    assert plan.violations(problem=Problem(130, 72, 136, operands=plan.operands)) == []
    np.testing.assert_array_equal(emulate(plan, a, b).d, a @ b)


def test_a_store_that_no_kernel_traces() -> None:
    pytest.importorskip("cutlass")
    from cutegemm.kernels.sm90.storage import Storage

    class Nowhere(Store):
        """A store that says nothing."""

    class Plan:
        name, store = "nowhere", Nowhere()

    with pytest.raises(UnsupportedError, match=r"no kernel stores D by Nowhere. Decorate a class with @Storage.stores"):
        Storage.of(Plan())  # type: ignore[arg-type]
