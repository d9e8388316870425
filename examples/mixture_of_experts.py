"""Train a mixture of experts for one step: by torch, one expert after the other, and by two grouped GEMMs.

Run it on any machine with torch: python examples/mixture_of_experts.py
It prints the errors of the output and of the gradients against float32, and times. Without a GPU it also simulates a
small grouped GEMM, and prints the tiles of each CTA.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import find_spec

if find_spec("torch") is None:
    print("This example needs torch. Run pip install -e '.[torch]' in the clone.")
    raise SystemExit

import numpy as np
import torch
import torch.nn.functional as F

import cutegemm
from cutegemm import Operands, Problem, simulate, sm90_plan

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# tokens, width, hidden, experts, experts of each token
TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = (8192, 4096, 1536, 64, 8) if ON_GPU else (96, 64, 32, 8, 2)

Experts = Callable[..., torch.Tensor]


def by_torch(
    x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sums of the experts of each token, one expert after the other."""
    y = torch.zeros_like(x)
    for expert in range(EXPERTS):
        token, choice = torch.where(index == expert)
        gate, value = (x[token] @ up[expert].T).chunk(2, -1)
        part = F.silu(gate) * value @ down[expert].T
        y = y.index_add(0, token, part * weights[token, choice, None].to(x.dtype))
    return y


def step(experts: Experts, x: torch.Tensor, router: torch.Tensor, *layers: torch.Tensor) -> list[torch.Tensor]:
    """Return the output of a mixture of experts, and the gradients of a loss by all tensors."""
    tensors = [each.detach().requires_grad_() for each in (x, router, *layers)]
    x, router, *layers = tensors
    weights, index = (x.float() @ router.float().T).softmax(-1).topk(CHOSEN, -1)
    y = experts(x, index, weights / weights.sum(-1, keepdim=True), *layers)
    return [y.detach(), *torch.autograd.grad(y.float().square().mean(), tensors)]


def milliseconds(experts: Experts, tensors: list[torch.Tensor]) -> float:
    """Return the time of a step, the median of five."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        step(experts, *tensors)
        if ON_GPU:
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times[1:])[2]


def train() -> None:
    """Compare a step by grouped GEMMs with a step by torch."""
    torch.manual_seed(0)
    shapes = (TOKENS, WIDTH), (EXPERTS, WIDTH), (EXPERTS, 2 * HIDDEN, WIDTH), (EXPERTS, WIDTH, HIDDEN)
    tensors = [
        torch.randn(shape, device=DEVICE).bfloat16() / (shape[-1] ** 0.5 if i else 1) for i, shape in enumerate(shapes)
    ]
    exact = step(by_torch, *[each.float() for each in tensors])
    for name, experts in (("torch", by_torch), ("cutegemm", cutegemm.experts)):
        found = step(experts, *tensors)
        errors = [float((one.float() - right).norm() / right.norm()) for one, right in zip(found, exact, strict=True)]
        time_of_step = milliseconds(experts, tensors)
        print(
            f"{name:9} error of the output {errors[0]:.1e}, of gradients {max(errors[1:]):.1e}; {time_of_step:.1f} ms"
        )


def show_schedule() -> None:
    """Simulate a grouped GEMM of four experts on four CTAs, and print the tiles of each CTA."""
    plan = sm90_plan(Operands.of("bf16", layout="nt", batched=True, groups="m"), ctas=4)
    ends = np.array([40, 40, 300, 420])  # expert 1 has no rows
    numbers = np.random.default_rng(0)
    a, b = numbers.integers(-1, 2, (420, 64)), numbers.integers(-1, 2, (4, 64, 256))
    problem = Problem(420, 256, 64, 4, plan.operands)
    work = plan.work(problem, {"ends": ends.reshape(-1, 1, 1)})
    print(
        f"\n420 rows of 4 experts, which end at {ends.tolist()}, in tiles of {plan.cta_tile[0]} x {plan.cta_tile[1]}:"
    )
    for cta in range(4):
        tiles = [(tile.group, *work.tile_mnl(tile)[:2]) for tile in work.of_cluster(cta)]
        print(f"  CTA {cta}:", ", ".join(f"expert {group}, tile ({m}, {n})" for group, m, n in tiles))
    d, begin = simulate(plan, a, b, ends=ends).d, 0
    for expert, end in enumerate(ends):
        assert np.array_equal(d[begin:end], a[begin:end] @ b[expert])
        begin = end
    print("The simulated kernel computes the product of each expert's rows and its weight exactly.")


if __name__ == "__main__":
    train()
    if not ON_GPU:
        print("On a CPU, torch computes both: the times say nothing about kernels.")
        show_schedule()
