"""Shared-memory atoms of wgmma, and TMA boxes: what lies where, and which are refused."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.dtypes import DTYPES, bf16, e4m3, f16, f32, f64, s8
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout.recast import recast_layout
from cutegemm.layout.tiling import tile_to_shape
from cutegemm.tile.smem_atoms import KINDS, smem_atom, widest_smem_kind
from cutegemm.tile.tma import TmaBox

# (dtype, major, kind): the atom in elements. 8 rows of 16, 32, 64 or 128 bytes; a 16-byte unit is 8 elements
# of 16 bits, so the base of the swizzle is 3 (2 for 32 bits, 4 for 8 bits).
ATOMS = [
    (bf16, "k", "interleave", "S<0,3,3> o 0 o (8,8):(8,1)"),
    (bf16, "k", "32B", "S<1,3,3> o 0 o (8,16):(16,1)"),
    (bf16, "k", "64B", "S<2,3,3> o 0 o (8,32):(32,1)"),
    (bf16, "k", "128B", "S<3,3,3> o 0 o (8,64):(64,1)"),
    (bf16, "mn", "128B", "S<3,3,3> o 0 o (64,8):(1,64)"),
    (f32, "k", "128B", "S<3,2,3> o 0 o (8,32):(32,1)"),
    (e4m3, "k", "128B", "S<3,4,3> o 0 o (8,128):(128,1)"),
    (e4m3, "mn", "64B", "S<2,4,3> o 0 o (64,8):(1,64)"),
    (f64, "k", "64B", "S<2,1,3> o 0 o (8,8):(8,1)"),
]


@pytest.mark.parametrize(("dtype", "major", "kind", "text"), ATOMS)
def test_atoms_in_elements(dtype, major, kind, text):
    assert str(smem_atom(dtype, major, kind)) == text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_swizzle_is_that_of_bytes(dtype, kind):
    """The PTX figures: in row r the 16-byte unit u stands at u ^ (r % 8), within the span of the kind."""
    atom = smem_atom(dtype, "k", kind)
    bits, row_bytes = KINDS[kind]
    rows, row = atom.shape
    offsets = atom.offsets().reshape(rows, row, order="F") * (dtype.bits // 8)
    for r in range(rows):
        for e in range(row):
            at = r * row_bytes + e * (dtype.bits // 8)
            unit = at // 16 ^ (at // 128 % (1 << bits))
            assert offsets[r, e] == unit * 16 + at % 16
    assert recast_layout(8, dtype.bits, atom).inner.base == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("major", ["k", "mn"])
@pytest.mark.parametrize("kind", KINDS)
def test_tiled_to_stages_they_fill_memory_once(kind, major):
    tiled = tile_to_shape(smem_atom(bf16, major, kind), (128, 64, 4), (0, 1, 2))
    assert (np.sort(tiled.offsets()) == np.arange(128 * 64 * 4)).all()


def test_widest_kind_is_the_longest_row_that_divides():
    assert [widest_smem_kind(bf16, extent) for extent in (64, 32, 16, 8, 96, 128, 48, 40)] == [
        "128B", "64B", "32B", "interleave", "64B", "128B", "32B", "interleave"
    ]  # fmt: skip
    with pytest.raises(PlanError, match="12 elements are 24 bytes"):
        widest_smem_kind(bf16, 12)


def test_refused_atoms():
    with pytest.raises(PlanError) as raised:
        smem_atom(bf16, "m", "256B")
    assert len(raised.value.violations) == 2


def test_boxes():
    box = TmaBox("load", bf16, (64, 128), "128B", multicast=2)
    assert (box.name, box.size_bytes) == ("tma.load.64x128.bf16.128B.multicast2", 16384)
    assert box == TmaBox("load", bf16, (64, 128), "128B", 2)
    assert hash(box) is not None
    assert box.runs_on("sm_90a")
    assert not box.runs_on("sm_89")
    k_major = tile_to_shape(smem_atom(bf16, "k", "128B"), (128, 64), (0, 1))
    by_box = box.smem_layout.offsets().reshape(64, 128, order="F").T
    assert (by_box == k_major.offsets().reshape(128, 64, order="F")).all()
    assert str(TmaBox("store", f32, (32, 8)).smem_layout) == "S<0,2,3> o 0 o (32,8):(1,32)"


def test_box_that_leaves_part_of_the_swizzle_is_not_described():
    with pytest.raises(UnsupportedError, match="the inner extent has 64 bytes, but the swizzle spans 128"):
        TmaBox("load", f16, (32, 8), "128B").smem_layout  # noqa: B018


@pytest.mark.parametrize(
    ("make", "messages"),
    [
        (lambda: TmaBox("load", bf16, (128, 64), "128B"), ["256 bytes, more than the 128"]),
        (lambda: TmaBox("load", s8, (16, 512)), ["mode 1 of the box has 512 elements; 1 to 256"]),
        (
            lambda: TmaBox("store", f16, (12, 8), "32B", 2),
            ["24 bytes, which is not a multiple of 16", "a store cannot be multicast"],
        ),
        (
            lambda: TmaBox("move", f16, (8,) * 6, "16B", 17),
            ["'move'", "the box has 6 modes", "'16B'", "17 CTAs"],
        ),
        (lambda: TmaBox("load", f16, (8, 0)), ["mode 1 of the box has 0 elements"]),
    ],
)
def test_refused_boxes(make, messages):
    with pytest.raises(PlanError) as raised:
        make()
    assert len(raised.value.violations) == len(messages)
    for message, violation in zip(messages, raised.value.violations, strict=True):
        assert message in violation
