"""Allocate the workspaces of kernels from torch, and reuse them in later calls. `workspace` computes their sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

MOST_KEPT = 64 << 20  # bytes of the largest workspace that is reused


@dataclass(frozen=True)
class Sizes:
    """Sizes of the workspace in global memory that a kernel needs for a problem, e.g. for the accumulators of split-K.

    counters   number of semaphores in an int32 tensor of their own, which are zero before a launch and after it. None:
               the kernel has no such argument; its semaphores, if any, are in the workspace
    zeroed     number of bytes at the start of the workspace that must be zero before a launch
    total      size of the workspace in bytes
    """

    counters: int | None
    zeroed: int
    total: int


class _Kept(threading.local):
    """The workspaces and the semaphores that a thread keeps for its next launches, one for each device and stream."""

    def __init__(self) -> None:
        self.spaces: dict[tuple[int, int], Any] = {}
        self.counters: dict[tuple[int, int], Any] = {}


class Spaces:
    """Provides the workspaces (memory for e.g. split-K accumulators) of all kernels of this process, and reuses them.

    There is one workspace for each CUDA stream of each thread. Kernels of one stream run one after the other, so they
    share a workspace, which grows to the largest size. Threads that launch on the same stream do not share it: one call
    may launch several kernels, and those of another thread may come between them.

    A kernel that needs more than `MOST_KEPT` bytes gets new memory in each call. So does a kernel in a CUDA graph that
    is being captured, since the graph may run on another stream. Shared workspaces are allocated outside of private
    pools: other graphs may reuse the memory of a graph's pool, and torch.compile does not allow tensors that stay in
    its pools.
    """

    def __init__(self) -> None:
        self._kept = _Kept()

    def taker(self, sizes: Sizes) -> Callable[[Any], tuple[Any, ...]]:
        """Return a function that allocates or reuses a kernel's workspace, and returns it as arguments of the launch.

        Its argument is any tensor of the launch, whose device and current stream count. It returns (semaphores,
        workspace), or (workspace,) if `sizes.counters` is None.

        sizes   sizes of the kernel's workspace
        """
        import torch

        from cutegemm.compile.cuda import current_stream, outside_of_pools

        kept, capturing = self._kept, torch.cuda.is_current_stream_capturing
        counters, zeroed, total = sizes.counters, sizes.zeroed, sizes.total
        uint8, int32 = torch.uint8, torch.int32

        def take(like: Any) -> tuple[Any, ...]:
            """Return the workspace as arguments of a launch: (semaphores, workspace), or only (workspace,).

            like   any tensor of the launch; its device and current stream count
            """
            if capturing():
                space = like.new_empty(total, dtype=uint8)
                own = () if counters is None else (like.new_zeros(max(1, counters), dtype=int32),)
            else:
                device = like.get_device()
                key = device, current_stream(device)
                space = kept.spaces.get(key)
                if space is None or space.shape[0] < total:
                    if total <= MOST_KEPT:
                        space = kept.spaces[key] = outside_of_pools(partial(like.new_empty, total, dtype=uint8))
                    else:
                        space = like.new_empty(total, dtype=uint8)
                own = ()
                if counters is not None:
                    zeros = kept.counters.get(key)
                    if zeros is None or zeros.shape[0] < counters:
                        zeros = outside_of_pools(partial(like.new_empty, max(1, counters), dtype=int32))
                        kept.counters[key] = zeros.zero_()
                    own = (zeros,)
            if zeroed:
                space[:zeroed].zero_()
            return (*own, space)

        return take


def with_workspace(function: Callable[..., None], sizes: Sizes, tensors: int) -> Callable[..., None]:
    """Return a function that calls a kernel, and inserts a workspace (memory that the kernel needs) into the arguments.

    function   the kernel's function, which takes the workspace as an argument
    sizes      sizes of the workspace
    tensors    number of arguments before the workspace: a, b, the tensors that the epilogue reads, and all results
    """
    take = spaces().taker(sizes)
    if tensors == 3:  # nearly all calls have three or four tensors; these two functions avoid slicing the arguments
        return lambda a, b, d, *scalars: function(a, b, d, *take(a), *scalars)
    if tensors == 4:
        return lambda a, b, c, d, *scalars: function(a, b, c, d, *take(a), *scalars)
    return lambda *arguments: function(*arguments[:tensors], *take(arguments[0]), *arguments[tensors:])


@cache
def spaces() -> Spaces:
    """Return the one object that manages the workspaces of all kernels in this process."""
    return Spaces()
