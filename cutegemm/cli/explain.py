"""`cutegemm explain`: show which plan is chosen for a problem, and why each other candidate is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Annotated

import typer
from rich.table import Table

from cutegemm.build.building import Complaints, made
from cutegemm.choice.candidate import Candidate
from cutegemm.choice.catalog import built, ranked
from cutegemm.cli.output import output
from cutegemm.dtypes import DType, bf16
from cutegemm.errors import PlanError
from cutegemm.machine.device import DEFAULT_DEVICE, Device, device_named
from cutegemm.parse.plan import operands_for
from cutegemm.plan import GemmPlan, Operands, Problem

_Extent = Annotated[int, typer.Argument(min=0)]


def explain(
    m: _Extent,
    n: _Extent,
    k: _Extent,
    batch: Annotated[int, typer.Option(min=1, help="Number of matrices in the batch.")] = 1,
    dtype: Annotated[str, typer.Option(help="Element type of A and B.")] = "f32",
    layout: Annotated[str, typer.Option(help="BLAS letters: nn, nt, tn, tt.")] = "nn",
    device: Annotated[
        str, typer.Option(help="Device whose rates the time model uses: h200, h100, a100-80gb, ...")
    ] = "h200",
    accumulate: Annotated[
        str, typer.Option(help="Accumulation of float8: fast, or promoted (to f32 after each k-tile).")
    ] = "fast",
    count: Annotated[int, typer.Option(min=1, help="Number of plans to show.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the candidate plans for D[M,N] = A[M,K] @ B[K,N] by predicted time, with what bounds each.

    The first plan that is not refused is the one that `gemm` uses for the same types and layout. The times are
    predicted by a model for a call after a flush of the L2 cache.
    """
    complaints = Complaints("explain")
    kind = complaints.attempt(lambda: DType.parse(dtype))
    operands = complaints.attempt(lambda: operands_for(kind or bf16, layout))
    on = complaints.attempt(lambda: device_named(device))
    complaints.check()
    of = replace(made(operands), batched=batch > 1).fitted(m, n, k)
    problem, chip = Problem(m, n, k, batch, of), on or DEFAULT_DEVICE
    rows = [_row(problem, one, outcome) for one, outcome in islice(_outcomes(of, problem, chip, accumulate), count)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    console = output()
    console.print(f"{problem} of {of}\non {chip.name}: {chip.source}", markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for head in ("plan", "us", "TFLOP/s", "most of it", "why not"):
        table.add_column(head, justify="right" if head in ("us", "TFLOP/s") else "left", overflow="fold")
    first = next((row for row in rows if row["refused"] is None), None)
    for row in rows:
        table.add_row(
            str(row["plan"]),
            f"{row['us']:.1f}",
            f"{row['tflops']:.1f}",
            str(row["bound"]),
            _why_not(row, first),
        )
    console.print(table)


def _outcomes(
    operands: Operands, problem: Problem, device: Device, accumulate: str
) -> Iterator[tuple[Candidate, GemmPlan | PlanError]]:
    """Yield each candidate, fastest predicted time first, with its plan or the error that refuses it."""
    for one in ranked(operands, problem, device.arch, device, accumulate):
        try:
            yield one, built(one.recipe, operands, operands, problem, device.arch, device)
        except PlanError as error:
            yield one, error


def _row(problem: Problem, one: Candidate, outcome: GemmPlan | PlanError) -> dict[str, float | str | None]:
    """Return a candidate as plain data: its predicted time, its bound, and the first rule that it breaks or None."""
    return {
        "plan": str(one.recipe),
        "us": one.us,
        "tflops": problem.flops / one.us * 1e-6,
        "bound": one.bound,
        "refused": outcome.violations[0] if isinstance(outcome, PlanError) else None,
    }


def _why_not(row: dict[str, float | str | None], first: dict[str, float | str | None] | None) -> str:
    """Say why the candidate `row` is not chosen. `first` is the chosen one, or None if all rows are refused."""
    if row["refused"] is not None:
        return str(row["refused"])
    if first is None or row is first:
        return "chosen"
    slower = float(str(row["us"])) / float(str(first["us"])) - 1
    return f"{slower:.1%} slower" if slower >= 0.0005 else "tie"
