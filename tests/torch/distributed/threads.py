"""Ranks as threads of one process: memory and flags that the engine uses as those of GPUs."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_SECONDS = 20.0


class Host:
    """Memory and flags of all ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.memory: dict[int, torch.Tensor] = {}
        self.changed = threading.Condition()
        self.flags: dict[tuple[int, int, int], bool] = {}
        self.met = threading.Barrier(ranks, timeout=_SECONDS)

    def set(self, source: int, to: int, flag: int, value: bool) -> None:
        """Wait until a flag has the other value, then set it to `value`."""
        key = source, to, flag
        with self.changed:
            assert self.changed.wait_for(lambda: self.flags.get(key, False) is not value, _SECONDS), f"flag {key}"
            self.flags[key] = value
            self.changed.notify_all()


class ThreadMemory:
    """Memory and flags as one rank sees them: `engine.Memory`."""

    flags = 8

    def __init__(self, host: Host, rank: int) -> None:
        self.host, self.rank, self.ranks = host, rank, host.ranks
        self.size_bytes = 0
        self.chance = random.Random(rank)

    def reserve(self, size_bytes: int, keeps: bool = False) -> bool:
        if size_bytes <= self.size_bytes:
            return False
        self.size_bytes = size_bytes
        self.host.memory[self.rank] = torch.full((size_bytes,), 0x7F, dtype=torch.uint8)  # NaN as bfloat16 or float32
        self.host.met.wait()
        return True

    def matrix(self, rank: int, offset_bytes: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        size = rows * columns * dtype.itemsize
        assert offset_bytes + size <= self.size_bytes
        return self.host.memory[rank][offset_bytes : offset_bytes + size].view(dtype).view(rows, columns)

    def signal(self, rank: int, flag: int) -> None:
        self.host.set(self.rank, rank, flag, True)

    def wait(self, rank: int, flag: int) -> None:
        time.sleep(self.chance.choice((0.0, 0.0, 0.002)))  # another rank gets ahead
        self.host.set(rank, self.rank, flag, False)

    def exchange(self, operation: str, rows: Any) -> None:
        """Have no kernel for an exchange."""

    def barrier(self) -> None:
        self.host.met.wait()


def on_ranks(ranks: int, call: Callable[[ThreadMemory], Any]) -> list[Any]:
    """Return what a function returns on each rank, called in a thread for each."""
    host = Host(ranks)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda rank: call(ThreadMemory(host, rank)), range(ranks)))
