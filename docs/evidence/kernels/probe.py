"""One instruction of one warp on shared memory at given addresses, so that counters show this instruction alone.

Each lane loads its byte offset from global memory, and for a copy also its source. Then it executes one `ld`, `st`,
`ldmatrix`, `stmatrix` or `cp.async`, which the compiler can neither widen nor remove.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from cutegemm.machine.arch import WARP_THREADS

SMEM_BYTES = 1 << 16

_LOADS = {
    32: "ld.volatile.shared.b32 $0, [$1];",
    64: "{ .reg .b32 x, y; ld.volatile.shared.v2.b32 {x, y}, [$1]; xor.b32 $0, x, y; }",
    128: "{ .reg .b32 x, y, z, w; ld.volatile.shared.v4.b32 {x, y, z, w}, [$1]; xor.b32 x, x, y; "
    "xor.b32 z, z, w; xor.b32 $0, x, z; }",
}
_STORES = {
    32: "st.volatile.shared.b32 [$1], $1; mov.b32 $0, $1;",
    64: "st.volatile.shared.v2.b32 [$1], {$1, $1}; mov.b32 $0, $1;",
    128: "st.volatile.shared.v4.b32 [$1], {$1, $1, $1, $1}; mov.b32 $0, $1;",
}


def asm_of(op: str, bits: int, matrices: int = 4, transpose: bool = False) -> str:
    """Return the instruction as inline assembly: $0 is the result, $1 the shared address, $2 the global address.

    op   load, store, ldmatrix, stmatrix or cp.async
    """
    if op == "load":
        return _LOADS[bits]
    if op == "store":
        return _STORES[bits]
    if op == "cp.async":
        size = bits // 8
        kind = "cg" if size == 16 else "ca"
        return f"cp.async.{kind}.shared.global [$1], [$2], {size}; cp.async.wait_all; mov.b32 $0, $1;"
    names = ["x", "y", "z", "w"][:matrices]
    form = f"sync.aligned.m8n8.x{matrices}{'.trans' if transpose else ''}.shared.b16"
    regs = "{" + ", ".join(names) + "}"
    declared = ".reg .b32 " + ", ".join(names) + ";"
    if op == "ldmatrix":
        return f"{{ {declared} ldmatrix.{form} {regs}, [$1]; mov.b32 $0, x; }}"
    filled = " ".join(f"mov.b32 {name}, $1;" for name in names)
    return f"{{ {declared} {filled} stmatrix.{form} [$1], {regs}; mov.b32 $0, $1; }}"


@dsl_user_op
def _emit(text: str, shared: Int32, source: cutlass.Int64, *, loc=None, ip=None) -> Int32:
    operands = [shared.ir_value(loc=loc, ip=ip), source.ir_value(loc=loc, ip=ip)]
    dialect = llvm.AsmDialect.AD_ATT
    out = llvm.inline_asm(
        T.i32(), operands, text, "=r,r,l", has_side_effects=True, is_align_stack=False, asm_dialect=dialect,
        loc=loc, ip=ip,
    )  # fmt: skip
    return Int32(out)


class Probe:
    """The kernel of one instruction: (offsets, sources, data, out, stream) -> None."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cute.jit
    def __call__(self, offsets: cute.Tensor, sources: cute.Tensor, data: cute.Tensor, out: cute.Tensor, stream):
        self.kernel(offsets, sources, data, out).launch(grid=(1, 1, 1), block=(WARP_THREADS, 1, 1), stream=stream)

    @cute.kernel
    def kernel(self, offsets: cute.Tensor, sources: cute.Tensor, data: cute.Tensor, out: cute.Tensor):
        lane, _, _ = cute.arch.thread_idx()
        smem = cutlass.memory.SmemAllocator()
        base = smem.allocate_array(cutlass.Int32, SMEM_BYTES // 4, byte_alignment=1024)
        shared = base.toint() + offsets[lane]
        source = data.iterator.toint() + cutlass.Int64(sources[lane])
        out[lane] = _emit(self.text, shared, source)


def compile_probe(text: str) -> Any:
    """Return the compiled probe, called with int32 tensors: 32 offsets, 32 sources, the data and 32 results."""
    lanes = [cute.runtime.make_fake_compact_tensor(Int32, (WARP_THREADS,), assumed_align=16) for _ in range(3)]
    data = cute.runtime.make_fake_compact_tensor(Int32, (cute.sym_int32(),), assumed_align=16)
    stream = cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)
    arguments = (lanes[0], lanes[1], data, lanes[2], stream)
    return cute.compile(Probe(text), *arguments, options="--enable-tvm-ffi")
