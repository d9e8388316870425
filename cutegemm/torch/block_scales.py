"""Block scales by the shapes of torch: checks, the orientation that `gemm` takes, and products with them.

| recipe of torch  | one scale for        | shape for mat_a                    | shape for mat_b                    |
|------------------|----------------------|------------------------------------|------------------------------------|
| BlockWise1x128   | a row and 128 of K   | (M, K/128), contiguous along M     | (N, K/128), contiguous along N     |
| BlockWise128x128 | a block of 128 x 128 | (K/128, M/128), contiguous along K | (K/128, N/128), contiguous along K |

Divisions are rounded up. torch pads K/128 of BlockWise128x128 to a multiple of 4; here it may be padded or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cutegemm.plan.mainloop.block_scaled import BLOCKS, ROWS
from cutegemm.run.calls import How
from cutegemm.run.graph import carried
from cutegemm.run.scales import blocks_of
from cutegemm.torch import checks
from cutegemm.torch.dispatch import Route, route_of
from cutegemm.torch.epilogue import PLAIN, OutDtype, types_text
from cutegemm.torch.launch import AS_CHOSEN, compute

RECIPES = {"BlockWise1x128": ROWS, "BlockWise128x128": BLOCKS}  # recipe of torch -> granularity
_K_UNIT = 4  # torch pads the blocks of K of BlockWise128x128 to a multiple of this
QUANTIZED = "quantize has no derivatives"
_WITHOUT = "block-scaled float8 has no derivatives, here or in torch"


def padded_blocks(k: int) -> int:
    """Return the number of blocks along K in torch's BlockWise128x128 scales: K / 128, rounded up to a multiple of 4.

    k   extent K

    >>> padded_blocks(640), padded_blocks(512)
    (8, 4)
    """
    return -(-blocks_of(k) // _K_UNIT) * _K_UNIT


def wrong_block_scale(name: str, scale: torch.Tensor, recipe: str, extent: int, k: int) -> list[str]:
    """Return error messages for the shape and the type of one factor's block scales; empty if both are right.

    name     name of the argument for messages: "scale_a" or "scale_b"
    scale    the caller's tensor
    recipe   torch's name for the block of elements that shares a scale: "BlockWise1x128" or "BlockWise128x128"
    extent   M for scale_a, N for scale_b
    k        extent K
    """
    letter, blocks = "MN"[name == "scale_b"], blocks_of(k)
    shapes = [(extent, blocks)]
    if recipe == "BlockWise128x128":
        shapes = [(count, blocks_of(extent)) for count in sorted({blocks, padded_blocks(k)})]
    rules = []
    if not any(_are_equal(scale.shape, shape) for shape in shapes):
        axes = f"({letter}, K/128)" if recipe == "BlockWise1x128" else f"(K/128, {letter}/128)"
        listed = " or ".join(map(str, shapes))
        fits = scale.dim() == 2 and any(_are_equal(scale.t().shape, shape) for shape in shapes)
        remedy = f" Pass {name}.t(), which fits." if fits else ""
        rules.append(f"{name} has shape {tuple(scale.shape)}, but {recipe} needs {listed}: {axes} rounded up.{remedy}")
    if scale.dtype != torch.float32:
        rules.append(f"{name} is of {scale.dtype}, but must be float32. Pass {name}.float().")
    return rules


def _are_equal(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Return True if two shapes are equal. Extents are compared one by one, since they may be symbols of a graph."""
    return len(shape) == len(other) and all(x == y for x, y in zip(shape, other, strict=True))


def wrong_derivatives(tensors: Mapping[str, Any], why: str = _WITHOUT) -> list[str]:
    """Return a list with one error message if a tensor of a block-scaled product has derivatives, else [].

    It has derivatives if it requires gradients, or carries a tangent of forward-mode differentiation.

    tensors   all tensors that the call reads, by name; other values are ignored
    why       sentence for the message that says why gradients are not possible
    """
    if not torch.compiler.is_compiling() and carried(tensors.values()):
        dual = " and ".join([name for name, x in tensors.items() if carried((x,))])
        return [f"tangents of {dual} are passed for forward differentiation; {why}. Call it without tangents."]
    names = checks.requiring_gradients(tensors)
    if not names:
        return []
    detached = ", ".join(f"{name}.detach()" for name in names)
    needed = checks.require_gradients(names)
    return [f"{needed}; {why}. Pass {detached}, or call it under torch.no_grad()."]


def as_in_gemm(
    scales: Mapping[str, torch.Tensor], recipes: Mapping[str, str | None], k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return torch's block scales of a and of b, transposed where needed for `gemm`, as views.

    `gemm` takes scales of a with rows along M and columns along K, and scales of b with rows along K and columns along
    N, as the factors have. Torch has some scales transposed.

    scales    "scale_a" and "scale_b", which `wrong_block_scale` accepts
    recipes   "scale_a" and "scale_b" -> "BlockWise1x128" or "BlockWise128x128"
    k         extent K

    >>> scales = {"scale_a": torch.ones(6, 3), "scale_b": torch.ones(4, 2)}
    >>> recipes = {"scale_a": "BlockWise1x128", "scale_b": "BlockWise128x128"}
    >>> [tuple(scale.shape) for scale in as_in_gemm(scales, recipes, 300)]
    [(6, 3), (3, 2)]
    """
    deep = blocks_of(k)
    of_a, of_b = [
        scale if recipes[name] == "BlockWise1x128" else scale[:deep].t() for name, scale in scales.items()
    ]  # (rows of mat_a or columns of mat_b, or blocks of them; K / 128)
    return of_a, of_b.t()


def scaled_product(
    a: torch.Tensor,
    b: torch.Tensor,
    scales: Sequence[torch.Tensor],
    text: str = PLAIN,
    operands: Sequence[torch.Tensor] = (),
    scalars: Sequence[float] = (),
    out_dtype: OutDtype = None,
    how: How = AS_CHOSEN,
) -> list[torch.Tensor]:
    """Return the results of an epilogue of a block-scaled a @ b, D first. No gradients are recorded.

    a, b        factors in float8
    scales      float32 scales of a, (M, K / 128) or (M / 128, K / 128), and of b, (K / 128, N) or (K / 128, N / 128)
    text        the epilogue as text, e.g. "lambda acc, bias: acc + bias"
    operands    its tensors; `scalars` come after them
    scalars     its numbers
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    how         options of `gemm`; in a graph, `plan` is a name or None
    """
    if route_of(a, b, *scales, *operands) is Route.DIRECT:
        return compute(a, (b,), text, operands, scalars, out_dtype, how, scales=scales)
    types = None if out_dtype is None else types_text(out_dtype)
    given = (a, b, *scales, text, list(operands), list(scalars), types, *how.options)
    return list(torch.ops.cutegemm.scaled_gemm(*given))
