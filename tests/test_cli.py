"""The command line with text and JSON output, without a GPU."""

import json
import os
import re
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cutegemm import __version__
from cutegemm.choice.catalog import candidates, chosen, plan_named, plans
from cutegemm.cli import app, main
from cutegemm.cli.inputs import plan_for
from cutegemm.compile.cubin import ResourceReport
from cutegemm.dtypes import DType
from cutegemm.errors import CompileError, CutegemmError, PlanError, UnsupportedError
from cutegemm.machine.device import device_named
from cutegemm.parse.epilogue import parsed_epilogue
from cutegemm.parse.plan import operands_for
from cutegemm.plan import Operands, Problem
from docs.evidence.files import read_record

BF16 = Operands.of("bf16")
SMALL = ("--problem", "512x512x512")


def run(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status, done.output
    return done.stdout


@pytest.fixture(autouse=True)
def no_limit_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the width that workers of pytest-xdist set; a pipe of a user has none."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutegemm.cli.gemm._gpu", lambda: "")


@pytest.fixture
def not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip compiling the plan, which takes seconds, in tests that do not look at the compiled kernel."""
    monkeypatch.setattr("cutegemm.cli.job._compiled", lambda *_: {"arch": "sm_90a", "skipped": "no"})


def test_gemm_for_a_program() -> None:
    found = json.loads(run("gemm", "100", "60", "70", "--json", "--layout", "tn", "--alpha", "2", "--beta", "0.5"))
    assert found["did"] == "simulated on the CPU"
    assert found["correct"] is True
    assert found["relative_error"] < 1e-5
    compiled = found["compiled"]
    if "skipped" not in compiled:
        assert compiled["arch"] == "sm_90a"
        assert compiled["spills"] == 0
        assert compiled["instructions"]["FFMA"] > 0
        assert compiled["violations"] == []


def test_gemm_emulated() -> None:
    """--emulate runs the compiled PTX instead of the plan, for a corner of a problem that is too large to emulate."""
    pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    found = json.loads(run("gemm", "1030", "1028", "1020", "--plan", "simt_64x64", "--emulate", "--json"))
    assert found["did"] == "emulated its PTX on the CPU"
    assert found["emulated"].startswith("70x68x76 of it")
    assert found["correct"] is True
    assert found["ctas"] == 4


@pytest.mark.usefixtures("not_compiled")
def test_gemm_of_tf32_leaves_float32() -> None:
    """D is float32 in memory, so its error is that of float32 sums, not of rounding D to TF32, which is 2^-11."""
    plan = "mma_sync:block=64x64x32,warp=32x32"
    found = json.loads(run("gemm", "64", "64", "64", "--dtype", "tf32", "--plan", plan, "--json"))
    assert found["correct"] is True
    assert found["relative_error"] < 1e-6
    assert found["tolerance"] == 1e-5


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize(
    ("k", "factors"),
    [
        ("8192", ("--out-dtype", "s8")),
        ("4", ("--alpha", "0.3")),
        ("64", ("--alpha", "0.7", "--beta", "-0.5")),
    ],
)
def test_gemm_of_whole_numbers_is_exact(k: str, factors: tuple[str, ...]) -> None:
    """Integer results are exact, also if they saturate, and if alpha and beta are not integers.

    Sums of 8192 products of normal numbers have a standard deviation of 90, so some exceed 127. With alpha and beta, D
    is rounded once.
    """
    found = json.loads(run("gemm", "64", "64", k, "--dtype", "s8", "--layout", "nt", *factors, "--json"))
    assert found["correct"] is True
    assert found["relative_error"] == found["tolerance"] == 0


@pytest.mark.usefixtures("not_compiled")
def test_files_are_rounded_to_the_element_type(tmp_path: Path) -> None:
    """300 in a file becomes 127 in s8, and the report says that A was rounded. Values that fit are not mentioned."""
    np.save(tmp_path / "a.npy", np.full((8, 16), 300))
    np.save(tmp_path / "b.npy", np.eye(16))
    files = ("--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "b.npy"), "--out", str(tmp_path / "d.npy"))
    found = json.loads(run("gemm", *files, "--dtype", "s8", "--layout", "nt", "--json"))
    assert (found["rounded"], found["correct"]) == (["A"], True)
    assert (np.load(tmp_path / "d.npy") == 127).all()
    assert "rounded" in run("gemm", *files, "--dtype", "s8", "--layout", "nt")
    assert "rounded" not in json.loads(run("gemm", *files, "--json"))
    assert (np.load(tmp_path / "d.npy") == 300).all()


@pytest.mark.parametrize("missing", [("torch",), ("tvm_ffi", "torch"), ()])
def test_why_a_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, missing: tuple[str, ...]) -> None:
    """If nvidia-smi is found, the report says why no GPU is used; otherwise it says nothing."""
    monkeypatch.undo()  # removes the fixture's replacement
    monkeypatch.setattr("cutegemm.cli.job._compiled", lambda *_: {"arch": "sm_90a", "skipped": "no"})
    there = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False), __version__="2.0")
    monkeypatch.setitem(sys.modules, "torch", there)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else name)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no_gpu" not in json.loads(run("gemm", "8", "8", "8", "--json"))
    (tmp_path / "nvidia-smi").write_text("")
    (tmp_path / "nvidia-smi").chmod(0o755)
    extras = {("torch",): "[torch]", ("tvm_ffi", "torch"): "[kernels,torch]"}
    wanted = f"'.{extras[missing]}'" if missing else "torch 2.0 sees no CUDA device"
    assert wanted in json.loads(run("gemm", "8", "8", "8", "--json"))["no_gpu"]
    assert wanted in run("gemm", "8", "8", "8")


def test_gemm_for_a_person() -> None:
    said = run("gemm", "64", "64", "64", "--plan", "simt_64x64")
    for part in ("simt_64x64", "CTA", "warp", "thread", "simulated on the CPU", "correct", "no fault"):
        assert part in said


def test_gemm_without_extents_names_them_once() -> None:
    with pytest.raises(UnsupportedError, match=r"^gemm: M, N and K are not given\. Write `cutegemm gemm M N K`"):
        run("gemm")
    with pytest.raises(PlanError, match=r"1 rule is broken\.\n  - N and K are not given\. Write"):
        run("gemm", "128")


@pytest.mark.usefixtures("not_compiled")
def test_a_swapped_plan_names_the_operands_of_the_user() -> None:
    """Both A and B are K-major in "nt": in D^T = B^T A^T they would be called n-major and m-major."""
    asked = ("--dtype", "f16", "--layout", "nt")
    names = "A f16 k-major, 16-byte aligned; B f16 k-major, 16-byte aligned; C f16 n-major"
    swap = "swap A/B: the plan computes D^T = B^T A^T; its A is B^T, and its B is A^T"
    swapped = "swap_ab:sm90_64x16_multistage"
    for said in (
        run("gemm", "64", "64", "64", *asked, "--plan", swapped),
        run("show", swapped, *asked),
        run("check", swapped, *asked, *SMALL),
    ):
        assert names in said
        assert swap in said
    found = json.loads(run("gemm", "64", "64", "64", *asked, "--plan", swapped, "--json"))
    assert found["operands"].startswith(names)
    assert "swap A/B" not in run("show", "sm90_64x16_multistage", *asked)


def test_a_persistent_grid_computes_tiles_in_rounds() -> None:
    said = run("check", "sm90_pingpong", "--layout", "nt", "--problem", "4096x4096x4096")
    assert "1024 tiles on 132 persistent CTAs in 8 rounds of 132" in said
    assert "16 CTAs in 1 waves of" in run("check", "mma_128x128", "--dtype", "bf16", *SMALL)


@pytest.mark.usefixtures("not_compiled")
def test_a_device_that_stands_in_for_another_architecture_is_named() -> None:
    said = run("gemm", "64", "64", "64", "--dtype", "bf16", "--arch", "sm_100a")
    assert "on h200 (sm_90a; no rates of sm_100a are known)" in said
    assert "no rates" not in run("gemm", "64", "64", "64", "--dtype", "bf16", "--arch", "sm_90a")


def test_the_sample_of_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines are what the command says, but for times, and for what the compiler makes of it."""
    monkeypatch.setenv("COLUMNS", "200")
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    (sample,) = re.findall(r"^```\n\$ cutegemm (gemm .*\n(?:.*\n)*?)```", readme, re.MULTILINE)
    command, *shown = sample.splitlines()
    said = re.sub(r" +", " ", run(*command.split()))
    known = [re.sub(r" +", " ", line.removesuffix("...")).strip() for line in shown]
    known = [line for line in known if not re.search(r"in [0-9.]+ s,|^compiled|^SASS|relative error", line)]
    assert len(known) > 7
    assert [line for line in known if line not in said] == []


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize("plan", [(), ("--plan", "swap_ab:simt_64x64")], ids=["chosen", "transposed"])
def test_files(tmp_path: Path, plan: tuple[str, ...]) -> None:
    """Integers in files are multiplied exactly, with alpha and beta."""
    rng = np.random.default_rng(1)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((33, 17), (17, 29), (33, 29)))
    for name, matrix in (("a", a), ("b", b), ("c", c)):
        np.save(tmp_path / f"{name}.npy", matrix)
    paths = [part for name in "abc" for part in (f"--{name}", str(tmp_path / f"{name}.npy"))]
    run("gemm", *paths, "--out", str(tmp_path / "d.npy"), "--alpha", "2", "--beta", "-1", *plan)
    assert np.array_equal(np.load(tmp_path / "d.npy"), 2 * a @ b - c)


