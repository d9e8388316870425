"""Calls that are timed in turns.

The chip throttles by power, so what ran before, and what the numbers are, decides a rate as much as the kernel does.
Therefore every round runs every call, in an order drawn anew and then in the reverse of it, behind a write to more
memory than the L2 cache holds; a call's time in a round is the mean of both, and medians of the rounds are compared. A
call of some microseconds takes up to one more, or less, where it is the first for which the device has not been idle:
medians of a single order would fall now on one of these times, now on the other.

A machine may be disturbed for tens of milliseconds. Where a call's medians of the first rounds and of the last ones
differ, all calls are timed again.

That write also hides the launch. Where the host took longer than it, as one whose processors are taken by others does,
the device waited, and that time is left out.
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
_FLUSH_BYTES = 256 << 20  # more than any L2 cache
_WARM_SECONDS, _LEAST_ROUNDS = 0.1, 3
_STEADY, _MOST_TRIES = 1.1, 4  # times the other half's median; before times count as they are


def alternating(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """The median seconds of each call; every round runs each twice, and three rounds are the fewest.

    Times in which the device waited for the host count where fewer than three others are left.
    """
    order, places = random.Random(0), list(range(len(calls)))
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=DEVICE)

    def timed(call: Callable[[], Any]) -> tuple[Any, Any, Any, float]:
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

    def until(deadline: float, least: int) -> list[_Times]:
        found = [_Times() for _ in calls]
        while len(found[0].every) < 2 * least or time.perf_counter() < deadline:
            order.shuffle(places)
            for once in (places, places[::-1]):
                events = [(place, *timed(calls[place])) for place in once]
                torch.cuda.synchronize()
                for place, begun, start, end, launched in events:
                    is_hidden = launched <= begun.elapsed_time(start) * 1e-3
                    found[place].every.append((start.elapsed_time(end) * 1e-3, is_hidden))
        return found

    until(time.perf_counter() + _WARM_SECONDS, 1)
    for _ in range(_MOST_TRIES):
        found = until(time.perf_counter() + seconds, _LEAST_ROUNDS)
        if all(times.is_steady for times in found):
            break
    return [times.median() for times in found]


@dataclass
class _Times:
    """Of a call, twice for each round: seconds, and whether its launch was hidden."""

    every: list[tuple[float, bool]] = field(default_factory=list)

    @property
    def is_steady(self) -> bool:
        """Whether the rounds of both halves have about the same median; few rounds are not asked."""
        rounds = len(self.every) // 2
        if rounds < 2 * _LEAST_ROUNDS:
            return True
        middle = rounds // 2 * 2
        first, last = (_Times(half).median() for half in (self.every[:middle], self.every[middle:]))
        return max(first, last) <= _STEADY * min(first, last)

    def median(self) -> float:
        """Of the rounds in which both launches were hidden; where they are few, of all such times, or of all times."""
        rounds = zip(self.every[::2], self.every[1::2], strict=True)
        both = [(one + other) / 2 for (one, hidden), (other, also) in rounds if hidden and also]
        hidden = [seconds for seconds, is_hidden in self.every if is_hidden]
        for found in (both, hidden):
            if len(found) >= _LEAST_ROUNDS:
                return statistics.median(found)
        return statistics.median([seconds for seconds, _ in self.every])
