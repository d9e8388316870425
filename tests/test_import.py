"""`import cutegemm` needs numpy and the standard library, and is quick; and these tests can fail.

And what it promises is there: for `from cutegemm import *`, for tab completion, for a user's type checker.
"""

from __future__ import annotations

import ast
import builtins
import glob
import importlib
import importlib.util
import inspect
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import cutegemm

PROBE = """
import json, sys, time
import numpy
before, start = set(sys.modules), time.process_time()
{statement}
took = time.process_time() - start
roots = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(json.dumps([sorted(roots - set(sys.stdlib_module_names) - {{"cutegemm", "numpy"}}), took]))
"""
QUICK_SECONDS = 0.15


def probe(statement: str) -> tuple[list[str], float]:
    """The packages beyond numpy and the standard library that a statement imports, and the processor's seconds."""
    code = PROBE.format(statement=statement)
    foreign, took = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    return foreign, took


@pytest.mark.parametrize("module", ["cutegemm", "cutegemm.layout", "cutegemm.layout.text"])
def test_the_algebra_imports_nothing_else_and_is_quick(module):
    runs = [probe(f"import {module}") for _ in range(3)]
    assert runs[0][0] == []
    assert min(took for _, took in runs) < QUICK_SECONDS


def test_the_command_line_starts_without_torch_and_the_dsl():
    assert not {"torch", "cutlass"} & {*probe("import cutegemm.cli")[0]}


FUNCTIONS = {"simulate": "simulator", "emulate": "emulator", "choose": "choice"}


