"""`use(model)`: replace the linear layers, MLPs and experts of a model in place, until it is undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial, update_wrapper
from types import FunctionType
from typing import Any

import torch
from torch import nn

from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.run.ahead import prepare
from cutegemm.run.calls import is_batch_invariant
from cutegemm.torch import fallback
from cutegemm.torch.activations import OF_GATE
from cutegemm.torch.fallback import has_own_forward, is_customized, is_left_to_torch, is_replaced_forward
from cutegemm.torch.functional import linear
from cutegemm.torch.grouped.launch import has_grouped_kernels
from cutegemm.torch.launch import refuse_torch
from cutegemm.torch.mlps import mlp
from cutegemm.torch.models import recognition
from cutegemm.torch.models.experts import experts_forward, forget_gate, is_experts, note_gate, why_not_experts
from cutegemm.torch.models.recognition import Parts, activation_of, is_conv1d
from cutegemm.torch.modules import (
    JoinedWeights,
    Linear,
    are_side_by_side,
    is_plain,
    join_after_load,
    mode_of,
    separate,
)

_RECORD = "_cutegemm"  # attribute of a replaced MLP: a `Record`, or None after a change of the MLP


@dataclass(frozen=True)
class Record:
    """Remembers what an MLP computed when `cutegemm.use` replaced it, so that later calls notice if it was changed.

    If it was changed, e.g. to another activation, the original forward computes the MLP again.

    parts        names of its children
    activation   name of the activation, such as "gelu" or "swiglu"
    act          module or function of the activation
    """

    parts: Parts
    activation: str
    act: Any


@dataclass
class Replaced:
    """The result of `cutegemm.use(model)`: lists which modules cutegemm now computes, and which it left to torch.

    replaced   dict from the name of each replaced module to a description of what replaces it
    left       dict from the name of each other layer or MLP to the reason why it was not replaced

    `undo()` restores the model. Used as a context manager, this object calls `undo()` at the end.
    """

    replaced: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    _undo: list[Callable[[], None]] = field(default_factory=list, repr=False)

    def undo(self) -> None:
        """Restore the modules that `use` replaced. Parameters keep their present values and their identity."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Replaced:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __str__(self) -> str:
        """Return as text what `use` has replaced: a line for each kind of module and for each reason to keep one."""
        count = len(self.replaced)
        lines = [f"{count} module{'s' * (count != 1)} replaced, {len(self.left)} left"]
        for title, modules in (("replaced", self.replaced), ("left", self.left)):
            grouped: dict[str, list[str]] = {}
            for name, text in modules.items():
                grouped.setdefault(text, []).append(name)
            for text, names in grouped.items():
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                lines.append(f"  {title}: {names[0] or 'the model itself'}{more}: {text}")
        return "\n".join(lines)


