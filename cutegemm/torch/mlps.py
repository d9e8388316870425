"""An MLP of two layers as one node of autograd's graph.

Differentiated layer by layer, its backward pass is a product, which writes the gradient of the hidden values, and
operations of torch on that. Here the epilogue of the product is the derivative of the activation: one kernel writes the
gradient of the first layer's result, and the hidden values once more, which the gradient of the last weight reads. So a
forward pass keeps what is in front of the activation, and not what is behind it.
"""

from __future__ import annotations

from typing import Any

import torch

from cutegemm.run.calls import How
from cutegemm.torch.activations import ACTIVATIONS, GATED, dactivated, dgated, gate_and_up, wrong_activation
from cutegemm.torch.gradients import Extents, by_a, by_parts, loadable
from cutegemm.torch.halves import in_turn
from cutegemm.torch.launch import AS_CHOSEN, OF_LAYER
from cutegemm.torch.product import by_dgated, layered, product
from cutegemm.torch.refusals import refuse, wrong_factors, wrong_operand_dtypes, wrong_tensors
from cutegemm.torch.route import Route, as_autocast, reshaped, route_of, rows_of

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
) -> torch.Tensor:
    """Return act(x @ up.T + up_bias) @ down.T + down_bias, or, if it is gated, (act(gate) * up) @ down.T + down_bias.

    x             (..., K)
    up            H x K; for a gated activation a pair of them (gate, up), or one of 2H x K that is interleaved
    down          N x H
    activation    as of `linear`, or, if it is gated, as of `gemm_gated`
    up_bias       (H,); of gate and up (2H,), in the order of the rows of `up`
    down_bias     (N,)
    interleaved   whether rows 2j and 2j + 1 of `up` are a gate and an up, as in quack and gpt-oss
    returns       (..., N)
    raises       UnsupportedError with every rule that is broken

    The forward pass is two kernels. In the backward pass one kernel computes the gradient in front of the activation
    and the hidden values once more; the other gradients are products.

    >>> x, w = torch.tensor([[1.0, -2.0]]), torch.eye(2)
    >>> mlp(x, w, w, "relu"), mlp(x, (w, w), w, "reglu")
    (tensor([[1., 0.]]), tensor([[1., 0.]]))
    """
    parts = tuple(up) if isinstance(up, (tuple, list)) else (up,)
    x, down, up_bias, down_bias, *parts = as_autocast(x, down, up_bias, down_bias, *parts)  # type: ignore[assignment]
    _check(x, parts, down, activation, up_bias, down_bias, interleaved)
    flat = rows_of(x)
    columns, given = tuple([part.t() for part in parts]), (down.t(), up_bias, down_bias)
    if is_recorded(flat, columns, *given):
        found: torch.Tensor = Mlp.apply(activation, interleaved, len(columns), flat, *columns, *given)
    else:
        found = composed(activation, interleaved, flat, columns, *given)
    return found if x.dim() == 2 else reshaped(found, (*x.shape[:-1], down.shape[0]))


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
    given = {"x": x, **dict(zip(names, parts, strict=True)), "down": down}
    biases = {"up_bias": up_bias, "down_bias": down_bias}
    rules = wrong_tensors({**given, **biases}, tuple(biases))
    if not rules:
        rules = wrong_activation(activation, GATED if interleaved or len(parts) > 1 else ACTIVATIONS)
        for name, weight in list(given.items())[1:]:
            rules += wrong_factors(("x", name), x, weight)
        if len(parts) > 2 or any(part.shape != parts[0].shape for part in parts):
            listed = ", ".join(f"{tuple(part.shape)}" for part in parts)
            rules.append(f"up has weights of {listed}; one, or two of one shape, gate and up, are expected.")
        elif interleaved and (len(parts) > 1 or (parts[0].dim() == 2 and parts[0].shape[0] % 2)):
            listed = ", ".join(f"{tuple(part.shape)}" for part in parts)
            rules.append(
                f"up is {listed}, interleaved = True; one weight is expected, of an even number of rows."
            )
        elif x.dim() == 0 or any(weight.dim() != 2 for weight in (*parts, down)):
            listed = ", ".join(f"{name} {tuple(each.shape)}" for name, each in given.items())
            rules.append(f"shapes are {listed}; x of (..., K), up of H x K and down of N x H are expected.")
        else:
            (rows, k), (n, of_hidden) = parts[0].shape, down.shape
            hidden = rows // 2 if interleaved else rows
            if x.shape[-1] != k:
                rules.append(f"x has rows of {x.shape[-1]}, up of {k}; both are K.")
            if of_hidden != hidden:
                of_up = f"{rows} rows, two for each of H" if interleaved else f"{rows} rows; both are H"
                rules.append(f"down has rows of {of_hidden}, up has {of_up}.")
            for name, extent in (("up_bias", len(parts) * rows), ("down_bias", n)):
                bias = biases[name]
                if bias is not None and tuple(bias.shape) != (extent,):
                    rules.append(f"{name} has shape {tuple(bias.shape)}; {(extent,)} is expected.")
        rules += wrong_operand_dtypes(x, **biases)
    refuse("mlp", {**given, **biases}, rules)


