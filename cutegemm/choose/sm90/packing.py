"""How long it takes to copy what TMA cannot load, or wgmma not multiply, as it is."""

from __future__ import annotations

import numpy as np

from cutegemm.choose.columns import Column
from cutegemm.choose.sm90.shapes import Shapes
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.launches import MOST_PACKED_BYTES
from cutegemm.plan.memory.packing import to_pack_for_wgmma
from cutegemm.plan.problem import Operands, Problem

# Of the kernel that packs operands, and until the GEMM behind it has its first product; one that is launched beside it
# is ready then. Of one H200, 2026-11-22: timed alone, and the difference to both together; 0.7 us less of 242 problems
# on which plans that pack and others were timed (H100 and H200, until 2026-11-26).
PACK_START_US, MEETS_US, MEETS_EARLY_US = 2.0, 2.0, 0.5


def packed_us(shapes: Shapes, operands: Operands, problem: Problem, device: Device, packed: str) -> Column:
    """What it takes to pack the operands that are in the way; where threads read A, the other one. A number, where it
    is the same for all."""
    us: Column = packing_us(operands, problem, device) if packed else 0.0
    if not packed or not shapes.some_read:
        return us
    for way in (False, True):
        other = packed.replace(read_by(way), "")
        reads = shapes.reads_a & (shapes.turned == way)
        us = np.where(reads, packing_us(operands, problem, device, other), us)
    return us


def read_by(turned: bool) -> str:
    """The operand of the problem that is the A of a plan for D, or for D^T = B^T A^T."""
    return "b" if turned else "a"


def packing_us(
    operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE, only: str | None = None
) -> float:
    """What it takes to pack the operands that are in the way: one kernel, which reads and writes them.

    It is taken to run at the speed of memory, though L2 may hold some of them; where there is little to pack, the GEMM
    begins beside it.

    only   names of the operands that are packed; all that are in the way where left out

    >>> round(packing_us(Operands.of("bf16", layout="nt", align_bytes=2), Problem(4096, 4096, 4096)), 1)
    36.0
    """
    names = to_pack_for_wgmma(operands) if only is None else only
    if not names:
        return 0.0
    rows = sum(problem.m if name == "a" else problem.n for name in names)
    size = rows * problem.k * problem.l * operands.a.dtype.bits / 8
    meets_us = MEETS_EARLY_US if size <= MOST_PACKED_BYTES else MEETS_US
    return PACK_START_US + meets_us + 2 * size / (device.measured.pack_along_k_gb_s * 1e3)
