"""Activations by their names, as text of epilogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from cutegemm.plan.epilogue import Accumulator, Reduction, Tensor
from cutegemm.torch.derivatives import derivative
from cutegemm.torch.epilogue import constant, formula, lambda_of, text_of
from cutegemm.torch.reference import FUNCTIONS

ACTIVATIONS: Mapping[str | None, str] = {
    None: "{x}",
    "relu": "relu({x})",
    "relu_sq": "square(relu({x}))",
    "gelu": "gelu({x})",
    "gelu_tanh": "gelu_tanh({x})",
    "silu": "silu({x})",
    "sigmoid": "sigmoid({x})",
    "tanh": "tanh({x})",
}
GATED: Mapping[str, str] = {
    "swiglu": "silu({gate}) * {up}",
    "geglu": "gelu({gate}) * {up}",
    "geglu_tanh": "gelu_tanh({gate}) * {up}",
    "reglu": "relu({gate}) * {up}",
    "glu": "sigmoid({gate}) * {up}",
    "swiglu_oai": "minimum({gate}, 7) * sigmoid(1.702 * minimum({gate}, 7)) * (clamp({up}, -7, 7) + 1)",
}
ALIASES = {
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_tanh_approx"), "gelu_tanh"),
    "relu2": "relu_sq",
    "swish": "silu",
}
# The gated activation by the activation of its gate.
OF_GATE = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "sigmoid": "glu"}
SCALE = "scale"  # name of the last operand, which multiplies the accumulator


def wrong_activation(name: Any, known: Mapping[Any, str]) -> list[str]:
    """Return a list with one error message if the name of an activation is unknown; an empty list if it is known.

    name    the activation that the caller passed, such as "gelu" or None
    known   dict whose keys are the names of the activations that the called function supports

    >>> wrong_activation("swish", ACTIVATIONS), wrong_activation("swiglu", {"glu": ""})
    ([], ["activation = 'swiglu' is unknown. Use one of 'glu'."])
    """
    if isinstance(name, (str, type(None))) and ALIASES.get(name, name) in known:  # type: ignore[arg-type]
        return []
    names = [*known, *[alias for alias, own in ALIASES.items() if own in known]]
    return [f"activation = {name!r} is unknown. Use one of {', '.join(map(repr, names))}."]


@constant
def activated(name: str | None, operands: tuple[str, ...], with_preact: bool = False) -> str:
    """Return the epilogue act(acc + operands) as text, a lambda that `gemm` can use; acc is the accumulator of a GEMM.

    name          name of the activation; None for none
    operands      names of the operands that are added, such as ("bias",); an operand named "scale" comes last and
                  multiplies acc
    with_preact   True for a second result, the argument of the activation

    >>> activated("gelu", ("bias",), True)
    'lambda acc, bias: (gelu(acc + bias), acc + bias)'
    >>> activated("relu", ("bias", "scale"))
    'lambda acc, bias, scale: relu(scale * acc + bias)'
    """
    x = _preact(operands)
    y = _of_one(name, x)
    return lambda_of([y, x] if with_preact else [y], operands)


@constant
def gated(name: str, operands: tuple[str, ...], interleaved: bool, with_preact: bool) -> str:
    """Return the epilogue act(gate) * up as text, a lambda; gate and up are half of the accumulator's columns each.

    name          name of the gated activation, such as "swiglu"
    operands      names of the operands that are added to the accumulator; an operand named "scale" comes last and
                  multiplies it
    interleaved   True: gate and up are columns 2j and 2j + 1; False: they are the left and the right half
    with_preact   True for a second result: gate and up, as one matrix

    >>> gated("swiglu", (), False, False)
    'lambda acc: silu(halves(acc)[0]) * halves(acc)[1]'
    """
    x = _preact(operands)
    gate, up = _gate_and_up(x, interleaved)
    y = GATED[name].format(gate=gate, up=up)
    return lambda_of([y, x] if with_preact else [y], operands)


@constant
def gate_and_up(name: str, operands: tuple[str, ...], interleaved: bool) -> str:
    """Return the epilogue with the three results act(gate) * up, gate and up, as text: a lambda that `gemm` can use.

    name          name of the gated activation, such as "swiglu"
    operands      names of the operands that are added to the accumulator; an operand named "scale" multiplies it
    interleaved   True: gate and up are columns 2j and 2j + 1; False: they are the left and the right half

    >>> gate_and_up("reglu", (), True)
    'lambda acc: (relu(pairs(acc)[0]) * pairs(acc)[1], pairs(acc)[0], pairs(acc)[1])'
    """
    gate, up = _gate_and_up(_preact(operands), interleaved)
    return lambda_of([GATED[name].format(gate=gate, up=up), gate, up], operands)


@constant
def dactivated(name: str | None, scaled: bool = False, with_sums: bool = False) -> str:
    """Return the epilogue of an activation's backward pass as text: its results are acc * act'(preact) and act(preact).

    The accumulator acc is the gradient of act(preact); preact, the argument of the activation, is an operand.

    name        name of the activation; None for none
    scaled      True if both results are multiplied by the operand named "scale"
    with_sums   True for a third result: the row sums of acc * act(preact), without the scale

    >>> dactivated("tanh")
    'lambda acc, preact: (acc * (1 - tanh(preact) * tanh(preact)), tanh(preact))'
    >>> dactivated(None, True, True)
    'lambda acc, preact, scale: (acc * scale, preact * scale, row_sum(acc * preact))'
    """
    return _derivatives(_of_one(name, "preact"), ["preact"], scaled, with_sums)


@constant
def dgated(name: str, scaled: bool = False, with_sums: bool = False) -> str:
    """Return the epilogue of a gated activation's backward pass as text (a lambda).

    The accumulator acc is the gradient of act(gate) * up; gate and up are operands. The results are acc times the
    derivative by gate, acc times the derivative by up, and act(gate) * up.

    name        name of the gated activation, such as "swiglu"
    scaled      True if the results are multiplied by the operand named "scale"
    with_sums   True for one more result: the row sums of acc * act(gate) * up, without the scale

    >>> dgated("reglu")
    'lambda acc, gate, up: (where(relu(gate) > 0, acc * up, 0), acc * relu(gate), relu(gate) * up)'
    """
    return _derivatives(GATED[name].format(gate="gate", up="up"), ["gate", "up"], scaled, with_sums)


def _derivatives(body: str, names: list[str], scaled: bool, with_sums: bool) -> str:
    """Return an epilogue as text with these results: acc times each derivative of an expression, and the expression.

    The text is a lambda, as `gemm` takes it; acc is the accumulator. It serves as the epilogue of a backward pass.

    body        text of the expression, such as "silu(gate) * up"
    names       operands to differentiate by, such as ["gate", "up"]: one result for each, in this order
    scaled      True if all these results are multiplied by the operand named "scale"
    with_sums   True for one more result: the row sums of acc times the expression, without the scale
    """
    (y,) = formula(f"lambda acc, {', '.join(names)}: {body} + 0 * acc").results
    y, g, scale = y.children[0], Accumulator(), Tensor(SCALE)
    by_names = [derivative(y, name, g * scale if scaled else g) for name in names]
    accumulators = [Reduction("sum", ("n",), g * y)] if with_sums else []
    return text_of([*by_names, y * scale if scaled else y, *accumulators], [*names, SCALE] if scaled else names)


def activated_by_torch(name: str, x: torch.Tensor) -> torch.Tensor:
    """Return act(x), computed by torch. If x is a proxy of torch.fx, the call becomes a node of its graph.

    name   name of an activation such as "gelu", or an alias of it

    >>> activated_by_torch("relu2", torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """
    name = ALIASES.get(name, name)
    return F.relu(x).square() if name == "relu_sq" else FUNCTIONS[name](x)


def gated_by_torch(name: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return act(gate) * up, computed by operations of torch, which torch.compile can trace.

    name   name of the gated activation, such as "swiglu" (silu(gate) * up)

    >>> gated_by_torch("reglu", torch.tensor([-1.0, 3.0]), torch.tensor([5.0, 2.0]))
    tensor([0., 6.])
    """
    if name == "swiglu_oai":
        gate = gate.clamp(max=7)
        return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7, 7) + 1)
    return FUNCTIONS[GATED[name].partition("(")[0]](gate) * up


def _of_one(name: str | None, x: str) -> str:
    return ACTIVATIONS[ALIASES.get(name, name)].format(x=x)  # type: ignore[arg-type]


def _preact(operands: Sequence[str]) -> str:
    """Return the argument of an activation as text: the accumulator (times "scale" if it is an operand), plus operands.

    operands   names of the operands: ("bias",) gives "acc + bias"
    """
    acc = f"{SCALE} * acc" if SCALE in operands else "acc"
    return " + ".join([acc, *[name for name in operands if name != SCALE]])


def _gate_and_up(x: str, interleaved: bool) -> list[str]:
    return [f"{'pairs' if interleaved else 'halves'}({x})[{side}]" for side in (0, 1)]
