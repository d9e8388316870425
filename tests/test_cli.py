"""The command line, as a person and as a program use it, without a GPU."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cutegemm.cli import app
from cutegemm.errors import CutegemmError


def run(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutegemm.cli.gemm._gpu", lambda: None)


def test_gemm_for_a_program() -> None:
    found = json.loads(
        run("gemm", "100", "60", "70", "--json", "--layout", "tn", "--alpha", "2", "--beta", "0.5")
    )
    assert found["did"] == "simulated on the CPU"
    assert found["correct"] is True
    assert found["relative_error"] < 1e-5
    compiled = found["compiled"]
    if "skipped" not in compiled:
        assert compiled["arch"] == "sm_90a"
        assert compiled["spills"] == 0
        assert compiled["instructions"]["FFMA"] > 0
        assert compiled["violations"] == []


def test_gemm_for_a_person() -> None:
    said = run("gemm", "64", "64", "64", "--plan", "simt_64x64")
    for part in ("simt_64x64", "CTA", "warp", "thread", "simulated on the CPU", "correct", "no fault"):
        assert part in said


def test_files(tmp_path: Path) -> None:
    """Integers come through exactly, with alpha and beta."""
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((33, 17), (17, 29), (33, 29)))
    for name, matrix in (("a", a), ("b", b), ("c", c)):
        np.save(tmp_path / f"{name}.npy", matrix)
    paths = [part for name in "abc" for part in (f"--{name}", str(tmp_path / f"{name}.npy"))]
    run("gemm", *paths, "--out", str(tmp_path / "d.npy"), "--alpha", "2", "--beta", "-1")
    assert np.array_equal(np.load(tmp_path / "d.npy"), 2 * a @ b - c)


def test_batch() -> None:
    assert json.loads(run("gemm", "20", "30", "40", "--batch", "3", "--json"))["problem"] == "20x30x40x3"


def test_a_large_problem_is_simulated_in_part() -> None:
    found = json.loads(run("gemm", "4100", "4097", "4099", "--json", "--plan", "simt_128x128"))
    assert "same ragged edges" in found["simulated"]
    assert found["correct"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gemm",), "M is not given"),
        (("gemm", "8", "8", "8", "--plan", "nothing"), "no plan is called 'nothing'"),
        (("gemm", "8", "8", "8", "--layout", "xy"), "two letters of n and t"),
        (("gemm", "8", "8", "8", "--dtype", "f17"), "f17"),
        (("gemm", "7", "9", "8", "--plan", "sm90_pingpong", "--dtype", "f32"), "no wgmma of f32"),
        (("show", "(4,8:(8,1)"), "^"),
        (("check", "simt_128x128", "--problem", "4096"), "MxNxK"),
        (("check", "simt_128x128", "--device", "abacus"), "abacus"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(CutegemmError) as caught:
        run(*arguments)
    assert said in str(caught.value)


def test_files_that_contradict(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 5)))
    np.save(tmp_path / "b.npy", np.ones((6, 7)))
    with pytest.raises(CutegemmError, match="K is 5 here and 6 there"):
        run("gemm", "--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "b.npy"))


def test_show_a_layout(tmp_path: Path) -> None:
    said = run("show", "((2,2),4):((1,8),2)", "--svg", str(tmp_path / "x.svg"))
    assert "0  2  4  6" in said
    assert (tmp_path / "x.svg").read_text().startswith("<svg")


def test_show_a_plan(tmp_path: Path) -> None:
    said = run("show", "simt_128x128", "--problem", "512x512x512", "--html", str(tmp_path / "x.html"))
    assert "4 x 4 x 1 tiles" in said
    assert "<html" in (tmp_path / "x.html").read_text()[:200].lower()


def test_plans_are_listed() -> None:
    said = run("plans")
    assert "simt_256x128" in said
    assert "sm90_" in said


def test_check() -> None:
    said = run("check", "simt_256x128", "--layout", "tn")
    for part in ("LDS.128", "wavefronts", "Occupancy", "Roofline"):
        assert part in said
    found = json.loads(run("check", "simt_256x128", "--layout", "tn", "--json"))
    assert found["violations"] == []


def test_bench_simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"plans": {"p": {"seconds": 0.5, "peak_mb": 60.0, "within": True}}, "extent": 512}
    monkeypatch.setattr("cutegemm.bench.simulate.run", lambda: rows)
    said = run("bench", "simulate")
    assert "512 x 512 x 512" in said
    assert "0.500 s" in said


def test_figures(tmp_path: Path) -> None:
    """The committed figures are those that the command draws."""
    run("figures", str(tmp_path))
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    committed = Path(__file__).parent.parent / "docs" / "figures"
    assert drawn == {path.name: path.read_bytes() for path in committed.glob("*.svg")}
    assert len(drawn) > 10


def test_profile_prints_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """ncu's part is taken from the record of an earlier run: the same plan, its counters beside predictions."""
    from cutegemm import profile

    source = Path(__file__).parent.parent / "docs" / "benchmarks" / "analysis_plans.json"
    cases = profile.proof_cases()
    evidence = profile.Evidence.load(source)
    monkeypatch.setattr(profile, "profile", lambda given: (profile.replay(evidence, cases)[0][:1], evidence))
    said = run("profile", "simt_128x128", "--problem", "512x512x512")
    for part in ("predicted", "measured", "registers of a thread", "global store sectors"):
        assert part in said
    assert json.loads(run("profile", "simt_128x128", "--problem", "512x512x512", "--json"))
