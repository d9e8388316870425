"""Calls that are timed in turns.

The chip throttles by power, so what ran before, and what the numbers are, decides a rate as much as the kernel does.
Therefore every round runs every call once, in an order drawn anew, behind a write to more memory than the L2 cache
holds; medians of the rounds are compared. That write also hides the launch. Where the host took longer than it, as one
whose processors are taken by others does, the device waited, and the round is left out for that call.
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


def in_turns(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """The median seconds of each call; every round runs each once, and three rounds are the fewest.

    Rounds in which the device waited for the host count where fewer than three others are left.
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

    def until(deadline: float, least: int) -> list[_Rounds]:
        found = [_Rounds() for _ in calls]
        while len(found[0].every) < least or time.perf_counter() < deadline:
            order.shuffle(places)
            events = [(place, *timed(calls[place])) for place in places]
            torch.cuda.synchronize()
            for place, begun, start, end, launched in events:
                took = start.elapsed_time(end) * 1e-3
                found[place].every.append(took)
                if launched <= begun.elapsed_time(start) * 1e-3:
                    found[place].undelayed.append(took)
        return found

    until(time.perf_counter() + _WARM_SECONDS, 1)
    return [rounds.median() for rounds in until(time.perf_counter() + seconds, _LEAST_ROUNDS)]


@dataclass
class _Rounds:
    """Seconds of a call: in every round, and in those in which its launch was hidden."""

    every: list[float] = field(default_factory=list)
    undelayed: list[float] = field(default_factory=list)

    def median(self) -> float:
        """Of the rounds that count."""
        return statistics.median(self.undelayed if len(self.undelayed) >= _LEAST_ROUNDS else self.every)
