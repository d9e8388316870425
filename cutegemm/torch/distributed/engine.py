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
from cutegemm.ranks.steps import Add, Barrier, Copy, Follow, Gemm, Region, Signal, Spread, Step, Wait
from cutegemm.run.torch_ops import DTYPES, memory_of
from cutegemm.torch.distributed.memory import aligned

_HERE = nullcontext()
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
    def exchange(
        self, operation: str, rows: Sequence[torch.Tensor]
    ) -> Callable[[torch.Tensor], None] | None: ...  # as SymmetricMemory.exchange


class Request(NamedTuple):
    """A call as all ranks know it: what its schedule depends on.

    operation          "all_gather", "reduce_scatter" or "all_reduce"
    m, n, k            rows of all ranks together; columns and rows of this rank's weights
    dtype, out_dtype   torch dtypes of the operands, and of the result and partial results
    form               "whole", "by_shard" or "by_copy", as for `cutegemm.ranks.schedule_of`
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
    adds_more   whether final sums have a bias
    """

    @property
    def x(self) -> torch.Tensor: ...
    @property
    def d(self) -> torch.Tensor: ...
    @property
    def signature(self) -> Any: ...
    @property
    def adds_more(self) -> bool: ...

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
        self._on_gpu = device.type == "cuda"

    def run(self, request: Request, work: Work) -> None:
        """Execute a call. On a GPU, its work is ordered by the current stream, as that of a kernel is.

        request   the operation and its extents, the same on all ranks
        work      what this rank computes
        raises    UnsupportedError while a CUDA graph is captured, if the same call was not made before
        """
        is_capturing = self._on_gpu and torch.cuda.is_current_stream_capturing()
        ready = (request, work.signature)
        is_ready = ready in self._ready
        if is_capturing and not is_ready:
            raise UnsupportedError(
                f"{request.operation}: a CUDA graph cannot capture the first call of a shape, because it loads "
                "kernels and allocates memory on all ranks. Make the call once on all ranks before the capture."
            )
        self.is_captured = self.is_captured or is_capturing
        is_elsewhere = self._on_gpu and torch.cuda.current_device() != self.device.index
        with torch.cuda.device(self.device) if is_elsewhere else _HERE:
            steps = self._steps(request, 0 if self.is_captured else self.calls % 2)
            if not is_ready:
                self._rehearse(steps, work)
                self._ready.add(ready)
            if self._on_gpu:
                self._issue(steps, work, is_capturing)
            else:
                for issued in steps:
                    issued.issue(work, None)
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

        steps = self._bound[key] = self._bind(schedule.steps[self.memory.rank], matrix)
        return steps

    def _bind(self, steps: Sequence[Step], matrix: Callable[[Region], Any]) -> list[Issued]:
        """Return steps with their memory and streams. A kernel that exchanges rows replaces a sum and its barrier.

        matrix   function that returns the matrix of a region; None for a region of the caller's tensors
        """
        bound: list[Issued] = []
        for step, after in zip(steps, [*steps[1:], None], strict=True):
            before = bound[-1].step if bound else None
            if isinstance(step, Barrier) and isinstance(before, Spread) and bound[-1].exchange:
                continue  # the kernel is a barrier too
            issued = Issued(step, self._stream(step.stream), matrix, self)
            if isinstance(step, Spread) and isinstance(after, Barrier):
                self._exchanged(issued, "spread")
            elif isinstance(step, Add):
                meets = isinstance(before, Barrier)
                if self._exchanged(issued, "met sum" if meets else "sum") and meets:
                    issued.barrier = bound.pop()
            bound.append(issued)
        return bound

    def _exchanged(self, issued: Issued, operation: str) -> bool:
        """Let a step be computed by a kernel that exchanges rows, and return whether there is one."""
        others = issued.matrices[1:] if operation == "spread" else issued.matrices[:-1]
        issued.exchange = self.memory.exchange(operation, others)
        return issued.exchange is not None

    def _stream(self, name: str) -> Any:
        """Return the CUDA stream of a name; None for the caller's, and without a GPU."""
        if name == MAIN or not self._on_gpu:
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

        Nothing is written but the caller's result, which the call overwrites: another rank may still read internal
        buffers, in the call before.
        """
        if self._on_gpu:
            torch.cuda.synchronize(self.device)
        for issued in steps:
            if isinstance(issued.step, Gemm | Add):
                with nullcontext() if issued.stream is None else torch.cuda.stream(issued.stream):
                    issued.rehearse(work)
        if self._on_gpu:
            torch.cuda.synchronize(self.device)

    def _issue(self, steps: Sequence[Issued], work: Work, is_capturing: bool) -> None:
        """Issue all steps of a call in order, on the streams of the GPU."""
        main = torch.cuda.current_stream(self.device)
        ended = self._ended
        if ended is not None and ended[0] != main and not is_capturing:
            main.wait_event(ended[1])
        current = main
        try:
            for issued in steps:
                stream = issued.stream or main
                if stream is not current and not issued.is_follow:
                    torch.cuda.set_stream(stream)
                    current = stream
                issued.issue(work, main)
        finally:
            if current is not main:
                torch.cuda.set_stream(main)
        if not is_capturing:
            event = torch.cuda.Event() if ended is None else ended[1]
            event.record(main)
            self._ended = main, event


class Issued:
    """A step with its memory and its streams, as the engine issues it in each call.

    step       the step of the schedule
    stream     its CUDA stream; None for the caller's
    matrices   a matrix for each region: A, D and the added ones of a GEMM; the sources and the target of a sum or a
               copy; the source and the targets of a spread. None for a region of the caller's tensors
    exchange   function of rows of this rank that computes the step by one kernel; None without one
    barrier    barrier that this kernel replaces, for a work that it does not compute; None without one
    issue      function that issues the step, on the current stream: (work, the caller's stream) -> None
    """

    def __init__(
        self, step: Step, stream: Any, matrix: Callable[[Region], torch.Tensor | None], engine: Engine
    ) -> None:
        self.step, self.stream = step, stream
        self.exchange: Callable[[torch.Tensor], None] | None = None
        self.barrier: Issued | None = None
        self.is_follow = isinstance(step, Follow)
        regions: tuple[Region, ...] = ()
        if isinstance(step, Gemm):
            regions = (step.a, step.d, *step.adds)
        elif isinstance(step, Add):
            regions = (*step.sources, step.target)
        elif isinstance(step, Copy):
            regions = (step.source, step.target)
        elif isinstance(step, Spread):
            regions = (step.source, *step.targets)
        self.matrices: list[Any] = [matrix(region) for region in regions]
        self.issue: Callable[[Work, Any], None] = self._issuer(engine)

    def _issuer(self, engine: Engine) -> Callable[[Work, Any], None]:
        """Return the function that issues this step on the current stream."""
        step, memory = self.step, engine.memory
        if isinstance(step, Follow):
            return _follow(self.stream, engine._stream(step.after)) if engine._on_gpu else _nothing
        if isinstance(step, Signal):
            return lambda work, main: memory.signal(step.to_rank, step.flag)
        if isinstance(step, Wait):
            return lambda work, main: memory.wait(step.from_rank, step.flag)
        if isinstance(step, Barrier):
            return lambda work, main: memory.barrier()
        if isinstance(step, Gemm):
            return self._multiply
        if isinstance(step, Add):
            return self._add
        if isinstance(step, Copy):
            return self._copy
        if isinstance(step, Spread):
            return self._spread
        raise TypeError(f"the engine cannot execute the {type(step).__name__} {step}.")

    def rehearse(self, work: Work) -> None:
        """Launch a GEMM or a sum, storing to the caller's result or to memory that no other rank reads."""
        step: Any = self.step
        out = self.matrices[1 if isinstance(step, Gemm) else -1]
        scratch = None if out is None else torch.empty_like(out)
        if isinstance(step, Gemm):
            self._multiply(work, None, scratch)
        else:
            work.add(self.matrices[:-1], scratch, step.target.first_row, step.target.buffer in FINAL)

    def _multiply(self, work: Work, main: Any, instead: torch.Tensor | None = None) -> None:
        """Issue a GEMM.

        instead   tensor to store to in place of D; None for D
        """
        step: Any = self.step
        a, out, *adds = self.matrices
        rows = _rows(work.x, step.a) if a is None else a
        work.multiply(rows, out if instead is None else instead, step.d.first_row, adds, step.d.buffer in FINAL)

    def _add(self, work: Work, main: Any) -> None:
        """Issue a sum, with its barrier."""
        step: Any = self.step
        *sources, out = self.matrices
        is_final = step.target.buffer in FINAL
        if self.exchange is not None and not (is_final and work.adds_more):
            self.exchange(_rows(work.d, step.target) if out is None else out)
            return
        if self.barrier is not None:
            self.barrier.issue(work, main)
        work.add(sources, out, step.target.first_row, is_final)

    def _copy(self, work: Work, main: Any) -> None:
        """Issue a copy."""
        step: Any = self.step
        source, target = self.matrices
        if target is None:
            target = _rows(work.d, step.target)
        target.copy_(_rows(work.x, step.source) if source is None else source)

    def _spread(self, work: Work, main: Any) -> None:
        """Issue the copies to several ranks, or the kernel that is also the barrier after them."""
        step: Any = self.step
        source, *targets = self.matrices
        rows = _rows(work.x, step.source) if source is None else source
        if self.exchange is not None:
            self.exchange(rows)
            return
        for target in targets:
            target.copy_(rows)


def _follow(stream: Any, after: Any) -> Callable[[Work, Any], None]:
    """Return the function that lets a stream wait for the work of another; None is the caller's stream."""
    event = torch.cuda.Event()

    def follow(work: Work, main: Any) -> None:
        """Record the event in one stream, and let the other wait for it."""
        event.record(after or main)
        (stream or main).wait_event(event)

    return follow


def _nothing(work: Work, main: Any) -> None:
    """Do nothing: without a GPU, steps run one after the other."""


def _rows(x: torch.Tensor, region: Region) -> torch.Tensor:
    """Return the rows of a tensor of the caller that a region names."""
    return x if region.rows == x.shape[0] else x.narrow(0, region.first_row, region.rows)