def use(
    model: nn.Module,
    *,
    rows: Sequence[int] | None = None,
    processes: int | None = None,
    batch_invariant: bool = False,
    backward: bool = False,
) -> Replaced:
    """Let cutegemm compute the linear layers and MLPs of a model, in place.

    model             a module; it may itself be a layer or an MLP
    rows              numbers of rows of the inputs, such as range(1, 4097): the kernels of the forward pass are
                      compiled at once, in parallel and with a progress bar, as by `cutegemm.prepare`. None: each at
                      its first call
    processes         number of processes that compile; None: the number of processors
    batch_invariant   True to give each row of the results of layers and MLPs the same bits in every batch. Nothing is
                      replaced if a layer or an MLP would be left to torch
    backward          with `rows`: whether the kernels of experts for training are compiled at once, too
    returns           the modules that were replaced, and those that were not with the reason; `undo()` restores the
                      model
    raises            UnsupportedError if model is not a torch.nn.Module, or if it cannot be made batch invariant;
                      with `rows`, the errors of `cutegemm.prepare`, after which the model is as before

    It replaces torch.nn.Linear, transformers' Conv1D, gated MLPs with the children gate_proj, up_proj, down_proj and
    act_fn (Llama, Mistral, Qwen, Gemma), MLPs of two layers with an activation between them (GPT-2 and others), and the
    experts of transformers' mixture models (Mixtral, Qwen, DeepSeek, gpt-oss). The activation becomes the epilogue of
    the layer before it. Modules change their class and keep their identity.
    Parameters keep their identity, names and values, so that optimizers and state dicts still work. The gate and up
    weights of a gated MLP become adjacent in memory: see `JoinedWeights` in `cutegemm/torch/modules.py`.

    It leaves these modules, and gives the reason:

    - subclasses with a forward of their own, and modules whose `forward` was replaced in the instance;
    - layers with a sparse weight, a weight of a type that is not multiplied, or a weight of another subclass of
      torch.Tensor, such as a quantized or distributed one (FSDP's `fully_shard` makes such weights: call it after
      `use`);
    - MLPs that have parameters or buffers of their own, whose gate, up or activation has hooks, or whose result for
      four random rows differs from that of such an MLP. On the meta device, which holds no numbers, small layers with
      random numbers are tried instead.

    Later changes count. torch computes a layer whose weight or input becomes one that is left. An MLP calls its own
    forward, and through it its children, if a child is replaced, masked, parametrized, or given hooks or another
    `forward` (as adapters, pruning and accelerate do), if another attribute of the MLP is set, or if the `forward` of
    its class is replaced. A second call of `use` replaces new modules.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    >>> with use(model) as replaced:
    ...     print(replaced)
    2 modules replaced, 0 left
      replaced: 0 and 1 more: a linear layer
    >>> type(model[0]) is nn.Linear
    True
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedError(f"use: model is a {type(model).__name__}. Pass a torch.nn.Module.")
    report = Replaced()
    for name, module in list(model.named_modules()):
        parts = recognition.parts_of(module)
        if parts is not None and not is_replaced(module):
            _replace_mlp(name, module, parts, report)
    for name, module in list(model.named_modules()):
        if is_experts(module) and not isinstance(module, ReplacedExperts):
            _replace_experts(name, module, report, batch_invariant)
    for name, module in list(model.named_modules()):
        if not is_replaced(module) and (isinstance(module, nn.Linear) or is_conv1d(module)):
            _replace_layer(name, module, report)
    if batch_invariant:
        _make_invariant(model, report)
    if rows is not None:
        try:
            prepare(model, rows=rows, processes=processes, backward=backward)
        except CutegemmError:
            report.undo()
            raise
    return report


def _make_invariant(model: nn.Module, report: Replaced) -> None:
    """Make all layers and MLPs of a model that cutegemm computes batch invariant, until `report.undo()` is called.

    report   what `use` has replaced in the model, and what it has left to torch
    raises   UnsupportedError, after undoing the replacements, if some layers are left to torch
    """
    left = [f"{name or 'the model itself'}: {reason}" for name, reason in report.left.items()]
    if left:
        report.undo()
        raise UnsupportedError(
            "use(batch_invariant=True): torch would compute these modules, and the order in which it adds may depend "
            "on the number of rows. Nothing is replaced.\n  - " + "\n  - ".join(left)
        )
    for module in model.modules():
        if is_replaced(module):
            own, before = vars(module), vars(module).get("batch_invariant")
            own["batch_invariant"] = True
            restore = own.pop if before is None else own.__setitem__
            report._undo.append(partial(restore, "batch_invariant", before))


def is_replaced(module: nn.Module) -> bool:
    """Return True if a module is a layer or an MLP that cutegemm computes, after `use` or as a `cutegemm.Linear`."""
    return isinstance(module, (Linear, ReplacedConv1D)) or hasattr(module, _RECORD)


class Replacement(fallback.Unscriptable):
    """Base class of model layers that `cutegemm.use(model)` has replaced: `forward` calls kernels of cutegemm.

    `use` changes the class of a module to one with two bases: a subclass of this class, and the module's original
    class. If no kernel can compute a call, `forward` calls that of the original class. But if results must not depend
    on the batch (`batch_invariant`), it raises an error.
    """

    batch_invariant: bool | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Replacement):  # a bound method from before `Replaced.undo`
            return type(self).forward(self, *args, **kwargs)
        if (traced := fallback.leaf(self, args[0] if args else None)) is not None:
            return traced
        with mode_of(self):
            y = self._computed(args[0]) if len(args) == 1 and not kwargs else None
        if y is None and is_batch_invariant(self.batch_invariant):
            refuse_torch(
                f"a replaced {type(self).__name__}", "it was changed after `use`, or no kernel serves its tensors"
            )
        return super().forward(*args, **kwargs) if y is None else y

    def _computed(self, x: Any) -> torch.Tensor | None:
        """Return this replaced module's result for the input x, by kernels; None if no kernel can compute it."""
        raise NotImplementedError


