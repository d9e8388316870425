"""What torch says of CUDA devices and streams. It imports torch, and nothing of cutegemm."""

from __future__ import annotations

from functools import cache

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
