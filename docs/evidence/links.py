"""Times of single steps between two GPUs: flags, copies, exchanges and GEMMs that store to the memory of another rank.

Part of `docs.evidence.ranks --links`, in the processes of `docs.evidence.rank_process`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from cutegemm import gemm
from cutegemm.torch.distributed.memory import SymmetricMemory

_COPIED_MIB = (0.5, 2, 8, 32, 128)
_MEMORY_BYTES = 512 << 20
_M, _N, _K = 4096, 8192, 4096

Call = Callable[[], Any]


def calls(memory: SymmetricMemory) -> dict[str, Call]:
    """Return calls by name. All ranks run each at the same time, so copies go in both directions at once.

    memory   memory of the ranks; it is enlarged
    """
    memory.reserve(_MEMORY_BYTES)
    peer = (memory.rank + 1) % memory.ranks
    source = (memory.rank - 1) % memory.ranks
    made: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}

    def signal_and_wait() -> None:
        memory.signal(peer, 0)
        memory.wait(source, 0)

    found: dict[str, Call] = {"nothing": lambda: None, "signal and wait": signal_and_wait, "barrier": memory.barrier}
    for mib in _COPIED_MIB:
        elements = int(mib * (1 << 19))
        own, there = (memory.matrix(rank, 0, 1, elements, torch.bfloat16) for rank in (memory.rank, peer))
        local, total = torch.empty(1, elements, **made), torch.empty(1, elements, **made)
        found |= {
            f"push {mib} MiB": _copy(there, local),
            f"pull {mib} MiB": _copy(local, there),
            f"copy {mib} MiB": _copy(own, local),
            f"add {mib} MiB": _sum(own, there, total),
            f"spread {mib} MiB": _exchange(memory, "spread", [own, there], local),
            f"met sum {mib} MiB": _exchange(memory, "met sum", [own, there], total),
            f"sum {mib} MiB": _exchange(memory, "sum", [own, there], total),
        }
    a, b = torch.randn(_M, _K, **made), torch.randn(_N, _K, **made).t()
    for name, rank in (("own", memory.rank), ("peer", peer)):
        found[f"gemm to {name}"] = _gemm(a, b, memory.matrix(rank, 0, _M, _N, torch.bfloat16))
    return found | _stream_flags(memory, peer)


def _exchange(memory: SymmetricMemory, operation: str, others: list[torch.Tensor], rows: torch.Tensor) -> Call:
    """Return an exchange of rows by one kernel."""
    launch = memory.exchange(operation, others)
    assert launch is not None
    return lambda: launch(rows)


def _copy(target: torch.Tensor, source: torch.Tensor) -> Call:
    return lambda: target.copy_(source)


def _sum(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> Call:
    return lambda: torch.add(x, y, out=out)


def _gemm(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Call:
    return lambda: gemm(a, b, out=out)


def _stream_flags(memory: SymmetricMemory, peer: int) -> dict[str, Call]:
    """Return a call that sets a flag of another rank and awaits its own by operations of the stream, without kernels.

    It is left out if the driver does not write to the memory of the other rank.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        return {}
    offset = _MEMORY_BYTES - 1024
    own, there = (memory.matrix(rank, offset, 1, 1, torch.int32) for rank in (memory.rank, peer))
    own.zero_()
    torch.cuda.synchronize()
    dist.barrier(memory.group)
    count = 0

    def stream() -> Any:
        return driver.CUstream(torch.cuda.current_stream().cuda_stream)

    def write() -> Any:
        nonlocal count
        count += 1
        return driver.cuStreamWriteValue32(stream(), driver.CUdeviceptr(there.data_ptr()), count, 0)[0]

    status = int(write())
    torch.cuda.synchronize()
    dist.barrier(memory.group)
    works = torch.tensor([float(status == 0 and own.item() == 1)], device="cuda")
    dist.all_reduce(works, dist.ReduceOp.MIN, group=memory.group)

    def write_and_wait() -> None:
        write()
        driver.cuStreamWaitValue32(stream(), driver.CUdeviceptr(own.data_ptr()), count, 0)  # until it is as large

    return {"stream write and wait": write_and_wait} if works.item() else {}
