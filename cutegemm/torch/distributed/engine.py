"""Execute the schedule of a rank: launches, copies, signals and waits on the streams of its GPU.

A schedule (`cutegemm.ranks`) has the steps of each rank in order. The engine gives its buffers memory and its
streams CUDA streams, and issues the steps. What a GEMM computes is a `Work`: the engine knows no epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from cutegemm.errors import UnsupportedError
from cutegemm.ranks.builders import schedule_of
from cutegemm.ranks.schedule import FINAL, INPUT, MAIN, OUTPUT, SECOND, Schedule
from cutegemm.ranks.steps import Add, Barrier, Copy, Follow, Gemm, Region, Signal, Step, Wait
from cutegemm.run.torch_ops import DTYPES, memory_of
from cutegemm.torch.distributed.memory import aligned

_URGENT = -1  # priority of the streams for copies: their signals start before further CTAs of a GEMM


class Memory(Protocol):
    """Memory and flags of the ranks of a group, as `memory.SymmetricMemory` has them."""

    rank: int
    ranks: int
    size_bytes: int

    @property
    def flags(self) -> int: ...
    def reserve(self, size_bytes: int, keeps: bool = False) -> bool: ...
    def matrix(self, rank: int, offset_bytes: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor: ...
    def signal(self, rank: int, flag: int) -> None: ...
    def wait(self, rank: int, flag: int) -> None: ...
    def barrier(self) -> None: ...


class Request(NamedTuple):
    """A call as all ranks know it: what its schedule depends on.

    operation          "all_gather", "reduce_scatter" or "all_reduce"
    m, n, k            rows of all ranks together; columns and rows of this rank's weights
    dtype, out_dtype   torch dtypes of the operands, and of the result and partial results
    form               "whole" or "by_shard"
    chunks             launches for the rows that a rank owns, of an all-reduce by shard
    """

    operation: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    out_dtype: torch.dtype
    form: str
    chunks: int = 1

    def schedule(self, ranks: int, is_captured: bool = False) -> Schedule:
        """Return the schedule of this call for a number of ranks."""
        kinds = DTYPES[self.dtype], DTYPES[self.out_dtype]
        extents = self.m, self.n, self.k
        return schedule_of(
            self.operation, ranks, *extents, *kinds, form=self.form, chunks=self.chunks, is_captured=is_captured
        )


class Work(Protocol):
    """What the GEMMs and sums of one call compute.

    x           input of this rank
    d           result of this rank, for copies into it
    signature   what the kernels depend on: types, shapes, strides, alignments and options
    """

    @property
    def x(self) -> torch.Tensor: ...
    @property
    def d(self) -> torch.Tensor: ...
    @property
    def signature(self) -> Any: ...

    def multiply(
        self, a: torch.Tensor, out: torch.Tensor | None, first_row: int, adds: Sequence[torch.Tensor], is_final: bool
    ) -> None:
        """Multiply rows by the weights.

        a           rows of A
        out         matrix to store to; None for the result of the call, from row `first_row` on
        adds        matrices to add to the accumulator, in this order
        is_final    whether the values are final, so that the epilogue is computed
        """

    def add(self, sources: Sequence[torch.Tensor], out: torch.Tensor | None, first_row: int, is_final: bool) -> None:
        """Add matrices in their order, and store the sum; the arguments are those of `multiply`."""


class Engine:
    """Executes schedules on one rank of a group; all ranks must execute the same schedules in the same order.

    memory   memory and flags of the group
    device   device of this rank
    """

    def __init__(self, memory: Memory, device: torch.device) -> None:
        self.memory, self.device = memory, device
        self.calls = 0  # number of the next call, whose parity selects the copy of the buffers
        self.is_captured = False  # whether a CUDA graph has captured a call
        self._bound: dict[tuple[Any, ...], list[Issued]] = {}
        self._ready: set[Any] = set()
        self._streams: dict[str, Any] = {}
        self._ended: tuple[Any, Any] | None = None  # stream and event of the end of the last call

    def run(self, request: Request, work: Work) -> None:
        """Execute a call. On a GPU, its work is ordered by the current stream, as that of a kernel is.

        request   the operation and its extents, the same on all ranks
        work      what this rank computes
        raises    UnsupportedError while a CUDA graph is captured, if the same call was not made before
        """
        is_capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        ready = (request, work.signature)
        if is_capturing and ready not in self._ready:
            raise UnsupportedError(
                f"{request.operation}: a CUDA graph cannot capture the first call of a shape, because it loads "
                "kernels and allocates memory on all ranks. Make the call once on all ranks before the capture."
            )
        self.is_captured = self.is_captured or is_capturing
        steps = self._steps(request, 0 if self.is_captured else self.calls % 2)
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            if ready not in self._ready:
                self._rehearse(steps, work)
                self._ready.add(ready)
            self._issue(steps, work)
        self.calls += 1

    def rehearse(self, request: Request, work: Work) -> None:
        """Launch the GEMMs and sums of a call, without the other ranks, so that their kernels are compiled.

        request, work   as for `run`
        """
        self._rehearse(self._steps(request, 0), work)

    # --- memory -----------------------------------------------------------------------------------------------------

    def _steps(self, request: Request, copy: int) -> list[Issued]:
        """Return the steps of this rank with their memory and streams; steps of an earlier call are used again.

        copy   which half of the memory holds the internal buffers
        """
        key = (request, copy, self.is_captured)
        found = self._bound.get(key)
        if found is not None:
            return found
        schedule = request.schedule(self.memory.ranks, self.is_captured)
        if schedule.flags > self.memory.flags:
            raise UnsupportedError(
                f"{schedule}: it needs {schedule.flags} flags between two ranks, and torch's signal pad has "
                f"{self.memory.flags}. Enlarge it by torch.distributed._symmetric_memory.set_signal_pad_size."
            )
        internal = [buffer for buffer in schedule.buffers if buffer.name not in (INPUT, OUTPUT)]
        size = sum(aligned(buffer.rows * buffer.row_bytes) for buffer in internal)
        if self.memory.reserve(2 * size, keeps=self.is_captured):
            self._bound.clear()
        offset, offsets = copy * aligned(self.memory.size_bytes // 2), {}
        for buffer in internal:
            offsets[buffer.name] = offset
            offset += aligned(buffer.rows * buffer.row_bytes)

        def matrix(region: Region) -> torch.Tensor | None:
            """Return the matrix of a region in internal memory; None for a region of the caller's tensors."""
            if region.buffer not in offsets:
                return None
            buffer = schedule.buffer(region.buffer)
            start = offsets[region.buffer] + region.first_row * buffer.row_bytes
            return self.memory.matrix(region.rank, start, region.rows, buffer.columns, memory_of(buffer.dtype))

        own = schedule.steps[self.memory.rank]
        if self.is_captured and not isinstance(own[0], Barrier):
            # A schedule may need none after a call of its own kind, but calls of any kind share the memory.
            own = (Barrier(MAIN), *own)
        steps = [Issued(step, self._stream(step.stream), matrix, self._stream) for step in own]
        self._bound[key] = steps
        return steps

    def _stream(self, name: str) -> Any:
        """Return the CUDA stream of a name; None for the caller's, and without a GPU."""
        if name == MAIN or self.device.type != "cuda":
            return None
        if name not in self._streams:
            priority = 0 if name == SECOND else _URGENT
            self._streams[name] = torch.cuda.Stream(self.device, priority=priority)
        return self._streams[name]

    # --- steps ------------------------------------------------------------------------------------------------------

    def _rehearse(self, steps: Sequence[Issued], work: Work) -> None:
        """Launch each GEMM and sum once without the other ranks, so that its kernel is compiled and loaded.

        CUDA may wait for all running kernels when it loads another one, or allocates memory. If one of these waits for
        a rank that waits for this one, nothing would continue. So all kernels are loaded, and the workspaces of their
        streams allocated, before the first wait.

        Nothing is written but the caller's result and this rank's own buffers, which the call overwrites.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for issued in steps:
            if isinstance(issued.step, Gemm | Add):
                with nullcontext() if issued.stream is None else torch.cuda.stream(issued.stream):
                    self._compute(issued, work, is_rehearsal=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _issue(self, steps: Sequence[Issued], work: Work) -> None:
        """Issue all steps of a call in order."""
        if self.device.type != "cuda":
            for issued in steps:
                self._carry_out(issued, work)
            return
        main = torch.cuda.current_stream(self.device)
        if self._ended is not None and self._ended[0] != main and not torch.cuda.is_current_stream_capturing():
            main.wait_event(self._ended[1])
        current = main
        try:
            for issued in steps:
                stream = issued.stream or main
                if isinstance(issued.step, Follow):
                    issued.event.record(issued.followed or main)
                    stream.wait_event(issued.event)
                    continue
                if stream is not current:
                    torch.cuda.set_stream(stream)
                    current = stream
                self._carry_out(issued, work)
        finally:
            if current is not main:
                torch.cuda.set_stream(main)
        if not torch.cuda.is_current_stream_capturing():
            event = torch.cuda.Event() if self._ended is None else self._ended[1]
            event.record(main)
            self._ended = main, event

    def _carry_out(self, issued: Issued, work: Work) -> None:
        """Issue a step on the current stream."""
        step = issued.step
        if isinstance(step, Gemm | Add):
            self._compute(issued, work)
        elif isinstance(step, Copy):
            source, target = issued.matrices
            if target is None:
                target = _rows(work.d, step.target)
            target.copy_(_rows(work.x, step.source) if source is None else source)
        elif isinstance(step, Signal):
            self.memory.signal(step.to_rank, step.flag)
        elif isinstance(step, Wait):
            self.memory.wait(step.from_rank, step.flag)
        elif isinstance(step, Barrier):
            self.memory.barrier()
        elif not isinstance(step, Follow):
            raise TypeError(f"the engine cannot execute the {type(step).__name__} {step}.")

    def _compute(self, issued: Issued, work: Work, is_rehearsal: bool = False) -> None:
        """Issue a GEMM or a sum on the current stream.

        is_rehearsal   True to store to memory of this rank only
        """
        step = issued.step
        if isinstance(step, Gemm):
            a, out, *adds = issued.matrices
            region = step.d
        elif isinstance(step, Add):
            *adds, out = issued.matrices
            region = step.target
        if is_rehearsal and out is not None and region.rank != self.memory.rank:
            out = torch.empty_like(out)
        is_final = region.buffer in FINAL
        if isinstance(step, Gemm):
            rows = _rows(work.x, step.a) if a is None else a
            work.multiply(rows, out, region.first_row, adds, is_final)
        else:
            work.add(adds, out, region.first_row, is_final)


class Issued:
    """A step with its memory and its streams, as the engine issues it in each call.

    step       the step of the schedule
    stream     its CUDA stream; None for the caller's
    followed   stream that a `Follow` waits for; None for the caller's
    matrices   a matrix for each region: A, D and the added ones of a GEMM; the sources and the target of a sum or a
               copy. None for a region of the caller's tensors
    """

    def __init__(
        self,
        step: Step,
        stream: Any,
        matrix: Callable[[Region], torch.Tensor | None],
        stream_of: Callable[[str], Any],
    ) -> None:
        self.step, self.stream = step, stream
        self.followed: Any = None
        self.event: Any = None
        if isinstance(step, Follow):
            self.followed = stream_of(step.after)
            self.event = torch.cuda.Event() if torch.cuda.is_available() else None
        regions: tuple[Region, ...] = ()
        if isinstance(step, Gemm):
            regions = (step.a, step.d, *step.adds)
        elif isinstance(step, Add):
            regions = (*step.sources, step.target)
        elif isinstance(step, Copy):
            regions = (step.source, step.target)
        self.matrices: list[Any] = [matrix(region) for region in regions]


def _rows(x: torch.Tensor, region: Region) -> torch.Tensor:
    """Return the rows of a tensor of the caller that a region names."""
    return x if region.rows == x.shape[0] else x.narrow(0, region.first_row, region.rows)
