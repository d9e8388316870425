"""Model of the time of a schedule: when each step of each rank starts and ends.

A GEMM takes the time that the model of `choose` predicts for its rows, and longer if it stores to another rank. Copies,
signals and sums take a latency, and their bytes at the rate of the link or of the memory. GEMMs of one rank run one
after the other. A signal or a sum does not run next to a GEMM. Copies that read the memory of one rank share its link,
one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from cutegemm.choice.catalog import ranked
from cutegemm.dtypes import DType
from cutegemm.errors import SimulationError
from cutegemm.machine.device import Device
from cutegemm.machine.links import Link
from cutegemm.plan import Operands, Problem
from cutegemm.ranks.schedule import INPUT, OUTPUT, Schedule
from cutegemm.ranks.steps import Add, Barrier, Copy, Follow, Gemm, Region, Signal, Spread, Step, Wait, followed
from cutegemm.simulator.report import Fault

# Share of the time of a GEMM's stores to another rank that the GEMM does not hide: of all tiles, and of the last ones.
# 8192 x 4096 x 8192 takes 405 us in place of 352 us (two H100, 2026-11-27).
_SLOWED, _SLOWED_AT_END = 0.18, 0.7
# How many times as long the GEMMs of a shard take in chunks, in place of one launch: a reduce-scatter of 4096 x 8192 x
# 28672 takes 1319 us in two chunks and 1284 us by copy.
_IN_CHUNKS = 1.02
_TILE_BYTES = 1 << 16  # bytes of the last tile of an SM


@dataclass(frozen=True)
class Timed:
    """A step with its predicted start and end, in microseconds from the start of the call."""

    rank: int
    step: Step
    start: float
    end: float


class Clock:
    """Assigns a start and an end to each step, always to the step that can start first.

    device   GPU of each rank, whose rates the time model of GEMMs uses
    link     rates and latencies between two ranks
    """

    def __init__(self, schedule: Schedule, device: Device, link: Link) -> None:
        ranks = range(schedule.ranks)
        self.schedule, self.device, self.link = schedule, device, link
        self.multiprocessors = [0.0 for _ in ranks]  # when the GEMMs of a rank end
        self.sending = [0.0 for _ in ranks]  # when the link out of a rank is free
        self.signals: dict[tuple[int, int, int], float] = {}  # (from, to, flag) -> when the flag is set
        self.before = [followed(steps) for steps in schedule.steps]
        self.ends: list[dict[int, float]] = [{} for _ in ranks]  # index of a step -> when it ends
        # indices of the barriers of each rank, in order
        self.barriers = [[i for i, step in enumerate(steps) if isinstance(step, Barrier)] for steps in schedule.steps]
        self.heads = [
            [(rank, index) for index, step in enumerate(schedule.steps[rank]) if step.stream == stream]
            for rank in ranks
            for stream in schedule.streams(rank)
        ]

    def run(self) -> Iterator[Timed]:
        """Yield all steps in the order of their starts.

        raises   SimulationError if the steps that are left wait for each other
        """
        while any(self.heads):
            able = [(*when, *queue[0], queue) for queue in self.heads if queue and (when := self._when(*queue[0]))]
            if not able:
                waiting = [
                    f"rank {rank}: {self.schedule.steps[rank][at]}" for (rank, at), *_ in filter(None, self.heads)
                ]
                raise SimulationError(f"{self.schedule}", [Fault("deadlock", 1, ("; ".join(waiting) + ".",))])
            start, _, rank, index, queue = min(able, key=lambda one: one[:4])
            queue.pop(0)
            step = self.schedule.steps[rank][index]
            self.ends[rank][index] = end = self._ended(rank, step, start)
            yield Timed(rank, step, start, end)

    def _when(self, rank: int, index: int) -> tuple[float, float] | None:
        """Return (earliest start, when the steps before it have ended) of a step; None if it is not known yet."""
        step, ready = self.schedule.steps[rank][index], self._ready(rank, index)
        if ready is None:
            return None
        if isinstance(step, Wait) and (step.from_rank, rank, step.flag) not in self.signals:
            return None
        if isinstance(step, Barrier):
            met = self._met(self.barriers[rank].index(index))
            return None if met is None else (max(met, self.multiprocessors[rank]), ready)
        if isinstance(step, Follow):
            return ready, ready
        if isinstance(step, Copy):
            return max(ready, self.sending[step.source.rank] if self._is_remote(step) else 0.0), ready
        return max(ready, self.multiprocessors[rank]), ready

    def _ready(self, rank: int, index: int) -> float | None:
        """Return when the steps that a step follows have ended; None if it is not known yet."""
        ends = self.ends[rank]
        if not all(at in ends for at in self.before[rank][index]):
            return None
        return max((ends[at] for at in self.before[rank][index]), default=0.0)

    def _met(self, number: int) -> float | None:
        """Return when all ranks have reached the barrier of a number; None if it is not known yet."""
        if not all(number < len(indices) for indices in self.barriers):
            return None
        ready = [self._ready(rank, indices[number]) for rank, indices in enumerate(self.barriers)]
        known = [time for time in ready if time is not None]
        return max(known) if len(known) == len(ready) else None

    def _ended(self, rank: int, step: Step, start: float) -> float:
        """Return when a step ends, and occupy what it needs until then."""
        link, end = self.link, start
        if isinstance(step, Gemm):
            end += self.gemm_us(step.a.rows, len(step.adds))
            if step.d.rank != rank:
                end += self._stored_us(step)
            self.multiprocessors[rank] = end
        elif isinstance(step, Add):
            end += link.launch_us + self._moved_us(rank, (*step.sources, step.target))
        elif isinstance(step, Spread):
            end += self._moved_us(rank, step.targets)  # the barrier that follows is in the same kernel
        elif isinstance(step, Copy) and self._is_remote(step):
            sent = self._bytes(step.source) / link.copy_gb_s * 1e-3
            self.sending[step.source.rank] = start + sent
            end += link.copy_us + sent
        elif isinstance(step, Copy):
            end += link.local_us + self._moved_us(rank, (step.source, step.target))
        elif isinstance(step, Signal):
            end += link.signal_us
            self.signals[rank, step.to_rank, step.flag] = end
        elif isinstance(step, Wait):
            end = max(end + link.wait_us, self.signals[step.from_rank, rank, step.flag])
        elif isinstance(step, Barrier):
            end += link.barrier_us
        return end

    def gemm_us(self, rows: int, adds: int) -> float:
        """Return the predicted time of a GEMM of some rows, in microseconds.

        adds   number of regions that the epilogue adds
        """
        schedule = self.schedule
        types = schedule.buffer(INPUT).dtype, schedule.buffer(OUTPUT).dtype
        alone = _gemm_us(*types, Problem(rows, schedule.n, schedule.k), self.device, adds > 0)
        more = max(0, adds - 1) * rows * schedule.buffer(OUTPUT).row_bytes
        return alone * (_IN_CHUNKS if schedule.chunks > 1 else 1) + more / self.device.dram_gb_s * 1e-3

    def _stored_us(self, step: Gemm) -> float:
        """Return how much longer a GEMM takes that stores to another rank, in microseconds."""
        whole = self._bytes(step.d)
        last = min(whole, self.device.sms * _TILE_BYTES)
        return (_SLOWED * (whole - last) + _SLOWED_AT_END * last) / self.link.kernel_gb_s * 1e-3

    def _moved_us(self, rank: int, regions: tuple[Region, ...]) -> float:
        """Return how long a kernel loads or stores regions of its rank, and others over the link, in microseconds."""
        own = sum(self._bytes(region) for region in regions if region.rank == rank)
        others = sum(self._bytes(region) for region in regions if region.rank != rank)
        return max(own / self.device.dram_gb_s, others / self.link.kernel_gb_s) * 1e-3

    def _bytes(self, region: Region) -> int:
        """Return the bytes of a region."""
        return region.rows * self.schedule.buffer(region.buffer).row_bytes

    @staticmethod
    def _is_remote(step: Copy) -> bool:
        """Return whether a copy is between two ranks."""
        return step.source.rank != step.target.rank


@lru_cache(maxsize=4096)
def _gemm_us(dtype: DType, out_dtype: DType, problem: Problem, device: Device, with_c: bool) -> float:
    """Return the lowest predicted time of the plans for a GEMM, in microseconds; weights are stored as (N, K)."""
    operands = Operands.of(dtype, layout="nt", out=out_dtype).fitted(problem.m, problem.n, problem.k)
    return next(ranked(operands, problem, device.arch, device, with_c=with_c)).us