@pytest.mark.usefixtures("not_compiled")
def test_a_plan_for_the_transposed_problem_is_taken_too() -> None:
    """The command accepts and chooses plans that swap A and B, as `gemm` does.

    A row operand of the epilogue is a column of D^T. The simulated corner is reported as a corner of D.
    """
    few = (
        "48",
        "160",
        "64",
        "--dtype",
        "bf16",
        "--layout",
        "nt",
        "--plan",
        "swap_ab:sm90_64x32",
        "--json",
    )
    said = json.loads(run("gemm", *few, "--epilogue", "relu(acc + bias)", "--operand", "bias:row:f32"))
    assert (said["plan"], said["problem"], said["correct"]) == ("swap_ab:sm90_64x32", "48x160x64", True)
    chosen = json.loads(run("gemm", "16", "2048", "4096", "--dtype", "bf16", "--layout", "nt", "--json"))
    assert chosen["plan"].startswith("swap_ab:")
    assert (chosen["problem"], chosen["correct"]) == ("16x2048x4096", True)
    assert chosen["chosen"]["reason"].startswith("lowest predicted time of")
    large = ("300", "8192", "4096", "--dtype", "bf16", "--layout", "nt", "--plan", "swap_ab:sm90_epi_stages")
    corner = json.loads(run("gemm", *large, "--json"))
    # 300 = 2 * 128 + 44 rows: the corner has 128 + 44. 11 k-tiles of 64 fill five stages twice, and one stage again.
    assert corner["simulated"].startswith("172x128x704 of it")
    assert corner["correct"]


@pytest.mark.usefixtures("not_compiled")
def test_batch() -> None:
    assert json.loads(run("gemm", "20", "30", "40", "--batch", "3", "--json"))["problem"] == "20x30x40x3"


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize(
    ("reduced", "more"),
    [
        ("row_sum(acc)", ("--plan", "swap_ab:sm90_64x32", "--dtype", "bf16", "--layout", "nt")),
        ("column_max(acc)", ("--operand", "aux:result:f32")),
        ("total_sum(acc)", ("--dtype", "f64")),
    ],
)
def test_sums_and_maxima(reduced: str, more: tuple[str, ...]) -> None:
    said = json.loads(run("gemm", "40", "72", "64", "--epilogue", f"acc, aux = {reduced}", *more, "--json"))
    assert said["correct"]


