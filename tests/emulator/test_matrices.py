"""ldmatrix, stmatrix and mma.sync in kernels written by hand: the lanes of the PTX ISA's figures."""

import numpy as np
import pytest

from cutegemm.dtypes import DType
from cutegemm.emulator.matrix import fragments
from cutegemm.emulator.scalar import exact_bits, small_values, values_of
from cutegemm.tile.mma_atoms import mma_sync
from tests.emulator.snippets import bits, run, value

# Word t of each 8 x 8 matrix has its 16-bit elements 2 t and 2 t + 1. The four matrices follow each other.
FILL = """
mov.b32 %r20, pool; shl.b32 %r21, %r0, 2; add.s32 %r22, %r20, %r21;
mul.wide.u32 %d2, %r0, 4; add.s64 %d2, %d0, %d2;
"""
ROWS = "shl.b32 %r23, %r0, 4; add.s32 %r23, %r20, %r23;"  # lane l: row l % 8 of matrix l / 8
OUT4 = "mul.wide.u32 %d9, %r0, 16; add.s64 %d9, %d1, %d9; st.global.v4.b32 [%d9], {%r1, %r2, %r3, %r4};"
ELEMENTS = np.arange(256, dtype=np.uint16)  # matrix, row, column


def words_of_lanes(transposed):
    """Return the registers (32 lanes, 4 matrices) after ldmatrix.

    Lane l has row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1 of each matrix; `transposed` exchanges rows and columns.
    """
    matrices = ELEMENTS.reshape(4, 8, 8)
    out = np.zeros((32, 4), np.uint32)
    for lane in range(32):
        for i in range(4):
            row, column = lane // 4, 2 * (lane % 4)
            pair = [matrices[i, column + j, row] if transposed else matrices[i, row, column + j] for j in (0, 1)]
            out[lane, i] = int(pair[0]) | int(pair[1]) << 16
    return out


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_ldmatrix(trans):
    stores = "".join(f"ld.global.b32 %r9, [%d2+{128 * i}]; st.shared.b32 [%r22+{128 * i}], %r9;" for i in range(4))
    load = f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r1, %r2, %r3, %r4}}, [%r23];"
    out = run(f"{FILL} {stores} {ROWS} {load} {OUT4}", ELEMENTS, 128, shared_bytes=512)
    assert np.array_equal(out.reshape(32, 4), words_of_lanes(bool(trans)))


@pytest.mark.parametrize("trans", ["", ".trans"])
def test_stmatrix_is_the_inverse_of_ldmatrix(trans):
    """stmatrix stores the registers that ldmatrix loads to the same locations."""
    loads = "".join(f"ld.global.b32 %r{i + 1}, [%d3+{4 * i}];" for i in range(4))
    body = f"""
    {FILL} {ROWS} mul.wide.u32 %d3, %r0, 16; add.s64 %d3, %d0, %d3; {loads}
    stmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 [%r23], {{%r1, %r2, %r3, %r4}};
    ld.shared.v4.b32 {{%r1, %r2, %r3, %r4}}, [%r23];
    {OUT4}
    """
    out = run(body, words_of_lanes(bool(trans)), 128, shared_bytes=512)
    assert np.array_equal(out.view(np.uint16), ELEMENTS)


def test_a_product_of_two_elements_by_hand():
    """A has 3 at (9, 2), B has 5 at (2, 4), C has 7 at (9, 4): D(9, 4) = 22, and all other elements are 0.

    f16, m16n8k16. A(9, 2): row 9 = 1 + 8 and column 2 = 2 * 1 are in the low half of the second register of lane
    4 * 1 + 1 = 5. B(2, 4): column 4 and k 2 are in the low half of the first register of lane 4 * 4 + 1 = 17.
    C(9, 4): row 1 + 8, column 2 * 2, the third register of lane 4 * 1 + 2 = 6.
    """
    half = {3.0: 0x4200, 5.0: 0x4500}
    body = f"""
    setp.eq.s32 %p1, %r0, 5; selp.b32 %r11, {half[3.0]}, 0, %p1;
    setp.eq.s32 %p1, %r0, 17; selp.b32 %r12, {half[5.0]}, 0, %p1;
    setp.eq.s32 %p1, %r0, 6; selp.b32 %r13, {bits(7)}, 0, %p1;
    mov.b32 %r14, 0;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
      {{%r1, %r2, %r3, %r4}}, {{%r14, %r11, %r14, %r14}}, {{%r12, %r14}}, {{%r14, %r14, %r13, %r14}};
    {OUT4}
    """
    out = run(body, np.zeros(1, np.uint32), 128).reshape(32, 4)
    assert [(int(lane), int(i), value(out[lane, i])) for lane, i in np.argwhere(out)] == [(6, 2, 22.0)]


def test_low_bits_of_a_tf32_operand_are_ignored():
    """1 + 2**-11 counts as 1: with A = 1 + 2**-11, B = 1 and K = 4, D is 4 and not 4 + 2**-9."""
    body = f"""
    mov.b32 %r11, {bits(1 + 2**-11)}; mov.b32 %r12, {bits(1)}; mov.b32 %r14, 0;
    mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32
      {{%r1, %r2, %r3, %r4}}, {{%r11, %r11}}, {{%r12}}, {{%r14, %r14, %r14, %r14}};
    {OUT4}
    """
    assert {value(w) for w in run(body, np.zeros(1, np.uint32), 128)} == {4.0}


@pytest.mark.parametrize(
    ("dtype", "k", "acc"),
    [("f16", 16, "f32"), ("bf16", 8, "f32"), ("tf32", 8, "f32"), ("tf32", 4, "f32"), ("s8", 32, "s32")],
)
def test_fragments_agree_with_the_atoms(dtype, k, acc):
    """`fragments` agrees with the thread-value layouts of the atoms, which come from another table."""
    kind = DType.parse(dtype)
    atom = mma_sync(kind, k, DType.parse(acc))
    m, n, _ = atom.shape_mnk
    for place, layout, rows in zip(
        fragments((m, n, k), kind),
        (atom.layout_a_tv, atom.layout_b_tv, atom.layout_c_tv),
        (m, n, m),
        strict=True,
    ):
        number = layout.offsets().reshape((32, -1), order="F")
        at = (number % rows, number // rows)
        if rows == n:  # B is (n, k) there and (k, n) here
            at = at[::-1]
        assert np.array_equal(place, np.stack(at, axis=-1))


@pytest.mark.parametrize("dtype", ["e4m3", "e5m2", "bf16", "f16", "f32"])
def test_bits_and_values(dtype):
    kind = DType.parse(dtype)
    some = np.array([0.0, -0.0, 1.0, -1.5, 2.0**-6, 0.1875, 448.0 if dtype == "e4m3" else 57344.0], np.float32)
    found = values_of(kind, exact_bits(kind, some))
    assert np.array_equal(found, some)
    assert np.array_equal(np.signbit(found), np.signbit(some))


def test_codes_of_8_bit_floats():
    """e4m3: 0x7E is 448, 0x7F is NaN, 0x01 is 2**-9. e5m2: 0x7B is 57344, 0x7C is infinity, 0x01 is 2**-16."""
    e4m3, e5m2 = (small_values(DType.parse(name)) for name in ("e4m3", "e5m2"))
    assert (e4m3[0x7E], e4m3[0x01], e4m3[0xB8]) == (448.0, 2.0**-9, -1.0)
    assert np.isnan(e4m3[0x7F])
    assert (e5m2[0x7B], e5m2[0x7C], e5m2[0x01]) == (57344.0, np.inf, 2.0**-16)
