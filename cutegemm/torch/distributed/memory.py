"""Memory that all ranks of a group can access, and flags between them: torch's symmetric memory.

One piece of memory for each group holds all internal buffers of a call. It grows when a call needs more; all ranks then
allocate together. Copies, kernels and flags of torch do the rest: nothing here is specific to a GEMM.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch._C._distributed_c10d import _SymmetricMemory

from cutegemm.errors import UnsupportedError
from cutegemm.torch.distributed.exchange import FLAG_COUNT, Exchanger, Launch

TIMEOUT_SECONDS = 600.0  # default of NCCL's process groups too
_ALIGNMENT = 1024  # bytes between the starts of buffers, and multiples of sizes
_BARRIER_CHANNEL, _FIRST_FLAG = 0, 1  # channels of torch's signal pad
_FLAG_BYTES = 4
_NS_PER_MS = 1_000_000
_LEAST_PAD_BYTES = 2048  # least size, if torch does not tell it

_MOST_SECONDS = 10**9  # in nanoseconds, it fits into 64 bits

_timeout_ms = int(TIMEOUT_SECONDS * 1000)


def set_timeout(seconds: float) -> None:
    """Set how long a rank waits on its GPU for the signal of another rank: 600 seconds, unless this is called.

    After that time the kernel that waits prints which rank it waits for and traps. The process gets a CUDA error at its
    next call of CUDA (torch.AcceleratorError, "unspecified launch failure"). Its CUDA context and the tensors in it are
    lost, so the process has to be restarted, as after a timeout of NCCL.

    seconds   time for one wait; 0 for no limit
    raises    UnsupportedError unless it is a number from 0 to a billion
    """
    global _timeout_ms
    if not (isinstance(seconds, (int, float)) and 0 <= seconds <= _MOST_SECONDS):
        raise UnsupportedError(
            f"set_timeout: seconds = {seconds!r}, but a number from 0 to {_MOST_SECONDS} is expected. Pass a time, or "
            "0 for no limit."
        )
    _timeout_ms = int(seconds * 1000)


def aligned(size_bytes: int) -> int:
    """Return a size in bytes, rounded up to the alignment of buffers.

    >>> aligned(1), aligned(1024)
    (1024, 1024)
    """
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT


class SymmetricMemory:
    """Memory of each rank of a group that all ranks of the group can read and write, and flags between two ranks.

    All ranks construct it together, and call `reserve` together with the same sizes.

    group    the ranks, each with a GPU of its own on one host
    device   GPU of this rank
    raises   RuntimeError of torch if the GPUs cannot access each other's memory
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group, self.device = group, device
        self.rank, self.ranks = group.rank(), group.size()
        self.size_bytes = 0
        self._tensor: torch.Tensor | None = None
        self._handle: Any = None
        self._kept: list[Any] = []
        self._exchanger = self._new_exchanger()
        self.reserve(_ALIGNMENT)
        for peer in self._peers():
            self.signal(peer, 0)
        for peer in self._peers():
            self.wait(peer, 0)
        torch.cuda.synchronize(device)

    def reserve(self, size_bytes: int, keeps: bool = False) -> bool:
        """Make at least `size_bytes` available on each rank; return whether the memory has moved.

        keeps   True to keep the old memory allocated, as a CUDA graph that was captured uses it
        """
        if size_bytes <= self.size_bytes:
            return False
        torch.cuda.synchronize(self.device)
        if keeps:
            self._kept.append((self._tensor, self._handle))
        size = aligned(-(-size_bytes // 2)) * 2  # two halves
        # Not `symmetric.empty`, whose memory of a pool may lie at an offset that `get_buffer` does not know.
        self._tensor = _SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, self.device)
        self._handle = symmetric.rendezvous(self._tensor, self.group.group_name)
        self.size_bytes = size
        self.barrier()  # also loads the kernel of torch's flags before anything waits
        torch.cuda.synchronize(self.device)
        return True

    def matrix(self, rank: int, offset_bytes: int, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a row-major matrix in the memory of a rank.

        offset_bytes   offset of its first element, a multiple of its size
        """
        return self._handle.get_buffer(rank, (rows, columns), dtype, offset_bytes // dtype.itemsize)

    def signal(self, rank: int, flag: int) -> None:
        """Launch a kernel that sets a flag of another rank, after the earlier work of the current stream."""
        self._handle.put_signal(rank, _FIRST_FLAG + flag, _timeout_ms)

    def wait(self, rank: int, flag: int) -> None:
        """Launch a kernel that waits until another rank has set a flag of this one, and clears it."""
        self._handle.wait_signal(rank, _FIRST_FLAG + flag, _timeout_ms)

    def barrier(self) -> None:
        """Launch a kernel that waits until all ranks have reached the barrier."""
        self._handle.barrier(_BARRIER_CHANNEL, _timeout_ms)

    def exchange(self, operation: str, rows: Sequence[torch.Tensor]) -> Callable[[torch.Tensor], None] | None:
        """Return a function of rows of this rank that launches an exchange; None if no kernel computes it.

        operation, rows   as for `Exchanger.launch`
        """
        launch = self._exchanger.launch(operation, rows)
        return None if launch is None else partial(_limited, launch)

    def _new_exchanger(self) -> Exchanger:
        """Return an exchanger whose flags are 0 on all ranks."""
        own = _SymmetricMemory.empty_strided_p2p((FLAG_COUNT,), (1,), torch.int32, self.device)
        own.zero_()
        torch.cuda.synchronize(self.device)
        handle = symmetric.rendezvous(own, self.group.group_name)
        handle.barrier(_BARRIER_CHANNEL, _timeout_ms)
        torch.cuda.synchronize(self.device)
        self._kept.append((own, handle))
        flags = [handle.get_buffer(rank, (FLAG_COUNT,), torch.int32, 0) for rank in range(self.ranks)]
        return Exchanger(self.rank, flags, self.device)

    @property
    def flags(self) -> int:
        """Number of flags for each ordered pair of ranks."""
        size: Any = _SymmetricMemory.signal_pad_size
        return (size if isinstance(size, int) else _LEAST_PAD_BYTES) // (_FLAG_BYTES * self.ranks) - _FIRST_FLAG

    def _peers(self) -> list[int]:
        """Return the other ranks."""
        return [rank for rank in range(self.ranks) if rank != self.rank]


def _limited(launch: Launch, rows: torch.Tensor) -> None:
    """Launch an exchange with the time limit of now.

    rows   rows of this rank
    """
    launch(rows, _timeout_ms * _NS_PER_MS)
