"""The benchmark of several GPUs: its problems, the lines of its processes, the table, and what it needs."""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cutegemm.errors import UnsupportedError
from cutegemm.ranks import OPERATIONS
from docs.evidence import ranks, steps_run
from docs.evidence.files import read_record
from docs.evidence.ranks import PROBLEMS, Problem, line_of, measured, random_problems
from docs.evidence.steps import GPU, HOPPER, TWO_GPUS

US = {"cublas": 50.0, "gemm": 40.0, "nccl": 80.0, "ours whole": 44.0}


def row(problem: Problem) -> dict[str, Any]:
    """Return a row that the first rank could print; torch's fused operator has failed."""
    found = {**problem._asdict(), "ranks": 2, "form": "whole", "chunks": 1, "of_gemm": 1.1, "of_best": 0.55, "us": US}
    host = {"ours whole": 200.0, "nccl": 300.0}
    return {**found, "host_us": host, "off": {"whole": 0.002}, "repeats": {"whole": True}, "failed": {"symm_mem": "no"}}


def test_a_problem_is_read_from_its_text() -> None:
    for problem in PROBLEMS:
        assert Problem.parse(str(problem)) == problem
    assert {problem.operation for problem in PROBLEMS} == set(OPERATIONS)


@pytest.mark.parametrize(
    "text", ["all_gather:64x32", "gather:64x32x16", "64x32x16", "all_reduce:0x32x16", "all_reduce:axbxc"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"--problem {text}: pass OPERATION:MxNxK"):
        Problem.parse(text)


def test_random_problems_are_in_range_and_divisible() -> None:
    found = random_problems(1, 200)
    assert found[:20] == random_problems(1, 20)
    assert found != random_problems(2, 200)
    for _, m, n, k in found:
        assert m % 16 == n % 256 == k % 256 == 0
        assert (16 <= m <= 16384, 1024 <= n <= 32768, 1024 <= k <= 32768) == (True, True, True)
    assert {problem.operation for problem in found} == set(OPERATIONS)


class FakeProcesses:
    """Processes that print made-up lines, and fail at some problems."""

    bad: ClassVar[set[Problem]] = set()
    started: ClassVar[list[int]] = []

    def __init__(self, problems: Sequence[Problem], options: argparse.Namespace, seconds: float) -> None:
        self.problems, self.links = list(problems), options.links
        self.started.append(len(self.problems))

    def said(self, deadline: float) -> Iterator[str]:
        yield 'MACHINE {"gpu": "two of them"}'
        if self.links:
            yield 'LINKS {"us": {"barrier": 8.0}}'
        for problem in self.problems:
            yield f"BEGUN {problem}"
            if problem in self.bad:
                yield "a traceback"
                return
            yield f"ROW {problem} {json.dumps(row(problem))}"

    def stop(self) -> None:
        """Do nothing."""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeProcesses]:
    monkeypatch.setattr(ranks, "Processes", FakeProcesses)
    monkeypatch.setattr(FakeProcesses, "bad", set())
    monkeypatch.setattr(FakeProcesses, "started", [])
    return FakeProcesses


def test_after_a_failure_the_other_problems_are_measured(
    fake: type[FakeProcesses], capsys: pytest.CaptureFixture[str]
) -> None:
    fake.bad.add(PROBLEMS[1])
    machine: dict[str, Any] = {}
    rows = list(measured(PROBLEMS[:4], argparse.Namespace(budget=1000.0, links=True), machine))
    assert [Problem(one["operation"], one["m"], one["n"], one["k"]) for one in rows] == list(PROBLEMS[:4])
    assert ["us" in one for one in rows] == [True, False, True, True]
    assert fake.started == [4, 2]
    assert machine.pop("command")
    assert machine == {"gpu": "two of them", "links": {"us": {"barrier": 8.0}}}
    assert "a traceback" in capsys.readouterr().err


def test_the_command_writes_a_record_and_prints_its_table(
    fake: type[FakeProcesses], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.bad.add(PROBLEMS[1])
    file = tmp_path / "ranks.json"
    ranks.main(["--json", str(file), "--problem", str(PROBLEMS[0]), "--problem", str(PROBLEMS[1])])
    assert len(read_record(file)["rows"]) == 2
    capsys.readouterr()
    ranks.main(["--table", str(file)])
    times, exposed = capsys.readouterr().out.split("\n\n")
    *_, rule, line = times.splitlines()
    assert (rule.count("---"), exposed.count("---")) == (10, 5)
    assert line == "| all-gather | 8192 x 8192 x 8192 | whole | 44.0 | 50.0 | 40.0 | 80.0 |  | 1.100 | 0.550 |"


def test_the_line_of_a_row() -> None:
    said = line_of(row(PROBLEMS[0]))
    assert said.startswith("all_gather       8192 x   8192 x   8192  cublas 50.0  gemm 40.0")
    assert "of_gemm 1.100  of_best 0.550  host 200.0  form whole" in said
    assert said.endswith("; symm_mem: no")
    assert line_of({**PROBLEMS[0]._asdict(), "error": "no line"}).endswith("8192  no line")


@pytest.mark.parametrize(
    ("said", "has"),
    [
        ("sm_90a 2\n", {GPU, HOPPER, TWO_GPUS}),
        ("a note\nsm_90a 1\n", {GPU, HOPPER}),
        ("sm_100a 8\n", {GPU, TWO_GPUS}),
        ("", set()),
    ],
)
def test_what_a_machine_has(said: str, has: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], 0 if said else 1, said, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert steps_run.machine_has() == has
