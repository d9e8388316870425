"""Functions that the ranks of `test_modules` call: layers whose weights are divided, and layers of one process."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import PrepareModuleInput, parallelize_module

import cutegemm.torch
from cutegemm.errors import CutegemmError
from cutegemm.torch.distributed import ColumnParallel, ColumnParallelLinear, RowParallel, RowParallelLinear
from tests.torch.distributed.products import Pairs, device, extents, part_of, share, whole


def mesh() -> Any:
    """Return a mesh of all ranks."""
    return init_device_mesh(device().type, (dist.get_world_size(),), mesh_dim_names=("tp",))


def linear(in_features: int, out_features: int, has_bias: bool, seed: int, dtype: torch.dtype) -> nn.Linear:
    """Return a layer that is the same on all ranks."""
    layer = nn.Linear(in_features, out_features, has_bias, device(), dtype)
    with torch.no_grad():
        layer.weight.copy_(whole(out_features, in_features, seed=seed))
        if has_bias:
            layer.bias.copy_(whole(out_features, seed=seed + 1))
    return layer


def gated_rows(x: torch.Tensor) -> torch.Tensor:
    """Return this rank's rows of gate and of up; each is half of `x`."""
    return torch.cat([part_of(half, 0) for half in x.chunk(2)])


def layer_pairs(
    sequence_parallel: bool, has_bias: bool, activation: str | None, dtype: torch.dtype = torch.float64
) -> Pairs:
    """Compare a column-parallel layer before a row-parallel one with both layers of one process in float64."""
    m, n, k = extents()
    up, down = (
        linear(k, 2 * n, has_bias, 20, dtype),
        linear(n if activation == "swiglu" else 2 * n, k, has_bias, 30, dtype),
    )
    options = {"group": mesh(), "sequence_parallel": sequence_parallel}
    columns = ColumnParallelLinear.from_linear(up, activation=activation, **options)
    rows = RowParallelLinear.from_linear(down, **options)
    x = whole(m, k, seed=0, dtype=dtype)
    mine = share(x, 0) if sequence_parallel else x.clone().requires_grad_()
    y = rows(columns(mine))
    up, down, one = up.double(), down.double(), x.double().requires_grad_()
    hidden = up(one)
    if activation == "swiglu":
        gate, value = hidden.chunk(2, 1)
        hidden = nn.functional.silu(gate) * value
    elif activation is not None:
        hidden = nn.functional.gelu(hidden)
    wanted, g = down(hidden), whole(m, k, seed=3)
    (wanted * g).sum().backward()
    (y * (part_of(g, 0) if sequence_parallel else g)).sum().backward()
    own = gated_rows if activation == "swiglu" else lambda x: part_of(x, 0)
    pairs = {
        "y": (y, part_of(wanted, 0) if sequence_parallel else wanted),
        "x": (mine.grad, part_of(one.grad, 0) if sequence_parallel else one.grad),
        "up": (columns.weight.grad, own(up.weight.grad)),
        "down": (rows.weight.grad, part_of(down.weight.grad, 1)),
    }
    if has_bias:
        pairs |= {"up bias": (columns.bias.grad, own(up.bias.grad)), "down bias": (rows.bias.grad, down.bias.grad)}
    return {name: (x.detach(), y.detach()) for name, (x, y) in pairs.items()}


