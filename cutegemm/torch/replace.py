"""`use(model)`: the layers and MLPs of a model computed by cutegemm, in place, until it is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import TracebackType
from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.run.torch_ops import RESULTS
from cutegemm.torch.activations import OF_GATE
from cutegemm.torch.functional import linear
from cutegemm.torch.known import Parts, activation_of, computes_so, is_conv1d, is_on_meta, parts_of
from cutegemm.torch.mlps import mlp
from cutegemm.torch.modules import JoinedWeights, Linear, has_hooks, is_plain, joined_after_load

_NOTED = "_cutegemm"  # the attribute that says what a replaced module computes


@dataclass
class Replaced:
    """What `use` has replaced in a model, and what it has left.

    replaced   by the name of the module, what it is now
    left       by the name of the module, why it stays as it was

    `undo()` puts everything back; as a context manager, it does so at the end.
    """

    replaced: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _back: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Makes the modules what they were. Parameters keep their values, as they are by then, and their identity."""
        while self._back:
            self._back.pop()()

    def __enter__(self) -> Replaced:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.undo()

    def __str__(self) -> str:
        """A line for each kind of module that was replaced, and each reason why others were not."""
        count = len(self.replaced)
        lines = [f"{count} module{'s' * (count != 1)} replaced, {len(self.left)} left"]
        for title, found in (("replaced", self.replaced), ("left", self.left)):
            grouped: dict[str, list[str]] = {}
            for name, said in found.items():
                grouped.setdefault(said, []).append(name)
            for said, names in grouped.items():
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                lines.append(f"  {title}: {names[0] or 'the model itself'}{more}: {said}")
        return "\n".join(lines)


def use(model: nn.Module) -> Replaced:
    """Lets cutegemm compute the linear layers and MLPs of a model, in place.

    Replaced are torch.nn.Linear, transformers' Conv1D, gated MLPs of the parts gate_proj, up_proj, down_proj and act_fn
    (Llama, Mistral, Qwen, Gemma), and MLPs of two layers with an activation between (GPT-2 and others), whose
    activation becomes part of the first layer's kernel. Modules change their class and keep their identity; parameters
    keep their identity, names and values, so that optimizers and state dicts go on working. Of a gated MLP the weights
    of gate and up are put side by side in memory: see `JoinedWeights` in `cutegemm/torch/modules.py`.

    Left as they are: subclasses of these with a forward of their own, layers whose weight is of a type that is not
    multiplied, MLPs that have parameters or buffers beside their parts', or whose parts have hooks, which would not be
    called, or whose output for four random rows differs from that of such an MLP. On the meta device, where there are
    no numbers, this is seen with small layers in the places of its own. A second call replaces what is new, and nothing
    twice.

    What is changed later counts: where a part of an MLP is replaced, masked, parametrized or given hooks, as by
    adapters and pruning, its parts are called one by one, as before.

    model     a module; it may itself be one of these
    returns   what was replaced, and what not and why; `undo()` takes it back
    raises    UnsupportedError where model is no module

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    >>> with use(model) as replaced:
    ...     print(replaced)
    2 modules replaced, 0 left
      replaced: 0 and 1 more: a linear layer
    >>> type(model[0]) is nn.Linear
    True
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"use: model is a {type(model).__name__}; a torch.nn.Module is expected.")
    found = Replaced()
    for name, module in list(model.named_modules()):
        parts = parts_of(module)
        if parts is not None and not is_replaced(module):
            _replace_mlp(name, module, parts, found)
    for name, module in list(model.named_modules()):
        if not is_replaced(module) and (isinstance(module, nn.Linear) or is_conv1d(module)):
            _replace_layer(name, module, found)
    return found


def is_replaced(module: nn.Module) -> bool:
    return isinstance(module, (Linear, OfInputs)) or hasattr(module, _NOTED)


# --- layers -------------------------------------------------------------------------------------------------------


class OfInputs(nn.Module):  # type: ignore[misc]
    """x @ weight + bias, with a weight of K x N."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, by_rows(self), self.bias)


def by_rows(layer: Any) -> torch.Tensor:
    """The weight of a layer as N x K: transformers' Conv1D keeps it as K x N."""
    weight: torch.Tensor = layer.weight
    return weight.t() if is_conv1d(layer) else weight


def _replace_layer(name: str, module: nn.Module, found: Replaced) -> None:
    why = _why_not_layer(module)
    if why:
        found.left[name] = why
        return
    _change(module, Linear if type(module) is nn.Linear else _derived(OfInputs, module.__class__), found)
    found.replaced[name] = "a linear layer"


def _why_not_layer(module: Any) -> str:
    if isinstance(module, nn.Linear) and type(module) is not nn.Linear:
        return f"{type(module).__name__}, a subclass of Linear, may compute something else"
    if not isinstance(module.weight, torch.Tensor) or module.weight.dtype not in RESULTS:
        return f"its weight is of {module.weight.dtype}, which is not multiplied"
    return ""


# --- MLPs ---------------------------------------------------------------------------------------------------------


