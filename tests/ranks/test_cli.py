"""`cutegemm ranks`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cutegemm.cli import app
from cutegemm.errors import CutegemmError, PlanError, SimulationError
from cutegemm.ranks import ScheduleReport, explained, predictions
from cutegemm.simulator.report import Fault


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["ranks", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout


@pytest.fixture(autouse=True)
def no_limit_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the width that workers of pytest-xdist set; a pipe of a user has none."""
    monkeypatch.delenv("COLUMNS", raising=False)


def test_text() -> None:
    shown = run("all-gather", "8192", "4096", "8192", "--steps")
    assert shown.startswith(explained(predictions("all_gather", 2, 8192, 4096, 8192)))
    assert "\nmain    gemm x[0:4096] of rank 0 -> d[0:4096] of rank 0\n" in shown
    assert "\n  rank 0 main │0000" in shown
    assert shown.rstrip().endswith("no fault")
    assert "\nmain    gemm" not in run("all-gather", "8192", "4096", "8192")


def test_json_and_a_drawing(tmp_path: Path) -> None:
    """Symmetric memory: 64 rows of 4096 bf16 for each of 7 others; the same for a graph, and twice otherwise."""
    file = tmp_path / "ranks.svg"
    options = ("reduce-scatter", "512", "4096", "1024", "--ranks", "8", "--form", "by_shard", "--json")
    found = json.loads(run(*options, "--svg", str(file)))
    assert sorted(one["chunks"] for one in found["candidates"]) == [1, 2, 4]
    for one in found["candidates"]:
        assert (one["form"], one["symmetric_bytes"]) == ("by_shard", 2 * 7 * 64 * 4096 * 2)
        assert one["us"] > one["gemm_us"] > 0
    assert found["faults"] == []
    assert "rank 1 main" in file.read_text()
    assert json.loads(run(*options, "--graph"))["candidates"][0]["symmetric_bytes"] == 7 * 64 * 4096 * 2


def test_errors() -> None:
    with pytest.raises(PlanError) as error:
        run("all-gather", "8", "8", "8", "--form", "half", "--dtype", "f17", "--device", "h9", "--svg", "a.png")
    assert len(error.value.violations) == 4
    with pytest.raises(PlanError, match="--form by_copy: use one of whole, by_shard"):
        run("all-gather", "8", "8", "8", "--form", "by_copy")
    with pytest.raises(PlanError, match="operation = 'gather' is unknown"):
        run("gather", "8", "8", "8")
    with pytest.raises(CutegemmError, match="the extent -8 is negative"):
        run("all-gather", "-8", "8", "8")


def test_a_fault_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    report = ScheduleReport(1, 4, 9, (Fault("deadlock", 1, ("rank 0 waits.",)),))
    monkeypatch.setattr("cutegemm.cli.ranks.simulate_schedule", lambda *_, **__: report)
    with pytest.raises(SimulationError, match=r"deadlock, once:\n +- rank 0 waits\."):
        run("all-gather", "8", "8", "8")
