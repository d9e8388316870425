"""Linear layers whose weights are divided among the ranks of a group.

A `ColumnParallelLinear` followed by a `RowParallelLinear`, with an activation between them, is a tensor-parallel MLP:
its hidden values stay on their ranks. With sequence parallelism each rank has some of the tokens between MLPs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from cutegemm.errors import UnsupportedError
from cutegemm.torch import checks
from cutegemm.torch.activations import ACTIVATIONS, ALIASES, GATED, wrong_activation
from cutegemm.torch.dispatch import PLAIN_TENSORS
from cutegemm.torch.distributed.functional import all_gather_mm, mm_all_reduce, mm_reduce_scatter, replicated_mm
from cutegemm.torch.distributed.groups import group_of
from cutegemm.torch.fallback import Unscriptable


class ParallelLinear(Unscriptable, nn.Linear):  # type: ignore[misc]
    """Base class of linear layers whose ranks have a share of the weight each.

    The weight and the bias of this rank are plain parameters, or DTensors that `parallelize_module` has made.

    weight_dim   dimension of the weight that is divided among the ranks
    bias_dim     dimension of the bias that is divided; None if all ranks have the whole bias
    known        activations of this class
    """

    weight_dim: ClassVar[int]
    bias_dim: ClassVar[int | None]
    known: ClassVar[Mapping[Any, str]] = {None: ""}

    activation: str | None = None
    group: str
    ranks: int
    sequence_parallel: bool

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        group: Any = None,
        sequence_parallel: bool = False,
        activation: str | None = None,
    ) -> None:
        own = group_of(group)
        extents = {"in_features": in_features, "out_features": out_features}
        checks.refuse(type(self).__name__, {}, self.violations(extents, own.size(), activation))
        super().__init__(in_features, out_features, bias, device, dtype)
        self.set_group(group, sequence_parallel)
        if activation is not None:
            self.activation = activation
        self._divide(self.weight, self.bias, own.rank())

    @classmethod
    def from_linear(cls, linear: nn.Linear, **options: Any) -> Any:
        """Return a layer with this rank's share of the parameters of a linear layer, which are copied.

        linear    torch.nn.Linear with the whole weight, the same on all ranks. The activation of a `cutegemm.Linear` is
                  taken over
        options   `group`, `sequence_parallel` and `activation`, as for the class
        raises    UnsupportedError for another module, or a weight that is not a plain tensor
        """
        if rules := wrong_layer(linear):
            raise UnsupportedError(f"{cls.__name__}.from_linear: {rules[0]}")
        has_bias = linear.bias is not None
        options = {"activation": getattr(linear, "activation", None), **options}
        layer = cls(linear.in_features, linear.out_features, has_bias, "meta", linear.weight.dtype, **options)
        layer._divide(linear.weight, linear.bias, group_of(layer.group).rank())
        return layer.train(linear.training)

    def set_group(self, group: Any, sequence_parallel: bool) -> None:
        """Set the group of ranks that share the weight.

        group               as for the class
        sequence_parallel   as for the class
        """
        own = group_of(group)
        # A group by its name can be copied and pickled.
        self.group, self.ranks, self.sequence_parallel = str(own.group_name), own.size(), sequence_parallel

    @classmethod
    def violations(cls, extents: Mapping[str, int], ranks: int, activation: Any) -> list[str]:
        """Return an error message for each rule that the arguments of the class violate.

        extents   in_features and out_features
        ranks     number of ranks
        """
        rules = wrong_activation(activation, cls.known)
        name = ("out_features", "in_features")[cls.weight_dim]
        parts = ranks * (2 if not rules and _is_gated(activation) else 1)
        if extents[name] % parts:
            halves = f", each with gate and up of {activation!r}" if parts > ranks else ""
            rules.append(
                f"{name} = {extents[name]} is divided among {ranks} ranks{halves}. Use a multiple of {parts}, as by "
                "padding the weight."
            )
        return rules

    def _divide(self, weight: torch.Tensor, bias: torch.Tensor | None, rank: int) -> None:
        """Keep the share of this rank of whole parameters."""
        halves = 2 if _is_gated(self.activation) else 1
        for name, whole, dim in ("weight", weight, self.weight_dim), ("bias", bias, self.bias_dim):
            if whole is not None:
                parts = [whole] if dim is None else [x.chunk(self.ranks, dim)[rank] for x in whole.chunk(halves, dim)]
                share = torch.cat([part.detach() for part in parts], dim or 0)
                self.register_parameter(name, nn.Parameter(share, whole.requires_grad))

    def extra_repr(self) -> str:
        own = "" if self.activation is None else f", activation={self.activation}"
        return f"{super().extra_repr()}{own}, ranks={self.ranks}, sequence_parallel={self.sequence_parallel}"


class ColumnParallelLinear(ParallelLinear):
    """Linear layer whose outputs are divided among the ranks: each has out_features / R rows of the weight.

    in_features, out_features, bias   extents of the whole layer. R, the number of ranks, divides out_features
    device, dtype                     as for torch.nn.Linear
    group                             ProcessGroup, its name, a DeviceMesh of one dimension, or None for all ranks
    sequence_parallel                 True: the input has the rows of this rank, which are gathered. False: the input is
                                      the same on all ranks
    activation                        None, or a name such as "gelu". If it is gated, as "swiglu" is, the first half of
                                      the whole layer's outputs are gate, the other half up
    raises                            UnsupportedError with every rule that is violated

    All ranks make the whole layer for a moment, and keep their share of it: seed the random numbers of all ranks alike.
    `from_linear` takes the parameters of a layer. `ColumnParallel` is the style for `parallelize_module`.

    The state dict has the keys of torch.nn.Linear, and the share of this rank.

    >>> layer = ColumnParallelLinear(4096, 2 * 14336, bias=False, activation="swiglu", group=mesh)  # doctest: +SKIP
    """

    weight_dim, bias_dim = 0, 0
    known: ClassVar[Mapping[Any, str]] = {**ACTIVATIONS, **GATED}

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns of act(input @ weight.T + bias).

        input     (M/R, ..., in_features) with sequence parallelism, else (M, ..., in_features), as a tensor of this
                  rank or a DTensor. Rows are divided by their first dimension
        returns   (M, ..., out_features / R), a tensor of this rank; half the columns after a gated activation
        """
        x = _local_input("ColumnParallelLinear", input, Shard(0) if self.sequence_parallel else Replicate())
        multiply = all_gather_mm if self.sequence_parallel else replicated_mm
        weight, bias = _local(self.weight), _local(self.bias)
        y: torch.Tensor = multiply(x, weight.t(), bias, self.activation, group=self.group)
        return y


