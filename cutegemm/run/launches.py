"""What launches share: where new results come from, and the device that is current meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def new_like(a: Any, shape: tuple[int, ...], dtype: Any) -> Callable[[], Any]:
    """Return a function that allocates a row-major result of this shape, on the device of `a`."""
    from torch import contiguous_format, empty_like

    # torch makes the like of a tensor sooner than a tensor by shape and type. The tensor that is kept has no memory:
    # it may be allocated while a CUDA graph is captured, from the graph's own pool, which no tensor may outlive.
    kept = a.new_empty([1] * len(shape), dtype=dtype).expand(shape)
    kept.untyped_storage().resize_(0)
    return lambda: empty_like(kept, memory_format=contiguous_format)


def of_transpose(strides: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The strides of the transposed matrices.

    >>> of_transpose((64, 8, 1))
    (64, 1, 8)
    """
    return None if strides is None else (*strides[:-2], strides[-1], strides[-2])


def on_device(launch: Callable[..., None]) -> Callable[..., None]:
    """A launch on the device of its first argument, a tensor; of a single device nothing is asked."""
    from cutegemm.compile.cuda import devices

    if devices() == 1:
        return launch
    from torch.cuda import current_device, device

    def there(a: Any, *given: Any) -> None:
        index = a.get_device()
        if current_device() == index:
            launch(a, *given)
        else:
            with device(index):
                launch(a, *given)

    return there
