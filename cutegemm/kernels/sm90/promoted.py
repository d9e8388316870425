"""Trace accumulator promotion in the program of a Hopper consumer."""

from __future__ import annotations

import cutlass.cute as cute
from cutlass import Float32
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.kernels.assembly import assembler
from cutegemm.kernels.sm90.consumer import NUMBER, ConsumerTracer
from cutegemm.kernels.trace import At
from cutegemm.plan.mainloop.promoted import Promote
from cutegemm.plan.program.steps import RIGHT


@dsl_user_op
def added_here(total: Float32, value: Float32, *, loc=None, ip=None) -> Float32:
    """Return total + value, computed before any MMA that is issued later.

    Inline assembly with side effects fixes the position; the compiler would otherwise add at the first use.
    """
    asm = assembler(loc, ip)
    operands = [each.ir_value(loc=loc, ip=ip) for each in (Float32(total), Float32(value))]
    return Float32(asm(T.f32(), operands, "add.f32 $0, $1, $2;", "=f,f,f"))


@ConsumerTracer.handles(Promote)
def promote(tracer: ConsumerTracer, promote: Promote, at: At) -> None:
    """Add the accumulators of a k-tile to the f32 total (accumulator promotion of fp8), as the step `promote` says.

    tracer   emits the code of the consumer's program
    at       the consumer's position in its program: work tile, k-tile and pipeline state
    """
    products = tracer.products
    acc = products.accs[NUMBER[promote.accumulators]]
    first = cute.size(acc) if promote.accumulators == RIGHT else 0
    for i in range(cute.size(acc)):
        products.total[first + i] = added_here(products.total[first + i], acc[i])
