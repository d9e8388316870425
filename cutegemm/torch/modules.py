"""Modules: `Linear` with an activation, and `GatedMLP` of Llama and similar models."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.run import calls
from cutegemm.run.calls import is_batch_invariant
from cutegemm.torch.activations import (
    ACTIVATIONS,
    GATED,
    activated_by_torch,
    gated_by_torch,
    wrong_activation,
)
from cutegemm.torch.dispatch import reshaped, rows_of
from cutegemm.torch.fallback import (
    Unscriptable,
    as_node,
    is_customized,
    is_left_to_torch,
    is_replaced_forward,
    leaf,
)
from cutegemm.torch.functional import gated_linear, gemm_gated, linear
from cutegemm.torch.launch import refuse_torch
from cutegemm.torch.mlps import mlp


def mode_of(module: Any) -> AbstractContextManager[None]:
    """Return a context manager in which a module's calls are batch invariant if its `batch_invariant` is True."""
    return calls.batch_invariant() if module.batch_invariant else nullcontext()


class Linear(Unscriptable, nn.Linear):  # type: ignore[misc]
    """Layer that returns act(input @ weight.T + bias): torch.nn.Linear with its parameters, and an activation.

    in_features, out_features, bias, device, dtype   as for torch.nn.Linear
    activation                                       None, "relu", "relu_sq", "gelu", "gelu_tanh", "silu", "sigmoid"
                                                     or "tanh"
    raises                                           UnsupportedError for an unknown activation

    Set its attribute `batch_invariant` to True to give each row the same bits in every batch. None, the default, does
    so only inside of the context `cutegemm.batch_invariant()`.

    >>> layer = Linear(8, 4, activation="gelu")
    >>> layer
    Linear(in_features=8, out_features=4, bias=True, activation=gelu)
    >>> layer(torch.zeros(2, 3, 8)).shape
    torch.Size([2, 3, 4])
    """

    activation: str | None = None
    batch_invariant: bool | None = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
    ) -> None:
        if rules := wrong_activation(activation, ACTIVATIONS):
            raise UnsupportedError(f"Linear: {rules[0]}")
        super().__init__(in_features, out_features, bias, device, dtype)
        if activation is not None:
            self.activation = activation

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return act(input @ weight.T + bias).

        torch computes this layer if no kernel supports the tensors (`fallback.is_left_to_torch`), or if
        `torch.nn.Linear.forward` was replaced; the replacement is called then.

        input     (..., in_features)
        returns   (..., out_features)
        """
        if not isinstance(self, Linear):  # a bound method from before `Replaced.undo`
            return type(self).forward(self, input)
        weight, bias = self.weight, self.bias
        if is_left_to_torch(input, weight, bias) or is_replaced_forward(nn.Linear):
            if (traced := leaf(self, input)) is not None:
                return traced
            if is_batch_invariant(self.batch_invariant):
                refuse_torch(f"{self}", "no kernel serves its tensors, or torch.nn.Linear.forward was replaced")
            y: torch.Tensor = super().forward(input)
            return y if self.activation is None else activated_by_torch(self.activation, y)
        return linear(input, weight, bias, self.activation, batch_invariant=self.batch_invariant)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        _store_alone(destination, f"{prefix}weight")

    def extra_repr(self) -> str:
        own = "" if self.activation is None else f", activation={self.activation}"
        return f"{super().extra_repr()}{own}"


class JoinedWeights(Unscriptable):
    """Base class of gated MLPs that keep the weights of gate and up adjacent in memory, so that one kernel reads both.

    The weights of `gate_proj` and `up_proj` remain two parameters. `load_state_dict` fills them in place. After
    `.to()`, `.half()`, `.cuda()`, or `load_state_dict` with `assign=True`, they are made adjacent again. After a deep
    copy or a new tensor in `weight.data`, the next eager call makes them adjacent; compiled calls copy them until then.

    Weights that are parts of larger memory, as with FSDP, or that other tensors or processes see, stay in place and
    are copied in each call. If gate or up is not a plain linear layer, because of an adapter, pruning, a
    parametrization, a hook or a replaced `forward`, the children are called one by one.

    batch_invariant   True if each row must have the same bits in every batch; None: only in such a context
    """

    batch_invariant: bool | None = None

    def join(self, is_new: bool = False) -> None:
        """Make the gate and up weights of this MLP adjacent in memory, if one kernel may compute both.

        is_new   True if the parameters have just received their memory, so that other tensors that see it do not
                 count
        """
        if self._factors() is not None:
            side_by_side(self.gate_proj.weight, self.up_proj.weight, is_new)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return this MLP's state_dict, with gate and up weights as tensors that do not share a storage.

        The two weights are adjacent in one storage. Libraries that save tensors, such as safetensors, reject tensors of
        one storage. So each weight is returned with a storage object of its own, which covers the same memory: nothing
        is copied, and changes are seen by the module.

        args, kwargs   as for torch.nn.Module.state_dict
        """
        state = super().state_dict(*args, **kwargs)
        prefix = args[1] if len(args) > 1 else kwargs.get("prefix", "")
        for part in ("gate_proj", "up_proj"):
            _store_alone(state, f"{prefix}{part}.weight")
        return state

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        result = super()._apply(fn, recurse)
        self.join()
        return result

    def fused(self, x: torch.Tensor, activation: str) -> torch.Tensor | None:
        """Return down(act(gate(x)) * up(x)) of this MLP, with gate and up in one kernel; None if that is not allowed.

        It is one node of autograd's graph if gradients are wanted and down is a plain layer.

        x            (..., K)
        activation   name of the gated activation, such as "swiglu"
        """
        factors, down = self._factors(x), self._modules.get("down_proj")
        if factors is None or down is None:
            return None
        gate, up, gate_bias, up_bias = factors
        are_adjacent = not torch.compiler.is_compiling() and side_by_side(gate, up)
        bias = None if gate_bias is None else torch.cat([gate_bias, up_bias])
        if torch.is_grad_enabled() and is_plain(down) and not is_left_to_torch(x, down.weight, down.bias):
            return mlp(x, (gate, up), down.weight, activation, bias, down.bias)
        if are_adjacent and (gated_values := gated_linear(x, gate, up, bias, activation)) is not None:
            return down(gated_values)
        columns = (gate.t(), up.t())
        hidden = gemm_gated(rows_of(x), columns, bias, activation, store_preact=False, varying_rows=True)[1]
        return down(reshaped(hidden, (*x.shape[:-1], hidden.shape[-1])))

    def _factors(self, x: Any = None) -> tuple[Any, Any, Any, Any] | None:
        """Return the weights and biases that one kernel needs to compute gate and up of this MLP.

        x         input; None: only the layers are checked
        returns   (gate weight, up weight, gate bias, up bias); None if one kernel may not compute both
        """
        gate, up = self._modules.get("gate_proj"), self._modules.get("up_proj")
        if not (is_plain(gate) and is_plain(up)):
            return None
        first, second, biases = gate.weight, up.weight, (gate.bias, up.bias)
        is_left = is_left_to_torch(first if x is None else x, first, biases[0])
        if is_left or is_left_to_torch(second, second, biases[1]):
            return None
        if first.shape != second.shape or (biases[0] is None) != (biases[1] is None):
            return None
        return first, second, *biases