# --- layers -------------------------------------------------------------------------------------------------------


class ReplacedConv1D(Replacement):
    """Computes a replaced Conv1D, the linear layer of transformers' GPT-2: x @ weight + bias. The weight is K x N."""

    def _computed(self, x: Any) -> torch.Tensor | None:
        return linear(x, _by_rows(self), self.bias) if _may_compute(self, x) else None


def _may_compute(layer: Any, x: Any) -> bool:
    """Return True if a kernel may compute a replaced Conv1D, False if the module's original forward has to.

    It is False if no kernel can read the tensors, or if the class's `forward` was replaced. It is also False if
    gradients are recorded and the weight is an inference tensor, because torch records none through its transpose.

    layer   the replaced Conv1D, with its weight and bias
    x       input of the layer
    """
    weight = layer.weight
    if is_replaced_forward(layer._cutegemm_original) or is_left_to_torch(x, weight, layer.bias):
        return False
    return torch.compiler.is_compiling() or not weight.is_inference() or not torch.is_grad_enabled()


def _by_rows(layer: Any) -> torch.Tensor:
    """Return the weight of a linear layer as N x K; transformers' Conv1D stores it as K x N."""
    weight: torch.Tensor = layer.weight
    return weight.t() if is_conv1d(layer) else weight


def _replace_layer(name: str, module: nn.Module, report: Replaced) -> None:
    if why := _why_not_layer(module):
        report.left[name] = why
        return
    original = module.__class__
    if original is not nn.Linear:
        fallback.note_forward(original)
    _change(module, Linear if original is nn.Linear else _derived(ReplacedConv1D, original), report)
    report.replaced[name] = "a linear layer"


def _why_not_layer(module: Any) -> str:
    """Return the reason, as a phrase for messages, why `use` leaves a linear layer as it is; "" if it replaces it."""
    kind = "Linear" if isinstance(module, nn.Linear) else "Conv1D"
    if type(module) is not nn.Linear and (kind == "Linear" or type(module).__name__ != kind):
        return f"{type(module).__name__}, a subclass of {kind}, may compute something else"
    if isinstance(module, nn.Linear) and is_replaced_forward(nn.Linear):
        return "torch.nn.Linear.forward has been replaced, and may compute something else"
    if has_own_forward(module):
        return "its forward has been replaced in the instance, and may compute something else"
    if why := _why_not_tensors(module):
        return why
    if kind == "Conv1D" and not recognition.is_linear(module):
        return "of four rows it computes something else than x @ weight + bias"
    return ""


def _why_not_tensors(layer: Any) -> str:
    """Return the reason, as a phrase for messages, why no kernel can compute with a layer's weight or bias; else ""."""
    for name in ("weight", "bias"):
        tensor = getattr(layer, name, None)
        if isinstance(tensor, torch.Tensor) and (why := fallback.why_left_to_torch(tensor)):
            return f"its {name} {why}"
    return ""


# --- MLPs ---------------------------------------------------------------------------------------------------------


class ReplacedGatedMLP(Replacement, JoinedWeights):
    """Computes a replaced gated MLP, down(act(gate(x)) * up(x)), with gate, up and activation in one kernel."""

    def _computed(self, x: Any) -> torch.Tensor | None:
        record = _unchanged(self)
        return None if record is None else self.fused(x, record.activation)


class ReplacedMLP(Replacement):
    """Computes a replaced MLP, down(act(up(x))), with the activation in the kernel of the first layer."""

    def _computed(self, x: Any) -> torch.Tensor | None:
        record = _unchanged(self)
        if record is None:
            return None
        parts = record.parts
        up, down = getattr(self, parts.up[0]), getattr(self, parts.down)
        if not _is_plain(up, x):
            return None
        if torch.is_grad_enabled() and _is_plain(down, x):
            y = mlp(x, _by_rows(up), _by_rows(down), record.activation, up.bias, down.bias)
        else:
            y = down(linear(x, _by_rows(up), up.bias, record.activation))
        for name in parts.last:
            y = getattr(self, name)(y)
        return y


