"""How long a plan takes that streams A: the bytes of A from memory, those of B from L2, and a start."""

from __future__ import annotations

from cutegemm.choose.skinny.recipe import SkinnyRecipe
from cutegemm.machine.device import Device
from cutegemm.plan.problem import Operands, Problem

# One H200 and one H100, 2026-11-22, many weights in one graph.
START_US = 2.7  # from one kernel to the next, and until its first bytes come
READ_SHARE = 0.905  # of a data sheet's rate of memory, that loads of threads reach
L2_SHARE = 0.45  # of what L2 may deliver, that A and B take together


def predicted_us(recipe: SkinnyRecipe, operands: Operands, problem: Problem, device: Device) -> float:
    """Microseconds that a plan takes.

    operands, problem   as the plan sees them: of the transposed problem, where it is for that

    >>> from cutegemm.choose.skinny.named import SKINNY_PLANS
    >>> from cutegemm.machine.device import device_named
    >>> one = Problem(4096, 1, 4096)
    >>> round(predicted_us(SKINNY_PLANS[0], Operands.of("bf16", layout="nt"), one, device_named("h200")), 1)
    10.4
    """
    return START_US + max(_seconds(recipe, operands, problem, device).values()) * 1e6


def bound(recipe: SkinnyRecipe, operands: Operands, problem: Problem, device: Device) -> str:
    """What takes most of the time."""
    seconds = _seconds(recipe, operands, problem, device)
    return max(seconds, key=seconds.__getitem__)


def _seconds(recipe: SkinnyRecipe, operands: Operands, problem: Problem, device: Device) -> dict[str, float]:
    rows, columns = recipe.tile
    size, batch = operands.a.dtype.bits / 8, problem.l
    m_tiles, n_tiles = -(-problem.m // rows), -(-problem.n // columns)
    of_a = problem.m * problem.k * size * n_tiles * batch
    of_b = m_tiles * min(columns, problem.n) * n_tiles * problem.k * size * batch
    return {
        "memory": of_a / (READ_SHARE * device.dram_gb_s * 1e9),
        "L2": (of_a + of_b) / (L2_SHARE * device.l2_bytes_per_s),
    }
