"""Modules: `Linear` with an activation, and the gated MLP of Llama and its kin."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cutegemm.errors import UnsupportedError
from cutegemm.torch.activations import ACTIVATIONS, GATE_OF, GATED, wrong_activation
from cutegemm.torch.functional import gemm_gated, linear
from cutegemm.torch.known import apply
from cutegemm.torch.mlps import mlp
from cutegemm.torch.route import rows_of
from cutegemm.torch.weights import side_by_side


class Linear(nn.Linear):  # type: ignore[misc]
    """Layer that returns act(input @ weight.T + bias): torch.nn.Linear with its parameters, and an activation.

    in_features, out_features, bias, device, dtype   as of torch.nn.Linear
    activation   as of `cutegemm.linear`
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
        return linear(input, self.weight, self.bias, self.activation)

    def extra_repr(self) -> str:
        own = "" if self.activation is None else f", activation={self.activation}"
        return f"{super().extra_repr()}{own}"


class JoinedWeights(nn.Module):  # type: ignore[misc]
    """Keeps the weights of its children `gate_proj` and `up_proj` side by side in memory: one kernel reads both.

    They stay two parameters, under their names and of their identity. `load_state_dict` fills them where they are.
    `.to()`, `.half()`, `.cuda()`, and `load_state_dict` with `assign=True`, put them elsewhere; they are joined again.
    Where something else does (a deep copy, a tensor in the place of `weight.data`), the next eager call joins them once
    more; a compiled one copies them in each call until then. Weights that are parts of larger memory, as FSDP has them,
    stay there, and are copied in each call. Where gate or up is replaced by another module or has hooks (adapters,
    pruning, parametrizations), the children are called one by one.
    """

    def join(self) -> None:
        """Puts both weights side by side, unless they lie so already or `may_join` is False."""
        if self.may_join:
            side_by_side(self.gate_proj.weight, self.up_proj.weight)

    @property
    def may_join(self) -> bool:
        """Whether gate and up are plain linear layers, so that one kernel may compute both."""
        return is_plain(self.gate_proj) and is_plain(self.up_proj)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        found = super()._apply(fn, recurse)
        self.join()
        return found

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """act(gate(x)) * up(x)."""
        gate, up, bias = self._joined()
        flat = rows_of(x)
        found = gemm_gated(flat, (gate.t(), up.t()), bias, activation, store_preact=False, varying_rows=True)[
            1
        ]
        return found if x.dim() == 2 else found.view(*x.shape[:-1], found.shape[-1])

    def whole(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """down(act(gate(x)) * up(x)): one node of autograd's graph where gradients are wanted."""
        down = self.down_proj
        if not self.may_join:
            return down(apply(GATE_OF[activation], self.gate_proj(x)) * self.up_proj(x))
        if not (torch.is_grad_enabled() and is_plain(down)):
            return down(self.gated(x, activation))
        gate, up, bias = self._joined()
        return mlp(x, (gate, up), down.weight, activation, bias, down.bias)

    def _joined(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """The weights of gate and up, side by side, and their biases as one."""
        gate, up = self.gate_proj, self.up_proj
        if not torch.compiler.is_compiling():
            side_by_side(gate.weight, up.weight)
        bias = None if gate.bias is None else torch.cat([gate.bias, up.bias])
        return gate.weight, up.weight, bias


def is_plain(layer: nn.Module) -> bool:
    """Whether a layer computes x @ weight.T + bias and has no hooks, so that another kernel may compute it.

    >>> is_plain(nn.Linear(2, 2)), is_plain(Linear(2, 2, activation="relu")), is_plain(nn.Identity())
    (True, False, False)
    """
    kind = type(layer)
    return ((kind is Linear and layer.activation is None) or kind is nn.Linear) and not has_hooks(layer)


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody waits for a module's call.

    >>> layer = nn.Linear(2, 2)
    >>> handle = layer.register_forward_hook(print)
    >>> has_hooks(layer), has_hooks(nn.Linear(2, 2))
    (True, False)
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def joined_after_load(module: JoinedWeights, _: Any) -> None:
    """A hook behind `load_state_dict`."""
    module.join()


class GatedMLP(JoinedWeights):
    """down_proj(act(gate_proj(x)) * up_proj(x)), with the names that Llama's MLP has: a state_dict of it can be loaded.

    in_features    of x, and of what is returned
    hidden         of gate and up
    bias           whether the three have one
    activation     "swiglu", "geglu", "geglu_tanh", "reglu" or "glu"
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
        return self.whole(x, self.activation)

    def extra_repr(self) -> str:
        return f"activation={self.activation}"
