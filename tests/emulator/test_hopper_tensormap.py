"""Tensor maps and their boxes, derived by hand and compared with the boxes of plans."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.dtypes import DType
from cutegemm.emulator.hopper.faults import RuleViolation
from cutegemm.emulator.hopper.tensormap import TensorMap
from cutegemm.tile.tma import TmaBox


def tensor_map(**given) -> TensorMap:
    """Return a map of a bf16 tensor of 8 x 3 with rows of 32 bytes, and boxes of 8 x 2; `given` replaces arguments."""
    arguments = {
        "element": "bf16", "address": 4096, "extents": (8, 3), "strides": (32,), "box": (8, 2),
        "element_strides": (1, 1),
    }  # fmt: skip
    return TensorMap(**{**arguments, **given})


def test_units_of_a_box_by_hand():
    # A row of a box has 8 bf16: one unit. A box at (0, 2) has row 2, at 4096 + 2 * 32, and row 3, out of bounds.
    units = tensor_map().units((0, 2))
    assert units.address.tolist() == [4160, 4192]
    assert units.inside.all(axis=1).tolist() == [True, False]
    assert not units.inside[1].any()


def test_a_row_that_ends_within_a_unit():
    # 11 columns: the unit of columns 8 to 15 has three elements (6 bytes) in bounds
    units = tensor_map(extents=(11, 3), box=(16, 1)).units((0, 0))
    assert units.inside.sum(axis=1).tolist() == [16, 6]
    assert units.whole.sum(axis=1).tolist() == [16, 16]
    beyond = tensor_map(extents=(8, 3), box=(16, 1)).units((0, 0))
    assert beyond.whole.sum(axis=1).tolist() == [16, 0]


def test_negative_corners_are_outside():
    units = tensor_map().units((-8, -1))
    assert not units.inside.any()
    assert not units.whole.any()
    assert tensor_map().units((0, -1)).inside.any(axis=1).tolist() == [False, True]


@pytest.mark.parametrize(
    ("swizzle", "box", "table"),
    [
        # Index of a unit in the box -> index of the 16 bytes in shared memory that hold it
        ("none", (8, 9), {8: 8}),
        # 32B: bit 4 ^= bit 7. Unit 8 is byte 128 -> 144, unit 9
        ("32B", (16, 8), {0: 0, 7: 7, 8: 9, 9: 8}),
        # 64B: bits 4, 5 ^= bits 7, 8. Unit 8 (128) -> 9; unit 16 (256) -> 18; unit 24 (384) -> 27
        ("64B", (32, 8), {4: 4, 8: 9, 16: 18, 24: 27, 25: 26}),
        # 128B: bits 4-6 ^= bits 7-9. Unit 8 -> 9, 16 -> 18, 63 (row 7, unit 7) -> row 7, unit 0
        ("128B", (64, 8), {7: 7, 8: 9, 16: 18, 63: 56}),
    ],
)
def test_swizzles_by_hand(swizzle, box, table):
    found = tensor_map(swizzle=swizzle, box=box, extents=(64, 64), strides=(128,)).shared_units(1024)
    assert {unit: (found[unit] - 1024) // 16 for unit in table} == table
    assert sorted(found) == list(range(1024, 1024 + len(found) * 16, 16))


@pytest.mark.parametrize("dtype", ["bf16", "f32", "e4m3"])
@pytest.mark.parametrize(("swizzle", "row_bytes"), [("32B", 32), ("64B", 64), ("128B", 128)])
def test_boxes_agree_with_the_layout_of_a_plan(dtype, swizzle, row_bytes):
    """Compare the addresses of units with the layout of `TmaBox`."""
    kind = DType.parse(dtype)
    box = TmaBox("load", kind, (row_bytes * 8 // kind.bits, 24), swizzle)
    element = {"e4m3": "u8"}.get(dtype, dtype)
    seen = tensor_map(element=element, box=box.box, extents=(256, 64), strides=(1024,), swizzle=swizzle)
    per_unit = 128 // kind.bits
    elements = box.smem_layout.offsets()[::per_unit]
    assert (seen.shared_units(2048) - 2048).tolist() == (elements * kind.bits // 8).tolist()


def test_the_swizzle_depends_on_the_address():
    # A box at 1024 + 128 begins in row 1 of the 128-byte pattern: its unit 0 is stored as unit 1 of that row
    found = tensor_map(swizzle="128B", box=(64, 1), extents=(64, 64), strides=(128,)).shared_units(1152)
    assert ((found - 1152) // 16).tolist() == [1, 0, 3, 2, 5, 4, 7, 6]
    with pytest.raises(RuleViolation, match="not a multiple of 128"):
        tensor_map().shared_units(1040)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"address": 8}, "global address"),
        ({"box": (4, 2)}, "8 inner bytes"),
        ({"strides": (0,)}, "elements of mode 1 have a stride of 0"),
        ({"box": (8, 257)}, "257 of mode 1"),
        ({"box": (32, 2), "swizzle": "128B"}, "do not fill"),
        ({"element_strides": (1, 2)}, "element strides"),
        ({"nan_fill": True}, "NaN fill"),
    ],
)
def test_rules(given, says):
    assert tensor_map().violations() == []
    assert says in "; ".join(tensor_map(**given).violations())


def test_bits_by_hand():
    # Rank 2 (1 << 4), bf16 (10 << 7), 128-byte swizzle (3 << 13). The stride is 272 bytes (17 units) + 2**36 bytes
    # (2**32 units: the lowest bit of word 7). 72 x 200 elements, boxes of 64 x 128.
    words = np.zeros(32, np.uint32)
    words[[0, 1, 2]] = 0x1000, 0x7F00, 1 << 4 | 10 << 7 | 3 << 13
    words[[3, 7, 8, 9]] = 17, 1, 71, 199
    words[[13, 14]] = 63 << 24, 127
    assert TensorMap.decode(words.tobytes()) == TensorMap(
        "bf16", 0x7F0000001000, (72, 200), (272 + (1 << 36),), (64, 128), (1, 1), 0, "128B", False
    )
    with pytest.raises(RuleViolation, match="not a tensor map"):
        TensorMap.decode(b"\xff" * 128)
