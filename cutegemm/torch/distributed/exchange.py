"""Launches of the exchange kernel (`plan.memory.exchange`) on the symmetric memory of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from cutegemm.compile.plans import compile_exchange
from cutegemm.plan.memory.exchange import MOST_RANKS, VECTOR_BYTES, Exchange
from cutegemm.run.torch_ops import DTYPES, device_arch

FLAG_COUNT = Exchange.most_ctas * MOST_RANKS  # int32 flags of a rank

# launch(rows of this rank, nanoseconds of the time limit)
Launch = Callable[[torch.Tensor, int], None]


class Exchanger:
    """Launches exchanges between the ranks of a group.

    rank, device   this rank and its GPU
    flags          flags of each rank, as int32 tensors of `FLAG_COUNT` elements that are 0 on all ranks
    """

    def __init__(self, rank: int, flags: Sequence[torch.Tensor], device: torch.device) -> None:
        self.rank, self.ranks, self.device = rank, len(flags), device
        self.addresses = [each.data_ptr() for each in flags]
        self.flags = flags
        self.counters = torch.zeros(FLAG_COUNT, dtype=torch.int32, device=device)
        self._loaded: dict[Exchange, Any] = {}

    def launch(self, operation: str, rows: Sequence[torch.Tensor]) -> Launch | None:
        """Return a function that launches an exchange; None if no kernel computes it.

        The answer is the same on all ranks: it does not depend on addresses. CUDA loads the kernel here, and not while
        another kernel waits for a rank.

        operation   as for `Exchange`
        rows        rows of each rank to store to, or to add, in the order of the sum: contiguous matrices
        """
        first = rows[0]
        exchange = Exchange(operation, len(rows), DTYPES[first.dtype])
        if first.shape[1] * first.element_size() % VECTOR_BYTES or (exchange.meets and len(rows) != self.ranks):
            return None
        arch = device_arch(self.device.index)
        if any(exchange.violations(arch)):
            return None
        if exchange not in self._loaded:
            _, function = compile_exchange(exchange, arch)
            self._alone(function, exchange, first.dtype)
            self._loaded[exchange] = function
        addresses = _padded([each.data_ptr() for each in rows])
        function = self._loaded[exchange]
        return partial(_launched, function, self.counters, self.rank, addresses, _padded(self.addresses))

    def _alone(self, function: Any, exchange: Exchange, dtype: torch.dtype) -> None:
        """Launch an exchange of few bytes of this rank with itself.

        Thread t sets the flag that it waits for: rank t seems to have flags that begin `t - rank` flags further on.
        """
        rows = torch.zeros(1, VECTOR_BYTES // dtype.itemsize, dtype=dtype, device=self.device)
        counters, flags = (torch.zeros(FLAG_COUNT, dtype=torch.int32, device=self.device) for _ in range(2))
        addresses = [flags.data_ptr() + flags.element_size() * (rank - self.rank) for rank in range(exchange.ranks)]
        with torch.cuda.device(self.device):
            _launched(
                function, counters, self.rank, _padded([rows.data_ptr()] * exchange.ranks), _padded(addresses), rows, 0
            )
            torch.cuda.synchronize(self.device)


def _padded(addresses: Sequence[int]) -> list[int]:
    """Return addresses for all ranks that the kernel takes."""
    return [*addresses, *[0] * (MOST_RANKS - len(addresses))]


def _launched(
    function: Any,
    counters: torch.Tensor,
    rank: int,
    theirs: Sequence[int],
    flags: Sequence[int],
    rows: torch.Tensor,
    limit_ns: int,
) -> None:
    """Launch the kernel; the arguments are those of `kernels.exchange.Exchanger`."""
    if rows.data_ptr() % VECTOR_BYTES:
        rows = rows.clone()
    function(rows, counters, rank, limit_ns, *theirs, *flags)
