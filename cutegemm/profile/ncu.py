"""Nsight Compute's command line, and a parser for the CSV that it prints."""

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
    """Raised if Nsight Compute (ncu) fails, has no permission to read the counters, or does not print a table."""


def command(target: Sequence[str], metrics: Sequence[str], kernel: str, log: str, ncu: str = "ncu") -> list[str]:
    """Return the ncu command line that profiles the kernels that `target` launches between profiler start and stop.

    target    command line to run under ncu
    metrics   names of the metrics to collect
    kernel    regular expression; only kernels whose name matches are profiled
    log       file for ncu's CSV, which would otherwise be mixed with the output of `target`
    ncu       the ncu executable

    >>> " ".join(command(["python", "x.py"], ["a.sum"], "gemm", "out.csv")[-8:])
    '-k regex:gemm --log-file out.csv --metrics a.sum python x.py'
    """
    how = ["--clock-control", "none", "--profile-from-start", "off", "--print-units", "base", "--csv"]
    where = ["-k", f"regex:{kernel}", "--log-file", log, "--metrics", ",".join(metrics)]
    return [ncu, *how, *where, *target]


def parse_csv(text: str) -> list[dict[str, float]]:
    """Parse the CSV table that ncu prints; return a dict from metric to value for each kernel launch, in order.

    Values are converted to bytes and nanoseconds, whatever units ncu printed. Lines outside the table are skipped. A
    metric that was not collected is left out.

    text     all that ncu printed
    raises   NcuError if the text has no table

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
        metrics = launches.setdefault(row["ID"], {})
        if value is not None:
            metrics[row["Metric Name"]] = value
    return [launches[key] for key in sorted(launches, key=int)]


def _value(text: str, unit: str) -> float | None:
    """Convert a number that ncu printed, such as "1,024" with unit "Kbyte", to bytes or nanoseconds.

    text   the number, with thousands separators; the result is None if it is not a number
    unit   unit that ncu printed; a number with a unit of neither data nor time is returned unscaled
    """
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    match = _BYTES.fullmatch(unit)
    if match:
        return value * _PREFIXES[match[1].lower()]
    return value * _SECONDS.get(unit, 1)


def unknown_metrics(message: str) -> set[str]:
    """Return the names of the metrics that ncu does not know, according to its error messages.

    message   all that ncu printed; without such an error, the result is empty

    >>> unknown_metrics("==ERROR== Failed to find metric smsp__inst_executed_op_x.sum")
    {'smsp__inst_executed_op_x.sum'}
    """
    return {name.strip("^$") for name in _MISSING.findall(message)}


def known_metrics(listing: str) -> set[str]:
    """Return the metrics that an ncu executable supports, without suffixes such as ".sum".

    listing   output of `ncu --query-metrics`

    >>> known_metrics("Device NVIDIA H200 (GH100)\\nMetric Name   Metric Type\\ndram__bytes_read   Counter")
    {'dram__bytes_read'}
    """
    first = [line.split()[0] for line in listing.splitlines() if line.strip()]
    return {name for name in first if "__" in name}
