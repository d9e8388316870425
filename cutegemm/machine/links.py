"""Links between GPUs of one host: rates and latencies of copies, stores and signals, with their source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Link:
    """Describes what copies and signals between two GPUs take. Rates are for one direction.

    name          name of the link
    copy_gb_s     rate of a copy engine, in GB/s
    kernel_gb_s   rate of loads and stores of kernels in the memory of another GPU, in GB/s
    copy_us       time of a copy of few bytes between two GPUs, in microseconds
    local_us      time of a copy of few bytes in the memory of a GPU, in microseconds
    signal_us     time from the start of a kernel that sets a flag until the waiting kernel sees it, in microseconds
    wait_us       time of a kernel that waits for a flag which is set already, in microseconds
    barrier_us    time of a barrier kernel that all GPUs start at the same time
    launch_us     time of a kernel without its loads and stores, in microseconds
    source        source of these numbers
    """

    name: str
    copy_gb_s: float
    kernel_gb_s: float
    copy_us: float
    local_us: float
    signal_us: float
    wait_us: float
    barrier_us: float
    launch_us: float
    source: str


# Lines through the times of copies and sums of 0.5 to 128 MiB, in both directions at once.
NVLINK_HOPPER = Link(
    "NVLink 4", 388, 325, 7.1, 2.6, 5.0, 3.6, 5.0, 3.3, "measured between two H100 SXM, 18 links, 2026-11-27"
)
