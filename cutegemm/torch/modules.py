"""Modules: `Linear` with an activation, and the gated MLP of Llama and its kin."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.torch.activations import ACTIVATIONS, GATED, gated_by_torch, wrong_activation
from cutegemm.torch.functional import gemm_gated, linear
from cutegemm.torch.known import apply, is_customized, is_left_to_torch, is_replaced_forward
from cutegemm.torch.mlps import mlp
from cutegemm.torch.route import reshaped, rows_of
from cutegemm.torch.traced import Unscriptable, as_node, leaf
from cutegemm.torch.weights import side_by_side, stored_alone


class Linear(Unscriptable, nn.Linear):  # type: ignore[misc]
    """Layer that returns act(input @ weight.T + bias): torch.nn.Linear with its parameters, and an activation.

    in_features, out_features, bias, device, dtype   as for torch.nn.Linear
    activation   as for `cutegemm.linear`
    raises       UnsupportedError for an unknown activation

    >>> layer = Linear(8, 4, activation="gelu")
    >>> layer
    Linear(in_features=8, out_features=4, bias=True, activation=gelu)
    >>> layer(torch.zeros(2, 3, 8)).shape
    torch.Size([2, 3, 4])
    """

    activation: str | None = None

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
        rules = wrong_activation(activation, ACTIVATIONS)
        if rules:
            raise UnsupportedError(f"Linear: {rules[0]}")
        super().__init__(in_features, out_features, bias, device, dtype)
        if activation is not None:
            self.activation = activation

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return act(input @ weight.T + bias).

        torch computes it if no kernel serves the tensors (`is_left_to_torch`), or if somebody has replaced
        `torch.nn.Linear.forward`, which is called then.
        """
        if not isinstance(self, Linear):  # a bound method from before `Replaced.undo`
            return type(self).forward(self, input)
        weight, bias = self.weight, self.bias
        if is_left_to_torch(input, weight, bias) or is_replaced_forward(nn.Linear):
            if (traced := leaf(self, input)) is not None:
                return traced
            found: torch.Tensor = super().forward(input)
            return found if self.activation is None else apply(self.activation, found)
        return linear(input, weight, bias, self.activation)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        store_alone(destination, f"{prefix}weight")

    def extra_repr(self) -> str:
        own = "" if self.activation is None else f", activation={self.activation}"
        return f"{super().extra_repr()}{own}"


def store_alone(destination: Any, name: str) -> None:
    """Give a weight in a state_dict a storage of its own: see `stored_alone`."""
    if name in destination and not torch.compiler.is_compiling():
        destination[name] = stored_alone(destination[name])


