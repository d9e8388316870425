"""A kernel executes the program of its plan: a fault planted in the program is a fault of the kernel."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import sm90_plan
from cutegemm.errors import EmulationError
from cutegemm.plan.program import steps as step
from cutegemm.run.emulated import emulate

SMALL = {"tile": (64, 64, 64), "epi_tile_n": 32, "epi_stages": 2, "stages": 2, "ctas": 1}
FAULTS = {
    "a stage that is not waited for": (
        lambda each: _without(each, step.Wait, barrier="full"),
        "it reads shared",
    ),
    "a stage that is never free": (lambda each: _without(each, step.Release), "deadlock"),
    "an order barrier that is not passed": (lambda each: _without(each, step.PassOrder), "deadlock"),
    "an epilogue stage that is stored before all threads have written it": (
        lambda each: _without(each, step.SyncEpiTile),
        "race|nothing",
    ),
}


def _without(each, kind, **values):
    return None if isinstance(each, kind) and all(getattr(each, k) == v for k, v in values.items()) else each


def planted(name, edit):
    """Return a plan whose consumer programs were changed by `edit`, although the plan derives them from its fields."""
    plan = sm90_plan(name=name, **SMALL)
    programs = {r: p.edited(edit) if r.startswith("consumer") else p for r, p in plan.programs.items()}
    plan.__dict__["programs"] = programs
    return plan


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    """Use an empty cache: the key of a compiled kernel comes from the plan and does not include the edit."""
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))


def test_an_unchanged_program_is_correct(own_cache):
    a, b = np.ones((64, 200), np.float32), np.ones((200, 128), np.float32)
    plan = planted("sound", lambda each: each)
    assert np.array_equal(emulate(plan, a, b).d, a @ b)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_program_is_a_fault_of_the_kernel(own_cache, name):
    edit, what = FAULTS[name]
    plan = planted(name, edit)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((64, 200), (200, 192)))
    with pytest.raises(EmulationError, match=what):
        emulate(plan, a, b)


def test_a_program_without_mmas_is_wrong(own_cache):
    plan = planted("without products", lambda each: _without(each, step.Multiply))
    a, b = np.ones((64, 200), np.float32), np.ones((200, 128), np.float32)
    assert not np.array_equal(emulate(plan, a, b).d, a @ b)
