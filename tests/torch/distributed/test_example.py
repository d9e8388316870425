"""The example for several GPUs, with two processes on the CPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

EXAMPLE = Path(__file__).parents[3] / "examples" / "tensor_parallel.py"


@pytest.mark.thorough
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed")
def test_the_example_of_tensor_parallelism():
    """Its errors are those of bfloat16. The status is not tested: torch may abort when gloo's processes end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    found = re.findall(r"^(\w+) +error of the output (\S+), of gradients (\S+);", done.stdout, re.MULTILINE)
    assert [name for name, *_ in found] == ["DTensor", "cutegemm"], done.stderr
    assert all(0 < float(error) < 1e-2 for _, *errors in found for error in errors)
