"""Products of float8 or int8 with scales, by the signature of torch.nn.functional.scaled_mm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from cutegemm.errors import UnsupportedError
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.run.calls import How
from cutegemm.run.torch_ops import DTYPES, FLOAT8
from cutegemm.torch import block_scales, checks
from cutegemm.torch import library as library  # registers the operators
from cutegemm.torch.autograd import product
from cutegemm.torch.epilogue import constant, lambda_of
from cutegemm.torch.launch import AS_CHOSEN, in_mode

# Members of torch.nn.functional.ScalingType and SwizzleType; the index of a member is its value. torch has the enums
# since 2.10.
RECIPES = ("TensorWise", "RowWise", "BlockWise1x16", "BlockWise1x32", "BlockWise1x128", "BlockWise128x128")
SWIZZLES = ("NO_SWIZZLE", "SWIZZLE_32_4_4")
_SERVED = ("TensorWise", "RowWise", *block_scales.RECIPES)
FAST, PROMOTED = How(accumulate="fast"), How(accumulate="promoted")
P = ParamSpec("P")
R = TypeVar("R")


def reject_older_signature(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate `scaled_mm` so that a call with the signature of the older torch._scaled_mm names the call to write.

    It does the same for `scaled_grouped_mm`. The signatures differ in the fourth argument (a recipe or a scale) and in
    the names `output_dtype` and `out_dtype`. Without this check, Python reports missing arguments for a call with four
    tensors.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if isinstance((*args, *[None] * 4)[3], torch.Tensor) or kwargs.keys() & {"out_dtype", "scale_result"}:
            name = function.__name__
            raise UnsupportedError(
                f"{name}: the arguments are those of torch._{name}. Pass those of "
                f'torch.nn.functional.{name}: {name}(mat_a, mat_b, scale_a, "TensorWise", scale_b, '
                '"TensorWise", bias=bias, output_dtype=dtype, use_fast_accum=fast), with '
                '"RowWise" for scales of rows of mat_a and of columns of mat_b.'
            )
        return function(*args, **kwargs)

    return call


@reject_older_signature
def scaled_mm(
    mat_a: torch.Tensor,
    mat_b: torch.Tensor,
    scale_a: torch.Tensor | list[torch.Tensor],
    scale_recipe_a: Any,
    scale_b: torch.Tensor | list[torch.Tensor],
    scale_recipe_b: Any,
    swizzle_a: Any = None,
    swizzle_b: Any = None,
    bias: torch.Tensor | None = None,
    output_dtype: torch.dtype | None = torch.bfloat16,
    contraction_dim: list[int] | tuple[int, ...] = (),
    use_fast_accum: bool = False,
    quantize: tuple[int, int] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return (mat_a @ mat_b) * scale_a * scale_b + bias, as torch.nn.functional.scaled_mm.

    mat_a, mat_b                     M x K and K x N, of float8_e4m3fn or float8_e5m2, or both of int8
    scale_a, scale_b                 float32, or a list of one such tensor. With the recipe "TensorWise" a scale has
                                     one element; with "RowWise" scale_a has M elements and scale_b has N. Shapes of
                                     block scales: docs/block_scaled.md
    scale_recipe_a, scale_recipe_b   "TensorWise", "RowWise", "BlockWise1x128" or "BlockWise128x128", each for its
                                     factor: a member of torch.nn.functional.ScalingType, its name or its value, or a
                                     list of one of these. Both are block-wise, or neither is
    swizzle_a, swizzle_b             None, or "NO_SWIZZLE" of torch.nn.functional.SwizzleType
    bias                             (N,)
    output_dtype                     type of the result; None is the type of mat_a. For int8 it is float32 or int32
    contraction_dim                  () or (1, 0): the modes of mat_a and mat_b that are K
    use_fast_accum                   True if the accumulator may keep the tensor cores' 14 bits; False to add in
                                     float32 every 128 of K. With block scales, the accumulators of every 128 of K are
                                     added in float32
    quantize                         None, or (1, 128): return what `cutegemm.quantize` makes of the float32 result,
                                     values of a float8 `output_dtype` and their scales. One kernel computes both
    raises                           UnsupportedError with every rule that is violated; for block scales of tensors
                                     that require gradients, which torch does not have either; and for a call with the
                                     signature of torch._scaled_mm, which has no recipes

    >>> a, b = torch.ones(2, 16).to(torch.float8_e4m3fn), torch.ones(16, 2).to(torch.float8_e4m3fn)
    >>> scale_a, scale_b = torch.tensor([[0.5], [1.0]]), torch.tensor([[1.0, 2.0]])
    >>> scaled_mm(a, b, scale_a, "RowWise", scale_b, "RowWise")
    tensor([[ 8., 16.],
            [16., 32.]], dtype=torch.bfloat16)
    """
    scales = {"scale_a": only(scale_a), "scale_b": only(scale_b)}
    tensors = {"mat_a": mat_a, "mat_b": mat_b, **scales, "bias": bias}
    recipes = {"scale_a": member(scale_recipe_a, RECIPES), "scale_b": member(scale_recipe_b, RECIPES)}
    dtype = mat_a.dtype if output_dtype is None and isinstance(mat_a, torch.Tensor) else output_dtype
    rules = [
        *_wrong_quantize(quantize, dtype),
        *wrong_member("scale_recipe_a", scale_recipe_a, RECIPES, _SERVED),
        *wrong_member("scale_recipe_b", scale_recipe_b, RECIPES, _SERVED),
        *wrong_member("swizzle_a", swizzle_a, SWIZZLES, SWIZZLES[:1]),
        *wrong_member("swizzle_b", swizzle_b, SWIZZLES, SWIZZLES[:1]),
    ]
    rules += wrong_contraction(contraction_dim)
    wrong_tensors = checks.wrong_tensors(tensors, ("bias",))
    rules += wrong_tensors
    if not wrong_tensors:
        rules += checks.wrong_product(("mat_a", "mat_b"), mat_a, mat_b, 2, dtype, "output_dtype")
        if mat_a.dim() == mat_b.dim() == 2:
            m, n = mat_a.shape[0], mat_b.shape[1]
            k = mat_a.shape[1]
            rules += _wrong_scale("scale_a", scales["scale_a"], recipes["scale_a"], m, k, "row of mat_a")
            rules += _wrong_scale("scale_b", scales["scale_b"], recipes["scale_b"], n, k, "column of mat_b")
            rules += checks.wrong_bias("bias", bias, n)
        rules += checks.wrong_operand_dtypes(mat_a, bias=bias)
        rules += _wrong_blocks(tensors, recipes)
        if quantize is not None and not any(recipe in block_scales.RECIPES for recipe in recipes.values()):
            rules += block_scales.wrong_derivatives(tensors, block_scales.QUANTIZED)
    checks.refuse("scaled_mm", tensors, rules)
    operands, result = ([], "acc") if bias is None else ([bias], "acc + bias")
    values_dtype = None if quantize is None else dtype
    if recipes["scale_a"] in block_scales.RECIPES:
        oriented = block_scales.as_in_gemm(scales, recipes, mat_a.shape[1])
        text, how = _text(("bias",)[: len(operands)], result, values_dtype), in_mode(AS_CHOSEN)
        results = block_scales.scaled_product(mat_a, mat_b, oriented, text, operands, (), dtype, how)
    else:
        shapes = {"scale_a": (-1, 1), "scale_b": (1, -1)}
        flat = [scale.reshape(() if recipes[name] == "TensorWise" else shapes[name]) for name, scale in scales.items()]
        operands = [*flat, *operands]
        names = ("scale_a", "scale_b", "bias")[: len(operands)]
        text = _text(names, result.replace("acc", "acc * scale_a * scale_b"), values_dtype)
        how = (FAST if use_fast_accum else PROMOTED) if mat_a.dtype.is_floating_point else AS_CHOSEN
        results = list(product(mat_a, (mat_b,), text, tuple(operands), (), dtype, in_mode(how)))
    return results[0] if quantize is None else (results[0], results[1])


