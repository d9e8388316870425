"""`import cutegemm` needs numpy and the standard library, and is quick; and these tests can fail."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROBE = """
import json, sys, time
import numpy
before, start = set(sys.modules), time.perf_counter()
{statement}
took = time.perf_counter() - start
roots = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(json.dumps([sorted(roots - set(sys.stdlib_module_names) - {{"cutegemm", "numpy"}}), took]))
"""
QUICK_SECONDS = 0.15


def probe(statement: str) -> tuple[list[str], float]:
    """The packages beyond numpy and the standard library that a statement imports, and its seconds."""
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
    assert probe(f"import cutegemm, time; time.sleep({QUICK_SECONDS})")[1] > QUICK_SECONDS
