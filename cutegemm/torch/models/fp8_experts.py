"""Experts of transformers whose weights are float8 with a scale for each block of 128 x 128: their forward.

transformers makes such experts, `FP8Experts`, when it loads a model with the fine-grained float8 quantization, as
DeepSeek-V3 is published. Rows of activations are quantized by blocks of 1 x 128 before each product.
"""

from __future__ import annotations

from typing import Any

import torch

from cutegemm.errors import UnsupportedError
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.run.scales import blocks_of
from cutegemm.run.torch_ops import FLOAT8
from cutegemm.torch.block_scales import wrong_derivatives
from cutegemm.torch.epilogue import PLAIN
from cutegemm.torch.fallback import why_left_to_torch
from cutegemm.torch.grouped.library import scaled_product
from cutegemm.torch.grouped.rows import placed_tokens, spread, summed
from cutegemm.torch.models.experts import has_gate, is_expert_parallel, name_of_up
from cutegemm.torch.quantization import quantize

_WEIGHTED = "lambda acc, weight: acc * weight"


def why_not_fp8_experts(module: Any) -> str:
    """Return why kernels do not compute a module of float8 experts, as a phrase for messages; "" if they do.

    module   an `FP8Experts` of transformers
    """
    if module.activation_scheme != "dynamic":
        return f"the scales of its activations are {module.activation_scheme}, not dynamic"
    if tuple(module.block_size or ()) != (BLOCK, BLOCK):
        return f"its weights have scales of blocks of {module.block_size}, not of 128 x 128"
    for name in (name_of_up(module), "down_proj"):
        weight, scale = _weight(module, name)
        if weight.dtype not in FLOAT8 or weight.dim() != 3:
            return f"its {name} is of {weight.dtype} and shape {tuple(weight.shape)}, not of float8 and shape (L, N, K)"
        experts, rows, k = weight.shape
        expected = experts, blocks_of(rows), blocks_of(k)
        if scale.dtype != torch.float32 or tuple(scale.shape) != expected:
            found = f"of {scale.dtype} and shape {tuple(scale.shape)}"
            return f"the scales of its {name} are {found}, not of float32 and shape {expected}"
        if why := why_left_to_torch(scale):
            return f"its {name}_scale_inv {why}"
    return ""


def fp8_experts_forward(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sums of the experts of each token: the forward of an `FP8Experts` of transformers.

    The tokens are quantized, copied to the rows of their experts and multiplied. The module computes the activation,
    whose results are quantized and multiplied again. `top_k_weights` multiply the rows of this second product, and the
    rows of each token are added in float32.

    hidden_states   (T, K), of float32, float16 or bfloat16
    top_k_index     (T, k) integers: the experts of each token; numbers from L on are experts of other devices, and
                    negative numbers count as 0
    top_k_weights   (T, k)
    raises          UnsupportedError if kernels do not compute what the module does, or for a derivative
    """
    rules = wrong_derivatives({"hidden_states": hidden_states, "top_k_weights": top_k_weights})
    if why := why_not_fp8_experts(module):
        rules.append(f"{why}. Use experts_implementation='eager' for this model.")
    if rules:
        raise UnsupportedError(f"{type(module).__name__} by cutegemm: " + " ".join(rules))
    dtype, k = hidden_states.dtype, top_k_index.shape[1]
    with torch.no_grad():  # the weights may require gradients, but have none
        up, of_up = _weight(module, name_of_up(module))
        down, of_down = _weight(module, "down_proj")
        place, ends, tokens, weight = placed_tokens(top_k_index, len(up), top_k_weights)
        values, scales = quantize(hidden_states)
        rows, of_rows = spread(values, place, k)[0], scales.t()[:, tokens].t()
        hidden = scaled_product(rows, up.mT, ends, (of_rows, of_up), PLAIN, out_dtype=dtype)[0]
        hidden = module._apply_gate(hidden) if has_gate(module) else module.act_fn(hidden)
        values, scales = quantize(hidden)
        y = scaled_product(values, down.mT, ends, (scales, of_down), _WEIGHTED, [weight], out_dtype=dtype)[0]
        if is_expert_parallel(module):  # rows of experts on other devices are not written
            y = y.masked_fill(torch.arange(len(y), device=y.device).unsqueeze(1) >= ends[-1], 0)
        return summed(y, place, k)


def _weight(module: Any, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights (L, N, K) of all experts and their scales (L, N/128, K/128), divisions rounded up.

    name   name of the parameter
    """
    return getattr(module, name), getattr(module, f"{name}_scale_inv")
