"""Pictures of MMA atoms, copy atoms, tiled MMAs and tiled copies.

An MMA is drawn with B above C and A to the left of C. A copy is drawn with the source next to the destination.
"""

from __future__ import annotations

import numpy as np

from cutegemm.draw.grids import NO_LINE, Grid, Picture, ticks_of
from cutegemm.draw.owners import colour_by, owner_grid, owner_legends, shared_note, tv_table
from cutegemm.layout import Layout, product
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma


def atom_picture(atom: MmaAtom, *, color: str = "auto", title: str = "") -> Picture:
    """Return the picture of an MMA atom: A, B and C, each element with the thread and value that hold it.

    color   meaning of the colours: "lane", "warp", "none" or "auto" (lanes if there is one warp, else warps)
    title   heading; the name of the atom if empty

    >>> from cutegemm.dtypes import f16
    >>> from cutegemm.tile.mma_atoms import mma_sync
    >>> [(grid.title, grid.rows, grid.cols) for grid in atom_picture(mma_sync(f16, 16)).grids]
    [('A', 16, 16), ('B', 16, 8), ('C, D', 16, 8)]
    """
    m, n, k = atom.shape_mnk
    color = colour_by(color, atom.threads)
    grids = []
    for operand, tile, names in (("a", (m, k), "mk"), ("b", (n, k), "nk"), ("c", (m, n), "mn")):
        source = {"a": atom.a_source, "b": atom.b_source}.get(operand, "register")
        layout = atom.layout_tv(operand)
        grids.append(_operand_grid(operand, tv_table(layout), tile, names, str(layout), source, color, atom.threads))
    return Picture(
        title or atom.name, tuple(grids),
        f"{m} x {n} x {k} by {_threads(atom.threads)}, from {atom.min_arch} on",
        arrangement="gemm", legends=owner_legends(color, atom.threads),
        notes=(*shared_note(grids), f"Source: {atom.source}."),
    )  # fmt: skip


def _threads(count: int) -> str:
    """Return a number of threads as text: "1 thread" or "32 threads"."""
    return "1 thread" if count == 1 else f"{count} threads"


def _operand_grid(
    operand: str,
    table: np.ndarray,
    tile: tuple[int, int],
    names: str,
    subtitle: str,
    source: str,
    color: str,
    threads: int,
) -> Grid:
    """Return the table of cells to draw for one operand of an MMA: a cell "T4 V1" is value 1 of thread 4.

    A value is a register of a thread that holds an element of the operand. The cells are empty if the instruction reads
    the operand from shared memory.

    operand    "a", "b" or "c"
    table      array with a row for each thread and a column for each value of a thread: index of the element in the
               tile
    tile       extents of the operand's two modes, such as (M, K)
    names      names of these modes, one letter each, such as "mk"
    subtitle   second line of the heading, such as the layout
    source     "register" or "shared": where the instruction reads the operand
    color      what the colour of a cell shows: "lane" or "warp" of the thread, or "none"
    threads    number of threads of the MMA
    """
    title = "C, D" if operand == "c" else operand.upper()
    turned = operand == "b"
    if source == "register":
        return owner_grid(table, tile, title, subtitle, (names[0], names[1]), color, turned=turned)
    rows, cols = tile[::-1] if turned else tile
    return Grid(
        title, np.full((rows, cols), "", dtype=object), f"in shared memory, read by all {threads} threads",
        row_levels=(NO_LINE,) * rows, col_levels=(NO_LINE,) * cols,
        row_ticks=ticks_of(rows), col_ticks=ticks_of(cols),
        row_name=names[1] if turned else names[0], col_name=names[0] if turned else names[1],
    )  # fmt: skip


