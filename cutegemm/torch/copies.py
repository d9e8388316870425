"""Operands that no kernel reads as they lie in memory: they are copied, and a `CopyWarning` names them.

A kernel reads rows or columns of adjacent elements. torch multiplies views of any strides, so the functions that have
its names do as well.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

import torch

from cutegemm.errors import CopyWarning
from cutegemm.run.calls import shapes_of


def is_loadable(x: torch.Tensor) -> bool:
    """Whether the rows or the columns of a matrix, or of a batch of matrices, are adjacent elements.

    A tensor whose elements are negated when they are read, as `z.conj().imag`, is not loadable.

    >>> x = torch.zeros(4, 6)
    >>> is_loadable(x.t()), is_loadable(x[:, ::2]), is_loadable(x[:1, ::2]), is_loadable(x[0, 0].expand(4, 6))
    (True, False, True, False)
    """
    if x.is_neg():
        return False
    if x.dim() < 2 or x.stride(-1) == 1 or x.stride(-2) == 1:
        return True
    return x.shape[-1] <= 1 or x.shape[-2] <= 1 or x.numel() == 0


def loadable(
    a: torch.Tensor, b: torch.Tensor, operands: Sequence[torch.Tensor], names: Sequence[str]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return the factors and the operands of a product; those that are not loadable are copied.

    names   names of a, b and the operands, for the warning

    >>> with warnings.catch_warnings(record=True) as found:
    ...     a, b, _ = loadable(torch.zeros(4, 6)[:, ::2], torch.zeros(3, 2), (), ("a", "b"))
    >>> a.stride(), str(found[0].message)[:64]
    ((3, 1), 'product of (4, 3) by (3, 2): a contiguous copy of a is made, bec')
    """
    wrong = [not is_loadable(x) for x in (a, b, *operands)]
    if not any(wrong):
        return a, b, list(operands)
    listed = " and ".join(name for name, is_wrong in zip(names, wrong, strict=False) if is_wrong)
    warnings.warn(
        f"product of {shapes_of(a, b)}: a contiguous copy of {listed} is made, because neither of the last two "
        "dimensions has a stride of 1, or the elements are negated. Pass a contiguous tensor, or a transposed one.",
        CopyWarning,
        stacklevel=_level_of_caller(),
    )
    first, second, *others = wrong
    return (
        _copy(a) if first else a,
        _copy(b.mT).mT if second else b,  # along K, as kernels of every type read it
        [_copy(x) if is_wrong else x for x, is_wrong in zip(operands, others, strict=True)],
    )


def _copy(x: torch.Tensor) -> torch.Tensor:
    return x.resolve_neg().contiguous()


def _level_of_caller() -> int:
    """Return the `stacklevel` of the call that is not cutegemm's or torch's own."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in (
        "cutegemm",
        "torch",
    ):
        level, frame = level + 1, frame.f_back
    return level
