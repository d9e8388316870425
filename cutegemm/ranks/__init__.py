"""GEMMs of several GPUs: the schedule of each rank as data, a simulator that proves it, and a model of its time.

steps of a rank, and regions of its buffers     `steps`
buffers and steps of all ranks                  `schedule`
schedules of the three operations               `builders`
"""

from cutegemm.ranks.builders import FORMS, OPERATIONS, all_gather, all_reduce, reduce_scatter, schedule_of
from cutegemm.ranks.schedule import Buffer, Schedule
from cutegemm.ranks.steps import Add, Barrier, Copy, Follow, Gemm, Region, Signal, Step, Wait

__all__ = [
    "FORMS",
    "OPERATIONS",
    "Add",
    "Barrier",
    "Buffer",
    "Copy",
    "Follow",
    "Gemm",
    "Region",
    "Schedule",
    "Signal",
    "Step",
    "Wait",
    "all_gather",
    "all_reduce",
    "reduce_scatter",
    "schedule_of",
]
