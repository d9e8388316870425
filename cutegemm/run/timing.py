"""Calls that are timed in turns.

The chip throttles by power, so what ran before, and what the numbers are, decides a rate as much as the kernel does.
Therefore every round runs every call once, in an order drawn anew, behind a write to more memory than the L2 cache
holds; medians of the rounds are compared.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

DEVICE = "cuda"
_FLUSH_BYTES = 256 << 20  # more than any L2 cache
_WARM_SECONDS, _LEAST_ROUNDS = 0.1, 3


def in_turns(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """The median seconds of each call; every round runs each once, and three rounds are the fewest."""
    order, places = random.Random(0), list(range(len(calls)))
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=DEVICE)

    def timed(call: Callable[[], Any]) -> tuple[Any, Any]:
        flush.zero_()  # also hides the launch: the device is busy while the host goes on
        event: Any = torch.cuda.Event
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        return start, end

    def until(deadline: float, least: int) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in calls]
        while len(found[0]) < least or time.perf_counter() < deadline:
            order.shuffle(places)
            events = [(place, *timed(calls[place])) for place in places]
            torch.cuda.synchronize()
            for place, start, end in events:
                found[place].append(start.elapsed_time(end) * 1e-3)
        return found

    until(time.perf_counter() + _WARM_SECONDS, 1)
    return [statistics.median(times) for times in until(time.perf_counter() + seconds, _LEAST_ROUNDS)]
