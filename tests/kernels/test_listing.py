"""The machine code with the lines of the program: the same code, and each kind of step where its instructions are."""

from __future__ import annotations

import pytest

from cutegemm.compile.cubin import instructions
from cutegemm.compile.listing import Listing, listing, programs_of
from cutegemm.compile.plans import compile_plan
from cutegemm.parse.plan import described
from cutegemm.plan import GemmPlan

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")

# (first word of a step, an instruction that only this step compiles to) by plan
STEPS = {
    "sm90_64x64": (("load", "UTMALDG"), ("mma", "HGMMA"), ("write", "STSM"), ("store", "UTMASTG")),
    "simt_32x32": (("fetch", "LDGSTS"), ("mma", "FFMA"), ("commit", "LDGDEPBAR")),
}


def described_plan(name: str) -> GemmPlan:
    plan, _ = described("test", name, None, "tn" if name.startswith("simt") else "nt", None)
    return plan


@pytest.fixture(scope="module", params=["sm90_64x64", pytest.param("simt_32x32", marks=pytest.mark.thorough)])
def listed(request: pytest.FixtureRequest) -> tuple[GemmPlan, Listing]:
    plan = described_plan(request.param)
    return plan, listing(plan, "sm_90a")


def opcode(text: str) -> str:
    words = text.split()
    return words[words[0].startswith("@")].partition(".")[0]


def test_the_code_is_that_of_the_kernel(listed: tuple[GemmPlan, Listing]) -> None:
    """Noting lines changes no instruction."""
    plan, found = listed
    kernel = compile_plan(plan, "sm_90a")
    text = "\n".join([f"/*{each.address:04x}*/ {each.text} ;" for each in found.instructions])
    assert instructions(text) == dict(kernel.resources.instructions)
    assert found.resources.registers == kernel.resources.registers


def test_steps_are_where_their_instructions_are(listed: tuple[GemmPlan, Listing]) -> None:
    plan, found = listed
    texts = {name: text.splitlines() for name, text in programs_of(plan).items()}
    by_step: dict[str, set[str]] = {}
    for each in found.instructions:
        if each.program:
            word = texts[each.program][each.line].split()[0]
            by_step.setdefault(opcode(each.text), set()).add(word)
    for word, name in STEPS[plan.name]:
        assert by_step[name] == {word}, name
    assert sum(1 for each in found.instructions if each.program) > 200
