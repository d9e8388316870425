"""Plans of one's own with a name: registered in the process, or by an installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cutegemm import register_plan
from cutegemm.build import simt_plan, sm90_plan
from cutegemm.choice import names
from cutegemm.choice.catalog import plan_named, plans
from cutegemm.choice.names import recipe_named, step_of
from cutegemm.choice.simt.recipe import SimtRecipe
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout import Layout
from cutegemm.plan import GemmPlan, Operands
from cutegemm.simulator import simulate

F32, BF16 = Operands.of("f32"), Operands.of("bf16", layout="nt")
TEXT = "simt:block=64x64x8,warp=32x32,thread=8x4,stages=4"


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(names, "_OWN", {})
    recipe_named.cache_clear()
    yield
    recipe_named.cache_clear()


def padded(operands: Operands) -> GemmPlan:
    """B with a pad of four elements."""
    plan = simt_plan(operands, block=(64, 64, 8), warp=(32, 32), thread=(8, 4))
    return plan.with_stream("b", smem=Layout((64, 8, 2), (1, 68, 68 * 8)))


def test_a_text_gets_a_name() -> None:
    register_plan("mine", TEXT, "for a test")
    assert plan_named("mine", F32).with_(name="", summary="") == plan_named(TEXT, F32).with_(name="", summary="")
    assert ("mine", "for a test") in plans()
    assert str(recipe_named("swap_ab:mine")) == "swap_ab:mine"


def test_a_recipe_may_be_packed_and_split_as_others() -> None:
    options = {"block": (64, 64, 16), "warp": (32, 32), "thread": (8, 4), "stages": (3, 2)}
    register_plan("mine", SimtRecipe("any", "4 warps", options))
    found = recipe_named("mine+repack/k4")
    assert (found.is_repacked, found.split.splits, str(found)) == (True, 4, "mine+repack/k4")
    assert plan_named("mine+repack/k4", F32).name == "mine+repack/k4"


def test_a_function_gets_a_name() -> None:
    """Its plan is simulated by that name, and takes its first line as the summary."""
    register_plan("mine", padded)
    plan = plan_named("mine", F32)
    assert (plan.name, plan.summary) == ("mine", "B with a pad of four elements.")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 4, shape).astype(np.float32) for shape in ((70, 20), (20, 68)))
    assert (simulate(plan_named("mine", F32.fitted(70, 68, 20)), a, b).d == a @ b).all()
    turned = plan_named("swap_ab:mine", F32)
    assert turned.operands == F32.transposed
    with pytest.raises(UnsupportedError, match="no plan is called 'mine/k4'"):
        recipe_named("mine/k4")


def test_what_tma_loads_of_a_function() -> None:
    register_plan("by_tma", lambda operands: sm90_plan(operands, tile=(64, 64, 64), epi_tile_n=32))
    register_plan("by_threads", padded)
    assert recipe_named("by_tma").boxes(BF16) == "ab"
    assert recipe_named("by_threads").boxes(F32) is None


def test_the_same_again_is_no_conflict() -> None:
    assert register_plan("mine", padded) is not None
    register_plan("mine", padded)
    with pytest.raises(PlanError, match="the name is taken"):
        register_plan("mine", TEXT)


@pytest.mark.parametrize("name", ["sm90_epi_stages", "sgemm_01_naive", "sm90_64x80_2x1", "mma_64x64", "simt"])
def test_names_of_the_package_are_taken(name: str) -> None:
    with pytest.raises(PlanError, match="the name is taken"):
        register_plan(name, TEXT)


@pytest.mark.parametrize(
    ("name", "plan", "said"),
    [
        ("a plan", TEXT, "letters, digits and underscores"),
        (
            "mine",
            simt_plan(),
            "; expected the text of a plan, a recipe, or a function of operands that returns a GemmPlan.",
        ),
        ("mine", "sm90_epi_stages+repack", "Register the plan without them"),
        ("mine", "swap_ab:sm90_epi_stages", "Register the plan without them"),
        ("mine", "simt:blok=1", "is not an argument"),
    ],
)
def test_what_is_refused(name: str, plan: object, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        register_plan(name, plan)
    assert "mine" not in dict(plans())


def test_a_function_that_returns_no_plan() -> None:
    register_plan("mine", lambda operands: None)
    with pytest.raises(PlanError, match="returned None, not a GemmPlan"):
        plan_named("mine", F32)


def test_entry_points(tmp_path: Path) -> None:
    """Another installed package: its names are listed, built and, if it is broken, explained."""
    (tmp_path / "their_plans.py").write_text(
        "from cutegemm import simt_plan\n"
        f"TEXT = '{TEXT}'\n"
        "def made(operands):\n    '''Made by them.'''\n    return simt_plan(operands, block=(64, 64, 8), "
        "warp=(32, 32), thread=(8, 4))\n"
    )
    info = tmp_path / "their_plans-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-plans\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[cutegemm.plans]\ntheir_text = their_plans:TEXT\ntheir_made = their_plans:made\n"
        "their_broken = their_plans:nothing\n"
    )
    command = [sys.executable, "-m", "cutegemm"]
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}", "COLUMNS": "200", "PATH": ""}

    def said(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment)

    listed = said("plans").stdout
    assert "their_text" in listed
    assert "Made by them." in listed
    assert "their_broken" in listed
    assert "64 x 64 x 8" in said("show", "their_made").stdout
    violations = said("show", "their_broken")
    assert violations.returncode == 2
    assert "their_plans:nothing" in violations.stderr
    assert "Traceback" not in violations.stderr


def test_steps_are_told_from_plans_to_use() -> None:
    ladder, step = step_of("sm90_pingpong")
    assert (ladder.name, step.number) == ("sm90", 5)
    assert step_of("sgemm_01_naive")[1].number == 1
    assert step_of("tensorop_01_baseline")[1].number == 1
    for name in ("sm90_epi_stages", "sm90_64x80", "simt_256x128", "mma_tma_256x128"):
        assert step_of(name) is None
