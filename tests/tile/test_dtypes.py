"""Rounding against torch, numpy and the definition."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest

from cutegemm.dtypes import DTYPES, DType, bf16, e4m3, e5m2, f16, f32, f64, round_to, s8, s32, tf32
from cutegemm.errors import UnsupportedError


def test_there_is_one_object_of_each_type():
    """In a process that a plan is sent to as well: kernels ask `dtype is tf32`."""
    for dtype in DTYPES:
        assert pickle.loads(pickle.dumps(dtype)) is dtype
        assert copy.deepcopy(dtype) is dtype


FLOATS = [t for t in DTYPES if t.is_float and t not in (f32, f64)]


def every_value(dtype):
    """All finite values of a small type that are not negative, by counting exponents and mantissas."""
    out = []
    for exponent in range(dtype.smallest_exponent, int(math.log2(dtype.largest)) + 1):
        unit = 2.0 ** (exponent - dtype.mantissa_bits)
        start = 0 if exponent == dtype.smallest_exponent else 1 << dtype.mantissa_bits
        out += [m * unit for m in range(start, 2 << dtype.mantissa_bits)]
    return np.array([v for v in sorted(set(out)) if v <= dtype.largest])


def samples(count=200_000, seed=0):
    """Random float32 over all exponents, with integers, ties and tiny ones among them."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)
    scaled = (rng.standard_normal(count) * 2.0 ** rng.integers(-20, 20, count)).astype(np.float32)
    return np.concatenate([raw[np.isfinite(raw)], scaled, np.arange(-600, 600, 0.25, dtype=np.float32)])


@pytest.mark.parametrize("dtype", [f16, e4m3, e5m2], ids=str)
def test_number_of_values(dtype):
    """e4m3: 2**7 codes less one NaN; e5m2 and f16: less an exponent for infinity and NaN."""
    codes = 1 << (dtype.bits - 1)
    expected = codes - 1 if dtype is e4m3 else codes - (1 << dtype.mantissa_bits)
    values = every_value(dtype)
    assert len(values) == expected
    assert values[-1] == dtype.largest
    assert (round_to(dtype, values) == values).all()
    assert (round_to(dtype, -values) == -values).all()


@pytest.mark.parametrize("dtype", [f16, e4m3, e5m2], ids=str)
def test_nearest_by_search(dtype):
    """Against a search in the list of all values; halfway between two, the even mantissa, at even places."""
    values = every_value(dtype)
    middles = (values[1:] + values[:-1]) / 2
    rng = np.random.default_rng(1)
    given = np.concatenate(
        [middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9), rng.uniform(0, dtype.largest, 5000)]
    )
    above = np.clip(np.searchsorted(values, given), 1, len(values) - 1)
    low, high = values[above - 1], values[above]
    closer = np.where(given - low < high - given, low, high)
    tied = given - low == high - given
    even = np.where((above - 1) % 2 == 0, low, high)
    assert (round_to(dtype, given) == np.where(tied, even, closer)).all()
    assert (round_to(dtype, given, "rz") == np.where(given == high, high, low)).all()
    assert (round_to(dtype, given, "rna") == np.where(tied, high, closer)).all()
    assert (round_to(dtype, -given, "rna") == -np.where(tied, high, closer)).all()


@pytest.mark.parametrize(
    ("dtype", "name"), [(f16, "float16"), (bf16, "bfloat16"), (e4m3, "float8_e4m3fn"), (e5m2, "float8_e5m2")]
)
def test_same_as_torch(dtype, name):
    torch = pytest.importorskip("torch")
    given = samples()
    if dtype.saturates:  # torch goes to infinity or NaN where satfinite goes to the largest value
        given = given[np.abs(given) <= dtype.largest]
    expected = torch.from_numpy(given).to(getattr(torch, name)).to(torch.float32).numpy()
    assert np.array_equal(round_to(dtype, given).astype(np.float32), expected)


