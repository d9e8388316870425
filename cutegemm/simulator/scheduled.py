"""Simulation of plans whose threads all follow one schedule: their tiles of D, several CTAs at a time."""

from __future__ import annotations

import numpy as np

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.program.thread_schedule import thread_schedule
from cutegemm.simulator.checks import check_tables
from cutegemm.simulator.copies import CtaGroup, OperandFlow
from cutegemm.simulator.k_splits.division import divided, workspace_slots
from cutegemm.simulator.k_splits.split_k import SplitKWorkspace
from cutegemm.simulator.mainloop import run_mainloop
from cutegemm.simulator.memory import GatedB
from cutegemm.simulator.reductions import finish_all
from cutegemm.simulator.repack import repack_operands
from cutegemm.simulator.report import Report, tile_text
from cutegemm.simulator.stores.tile_store import TileStore
from cutegemm.simulator.tables import plan_tables
from cutegemm.simulator.task import Task
from cutegemm.simulator.values import evaluate


def run_schedule(task: Task) -> tuple[int, int, int, int, int]:
    """Simulate every tile of a plan without warp roles (all threads follow one schedule), and return counts.

    D and the further results are written to the task's simulated matrices.

    returns   (CTAs, k-tiles of a tile, multiply-adds, elements of A loaded, elements of B loaded)
    """
    plan, problem, matrices = task.plan, task.problem, task.matrices
    report, checked = task.report, task.checked
    tables = plan_tables(plan)
    if checked:
        check_tables(plan, tables, report)
    applied = (
        plan.epilogue.tail if plan.scheduler.split.is_split else plan.epilogue
    )  # K splits apply the head themselves
    epilogue = TileStore(task, tables.elements, applied)
    bm, bn, bk = plan.cta_tile
    schedule, k_tiles = thread_schedule(plan), plan.k_tiles(problem)
    k_first = problem.k - k_tiles * bk
    ctas = _ctas(plan, problem, report)
    together = task.ctas_at_once
    ticks, total = 0, -(-len(ctas) // together) * max(1, k_tiles)
    for repack in plan.repacks:
        matrices[repack.name] = repack_operands(task, repack)
    if plan.glu is not None:
        matrices["b"] = GatedB(matrices["b"], plan.glu, problem.n)

    def ticked() -> None:
        nonlocal ticks
        ticks += 1
        task.report_progress(ticks / total)

    loaded = [0, 0]
    shared = SplitKWorkspace(plan, tables, workspace_slots(plan, problem), report)
    for own, pieces in divided(plan, problem, ctas[:, 0], together, report):
        position, m_tile, n_tile, batch = ctas[own].T
        group = CtaGroup(position, m_tile, n_tile, batch)
        ragged = ((m_tile + 1) * bm > problem.m) | ((n_tile + 1) * bn > problem.n) | (k_first < 0)
        for piece in pieces:
            a, b = (
                OperandFlow(
                    t, matrices[name], group, tile * t.extent, ragged, k_first + piece.k_first * bk,
                    schedule, piece.k_count, report, checked, plan.scheduler.split.k_step,
                )
                for name, t, tile in (("a", tables.a, m_tile), ("b", tables.b, n_tile))
            )  # fmt: skip
            flows = (a, b)
            accumulators = run_mainloop(plan, tables, schedule, flows, piece.k_count, report, ticked)
            loaded = [have + flow.loaded_elems for have, flow in zip(loaded, flows, strict=True)]
            if plan.scheduler.split.is_split:
                accumulators = evaluate(plan.epilogue.head, accumulators, task.scalars, {}, plan.operands.acc)
            if piece.slots is not None:
                shared.write(piece.slots, accumulators)
        slots = [piece.slots for piece in pieces if piece.slots is not None]
        epilogue.write(shared.total(slots) if slots else accumulators, group)
    finish_all(epilogue.reduced)
    if checked:
        epilogue.finish()
    task.report_progress(1.0)
    return len(ctas), k_tiles, len(ctas) * k_tiles * bm * bn * bk, loaded[0], loaded[1]


def _ctas(plan: GemmPlan, problem: Problem, report: Report) -> np.ndarray:
    """Return a row (position in the raster, m_tile, n_tile, batch) for each CTA whose tile exists, as an array.

    CTAs with a tile outside of the grid are reported, and so are tiles that no CTA or several CTAs take.
    """
    grid = plan.grid(problem)
    count = grid[0] * grid[1] * grid[2]
    position = np.arange(count, dtype=np.int64)
    if count == 0:
        return np.zeros((0, 4), np.int64)
    tiles = np.column_stack([position, plan.work(problem).tiles.order()[:, 0]])
    exists = ((tiles[:, 1:] >= 0) & (tiles[:, 1:] < grid)).all(axis=1)
    report.add_each(
        "raster",
        tiles[~exists],
        lambda t: f"CTA {t[0]} takes the tile {tile_text(t[1:])}, which is outside of the grid {grid}.",
    )
    tiles = tiles[exists]
    number = np.ravel_multi_index(tuple(tiles[:, 1:].T), grid)
    times = np.bincount(number, minlength=count)

    def describe(tile: int) -> str:
        takers = tiles[number == tile, 0]
        who = "no CTA takes" if len(takers) == 0 else f"CTAs {', '.join(map(str, takers[:4]))} take"
        return f"{who} the tile {tile_text(np.unravel_index(tile, grid))}."

    report.add_each("raster", np.flatnonzero(times != 1), describe)
    return tiles