def is_recorded(x: torch.Tensor, up: Weights, down: torch.Tensor, *biases: torch.Tensor | None) -> bool:
    """Whether an MLP is one node: gradients are wanted through its activation, in eager mode or by torch.compile.

    >>> x, w = torch.ones(1, 2), torch.ones(2, 2, requires_grad=True)
    >>> is_recorded(x, (w,), w), is_recorded(x, (w.detach(),), w)
    (True, False)
    """
    tensors = [x, *up, down, *[bias for bias in biases if bias is not None]]
    if not torch.is_grad_enabled() or not any(each.requires_grad for each in (x, *up)):
        return False
    if not x.dtype.is_floating_point or any(each.dtype != x.dtype for each in tensors):
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    return route_of(*tensors) is Route.RECORDED


def composed(
    activation: str,
    interleaved: bool,
    x: torch.Tensor,
    up: Weights,
    down: torch.Tensor,
    up_bias: torch.Tensor | None,
    down_bias: torch.Tensor | None,
) -> torch.Tensor:
    """Return the MLP layer by layer, each of which torch differentiates.

    activation    a gated one if there are two weights in `up`, or if it is interleaved
    interleaved   as of `mlp`
    x             T x K
    up, down      K x H, one or two of them (K x 2H if interleaved), and H x N
    """
    hidden = layered(x, up, up_bias, activation, interleaved=interleaved)[0]
    return layered(hidden, (down,), down_bias)[0]


class Mlp(torch.autograd.Function):  # type: ignore[misc]
    """apply(activation, whether `up` is interleaved, how many weights it has, x, *up, down, up_bias, down_bias)."""

    @staticmethod
    def forward(
        ctx: Any, activation: str, interleaved: bool, parts: int, *tensors: torch.Tensor | None
    ) -> torch.Tensor:
        x, up, down, up_bias, down_bias = _named(parts, tensors)
        if interleaved:
            names, biases = ((), ()) if up_bias is None else (("bias",), (up_bias,))
            text = gate_and_up(activation, names, True)
            hidden, *preact = product(x, up, text, biases, how=OF_LAYER)[:3]
        else:
            hidden, *preact = layered(x, up, up_bias, activation, keeps=True)[:2]
        ctx.activation, ctx.interleaved, ctx.parts = activation, interleaved, parts
        ctx.save_for_backward(*tensors, *preact)
        return layered(hidden, (down,), down_bias)[0]

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # which a checkpoint gives once
        tensors, preact = saved[: 4 + ctx.parts], saved[4 + ctx.parts :]
        needs = ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            return None, None, None, *_recorded_again(ctx, tensors, dy, needs)
        x, up, down, _, _ = _named(ctx.parts, tensors)
        by_x, *by_up, by_down, by_up_bias, by_down_bias = needs
        dy = loadable(dy)
        if ctx.interleaved:
            *both, hidden = product(dy, (down.mT,), dgated(ctx.activation), preact, how=OF_LAYER)[:3]
            dpre = in_turn(*both)
        elif ctx.parts == 2:
            dpre, hidden = by_dgated(dy, down.mT, preact[0], ctx.activation, OF_LAYER)
        else:
            text = dactivated(ctx.activation)
            dpre, hidden = product(dy, (down.mT,), text, preact, how=OF_LAYER)[:2]
        dx = by_a(dpre, up, Extents.of(x), x.dtype, _times) if by_x else None
        dups: Any = [None] * ctx.parts
        if any(by_up):
            dups = by_parts(x, dpre, [Extents.of(part) for part in up], x.dtype, _times)
        ddown = by_parts(hidden, dy, [Extents.of(down)], x.dtype, _times)[0] if by_down else None
        biases = dpre.sum(0) if by_up_bias else None, dy.sum(0) if by_down_bias else None
        return None, None, None, dx, *dups, ddown, *biases


def _named(parts: int, tensors: Any) -> tuple[torch.Tensor, Weights, torch.Tensor, Any, Any]:
    """Return x, up, down, up_bias and down_bias."""
    x, *up = tensors[: 1 + parts]
    return x, tuple(up), *tensors[1 + parts :]


def _times(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype, by_rows: bool = False) -> torch.Tensor:
    how: How = OF_LAYER if by_rows else AS_CHOSEN
    return product(x, (y,), out_dtype=dtype, how=how)[0]


def _recorded_again(
    ctx: Any, tensors: Any, dy: torch.Tensor, needs: tuple[bool, ...]
) -> list[torch.Tensor | None]:
    """Return the gradients as functions of the inputs, for gradients of gradients."""
    y = composed(ctx.activation, ctx.interleaved, *_named(ctx.parts, tensors))
    wanted = [each for each, need in zip(tensors, needs, strict=True) if need]
    found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
    return [next(found) if need else None for need in needs]
