"""The kernel of `plan.memory.exchange`: ranks store rows on all ranks, or add the rows of all ranks.

| step of a CTA                                                                                                     |
|-------------------------------------------------------------------------------------------------------------------|
| wait for the previous kernel of the stream (PDL)                                                                  |
| spread: copy its share of the rows to all ranks                                                                   |
| meet: thread t sets a flag of rank t by a release, and waits by an acquire for the flag that rank t sets here     |
| let the next kernel of the stream start (PDL)                                                                     |
| sum: add its share of the rows of all ranks in f32, round, and store                                              |
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64
from cutlass.cutlass_dsl import dsl_user_op

from cutegemm.kernels import lower
from cutegemm.kernels.assembly import assembler
from cutegemm.machine.arch import Arch
from cutegemm.plan.memory.exchange import MOST_RANKS, VECTOR_BYTES, Exchange

_FLAG_BYTES = 4


def host_function(exchange: Exchange, arch: Arch) -> Any:
    """Return the host function that launches an exchange; its arguments are those of `Exchanger.__call__`.

    exchange   operation, ranks and element type
    arch       architecture to compile for
    """
    return Exchanger(exchange)


def fake_arguments(exchange: Exchange) -> tuple[Any, ...]:
    """Return placeholders with which the kernel is traced."""
    kind = lower.dtype(exchange.dtype)
    extents = cute.sym_int32(), cute.sym_int32()
    rows = cute.runtime.make_fake_tensor(kind, extents, (cute.sym_int64(), 1), assumed_align=VECTOR_BYTES)
    counters = cute.runtime.make_fake_compact_tensor(Int32, (cute.sym_int64(),), assumed_align=_FLAG_BYTES)
    addresses = [Int64(0) for _ in range(2 * MOST_RANKS)]
    return rows, counters, Int32(0), Int64(0), *addresses, cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True)


@dsl_user_op
def trap(*, loc: Any = None, ip: Any = None) -> None:
    """Abort the kernel: the CUDA context of the process is lost."""
    assembler(loc, ip)(None, [], "trap;", "")


class Exchanger:
    """Emits the exchange kernel of a group of ranks.

    Methods without a decorator such as @cute.jit are plain Python that runs while the DSL traces the kernel.

    exchange   operation, ranks and element type
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    @cute.jit
    def __call__(
        self, mX: cute.Tensor, mC: cute.Tensor, rank: Int32, limit_ns: Int64,
        p0: Int64, p1: Int64, p2: Int64, p3: Int64, p4: Int64, p5: Int64, p6: Int64, p7: Int64,
        f0: Int64, f1: Int64, f2: Int64, f3: Int64, f4: Int64, f5: Int64, f6: Int64, f7: Int64,
        stream,
    ):  # fmt: skip
        """Launch the kernel. Runs on the host.

        mX         rows of this rank: those to spread, or those of the sum. Contiguous
        mC         counters of this rank: the meetings of each CTA with each rank
        rank       this rank
        limit_ns   nanoseconds that a CTA waits before it aborts the kernel; 0 for no limit
        p0...      address on each rank of the rows to store to or to add, in the order of the sum
        f0...      address on each rank of its flags
        stream     CUDA stream of the launch
        """
        exchange = self.exchange
        size = Int64(mX.shape[0]) * mX.shape[1] * (exchange.dtype.bits // 8)
        vectors = Int32(size // VECTOR_BYTES)
        ctas = cutlass.min(cute.ceil_div(vectors, exchange.threads), exchange.most_ctas)
        theirs = (p0, p1, p2, p3, p4, p5, p6, p7)[: exchange.ranks]
        flags = (f0, f1, f2, f3, f4, f5, f6, f7)[: exchange.ranks]
        self.exchange_kernel(mX, mC, rank, limit_ns, theirs, flags, vectors).launch(
            grid=(ctas, 1, 1), block=(exchange.threads, 1, 1), stream=stream, use_pdl=True
        )

    @cute.kernel
    def exchange_kernel(
        self, mX: cute.Tensor, mC: cute.Tensor, rank: Int32, limit_ns: Int64, theirs: tuple, flags: tuple,
        vectors: Int32,
    ):  # fmt: skip
        """Exchange the share of each CTA (device code).

        theirs    addresses of the rows on all ranks
        flags     addresses of the flags of all ranks
        vectors   vectors of 16 bytes of the rows
        others    as for `__call__`
        """
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        ctas, _, _ = cute.arch.grid_dim()
        own = self.vectors_at(mX.iterator, vectors)
        others = [self.vectors_at(self.pointer(mX.element_type, address), vectors) for address in theirs]
        first, step = cta * self.exchange.threads + tid, ctas * self.exchange.threads
        cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(not self.exchange.adds):
            for i in cutlass.range(first, vectors, step, unroll=2):
                held = cute.make_rmem_tensor(own.shape[0], own.element_type)
                cute.autovec_copy(own[None, i], held)
                for other in others:
                    cute.autovec_copy(held, other[None, i])
        if cutlass.const_expr(self.exchange.meets):
            self.meet(mC, rank, limit_ns, flags, cta, tid)
        cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(self.exchange.adds):
            for i in cutlass.range(first, vectors, step, unroll=2):
                parts = [cute.make_rmem_tensor(own.shape[0], own.element_type) for _ in others]
                for part, other in zip(parts, others, strict=True):
                    cute.autovec_copy(other[None, i], part)
                total = parts[0].load().to(Float32)
                for part in parts[1:]:
                    total = total + part.load().to(Float32)
                parts[0].store(total.to(own.element_type))
                cute.autovec_copy(parts[0], own[None, i])

    def pointer(self, kind: Any, address: Any, align: int = VECTOR_BYTES) -> Any:
        """Return a pointer to global memory.

        kind      element type
        address   the address, an integer
        align     bytes that divide the address
        """
        return cute.make_ptr(kind, address, cute.AddressSpace.gmem, assumed_align=align)

    def vectors_at(self, pointer: Any, vectors: Any) -> cute.Tensor:
        """View contiguous memory as a tensor (elements of a vector, vectors)."""
        elements = VECTOR_BYTES * 8 // self.exchange.dtype.bits
        return cute.make_tensor(pointer, cute.make_layout((elements, vectors), stride=(1, elements)))

    def at(self, addresses: tuple, rank: Any) -> Any:
        """Return the address of a rank that is known at run time."""
        found = addresses[0]
        for each in range(1, len(addresses)):
            found = cutlass.select_(rank == each, addresses[each], found)
        return found

    @cute.jit
    def meet(self, mC: cute.Tensor, rank: Int32, limit_ns: Int64, flags: tuple, cta: Int32, tid: Int32):
        """Wait until the CTAs of the same index on all ranks are here. All threads of the CTA call it.

        What threads of the CTA stored before is visible to all threads of those CTAs afterwards.
        """
        ranks = self.exchange.ranks
        cute.arch.sync_threads()
        if tid < ranks:
            place = cta * ranks
            meeting = mC[place + tid] + 1
            mC[place + tid] = meeting
            there = self.at(flags, tid) + Int64(_FLAG_BYTES * (place + rank))
            here = self.pointer(Int32, self.at(flags, rank) + Int64(_FLAG_BYTES * (place + tid)), _FLAG_BYTES)
            cute.arch.store(self.pointer(Int32, there, _FLAG_BYTES), meeting, sem="release", scope="sys")
            begun = cute.arch.globaltimer()
            seen = cute.arch.load(here, Int32, sem="acquire", scope="sys")
            while seen - meeting < 0:
                seen = cute.arch.load(here, Int32, sem="acquire", scope="sys")
                if limit_ns > 0:
                    if cute.arch.globaltimer() - begun > limit_ns:
                        cute.printf("cutegemm: rank %d waits for rank %d: the time limit has passed", rank, tid)
                        trap()
        cute.arch.sync_threads()
