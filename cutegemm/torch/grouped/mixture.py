"""The two grouped GEMMs of a mixture of experts, as one node of autograd's graph.

The forward pass saves x and the argument of the activation. In the backward pass one kernel computes the gradient of
that argument, the hidden values again, and the terms of the gradient of the router's weights. The other gradients are
grouped products. Rows are gathered again, not saved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from cutegemm.plan.epilogue import Tensor
from cutegemm.torch.activations import GATED, activated, dactivated, dgated, gate_and_up, gated
from cutegemm.torch.autograd import with_memory
from cutegemm.torch.dispatch import Route, route_of
from cutegemm.torch.epilogue import PLAIN, constant, formula, text_of
from cutegemm.torch.grouped.forms import Form
from cutegemm.torch.grouped.library import inside, product, spread, sum_of_groups
from cutegemm.torch.grouped.rows import Gathered, Summed, gathered, summed
from cutegemm.torch.reference import interleave

_BIASED = "lambda acc, bias: acc + bias"
_WEIGHTED_BIAS = "lambda acc, weight, bias: acc + weight * bias"
Activation: TypeAlias = str | Callable[[torch.Tensor], torch.Tensor] | None

# x, order, place, ends, weights, up, down, up_bias, down_bias: see `Mixture`
Inputs: TypeAlias = tuple[torch.Tensor | None, ...]


@constant
def hidden_text(activation: str | None, has_bias: bool, interleaved: bool, with_preact: bool = False) -> str:
    """Return the epilogue of the first product: the activation, times the weight of the row.

    with_preact   whether the activation's argument is another result, or two: gate and up

    >>> hidden_text("relu", True, False, True)
    'lambda acc, bias, weight: (relu(acc + bias) * weight, acc + bias)'
    """
    names = ("bias",) if has_bias else ()
    if activation not in GATED:
        text = activated(activation, names, with_preact)
    elif with_preact:
        text = gate_and_up(activation, names, interleaved)
    else:
        text = gated(activation, names, interleaved, False)
    hidden, *preact = formula(text).results
    return text_of([hidden * Tensor("weight"), *preact], (*names, "weight"))


@constant
def gradient_text(activation: str | None) -> str:
    """Return the epilogue of the product that is the gradient of the hidden values.

    Its results are the derivative by the activation's argument, or by gate and up; the weighted hidden values; and
    terms whose sum in a row is the gradient of its weight.

    >>> gradient_text("tanh")
    'lambda acc, preact, scale: (acc * scale * (1 - tanh(preact) * tanh(preact)), ..., acc * tanh(preact))'
    """
    read = formula(dgated(activation, True, True) if activation in GATED else dactivated(activation, True, True))
    *results, total = read.results
    return text_of([*results, *total.children], read.names)


def is_recorded(tensors: Inputs) -> bool:
    """Return whether autograd records a mixture as one node of its graph, not as single operations.

    It does if gradients are wanted, in eager mode or under torch.compile.
    """
    present = [x for x in tensors if x is not None]
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in present):
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    return route_of(*present) is Route.RECORDED


def composed(activation: Activation, interleaved: bool, is_partial: bool, tensors: Any) -> torch.Tensor:
    """Return the sums of each token's experts by single operations, which torch differentiates one by one.

    The arguments are those of `Mixture`; the activation may also be a function of torch.
    """
    x, order, place, ends, weights, up, down, up_bias, down_bias = tensors
    rows = Gathered.apply(x, order, place, weights.shape[1])
    weight = Gathered.apply(weights.reshape(-1, 1), order, place, 1)
    if callable(activation):
        text = PLAIN if up_bias is None else _BIASED
        preact = product(rows, up.mT, ends, text, _as_row(up_bias), zeroed=is_partial)[0]
        hidden = (activation(preact) * weight).to(rows.dtype)
    else:
        text = hidden_text(activation, up_bias is not None, interleaved)
        hidden = product(rows, up.mT, ends, text, [*_as_row(up_bias), weight])[0]
    return Summed.apply(_results(hidden, weight, down, down_bias, ends, is_partial), order, place, weights.shape[1])


def _results(hidden: Any, weight: Any, down: Any, down_bias: Any, ends: Any, is_partial: bool) -> torch.Tensor:
    """Return the results of the rows from weighted hidden values.

    The weights multiply the hidden values, so that the backward pass does not need the products by `down`.
    """
    text, operands = (PLAIN, []) if down_bias is None else (_WEIGHTED_BIAS, [weight, *_as_row(down_bias)])
    return product(hidden, down.mT, ends, text, operands, zeroed=is_partial)[0]


def _as_row(bias: torch.Tensor | None) -> list[torch.Tensor]:
    """Return a bias of each group as the operands of an epilogue: one or none."""
    return [] if bias is None else [bias.unsqueeze(1)]


class Mixture(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of a mixture of experts, called as apply(activation, interleaved, is_partial, *tensors).

    The tensors are x (T, K); order (T * k,) and ends (L,) as `sorted_by_expert` returns them; place, the inverse of the
    permutation `order`; weights (T, k); up and down, and their biases or None, as for `experts`. The result is (T, N).
    """

    @staticmethod
    def forward(ctx: Any, activation: str | None, interleaved: bool, is_partial: bool, *tensors: Any) -> torch.Tensor:
        x, order, place, ends, weights, up, down, up_bias, down_bias = tensors
        weight = weights.reshape(-1, 1)[order]
        text = hidden_text(activation, up_bias is not None, interleaved, True)
        rows = gathered(x, order, weights.shape[1])
        hidden, *preact = product(rows, up.mT, ends, text, [*_as_row(up_bias), weight])
        ctx.options = activation, interleaved, is_partial
        ctx.save_for_backward(*tensors, *preact)
        return summed(_results(hidden, weight, down, down_bias, ends, is_partial), place, weights.shape[1])

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[3:]  # a checkpoint unpacks them only once
        function: Any = _differentiable_backward if torch.is_grad_enabled() else _backward
        return None, None, None, *function(*ctx.options, saved[:9], saved[9:], dy, needs)


