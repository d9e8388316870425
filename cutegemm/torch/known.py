"""What `use` knows of other people's modules: which are activations, which are MLPs, and what they compute."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch._C import _get_tracing_state
from torch.fx import Proxy
from torch.nn.modules import linear as _torch_linear
from torch.nn.modules.module import _has_any_global_hook

from cutegemm.run.torch_ops import RESULTS
from cutegemm.torch.activations import ALIASES
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
_PLAIN = frozenset([torch.Tensor, nn.Parameter])
# Types of weights whose products have that type, as those of torch.nn.Linear have.
SERVED = frozenset(dtype for dtype, results in RESULTS.items() if results[0] == dtype)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
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
    """Return an activation of x, computed by torch.

    activation   a name or an alias of one

    >>> apply("relu2", torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """
    activation = ALIASES.get(activation, activation)
    if activation == "relu_sq":
        return F.relu(x).square()
    return FUNCTIONS[activation](x)


def is_customized(module: Any) -> bool:
    """Whether a call of a module runs other code than its class's `forward`: hooks, or a `forward` of the instance.

    Hooks of all modules, such as `torch.nn.modules.module.register_module_forward_hook` sets, count too. A function
    is not customized.

    >>> hooked, patched = nn.Linear(2, 2), nn.Linear(2, 2)
    >>> handle = hooked.register_forward_hook(print)
    >>> patched.forward = lambda x: x
    >>> is_customized(hooked), is_customized(patched), is_customized(nn.Linear(2, 2))
    (True, True, False)
    """
    if not isinstance(module, nn.Module):
        return False
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or ("forward" in module.__dict__ and has_own_forward(module))
        or _has_any_global_hook()
    )


def has_own_forward(module: nn.Module) -> bool:
    """Whether an attribute of a module takes the place of its class's `forward`.

    Libraries that remove their hooks leave the class's own method as an attribute, which changes nothing.

    >>> layer = nn.Linear(2, 2)
    >>> layer.forward = layer.forward
    >>> has_own_forward(layer)
    False
    """
    forward = vars(module).get("forward")
    return forward is not None and not (
        getattr(forward, "__func__", None) is type(module).forward and forward.__self__ is module
    )


_is_torchs = getattr(nn.Linear.forward, "__globals__", None) is vars(_torch_linear)
# The `forward` of classes when it was last known what they compute. A torch.nn.Linear that had been patched before this
# module was imported counts as replaced.
_FORWARDS: dict[type, Any] = {nn.Linear: nn.Linear.forward if _is_torchs else None}


def note_forward(kind: type) -> None:
    """Remember the `forward` of a class, whose results have just been compared with what is expected of it."""
    _FORWARDS[kind] = kind.forward  # type: ignore[attr-defined]


def is_replaced_forward(kind: type) -> bool:
    """Whether the `forward` of a class has been replaced since `note_forward`.

    >>> is_replaced_forward(nn.Linear), is_replaced_forward(nn.SiLU)
    (False, False)
    """
    return kind in _FORWARDS and kind.forward is not _FORWARDS[kind]  # type: ignore[attr-defined]


def is_left_to_torch(x: Any, weight: Any, bias: Any = None) -> bool:
    """Whether torch computes a layer of these tensors itself: see `why_left_to_torch`.

    It does under torch.jit.trace, which sees torch's own operations alone, and where torch.fx traces into a layer.

    >>> x = torch.ones(2, 2)
    >>> is_left_to_torch(x, x), is_left_to_torch(x.to_sparse(), x), is_left_to_torch(x, x.int())
    (False, True, True)
    """
    if (
        _get_tracing_state() is None
        and x.__class__ in _PLAIN
        and weight.__class__ in _PLAIN
        and (bias is None or bias.__class__ in _PLAIN)
        and x.layout is torch.strided
        and weight.layout is torch.strided
        and not x.is_nested
        and weight.dtype in SERVED
        and (weight.is_cuda or weight.is_cpu)
    ):
        return False
    if _get_tracing_state() is not None or isinstance(x, Proxy):
        return True
    return any(bool(why_left_to_torch(each)) for each in (x, weight, bias) if isinstance(each, torch.Tensor))


def why_left_to_torch(tensor: torch.Tensor) -> str:
    """Why no kernel of cutegemm computes with a tensor; empty if one does.

    Subclasses of torch.Tensor may have operations of their own, as quantized and distributed ones have. The subclasses
    that stand for a tensor in a graph have none.

    >>> why_left_to_torch(torch.ones(2).to_sparse()), why_left_to_torch(torch.ones(2))
    ('has the layout torch.sparse_coo', '')
    """
    kind = type(tensor)
    if kind not in _PLAIN and not kind.__module__.startswith("torch._subclasses."):
        return f"is a {kind.__name__}, a subclass of torch.Tensor, which may compute something else"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return f"has the layout {'of a nested tensor' if tensor.is_nested else tensor.layout}"
    if tensor.dtype not in SERVED:
        served = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in SERVED))
        return f"is of {tensor.dtype}; layers of {served} are computed"
    if not (tensor.is_cuda or tensor.is_cpu or tensor.is_meta):
        return f"is on {tensor.device}; layers on a CUDA device or a CPU are computed"
    return ""


def is_conv1d(module: nn.Module) -> bool:
    """Whether a module is the linear layer of transformers' GPT-2, or a subclass of it; its weight is K x N."""
    is_named_so = any(kind.__name__ == "Conv1D" for kind in type(module).__mro__)
    return is_named_so and hasattr(module, "nf") and getattr(getattr(module, "weight", None), "ndim", 0) == 2


@dataclass(frozen=True)
class Parts:
    """The names of the parts of an MLP.

    up     the layers in front of the activation: one, or gate and up
    act    the activation
    down   the layer after it
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
    """Return the names of the parts of an MLP; None if a module lacks some of them, or has others.

    `act` and `last` hold the names that the module has.
    """
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


def bare(module: nn.Module) -> nn.Module:
    """Return a copy of a module, and of the modules in it, without hooks and without a `forward` of the instance.

    It shares the parameters. Its buffers and its mode are its own, so that a call of it changes nothing in `module`.

    >>> norm = nn.BatchNorm1d(2)
    >>> found = bare(norm).train()
    >>> found(torch.ones(4, 2)).shape, found.weight is norm.weight, norm.running_mean
    (torch.Size([4, 2]), True, tensor([0., 0.]))
    """
    kind: Any = type(module)
    found: nn.Module = kind.__new__(kind)
    buffers = {name: each if each is None else each.clone() for name, each in module._buffers.items()}
    parts = {name: each if each is None else bare(each) for name, each in module._modules.items()}
    empty: dict[str, Any] = {name: OrderedDict() for name in _HOOKS}
    vars(found).update({**vars(module), **empty, "_buffers": buffers, "_modules": parts})
    vars(found).pop("forward", None)
    return found


def with_numbers(module: nn.Module, parts: Parts) -> nn.Module:
    """Return a copy of an MLP with small layers of random numbers instead of its own.

    Its forward and its other parts are those of `module`.

    >>> class Mlp(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.fc1, self.act, self.fc2 = nn.Linear(4096, 8), nn.GELU(), nn.Linear(8, 4096)
    >>> mlp = Mlp().to("meta")
    >>> small = with_numbers(mlp, parts_of(mlp))
    >>> small.fc1, small.fc1.weight.device, mlp.fc1.weight.device
    (Linear(in_features=32, out_features=8, bias=True), device(type='cpu'), device(type='meta'))
    """
    numbers = torch.Generator("cpu").manual_seed(0)
    found = bare(module)
    found._modules |= {name: _small(getattr(found, name), numbers) for name in (*parts.up, parts.down)}
    return found


def _small(layer: Any, numbers: torch.Generator) -> Any:
    """Return a small copy of a layer, with random parameters of its types."""
    found = bare(layer)
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


def is_linear(conv1d: nn.Module) -> bool:
    """Whether a Conv1D gives for four random rows x @ weight + bias; one on the meta device is made small first."""
    numbers = torch.Generator("cpu").manual_seed(0)
    layer: Any = _small(conv1d, numbers) if is_on_meta(conv1d) else bare(conv1d)
    try:
        with torch.no_grad():
            x = torch.randn(4, layer.weight.shape[0], generator=numbers, device="cpu").to(layer.weight)
            return _are_close([layer.forward(x)], x @ layer.weight + layer.bias)
    except Exception:  # somebody's own forward, which may need more than a tensor
        return False


def computes_so(module: nn.Module, parts: Parts, activation: str) -> bool:
    """Whether a module gives for four random rows what an MLP of these parts does, in training and in evaluation.

    A module on the meta device is tried `with_numbers`. A dropout that is a module and comes last is switched off; one
    that is a function shows as a difference. Hooks are not called.
    """
    try:
        module = with_numbers(module, parts) if is_on_meta(module) else bare(module)
        first = getattr(module, parts.up[0])
        k = first.weight.shape[0] if is_conv1d(first) else first.weight.shape[1]
        x = torch.randn(4, k, generator=torch.Generator("cpu").manual_seed(0), device="cpu").to(first.weight)
        with torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
            theirs = []
            for is_training in (True, False):
                module.train(is_training)
                for name in parts.last:
                    if isinstance(last := getattr(module, name, None), nn.Module):
                        last.eval()
                theirs.append(module.forward(x))
            expected = computed(module, parts, activation, lambda name, x: getattr(module, name)(x), x)
    except Exception:  # somebody's own forward, which may need more than a tensor
        return False
    return _are_close(theirs, expected)


def _are_close(found: list[Any], expected: torch.Tensor) -> bool:
    """Whether results are tensors of the shape and, but for rounding, of the values that are expected."""
    if not all(isinstance(each, torch.Tensor) and each.shape == expected.shape for each in found):
        return False
    near = {"rtol": 0.02, "atol": 0.02 * float(expected.float().abs().max())}
    return all(torch.allclose(each.float(), expected.float(), **near) for each in found)
