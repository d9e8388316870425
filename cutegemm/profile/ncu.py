"""Nsight Compute from the outside: the command line, and the CSV that it prints."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from cutegemm.errors import CutegemmError

_PREFIXES = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BYTES = re.compile(r"([KMGT]?)byte(s?)(/.*)?", re.IGNORECASE)
_SECONDS = {
    "nsecond": 1,
    "ns": 1,
    "usecond": 1e3,
    "us": 1e3,
    "msecond": 1e6,
    "ms": 1e6,
    "second": 1e9,
    "s": 1e9,
}
_MISSING = re.compile(r"Failed to find metric (?:regex:)?['\"]?([A-Za-z0-9_.^$]+)")


class NcuError(CutegemmError):
    """Nsight Compute is not there, may not read the counters, or printed what is no CSV."""


def command(target: Sequence[str], metrics: Sequence[str], kernel: str, log: str, ncu: str = "ncu") -> list[str]:
    """The command line that profiles the kernels that `target` launches between profiler start and stop.

    kernel   a regular expression of the kernel's name
    log      a file for the CSV, which is else mixed with what the target prints

    >>> " ".join(command(["python", "x.py"], ["a.sum"], "gemm", "out.csv")[-8:])
    '-k regex:gemm --log-file out.csv --metrics a.sum python x.py'
    """
    how = ["--clock-control", "none", "--profile-from-start", "off", "--print-units", "base", "--csv"]
    where = ["-k", f"regex:{kernel}", "--log-file", log, "--metrics", ",".join(metrics)]
    return [ncu, *how, *where, *target]


def parse_csv(text: str) -> list[dict[str, float]]:
    """Metric -> value of each kernel launch, in the order of the launches.

    Bytes and nanoseconds, whatever units were printed. Lines before the table, and other messages, are
    skipped; a metric that was not collected is left out.

    raises   NcuError where there is no table

    >>> parse_csv('==PROF== Hi\\n"ID","Metric Name","Metric Unit","Metric Value"\\n"0","a.sum","","1,024"')
    [{'a.sum': 1024.0}]
    """
    lines = [line for line in text.splitlines() if line.startswith('"')]
    header = next((i for i, line in enumerate(lines) if '"Metric Name"' in line), None)
    if header is None:
        shown = "\n".join(line for line in text.splitlines() if line.strip())[-1500:]
        raise NcuError(f"ncu printed no table of metrics.\n{shown}")
    launches: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(lines[header:]):
        value = _value(row["Metric Value"], row["Metric Unit"])
        found = launches.setdefault(row["ID"], {})
        if value is not None:
            found[row["Metric Name"]] = value
    return [launches[key] for key in sorted(launches, key=int)]


def _value(text: str, unit: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    match = _BYTES.fullmatch(unit)
    if match:
        return value * _PREFIXES[match[1].lower()]
    return value * _SECONDS.get(unit, 1)


def unknown_metrics(message: str) -> set[str]:
    """The metrics that ncu says it does not have.

    >>> unknown_metrics("==ERROR== Failed to find metric smsp__inst_executed_op_x.sum")
    {'smsp__inst_executed_op_x.sum'}
    """
    return {name.strip("^$") for name in _MISSING.findall(message)}


def known_metrics(listing: str) -> set[str]:
    """The names, without suffixes, that `ncu --query-metrics` lists.

    >>> known_metrics("Device NVIDIA H200 (GH100)\\nMetric Name   Metric Type\\ndram__bytes_read   Counter")
    {'dram__bytes_read'}
    """
    first = [line.split()[0] for line in listing.splitlines() if line.strip()]
    return {name for name in first if "__" in name}
