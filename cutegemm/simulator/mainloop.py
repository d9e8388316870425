"""Mainloop of plans with one schedule: executes the steps of the schedule for a group of CTAs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from cutegemm.dtypes import DType, round_to, tf32
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program.thread_schedule import Multiply, ThreadSchedule
from cutegemm.simulator.copies import OperandFlow
from cutegemm.simulator.report import Report
from cutegemm.simulator.tables import PlanTables

_LEAST_NORMAL = 2.0**-126  # smallest normal number of f32


def run_mainloop(
    plan: GemmPlan,
    tables: PlanTables,
    schedule: ThreadSchedule,
    flows: tuple[OperandFlow, OperandFlow],
    k_tiles: int,
    report: Report,
    ticked: Callable[[], None],
) -> np.ndarray:
    """Execute the mainloop of a group of CTAs in numpy, and return their accumulators.

    The result has the shape (rest_m, rest_n, value * thread * CTA). rest_m and rest_n count the MMA atoms of a thread
    along M and N.

    plan       plan whose threads all follow one schedule
    tables     index tables of the plan
    schedule   steps of the threads for each k-tile
    flows      copies of A and of B for these CTAs, which follow the same schedule
    k_tiles    number of k-tiles
    report     collects faults of the schedule
    ticked     called after each k-tile
    """
    a, b = flows
    ctas = len(a.group)
    rest_m, rest_n, values, threads = tables.elements.shape
    accumulators = np.zeros((rest_m, rest_n, values * threads * ctas), plan.operands.acc.storage)
    scratch = np.empty(accumulators.shape[1:], accumulators.dtype)
    last = 0
    for tile, step in schedule.play(k_tiles):
        a.apply(tile, step)
        b.apply(tile, step)
        if isinstance(step, Multiply):
            buffer = step.k_block % schedule.fragments
            fragments_a, fragments_b = (
                as_factor(flow.fragment_buffers[buffer], operand.dtype, plan).reshape(rest, -1)
                for flow, operand, rest in ((a, plan.operands.a, rest_m), (b, plan.operands.b, rest_n))
            )
            for x, y in _factors(fragments_a, fragments_b, tables, ctas):
                for m in range(rest_m):
                    np.multiply(x[m], y, out=scratch)
                    accumulators[m] += scratch
        if tile != last:
            last = tile
            ticked()
    if k_tiles:
        ticked()
    for flow in flows:
        flow.finish(plan.k_blocks)
        for text in flow.found:
            report.add("stage", f"{flow.tables.name}: {text}")
    return accumulators


def as_factor(fragments: np.ndarray, dtype: DType, plan: GemmPlan) -> np.ndarray:
    """Return values of A or B as the MMA multiplies them: tf32 is rounded, others get the accumulator's type.

    fragments   values as they are in memory
    dtype       element type of the operand
    """
    acc = plan.operands.acc
    if dtype is tf32:
        rounded: np.ndarray = round_to(tf32, fragments, plan.rounding)
        if plan.rounding == "rna":  # denormal numbers are rounded toward zero
            rounded = np.where(np.abs(fragments) < _LEAST_NORMAL, round_to(tf32, fragments, "rz"), rounded)
        return rounded
    return fragments if fragments.dtype == acc.storage else fragments.astype(acc.storage)


def _factors(
    fragments_a: np.ndarray, fragments_b: np.ndarray, tables: PlanTables, ctas: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each k of an MMA atom, the A value and the B value that each accumulator adds the product of.

    fragments_a, fragments_b   fragment registers of a k-block: (rest_m, entries * CTA) and (rest_n, entries * CTA),
                               where rest_m and rest_n count the MMA atoms of a thread along M and N
    tables                     index tables of the plan, which say which register each accumulator reads
    ctas                       number of CTAs
    returns                    for each k, a pair of arrays (rest_m, X) and (rest_n, X), where X = value * thread * CTA
    """
    if tables.gather_a is None and tables.gather_b is None:
        return [(fragments_a, fragments_b)]
    steps = (tables.gather_a if tables.gather_a is not None else tables.gather_b).shape[0]  # type: ignore[union-attr]
    return [
        (_picked(fragments_a, tables.gather_a, step, ctas), _picked(fragments_b, tables.gather_b, step, ctas))
        for step in range(steps)
    ]


def _picked(fragments: np.ndarray, gather: np.ndarray | None, step: int, ctas: int) -> np.ndarray:
    """Return, for each accumulator, the value of A or B that it multiplies in step `step` of an MMA atom's k.

    fragments   fragment registers of a k-block: (rest, entries * CTA), where rest counts MMA atoms of a thread
    gather      table (k, accumulator) of the fragment register that each accumulator reads; None: accumulator i reads i
    step        index of the k in the atom
    ctas        number of CTAs
    returns     array (rest, accumulators * CTA)
    """
    if gather is None:
        return fragments
    rest = fragments.shape[0]
    return np.take(fragments.reshape(rest, -1, ctas), gather[step], axis=1).reshape(rest, -1)
