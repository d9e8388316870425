"""The picture of a plan: its CTA tile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cutegemm.draw.atoms import mma_table
from cutegemm.draw.grids import Grid, Picture, as_labels, compressed, levels_of, ticks_of
from cutegemm.draw.layouts import BANKS, banks, modes_of
from cutegemm.draw.owners import colour_by, owner_grid, owner_legends, repeats
from cutegemm.layout.inttuple import flatten
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


def plan_picture(plan: GemmPlan, problem: Problem | None = None, *, color: str = "auto", title: str = "") -> Picture:
    """Return the picture of a plan's CTA tile: D coloured by warps or lanes, A and B by shared-memory banks.

    A and B are left out if the plan does not keep them in shared memory. With cluster split-K, the picture shows the
    tile that each CTA multiplies, with its accumulators instead of D.

    problem   problem for the description in the text; None for a description of the plan alone
    color     meaning of the colours of D: "lane", "warp", "none" or "auto" (lanes if there is one warp, else warps)
    title     heading; the name of the plan if empty

    >>> from cutegemm.build import simt_plan
    >>> [grid.title for grid in plan_picture(simt_plan()).grids]
    ['A in shared memory', 'B in shared memory', 'D in registers']
    """
    bm, bn, bk = plan.cta_tile
    mma, ops, held_name, shared_by = plan.epilogue_mma, plan.operands, "D in registers", ""
    held_by = "D: by the warp that holds it."
    if plan.body.has_roles and plan.cluster_k > 1:
        shared_by = f"; {plan.cluster_k} CTAs share K, and each stores {bm} x {bn}"
        bm, bn, _ = plan.mma_tile
        mma, held_name = plan.tiled_mma, "accumulators in registers"
        held_by = "Accumulators: by the warp that holds them."
    color = colour_by(color, mma.threads)
    shared = []
    loaded_m, loaded_n, _ = plan.loaded_tile
    staged = (("A", plan.a.smem, loaded_m, ops.a.dtype.bits), ("B", plan.b.smem, loaded_n, ops.b.dtype.bits))
    for name, layout, extent, bits in staged if plan.stages else ():
        offsets = layout.offsets().reshape(extent, bk, -1, order="F")[:, :, 0]
        modes = (flatten(modes_of(layout)[0]), flatten(modes_of(layout)[1]))
        table, rows, cols, at = (offsets, *modes, "mk") if name == "A" else (offsets.T, modes[1], modes[0], "kn")
        shared.append(
            Grid(
                f"{name} in shared memory",
                as_labels(table),
                str(layout),
                colours=np.asarray(banks(table, bits)),
                row_levels=levels_of(rows),
                col_levels=levels_of(cols),
                row_ticks=ticks_of(table.shape[0]),
                col_ticks=ticks_of(table.shape[1]),
                row_name=at[0],
                col_name=at[1],
            )
        )
    held = owner_grid(
        mma_table(mma, "c", (bm, bn)),
        (bm, bn),
        held_name,
        str(mma.tv_layout_C_tiled),
        ("m", "n"),
        color,
    )
    return Picture(
        title or plan.name, (*shared, held), f"CTA tile {bm} x {bn} x {bk}, {plan.threads} threads{shared_by}",
        arrangement="gemm" if shared else "beside",
        legends=(*((BANKS,) if shared else ()), *owner_legends(color, mma.threads)),
        color_notes=(f"{'A and B: the first stage, by bank. ' if shared else ''}{held_by}",),
        text=plan.describe(problem),
        text_grids=_maps(held.owners[-1], mma),
    )  # fmt: skip


def _maps(thread: np.ndarray, mma: TiledMma) -> tuple[Grid, ...]:
    """Return two grids that show in text which threads hold D: the warp of each element, and the lanes of warp 0.

    They replace one grid with a thread per cell, which would be too wide for text. The grids show the tile that the
    threads of the MMA cover once; the rest of the CTA tile repeats it.

    thread   array (rows, cols): thread that holds each element of D
    mma      the tiled MMA
    """
    m, n, _ = mma.tile_mnk
    thread = thread[:m, :n]
    warp, out = thread // WARP_THREADS, []
    if mma.threads > WARP_THREADS:
        out.append(_map(f"warps of D, {m} x {n}", warp, np.arange(m), np.arange(n)))
    first = warp == 0
    rows, cols = np.nonzero(first.any(axis=1))[0], np.nonzero(first.any(axis=0))[0]
    part = np.where(first, thread, -1)[np.ix_(rows, cols)]
    out.append(_map("lanes of warp 0", part, rows, cols))
    return tuple(out)


def _map(title: str, table: np.ndarray, at_row: np.ndarray, at_col: np.ndarray) -> Grid:
    """Return the table of cells to draw that shows which warp, or which lane, holds each element of a tile.

    Neighbouring rows with equal cells are drawn as one row, with the index of the first, and so are columns. A cell
    that no thread holds shows ".".

    title            heading of the grid
    table            array (rows, cols) of warps or lanes; -1 for none
    at_row, at_col   row and column in the tile of each row and column of the table
    """
    small, rows, cols = compressed(table)
    row_levels, col_levels = repeats(small, small * 0), repeats(small.T, small.T * 0)
    return Grid(
        title, np.where(small < 0, ".", as_labels(small)), row_levels=row_levels, col_levels=col_levels,
        row_ticks=tuple(str(at_row[r]) for r in rows), col_ticks=tuple(str(at_col[c]) for c in cols),
        row_name="m", col_name="n",
    )  # fmt: skip
