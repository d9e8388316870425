"""Pictures of rasters: the order of the tiles of D."""

from __future__ import annotations

import numpy as np

from cutegemm.draw.grids import MOST, NO_LINE, SLICES, Grid, Legend, Picture, as_labels, ticks_of
from cutegemm.draw.palette import HUES, SHADES
from cutegemm.errors import LayoutError, UnsupportedError
from cutegemm.plan.work.cluster import ClusterTile
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.tile.raster import Raster

_SIDE = 12  # rows and columns of tiles if no grid is given
_LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


def raster_picture(
    raster: Raster | str,
    grid: tuple[int, int] | None = None,
    *,
    batch: int = 1,
    cluster: tuple[int, int] = (1, 1),
    ctas_per_wave: int | None = None,
    title: str = "",
) -> Picture:
    """Return the picture of a raster, the order of the tiles of D: each tile with its position.

    raster          a Raster, or its text such as "grouped_m:4"
    grid            number of tiles along M and N. None: 12 x 12, or two bands each way if bands are wider than 6
    batch           number of batches; one grid each
    cluster         CTAs of a cluster along M and N; the raster is the order of clusters
    ctas_per_wave   number of CTAs that run at a time: SMs times CTAs per SM; the colours show the wave. None: one wave,
                    without a legend
    title           heading; "raster" and its text if empty
    raises          UnsupportedError if the grid has more than 256 x 256 tiles;
                    LayoutError if `cluster` or `ctas_per_wave` is less than 1

    >>> raster_picture("grouped_m:2", (4, 3)).grids[0].labels.tolist()
    [['0', '2', '4'], ['1', '3', '5'], ['6', '8', '10'], ['7', '9', '11']]
    """
    order = Raster.parse(raster) if isinstance(raster, str) else raster
    grid_m, grid_n = grid or (max(_SIDE, 2 * (order.across(_SIDE, _SIDE) or 1)),) * 2
    total = grid_m * grid_n * batch
    head, notes = title or f"raster {order}", []
    if total == 0:
        return Picture(head, (), f"{grid_m} x {grid_n} x {batch} tiles", notes=("There are no tiles.",))
    if max(grid_m, grid_n) > MOST:
        raise UnsupportedError(f"raster_picture: {grid_m} x {grid_n} tiles; up to {MOST} x {MOST} can be drawn.")
    wave_size = ctas_per_wave or total
    if min(cluster) < 1:
        raise LayoutError(f"raster_picture: cluster = {cluster}. Use 1 or more CTAs along M and N.")
    if wave_size < 1:
        raise LayoutError(f"raster_picture: ctas_per_wave = {ctas_per_wave}. Use 1 or more.")
    cluster_tile = ClusterTile((1, 1, 1), cluster)
    tiles = TileScheduler(order).tiles(cluster_tile, grid_m, grid_n, batch).order().reshape(-1, 3)
    tiles = tiles[(tiles < (grid_m, grid_n, batch)).all(axis=1)]  # CTAs of an edge cluster may be outside the grid
    position = np.empty((batch, grid_m, grid_n), np.int64)
    position[tiles[:, 2], tiles[:, 0], tiles[:, 1]] = np.arange(total)
    wave = position // wave_size
    colours = wave % HUES * SHADES + (position % wave_size) * SHADES // min(wave_size, total)
    grids = []
    for l in range(min(batch, SLICES)):  # noqa: E741 - the batch, as in CuTe
        trail = tiles[tiles[:, 2] == l][:, :2] if grid_m * grid_n <= 1024 else None
        grids.append(
            Grid(
                f"l = {l}" if batch > 1 else "",
                as_labels(position[l]),
                colours=colours[l],
                row_levels=(NO_LINE,) * grid_m,
                col_levels=(NO_LINE,) * grid_n,
                row_ticks=ticks_of(grid_m),
                col_ticks=ticks_of(grid_n),
                row_name="m",
                col_name="n",
                owners=(wave[l],),
                owner_names=("wave ",),
                trail=trail,
                marks=_LETTERS[wave[l] % len(_LETTERS)] if ctas_per_wave is not None else None,
            )
        )
    if batch > SLICES:
        notes.append(f"{batch - SLICES} of {batch} batches are left out.")
    waves = -(-total // wave_size)
    legends: tuple[Legend, ...] = ()
    if ctas_per_wave is not None:
        last = total - (waves - 1) * wave_size
        legends = (Legend("wave", tuple((w % HUES * SHADES + 1, str(w)) for w in range(min(waves, 2 * HUES)))),)
        notes.append(f"{waves} {'wave' if waves == 1 else 'waves'} of {wave_size} CTAs, {last} in the last.")
    return Picture(
        head, tuple(grids), f"{grid_m} x {grid_n}{f' x {batch}' if batch > 1 else ''} tiles of D",
        legends=legends, notes=tuple(notes),
        color_notes=("The darker shade of a colour runs first.",),
        mark_notes=("The letter is the wave.",) if ctas_per_wave is not None else (),
    )  # fmt: skip