def _is_plain(layer: Any, x: Any) -> bool:
    """Return True if a kernel may compute a linear layer of x without calling the layer, because it does nothing else.

    That is so for a plain Linear (no hooks, adapters or own `forward`) and for a replaced Conv1D.
    """
    if isinstance(layer, ReplacedConv1D):
        return type(layer) is layer._cutegemm_class and not is_customized(layer) and _may_compute(layer, x)
    return is_plain(layer) and not is_left_to_torch(x, layer.weight, layer.bias)


def _unchanged(module: Any) -> Record | None:
    """Return the record of a replaced MLP (its activation and children), or None if the MLP has changed since.

    A change is anything that `use` could not expect, such as another activation module; new weights do not count. If
    the result is None, the original forward has to compute the MLP.
    """
    record: Record | None = getattr(module, _RECORD)
    if record is None or is_replaced_forward(module._cutegemm_original):
        return None
    act = getattr(module, record.parts.act[0])
    if act is not record.act or is_customized(act) or is_replaced_forward(type(act)):
        return None
    activation = activation_of(act)
    if len(record.parts.up) == 2:
        activation = OF_GATE.get(activation)  # type: ignore[arg-type]
    return record if activation == record.activation else None


def _replace_mlp(name: str, module: nn.Module, parts: Parts, report: Replaced) -> None:
    act = getattr(module, parts.act[0])
    activation = activation_of(act)
    is_gated = len(parts.up) == 2
    if why := _why_not_mlp(module, parts, activation):
        report.left[name] = why
        return
    assert activation is not None
    for kind in (module.__class__, act.__class__):
        if issubclass(kind, nn.Module):
            fallback.note_forward(kind)
    record = Record(parts, OF_GATE[activation] if is_gated else activation, act)
    _change(module, _derived(ReplacedGatedMLP if is_gated else ReplacedMLP, module.__class__), report)
    vars(module)[_RECORD] = record
    report._undo.append(lambda: delattr(module, _RECORD))
    if not is_gated:
        report.replaced[name] = f"an MLP whose {activation} is part of its first layer"
        return
    gated: Any = module
    if not are_side_by_side(gated.gate_proj.weight, gated.up_proj.weight):
        report._undo.append(lambda: separate(*[getattr(getattr(gated, name), "weight", None) for name in parts.up]))
    report._undo.append(module.register_load_state_dict_post_hook(join_after_load).remove)
    gated.join()
    report.replaced[name] = f"a gated MLP, {record.activation}, whose gate and up are one kernel"


def _why_not_mlp(module: nn.Module, parts: Parts, activation: str | None) -> str:
    """Return the reason, as a phrase for messages, why `use` leaves an MLP as it is; "" if it replaces it.

    parts        names of its children
    activation   name of the activation between its layers; None if it is unknown
    """
    layers = [getattr(module, name) for name in parts.up]
    own = [name for name, each in (*module._parameters.items(), *module._buffers.items()) if each is not None]
    if own:  # it may have no effect yet, such as a scale of ones
        return f"it has {', '.join(own)} of its own, which an MLP of these parts does not use"
    if activation is None:
        return f"its activation is a {type(getattr(module, parts.act[0])).__name__}, which is not known"
    if len(layers) == 2 and activation not in OF_GATE:
        return f"its activation is {activation}, which is not one of the gated activations: {', '.join(OF_GATE)}"
    for name, layer in zip(parts.up, layers, strict=True):
        if type(layer) is not nn.Linear and not isinstance(layer, Linear) and not is_conv1d(layer):
            return f"its {name} is a {type(layer).__name__}, not a plain linear layer"
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
    if recognition.computes_so(module, parts, activation):
        return ""
    if recognition.is_on_meta(module):
        return (
            "it is on the meta device, and with small layers in the places of its own it does not compute what an "
            "MLP of these parts does; call use again when it holds numbers"
        )
    return "of four rows it computes something else than an MLP of these parts"


# --- experts ------------------------------------------------------------------------------------------------------


