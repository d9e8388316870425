"""What torch says of CUDA devices and streams. It imports torch, and nothing of cutegemm."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch


@cache
def devices() -> int:
    """How many CUDA devices this process sees."""
    return torch.cuda.device_count()


@cache
def multiprocessors(index: int) -> int:
    """How many multiprocessors a CUDA device has."""
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


@cache
def device_name(index: int) -> str:
    """A CUDA device as its maker names it, and how many multiprocessors of it there are."""
    return f"{torch.cuda.get_device_name(index)}, {multiprocessors(index)} multiprocessors"


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def current_stream(index: int) -> int:
    """The handle of the stream that work on a CUDA device goes to; torch's object around it takes longer to make."""
    return int(torch._C._cuda_getCurrentRawStream(index))


def outside_of_pools(allocate: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A tensor that may be kept, for work on the current stream: its memory is of no private pool, such as a graph's.

    torch routes to a private pool what one thread, or one stream, allocates. So another thread allocates on the default
    stream of the device. The current stream waits for what used the memory before, and the memory is not given to
    anything else before the current stream is done with it. The tensor is not one of inference mode.

    allocate   returns the tensor, without a kernel that fills it
    """

    def allocated() -> tuple[torch.Tensor, Any]:
        tensor = allocate()
        if not tensor.is_cuda:
            return tensor, None
        return tensor, torch.cuda.current_stream(tensor.device).record_event()

    with ThreadPoolExecutor(1) as other:
        tensor, used_before = other.submit(allocated).result()
    if used_before is not None:
        stream = torch.cuda.current_stream(tensor.device)
        stream.wait_event(used_before)
        tensor.record_stream(stream)
    return tensor