@pytest.mark.parametrize("package_first", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_and_their_packages_in_either_order(name, package_first):
    """The import of a package must not hide a function, nor the function the package."""
    package = FUNCTIONS[name]
    lines = [f"import cutegemm.{package}", f"from cutegemm import {name}"]
    code = "; ".join(["import cutegemm", *(lines if package_first else lines[::-1])])
    code += f"; print(callable(cutegemm.{name}), cutegemm.{package}.__name__)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert said.split() == ["True", f"cutegemm.{package}"]


@pytest.mark.parametrize("epilogue", ["", ", epilogue=lambda acc, bias: acc + bias, bias=a[0]", ", epilogue=abs"])
def test_gemm_without_torch_says_so(epilogue):
    code = f"""
import sys
sys.modules["torch"] = None  # as if it were not installed
import numpy as np, cutegemm
a = np.ones((8, 8), np.float32)
try:
    cutegemm.gemm(a, a{epilogue})
except cutegemm.UnsupportedError as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    assert said.startswith("gemm: torch is needed to launch a kernel")
    assert "simulate" in said


@pytest.mark.parametrize("package", ["rich", "pytest", "hypothesis"])
def test_an_import_of_something_else_is_seen(package):
    assert package in probe(f"import cutegemm, {package}")[0]


def test_a_slow_import_is_seen():
    busy = f"while time.process_time() < start + {QUICK_SECONDS}: pass"  # `start` is the probe's
    assert probe(f"import cutegemm\n{busy}")[1] > QUICK_SECONDS


def test_an_installed_clone_is_found_from_its_parent_folder(tmp_path):
    """There the clone's own folder, which is no package, has the package's name."""
    if glob.glob(sysconfig.get_path("purelib") + "/__editable___cutegemm_*_finder.py"):
        pytest.skip("installed by an older pyproject.toml: pip install -e . again")
    (tmp_path / "cutegemm").mkdir()
    (tmp_path / "cutegemm" / "pyproject.toml").touch()
    code = "import cutegemm; print(cutegemm.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.strip() == cutegemm.__version__, done.stderr


def test_every_public_name_is_there_and_completes():
    names: dict[str, object] = {}
    exec("from cutegemm import *", names)
    assert set(cutegemm.__all__) <= names.keys()
    assert set(cutegemm.__all__) <= set(dir(cutegemm))
    for module in ("analysis", "draw", "emulator", "epilogue", "simulator"):
        assert module in dir(cutegemm)
        assert getattr(cutegemm, module) is importlib.import_module(f"cutegemm.{module}")
    assert "import_module" not in dir(cutegemm)
    with pytest.raises(AttributeError, match="has no attribute 'simulat'"):
        cutegemm.simulat  # noqa: B018


def test_a_type_checker_sees_what_is_imported_later():
    """The names that are imported when they are asked for, from the same modules; and the package says it is typed."""
    source = Path(cutegemm.__file__)
    (checked,) = (node for node in ast.parse(source.read_text()).body if isinstance(node, ast.If))
    seen = {
        alias.asname: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert seen == cutegemm._LATER | cutegemm._OF_TORCH
    assert (source.parent / "py.typed").exists()
    assert '"py.typed"' in (source.parent.parent / "pyproject.toml").read_text()


def test_no_name_of_python_is_shadowed():
    """`from cutegemm import *` leaves min, filter, round and the others what they are."""
    names: dict[str, object] = {}
    exec("from cutegemm import *", names)
    assert not names.keys() & set(dir(builtins)) - {"__builtins__"}
    assert cutegemm.filter(cutegemm.Layout((2, 3), (1, 0))) == cutegemm.Layout(2, 1)  # CuTe's, by its full name


# Names that the CuTe DSL has for another thing: its types are made by functions, its gemm is one instruction.
OF_ANOTHER_KIND = {
    "ComposedLayout",
    "CopyAtom",
    "Layout",
    "MmaAtom",
    "Swizzle",
    "Tensor",
    "ThrCopy",
    "ThrMma",
}
OF_ANOTHER_KIND |= {"TiledCopy", "TiledMma", "gemm", "fma", "export"}


def parameters(function) -> list[inspect.Parameter]:
    """Without the DSL's places in the source, and what it passes on."""
    found = inspect.signature(function).parameters.values()
    return [p for p in found if p.name not in ("loc", "ip") and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="the CuTe DSL is not installed")
def test_an_expression_moves_from_the_cute_dsl_unchanged():
    """Functions of one name take as many leading arguments, and the same ones by keyword."""
    import cutlass.cute as cute

    shared = [n for n in [*cutegemm.__all__, "filter"] if hasattr(cute, n) and n not in OF_ANOTHER_KIND]
    assert len(shared) > 60
    assert {"make_tiled_copy_A", "make_tiled_copy_C_atom", "make_tiled_mma", "make_layout_tv"} <= set(shared)
    for name in shared:
        theirs, ours = parameters(getattr(cute, name)), parameters(getattr(cutegemm, name))
        needed = [p for p in theirs if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
        assert len(ours) >= len(needed), name
        assert all(p.default is not p.empty for p in ours[len(theirs) :]), name
        by_keyword = {p.name for p in theirs if p.kind is p.KEYWORD_ONLY or p.default is not p.empty}
        by_keyword |= {p.name for p in theirs} & {
            "mode",
            "order",
            "coord",
            "target_profile",
            "up_to_rank",
            "tiler",
        }
        assert by_keyword <= {p.name for p in ours}, name


@pytest.mark.skipif(importlib.util.find_spec("cutlass") is None, reason="the CuTe DSL is not installed")
def test_methods_of_tiles_have_the_names_of_the_cute_dsl():
    import cutlass.cute as cute

    for ours, theirs, names in (
        (cutegemm.ThrMma, cute.ThrMma, ("partition_A", "partition_B", "partition_C")),
        (cutegemm.ThrCopy, cute.ThrCopy, ("partition_S", "partition_D", "retile")),
        (
            cutegemm.TiledMma,
            cute.TiledMma,
            ("get_slice", "partition_shape_C", "tv_layout_A_tiled", "thr_layout_vmnk"),
        ),
        (
            cutegemm.TiledCopy,
            cute.TiledCopy,
            ("get_slice", "layout_src_tv_tiled", "layout_dst_tv_tiled", "retile"),
        ),
    ):
        assert [n for n in names if not hasattr(ours, n) or not hasattr(theirs, n)] == []
