"""The two grouped GEMMs of a mixture of experts, as one node of autograd's graph.

The forward pass saves x and the argument of the activation. In the backward pass one kernel computes the gradient of
that argument, the hidden values again, and the terms of the gradient of the router's weights. The other gradients are
grouped products. Rows are gathered again, not saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._C import _are_functorch_transforms_active
from torch.compiler import is_compiling

from cutegemm.errors import UnsupportedError
from cutegemm.plan.epilogue import Tensor
from cutegemm.run.calls import Calls
from cutegemm.run.views import ALIGN_BYTES
from cutegemm.torch.activations import GATED, activated, dactivated, dgated, gate_and_up, gated
from cutegemm.torch.autograd import with_memory
from cutegemm.torch.dispatch import Route, is_batched, is_exporting, route_of
from cutegemm.torch.epilogue import PLAIN, constant, formula, text_of
from cutegemm.torch.grouped.forms import Form
from cutegemm.torch.grouped.launch import size_class
from cutegemm.torch.grouped.library import inside, product, sum_of_groups
from cutegemm.torch.grouped.library import spread as spread_to_rows
from cutegemm.torch.grouped.prepared import padded
from cutegemm.torch.grouped.rows import (
    add_rows,
    copy_rows,
    has_kernels,
    inverse,
    placed,
    placed_tokens,
    spread,
    summed,
    totals,
)
from cutegemm.torch.grouped.steps import Product

_BIASED = "lambda acc, bias: acc + bias"
_WEIGHTED_BIAS = "lambda acc, weight, bias: acc + weight * bias"
Activation: TypeAlias = str | Callable[[torch.Tensor], torch.Tensor] | None

# x, index, weights, up, down, up_bias, down_bias: the arguments of `experts`
Inputs: TypeAlias = tuple[torch.Tensor | None, ...]
Options: TypeAlias = tuple[str | None, bool, bool]  # activation, interleaved, is_partial

_steps = Calls()  # `Steps` by the signature of a mixture
# Largest mean number of rows of an expert, rounded down to a power of two, for rows that are loaded one by one. Then
# reading the weights takes longer. The first product and what precedes it take 0.90 to 1.00 of the time with a copy of
# the rows for means up to 64, and 1.3 to 1.7 times as long for means of 128 to 1024 (H100, 2026-11-28).
_MOST_GATHERED = 64


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


class Steps:
    """The grouped products of a mixture of experts with one signature.

    hidden     rows by `up`. Results: weighted hidden values; for a backward pass also the argument of the activation
    results    hidden values by `down`
    sums       hidden values by `down`, added to the rows of tokens
    gradient   gradient g of the results by `down`. Results: gradient of the argument; hidden values; terms, whose sum
               in a row is the gradient of its weight
    by_rows    gradient of the argument by `up`
    by_up      gradient of the argument, transposed, by the rows
    by_down    g, transposed, by the hidden values
    """

    def __init__(
        self, activation: str | None, interleaved: bool, is_partial: bool, biases: tuple[bool, bool], is_trained: bool
    ) -> None:
        self.hidden = Product(hidden_text(activation, biases[0], interleaved, is_trained))
        self.results = Product(_WEIGHTED_BIAS if biases[1] else PLAIN, is_partial)
        self.sums = Product(self.results.text)
        self.gradient = Product(gradient_text(activation), is_partial, interleaved if activation in GATED else None)
        self.by_rows = Product(zeroed=is_partial)
        self.by_up, self.by_down = Product(), Product()


def mixed(
    activation: Activation, interleaved: bool, is_partial: bool, deterministic: bool, tensors: Inputs
) -> torch.Tensor:
    """Return the sum of the weighted experts of each token: by a node of autograd's graph, or by single operations.

    The arguments are those of `experts`, and were checked.

    raises   UnsupportedError in a graph of torch.compile that transforms the call
    """
    present = [x for x in tensors if x is not None]
    route = route_of(*present)
    if is_compiling() and not is_exporting():
        if _are_functorch_transforms_active():  # the operator would have gradients of 0
            raise UnsupportedError("experts: torch.func is inside of a graph of torch.compile. Call it outside.")
        is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in present)
        route = Route.RECORDED if is_recorded else Route.DIRECT
    if callable(activation) or route not in (Route.DIRECT, Route.RECORDED):
        place, ends = placed(present[1], present[3].shape[0])
        return composed(activation, interleaved, is_partial, (present[0], place, ends, *tensors[2:]))
    options = activation, interleaved, is_partial
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    if route is Route.DIRECT:
        return _forward(options, deterministic, tensors, False)[0]
    y: torch.Tensor = Mixture.apply(options, deterministic, *tensors)
    return y


def _steps_of(options: Options, tensors: Inputs, is_trained: bool, saved: Sequence[torch.Tensor] = ()) -> Steps:
    """Return the steps of a mixture with the signature of these tensors.

    saved   argument of the activation, in a backward pass: hooks of saved tensors may have changed its strides
    """
    biases = tensors[5] is not None, tensors[6] is not None
    places = [
        None if x is None else (x.dtype, x.shape, x.stride(), x.data_ptr() % ALIGN_BYTES, x.is_neg())
        for x in (*tensors[2:], *saved)
    ]
    x = tensors[0]
    assert x is not None
    key = (x.dtype, x.shape, *places, x.get_device(), options, is_trained)
    steps: Steps | None = _steps.found.get(key)
    if steps is None:
        steps = Steps(*options, biases, is_trained)
        _steps.keep(key, steps)
    return steps


def composed(activation: Activation, interleaved: bool, is_partial: bool, tensors: Any) -> torch.Tensor:
    """Return the sums of each token's experts by single operations, which torch differentiates one by one.

    tensors   x, place and ends as `placed` returns them, weights, up, down, up_bias, down_bias
    """
    x, place, ends, weights, up, down, up_bias, down_bias = tensors
    order, k = inverse(place), weights.shape[1]
    rows = copy_rows(x, order, place, k)
    weight = copy_rows(weights.reshape(-1, 1), order, place, 1)
    if callable(activation):
        text = PLAIN if up_bias is None else _BIASED
        preact = product(rows, up.mT, ends, text, _as_row(up_bias), zeroed=is_partial)[0]
        hidden = (activation(preact) * weight).to(rows.dtype)
    else:
        text = hidden_text(activation, up_bias is not None, interleaved)
        hidden = product(rows, up.mT, ends, text, [*_as_row(up_bias), weight])[0]
    text, operands = (PLAIN, []) if down_bias is None else (_WEIGHTED_BIAS, [weight, *_as_row(down_bias)])
    return add_rows(product(hidden, down.mT, ends, text, operands, zeroed=is_partial)[0], order, place, k)


def gathers(rows: int, experts: int) -> bool:
    """Return whether the first product loads the rows of experts from the tokens. Otherwise they are copied first.

    rows      number of rows of all experts
    experts   number of experts

    >>> gathers(16, 8), gathers(8192, 128), gathers(32768, 8)
    (True, True, False)
    """
    return size_class(rows, experts)[1] <= _MOST_GATHERED


def loadable_tokens(x: torch.Tensor) -> torch.Tensor:
    """Return the rows of tokens so that TMA can load them: x itself, or a copy.

    All have the same kernel, so that the signature of a mixture does not have the strides and the address of x.

    >>> x = torch.ones(4, 8)
    >>> [loadable_tokens(each) is each for each in (x, x[1:], x[:, :4], x[:, 1:], x.T, x[:1].expand(4, 8))]
    [True, True, True, False, False, False]
    """
    if x.stride(1) != 1 or x.stride(0) == 0 or x.is_neg():
        return padded(x, 1)
    return padded(x, 1) if (x.data_ptr() | x.stride(0) * x.element_size()) % ALIGN_BYTES else x


def _as_row(bias: torch.Tensor | None) -> list[torch.Tensor]:
    """Return a bias of each group as the operands of an epilogue: one or none."""
    return [] if bias is None else [bias.unsqueeze(1)]


def _forward(options: Options, deterministic: bool, tensors: Any, is_trained: bool) -> Sequence[torch.Tensor]:
    """Return the results of `computed`. A graph holds one operator."""
    if is_compiling():
        results: list[torch.Tensor] = torch.ops.cutegemm.experts(*tensors, *options, deterministic, is_trained)
        return results
    return computed(options, deterministic, tensors, is_trained)


def computed(options: Options, deterministic: bool, tensors: Any, is_trained: bool) -> Sequence[torch.Tensor]:
    """Return the result of a mixture, place, ends, and the argument of the activation if it is trained.

    The weights multiply the hidden values, so that the backward pass does not need the products by `down`.

    options         activation, interleaved and is_partial
    deterministic   whether a pass adds the rows of each token. Otherwise the second product adds them, if TMA can store
                    all columns of a row
    tensors         the arguments of `experts`
    """
    steps = _steps_of(options, tensors, is_trained)
    x, index, weights, up, down, up_bias, down_bias = tensors
    gathered = has_kernels(x) and gathers(index.numel(), up.shape[0])
    adds = not deterministic and down.shape[1] * x.element_size() % ALIGN_BYTES == 0
    if gathered or adds:
        place, ends, tokens, weight = placed_tokens(index, up.shape[0], weights)
        rows = loadable_tokens(x) if gathered else spread(x, place, weights.shape[1])[0]
    else:
        place, ends = placed(index, up.shape[0])
        rows, weight = spread(x, place, weights.shape[1], weights)
    own = {"index": tokens} if gathered else {}
    hidden, *preact = steps.hidden(rows, up.mT, ends, *_as_row(up_bias), weight, **own)
    operands = [] if down_bias is None else [weight, *_as_row(down_bias)]
    if adds:
        y = steps.sums(hidden, down.mT, ends, *operands, d_index=tokens, targets=x.shape[0])[0]
        return (y, place, ends, *preact)
    y = steps.results(hidden, down.mT, ends, *operands)[0]
    return (summed(y, place, weights.shape[1]), place, ends, *preact)


class Mixture(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of a mixture of experts, called as apply(options, deterministic, *tensors).

    The first two are those of `computed`. The tensors are those of `mixed`. The result is (T, N).
    """

    @staticmethod
    def forward(ctx: Any, options: Options, deterministic: bool, *tensors: Any) -> torch.Tensor:
        y, place, ends, *preact = _forward(options, deterministic, tensors, True)
        ctx.options = options
        x, _, *others = tensors
        ctx.save_for_backward(x, place, ends, *others, *preact)
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        saved, needs = ctx.saved_tensors, ctx.needs_input_grad[2:]  # a checkpoint unpacks them only once
        is_plain = not torch.is_grad_enabled() and not is_batched(dy)
        function: Any = _backward if is_plain else _differentiable_backward
        by_x, *others = function(ctx.options, saved[:8], saved[8:], dy, (needs[0], *needs[2:]))
        return None, None, by_x, None, *others


