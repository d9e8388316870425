"""simt_tiled_mma: block > warp > thread > value, by brute force over every thread."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cutegemm.dtypes import f16, f64
from cutegemm.errors import PlanError
from cutegemm.layout.layout import Layout
from cutegemm.layout.tensor import make_identity_tensor
from cutegemm.tile.mma_atoms import fma, mma_sync
from cutegemm.tile.simt import simt_tiled_mma

# block, warp, thread, quad
SHAPES = [
    ((128, 128), (64, 32), (8, 8), (4, 4)),
    ((128, 128), (32, 64), (8, 8), (4, 4)),
    ((128, 256), (64, 64), (16, 8), (4, 4)),
    ((64, 64), (32, 32), (8, 4), (4, 4)),
    ((64, 128), (64, 32), (8, 8), (4, 2)),
    ((32, 16), (16, 16), (4, 2), (1, 1)),
    ((128, 128), (64, 32), (8, 8), (8, 8)),
    ((8, 8), (8, 4), (1, 1), (1, 1)),
    ((96, 64), (48, 32), (6, 8), (2, 4)),
    ((32, 1), (32, 1), (1, 1), (1, 1)),
]


def rows_of(warp, lane, warp_extent, lanes, thread_extent, quad):
    """The law of the docstring, along one mode."""
    return [
        warp * warp_extent + q * lanes * quad + lane * quad + r
        for q in range(thread_extent // quad)
        for r in range(quad)
    ]


@pytest.mark.parametrize(("block", "warp", "thread", "quad"), SHAPES)
@pytest.mark.parametrize(("lanes_along", "warps_along"), [*itertools.product("mn", "mn")])
def test_values_of_each_thread_form_its_quads(block, warp, thread, quad, lanes_along, warps_along):
    mma = simt_tiled_mma(block, warp, thread, quad_mn=quad, lanes_along=lanes_along, warps_along=warps_along)
    lanes = (warp[0] // thread[0], warp[1] // thread[1])
    warps = (block[0] // warp[0], block[1] // warp[1])
    assert mma.threads == 32 * warps[0] * warps[1]
    assert mma.tile_mnk == (*block, 1)
    c = mma.offsets_c(make_identity_tensor(block))
    a, b = mma.offsets_a(Layout((block[0], 2))), mma.offsets_b(Layout((block[1], 2)))
    for thr in range(mma.threads):
        w, lane = divmod(thr, 32)
        lane_mn = (lane % lanes[0], lane // lanes[0]) if lanes_along == "m" else (lane // lanes[1], lane % lanes[1])
        warp_mn = (w % warps[0], w // warps[0]) if warps_along == "m" else (w // warps[1], w % warps[1])
        rows, columns = (rows_of(warp_mn[i], lane_mn[i], warp[i], lanes[i], thread[i], quad[i]) for i in (0, 1))
        assert (c[thr, 0] == [[(row, column) for column in columns] for row in rows]).all()
        assert a[thr, 0].tolist() == [[row, row + block[0]] for row in rows]
        assert b[thr, 0].tolist() == [[column, column + block[1]] for column in columns]


def test_loads_of_a_quad_are_free_of_bank_conflicts():
    """8 lanes of a 128-bit load of A read 8 neighbouring vectors, 128 bytes, or one that they share."""
    mma = simt_tiled_mma((128, 128), (64, 32), (8, 8))
    for offsets, distinct in ((mma.offsets_a(Layout((128, 8))), 8), (mma.offsets_b(Layout((128, 8))), 1)):
        vectors = offsets[:, 0, ::4, 0]  # (thread, quad): where a quad of four floats begins
        for first in range(0, mma.threads, 8):
            for quad in range(2):
                at = np.unique(vectors[first : first + 8, quad])
                assert len(at) == distinct
                assert len(np.unique(at // 4 % 8)) == distinct


def test_other_atoms_of_one_thread():
    assert simt_tiled_mma((64, 64), (32, 32), (8, 4), atom=fma(f16)).atom.c_dtype.name == "f32"
    assert simt_tiled_mma((64, 64), (32, 32), (8, 4), atom=fma(f64), quad_mn=(2, 2)).threads == 128


def test_every_broken_rule_is_reported():
    with pytest.raises(PlanError) as raised:
        simt_tiled_mma(
            (128, 120),
            (64, 32),
            (8, 16),
            quad_mn=(3, 4),
            lanes_along="x",
            warps_along="k",
            atom=mma_sync(f16, 8),
        )
    assert [text.split(",")[0].split(" is ")[0].split(" has ")[0] for text in raised.value.violations] == [
        "8 elements of the thread tile along M are not a multiple of the 3 of the quad tile",
        "120 elements of the block tile along N are not a multiple of the 32 of the warp tile",
        "a warp tile of 64x32",
        "the atom mma.m16n8k8.f32.f16",
        "lanes_along = 'x'",
        "warps_along = 'k'",
    ]
    assert "block 128x120, warp 64x32, thread 8x16" in str(raised.value)
    with pytest.raises(PlanError, match="is not a pair of positive extents"):
        simt_tiled_mma((128,), (64, 32), (8, 0))  # type: ignore[arg-type]
