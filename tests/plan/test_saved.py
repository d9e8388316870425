"""Plans as JSON: each named plan returns as it was, and a text of another version is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cutegemm import GemmPlan, Operands, UnsupportedError, __version__, sm90_plan
from cutegemm.build import with_epilogue
from cutegemm.choice.names import plans, recipe_named
from cutegemm.errors import PlanError
from cutegemm.plan.epilogue import Epilogue, parse_epilogue
from cutegemm.plan.epilogue.expression import Accumulator, Constant

KINDS = (Operands.of("f32"), Operands.of("bf16", layout="nt"), Operands.of("s8", layout="nt", out="s32"))


def built():
    for name, _ in plans():
        for operands in KINDS:
            try:
                yield recipe_named(name).build(operands)
            except PlanError:
                continue


def test_every_named_plan_returns_as_it_was():
    count = 0
    for plan in built():
        again = GemmPlan.from_json(plan.to_json())
        assert again == plan, plan.name
        assert (again.key(), again.name, again.summary) == (plan.key(), plan.name, plan.summary)
        assert again.to_json() == plan.to_json()
        count += 1
    assert count > 200


@pytest.mark.parametrize(
    "text", ["gelu(acc + acc)", "clamp(acc, -1, 6)", "cast(acc * 2, 'bf16')", "where(acc > 0, acc, 0)"]
)
def test_an_epilogue_returns_as_it_was(text):
    plan = with_epilogue(parse_epilogue(text, {}), sm90_plan())
    again = GemmPlan.from_json(plan.to_json())
    assert again.key() == plan.key()
    assert str(again.epilogue) == str(plan.epilogue)


@pytest.mark.parametrize("value", [-0.0, 1e-300, 0.1])
def test_numbers_return_as_they_were(value):
    plan = with_epilogue(Epilogue(Accumulator() * Constant(value)), sm90_plan())
    assert GemmPlan.from_json(plan.to_json()).key() == plan.key()


def test_the_text_is_that_of_every_process():
    code = "from cutegemm import sm90_plan; print(sm90_plan().to_json())"
    texts = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=True, text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for seed in ("1", "2")
    }  # fmt: skip
    assert texts == {sm90_plan().to_json()}


def changed(**changes):
    data = json.loads(sm90_plan().to_json())
    data["plan"].update(changes)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        (None, "is not JSON"),
        ("[]", "is not a saved plan"),
        ("{}", "is not a saved plan"),
        ("[" * 100_000, "is not JSON"),
        (json.dumps({"cutegemm": "0.1.0", "plan": {}}), f"saved by cutegemm 0.1.0, and this is {__version__}"),
        (json.dumps({"cutegemm": __version__, "plan": {}}), "another version of cutegemm, or changed"),
        (json.dumps({"cutegemm": __version__, "plan": 3}), "a saved int, not a plan"),
        (changed(stages=3), "GemmPlan has other fields: stages"),
        (changed(type="plan.plan.OldPlan"), "the class 'plan.plan.OldPlan' is unknown"),
        (changed(type="plan.saved.import_module"), "is unknown"),
        (changed(type="run.gemm.gemm"), "is unknown"),
    ],
)
def test_what_is_not_a_plan_of_this_version_is_refused(text, said):
    with pytest.raises(UnsupportedError, match=r"^GemmPlan\.from_json: ") as caught:
        GemmPlan.from_json(text)
    assert said in str(caught.value)


def test_rules_are_checked_again():
    with pytest.raises(PlanError, match="registers"):
        GemmPlan.from_json(changed(ctas_per_sm=4))


def test_what_cannot_be_saved_is_named():
    plan = sm90_plan()
    object.__setattr__(plan, "summary", print)
    with pytest.raises(UnsupportedError, match="a builtin_function_or_method cannot be saved"):
        plan.to_json()
