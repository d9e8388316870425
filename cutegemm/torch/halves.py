"""The two parts of what a gated activation is made of, gate and up: nodes of expressions, and columns of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cutegemm.plan.epilogue import Expression, Half


def is_half(node: Expression) -> bool:
    """Whether a node is a gate or an up of another."""
    return isinstance(node, Half)


def is_gated(result: Expression) -> bool:
    """Whether a result has half as many columns as the sums."""
    return any(is_half(node) for node in result.nodes())


def part(node: Any, x: torch.Tensor) -> torch.Tensor:
    """The columns that a node stands for.

    >>> part(Half(Expression(), 1, True), torch.arange(4)), part(Half(Expression(), 1, False), torch.arange(4))
    (tensor([1, 3]), tensor([2, 3]))
    """
    if node.interleaved:
        return x[..., node.side :: 2]
    half = x.shape[-1] // 2
    return x[..., node.side * half : (node.side + 1) * half]


def together(halves: Sequence[tuple[Any, torch.Tensor]]) -> torch.Tensor:
    """The columns of what gates and ups are parts of: zeros where neither has given any.

    halves   nodes, and the columns that each stands for
    """
    found = None
    for interleaved in {node.interleaved for node, _ in halves}:
        sides: list[Any] = [None, None]
        for node, g in halves:
            if node.interleaved == interleaved:
                sides[node.side] = g
        first, second = (torch.zeros_like(halves[0][1]) if side is None else side for side in sides)
        both = torch.stack([first, second], -1).flatten(-2) if interleaved else torch.cat([first, second], -1)
        found = both if found is None else found + both
    assert found is not None
    return found
