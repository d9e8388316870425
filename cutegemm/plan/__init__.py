"""Plans: a GEMM described, from the grid down to a value. See docs/plans.md.

what a plan is           `plan`, `problem`; `schedule` or `pipeline`; `packing`, `split`, `shares`, `workspace`
when it may exist        `rules`, `vector_rules`, `pipeline_rules`
from tile sizes to one   `building`; `simt`, `mma_sync`; with a `queue` and `sm90_slots`: `sm90`, `mma_sync_tma`
named ones               `catalog`, over `simt_catalog`, `mma_sync_catalog`, `sm90_catalog`; `choice`
which one to take        `simt_choice`, `sm90_choice`, and `choose_mma_sync`
ladders of named ones    `ladder`: `simt_ladder`, `mma_sync_ladder`, `sm90_ladder`
"""

from cutegemm.plan.building import Shared
from cutegemm.plan.mma_sync import mma_sync_plan
from cutegemm.plan.mma_sync_tma import mma_tma_plan
from cutegemm.plan.pipeline import Epilogue, Pipeline
from cutegemm.plan.plan import Barrier, GemmPlan, Role
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.schedule import Schedule, multistage, single_stage
from cutegemm.plan.simt import simt_plan
from cutegemm.plan.sm90 import sm90_plan

__all__ = [
    "Barrier",
    "Epilogue",
    "GemmPlan",
    "Operand",
    "Operands",
    "Pipeline",
    "Problem",
    "Role",
    "Schedule",
    "Shared",
    "mma_sync_plan",
    "mma_tma_plan",
    "multistage",
    "simt_plan",
    "single_stage",
    "sm90_plan",
]
