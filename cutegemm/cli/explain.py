"""`cutegemm explain`: show which plan is chosen for a problem, and why each other candidate is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby, islice
from typing import Annotated, Any

import typer
from rich.table import Table

from cutegemm.build.building import Complaints, made
from cutegemm.choice.candidate import Candidate
from cutegemm.choice.catalog import built, ranked
from cutegemm.choice.order import Orders, Weight, served_rows
from cutegemm.cli.operand_options import Along, GroupCount, Scales
from cutegemm.cli.output import output
from cutegemm.dtypes import DType, bf16
from cutegemm.errors import PlanError
from cutegemm.machine.device import DEFAULT_DEVICE, Device, device_named
from cutegemm.parse.groups import groups_of
from cutegemm.parse.plan import operands_for, problem_of
from cutegemm.plan import GemmPlan, Operands, Problem

_Extent = Annotated[int, typer.Argument(min=0)]


def explain(
    m: _Extent,
    n: _Extent,
    k: _Extent,
    batch: Annotated[int, typer.Option(min=1, help="Number of matrices in the batch.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="Element type of A and B. The default is f32, or bf16 with --groups.")
    ] = None,
    layout: Annotated[str, typer.Option(help="BLAS letters: nn, nt, tn, tt.")] = "nn",
    device: Annotated[
        str, typer.Option(help="Device whose rates the time model uses: h200, h100, a100-80gb, ...")
    ] = "h200",
    accumulate: Annotated[
        str, typer.Option(help="Accumulation of float8: fast, or promoted (to f32 after each k-tile).")
    ] = "fast",
    scales: Scales = None,
    groups: GroupCount = None,
    along: Along = "m",
    batch_invariant: Annotated[
        bool, typer.Option("--batch-invariant", help="Only plans with one order of accumulation for all M.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="Number of predicted times to show.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the candidate kernel plans for D[M,N] = A[M,K] @ B[K,N] by predicted time, and what limits each.

    Candidates that cannot be built for this GEMM are listed with the rule that they break. `gemm` uses the first of
    the other candidates. The times are predicted by a model for a call after a flush of the L2 cache. The last line
    describes the order in which the chosen plan adds products; plans with the same order give the same bits.
    """
    complaints = Complaints("explain")
    kind = complaints.attempt(lambda: DType.parse(dtype or ("f32" if groups is None else "bf16")))
    operands = complaints.attempt(lambda: operands_for(kind or bf16, layout, scales=scales))
    on = complaints.attempt(lambda: device_named(device))
    own = complaints.attempt(lambda: groups_of("explain", groups, along))
    if groups is not None and (scales is not None or batch > 1 or batch_invariant):
        complaints.violations.append("--groups excludes --batch, --scales and --batch-invariant.")
    complaints.check()
    stated = replace(made(operands), batched=batch > 1) if own is None else own.of(made(operands))
    of, matrices = stated.fitted(m, n, k), batch if own is None else own.count
    problem, chip = problem_of(m, n, k, matrices, of), on or DEFAULT_DEVICE
    tied = islice(groupby(_outcomes(of, problem, chip, accumulate, batch_invariant), _time_and_refusal), count)
    rows = [[_row(problem, one, outcome) for one, outcome in group] for _, group in tied]
    if as_json:
        print(json.dumps([row for group in rows for row in group], indent=2))
        return
    console = output()
    console.print(f"{problem} of {of}\non {chip.name}: {chip.source}", markup=False, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for head in ("plan", "us", "TFLOP/s", "most of it", "why not"):
        table.add_column(head, justify="right" if head in ("us", "TFLOP/s") else "left", overflow="fold")
    first = next((group[0] for group in rows if group[0]["refused"] is None), None)
    for row, *ties in rows:
        as_fast = f"; as fast: {', '.join([tie['plan'] for tie in ties])}" if ties else ""
        reason = _why_not(row, first) + as_fast
        table.add_row(row["plan"], f"{row['us']:.1f}", f"{row['tflops']:.1f}", row["bound"], reason)
    console.print(table)
    if first is not None and first["order"] is not None:
        console.print(f"order of accumulation: {first['order']}", markup=False, soft_wrap=True)


def _outcomes(
    operands: Operands, problem: Problem, device: Device, accumulate: str, batch_invariant: bool
) -> Iterator[tuple[Candidate, GemmPlan | PlanError]]:
    """Yield (candidate, plan) for each candidate kernel plan of a GEMM, lowest predicted time first.

    If the plan cannot be built, the PlanError that says why is yielded in its place.

    operands, problem   the GEMM
    device              device whose rates predict the times
    accumulate          accumulation of float8: "fast" or "promoted" (to f32 after each k-tile)
    batch_invariant     True for only the plans that add products in the one order that is used for every M
    """
    if operands.groups:
        yield from _grouped_outcomes(problem, device, accumulate)
        return
    weight = Weight.of(operands, problem.n, problem.k, device.arch, device, accumulate)
    orders, order = Orders(operands, operands, weight), served_rows(weight).order if batch_invariant else None
    for one in ranked(operands, problem, device.arch, device, accumulate):
        if order is not None and orders.of(one.recipe) != order:
            continue
        try:
            yield one, built(one.recipe, operands, operands, problem, device.arch, device)
        except PlanError as error:
            yield one, error


def _grouped_outcomes(
    problem: Problem, device: Device, accumulate: str
) -> Iterator[tuple[Candidate, GemmPlan | PlanError]]:
    """Yield every candidate plan for a grouped problem, as `_outcomes` does.

    device       device whose rates predict the times
    accumulate   accumulation of float8: "fast" or "promoted" (to f32 after each k-tile)
    """
    for one in ranked(problem.operands, problem, device.arch, device, accumulate):
        try:
            yield one, one.recipe.build(problem.operands, False, device.arch, device)
        except PlanError as error:
            yield one, error


def _time_and_refusal(candidate: tuple[Candidate, GemmPlan | PlanError]) -> tuple[float, str | None]:
    """Return (predicted time in us, first broken rule) of a candidate plan; the rule is None if the plan can be built.

    Consecutive candidates with the same time and rule share a row of the printed table.

    candidate   the candidate, with the built plan or the error that refuses it
    """
    one, outcome = candidate
    return one.us, outcome.violations[0] if isinstance(outcome, PlanError) else None


def _row(problem: Problem, one: Candidate, outcome: GemmPlan | PlanError) -> dict[str, Any]:
    """Return a candidate plan as a dict for JSON: name, predicted time in us, TFLOP/s, and the time of each bound.

    one       the candidate
    outcome   the plan that was built, or the error that refuses it; "refused" is then its first broken rule, else None.
              "order" is the plan's order of accumulation as text; None for a refused plan, or if groups
              divide K
    """
    us, refused = _time_and_refusal((one, outcome))
    order = None
    if isinstance(outcome, GemmPlan) and problem.operands.groups != "k":  # each group of K has its own order
        solved = problem.transposed if one.recipe.swap_ab else problem
        order = str(one.recipe.as_launched(outcome).accumulation_order(solved))
    return {
        "plan": str(one.recipe),
        "us": us,
        "tflops": problem.flops / us * 1e-6,
        "bound": one.bound,
        "bounds_us": one.bounds,
        "refused": refused,
        "order": order,
    }


def _why_not(row: dict[str, Any], first: dict[str, Any] | None) -> str:
    """Return why a candidate plan is not chosen, such as "2.0% slower: ..."; "chosen" for the chosen one.

    row     the candidate as a dict with "us" (predicted time), "bounds_us" (microseconds by bottleneck) and "refused"
            (broken rule, or None)
    first   the chosen candidate in the same form; None if all are refused

    >>> chosen = {"us": 10.0, "bounds_us": {"L2": 8.0, "DRAM": 6.0}, "refused": None}
    >>> _why_not({"us": 10.2, "bounds_us": {"L2": 8.0, "DRAM": 9.0}, "refused": None}, chosen)
    '2.0% slower: DRAM 9 us, not 6 us'
    """
    if row["refused"] is not None:
        return str(row["refused"])
    if first is None or row is first:
        return "chosen"
    part = row["us"] / first["us"] - 1
    slower = f"{part:.1%} slower" if part >= 0.0005 else "less than 0.1% slower"
    higher = {name: us - first["bounds_us"].get(name, 0.0) for name, us in row["bounds_us"].items()}
    name = max(higher, key=higher.__getitem__)
    if higher[name] <= 0:
        return f"{slower}: waits of a CTA that no bound counts"
    return f"{slower}: {name} {row['bounds_us'][name]:.4g} us, not {first['bounds_us'].get(name, 0.0):.4g} us"
