"""An MLP of two layers as one node of autograd's graph.

The backward pass of separate layers is a product, which writes the gradient of the hidden values, and operations of
torch on that gradient. Here the epilogue of this product contains the derivative of the activation: one kernel writes
the gradient of the first layer's result, and the hidden values again, which the gradient of the last weight reads. The
forward pass therefore saves the argument of the activation, and not the hidden values.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from cutegemm.run.calls import How
from cutegemm.torch import checks
from cutegemm.torch.activations import ACTIVATIONS, GATED, dactivated, dgated, gate_and_up, wrong_activation
from cutegemm.torch.autograd import (
    Extents,
    gated_backward,
    gradient_by_a,
    gradients_by_b,
    layered,
    product,
    with_memory,
)
from cutegemm.torch.dispatch import Route, as_autocast, is_exporting, reshaped, route_of, rows_of
from cutegemm.torch.launch import AS_CHOSEN, OF_LAYER, in_mode
from cutegemm.torch.reference import interleave

Weights = tuple[torch.Tensor, ...]


def mlp(
    x: torch.Tensor,
    up: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    down: torch.Tensor,
    activation: str,
    up_bias: torch.Tensor | None = None,
    down_bias: torch.Tensor | None = None,
    *,
    interleaved: bool = False,
    batch_invariant: bool | None = None,
) -> torch.Tensor:
    """Return act(x @ up.T + up_bias) @ down.T + down_bias; if gated, (act(gate) * up) @ down.T + down_bias.

    x                 (..., K)
    up                H x K; for a gated activation a pair (gate, up) of them, or one of 2H x K that is interleaved
    down              N x H
    activation        name such as "gelu", or of a gated activation such as "swiglu"
    up_bias           (H,), or (2H,) for gate and up, in the order of the rows of `up`; None for no bias
    down_bias         (N,); None for no bias
    interleaved       True if rows 2j and 2j + 1 of `up` are gate and up, as in quack and gpt-oss
    batch_invariant   True if each row must have the same bits in every batch; None: True in such a context
    returns           (..., N)
    raises            UnsupportedError with every rule that is violated

    The forward pass is two kernels. In the backward pass one kernel computes the gradient of the activation's
    argument and the hidden values again; the other gradients are products.

    >>> x, w = torch.tensor([[1.0, -2.0]]), torch.eye(2)
    >>> mlp(x, w, w, "relu"), mlp(x, (w, w), w, "reglu")
    (tensor([[1., 0.]]), tensor([[1., 0.]]))
    """
    parts = tuple(up) if isinstance(up, (tuple, list)) else (up,)
    x, down, up_bias, down_bias, *parts = as_autocast(x, down, up_bias, down_bias, *parts)  # type: ignore[assignment]
    _check(x, parts, down, activation, up_bias, down_bias, interleaved)
    columns = tuple([part.t() for part in parts])
    tensors = (rows_of(x), *columns, down.t(), up_bias, down_bias)
    how = in_mode(OF_LAYER, batch_invariant)
    if is_recorded(len(columns), *tensors):
        y: torch.Tensor = Mlp.apply(activation, interleaved, how.batch_invariant, len(columns), *tensors)
    else:
        y = _composed(activation, interleaved, how, len(columns), tensors)
    return y if x.dim() == 2 else reshaped(y, (*x.shape[:-1], down.shape[0]))


def _check(
    x: Any,
    parts: tuple[Any, ...],
    down: Any,
    activation: Any,
    up_bias: Any,
    down_bias: Any,
    interleaved: bool,
) -> None:
    names = ("up",) if len(parts) == 1 else tuple([f"up[{i}]" for i in range(len(parts))])
    tensors = {"x": x, **dict(zip(names, parts, strict=True)), "down": down}
    biases = {"up_bias": up_bias, "down_bias": down_bias}
    rules = checks.wrong_tensors({**tensors, **biases}, tuple(biases))
    if not rules:
        rules = wrong_activation(activation, GATED if interleaved or len(parts) > 1 else ACTIVATIONS)
        for name, weight in list(tensors.items())[1:]:
            rules += checks.wrong_factors(("x", name), x, weight)
        listed = ", ".join(str(tuple(part.shape)) for part in parts)
        if len(parts) > 2 or any(part.shape != parts[0].shape for part in parts):
            rules.append(f"up has weights of {listed}. Pass one weight, or two of one shape, for gate and up.")
        elif interleaved and (len(parts) > 1 or (parts[0].dim() == 2 and parts[0].shape[0] % 2)):
            wanted = "Pass one weight with an even number of rows."
            rules.append(f"up is {listed}, interleaved = True. {wanted}")
        elif x.dim() == 0 or any(weight.dim() != 2 for weight in (*parts, down)):
            listed = ", ".join(f"{name} {tuple(each.shape)}" for name, each in tensors.items())
            rules.append(f"shapes are {listed}. Pass x of shape (..., K), up of shape (H, K) and down of shape (N, H).")
        else:
            (rows, k), (n, hidden) = parts[0].shape, down.shape
            if x.shape[-1] != k:
                rules.append(f"x has rows of {x.shape[-1]}, up of {k}, but both are K.")
            if hidden != (rows // 2 if interleaved else rows):
                of_up = f"{rows} rows, two for each of H" if interleaved else f"{rows} rows; both are H"
                rules.append(f"down has rows of {hidden}, up has {of_up}.")
            rules += checks.wrong_bias("up_bias", up_bias, len(parts) * rows)
            rules += checks.wrong_bias("down_bias", down_bias, n)
        rules += checks.wrong_operand_dtypes(x, **biases)
    checks.refuse("mlp", {**tensors, **biases}, rules)


def is_recorded(parts: int, *tensors: torch.Tensor | None) -> bool:
    """Return True if `mlp` computes an MLP as one node of autograd's graph, False if layer by layer.

    It is True if gradients pass the activation, in eager mode or under torch.compile.

    parts     number of weights of the first layer: 1, or 2 for gate and up
    tensors   x, the weights of the first layer, the weight of the second layer, and the biases or None

    >>> x, w = torch.ones(1, 2), torch.ones(2, 2, requires_grad=True)
    >>> is_recorded(1, x, w, w), is_recorded(1, x, w.detach(), w)
    (True, False)
    """
    present = [x for x in tensors if x is not None]
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in present[: 1 + parts]):
        return False
    if not present[0].dtype.is_floating_point or any(x.dtype != present[0].dtype for x in present):
        return False
    if torch.compiler.is_compiling():
        return not is_exporting()
    return route_of(*present) is Route.RECORDED


def _composed(activation: str, interleaved: bool, how: How, parts: int, tensors: Any) -> torch.Tensor:
    """Return the result of an MLP, computed layer by layer, so that torch differentiates each layer.

    activation    name such as "gelu" or "swiglu"
    interleaved   True if columns 2j and 2j + 1 of `up` are gate and up
    how           other options of `gemm`, such as the plan
    parts         number of weights of the first layer: 1, or 2 for gate and up
    tensors       (x, *up, down, up_bias, down_bias); weights are transposed, and a bias may be None
    """
    x, up, down, up_bias, down_bias = _named(parts, tensors)
    hidden = layered(x, up, up_bias, activation, interleaved=interleaved, how=how)[0]
    return layered(hidden, (down,), down_bias, how=how)[0]


class Mlp(torch.autograd.Function):  # type: ignore[misc]
    """Computes an MLP, y = act(x @ up + up_bias) @ down + down_bias, so that torch records it as one node of its graph.

    It is called as apply(activation, interleaved, batch_invariant, parts, x, *up, down, up_bias, down_bias), and
    returns y, T x N for T tokens.

    parts   number of weights in `up`: 1, or 2 for gate and up
    x       T x K
    up      K x H, one or two of them; or one of K x 2H if gate and up are interleaved columns
    down    H x N
    """

    @staticmethod
    def forward(
        ctx: Any,
        activation: str,
        interleaved: bool,
        batch_invariant: bool,
        parts: int,
        *tensors: torch.Tensor | None,
    ) -> torch.Tensor:
        how = in_mode(OF_LAYER, batch_invariant)
        x, up, down, up_bias, down_bias = _named(parts, tensors)
        if interleaved:
            names, biases = ((), ()) if up_bias is None else (("bias",), (up_bias,))
            text = gate_and_up(activation, names, True)
            hidden, *preact = product(x, up, text, biases, how=how)[:3]
        else:
            hidden, *preact = layered(x, up, up_bias, activation, stores_preact=True, how=how)[:2]
        ctx.activation, ctx.interleaved, ctx.parts, ctx.how = activation, interleaved, parts, how
        ctx.save_for_backward(*tensors, *preact)
        return layered(hidden, (down,), down_bias, how=how)[0]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # a checkpoint unpacks them only once
        tensors, preact = saved[: 4 + ctx.parts], saved[4 + ctx.parts :]
        how, needs = ctx.how, ctx.needs_input_grad[4:]
        if torch.is_grad_enabled():
            return None, None, None, None, *_differentiable_backward(ctx, tensors, dy, needs)
        x, up, down, _, _ = _named(ctx.parts, tensors)
        by_x, *by_up, by_down, by_up_bias, by_down_bias = needs
        dy = with_memory(dy)
        if ctx.interleaved:
            *both, hidden = product(dy, (down.mT,), dgated(ctx.activation), preact, how=how)[:3]
            dpreact = interleave(*both)
        elif ctx.parts == 2:
            dpreact, hidden = gated_backward(dy, down.mT, preact[0], ctx.activation, how)
        else:
            dpreact, hidden = product(dy, (down.mT,), dactivated(ctx.activation), preact, how=how)[:2]
        dx = None
        if by_x:
            dx = gradient_by_a(dpreact, up, Extents.of(x), partial(_times, how=how), how.batch_invariant)
        dup: Any = [None] * ctx.parts
        if any(by_up):
            dup = gradients_by_b(x, dpreact, [Extents.of(part) for part in up], _times)
        ddown = gradients_by_b(hidden, dy, [Extents.of(down)], _times)[0] if by_down else None
        biases = dpreact.sum(0) if by_up_bias else None, dy.sum(0) if by_down_bias else None
        return None, None, None, None, dx, *dup, ddown, *biases


def _named(parts: int, tensors: Any) -> tuple[torch.Tensor, Weights, torch.Tensor, Any, Any]:
    """Sort the saved tensors of an MLP into (x, up, down, up_bias, down_bias), where up is a tuple of weights.

    parts     number of tensors of the up projection: 1, or 2 for gate and up
    tensors   (x, *up, down, up_bias, down_bias); a bias may be None
    """
    x, *up = tensors[: 1 + parts]
    return x, tuple(up), *tensors[1 + parts :]


def _times(
    x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype, by_rows: bool = False, how: How = OF_LAYER
) -> torch.Tensor:
    """Return x @ y in the backward pass of an MLP, with the options of `gemm` that suit this product.

    dtype     type of the result
    by_rows   True if the rows of the result are the rows (tokens) of the MLP's input; only then `how` is used
    how       other options of `gemm`, such as the plan
    """
    return product(x, (y,), out_dtype=dtype, how=how if by_rows else AS_CHOSEN)[0]


def _differentiable_backward(
    ctx: Any, tensors: Any, dy: torch.Tensor, needs: tuple[bool, ...]
) -> list[torch.Tensor | None]:
    """Return the gradients of an MLP as differentiable functions of its inputs, for gradients of gradients.

    ctx       autograd context of `Mlp`
    tensors   (x, *up, down, up_bias, down_bias); a bias may be None
    dy        gradient of the result
    needs     for each of `tensors`, True if its gradient is wanted; the result has None for the others
    """
    y = _composed(ctx.activation, ctx.interleaved, ctx.how, ctx.parts, tensors)
    wanted = [each for each, need in zip(tensors, needs, strict=True) if need]
    gradients = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return [next(gradients) if need else None for need in needs]
