"""What a measurement on a CPU was taken on."""

from __future__ import annotations

import datetime
import platform

import numpy as np


def cpu() -> dict[str, str]:
    """machine, python, numpy and date, for a record of measurements."""
    return {
        "machine": f"{_processor()}, {platform.system()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
