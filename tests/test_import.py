"""`import cutegemm` needs numpy and the standard library, and is quick; and these tests can fail.

And what it promises is there: for `from cutegemm import *`, for tab completion, for a user's type checker.
"""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
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
    foreign, took = json.loads(
        subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    )
    return foreign, took


@pytest.mark.parametrize("module", ["cutegemm", "cutegemm.layout", "cutegemm.layout.text"])
def test_the_algebra_imports_nothing_else_and_is_quick(module):
    runs = [probe(f"import {module}") for _ in range(3)]
    assert runs[0][0] == []
    assert min(took for _, took in runs) < QUICK_SECONDS


@pytest.mark.parametrize("package", ["rich", "pytest", "hypothesis"])
def test_an_import_of_something_else_is_seen(package):
    assert package in probe(f"import cutegemm, {package}")[0]


def test_a_slow_import_is_seen():
    busy = f"while time.process_time() < start + {QUICK_SECONDS}: pass"  # `start` is the probe's
    assert probe(f"import cutegemm\n{busy}")[1] > QUICK_SECONDS


def test_every_public_name_is_there_and_completes():
    names: dict[str, object] = {}
    exec("from cutegemm import *", names)
    assert set(cutegemm.__all__) <= names.keys()
    assert set(cutegemm.__all__) <= set(dir(cutegemm))
    for module in ("analysis", "draw", "emulate", "simulate"):
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
    assert seen == cutegemm._LATER
    assert (source.parent / "py.typed").exists()
    assert '"py.typed"' in (source.parent.parent / "pyproject.toml").read_text()
