"""Recognition of layers, activations and MLPs in models of other libraries, and checks of what they compute."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from cutegemm.torch.activations import activated_by_torch

# Activations by the name of their class, so that transformers need not be imported.
_BY_CLASS = {
    "SiLU": "silu", "SiLUActivation": "silu", "Swish": "silu",
    "GELUActivation": "gelu",
    "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh",
    "GELUTanh": "gelu_tanh", "AccurateGELUActivation": "gelu_tanh",
    "ReLU": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "ReLUSquaredActivation": "relu_sq",
}  # fmt: skip
_BY_FUNCTION = {F.silu: "silu", F.gelu: "gelu", F.relu: "relu", torch.tanh: "tanh", torch.sigmoid: "sigmoid"}
_SMALL = 32  # largest extent of a layer that replaces one on the meta device
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def activation_of(act: Any) -> str | None:
    """Return the name, such as "gelu", of the activation that a module or function computes; None if it is unknown.

    >>> activation_of(nn.SiLU()), activation_of(nn.GELU("tanh")), activation_of(F.gelu), activation_of(nn.Softplus())
    ('silu', 'gelu_tanh', 'gelu', None)
    """
    if isinstance(act, nn.GELU):
        return "gelu_tanh" if act.approximate == "tanh" else "gelu"
    if isinstance(act, nn.Module):
        return _BY_CLASS.get(type(act).__name__)
    return _BY_FUNCTION.get(act)


def is_conv1d(module: nn.Module) -> bool:
    """Return True if a module is a Conv1D, the linear layer of transformers' GPT-2, whose weight is K x N.

    A subclass of Conv1D counts too.
    """
    is_named_so = any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)
    return is_named_so and hasattr(module, "nf") and getattr(getattr(module, "weight", None), "ndim", 0) == 2


@dataclass(frozen=True)
class Parts:
    """Names of the child modules of an MLP, such as "gate_proj", by what each of them computes.

    For an MLP class of a library, where the names vary, `act` and `last` list all names that occur. For one module,
    they list the names that this module has.

    up     names of the linear layers before the activation: one, or gate and up
    act    name of the activation, in a tuple of one; or all its names that occur
    down   name of the linear layer after the activation
    last   names of modules that follow, such as dropout
    """

    up: tuple[str, ...]
    act: tuple[str, ...]
    down: str
    last: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the MLP's linear layers, in the order of their computation."""
        return (*self.up, self.down)


MLPS = (
    Parts(("gate_proj", "up_proj"), ("act_fn", "act", "activation_fn"), "down_proj"),
    Parts(("c_fc",), ("act",), "c_proj", ("dropout",)),
    Parts(("fc1",), ("activation_fn", "act", "act_fn"), "fc2"),
    Parts(("fc_in",), ("act",), "fc_out", ("dropout",)),
    Parts(("dense_h_to_4h",), ("act",), "dense_4h_to_h"),
)


def parts_of(module: nn.Module) -> Parts | None:
    """Return the names of an MLP's children by their role, if they are those of an MLP in a known library; else None.

    returns   the names; `act` and `last` are those that the module has. None if the module lacks some of the
              children, or has others
    """
    children = dict(module.named_children())
    for parts in MLPS:
        act = [name for name in parts.act if getattr(module, name, None) is not None]
        last = [name for name in parts.last if name in children]
        if len(act) == 1 and {*parts.layers} <= children.keys() <= {*parts.layers, *act, *last}:
            return Parts(parts.up, tuple(act), parts.down, tuple(last))
    return None


def is_on_meta(module: nn.Module) -> bool:
    """Return True if some parameters of a module are on torch's meta device, which has shapes but no numbers.

    >>> is_on_meta(nn.Linear(2, 2)), is_on_meta(nn.Linear(2, 2, device="meta"))
    (False, True)
    """
    return any(each.is_meta for each in module.parameters())


def bare(module: nn.Module) -> nn.Module:
    """Return a copy of a module and of its children, without hooks and without a `forward` set on the instance.

    The copy shares the parameters. Its buffers and its training mode are its own, so that calling it changes nothing
    in `module`.

    >>> norm = nn.BatchNorm1d(2)
    >>> copy = bare(norm).train()
    >>> copy(torch.ones(4, 2)).shape, copy.weight is norm.weight, norm.running_mean
    (torch.Size([4, 2]), True, tensor([0., 0.]))
    """
    kind: Any = type(module)
    copy: nn.Module = kind.__new__(kind)
    buffers = {name: each if each is None else each.clone() for name, each in module._buffers.items()}
    children = {name: each if each is None else bare(each) for name, each in module._modules.items()}
    hooks: dict[str, Any] = {name: OrderedDict() for name in _HOOKS}
    vars(copy).update({**vars(module), **hooks, "_buffers": buffers, "_modules": children})
    vars(copy).pop("forward", None)
    return copy


