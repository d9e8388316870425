"""`evidence ladder` without a GPU: times and counters are made up, and the page shows what was made up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.profile.compare import QUANTITIES, Comparison, Row
from cutegemm.profile.ncu import NcuError
from docs.evidence import ladder
from docs.evidence.pages import ladder as ladder_page
from docs.evidence.rows import shape_of

NAMES = ("sgemm_02_tiles", "sgemm_04_no_conflicts", "sgemm_05_row_of_4", "sgemm_06_vectors")
MACHINE = {"gpu": "G", "driver": "R", "date": "D", "torch": "T", "nvidia-cutlass-dsl": "N"}
# TFLOP/s at 200 cubed next to the library's 10; step 5 is wrong.
TFLOPS = {NAMES[0]: 1.0, NAMES[1]: 4.0, NAMES[3]: 2.0}


def contests(cases, seconds, *, say):
    """Rows from a table."""
    for case in cases:
        assert str(case.problem.operands.a) == "f32 k-major, 16-byte aligned"
        assert [plan.name for plan in case.plans] == list(NAMES)
        where = {"m": case.problem.m, "n": case.problem.n, "k": case.problem.k, "layout": "nn"}
        say(shape_of(where))
        yield [
            {**where, "plan": plan.name, "us": 1.0, "tflops": TFLOPS[plan.name], "library_tflops": 10.0,
             "ratio": TFLOPS[plan.name] / 10}
            if plan.name in TFLOPS
            else {**where, "plan": plan.name, "error": "D is wrong."}
            for plan in case.plans
        ]  # fmt: skip


def counted(cases, *, device, limit_seconds):
    assert (device, 0 < limit_seconds < 600) == ("h200", True)
    return [
        Comparison(case.name, "", (Row("shared load wavefronts", 7.0, 8e6, None), Row("other", 1.0, 2.0, None)))
        for case in cases
    ], None


@pytest.fixture
def measured(monkeypatch):
    """A run of four steps, with what is patched on top."""
    simt = ladder.LADDERS["simt"]
    few = replace(simt, steps=tuple([step for step in simt.steps if step.name in NAMES]))
    monkeypatch.setitem(ladder.LADDERS, "simt", few)
    monkeypatch.setattr(ladder, "SIZES", (512,))  # time of the prediction
    monkeypatch.setattr("cutegemm.compile.plans.compile_plans", lambda plans: [None] * len(plans))  # one by one
    monkeypatch.setattr(ladder, "_has_gpu", lambda: True)
    monkeypatch.setattr(ladder, "machine", lambda: MACHINE)
    monkeypatch.setattr(ladder, "contests", contests)
    monkeypatch.setattr(ladder.shutil, "which", lambda name: "/usr/bin/ncu")
    monkeypatch.setattr(ladder, "measure", counted)

    def run(sizes=(200,), **patches):
        for name, value in patches.items():
            monkeypatch.setattr(ladder, name, value)
        found = ladder.run("simt", sizes=sizes, counted=64)
        assert json.loads(json.dumps(found)) == found
        return found

    return run


def page(found, folder):
    (folder / "ladder_simt.json").write_text(json.dumps(found))
    return ladder_page.pages(folder)["measured/ladder_simt.md"]


def test_every_item_is_on_the_page(measured, tmp_path):
    found = measured()
    assert list(found["steps"]) == list(NAMES)
    text = page(found, tmp_path)
    first = found["steps"][NAMES[1]]
    rows = [line for line in text.splitlines() if line.startswith(f"| `{NAMES[1]}`")]
    changes, speeds, resources, memory = rows
    assert changes.endswith("| 0.400 |")
    assert f"| 4.0 (0.400, {4 / first['peak_tflops']:.1%}) |" in speeds
    assert f"| {first['registers']} |" in resources
    assert f"| {first['occupancy']:.0%} |" in resources
    assert f"{first['predicted']['load_wavefronts'] / 1e6:.2f} / 8.00" in memory
    for level in ("register", "shared", "L2", "DRAM"):
        assert f"{first['intensity'][level]:.1f}" in memory
    assert "It is slower: 0.50 times the fastest speed before it." in text
    assert f"Left out: `{NAMES[2]}`: D is wrong." in text
    lines = ladder.table(found).splitlines()
    assert lines[1].split() == ["200×200×200"]
    assert lines[3].split()[:3] == [NAMES[1], "4.00", "(0.400)"]
    assert lines[-1].split(maxsplit=2) == [NAMES[2], "failed:", "D is wrong."]


def test_without_a_gpu_steps_are_known_and_not_timed(measured, tmp_path):
    found = measured(_has_gpu=lambda: False)
    assert (found["rows"], "machine" in found) == ([], False)
    text = page(found, tmp_path)
    assert "; not timed." in text
    assert "## TFLOP/s" not in text
    assert f"| `{NAMES[0]}` | {found['steps'][NAMES[0]]['registers']} |" in text
    assert len(ladder.table(found).splitlines()) == 1 + len(NAMES)


def test_what_does_not_compile_is_told(measured, monkeypatch):
    error = NcuError("no such instruction")
    monkeypatch.setattr("cutegemm.compile.plans.compile_plans", lambda plans: [error, None, None, None])
    found = measured(contests=lambda *_, **__: [])
    assert found["rows"] == [{"plan": NAMES[0], "error": "no such instruction"}]
    assert list(found["steps"]) == list(NAMES[1:])


@pytest.mark.thorough
def test_what_was_found_is_kept_when_the_rest_fails(measured, tmp_path):
    def fails(*arguments, **more):
        raise NcuError("ncu took longer than 150 s.")

    found = measured(measure=fails)
    assert found["not_counted"] == "NcuError: ncu took longer than 150 s."
    assert "What is missing was not counted: NcuError" in page(found, tmp_path)

    def breaks(cases, seconds, *, say):
        yield from contests(cases[:1], seconds, say=say)
        raise RuntimeError("an illegal memory access")

    found = measured(sizes=(200, 300), contests=breaks)
    assert found["not_timed"] == "RuntimeError: an illegal memory access"
    assert {row["m"] for row in found["rows"]} == {200}
    assert "What is missing was not timed: RuntimeError" in page(found, tmp_path)


def test_plans_beside_the_steps_are_timed_too(monkeypatch):
    seen = []
    monkeypatch.setattr("cutegemm.compile.plans.compile_plans", lambda plans: [NcuError("no")] * len(plans))
    monkeypatch.setattr(ladder, "_has_gpu", lambda: True)
    monkeypatch.setattr(ladder, "machine", dict)
    monkeypatch.setattr(ladder, "contests", lambda cases, *_, **__: seen.extend(cases) or [])
    ladder.run("mma_tf32", sizes=(64,), counted=None)
    (case,) = seen
    assert str(case.problem.operands.a) == "tf32 k-major, 16-byte aligned"
    assert {"mma_128x256", "mma_64x64"} <= set(case.plans)
    assert all(isinstance(plan, str) and plan.startswith("mma_") for plan in case.plans)


def test_the_counters_have_their_names():
    assert set(ladder.COUNTERS) <= {quantity.name for quantity in QUANTITIES}
