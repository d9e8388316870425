"""`bench ladder` without a GPU: times and counters are made up, and the page shows what was made up."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm import profile as profiler
from cutegemm.bench import ladder
from cutegemm.bench.pages import ladder as ladder_page
from cutegemm.bench.pages import report
from cutegemm.errors import CutegemmError
from cutegemm.profile import Comparison, NcuError, Row

NAMES = ("sgemm_02_tiles", "sgemm_04_no_conflicts", "sgemm_05_row_of_4", "sgemm_06_vectors")
MACHINE = {"gpu": "G", "date": "D", "torch": "T"}
# Seconds at 1000 cubed, 2e9 operations: 1, 4 and 2 TFLOP/s beside the library's 10.
SECONDS = {"library": 2e-4, NAMES[0]: 2e-3, NAMES[1]: 5e-4, NAMES[3]: 1e-3}


class Contest:
    """Times from a table. Step 5 is wrong, and from 2000 cubed on step 6 does not run."""

    def __init__(self, operands, size):
        assert str(operands.a) == "f32 k-major, 16-byte aligned"
        self.size, self.factor = size, (size / 1000) ** 3

    def difference(self, plan):
        if plan.name == NAMES[3] and self.size > 1000:
            raise CutegemmError("out of luck")
        return float("nan") if plan.name == NAMES[2] else 1e-6

    def times(self, plans, seconds):
        return [SECONDS[name] * self.factor for name in ("library", *(plan.name for plan in plans))]


def counted(cases, *, device, limit_seconds):
    assert (device, 0 < limit_seconds < 600) == ("h200", True)
    return [
        Comparison(
            case.name, "", (Row("shared load wavefronts", 7.0, 8e6, None), Row("other", 1.0, 2.0, None))
        )
        for case in cases
    ], None


@pytest.fixture
def measured(monkeypatch):
    """A run of four steps, with what is patched on top."""
    simt = ladder.LADDERS["simt"]
    few = replace(simt, steps=tuple([step for step in simt.steps if step.name in NAMES]))
    monkeypatch.setitem(ladder.LADDERS, "simt", few)
    monkeypatch.setattr(ladder, "_has_gpu", lambda: True)
    monkeypatch.setattr(ladder, "machine", lambda: MACHINE)
    monkeypatch.setattr(ladder, "Contest", Contest)
    monkeypatch.setattr(ladder.shutil, "which", lambda name: "/usr/bin/ncu")
    monkeypatch.setattr(profiler, "profile", counted)

    def run(sizes=(1000,), **patches):
        for name, value in patches.items():
            monkeypatch.setattr(profiler if name == "profile" else ladder, name, value)
        found = ladder.run("simt", sizes=sizes, counted=64)
        assert json.loads(json.dumps(found)) == found
        return found

    return run


def test_every_item_is_on_the_page(measured, tmp_path):
    found = measured()
    assert [step["name"] for step in found["steps"]] == [NAMES[0], NAMES[1], NAMES[3]]
    assert [step["tflops"] for step in found["steps"]] == [{"1000": 1.0}, {"1000": 4.0}, {"1000": 2.0}]
    assert [step["ratio"] for step in found["steps"]] == [{"1000": 0.1}, {"1000": 0.4}, {"1000": 0.2}]
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/ladder_simt.json").write_text(json.dumps(found))
    pages = report.pages(tmp_path)
    page = pages["ladder_simt.md"]
    row = next(line for line in page.splitlines() if line.startswith(f"| `{NAMES[1]}`"))
    first = found["steps"][1]
    peak = first["peak_tflops"]
    for cell in ("4.00", "0.400", f"{4 / peak:.1%}", str(first["registers"]), f"{first['occupancy']:.0%}"):
        assert f"| {cell} |" in row
    memory = [line for line in page.splitlines() if line.startswith(f"| `{NAMES[1]}`")][1]
    assert f"{first['predicted']['load_wavefronts'] / 1e6:.2f} / 8.00" in memory
    for level in ("register", "shared", "L2", "DRAM"):
        assert f"{first['intensity'][level]:.1f}" in memory
    assert "It is slower than the step before: 0.50 times its speed at 1000³." in page
    assert f"`{NAMES[2]}`: at 1000 cubed: CutegemmError: D is nan of its largest element" in page
    assert pages["plots/ladder_simt.svg"].count("<svg") == 1
    assert f"{NAMES[2]} " in ladder.table(found)


def test_a_step_that_fails_later_costs_no_other(measured):
    found = measured(sizes=(1000, 2000))
    assert [step["name"] for step in found["steps"]] == list(NAMES[:2])
    assert found["steps"][1]["tflops"] == {"1000": 4.0, "2000": 4.0}
    assert found["failed"][NAMES[3]] == "at 2000 cubed: CutegemmError: out of luck"
    assert found["steps"][0]["measured"] == {"load_wavefronts": 8e6}


def test_what_was_found_is_kept_when_the_rest_fails(measured, tmp_path):
    def fails(*arguments, **more):
        raise NcuError("ncu took longer than 150 s.")

    found = measured(profile=fails)
    assert found["not_counted"] == "NcuError: ncu took longer than 150 s."
    assert "What is missing was not counted: NcuError" in ladder_page.page(found, "ladder_simt")

    class Broken(Contest):
        def times(self, plans, seconds):
            raise RuntimeError("an illegal memory access")

    found = measured(Contest=Broken)
    assert found["not_timed"] == "RuntimeError: an illegal memory access"
    assert found["steps"][0]["registers"] > 0
    assert "What is missing was not timed: RuntimeError" in ladder_page.page(found, "ladder_simt")
