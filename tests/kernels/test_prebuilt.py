"""A library of a handful of kernels: which calls it serves, and which libraries are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
import zipfile

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from cutegemm.choice.names import recipe_named  # noqa: E402
from cutegemm.compile import exported  # noqa: E402
from cutegemm.compile.export import export  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.machine.device import DEFAULT_DEVICE  # noqa: E402
from cutegemm.plan import Operands  # noqa: E402
from cutegemm.run import question  # noqa: E402
from cutegemm.run.ahead import plans_of_layers, question_of  # noqa: E402
from cutegemm.run.question import decide, prebuilt  # noqa: E402

BF16 = Operands.of("bf16", layout="nt")
# For a 4096 x 4096 weight: the fastest plan of 64 rows, a slow one of 2048 rows, and the fastest of 16 rows.
NAMES = ("sm90_64x32_deep_1x2", "sm90_128x144_2x1", "swap_ab:gemv_16x16")
# The CPU stands for a Hopper GPU until a kernel is called, which refuses the tensors. It has no DSL and no compiler.
ELSEWHERE = """
import sys

sys.path = [folder for folder in sys.path if "cutlass" not in folder]
import torch
import cutegemm
from cutegemm.compile import cuda
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.run import prepare, torch_ops

prepare.wrong_devices = lambda given: []
torch_ops.device_arch, torch_ops.device_of = lambda index: "sm_90a", lambda index: DEFAULT_DEVICE
cuda.devices = lambda: 1
for rows, columns in ((64, 4096), (2048, 4096), (64, 4094)):
    a, b = torch.empty(rows, 4096).bfloat16(), torch.empty(columns, 4096).bfloat16().t()
    try:
        cutegemm.gemm(a, b, varying_rows=True)
    except cutegemm.CutegemmError as error:
        print(str(error).splitlines()[0])
try:
    import cutlass.cute  # a folder of cutlass may be there without it: that of nvidia-cutlass-operators
except ImportError as error:
    print(error)
"""


def plan_of(name):
    recipe = recipe_named(name)
    return recipe.as_launched(recipe.build(BF16))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a library of three kernels."""
    path = tmp_path_factory.mktemp("prebuilt")
    written = export(map(plan_of, NAMES), path / "kernels.so")
    assert [kernel.recipe for kernel in written.kernels] == list(NAMES)
    return path


@pytest.fixture(autouse=True)
def unloaded(monkeypatch):
    """Start each test as a process starts: without a library, before any was looked for."""
    monkeypatch.delenv(exported.VARIABLE, raising=False)
    for name, value in (("_LIBRARIES", []), ("_RECIPES", {}), ("_is_looked_for", False)):
        monkeypatch.setattr(exported, name, value)


def asked(rows, operands=BF16):
    return question_of((rows, 4096, 4096), operands, DEFAULT_DEVICE)


def chosen(rows, **options):
    plan = decide(asked(rows), **options).plan
    return f"swap_ab:{plan.name}" if plan.swap_ab else plan.name


def test_the_choice_is_among_the_kernels_of_the_library(folder, monkeypatch):
    free = {rows: chosen(rows) for rows in (16, 64, 2048)}
    monkeypatch.setenv(exported.VARIABLE, str(folder))
    exported._is_looked_for = False
    assert chosen(64) == chosen(64, varying_rows=True) == NAMES[0] == free[64]
    # The library's plans take much longer for these, so that the fastest plan is compiled.
    assert chosen(2048) == free[2048] not in NAMES
    assert chosen(16) == NAMES[2] == free[16]
    assert decide(asked(64, Operands.of("f16", layout="nt"))).plan.name not in NAMES[1:]


def test_without_the_dsl_the_best_of_the_library_is_taken(folder, monkeypatch):
    exported.load(folder)
    monkeypatch.setattr(question, "has_dsl", lambda: False)
    assert chosen(2048) == "sm90_128x144_2x1"
    assert prebuilt(asked(64, Operands.of("f16", layout="nt"))) is None


