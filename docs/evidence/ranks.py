"""GEMMs of several GPUs: ours, NCCL with cuBLAS, and the fused operators of torch's symmetric memory.

python -m docs.evidence ranks --json docs/evidence/data/ranks_h100.json
python -m docs.evidence ranks --problem all_gather:4096x28672x8192 --problem all_reduce:64x8192x8192 --forms
python -m docs.evidence ranks --seed 1 --count 60 --budget 200
python -m docs.evidence ranks --table docs/evidence/data/ranks_h100.json

One process for each GPU. M, N and K are those of the whole problem: an all-gather divides N by the ranks, the other two
operations divide K. Rows are compared with float64. All calls of a problem alternate, after a write that flushes the
L2 cache and a barrier on the GPUs. A time is the median of the runs, each as long as on
the slowest rank.
"""

from __future__ import annotations

import argparse
import json
import math
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cutegemm.errors import UnsupportedError
from cutegemm.machine.device import device_named
from cutegemm.profile.child import environment
from cutegemm.ranks import OPERATIONS, predictions
from docs.evidence.arguments import parser_of, to_measure
from docs.evidence.files import write_record
from docs.evidence.measure import command
from docs.evidence.pages.markdown import table

_ROW, _BEGUN, _MACHINE, _LINKS = "ROW ", "BEGUN ", "MACHINE ", "LINKS "  # starts of lines that the first rank prints
_SILENT_SECONDS = 90.0  # without a line from the first rank, the processes are stopped
_START_SECONDS = 40.0  # least time for which the processes are started again
_GRACE_SECONDS = 10.0
_LEAST_ROWS, _MOST_ROWS = 16, 16384
_LEAST_COLUMNS, _MOST_COLUMNS = 1024, 32768
_ROW_STEP, _COLUMN_STEP = 16, 256
_MOST_FLOPS = 4e12


class Problem(NamedTuple):
    """An operation and the extents of the whole problem."""

    operation: str
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.operation}:{self.m}x{self.n}x{self.k}"

    @staticmethod
    def parse(text: str) -> Problem:
        """Return a problem from its text.

        raises   UnsupportedError for another text

        >>> Problem.parse("all_gather:64x8192x4096")
        Problem(operation='all_gather', m=64, n=8192, k=4096)
        """
        operation, _, extents = text.partition(":")
        try:
            m, n, k = map(int, extents.split("x"))
        except ValueError:
            m = n = k = 0
        if operation not in OPERATIONS or min(m, n, k) < 1:
            raise UnsupportedError(
                f"--problem {text}: pass OPERATION:MxNxK, such as all_gather:64x8192x8192. OPERATION is one of "
                f"{', '.join(OPERATIONS)}."
            )
        return Problem(operation, m, n, k)


_SQUARE = "8192x8192x8192", "1024x8192x8192", "64x8192x8192"
PROBLEMS = tuple(
    map(
        Problem.parse,
        [
            *[f"all_gather:{mnk}" for mnk in (*_SQUARE, "4096x28672x8192")],
            *[f"reduce_scatter:{mnk}" for mnk in (*_SQUARE, "4096x8192x28672")],
            *[f"all_reduce:{mnk}" for mnk in _SQUARE],
        ],
    )
)


def random_problems(seed: int, count: int) -> list[Problem]:
    """Return random problems; the same seed gives the same problems. Extents are uniform in their logarithm.

    >>> random_problems(0, 2) == random_problems(0, 2), len(random_problems(1, 60))
    (True, 60)
    """
    chance = random.Random(seed)
    problems: list[Problem] = []

    def extent(least: int, most: int, step: int) -> int:
        return max(step, round(math.exp(chance.uniform(math.log(least), math.log(most))) / step) * step)

    while len(problems) < count:
        m = extent(_LEAST_ROWS, _MOST_ROWS, _ROW_STEP)
        n, k = [extent(_LEAST_COLUMNS, _MOST_COLUMNS, _COLUMN_STEP) for _ in "nk"]
        if 2.0 * m * n * k <= _MOST_FLOPS:
            problems.append(Problem(chance.choice(OPERATIONS), m, n, k))
    return problems