GELU = (
    "--epilogue",
    "gelu(acc + bias), aux = acc",
    "--operand",
    "bias:row:f32",
    "--operand",
    "aux:result:f16",
)
SLOTS = ("--plan", "sm90_epi_stages", "--layout", "nt")


@pytest.mark.parametrize(
    ("name", "kind", "way"), [("c", "tile", ()), ("c", "row", ("--emulate",)), ("alpha", "scalar=2", ())]
)
@pytest.mark.usefixtures("not_compiled")
def test_operands_may_be_called_as_those_of_alpha_and_beta_are(name, kind, way):
    said = run("gemm", "40", "64", "32", "--epilogue", f"acc + {name}", "--operand", f"{name}:{kind}", *way)
    assert "correct: relative error" in said


SCALE_AND_TILE = ("--operand", "s:scalar=0.5", "--operand", "x:tile")


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize(
    "arguments",
    [
        ("100", "60", "70", *GELU),
        ("72", "136", "96", *SLOTS, *GELU),
        ("40", "64", "32", "--batch", "2", "--epilogue", "acc * s + x", *SCALE_AND_TILE),
        ("72", "128", "64", *SLOTS, "--epilogue", "swiglu(acc + y)", "--operand", "y:row"),
    ],
)  # fmt: skip
def test_an_epilogue_is_carried_out(arguments: tuple[str, ...]) -> None:
    found = json.loads(run("gemm", *arguments, "--json"))
    assert found["correct"] is True
    assert 0 < found["relative_error"] < found["tolerance"]


@pytest.mark.parametrize(("ends", "shares"), [("swiglu(acc)", False), ("relu(acc), aux = acc", True)])
def test_a_chosen_plan_can_end_so(ends: str, shares: bool) -> None:
    """The chosen plan can have the epilogue.

    For few tiles and a large K, plans with cluster split-K have the lowest predicted time. They cannot have a gated
    epilogue, but they can have an auxiliary output.
    """
    problem, device = Problem(288, 320, 16080, operands=BF16), device_named("h200")
    ending = parsed_epilogue("gemm", ends, [])
    _, plan, _ = plan_for(None, problem, "sm_90a", device, False, ending)
    assert (plan.cluster_k > 1) == shares
    assert plan.epilogue.gated == ("" if shares else "halves")


def test_an_epilogue_is_shown_and_checked() -> None:
    assert "gelu(acc + bias), aux = acc" in run("show", "simt_64x64", *GELU)
    # In D^T, a row operand is a column.
    said = run("show", "swap_ab:sm90_epi_stages", "--layout", "nt", *GELU)
    assert "load bias" in said
    assert "f32 column of M, 4-byte aligned" in said
    found = json.loads(run("check", "sm90_epi_stages", "--layout", "nt", "--problem", "1024x1024x512", *GELU, "--json"))
    assert (found["epilogue"]["fp32"], found["epilogue"]["special"]) == (11, 1)
    assert [part["name"] for part in found["epilogue"]["parts"]] == ["BIAS", "AUX"]


SCALED = ("--dtype", "e4m3", "--layout", "nt", "--scales", "1x128,128x128")


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize(
    "arguments",
    [
        ("150", "64", "130"),
        ("16", "256", "256", "--batch", "2"),
        ("4096", "4096", "1024"),
        ("150", "64", "130", "--epilogue", "relu(acc + bias)", "--operand", "bias:row"),
        ("100", "96", "304", "--plan", "sm90_promoted_2x1", "--alpha", "2", "--beta", "0.5"),
    ],
    ids=" ".join,
)
def test_block_scales(arguments: tuple[str, ...]) -> None:
    """D is that of the dequantized factors: chosen, in part, with swapped factors, and with an epilogue."""
    found = json.loads(run("gemm", *arguments, *SCALED, "--json"))
    assert found["correct"] is True
    assert "scale_a f32 m-major" in found["operands"]
    assert found["next"][-2].endswith("--html plan.html")
    assert "--scales 1x128,128x128" in found["next"][-2]


def test_block_scales_are_explained_checked_and_shown() -> None:
    rows = json.loads(run("explain", "4096", "2112", "7168", *SCALED, "--json", "--count", "3"))
    assert rows[0]["plan"] == "sm90_promoted_128x192_2x1"
    invariant = json.loads(run("explain", "16", "4096", "7168", *SCALED, "--json", "--count", "1", "--batch-invariant"))
    assert "sm90_promoted" in invariant[0]["plan"]
    assert {"read SCALE_B", "load SCALE_A"} <= {*re.findall(r"\w+ SCALE_\w", run("check", "sm90_promoted", *SCALED))}
    assert "load     A[k], B[k], SCALE_A[k] -> full[k]" in run("show", "sm90_promoted", *SCALED)


@pytest.mark.usefixtures("not_compiled")
def test_a_large_problem_is_simulated_in_part() -> None:
    found = json.loads(run("gemm", "4100", "4097", "4099", "--json", "--plan", "simt_128x128"))
    assert found["simulated"].startswith("132x129x67 of it (--whole")
    assert "whole and ragged tiles along M, N, K" in found["exercised"]
    assert found["not_exercised"] == ["more than one band of the raster grouped_m:8"]
    assert found["correct"]


