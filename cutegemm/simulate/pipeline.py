"""A plan with a pipeline on the CPU: the queue's k-tiles by TMA, the products of wgmma, the epilogue.

The order of the roles is that of one interleaving, unit after unit; `protocol_of` is for all the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.layout import Layout
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.simulate.boxes import BoxFlow, BoxTables, box_tables, check_boxes
from cutegemm.simulate.copies import CtaGroup
from cutegemm.simulate.epilogue import Epilogue
from cutegemm.simulate.leaving import Leaving, held_by_consumers
from cutegemm.simulate.memory import GlobalMatrix
from cutegemm.simulate.report import Report
from cutegemm.simulate.units import Meeting, Units, units_of
from cutegemm.tile.tma import TmaBox

# Accumulators of the CTAs that are simulated together.
_SUMS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class _Held:
    """What the epilogue out of registers asks of the tables of a plan."""

    held: np.ndarray


def run_pipeline(
    plan: GemmPlan,
    problem: Problem,
    matrices: dict[str, GlobalMatrix],
    alpha: float,
    beta: float,
    report: Report,
    checked: bool,
    progress: Callable[[float], None] | None,
) -> tuple[int, int, int, int, int]:
    """Carries out every tile; (CTAs, k-tiles, multiply-adds, elements loaded of A, of B)."""
    pipeline = plan.pipeline
    assert pipeline is not None
    bm, bn, bk = plan.cta_tile
    a, b = _tables(plan)
    if checked:
        check_boxes(a, report)
        check_boxes(b, report)
    leaves = _direct if plan.epilogue is None else Leaving
    epilogue: Any = leaves(plan, matrices["d"], matrices.get("c"), alpha, beta, report, checked)
    units = units_of(plan, problem, report)
    meeting = Meeting(plan, problem, held_by_consumers(plan, report), report) if plan.split.is_split else None
    loaded, multiplied = [0, 0], 0
    chunks = _chunks(units, max(1, _SUMS_AT_ONCE // (bm * bn)))
    for done, chunk in enumerate(chunks):
        own = units.where(chunk)
        turn, k_count = int(own.turn[0]), int(own.unit.k_count[0])
        group = CtaGroup(own.cta, own.m_tile, own.n_tile, own.batch)
        flows = [BoxFlow(t, matrices[name], group, report, checked) for name, t in (("a", a), ("b", b))]
        sums = np.zeros((bm, bn, len(group)), plan.operands.acc.storage)
        for k_tile in range(k_count):
            stage = (turn * k_count + k_tile) % plan.stages
            k_at = (own.unit.k_first + k_tile) * bk
            flows[0].load((group.m_tile * bm, k_at), stage)
            flows[1].load((group.n_tile * bn, k_at), stage)
            of_a, of_b = (np.moveaxis(flow.read(stage), 2, 0).astype(sums.dtype) for flow in flows)
            sums += np.moveaxis(of_a @ of_b.swapaxes(1, 2), 0, 2)
        if meeting is not None:
            sums, group = _met(meeting, sums, own)
        if len(group):
            _store(plan, epilogue, sums, group, turn)
        multiplied += len(own) * k_count
        loaded = [have + flow.loaded_elems for have, flow in zip(loaded, flows, strict=True)]
        if progress is not None:
            progress((done + 1) / len(chunks))
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
    if plan.epilogue is None:
        epilogue.write(_as_registers(epilogue, sums), group)
    else:
        _leave(plan, epilogue, sums, group, turn)


def _tables(plan: GemmPlan) -> tuple[BoxTables, BoxTables]:
    bm, bn, bk = plan.cta_tile
    out = []
    for name, extent, mode in (("a", bm, "m"), ("b", bn, "n")):
        box, smem = getattr(plan, f"load_{name}"), getattr(plan, f"smem_{name}")
        assert isinstance(box, TmaBox)
        inner = 1 if getattr(plan.operands, name).major == "k" else 0
        out.append(box_tables(name.upper(), (mode, "k"), box, smem, (extent, bk), inner))
    return out[0], out[1]


def _direct(
    plan: GemmPlan,
    matrix_d: GlobalMatrix,
    matrix_c: GlobalMatrix | None,
    alpha: float,
    beta: float,
    report: Report,
    checked: bool,
) -> Epilogue:
    """Out of registers: as a plan of threads does it."""
    held_by_consumers(plan, report)
    bm, bn, _ = plan.cta_tile
    table = plan.tiled_mma.offsets_c(Layout((bm, bn))).transpose(2, 3, 1, 0)
    tables: Any = _Held(np.ascontiguousarray(table))
    return Epilogue(plan, tables, matrix_d, matrix_c, alpha, beta, report, checked)


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
    rows = pipeline.consumer_tile[0]
    for consumer in range(pipeline.consumers):
        own = CtaGroup(
            group.position, group.m_tile * pipeline.consumers + consumer, group.n_tile, group.batch
        )
        epilogue.write(sums[consumer * rows : (consumer + 1) * rows], own, consumer)
