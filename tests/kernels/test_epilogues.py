"""Kernels with an epilogue, compiled: no spills with any named activation on the plans that are chosen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import with_epilogue
from cutegemm.choice import catalog
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import DType
from cutegemm.errors import PlanError
from cutegemm.machine.device import device_named
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.epilogue import Row, Tile, parse_epilogue
from cutegemm.plan.problem import Operand
from cutegemm.run.question import EpilogueSpec, Question, decide

ACTIVATIONS = ("gelu", "gelu_tanh", "silu", "relu", "tanh", "sigmoid")
SIZES = ((8192, 14336, 4096), (2048, 16384, 4096), (16384, 3072, 768))
ALWAYS = {("tanh", SIZES[1])}  # the others take a minute


def _marks(name: str, mnk: tuple[int, int, int]) -> list[pytest.MarkDecorator]:
    return [] if (name, mnk) in ALWAYS else [pytest.mark.slow]


def chosen(name: str, mnk: tuple[int, int, int], bias: str) -> GemmPlan:
    """The Hopper plan for bf16 of a size, which ends with an activation of the sums and a bias of its own type."""
    operands = Operands.of("bf16", layout="nt")
    aux = {"bias": Operand.of_kind(Row, DType.parse(bias), align_bytes=16)}
    epilogue = parse_epilogue(f"{name}(acc + bias)", {"bias": Row})
    can_implement = partial(EpilogueSpec(epilogue, aux).can_implement, rows=mnk[0])
    problem = Problem(*mnk, operands=operands)
    _, plan = catalog.chosen(operands, problem, swap_ab=False, can_implement=can_implement)
    assert plan.family == "sm90"
    return with_epilogue(epilogue, plan, aux)


@pytest.mark.parametrize(
    ("name", "mnk"),
    [pytest.param(name, mnk, marks=_marks(name, mnk)) for name in ACTIVATIONS for mnk in SIZES],
)
def test_no_spills_with_a_bias_and_an_activation(name, mnk):
    resources = compile_plan(chosen(name, mnk, "bf16")).resources
    assert resources.spills == 0
    assert resources.count("HGMMA") > 0


@pytest.mark.slow
@pytest.mark.parametrize("mnk", SIZES)
def test_no_spills_with_a_bias_of_f32(mnk):
    assert compile_plan(chosen("gelu", mnk, "f32")).resources.spills == 0


def test_the_way_back_through_an_activation_takes_no_plan_for_the_transposed_problem():
    """Two auxiliary outputs and a tile that is read.

    By the columns of D, registers do not hold what threads address.
    """
    operands = Operands.of("bf16", layout="nn")
    tile, aux = operands.d, {"y": operands.d}
    epilogue = parse_epilogue("acc * (1 - tanh(x) * tanh(x)), y = tanh(x)", {"x": Tile})
    ending = EpilogueSpec(epilogue, aux)
    problem = Problem(16384, 3072, 768, operands=replace(operands, c=tile))
    recipe, plan = catalog.chosen(
        problem.operands, problem, with_c=True, can_implement=partial(ending.can_implement, rows=16384)
    )
    assert not recipe.swap_ab
    assert plan.operands.d.major == "n"
    first, _ = catalog.chosen(
        problem.operands, problem, with_c=True, can_implement=lambda plan: plan.operands.d.major == "m"
    )
    turned = first.build(problem.operands, True)
    assert first.swap_ab
    assert not ending.can_implement(turned, 16384)
    assert EpilogueSpec(parse_epilogue("acc + x", {"x": Tile}), {}).can_implement(turned, 16384)


def test_sums_of_rows_take_no_plan_for_the_transposed_problem():
    """There a row is a column of the tile, which all warps have a part of; sums of columns may take either."""
    operands = Operands.of("bf16", layout="nt")
    for text, may_turn in (
        ("acc, s = row_sum(square(acc))", False),
        ("acc, s = column_sum(square(acc))", True),
    ):
        ending = EpilogueSpec(parse_epilogue(text), {})
        turned = catalog.plan_named("sm90_cluster_2x1", replace(operands, d=replace(operands.d, major="m")))
        assert ending.can_implement(turned, 16384) == may_turn
        assert ending.can_implement(catalog.plan_named("sm90_cluster_2x1", operands), 16384)


def test_where_the_fastest_plan_cannot_end_so_the_next_one_that_can_is_taken(monkeypatch):
    """`gemm` chooses a plan that supports the epilogue.

    A plan that the caller names is refused with a message if it does not fit.
    """
    operands, ending = Operands.of("bf16", layout="nt"), EpilogueSpec(parse_epilogue("relu(acc)"), {})
    extents, device = (128, 80, 6160, 1), device_named("h200")
    question = Question(lambda _: operands, extents, False, ending, "fast", "sm_90a", device)
    first = decide(question).plan
    assert first.cluster_k > 1
    on = EpilogueSpec.on

    def refused(self, plan, turned):
        if plan.cluster_k > 1:
            raise PlanError("an ending", ["CTAs share K."])
        return on(self, plan, turned)

    monkeypatch.setattr(EpilogueSpec, "on", refused)
    found = decide(question).plan
    assert (found.cluster_k, found.epilogue) == (1, first.epilogue)
    with pytest.raises(PlanError, match="CTAs share K"):
        decide(question, catalog.plan_named("sm90_64x64_1x1x4", operands))
