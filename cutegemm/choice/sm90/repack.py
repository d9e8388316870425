"""How long it takes to copy what TMA cannot load, or wgmma not multiply, as it is."""

from __future__ import annotations

import numpy as np

from cutegemm.choice.columns import Column
from cutegemm.choice.sm90.shapes import Shapes
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.launches import MAX_REPACKED_BYTES
from cutegemm.plan.memory.repack import repacked_for_wgmma
from cutegemm.plan.problem import Operands, Problem

# Of the kernel that packs operands, and until the GEMM behind it has its first product; one that is launched beside it
# is ready then. Of one H200, 2026-11-22: timed alone, and the difference to both together; 0.7 us less of 242 problems
# on which plans that pack and others were timed (H100 and H200, until 2026-11-26).
REPACK_START_US, MEETS_US, MEETS_EARLY_US = 2.0, 2.0, 0.5


def repack_us(shapes: Shapes, operands: Operands, problem: Problem, device: Device, packed: str) -> Column:
    """Return the microseconds by which packing prolongs each plan: of all that is in the way, but for an A that threads
    read into registers.

    packed   names of the operands that are in the way
    """
    if not packed:
        return 0.0
    whole, without_a, without_b = [
        repacking_us(operands, problem, device, names) for names in (packed, *map(packed.replace, "ab", ("", "")))
    ]
    return np.where(shapes.reads_a, np.where(shapes.swap_ab, without_b, without_a), whole)


def read_by(swap_ab: bool) -> str:
    """Return the operand of the problem that is the A of a plan for D, or for D^T = B^T A^T.

    swap_ab   whether the plan is for D^T
    """
    return "b" if swap_ab else "a"


def repacking_us(
    operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE, names: str | None = None
) -> float:
    """Return the microseconds of the kernel that packs operands, and until the GEMM after it multiplies.

    It is taken to run at the speed of memory, though L2 may hold some of them. If there is little to pack, the GEMM
    begins while it runs.

    names   of the operands that are packed; all that TMA or wgmma does not take as they are if left out

    >>> round(repacking_us(Operands.of("bf16", layout="nt", align_bytes=2), Problem(4096, 4096, 4096)), 1)
    36.0
    """
    names = repacked_for_wgmma(operands) if names is None else names
    if not names:
        return 0.0
    rows = sum(problem.m if name == "a" else problem.n for name in names)
    size = rows * problem.k * problem.l * operands.a.dtype.bits / 8
    meets_us = MEETS_EARLY_US if size <= MAX_REPACKED_BYTES else MEETS_US
    return REPACK_START_US + meets_us + 2 * size / (device.measured.repack_along_k_gb_s * 1e3)
