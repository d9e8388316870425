"""The operators of torch.library for a mixture of experts in graphs of torch.compile: `experts` and its gradients.

As one operator, a graph takes the kernels that sort the router's index, gather the rows of tokens, and add them. The
operators record no gradients: the autograd function `mixture.Mixture` calls both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from cutegemm.torch.grouped.mixture import computed, gradients, hidden_text
from cutegemm.torch.grouped.reference import allocated
from cutegemm.torch.library import define

_OPTIONS = "str? activation, bool interleaved, bool is_partial"
_PARAMETERS = "Tensor weights, Tensor up, Tensor down, Tensor? up_bias, Tensor? down_bias"
SCHEMAS = {
    "cutegemm::experts": f"(Tensor x, Tensor index, {_PARAMETERS}, {_OPTIONS}, bool deterministic, "
    "bool is_trained) -> Tensor[]",
    "cutegemm::experts_backward": f"(Tensor dy, Tensor x, Tensor place, Tensor ends, {_PARAMETERS}, Tensor[] preact, "
    f"{_OPTIONS}, bool[] needs) -> Tensor[]",
}

Shape = Sequence[int]


def _experts(*args: Any) -> list[torch.Tensor]:
    """Compute cutegemm::experts: return the results of `mixture.computed`, only the first if it is not trained."""
    *tensors, activation, interleaved, is_partial, deterministic, is_trained = args
    results = computed((activation, interleaved, is_partial), deterministic, tensors, is_trained)
    return list(results) if is_trained else [results[0]]


def _fake_experts(*args: Any) -> list[torch.Tensor]:
    """Return the results of `_experts` with only a shape and a type."""
    x, index, _, up, down, up_bias, _, activation, interleaved, *_, is_trained = args
    y = x.new_empty((x.shape[0], down.shape[1]))
    if not is_trained:
        return [y]
    place, ends = [index.new_empty(extent, dtype=torch.int32) for extent in (index.numel(), up.shape[0])]
    text = hidden_text(activation, up_bias is not None, interleaved, True)
    _, *preact = allocated(x.new_empty((index.numel(), x.shape[1])), up.mT, ends, text, None)
    return [y, place, ends, *preact]


def _experts_backward(*args: Any) -> list[torch.Tensor]:
    """Compute cutegemm::experts_backward: return those gradients of `mixture.gradients` that are needed."""
    dy, *tensors, preact, activation, interleaved, is_partial, needs = args
    found = gradients((activation, interleaved, is_partial), tuple(tensors), preact, dy, needs)
    return [gradient for gradient in found if gradient is not None]


def _fake_experts_backward(*args: Any) -> list[torch.Tensor]:
    """Return the results of `_experts_backward` with only a shape and a type."""
    _, x, _, _, *parameters, _, _, _, _, needs = args
    inputs = [x, *parameters]
    return [each.new_empty(each.shape) for each, need in zip(inputs, needs, strict=True) if need]


def _flops(x: Shape, index: Shape, weights: Shape, up: Shape, down: Shape, *_: Any, **__: Any) -> int:
    """Return the floating-point operations of both products, if all entries of the index are experts.

    >>> _flops((8, 4), (8, 2), (8, 2), (3, 12, 4), (3, 5, 6))
    2496
    """
    return 2 * prod(index) * (prod(up[1:]) + prod(down[1:]))


def _backward_flops(
    dy: Shape, x: Shape, place: Shape, ends: Shape, weights: Shape, up: Shape, *rest: Any, **_: Any
) -> int:
    """Return the floating-point operations of the products of the gradients that are needed.

    rest   shape of down, shapes of the biases, of preact, the options, and which gradients are needed

    >>> needs = [True, True, True, True, False, False]
    >>> _backward_flops((8, 5), (8, 4), (16,), (3,), (8, 2), (3, 12, 4), (3, 5, 6), None, None, needs)
    4992
    """
    by_x, _, by_up, by_down, *_ = rest[-1]
    of_up, of_down = prod(up[1:]), prod(rest[0][1:])
    return 2 * prod(place) * (of_down * (1 + by_down) + of_up * (by_x + by_up))


def _define() -> None:
    """Define the operators, and register their kernels, fakes and flop counts."""
    parts: dict[str, tuple[Callable[..., Any], ...]] = {
        "cutegemm::experts": (_experts, _fake_experts, _flops),
        "cutegemm::experts_backward": (_experts_backward, _fake_experts_backward, _backward_flops),
    }
    for name, (kernel, fake, flops) in parts.items():
        define(name, SCHEMAS[name], kernel, fake, flops)


_define()
