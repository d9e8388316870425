"""The rules of wide accesses: what a thread moves at a time must be neighbours on both sides, and aligned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_A, make_tiled_copy_B

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand


def vector_rules(plan: GemmPlan) -> Iterator[str]:
    """What an access of more than one element breaks, of a plan whose layouts fit."""
    (bm, bn, _), ops = plan.cta_tile, plan.loaded
    for name, extent, layout, copy, read, operand in (
        ("A", bm, plan.smem_a, plan.load_a, plan.read_a, ops.a),
        ("B", bn, plan.smem_b, plan.load_b, plan.read_b, ops.b),
    ):
        modes = (name.replace("A", "m").replace("B", "n"), "k")
        bits = operand.dtype.bits
        if isinstance(copy, TiledCopy):
            yield from _global_vector(name, copy, operand, modes, (extent, plan.cta_tile[2]))
            if copy.atom.is_async and copy.atom.bits > bits:
                yield from _shared_vector(
                    f"the copy of {name} writes", copy.offsets_d(layout), copy.atom.bits, bits
                )
        mma = plan.tiled_mma
        if read is not None and read.threads > 1:
            try:
                rows = (make_tiled_copy_A if name == "A" else make_tiled_copy_B)(read, mma).offsets_s(layout)
            except PlanError as error:  # fragments that it does not fill
                yield from (f"{read.name} does not read {name}: {rule}." for rule in error.violations)
                continue
            row_bits = 8 * read.aligned_bytes
            yield from _shared_vector(f"{read.name} reads {name} by rows of", rows, row_bits, bits)
        elif read is not None and read.bits > bits:
            held = mma.offsets_a(layout) if name == "A" else mma.offsets_b(layout)
            yield from _shared_vector(f"the fragments of {name} are read", held, read.bits, bits)
    yield from _stored_vector(plan)
    yield from _copied_vector(plan)


def _copied_vector(plan: GemmPlan) -> Iterator[str]:
    """What a thread copies of D at a time must be neighbours in shared and in global memory, and aligned."""
    copy, operand, tile = plan.copy_d, plan.operands.d, plan.cta_tile[:2]
    if plan.slots is not None and isinstance(plan.slots.store, TiledCopy):
        copy, tile = plan.slots.store, plan.slots.subtile
    if copy is None or plan.smem_d is None:
        return
    bits = operand.dtype.bits
    yield from _global_vector("D", copy, operand, ("m", "n"), tile, "stored")
    if copy.atom.bits > bits:
        yield from _shared_vector("the copy of D reads", copy.offsets_s(plan.smem_d), copy.atom.bits, bits)


def _stored_vector(plan: GemmPlan) -> Iterator[str]:
    """What a thread stores of D at a time must be neighbours along the contiguous mode, and aligned.

    In shared memory as well, where D passes through it.
    """
    store, operand = plan.store_d, plan.operands.d
    count = store.bits // operand.dtype.bits
    if (plan.pipeline is not None and plan.smem_d is not None) or count <= 1:
        return
    bm, bn, _ = plan.cta_tile
    compact = Layout((bm, bn), (1, bm) if operand.major == "m" else (bn, 1))
    offsets = plan.tiled_mma.offsets_c(compact)
    by_thread = offsets.reshape(offsets.shape[0], -1)
    if plan.smem_d is not None:
        placed = plan.tiled_mma.offsets_c(plan.smem_d).reshape(by_thread.shape)
        in_order = np.take_along_axis(placed, np.argsort(by_thread, axis=1), axis=1)
        yield from _shared_vector("the sums are written", in_order, store.bits, operand.dtype.bits)
        return
    if store.bits > 8 * operand.align_bytes:
        yield (
            f"D is stored {store.bits} bits at a time, but aligned to {operand.align_bytes} bytes. "
            f"Store {8 * operand.align_bytes} bits, or align it."
        )
    held = np.sort(by_thread, axis=1)
    runs = held.reshape(held.shape[0], -1, count)
    if (runs - runs[:, :, :1] != np.arange(count)).any() or (runs[:, :, 0] % count).any():
        yield (
            f"D, which is {operand.major}-major, is stored {store.bits} bits at a time, but a thread does not "
            f"hold {count} aligned neighbours of it."
        )


def _global_vector(
    name: str,
    copy: TiledCopy,
    operand: Operand,
    modes: tuple[str, str],
    tile: tuple[int, int],
    moved: str = "loaded",
) -> Iterator[str]:
    """A vector of more than one element must lie along the contiguous mode, and be aligned there."""
    elements = copy.atom.bits // operand.dtype.bits
    if elements <= 1:
        return
    if copy.atom.bits > 8 * operand.align_bytes:
        yield (
            f"{name} is {moved} {copy.atom.bits} bits at a time, but aligned to {operand.align_bytes} bytes. "
            f"Take {8 * operand.align_bytes} bits, or align it."
        )
    compact = Layout(tile, (1, tile[0]) if operand.major == modes[0] else (tile[1], 1))
    yield from _shared_vector(
        f"the copy of {name}, which is {operand.major}-major, reads",
        copy.offsets_s(compact),
        copy.atom.bits,
        operand.dtype.bits,
    )


def _shared_vector(what: str, offsets: np.ndarray, bits: int, element_bits: int) -> Iterator[str]:
    """`offsets` (threads, values, ...): each run of bits / element_bits values must be one aligned access."""
    count = bits // element_bits
    flat = offsets.reshape(offsets.shape[0], -1, order="F")
    if flat.shape[1] % count:
        yield f"{what} {count} elements at a time, which do not divide the {flat.shape[1]} of a thread."
        return
    runs = flat.reshape(flat.shape[0], -1, count)
    if (runs - runs[:, :, :1] != np.arange(count)).any():
        yield f"{what} {bits} bits at a time, but the {count} elements are not neighbours there."
    elif (runs[:, :, 0] % count).any():
        yield f"{what} {bits} bits at a time, but some accesses are not aligned to {bits // 8} bytes."
