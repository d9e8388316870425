"""docs/torch.md, and the example that it names, where torch is."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests import test_docs  # noqa: E402


def test_the_page(monkeypatch):
    test_docs.test_code_blocks(test_docs.ROOT / "docs" / "torch.md", monkeypatch)


def test_the_example():
    command = [sys.executable, str(test_docs.ROOT / "examples" / "torch_model.py")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=test_docs.ROOT).stdout
    lines = said.splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["torch", "cutegemm"]
    errors = [float(line.split("output ")[1].split(",")[0]) for line in lines[:2]]
    assert 0 < errors[1] < 2 * errors[0] < 0.1
    assert "a gated MLP, swiglu" in said
