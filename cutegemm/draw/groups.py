"""Pictures of grouped GEMMs: tiles of groups of rows, boxes that TMA clips at their ends, and the schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutegemm.analysis.groups import group_schedule
from cutegemm.draw.grids import HEAVY, MOST, NO_LINE, Grid, Legend, Picture, as_labels, ticks_of
from cutegemm.draw.palette import HUES, SHADES
from cutegemm.errors import UnsupportedError
from cutegemm.plan.memory.groups import ENDS, ROWS, ragged_origin
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.work.cluster import ClusterTile
from cutegemm.plan.work.grouped import GroupTile, scheduler_of_groups
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.plan.work.work import Work
from cutegemm.tile.raster import Raster

_ROUNDS = 16  # rounds of a schedule that are drawn


def groups_picture(
    ends: Sequence[int],
    extent: int | None = None,
    *,
    rows: int = 4,
    n_tiles: int = 3,
    raster: str = "along_m",
    title: str = "",
) -> Picture:
    """Return the picture of groups that divide the rows of D: the work tile of each row, and the boxes of the tiles.

    The right grid has a row for each box that TMA stores. Its numbers are coordinates in the tensor map, minus its
    extent 2^30: they are negative inside of the group, and TMA stores nothing for the others.

    ends      end of each group
    extent    rows of D; None: the last end
    rows      rows of a tile
    n_tiles   number of tiles along N
    raster    order of the tiles of a group
    title     heading; "groups along M" if empty
    raises    UnsupportedError for more than 256 rows or tiles along N

    >>> groups_picture([3, 9]).grids[1].labels.tolist()
    [['-3', '-2', '-1', '0'], ['-6', '-5', '-4', '-3'], ['-2', '-1', '0', '1']]
    """
    whole = extent if extent is not None else max([0, *ends])
    if max(whole, n_tiles) > MOST:
        raise UnsupportedError(
            f"groups_picture: {whole} rows in {n_tiles} tiles along N; up to {MOST} of each can be drawn."
        )
    cluster = ClusterTile((rows, 1, 1))
    scheduler = scheduler_of_groups("m", ENDS, TileScheduler(Raster.parse(raster)))
    tensor = np.array(ends, np.int64).reshape(-1, 1, 1)
    work = scheduler.tiles(cluster, whole, n_tiles, len(ends)).along(1, {ENDS: tensor})
    tiles = _tiles(work)
    groups = sorted({group for _, _, group in tiles})
    return Picture(
        title or "groups along M",
        (_rows_grid(tiles, (whole, n_tiles), rows), _boxes_grid(tiles, rows)),
        f"{whole} rows, {len(ends)} groups, tiles of {rows} rows",
        legends=(Legend("group", tuple([(int(_colour(group)), str(group)) for group in groups])),),
        color_notes=("Cells without colour are not stored.",),
        mark_notes=("x: stored, .: clipped.",),
    )


def schedule_picture(
    plan: GemmPlan, problem: Problem, ends: Sequence[int] | None = None, *, per_wave: int = 132
) -> Picture:
    """Return the picture of the schedule of a grouped GEMM: whose work tile each cluster computes in each round.

    A cell is a cluster's work tile, with the number and the colour of its group. The last 16 rounds are drawn.

    ends       end of each group; None for groups of equal size
    per_wave   CTAs that run at once, if the plan does not state their number

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> plan = sm90_plan(Operands.of("bf16", batched=True, groups="m"), tile=(64, 64, 64), ctas=3)
    >>> picture = schedule_picture(plan, Problem(200, 64, 128, 3, plan.operands), [100, 100, 200])
    >>> picture.grids[0].labels.tolist()
    [['0', '0', '2'], ['2', '', '']]
    """
    schedule = group_schedule(plan, problem, ends, per_wave)
    tiles, rounds, clusters = len(schedule.groups), schedule.rounds, min(schedule.clusters, MOST)
    begin = max(0, rounds - _ROUNDS)
    number = np.arange(begin, rounds).reshape(-1, 1) * schedule.clusters + np.arange(clusters)
    is_tile = number < tiles
    group = np.where(is_tile, schedule.groups[np.minimum(number, max(0, tiles - 1))] if tiles else 0, -1)
    number = np.where(is_tile, number, -1)
    names = sorted({*group[is_tile].tolist()})
    left_out = ("rounds" if begin else "", "clusters" if clusters < schedule.clusters else "")
    return Picture(
        "schedule of the groups",
        (
            Grid(
                "group of the work tile, by round and cluster",
                np.where(is_tile, as_labels(group), ""),
                colours=np.where(is_tile, _colour(group), -1),
                row_levels=(NO_LINE,) * len(number),
                col_levels=(NO_LINE,) * clusters,
                row_ticks=tuple([str(one) for one in range(begin, rounds)]),
                col_ticks=ticks_of(clusters),
                row_name="round",
                col_name="cluster",
                owners=(group, number),
                owner_names=("group ", "tile "),
            ),
        ),
        f"{tiles} work tiles of {len(schedule.sizes)} groups, {schedule.clusters} clusters of {schedule.ctas} "
        f"CTA{'s' * (schedule.ctas != 1)}",
        legends=(Legend("group", tuple([(int(_colour(each)), str(each)) for each in names[:HUES]])),),
        notes=tuple([f"Other {each} are left out." for each in left_out if each]),
    )


def _tiles(work: Work) -> dict[tuple[int, int, int], GroupTile]:
    """Return the work tiles of all clusters by (m tile, n tile, group)."""
    out = {}
    for place in range(work.clusters):
        for tile in work.of_cluster(place):
            assert isinstance(tile, GroupTile)
            out[work.tile_mnl(tile)] = tile
    return out


def _rows_grid(tiles: dict[tuple[int, int, int], GroupTile], extents: tuple[int, int], rows: int) -> Grid:
    """Return the grid of the rows of D, labelled with the number of their work tile and coloured by group.

    tiles     the work tiles
    extents   number of rows of D, and of tiles along N
    rows      rows of a tile
    """
    number, group = np.full(extents, -1), np.full(extents, -1)
    for (m, n, _), tile in tiles.items():
        own = slice(tile.begin + m * rows, tile.begin + min((m + 1) * rows, tile.size))
        number[own, n], group[own, n] = tile.tile, tile.group
    return Grid(
        "D, by work tile",
        np.where(number < 0, "", as_labels(number)),
        colours=np.where(group < 0, -1, _colour(group)),
        row_levels=_lines(group[:, 0]),
        col_levels=(NO_LINE,) * extents[1],
        row_ticks=ticks_of(extents[0]),
        col_ticks=ticks_of(extents[1]),
        row_name="m",
        col_name="n tile",
        owners=(group, number),
        owner_names=("group ", ""),
    )


def _boxes_grid(tiles: dict[tuple[int, int, int], GroupTile], rows: int) -> Grid:
    """Return the grid of boxes, labelled with the coordinate of each row minus 2^30; clipped rows have no colour.

    tiles   the work tiles
    rows    rows of a tile
    """
    boxes = sorted([(group, m, tile.begin, tile.size) for (m, n, group), tile in tiles.items() if n == 0])
    first = [ragged_origin(begin, size, 0)[0] - ROWS + m * rows for _, m, begin, size in boxes]
    coordinates = np.array(first, np.int64).reshape(-1, 1) + np.arange(rows)
    group = np.array([box[0] for box in boxes], np.int64).reshape(-1, 1) + 0 * coordinates
    inside = coordinates < 0
    return Grid(
        "boxes, by coordinate - 2^30",
        as_labels(coordinates),
        colours=np.where(inside, _colour(group), -1),
        row_levels=_lines(group[:, 0]),
        col_levels=(NO_LINE,) * rows,
        row_ticks=tuple([f"{own},{m}" for own, m, _, _ in boxes]),
        col_ticks=ticks_of(rows),
        row_name="group, m tile",
        col_name="row",
        owners=(np.where(inside, group, -1),),
        owner_names=("group ",),
        marks=np.where(inside, "x", "."),
    )


def _colour(group: np.ndarray | int) -> np.ndarray:
    """Return the palette index of a group, or of an array of groups."""
    return np.asarray(group) % HUES * SHADES


def _lines(group: np.ndarray) -> tuple[int, ...]:
    """Return the line before each row of a grid: a heavy one before the first row of a group.

    group   group of each row
    """
    begins = np.diff(group, prepend=group[:1]) != 0
    return tuple(np.where(begins, HEAVY, NO_LINE).tolist())
