"""GEMMs of several GPUs: the schedule of each rank as data, a simulator that proves it, and a model of its time.

steps of a rank, and regions of its buffers     `steps`
buffers and steps of all ranks                  `schedule`
schedules of the three operations               `builders`, `gather`, `reduce`, `shape`
simulation in random interleavings              `simulate`, `tasks`, `memory`, `values`
predicted time, timeline, choice of the form    `time`, `clock`
"""

from cutegemm.ranks.builders import FORMS, OPERATIONS, all_gather, all_reduce, forms_of, reduce_scatter, schedule_of
from cutegemm.ranks.schedule import Buffer, Schedule
from cutegemm.ranks.simulate import ScheduleReport, miniature, simulate_calls, simulate_schedule
from cutegemm.ranks.steps import Add, Barrier, Copy, Follow, Gemm, Region, Signal, Spread, Step, Wait
from cutegemm.ranks.time import Prediction, explained, predict, predictions

__all__ = [
    "FORMS",
    "OPERATIONS",
    "Add",
    "Barrier",
    "Buffer",
    "Copy",
    "Follow",
    "Gemm",
    "Prediction",
    "Region",
    "Schedule",
    "ScheduleReport",
    "Signal",
    "Spread",
    "Step",
    "Wait",
    "all_gather",
    "all_reduce",
    "explained",
    "forms_of",
    "miniature",
    "predict",
    "predictions",
    "reduce_scatter",
    "schedule_of",
    "simulate_calls",
    "simulate_schedule",
]
