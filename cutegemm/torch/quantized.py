"""Scales of blocks computed by torch with the roundings of the kernels, for `quantize` and for epilogues."""

from __future__ import annotations

import torch

from cutegemm.dtypes import DType
from cutegemm.plan.epilogue.quantized import Blockwise, Quantized
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.plan.quantize import LEAST_SCALE
from cutegemm.run.scales import blocks_of, padded


def scales_of(tops: torch.Tensor, dtype: DType, power_of_two: bool) -> torch.Tensor:
    """Return the scale of each block: the largest magnitude in the block, divided by the largest number of `dtype`.

    tops           largest magnitude in each block
    dtype          float8 type of the quantized values
    power_of_two   True to round scales up to powers of two
    """
    scales = (tops / dtype.largest).clamp(min=LEAST_SCALE)
    if power_of_two:
        fraction, exponent = torch.frexp(scales)
        scales = torch.ldexp(torch.ones_like(scales), exponent - (fraction == 0.5).int())
    scales = torch.where(tops == 0, 1.0, scales)
    return torch.where(tops.isfinite(), scales, torch.nan)


def evaluated(node: Blockwise, x: torch.Tensor) -> torch.Tensor:
    """Return one of the two results of an epilogue that quantizes D: the scaled values before rounding, or the scales.

    node   the expression of the result. It says which of the two it is, and how many rows and columns share a scale
    x      tensor to quantize, of the shape of D

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> from cutegemm.plan.epilogue.functions import quantize
    >>> [evaluated(each, torch.tensor([[1.0, -896.0]])).tolist() for each in quantize(Accumulator())]
    [[[0.5, -448.0]], [[2.0]]]
    """
    columns, x = x.shape[-1], x.float()
    blocks = torch.nn.functional.pad(x, (0, blocks_of(columns) * BLOCK - columns)).unflatten(-1, (-1, BLOCK))
    scales = scales_of(blocks.abs().amax(-1), node.dtype, node.power_of_two)
    if not isinstance(node, Quantized):
        as_a_kernel_stores_them: torch.Tensor = padded(scales)
        return as_a_kernel_stores_them
    return (blocks * scales.reciprocal()[..., None]).flatten(-2)[..., :columns]
