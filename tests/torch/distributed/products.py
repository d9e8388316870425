"""Functions that the ranks of `test_functional` call: each returns values of this rank and what they should be."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from cutegemm.errors import CutegemmError
from cutegemm.torch import distributed
from cutegemm.torch.distributed import functional

Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]
EXTENTS = {"gloo": (8, 12, 10), "nccl": (256, 384, 320)}  # M, N, K


def extents() -> tuple[int, int, int]:
    """Return M, N and K of the whole problem."""
    return EXTENTS[dist.get_backend()]


def device() -> torch.device:
    """Return the device of this rank."""
    return torch.device("cuda", dist.get_rank()) if dist.get_backend() == "nccl" else torch.device("cpu")


def whole(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return a matrix that is the same on all ranks."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values.to(device(), dtype)


def share(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the part of this rank, as a leaf that gradients are recorded for."""
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()].clone().requires_grad_()


def column_pairs(called: str, activation: str | None, has_bias: bool, dtype: torch.dtype = torch.float64) -> Pairs:
    """Compare results and gradients of `all_gather_mm` or `replicated_mm` with those of one process."""
    m, n, k = extents()
    a, b = whole(m, k, seed=0, dtype=dtype), whole(k, n, seed=1, dtype=dtype)
    bias = whole(n, seed=2, dtype=dtype) if has_bias else None
    gathers = called == "all_gather_mm"
    mine_a = share(a, 0) if gathers else a.clone().requires_grad_()
    mine_b, mine_bias = share(b, -1), None if bias is None else share(bias, -1)
    d = getattr(distributed, called)(mine_a, mine_b, mine_bias, activation)
    one_a, one_b = a.clone().requires_grad_(), b.clone().requires_grad_()
    one_bias = None if bias is None else bias.clone().requires_grad_()
    products = one_a.double() @ one_b.double() + (0.0 if one_bias is None else one_bias.double())
    parts = [_activated(activation, part) for part in products.chunk(dist.get_world_size(), 1)]
    width = parts[0].shape[1]
    g = whole(m, width * len(parts), seed=3, dtype=dtype)
    wanted = torch.cat(parts, 1)
    (wanted * g).sum().backward()
    (d * g.chunk(len(parts), 1)[dist.get_rank()]).sum().backward()
    pairs = {
        "d": (d, wanted.chunk(len(parts), 1)[dist.get_rank()]),
        "a": (mine_a.grad, part_of(one_a.grad, 0) if gathers else one_a.grad),
        "b": (mine_b.grad, part_of(one_b.grad, 1)),
    }
    if mine_bias is not None:
        pairs["bias"] = mine_bias.grad, part_of(one_bias.grad, 0)
    return {name: (x.detach(), y.detach()) for name, (x, y) in pairs.items()}


def part_of(x: torch.Tensor | None, dim: int) -> Any:
    """Return the part of this rank."""
    assert x is not None
    return x.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def _activated(name: str | None, x: torch.Tensor) -> torch.Tensor:
    if name == "swiglu":
        gate, up = x.chunk(2, 1)
        return torch.nn.functional.silu(gate) * up
    return x if name is None else torch.nn.functional.gelu(x)


def sum_pairs(called: str, has_bias: bool, dtype: torch.dtype = torch.float64) -> Pairs:
    """Compare results and gradients of `mm_reduce_scatter` or `mm_all_reduce` with those of one process."""
    m, n, k = extents()
    a, b = whole(m, k, seed=0, dtype=dtype), whole(k, n, seed=1, dtype=dtype)
    bias = whole(n, seed=2, dtype=dtype) if has_bias else None
    scatters = called == "mm_reduce_scatter"
    mine_a, mine_b = share(a, 1), share(b, 0)
    mine_bias = None if bias is None else bias.clone().requires_grad_()
    d = getattr(distributed, called)(mine_a, mine_b, mine_bias)
    one_a, one_b = a.clone().requires_grad_(), b.clone().requires_grad_()
    one_bias = None if bias is None else bias.clone().requires_grad_()
    wanted = one_a.double() @ one_b.double() + (0.0 if one_bias is None else one_bias.double())
    g = whole(m, n, seed=3, dtype=dtype)
    (wanted * g).sum().backward()
    (d * (part_of(g, 0) if scatters else g)).sum().backward()
    pairs = {
        "d": (d, part_of(wanted, 0) if scatters else wanted),
        "a": (mine_a.grad, part_of(one_a.grad, 1)),
        "b": (mine_b.grad, part_of(one_b.grad, 0)),
    }
    if mine_bias is not None and one_bias is not None:
        pairs["bias"] = mine_bias.grad, one_bias.grad
    return {name: (x.detach(), y.detach()) for name, (x, y) in pairs.items()}


