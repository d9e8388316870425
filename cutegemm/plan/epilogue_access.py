"""What the end of a plan takes of a thread: elements of D that it has at hand, registers of operands and results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from cutegemm.layout.inttuple import product

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

# Where all threads follow a schedule: vectors of D whose tiles are under way at once; half with more sums than these.
VECTORS_OF_TILES, MANY_ACCUMULATORS = 4, 128


def elements_at_hand(plan: GemmPlan) -> np.ndarray:
    """(parts, threads, elements): the elements of a tile, m + bM * n, that threads compute together.

    A part is an epilogue tile where D leaves through epilogue stages, and a vector where a consumer stores it straight
    out of registers; else all that a thread has.

    >>> from cutegemm.build import simt_plan, sm90_plan
    >>> [elements_at_hand(plan).shape for plan in (sm90_plan(tile=(128, 128, 64), epi_tile_n=32), simt_plan())]
    [(8, 128, 16), (1, 256, 64)]
    """
    flat = plan.stored_by_threads
    if not plan.body.has_roles:
        return flat[None]
    register = plan.accumulator_registers
    if plan.operands.gated and plan.pairs is not None:
        register = register[list(plan.pairs.gates)]
    flat = flat[:, np.argsort(register)]
    parts = flat.shape[1] // plan.store_d.values
    if plan.epi_stages is not None:
        parts = product(plan.epi_stages.epi_tiles(plan.consumer_d_tile))
    return np.moveaxis(flat.reshape(flat.shape[0], parts, -1), 1, 0)


def spread_at_hand(plan: GemmPlan, name: str) -> np.ndarray:
    """What a thread reads of an operand that stays the same along a mode: (parts, threads, elements), each once a part.

    An element is told by a place m + bM * n of the tile, with 0 along what it does not depend on.
    """
    bm = plan.cta_tile[0]
    same, at = plan.operands.matrix(name).broadcast, elements_at_hand(plan)
    place = (0 if "m" in same else at % bm) + (0 if "n" in same else at // bm * bm)
    place = np.sort(np.broadcast_to(place, at.shape), axis=-1)
    count = len(np.unique(place[0, 0]))
    return place.reshape(*place.shape[:2], count, -1)[..., 0]


def registers_at_end(plan: GemmPlan) -> dict[str, int]:
    """32-bit registers of a thread for each operand of the epilogue in memory, and each result beside D, at its end.

    Of epilogue stages, rows and columns of the next epilogue tile are there as well. None of them is in
    `GemmPlan.registers`: what has left is no longer held.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.dtypes import f32
    >>> from cutegemm.plan import Operands
    >>> from cutegemm.plan.epilogue import Row, parse_epilogue
    >>> from cutegemm.plan.problem import Operand
    >>> operands = Operands.of("bf16", layout="nt").with_aux(bias=Operand.of_kind(Row, f32))
    >>> plan = sm90_plan(operands, tile=(128, 128, 64), epi_tile_n=32)
    >>> registers_at_end(plan.with_(epilogue=parse_epilogue("gelu(acc + bias)", {"bias": Row})))  # 2 * 8 columns
    {'bias': 16}
    """
    epilogue, out = plan.epilogue, {}
    parts, _, elements = elements_at_hand(plan).shape
    if not plan.body.has_roles:
        many = plan.registers()["accumulators"] > MANY_ACCUMULATORS
        at_once = VECTORS_OF_TILES // 2 if many else VECTORS_OF_TILES
        elements = min(elements, at_once * plan.store_d.values)
    for name in (*epilogue.tensors, *epilogue.outputs[1:]):
        operand = plan.operands.matrix(name)
        count = elements
        if operand.broadcast:
            ahead = 2 if plan.epi_stages is not None and parts > 1 else 1
            count = spread_at_hand(plan, name).shape[2] * ahead * (2 if operand.gated else 1)
        out[name] = -(-count * operand.dtype.bits // 32)
    return out
