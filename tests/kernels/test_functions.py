"""The elementwise functions in kernels: what their PTX computes, emulated, against float64; their machine code."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")

from cutegemm.kernels.functions import BINARY, FUNCTIONS, NARROW, function
from cutegemm.machine.functions import COSTS
from cutegemm.simulator import functions as by_numpy
from docs.evidence import functions as evidence

INF, NAN = math.inf, math.nan
STEP = {"f32": 1 << 15, "f64": 1 << 17}

# The largest errors that are allowed: (units of the last place, absolute below 1, relative from 2**-100 on). Of f32
# they are what the emulator finds, whose approximations are exact but for rounding, and a little more.
F32 = {
    "abs": (0, 0, 0),
    "square": (0.5, 3e-8, 6e-8),
    "sqrt": (0.51, 3.1e-8, 6.1e-8),
    "rsqrt": (0.51, 3.1e-8, 6.1e-8),
    "exp": (2, 1e-7, 1.7e-7),
    "log": (3, 1e-7, 2.2e-7),
    "tanh": (2, 1.2e-7, 2.2e-7),
    "erf": (2.2, 1.3e-7, 1.8e-7),
    "sigmoid": (8, 1.3e-7, 4e-6),
    "relu": (0, 0, 0),
    "gelu": (220, 4e-7, 0.12),
    "gelu_tanh": (11, 1.3e-7, 1e-5),
    "silu": (8.5, 1.3e-7, 4e-6),
    "minimum": (0, 0, 0),
    "maximum": (0, 0, 0),
    "divide": (0.51, 3e-8, 6e-8),
    "gelu:8": (13000, 4e-5, 4e6),
    "gelu_tanh:8": (440, 1e-7, 1),
}
# The reference has an error of its own, of a few units; of gelu far below zero more.
F64 = dict.fromkeys(F32, (4, 4e-16, 5e-16)) | {
    "erf": (12, 1.3e-15, 2e-15),
    "gelu": (80, 5e-15, 1e-14),
    "gelu:8": (80, 5e-15, 1e-14),
    "gelu_tanh": (24, 1e-15, 5e-14),
    "gelu_tanh:8": (24, 1e-15, 5e-14),
}


@cache
def errors(kind: str) -> dict[str, evidence.Errors]:
    return evidence.measured(kind, gpu=False, step=STEP[kind])


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("name", evidence.NAMES)
def test_errors(name, kind):
    found = errors(kind)[name]
    units, absolute, relative = (F32 if kind == "f32" else F64)[name]
    assert found.wrong == 0
    assert found.units <= units
    assert found.absolute <= absolute
    assert found.everywhere <= relative


@pytest.mark.parametrize("name", evidence.NAMES)
def test_narrow_results_are_rounded_from_the_exact_ones(name):
    """Nearly always: for inputs down to -16, whose gelu becomes smaller and smaller."""
    found = errors("f32")[name]
    assert found.bf16 <= {"gelu": 0.011, "gelu:8": 0.085, "gelu_tanh:8": 0.045}.get(name, 2e-4)
    assert found.f16 <= {"gelu": 0.005, "gelu:8": 0.18, "gelu_tanh:8": 0.05}.get(name, 4e-4)


POINTS = [0.0, -0.0, INF, -INF, NAN, 1e30, -1e30, 1000.0, -1000.0, 1e-42]
LIMITS = {
    "abs": [0, 0, INF, INF, NAN, 1e30, 1e30, 1000, 1000, 1e-42],
    "square": [0, 0, INF, INF, NAN, 1e60, 1e60, 1e6, 1e6, 1e-84],
    "sqrt": [0, 0, INF, NAN, NAN, 1e15, NAN, math.sqrt(1000), NAN, 1e-21],
    "rsqrt": [INF, -INF, 0, NAN, NAN, 1e-15, NAN, 1 / math.sqrt(1000), NAN, 1e21],
    "exp": [1, 1, INF, 0, NAN, INF, 0, INF, 0, 1],
    "log": [-INF, -INF, INF, NAN, NAN, math.log(1e30), NAN, math.log(1000), NAN, math.log(1e-42)],
    "tanh": [0, 0, 1, -1, NAN, 1, -1, 1, -1, 1e-42],
    "erf": [0, 0, 1, -1, NAN, 1, -1, 1, -1, 1.128e-42],
    "sigmoid": [0.5, 0.5, 1, 0, NAN, 1, 0, 1, 0, 0.5],
    "relu": [0, 0, INF, 0, NAN, 1e30, 0, 1000, 0, 1e-42],
    "gelu": [0, 0, INF, 0, NAN, 1e30, 0, 1000, 0, 5e-43],
    "gelu_tanh": [0, 0, INF, 0, NAN, 1e30, 0, 1000, 0, 5e-43],
    "silu": [0, 0, INF, 0, NAN, 1e30, 0, 1000, 0, 5e-43],
}
PAIRS = [
    (1, NAN),
    (NAN, 1),
    (NAN, NAN),
    (INF, -INF),
    (1, 0),
    (-1, 0),
    (0, 0),
    (1, INF),
    (3e38, 2e38),
    (1e-40, 2e-40),
]
OF_PAIRS = {
    "minimum": [NAN, NAN, NAN, -INF, 0, -1, 0, 1, 2e38, 1e-40],
    "maximum": [NAN, NAN, NAN, INF, 1, 0, 0, INF, 3e38, 2e-40],
    "divide": [NAN, NAN, NAN, NAN, INF, -INF, NAN, 0, 1.5, 0.5],
}


def test_every_function_is_here():
    assert [*FUNCTIONS, *BINARY] == [*by_numpy.FUNCTIONS, *by_numpy.BINARY]
    assert [*FUNCTIONS, *BINARY, *NARROW] == list(COSTS) == list(evidence.NAMES)
    assert set(LIMITS) | set(OF_PAIRS) | set(NARROW) == set(F32) == set(COSTS)


def test_fewer_instructions_where_fewer_bits_are_stored():
    assert function("gelu", 24) is function("gelu", 11) is FUNCTIONS["gelu"]
    assert function("gelu", 8) is function("gelu", 4) is NARROW["gelu:8"]
    assert function("gelu_tanh", 24) is function("gelu_tanh", 11) is FUNCTIONS["gelu_tanh"]
    assert function("gelu_tanh", 8) is function("gelu_tanh", 4) is NARROW["gelu_tanh:8"]
    assert function("silu", 8) is FUNCTIONS["silu"]


@pytest.mark.parametrize("name", NARROW)
def test_errors_of_narrow_results(name):
    """Relative error of values of at least 2**-7.

    Smaller values are compared with 2**-7: an eighth of half a place of bf16.
    """
    x = evidence.inputs("f32", STEP["f32"])
    x = x[np.isfinite(x)]
    assert evidence.narrow_errors(name, x, evidence.emulated("f32", x, x)[name]).max() < 2.0**-12


def test_limits_of_narrow_results():
    x = np.array(POINTS, np.float32)
    got = evidence.emulated("f32", x, x)
    for name in NARROW:
        want = np.array(LIMITS[name.split(":")[0]], np.float32)
        assert np.allclose(got[name], want, rtol=2e-3, atol=1e-26, equal_nan=True), name


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_limits(kind):
    """1e60 is infinite in f32, and 1e-84 is zero."""
    dtype = evidence.FLOATS[kind]
    x = np.array(POINTS, dtype)
    got = evidence.emulated(kind, x, x)
    for name, want in LIMITS.items():
        with np.errstate(over="ignore"):
            limits = np.array(want).astype(dtype)
        assert np.allclose(got[name], limits, rtol=2e-3, atol=2e-45, equal_nan=True), name
        assert np.allclose(by_numpy.FUNCTIONS[name](x), limits, 2e-3, 2e-45, True), name


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_limits_of_pairs(kind):
    dtype = evidence.FLOATS[kind]
    x, y = np.array(PAIRS, dtype).T
    got = evidence.emulated(kind, x, y)
    for name, want in OF_PAIRS.items():
        assert np.allclose(got[name], np.array(want, dtype), rtol=1e-5, atol=1e-46, equal_nan=True), name
        assert np.allclose(by_numpy.BINARY[name](x, y), np.array(want, dtype), 1e-5, 1e-46, True), name


def test_results_stay_within_their_bounds():
    x = evidence.inputs("f32", 1 << 18)
    x = x[~np.isnan(x)]
    got = evidence.emulated("f32", x, x)
    for name in ("tanh", "erf"):
        assert np.abs(got[name]).max() == 1
        assert (got[name] * np.sign(x) >= 0).all()
    assert (got["sigmoid"].min(), got["sigmoid"].max()) == (0, 1)


@pytest.mark.parametrize("name", evidence.NAMES)
def test_instructions(name):
    """The number of instructions is that of the costs; no branch to a slow path, no call, nothing in local memory."""
    listed = evidence.listings("f32")[name]
    assert evidence.counted(listed) == COSTS[name]
    assert not [op for op in listed if op.split(".")[0] in ("CALL", "BSSY", "LDL", "STL", "I2F", "F2I")]
    constants = sum(count for op, count in listed.items() if op.split(".")[0] in ("HFMA2", "MOV"))
    assert constants <= 4


def test_the_page_has_these_instructions():
    """`docs/functions.md`, in both of its tables."""
    page = (Path(__file__).parents[2] / "docs" / "functions.md").read_text()
    for name, cost in COSTS.items():
        rows = [row for row in page.splitlines() if row.startswith("| ") and f"`{name}`" in row.split("|")[1]]
        assert len(rows) == 2, name
        assert all(f"| {cost.fp32} + {cost.special} |" in row for row in rows), name


@pytest.mark.parametrize("name", evidence.NAMES)
def test_f64_keeps_its_registers(name):
    listed = evidence.listings("f64")[name]
    assert not [op for op in listed if op.split(".")[0] in ("LDL", "STL")]