@pytest.mark.usefixtures("not_compiled")
def test_what_was_simulated_of_a_large_problem_is_told() -> None:
    """The report of a large problem lists what the simulated corner exercised: grid, stages and split tiles."""
    said = run("gemm", "4096", "4096", "4096", "--dtype", "bf16", "--layout", "nt", "--plan", "sm90_64x64_2x1/fixup")
    words = " ".join(said.split())
    for part in (
        "on a grid of 4 CTAs",
        "k-tiles through 12 stages",
        "tiles with up to 2 K splits",
        "tiles that are not split",
        "2 work tiles of a consumer",
        "not exercised more than one band of the raster fitted_m",
        "correct",
    ):
        assert part in words, words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gemm",), "M, N and K are not given"),
        (("gemm", "8", "8", "8", "--scales", "1x64"), "--scales 1x64 is not two of 1x128 or 128x128, for A and for B"),
        (("explain", "8", "8", "8", "--scales", "1x128,1x128"), "but A and B are f32. Give --dtype e4m3"),
        (("gemm", "--batch", "-2", "--seed", "-1", "--", "8", "-8", "8"), "N is -8. Give 0 or more"),
        (("gemm", "--batch", "-2", "8", "8", "8"), "the batch is -2"),
        (("gemm", "--seed", "-1", "8", "8", "8"), "--seed -1 is negative"),
        (("gemm", "99999999999", "9999999999", "9999999999"), "elements together. The limit is 68719476736"),
        (("gemm", "8", "8", "8", "--out", "/no/such/folder/d.npy"), "the folder /no/such/folder does not exist"),
        (("gemm", "8", "8", "8", "--out", "d.txt"), "d.txt does not end in .npy"),
        (("show", "simt_128x128", "--problem", "4294967296x8x8"), "above 2147482624"),
        (("check", "simt_128x128", "--problem", "2000000x2000000x8"), "15625 x 15625 x 1 tiles"),
        (("check", "simt_128x128", "--arch", "sm_80", "--device", "h200"), "Give one of them"),
        (("profile", "simt_128x128", "--ncu", "no-such-ncu"), "profile(ncu='no-such-ncu'): not found"),
        (("show", "S<3,3,2>"), "the two bit fields overlap"),
        (("gemm", "8", "8", "8", "--plan", "nothing"), "no plan is called 'nothing'"),
        (("gemm", "8", "8", "8", "--layout", "xy"), "; expected two letters, each n or t."),
        (("gemm", "8", "8", "8", "--dtype", "f17"), "f17"),
        (
            ("gemm", "7", "9", "8", "--plan", "sm90_pingpong", "--dtype", "f32"),
            "takes only k-major tf32 operands",
        ),
        (("show", "(4,8:(8,1)"), "^"),
        (("show", "SIMT_64x64"), "no plan is called 'SIMT_64x64'"),
        (("check", "simt_128x128", "--problem", "4096"), "MxNxK"),
        (("check", "simt_128x128", "--device", "abacus"), "abacus"),
        (("gemm", "8", "-8", "8", "--whole"), "the extent -8 is negative. Give 0 or more"),
        (("gemm", "8", "8", "8", "--a", "none.npy"), "--a none.npy: No such file or directory."),
        (
            ("gemm", "64", "64", "64", "--dtype", "e4m3", "--plan", "sm90_epi_stages"),
            "B is n-major, but wgmma takes only k-major e4m3 operands, as in layout 'nt'. Add +repack to the name",
        ),
        (("gemm", "64", "64", "64", "--dtype", "s8", "--arch", "sm_80"), "only by wgmma; sm_90a has it"),
        (("show", "simt:block=128x128"), "block = (128, 128); 3 positive integers are expected"),
        (("show", "simt_64x64", "--svg", "x.png", "--html", "x.svg"), "--html x.svg does not end in .html"),
        (("show", "simt_64x64", "--epilogue", "gelu(acc + bais)"), "is not an operand; the operands are"),
        (
            ("show", "simt_64x64", "--epilogue", "acc + b", "--operand", "b:roww"),
            "--operand b:roww: this is not NAME:KIND or",
        ),
        (("show", "simt_64x64", "--epilogue", "acc * s", "--operand", "s:scalar=x"), "'x' is not a number"),
        (
            ("show", "simt_64x64", "--epilogue", "acc", "--operand", "y:result"),
            "acc has no result of that name",
        ),
        (
            ("check", "simt_64x64", "--operand", "b:row"),
            "--operand b:row needs an --epilogue with that operand",
        ),
        (
            ("show", "(4,8):(8,1)", "--epilogue", "acc"),
            "--epilogue and --operand need a plan, but (4,8):(8,1) is a layout",
        ),
        (("gemm", "64", "64", "64", "--epilogue", "acc", "--beta", "2"), "leave out --c, --alpha and --beta"),
        (
            ("gemm", "8", "8", "8", "--epilogue", "acc + check", "--operand", "check:row"),
            "--operand check: simulate has an option of this name. Rename the operand",
        ),
        (
            ("gemm", "8", "8", "8", "--epilogue", "acc + x", "--operand", "x:row", "--operand", "x:column"),
            "--operand x: the operand appears 2 times",
        ),
        (("gemm", "64", "64", "64", "--alpha", "1e39"), "--alpha 1e+39 is not finite in float32"),
        (
            ("gemm", "64", "64", "64", "--epilogue", "acc * s", "--operand", "s:scalar=nan"),
            "s:scalar=nan: nan is not a number of float32",
        ),
        (("explain", "-1", "2", "3"), "explain: 1 rule is broken.\n  - the extent -1 is negative"),
        (
            (
                "gemm",
                "64",
                "64",
                "64",
                "--dtype",
                "bf16",
                "--layout",
                "nt",
                "--plan",
                "sm90:tile=64x64x64,fixup=yes",
            ),
            "'fixup=yes': 1 for yes or 0 for no is expected",
        ),
        (("plans", "nothing"), "no name begins with nothing. Names begin with simt, mma, gemv"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(CutegemmError) as caught:
        run(*arguments)
    assert said in str(caught.value)


def test_every_wrong_argument_is_said_at_once(tmp_path: Path) -> None:
    names = ("--dtype", "f17", "--layout", "xy", "--arch", "sm_1", "--plan", "simt_1")
    out = str(tmp_path / "d.txt")
    with pytest.raises(CutegemmError) as caught:
        run("gemm", "8", "8", *names, "--out", out, "--seed", "-1", "--c", "none.npy")
    for said in (f"{out} does not", "f17", "'xy'", "sm_1", "simt_1", "--seed -1", "none.npy"):
        assert said in str(caught.value)
    with pytest.raises(CutegemmError) as caught:
        run("check", *names[-1:], *names[:4], "--problem", "8x8")
    for said in ("f17", "'xy'", "simt_1", "'8x8' is not MxNxK"):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("plan", "operands"), [("sm90_64x64", "A bf16"), ("mma_64x64", "A tf32"), ("simt_64x64", "A f32")]
)
def test_without_a_type_a_plan_takes_one_that_it_multiplies(plan: str, operands: str) -> None:
    assert operands in run("show", plan, "--problem", "256x256x256")
    assert f"of {operands}" in run("check", plan, "--problem", "256x256x256")


