"""Division of K for plans with one schedule: ranges of k-tiles, and the workspace slots of their accumulators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.work.work import Work
from cutegemm.simulator.report import Report


@dataclass(frozen=True)
class Piece:
    """A range of k-tiles of a tile of D, for several tiles that are simulated together and have the same range.

    k_first   first k-tile
    k_count   number of k-tiles
    slots     for each of the tiles, the index of its workspace slot (memory for the accumulators of one K split); None
              if the range is all of K, which needs no workspace
    """

    k_first: int
    k_count: int
    slots: np.ndarray | None = None


def workspace_slots(plan: GemmPlan, problem: Problem) -> int:
    """Return the number of workspace slots that a plan needs: one for each K split of each tile of D.

    A slot holds the accumulators of one K split of a tile.

    >>> from cutegemm.build import simt_plan
    >>> workspace_slots(simt_plan(split_k=4), Problem(256, 256, 4096))  # 4 tiles of 4 K splits
    16
    """
    return int(plan.work(problem).slots)


def divided(
    plan: GemmPlan, problem: Problem, places: np.ndarray, together: int, report: Report
) -> Iterator[tuple[slice, list[Piece]]]:
    """Yield groups of tiles of D whose K is divided in the same way, each with the ranges of k-tiles of its K splits.

    An item is (slice of `places`, list of ranges in order).

    places     positions of the tiles in the order of the raster
    together   largest number of tiles of a group
    report     collects tiles whose ranges do not cover K
    """
    pieces_of_tile = _pieces(plan.work(problem), report)
    first = 0
    while first < len(places):
        own = [pieces_of_tile.get(int(place), []) for place in places[first : first + together]]
        alike = 1
        while alike < len(own) and _k_ranges(own[alike]) == _k_ranges(own[0]):
            alike += 1
        yield slice(first, first + alike), [_joined(pieces) for pieces in zip(*own[:alike], strict=True)]
        first += alike


def _pieces(work: Work, report: Report) -> dict[int, list[Piece]]:
    """Return the ranges of k-tiles of the K splits of each tile of D, in order: index of the tile -> list of ranges.

    Tiles whose ranges do not cover all k-tiles once are reported.

    work   all work tiles (a tile of D with all or some of its k-tiles) that the clusters take
    """
    pieces_of_tile: dict[int, list[Piece]] = {}
    work_tile = work.assignment().work_tile
    order = np.lexsort((work_tile.k_split, work_tile.tile))
    slots, several = work.slot_of(work_tile, work_tile.k_split), work_tile.splits > 1
    for i in order.tolist():
        own = slots[i : i + 1] if several[i] else None
        piece = Piece(int(work_tile.k_first[i]), int(work_tile.k_count[i]), own)
        pieces_of_tile.setdefault(int(work_tile.tile[i]), []).append(piece)
    known: dict[tuple[tuple[int, int, bool], ...], bool] = {}
    for tile, pieces in pieces_of_tile.items():
        splits, kind = work.peers(tile).splits if tile < work.shared else 1, _k_ranges(pieces)
        if kind not in known:
            k_step = work.scheduler.split.k_step
            k_tiles = sorted(k for first, count, _ in kind for k in range(first, first + count * k_step, k_step))
            known[kind] = k_tiles == list(range(work.k_tiles))
        if not known[kind] or splits != len(pieces):
            text = ", ".join(f"{piece.k_first} to {piece.k_first + piece.k_count}" for piece in pieces)
            report.add("product", f"tile {tile} of {work.k_tiles} k-tiles has {splits} K splits with k-tiles {text}.")
    return pieces_of_tile


def _k_ranges(pieces: list[Piece]) -> tuple[tuple[int, int, bool], ...]:
    """Return a hashable form of ranges of k-tiles: (first k-tile, number, whether it is all of K) for each.

    pieces   the ranges
    """
    return tuple([(piece.k_first, piece.k_count, piece.slots is None) for piece in pieces])


def _joined(pieces: tuple[Piece, ...]) -> Piece:
    """Merge K splits of several tiles of D, which have the same range of k-tiles, to one that can be simulated at once.

    The result has this range, and a list of the workspace slots of all these K splits.

    pieces   the K splits: a range of k-tiles and a workspace slot each
    """
    slots = [piece.slots for piece in pieces if piece.slots is not None]
    return Piece(pieces[0].k_first, pieces[0].k_count, np.concatenate(slots) if slots else None)
