"""Predictions for a plan without running it: bank conflicts, sectors, occupancy, traffic and roofline.

`check` makes the whole report; see docs/analysis.md.
"""

from cutegemm.analysis.accesses import Access, global_table, shared_accesses
from cutegemm.analysis.cache.gpcs import GpcReads, gpc_reads
from cutegemm.analysis.cache.traffic import Traffic, best_rasters, compare_rasters, traffic, traffic_in_time
from cutegemm.analysis.changes import Change
from cutegemm.analysis.epilogue_cost import EpilogueCost
from cutegemm.analysis.executed import Executed, ExecutedAccesses
from cutegemm.analysis.foreign import check_part
from cutegemm.analysis.globalmem import Sectors, global_accesses, sectors, usable_bits
from cutegemm.analysis.groups import GroupCost
from cutegemm.analysis.occupancy import Occupancy, Waves, occupancy, plan_occupancy, waves
from cutegemm.analysis.render import print_report, render
from cutegemm.analysis.report import Analysis, check
from cutegemm.analysis.roofline import Level, Roofline, roofline
from cutegemm.analysis.shared import (
    DEFAULT_RULES,
    PLAIN,
    UNIFORM_PAIRS,
    Collision,
    Rules,
    Wavefronts,
    bank_conflicts,
    wavefronts,
)
from cutegemm.analysis.swizzle import SwizzleSearch, search_plan, search_swizzle
from cutegemm.machine.device import DEVICES, Device, device_named

__all__ = [
    "DEFAULT_RULES",
    "DEVICES",
    "PLAIN",
    "UNIFORM_PAIRS",
    "Access",
    "Analysis",
    "Change",
    "Collision",
    "Device",
    "EpilogueCost",
    "Executed",
    "ExecutedAccesses",
    "GpcReads",
    "GroupCost",
    "Level",
    "Occupancy",
    "Roofline",
    "Rules",
    "Sectors",
    "SwizzleSearch",
    "Traffic",
    "Wavefronts",
    "Waves",
    "bank_conflicts",
    "best_rasters",
    "check",
    "check_part",
    "compare_rasters",
    "device_named",
    "global_accesses",
    "global_table",
    "gpc_reads",
    "occupancy",
    "plan_occupancy",
    "print_report",
    "render",
    "roofline",
    "search_plan",
    "search_swizzle",
    "sectors",
    "shared_accesses",
    "traffic",
    "traffic_in_time",
    "usable_bits",
    "wavefronts",
    "waves",
]