@pytest.mark.usefixtures("not_compiled")
def test_f32_multiplied_as_tf32() -> None:
    """Rounding float32 to TF32 may change each operand by 2^-10. An error of this size is a fault for TF32 inputs."""
    found = json.loads(run("gemm", "64", "64", "64", "--plan", "mma_64x64", "--json"))
    assert found["correct"] is True
    assert 1e-4 < found["relative_error"] < 2**-9
    exact = json.loads(run("gemm", "64", "64", "64", "--plan", "mma_64x64", "--dtype", "tf32", "--json"))
    assert (exact["correct"], exact["tolerance"]) == (True, 1e-5)


@pytest.mark.usefixtures("not_compiled")
def test_what_is_not_carried_out_is_not_made_up() -> None:
    """A would have 4 TB. Only the corner that is simulated is filled with values."""
    found = json.loads(run("gemm", "100003", "100003", "100003", "--plan", "simt_64x64", "--json"))
    assert found["simulated"].startswith("99x99x67 of it")
    assert found["correct"] is True


@pytest.mark.usefixtures("not_compiled")
def test_files_of_a_batch(tmp_path: Path) -> None:
    for name, shape in (("a", (3, 8, 8)), ("b", (8, 8)), ("other", (2, 8, 8))):
        np.save(tmp_path / f"{name}.npy", np.ones(shape, np.float32))
    a, b, other = (str(tmp_path / f"{name}.npy") for name in ("a", "b", "other"))
    with pytest.raises(CutegemmError, match=r"b.npy is one matrix, but the batch has 3"):
        run("gemm", "--a", a, "--b", b)
    with pytest.raises(CutegemmError, match=r"the batch is 3 here and 2 in --b"):
        run("gemm", "--a", a, "--b", other)
    assert json.loads(run("gemm", "8", "4", "8", "--a", a, "--json"))["problem"] == "8x4x8x3"


def test_files_that_contradict(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((4, 5)))
    np.save(tmp_path / "b.npy", np.ones((6, 7)))
    with pytest.raises(CutegemmError, match="K is 5 here and 6 in --b"):
        run("gemm", "--a", str(tmp_path / "a.npy"), "--b", str(tmp_path / "b.npy"))


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize("extents", [("0", "5", "3"), ("4", "5", "0"), ("4", "0", "3")])
def test_an_extent_of_0_is_an_extent(extents: tuple[str, ...]) -> None:
    assert json.loads(run("gemm", *extents, "--json"))["problem"] == "x".join(extents)


@pytest.mark.usefixtures("not_compiled")
def test_nothing_finite_is_said_so() -> None:
    said = run("gemm", "16", "16", "16", "--epilogue", "acc / 0", status=1)
    assert "WRONG: float64 has no finite values to compare with" in said


def test_what_was_simulated_is_told_though_it_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(plan: object, arch: str) -> None:
        raise CompileError("the cache cannot be read")

    monkeypatch.setattr("cutegemm.cli.job._compiled", compiled)
    said = " ".join(run("gemm", "48", "32", "24", status=1).split())
    assert "correct: relative error" in said
    assert "no: the cache cannot be read" in said


@pytest.mark.parametrize("dtype", ["e4m3", "s8"])
def test_what_is_explained_is_what_gemm_takes(dtype: str) -> None:
    """`cutegemm explain` lists the plan of `gemm` first, also if the type of D differs from that of A."""
    kind = DType.parse(dtype)
    for m, n, k in ((8192, 8192, 8192), (2048, 4096, 512), (16, 4096, 4096)):
        first, *_ = json.loads(run("explain", str(m), str(n), str(k), "--dtype", dtype, "--layout", "nt", "--json"))
        operands = operands_for(kind, "nt").fitted(m, n, k)
        assert first["plan"] == str(chosen(operands, Problem(m, n, k, operands=operands))[0])


def test_explain_names_the_higher_bound_and_joins_plans_of_one_time() -> None:
    asked = ("explain", "4096", "4096", "4096", "--dtype", "bf16", "--layout", "nt", "--count", "4")
    rows = json.loads(run(*asked, "--json"))
    first, times = rows[0], sorted({row["us"] for row in rows})
    assert len(times) == 4 < len(rows)
    table = {line.split()[0]: line for line in run(*asked).splitlines()[3:-1]}
    assert len(table) == 4
    for us in times:
        name, *ties = [row["plan"] for row in rows if row["us"] == us]
        assert (f"; as fast: {', '.join(ties)}" in table[name]) == bool(ties)
    assert "chosen" in table[first["plan"]]
    for row in rows:
        if row["plan"] in table and row["us"] > times[0]:
            name, us, other = re.search(r"slower: ([\w -]+) ([\d.]+) us, not ([\d.]+) us", table[row["plan"]]).groups()
            assert float(us) == pytest.approx(row["bounds_us"][name], rel=1e-3)
            assert float(other) == pytest.approx(first["bounds_us"][name], rel=1e-3)
            assert float(us) > float(other)


@pytest.mark.usefixtures("not_compiled")
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_not_finite_is_right_where_float64_has_the_same(tmp_path: Path, value: str) -> None:
    a = np.ones((8, 8), np.float32)
    a[3, 5] = float(value)
    np.save(tmp_path / "a.npy", a)
    done = json.loads(run("gemm", "--a", str(tmp_path / "a.npy"), "8", "8", "8", "--json"))
    assert done["correct"] is True


def test_show_a_layout(tmp_path: Path) -> None:
    said = run("show", "((2,2),4):((1,8),2)", "--svg", str(tmp_path / "x.svg"))
    assert "0  2  4  6" in said
    assert (tmp_path / "x.svg").read_text().startswith("<svg")


