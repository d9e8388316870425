"""wgmma: descriptors and fragments compared with layouts of plans and of atoms; values derived by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.dtypes import DType, bf16, e4m3, e5m2, f16, s8, tf32
from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.wgmma import (
    DTYPES,
    Descriptor,
    Shape,
    a_of_registers,
    matrix_of_units,
    values_of_bytes,
)
from cutegemm.layout import tile_to_shape
from cutegemm.tile.mma_atoms import wgmma
from cutegemm.tile.smem_atoms import smem_atom

_SWIZZLES = {"interleave": 0, "128B": 1, "64B": 2, "32B": 3}


def test_fields_of_a_descriptor_by_hand():
    # start 0x12340 >> 4 in bits 0-13, leading 0x800 >> 4 in 16-29, stride 0x400 >> 4 in 32-45, base offset in
    # 49-51, swizzle in 62-63
    bits = 0x1234 | 0x80 << 16 | 0x40 << 32 | 5 << 49 | 2 << 62
    assert Descriptor.decode(bits) == Descriptor(0x12340, 0x800, 0x400, 5, 2)


@pytest.mark.parametrize("dtype", ["bf16", "e4m3", "tf32"])
@pytest.mark.parametrize("kind", ["interleave", "32B", "64B", "128B"])
def test_k_major_descriptors_agree_with_the_layout_of_a_plan(dtype, kind):
    """Address a 128-row tile of swizzle atoms: 8 rows by a row of the swizzle, repeated along M, then along K.

    An atom has 8 rows of R bytes, so the stride to the next 8 rows is 8 R. The start moves by 32 bytes from one K step
    to the next, until the atom ends. Without a swizzle an atom has 16 bytes along K. The second unit of K is then a
    column of atoms, 128 / 8 atoms of 128 bytes, further: the leading offset.
    """
    kind_of = DType.parse(dtype)
    row_bytes = {"interleave": 16, "32B": 32, "64B": 64, "128B": 128}[kind]
    bits, extent_k = kind_of.bits, max(row_bytes, 32) * 8 // kind_of.bits
    smem = tile_to_shape(smem_atom(kind_of, "k", kind), (128, extent_k), (0, 1))
    at = smem.offsets().reshape((128, extent_k), order="F") * bits // 8
    base = 4096
    for step in range(extent_k * bits // 256):
        # M rows 64 to 127: 8 atoms further
        start = base + 8 * 8 * row_bytes + step * 32
        found = Descriptor(start, 128 // 8 * 128, 8 * row_bytes, 0, _SWIZZLES[kind]).units(64, bits, False)
        expected = base + at[64:, step * 256 // bits :: 128 // bits][:, :2]
        assert (found == expected).all()


@pytest.mark.parametrize("kind", ["interleave", "32B", "64B", "128B"])
def test_mn_major_descriptors_agree_with_the_layout_of_a_plan(kind):
    """Address a tile of 128 rows by 32 K; its atoms have R bytes of M by 8 of K, repeated along M first.

    The next atom along M is 8 R bytes further. The next 8 of K are a row of atoms further: 256 / R atoms. With a
    swizzle the first distance is the leading offset and the second the stride; without one it is the other way round.
    """
    row_bytes = {"interleave": 16, "32B": 32, "64B": 64, "128B": 128}[kind]
    smem = tile_to_shape(smem_atom(bf16, "mn", kind), (128, 32), (0, 1))
    at = smem.offsets().reshape((128, 32), order="F") * 2
    next_mn, next_k = 8 * row_bytes, 8 * row_bytes * (256 // row_bytes)
    leading, stride = (next_k, next_mn) if kind == "interleave" else (next_mn, next_k)
    for step in range(2):
        start = 8192 + step * 2 * next_k
        found = Descriptor(start, leading, stride, 0, _SWIZZLES[kind]).units(128, 16, True)
        assert (found == 8192 + at[::8, step * 16 : step * 16 + 16]).all()


def test_a_misaligned_swizzle_pattern_is_an_error():
    with pytest.raises(RuleViolation, match="base offset 0"):
        Descriptor(1024 + 128, 0, 1024, 0, 1).units(8, 16, False)
    assert Descriptor(1024 + 512, 0, 512, 0, 2).units(8, 16, False).shape == (8, 2)


def test_units_become_matrices():
    # K-major: row r is 16 r, 16 r + 1, ...; MN-major: unit (block, k) has rows 8 block to 8 block + 7
    k_major = np.arange(8 * 16, dtype=np.float16).reshape(8, 16)
    assert (matrix_of_units(k_major.view(np.uint8).reshape(8, 2, 16), f16, False) == k_major).all()
    stored = np.arange(2 * 16 * 8, dtype=np.float16).reshape(2, 16, 8)
    found = matrix_of_units(stored.view(np.uint8).reshape(2, 16, 16), f16, True)
    assert found.shape == (16, 16)
    assert all(found[row, k] == stored[row // 8, k, row % 8] for row in (0, 7, 8, 13) for k in (0, 5, 15))


@pytest.mark.parametrize(
    ("dtype", "raw", "value"),
    [
        (e4m3, [0x00], 0.0), (e4m3, [0x01], 2.0**-9), (e4m3, [0x08], 2.0**-6), (e4m3, [0x38], 1.0),
        (e4m3, [0x7E], 448.0), (e4m3, [0xFF], np.nan), (e4m3, [0xC4], -3.0),
        (e5m2, [0x01], 2.0**-16), (e5m2, [0x3C], 1.0), (e5m2, [0x7B], 57344.0), (e5m2, [0xFC], -np.inf),
        (e5m2, [0x7D], np.nan), (s8, [0x80], -128), (bf16, [0x40, 0xC0], -3.0), (f16, [0x00, 0x3E], 1.5),
        (tf32, [0xFF, 0x1F, 0x80, 0x3F], 1.0), (tf32, [0x00, 0x20, 0x80, 0x3F], 1 + 2.0**-10),
    ],
)  # fmt: skip
def test_values_of_bytes_by_hand(dtype, raw, value):
    np.testing.assert_equal(values_of_bytes(np.array(raw, np.uint8), dtype)[0], value)


@pytest.mark.parametrize(("n", "d"), [(8, "f32"), (24, "s32"), (128, "f32"), (16, "f16")])
def test_accumulators_lie_as_in_the_atom(n, d):
    ab = {"s32": "s8", "f32": "bf16", "f16": "f16"}[d]
    k = 256 // DTYPES.get(ab, bf16).bits
    shape = Shape.parse(("wgmma", "mma_async", "sync", "aligned", f"m64n{n}k{k}", d, ab, ab))
    accumulators = np.arange(64 * n).reshape(64, n).astype({"f32": np.float32, "s32": np.int32}.get(d, np.float32))
    accumulators = accumulators % 2048  # integers that f16 represents exactly
    held = shape.to_registers(accumulators)
    assert held.shape == (128, shape.registers)
    assert (shape.from_registers(held) == accumulators).all()
    # The atom maps thread t, value v to a colexicographic index of the 64 x n tile
    atom = wgmma(DType.parse(ab), n, c_dtype=DType.parse(d))
    index = atom.layout_c_tv.offsets().reshape((128, -1), order="F")
    values = held.view({"f32": np.float32, "s32": np.int32, "f16": np.float16}[d])
    assert (values == accumulators[index % 64, index // 64]).all()


@pytest.mark.parametrize("dtype", [bf16, e4m3])
def test_a_in_registers_lies_as_in_the_atom(dtype):
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 100, (64, 32), np.uint8)  # rows of 32 bytes, small positive numbers
    k = 256 // dtype.bits
    expected = values_of_bytes(raw, dtype)
    index = wgmma(dtype, 8, a_source="register").layout_a_tv.offsets().reshape((128, -1), order="F")
    elements = raw.reshape(64, k, dtype.bits // 8)[index % 64, index // 64]
    registers = np.ascontiguousarray(elements).reshape(128, 16).view(np.uint32)
    assert (a_of_registers(registers, dtype) == expected).all()


def test_multiplication_by_hand():
    # Row 0 of A times column 0 of B is 1 * 2 + 3 * 4 = 14; with an accumulator of 5 it is 19
    shape = Shape.parse(("wgmma", "m64n8k16", "f32", "f16", "f16"))
    a, b = np.zeros((64, 16), np.float32), np.zeros((8, 16), np.float32)
    a[0, :2], b[0, :2] = (1, 3), (2, 4)
    assert shape.multiply(a, b, None)[0, 0] == 14
    assert shape.multiply(a, b, np.full((64, 8), 5, np.float32))[0, 0] == 19
    # int32 accumulators are clamped with .satfinite, and wrap without it
    top = np.full((64, 8), 2**31 - 1, np.int32)
    for parts, sum_ in ((("satfinite",), 2**31 - 1), ((), -(2**31) + 13)):
        whole = Shape.parse(("wgmma", "m64n8k32", *parts, "s32", "s8", "s8"))
        a32, b32 = (np.pad(x.astype(np.int32), ((0, 0), (0, 16))) for x in (a, b))
        assert whole.multiply(a32, b32, top)[0, 0] == sum_


def test_invalid_shapes_are_errors():
    for text in ("wgmma.m64n12k16.f32.bf16.bf16", "wgmma.m64n8k8.f32.bf16.bf16", "wgmma.f32.bf16.bf16"):
        with pytest.raises(RuleViolation):
            Shape.parse(tuple(text.split(".")))
