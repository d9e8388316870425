"""What launches share: where new results come from, and the device that is current meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def new_like(a: Any, shape: tuple[int, ...], dtype: Any) -> Callable[[], Any]:
    """What allocates row-major results, each on the device and of the class of a tensor."""
    from torch import contiguous_format, empty_like

    # One element is kept, as large as is asked for: torch makes its like sooner than a tensor by shape and type.
    kept = a.new_empty([1] * len(shape), dtype=dtype).expand(shape)
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
