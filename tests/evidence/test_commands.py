"""`python -m docs.evidence`: what its commands print and refuse."""

from __future__ import annotations

import json

import pytest

from docs.evidence.commands import main


def status(*arguments: str) -> int:
    """With which the command ends."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("report", "--docs", "/no/such/folder"), "cannot find the folder /no/such/folder/evidence/data"),
        (("ladder", "rope"), "no ladder is called 'rope'; there are simt"),
        (("ladder", "simt", "--sizes", "a,b"), "--sizes 'a,b' is not a list"),
        (("counters", "plan"), "no group is called 'plan'; there are probes, plans"),
        (("sanitize", "--tool", "soap"), "no tool is called 'soap'; there are memcheck"),
        (("replay", "/no/such/file"), "/no/such/file: No such file"),
        (("scaled", "--shape", "64x64"), "--shape '64x64' is not M x N x K"),
        (("scaled", "--shape", "64x256x256", "--plans", "128x128*"), "names no plan of 64x256x256, such as swap_ab"),
    ],
)
def test_what_a_user_can_mend_is_told(arguments, said, capsys) -> None:
    assert status(*arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("evidence: ")
    assert said in told


def test_simulate(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    rows = {"plans": {"p": {"seconds": 0.5, "peak_mb": 60.0, "within": True}}, "extent": 512}
    monkeypatch.setattr("docs.evidence.simulate.run", lambda: rows)
    assert status("simulate") == 0
    said = capsys.readouterr().out
    assert "512 x 512 x 512" in said
    assert "0.500 s" in said


@pytest.mark.thorough
def test_choosing(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Each type that is drawn has both times, and the plans that were built are counted."""
    monkeypatch.setattr("docs.evidence.choosing.PROBLEMS", 55)
    monkeypatch.setattr("docs.evidence.choosing._WARM", 2)
    assert status("choosing", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["ranking"]) == set(found["choosing"]) == {"all", "bf16", "f16", "e4m3", "tf32", "f32"}
    assert 10 < found["plans"] <= 55
    assert all(0 < row["median_ms"] < row["one_in_ten_ms"] for row in found["choosing"].values())


@pytest.mark.parametrize("name", ["gemm", "simt", "scaled", "prebuilt", "start", "fit-simt", "fit-sm90"])
def test_commands_with_options_of_their_own(name, capsys) -> None:
    assert status(name, "--help") == 0
    assert f"usage: python -m docs.evidence {name}" in capsys.readouterr().out
