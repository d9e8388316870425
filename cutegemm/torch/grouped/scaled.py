"""Grouped products of float8 with scales, by the signature of torch.nn.functional.scaled_grouped_mm."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from cutegemm.run.scales import blocks_of
from cutegemm.run.torch_ops import FLOAT8
from cutegemm.torch import checks
from cutegemm.torch.block_scales import padded_blocks, wrong_derivatives
from cutegemm.torch.epilogue import PLAIN
from cutegemm.torch.grouped.forms import Form
from cutegemm.torch.grouped.functional import multiplied, row_of_groups, wrong_arguments
from cutegemm.torch.grouped.library import scaled_product
from cutegemm.torch.scaled import (
    FAST,
    PROMOTED,
    RECIPES,
    SWIZZLES,
    member,
    only,
    reject_older_signature,
    wrong_contraction,
    wrong_member,
)

_BLOCKS = ("BlockWise1x128", "BlockWise128x128")
_SERVED = ("TensorWise", "RowWise", *_BLOCKS)
_SCALED = "lambda acc, scale_a, scale_b: acc * scale_a * scale_b"
_BIASED = "lambda acc, scale_a, scale_b, bias: acc * scale_a * scale_b + bias"


@reject_older_signature
def scaled_grouped_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: torch.Tensor | list[torch.Tensor],
    scale_recipe_a: Any,
    scale_b: torch.Tensor | list[torch.Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: torch.Tensor | None = None,
    offs: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: list[int] | tuple[int, ...] = (),
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Return the products of groups times their scales, as torch.nn.functional.scaled_grouped_mm.

    | mat_a     | mat_b     | scale_a, RowWise | scale_b, RowWise | result    |
    |-----------|-----------|------------------|------------------|-----------|
    | (M, K)    | (L, K, N) | (M,)             | (L, N)           | (M, N)    |
    | (L, M, K) | (K, N)    | (L, M)           | (N,)             | (M, N)    |
    | (L, M, K) | (L, K, N) | (L, M)           | (L, N)           | (L, M, N) |

    Block scales are for groups of rows only. "BlockWise1x128" for mat_a is (M, K/128); for mat_b it is (L, N, K/128),
    and "BlockWise128x128" is (L, K/128, N/128). Divisions are rounded up; K/128 may be padded to a multiple of 4.

    mat_a, mat_b                     float8_e4m3fn or float8_e5m2. K must be contiguous in both; others are copied
    scale_a, scale_b                 float32, or a list of one such tensor. With the recipe "TensorWise" a scale has one
                                     element, or L for a scale of each matrix of a batch
    scale_recipe_a, scale_recipe_b   "TensorWise", "RowWise", "BlockWise1x128" or, for mat_b only, "BlockWise128x128";
                                     a member of torch.nn.functional.ScalingType, its name or its value. Both are
                                     block-wise, or neither is
    swizzle_a, swizzle_b             None, or "NO_SWIZZLE" of torch.nn.functional.SwizzleType
    bias, offs                       as for `grouped_mm`
    output_dtype                     type of the result; None for bfloat16
    contraction_dim                  () or (1, 0), as for `scaled_mm`
    use_fast_accum                   as for `scaled_mm`
    raises                           UnsupportedError with every rule that is violated; also for groups that divide K,
                                     as kernels of float8 need contiguous K, and for block scales of tensors that
                                     require gradients

    >>> a, b = torch.ones(3, 16).to(torch.float8_e4m3fn), torch.ones(2, 16, 2).to(torch.float8_e4m3fn)
    >>> scale_a, scale_b = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 10.0])
    >>> offs = torch.tensor([1, 3], dtype=torch.int32)
    >>> scaled_grouped_mm(a, b, scale_a, "RowWise", scale_b, "TensorWise", offs=offs)
    tensor([[ 16.,  16.],
            [320., 320.],
            [480., 480.]], dtype=torch.bfloat16)
    """
    scales = {"scale_a": only(scale_a), "scale_b": only(scale_b)}
    tensors = {"mat_a": mat_a, "mat_b": mat_b, **scales, "offs": offs, "bias": bias}
    recipes = {"scale_a": member(scale_recipe_a, RECIPES), "scale_b": member(scale_recipe_b, RECIPES)}
    rules = [
        *wrong_member("scale_recipe_a", scale_recipe_a, RECIPES, _SERVED),
        *wrong_member("scale_recipe_b", scale_recipe_b, RECIPES, _SERVED),
        *wrong_member("swizzle_a", swizzle_a, SWIZZLES, SWIZZLES[:1]),
        *wrong_member("swizzle_b", swizzle_b, SWIZZLES, SWIZZLES[:1]),
        *wrong_contraction(contraction_dim),
    ]
    wrong = wrong_arguments(tensors, output_dtype)
    if not wrong:
        form = Form.of(mat_a, mat_b, offs)
        for name in ("mat_a", "mat_b"):
            if tensors[name].dtype not in FLOAT8:
                wrong.append(f"{name} is of {tensors[name].dtype}. Pass float8, or call grouped_mm with an epilogue.")
        if form.groups == "k":
            wrong.append("groups divide K, but kernels of float8 need contiguous K. Call grouped_mm of bfloat16.")
        else:
            for name, scale in scales.items():
                wrong += _wrong_scale(name, scale, recipes[name], form)
        wrong += _wrong_blocks(tensors, recipes, form)
    checks.refuse("scaled_grouped_mm", tensors, rules + wrong)
    if recipes["scale_a"] in _BLOCKS:
        biases = [] if bias is None else [row_of_groups(bias)]
        text = PLAIN if bias is None else "lambda acc, bias: acc + bias"
        blocks = scales["scale_a"], _oriented_blocks(scales["scale_b"], recipes["scale_b"], form)
        assert offs is not None
        return scaled_product(mat_a, mat_b, offs, blocks, text, biases, (), output_dtype)[0]
    operands = [_oriented(name, scale, form) for name, scale in scales.items()]
    if bias is not None:
        operands.append(row_of_groups(bias))
    how = FAST if use_fast_accum else PROMOTED
    text = _SCALED if bias is None else _BIASED
    return multiplied("scaled_grouped_mm", tensors, text, operands, (), output_dtype, how)[0]