class Processes:
    """One process for each rank, and the lines that the first one prints."""

    def __init__(self, problems: Sequence[Problem], options: argparse.Namespace, seconds: float) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="ranks-")
        given = [
            *(str(options.ranks), f"{self.folder.name}/store", str(options.rounds), str(seconds)),
            *("forms" if options.forms else "chosen", "links" if options.links else "none", *map(str, problems)),
        ]
        self.running = [
            subprocess.Popen(
                [sys.executable, "-m", "docs.evidence.rank_process", str(rank), *given],
                env={**environment(), "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank == 0 else sys.stderr, text=True,
            )
            for rank in range(options.ranks)
        ]  # fmt: skip
        self.lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        stdout = self.running[0].stdout
        assert stdout is not None
        for line in stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def said(self, deadline: float) -> Iterator[str]:
        """Yield lines of the first rank until it ends, is silent for long, or the deadline has passed."""
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self.lines.get(timeout=min(left, _SILENT_SECONDS))
            except queue.Empty:
                print("no line in time: the processes are stopped", file=sys.stderr)
                return
            if line is None:
                return
            yield line

    def stop(self) -> None:
        """Stop all processes: those that have not ended within a short time are killed."""
        deadline = time.monotonic() + _GRACE_SECONDS
        for process in self.running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()) if self.running[0].poll() == 0 else 0.1)
            except subprocess.TimeoutExpired:
                process.kill()
        for process in self.running:
            process.wait()
        self.folder.cleanup()


