"""Kernels in one library: written by the DSL and a linker, loaded in a process without both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import simt_plan
from cutegemm.compile import exported
from cutegemm.compile.export import export
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import bf16, f32
from cutegemm.errors import UnsupportedError
from cutegemm.plan import Operands
from cutegemm.plan.memory.rows import SpreadRows

SMALL = {"block": (64, 32, 8), "warp": (32, 16), "thread": (4, 4)}
ROWS = SpreadRows(bf16, 8, 2, f32)
PLANS = [simt_plan(Operands.of("f32", layout=layout), name=f"small {layout}", **SMALL) for layout in ("nn", "nt")]
# Environment of a process without the DSL, which is in a folder of its own, without a compiler, and with an empty
# cache.
ELSEWHERE = f"""
import sys

sys.path = [folder for folder in sys.path if "cutlass" not in folder]
import cutegemm
from cutegemm.build import simt_plan
from cutegemm.errors import UnsupportedError
from cutegemm.plan import Operands
from cutegemm.compile.exported import loaded
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import bf16, f32
from cutegemm.plan.memory.rows import SpreadRows

*plans, other = [simt_plan(Operands.of("f32", layout=layout), **{SMALL}) for layout in ("nn", "nt", "tn")]
print(len(cutegemm.load(sys.argv[1]).kernels))
for plan in plans:
    try:
        compile_plan(plan).function()
    except TypeError as error:
        print(str(error).splitlines()[0])
try:
    loaded(SpreadRows(bf16, 8, 2, f32), "sm_90a")()
except TypeError as error:
    print(str(error).splitlines()[0])
assert loaded(SpreadRows(bf16, 8, 3, f32), "sm_90a") is None
try:
    compile_plan(other)
except UnsupportedError as error:
    print(error)
try:
    import cutlass
except ImportError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "kernels.so"
    found = export([*PLANS, PLANS[0], ROWS], path)
    assert [kernel.plan for kernel in found.kernels] == ["small nn", "small nt", ROWS.name]
    return path


@pytest.mark.thorough
def test_neither_the_dsl_nor_a_compiler_is_needed(library, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(library)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": "", "CUTEGEMM_CACHE_DIR": str(tmp_path)},
    )
    assert done.stderr == ""
    count, *said, refused, missing = done.stdout.splitlines()
    assert (count, missing, len(said)) == ("3", "No module named 'cutlass'", 3)
    assert all("Mismatched number of arguments" in each or "Expects" in each for each in said), said
    assert "is neither in the cache nor among the loaded kernels. Compiling needs the CuTe DSL" in refused


def test_what_lies_beside_it(library):
    assert sorted(file.name for file in library.parent.iterdir()) == ["kernels.so", "libcute_dsl_runtime.so"]


def test_a_plan_is_taken_from_what_was_loaded(library, monkeypatch):
    monkeypatch.setattr(exported, "_LIBRARIES", [])
    compile_plan.cache_clear()
    assert "3 kernels for sm_90a in" in str(exported.load(library))
    kernel = compile_plan(PLANS[0])
    with pytest.raises(UnsupportedError, match="small nn: the kernel was loaded by `cutegemm"):
        print(kernel.ptx)
    compile_plan.cache_clear()


def test_kernels_of_other_sources_are_refused(library, tmp_path):
    other = tmp_path / "kernels.so"
    other.write_bytes(library.read_bytes())
    with zipfile.ZipFile(library) as archive:
        held = json.loads(archive.read(exported.LIST))
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr(exported.LIST, json.dumps({**held, "sources": "other"}))
    with pytest.raises(UnsupportedError, match=r"whose sources differ from .* Export the kernels again"):
        exported.load(other)


def test_what_is_no_file_of_kernels(library, tmp_path):
    (tmp_path / "kernels.so").write_bytes(b"\x7fELF")
    for path in (tmp_path / "kernels.so", tmp_path / "none.so"):
        with pytest.raises(UnsupportedError, match="is not a file of kernels in format 2"):
            exported.load(path)
    with pytest.raises(UnsupportedError, match=r"plans is empty\. Pass at least one plan"):
        export([], tmp_path / "kernels.so")
