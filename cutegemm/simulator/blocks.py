"""Quantize matrices by blocks of 1 x 128 in numpy, with the roundings of the kernels; see `plan.quantize`."""

from __future__ import annotations

import numpy as np

from cutegemm.dtypes import DType
from cutegemm.plan.epilogue.quantized import Blockwise
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.plan.quantize import LEAST_SCALE


def scaled(x: np.ndarray, quantize: Blockwise) -> tuple[np.ndarray, np.ndarray]:
    """Return x divided by the scales of its blocks of 128 columns, and the scales. Nothing is rounded to float8 yet.

    x          (..., rows, columns); the last block of a row may have fewer than 128 columns
    quantize   result of the epilogue function `quantize`, which has the float8 type and the rounding of the scales
    returns    (values of the shape of x, scales (..., rows, blocks of a row))

    >>> from cutegemm.plan.epilogue import Accumulator
    >>> from cutegemm.plan.epilogue.functions import quantize
    >>> [each.tolist() for each in scaled(np.float32([[1, -896]]), quantize(Accumulator())[0])]
    [[[0.5, -448.0]], [[2.0]]]
    """
    columns = x.shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -columns % BLOCK)])
    blocks = padded.reshape(*x.shape[:-1], -1, BLOCK)
    with np.errstate(all="ignore"):
        scales = scales_of(np.abs(blocks).max(axis=-1), quantize.dtype, quantize.power_of_two)
        values = blocks * (np.float32(1) / scales)[..., None]
    return values.reshape(padded.shape)[..., :columns], scales


def scales_of(tops: np.ndarray, dtype: DType, power_of_two: bool) -> np.ndarray:
    """Return the f32 scale of each block: its largest magnitude over the largest value of the float8 type.

    The scale is 1 for a block of zeros, and NaN if the block has an infinite value or NaN.

    tops           largest magnitude of each block, an array of any shape; the result has the same shape
    dtype          float8 type of the values
    power_of_two   whether scales are rounded up to powers of two

    >>> from cutegemm.dtypes import e4m3
    >>> scales_of(np.float32([0, 672, np.inf]), e4m3, True)
    array([ 1.,  2., nan], dtype=float32)
    """
    scales = np.maximum(tops / np.float32(dtype.largest), np.float32(LEAST_SCALE))
    if power_of_two:
        fractions, exponents = np.frexp(scales)
        scales = np.ldexp(np.float32(1), exponents - (fractions == 0.5))
    scales = np.where(tops == 0, np.float32(1), scales)
    return np.where(np.isfinite(tops), scales, np.float32(np.nan))
