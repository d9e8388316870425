"""Styles for `torch.distributed.tensor.parallel.parallelize_module`, whose layers overlap communication with GEMMs.

The weights become DTensors, as by the styles of torch, so that checkpoints, FSDP and optimizers see the whole weights.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from cutegemm.torch import checks
from cutegemm.torch.distributed.modules import ColumnParallelLinear, ParallelLinear, RowParallelLinear, wrong_layer
from cutegemm.torch.fallback import has_own_forward
from cutegemm.torch.modules import Linear


class ColumnParallel(ColwiseParallel):  # type: ignore[misc]
    """Style that makes a torch.nn.Linear a `ColumnParallelLinear`, with DTensors as parameters.

    It takes the place of torch's `ColwiseParallel`: the input is the same on all ranks, or with sequence parallelism
    has the rows of this rank; the result is a tensor of this rank.

    sequence_parallel   True if the input has the rows of this rank, which are gathered
    raises              UnsupportedError, by `parallelize_module`, for another module, and for out_features that the
                        number of ranks does not divide

    >>> styles = {"up": ColumnParallel(sequence_parallel=True), "down": RowParallel(sequence_parallel=True)}
    >>> parallelize_module(mlp, mesh["tp"], styles)  # doctest: +SKIP
    """

    def __init__(self, *, sequence_parallel: bool = False) -> None:
        super().__init__()
        self.sequence_parallel = sequence_parallel

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return _parallelized(self, ColumnParallelLinear, module, device_mesh)

    def __repr__(self) -> str:
        return f"ColumnParallel(sequence_parallel={self.sequence_parallel})"


class RowParallel(RowwiseParallel):  # type: ignore[misc]
    """Style that makes a torch.nn.Linear a `RowParallelLinear`, with DTensors as parameters.

    It takes the place of torch's `RowwiseParallel`: the input has the columns of this rank; the result is the same on
    all ranks, or with sequence parallelism has the rows of this rank.

    sequence_parallel   True if the result has the rows of this rank
    raises              UnsupportedError, by `parallelize_module`, for another module, and for in_features that the
                        number of ranks does not divide

    >>> RowParallel(sequence_parallel=True)
    RowParallel(sequence_parallel=True)
    """

    def __init__(self, *, sequence_parallel: bool = False) -> None:
        super().__init__()
        self.sequence_parallel = sequence_parallel

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return _parallelized(self, RowParallelLinear, module, device_mesh)

    def __repr__(self) -> str:
        return f"RowParallel(sequence_parallel={self.sequence_parallel})"


def _parallelized(style: Any, kind: type[ParallelLinear], module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Distribute the parameters of a linear layer over a mesh, and change its class; hooks and the module remain.

    style   the style, whose base class distributes parameters
    kind    the new class
    """
    rules = wrong_layer(module)
    if not rules and (type(module) not in (nn.Linear, Linear) or has_own_forward(module)):
        rules = [f"the module is a {type(module).__name__} with a forward of its own. Pass a plain linear layer."]
    if not rules:
        activation = getattr(module, "activation", None)
        extents = {"in_features": module.in_features, "out_features": module.out_features}
        rules = kind.violations(extents, mesh.size(), activation)
    checks.refuse(f"{style}", {}, rules)
    style._partition_linear_fn("", module, mesh)
    vars(module).pop("forward", None)
    module.__class__ = kind
    module.set_group(mesh, style.sequence_parallel)
    return module