def _backward(options: Options, tensors: Any, preact: Any, dy: Any, needs: Sequence[bool]) -> list[torch.Tensor | None]:
    """Return the results of `gradients`. A graph holds one operator."""
    if not is_compiling():
        return gradients(options, tensors, preact, dy, needs)
    x, place, ends, weights, *others = tensors
    found = iter(torch.ops.cutegemm.experts_backward(dy, x, place, ends, weights, *others, preact, *options, needs))
    return [next(found) if need else None for need in needs]


def gradients(options: Options, tensors: Any, preact: Any, dy: Any, needs: Sequence[bool]) -> list[torch.Tensor | None]:
    """Return the gradients by x, weights, up, down and the biases.

    options   activation, interleaved and is_partial
    tensors   as for `composed`
    preact    argument of the activation; or gate and up
    dy        gradient of the result
    needs     whether each of the gradients is wanted
    """
    x, place, ends, weights, up, down, up_bias, down_bias = tensors
    by_x, by_weights, by_up, by_down, by_up_bias, by_down_bias = needs
    steps = _steps_of(options, (x, place, weights, up, down, up_bias, down_bias), True, preact)
    count = weights.shape[1]
    g, weight = spread(with_memory(dy), place, count, weights)
    dpreact, hidden, terms = steps.gradient(g, down, ends, *preact, weight)
    form = Form("m", down.shape[0], g.shape[0], down.shape[2], g.shape[1])
    found: list[Any] = [None] * len(needs)
    if by_x:
        found[0] = summed(steps.by_rows(dpreact, up, ends)[0], place, count)
    if by_weights and down_bias is None:
        found[1] = totals(terms, place, weights)
    elif by_weights:
        total = terms.sum(-1, dtype=torch.promote_types(terms.dtype, torch.float32))
        own = g * spread_to_rows(down_bias.unsqueeze(1), form, ends)
        total = total + torch.where(inside(form, ends), own, 0).sum(-1, dtype=total.dtype)
        found[1] = total[place].view(weights.shape).to(weights.dtype)
    if by_up:
        found[2] = steps.by_up(dpreact.mT, spread(x, place, count)[0], ends)[0]
    if by_down:
        found[3] = steps.by_down(g.mT, hidden, ends)[0]
    if by_up_bias:
        total = sum_of_groups(dpreact, (up.shape[0], 1, up.shape[1]), form, ends)
        found[4] = total.squeeze(1).to(up_bias.dtype)
    if by_down_bias:
        total = sum_of_groups(g * weight, (down.shape[0], 1, down.shape[1]), form, ends)
        found[5] = total.squeeze(1).to(down_bias.dtype)
    return found


def compute_both_passes(activation: str | None, interleaved: bool, is_partial: bool, tensors: Inputs) -> None:
    """Compute a mixture and its gradients by x, by the weights and by parameters that require gradients.

    Results are dropped. autograd calls backward passes in threads of its own, which `prepare.asking` does not see. The
    arguments are those of `mixed`, without a function as the activation.
    """
    options = activation, interleaved, is_partial
    y, place, ends, *preact = computed(options, True, tensors, True)
    x, _, weights, *parameters = tensors
    needs = [True, True, *[each is not None and each.requires_grad for each in parameters]]
    gradients(options, (x, place, ends, weights, *parameters), preact, y, needs)


def _differentiable_backward(
    options: Options, tensors: Any, preact: Any, dy: Any, needs: Sequence[bool]
) -> list[torch.Tensor | None]:
    """Return the results of `gradients` as functions of the inputs: for higher gradients, and for batches."""
    creates_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        y = composed(*options, tensors)
    x, _, _, *others = tensors
    wanted = [each for each, need in zip((x, *others), needs, strict=True) if need]
    found = iter(torch.autograd.grad(y, wanted, dy, create_graph=creates_graph))
    return [next(found) if need else None for need in needs]
