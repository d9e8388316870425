"""A user's script passes `mypy --strict` against the types that the package states."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy", reason="mypy is not installed")
pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).parent.parent
SCRIPT = """
import numpy as np
import torch

import cutegemm
from cutegemm import Layout, Operands, Problem, gemm, sm90_plan
from cutegemm.epilogue import gelu


def layer(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    hidden: torch.Tensor = gemm(x, w.t(), epilogue=lambda acc, bias: gelu(acc + bias), bias=bias)
    return cutegemm.linear(hidden, w.t(), activation="relu", batch_invariant=True)


def model() -> torch.nn.Module:
    layers = torch.nn.Sequential(cutegemm.Linear(64, 64, activation="gelu"), torch.nn.Linear(64, 8))
    report = cutegemm.use(layers, batch_invariant=True)
    print(len(report.replaced), report.left)
    return layers


plan = sm90_plan(Operands.of("bf16", layout="nt"), tile=(128, 128, 64), cluster=(2, 1))
problem = Problem(512, 512, 512)
order = plan.accumulation_order(problem)
print(plan.smem_bytes()["a"], plan.grid(problem), order.is_uniform, order.instruction.k)
tiles: Layout = cutegemm.zipped_divide(Layout((256, 128), (128, 1)), (64, 32))
d: np.ndarray = cutegemm.simulate(cutegemm.simt_plan(), np.ones((8, 8)), np.eye(8)).d
with cutegemm.batch_invariant():
    print(d.shape, tiles.size(), cutegemm.backends()["GPU"].available)
"""


def errors(script: str, folder: Path) -> list[str]:
    """Return the lines that `mypy --strict` prints about a script, and not about the package that it imports."""
    path = folder / "script.py"
    path.write_text(script)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-warn-unused-configs"]
    asked = [*command, "--config-file", os.devnull, "--cache-dir", str(folder / "cache"), str(path)]
    run = subprocess.run(asked, env={**os.environ, "MYPYPATH": str(ROOT)}, cwd=folder, capture_output=True, text=True)
    return [line for line in run.stdout.splitlines() if line.startswith("script.py")] + run.stderr.splitlines()


@pytest.mark.slow
def test_a_script_of_a_user(tmp_path: Path) -> None:
    assert errors(SCRIPT, tmp_path) == []
    wrong = 'print(order.instruction.name)\ncutegemm.linear(1, 2)\nplan.grid("large")\n'
    found = errors(SCRIPT + wrong, tmp_path)
    assert [line.rpartition("[")[2] for line in found] == ["attr-defined]", "arg-type]", "arg-type]", "arg-type]"]