@constant
def _text(names: tuple[str, ...], result: str, dtype: torch.dtype | None) -> str:
    """Return the text of the epilogue of a scaled product, e.g. "lambda acc, scale: acc * scale".

    names    names of its operands, in order
    result   the expression of the result, as text
    dtype    float8 type that the result is quantized to; None: it is not quantized

    >>> _text(("bias",), "acc + bias", torch.float8_e5m2)
    "lambda acc, bias: quantize(acc + bias, 'e5m2')"
    """
    return lambda_of([result if dtype is None else f"quantize({result}, '{DTYPES[dtype]}')"], names)


def _wrong_quantize(quantize: Any, dtype: torch.dtype | None) -> list[str]:
    """Return a list of error messages if `scaled_mm` cannot quantize its result as the caller asks; else [].

    quantize   the argument of `scaled_mm`: rows and columns of a block of the result that shares a scale; or None
    dtype      type of the result, which must be a float8 type if `quantize` is not None
    """
    if quantize is None:
        return []
    rules = [] if quantize == (1, BLOCK) else [f"quantize = {quantize!r}. Pass (1, {BLOCK}) or None."]
    if dtype not in FLOAT8:
        rules.append(f"quantize = {quantize!r}, but output_dtype is {dtype}. Pass {' or '.join(map(str, FLOAT8))}.")
    return rules


