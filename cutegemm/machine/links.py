"""Links between GPUs of one host: rates and latencies of copies, stores and signals, with their source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Describes what copies and signals between two GPUs take. Rates are for one direction.

    name          name of the link
    copy_gb_s     rate of a copy engine, in GB/s
    kernel_gb_s   rate of loads and stores of kernels in the memory of another GPU, in GB/s
    copy_us       time of a copy of few bytes, in microseconds
    signal_us     time from the start of a kernel that sets a flag until the waiting kernel sees it, in microseconds
    launch_us     time of a kernel without its loads and stores, in microseconds
    source        source of these numbers
    """

    name: str
    copy_gb_s: float
    kernel_gb_s: float
    copy_us: float
    signal_us: float
    launch_us: float
    source: str


NVLINK_HOPPER = Link("NVLink 4", 360, 300, 3.0, 4.0, 2.0, "18 links of an H100 SXM, 450 GB/s by the data sheet")