class JoinedWeights(Unscriptable):
    """A module that keeps the weights of its children `gate_proj` and `up_proj` side by side: one kernel reads both.

    They stay two parameters, with their names and their identity. `load_state_dict` fills them in place. `.to()`,
    `.half()`, `.cuda()`, and `load_state_dict` with `assign=True`, give them other memory; then they are joined again.
    After anything else that separates them (a deep copy, a new tensor in `weight.data`), the next eager call joins them
    again; a compiled one copies them in each call until then. Weights that are parts of larger memory, as with FSDP, or
    that other tensors or processes see, stay there and are copied in each call. If gate or up is not a plain linear
    layer, because of an adapter, pruning, a parametrization, a hook or a replaced `forward`, the children are called
    one by one.
    """

    def join(self, is_given: bool = False) -> None:
        """Put both weights side by side, unless they already are or `may_join` is False.

        is_given   as for `side_by_side`
        """
        if self.may_join:
            side_by_side(self.gate_proj.weight, self.up_proj.weight, is_given)

    @property
    def may_join(self) -> bool:
        """Whether one kernel may compute gate and up: plain linear layers of one shape, both with a bias or neither."""
        return self._factors() is not None

    def state_dict(self, *given: Any, **named: Any) -> Any:
        """Return what torch.nn.Module returns. Tensors in it have storages of their own, over the same memory."""
        found = super().state_dict(*given, **named)
        prefix = given[1] if len(given) > 1 else named.get("prefix", "")
        for part in ("gate_proj", "up_proj"):
            store_alone(found, f"{prefix}{part}.weight")
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        found = super()._apply(fn, recurse)
        self.join()
        return found

    def fused(self, x: torch.Tensor, activation: str) -> torch.Tensor | None:
        """Return down(act(gate(x)) * up(x)), gate and up by one kernel; None if they may not be joined.

        It is one node of autograd's graph if gradients are wanted and down is a plain layer.
        """
        factors, down = self._factors(x), self._modules.get("down_proj")
        if factors is None or down is None:
            return None
        gate, up, gate_bias, up_bias = factors
        if not torch.compiler.is_compiling():
            side_by_side(gate, up)
        bias = None if gate_bias is None else torch.cat([gate_bias, up_bias])
        if torch.is_grad_enabled() and is_plain(down) and not is_left_to_torch(x, down.weight, down.bias):
            return mlp(x, (gate, up), down.weight, activation, bias, down.bias)
        _, hidden = gemm_gated(
            rows_of(x), (gate.t(), up.t()), bias, activation, store_preact=False, varying_rows=True
        )
        found: torch.Tensor = down(reshaped(hidden, (*x.shape[:-1], hidden.shape[-1])))
        return found

    def _factors(self, x: Any = None) -> tuple[Any, Any, Any, Any] | None:
        """Return the weights and the biases of gate and up; None if they may not be joined, or not for x."""
        gate, up = self._modules.get("gate_proj"), self._modules.get("up_proj")
        if not (is_plain(gate) and is_plain(up)):
            return None
        first, second, biases = gate.weight, up.weight, (gate.bias, up.bias)
        if is_left_to_torch(first if x is None else x, first, biases[0]):
            return None
        if is_left_to_torch(second, second, biases[1]):
            return None
        if first.shape != second.shape or (biases[0] is None) != (biases[1] is None):
            return None
        return first, second, *biases


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer computes x @ weight.T + bias and nothing else, so that another kernel may compute it.

    >>> is_plain(nn.Linear(2, 2)), is_plain(Linear(2, 2, activation="relu")), is_plain(nn.Identity())
    (True, False, False)
    """
    kind = type(layer)
    is_linear = kind is nn.Linear or (kind is Linear and layer.activation is None)
    return is_linear and not is_customized(layer) and not is_replaced_forward(nn.Linear)


def joined_after_load(module: JoinedWeights, _: Any) -> None:
    """Join the weights after `load_state_dict`."""
    module.join(is_given=True)


class GatedMLP(JoinedWeights):
    """down_proj(act(gate_proj(x)) * up_proj(x)), with the names that Llama's MLP has: a state_dict of it can be loaded.

    in_features    of x, and of what is returned
    hidden         of gate and up
    bias           whether the three have one
    activation     "swiglu", "geglu", "geglu_tanh", "reglu", "glu" or "swiglu_oai"
    raises         UnsupportedError for another activation

    gate and up are computed by one kernel; see `JoinedWeights` for how their weights lie.

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
        rules = wrong_activation(activation, GATED)
        if rules:
            raise UnsupportedError(f"GatedMLP: {rules[0]}")
        self.activation = activation
        self.gate_proj = Linear(in_features, hidden, bias, device=device, dtype=dtype)
        self.up_proj = Linear(in_features, hidden, bias, device=device, dtype=dtype)
        self.down_proj = Linear(hidden, in_features, bias, device=device, dtype=dtype)
        self.register_load_state_dict_post_hook(joined_after_load)
        self.join()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return down_proj of the gated activation of gate_proj(x) and up_proj(x)."""
        if (traced := leaf(self, x)) is not None:
            return traced
        found = self.fused(x, self.activation)
        if found is None:
            hidden = as_node(gated_by_torch, self.activation, self.gate_proj(x), self.up_proj(x))
            found = self.down_proj(hidden)
        return found

    def extra_repr(self) -> str:
        return f"activation={self.activation}"
