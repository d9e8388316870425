"""Hopper kernels on the device: every form against float64, in processes that a deadlock cannot hang.

`python -m tests.gpu.test_sm90 [REGEX]` prints the same as a table.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cutegemm.choice.catalog import plan_named
from cutegemm.compile.workers import processors
from cutegemm.plan import GemmPlan, Operands
from tests.gpu.sm90_worker import GEMM, GEMMS, REPEAT, grids
from tests.kernels.sm90_forms import FORMS, form

ROOT = Path(__file__).parents[2]
_SPLIT = ("sm90_split", "sm90_stream", "sm90_64x64/k8", "sm90_wide_1x2/stream1", "sm90_fixup")
REPEATED = tuple(
    [
        f"{REPEAT}{name}"
        for name in ("sm90_epi_stages", "sm90_cooperative_2x1", "sm90_overlapped_2x1", "sm90_padded", *_SPLIT)
    ]
)
ALL = (*GEMMS, *FORMS, *REPEATED)
_TOGETHER = 6  # forms of a process


def all_plans() -> Iterator[GemmPlan]:
    """Return the kernels of the forms, on each of their grids, and of the plans that run repeatedly."""
    for name in FORMS:
        yield from (form(name, ctas) for ctas in grids(math.prod(form(name).cluster_mn)))
    for name in REPEATED:
        yield plan_named(name.removeprefix(REPEAT), Operands.of("bf16", layout="nt"))


def groups(names: Iterable[str]) -> Iterator[list[str]]:
    """Return the groups of tests that share a process: some forms each.

    Tests that compile many plans, or run a thousand times, are alone.
    """
    group: list[str] = []
    for name in names:
        if name.startswith((GEMM, REPEAT)):
            yield [name]
            continue
        group.append(name)
        if len(group) == _TOGETHER:
            yield group
            group = []
    if group:
        yield group


GROUP = {name: group for group in groups(ALL) for name in group}


def run(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Results by name. A process that hangs or dies is followed by another with the forms that it left."""
    results: dict[str, dict[str, Any]] = {}
    left = list(names)
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
        left = missing
    return results


def bad(name: str, once) -> list[str]:
    """What is wrong with one, from the process of its group, which is run once in all of pytest's processes."""
    group = GROUP[name]
    return once(f"sm90_{ALL.index(group[0])}", lambda: run(group))[name]["bad"]


@pytest.mark.gpu
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", [*GEMMS, *FORMS])
def test_against_float64(name, once):
    assert bad(name, once) == []


@pytest.mark.gpu_long
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("name", REPEATED)
def test_a_thousand_runs_are_one(name, once):
    assert bad(name, once) == []


def main(pattern: str) -> None:
    """Prints a table, of one process for each processor at a time."""
    begun = time.time()
    queue = [*groups([name for name in ALL if re.search(pattern, name)])]
    table: dict[str, dict[str, Any]] = {}
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if not queue:
                    return
                group = queue.pop(0)
            table.update(run(group))

    threads = [threading.Thread(target=work) for _ in range(min(12, max(2, processors() - 2)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for form_name, row in sorted(table.items()):
        print(
            f"{'BAD ' if row['bad'] else 'good'} {form_name:24} worst {row.get('worst', 0):.2f}",
            *row["bad"],
            sep="  ",
        )
    good = sum(not row["bad"] for row in table.values())
    print(f"{good} of {len(table)} forms are right; {time.time() - begun:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else ".")
