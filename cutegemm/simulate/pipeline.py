"""A plan with a pipeline on the CPU: the queue's k-tiles by TMA, the products of wgmma, the epilogue.

The order of the roles is that of one interleaving, tile after tile; `protocol_of` is for all the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.simulate.boxes import BoxFlow, BoxTables, box_tables, check_boxes
from cutegemm.simulate.copies import CtaGroup
from cutegemm.simulate.epilogue import Epilogue
from cutegemm.simulate.leaving import Leaving, held_by_consumers
from cutegemm.simulate.memory import GlobalMatrix
from cutegemm.simulate.report import Report
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
    k_tiles = plan.k_tiles(problem)
    loaded = [0, 0]
    tiles = _tiles(plan, problem, report)
    together = max(1, _SUMS_AT_ONCE // (bm * bn))
    chunks = [
        of_turn[first : first + together]
        for of_turn in (tiles[tiles[:, 0] == turn] for turn in np.unique(tiles[:, 0]))
        for first in range(0, len(of_turn), together)
    ]
    for done, chunk in enumerate(chunks):
        turn = int(chunk[0, 0])
        group = CtaGroup(*chunk[:, 1:].T)
        flows = [BoxFlow(t, matrices[name], group, report, checked) for name, t in (("a", a), ("b", b))]
        sums = np.zeros((bm, bn, len(group)), plan.operands.acc.storage)
        for k_tile in range(k_tiles):
            stage = (turn * k_tiles + k_tile) % plan.stages
            k_at = np.full(len(group), k_tile * bk)
            flows[0].load((group.m_tile * bm, k_at), stage)
            flows[1].load((group.n_tile * bn, k_at), stage)
            of_a, of_b = (np.moveaxis(flow.read(stage), 2, 0).astype(sums.dtype) for flow in flows)
            sums += np.moveaxis(of_a @ of_b.swapaxes(1, 2), 0, 2)
        if plan.epilogue is None:
            epilogue.write(_as_registers(epilogue, sums), group)
        else:
            _leave(plan, epilogue, sums, group, turn)
        loaded = [have + flow.loaded_elems for have, flow in zip(loaded, flows, strict=True)]
        if progress is not None:
            progress((done + 1) / len(chunks))
    if checked:
        epilogue.finish()
    return len(tiles), k_tiles, len(tiles) * k_tiles * bm * bn * bk, loaded[0], loaded[1]


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


def _tiles(plan: GemmPlan, problem: Problem, report: Report) -> np.ndarray:
    """(turn, CTA, m_tile, n_tile, l) of every tile that a CTA takes, also past the edges of a cluster's."""
    pipeline = plan.pipeline
    assert pipeline is not None
    cm, cn = plan.cluster_mn
    grid = plan.grid(problem)
    grid_m, grid_n = -(-grid[0] // cm), -(-grid[1] // cn)
    count = grid_m * grid_n * grid[2]
    if count == 0:
        return np.zeros((0, 5), np.int64)
    clusters = count if pipeline.ctas is None else min(count, pipeline.ctas // (cm * cn))
    linear = np.arange(count, dtype=np.int64)
    m, n, batch = plan.raster.tile(linear, grid_m, grid_n, np.minimum, plan.operands.batched)
    out = []
    for rank in range(cm * cn):
        cta = linear % clusters * (cm * cn) + rank
        out.append(
            np.stack([linear // clusters, cta, m * cm + rank % cm, n * cn + rank // cm, batch], axis=1)
        )
    tiles = np.concatenate(out)
    _check_tiles(tiles, grid, product(plan.cluster_mn), report)
    return tiles


def _check_tiles(tiles: np.ndarray, grid: tuple[int, int, int], in_cluster: int, report: Report) -> None:
    """Each tile of D must be taken once; only a cluster's CTAs may be past the edges of D."""
    exists = ((tiles[:, 2:] >= 0) & (tiles[:, 2:] < grid)).all(axis=1)
    if in_cluster == 1:
        report.add_each(
            "raster",
            tiles[~exists],
            lambda t: f"CTA {t[1]} takes the tile ({t[2]}, {t[3]}, {t[4]}), outside of a grid of {grid}.",
        )
    number = np.ravel_multi_index(tuple(tiles[exists, 2:].T), grid)
    times = np.bincount(number, minlength=product(grid))

    def describe(tile: int) -> str:
        at = ", ".join(str(int(x)) for x in np.unravel_index(tile, grid))
        who = "no CTA takes" if times[tile] == 0 else f"{times[tile]} CTAs take"
        return f"{who} the tile ({at})."

    report.add_each("raster", np.flatnonzero(times != 1), describe)
