"""Description of the machine of a measurement, without torch."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def cpu() -> dict[str, str]:
    """Return machine, python, numpy and date, for a record of measurements."""
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


def this_machine(command: str) -> dict[str, str]:
    """Return date, GPU, driver, versions and the command."""
    said = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "gpu": asked(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]),
        "driver": asked(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "commit": asked(["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]),
    }
    for package in ("nvidia-cutlass-dsl", "torch"):
        try:
            said[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            said[package] = ""
    return {key: value for key, value in said.items() if value}


def asked(command: Sequence[str]) -> str:
    """Return the version that a program prints, or its first line; "" if the program is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    version = re.search(r"Version (\S+)", done.stdout)
    lines = done.stdout.strip().splitlines()
    return "" if done.returncode or not lines else version[1] if version else lines[0]