def only(value: Any) -> Any:
    """Return the single element of a list or tuple of one element; any other value is returned as it is."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def member(value: Any, names: Sequence[str]) -> str | None:
    """Return the name of a member of a torch enum, from the member, its name or its value; None if it is unknown.

    value   what the caller passes, possibly in a list of one
    names   names of all members; the index of a name is its value

    >>> member(["RowWise"], RECIPES), member(1, RECIPES), member("Rows", RECIPES)
    ('RowWise', 'RowWise', None)
    """
    value = only(value)
    if isinstance(value, int) and not isinstance(value, bool):  # also a member of an IntEnum
        return names[value] if 0 <= value < len(names) else None
    name = value if isinstance(value, str) else getattr(value, "name", None)
    return name if name in names else None


def wrong_member(name: str, value: Any, known: Sequence[str], served: Sequence[str]) -> list[str]:
    """Return a list with one error message if no kernel supports a scaling recipe or a swizzle; else [].

    name     name of the argument, for the message
    value    what the caller passes: a member of a torch enum, its name or its value; a swizzle may also be None
    known    names of all members of the enum
    served   names of the members that kernels support
    """
    if value is None and known == SWIZZLES:  # `is` would fail in a graph of torch.compile
        return []
    if (known_as := member(value, known)) in served:
        return []
    return [f"{name} = {known_as or value!r} is not supported. Pass {' or '.join(map(repr, served))}."]


def wrong_contraction(dims: Any) -> list[str]:
    """Return an error message, in a list, for an argument contraction_dim that names other modes than K."""
    if dims in ((), [], (1, 0), [1, 0]):
        return []
    return [f"contraction_dim = {dims!r} is not supported. Pass () or (1, 0), or transpose mat_a or mat_b."]


def _wrong_blocks(tensors: Mapping[str, Any], recipes: Mapping[str, str | None]) -> list[str]:
    """Return error messages for a use of block scales (one scale for 128 elements along K) that no kernel supports.

    The list is empty if the use is right. It is wrong if only one of the two factors has block scales, if the factors
    are int8, or if a tensor requires gradients.

    tensors   tensors by argument name ("mat_a", "scale_a", "bias", ...); bias may be None
    recipes   "scale_a" and "scale_b" -> scaling recipe, such as "BlockWise1x128"; None for an unknown one
    """
    block_wise = [name for name, recipe in recipes.items() if recipe in block_scales.RECIPES]
    if not block_wise:
        return []
    rules = block_scales.wrong_derivatives(tensors)
    others = [name for name, recipe in recipes.items() if name not in block_wise and recipe is not None]
    if others:
        rules.append(
            f"scale_recipe_{others[0][-1]} = {recipes[others[0]]!r} and scale_recipe_{block_wise[0][-1]} = "
            f"{recipes[block_wise[0]]!r}; both recipes must be block-wise, or neither."
        )
    wrong = [name for name in ("mat_a", "mat_b") if tensors[name].dtype not in FLOAT8]
    if wrong:
        rules.append(f"{' and '.join(wrong)} must be of float8 for block scales. Pass RowWise scales otherwise.")
    return rules


def _wrong_scale(name: str, scale: torch.Tensor, recipe: str | None, extent: int, k: int, each: str) -> list[str]:
    """Return error messages for the shape and the type of one factor's scale; empty if both are right.

    name     "scale_a" or "scale_b"
    scale    the caller's tensor
    recipe   "TensorWise" or "RowWise"; None for an unknown one
    extent   number of scales for the recipe "RowWise": M or N
    k        extent K, which the shape of block scales depends on
    each     what has a scale of its own with "RowWise", for the message: "row of mat_a" or "column of mat_b"
    """
    if recipe in block_scales.RECIPES:
        return block_scales.wrong_block_scale(name, scale, recipe, extent, k)
    rules = []
    if recipe == "TensorWise" and scale.numel() != 1:
        rules.append(
            f"{name} has shape {tuple(scale.shape)}. Pass one element, or "
            f'scale_recipe_{name[-1]}="RowWise" with one of each {each}.'
        )
    # One comparison for each extent: `in` does not compare the value of a symbolic extent.
    if recipe == "RowWise" and not (scale.numel() == extent and any(extent == of for of in (1, *scale.shape))):
        rules.append(f"{name} has shape {tuple(scale.shape)}. Pass {extent} elements, one of each {each}.")
    if scale.dtype != torch.float32:
        rules.append(f"{name} is of {scale.dtype}. Pass float32, such as {name}.float().")
    return rules
