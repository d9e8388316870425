"""`python -m docs.evidence run`: what it does with steps that work, fail, hang or do not fit; and its own table."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cutegemm.errors import CutegemmError
from docs.evidence import chain, choice, decode, gemm, simt
from docs.evidence.commands import app, counted
from docs.evidence.pages import speed
from docs.evidence.steps import GPU, HOPPER, NCU, STEPS, Step
from docs.evidence.steps_run import DONE, FAILED, SKIPPED, Outcome, named, run

BENCHMARKS = Path(__file__).parents[2] / "docs" / "evidence" / "data"
FILE = '{"machine": {"gpu": "G"}, "rows": [{"plan": "p", "ratio": 1.0}]}'


def step(name: str, code: str, seconds: float = 1.0, **options: object) -> Step:
    return Step(name, f"what {name} proves", ("-c", code), seconds, **options)  # type: ignore[arg-type]


def writes(name: str, text: str = FILE, more: str = "") -> Step:
    return step(name, f"import sys; open('{name}.json', 'w').write('''{text}'''); {more}")


def outcomes(steps: list[Step], out: Path, *has: str, budget: float | None = None) -> list[Outcome]:
    return list(run(steps, out, frozenset(has), budget))


def test_a_step_that_works_leaves_its_file_and_its_log(tmp_path: Path) -> None:
    found = outcomes([writes("one", more="print('told'); print('on the side', file=sys.stderr)")], tmp_path)
    assert [(o.state, o.said) for o in found] == [(DONE, "")]
    assert (tmp_path / "one.json").read_text() == FILE
    assert (tmp_path / "logs" / "one.log").read_text() == "told\non the side\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["logs", "one.json"]  # nothing half made is left


def test_a_step_that_prints_its_file(tmp_path: Path) -> None:
    code = f"import sys; print('''{FILE}'''); print('progress', file=sys.stderr)"
    assert outcomes([step("one", code, prints=True)], tmp_path)[0].state == DONE
    assert json.loads((tmp_path / "one.json").read_text()) == json.loads(FILE)
    assert (tmp_path / "logs" / "one.log").read_text() == "progress\n"


def test_the_package_is_found_from_the_folder_of_a_step(tmp_path: Path) -> None:
    code = "import cutegemm; print('{\"at\": 1}')"
    assert outcomes([step("one", code, prints=True)], tmp_path)[0].state == DONE


def test_after_a_failure_the_others_run_and_the_old_file_stays(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("old")
    lines = "; ".join(f"print('line {i}')" for i in range(20))
    bad = step("bad", f"import sys; {lines}; sys.exit(3)")
    found = outcomes([bad, writes("good")], tmp_path)
    assert [o.state for o in found] == [FAILED, DONE]
    said = found[0].said.splitlines()
    assert said[0] == f"it ended with status 3: {tmp_path / 'logs' / 'bad.log'}"
    assert said[1:] == [f"line {i}" for i in range(14, 20)]
    assert (tmp_path / "bad.json").read_text() == "old"
    assert len((tmp_path / "logs" / "bad.log").read_text().splitlines()) == 20


def test_a_status_may_be_part_of_the_result(tmp_path: Path) -> None:
    one = writes("one", more="sys.exit(1)")
    assert outcomes([one], tmp_path)[0].state == FAILED
    known = Step(one.name, one.proves, one.argv, one.seconds, statuses=(0, 1))
    assert outcomes([known], tmp_path)[0].state == DONE


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "that is JSON"), ("[]", "no measurements"), ('{"rows": []}', "on which machine")],
)
def test_a_file_that_proves_nothing_is_not_kept(tmp_path: Path, text: str, said: str) -> None:
    one = writes("one", text)
    found = outcomes([Step(one.name, "", one.argv, 1, needs=(GPU,))], tmp_path, GPU)
    assert found[0].state == FAILED
    assert said in found[0].said
    assert not (tmp_path / "one.json").exists()


def test_what_was_measured_until_then_is_kept_beside_the_log(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text("old")
    found = outcomes([writes("one", more="sys.exit(3)")], tmp_path)
    kept = tmp_path / "logs" / "one.json"
    assert kept.read_text() == FILE
    assert (tmp_path / "one.json").read_text() == "old"
    assert found[0].said.splitlines()[0] == (
        f"it ended with status 3, what it had measured by then is in {kept}: {tmp_path / 'logs' / 'one.log'}"
    )


def test_no_file_at_all(tmp_path: Path) -> None:
    found = outcomes([step("one", "pass")], tmp_path)
    assert found[0].state == FAILED
    assert "it left no one.json" in found[0].said


def test_a_step_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Step, "limit_seconds", 2.0)
    child = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '60']); "
    found = outcomes([step("one", child + "print(p.pid, flush=True); time.sleep(60)"), writes("two")], tmp_path)
    assert [o.state for o in found] == [FAILED, DONE]
    assert found[0].said.startswith("stopped after 2 s")
    assert found[0].seconds < 20
    pid = int((tmp_path / "logs" / "one.log").read_text())
    for _ in range(100):
        if not _runs(pid):
            break
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether a process is there, and not only its number, which the system may keep for a while."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc").exists()


def test_what_does_not_fit_the_budget_is_skipped_in_order(tmp_path: Path) -> None:
    """First 30 s of 50, then 100 that do not fit, then 10 that do."""
    steps = [writes(name) for name in ("a", "b", "c")]
    sized = [Step(s.name, "", s.argv, seconds) for s, seconds in zip(steps, (30.0, 100.0, 10.0), strict=True)]
    found = outcomes(sized, tmp_path, budget=50.0)
    assert [o.state for o in found] == [DONE, SKIPPED, DONE]
    assert re.fullmatch(r"it takes about 100 s, (50|4\d) s are left", found[1].said)


def test_the_budget_also_stops_what_takes_longer_than_expected(tmp_path: Path) -> None:
    slow = step("slow", "import time; time.sleep(60)", seconds=0.1)
    found = outcomes([slow, writes("after")], tmp_path, budget=1.5)
    assert [o.state for o in found] == [FAILED, SKIPPED]
    assert found[0].seconds < 20


def test_what_the_machine_lacks_is_said(tmp_path: Path) -> None:
    steps = [Step("one", "", ("-c", "raise SystemExit(9)"), 1, needs=(HOPPER, NCU))]
    assert [(o.state, o.said) for o in outcomes(steps, tmp_path, GPU, NCU)] == [(SKIPPED, "it needs an sm_90a GPU")]


def test_rows_without_a_time_are_told(tmp_path: Path) -> None:
    text = '{"rows": [{"plan": "p", "error": "no"}, {"plan": "p", "error": "no"}, {"plan": "q", "ratio": 1}]}'
    assert outcomes([writes("one", text)], tmp_path)[0].said == "2 rows without a time: p"


# --- the table ----------------------------------------------------------------------------------------------


def test_every_file_of_measurements_has_a_step_and_every_page_its_file() -> None:
    names = [s.name for s in STEPS]
    assert len(set(names)) == len(names)
    assert {path.stem for path in BENCHMARKS.glob("*.json")} <= set(names)
    assert speed.names() <= set(names)


def test_what_the_page_of_speeds_shows_takes_ten_minutes() -> None:
    assert sum(s.seconds for s in STEPS if s.name in speed.names()) < 600
    assert sum(s.seconds for s in STEPS if not s.name.endswith("_h100")) < 3600


def test_a_pattern_that_nothing_fits() -> None:
    with pytest.raises(CutegemmError, match=r"'hoper\*' fits no step; there are choice_h200, choice_classes_h200"):
        named(["hoper*", "simt"])


class Assignment(Exception):
    """Raised in place of a measurement, once a command has read its arguments."""


@pytest.mark.parametrize("made", STEPS, ids=lambda s: s.name)
def test_each_command_takes_its_arguments(made: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(*_: object, **__: object) -> None:
        raise Assignment

    assert made.argv[:2] == ("-m", "docs.evidence")
    name, *arguments = made.argv[2:]
    assert made.prints or f"{made.name}.json" in arguments or name in ("counters", "sanitize", "proof")
    if name in ("gemm", "simt"):
        module = {"gemm": gemm, "simt": simt}[name]
        monkeypatch.setattr(module, "need_gpu", lambda: None)
        monkeypatch.setattr(module, "machine", dict)
        monkeypatch.setattr("docs.evidence.gemm.Meter", lambda *_: SimpleNamespace(known=dict))
        monkeypatch.setattr(module, "contests", taken)
    elif name == "choice":
        monkeypatch.setattr(choice, "need_gpu", lambda: None)
        monkeypatch.setattr(choice, "rivals", taken)
    elif name in ("decode", "chain"):
        module = {"decode": decode, "chain": chain}[name]
        monkeypatch.setattr(module, "need_gpu", lambda: None)
        monkeypatch.setattr(module, "machine", dict)
        monkeypatch.setattr(module, "compile_ahead", lambda _: None, raising=False)
        monkeypatch.setattr(module, "timed", taken)
    elif name in ("counters", "sanitize"):
        assert made.name in (name, f"analysis_{arguments[0]}")
        monkeypatch.setattr(counted, {"counters": "measure"}.get(name, name), taken)
    elif name == "proof":
        assert made.name == f"proof_{arguments[1]}_{arguments[7]}"
        monkeypatch.setattr(counted.proofs, "measure", taken)
    elif name == "scaled":
        monkeypatch.setattr("docs.evidence.scaled.need_gpu", lambda: None)
        monkeypatch.setattr("docs.evidence.scaled.machine", dict)
        monkeypatch.setattr("docs.evidence.scaled.timed", taken)
        monkeypatch.setattr("docs.evidence.scaled_random.need_gpu", taken)
    elif name in ("experts", "gathered", "grouped", "instructions", "invariant"):
        monkeypatch.setattr(f"docs.evidence.{name}.need_gpu", taken)
    elif name in ("start", "prebuilt"):
        pytest.importorskip("torch", reason="torch is not installed")
        monkeypatch.setattr("docs.evidence.measure.need_gpu", taken)
        monkeypatch.setattr("docs.evidence.prebuilt.Built.predicted", taken)
    elif name == "ranks":
        monkeypatch.setattr("docs.evidence.ranks.measured", taken)
    else:
        monkeypatch.setattr(f"docs.evidence.{name.replace('-', '_')}.run", taken)
    assert isinstance(CliRunner().invoke(app, made.argv[2:]).exception, Assignment)


# --- the command --------------------------------------------------------------------------------------------


def test_the_list_needs_no_gpu() -> None:
    done = CliRunner().invoke(app, ["run", "--list", "--only", "hopper*"])
    assert done.exit_code == 0
    assert "hopper_ladder" in done.output
    assert "simt" not in done.output


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = (writes("good"), writes("bad", more="print('[red]why[/red]'); sys.exit(1)"))
    monkeypatch.setattr("docs.evidence.commands.remade.named", lambda only: [s for s in steps if s.name in only])
    monkeypatch.setattr("docs.evidence.commands.remade.machine_has", frozenset)
    arguments = ["run", "--out", str(tmp_path), "--only", "good"]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, "done" in done.output) == (0, True)
    done = CliRunner().invoke(app, [*arguments, "--only", "bad"])
    assert done.exit_code == 1
    assert "[red]why[/red]" in done.output  # as it was printed


def test_nothing_done_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("docs.evidence.commands.remade.machine_has", frozenset)
    done = CliRunner().invoke(app, ["run", "--out", str(tmp_path), "--only", "hopper"])
    assert done.exit_code == 1
    assert "it needs an sm_90a GPU" in " ".join(done.output.split())