def tiled_mma_picture(
    mma: TiledMma, *, tile: tuple[int, int, int] | None = None, color: str = "auto", title: str = ""
) -> Picture:
    """Return the picture of a tiled MMA: A, B and C, each element with the thread and value that hold it.

    tile    extents (M, N, K) of the tile that is partitioned; None for the tile that the threads cover once
    color   meaning of the colours: "lane", "warp", "none" or "auto" (lanes if there is one warp, else warps)
    title   heading; "tiled MMA of" and the name of the atom if empty

    >>> from cutegemm.build import simt_plan
    >>> [(grid.title, grid.rows, grid.cols) for grid in tiled_mma_picture(simt_plan().tiled_mma).grids]
    [('A', 128, 1), ('B', 1, 128), ('C, D', 128, 128)]
    """
    m, n, k = tile or mma.tile_mnk
    color = colour_by(color, mma.threads)
    grids = []
    for operand, extents, names in (("a", (m, k), "mk"), ("b", (n, k), "nk"), ("c", (m, n), "mn")):
        source = {"a": mma.atom.a_source, "b": mma.atom.b_source}.get(operand, "register")
        table = mma_table(mma, operand, extents)
        layout = getattr(mma, f"tv_layout_{operand.upper()}_tiled")
        grids.append(_operand_grid(operand, table, extents, names, str(layout), source, color, mma.threads))
    return Picture(
        title or f"tiled MMA of {mma.atom.name}", tuple(grids),
        f"{m} x {n} x {k} by {mma.threads} threads: {mma.atom_layout_mnk}", arrangement="gemm",
        legends=owner_legends(color, mma.threads), notes=shared_note(grids),
    )  # fmt: skip


def mma_table(mma: TiledMma, operand: str, extents: tuple[int, int]) -> np.ndarray:
    """Return which elements of an operand's tile each thread of a tiled MMA holds, as an array of indices.

    mma       the tiled MMA
    operand   "a", "b" or "c"
    extents   extents of the tile's two modes; an element's index is column-major in the tile
    returns   integer array with a row for each thread and a column for each value of a thread. The values of
              one MMA come first, then those of its repetitions along the first mode, then along the second mode
    """
    split = getattr(mma, f"offsets_{operand}")(Layout(extents))
    return np.asarray(split.reshape(split.shape[0], -1, order="F"))


def copy_picture(copy: TiledCopy | CopyAtom, *, color: str = "auto", title: str = "") -> Picture:
    """Return the picture of a copy: the threads that read each source element and write each destination element.

    One grid of cells shows both, source and destination, if each thread writes the elements that it reads.

    copy    TiledCopy or CopyAtom to draw
    color   meaning of the colours: "lane", "warp", "none" or "auto" (lanes if there is one warp, else warps)
    title   heading; the name of the atom, or "tiled copy of" and that name, if empty

    >>> from cutegemm.dtypes import f16
    >>> from cutegemm.tile.copy_atoms import ldmatrix
    >>> [grid.title for grid in copy_picture(ldmatrix(f16, 4)).grids]
    ['source', 'destination']
    """
    if isinstance(copy, CopyAtom):
        sides = [copy.layout_src_tv, copy.layout_dst_tv]
        count = max(side.cosize() for side in sides)
        across = min(count, max(1, 128 // copy.dtype.bits))
        tile, names, turned = (across, -(-count // across)), ("element", "vector"), True
        subtitle = f"{copy.bits} bits a thread, from {copy.min_arch} on"
        notes: tuple[str, ...] = (f"Source: {copy.source}.",)
        head = copy.name
    else:
        sides = [copy.layout_src_tv_tiled, copy.layout_dst_tv_tiled]
        extents = [t.size() if isinstance(t, Layout) else product(t) for t in copy.tiler_mn]
        tile = (extents[0], product(tuple(extents[1:]))) if len(extents) > 1 else (1, extents[0])
        names, turned, notes = ("0", "1"), False, ()
        subtitle, head = str(copy.layout_tv), f"tiled copy of {copy.atom.name}"
    color = colour_by(color, sides[0][0].size())
    if np.array_equal(sides[0].offsets(), sides[1].offsets()):
        sides = sides[:1]
    grids = [
        owner_grid(tv_table(side), tile, name, str(side), names, color, turned=turned)
        for side, name in zip(
            sides, ("source", "destination") if len(sides) > 1 else ("source, destination",), strict=False
        )
    ]
    return Picture(
        title or head, tuple(grids), subtitle, joints=("→",) if len(grids) > 1 else (),
        legends=owner_legends(color, sides[0][0].size()), notes=(*shared_note(grids), *notes),
    )  # fmt: skip
