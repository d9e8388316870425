"""What a plan that does not compile says: a few lines of text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cutegemm.build import sm90_plan
from cutegemm.compile.plans import compile_plan, short_message
from cutegemm.errors import CompileError
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.plan import GemmPlan
from tests.simulator.plans import violations


def test_the_message_is_short_and_plain():
    dump = "\n".join(f'    %{i} = "cute.op"(%{i - 1}) : (!cute.ptr<bf16>) -> i32' for i in range(1, 400))
    said = short_message(f"\x1b[91m\x1b[1merror[INTERNAL]:\x1b[0m no valid code\n{dump}\nnote: see above")
    assert said == "error[INTERNAL]: no valid code"
    assert short_message("\x1b[0m") == "the compiler printed no message"
    assert len(short_message("x" * 10_000 + "\n" + "y\n" * 500).splitlines()) == 8
    assert short_message("a\x1b[38;5;196mb\x1b[Kc") == "abc"


@pytest.mark.parametrize("part", ["smem_a", "store"])
def test_the_compiler_refuses_what_the_rules_refuse(part, monkeypatch, tmp_path):
    pytest.importorskip("cutlass")
    plan = sm90_plan(name="odd")
    given = {
        "smem_a": ComposedLayout(Swizzle(2, 3, 3), 0, plan.a.smem.outer),
        "store": replace(plan.store, smem=Layout((64, 64, 2, 2), (1, 64, 4096, 8192))),
    }[part]
    odd = violations(plan, **{part: given})
    assert odd.violations() != []
    monkeypatch.setattr(GemmPlan, "violations", lambda *_: [])
    monkeypatch.setenv("CUTEGEMM_CACHE_DIR", str(tmp_path))
    compile_plan.cache_clear()
    with pytest.raises(CompileError) as raised:
        compile_plan(odd)
    said = str(raised.value)
    assert said.startswith("compile_plan: 'odd' for sm_90a did not compile: ")
    assert "\x1b" not in said
    assert len(said.splitlines()) < 10
    assert len(said) < 1200
    assert {"smem_a": "make_gmma_smem_desc", "store": "alignment (16 bits)"}[part] in said
    assert "report this one with plan.key()" in said
    assert len(str(raised.value.__cause__)) > 100