def is_plain(layer: nn.Module) -> bool:
    """Return True if a layer computes x @ weight.T + bias and nothing else, so that another kernel may compute it.

    >>> is_plain(nn.Linear(2, 2)), is_plain(Linear(2, 2, activation="relu")), is_plain(nn.Identity())
    (True, False, False)
    """
    kind = type(layer)
    is_linear = kind is nn.Linear or (kind is Linear and layer.activation is None)
    return is_linear and not is_customized(layer) and not is_replaced_forward(nn.Linear)


def join_after_load(module: JoinedWeights, _: Any) -> None:
    """Make the gate and up weights of an MLP adjacent in memory; torch calls this hook after `load_state_dict`."""
    module.join(is_new=True)


class GatedMLP(JoinedWeights):
    """MLP that returns down_proj(act(gate_proj(x)) * up_proj(x)). It loads a state_dict of Llama's MLP.

    in_features     columns of x and of the result
    hidden          columns of gate and up
    bias            True if the three layers have a bias
    activation      "swiglu", "geglu", "geglu_tanh", "reglu", "glu" or "swiglu_oai"
    device, dtype   as for torch.nn.Linear
    raises          UnsupportedError for another activation

    One kernel computes gate and up, for which their weights are kept adjacent in memory.

    >>> mlp = GatedMLP(8, 16)
    >>> sorted(mlp.state_dict()), mlp(torch.zeros(2, 3, 8)).shape
    (['down_proj.weight', 'gate_proj.weight', 'up_proj.weight'], torch.Size([2, 3, 8]))
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        bias: bool = False,
        activation: str = "swiglu",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if rules := wrong_activation(activation, GATED):
            raise UnsupportedError(f"GatedMLP: {rules[0]}")
        self.activation = activation
        self.gate_proj = Linear(in_features, hidden, bias, device=device, dtype=dtype)
        self.up_proj = Linear(in_features, hidden, bias, device=device, dtype=dtype)
        self.down_proj = Linear(hidden, in_features, bias, device=device, dtype=dtype)
        self.register_load_state_dict_post_hook(join_after_load)
        self.join()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return down_proj(act(gate_proj(x)) * up_proj(x)) of this MLP.

        x         (..., in_features)
        returns   (..., in_features)
        """
        if (traced := leaf(self, x)) is not None:
            return traced
        with mode_of(self):
            y = self.fused(x, self.activation)
            if y is None:
                hidden = as_node(gated_by_torch, self.activation, self.gate_proj(x), self.up_proj(x))
                y = self.down_proj(hidden)
        return y

    def extra_repr(self) -> str:
        return f"activation={self.activation}"


# --- weights that are adjacent in memory --------------------------------------------------------------------------


