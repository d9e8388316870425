"""Time and memory of the simulator: `python -m docs.evidence simulate`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Any

from docs.evidence.machine import cpu

EXTENT = 512
_REPEATS = 3

_PLANS: dict[str, dict[str, Any]] = {
    "128x128x16, 2 stages": {},
    "64x64x8, 3 stages": {"block": (64, 64, 8), "warp": (32, 32), "thread": (8, 4), "stages": 3},
    "32x32x8, 1 stage": {"block": (32, 32, 8), "warp": (32, 32), "thread": (8, 4), "stages": 1},
}


def run() -> dict[str, Any]:
    """Return seconds (median of three) and peak memory of a process for each plan, at 512 x 512 x 512 on one core."""
    rows = {}
    for name in _PLANS:
        command = [sys.executable, "-m", "docs.evidence.simulate", name]
        single = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        out = subprocess.run(command, check=True, capture_output=True, text=True, env=single).stdout
        seconds, peak_mb = (float(word) for word in out.split())
        rows[name] = {"seconds": seconds, "peak_mb": peak_mb}
    return {**cpu(), "extent": EXTENT, "plans": rows}


def _one(name: str) -> str:
    """Return seconds and megabytes, measured in this process."""
    import resource

    import numpy as np

    from cutegemm.build import simt_plan
    from cutegemm.simulator import simulate

    plan = simt_plan(**_PLANS[name])
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (EXTENT, EXTENT)).astype(np.float32) for _ in range(2))
    seconds = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        d = simulate(plan, a, b).d
        seconds.append(time.perf_counter() - started)
    assert (d == a @ b).all()
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes there, KiB elsewhere
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
    return f"{statistics.median(seconds):.4f} {peak:.1f}"


def table(result: dict[str, Any]) -> str:
    """Return a line per plan: its time, and the peak memory of its process."""
    extent = result["extent"]
    lines = [f"{extent} x {extent} x {extent} on one core, every check on"]
    for name, row in result["plans"].items():
        lines.append(f"{name:24} {row['seconds']:8.3f} s {row['peak_mb']:8.0f} MB")
    return "\n".join(lines)


if __name__ == "__main__":
    print(_one(sys.argv[1]))
