"""How long a plan takes that streams A: for bytes of A from memory, for those and B's from L2, or for their latency.

Rates of memory and of L2 are those of the `Device`.
"""

from __future__ import annotations

from cutegemm.choose.skinny.recipe import SkinnyRecipe
from cutegemm.machine.device import Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem

# One H200 and one H100, 2026-11-22, many weights in one graph.
START_US = 2.7  # from one kernel to the next, and until its first bytes come
TURN_US = 0.4  # between CTAs of a multiprocessor that holds one at a time
COLD_US = 3.2  # more, where a flush of L2 comes before: as the times of the other families were taken
LATENCY_US = 0.9  # of a load from memory, with many under way
L2_SHARE = 0.45  # of what L2 may deliver, that A and B take together


def predicted_us(recipe: SkinnyRecipe, operands: Operands, problem: Problem, device: Device) -> float:
    """Microseconds that a plan takes behind another kernel, as in a CUDA graph; `COLD_US` more behind a flush of L2.

    operands, problem   as the plan sees them: of the transposed problem, where it is for that
    raises              PlanError where the plan does not serve the operands

    >>> from cutegemm.choose.skinny.named import SKINNY_PLANS
    >>> from cutegemm.machine.device import device_named
    >>> one = Problem(4096, 1, 4096)
    >>> round(predicted_us(SKINNY_PLANS[0], Operands.of("bf16", layout="nt"), one, device_named("h200")), 1)
    10.5
    """
    plan = recipe.build(operands, device=device)
    turns = -(-_tiles(plan, problem) * plan.k_ctas // (device.sms * plan.ctas_per_sm))
    between = TURN_US * (turns - 1) if plan.ctas_per_sm == 1 else 0.0
    return START_US + between + 1e6 * max(_seconds(plan, problem, device).values())


def bound(recipe: SkinnyRecipe, operands: Operands, problem: Problem, device: Device) -> str:
    """What takes most of the time."""
    seconds = _seconds(recipe.build(operands, device=device), problem, device)
    return max(seconds, key=seconds.__getitem__)


def _tiles(plan: GemmPlan, problem: Problem) -> int:
    """Tiles of D of clusters."""
    rows, columns, _ = plan.product_tile
    return -(-problem.m // rows) * -(-problem.n // columns) * problem.l


def _seconds(plan: GemmPlan, problem: Problem, device: Device) -> dict[str, float]:
    size, (rows, columns, deep) = plan.operands.a.dtype.bits / 8, plan.product_tile
    tiles, across = _tiles(plan, problem), min(columns, problem.n)
    of_a = problem.m * problem.k * size * -(-problem.n // columns) * problem.l
    of_b = tiles * across * problem.k * size
    schedule = plan.schedule
    assert schedule is not None
    shares = schedule.fragments // (schedule.fragments - len(schedule.prologue))
    held = min(tiles * plan.k_ctas, device.sms * plan.ctas_per_sm)  # CTAs
    whole = problem.k / (plan.k_tiles(problem) * deep) if problem.k else 1.0  # of the k-tiles
    under_way = held * rows * deep * size * (shares - 0.5) / shares * whole
    return {
        "memory": of_a / (device.measured.tma_read_gb_s * 1e9),
        "L2": (of_a + of_b) / (L2_SHARE * device.l2_bytes_per_s),
        "latency": of_a / under_way * LATENCY_US * 1e-6,
    }
