"""Chains of GEMMs in one CUDA graph: each multiplies the previous result by a square weight.

python -m docs.evidence chain --json chain.json
python -m docs.evidence chain --rows 128 --width 1024 --dtype bfloat16 --plan sm90_64x64

Programmatic dependent launch hides the start of a kernel during the end of the previous one: see `plan.launches`. The
plan that `gemm` chooses, named plans and cuBLAS are compared. The graphs are replayed in alternating order, and their
results are compared.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cutegemm.errors import CutegemmError
from docs.evidence.benchmark import record
from docs.evidence.graphs import Launch, alternating, graph_of
from docs.evidence.measure import machine, need_gpu

CHAINS = (
    ("bfloat16", 1, 4096), ("bfloat16", 16, 4096), ("bfloat16", 64, 4096), ("bfloat16", 64, 1024),
    ("bfloat16", 128, 1024), ("bfloat16", 512, 1024), ("bfloat16", 1024, 1024), ("bfloat16", 256, 2048),
    ("bfloat16", 2048, 2048), ("bfloat16", 512, 4096), ("bfloat16", 4096, 4096), ("float32", 128, 512),
    ("float32", 512, 512), ("float32", 2048, 2048),
)  # fmt: skip
WEIGHTS, LARGE_WEIGHTS = 24, 8
_LARGE_FLOPS = 1e11  # FLOP of a GEMM; graphs of larger ones have fewer GEMMs
_REPLAYS = 40
# Relative error allowed for the last GEMM, which contains the rounding errors of all GEMMs before it
_ERROR = {"bfloat16": 5e-2, "float32": 1e-4}

Row = dict[str, Any]


def timed(dtype: str, rows: int, width: int, plans: Sequence[str]) -> Row:
    """Return the microseconds of one GEMM of each chain, and the name of the chosen plan."""
    import torch

    from cutegemm.run.gemm import gemm, plan_of

    count = LARGE_WEIGHTS if 2.0 * rows * width * width > _LARGE_FLOPS else WEIGHTS
    kind = getattr(torch, dtype)
    weights = [(torch.randn(width, width, device="cuda") / width**0.5).to(kind).t() for _ in range(count)]
    values = [torch.randn(rows, width, device="cuda").to(kind) for _ in range(count + 1)]

    def by_library(number: int) -> None:
        torch.mm(values[number], weights[number], out=values[number + 1])

    def by_plan(plan: str | None, number: int) -> None:
        gemm(values[number], weights[number], out=values[number + 1], plan=plan)

    launches: dict[str, Launch] = {"library": by_library, "chosen": functools.partial(by_plan, None)}
    launches |= {plan: functools.partial(by_plan, plan) for plan in plans}
    graphs, want = {}, None
    for name, launch in launches.items():
        values[-1].fill_(float("nan"))
        graphs[name] = graph_of(launch, count)
        last = values[-1].double()
        want = last if want is None else want
        error = ((last - want).norm() / want.norm()).item()
        if not error < _ERROR[dtype]:
            raise CutegemmError(f"chain: {rows}x{width}x{width} by {name} is off by {error:.2g}.")
    plan = plan_of(values[0], weights[0], out=values[1]).name
    us = alternating(graphs, count, _REPLAYS)
    return {"dtype": dtype, "m": rows, "n": width, "k": width, "products": count, "plan": plan, "us": us}


def told(row: Row) -> str:
    """Return a row as a sentence.

    >>> row = {"dtype": "bfloat16", "m": 64, "n": 1024, "plan": "sm90_64x64"}
    >>> print(told({**row, "us": {"library": 5.0, "chosen": 4.0}}))
    bfloat16 64x1024x1024 sm90_64x64: library 5.00, chosen 4.00 us (1.250)
    """
    us = row["us"]
    times = ", ".join(f"{name} {time:.2f}" for name, time in us.items())
    ratio = us["library"] / us["chosen"]
    return f"{row['dtype']} {row['m']}x{row['n']}x{row['n']} {row['plan']}: {times} us ({ratio:.3f})"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence chain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, help="of the products")
    parser.add_argument("--width", type=int, help="of the weights")
    parser.add_argument("--dtype", choices=list(_ERROR), default="bfloat16")
    parser.add_argument("--plan", action="append", default=[], help="the name of a plan to time in addition")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    given = parser.parse_args(arguments)
    if (given.rows is None) != (given.width is None):
        raise CutegemmError("chain: --rows and --width are given together.")
    need_gpu()
    chains = CHAINS if given.rows is None else ((given.dtype, given.rows, given.width),)

    def found() -> Iterator[list[Row]]:
        for dtype, rows, width in chains:
            row = timed(dtype, rows, width, given.plan)
            print(told(row), flush=True)
            yield [row]

    record({"machine": machine(), "rows": []}, found(), given.json)
