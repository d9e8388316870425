"""Quantize matrices by blocks for block-scaled products, and convert scales of DeepGEMM."""

from __future__ import annotations

from typing import Any

import torch

from cutegemm.dtypes import bf16, f16, f32
from cutegemm.plan.mainloop.block_scaled import BLOCK, BLOCKS, ROWS
from cutegemm.plan.quantize import Quantize
from cutegemm.run import torch_ops
from cutegemm.run.scales import UNIT, blocks_of, new_scales, padded
from cutegemm.run.torch_ops import DTYPES, FLOAT8
from cutegemm.torch import checks
from cutegemm.torch.block_scales import padded_blocks, wrong_derivatives
from cutegemm.torch.dispatch import Route, route_of
from cutegemm.torch.quantized import scales_of

_SOURCES = (f32, f16, bf16)
_ROW, _SQUARE = (1, BLOCK), (BLOCK, BLOCK)
_GRANULARITIES = {_ROW: ROWS, _SQUARE: BLOCKS}
_VECTORS = (4, 2, 1)  # elements of an access to global memory


def quantize(
    x: torch.Tensor,
    block: tuple[int, int] = _ROW,
    dtype: torch.dtype = torch.float8_e4m3fn,
    power_of_two: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the values of a matrix in float8, and one float32 scale for each block, as `scaled_mm` takes them.

    x               (rows, K), of float32, float16 or bfloat16, with any strides
    block           (1, 128): a scale for each row and 128 of K. (128, 128): a scale for each block of 128 x 128
    dtype           float8_e4m3fn or float8_e5m2
    power_of_two    True to round scales up to powers of two
    returns         the values, row-major (rows, K); and the scales of the recipe BlockWise1x128, (rows, K/128)
                    contiguous along the rows with a pitch that is a multiple of 4; or of BlockWise128x128,
                    (K/128, rows/128) contiguous along K, with K/128 rounded up to a multiple of 4
    raises          UnsupportedError with every rule that is violated, and if x requires gradients

    A scale is the largest magnitude of its block divided by the largest number of `dtype`, 448 or 57344. A block of
    zeros has the scale 1. If an element is infinite or NaN, the scale and all values of its block are NaN. The last
    blocks may have fewer than 128 rows or columns. A kernel quantizes CUDA tensors, torch others; the results are
    equal bit by bit.

    >>> values, scales = quantize(torch.tensor([[1.0, -896.0, 0.0]]))
    >>> values.float(), scales
    (tensor([[   0.5000, -448.0000,    0.0000]]), tensor([[2.]]))
    """
    tensors = {"x": x}
    rules = checks.wrong_tensors(tensors)
    if not rules:
        rules = wrong_derivatives(tensors)
        if x.dim() != 2:
            rules.append(f"x has shape {tuple(x.shape)}, which is not that of a matrix. Pass x.flatten(0, -2).")
        if DTYPES.get(x.dtype) not in _SOURCES:
            rules.append(f"x is of {x.dtype}. Supported are float32, float16 and bfloat16. Pass x.float().")
    rules += _wrong_block(block)
    if dtype not in FLOAT8:
        rules.append(f"dtype = {dtype} is not supported. Pass torch.float8_e4m3fn or torch.float8_e5m2.")
    checks.refuse("quantize", tensors, rules)
    if route_of(x) is Route.DIRECT:
        return quantized(x, block[0], dtype, power_of_two)
    values, scales = torch.ops.cutegemm.quantize(x, block[0], dtype, power_of_two)
    return values, scales


def results(x: torch.Tensor, rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Allocate the results of `quantize`: the float8 values, and the scales.

    x         the matrix to quantize, (rows, K)
    rows      rows of a block that shares a scale: 1 or 128
    dtype     float8 type of the values
    returns   (values, scales): (rows, K) of `dtype`, and float32 in the memory order that `scaled_mm` reads
    """
    m, k = x.shape
    values = x.new_empty((m, k), dtype=dtype)
    if rows == 1:
        return values, new_scales(x, (m, blocks_of(k)))
    return values, x.new_empty((blocks_of(m), padded_blocks(k)), dtype=torch.float32).t()


def quantized(x: torch.Tensor, rows: int, dtype: torch.dtype, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float8 values and the scales of a matrix: by a kernel for CUDA tensors, else by torch.

    x              (rows, K), of float32, float16 or bfloat16
    rows           rows of a block that shares a scale with 128 elements along K: 1 or 128
    dtype          float8 type of the values
    power_of_two   True to round scales up to powers of two
    """
    if not x.is_cuda:
        return by_torch(x, rows, dtype, power_of_two)
    values, scales = results(x, rows, dtype)
    if values.numel():
        launch(x, values, scales, rows, power_of_two)
    return values, scales


def launch(x: torch.Tensor, values: torch.Tensor, scales: torch.Tensor, rows: int, power_of_two: bool) -> None:
    """Launch the kernel that quantizes a matrix to float8. A matrix is copied if it is negated or not K-contiguous.

    x                the matrix, (rows, K)
    values, scales   tensors for the results, from the function `results`
    rows             rows of a block that shares a scale: 1 or 128
    power_of_two     True to round scales up to powers of two
    """
    from cutegemm.compile.plans import compile_quantize

    if x.is_neg() or (x.stride(1) != 1 and x.shape[1] > 1):
        x = x.resolve_neg().contiguous()
    pitch = x.stride(0) if x.shape[0] > 1 else x.shape[1]
    x = x.as_strided(x.shape, (pitch, 1))
    places = (x.shape[1], pitch, x.data_ptr() // x.element_size())
    vector = next(count for count in _VECTORS if all(place % count == 0 for place in places))
    kinds = DTYPES[x.dtype], DTYPES[values.dtype]
    granularity = ROWS if rows == 1 else BLOCKS
    kernel = Quantize(*kinds, granularity, power_of_two, vector)
    _, function = compile_quantize(kernel, torch_ops.device_arch(x.get_device()))
    with torch.cuda.device(x.device):
        function(x, values, scales if rows == 1 else scales.t())


def by_torch(x: torch.Tensor, rows: int, dtype: torch.dtype, power_of_two: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the float8 values and the scales of a matrix, computed by torch with the same roundings as the kernel.

    x              (rows, K), of float32, float16 or bfloat16
    rows           rows of a block that shares a scale: 1 or 128
    dtype          float8 type of the values
    power_of_two   True to round scales up to powers of two
    """
    m, k = x.shape
    values, scales = results(x, rows, dtype)
    deep = scales.shape[1] if rows == 1 else scales.shape[0]
    whole = torch.nn.functional.pad(x.float(), (0, deep * BLOCK - k, 0, -m % rows))
    blocks = whole.reshape(whole.shape[0] // rows, rows, deep, BLOCK)
    own = scales_of(blocks.abs().amax((1, 3)), DTYPES[dtype], power_of_two)  # (rows of blocks, blocks of K)
    wide = blocks * own.reciprocal()[:, None, :, None]
    largest = torch.finfo(dtype).max
    whole = torch.where(wide.isnan(), torch.nan, wide.clamp(-largest, largest)).reshape(whole.shape)
    values.copy_(whole[:m, :k])
    scales.copy_(own if rows == 1 else own.t())
    return values, scales


def _wrong_block(block: tuple[int, int]) -> list[str]:
    """Return a list with one error message if the argument `block` is neither (1, 128) nor (128, 128); else []."""
    return [] if block in _GRANULARITIES else [f"block = {block!r} is not supported. Pass {_ROW} or {_SQUARE}."]


def from_deep_gemm(scales: torch.Tensor, block: tuple[int, int] = _ROW) -> torch.Tensor:
    """Convert block scales from DeepGEMM's form to the form that `scaled_mm` takes, without a copy if possible.

    For the block (1, 128), scales are returned unchanged if they are contiguous along the rows and the distance between
    columns is a multiple of 4, as in the result of DeepGEMM's `get_mn_major_tma_aligned_tensor`. Others are copied to
    this form.

    scales    float32: (rows, K/128) for the block (1, 128), (rows/128, K/128) for the block (128, 128)
    block     elements that share a scale: (1, 128) or (128, 128)
    returns   (rows, K/128) for the recipe BlockWise1x128; (K/128, rows/128), a view, for BlockWise128x128
    raises    UnsupportedError for scales of another type, such as the packed powers of two of Blackwell, or rank

    >>> aligned = torch.ones(3, 8).t()[:6]  # 6 rows, padded to 8
    >>> from_deep_gemm(aligned) is aligned, from_deep_gemm(torch.ones(6, 3)).stride()
    (True, (1, 8))
    """
    tensors: dict[str, Any] = {"scales": scales}
    rules = checks.wrong_tensors(tensors)
    if not rules and scales.dtype != torch.float32:
        packed = (
            " Packed powers of two belong to Blackwell; pass the float32 scales." if scales.dtype.itemsize == 4 else ""
        )
        rules.append(f"scales is of {scales.dtype}, but must be float32.{packed}")
    if not rules and scales.dim() != 2:
        rules.append(f"scales has shape {tuple(scales.shape)}, which is not that of a matrix.")
    rules += _wrong_block(block)
    checks.refuse("from_deep_gemm", tensors, rules)
    if block == _SQUARE:
        return scales.t()
    rows, deep = scales.shape
    is_aligned = (scales.stride(0) == 1 or rows <= 1) and (scales.stride(1) % UNIT == 0 or deep <= 1)
    return scales if is_aligned and scales.data_ptr() % (UNIT * scales.element_size()) == 0 else padded(scales)
