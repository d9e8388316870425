"""Elements of D that a thread processes at a time in the epilogue, and registers for operands and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

# If all threads follow one schedule: number of vectors of D whose tile operands are loaded at a time. Threads with more
# than MANY_ACCUMULATORS accumulator registers load half as many.
VECTORS_OF_TILES, MANY_ACCUMULATORS = 4, 128


def elements_at_hand(plan: GemmPlan) -> np.ndarray:
    """Return which elements of D a thread's epilogue processes at a time: an integer array (pieces, threads, elements).

    An entry is the index m + bM * n of an element in the CTA tile. What is processed at a time is called a piece: an
    epilogue tile if D is stored through shared memory, a vector if consumers store D from registers, and all elements
    of a thread if the plan has no warp roles.

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
    parts = plan.store.pieces(plan, flat.shape[1])
    return np.moveaxis(flat.reshape(flat.shape[0], parts, -1), 1, 0)


def spread_at_hand(plan: GemmPlan, name: str) -> np.ndarray:
    """Return which elements of a broadcast operand, e.g. a bias, a thread reads: an array (pieces, threads, elements).

    A piece is what the epilogue processes at a time, e.g. an epilogue tile. An element that several elements of a piece
    need is listed once. An entry is the index m + bM * n in the CTA tile, with m or n 0 along broadcast modes.

    name   name of a row, a column or a single element that the epilogue reads
    """
    bm = plan.cta_tile[0]
    same, at = plan.operands.matrix(name).broadcast, elements_at_hand(plan)
    place = (0 if "m" in same else at % bm) + (0 if "n" in same else at // bm * bm)
    place = np.sort(np.broadcast_to(place, at.shape), axis=-1)
    count = len(np.unique(place[0, 0]))
    return place.reshape(*place.shape[:2], count, -1)[..., 0]


def registers_at_end(plan: GemmPlan) -> dict[str, int]:
    """Return the 32-bit registers that a thread needs for each operand and auxiliary output of the epilogue, by name.

    If D is stored through epilogue stages, broadcast operands count twice, because those of the next epilogue tile are
    loaded early. `GemmPlan.registers` does not include these registers, because stored accumulators make room for them.

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
        elements = min(elements, at_once * plan.store.atom.values)
    for name in (*epilogue.tensors, *epilogue.outputs[1:]):
        operand = plan.operands.matrix(name)
        count = elements
        if operand.broadcast:
            ahead = 2 if plan.store.reads_ahead and parts > 1 else 1
            count = spread_at_hand(plan, name).shape[2] * ahead * (2 if operand.gated else 1)
        out[name] = -(-count * operand.dtype.bits // 32)
    return out