def test_show_a_swizzle(tmp_path: Path) -> None:
    """S<1,0,2>: bit 2 of a unit's index, which is its row, flips bit 0. So row 1 has 5, 4, 7, 6."""
    said = run("show", "S<1,0,2>", "--svg", str(tmp_path / "x.svg"))
    assert re.search(r"1 │ 4 5 6 7 │ .*1 │ 5 4 7 6 │", said)
    assert (tmp_path / "x.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    "typed",
    [
        "make_layout((4,8), stride=(8,1))",
        "make_layout((4,8),(8,1))",
        "Layout<Shape<_4,_8>,Stride<_8,_1>>",
        "auto x = make_layout(make_shape(_4{}, _8{}), LayoutRight{});",
        "logical_product(8:1, 4)(_, _)",
        "_32:_1",
    ],
)
def test_a_layout_is_shown_as_it_is_typed(typed):
    shown = {"logical_product(8:1, 4)(_, _)": "(8,4):(1,8)", "_32:_1": "32:1"}.get(typed, "(4,8):(8,1)")
    assert run("show", typed).startswith(f"layout: {shown}\n")


def test_show_a_plan(tmp_path: Path) -> None:
    said = run("show", "simt_128x128", "--problem", "512x512x512", "--html", str(tmp_path / "x.html"))
    assert "4 x 4 x 1 tiles" in said
    assert "<html" in (tmp_path / "x.html").read_text()[:200].lower()


def test_show_the_programs_of_roles() -> None:
    """After the table, each program is printed once, under the names of its roles."""
    said = run("show", "sm90_multistage").splitlines()
    assert said[said.index("consumer 0") + 1] == "  for tile in work:"
    said = run("show", "sm90_epi_stages").splitlines()
    producer, consumers = said.index("producer"), said.index("consumer 0, 1")
    assert said[producer + 1 : consumers] == [
        "  for tile in work:",
        "    for k in tile.k_tiles:",
        "      acquire  empty[k]",
        "      load     A[k], B[k] -> full[k]",
    ]
    own = [f"  {line}" for line in str(plan_named("sm90_epi_stages", BF16).program("consumer 1")).splitlines()]
    assert said[consumers + 1 :] == own
    assert said[producer - 1] == ""


def test_show_the_schedule_of_all_threads() -> None:
    """With three stages, two fetches come before the loop. A loop of three rounds has 12 of the 16 k-blocks."""
    said = run("show", "simt:block=128x128x16,warp=64x32,thread=8x8,stages=3,unroll=4").splitlines()
    steps = said[said.index("all threads") + 1 :]
    loop = steps.index("  for k in tile.k_tiles:")
    assert [line.split()[0] for line in steps[:loop]] == 2 * ["fetch", "commit", "store"] + [
        "wait",
        "sync",
        "read",
    ]
    assert steps[loop + 1 : loop + 6] == [
        "    fetch    A[k + 2], B[k + 2]",
        "    commit   the copies fetched",
        "    for i in 0, 4, 8:",
        "      read     A[k], B[k]: k-block i + 1",
        "      mma      k-block i -> acc",
    ]
    assert "    wait     for all copies but those of the last commit" in steps
    assert steps[-1] == "    mma      k-block 15 -> acc"


@pytest.mark.parametrize(
    "name", ["sm90_epi_stages", "sm90_multistage", "sm90_64x128/k4", "sm90_fixup", "mma_tma_256x128"]
)
def test_show_a_timeline(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.svg"
    said = run("show", name, "--timeline", "--svg", str(file))
    roles = [role.name for role in plan_named(name, BF16).roles]
    assert [line.split("│")[0].strip() for line in said.splitlines() if "│" in line] == roles
    assert all(set("0123456789#. ") > set(line.split("│")[1]) for line in said.splitlines() if "│" in line)
    assert f"{name}: " in said
    drawn = file.read_text()
    assert drawn.startswith("<svg")
    assert all(f">{role}<" in drawn for role in roles)


def test_a_timeline_of_what_has_no_roles() -> None:
    with pytest.raises(CutegemmError, match="the plan 'simt_64x64' has no warp roles"):
        run("show", "simt_64x64", "--timeline")
    with pytest.raises(CutegemmError, match=r"--timeline needs a plan with warp roles, but S<3,3,3> is a layout"):
        run("show", "S<3,3,3>", "--timeline")


def test_plans_are_listed_by_family() -> None:
    """Text and JSON list each plan once, in the order of the families."""
    said = run("plans")
    names = [line.split()[0] for line in said.splitlines() if re.match(r"  [a-z]\w*_\S+ ", line)]
    assert names == [row["name"] for row in json.loads(run("plans", "--json"))] == [n for n, _ in plans()]
    assert said.index("SIMT: multiply-adds") < said.index("simt_256x128") < said.index("Hopper: wgmma")


def test_plans_that_are_asked_for() -> None:
    names = [row["name"] for row in json.loads(run("plans", "mma", "sm90_*_2x1", "--json"))]
    assert names == [n for n, _ in plans() if n.startswith("mma") or re.fullmatch("sm90_.*_2x1", n)]
    assert "SIMT" not in run("plans", "mma").splitlines()[0]


def test_version() -> None:
    assert run("--version") == f"cutegemm {__version__}\n"


def test_check() -> None:
    said = run("check", "simt_256x128", "--layout", "tn")
    for part in ("LDS.128", "wavefronts", "Occupancy", "Roofline"):
        assert part in said
    found = json.loads(run("check", "simt_256x128", "--layout", "tn", "--json"))
    assert found["violations"] == []


def test_the_report_of_an_empty_problem() -> None:
    assert "0 CTAs" in run("check", "simt_128x128", "--problem", "0x64x64")


def test_check_of_an_empty_problem() -> None:
    assert json.loads(run("check", "simt_128x128", "--problem", "0x64x64", "--json"))["roofline"]["seconds"] == 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            MemoryError("Unable to allocate 74.5 GiB"),
            "not enough memory: Unable to allocate 74.5 GiB",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "/proc/d.npy"),
            "/proc/d.npy: No such file or directory",
        ),
        (OSError("the disk is full"), "the disk is full"),
        (CutegemmError("a rule is broken"), "a rule is broken"),
    ],
)
def test_an_error_ends_with_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, said: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("cutegemm.cli.app", fail)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"cutegemm: {said}\n"


