"""Predicted time of repack passes: copies of operands that TMA cannot load, or wgmma cannot multiply, as they are."""

from __future__ import annotations

import numpy as np

from cutegemm.choice.columns import Column
from cutegemm.choice.sm90.shapes import Shapes
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.launches import MAX_REPACKED_BYTES
from cutegemm.plan.memory.repack import repacked_for_wgmma
from cutegemm.plan.problem import Operands, Problem

# Microseconds of the start of a repack kernel, and from its end to the first MMA of the GEMM: shorter if few bytes are
# repacked, because the GEMM is then launched early and is ready. Timed alone and together with the GEMM (H200,
# 2026-11-22), and reduced by 0.7 us after 242 problems with and without repack passes (H100 and H200, 2026-11-26).
REPACK_START_US, MEETS_US, MEETS_EARLY_US = 2.0, 2.0, 0.5


def repack_us(shapes: Shapes, operands: Operands, problem: Problem, device: Device, repacked: str) -> Column:
    """Return the microseconds that repack passes (copies of operands before the GEMM) add to each plan of `shapes`.

    A plan whose threads load A into registers does not repack A.

    shapes              properties of the plans, as arrays with one entry per plan
    operands, problem   types, majorness and extents of the GEMM
    device              device whose memory bandwidth counts
    repacked            names of the operands that all other plans repack: "", "a", "b" or "ab"
    """
    if not repacked:
        return 0.0
    whole, without_a, without_b = [
        repacking_us(operands, problem, device, names) for names in (repacked, *map(repacked.replace, "ab", ("", "")))
    ]
    return np.where(shapes.reads_a, np.where(shapes.swap_ab, without_b, without_a), whole)


def read_by(swap_ab: bool) -> str:
    """Return which of the problem's operands the kernel sees as its A: "a", or "b" if the plan swaps A and B.

    swap_ab   whether the plan computes D^T = B^T A^T
    """
    return "b" if swap_ab else "a"


def repacking_us(
    operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE, names: str | None = None
) -> float:
    """Return the microseconds from the start of a repack kernel to the first MMA of the GEMM that follows it.

    A repack kernel copies A or B because the GEMM cannot load it. It is assumed to run at the speed of memory, although
    L2 may hold some of the operands.

    names     names of the operands that are repacked, in "ab"; None: all that TMA cannot load, or wgmma cannot
              multiply, as they are
    returns   0 if no operand is repacked

    >>> round(repacking_us(Operands.of("bf16", layout="nt", align_bytes=2), Problem(4096, 4096, 4096)), 1)
    36.0
    """
    names = repacked_for_wgmma(operands) if names is None else names
    if not names:
        return 0.0
    rows = sum(problem.m if name == "a" else problem.n for name in names)
    size = rows * problem.k * problem.l * operands.a.dtype.bits / 8
    meets_us = MEETS_US - (MEETS_US - MEETS_EARLY_US) * (size <= MAX_REPACKED_BYTES)
    return REPACK_START_US + meets_us + 2 * size / (device.measured.repack_along_k_gb_s * 1e3)
