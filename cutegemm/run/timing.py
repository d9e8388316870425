"""Time several calls on the GPU in alternation, so that their times can be compared.

A GPU throttles by power, so the time of a kernel depends on what ran before it and on the values of its operands.
Therefore every round runs all calls in a random order, and then in the reverse order. Before each call, more memory is
written than the L2 cache holds. The time of a call in a round is the mean of its two runs; the result is the median of
the rounds. Both orders are needed because a call of a few microseconds can take 1 us more or less, depending on whether
the device was idle before it. With one order, the median could be either of the two times.

Other processes can disturb a machine for tens of milliseconds. If the median of the first half of the rounds and the
median of the second half differ for any call, all calls are timed again.

The write to memory also hides the time of the launch on the host. If the host takes longer than the write, the device
waits, and the time of that run is not used.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

DEVICE = "cuda"
_FLUSH_BYTES = 256 << 20  # larger than any L2 cache
_WARM_SECONDS, _LEAST_ROUNDS = 0.1, 3
_STEADY = 1.1  # largest ratio of the medians of the two halves of the rounds
_MOST_TRIES = 4  # after as many measurements the times are used even if they are not steady


def alternating(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """Run several calls in alternation on the GPU, and return the median time of each call, in seconds.

    The L2 cache is flushed before each run. A run is used only if the device did not wait for the host in it; if a call
    has fewer than three such runs, all count.

    calls     functions that launch work on the current stream
    seconds   time to measure all calls together; at least three rounds are run, each with two runs of every call
    """
    order, indices = random.Random(0), list(range(len(calls)))
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=DEVICE)

    def timed(call: Callable[[], Any]) -> tuple[Any, Any, Any, float]:
        """Flush the L2 cache and run a function that launches a kernel, without waiting for the device.

        call      the function, without arguments
        returns   CUDA events before the flush, before the call and after it; and the seconds that the host took to
                  record, flush and call
        """
        event: Any = torch.cuda.Event
        begun, start, end = (event(enable_timing=True) for _ in range(3))
        before = time.perf_counter()
        begun.record()
        flush.zero_()
        start.record()
        call()
        launched = time.perf_counter() - before
        end.record()
        return begun, start, end, launched

    def run_rounds(deadline: float, least: int) -> list[_Times]:
        """Time all calls in rounds (each call twice per round), and return the times of each call.

        deadline   value of time.perf_counter() after which no round starts
        least      number of rounds that are run even after the deadline
        """
        all_times = [_Times() for _ in calls]
        while len(all_times[0].every) < 2 * least or time.perf_counter() < deadline:
            order.shuffle(indices)
            for indices_in_order in (indices, indices[::-1]):
                events = [(index, *timed(calls[index])) for index in indices_in_order]
                torch.cuda.synchronize()
                for index, begun, start, end, host_seconds in events:
                    is_hidden = host_seconds <= begun.elapsed_time(start) * 1e-3
                    all_times[index].every.append((start.elapsed_time(end) * 1e-3, is_hidden))
        return all_times

    run_rounds(time.perf_counter() + _WARM_SECONDS, 1)
    for _ in range(_MOST_TRIES):
        all_times = run_rounds(time.perf_counter() + seconds, _LEAST_ROUNDS)
        if all(times.is_steady for times in all_times):
            break
    return [times.median() for times in all_times]


@dataclass
class _Times:
    """Collects the measured times of one function that launches work on the GPU, and returns their median.

    every   (seconds, True if the launch was hidden) of each run, two runs for each round. A launch is hidden if the
            flush of the L2 cache before it takes the device longer than the host takes to launch
    """

    every: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def is_steady(self) -> bool:
        """Return True if the medians of the first and the second half of these measurements differ by at most 10%.

        With fewer than six rounds the result is True.
        """
        rounds = len(self.every) // 2
        if rounds < 2 * _LEAST_ROUNDS:
            return True
        middle = rounds // 2 * 2
        first, last = (_Times(half).median() for half in (self.every[:middle], self.every[middle:]))
        return max(first, last) <= _STEADY * min(first, last)

    def median(self) -> float:
        """Return the median of these times in seconds.

        It is taken over the rounds whose two launches did not make the device wait for the host. With fewer than
        three such rounds, it is over all runs with a hidden launch; with fewer than three of those, over all runs.
        """
        rounds = zip(self.every[::2], self.every[1::2], strict=True)
        hidden_rounds = [(x + y) / 2 for (x, x_is_hidden), (y, y_is_hidden) in rounds if x_is_hidden and y_is_hidden]
        hidden_runs = [seconds for seconds, is_hidden in self.every if is_hidden]
        for sample in (hidden_rounds, hidden_runs):
            if len(sample) >= _LEAST_ROUNDS:
                return statistics.median(sample)
        return statistics.median([seconds for seconds, _ in self.every])