def test_figures(tmp_path: Path) -> None:
    """The committed figures are the ones that the command draws."""
    run("figures", str(tmp_path))
    drawn = {path.name: path.read_bytes() for path in tmp_path.glob("*.svg")}
    committed = Path(__file__).parent.parent / "docs" / "figures"
    assert drawn == {path.name: path.read_bytes() for path in committed.glob("*.svg")}
    assert len(drawn) > 10


# Replaces Nsight Compute. It does not run the launcher, but writes the log of the launcher and a CSV table of counters
# from the record of an earlier run. A case that should fail gets no counters.
FAKE_NCU = """#!{python}
import json, pickle, sys
from pathlib import Path

arguments = sys.argv[1:]
record = json.loads(Path({record!r}).read_text())
if arguments == ["--version"]:
    print("Version 2026.1.0")
elif arguments == ["--query-metrics"]:
    print("\\n".join(name.split(".")[0] for name in record["metrics"]))
else:
    cases, log = (Path(a) for a in arguments[-2:])
    count = 0 if {fails!r} else len(pickle.loads(cases.read_bytes()))
    failed = {{"0": {fails!r}}} if {fails!r} else {{}}
    log.write_text(json.dumps({{"device": "NVIDIA H200", "arch": record["arch"],
                               "launched": list(range(count)), "failed": failed}}))
    values = {values!r}
    rows = ['"ID","Metric Name","Metric Unit","Metric Value"'] if count else []
    for number in range(count):
        for name, value in zip(record["metrics"], values):
            if value is not None and name in arguments[arguments.index("--metrics") + 1].split(","):
                rows.append(f'"{{number}}","{{name}}","","{{value:,}}"')
    Path(arguments[arguments.index("--log-file") + 1]).write_text("\\n".join(["==PROF== Connected", *rows]))
"""


@pytest.fixture
def fake_ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return a function that puts an `ncu` on PATH that prints recorded counters, or reports that the launch failed."""
    record = Path(__file__).parent.parent / "docs" / "evidence" / "data" / "analysis_plans.json"
    case = "layout_tn"
    counted = next(row for row in read_record(record)["cases"] if row["name"] == case)
    report = ResourceReport("recorded", counted["registers"], 0, 0, 0, {})
    monkeypatch.setattr("cutegemm.profile.run.resources_of", lambda *_: report)  # so that nothing is compiled

    def put(fails: str = "") -> None:
        command = tmp_path / "ncu"
        values = counted["counts"][0]
        command.write_text(FAKE_NCU.format(python=sys.executable, record=str(record), values=values, fails=fails))
        command.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return put


def test_profile_prints_what_was_counted(fake_ncu) -> None:
    """All of `cutegemm profile` except the GPU: the command line of ncu, its CSV output, and the comparison."""
    fake_ncu()
    arguments = ("profile", "simt:block=128x128x8", "--layout", "tn", "--problem", "2048x2048x1024")
    said = run(*arguments)
    for part in ("predicted", "measured", "registers of a thread", "global store sectors"):
        assert part in said
    rows = {row["name"]: row for row in json.loads(run(*arguments, "--json"))[0]["rows"]}
    assert rows["shared load wavefronts"]["holds"] is True
    assert rows["registers of a thread"]["measured"] == rows["registers of a thread"]["predicted"]


def test_profile_says_why_nothing_was_launched(fake_ncu) -> None:
    fake_ncu(fails="CompileError: ptxas refused")
    with pytest.raises(CutegemmError, match="was not launched: CompileError: ptxas refused"):
        run("profile", "simt_128x128", "--problem", "512x512x512")


@pytest.mark.parametrize("where", [("--device", "rtx4090"), ("--arch", "sm_86")])
def test_a_plan_is_checked_as_it_would_be_made_there(where: tuple[str, str]) -> None:
    """A named plan has as many stages as fit the shared memory of the architecture: here 100 KB instead of 228 KB."""
    found = json.loads(run("check", "mma_128x256", "--dtype", "bf16", *where, "--json"))
    assert found["violations"] == []


def test_files_that_hold_no_matrix(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "text.npy").write_text("1 2 3")
    np.savez(tmp_path / "two.npz", x=np.ones(3), y=np.ones(3))
    np.save(tmp_path / "complex.npy", np.ones((4, 4), complex))
    np.save(tmp_path / "row.npy", np.ones(4))
    for name, said in (
        ("empty.npy", "is not a .npy file of numbers"),
        ("text.npy", "is not a .npy file of numbers"),
        ("two.npz", "has several arrays"),
        ("complex.npy", "elements of complex128. Give a .npy file of one array of real numbers"),
        ("row.npy", "Give an array of 2 or 3 axes"),
    ):
        with pytest.raises(CutegemmError) as caught:
            run("gemm", "4", "4", "4", "--a", str(tmp_path / name))
        assert said in str(caught.value)


def alone(
    *arguments: str, cwd: Path | None = None, script: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command, or a script, in a new process whose streams are pipes."""
    root = str(Path(__file__).parent.parent)
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": root, "PYTHONUTF8": "0", **environment}
    return subprocess.run(
        [sys.executable, *(("-c", script) if script else ("-m", "cutegemm")), *arguments],
        capture_output=True, text=True, env=known, cwd=cwd,
    )  # fmt: skip


SEVERAL = f"""
import sys
from cutegemm.cli import main
for command in (("show", "(4,8):(8,1)"), ("check", "simt_64x64", *{SMALL}), ("show", "sm90_pingpong", "--timeline")):
    sys.argv = ["cutegemm", *command]
    try:
        main()
    except SystemExit as end:
        assert not end.code
    print("-" * 9)
"""


