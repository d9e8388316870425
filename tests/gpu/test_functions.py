"""The elementwise functions on a GPU: every 4093rd number of f32, all exponents and both signs, against float64.

The special-function unit rounds as it likes, within the bounds of the PTX ISA: these are what is allowed beyond the
emulator's errors.
"""

from __future__ import annotations

import numpy as np
import pytest

from docs.evidence import functions as evidence

# (units of the last place from 2**-10 on, absolute below 1, relative from 2**-100 on)
F32 = {
    "abs": (0, 0, 0),
    "square": (0.5, 3e-8, 6e-8),
    "sqrt": (2, 1.2e-7, 2.4e-7),
    "rsqrt": (2, 1.2e-7, 2.4e-7),
    "exp": (4, 2.5e-7, 4e-7),
    "log": (14, 4e-7, 1e-6),
    "tanh": (6, 3.6e-7, 5e-7),
    "erf": (4, 2.4e-7, 3.6e-7),
    "sigmoid": (11, 3e-7, 5e-6),
    "relu": (0, 0, 0),
    "gelu": (230, 6e-7, 0.12),
    "gelu_tanh": (15, 4e-7, 1e-5),
    "silu": (12, 4e-7, 5e-6),
    "minimum": (0, 0, 0),
    "maximum": (0, 0, 0),
    "divide": (2.1, 1.3e-7, 2.4e-7),
    "gelu:8": (13000, 4e-5, 4e6),
    "gelu_tanh:8": (1e5, 2e-5, 1e32),  # 1 + TANH far below zero is the difference of two numbers near 1
}
F64 = dict.fromkeys(F32, (5, 6e-16, 1e-15)) | {
    "erf": (12, 1.3e-15, 2e-15),
    "gelu": (80, 5e-15, 1e-14),
    "gelu:8": (80, 5e-15, 1e-14),
    "gelu_tanh": (24, 1e-15, 5e-14),
    "gelu_tanh:8": (24, 1e-15, 5e-14),
}


@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "allowed"), [("f32", F32), ("f64", F64)])
def test_errors(arch, kind, allowed):
    found = evidence.measured(kind, gpu=True, step=4093)
    off = {
        name: errors
        for name, errors in found.items()
        if errors.wrong
        or any(
            got > most
            for got, most in zip((errors.units, errors.absolute, errors.everywhere), allowed[name], strict=True)
        )
    }
    assert off == {}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gelu:8", "gelu_tanh:8"])
def test_errors_of_narrow_results(arch, name):
    """Half of half a place of bf16 at most, of results of 2**-7 and more; as much as that of smaller ones."""
    x = evidence.inputs("f32", 4093)
    x = x[np.isfinite(x)]
    assert evidence.narrow_errors(name, x, evidence.on_gpu("f32", x, x)[name]).max() < 2.0**-10
