"""Stacks of decoder blocks with the sizes of Llama 3 8B, GPT-2 and Qwen 3 30B-A3B, of transformers if it is installed.

Without transformers, the first two are written plainly. They have no cache of keys and values then.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Size:
    """Size of a stack of decoder blocks, and of its input.

    hidden             features between the layers of the MLP, or of each expert
    experts            number of experts of a block; 0 for an MLP
    experts_of_token   number of experts that compute each token
    """

    width: int
    hidden: int
    heads: int
    kv_heads: int
    layers: int
    batch: int
    tokens: int
    experts: int = 0
    experts_of_token: int = 0


SIZES = {
    "llama": Size(4096, 14336, 32, 8, 4, 2, 2048),
    "gpt2": Size(768, 3072, 12, 12, 12, 16, 1024),
    "qwen3_moe": Size(2048, 768, 32, 4, 2, 2, 2048, 128, 8),
}
TINY = {
    "llama": Size(64, 176, 4, 2, 2, 2, 16),
    "gpt2": Size(64, 256, 4, 4, 2, 2, 16),
    "qwen3_moe": Size(64, 48, 4, 2, 2, 2, 16, 8, 2),
}
_PLAIN = ("llama", "gpt2")  # models that are also written plainly


def has_transformers() -> bool:
    """Return whether transformers is installed."""
    return find_spec("transformers") is not None


def names() -> list[str]:
    """Return the names of the models that this installation has."""
    return list(SIZES) if has_transformers() else list(_PLAIN)


def source() -> str:
    """Return the name and version of the library that the blocks come from."""
    if not has_transformers():
        return "written plainly"
    import transformers

    return f"transformers {transformers.__version__}"


def stack(name: str, size: Size) -> nn.Module:
    """Return a stack of blocks with random weights, from hidden states to hidden states. Call it with `through`.

    raises   UnsupportedError for a model that only transformers has, if it is not installed
    """
    if name not in names():
        from cutegemm.errors import UnsupportedError

        raise UnsupportedError(f"models: {name} needs transformers. Run pip install transformers.")
    if not has_transformers():
        return Plain(name, size)
    import transformers

    if name == "qwen3_moe":
        return transformers.Qwen3MoeModel(
            transformers.Qwen3MoeConfig(
                vocab_size=8, hidden_size=size.width, moe_intermediate_size=size.hidden, num_hidden_layers=size.layers,
                num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, num_experts=size.experts,
                num_experts_per_tok=size.experts_of_token, norm_topk_prob=True, use_cache=False,
            )
        )  # fmt: skip

    if name == "llama":
        return transformers.LlamaModel(
            transformers.LlamaConfig(
                vocab_size=8, hidden_size=size.width, intermediate_size=size.hidden, num_hidden_layers=size.layers,
                num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, use_cache=False,
            )
        )  # fmt: skip
    return transformers.GPT2Model(
        transformers.GPT2Config(
            vocab_size=8, n_embd=size.width, n_inner=size.hidden, n_layer=size.layers, n_head=size.heads,
            n_positions=size.tokens, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def _inner(model: nn.Module) -> nn.Module:
    """Return the module inside of a compiled one; another module as it is."""
    return getattr(model, "_orig_mod", model)


def through(model: nn.Module, x: Any) -> Any:
    """Return the hidden states after a stack."""
    return model(x) if isinstance(_inner(model), Plain) else model(inputs_embeds=x).last_hidden_state


def static_cache(model: nn.Module, positions: int) -> Any:
    """Return an empty cache of keys and values of transformers, whose tensors have a fixed length.

    positions   number of tokens that it has room for
    """
    from transformers import StaticCache

    return StaticCache(config=_inner(model).config, max_cache_len=positions)


def continued(model: nn.Module, x: Any, cache: Any) -> Any:
    """Return the hidden states of the next tokens, whose keys and values are added to a cache.

    x       hidden states before the stack
    cache   from `static_cache`
    """
    parameters = inspect.signature(_inner(model).forward).parameters
    name = "cache" if "cache" in parameters else "past_key_values"  # before transformers 5.24
    return model(inputs_embeds=x, use_cache=True, **{name: cache}).last_hidden_state


class Plain(nn.Module):  # type: ignore[misc]
    """A plain stack of decoder blocks, without embedding and output layer."""

    def __init__(self, name: str, size: Size) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block(name == "llama", size) for _ in range(size.layers))

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, is_llama: bool, size: Size) -> None:
        super().__init__()
        norm = nn.RMSNorm if is_llama else nn.LayerNorm
        self.norm1, self.norm2 = norm(size.width), norm(size.width)
        self.attention = _Attention(is_llama, size)
        self.mlp = _Gated(size) if is_llama else _TwoLayers(size)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, is_llama: bool, size: Size) -> None:
        super().__init__()
        self.size, self.is_llama = size, is_llama
        per_head = size.width // size.heads
        self.q_proj = nn.Linear(size.width, size.width, bias=not is_llama)
        self.k_proj = nn.Linear(size.width, size.kv_heads * per_head, bias=not is_llama)
        self.v_proj = nn.Linear(size.width, size.kv_heads * per_head, bias=not is_llama)
        self.o_proj = nn.Linear(size.width, size.width, bias=not is_llama)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            proj(x).unflatten(-1, (heads, -1)).transpose(1, 2)
            for proj, heads in (
                (self.q_proj, self.size.heads),
                (self.k_proj, self.size.kv_heads),
                (self.v_proj, self.size.kv_heads),
            )
        )
        if self.is_llama:
            q, k = _rotated(q), _rotated(k)
        repeats = self.size.heads // self.size.kv_heads
        k, v = (each.repeat_interleave(repeats, 1) for each in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


def _rotated(x: Any) -> Any:
    """Apply rotary position embeddings."""
    half = x.shape[-1] // 2
    turns = 500000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)[:, None] * turns
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class _Gated(nn.Module):  # type: ignore[misc]
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size.width, size.hidden, bias=False)
        self.up_proj = nn.Linear(size.width, size.hidden, bias=False)
        self.down_proj, self.act_fn = nn.Linear(size.hidden, size.width, bias=False), nn.SiLU()

    def forward(self, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class _TwoLayers(nn.Module):  # type: ignore[misc]
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.fc1, self.act = nn.Linear(size.width, size.hidden), nn.GELU("tanh")
        self.fc2 = nn.Linear(size.hidden, size.width)

    def forward(self, x: Any) -> Any:
        return self.fc2(self.act(self.fc1(x)))
