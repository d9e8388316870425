"""Trace the step of `plan.store.quantized`: quantize a tile of D by blocks of 1 x 128, in registers."""

from __future__ import annotations

import functools
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32

from cutegemm.kernels.quantize import MAGNITUDE, block_scale
from cutegemm.kernels.sm90.consumer import ConsumerTracer
from cutegemm.kernels.trace import At
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.plan.store.quantized import SHARERS, QuantizeTile, block_groups


@ConsumerTracer.handles(QuantizeTile)
def quantize_tile(tracer: ConsumerTracer, quantize: QuantizeTile, at: At) -> None:
    """Evaluate the epilogue for all accumulators of a thread, store the scales, and multiply by their reciprocals.

    Magnitudes are compared as integers, since the bits of floats without sign are in the order of their values.

    tracer     emits the code of the consumer's program
    quantize   the step of the program that is emitted
    """
    plan, storage, accumulators = tracer.plan, tracer.storage, tracer.accumulators
    _evaluate(tracer)
    if plan.operands.gated:
        accumulators, _ = storage.gate_and_up(accumulators)  # D is in the registers of the gates
    coords, values = storage.by_vectors(
        1, tracer.own_mnl, storage.tid, None, accumulators=accumulators, extents=storage.extents
    )
    places = [coords[0, i] for i in range(cute.size(values))]
    _clear_outside(values, places, storage.extents[1])
    groups, target = block_groups(plan), plan.epilogue.expression
    bits, tops, firsts = cute.recast_tensor(values, Int32), {}, {}
    for i, group in enumerate(groups):
        tops[group] = cutlass.max(tops.get(group, Int32(0)), bits[i] & MAGNITUDE)
        firsts.setdefault(group, places[i])
    inverses = {}
    for group, top in tops.items():
        for distance in SHARERS:
            top = cutlass.max(top, cute.arch.shuffle_sync_bfly(top, distance))
        scale = block_scale(top, target.dtype, target.power_of_two)
        _write(scale, firsts[group], tracer.own_mnl[2], storage.values.results[quantize.scales], storage.extents)
        inverses[group] = Float32(1) / scale
    for i, group in enumerate(groups):
        values[i] = values[i] * inverses[group]


def _evaluate(tracer: ConsumerTracer) -> None:
    """Replace all accumulators of a thread by the epilogue's values, which are quantized later.

    One epilogue tile is evaluated after the other.
    """
    storage: Any = tracer.storage
    epilogue = tracer.plan.epilogue.quantized
    for i in range(storage.epi_tiles):
        own, ups = storage.epi_tile(tracer.accumulators, i)
        fetch = functools.partial(storage.read_spread, accumulators=own, i=i, own_mnl=tracer.own_mnl)
        if ups is None:
            storage.values.carry_out_all(epilogue.steps, own, fetch)
        else:
            own.store(storage.values.worked_out(epilogue, own, fetch, ups)("d", Float32).load())


@cute.jit
def _clear_outside(values: cutlass.Constexpr, places: cutlass.Constexpr, columns: Int32):
    """Set the values of columns outside of D to 0, so that they do not count. Most tiles have none.

    places    (m, n) in D of each value
    columns   number of columns of D
    """
    if places[-1][1] >= columns:
        _select_inside(values, places, columns)


def _select_inside(values: Any, places: Any, columns: Any) -> None:
    """Set the values of columns outside of D to 0, without a branch.

    places    (m, n) in D of each value
    columns   number of columns of D
    """
    for i, place in enumerate(places):
        values[i] = cutlass.select_(place[1] < columns, values[i], Float32(0))


@cute.jit
def _write(
    scale: Float32, place: cutlass.Constexpr, batch: Int32, scales: cutlass.Constexpr, extents: cutlass.Constexpr
):
    """Store the scale of a block from one of the lanes that share its row, if the block is inside of D.

    place     (m, n) in D of the thread's first element of the block
    batch     index of the matrix of the batch
    scales    matrix of the scales (M, N / 128, L) in global memory
    extents   (M, N) of D
    """
    is_first = cute.arch.lane_idx() % (2 * SHARERS[-1]) == 0
    if Boolean(is_first) & cute.elem_less(place, extents):
        scales[place[0], place[1] // BLOCK, batch] = scale
