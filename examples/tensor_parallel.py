"""Train a gated MLP whose weights are divided among GPUs for one step: by torch's DTensor, and by cutegemm.

Run it with a process for each GPU: torchrun --nproc-per-node 2 examples/tensor_parallel.py
It prints the errors of the output and of the gradients against float32, and times. Each rank has some of the tokens
between MLPs: sequence parallelism. Without GPUs the processes compute a small MLP on the CPU.

Run it on any machine with torch: python examples/tensor_parallel.py
It simulates the schedules of 2 to 8 ranks, and prints their predicted times and timelines.
"""

from __future__ import annotations

import os
import time
from importlib.util import find_spec

if find_spec("torch") is None:
    print("This example needs torch. Run pip install -e '.[torch]' in the clone.")
    raise SystemExit

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module

from cutegemm.draw import draw
from cutegemm.ranks import explained, miniature, predictions, simulate_schedule
from cutegemm.torch import ColumnParallelLinear, RowParallelLinear

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
ON_GPU = torch.cuda.device_count() >= RANKS
DEVICE = torch.device("cuda", RANK) if ON_GPU else torch.device("cpu")
LLAMA_70B = 8192, 8192, 28672  # tokens, width, hidden
TOKENS, WIDTH, HIDDEN = LLAMA_70B if ON_GPU else (64, 128, 512)
REPEATS = 10

Tensors = list[torch.Tensor]


class MLP(nn.Module):
    """The MLP of Llama, of layers of torch."""

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = layer(gate), layer(up), layer(down)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def layer(weight: torch.Tensor) -> nn.Linear:
    """Return a linear layer with a copy of a weight."""
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    made.weight = nn.Parameter(weight.clone())
    return made


def by_torch(weights: Tensors, mesh: DeviceMesh) -> nn.Module:
    """Return the MLP with DTensors as weights. Gate and up read rows that are gathered once."""
    mlp = MLP(*weights)
    parallelize_module(mlp, mesh, PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()))
    styles = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel()}
    return parallelize_module(mlp, mesh, {**styles, "down_proj": RowwiseParallel(output_layouts=Shard(0))})


def by_cutegemm(weights: Tensors, mesh: DeviceMesh) -> nn.Module:
    """Return the MLP as two layers; gate and up are one weight."""
    gate, up, down = weights
    return nn.Sequential(
        ColumnParallelLinear.from_linear(
            layer(torch.cat([gate, up])), activation="swiglu", group=mesh, sequence_parallel=True
        ),
        RowParallelLinear.from_linear(layer(down), group=mesh, sequence_parallel=True),
    )


def step(mlp: nn.Module, x: torch.Tensor, g: torch.Tensor) -> Tensors:
    """Return the output of an MLP, and the gradients by its input and its weights, if that by the output is g."""
    x = x.detach().requires_grad_()
    y = mlp(x)
    return [y.detach(), *torch.autograd.grad((y * g).sum(), [x, *mlp.parameters()])]


def own(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """Return the part of this rank."""
    return x.chunk(RANKS, dim)[RANK].contiguous()


def shares(found: Tensors) -> Tensors:
    """Return this rank's part of the output, and of the gradients by x, gate, up and down."""
    local = [each.to_local() if isinstance(each, DTensor) else each for each in found]
    return local if len(local) == 5 else [*local[:2], *local[2].chunk(2), local[3]]  # gate and up are one weight


def milliseconds(mlp: nn.Module, x: torch.Tensor, g: torch.Tensor) -> float:
    """Return the time of a step, the median of ten, each as long as on the slowest rank."""
    times = []
    for _ in range(REPEATS + 1):
        dist.barrier()
        start = time.perf_counter()
        step(mlp, x, g)
        if ON_GPU:
            torch.cuda.synchronize()
        took = torch.tensor(1e3 * (time.perf_counter() - start), device=DEVICE)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(float(took))
    return sorted(times[1:])[REPEATS // 2]


def train() -> None:
    """Compare a step of this rank with that of the whole MLP in float32, and time it."""
    if ON_GPU:
        torch.cuda.set_device(DEVICE)
    dist.init_process_group("nccl" if ON_GPU else "gloo", device_id=DEVICE if ON_GPU else None)
    mesh = init_device_mesh(DEVICE.type, (RANKS,))
    torch.manual_seed(0)  # all ranks make the same values
    x, g = torch.randn(2, TOKENS, WIDTH, device=DEVICE).bfloat16()
    shapes = (HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN)
    weights = [(torch.randn(shape, device=DEVICE) / shape[1] ** 0.5).bfloat16() for shape in shapes]
    exact = step(MLP(*[each.float() for each in weights]), x.float(), g.float())
    exact = [*map(own, exact[:-1]), own(exact[-1], 1)]
    x, g = own(x), own(g)
    for name, make in (("DTensor", by_torch), ("cutegemm", by_cutegemm)):
        mlp = make(weights, mesh)
        pairs = zip(shares(step(mlp, x, g)), exact, strict=True)
        errors = torch.stack([(one.float() - right).norm() / right.norm() for one, right in pairs])
        dist.all_reduce(errors, dist.ReduceOp.MAX)
        ms = milliseconds(mlp, x, g)
        if RANK == 0:
            print(f"{name:9} error of the output {errors[0]:.1e}, of gradients {errors[1:].max():.1e}; {ms:.2f} ms")
    if RANK == 0 and not ON_GPU:
        print("On a CPU, gloo and torch compute both: the times say nothing about GPUs.")
    dist.destroy_process_group()


def show_schedules() -> None:
    """Simulate both GEMMs of the MLP with their communication, for 2 to 8 ranks; print the timelines of 2 ranks."""
    tokens, width, hidden = LLAMA_70B
    for ranks in (2, 4, 8):
        gathers = predictions("all_gather", ranks, tokens, 2 * hidden // ranks, width)
        scatters = predictions("reduce_scatter", ranks, tokens, width, hidden // ranks)
        for found in (gathers, scatters):
            best = found[0]
            if ranks == 2:
                print(explained(found))
                print(draw(best.timeline(), kind="text", width=100))
            else:
                print(f"{best.schedule}: {best.us:.0f} us, {best.outside_us:.0f} us of them while no GEMM runs")
            report = simulate_schedule(miniature(best.schedule), calls=3, interleavings=5)
            assert not report.faults, report
            print(f"simulated on few rows: {report}\n")


if __name__ == "__main__":
    if RANKS > 1:
        train()
    else:
        show_schedules()
        print("With several GPUs: torchrun --nproc-per-node 2 examples/tensor_parallel.py")
