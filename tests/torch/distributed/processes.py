"""Ranks as processes of torch.distributed: with gloo on the CPU, or with NCCL, each on a GPU."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from cutegemm.compile.workers import Worker

RANKS = 2
_SECONDS = 300


class Ranks:
    """Two processes, which `call` a function together."""

    def __init__(self, workers: list[Worker], pool: ThreadPoolExecutor) -> None:
        self.workers, self.pool = workers, pool

    def call(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Return what a function of a module returns on each rank."""
        futures = [self.pool.submit(worker, guarded, task, *arguments) for worker in self.workers]
        found = [future.result(_SECONDS) for future in futures]
        errors = [f"rank {rank}: {error}" for rank, (_, error) in enumerate(found) if error]
        assert not errors, "\n".join(errors)
        return [value for value, _ in found]


def guarded(task: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """Return (what a function returns, ""), or (None, the traceback of its error)."""
    try:
        return task(*arguments), ""
    except Exception:
        return None, traceback.format_exc()


def start(rank: int, store: str, backend: str) -> None:
    """Initialize torch.distributed in a process."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else None
    if device is not None:
        torch.cuda.set_device(device)
    limit = timedelta(seconds=_SECONDS)
    dist.init_process_group(
        backend, init_method=f"file://{store}", rank=rank, world_size=RANKS, device_id=device, timeout=limit
    )


@contextmanager
def running(folder: Path, backend: str = "gloo") -> Iterator[Ranks]:
    """Start the processes, and end them."""
    workers = [Worker() for _ in range(RANKS)]
    with ThreadPoolExecutor(RANKS) as pool:
        try:
            futures = [
                pool.submit(worker, start, rank, str(folder / "store"), backend) for rank, worker in enumerate(workers)
            ]
            for future in futures:
                future.result(_SECONDS)
            yield Ranks(workers, pool)
        finally:
            for worker in workers:
                worker.kill()
