"""Data and machine of all measurements on a GPU."""

from __future__ import annotations

import re
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cutegemm.compile import cache
from cutegemm.machine.device import Device

LIBRARY = "torch.matmul"
DEVICE = "cuda"


def normal(shape: tuple[int, ...], kind: Any) -> Any:
    """Return a tensor on the GPU: normally distributed; integers with a standard deviation of 20."""
    import torch

    values = torch.randn(shape, device=DEVICE)
    return (values if kind.is_floating_point else values * 20).to(kind)


def this_device() -> Device:
    """Return the device of the first GPU, whose rates decide the choice of plans."""
    from cutegemm.run.torch_ops import device_of

    return device_of(0)


def need_gpu() -> None:
    """Raise UnsupportedError if torch sees no CUDA device."""
    from cutegemm.run import on_gpu

    on_gpu.need_gpu()


def machine() -> dict[str, str]:
    """Return GPU, driver, versions, date and command, for a record of measurements."""
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
        "command": command(),
    }


def command() -> str:
    """Return the command line of this process, quoted for a shell."""
    by_module = sys.orig_argv[1:2] == ["-m"]
    return shlex.join([*(["python", *sys.orig_argv[1:3]] if by_module else [Path(sys.argv[0]).name]), *sys.argv[1:]])


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    found = re.search(r"\d{3}\.\d+(\.\d+)?", text)
    return found.group() if found else "unknown"
