"""Multiply int8 by wgmma instructions that wrap past 32 bits.

The DSL emits wgmma of s8 with `.satfinite`, which clamps the accumulator after every instruction. A partial sum past
2^31 - 1 then changes the result, even if the sum over all of K fits 32 bits. `multiply` emits the instruction without
it: the accumulator is the exact sum modulo 2^32, in any order of K and for any split of K.

source   PTX ISA, "wgmma.mma_async": "If .satfinite is not specified, the accumulation wraps" for .s32
"""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.nvgpu.tcgen05 import smem_descriptor_to_int
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels.assembly import assembled


def multiply(acc: cute.Tensor, tCrA: cute.Tensor, tCrB: cute.Tensor, adds: Int32) -> None:
    """Issue the int8 wgmmas of one k-block: acc = tCrA * tCrB, plus acc if `adds` is not 0.

    acc    (MMA, MMA_M, MMA_N) int32 registers
    tCrA   (MMA, MMA_M) descriptors of K-major int8 in shared memory
    tCrB   (MMA, MMA_N) descriptors of K-major int8 in shared memory
    """
    for m in range(cute.size(acc, mode=[1])):
        for n in range(cute.size(acc, mode=[2])):
            registers = acc[None, m, n]
            a, b = (smem_descriptor_to_int(view.iterator) for view in (tCrA[None, m], tCrB[None, n]))
            values = [registers[i] for i in range(cute.size(registers))]
            for i, value in enumerate(_wgmma(values, a, b, adds)):
                registers[i] = value


@dsl_user_op
def _wgmma(values: list[Int32], a: Int64, b: Int64, adds: Int32, *, loc=None, ip=None) -> list[Int32]:
    """Issue one int8 wgmma (m64nNk32), and return a thread's accumulator registers after it; N is twice their number.

    values   accumulator registers before the instruction
    a, b     shared-memory descriptors
    adds     0 if the instruction ignores `values`
    """
    count = len(values)
    registers = ", ".join([f"${i}" for i in range(count)])
    text = (
        f"{{\n.reg .pred p;\nsetp.ne.b32 p, ${count + 2}, 0;\n"
        f"wgmma.mma_async.sync.aligned.m64n{2 * count}k32.s32.s8.s8 {{{registers}}}, ${count}, ${count + 1}, p;\n}}\n"
    )
    # Outputs, the inputs that are not accumulators, and the inputs that share a register with output i.
    constraints = ",".join([*["=r"] * count, "l", "l", "r", *map(str, range(count))])
    results = assembled(T.i32(), count, (a, b, adds, *values), text, constraints, loc=loc, ip=ip)
    return [Int32(each) for each in results]