def measured(
    problems: Sequence[Problem], options: argparse.Namespace, machine: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of problems, as they are measured. After a failure of the processes, new ones go on.

    machine   receives the description of the machine
    """
    left, deadline = list(problems), time.monotonic() + options.budget
    while left and deadline - time.monotonic() > _START_SECONDS:
        processes, current = Processes(left, options, deadline - time.monotonic()), None
        try:
            for line in processes.said(deadline + _GRACE_SECONDS):
                if line.startswith(_MACHINE):
                    machine |= {**json.loads(line.removeprefix(_MACHINE)), "command": command()}
                elif line.startswith(_LINKS):
                    options.links = False  # not again after a failure
                    machine["links"] = json.loads(line.removeprefix(_LINKS))
                    print("\n".join(f"{name:24} {us}" for name, us in machine["links"]["us"].items()), flush=True)
                elif line.startswith(_BEGUN):
                    current = Problem.parse(line.removeprefix(_BEGUN))
                elif line.startswith(_ROW):
                    left.remove(Problem.parse(line.removeprefix(_ROW).partition(" ")[0]))
                    current = None
                    yield json.loads(line.partition(" ")[2].partition(" ")[2])
                else:
                    print(line, file=sys.stderr)
        finally:
            processes.stop()
        if current is None and options.links:
            options.links = False  # they have failed
            continue
        if current is None:
            break
        left.remove(current)
        yield {**current._asdict(), "error": "the processes failed or were silent; see their output"}
    for problem in left:
        print(f"{problem}: not measured", file=sys.stderr)


def line_of(row: dict[str, Any]) -> str:
    """Return a row as a line of the printed table."""
    head = f"{row['operation']:14} {row['m']:>6} x {row['n']:>6} x {row['k']:>6}"
    if "us" not in row:
        return f"{head}  {row.get('error', 'not measured')}"
    times = "  ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    errors = "".join(f"; {name}: {text}" for name, text in row.get("failed", {}).items())
    ratios = "".join(f"  {key} {row[key]:.3f}" for key in ("of_gemm", "of_best") if key in row)
    host = max((us for name, us in row["host_us"].items() if name.startswith("ours")), default=0.0)
    return (
        f"{head}  {times}{ratios}  host {host}  form {row['form']}  off {row['off']}  repeats {row['repeats']}{errors}"
    )


def table_of(found: Mapping[str, Any]) -> str:
    """Return the table of a record in Markdown: a line for each problem that was measured.

    >>> us = {"cublas": 50.0, "gemm": 40.0, "nccl": 80.0, "symm_mem": 90.0, "ours whole": 44.0, "ours by_shard": 70.0}
    >>> row = {"operation": "all_gather", "m": 64, "n": 8192, "k": 4096, "form": "whole", "us": us}
    >>> print(table_of({"rows": [{**row, "of_gemm": 1.1, "of_best": 0.55}]}).splitlines()[-1])
    | all-gather | 64 x 8192 x 4096 | whole | 44.0 | 50.0 | 40.0 | 80.0 | 90.0 | 1.100 | 0.550 |
    """
    lines = []
    for row in found["rows"]:
        if "of_best" not in row:
            continue
        times = [row["us"].get(name) for name in (f"ours {row['form']}", "cublas", "gemm", "nccl", "symm_mem")]
        lines.append(
            [
                *(row["operation"].replace("_", "-"), f"{row['m']} x {row['n']} x {row['k']}"),
                row["form"].replace("_", " "),
                *["" if each is None else f"{each:.1f}" for each in times],
                *[f"{row[name]:.3f}" for name in ("of_gemm", "of_best")],
            ]
        )
    times_of = "ours, µs", "cuBLAS alone, µs", "`gemm` alone, µs", "NCCL and cuBLAS, µs", "`symm_mem` fused, µs"
    ratios = "ours / faster GEMM alone", "ours / better of both"
    return table(["operation", "M x N x K", "form", *times_of, *ratios], lines)


def exposed_table_of(found: Mapping[str, Any]) -> str:
    """Return the table of the exposed communication in Markdown, measured and predicted: time beyond that of one GEMM.

    >>> us = {"cublas": 50.0, "gemm": 40.0, "nccl": 80.0, "ours whole": 44.0}
    >>> row = {"operation": "all_gather", "ranks": 2, "m": 64, "n": 8192, "k": 4096, "form": "whole", "chunks": 1}
    >>> print(exposed_table_of({"rows": [{**row, "us": us, "of_best": 0.5}]}).splitlines()[-1])
    | all-gather | 64 x 8192 x 4096 | whole | 4.0 | 5.8 |
    """
    lines, device = [], device_named("h100")
    for row in found["rows"]:
        if "of_best" not in row:
            continue
        operation, ranks, us = row["operation"], row["ranks"], row["us"]
        n, k = (row["n"] // ranks, row["k"]) if operation == "all_gather" else (row["n"], row["k"] // ranks)
        wanted = row["form"], row["chunks"]
        made = predictions(operation, ranks, row["m"], n, k, device=device)
        one = next(each for each in made if (each.schedule.form, each.schedule.chunks) == wanted)
        measured_us = us[f"ours {row['form']}"] - min(us["cublas"], us["gemm"])
        problem = f"{row['m']} x {row['n']} x {row['k']}"
        exposed = [f"{each:.1f}" for each in (measured_us, one.us - one.gemm_us)]
        lines.append([operation.replace("_", "-"), problem, str(one.schedule.way).replace("_", " "), *exposed])
    return table(["operation", "M x N x K", "form", "measured, µs", "predicted, µs"], lines)


def main(arguments: Sequence[str]) -> None:
    """Measure, and print a line for each problem."""
    parser = parser_of("ranks", __doc__)
    parser.add_argument("--problem", action="append", default=[], help="OPERATION:MxNxK; repeat it")
    parser.add_argument("--seed", type=int, default=0, help="seed of random problems")
    parser.add_argument("--count", type=int, default=0, help="number of random problems")
    parser.add_argument("--ranks", type=int, default=2, help="number of GPUs")
    parser.add_argument("--rounds", type=int, default=15, help="rounds; each call runs twice in a round")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds for all")
    parser.add_argument("--forms", action="store_true", help="time both forms of a schedule, not only the chosen one")
    parser.add_argument("--links", action="store_true", help="also time flags, copies and stores to another GPU")
    options = to_measure(parser, arguments, lambda found: f"{table_of(found)}\n\n{exposed_table_of(found)}")
    if options is None:
        return
    problems = [Problem.parse(text) for text in options.problem]
    problems += random_problems(options.seed, options.count)
    machine: dict[str, Any] = {}
    rows = []
    for row in measured(problems or PROBLEMS, options, machine):
        rows.append(row)
        print(line_of(row), flush=True)
        if options.json is not None:
            write_record(options.json, {"machine": machine, "seed": options.seed, "rows": rows})
