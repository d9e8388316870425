"""What compute-sanitizer prints, read back; and the runs around it, with a tool that only prints."""

from __future__ import annotations

import json
import sys

import pytest

from cutegemm.errors import UnsupportedError
from docs.evidence.sanitizer.output import TOOLS, Message, command, parse
from docs.evidence.sanitizer.runs import outcome_of, record, sanitize, sanitize_cases, table
from tests.evidence.test_commands import status

MEMCHECK = """\
loading
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 2 bytes
=========     at kernel_cutlass_kernel_x_0+0x1a0
=========     by thread (3,0,0) in block (0,0,0)
=========     Access at 0x7f0012345602 is out of bounds
=========     and is 2 bytes after the nearest allocation at 0x7f0012340000 of size 22018 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernelEx [0x2fe72f] in libcuda.so.1
=========
the target prints something of its own
========= Invalid __global__ write of size 2 bytes
=========     at kernel_cutlass_kernel_x_0+0x1a0
=========     by thread (4,0,0) in block (0,0,0)
=========     Access at 0x7f0012345604 is out of bounds
=========     and is 4 bytes after the nearest allocation at 0x7f0012340000 of size 22018 bytes
=========
========= Program hit CUDA_ERROR_INVALID_CONTEXT (error 201) due to "no context" on CUDA API call to cuCtxGetDevice.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: cuCtxGetDevice [0x1] in libcuda.so.1
=========
========= ERROR SUMMARY: 3 errors
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at kernel_a+0x4f0
=========     and Read access at kernel_a+0x620 [256 hazards]
=========     and Read access at kernel_a+0x640 [128 hazards]
=========
========= Warning: Race reported between Read access at kernel_a+0x700
=========     and Write access at kernel_a+0x800 [8 hazards]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
SYNCCHECK = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at kernel_b+0x90
=========     by thread (32,0,0) in block (1,0,0)
=========
========= Barrier error detected. Divergent thread(s) in block
=========     at kernel_b+0x90
=========     by thread (33,0,0) in block (1,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
CLEAN = "========= COMPUTE-SANITIZER\nall well\n========= ERROR SUMMARY: 0 errors\n"
NO_HAZARD = "=========\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
CRASHED = """\
========= COMPUTE-SANITIZER
========= Error: process didn't terminate successfully
========= Target application returned an error
========= ERROR SUMMARY: 0 errors
"""
LAUNCHED = {"launched": [0], "failed": {}}


def test_a_message_of_many_threads_is_one():
    found = parse(MEMCHECK)
    assert (found.errors, found.warnings, found.finished, found.is_clean) == (3, 0, True, False)
    first, second = found.messages
    assert first == Message("Invalid __global__ write of size 2 bytes", "kernel_cutlass_kernel_x_0+0x1a0", 2)
    assert str(first).startswith("2 times: Invalid __global__ write")
    assert (second.is_of_the_host, first.is_of_the_host) == (True, False)
    assert second.text.endswith("on CUDA API call to cuCtxGetDevice.")


def test_races_name_both_accesses():
    found = parse(RACECHECK)
    assert (found.errors, found.warnings) == (1, 1)
    assert [m.where for m in found.messages] == [
        "kernel_a+0x4f0, kernel_a+0x620, kernel_a+0x640",
        "kernel_a+0x700, kernel_a+0x800",
    ]


def test_what_differs_from_block_to_block_is_left_out():
    found = parse(SYNCCHECK)
    assert (len(found.messages), found.messages[0].count, found.errors) == (1, 2, 2)
    hazards = "".join(
        f"========= Potential RAW hazard detected at __shared__ 0x{at:x} in block ({at}, 0, 0) :\n" for at in (16, 32)
    )
    assert parse(hazards + NO_HAZARD).messages[0].count == 2


@pytest.mark.parametrize("text", [CLEAN, NO_HAZARD])
def test_clean(text):
    assert parse(text).is_clean


@pytest.mark.parametrize(
    ("text", "logged", "summary"),
    [
        (CRASHED, LAUNCHED, "Error: process didn't terminate successfully"),
        ("Traceback: no torch", None, "the process ended early: Traceback: no torch"),
        (CLEAN, {"launched": [], "failed": {"0": "CompileError: no"}}, "not launched: CompileError: no"),
        ("hello", LAUNCHED, "no summary"),
        ("========= COMPUTE-SANITIZER\n", LAUNCHED, "no summary"),
    ],
)
def test_what_did_not_run_is_not_clean(text, logged, summary):
    found = outcome_of(text, logged)
    assert (found.summary, found.finished, found.is_clean) == (summary, False, False)


def test_the_table_says_each_message_once():
    clean, bad = parse(CLEAN), parse(SYNCCHECK)
    host = outcome_of(MEMCHECK.replace("Invalid __global__", "Program: CUDA API call"), LAUNCHED)
    gone = outcome_of("", None)
    found = {"one": {"memcheck": host, "synccheck": bad}, "two": {"memcheck": gone, "synccheck": bad},
             "three": {"synccheck": clean}}  # fmt: skip
    lines = table(found).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["case", "memcheck", "synccheck"],
        ["one", "3", "of", "the", "host", "2", "errors"],
        ["two", "did", "not", "run", "2", "errors"],
        ["three", "-", "clean"],
    ]
    at = lines.index("synccheck: 2 times: Barrier error detected. Divergent thread(s) in block at kernel_b+0x90")
    assert lines[at + 1] == "    one, two"
    assert sum("Barrier error" in line for line in lines) == 1


def test_the_command_line():
    line = command(["python", "-m", "x"], "racecheck", sanitizer="cs")
    assert line[:3] == ["cs", "--tool", "racecheck"]
    assert line[-3:] == ["python", "-m", "x"]
    assert "--racecheck-report" in line
    assert "--racecheck-report" not in command(["python"], "memcheck")


@pytest.fixture
def pretender(tmp_path):
    """A tool that says what the real one might, and notes that the case was launched."""
    script = tmp_path / "sanitizer"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        "tool, (cases, log, beta) = sys.argv[2], sys.argv[-3:]\n"
        "is_direct = b'sm90_direct' in pathlib.Path(cases).read_bytes()\n"
        "pathlib.Path(log).write_text(json.dumps({'launched': [0], 'failed': {}}))\n"
        f"print({SYNCCHECK!r} if tool == 'synccheck' and is_direct else {CLEAN!r})\n"
    )
    script.chmod(0o755)
    return str(script)


def test_runs_are_kept_apart_and_recorded(pretender, tmp_path, capsys):
    cases = [case for case in sanitize_cases() if case.name in ("simt", "sm90_direct")]
    known: list[int] = []
    found = sanitize(
        cases, ("memcheck", "synccheck"), sanitizer=pretender, jobs=2,
        so_far=lambda found: known.append(sum(map(len, found.values()))),
    )  # fmt: skip
    assert known == [1, 2, 3, 4]
    assert {(case, tool): o.is_clean for case, of in found.items() for tool, o in of.items()} == {
        ("simt", "memcheck"): True, ("simt", "synccheck"): True,
        ("sm90_direct", "memcheck"): True, ("sm90_direct", "synccheck"): False,
    }  # fmt: skip
    record(found, {"command": "the command"}, tmp_path / "out" / "sanitize.json")
    data = json.loads((tmp_path / "out" / "sanitize.json").read_text())
    assert data["machine"]["command"] == "the command"
    assert data["cases"]["sm90_direct"]["synccheck"]["messages"][0]["count"] == 2
    assert data["cases"]["simt"] == {"memcheck": "clean", "synccheck": "clean"}
    arguments = ["sanitize", "--only", "simt_packed", "--sanitizer", pretender, "--out", str(tmp_path)]
    assert status(*arguments) == 0
    assert capsys.readouterr().out.split()[:9] == ["case", *TOOLS, "simt_packed", *["clean"] * 3]
    assert status(*arguments[:2], "sm90_direct", *arguments[3:5], "--tool", "synccheck") == 1


def test_without_the_tool():
    with pytest.raises(UnsupportedError, match="no no-such-tool is found"):
        sanitize(sanitize_cases()[:1], sanitizer="no-such-tool")
    assert status("sanitize", "--sanitizer", "no-such-tool") == 2


def test_cases_keep_the_rules_of_their_problems():
    """Several tiles for a CTA, ragged extents, every family."""
    cases = sanitize_cases()
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        assert case.plan.violations(problem=case.problem) == [], case.name
        if case.plan.scheduler.grid.is_persistent:
            m_tiles, n_tiles, _ = case.plan.grid(case.problem)
            assert m_tiles * n_tiles >= 3 * case.plan.scheduler.grid.ctas, case.name