class GatedMLP(nn.Module):
    """The MLP of Llama, of layers of torch."""

    def __init__(self, dtype: torch.dtype = torch.float64, has_bias: bool = True) -> None:
        super().__init__()
        _, n, k = extents()
        self.gate_proj = linear(k, n, has_bias, 40, dtype)
        self.up_proj = linear(k, n, has_bias, 50, dtype)
        self.down_proj = linear(n, k, has_bias, 60, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


def styles(sequence_parallel: bool) -> dict[str, Any]:
    """Return styles for `GatedMLP`."""
    columns = ColumnParallel(sequence_parallel=sequence_parallel)
    return {"gate_proj": columns, "up_proj": columns, "down_proj": RowParallel(sequence_parallel=sequence_parallel)}


def styled_pairs(
    sequence_parallel: bool, is_compiled: bool, dtype: torch.dtype = torch.float64, gathers_once: bool = False
) -> Pairs:
    """Compare a gated MLP that `parallelize_module` divides with that of one process; gradients are DTensors.

    gathers_once   True if a style of torch gathers the rows for gate and up
    """
    m, _, k = extents()
    one, mlp = GatedMLP(dtype).double(), GatedMLP(dtype)
    seen: list[type] = []
    mlp.down_proj.register_forward_hook(lambda layer, *_: seen.append(type(layer)))
    chosen = styles(sequence_parallel)
    if gathers_once:
        gathers = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
        parallelize_module(mlp, mesh(), gathers)
        chosen = {**styles(False), "down_proj": chosen["down_proj"]}
    assert parallelize_module(mlp, mesh(), chosen) is mlp
    assert [type(each) for each in mlp.children()] == [ColumnParallelLinear, ColumnParallelLinear, RowParallelLinear]
    assert all(isinstance(each, DTensor) for each in mlp.parameters())
    x, g = whole(m, k, seed=0, dtype=dtype), whole(m, k, seed=3)
    mine = share(x, 0) if sequence_parallel else x.clone().requires_grad_()
    y = (torch.compile(mlp, fullgraph=True, backend="aot_eager") if is_compiled else mlp)(mine)
    whole_x = x.to(torch.float64, copy=True).requires_grad_()
    wanted = one(whole_x)
    (wanted * g).sum().backward()
    (y * (part_of(g, 0) if sequence_parallel else g)).sum().backward()
    pairs = {
        "y": (y, part_of(wanted, 0) if sequence_parallel else wanted),
        "x": (mine.grad, part_of(whole_x.grad, 0) if sequence_parallel else whole_x.grad),
    }
    grads = {name: each.grad for name, each in one.named_parameters()}
    pairs |= {name: (each.grad.full_tensor(), grads[name]) for name, each in mlp.named_parameters()}
    assert is_compiled or seen == [RowParallelLinear]
    return {name: (x.detach(), y.detach()) for name, (x, y) in pairs.items()}


def inputs_as_dtensors() -> list[bool]:
    """Return whether layers give the same for DTensors as for the tensors of this rank."""
    m, _, k = extents()
    tp, mlp, x = mesh(), GatedMLP(), whole(m, k, seed=0)
    parallelize_module(mlp, tp, styles(True))
    gate = mlp.gate_proj
    hidden = gate(share(x, 0))
    divided = distribute_tensor(x, tp, [Shard(0)])
    rows, last = mlp.down_proj(hidden), DTensor.from_local(hidden, tp, [Shard(-1)])
    gate.sequence_parallel = False
    whole_input = gate(distribute_tensor(x, tp, [Replicate()]))
    gate.sequence_parallel = True
    return [
        torch.equal(gate(divided), hidden),
        torch.allclose(whole_input, hidden, rtol=1e-12),
        torch.equal(mlp.down_proj(last), rows),
    ]


def restored(kind: str) -> list[bool]:
    """Return whether state dicts have the keys of torch, and whether copies from them give the same result.

    kind   "shares" for layers with plain parameters, "DTensors" for layers of `parallelize_module`
    """
    m, _, k = extents()
    one, x = GatedMLP(), whole(m, k, seed=0)
    names = {f"{name}_proj.{what}" for name in ("gate", "up", "down") for what in ("weight", "bias")}

    def divided(layers: GatedMLP) -> GatedMLP:
        if kind == "DTensors":
            parallelize_module(layers, mesh(), styles(True))
            return layers
        for name, layer in list(layers.named_children()):
            own = RowParallelLinear if name == "down_proj" else ColumnParallelLinear
            setattr(layers, name, own.from_linear(layer, sequence_parallel=True))
        return layers

    first, second = divided(GatedMLP()), divided(GatedMLP())
    with torch.no_grad():
        for each in second.parameters():
            each.zero_()
    state = first.state_dict()
    second.load_state_dict(state)
    wanted = part_of(one(x), 0)
    found = [set(state) == names, torch.allclose(second(share(x, 0)), wanted, rtol=1e-12)]
    if kind == "DTensors":
        full = {name: each.full_tensor() for name, each in state.items()}
        found += [all(torch.equal(full[name], each) for name, each in one.state_dict().items())]
    else:
        file = io.BytesIO()
        torch.save(first, file)
        file.seek(0)
        copies = copy.deepcopy(first), pickle.loads(pickle.dumps(first)), torch.load(file, weights_only=False)
        found += [torch.equal(each(share(x, 0)), first(share(x, 0))) for each in copies]
    return found


def sizes() -> list[Any]:
    """Return whether layers made from sizes, with seeds, are those of torch; and their text."""
    torch.manual_seed(7)
    one = nn.Linear(6, 8, device=device())
    torch.manual_seed(7)
    columns = ColumnParallelLinear(6, 8, device=device(), activation="swiglu")
    torch.manual_seed(7)
    rows = RowParallelLinear(6, 8, device=device())
    return [
        torch.equal(columns.weight, gated_rows(one.weight)) and torch.equal(columns.bias, gated_rows(one.bias)),
        torch.equal(rows.weight, part_of(one.weight, 1)) and torch.equal(rows.bias, one.bias),
        columns.weight.requires_grad,
        ColumnParallelLinear(6, 8, device="meta").weight.is_meta,
        ColumnParallelLinear.from_linear(cutegemm.torch.Linear(6, 8, activation="gelu")).activation == "gelu",
        str(rows),
    ]


def message(made: str) -> str:
    """Return the error message of an expression."""
    one = nn.Linear(3, 5)
    names = {**globals(), "one": one, "mlp": nn.Sequential(one, nn.ReLU())}
    try:
        eval(made, names)
    except CutegemmError as error:
        return str(error)
    return ""
