"""How the k-tiles of a schedule plan are divided: the pieces of each CTA, and the slots of the workspace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.work.scheduler import WorkGrid
from cutegemm.simulator.report import Report


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
    return int(plan.scheduler.of(problem).slots)


def divided(
    plan: GemmPlan, problem: Problem, places: np.ndarray, together: int, report: Report
) -> Iterator[tuple[slice, list[Piece]]]:
    """Some of the tiles that are there, of one kind, and the pieces that K is cut into for them, in order.

    places     of the tiles in the raster's order
    together   tiles at a time
    """
    found = _pieces(plan.scheduler.of(problem), report)
    first = 0
    while first < len(places):
        own = [found.get(int(place), []) for place in places[first : first + together]]
        alike = 1
        while alike < len(own) and _k_ranges(own[alike]) == _k_ranges(own[0]):
            alike += 1
        yield slice(first, first + alike), [_joined(pieces) for pieces in zip(*own[:alike], strict=True)]
        first += alike


def _pieces(work: WorkGrid, report: Report) -> dict[int, list[Piece]]:
    """The parts of each tile, in their order; faults of them are reported."""
    found: dict[int, list[Piece]] = {}
    work_tile = work.assignment().work_tile
    order = np.lexsort((work_tile.k_split, work_tile.tile))
    slots, several = work.slot_of(work_tile, work_tile.k_split), work_tile.splits > 1
    for i in order.tolist():
        own = slots[i : i + 1] if several[i] else None
        piece = Piece(int(work_tile.k_first[i]), int(work_tile.k_count[i]), own)
        found.setdefault(int(work_tile.tile[i]), []).append(piece)
    known: dict[tuple[tuple[int, int, bool], ...], bool] = {}
    for tile, pieces in found.items():
        told, kind = work.peers(tile).splits if tile < work.shared else 1, _k_ranges(pieces)
        if kind not in known:
            k_step = work.scheduler.split.k_step
            taken = sorted(k for first, count, _ in kind for k in range(first, first + count * k_step, k_step))
            known[kind] = taken == list(range(work.k_tiles))
        if not known[kind] or told != len(pieces):
            text = ", ".join(f"{piece.k_first} to {piece.k_first + piece.k_count}" for piece in pieces)
            report.add("product", f"tile {tile} of {work.k_tiles} k-tiles is taken as {told} parts by {text}.")
    return found


def _k_ranges(pieces: list[Piece]) -> tuple[tuple[int, int, bool], ...]:
    return tuple([(piece.k_first, piece.k_count, piece.slots is None) for piece in pieces])


def _joined(pieces: tuple[Piece, ...]) -> Piece:
    """The same k-tiles of several tiles."""
    slots = [piece.slots for piece in pieces if piece.slots is not None]
    return Piece(pieces[0].k_first, pieces[0].k_count, np.concatenate(slots) if slots else None)
