"""Speed of GEMMs and of cuBLAS: any shapes, types, layouts and plans. See `benchmark`.

python -m docs.evidence gemm --shape 4096 --shape 8192 --layout nn --layout nt
python -m docs.evidence gemm --suite sweep --dtype bfloat16 --layout nt --plan 'sm90_*' --json out.json
python -m docs.evidence gemm --shape 8192 --dtype bfloat16 --plan mma_256x128 --peer tensorop_gemm.py --power 2
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cutegemm.dtypes import DType
from cutegemm.plan import Problem
from docs.evidence import candidates
from docs.evidence.benchmark import Case, contests, operands_of, record, write_times
from docs.evidence.measure import LIBRARY, machine, need_gpu, normal
from docs.evidence.power import Meter
from docs.evidence.rows import SUITES, Row, Shape, by_plan, groups, mean_ratio

LAYOUTS = ("nn", "nt", "tn", "tt")
_HOST_CALLS = 300


def expand(patterns: Sequence[str]) -> list[str | None]:
    """Return the plan names that match patterns with `*`; "chosen" is the plan of `gemm`, "@NAME" one of `candidates`.

    >>> expand(["chosen", "simt_*6x128"])
    [None, 'simt_256x128', 'simt_16x128', 'simt_96x128']
    """
    from cutegemm.choice.catalog import plans

    found: list[str | None] = []
    for pattern in patterns:
        if pattern in candidates.LISTS:
            found += candidates.LISTS[pattern]
        elif "*" in pattern:
            found += [name for name, _ in plans() if fnmatch.fnmatchcase(name, pattern)]
        else:
            found.append(None if pattern == "chosen" else pattern)
    return found


def summary(rows: Sequence[Row]) -> list[str]:
    """Return a table of ratios, a line per plan and a column per shape, with the best of each and means by suite."""
    timed = by_plan(rows)
    means = groups(timed)
    shapes = [at for suite in means.values() for at in suite]
    best: dict[str, Row] = {at: {"ratio": max(of[at]["ratio"] for of in timed.values() if at in of)} for at in shapes}
    width = max(map(len, [*timed, "ratio to the library"]))
    heads = [*shapes, *(f"mean {name}".rstrip() for name in means)]
    lines = [" ".join(["ratio to the library".ljust(width), *(head.rjust(12) for head in heads)])]
    for name, of in {**timed, "best": best}.items():
        cells = [
            *(mean_ratio(of, [at]) for at in shapes),
            *(mean_ratio(of, suite) for suite in means.values()),
        ]
        texts = ["-" if cell is None else f"{cell:.3f}" for cell in cells]
        columns = [text.rjust(max(12, len(head))) for text, head in zip(texts, heads, strict=True)]
        lines.append(" ".join([name.ljust(width), *columns]))
    return lines


def host_times(size: int = 256) -> dict[str, float]:
    """Return the host microseconds of one warm call, without waiting for the device."""
    import torch

    need_gpu()
    from cutegemm.compile.plans import compile_plan
    from cutegemm.run.gemm import gemm, plan_of
    from cutegemm.run.torch_ops import device_arch

    a, b, out = (normal((size, size), torch.float32) for _ in range(3))
    plan = plan_of(a, b, out=out)
    kernel = compile_plan(plan, device_arch(a.get_device())).function
    passed = (a, b, out, out, 1.0, 0.0) if plan.has_c else (a, b, out, 1.0)
    calls: dict[str, Callable[[], Any]] = {
        "kernel": lambda: kernel(*passed),
        "gemm": lambda: gemm(a, b),
        "gemm, out given": lambda: gemm(a, b, out=out),
        "gemm, c and out given": lambda: gemm(a, b, c=out, beta=1.0, out=out),
        LIBRARY: lambda: torch.matmul(a, b),
        f"{LIBRARY}, out given": lambda: torch.matmul(a, b, out=out),
        "torch.add": lambda: torch.add(a, b),
    }
    found = {}
    for name, call in calls.items():
        runs = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(_HOST_CALLS):
                call()
            runs.append((time.perf_counter() - start) / _HOST_CALLS * 1e6)
        torch.cuda.synchronize()
        found[name] = round(statistics.median(runs), 2)
    return found


def parse_shape(text: str) -> Shape:
    """Parse "4096", or "4096x2048x512" for M x N x K.

    >>> parse_shape("4096"), parse_shape("16x8192x512")
    ((4096, 4096, 4096), (16, 8192, 512))
    """
    parts = [int(part) for part in text.split("x")]
    if len(parts) not in (1, 3):
        raise ValueError(text)
    m, n, k = parts * 3 if len(parts) == 1 else parts
    return m, n, k


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence gemm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shape", action="append", type=parse_shape, help="4096, or MxNxK; may be repeated")
    parser.add_argument("--suite", action="append", choices=SUITES, help="may be repeated")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="may be repeated")
    parser.add_argument("--plan", action="append", help="a name, names with *, simt:..., sm90:..., chosen")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.6, help="of measuring for each shape and layout")
    parser.add_argument("--fast-accum", action="store_true", help="let torch._scaled_mm lose bits")
    parser.add_argument("--peer", action="append", help="path to CUTLASS's tensorop_gemm.py, or quack; may be repeated")
    parser.add_argument(
        "--power", type=float, default=0.0, metavar="SECONDS",
        help="let each contestant run alone, too, and read clock, power and throttling",
    )  # fmt: skip
    parser.add_argument("--host", action="store_true", help="also the host time of a call")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--times", action="store_true", help="write times alone, a row for each problem")
    given = parser.parse_args(arguments)
    shapes = [*(given.shape or []), *(shape for name in given.suite or [] for shape in SUITES[name])]
    plans = expand(given.plan or ["chosen"])
    cases = [
        Case(Problem(m, n, k, operands=operands_of(given.dtype, layout, m, n, k)), plans)
        for m, n, k in shapes or [parse_shape("4096")]
        for layout in given.layout or LAYOUTS
    ]
    need_gpu()
    meter = Meter(DType.parse(given.dtype), given.power) if given.power else None
    found: dict[str, Any] = {"machine": machine(), **(meter.known() if meter else {}), "rows": []}
    timed = contests(
        cases, given.seconds, fast_accum=given.fast_accum, peers=given.peer or [], meter=meter,
        say=lambda line: print(line, flush=True),
    )  # fmt: skip
    record(found, timed, given.json)
    if given.suite:
        print("\n".join(summary(found["rows"])))
    if given.host:
        found["host_us"] = host_times()
        record(found, [[]], given.json)  # all rows, and the host times
        for name, value in found["host_us"].items():
            print(f"host time of {name}: {value:.2f} us")
    if given.times and given.json is not None:
        write_times(found, given.json)
    print("\n".join(f"{key}: {value}" for key, value in found["machine"].items()))
