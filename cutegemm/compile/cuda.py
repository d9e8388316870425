"""Query CUDA devices and streams through torch, and allocate memory outside of torch's private pools.

This module imports torch and no other module of cutegemm.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch


@cache
def devices() -> int:
    """Return the number of CUDA devices that are visible to this process."""
    return torch.cuda.device_count()


@cache
def multiprocessors(index: int) -> int:
    """Return the number of multiprocessors (SMs) of a CUDA device.

    index   index of the device, as torch counts them
    """
    return int(torch.cuda.get_device_properties(index).multi_processor_count)


@cache
def device_name(index: int) -> str:
    """Return name and SM count of a CUDA device as text, such as "NVIDIA H200, 132 multiprocessors".

    index   index of the device, as torch counts them
    """
    return f"{torch.cuda.get_device_name(index)}, {multiprocessors(index)} multiprocessors"


def is_capturing() -> bool:
    """Return True if a CUDA graph is being captured on torch's current stream."""
    return bool(torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


def current_stream(index: int) -> int:
    """Return the raw handle (cudaStream_t) of torch's current stream on a CUDA device.

    This is faster than making a torch.cuda.Stream.

    index   index of the device
    """
    return int(torch._C._cuda_getCurrentRawStream(index))


def outside_of_pools(allocate: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Allocate a tensor outside of torch's private memory pools, such as that of a CUDA graph, and return it.

    Such a tensor stays valid after the graph is gone. A second thread allocates it on the device's default stream,
    because torch uses a private pool only for one thread or one stream. The current stream waits for earlier work on
    the memory, and torch does not reuse the memory before that stream has finished with it. The tensor is not an
    inference tensor, even in inference mode.

    allocate   function that returns the new tensor; it must not launch a kernel
    """

    def allocate_and_record() -> tuple[torch.Tensor, Any]:
        """Allocate the tensor in a second thread, where torch uses no private memory pool.

        returns   the tensor, and an event after all earlier work on the default stream; None instead of the event for a
                  CPU tensor
        """
        tensor = allocate()
        if not tensor.is_cuda:
            return tensor, None
        return tensor, torch.cuda.current_stream(tensor.device).record_event()

    with ThreadPoolExecutor(1) as other:
        tensor, used_before = other.submit(allocate_and_record).result()
    if used_before is not None:
        stream = torch.cuda.current_stream(tensor.device)
        stream.wait_event(used_before)
        tensor.record_stream(stream)
    return tensor
