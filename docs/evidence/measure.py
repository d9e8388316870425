"""What all measurements on a GPU share: calls that take turns, the data, the machine that it was.

The chip throttles by power, so what ran before, and what the numbers are, decides a rate as much as the
kernel does. Therefore every round runs every contestant once, in an order drawn anew, on the same normally
distributed data, behind a write to more memory than the L2 cache holds; medians of the rounds are compared.
"""

from __future__ import annotations

import random
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cutegemm.errors import UnsupportedError
from cutegemm.run import cache

LIBRARY = "torch.matmul"
DEVICE = "cuda"
_FLUSH_BYTES = 256 << 20  # more than any L2 cache
_WARM_SECONDS, _LEAST_ROUNDS = 0.1, 3


def in_turns(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """The median seconds of each call; every round runs each once, and three rounds are the fewest."""
    import torch

    order, places = random.Random(0), list(range(len(calls)))
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=DEVICE)

    def timed(call: Callable[[], Any]) -> tuple[Any, Any]:
        flush.zero_()  # also hides the launch: the device is busy while the host goes on
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        return start, end

    def until(deadline: float, least: int) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in calls]
        while len(found[0]) < least or time.perf_counter() < deadline:
            order.shuffle(places)
            events = [(place, *timed(calls[place])) for place in places]
            torch.cuda.synchronize()
            for place, start, end in events:
                found[place].append(start.elapsed_time(end) * 1e-3)
        return found

    until(time.perf_counter() + _WARM_SECONDS, 1)
    return [statistics.median(times) for times in until(time.perf_counter() + seconds, _LEAST_ROUNDS)]


def normal(shape: tuple[int, ...], kind: Any) -> Any:
    """A tensor on the GPU: normally distributed, of integers with a deviation of 20."""
    import torch

    values = torch.randn(shape, device=DEVICE)
    return (values if kind.is_floating_point else values * 20).to(kind)


def need_gpu() -> None:
    """Raises UnsupportedError where torch sees no CUDA device."""
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError("the benchmark needs a CUDA device; torch sees none here.")


def machine() -> dict[str, str]:
    """What the numbers were taken on, when and by what."""
    import torch

    from cutegemm import __version__

    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cutegemm": __version__,
        "nvidia-cutlass-dsl": cache.dsl_version(),
        "python": sys.version.split()[0],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": _command(),
    }


def _command() -> str:
    """As it can be typed again."""
    by_module = sys.orig_argv[1:2] == ["-m"]
    return shlex.join(
        [*(["python", *sys.orig_argv[1:3]] if by_module else [Path(sys.argv[0]).name]), *sys.argv[1:]]
    )


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    found = re.search(r"\d{3}\.\d+(\.\d+)?", text)
    return found.group() if found else "unknown"
