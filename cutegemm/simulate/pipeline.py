"""A plan with a pipeline on the CPU: the queue's k-tiles by TMA, the products, the epilogue.

The order of the roles is that of one interleaving, unit after unit; `protocol_of` is for all the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cutegemm.plan.plan import GemmPlan
from cutegemm.simulate.boxes import BoxFlow, BoxTables, box_tables, check_boxes
from cutegemm.simulate.checks import check_tables
from cutegemm.simulate.copies import CtaGroup
from cutegemm.simulate.epilogue import Epilogue
from cutegemm.simulate.leaving import Leaving, held_by_consumers
from cutegemm.simulate.mainloop import as_factor
from cutegemm.simulate.packing import pack
from cutegemm.simulate.tables import held_by_threads, plan_tables
from cutegemm.simulate.task import Task
from cutegemm.simulate.units import Meeting, Units, units_of
from cutegemm.tile.tma import TmaBox


def run_pipeline(task: Task) -> tuple[int, int, int, int, int]:
    """Carries out every tile; (CTAs, k-tiles, multiply-adds, elements loaded of A, of B)."""
    plan, problem, report, checked = task.plan, task.problem, task.report, task.checked
    matrices = {**task.matrices, **{packing.name: pack(task, packing) for packing in plan.packs}}
    bm, bn, bk = plan.cta_tile
    a, b = _tables(plan)
    if checked:
        check_boxes(a, report)
        check_boxes(b, report)
        if plan.tiled_mma.atom.a_source == "register":  # each element is followed into the sums once
            check_tables(plan, plan_tables(plan), report)
    epilogue: Any = _direct(task) if plan.slots is None else Leaving(task)
    units = units_of(plan, problem, report)
    meeting = Meeting(plan, problem, held_by_consumers(plan, report), report) if plan.split.is_split else None
    loaded, multiplied = [0, 0], 0
    chunks = _chunks(units, task.ctas_at_once)
    for done, chunk in enumerate(chunks):
        own = units.where(chunk)
        turn, k_count = int(own.turn[0]), int(own.unit.k_count[0])
        group = CtaGroup(own.cta, own.m_tile, own.n_tile, own.batch)
        flows = [BoxFlow(t, matrices[name], group, report, checked) for name, t in (("a", a), ("b", b))]
        sums = np.zeros((len(group), bm, bn), plan.operands.acc.storage)
        for k_tile in range(k_count):
            stage = (turn * k_count + k_tile) % plan.stages
            k_at = (own.unit.k_first + k_tile) * bk
            flows[0].load((group.m_tile * bm, k_at), stage)
            flows[1].load((group.n_tile * bn, k_at), stage)
            # In C's order, or the product is no matter of BLAS
            of_a, of_b = (
                np.ascontiguousarray(np.moveaxis(as_factor(flow.read(stage), operand.dtype, plan), 2, 0))
                for flow, operand in zip(flows, (plan.operands.a, plan.operands.b), strict=True)
            )
            sums += of_a @ of_b.swapaxes(1, 2)
        sums = np.moveaxis(sums, 0, 2)
        if meeting is not None:
            sums, group = _met(meeting, sums, own)
        if len(group):
            _store(plan, epilogue, sums, group, turn)
        multiplied += len(own) * k_count
        loaded = [have + flow.loaded_elems for have, flow in zip(loaded, flows, strict=True)]
        task.tell((done + 1) / len(chunks))
    if checked:
        epilogue.finish()
        if meeting is not None:
            meeting.finish()
    return len(units), plan.k_tiles(problem), multiplied * bm * bn * bk, loaded[0], loaded[1]


def _chunks(units: Units, together: int) -> list[np.ndarray]:
    """Positions of units that are simulated together: of one turn, and of as many k-tiles."""
    kinds = np.stack([units.turn, units.unit.k_count], axis=1)
    return [
        of_kind[first : first + together]
        for kind in np.unique(kinds, axis=0)
        for of_kind in [np.flatnonzero((kinds == kind).all(axis=1))]
        for first in range(0, len(of_kind), together)
    ]


def _met(meeting: Meeting, sums: np.ndarray, own: Units) -> tuple[np.ndarray, CtaGroup]:
    """The sums (M, N, C) of those units that end a tile, and the CTAs that store them."""
    found = []
    for i in range(len(own)):
        one = own.where(i)
        total = sums[:, :, i] if one.unit.parts == 1 else meeting.add_up(sums[:, :, i], one)
        if total is not None:
            found.append((i, total))
    which = [i for i, _ in found]
    left = own.where(which)
    group = CtaGroup(left.cta, left.m_tile, left.n_tile, left.batch)
    return (np.stack([total for _, total in found], axis=2) if found else sums[:, :, :0]), group


def _store(plan: GemmPlan, epilogue: Any, sums: np.ndarray, group: CtaGroup, turn: int) -> None:
    if plan.slots is None:
        epilogue.write(_as_registers(epilogue, sums), group)
    else:
        _leave(plan, epilogue, sums, group, turn)


def _tables(plan: GemmPlan) -> tuple[BoxTables, BoxTables]:
    bm, bn, bk = plan.cta_tile
    out = []
    for name, extent, mode in (("a", bm, "m"), ("b", bn, "n")):
        box, smem = getattr(plan, f"load_{name}"), getattr(plan, f"smem_{name}")
        assert isinstance(box, TmaBox)
        inner = 1 if getattr(plan.loaded, name).major == "k" else 0
        out.append(box_tables(name.upper(), (mode, "k"), box, smem, (extent, bk), inner))
    return out[0], out[1]


def _direct(task: Task) -> Epilogue:
    """Out of registers: as a plan of threads does it."""
    held_by_consumers(task.plan, task.report)
    return Epilogue(task, held_by_threads(task.plan))


def _as_registers(epilogue: Epilogue, sums: np.ndarray) -> np.ndarray:
    """(M, N, C) as the accumulators of all threads: (register, C)."""
    out: np.ndarray = sums[epilogue.rows, epilogue.columns]
    return out


def _leave(plan: GemmPlan, epilogue: Leaving, sums: np.ndarray, group: CtaGroup, turn: int) -> None:
    pipeline = plan.pipeline
    assert pipeline is not None
    if pipeline.kind == "pingpong":
        epilogue.write(sums, group, turn % pipeline.consumers)
        return
    rows, columns = pipeline.consumer_tile
    down, across = plan.cta_tile[0] // rows, plan.cta_tile[1] // columns
    for consumer in range(pipeline.consumers):
        m, n = consumer // across, consumer % across
        own = CtaGroup(group.position, group.m_tile * down + m, group.n_tile * across + n, group.batch)
        of_own = plan.column_of(n, np.arange(columns))
        epilogue.write(sums[m * rows : (m + 1) * rows, of_own], own, consumer)
