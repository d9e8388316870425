"""Trace the steps of block-scaled operands in the program of a Hopper consumer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.assembly import assembled, assembler
from cutegemm.kernels.sm90.consumer import NUMBER, ConsumerTracer
from cutegemm.kernels.trace import At
from cutegemm.plan.mainloop.block_scaled import (
    BLOCK,
    LANES,
    ClearScales,
    LoadScales,
    PromoteScaled,
    ReadScales,
    ReloadScales,
    Scales,
    block_scales_of,
    scales_of,
)
from cutegemm.plan.memory.groups import elements_between_starts
from cutegemm.plan.program.steps import RIGHT


@dataclass
class Registers:
    """The block scales of A and B that a thread holds in registers, to multiply the accumulators of one k-tile by.

    rows      scales of the rows of D that the thread holds; `Scales.register` gives the index of a row's scale
    columns   scales of the columns of D that the thread holds
    k         position of the next k-tile, in one register: lane k % 32 holds its scales of 128 x 128 blocks. It starts
              at 1 if the work tile has an odd number of k-tiles, else at 0
    lanes     operand -> its scales of 128 x 128 blocks, which the lanes of a warp hold for 32 k-tiles; without an entry
              if each row has its own scale
    """

    rows: cute.Tensor
    columns: cute.Tensor
    k: cute.Tensor
    lanes: dict[str, Lanes] = field(default_factory=dict)


@dataclass
class Lanes:
    """The block scales that one lane of a warp holds in registers: lane i has the scales of k-tiles i and 32 + i.

    If a work tile has an odd number of k-tiles, its first k-tile is at lane 1, so that pairs of k-tiles begin at even
    lanes.

    now         scales of k-tile i, one for each block of rows or columns that the thread needs
    next        scales of k-tile 32 + i, in the same order
    addresses   for each block, the address in global memory of the lane's scale if its k-tile had the index 0
    end         index of a k-tile, counted like `Registers.k`: the lane loads no scales from there on
    """

    now: cute.Tensor
    next: cute.Tensor
    addresses: tuple[Int64, ...]
    end: Int32


@dsl_user_op
def multiplied_and_added_here(value: Float32, scale: Float32, total: Float32, *, loc=None, ip=None) -> Float32:
    """Return value * scale + total, computed before any MMA that is issued later.

    Inline assembly with side effects fixes the position; the compiler would otherwise compute it at the first use.
    """
    asm = assembler(loc, ip)
    operands = [Float32(each).ir_value(loc=loc, ip=ip) for each in (value, scale, total)]
    text = "fma.rn.f32 $0, $1, $2, $3;"
    return Float32(asm(T.f32(), operands, text, "=f,f,f,f"))


@dsl_user_op
def computed_here(address: Int64, *, loc=None, ip=None) -> Int64:
    """Return the address, computed before the mainloop and kept in registers.

    Without this, the compiler would compute it again in each k-tile.
    """
    asm = assembler(loc, ip)
    operands = [Int64(address).ir_value(loc=loc, ip=ip)]
    return Int64(asm(T.i64(), operands, "mov.b64 $0, $1;", "=l,l"))


@dsl_user_op
def loaded_if(address: Int64, where: Boolean, *, loc=None, ip=None) -> Float32:
    """Load an f32 from global memory if `where` holds, else return 0 without an access.

    address   address in global memory
    """
    asm = assembler(loc, ip)
    text = "{.reg .pred p; setp.ne.s32 p, $2, 0; mov.b32 $0, 0; @p ld.global.b32 $0, [$1];}"
    operands = [each.ir_value(loc=loc, ip=ip) for each in (Int64(address), Int32(where))]
    return Float32(asm(T.f32(), operands, text, "=&f,l,r"))


@dsl_user_op
def reloaded(
    now: list[Float32], following: list[Float32], addresses: list[Int64], k: Int32, end: Int32, *, loc=None, ip=None
) -> list[Float32]:
    """Return the block scales that a lane holds for the next k-tiles: new ones at every 32nd k-tile, else the same.

    A lane holds the scales of one of the present 32 k-tiles (`now`) and of one of the 32 after them (`following`). When
    the present 32 are done, `following` replaces `now`, and the scales of 32 k-tiles later are loaded. Predicated
    instructions do this without a branch; at a branch, ptxas would wait for the MMAs in flight.

    now, following   scales that the lane holds, one for each block of rows or columns
    addresses        for each block, the address in global memory of the lane's scale if its k-tile had the index 0
    k                index of the next k-tile in its work tile
    end              index, counted like `k`: no scales are loaded from there on
    returns          new values of `now`, followed by those of `following`
    """
    count = len(now)
    first, at, stop = 2 * count, 3 * count, 3 * count + 1
    lines = [
        ".reg .pred p, q; .reg .b32 t; .reg .b64 a;",
        f"and.b32 t, ${at}, {LANES - 1}; setp.eq.s32 p, t, 0; setp.lt.and.s32 q, ${at}, ${stop}, p;",
    ]
    for i in range(count):
        lines.append(f"@p mov.b32 ${i}, ${count + i};")
        lines.append(f"mad.wide.s32 a, ${at}, 4, ${first + i}; @q ld.global.b32 ${count + i}, [a+{4 * LANES}];")
    constraints = ",".join([*["=&f"] * (2 * count), *["l"] * count, "r", "r", *map(str, range(2 * count))])
    operands, text = (*addresses, k, end, *now, *following), "{" + " ".join(lines) + "}"
    results = assembled(T.f32(), 2 * count, operands, text, constraints, loc=loc, ip=ip)
    return [Float32(each) for each in results]


@ConsumerTracer.handles(ClearScales)
def clear_scales(tracer: ConsumerTracer, clear: ClearScales, at: At) -> None:
    """Set the block scales in registers to 0, and also the number of k-tiles whose scales have been read.

    tracer   emits the code of the consumer's program
    clear    the step of the program that is emitted
    at       the consumer's position in its program: work tile, k-tile and pipeline state
    """
    rows, columns = (cute.make_rmem_tensor(each.registers, Float32) for each in scales_of(tracer.plan))
    rows.fill(0)
    columns.fill(0)
    k = cute.make_rmem_tensor(1, Int32)
    k.fill(0)
    tracer.scales = Registers(rows, columns, k)


@ConsumerTracer.handles(LoadScales)
def load_scales(tracer: ConsumerTracer, load: LoadScales, at: At) -> None:
    """Load the block scales of the first 64 k-tiles of a work tile: two k-tiles to each lane.

    tracer   emits the code of the consumer's program
    load     the step of the program that is emitted
    at       the consumer's position in its program: work tile, k-tile and pipeline state
    """
    registers, lane = tracer.scales, tracer.who.lane
    skipped = at.k_count % 2
    end = at.k_count + skipped
    for scales in block_scales_of(tracer.plan):
        blocks, batch = tracer.pipeline_state.gmem[scales.name], tracer.own_tile(at)[2]
        first_k = Int32(at.tile.k_first) - skipped + lane
        addresses = []
        for block in blocks_of(tracer, scales, at):
            address = (blocks.iterator + blocks.layout((block, 0, batch))).toint()
            addresses.append(computed_here(Int64(address) + Int64(first_k) * 4))
        now, following = (cute.make_rmem_tensor(scales.registers, Float32) for _ in range(2))
        for register, address in enumerate(addresses):
            now[register] = loaded_if(address, (lane >= skipped) & (lane < end))
            following[register] = loaded_if(address + 4 * LANES, lane + LANES < end)
        registers.lanes[scales.name] = Lanes(now, following, tuple(addresses), Int32(end - LANES - lane))
    registers.k[0] = Int32(skipped)


@ConsumerTracer.handles(ReloadScales)
def reload_scales(tracer: ConsumerTracer, reload: ReloadScales, at: At) -> None:
    """Replace the block scales in the lanes of a warp by those of the next 32 k-tiles, if all lanes have been read.

    tracer   emits the code of the consumer's program
    reload   the step of the program that is emitted
    at       the consumer's position in its program: work tile, k-tile and pipeline state
    """
    for lanes in tracer.scales.lanes.values():
        count = len(lanes.addresses)
        held = [[each[i] for i in range(count)] for each in (lanes.now, lanes.next)]
        results = reloaded(*held, [*lanes.addresses], tracer.scales.k[0], lanes.end)
        for i in range(count):
            lanes.now[i], lanes.next[i] = results[i], results[count + i]


@ConsumerTracer.handles(ReadScales)
def read_scales(tracer: ConsumerTracer, read: ReadScales, at: At) -> None:
    """Read the block scales of the thread's rows and columns for one k-tile, and move on to the next k-tile.

    tracer   emits the code of the consumer's program
    read     the step of the program that is emitted
    at       the consumer's position in its program: work tile, k-tile and pipeline state
    """
    registers = tracer.scales
    for scales, own in zip(scales_of(tracer.plan), (registers.rows, registers.columns), strict=True):
        if scales.by_block:
            held = registers.lanes[scales.name].now
            for register in range(scales.registers):
                own[register] = cute.arch.shuffle_sync(held[register], registers.k[0])
        else:
            read_rows(tracer, scales, own, at)
    registers.k[0] = registers.k[0] + 1


def read_rows(tracer: ConsumerTracer, scales: Scales, own: cute.Tensor, at: At) -> None:
    """Read one block scale for each row or column of the thread from a stage of the mainloop pipeline.

    If groups divide the rows, the stage begins up to three rows before the tile, see `elements_between_starts`.

    tracer   emits the code of the consumer's program
    scales   which operand's scales, and how they are laid out
    own      registers that receive the scales
    at       the consumer's position in its program: work tile, k-tile and pipeline state
    """
    plan, mode = tracer.plan, "mn".index(scales.mode)
    staged = tracer.pipeline_state.smem[scales.name][None, 0, at.stage]
    of_thread = lower.tiled_mma(plan.consumer_mma).get_slice(tracer.who.tid)
    places = of_thread.partition_C(cute.make_identity_tensor(plan.consumer_mma_tile))  # ((2, 2, N/8), MMA_M, MMA_N)
    (_, _, eights), down, across = places.shape
    if mode == 0:
        first = tracer.who.consumer * scales.extent if plan.body.readers > 1 else 0
        held = [((0, i, 0), m, 0) for m in range(down) for i in range(2)]
    else:
        first: Any = 0  # consumers that share a tile have all of its columns
        held = [((i, 0, eight), 0, n) for n in range(across) for eight in range(eights) for i in range(2)]
    apart = elements_between_starts(plan.operands, scales.name)
    if apart > 1:
        first = first + Int32(at.tile.begin) % apart
    for register, place in enumerate(held):
        own[register] = staged[first + places[place][mode]]


def blocks_of(tracer: ConsumerTracer, scales: Scales, at: At) -> list[Int32]:
    """Return, for each run of the thread's rows (or columns), the index of the block of 128 rows that has its scale.

    A run is a set of neighbouring rows that share a scale. A run beyond the last block of the matrix gets the last
    block.

    tracer   emits the code of the consumer's program
    scales   which operand's scales, and how they are laid out
    at       the consumer's position in its program: work tile, k-tile and pipeline state
    """
    last = tracer.pipeline_state.gmem[scales.name].shape[0] - 1
    first = tracer.own_tile(at)["mn".index(scales.mode)] * scales.extent
    return [cutlass.min((first + register * scales.run) // BLOCK, last) for register in range(scales.registers)]


@ConsumerTracer.handles(PromoteScaled)
def promote_scaled(tracer: ConsumerTracer, promote: PromoteScaled, at: At) -> None:
    """Multiply each accumulator of a k-tile by its row scale and its column scale, and add the result to the f32 total.

    tracer    emits the code of the consumer's program
    promote   the step of the program that is emitted
    at        the consumer's position in its program: work tile, k-tile and pipeline state
    """
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