def several_pairs() -> Pairs:
    """Compare `all_gather_mm` by three matrices; one of them gets no gradient."""
    m, _, k = extents()
    a = whole(m, k, seed=0)
    parts = [whole(k, n, seed=10 + i) for i, n in enumerate((4, 2, 6))]
    mine_a, mine = share(a, 0), [share(part, 1) for part in parts]
    q, k, v = distributed.all_gather_mm(mine_a, mine)
    one_a, one = a.clone().requires_grad_(), [part.clone().requires_grad_() for part in parts]
    wanted = [one_a @ part for part in one]
    (wanted[0].sum() + wanted[2].square().sum()).backward()
    (q.sum() + v.square().sum()).backward()
    pairs = {name: (x, part_of(y, 1)) for name, x, y in zip("qkv", (q, k, v), wanted, strict=True)}
    pairs |= {"a": (mine_a.grad, part_of(one_a.grad, 0))}
    pairs |= {f"b{i}": (mine[i].grad, part_of(one[i].grad, 1)) for i in (0, 2)}
    assert mine[1].grad is None
    return {name: (x.detach(), y.detach()) for name, (x, y) in pairs.items()}


def leading_pairs() -> Pairs:
    """Compare tensors of three dimensions: rows are those of the first one."""
    _, n, k = extents()
    a, b = whole(4, 3, k, seed=0), whole(k, n, seed=1)
    hidden = distributed.all_gather_mm(share(a, 0), share(b, 1))
    c = whole(n, 6, seed=2)
    y = distributed.mm_reduce_scatter(hidden, share(c, 0))
    z = distributed.mm_all_reduce(hidden, share(c, 0))
    wanted = a @ b @ c
    pairs = {"hidden": (hidden, part_of(a @ b, 2)), "scattered": (y, part_of(wanted, 0)), "reduced": (z, wanted)}
    return {name: (x.detach(), y) for name, (x, y) in pairs.items()}


def epilogue_pairs() -> Pairs:
    """Compare an epilogue of two results, with an operand that differs from row to row, and its gradients."""
    m, n, k = extents()
    a, b, r = whole(m, k, seed=0), whole(k, n, seed=1), whole(m, n, seed=2)
    mine_a, mine_b, mine_r = share(a, 0), share(b, 1), share(r, 1)

    def epilogue(acc: Any, r: Any, factor: Any) -> Any:
        from cutegemm.epilogue import tanh

        return tanh(acc + r), acc * factor

    d, scaled = distributed.all_gather_mm(mine_a, mine_b, epilogue=epilogue, r=mine_r, factor=0.5)
    one_a, one_b, one_r = (x.clone().requires_grad_() for x in (a, b, r))
    wanted, half = torch.tanh(one_a @ one_b + one_r), one_a @ one_b * 0.5
    (wanted.sum() + half.square().sum()).backward()
    (d.sum() + scaled.square().sum()).backward()
    pairs = {
        "d": (d, part_of(wanted, 1)),
        "scaled": (scaled, part_of(half, 1)),
        "a": (mine_a.grad, part_of(one_a.grad, 0)),
        "b": (mine_b.grad, part_of(one_b.grad, 1)),
        "r": (mine_r.grad, part_of(one_r.grad, 1)),
    }
    return {name: (x.detach(), y.detach()) for name, (x, y) in pairs.items()}