def test_same_as_numpy():
    given = np.random.default_rng(2).standard_normal(100_000) * 2.0 ** np.random.default_rng(3).integers(
        -30, 17, 100_000
    )
    with np.errstate(over="ignore"):
        assert np.array_equal(round_to(f16, given), given.astype(np.float16))
        assert np.array_equal(round_to(f32, given * 1e35), (given * 1e35).astype(np.float32))
    assert round_to(f64, given) is not given
    assert np.array_equal(round_to(f64, given), given)


def test_tf32_by_bits():
    """rna adds half a unit to the magnitude and drops 13 bits; rz drops them: what the bits say."""
    given = samples()
    bits = given.view(np.uint32).astype(np.uint64)
    away = ((bits + 0x1000) & 0xFFFFE000).astype(np.uint32).view(np.float32)
    assert np.array_equal(round_to(tf32, given), away)
    cut = (bits & 0xFFFFE000).astype(np.uint32).view(np.float32)
    assert np.array_equal(round_to(tf32, given, "rz"), cut)


def test_one_rounding():
    """1 + 2**-11 + 2**-40 is above the tie of f16; rounded to f32 first it would be at the tie, and fall."""
    value = 1 + 2.0**-11 + 2.0**-40
    assert round_to(f16, value) == 1 + 2.0**-10
    assert np.float16(np.float32(value)) == 1


def test_ends_and_specials():
    """Saturation, overflow at half a unit past the largest, infinities, NaN, signed zeros, subnormals."""
    inf, nan = np.inf, np.nan
    assert round_to(e4m3, [449, 1e9, inf, -inf]).tolist() == [448, 448, 448, -448]
    assert round_to(e5m2, [-1e9, inf]).tolist() == [-57344, 57344]
    assert round_to(f16, [65519.9, 65520, -65520, inf]).tolist() == [65504, inf, -inf, inf]
    tie = 2.0**127 * (2 - 2.0**-8)
    assert round_to(bf16, [tie, np.nextafter(tie, 0)]).tolist() == [inf, bf16.largest]
    assert round_to(f16, [65520.0, 1e9], "rz").tolist() == [65504, 65504]
    assert all(np.isnan(round_to(t, nan)) for t in FLOATS + [f32, f64])
    assert round_to(e4m3, 2.0**-10) == 0
    assert round_to(e4m3, 3 * 2.0**-11) == 2.0**-9
    assert math.copysign(1, round_to(f16, -1e-12)) == -1
    assert round_to(f16, 2.0**-24) == 2.0**-24
    assert round_to(s8, [1.5, 2.5, -129, 300, nan, inf]).tolist() == [2, 2, -128, 127, 0, 127]
    assert round_to(s32, [3e9, -3e9]).tolist() == [2**31 - 1, -(2**31)]


def test_storage_holds_every_value():
    for dtype in DTYPES:
        out = round_to(dtype, np.ones((2, 3), np.float32))
        assert out.dtype == np.dtype(dtype.storage)
        assert out.shape == (2, 3)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_names(dtype):
    for name in (dtype.name, *dtype.aliases, f"torch.{dtype.aliases[0]}", dtype.name.upper()):
        assert DType.parse(name) is dtype
    assert DType.parse(dtype) is dtype


def test_unknown_names_and_roundings():
    with pytest.raises(UnsupportedError, match=r"'float4' is not an element type. The types are f16, bf16"):
        DType.parse("float4")
    with pytest.raises(UnsupportedError, match="rne, rna, rz"):
        round_to(f16, 1.0, "up")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("fp8", "Is it e4m3 or e5m2?"),
        ("float8", "Is it e4m3 or e5m2?"),
        ("bf61", "bf16"),
        ("flaot32", "f32 (float32)"),
        ("int4", "Is it s32 (int) or s8 (int8)?"),
    ],
)
def test_what_a_name_may_have_meant(name, meant):
    with pytest.raises(UnsupportedError, match=r"is not an element type. The types are f16, .*\.") as caught:
        DType.parse(name)
    assert meant in str(caught.value)


def test_a_name_that_is_like_no_type_suggests_none():
    with pytest.raises(UnsupportedError) as caught:
        DType.parse("complex")
    assert "Is it" not in str(caught.value)