class ReplacedExperts(Replacement):
    """Replaced experts of a mixture: two grouped GEMMs over the rows of all experts."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, ReplacedExperts):  # a bound method from before `Replaced.undo`
            return type(self).forward(self, *args, **kwargs)
        original: Any = self._cutegemm_original
        x = args[0] if args else None
        if is_replaced_forward(original) or x is None or is_left_to_torch(x, self.down_proj) or why_not_experts(self):
            return original.forward(self, *args, **kwargs)
        if x.is_cuda and not has_grouped_kernels(x.get_device()):
            return original.forward(self, *args, **kwargs)
        return experts_forward(self, *args, **kwargs)


def _replace_experts(name: str, module: nn.Module, report: Replaced, batch_invariant: bool) -> None:
    why = why_not_experts(module)
    if has_own_forward(module):
        why = "its forward has been replaced in the instance, and may compute something else"
    if batch_invariant:
        why = "grouped kernels of experts are not batch invariant"
    if why:
        report.left[name] = why
        return
    fallback.note_forward(module.__class__)
    note_gate(module)
    report._undo.append(partial(forget_gate, module))
    _change(module, _derived(ReplacedExperts, module.__class__), report)
    report.replaced[name] = "experts of a mixture, as grouped GEMMs"


# --- classes ------------------------------------------------------------------------------------------------------


def _change(module: nn.Module, kind: type, report: Replaced) -> None:
    """Change the class of a module, so that cutegemm computes the module, and let `report.undo()` restore the class.

    kind     the new class
    report   what `use` has replaced; it gets one more entry to undo
    """
    before = type(module)

    def become(kind: type) -> None:
        if not has_own_forward(module):
            vars(module).pop("forward", None)  # a method of the class that it had
        module.__class__ = kind

    become(kind)
    report._undo.append(lambda: become(_based_on(type(module), kind, before)))


def _based_on(own: type, kind: type, before: type) -> type:
    """Return a copy of a class with `before` instead of `kind` among its bases, for `Replaced.undo`.

    A module that was parametrized or sharded since `use` has a class that was derived from `kind`.

    own       present class of the module; it is returned itself if `kind` is not among its bases
    kind      class that `use` gave the module
    before    class that the module had before

    >>> class Parametrized(Linear): ...
    >>> restored = _based_on(Parametrized, Linear, nn.Linear)
    >>> restored.__name__, restored.__bases__, _based_on(int, Linear, nn.Linear)
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
def _derived(replacement: Any, original: Any) -> Any:
    """Return the class that a replaced module gets: its bases are `replacement` and the module's original class.

    It has the name of the original class. Its objects can be copied and pickled. If a public attribute of a replaced
    MLP is set later, such as a factor that the original forward reads, the original forward computes the MLP from then
    on; new children and the training mode do not count.

    replacement   class of cutegemm that computes the module
    original      class of the module before
    """

    def reduced(self: Any, protocol: int) -> tuple[Any, ...]:
        return _made, (replacement, original), self.__dict__

    def assigned(self: Any, name: str, value: Any) -> None:
        super(kind, self).__setattr__(name, value)
        record = vars(self).get(_RECORD)
        if record is not None and not name.startswith("_"):
            parts = record.parts
            if name not in (*parts.layers, *parts.act, *parts.last, "training", "forward"):
                vars(self)[_RECORD] = None

    # A forward with the signature of the original, which torch.fx and torch.export inspect.
    ours = replacement.forward
    signed = FunctionType(ours.__code__, ours.__globals__, ours.__name__, ours.__defaults__, ours.__closure__)
    own = {
        "__module__": __name__, "__doc__": replacement.__doc__, "__reduce_ex__": reduced, "__setattr__": assigned,
        "_cutegemm_original": original, "forward": update_wrapper(signed, original.forward),
    }  # fmt: skip
    kind: Any = type(original.__name__, (replacement, original), own)
    kind._cutegemm_class = kind  # a later subclass inherits the attribute, and differs from it
    return kind


def _made(replacement: Any, original: Any) -> Any:
    """Return an empty object of the class that `_derived` returns; copying and unpickling a replaced module calls this.

    replacement, original   bases of the class
    """
    kind = _derived(replacement, original)
    return kind.__new__(kind)
