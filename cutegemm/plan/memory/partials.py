"""Partial results of reductions over rows, columns or all of D: how warps compute them, and their workspace layout.

A reduction over rows has four steps. Reductions over columns or over all of D have the same.

| step                                          | executed by                                                          |
|-----------------------------------------------|----------------------------------------------------------------------|
| reduce the values of a row in registers       | each thread, in the order of its registers                           |
| reduce across the lanes with the same row     | each warp, by shuffles at distances 1, 2, 4, 8, 16                   |
| write a partial result per row                | one of these lanes, to a fixed position in the workspace             |
| reduce the partial results of a row           | a second kernel, in the order of the positions                       |

Each position of the workspace has one writer, whichever CTA runs first. Kernels do not use atomic additions. So a
result has the same bits in each launch.

The plan's thread-value layout of D determines which registers and lanes have values of the same row.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.errors import LayoutError, PlanError
from cutegemm.layout import ComposedLayout, Layout
from cutegemm.layout.synthesis import synthesize
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.work.arithmetic import ceil_div

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

REDUCER_THREADS = 256  # threads of a CTA of the second kernel
_ROWS_AT_ONCE = 32  # adjacent results that such a CTA computes; a warp reads their partial results coalesced


@dataclass(frozen=True)
class Folding:
    """How a reduction (e.g. row sums) of a tile of D is computed: from a thread's registers to one result of each warp.

    For row sums, each thread adds its registers of a row, lanes with the same row add by shuffles, and each warp writes
    one partial result per row. A second kernel adds the partial results. A unit is the set of registers that a thread
    reduces at a time: all registers of its tile. If a second kernel adds K splits and reduces, a unit is one vector.

    along      modes of D that are reduced: ("n",), ("m",) or ("m", "n")
    groups     for each register of a unit, the index of the thread's result that it contributes to
    lanes      distances of lanes with values of the same result, e.g. (1, 2) for 4 neighbours
    pieces     number of partial results that a tile contributes to each of its results
    piece_of   layout from (unit, warp) to the index of the partial result, in [0, pieces)
    """

    along: tuple[str, ...]
    groups: tuple[int, ...]
    lanes: tuple[int, ...]
    pieces: int
    piece_of: Layout

    @property
    def units(self) -> int:
        """Return the number of units of a thread, i.e. of register sets that it reduces one after the other."""
        return self.piece_of[0].size()

    @property
    def ends(self) -> tuple[int, ...]:
        """Return, for each result of a thread, the index of the last register that contributes to it.

        After that register the thread's result is complete.
        """
        last = {group: register for register, group in enumerate(self.groups)}
        return tuple([last[group] for group in range(len(last))])

    def place(self, m_tile: Any, n_tile: Any, m_tiles: Any, piece: Any) -> Any:
        """Return the position of a partial result in the list of all that the second kernel combines to one result.

        The arguments are integers, or traced values in a kernel.

        m_tile, n_tile   coordinates of the tile of D
        m_tiles          number of tiles of D along M
        piece            index of the partial result among those that the tile contributes to the result
        """
        tile = n_tile if self.along == ("n",) else m_tile
        if len(self.along) == 2:
            tile = n_tile * m_tiles + m_tile
        return tile * self.pieces + piece


def partials_shape(plan: GemmPlan, along: tuple[str, ...], m: Any, n: Any, l: Any) -> tuple[Any, Any, Any]:  # noqa: E741
    """Return the shape of a reduction's partial results in the workspace: (results, partial results of each, L).

    For row sums, a result is a row, and each warp that has some of its columns writes one partial result.

    along     modes of D that are reduced: ("n",), ("m",) or ("m", "n")
    m, n, l   extents of D; n is half of the columns of A @ B if the plan is gated

    >>> from cutegemm.build import sm90_plan
    >>> [partials_shape(sm90_plan(), along, 300, 500, 1) for along in (("n",), ("m",), ("m", "n"))]
    [(300, 4, 1), (500, 12, 1), (1, 48, 1)]
    """
    bm, bn = plan.d_tile
    m_tiles, n_tiles = ceil_div(m, bm), ceil_div(n, bn)
    pieces = folding(plan, along).pieces
    if along == ("n",):
        return m, n_tiles * pieces, l
    if along == ("m",):
        return n, m_tiles * pieces, l
    return 1, m_tiles * n_tiles * pieces, l


def reducer_shape(along: tuple[str, ...]) -> tuple[int, int]:
    """Return (results of a CTA, threads that share a result) of the kernel that adds a reduction's partial results.

    If n threads share a result, each of them adds every n-th of its partial results.

    along   modes of D that are reduced: ("m",), ("n",) or both
    """
    results = 1 if len(along) == 2 else _ROWS_AT_ONCE
    return results, REDUCER_THREADS // results


def kept(along: tuple[str, ...], m: Any, n: Any) -> Any:
    """Return which result of a reduction over D the element (m, n) contributes to, as an index.

    It is m if rows are reduced (along N), n if columns are (along M), and 0 if all of D is.

    along   modes of D that are reduced: ("n",), ("m",) or both
    m, n    coordinates of the element: integers, arrays or traced values
    """
    return m * 0 if len(along) == 2 else m if along == ("n",) else n


def in_units(plan: GemmPlan, table: np.ndarray) -> np.ndarray:
    """Regroup an array over a tile's accumulators by units: the sets of registers that a thread reduces at a time.

    A unit is all registers of the thread. If a second kernel adds K splits, a unit is one stored vector.

    table     array with these axes: threads, registers of an MMA atom, MMA atoms of a thread along M, the same along N,
              and perhaps more
    returns   array with these axes: threads, units, registers of a unit, and the further axes
    """
    threads, (values, rest_m, rest_n), more = table.shape[0], table.shape[1:4], table.shape[4:]
    if plan.body.has_roles:
        out = np.empty((threads, values * rest_m * rest_n, *more), table.dtype)
        out[:, plan.accumulator_order((values, rest_m, rest_n)).offsets()] = _flat(table)
        return out[:, None]
    vector = plan.store.atom.values
    if values % vector and plan.operands.d.major == "n":
        table = table.reshape(threads, values, rest_m, rest_n // vector, vector, *more)
        table = np.moveaxis(table, 4, 2).reshape(threads, values * vector, rest_m, rest_n // vector, *more)
    elif values % vector:
        table = table.reshape(threads, values, rest_m // vector, vector, rest_n, *more)
        table = np.moveaxis(table, 3, 2).reshape(threads, values * vector, rest_m // vector, rest_n, *more)
    flat = _flat(table)
    by_vectors = plan.scheduler.split.is_split and plan.scheduler.split.reduction == "kernel"
    return flat.reshape(threads, -1, vector, *more) if by_vectors else flat[:, None]


def held_in_units(plan: GemmPlan) -> np.ndarray:
    """Return which element of D's tile each register of a thread holds: an array (threads, units, registers).

    An entry is the index m + bM * n. A unit is the set of registers that is reduced at a time: one vector if a second
    kernel adds K splits, else all registers. For a gated plan only the registers of the gates are listed: the matching
    up projection belongs to the same element of D.
    """
    held, (bm, _) = in_units(plan, plan.epilogue_mma.offsets_c(Layout(plan.cta_tile[:2]))), plan.d_tile
    glu = plan.glu
    if glu is None:
        return held
    held = held[:, :, list(_gate_registers(plan))]
    return held % bm + bm * glu.d_column(held // bm)


def _gate_registers(plan: GemmPlan) -> tuple[int, ...]:
    """Return which registers of a thread hold gates, in the order of D's stores, for a gated plan (GLU).

    They are indices in a unit, i.e. in a set of registers that a thread reduces at a time.
    """
    if plan.body.has_roles:
        return plan.stored_pairs.gates
    vector = plan.store.atom.values
    return tuple([gate * vector + i for gate, _ in plan.paired_vectors for i in range(vector)])


@cache
def folding(plan: GemmPlan, along: tuple[str, ...]) -> Folding:
    """Return how a reduction of D, e.g. row sums, is computed: by each thread, across lanes, and for each warp.

    along    modes of D that are reduced: ("n",), ("m",) or ("m", "n")
    raises   PlanError if the values of a row in a warp are not divided among lanes regularly enough for shuffles

    >>> from cutegemm.build import sm90_plan
    >>> found = folding(sm90_plan(tile=(64, 64, 64), epi_tile_n=32), ("n",))
    >>> found.groups[:8], found.lanes, found.pieces, str(found.piece_of)
    ((0, 0, 1, 1, 0, 0, 1, 1), (1, 2), 1, '(1,4):(0,0)')
    """
    held, (bm, _) = held_in_units(plan), plan.d_tile
    keys = kept(along, held % bm, held // bm)
    groups = _groups(keys)
    firsts = [groups.index(group) for group in range(max(groups) + 1)]
    own = keys[:, :, firsts]  # (threads, units, results)
    lane = np.arange(len(own))
    lanes = tuple([1 << bit for bit in range(5) if np.array_equal(own, own[lane ^ (1 << bit)])])
    leads = lane % WARP_THREADS & sum(lanes) == 0
    by_warp = own[leads].reshape(len(own) // WARP_THREADS, -1, *own.shape[1:])  # (warps, lanes, units, results)
    rows = np.moveaxis(by_warp, 2, 0).reshape(own.shape[1], len(by_warp), -1)
    seen: dict[bytes, int] = {}
    pieces = np.zeros(rows.shape[:2], np.int64)
    for warp in range(rows.shape[1]):
        for unit in range(rows.shape[0]):
            which = np.sort(rows[unit, warp]).tobytes()
            pieces[unit, warp] = seen.get(which, 0)
            seen[which] = int(pieces[unit, warp]) + 1
    counts = np.bincount((keys * 0 if len(along) == 2 else rows).reshape(-1).astype(np.intp, copy=False))
    whole = np.array_equal(keys, own[:, :, list(groups)]) and len(set(seen.values())) == 1
    piece_of: Layout | ComposedLayout | None = None
    with contextlib.suppress(LayoutError):
        piece_of = synthesize(pieces)
    pieces_of_row = next(iter(seen.values()))
    if not whole or not isinstance(piece_of, Layout) or (len(along) == 1 and {*counts} != {pieces_of_row}):
        over = " and ".join({"n": "rows", "m": "columns"}[mode] for mode in along[::-1])
        raise PlanError(
            f"plan {plan.name!r}",
            [
                f"its threads hold D as {plan.epilogue_mma.tv_layout_C_tiled}, where registers and lanes "
                f"together do not hold whole {over}, so they cannot reduce them. Use a plan whose warps hold a "
                "block of D."
            ],
        )
    return Folding(along, groups, lanes, pieces_of_row, piece_of)


def _groups(keys: np.ndarray) -> tuple[int, ...]:
    """Return, for each register of a thread, the number of its group: registers of a group contribute to one result.

    Groups are numbered by first appearance, e.g. (0, 0, 1, 1).

    keys   array (threads, units, registers): the result that each register contributes to; only thread 0, unit 0 is
           read
    """
    numbers: dict[int, int] = {}
    return tuple([numbers.setdefault(int(key), len(numbers)) for key in keys[0, 0]])


def _flat(table: np.ndarray) -> np.ndarray:
    """Join the three axes of a table that count a thread's registers into one, with registers of an MMA atom fastest.

    table     array with these axes: threads, registers of an MMA atom, MMA atoms along M, the same along N, and perhaps
              more
    returns   array with these axes: threads, registers of the thread, and the further axes
    """
    more = table.shape[4:]
    return np.moveaxis(table, (1, 2, 3), (3, 2, 1)).reshape(len(table), -1, *more)
