"""Sizes of the workspace arguments of a compiled kernel. `plan.memory.workspace` defines what the workspace holds."""

from __future__ import annotations

from cutegemm.compile.spaces import Sizes
from cutegemm.plan.memory.workspace import workspace_bytes
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem


def sizes_of(plan: GemmPlan, m: int, n: int, k: int, l: int) -> Sizes:  # noqa: E741
    """Return how much workspace in global memory a plan's kernel needs for a problem: bytes, and number of semaphores.

    The fields of the result are `total` (bytes), `zeroed` (bytes at its start that must be zero before a launch) and
    `counters` (semaphores in a tensor of their own; None without such a tensor).

    m, n, k, l   extents of the problem; l is the number of batches

    >>> from cutegemm.build import simt_plan, sm90_plan
    >>> from cutegemm.plan import Operands
    >>> sizes_of(simt_plan(split_k=4, reduction="last"), 128, 128, 1024, 1)
    Sizes(counters=None, zeroed=256, total=262400)
    >>> sizes_of(sm90_plan(split_k=4), 128, 128, 1024, 1)
    Sizes(counters=64, zeroed=0, total=262144)
    >>> sizes_of(sm90_plan(Operands.of("bf16", layout="nt", batched=True), split_k=4), 128, 128, 1024, 3)
    Sizes(counters=64, zeroed=0, total=786432)
    """
    total, zeroed = workspace_bytes(plan, Problem(m, n, k, l, plan.operands))
    if not plan.body.has_roles or not plan.scheduler.split.is_split:
        return Sizes(None, zeroed, max(1, total))
    return Sizes(zeroed // 4, 0, max(1, total - zeroed))
