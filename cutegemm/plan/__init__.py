"""Plans: descriptions of GEMM kernels, from the grid down to a single value. See docs/plans.md.

what is multiplied       `problem`: operands and extents
what a plan is           `plan`
what its roles do        `program/`
which tile a CTA takes   `work/`
how D is stored          `store/`
memory of a launch       `memory/`
when it may exist        `rules/`
"""

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.program.barriers import Barrier
from cutegemm.plan.role import Role
from cutegemm.plan.store import LineStore, RegisterStore, SharedStore, Store, TmaStore
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.warp_roles import WarpRoles
from cutegemm.plan.work.grid import OneEach, Persistent
from cutegemm.plan.work.scheduler import TileScheduler

__all__ = [
    "Barrier",
    "GemmPlan",
    "LineStore",
    "OneEach",
    "Operand",
    "OperandStream",
    "Operands",
    "Persistent",
    "Problem",
    "RegisterStore",
    "Role",
    "SharedStore",
    "Store",
    "TileScheduler",
    "TmaStore",
    "WarpRoles",
]
