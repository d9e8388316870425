"""Memory that kernels take besides their operands, out of torch's allocator: how much says `workspace`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

MOST_KEPT = 64 << 20  # bytes


@dataclass(frozen=True)
class Sizes:
    """What the kernel of one problem takes.

    counters   of arrivals, int32 and zero, as the kernel leaves them; None where they lie in the workspace, if anywhere
    zeroed     bytes of the workspace that are to be zero, its first
    total      bytes of the workspace
    """

    counters: int | None
    zeroed: int
    total: int


class Spaces:
    """Workspaces of the kernels of this process: one for each stream, whose kernels run one after the other.

    A workspace grows to the size of the largest. A kernel that asks for more than `MOST_KEPT` has memory of its own in
    each call, and so has a graph that is captured: it may run on another stream. What is kept is allocated outside of
    private pools: a graph's memory is used again by other graphs, and torch.compile's graphs refuse what is left there.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], Any] = {}
        self._counters: dict[tuple[int, int], Any] = {}

    def taker(self, sizes: Sizes) -> Callable[[Any], tuple[Any, ...]]:
        """Returns a function of a tensor: it gives the counters, if there are any, and the workspace of the current
        stream of the tensor's device."""
        import torch

        from cutegemm.compile.cuda import current_stream, outside_of_pools

        kept, of_counters, capturing = self._kept, self._counters, torch.cuda.is_current_stream_capturing
        counters, zeroed, total = sizes.counters, sizes.zeroed, sizes.total
        uint8, int32 = torch.uint8, torch.int32

        def take(like: Any) -> tuple[Any, ...]:
            if capturing():
                space = like.new_empty(total, dtype=uint8)
                own = () if counters is None else (like.new_zeros(max(1, counters), dtype=int32),)
            else:
                device = like.get_device()
                key = device, current_stream(device)
                space = kept.get(key)
                if space is None or space.shape[0] < total:
                    if total <= MOST_KEPT:
                        space = kept[key] = outside_of_pools(partial(like.new_empty, total, dtype=uint8))
                    else:
                        space = like.new_empty(total, dtype=uint8)
                own = ()
                if counters is not None:
                    zeros = of_counters.get(key)
                    if zeros is None or zeros.shape[0] < counters:
                        zeros = outside_of_pools(partial(like.new_empty, max(1, counters), dtype=int32))
                        of_counters[key] = zeros.zero_()
                    own = (zeros,)
            if zeroed:
                space[:zeroed].zero_()
            return (*own, space)

        return take


def with_workspace(function: Callable[..., None], sizes: Sizes, tensors: int) -> Callable[..., None]:
    """Return a kernel's function that takes its workspace from here: its caller passes all other arguments.

    tensors   number of arguments that come before the workspace: a, b, operands and results
    """
    take = spaces().taker(sizes)
    if tensors == 3:  # nearly every call has three or four: without slices
        return lambda a, b, d, *scalars: function(a, b, d, *take(a), *scalars)
    if tensors == 4:
        return lambda a, b, c, d, *scalars: function(a, b, c, d, *take(a), *scalars)
    return lambda *given: function(*given[:tensors], *take(given[0]), *given[tensors:])


@cache
def spaces() -> Spaces:
    """Those of all kernels."""
    return Spaces()
