"""Hopper kernels on the device: every form against float64, in processes that a deadlock cannot hang.

`python -m tests.gpu.test_sm90 [REGEX]` prints the same as a table.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.sm90_worker import GEMM, GEMMS, REPEAT
from tests.kernels.sm90_forms import FORMS

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
_SPLIT = ("sm90_split", "sm90_stream", "sm90_64x64/k8", "sm90_wide_1x2/stream1", "sm90_fill")
REPEATED = tuple(
    [
        f"{REPEAT}{name}"
        for name in ("sm90_slots", "sm90_cooperative_2x1", "sm90_deferred_2x1", "sm90_padded", *_SPLIT)
    ]
)
ALL = (*GEMMS, *FORMS, *REPEATED)


def run(names: Iterable[str], jobs: int | None = None) -> dict[str, dict[str, Any]]:
    """Results by form. A worker that hangs or dies is followed by another with the forms that it left."""
    results: dict[str, dict[str, Any]] = {}
    queue = list(names)
    lock = threading.Lock()

    def take() -> list[str]:
        with lock:
            count = 1 if queue and queue[0].startswith(GEMM) else 6  # those compile many plans
            taken = queue[:count]
            del queue[:count]
            return taken

    def work() -> None:
        left = take()
        while left:
            command = [sys.executable, "-m", "tests.gpu.sm90_worker", *left]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
            for line in done.stdout.splitlines():
                if line.startswith("{"):
                    found = json.loads(line)
                    results[found["name"]] = found
            missing = [name for name in left if name not in results]
            if missing and (len(missing) == len(left) or done.returncode == 0):
                why = (done.stderr.strip().splitlines() or ["no output"])[-1]
                results[missing[0]] = {"name": missing[0], "bad": [f"the worker ended: {why[:300]}"]}
                missing = missing[1:]
            left = missing or take()

    count = jobs or min(12, max(2, (os.cpu_count() or 2) - 2))
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@cache
def all_results() -> dict[str, dict[str, Any]]:
    return run(ALL)


@pytest.mark.parametrize("name", [*GEMMS, *FORMS])
def test_against_float64(name):
    found = all_results()[name]
    assert found["bad"] == []


@pytest.mark.parametrize("name", REPEATED)
def test_a_thousand_runs_are_one(name):
    found = all_results()[name]
    assert found["bad"] == []


if __name__ == "__main__":
    pattern = sys.argv[1] if len(sys.argv) > 1 else "."
    begun = time.time()
    table = run([name for name in ALL if re.search(pattern, name)])
    for form_name, row in sorted(table.items()):
        print(
            f"{'BAD ' if row['bad'] else 'good'} {form_name:24} worst {row.get('worst', 0):.2f}",
            *row["bad"],
            sep="  ",
        )
    good = sum(not row["bad"] for row in table.values())
    print(f"{good} of {len(table)} forms are right; {time.time() - begun:.0f} s")
