"""A small decoder, as it is and after `cutegemm.use(model)`: the same numbers, from other kernels.

Run it anywhere that torch is: python examples/torch_model.py
On a GPU it also says how many tokens per second go forward and back.
"""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

if find_spec("torch") is None:
    print("This example needs torch. Run pip install -e '.[torch]' in the clone.")
    raise SystemExit

import torch
import torch.nn.functional as F
from torch import nn

from cutegemm import use

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# width, hidden, heads, layers, vocabulary, batch, tokens
SIZE = (4096, 14336, 32, 2, 32000, 2, 2048) if ON_GPU else (64, 176, 4, 2, 256, 2, 32)
WIDTH, HIDDEN, HEADS, LAYERS, WORDS, BATCH, TOKENS = SIZE


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    """With Llama's names, by which `use` knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (
            nn.Linear(WIDTH, HIDDEN, bias=False),
            nn.Linear(WIDTH, HIDDEN, bias=False),
        )
        self.down_proj, self.act_fn = nn.Linear(HIDDEN, WIDTH, bias=False), nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.mlp = Attention(), MLP()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = (
            nn.Embedding(WORDS, WIDTH),
            nn.ModuleList(Block() for _ in range(LAYERS)),
        )
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def step(model: nn.Module, words: torch.Tensor) -> list[torch.Tensor]:
    """The output and all gradients of a step of training."""
    model.zero_grad()
    output = model(words)
    F.cross_entropy(output[:, :-1].flatten(0, 1).float(), words[:, 1:].flatten()).backward()
    return [output.detach(), *[p.grad.clone() for p in model.parameters() if p.grad is not None]]


def errors(found: list[torch.Tensor], exact: list[torch.Tensor]) -> tuple[float, float]:
    """Of the output, and the largest of the gradients: |found - exact| / |exact|."""
    each = [float((f.float() - e).norm() / e.norm()) for f, e in zip(found, exact, strict=True)]
    return each[0], max(each[1:])


def tokens_per_second(model: nn.Module, words: torch.Tensor) -> float:
    for _ in range(3):
        step(model, words)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        step(model, words)
    torch.cuda.synchronize()
    return 10 * words.numel() / (time.perf_counter() - start)


def main() -> None:
    torch.manual_seed(0)
    words = torch.randint(WORDS, (BATCH, TOKENS), device=DEVICE)
    model = Decoder().to(DEVICE)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()  # values that bfloat16 has: both compute with the same
    exact = step(model, words)
    model.bfloat16()

    def report(name: str, run: Any) -> None:
        output, gradients = errors(step(run, words), exact)
        speed = f", {tokens_per_second(run, words):,.0f} tokens/s" if ON_GPU else ""
        print(f"{name:9} error against float32: output {output:.2e}, gradients {gradients:.2e}{speed}")

    report("torch", model)
    with use(model) as replaced:
        report("cutegemm", model)
    print(replaced)
    if not ON_GPU:
        print("on a CPU, both are computed by torch: the errors are alike, and no speed is told")


if __name__ == "__main__":
    main()
