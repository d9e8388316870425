"""What `use` knows of other people's modules: which are activations, which are MLPs, and what they compute."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cutegemm.torch.values import FUNCTIONS

# By the name of the class: those of transformers are not imported for it.
_BY_CLASS = {
    "SiLU": "silu", "SiLUActivation": "silu", "Swish": "silu",
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh",
    "GELUTanh": "gelu_tanh", "AccurateGELUActivation": "gelu_tanh",
    "ReLU": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "ReLUSquaredActivation": "relu_sq",
}  # fmt: skip
_MOST_SMALL = 32  # extents of a layer that stands in for one without numbers
_BY_FUNCTION = {F.silu: "silu", F.gelu: "gelu", F.relu: "relu", torch.tanh: "tanh", torch.sigmoid: "sigmoid"}


def activation_of(act: Any) -> str | None:
    """The name of an activation that somebody's module computes, or None.

    >>> activation_of(nn.SiLU()), activation_of(nn.GELU("tanh")), activation_of(F.gelu), activation_of(nn.Softplus())
    ('silu', 'gelu_tanh', 'gelu', None)
    """
    if isinstance(act, nn.GELU):
        return "gelu_tanh" if act.approximate == "tanh" else "gelu"
    if isinstance(act, nn.Module):
        return _BY_CLASS.get(type(act).__name__)
    return _BY_FUNCTION.get(act)


def apply(activation: str, x: torch.Tensor) -> torch.Tensor:
    """An activation by torch."""
    if activation == "relu_sq":
        return F.relu(x).square()
    return FUNCTIONS[activation](x)


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is the linear layer of transformers' GPT-2, whose weight is K x N."""
    weight = getattr(module, "weight", None)
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf") and getattr(weight, "ndim", 0) == 2


@dataclass(frozen=True)
class Parts:
    """The names of the parts of an MLP.

    up     the layers in front of the activation: one, or gate and up
    act    the activation
    down   the layer behind it
    last   what may come last, such as dropout
    """

    up: tuple[str, ...]
    act: tuple[str, ...]
    down: str
    last: tuple[str, ...] = ()


MLPS = (
    Parts(("gate_proj", "up_proj"), ("act_fn", "act", "activation_fn"), "down_proj"),
    Parts(("c_fc",), ("act",), "c_proj", ("dropout",)),
    Parts(("fc1",), ("activation_fn", "act", "act_fn"), "fc2"),
    Parts(("fc_in",), ("act",), "fc_out", ("dropout",)),
    Parts(("dense_h_to_4h",), ("act",), "dense_4h_to_h"),
)


def parts_of(module: nn.Module) -> Parts | None:
    """Its parts by name, where it has those of an MLP and no other; `act` and `last` are those that it has."""
    children = dict(module.named_children())
    for parts in MLPS:
        act = [name for name in parts.act if getattr(module, name, None) is not None]
        last = [name for name in parts.last if name in children]
        if len(act) == 1 and {*parts.up, parts.down} <= children.keys() <= {
            *parts.up,
            parts.down,
            *act,
            *last,
        }:
            return Parts(parts.up, tuple(act), parts.down, tuple(last))
    return None


def computed(
    module: nn.Module,
    parts: Parts,
    activation: str,
    layer: Callable[[str, torch.Tensor], torch.Tensor],
    x: torch.Tensor,
) -> torch.Tensor:
    """What an MLP of these parts is expected to compute.

    layer   applies the layer of a name
    """
    inner = apply(activation, layer(parts.up[0], x))
    if len(parts.up) == 2:
        inner = inner * layer(parts.up[1], x)
    found = layer(parts.down, inner)
    for name in parts.last:
        found = getattr(module, name)(found)
    return found


def is_on_meta(module: nn.Module) -> bool:
    """Whether it lacks numbers: some of its parameters are on torch's meta device.

    >>> is_on_meta(nn.Linear(2, 2)), is_on_meta(nn.Linear(2, 2, device="meta"))
    (False, True)
    """
    return any(each.is_meta for each in module.parameters())


def with_numbers(module: nn.Module, parts: Parts) -> nn.Module:
    """The same MLP with small layers of random numbers in the places of its own: its forward is somebody's, as it is.

    >>> class Mlp(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc1, self.act, self.fc2 = nn.Linear(4096, 8), nn.GELU(), nn.Linear(8, 4096)
    >>> mlp = Mlp().to("meta")
    >>> small = with_numbers(mlp, parts_of(mlp))
    >>> small.fc1, small.fc1.weight.device, mlp.fc1.weight.device, small.act is mlp.act
    (Linear(in_features=32, out_features=8, bias=True), device(type='cpu'), device(type='meta'), True)
    """
    numbers = torch.Generator("cpu").manual_seed(0)
    found = copy(module)
    own = {name: _small(getattr(module, name), numbers) for name in (*parts.up, parts.down)}
    found._modules = {**module._modules, **own}
    return found


def _small(layer: Any, numbers: torch.Generator) -> Any:
    """A small layer of the class of another one, with parameters of its types."""
    found = copy(layer)
    found._parameters = {}
    for name, each in layer._parameters.items():
        if each is not None:
            shape = [min(extent, _MOST_SMALL) for extent in each.shape]
            random = torch.randn(shape, generator=numbers, device="cpu").to(each.dtype)
            each = nn.Parameter(random, requires_grad=False)
        found._parameters[name] = each
    if is_conv1d(layer):
        found.nx, found.nf = found.weight.shape
    else:
        found.out_features, found.in_features = found.weight.shape
    return found


def computes_so(module: nn.Module, parts: Parts, activation: str) -> bool:
    """Whether a module gives, of four rows, what an MLP of these parts does; where it lacks numbers, `with_numbers`.

    In training too, but for what comes last: a dropout that is a function has no part by which it is seen.
    """
    if is_on_meta(module):
        try:
            module = with_numbers(module, parts)
        except Exception:  # somebody's own layer, which may be made of anything
            return False
    first = getattr(module, parts.up[0])
    k = first.weight.shape[0] if is_conv1d(first) else first.weight.shape[1]
    x = torch.randn(4, k, generator=torch.Generator("cpu").manual_seed(0), device="cpu").to(first.weight)
    modes = [(each, each.training) for each in module.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
            theirs = []
            for is_training in (True, False):
                module.train(is_training)
                for name in parts.last:
                    if isinstance(last := getattr(module, name, None), nn.Module):
                        last.eval()
                theirs.append(type(module).forward(module, x))
            expected = computed(module, parts, activation, lambda name, x: getattr(module, name)(x), x)
    except Exception:  # somebody's own forward, which may ask for more than a tensor
        return False
    finally:
        for each, is_training in modes:
            each.training = is_training
    if not all(isinstance(each, torch.Tensor) and each.shape == expected.shape for each in theirs):
        return False
    near = {"rtol": 0.02, "atol": 0.02 * float(expected.float().abs().max())}
    return all(torch.allclose(each.float(), expected.float(), **near) for each in theirs)