def test_what_a_caller_names_is_not_replaced(folder):
    exported.load(folder)
    assert decide(asked(64), recipe_named("sm90_64x64")).plan.name == "sm90_64x64"


def test_no_few_kernels_where_the_library_serves_the_layer(folder, monkeypatch):
    layers = [(asked(1), range(56, 81))]
    before = plans_of_layers(layers)
    exported.load(folder)
    monkeypatch.setattr(question, "has_dsl", lambda: False)
    assert {plan.name for plan, _ in plans_of_layers(layers)} <= {plan_of(name).name for name in NAMES}
    assert len({plan.key() for plan, _ in before}) > 1


@pytest.mark.parametrize("of_package", [False, True])
def test_gemm_needs_neither_the_dsl_nor_a_compiler(folder, tmp_path, of_package):
    """It finds the library by the variable, or in the package. Its kernels are called; another call has an error."""
    places = {exported.VARIABLE: str(folder)}
    script = ELSEWHERE
    if of_package:
        places, script = {}, script.replace(
            "prepare.wrong", f"import pathlib; from cutegemm.compile import exported\n"
            f"exported.PREBUILT = pathlib.Path({str(folder)!r})\nprepare.wrong"
        )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": "", "CUTEGEMM_CACHE_DIR": str(tmp_path), **places},
    )
    assert done.stderr == ""
    small, large, other, missing = done.stdout.splitlines()
    assert missing in ("No module named 'cutlass'", "No module named 'cutlass.cute'")
    assert "by <CompiledKernel sm90_64x32_deep_1x2 for sm_90a>: " in small
    assert "by <CompiledKernel sm90_128x144_2x1 for sm_90a>: " in large
    assert "is neither in the cache nor among the loaded kernels. Compiling needs the CuTe DSL" in other


def changed(folder, target, **facts):
    """Write a library whose list of kernels has other facts to a folder."""
    with zipfile.ZipFile(folder / "kernels.so") as archive:
        manifest = json.loads(archive.read(exported.LIST))
    target.mkdir(mode=0o700)
    with zipfile.ZipFile(target / "kernels.so", "w") as archive:
        archive.writestr(exported.LIST, json.dumps({**manifest, **facts}))
    return target


def test_a_library_of_other_sources(folder, tmp_path, monkeypatch):
    """It is an error if the user names it, and a warning if it is the package's."""
    other = changed(folder, tmp_path / "other", sources="other", version="0.1.9")
    monkeypatch.setenv(exported.VARIABLE, str(other))
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"CUTEGEMM_LIBRARY=.* exported by cutegemm 0\.1\.9, whose .* Unset"):
            decide(asked(64))
    monkeypatch.delenv(exported.VARIABLE)
    monkeypatch.setattr(exported, "PREBUILT", other)
    with pytest.warns(UserWarning, match=r"prebuilt kernels of the package are not used\. .*0\.1\.9"):
        decide(asked(64))
    with warnings.catch_warnings(action="error"):
        decide(asked(64))


def test_a_library_of_another_architecture(folder):
    exported.load(folder)
    with pytest.warns(UserWarning, match="has kernels for sm_90a and none for sm_80, so that kernels are compiled"):
        assert exported.recipes("sm_80") == frozenset()
    with warnings.catch_warnings(action="error"):
        assert exported.recipes("sm_80") == frozenset()
    assert exported.recipes("sm_90a") == {*NAMES}


def test_a_folder_that_others_can_write_to(folder, tmp_path, monkeypatch):
    other = changed(folder, tmp_path / "open")
    other.chmod(0o777)
    monkeypatch.setenv(exported.VARIABLE, str(other))
    with pytest.raises(UnsupportedError, match=r"may be written by everybody, who could run code .* chmod go-w"):
        decide(asked(64))


def test_an_empty_variable_switches_the_library_off(folder, monkeypatch):
    monkeypatch.setattr(exported, "PREBUILT", folder)
    monkeypatch.setenv(exported.VARIABLE, "")
    assert exported.recipes("sm_90a") == frozenset()
    assert exported.identity() == ""