def with_numbers(module: nn.Module, parts: Parts) -> nn.Module:
    """Return a copy of an MLP on the meta device that can be called: small layers of random numbers replace its own.

    parts   names of its children

    >>> class Mlp(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc1, self.act, self.fc2 = nn.Linear(4096, 8), nn.GELU(), nn.Linear(8, 4096)
    >>> mlp = Mlp().to("meta")
    >>> small = with_numbers(mlp, parts_of(mlp))
    >>> small.fc1, small.fc1.weight.device, mlp.fc1.weight.device
    (Linear(in_features=32, out_features=8, bias=True), device(type='cpu'), device(type='meta'))
    """
    numbers = _generator()
    copy = bare(module)
    copy._modules |= {name: _small(getattr(copy, name), numbers) for name in parts.layers}
    return copy


def _generator() -> torch.Generator:
    return torch.Generator("cpu").manual_seed(0)


def _small(layer: Any, numbers: torch.Generator) -> Any:
    """Return a small copy of a linear layer, with random parameters that have the types of its own.

    layer     a Linear or Conv1D
    numbers   generator of the random numbers
    """
    copy = bare(layer)
    copy._parameters = {}
    for name, each in layer._parameters.items():
        if each is not None:
            shape = [min(extent, _SMALL) for extent in each.shape]
            random = torch.randn(shape, generator=numbers, device="cpu").to(each.dtype)
            each = nn.Parameter(random, requires_grad=False)
        copy._parameters[name] = each
    if is_conv1d(layer):
        copy.nx, copy.nf = copy.weight.shape
    else:
        copy.out_features, copy.in_features = copy.weight.shape
    return copy


def is_linear(conv1d: nn.Module) -> bool:
    """Return True if a Conv1D computes x @ weight + bias, found by calling it with four random rows.

    A Conv1D on the meta device is tried with small random parameters.
    """
    numbers = _generator()
    layer: Any = _small(conv1d, numbers) if is_on_meta(conv1d) else bare(conv1d)
    try:
        with torch.no_grad():
            x = torch.randn(4, layer.weight.shape[0], generator=numbers, device="cpu").to(layer.weight)
            return _are_close([layer.forward(x)], x @ layer.weight + layer.bias)
    except Exception:  # the forward of another library, which may need more than a tensor
        return False


def computes_so(module: nn.Module, parts: Parts, activation: str) -> bool:
    """Return True if an MLP computes down(act(up(x))), or its gated form, found by calling it with four random rows.

    The result must be right in training and in evaluation. A module on the meta device is tried with small random
    layers. A dropout that is a module and comes last is switched off; a dropout that is a function shows as a
    difference. Hooks are not called.

    parts        names of its children
    activation   name of the activation after its first layer
    """
    try:
        module = with_numbers(module, parts) if is_on_meta(module) else bare(module)
        first = getattr(module, parts.up[0])
        k = first.weight.shape[0] if is_conv1d(first) else first.weight.shape[1]
        x = torch.randn(4, k, generator=_generator(), device="cpu").to(first.weight)
        with torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
            results = []
            for is_training in (True, False):
                module.train(is_training)
                for name in parts.last:
                    if isinstance(last := getattr(module, name, None), nn.Module):
                        last.eval()
                results.append(module.forward(x))
            inner = activated_by_torch(activation, first(x))
            if len(parts.up) == 2:
                inner = inner * getattr(module, parts.up[1])(x)
            for name in (parts.down, *parts.last):
                inner = getattr(module, name)(inner)
    except Exception:  # the forward of another library, which may need more than a tensor
        return False
    return _are_close(results, inner)


def _are_close(results: list[Any], expected: torch.Tensor) -> bool:
    """Return True if all results are tensors of the expected shape and, up to rounding, of the expected values."""
    if not all(isinstance(each, torch.Tensor) and each.shape == expected.shape for each in results):
        return False
    near = {"rtol": 0.02, "atol": 0.02 * float(expected.float().abs().max())}
    return all(torch.allclose(each.float(), expected.float(), **near) for each in results)
