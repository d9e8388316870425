"""Grouped GEMMs on the command line, without a GPU."""

from __future__ import annotations

import json

import pytest

from cutegemm.errors import CutegemmError
from tests.test_cli import run


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutegemm.cli.gemm._gpu", lambda: "")
    monkeypatch.setattr("cutegemm.cli.job._compiled", lambda *_: {"arch": "sm_90a", "skipped": "no"})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("200", "72", "64", "--groups", "3", "--layout", "nt"), "200x72x64x3"),
        (("200", "72", "64", "--groups", "3", "--layout", "nt", "--ends", "0,150,170", "--beta", "0.5"), "200x72x64x3"),
        (("72", "200", "64", "--groups", "3", "--layout", "nt", "--along", "n", "--seed", "7"), "72x200x64x3"),
        (("72", "64", "200", "--groups", "4", "--layout", "tn", "--along", "k", "--alpha", "2"), "72x64x200x4"),
    ],
)
def test_gemm(arguments: tuple[str, ...], problem: str) -> None:
    """D of all groups is compared with float64; with other ends, the last group ends before M."""
    found = json.loads(run("gemm", *arguments, "--json"))
    assert (found["problem"], found["correct"], found["did"]) == (problem, True, "simulated on the CPU")
    assert 0 < found["relative_error"] < found["tolerance"]
    along = [word for word in arguments if word in ("n", "k")]
    options = " ".join(["--groups", problem[-1], *(["--along", *along] if along else [])])
    assert all(options in command for command in found["next"][:3])
    assert "--scales" not in str(found["next"])


def test_gemm_on_the_gpu_is_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutegemm.cli.gemm._gpu", lambda: {"name": "H100", "arch": "sm_90a", "device": None})
    found = json.loads(run("gemm", "128", "64", "64", "--groups", "2", "--layout", "nt", "--json"))
    assert found["no_gpu"] == "groups on the GPU: call cutegemm.torch.grouped.functional.grouped_mm"


def test_explain() -> None:
    rows = json.loads(
        run("explain", "4096", "4096", "1024", "--groups", "8", "--layout", "nt", "--count", "12", "--json")
    )
    chosen = next(row for row in rows if row["refused"] is None)
    assert chosen["order"].startswith("wgmma")
    assert chosen == rows[0]  # all candidates suit groups: none has an overlapped epilogue
    (deep, *_) = json.loads(
        run("explain", "512", "512", "4096", "--groups", "8", "--layout", "tn", "--along", "k", "--json")
    )
    assert deep["order"] is None


def test_check_and_show() -> None:
    grouped = ("--layout", "nt", "--groups", "8")
    found = json.loads(run("check", "sm90_pingpong", *grouped, "--problem", "8192x4096x1024", "--json"))
    assert found["problem"] == "8192x4096x1024x8, 8 groups of equal size"
    assert found["traffic"]["min_bytes"] == 2 * (8192 * 1024 + 8 * 1024 * 4096)
    shown = run("show", "sm90_pingpong", *grouped, "--along", "n", "--problem", "4096x8192x1024")
    assert "groups along n" in shown
    assert "32 x 8 x 8 tiles" in shown
    assert "schedule of the groups: 2048 work tiles of 8 groups" in shown


@pytest.mark.parametrize("option", [("--ends", "100,100,228"), ("--sizes", "100,0,128")])
def test_check_and_show_with_sizes(option: tuple[str, str]) -> None:
    """Groups of 100, 0 and 128 rows take two tiles of 128 rows, and two weights of 512 x 64 of bf16."""
    arguments = ("sm90_pingpong", "--layout", "nt", "--groups", "3", "--problem", "256x512x64", *option)
    cost = json.loads(run("check", *arguments, "--json"))["groups"]
    assert (cost["count"], cost["empty"], cost["weight_bytes"], cost["tiles"]) == (3, 1, 2 * 2 * 512 * 64, 2 * 4)
    assert "weights of groups with rows: 0.131 MB, of 0.197 MB of all groups" in run("check", *arguments)
    assert "schedule of the groups: 8 work tiles of 3 groups, 132 clusters of 1 CTA" in run("show", *arguments)
    swapped = json.loads(run("check", f"swap_ab:{arguments[0]}", *arguments[1:], "--json"))["groups"]
    assert (swapped["along"], swapped["weight_bytes"]) == ("n", cost["weight_bytes"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gemm", "8", "8", "8", "--groups", "0"), "--groups 0 is less than 1"),
        (("gemm", "8", "8", "8", "--groups", "2", "--along", "l"), "--along l is not m, n or k"),
        (("gemm", "8", "8", "8", "--ends", "3,8"), "--ends 3,8 needs --groups"),
        (("gemm", "8", "8", "8", "--groups", "2", "--batch", "2"), "--batch and --groups exclude each other"),
        (("gemm", "8", "8", "8", "--groups", "2", "--epilogue", "acc"), "--epilogue and --groups exclude each other"),
        (("gemm", "8", "8", "8", "--groups", "2", "--ends", "8"), "is not a list of 2 ends from 0 to M = 8"),
        (("gemm", "8", "8", "8", "--groups", "2", "--ends", "5,4"), "that do not decrease, such as 100,300,512"),
        (("gemm", "8", "8", "8", "--groups", "2", "--ends", "5,9"), "is not a list of 2 ends from 0 to M = 8"),
        (("gemm", "8", "8", "8", "--groups", "2", "--ends", "5,x"), "is not a list of 2 ends"),
        (("gemm", "8", "8", "8", "--groups", "2", "--dtype", "f32", "--plan", "simt_64x64"), "scheduler has no groups"),
        (
            ("gemm", "4096", "4096", "4096", "--groups", "8", "--layout", "nt"),
            "has more than 1073741824 multiply-adds. Give smaller extents, or --whole",
        ),
        (("gemm", "64", "64", "64", "--groups", "2", "--along", "k"), "A is k-major, but groups divide that mode"),
        (("explain", "8", "8", "8", "--groups", "2", "--batch", "2"), "--groups excludes --batch, --scales"),
        (("check", "sm90_pingpong", "--groups", "2", "--problem", "8x8x8x2"), "has a batch, which --groups excludes"),
        (("check", "sm90_pingpong", "--sizes", "8"), "--sizes 8 needs --groups and --problem"),
        (("check", "sm90_pingpong", "--groups", "1", "--sizes", "8", "--ends", "8"), "--ends 8 and --sizes 8 exclude"),
        (("show", "sm90_pingpong", "--groups", "2", "--ends", "1,2"), "--ends 1,2 needs --groups and --problem"),
        (
            ("check", "sm90_pingpong", "--groups", "2", "--sizes", "9,9", "--problem", "8x8x8"),
            "is not a list of 2 ends from 0 to M = 8",
        ),
        (("check", "sm90_pingpong", "--groups", "1", "--sizes", "x"), "is not a list of the size of each group"),
        (("show", "sm90_pingpong", "--groups", "2", "--epilogue", "acc"), "--groups excludes --scales and --epilogue"),
    ],
)  # fmt: skip
def test_wrong_options(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(CutegemmError) as raised:
        run(*arguments)
    assert said in str(raised.value)
