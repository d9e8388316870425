"""The elementwise functions by numpy, against Python's own, number by number."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from cutegemm.simulator import functions
from cutegemm.simulator.functions import BINARY, FUNCTIONS

X = np.concatenate([np.linspace(-6, 6, 2001), np.linspace(-26, 26, 501), 10.0 ** np.linspace(-300, 2, 500)])
ROOT_2_PI = math.sqrt(2 / math.pi)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


OWN = {
    "abs": abs,
    "square": lambda x: x * x,
    "sqrt": lambda x: math.sqrt(x) if x >= 0 else math.nan,
    "rsqrt": lambda x: 1 / math.sqrt(x) if x > 0 else math.inf if x == 0 else math.nan,
    "exp": math.exp,
    "log": lambda x: math.log(x) if x > 0 else -math.inf if x == 0 else math.nan,
    "tanh": math.tanh,
    "erf": math.erf,
    "sigmoid": logistic,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x / 2 * math.erfc(-x / math.sqrt(2)),
    "gelu_tanh": lambda x: x * logistic(2 * ROOT_2_PI * (x + 0.044715 * x**3)),
    "silu": lambda x: x * logistic(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f64(name):
    want = np.array([OWN[name](x) for x in X])
    got = FUNCTIONS[name](X)
    assert got.dtype == np.float64
    relative = {"gelu": 1e-12, "gelu_tanh": 1e-12}.get(name, 4e-15)  # of exp's arguments, down to -700
    assert np.allclose(got, want, rtol=relative, atol=1e-300, equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_f32_is_rounded_once(name):
    x = X[np.abs(X) > 1e-30].astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):
        want = np.array([OWN[name](float(v)) for v in x]).astype(np.float32)
    got = FUNCTIONS[name](x)
    assert got.dtype == np.float32
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    assert np.mean(~same) < 1e-3
    assert np.allclose(got, want, rtol=1.2e-7, atol=1.5e-45, equal_nan=True)


def test_erfc_keeps_its_places_far_out():
    x = np.linspace(-6, 26, 4001)
    want = np.array([math.erfc(v) for v in x])
    assert np.abs(functions._erfc(x) / want - 1).max() < 5e-15


def test_arrays_of_any_shape():
    x = np.linspace(-3, 3, 3 * 40_000).reshape(3, 4, -1).astype(np.float32)  # more than a block
    for name, function in FUNCTIONS.items():
        assert np.array_equal(function(x).ravel(), function(x.ravel()), equal_nan=True), name
        assert function(x[0, 0, 0]).shape == (), name
        assert function(np.empty((0, 3), np.float32)).shape == (0, 3), name


def test_nothing_warns():
    x = np.float32([np.inf, -np.inf, np.nan, 0, -0.0, 1e38, -1e38, 1e-45])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in FUNCTIONS.values():
            function(x)
            function(x.astype(np.float64))
        for binary in BINARY.values():
            binary(x[:, None], x[None])


def test_nan_goes_through():
    nan, one = np.float32(np.nan), np.float32(1)
    for binary in BINARY.values():
        assert np.isnan(binary(nan, one))
        assert np.isnan(binary(one, nan))
    for function in FUNCTIONS.values():
        assert np.isnan(function(np.array(nan)))