def are_side_by_side(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return True if two weights are adjacent in one storage: the second one begins where the first one ends.

    >>> whole = torch.zeros(4, 3)
    >>> are_side_by_side(whole[:2], whole[2:]), are_side_by_side(whole[2:], whole[:2])
    (True, False)
    """
    return (
        second.data_ptr() == first.data_ptr() + first.numel() * first.element_size()
        and second.dtype == first.dtype
        and first.is_contiguous()
        and second.is_contiguous()
        and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    )


def side_by_side(first: torch.nn.Parameter, second: torch.nn.Parameter, is_new: bool = False) -> bool:
    """Move two weights next to each other in memory; return True if they are adjacent. Parameters keep their identity.

    Nothing is moved if that could break other users of the memory: if a weight is a part of larger memory, or if other
    tensors or processes see its memory. Nothing is moved either if a weight has no memory (as on the meta device), or
    if the two differ in type, device, row length, or in being inference tensors.

    first, second   the weights, such as gate and up
    is_new          True if the parameters have just received their memory, as by `load_state_dict(assign=True)`.
                    Other tensors that still see it do not count then

    >>> gate, up = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(2, 3))
    >>> side_by_side(gate, up), are_side_by_side(gate, up), gate.is_leaf
    (True, True, True)
    """
    if not all(_is_movable(weight) for weight in (first, second)):
        return False
    if are_side_by_side(first, second):
        return True
    if first is second or _kind(first) != _kind(second):
        return False
    if not (_owns_memory(first, second, is_new) and _owns_memory(second, first, is_new)):
        return False
    # Weights that were made under inference mode stay inference tensors; others stay trainable.
    with torch.inference_mode(first.is_inference()), torch.no_grad():
        whole, rows = torch.cat([first.detach(), second.detach()]), first.shape[0]
        first.data, second.data = whole[:rows], whole[rows:]
    return True


def separate(first: Any, second: Any) -> None:
    """Copy two weights that are adjacent in one storage, so that each has its own. Other weights stay in place.

    >>> gate, up = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.zeros(2, 3))
    >>> side_by_side(gate, up), separate(gate, up), are_side_by_side(gate, up)
    (True, None, False)
    """
    if all(_is_movable(weight) for weight in (first, second)) and are_side_by_side(first, second):
        for weight in (first, second):
            with torch.inference_mode(weight.is_inference()), torch.no_grad():
                weight.data = weight.detach().clone()


def _store_alone(state: Any, name: str) -> None:
    """Replace the weight `name` in a state_dict by a tensor with a storage of its own over the same memory.

    state   the state_dict
    """
    if name in state and not torch.compiler.is_compiling():
        state[name] = stored_alone(state[name])


def stored_alone(tensor: Any) -> Any:
    """Return one of two adjacent weights as a tensor that does not share its storage object; nothing is copied.

    The new storage covers the memory of this weight only. Libraries that save tensors need that: safetensors rejects
    two tensors that share a storage, and accelerate treats them as one tensor.

    tensor   the weight; a value that does not share a storage in this way is returned unchanged

    >>> whole = torch.arange(6.0).view(2, 3)
    >>> second = stored_alone(whole[1:])
    >>> second.untyped_storage().nbytes(), second.data_ptr() == whole[1:].data_ptr()
    (12, True)
    """
    if type(tensor) is not torch.Tensor or tensor.device.type == "meta" or tensor.layout != torch.strided:
        return tensor
    storage, size = tensor.untyped_storage(), tensor.numel() * tensor.element_size()
    if storage.nbytes() != 2 * size or not tensor.is_contiguous():
        return tensor
    begin = tensor.storage_offset() * tensor.element_size()
    own = storage[begin : begin + size]
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(own, 0, tensor.shape)


def _kind(weight: torch.Tensor) -> tuple[Any, ...]:
    """Return the properties that must be equal for two weights to be made adjacent in memory.

    returns   (type, device, extents of a row, True for an inference tensor)
    """
    return weight.dtype, weight.device, weight.shape[1:], weight.is_inference()


def _is_movable(weight: Any) -> bool:
    return type(weight) is torch.nn.Parameter and weight.device.type != "meta" and weight.layout == torch.strided


def _owns_memory(weight: torch.Tensor, other: torch.Tensor, is_new: bool) -> bool:
    """Return True if the storage of a weight holds nothing else, and only `weight` and `other` use it.

    The storage may be twice as large as the weight: it may have held this weight and another one, as an earlier pair.

    weight, other   the two weights that are to become adjacent
    is_new          True to ignore other tensors that use the storage, because it has just been given to the weight
    """
    storage, size = weight.untyped_storage(), weight.numel() * weight.element_size()
    if storage.nbytes() > 2 * size or (weight.is_cpu and storage.is_shared()):
        return False
    if is_new or not hasattr(torch._C, "_storage_Use_Count"):
        return True
    weights = 1 + (other.untyped_storage().data_ptr() == storage.data_ptr())
    return bool(torch._C._storage_Use_Count(storage._cdata) == weights + 1)  # one more is `storage` itself
