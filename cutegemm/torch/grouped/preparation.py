"""Kernels of `grouped_mm`, chosen before the first call: for `cutegemm.prepare`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cutegemm.machine.device import Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.run.prepare import asking
from cutegemm.run.torch_ops import memory_of
from cutegemm.torch.epilogue import PLAIN
from cutegemm.torch.grouped.launch import compute_grouped, size_class
from cutegemm.torch.launch import AS_CHOSEN


def kernels_of_groups(
    shapes: Sequence[tuple[int, int, int]],
    rows: Sequence[int] | None,
    groups: int,
    operands: Operands,
    device: Device,
) -> list[tuple[GemmPlan, str]]:
    """Return (plan, architecture) of each kernel that `grouped_mm` uses for groups of rows of compact matrices.

    shapes     (M, N, K), where M is the number of rows of all groups. With `rows`, M is one of them
    rows       numbers of rows of all groups; None: each shape has its M
    groups     number of groups L
    operands   element types and majorness of the matrices
    device     device that plans are chosen for

    >>> from cutegemm.machine.device import DEFAULT_DEVICE
    >>> operands = Operands.of("bf16", layout="nt")
    >>> (plan, arch), = kernels_of_groups([(32768, 4096, 4096)], None, 8, operands, DEFAULT_DEVICE)
    >>> plan.name, arch
    ('sm90_128x192_2x1', 'sm_90a')
    """
    kernels: list[tuple[GemmPlan, str]] = []
    a_type, b_type, out = [memory_of(matrix.dtype) for matrix in (operands.a, operands.b, operands.d)]
    with asking(device, kernels):  # type: ignore[arg-type]
        for m, n, k in shapes:
            for count in [m] if rows is None else sampled_rows(rows, 1, groups):
                a = _empty(operands.a.major == "m", count, k, dtype=a_type)
                b = _empty(operands.b.major == "k", groups, k, n, dtype=b_type)
                ends = torch.empty(groups, dtype=torch.int32, device="meta")
                compute_grouped(a, b, ends, PLAIN, (), (), out, AS_CHOSEN, False)
    return kernels


def _empty(is_column_major: bool, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix, or a batch of them, without memory."""
    *front, rows, columns = shape
    if is_column_major:
        return torch.empty(*front, columns, rows, dtype=dtype, device="meta").mT
    return torch.empty(shape, dtype=dtype, device="meta")


def sampled_rows(rows: Sequence[int], k: int, groups: int) -> list[int]:
    """Return those of some numbers of rows that have all kernels: the first and the last of each class of sizes.

    The kernel that sorts the rows of experts changes at a power of two, as classes do.

    k        number of rows of groups for each row: 1, or the number of experts of each token
    groups   number of groups

    >>> sampled_rows(range(1, 9), 2, 8)
    [1, 3, 4, 5, 7, 8]
    """
    ends: dict[tuple[int, int], tuple[int, int]] = {}
    for count in sorted(rows):
        of_class = size_class(count * k, groups)
        ends[of_class] = ends.get(of_class, (count,))[0], count
    return sorted({count for pair in ends.values() for count in pair})
