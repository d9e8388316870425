"""Trace the steps of block-scaled operands in the program of a Hopper consumer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.sm90.consumer import NUMBER, ConsumerTracer
from cutegemm.kernels.trace import At
from cutegemm.plan.mainloop.block_scaled import BLOCK, ClearScales, PromoteScaled, ReadScales, Scales, scales_of
from cutegemm.plan.program.steps import RIGHT


@dataclass
class Registers:
    """The scales of one k-tile in a thread's registers.

    rows, columns   scales of the thread's rows and columns; `Scales.register` gives the index of a scale
    k_block         (1) register with the index along K of the scales that are read next
    """

    rows: cute.Tensor
    columns: cute.Tensor
    k_block: cute.Tensor


@dsl_user_op
def multiplied_and_added_here(value: Float32, scale: Float32, total: Float32, *, loc=None, ip=None) -> Float32:
    """Return value * scale + total, computed before any MMA that is issued later.

    Inline assembly with side effects fixes the position; the compiler would otherwise compute it at the first use.
    """
    asm = functools.partial(llvm.inline_asm, has_side_effects=True, is_align_stack=False, loc=loc, ip=ip)
    operands = [Float32(each).ir_value(loc=loc, ip=ip) for each in (value, scale, total)]
    text = "fma.rn.f32 $0, $1, $2, $3;"
    return Float32(asm(T.f32(), operands, text, "=f,f,f,f", asm_dialect=llvm.AsmDialect.AD_ATT))


@ConsumerTracer.handles(ClearScales)
def clear_scales(tracer: ConsumerTracer, clear: ClearScales, at: At) -> None:
    """Set the block-scale registers to 0, and the index of the next scales to the work tile's first k-tile."""
    rows, columns = (cute.make_rmem_tensor(each.registers, Float32) for each in scales_of(tracer.plan))
    rows.fill(0)
    columns.fill(0)
    k_block = cute.make_rmem_tensor(1, Int32)
    k_block[0] = Int32(at.tile.k_first)
    tracer.scales = Registers(rows, columns, k_block)


@ConsumerTracer.handles(ReadScales)
def read_scales(tracer: ConsumerTracer, read: ReadScales, at: At) -> None:
    """Read the scales of the thread's rows and columns for one k-tile, and advance the index along K."""
    registers = tracer.scales
    for scales, own in zip(scales_of(tracer.plan), (registers.rows, registers.columns), strict=True):
        if scales.by_block:
            read_blocks(tracer, scales, own, at)
        else:
            read_rows(tracer, scales, own, at.stage)
    registers.k_block[0] = registers.k_block[0] + 1


def read_rows(tracer: ConsumerTracer, scales: Scales, own: cute.Tensor, stage: Any) -> None:
    """Read one block scale for each row or column of the thread from a stage of the mainloop pipeline.

    scales   which operand's scales, and how they are laid out
    own      registers that receive the scales
    stage    index of the stage
    """
    plan, mode = tracer.plan, "mn".index(scales.mode)
    staged = tracer.pipeline_state.smem[scales.name][None, 0, stage]
    of_thread = lower.tiled_mma(plan.consumer_mma).get_slice(tracer.who.tid)
    places = of_thread.partition_C(cute.make_identity_tensor(plan.consumer_mma_tile))  # ((2, 2, N/8), MMA_M, MMA_N)
    (_, _, eights), down, across = places.shape
    if mode == 0:
        first = tracer.who.consumer * scales.extent if plan.body.readers > 1 else 0
        held = [((0, i, 0), m, 0) for m in range(down) for i in range(2)]
    else:
        first = 0  # consumers that share a tile have all of its columns
        held = [((i, 0, eight), 0, n) for n in range(across) for eight in range(eights) for i in range(2)]
    for register, place in enumerate(held):
        own[register] = staged[first + places[place][mode]]


def read_blocks(tracer: ConsumerTracer, scales: Scales, own: cute.Tensor, at: At) -> None:
    """Read one block scale for each run of the thread's rows or columns from global memory.

    A run is a set of neighbours that share a scale. One beyond the last block of the matrix reads the scale of the last
    block.

    scales   which operand's scales, and how they are laid out
    own      registers that receive the scales
    at       the role's position in its program
    """
    blocks, own_mnl = tracer.pipeline_state.gmem[scales.name], tracer.own_tile(at)
    first = own_mnl["mn".index(scales.mode)] * scales.extent
    for register in range(scales.registers):
        block = cutlass.min((first + register * scales.run) // BLOCK, blocks.shape[0] - 1)
        own[register] = blocks[block, tracer.scales.k_block[0], own_mnl[2]]


@ConsumerTracer.handles(PromoteScaled)
def promote_scaled(tracer: ConsumerTracer, promote: PromoteScaled, at: At) -> None:
    """Multiply each accumulator of a k-tile by its row scale and its column scale, and add the result to the total."""
    products, registers = tracer.products, tracer.scales
    acc = products.accs[NUMBER[promote.accumulators]]  # ((2, 2, N/8), MMA_M, 1)
    (_, _, eights), _, _ = acc.shape
    first = cute.size(acc) if promote.accumulators == RIGHT else 0
    of_rows, of_columns = scales_of(tracer.plan)
    both = {}  # row scale * column scale, by the register indices of the two scales
    for i in range(cute.size(acc)):
        column, row, eight = i % 2, i // 2 % 2, i // 4 % eights
        place = (eights if first else 0) + eight
        pair = of_rows.register(64 * (i // 4 // eights), row), of_columns.register(8 * place, column)
        if pair not in both:
            both[pair] = registers.rows[pair[0]] * registers.columns[pair[1]]
        products.total[first + i] = multiplied_and_added_here(acc[i], both[pair], products.total[first + i])
