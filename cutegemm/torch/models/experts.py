"""Experts of transformers' mixture models: recognition of what they compute, and their forward by `experts`.

transformers marks these modules by `use_experts_implementation`. They have the weights of all experts as parameters,
attributes that say how the weights lie in memory, and a method `_apply_gate`. Experts without a gate have `up_proj`
instead of `gate_up_proj`, and a function `act_fn`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.run.calls import Calls
from cutegemm.run.torch_ops import FLOAT8
from cutegemm.torch.activations import GATED, gated_by_torch
from cutegemm.torch.fallback import is_customized, why_left_to_torch
from cutegemm.torch.grouped.experts import experts
from cutegemm.torch.grouped.mixture import Activation
from cutegemm.torch.models.recognition import activation_of

NAME = "cutegemm"  # value of `experts_implementation`
_MARKS = ("has_bias", "is_transposed", "_apply_gate", "down_proj")
_gates = Calls()  # results of `_recognized`, by what they depend on
_NOTED = "_cutegemm_gate"  # attribute that `note_gate` sets
_takes_modules = torch.__version__ >= (2, 13)  # whether Dynamo calls a constant function with a module


def is_experts(module: nn.Module) -> bool:
    """Return whether a module holds the experts of a mixture, as transformers marks them.

    >>> is_experts(nn.Linear(2, 2))
    False
    """
    return all(hasattr(module, name) for name in _MARKS)


def is_float8(module: Any) -> bool:
    """Return whether the weights of experts are float8: then `fp8_experts` computes them."""
    return module.down_proj.dtype in FLOAT8


def why_not_experts(module: Any) -> str:
    """Return the reason, for messages, why `experts` does not compute the experts of a mixture; "" if it does."""
    if is_float8(module):
        return "its weights are of float8. Load the model with experts_implementation='cutegemm'"
    if getattr(module, "has_post_expert_norm", False):
        return "a norm follows each expert, before its weight"
    for name, tensor in module.named_parameters():
        if why := why_left_to_torch(tensor):
            return f"its {name} {why}"
    return "hooks of its act_fn would not be called" if is_customized(getattr(module, "act_fn", None)) else ""


def experts_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sums of the experts of each token: the forward of a module that transformers marks.

    hidden_states   (T, K)
    top_k_index     (T, k): the experts of each token; numbers from L on are experts of other devices
    top_k_weights   (T, k)
    raises          UnsupportedError if `experts` does not compute what the module does
    """
    if why := why_not_experts(module):
        kind = type(module).__name__
        raise UnsupportedError(f"{kind} by cutegemm: {why}. Use experts_implementation='grouped_mm' for this model.")
    up, *others = parameters_of_experts(module)
    activation, interleaved = activation_of_experts(module)
    y = experts(
        hidden_states.to(up.dtype), top_k_index, top_k_weights, up, others[0], activation, *others[1:],
        interleaved=interleaved, is_partial=is_expert_parallel(module),
    )  # fmt: skip
    return y.to(hidden_states.dtype)


def parameters_of_experts(module: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """Return (up, down, up_bias, down_bias) of a module that transformers marks, as `experts` takes them."""
    name = name_of_up(module)
    up, down = getattr(module, name), module.down_proj
    biases = (getattr(module, f"{name}_bias"), module.down_proj_bias) if module.has_bias else (None, None)
    return (up.mT, down.mT, *biases) if module.is_transposed else (up, down, *biases)


def is_expert_parallel(module: Any) -> bool:
    """Return whether a router may choose experts that are on other devices.

    transformers marks such a module, or replaces its `forward` by one that adds the results of all devices. If the
    `forward` was replaced for another reason, rows are cleared that need not be.
    """
    return bool(getattr(module, "_is_expert_parallel", False)) or "forward" in vars(module)


def activation_of_experts(module: Any) -> tuple[Activation, bool]:
    """Return the activation of experts, and whether gate and up are adjacent rows of a weight.

    The activation is the name of one that a kernel computes, else the function that the module calls. A gated one is
    recognized by its values for some numbers, and again if an attribute of the module has changed. torch.compile takes
    it as a constant; before torch 2.13, it knows only what `note_gate` has noted.
    """
    if not has_gate(module):
        return activation_of(module.act_fn) or module.act_fn, False
    is_noted = torch.compiler.is_compiling() and not _takes_modules
    return (_noted_gate(module) if is_noted else _gate_of(module)) or (module._apply_gate, False)


def note_gate(module: Any) -> None:
    """Recognize the gated activation of experts, and note it on the module, for graphs of torch before 2.13."""
    if has_gate(module):
        setattr(module, _NOTED, (_gate_of(module), getattr(module, "act_fn", None), _numbers(module)))


def forget_gate(module: Any) -> None:
    """Remove what `note_gate` has noted on a module."""
    vars(module).pop(_NOTED, None)


def _noted_gate(module: Any) -> tuple[str, bool] | None:
    """Return what `note_gate` recognized; None without a note, or after a change of an attribute. Dynamo traces it."""
    gate, act, numbers = getattr(module, _NOTED, (None, None, ()))
    if getattr(module, "act_fn", None) is not act:
        return None
    for name, value in numbers:
        if getattr(module, name, None) != value:
            return None
    known: tuple[str, bool] | None = gate
    return known


def _numbers(module: Any) -> tuple[tuple[str, Any], ...]:
    """Return name and value of the attributes of a module that are numbers or texts, without its mode of training."""
    known = (bool, int, float, str)
    return tuple([item for item in vars(module).items() if isinstance(item[1], known) and item[0] != "training"])


def name_of_up(module: Any) -> str:
    """Return the name of the first matrix of experts: of `gate_up_proj` or, without a gate, of `up_proj`."""
    return "gate_up_proj" if has_gate(module) else "up_proj"


def has_gate(module: Any) -> bool:
    """Return whether experts have gate and up weights, whose products the activation takes in pairs."""
    return hasattr(module, "gate_up_proj")


def _gate_of(module: Any) -> tuple[str, bool] | None:
    """Return the name of the gated activation that a module computes, and whether gate and up are interleaved.

    returns   None if the activation is unknown
    """
    act = getattr(module, "act_fn", None)
    key = type(module)._apply_gate, act, _numbers(module)
    if key in _gates.found:
        known: tuple[str, bool] | None = _gates.found[key]
        return known
    recognized = _recognized(module)
    _gates.keep(key, recognized)
    return recognized


_gate_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _recognized(module: Any) -> tuple[str, bool] | None:
    """Return the result of `_gate_of`, by what the module computes for numbers between -20 and 20."""
    if any(True for _ in getattr(module, "act_fn", nn.Identity()).parameters()):
        return None
    numbers = torch.Generator("cpu").manual_seed(0)
    x = 40 * torch.rand(64, 32, generator=numbers, device="cpu") - 20
    with torch.no_grad():
        y = module._apply_gate(x)
    for interleaved in (False, True):
        gate, up = (x[:, 0::2], x[:, 1::2]) if interleaved else x.chunk(2, -1)
        for name in GATED:
            if y.shape == gate.shape and torch.allclose(y, gated_by_torch(name, gate, up), 1e-5, 1e-5):
                return name, interleaved
    return None
