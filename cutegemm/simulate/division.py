"""Who takes which k-tiles: each tile of D whole, by parts of a split K, or by the units of a persistent grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.work.shares import cluster_shares
from cutegemm.simulate.report import Report


@dataclass(frozen=True)
class Piece:
    """K-tiles of some tiles of D, the same of each.

    k_first, k_count   in the order of the CTA that takes them
    slots              where in the workspace their sums go, one for each tile; None where they are all of K
    """

    k_first: int
    k_count: int
    slots: np.ndarray | None = None


def workspace_slots(plan: GemmPlan, problem: Problem) -> int:
    """Sums of tiles that the workspace holds."""
    m, n, batch = plan.grid(problem)
    tiles = m * n * batch
    if plan.split.waves:
        return int(cluster_shares(plan, tiles, plan.k_tiles(problem)).slots)
    return tiles * plan.split_k if plan.split_k > 1 else 0


def divided(
    plan: GemmPlan, problem: Problem, places: np.ndarray, together: int, report: Report
) -> Iterator[tuple[slice, list[Piece]]]:
    """Some of the tiles that are there, of one kind, and the pieces that K is cut into for them, in order.

    places     of the tiles in the raster's order
    together   tiles at a time
    """
    m, n, batch = plan.grid(problem)
    tiles, k_tiles = m * n * batch, plan.k_tiles(problem)
    if plan.split.waves:
        yield from _units(plan, places, tiles, k_tiles, together, report)
        return
    for first in range(0, len(places), together):
        own = slice(first, first + together)
        if plan.split_k == 1:
            yield own, [Piece(0, k_tiles)]
        else:
            yield (
                own,
                [
                    Piece(*plan.split.k_range(part, k_tiles), places[own] + part * tiles)
                    for part in range(plan.split_k)
                ],
            )


def _units(
    plan: GemmPlan, places: np.ndarray, tiles: int, k_tiles: int, together: int, report: Report
) -> Iterator[tuple[slice, list[Piece]]]:
    shares = cluster_shares(plan, tiles, k_tiles)
    found: dict[int, list[Piece]] = {}
    for unit in (shares.unit(number) for number in range(shares.units)):
        if unit.parts > 0:
            slots = None if unit.parts == 1 else np.array([unit.slot + unit.part])
            found.setdefault(unit.tile, []).append(Piece(unit.k_first, unit.k_count, slots))
    whole = [Piece(0, k_tiles)]
    for place, pieces in found.items():
        pieces.sort(key=lambda piece: piece.k_first)
        ends = [0, *(piece.k_first + piece.k_count for piece in pieces)]
        told = shares.sums_of(place)[0] if place < shares.shared else 1
        if [piece.k_first for piece in pieces] != ends[:-1] or ends[-1] != k_tiles or told != len(pieces):
            text = ", ".join(f"{piece.k_first} to {piece.k_first + piece.k_count}" for piece in pieces)
            report.add("product", f"tile {place} of {k_tiles} k-tiles is taken as {told} parts by {text}.")
    first = 0
    while first < len(places):
        mine = found.get(int(places[first]), [])
        last = first + 1
        while (
            mine == whole
            and last < min(len(places), first + together)
            and found.get(int(places[last])) == whole
        ):
            last += 1
        yield slice(first, last), mine
        first = last
