"""The two parts of what a gated activation is made of, gate and up: nodes of expressions, and columns of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cutegemm.plan.epilogue import Expression, Half, Tensor


def is_half(node: Expression) -> bool:
    """Whether a node is a gate or an up of another."""
    return isinstance(node, Half)


def is_gated(result: Expression) -> bool:
    """Whether a result has half as many columns as the sums."""
    return any(is_half(node) for node in result.nodes())


def in_halves(results: Sequence[Expression]) -> tuple[list[Expression], bool | None]:
    """Results that are all of half as many columns as the sums: in the place of one that has all of them stand its
    gate and its up. And whether these are neighbours in memory; None where no result was parted.

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> acc = Accumulator()
    >>> gate, up = Half(acc, 0, False), Half(acc, 1, False)
    >>> found, interleaved = in_halves([gate * up, acc + 1.0])
    >>> [str(each) for each in found], interleaved
    (['acc.gate * acc.up', 'halves(acc + 1)[0]', 'halves(acc + 1)[1]'], False)
    """
    halves = [node for result in results for node in result.nodes() if isinstance(node, Half)]
    if not halves or all(is_gated(result) for result in results):
        return list(results), None
    of = halves[0].interleaved
    return [
        each
        for result in results
        for each in ([result] if is_gated(result) else [Half(result, 0, of), Half(result, 1, of)])
    ], of


def interleaved_of(results: Sequence[Expression]) -> bool:
    """Return whether gates and ups are neighbours: those of the first half in some results."""
    halves = [node for result in results for node in result.nodes() if isinstance(node, Half)]
    return halves[0].interleaved


def parts_named(name: str) -> tuple[str, str]:
    """Return the names of the gates and of the ups of an operand."""
    return f"{name}_gate", f"{name}_up"


def with_parts(results: Sequence[Expression], tiles: Sequence[str]) -> list[Expression]:
    """Replace gates and ups of tile operands by operands of their own, outside of the halves.

    tiles   names of operands with all columns of A @ B

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> (found,) = with_parts([Half(Accumulator() + Tensor("c"), 1, False)], ["c"])
    >>> print(found)
    acc.up + c_up
    """

    def of_half(of: Expression, half: Half) -> Expression:
        if isinstance(of, Tensor) and of.name in tiles:
            return Tensor(parts_named(of.name)[half.side])
        if not any(name in tiles for name in of.tensors):
            return Half(of, half.side, half.interleaved)
        return of.with_children(*[of_half(child, half) for child in of.children])

    def replaced(node: Expression) -> Expression:
        if isinstance(node, Half):
            return of_half(node.child, node)
        return node.with_children(*[replaced(child) for child in node.children])

    return [replaced(result) for result in results]


def halves_of(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return gates and ups of a tile operand as tiles that a kernel reads: views if they lie in halves, else copies."""
    if interleaved:
        return x[..., 0::2].contiguous(), x[..., 1::2].contiguous()
    gate, up = torch.split(x, x.shape[-1] // 2, -1)
    return gate, up


def in_turn(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return the columns of two tensors in turn, one of each.

    >>> in_turn(torch.tensor([1, 2]), torch.tensor([3, 4]))
    tensor([1, 3, 2, 4])
    """
    # Batched gradients have no rule for flatten
    return torch.stack([gate, up], -1).view(*gate.shape[:-1], 2 * gate.shape[-1])


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
        both = in_turn(first, second) if interleaved else torch.cat([first, second], -1)
        found = both if found is None else found + both
    assert found is not None
    return found
