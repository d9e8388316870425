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

    plan       plan whose threads all follow one schedule
    tables     index tables of the plan
    schedule   steps of the threads for each k-tile
    flows      copies of A and of B for these CTAs, which follow the same schedule
    k_tiles    number of k-tiles
    report     collects faults of the schedule
    ticked     function without arguments that is called after each k-tile
    returns    accumulators, with these axes: MMA atoms of a thread along M, the same along N, registers of an atom in
               all threads of all CTAs (the CTA fastest)
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
    """Return the value of A and the value of B that each accumulator is multiplied by, for each k of an MMA atom.

    fragments_a   values of A in the fragment registers of a k-block. Axes: MMA atoms of a thread along M; registers of
                  an atom in all threads of all CTAs (the CTA fastest)
    fragments_b   values of B likewise, with MMA atoms along N
    tables        index tables of the plan, which say which register each accumulator is multiplied by
    ctas          number of CTAs
    returns       for each k, a pair of arrays, for A and for B. Axes: MMA atoms along M (A) or N (B); accumulators of
                  an atom in all threads of all CTAs
    """
    if tables.gather_a is None and tables.gather_b is None:
        return [(fragments_a, fragments_b)]
    steps = (tables.gather_a if tables.gather_a is not None else tables.gather_b).shape[0]  # type: ignore[union-attr]
    return [
        (_picked(fragments_a, tables.gather_a, step, ctas), _picked(fragments_b, tables.gather_b, step, ctas))
        for step in range(steps)
    ]


def _picked(fragments: np.ndarray, gather: np.ndarray | None, step: int, ctas: int) -> np.ndarray:
    """Return the value of A (or B) that each accumulator of the CTAs is multiplied by, for one k of the MMA atom.

    fragments   values in the fragment registers of a k-block, with two axes: MMA atoms of a thread along M (or N);
                registers of all threads of all CTAs, the CTA fastest
    gather      table with two axes: k in the MMA atom; accumulator. An entry is the index of the register that the
                accumulator is multiplied by. None: accumulator i is multiplied by register i
    step        index of the k in the MMA atom
    ctas        number of CTAs
    returns     array with two axes: MMA atoms; accumulators of all threads of all CTAs, the CTA fastest
    """
    if gather is None:
        return fragments
    rest = fragments.shape[0]
    return np.take(fragments.reshape(rest, -1, ctas), gather[step], axis=1).reshape(rest, -1)