class OfGated(JoinedWeights):
    """down(act(gate(x)) * up(x)), gate and up by one kernel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, activation, act = getattr(self, _NOTED)
        return self.whole(x, activation) if _is_unchanged(self, act) else super().forward(x)


class OfTwoLayers(nn.Module):  # type: ignore[misc]
    """down(act(up(x))), the activation in the kernel of the first layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts, activation, act = getattr(self, _NOTED)
        up, down = getattr(self, parts.up[0]), getattr(self, parts.down)
        if not (_is_plain(up) and _is_unchanged(self, act)):
            return super().forward(x)
        if torch.is_grad_enabled() and _is_plain(down):
            found = mlp(x, by_rows(up), by_rows(down), activation, up.bias, down.bias)
        else:
            found = down(linear(x, by_rows(up), up.bias, activation))
        for name in parts.last:
            found = getattr(self, name)(found)
        return found


def _is_plain(layer: nn.Module) -> bool:
    """The same of transformers' Conv1D, too: see `is_plain`."""
    return is_plain(layer) or (isinstance(layer, OfInputs) and not has_hooks(layer))


def _is_unchanged(module: nn.Module, noted: tuple[str, Any]) -> bool:
    """Whether the activation of an MLP is still the one that `use` saw, and has no hooks.

    noted   the name of the part, and what it was
    """
    name, act = noted
    return getattr(module, name) is act and not _is_watched(act)


def _is_watched(part: Any) -> bool:
    """Whether a part, which may be a function, has hooks."""
    return isinstance(part, nn.Module) and has_hooks(part)


def _replace_mlp(name: str, module: nn.Module, parts: Parts, found: Replaced) -> None:
    activation = activation_of(getattr(module, parts.act[0]))
    is_gated = len(parts.up) == 2
    why = _why_not_mlp(module, parts, activation)
    if why:
        found.left[name] = why
        return
    assert activation is not None
    act = parts.act[0]
    noted = parts, OF_GATE[activation] if is_gated else activation, (act, getattr(module, act))
    _change(module, _derived(OfGated if is_gated else OfTwoLayers, module.__class__), found)
    setattr(module, _NOTED, noted)
    found._back.append(lambda: delattr(module, _NOTED))
    if isinstance(module, OfGated):
        handle = module.register_load_state_dict_post_hook(joined_after_load)
        found._back.append(handle.remove)
        module.join()
    found.replaced[name] = (
        f"a gated MLP, {noted[1]}, whose gate and up are one kernel"
        if is_gated
        else f"an MLP whose {activation} is part of its first layer"
    )


def _why_not_mlp(module: nn.Module, parts: Parts, activation: str | None) -> str:
    layers = [getattr(module, name) for name in parts.up]
    act = getattr(module, parts.act[0])
    own = [
        name for of in (module._parameters, module._buffers) for name, each in of.items() if each is not None
    ]
    if own:  # which may do nothing today: a scale that begins with ones
        return f"it has {', '.join(own)} of its own, which an MLP of these parts does not use"
    if activation is None:
        return f"its activation is a {type(act).__name__}, which is not known"
    if len(layers) == 2 and activation not in OF_GATE:
        return f"its activation is {activation}, which gates nothing here; {', '.join(OF_GATE)} do"
    for name, layer in zip(parts.up, layers, strict=True):
        if type(layer) is not nn.Linear and not isinstance(layer, Linear) and not is_conv1d(layer):
            return f"its {name} is a {type(layer).__name__}, no plain linear layer"
        if why := _why_not_layer(layer) if not isinstance(layer, Linear) else "":
            return f"its {name}: {why}"
    if len(layers) == 2 and (
        any(is_conv1d(layer) for layer in layers)
        or layers[0].weight.shape != layers[1].weight.shape
        or (layers[0].bias is None) != (layers[1].bias is None)
    ):
        return f"the weights of its {parts.up[0]} and {parts.up[1]} are not of one shape"
    watched = [name for name in (*parts.up, *parts.act) if _is_watched(getattr(module, name))]
    if watched:
        return f"its {' and '.join(watched)} have hooks, which would not be called"
    if not computes_so(module, parts, activation):
        if is_on_meta(module):
            return (
                "it is on the meta device, and with small layers in the places of its own it does not compute what an "
                "MLP of these parts does; call use again when it holds numbers"
            )
        return "of four rows it computes something else than an MLP of these parts"
    return ""


# --- classes ------------------------------------------------------------------------------------------------------


def _change(module: nn.Module, kind: type, found: Replaced) -> None:
    before = type(module)

    def back() -> None:
        module.__class__ = before

    module.__class__ = kind
    found._back.append(back)


@cache
def _derived(forward: Any, original: Any) -> type:
    """A subclass of somebody's class, of the same name, with another forward; it is copied and pickled by both."""

    def reduced(self: Any, protocol: int) -> tuple[Any, ...]:
        return _made, (forward, original), self.__dict__

    own = {"__module__": __name__, "__reduce_ex__": reduced, "__doc__": forward.__doc__}
    return type(original.__name__, (forward, original), own)


def _made(forward: Any, original: Any) -> Any:
    kind: Any = _derived(forward, original)
    return kind.__new__(kind)
