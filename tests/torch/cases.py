"""What several tests of the face to torch compare with: the same values, by torch's own operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

ACTIVATIONS = {
    None: lambda x: x,
    "relu": F.relu,
    "relu_sq": lambda x: F.relu(x).square(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def _gpt_oss(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """As GptOssExperts of transformers has it."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


GATED = {
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "geglu": lambda gate, up: F.gelu(gate) * up,
    "geglu_tanh": lambda gate, up: F.gelu(gate, approximate="tanh") * up,
    "reglu": lambda gate, up: F.relu(gate) * up,
    "glu": lambda gate, up: torch.sigmoid(gate) * up,
    "swiglu_oai": _gpt_oss,
}


def normal(*shape: int, seed: int = 0, grad: bool = False, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Normally distributed numbers, the same ones in each run."""
    generator = torch.Generator().manual_seed(sum((i + 1) * n for i, n in enumerate(shape)) + 1000 * seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(grad)


def parted(x: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate and up."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    gate, up = x.chunk(2, -1)
    return gate, up


def gradients(result, inputs, seed: int = 7):
    """Tolerance relative to the inputs, if the results are rounding errors."""
    results = [each for each in (result if isinstance(result, (tuple, list)) else [result]) if each is not None]
    upstream = [normal(*each.shape, seed=seed + i, dtype=each.dtype) for i, each in enumerate(results)]
    return torch.autograd.grad(results, inputs, upstream)


def close(ours, theirs, tolerance: float = 1e-12) -> None:
    """Asserts that tensors, one by one, have the shapes and, nearly, the values of others."""
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        one, other = one.detach(), other.detach()
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if other.numel():
            limit = tolerance * max(1.0, float(other.abs().max()))
            assert float((one.double() - other.double()).abs().max()) <= limit