def warm_pairs() -> Pairs:
    """Compare calls that are not checked again, as on a GPU, with the first ones, for other values."""
    m, n, k = extents()
    columns, rows, row_bias = whole(k, n, seed=1), whole(k, n, seed=2), whole(n, seed=3)
    found: Pairs = {}

    def part(x: torch.Tensor, dim: int) -> torch.Tensor:
        return share(x, dim).detach()

    direct, functional.is_direct = functional.is_direct, lambda *tensors: True
    try:
        for seed in (4, 5, 6):
            tall, wide = whole(m, 2, k, seed=seed), whole(2 * m, 3, k, seed=seed)
            gathered = distributed.all_gather_mm(part(tall, 0), part(columns, 1), part(row_bias, 0), "relu")
            found[f"gathered {seed}"] = gathered, torch.relu(tall @ part(columns, 1) + part(row_bias, 0))
            a, b = part(wide, 2), part(rows, 0)
            total = wide @ rows + row_bias
            found[f"scattered {seed}"] = distributed.mm_reduce_scatter(a, b, row_bias), part(total, 0)
            found[f"reduced {seed}"] = distributed.mm_all_reduce(a, b, row_bias), total
    finally:
        functional.is_direct = direct
    return found


def compiled_pairs(named_by: str) -> Pairs:
    """Compare a compiled MLP of both GEMMs with eager mode: results and gradients.

    named_by   how the group is passed: "name", "group", "mesh" or "default"
    """
    from torch.distributed.device_mesh import init_device_mesh

    m, n, k = extents()
    a, up, down = whole(m, k, seed=0), whole(k, n, seed=1), whole(n, k, seed=2)
    mesh = init_device_mesh(device().type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    own = mesh.get_group()
    group = {"name": own.group_name, "group": own, "mesh": mesh, "default": None}[named_by]

    def mlp(a: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        hidden = distributed.all_gather_mm(a, up, activation="gelu", group=group)
        return distributed.mm_reduce_scatter(hidden, down, group=group)

    found = []
    for function in (mlp, torch.compile(mlp, fullgraph=True, backend="aot_eager")):
        leaves = share(a, 0), share(up, 1), share(down, 0)
        y = function(*leaves)
        y.square().sum().backward()
        found.append([y.detach(), *[x.grad for x in leaves]])
    eager, compiled = found
    return {key: (x, y) for key, x, y in zip(("y", "a", "up", "down"), compiled, eager, strict=True)}


def message(called: str, shapes: Any, keywords: dict[str, Any]) -> str:
    """Return the error message of a call with tensors of these shapes."""
    try:
        getattr(distributed, called)(*[None if s is None else torch.ones(s) for s in shapes], **keywords)
    except CutegemmError as error:
        return str(error)
    return ""


def float8_pairs() -> Pairs:
    """Compare the product of float8 with that of the same values in float64."""
    m, n, k = extents()
    a, b = [whole(*shape, seed=i, dtype=torch.float8_e4m3fn) for i, shape in enumerate(((m, k), (k, n)))]
    d = distributed.all_gather_mm(part_of(a, 0), part_of(b, 1), out_dtype=torch.float32)
    return {"d": (d, part_of(a.double() @ b.double(), 1).float())}


def transformed(called: str) -> list[str]:
    """Return the error messages of a function under transformations of torch."""
    forward_ad: Any = torch.autograd.forward_ad
    a, b = whole(4, 4, seed=0), whole(4, 3, seed=1)

    def run(a: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = getattr(distributed, called)(a, b)
        return result.sum()

    def dual() -> torch.Tensor:
        with forward_ad.dual_level():
            return run(forward_ad.make_dual(a, a))

    calls = (
        lambda: torch.func.jvp(run, (a,), (a,)),
        lambda: torch.func.grad(run)(a),
        lambda: torch.vmap(run)(torch.stack([a, a])),
        dual,
    )
    messages = []
    for call in calls:
        try:
            call()
        except CutegemmError as error:
            messages.append(str(error))
    return messages


def groups() -> bool:
    """Return whether a group by each of its names gives the same result."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh(device().type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    group = mesh.get_group()
    a, b = torch.ones(2, 3, device=device()), torch.ones(3, 4, device=device())
    results = [
        distributed.mm_all_reduce(a, b, group=each) for each in (None, group, group.group_name, mesh, mesh["tp"])
    ]
    return all(torch.equal(x, torch.full_like(x, 6.0)) for x in results)