class RowParallelLinear(ParallelLinear):
    """Linear layer whose inputs are divided among the ranks: each has in_features / R columns of the weight.

    in_features, out_features, bias   extents of the whole layer. R, the number of ranks, divides in_features. All
                                      ranks have the whole bias, which is added once
    device, dtype                     as for torch.nn.Linear
    group                             ProcessGroup, its name, a DeviceMesh of one dimension, or None for all ranks
    sequence_parallel                 True: the result has the rows of this rank. False: all ranks get all rows
    activation                        None: no other is supported, as the sum is complete only after the GEMMs of all
                                      ranks
    raises                            UnsupportedError with every rule that is violated

    Parameters are made and stored as those of `ColumnParallelLinear`. `RowParallel` is the style for
    `parallelize_module`.

    >>> layer = RowParallelLinear(14336, 4096, bias=False, sequence_parallel=True, group=mesh)  # doctest: +SKIP
    """

    weight_dim, bias_dim = 1, None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return input @ weight.T + bias, summed over the ranks.

        input     (M, ..., in_features / R), as a tensor of this rank or a DTensor
        returns   (M/R, ..., out_features) with sequence parallelism, else (M, ..., out_features), a tensor of this
                  rank
        """
        x = _local_input("RowParallelLinear", input, Shard(input.dim() - 1))
        multiply = mm_reduce_scatter if self.sequence_parallel else mm_all_reduce
        return multiply(x, _local(self.weight).t(), _local(self.bias), group=self.group)


def _is_gated(activation: Any) -> bool:
    """Return True if an activation has two arguments, gate and up.

    >>> _is_gated("swiglu"), _is_gated("gelu"), _is_gated(None)
    (True, False, False)
    """
    return ALIASES.get(activation, activation) in GATED


def wrong_layer(layer: Any) -> list[str]:
    """Return an error message, in a list, if the parameters of a module are not those of a plain linear layer.

    >>> wrong_layer(nn.Linear(2, 2)), wrong_layer(nn.ReLU())
    ([], ['the module is a ReLU. Pass a torch.nn.Linear.'])
    """
    if not isinstance(layer, nn.Linear) or isinstance(layer, ParallelLinear):
        return [f"the module is a {type(layer).__name__}. Pass a torch.nn.Linear."]
    if type(layer.weight) not in PLAIN_TENSORS:
        return [f"the weight is a {type(layer.weight).__name__}. Pass a layer before it is quantized or distributed."]
    return []


def _local(parameter: Any) -> Any:
    """Return the part of a parameter that this rank has; gradients go to the parameter. None stays None."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _local_input(called: str, x: torch.Tensor, placement: Placement) -> torch.Tensor:
    """Return the part of an input that this rank has.

    called      name of the layer, for the message
    x           a tensor of this rank, or a DTensor
    placement   how a DTensor has to be divided
    raises      UnsupportedError for a DTensor that is divided otherwise
    """
    if not isinstance(x, DTensor):
        return x
    found = tuple(Shard(p.dim % x.dim()) if isinstance(p, Shard) else p for p in x.placements)
    if found != (placement,):
        raise UnsupportedError(
            f"{called}: the input is a DTensor with placements {x.placements}. Pass one with ({placement!r},), as by "
            f"x.redistribute(placements=[{placement!r}]), or the tensor of this rank."
        )
    own: torch.Tensor = x.to_local()
    return own
