"""Atoms against the fragment figures of the PTX ISA, a hand-computed row at a time.

g = lane // 4 is the figure's groupID, t = lane % 4 its threadID_in_group. A row gives the element (row, col)
of the tile that a lane holds as its i-th value: of A (M, K), of B (N, K), of C (M, N).
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cutegemm.dtypes import bf16, e4m3, e5m2, f16, f32, f64, s8, tf32
from cutegemm.errors import CutegemmError, PlanError, UnsupportedError
from cutegemm.tile.copy_atoms import cp_async, ldmatrix, stmatrix, universal_copy
from cutegemm.tile.mma_atoms import fma, mma_atom, mma_atoms, mma_sync, wgmma

BF16_K16 = mma_sync(bf16, 16)
F16_K8 = mma_sync(f16, 8)
TF32_K8 = mma_sync(tf32, 8)
TF32_K4 = mma_sync(tf32, 4)
FP8_K32 = mma_sync(e4m3, 32)
WG_N8 = wgmma(bf16, 8)
WG_N128 = wgmma(bf16, 128)
WG_RS = wgmma(f16, 64, a_source="register")
WG_FP8_RS = wgmma(e4m3, 64, a_source="register")

ROWS = [
    # mma.m16n8k16, "Matrix Fragments for mma.m16n8k16 with floating point type", A:
    # row g for i in 0, 1, 4, 5, else g + 8; column 2t + i % 2, + 8 for i >= 4
    (BF16_K16, "a", 0, 0, (0, 0), "g = 0, t = 0, i = 0"),
    (BF16_K16, "a", 5, 1, (1, 3), "g = 1, t = 1: row 1, column 2 * 1 + 1"),
    (BF16_K16, "a", 5, 2, (9, 2), "i = 2: row 1 + 8, column 2"),
    (BF16_K16, "a", 5, 4, (1, 10), "i = 4: row 1, column 2 + 8"),
    (BF16_K16, "a", 31, 7, (15, 15), "g = 7, t = 3, i = 7: row 7 + 8, column 6 + 1 + 8"),
    # B: k = 2t + i % 2, + 8 for i >= 2; n = g
    (BF16_K16, "b", 6, 1, (1, 5), "g = 1, t = 2: n 1, k 2 * 2 + 1"),
    (BF16_K16, "b", 6, 2, (1, 12), "i = 2: k 4 + 8"),
    (BF16_K16, "b", 31, 3, (7, 15), "g = 7, t = 3: n 7, k 6 + 1 + 8"),
    # C: row g, + 8 for i >= 2; column 2t + i % 2
    (BF16_K16, "c", 9, 0, (2, 2), "g = 2, t = 1"),
    (BF16_K16, "c", 9, 3, (10, 3), "i = 3: row 2 + 8, column 2 + 1"),
    # mma.m16n8k8, .f16: A as C above; B: k = 2t + i, n = g
    (F16_K8, "a", 14, 2, (11, 4), "g = 3, t = 2, i = 2: row 3 + 8, column 4"),
    (F16_K8, "b", 14, 1, (3, 5), "g = 3, t = 2, i = 1: n 3, k 4 + 1"),
    # mma.m16n8k8, .tf32, A: row g for i in 0, 2, else g + 8; column t, + 4 for i >= 2
    (TF32_K8, "a", 13, 0, (3, 1), "g = 3, t = 1"),
    (TF32_K8, "a", 13, 1, (11, 1), "i = 1: row 3 + 8"),
    (TF32_K8, "a", 13, 2, (3, 5), "i = 2: column 1 + 4"),
    (TF32_K8, "a", 30, 3, (15, 6), "g = 7, t = 2, i = 3: row 7 + 8, column 2 + 4"),
    # B: k = t, + 4 for i = 1; n = g. C as above
    (TF32_K8, "b", 13, 0, (3, 1), "g = 3, t = 1: n 3, k 1"),
    (TF32_K8, "b", 13, 1, (3, 5), "i = 1: k 1 + 4"),
    (TF32_K8, "c", 30, 2, (15, 4), "g = 7, t = 2, i = 2: row 7 + 8, column 2 * 2"),
    # mma.m16n8k4, .tf32, A: row g, g + 8; column t. B: k = t, n = g
    (TF32_K4, "a", 7, 1, (9, 3), "g = 1, t = 3, i = 1: row 1 + 8, column 3"),
    (TF32_K4, "b", 7, 0, (1, 3), "g = 1, t = 3: n 1, k 3"),
    # mma.m16n8k32, .e4m3 and .s8, A: row g for i in 0..3 and 8..11, else g + 8;
    # column 4t + i % 4, + 16 for i >= 8. B: k = 4t + i % 4, + 16 for i >= 4; n = g
    (FP8_K32, "a", 6, 3, (1, 11), "g = 1, t = 2, i = 3: row 1, column 8 + 3"),
    (FP8_K32, "a", 6, 5, (9, 9), "i = 5: row 1 + 8, column 8 + 1"),
    (FP8_K32, "a", 6, 12, (9, 24), "i = 12: row 1 + 8, column 8 + 16"),
    (FP8_K32, "b", 6, 6, (1, 26), "i = 6: n 1, k 8 + 2 + 16"),
    # wgmma m64nNk16, "D fragment": row 16 * warp + g, + 8 for i // 2 odd; column 2t + i % 2 + 8 * (i // 4)
    (WG_N8, "c", 0, 3, (8, 1), "warp 0, g = 0, t = 0, i = 3: row 8, column 1"),
    (WG_N8, "c", 77, 0, (35, 2), "77 = 2 * 32 + 13: warp 2, g = 3, t = 1: row 32 + 3, column 2"),
    (WG_N8, "c", 127, 2, (63, 6), "warp 3, g = 7, t = 3, i = 2: row 48 + 7 + 8, column 6"),
    (WG_N128, "c", 77, 5, (35, 11), "i = 5: column 2 + 1 + 8"),
    (WG_N128, "c", 127, 63, (63, 127), "i = 63: row 48 + 7 + 8, column 6 + 1 + 8 * 15"),
    # wgmma with A in registers: as the A of m16n8k16 (m16n8k32 for 8 bits), 16 rows a warp
    (WG_RS, "a", 77, 6, (43, 10), "warp 2, g = 3, t = 1, i = 6: row 32 + 3 + 8, column 2 + 8"),
    (WG_FP8_RS, "a", 77, 13, (43, 21), "i = 13: row 32 + 3 + 8, column 4 + 1 + 16"),
    # wgmma from shared memory: every thread reads the whole operand
    (WG_N128, "b", 99, 130, (2, 1), "value 130 of the (128, 16) tile: n 130 % 128, k 130 // 128"),
    (fma(), "c", 0, 0, (0, 0), "one thread, one element"),
]


@pytest.mark.parametrize(("atom", "operand", "lane", "value", "element", "why"), ROWS)
def test_fragment(atom, operand, lane, value, element, why):
    rows = atom.shape_mnk[{"a": 0, "b": 1, "c": 0}[operand]]
    index = atom.layout_tv(operand)(lane, value)
    assert (index % rows, index // rows) == element, why


# ldmatrix: lane 8 * j + r gives the address of row r of matrix j, 8 elements of 16 bits. Lane l receives of
# each matrix row l // 4, elements 2 * (l % 4) and the next; transposed, column l // 4 of these two rows.
# The elements moved are counted 64 to a matrix, 8 to a row. stmatrix goes the other way.
MATRIX_ROWS = [
    (ldmatrix(f16, 4), "src", 13, 3, 107, "matrix 1, row 5: 64 + 8 * 5 + 3"),
    (ldmatrix(f16, 4), "src", 31, 7, 255, "matrix 3, row 7: 192 + 56 + 7"),
    (ldmatrix(f16, 1), "src", 9, 2, 10, "with one matrix lane 9's address is not used: it repeats lane 1's"),
    (ldmatrix(f16, 2), "src", 20, 0, 32, "with two, lane 20 repeats lane 4: row 4 of matrix 0"),
    (ldmatrix(bf16, 1), "dst", 13, 1, 27, "row 13 // 4 = 3, element 2 * 1 + 1: 24 + 3"),
    (ldmatrix(bf16, 4), "dst", 13, 5, 155, "register 2 of 2 values: matrix 2, 128 + 27"),
    (ldmatrix(bf16, 2), "dst", 31, 2, 126, "matrix 1, row 7, element 6: 64 + 56 + 6"),
    (ldmatrix(bf16, 1, True), "dst", 13, 1, 27, "rows 2 and 3, column 3: 8 * 3 + 3"),
    (ldmatrix(bf16, 1, True), "dst", 6, 0, 33, "t = 2: row 4, column 6 // 4 = 1: 8 * 4 + 1"),
    (ldmatrix(bf16, 4, True), "dst", 6, 7, 233, "value 7: matrix 3, row 4 + 1, column 1: 192 + 40 + 1"),
    (ldmatrix(e4m3, 4), "dst", 13, 5, 181, "16 bytes a row: matrix 1, 128 + 16 * 3 + 4 * 1 + 1"),
    (ldmatrix(tf32, 4), "dst", 13, 2, 77, "32-bit elements, 4 a row: matrix 2, 64 + 4 * 3 + 1"),
    (stmatrix(f16, 4), "src", 13, 5, 155, "as lane 13 receives it from ldmatrix"),
    (stmatrix(f16, 4), "dst", 13, 3, 107, "the row at lane 13's address"),
    (stmatrix(f16, 2, True), "src", 6, 3, 105, "matrix 1, row 5, column 1: 64 + 40 + 1"),
]


@pytest.mark.parametrize(("atom", "side", "lane", "value", "element", "why"), MATRIX_ROWS)
def test_matrix_copy(atom, side, lane, value, element, why):
    layout = atom.layout_src_tv if side == "src" else atom.layout_dst_tv
    assert layout(lane, value) == element, why


def test_ldmatrix_loads_the_fragments_of_mma():
    """x4 on a (16, 16) tile of A, matrices down M first, gives each lane the fragment that mma wants."""
    atom, a = ldmatrix(bf16, 4), BF16_K16.layout_a_tv
    for lane, value in itertools.product(range(32), range(8)):
        moved = atom.layout_dst_tv(lane, value)
        matrix, row, column = moved // 64, moved // 8 % 8, moved % 8
        m, k = row + 8 * (matrix % 2), column + 8 * (matrix // 2)
        assert a(lane, value) == m + 16 * k


def operands_of_atoms():
    """Yield (atom, operand, whether it lies in shared memory), for equal layouts of equal extents once."""
    known = set()
    for atom in mma_atoms():
        for operand in "abc":
            shared = {"a": atom.a_source, "b": atom.b_source, "c": "register"}[operand] == "shared"
            key = (atom.layout_tv(operand), atom.shape_mnk, operand, shared)
            if key not in known:
                known.add(key)
                yield atom, operand, shared


def test_every_element_is_held_as_often_as_the_broadcast_says():
    """In registers each element of A, B and C is held once; in shared memory by each of the 128 threads."""
    for atom, operand, shared in operands_of_atoms():
        i, j = {"a": (0, 2), "b": (1, 2), "c": (0, 1)}[operand]
        size = atom.shape_mnk[i] * atom.shape_mnk[j]
        offsets = atom.layout_tv(operand).offsets()
        counts = np.bincount(offsets, minlength=size)
        assert counts.tolist() == [atom.threads if shared else 1] * size, (atom, operand)


def test_copies_move_each_element_once():
    for make, matrices, transpose in itertools.product((ldmatrix, stmatrix), (1, 2, 4), (False, True)):
        atom = make(f16, matrices, transpose)
        held = np.sort(atom.layout_ref_tv.offsets())
        assert (held == np.arange(64 * matrices)).all()
        assert atom.values * 16 == atom.bits == 32 * matrices
        rows = atom.layout_src_tv if make is ldmatrix else atom.layout_dst_tv
        assert set(rows.offsets()) == set(range(64 * matrices))


def test_lists_name_each_atom_once():
    atoms = list(mma_atoms())
    assert len({atom.name for atom in atoms}) == len(atoms) == len(set(atoms))
    assert all(mma_atom(atom.name) is atom for atom in atoms)
    n_of = {atom.shape_mnk[1] for atom in mma_atoms("sm_90a") if atom.name.startswith("wgmma")}
    assert n_of == set(range(8, 257, 8))
    assert not [atom for atom in mma_atoms("sm_100a") if atom.name.startswith("wgmma")]
    assert {a.name.split(".")[0] for a in mma_atoms("sm_70")} == {"fma"}


REFUSED = [
    (lambda: mma_sync(bf16, 32), UnsupportedError, "k = 32 is not 8 or 16, the extents for bf16"),
    (lambda: mma_sync(bf16, 8, f16), UnsupportedError, "C is f16, but bf16 operands need C of f32"),
    (lambda: mma_sync(f32, 8), UnsupportedError, "f32 operands have no mma.sync instruction. Choose f16"),
    (lambda: mma_sync(f16, 8, b_dtype=bf16), UnsupportedError, "A is f16 and B is bf16"),
    (lambda: wgmma(bf16, 12), PlanError, "n = 12 is not a multiple of 8"),
    (lambda: wgmma(s8, 40), PlanError, "n = 40 is above 32 and not a multiple of 16"),
    (lambda: wgmma(e5m2, 64, b_major="mn"), PlanError, "only f16 and bf16 can be mn-major"),
    (lambda: wgmma(f16, 64, "mn", a_source="register"), PlanError, "mn-major in registers"),
    (lambda: wgmma(tf32, 64, "mn"), PlanError, "only f16 and bf16 can be mn-major"),
    (lambda: wgmma(f64, 64), PlanError, "f64 operands have no wgmma instruction"),
    (lambda: fma(e4m3), UnsupportedError, "e4m3 operands with e4m3 accumulators have no FMA instruction"),
    (lambda: mma_atom("mma.m16n8k32.f32.bf16"), UnsupportedError, "Similar names are mma.m16n8k32."),
    (lambda: universal_copy(f32, 16), PlanError, "does not contain whole elements of f32"),
    (lambda: universal_copy(f16, 96), PlanError, "8, 16, 32, 64 or 128"),
    (lambda: cp_async(f16, 8, "cg"), PlanError, "cp.async.cg copies 16 bytes"),
    (lambda: cp_async(f16, 2), PlanError, "4, 8 or 16"),
    (lambda: ldmatrix(f32, 4, True), PlanError, "transposes elements of at most 16 bits"),
    (lambda: ldmatrix(f64, 4), PlanError, "32 bits per lane and matrix"),
    (lambda: stmatrix(f16, 3), PlanError, "1, 2 or 4"),
]


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_refusals_say_what_there_is(make, error, message):
    with pytest.raises(error) as raised:
        make()
    assert message in str(raised.value)
    assert isinstance(raised.value, CutegemmError)


def test_every_rule_is_reported_at_once():
    with pytest.raises(PlanError) as raised:
        wgmma(e4m3, 300, "mn", "rows", "stack", bf16)
    assert len(raised.value.violations) == 5