def test_any_encoding_will_do() -> None:
    """Characters that an encoding does not have are replaced by similar ones. All lines keep their length."""
    plain, rich = (alone(PYTHONIOENCODING=encoding, COLUMNS="100", script=SEVERAL) for encoding in ("ascii", "utf-8"))
    assert (plain.returncode, plain.stderr) == (0, "")
    assert plain.stdout.isascii()
    shown = rich.stdout.split("-" * 9)
    assert [text.isascii() for text in shown] == [False] * 3 + [True]  # nothing is printed after the last separator
    assert [len(line) for line in plain.stdout.splitlines()] == [len(line) for line in rich.stdout.splitlines()]


def test_a_pipe_is_not_wrapped() -> None:
    """A name of a plan that `grep` looks for is whole, and its row is one line."""
    said = alone("explain", "4096", "4096", "4096", "--dtype", "bf16", "--layout", "nt").stdout
    assert re.search(r"^sm90_overlapped_2x1 .* power .* swap_ab:sm90_overlapped_2x1\b", said, re.MULTILINE)
    said = alone("plans", "sm90_overlapped_2x1").stdout
    (row,) = [line for line in said.splitlines() if line.startswith("  sm90_overlapped_2x1 ")]
    assert row.split(maxsplit=1)[1].strip() == dict(plans())["sm90_overlapped_2x1"]


def test_a_narrow_terminal_cuts_no_number_off() -> None:
    """A narrow report has every number of the wide report."""
    wide, narrow = (alone("check", "simt_64x64", *SMALL, COLUMNS=width).stdout for width in ("120", "40"))
    assert "\u2026" not in narrow
    in_wide, in_narrow = (Counter(re.findall(r"\d[\d.e+]*\d|\d", said)) for said in (wide, narrow))
    assert len(in_wide) > 40
    assert not in_wide - in_narrow


def test_progress_is_told_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Without a terminal, progress is printed to stderr as a line every few seconds. A quick job prints nothing."""
    from cutegemm.cli import gemm

    now = [0.0]
    monkeypatch.setattr(gemm.time, "monotonic", lambda: now[0])
    with gemm._progress() as say:
        for second in range(13):
            now[0] = float(second)
            say(f"simulating: {second}%")
    said = capsys.readouterr()
    assert said.err.splitlines() == ["simulating: 5%", "simulating: 10%"]
    assert said.out == ""


def test_d_has_the_type_that_gemm_gives_it() -> None:
    for dtype, result in (("e4m3", "bf16"), ("e5m2", "bf16"), ("s8", "s32"), ("f16", "f16"), ("tf32", "f32")):
        assert f"D {result} n-major" in run("show", "sm90_epi_stages", "--dtype", dtype, "--layout", "nt").replace(
            "\n", " "
        )


@pytest.mark.parametrize("option", ["--svg", "--html"])
def test_no_folder_is_made(tmp_path: Path, option: str) -> None:
    path = tmp_path / "none" / f"x.{option[2:]}"
    with pytest.raises(CutegemmError, match=r"the folder .* does not exist"):
        run("show", "(4,8)", option, str(path))
    assert not path.parent.exists()


@pytest.mark.usefixtures("not_compiled")
def test_why_a_plan_is_taken_and_what_it_is_held_to_take(tmp_path: Path) -> None:
    chosen = json.loads(run("gemm", "64", "64", "64", "--json"))
    operands = Operands.of("f32").fitted(64, 64, 64)
    best, second, *_ = candidates(operands, Problem(64, 64, 64, operands=operands))
    assert chosen["chosen"]["us"] == best.us
    assert f"next {second.recipe}" in chosen["chosen"]["reason"]
    assert chosen["chosen"]["tflops"] == pytest.approx(2 * 64**3 / best.us / 1e6)
    assert chosen["next"][:2] == [
        "cutegemm explain 64 64 64",
        f"cutegemm check {best.recipe} --problem 64x64x64",
    ]
    assert chosen["next"][-1] == "cutegemm explore"
    for command in chosen["next"][:-1]:
        assert run(*command.replace("plan.html", f"{tmp_path}/plan.html").split()[1:])
    operands = Operands.of("bf16", layout="nt").fitted(64, 64, 64)
    of_bf16 = candidates(operands, Problem(64, 64, 64, operands=operands))
    asked = json.loads(run("gemm", "64", "64", "64", "--plan", "sm90_epi_stages", "--layout", "nt", "--json"))
    (taken,) = [one for one in of_bf16 if str(one.recipe) == "sm90_epi_stages"]
    assert (asked["chosen"]["reason"], asked["chosen"]["us"]) == ("asked for", taken.us)
    assert not asked["chosen"]["is_at_most"]
    assert asked["next"][0] == "cutegemm check sm90_epi_stages --dtype bf16 --layout nt --problem 64x64x64"
    ended = run("gemm", "64", "64", "64", "--epilogue", "relu(acc + bias)", "--operand", "bias:row")
    assert "roofline" in ended
    assert "at least" in ended
    assert "--epilogue 'relu(acc + bias)' --operand bias:row" in " ".join(ended.split())
    said = run("gemm", "64", "64", "64")
    for part in (
        "lowest predicted time of",
        "predicted",
        "TFLOP/s on h200",
        "More of this plan",
        "cutegemm show",
    ):
        assert part in said


def test_show_tells_a_step_from_a_plan_to_use() -> None:
    assert "step 5 of 37 of the ladder" in run("show", "sm90_pingpong")
    assert "of the ladder" not in run("show", "sm90_epi_stages")


def test_plans_tell_steps_from_plans_to_use() -> None:
    groups = {row["name"]: row["group"] for row in json.loads(run("plans", "--json"))}
    assert groups["sm90_pingpong"] == "sm90 ladder"
    assert (groups["sm90_epi_stages"], groups["sgemm_01_naive"]) == ("sm90", "simt ladder")
    said = run("plans")
    assert said.index("sm90_epi_stages ") < said.index("Steps of the Hopper ladder") < said.index("sm90_pingpong ")
