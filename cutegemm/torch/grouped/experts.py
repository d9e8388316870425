"""`experts`: the MLPs of a mixture of experts, as two grouped GEMMs over the rows of all experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cutegemm.run.calls import Calls, is_batch_invariant
from cutegemm.torch import checks
from cutegemm.torch.activations import ACTIVATIONS, GATED, gated_by_torch, wrong_activation
from cutegemm.torch.dispatch import as_autocast
from cutegemm.torch.grouped import mixture_library  # noqa: F401  (defines the operators of graphs)
from cutegemm.torch.grouped.library import wrong_mode
from cutegemm.torch.grouped.mixture import Activation, mixed

_right = Calls()  # signatures of calls whose arguments are right


def experts(
    x: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    activation: Activation = "swiglu",
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    is_partial: bool = False,
    deterministic: bool = True,
) -> torch.Tensor:
    """Return for each token the sum of weight * (act(x @ up.T + up_bias) @ down.T + down_bias) over its experts.

    x               (T, K): a row for each token
    index           (T, k) integers: the experts of each token, as a router chooses them. The host does not read them
    weights         (T, k): the weight of each of them, of a floating type
    up              (L, H, K): a weight of each of L experts; (L, 2H, K) for a gated activation: gate, then up
    down            (L, N, H)
    activation      name of an activation, as for `linear` or, if gated, as for `gemm_gated`; or a function of torch
                    from (rows, 2H) or (rows, H) to (rows, H), which torch computes between the two products
    up_bias         (L, 2H) or (L, H), in the order of the rows of `up`; None for no bias
    down_bias       (L, N); None for no bias
    interleaved     whether rows 2j and 2j + 1 of `up` are gate and up, as in gpt-oss. If `up` is not contiguous along
                    K, torch applies the activation after the kernel
    is_partial      whether `index` may have numbers from L on, for experts on other devices. They contribute 0. Without
                    it, such a number makes the result wrong. A negative number counts as 0, the first expert
    deterministic   whether the rows of a token are added in the order of its experts, in float32. Otherwise a kernel of
                    Hopper adds them in any order, each with a rounding to the type of x, while it computes them. That
                    saves the memory of the rows, but hardly time. `torch.use_deterministic_algorithms(True)` makes all
                    calls deterministic
    returns         (T, N)
    raises          UnsupportedError with every rule that is violated

    >>> x, up, down = torch.ones(2, 3), torch.ones(4, 2, 3), torch.ones(4, 5, 2)
    >>> index, weights = torch.tensor([[0, 3], [3, 1]]), torch.tensor([[0.5, 0.5], [1.0, 2.0]])
    >>> experts(x, index, weights, up, down, "relu")
    tensor([[ 6.,  6.,  6.,  6.,  6.],
            [18., 18., 18., 18., 18.]])
    """
    x, up, down, up_bias, down_bias = as_autocast(x, up, down, up_bias, down_bias)
    tensors = (x, index, weights, up, down, up_bias, down_bias)
    kinds = checks.signature_of(tensors)
    named = activation if activation is None or isinstance(activation, str) else callable(activation)
    key = kinds, interleaved, named
    if kinds is None or is_batch_invariant() or key not in _right.found:
        _check(*tensors, activation, interleaved)
        if kinds is not None:
            _right.keep(key, True)
    if interleaved and up.stride(2) != 1 and not callable(activation):
        # A kernel does not pair adjacent columns of a B that is contiguous along them, as the weights of gpt-oss are.
        activation, interleaved = _OF_PAIRS[activation or ""], False
    return mixed(activation, interleaved, is_partial, deterministic, tensors)


def _of_pairs(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a gated activation of a tensor whose columns 2j and 2j + 1 are gate and up, by operations of torch."""
    return lambda x: gated_by_torch(name, x[..., ::2], x[..., 1::2])


_OF_PAIRS = {name: _of_pairs(name) for name in GATED}


def _check(
    x: Any,
    index: Any,
    weights: Any,
    up: Any,
    down: Any,
    up_bias: Any,
    down_bias: Any,
    activation: Any,
    interleaved: bool,
) -> None:
    tensors = {"x": x, "index": index, "weights": weights, "up": up, "down": down}
    biases = {"up_bias": up_bias, "down_bias": down_bias}
    rules = checks.wrong_tensors({**tensors, **biases}, tuple(biases))
    if not callable(activation):
        rules += wrong_activation(activation, GATED if interleaved else {**ACTIVATIONS, **GATED})
    if not rules:
        rules = [
            *wrong_mode(),
            *checks.wrong_factors(("x", "up"), x, up),
            *checks.wrong_factors(("x", "down"), x, down),
        ]
        if x.dtype.itemsize == 1:
            rules.append(f"x is of {x.dtype}, but hidden values are not. Pass a wider type for all, as x.bfloat16().")
        rules += checks.wrong_operand_dtypes(x, weights=weights, **biases)
        ranks = [each.dim() for each in tensors.values()]
        if ranks != [2, 2, 2, 3, 3]:
            listed = ", ".join(f"{name} {tuple(each.shape)}" for name, each in tensors.items())
            rules.append(
                f"shapes are {listed}. Pass x of shape (T, K), index and weights (T, k), up (L, H, K) or (L, 2H, K), "
                "and down (L, N, H)."
            )
        else:
            rules += _wrong_extents(**tensors, **biases, activation=activation)
    checks.refuse("experts", {**tensors, **biases}, rules)


def _wrong_extents(
    x: torch.Tensor,
    index: torch.Tensor,
    weights: torch.Tensor,
    up: torch.Tensor,
    down: torch.Tensor,
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
    activation: Activation,
) -> list[str]:
    """Return error messages for extents that do not fit each other. All ranks are right."""
    rules = []
    (count, rows, k), (of_down, n, hidden) = up.shape, down.shape
    if index.dtype.is_floating_point or index.dtype.is_complex or index.dtype == torch.bool:
        rules.append(f"index is of {index.dtype}. Pass integers, such as the indices of torch.topk.")
    if index.shape[0] != x.shape[0] or index.shape != weights.shape:
        shapes = f"index has shape {tuple(index.shape)}, weights {tuple(weights.shape)}"
        rules.append(f"{shapes}, x has {x.shape[0]} rows. Pass a row of index and of weights for each row of x.")
    elif index.shape[1] == 0:
        rules.append(f"index has shape {tuple(index.shape)}. Pass at least one expert for each token.")
    if x.shape[1] != k:
        rules.append(f"x has rows of {x.shape[1]}, up of {k}, but both are K.")
    if count != of_down:
        rules.append(f"up has weights of {count} experts, down of {of_down}. Pass one of each for each expert.")
    gates = 2 if not callable(activation) and activation in GATED else 1
    if not callable(activation) and rows != gates * hidden:
        of_up = "twice as many, for gate and up" if gates == 2 else "as many"
        rules.append(f"down has rows of {hidden}, up has {rows} rows for each expert. Pass {of_up}.")
    for name, bias, extent in (("up_bias", up_bias, rows), ("down_bias", down_bias, n)):
        if bias is not None and tuple(bias.shape) != (count, extent):
            rules.append(f"{name} has shape {tuple(bias.shape)}. Pass a tensor of shape {(count, extent)}.")
    return rules