def _backward(
    activation: str | None, interleaved: bool, is_partial: bool, tensors: Any, preact: Any, dy: Any, needs: Any
) -> list[torch.Tensor | None]:
    """Return the gradients by the tensors of `Mixture`.

    preact   argument of the activation; or gate and up
    dy       gradient of the result
    needs    whether a gradient by each of the tensors is wanted
    """
    x, order, place, ends, weights, up, down, up_bias, down_bias = tensors
    by_x, _, _, _, by_weights, by_up, by_down, by_up_bias, by_down_bias = needs
    count = weights.shape[1]
    g, weight = gathered(with_memory(dy), order, count), weights.reshape(-1, 1)[order]
    text = gradient_text(activation)
    *both, hidden, terms = product(g, down, ends, text, [*preact, weight], zeroed=is_partial)
    dpreact = both[0] if len(both) == 1 else interleave(*both) if interleaved else torch.cat(both, -1)
    form = Form("m", down.shape[0], g.shape[0], down.shape[2], g.shape[1])
    gradients: list[Any] = [None] * len(tensors)
    if by_x:
        gradients[0] = summed(product(dpreact, up, ends, zeroed=is_partial)[0], place, count)
    if by_weights:
        total = terms.sum(-1, dtype=torch.promote_types(terms.dtype, torch.float32))
        if down_bias is not None:
            own = g * spread(down_bias.unsqueeze(1), form, ends)
            total = total + torch.where(inside(form, ends), own, 0).sum(-1, dtype=total.dtype)
        gradients[4] = total[place].view(weights.shape).to(weights.dtype)
    if by_up:
        gradients[5] = product(dpreact.mT, gathered(x, order, count), ends)[0]
    if by_down:
        gradients[6] = product(g.mT, hidden, ends)[0]
    if by_up_bias:
        total = sum_of_groups(dpreact, (up.shape[0], 1, up.shape[1]), form, ends)
        gradients[7] = total.squeeze(1).to(up_bias.dtype)
    if by_down_bias:
        total = sum_of_groups(g * weight, (down.shape[0], 1, down.shape[1]), form, ends)
        gradients[8] = total.squeeze(1).to(down_bias.dtype)
    return gradients


def _differentiable_backward(
    activation: str | None, interleaved: bool, is_partial: bool, tensors: Any, preact: Any, dy: Any, needs: Any
) -> list[torch.Tensor | None]:
    """Return the gradients of `_backward` as functions of the inputs, for gradients of gradients."""
    y = composed(activation, interleaved, is_partial, tensors)
    wanted = [each for each, need in zip(tensors, needs, strict=True) if need]
    gradients = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return [next(gradients) if need else None for need in needs]
