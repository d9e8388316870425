"""Rows of experts: their order, and the copies of tokens to rows and sums of rows to tokens, with gradients.

Both are gathers, and the gradient of one is the other. No atomics add, so that results and gradients have the same bits
in each run.
"""

from __future__ import annotations

from typing import Any

import torch


def gathered(x: torch.Tensor, order: torch.Tensor, k: int) -> torch.Tensor:
    """Return the rows of tokens in the order of `sorted_by_expert`: row i is row order[i] // k of x.

    k   number of experts of each token

    >>> gathered(torch.tensor([[1.0], [2.0]]), torch.tensor([3, 0, 1, 2]), 2).flatten()
    tensor([2., 1., 1., 2.])
    """
    return x[order // k]


def summed(y: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
    """Return for each token the sum of its k rows, in the order of its experts.

    place   index of the row of each token and expert, (T * k,)

    >>> summed(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), torch.tensor([1, 2, 3, 0]), 2).flatten()
    tensor([5., 5.])
    """
    return y[place].unflatten(0, (-1, k)).sum(1)


def sorted_by_expert(index: torch.Tensor, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the order of the rows of a grouped GEMM, and where the rows of each expert end. The host does not wait.

    index     (T, k) integers: the experts of each token. Numbers from `experts` on come last
    experts   number of experts L
    returns   (T * k,): the index in `index.flatten()` of each row; and (L,) int32 ends, as `grouped_mm` takes them

    >>> sorted_by_expert(torch.tensor([[2, 0], [0, 2]]), 3)
    (tensor([1, 2, 0, 3]), tensor([2, 2, 4], dtype=torch.int32))
    """
    values, order = index.flatten().to(torch.int32).sort(stable=True)
    numbers = torch.arange(experts, device=index.device, dtype=torch.int32)
    return order, torch.searchsorted(values, numbers, right=True, out_int32=True)


class _Rows(torch.autograd.Function):  # type: ignore[misc]
    """What both autograd functions of rows save for their gradients: order, place and k, see `Gathered`."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, order, place, ctx.k = inputs
        ctx.save_for_backward(order, place)


class Gathered(_Rows):
    """The autograd function that copies the rows of tokens: row i of the result is row order[i] // k of x.

    It is called as apply(x, order, place, k), where `place` is the inverse of the permutation `order`.
    """

    @staticmethod
    def forward(x: torch.Tensor, order: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
        return gathered(x, order, k)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        return Summed.apply(g, *ctx.saved_tensors, ctx.k), None, None, None


class Summed(_Rows):
    """The autograd function that adds the k rows of each token: the transpose of `Gathered`, with its arguments."""

    @staticmethod
    def forward(y: torch.Tensor, order: torch.Tensor, place: torch.Tensor, k: int) -> torch.Tensor:
        return summed(y, place, k)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        return Gathered.apply(g, *ctx.saved_tensors, ctx.k), None, None, None
