"""Floating-point operations of the operators, for torch.utils.flop_counter.FlopCounterMode.

As of torch's own products, a multiplication and an addition are two; epilogues are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

Shape = Sequence[int]


def _of_one(a: Shape, b: Shape, *_: Any, **__: Any) -> int:
    """Return 2 M N K of a @ b, for each product of a batch.

    a, b   shapes, M x K and K x N, perhaps with L in front

    >>> _of_one((4, 8), (8, 3)), _of_one((2, 4, 8), (2, 8, 3))
    (192, 384)
    """
    return 2 * prod(a) * b[-1]


def _of_parts(a: Shape, b: Sequence[Shape], *_: Any, **__: Any) -> int:
    """Return 2 M N K of a @ b, where the parts of b lie side by side."""
    return 2 * prod(a) * sum(part[-1] for part in b)


def _of_transposed_parts(a: Shape, b: Sequence[Shape], *_: Any, **__: Any) -> int:
    """Return 2 M N K of a @ b^T, where the parts of b lie side by side: a is M x K, each part N x K_i."""
    return 2 * prod(a) * b[0][-2]


FORMULAS: dict[str, Callable[..., int]] = {
    "cutegemm::mm": _of_one,
    "cutegemm::mm_out": _of_one,
    "cutegemm::gemm": _of_parts,
    "cutegemm::gemm_out": _of_parts,
    "cutegemm::mm_parts": _of_transposed_parts,
    "cutegemm::gemm_dgated": _of_one,
}


def register_flops(operators: Iterable[str]) -> None:
    """Let torch count the operations of operators by their formulas.

    operators   names as "cutegemm::mm"
    """
    for name in operators:
        register_flop_formula(getattr(torch.ops.cutegemm, name.partition("::")[2]))(FORMULAS[name])
