"""`use(model)`: the layers and MLPs of a model computed by cutegemm, in place, until it is undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, update_wrapper
from types import FunctionType, TracebackType
from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.torch.activations import OF_GATE
from cutegemm.torch.functional import linear
from cutegemm.torch.known import (
    Parts,
    activation_of,
    computes_so,
    has_own_forward,
    is_conv1d,
    is_customized,
    is_left_to_torch,
    is_linear,
    is_on_meta,
    is_replaced_forward,
    note_forward,
    parts_of,
    why_left_to_torch,
)
from cutegemm.torch.mlps import mlp
from cutegemm.torch.modules import JoinedWeights, Linear, is_plain, joined_after_load
from cutegemm.torch.traced import Unscriptable, leaf
from cutegemm.torch.weights import apart, are_side_by_side

_NOTED = "_cutegemm"  # the attribute that holds what `use` found of an MLP: a `Noted`, or None since it was changed


@dataclass(frozen=True)
class Noted:
    """What an MLP computed when `use` replaced it.

    parts        their names
    activation   as for `mlp`
    act          the activation's module or function
    """

    parts: Parts
    activation: str
    act: Any


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
    """Let cutegemm compute the linear layers and MLPs of a model, in place.

    It replaces torch.nn.Linear, transformers' Conv1D, gated MLPs with the parts gate_proj, up_proj, down_proj and
    act_fn (Llama, Mistral, Qwen, Gemma), and MLPs of two layers with an activation between them (GPT-2 and others),
    whose activation becomes part of the first layer's kernel. Modules change their class and keep their identity.
    Parameters keep their identity, names and values, so that optimizers and state dicts go on working. The gate and
    up weights of a gated MLP are put side by side in memory: see `JoinedWeights` in `cutegemm/torch/modules.py`.

    It leaves, and gives the reason for:

    - subclasses with a forward of their own, and modules whose `forward` has been replaced in the instance;
    - layers with a sparse weight, one of a type that is not multiplied, or one of another subclass of torch.Tensor,
      as quantized and distributed weights are (FSDP's `fully_shard` makes such weights: call it after `use`);
    - MLPs that have parameters or buffers of their own, whose gate, up or activation has hooks, or whose output for
      four random rows differs from that of such an MLP. On the meta device, which holds no numbers, small layers with
      random ones take the place of theirs.

    Later changes count. A layer whose weight or input becomes one that is left is computed by torch. An MLP calls its
    own forward, and through it its parts, if a part is replaced, masked, parametrized, given hooks or another
    `forward` (as adapters, pruning and accelerate do), if another attribute of the MLP is set, or if the `forward` of
    its class is replaced. A second call of `use` replaces what is new.

    model     a module; it may itself be one of these
    returns   what was replaced, and what not and why; `undo()` takes it back
    raises    UnsupportedError if model is not a torch.nn.Module

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


class OfInputs(Unscriptable):
    """x @ weight + bias, with a weight of K x N."""

    def forward(self, *given: Any, **named: Any) -> Any:
        if not isinstance(self, OfInputs):  # a bound method from before `Replaced.undo`
            return type(self).forward(self, *given, **named)
        if (traced := leaf(self, given[0] if given else None)) is not None:
            return traced
        if len(given) != 1 or named or not _may_compute(self, given[0]):
            return super().forward(*given, **named)
        return linear(given[0], by_rows(self), self.bias)


def _may_compute(layer: Any, x: Any) -> bool:
    """Whether a kernel may compute a Conv1D that was replaced.

    The transpose of an inference tensor does not require gradients, even if the tensor does.
    """
    weight = layer.weight
    if is_replaced_forward(original_of(layer)) or is_left_to_torch(x, weight, layer.bias):
        return False
    return torch.compiler.is_compiling() or not weight.is_inference() or not torch.is_grad_enabled()


def by_rows(layer: Any) -> torch.Tensor:
    """The weight of a layer as N x K: transformers' Conv1D keeps it as K x N."""
    weight: torch.Tensor = layer.weight
    return weight.t() if is_conv1d(layer) else weight


def _replace_layer(name: str, module: nn.Module, found: Replaced) -> None:
    why = _why_not_layer(module)
    if why:
        found.left[name] = why
        return
    original = module.__class__
    if original is not nn.Linear:
        note_forward(original)
    _change(module, Linear if original is nn.Linear else _derived(OfInputs, original), found)
    found.replaced[name] = "a linear layer"


def _why_not_layer(module: Any) -> str:
    kind = "Linear" if isinstance(module, nn.Linear) else "Conv1D"
    if type(module) is not nn.Linear and (kind == "Linear" or type(module).__name__ != kind):
        return f"{type(module).__name__}, a subclass of {kind}, may compute something else"
    if isinstance(module, nn.Linear) and is_replaced_forward(nn.Linear):
        return "torch.nn.Linear.forward has been replaced, and may compute something else"
    if has_own_forward(module):
        return "its forward has been replaced in the instance, and may compute something else"
    if why := _why_not_tensors(module):
        return why
    if kind == "Conv1D" and not is_linear(module):
        return "of four rows it computes something else than x @ weight + bias"
    return ""


def _why_not_tensors(layer: Any) -> str:
    """Why no kernel computes with the weight and the bias of a layer; empty if one does."""
    for name in ("weight", "bias"):
        tensor = getattr(layer, name, None)
        if isinstance(tensor, torch.Tensor) and (why := why_left_to_torch(tensor)):
            return f"its {name} {why}"
    return ""


# --- MLPs ---------------------------------------------------------------------------------------------------------


class OfGated(JoinedWeights):
    """down(act(gate(x)) * up(x)), gate and up by one kernel."""

    def forward(self, *given: Any, **named: Any) -> Any:
        if not isinstance(self, OfGated):  # a bound method from before `Replaced.undo`
            return type(self).forward(self, *given, **named)
        if (traced := leaf(self, given[0] if given else None)) is not None:
            return traced
        noted = _unchanged(self)
        is_one = noted is not None and len(given) == 1 and not named
        found = self.fused(given[0], noted.activation) if is_one else None  # type: ignore[union-attr]
        return super().forward(*given, **named) if found is None else found


class OfTwoLayers(Unscriptable):
    """down(act(up(x))), the activation in the kernel of the first layer."""

    def forward(self, *given: Any, **named: Any) -> Any:
        if not isinstance(self, OfTwoLayers):  # a bound method from before `Replaced.undo`
            return type(self).forward(self, *given, **named)
        if (traced := leaf(self, given[0] if given else None)) is not None:
            return traced
        noted = _unchanged(self)
        if noted is None or len(given) != 1 or named:
            return super().forward(*given, **named)
        (x,), parts = given, noted.parts
        up, down = getattr(self, parts.up[0]), getattr(self, parts.down)
        if not _is_plain(up, x):
            return super().forward(x)
        if torch.is_grad_enabled() and _is_plain(down, x):
            found = mlp(x, by_rows(up), by_rows(down), noted.activation, up.bias, down.bias)
        else:
            found = down(linear(x, by_rows(up), up.bias, noted.activation))
        for name in parts.last:
            found = getattr(self, name)(found)
        return found


def _is_plain(layer: Any, x: Any) -> bool:
    """Whether another kernel may compute a layer of x: `is_plain`, or a Conv1D of transformers that was replaced."""
    if isinstance(layer, OfInputs):
        return type(layer) is layer._cutegemm_class and not is_customized(layer) and _may_compute(layer, x)
    return is_plain(layer) and not is_left_to_torch(x, layer.weight, layer.bias)


def _unchanged(module: nn.Module) -> Noted | None:
    """What `use` found of an MLP; None if something but its layers has changed since then."""
    noted: Noted | None = getattr(module, _NOTED)
    if noted is None or is_replaced_forward(original_of(module)):
        return None
    act = getattr(module, noted.parts.act[0])
    if act is not noted.act or is_customized(act) or is_replaced_forward(type(act)):
        return None
    activation = activation_of(act)
    if len(noted.parts.up) == 2:
        activation = OF_GATE.get(activation)  # type: ignore[arg-type]
    return noted if activation == noted.activation else None


def _replace_mlp(name: str, module: nn.Module, parts: Parts, found: Replaced) -> None:
    activation = activation_of(getattr(module, parts.act[0]))
    is_gated = len(parts.up) == 2
    why = _why_not_mlp(module, parts, activation)
    if why:
        found.left[name] = why
        return
    assert activation is not None
    act = getattr(module, parts.act[0])
    for kind in (module.__class__, act.__class__):
        if issubclass(kind, nn.Module):
            note_forward(kind)
    noted = Noted(parts, OF_GATE[activation] if is_gated else activation, act)
    _change(module, _derived(OfGated if is_gated else OfTwoLayers, module.__class__), found)
    vars(module)[_NOTED] = noted
    found._back.append(lambda: delattr(module, _NOTED))
    if isinstance(module, OfGated):
        if not are_side_by_side(module.gate_proj.weight, module.up_proj.weight):
            found._back.append(
                lambda: apart(*[getattr(getattr(module, name), "weight", None) for name in parts.up])
            )
        handle = module.register_load_state_dict_post_hook(joined_after_load)
        found._back.append(handle.remove)
        module.join()
    found.replaced[name] = (
        f"a gated MLP, {noted.activation}, whose gate and up are one kernel"
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
        if why := _why_not_tensors(layer) if isinstance(layer, Linear) else _why_not_layer(layer):
            return f"its {name}: {why}"
    if len(layers) == 2 and (
        any(is_conv1d(layer) for layer in layers)
        or layers[0].weight.shape != layers[1].weight.shape
        or (layers[0].bias is None) != (layers[1].bias is None)
    ):
        return f"the weights of its {parts.up[0]} and {parts.up[1]} are not of one shape"
    if has_own_forward(module):
        return "its forward has been replaced in the instance, and may compute something else"
    called = [name for name in (*parts.up, *parts.act) if is_customized(getattr(module, name))]
    if called:
        return f"hooks, or a forward of the instance, of its {' and '.join(called)} would not be called"
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
    """Give a module another class until `found.undo()`."""
    before = type(module)

    def become(kind: type) -> None:
        if not has_own_forward(module):
            vars(module).pop("forward", None)  # a method of the class that it had
        module.__class__ = kind

    become(kind)
    found._back.append(lambda: become(_based_on(type(module), kind, before)))


def _based_on(own: type, kind: type, before: type) -> type:
    """Return a class with `before` instead of `kind` among its bases.

    A module that was parametrized or sharded since `use` has a class that was derived from `kind`.

    >>> class Parametrized(Linear): ...
    >>> found = _based_on(Parametrized, Linear, nn.Linear)
    >>> found.__name__, found.__bases__, _based_on(int, Linear, nn.Linear)
    ('Parametrized', (<class 'torch.nn.modules.linear.Linear'>,), <class 'int'>)
    """
    if own is kind:
        return before
    bases = tuple([_based_on(base, kind, before) for base in own.__bases__])
    if bases == own.__bases__:
        return own
    contents = {name: each for name, each in vars(own).items() if name not in ("__dict__", "__weakref__")}
    return type(own)(own.__name__, bases, contents)


@cache
def _derived(forward: Any, original: Any) -> Any:
    """Return a subclass of somebody's class, of the same name, with another forward.

    Its objects are copied and pickled by the two classes. An attribute that is set in an MLP, other than a part, its
    mode or a private one, may change what its own forward computes: `_NOTED` becomes None.
    """

    def reduced(self: Any, protocol: int) -> tuple[Any, ...]:
        return _made, (forward, original), self.__dict__

    def assigned(self: Any, name: str, value: Any) -> None:
        super(kind, self).__setattr__(name, value)
        noted = vars(self).get(_NOTED)
        if noted is not None and not name.startswith("_"):
            known = (
                *noted.parts.up,
                *noted.parts.act,
                noted.parts.down,
                *noted.parts.last,
                "training",
                "forward",
            )
            if name not in known:
                vars(self)[_NOTED] = None

    # A forward that has the signature of the original for what inspects it, as torch.fx and torch.export do.
    ours = forward.forward
    signed = FunctionType(ours.__code__, ours.__globals__, ours.__name__, ours.__defaults__, ours.__closure__)
    own = {
        "__module__": __name__, "__doc__": forward.__doc__, "__reduce_ex__": reduced, "__setattr__": assigned,
        "_cutegemm_original": original, "forward": update_wrapper(signed, original.forward),
    }  # fmt: skip
    kind: Any = type(original.__name__, (forward, original), own)
    kind._cutegemm_class = kind  # a subclass that is made later inherits it, and is not it
    return kind


def original_of(module: nn.Module) -> Any:
    """The class of a replaced module before `use`."""
    original: Any = module._cutegemm_original
    return original


def _made(forward: Any, original: Any) -> Any:
    kind = _derived(forward, original)
    return kind.__new__(kind)
