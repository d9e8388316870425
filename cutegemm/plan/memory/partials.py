"""Sums and maxima over rows, columns or all of D: what a warp makes of its part of a tile, and where it lies.

| step                           | who                                                                                 |
|--------------------------------|-------------------------------------------------------------------------------------|
| values of a row, in registers  | a thread, in the order of its registers                                             |
| those of a row, of all lanes   | a warp, by shuffles: each lane with the one at a distance of 1, 2, 4 ... that holds |
|                                | other columns of the same rows                                                      |
| a partial result for each row  | one of these lanes, to its place in the workspace                                   |
| all partial results of a row   | a second kernel, in the order of their places                                       |

For "row" read "column", or "tile" where all of D is reduced. Who writes which place does not depend on which CTA comes
first, and nobody adds to what another one has written: a result has the same bits at each launch.

Which registers and which lanes hold values of one row follows from the plan's thread-value layout of D.
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

REDUCER_THREADS = 256  # of the second kernel
_ROWS_AT_ONCE = 32  # results of a CTA of it: neighbours, which a warp reads together


@dataclass(frozen=True)
class Folding:
    """How the values that a warp has of a tile become partial results.

    along      modes of D that are reduced
    groups     of each register of a unit, which of the thread's results it belongs to: 0 is that of the first one
    lanes      distances of lanes that hold values of the same results
    pieces     partial results that a row of a tile has
    piece_of   (unit, warp) -> which of them. A unit is what a thread reduces at a time: all that it holds of a tile, or
               where a second kernel adds the parts of a split K, whose threads take a vector each, a vector
    """

    along: tuple[str, ...]
    groups: tuple[int, ...]
    lanes: tuple[int, ...]
    pieces: int
    piece_of: Layout

    @property
    def units(self) -> int:
        """Of a thread."""
        return self.piece_of[0].size()

    @property
    def ends(self) -> tuple[int, ...]:
        """The last register of each group."""
        last = {group: register for register, group in enumerate(self.groups)}
        return tuple([last[group] for group in range(len(last))])

    def place(self, m_tile: Any, n_tile: Any, m_tiles: Any, piece: Any) -> Any:
        """Which of the partial results of a row of D is that of a piece of a tile; also of what a kernel computes with.

        m_tiles   of D along M
        """
        tile = n_tile if self.along == ("n",) else m_tile
        if len(self.along) == 2:
            tile = n_tile * m_tiles + m_tile
        return tile * self.pieces + piece


def partials_shape(plan: GemmPlan, along: tuple[str, ...], m: Any, n: Any, l: Any) -> tuple[Any, Any, Any]:  # noqa: E741
    """Return the extents of the partial results in the workspace: (results, partial results of each, L), compact.

    m, n, l   extents of D; a gated D has half of the columns of A @ B

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
    """(results, runs) of a CTA of the second kernel: a thread takes every `runs`-th partial result of a result."""
    results = 1 if len(along) == 2 else _ROWS_AT_ONCE
    return results, REDUCER_THREADS // results


def kept(along: tuple[str, ...], m: Any, n: Any) -> Any:
    """Of coordinates of D the one that tells results of a reduction apart; 0 where all of D is reduced."""
    return m * 0 if len(along) == 2 else m if along == ("n",) else n


def in_units(plan: GemmPlan, table: np.ndarray) -> np.ndarray:
    """What each thread holds of a tile, (threads, values, rest_m, rest_n, ...), as (threads, units, registers, ...)."""
    threads, (values, rest_m, rest_n), more = table.shape[0], table.shape[1:4], table.shape[4:]
    if plan.body.has_roles:
        out = np.empty((threads, values * rest_m * rest_n, *more), table.dtype)
        out[:, plan.accumulator_order((values, rest_m, rest_n)).offsets()] = _flat(table)
        return out[:, None]
    vector = plan.store_d.values
    if values % vector and plan.operands.d.major == "n":
        table = table.reshape(threads, values, rest_m, rest_n // vector, vector, *more)
        table = np.moveaxis(table, 4, 2).reshape(threads, values * vector, rest_m, rest_n // vector, *more)
    elif values % vector:
        table = table.reshape(threads, values, rest_m // vector, vector, rest_n, *more)
        table = np.moveaxis(table, 3, 2).reshape(threads, values * vector, rest_m // vector, rest_n, *more)
    flat = _flat(table)
    by_vectors = plan.split.is_split and plan.split.reduction == "kernel"
    return flat.reshape(threads, -1, vector, *more) if by_vectors else flat[:, None]


def held_in_units(plan: GemmPlan) -> np.ndarray:
    """Return the element m + bM * n of D's tile that each register becomes, as (threads, units, registers).

    Of a gated plan these are the registers of the gates; the up of each is added to its element.
    """
    held, (bm, _) = in_units(plan, plan.epilogue_mma.offsets_c(Layout(plan.cta_tile[:2]))), plan.d_tile
    glu = plan.glu
    if glu is None:
        return held
    held = held[:, :, list(_gate_registers(plan))]
    return held % bm + bm * glu.d_column(held // bm)


def _gate_registers(plan: GemmPlan) -> tuple[int, ...]:
    """Return the registers of a unit that hold gates, in the order in which they are stored."""
    if plan.body.has_roles:
        return plan.stored_pairs.gates
    vector = plan.store_d.values
    return tuple([gate * vector + i for gate, _ in plan.paired_vectors for i in range(vector)])


@cache
def folding(plan: GemmPlan, along: tuple[str, ...]) -> Folding:
    """How a plan reduces along these modes.

    raises   PlanError where its threads do not hold D so that registers, then lanes, have the values of a row

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
                f"its threads hold D as {plan.epilogue_mma.tv_layout_C_tiled}, where registers and "
                "lanes do not have the "
                f"values of {over} together, and so cannot reduce them. Take a plan whose warps hold a block of D."
            ],
        )
    return Folding(along, groups, lanes, pieces_of_row, piece_of)


def _groups(keys: np.ndarray) -> tuple[int, ...]:
    """Of each register, by the keys of the first thread."""
    numbers: dict[int, int] = {}
    return tuple([numbers.setdefault(int(key), len(numbers)) for key in keys[0, 0]])


def _flat(table: np.ndarray) -> np.ndarray:
    """(threads, values, rest_m, rest_n, ...) as (threads, registers, ...): values first, then rest_m."""
    more = table.shape[4:]
    return np.moveaxis(table, (1, 2, 3), (3, 2, 1)).reshape(len(table), -1, *more)
