"""Activations by the names that the field has for them, as text of epilogues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cutegemm.plan.epilogue import Accumulator, Reduction, Tensor
from cutegemm.torch.pullback import derivative
from cutegemm.torch.text import formula, text_of
from cutegemm.torch.traced import constant
from cutegemm.torch.values import Values

# Of one value.
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
# Of a gate and what it lets through.
GATED: Mapping[str, str] = {
    "swiglu": "silu({gate}) * {up}",
    "geglu": "gelu({gate}) * {up}",
    "geglu_tanh": "gelu_tanh({gate}) * {up}",
    "reglu": "relu({gate}) * {up}",
    "glu": "sigmoid({gate}) * {up}",
    "swiglu_oai": "minimum({gate}, 7) * sigmoid(1.702 * minimum({gate}, 7)) * (clamp({up}, -7, 7) + 1)",
}
ALIASES = {
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_tanh_approx": "gelu_tanh",
    "relu2": "relu_sq",
    "swish": "silu",
}
OF_GATE = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "sigmoid": "glu"}


def wrong_activation(name: Any, known: Mapping[Any, str]) -> list[str]:
    """What is to be said of a name that is not known."""
    if isinstance(name, (str, type(None))) and ALIASES.get(name, name) in known:  # type: ignore[arg-type]
        return []
    listed = ", ".join(
        repr(each) for each in [*known, *(other for other, own in ALIASES.items() if own in known)]
    )
    return [f"activation = {name!r}; {listed} are there."]


SCALE = "scale"  # the operand that multiplies the sums; the last one


@constant
def activated(name: str | None, operands: tuple[str, ...], with_preact: bool = False) -> str:
    """Return the text of act(acc + each operand), and of what is in front of act if that is wanted.

    operands   names; `SCALE`, which comes last, multiplies acc

    >>> activated("gelu", ("bias",), True)
    'lambda acc, bias: (gelu(acc + bias), acc + bias)'
    >>> activated("relu", ("bias", "scale"))
    'lambda acc, bias, scale: relu(scale * acc + bias)'
    """
    x = _preact(operands)
    y = ACTIVATIONS[ALIASES.get(name, name)].format(x=x)  # type: ignore[arg-type]
    return _lambda(operands, [y, x] if with_preact else [y])


@constant
def gated(name: str, operands: tuple[str, ...], interleaved: bool, with_preact: bool) -> str:
    """Return the text of act(gate) * up, of the two halves of the columns of what `activated` has, or of neighbours.

    >>> gated("swiglu", (), False, False)
    'lambda acc: silu(halves(acc)[0]) * halves(acc)[1]'
    """
    x = _preact(operands)
    parted = f"{'pairs' if interleaved else 'halves'}({x})"
    y = GATED[name].format(gate=f"{parted}[0]", up=f"{parted}[1]")
    return _lambda(operands, [y, x] if with_preact else [y])


@constant
def gate_and_up(name: str, operands: tuple[str, ...], interleaved: bool) -> str:
    """Return the text of act(gate) * up, of gate and of up, as `gated` has them, as three results.

    >>> gate_and_up("reglu", (), True)
    'lambda acc: (relu(pairs(acc)[0]) * pairs(acc)[1], pairs(acc)[0], pairs(acc)[1])'
    """
    parted = f"{'pairs' if interleaved else 'halves'}({_preact(operands)})"
    gate, up = f"{parted}[0]", f"{parted}[1]"
    return _lambda(operands, [GATED[name].format(gate=gate, up=up), gate, up])


@constant
def dactivated(name: str | None, scaled: bool = False, summed: bool = False) -> str:
    """Return the text of acc * act'(preact) and act(preact).

    scaled   whether both are multiplied by the operand `SCALE`
    summed   whether the row sums of acc * act(preact), without the scale, are a third result

    >>> dactivated("tanh")
    'lambda acc, preact: (acc * (1 - tanh(preact) * tanh(preact)), tanh(preact))'
    >>> dactivated(None, True, True)
    'lambda acc, preact, scale: (acc * scale, preact * scale, row_sum(acc * preact))'
    """
    body = ACTIVATIONS[ALIASES.get(name, name)].format(x="preact")  # type: ignore[arg-type]
    return _derivatives(body, ["preact"], scaled, summed)


@constant
def dgated(name: str, scaled: bool = False, summed: bool = False) -> str:
    """Return the text of acc times the derivatives of act(gate) * up by gate and by up, and of act(gate) * up.

    scaled, summed   as of `dactivated`
    """
    return _derivatives(GATED[name].format(gate="gate", up="up"), ["gate", "up"], scaled, summed)


def _derivatives(body: str, names: list[str], scaled: bool, summed: bool) -> str:
    """Return the text of the derivatives of `body` by the operands `names`, and what else `dactivated` has."""
    (y,) = formula(f"lambda acc, {', '.join(names)}: {body} + 0 * acc").results
    y, g, scale = y.children[0], Accumulator(), Tensor(SCALE)
    by_names = [derivative(y, each, g * scale if scaled else g) for each in names]
    sums = [Reduction("sum", ("n",), g * y)] if summed else []
    operands = [*names, SCALE] if scaled else names
    return text_of([*by_names, y * scale if scaled else y, *sums], operands)


def gated_by_torch(name: str, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """Return what a gated activation makes of gate and up, by torch's own operations.

    >>> gated_by_torch("reglu", torch.tensor([-1.0, 3.0]), torch.tensor([5.0, 2.0]))
    tensor([0., 6.])
    """
    (y,) = formula(f"lambda acc, up: {GATED[name].format(gate='acc', up='up')}").results
    found: torch.Tensor = Values(lambda: gate, {"up": up})(y)
    return found


def _preact(operands: Sequence[str]) -> str:
    """Return the text of what an activation is computed of."""
    acc = f"{SCALE} * acc" if SCALE in operands else "acc"
    return " + ".join([acc, *[each for each in operands if each != SCALE]])


def _lambda(operands: Sequence[str], results: Sequence[str]) -> str:
    body = results[0] if len(results) == 1 else f"({', '.join(results)})"
    return f"lambda {', '.join(['acc', *operands])}: {body}"