def _extents(name: str, form: Form) -> tuple[Any, ...]:
    """Return the shape of a scale with the recipe RowWise.

    name   "scale_a" or "scale_b"

    >>> _extents("scale_a", Form("m", 2, 8, 4, 16)), _extents("scale_b", Form("m", 2, 8, 4, 16))
    ((8,), (2, 4))
    """
    divided, extent = ("m", form.m) if name == "scale_a" else ("n", form.n)
    return (extent,) if form.groups == divided else (form.l, extent)


def _wrong_scale(name: str, scale: torch.Tensor, recipe: str | None, form: Form) -> list[str]:
    """Return error messages for the shape and the type of a scale.

    recipe   name of the recipe; None, if it is unknown, is reported elsewhere
    """
    shape = _extents(name, form)
    rules = []
    if recipe in _BLOCKS:
        shapes = _block_shapes(name, recipe, form)
        if tuple(scale.shape) not in shapes:
            listed = " or ".join(map(str, shapes))
            rules.append(f"{name} has shape {tuple(scale.shape)}, but its recipe is {recipe}. Pass shape {listed}.")
    if recipe == "TensorWise" and scale.numel() not in (1, *shape[:-1]):
        numbers = "one element" if len(shape) == 1 else f"one element, or {shape[0]}, one of each matrix"
        rules.append(f"{name} has shape {tuple(scale.shape)}, but its recipe is TensorWise. Pass {numbers}.")
    if recipe == "RowWise" and scale.numel() != prod(shape):
        rules.append(f"{name} has shape {tuple(scale.shape)}, but its recipe is RowWise. Pass shape {shape}.")
    if scale.dtype != torch.float32:
        rules.append(f"{name} is of {scale.dtype}. Pass float32, such as {name}.float().")
    return rules


def _block_shapes(name: str, recipe: str | None, form: Form) -> list[tuple[Any, ...]]:
    """Return the shapes that block scales may have.

    >>> _block_shapes("scale_b", "BlockWise128x128", Form("m", 2, 8, 256, 384))
    [(2, 3, 2), (2, 4, 2)]
    """
    deep = blocks_of(form.k)
    if name == "scale_a":
        return [(form.m, deep)]
    if recipe == "BlockWise1x128":
        return [(form.l, form.n, deep)]
    return [(form.l, each, blocks_of(form.n)) for each in sorted({deep, padded_blocks(form.k)})]


def _oriented_blocks(scale: torch.Tensor, recipe: str | None, form: Form) -> torch.Tensor:
    """Return the block scales of mat_b with the blocks of K last: (L, N, K/128) or (L, N/128, K/128)."""
    return scale if recipe == "BlockWise1x128" else scale[:, : blocks_of(form.k)].mT


def _wrong_blocks(tensors: Mapping[str, Any], recipes: Mapping[str, str | None], form: Form) -> list[str]:
    """Return error messages for block scales of one factor only, of other groups than of rows, or with gradients.

    tensors   arguments of the call by name
    recipes   recipe of each scale
    """
    block_wise = [name for name, recipe in recipes.items() if recipe in _BLOCKS]
    if not block_wise:
        return []
    rules = wrong_derivatives(tensors)
    if len(block_wise) == 1 and None not in recipes.values():
        rules.append(
            f"scale_recipe_a = {recipes['scale_a']!r} and scale_recipe_b = {recipes['scale_b']!r}; both recipes must "
            "be block-wise, or neither."
        )
    if recipes["scale_a"] == "BlockWise128x128":
        rules.append("scale_recipe_a = 'BlockWise128x128', but groups divide its blocks. Pass 'BlockWise1x128'.")
    if form.groups != "m":
        rules.append("block scales need groups of rows. Pass mat_a of shape (M, K), mat_b of (L, K, N), and offs.")
    return rules


def _oriented(name: str, scale: torch.Tensor, form: Form) -> torch.Tensor:
    """Return a scale as an operand of the epilogue.

    returns   one element; (M, 1) or (L, M, 1) for scale_a; (N,) or (L, 1, N) for scale_b
    """
    if scale.numel() == 1:
        return scale.reshape(())
    shape = _extents(name, form)
    each = scale.reshape(*shape[:-1], -1).expand(shape)
    return each.unsqueeze(-1) if name == "scale_a" else each.unsqueeze(-2) if each.dim() > 1 else each
