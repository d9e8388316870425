"""Helpers of launches: allocate results, transpose strides, and make the device of the tensors current."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def new_like(a: Any, shape: tuple[int, ...], dtype: Any) -> Callable[[], Any]:
    """Return a function without arguments that allocates a row-major tensor on the device of `a`.

    shape, dtype   shape and torch dtype of the tensor
    """
    from torch import contiguous_format, empty_like

    # empty_like takes less time than empty with a shape and a type. The example tensor has no memory: if it were
    # allocated during the capture of a CUDA graph, it would be in the graph's pool, which no tensor may outlive.
    kept = a.new_empty([1] * len(shape), dtype=dtype).expand(shape)
    kept.untyped_storage().resize_(0)
    return lambda: empty_like(kept, memory_format=contiguous_format)


def of_transpose(strides: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the strides of a matrix after transposing its last two modes; a batch stride stays first. None for None.

    >>> of_transpose((64, 8, 1))
    (64, 1, 8)
    """
    return None if strides is None else (*strides[:-2], strides[-1], strides[-2])


def on_device(launch: Callable[..., None]) -> Callable[..., None]:
    """Return a function that launches a kernel on the device of its first argument, a tensor.

    launch    function that launches the kernel on the current device
    returns   `launch` itself if this process sees one device only
    """
    from cutegemm.compile.cuda import devices

    if devices() == 1:
        return launch
    from torch.cuda import current_device, device

    def launch_there(a: Any, *arguments: Any) -> None:
        """Make the device of the tensor `a` current, and launch the kernel with `a` and the other arguments."""
        index = a.get_device()
        if current_device() == index:
            launch(a, *arguments)
        else:
            with device(index):
                launch(a, *arguments)

    return launch_there
