"""Parts of other kernels: texts of CuTe, linear layouts, objects of the DSL while it traces."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from cutegemm.analysis.foreign import check_part
from cutegemm.errors import LayoutError

COLUMN_OF_A_TILE = "(32,32):(1,32)"  # lane m reads the row m, value by value


def test_a_swizzle_of_bytes_and_of_elements():
    """S<3,4,3> on bytes is S<3,3,3> on elements of 16 bits; as one of elements it moves other bits."""
    rows = "((8,4),8):((1,8),32)"  # lane -> row, 8 values along it
    tile = "o 0 o (32,64):(64,1)"
    eight: dict[str, Any] = {"dtype": "bf16", "tile": (32, 8)}
    assert check_part(rows, "(32,64):(64,1)", **eight).ways == 8
    assert check_part(rows, f"S<3,3,3> {tile}", **eight).ways == 1
    assert check_part(rows, f"S<3,4,3> {tile}", swizzle_of="bytes", **eight).ways == 1
    assert check_part(rows, f"S<3,4,3> {tile}", access_bits=16, **eight).ways > 1


def test_a_tiled_copy_as_the_dsl_prints_it():
    text = """Tiled Copy
      Tiler MN:        (16:1,64:1)
      TV Layout tiled: ((8,16),(8,1)):((128,1),(16,0))
    Copy Atom
      Value type:      bf16"""
    found = check_part(
        text, "S<3,4,3> o 0 o ((8,16),(64,1),(1,4)):((64,512),(1,0),(0,8192))", op="store", swizzle_of="bytes"
    )
    assert (found.requests, found.wavefronts, found.ideal) == (32, 128, 128)
    assert check_part(text, "(128,64):(72,1)", op="store").ways == 1
    assert check_part(text, "(128,64):(1,128)", op="store").requests == 8 * 32  # element by element


@dataclass
class Linear:
    """As Triton's LinearLayout prints its data."""

    bases: tuple
    out_dims: tuple


def test_a_linear_layout():
    """Four warps, one below the other, of 8 lanes down and 4 across, each with 8 registers along a row: 32 x 32."""
    lanes = ((1, 0), (2, 0), (4, 0), (0, 8), (0, 16))
    linear = Linear(
        (("register", ((0, 1), (0, 2), (0, 4))), ("lane", lanes), ("warp", ((8, 0), (16, 0)))),
        (("dim0", 32), ("dim1", 32)),
    )
    found = check_part(linear, "(32,32):(32,1)", "f16")
    assert found.requests == 4  # 8 registers of 16 bits are one access of 128
    assert (found.wavefronts, found.ideal) == (
        64,
        16,
    )  # 8 rows of 64 bytes: every second one in the same banks
    assert check_part(linear, "(32,32):(40,1)", "f16").ways == 1
    with pytest.raises(LayoutError, match="It lacks lane and register"):
        check_part(Linear((("offset", ((1, 0),)),), (("a", 2), ("b", 1))), "(2,1):(1,2)", "f16")


@pytest.mark.parametrize(
    ("part", "shared", "options", "said"),
    [
        (COLUMN_OF_A_TILE, "(32,32):(32,1)", {}, "Pass dtype"),
        (COLUMN_OF_A_TILE, "(48,32):(32,1)", {"dtype": "f32", "tile": (32, 32)}, "do not divide the 48 x 32"),
        (
            COLUMN_OF_A_TILE,
            "(16,32):(32,1)",
            {"dtype": "f32"},
            "access position 1023, which is not in a tile",
        ),
        ("(24,4):(1,24)", "(24,4):(4,1)", {"dtype": "f32"}, "24 threads are not whole warps"),
        ("(32,32,2):(1,32,0)", "(32,32):(32,1)", {"dtype": "f32"}, "has 3 modes"),
        (COLUMN_OF_A_TILE, "1024:1", {"dtype": "f32"}, "has one mode"),
        (COLUMN_OF_A_TILE, "(?,32):(32,1)", {"dtype": "f32"}, "must be known"),
        (
            COLUMN_OF_A_TILE,
            "(32,32):(32,1)",
            {"dtype": "f32", "op": "fetch"},
            "'fetch' is unknown. Use one of load",
        ),
    ],
)
def test_what_does_not_fit_is_said(part, shared, options, said):
    with pytest.raises(LayoutError, match=re.escape(said)):
        check_part(part, shared, **options)


def test_objects_of_the_dsl():
    pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
    from tests.analysis.foreign_dsl import traced

    found = traced()
    assert (found["ldmatrix"].wavefronts, found["ldmatrix"].ideal) == (256, 256)
    assert found["ldmatrix, plain"].ways == 8
    assert (found["mma"].ways, found["mma, plain"].ways) == (1, 8)
    assert found["copy"] == found["copy, printed"]
    assert found["copy"].ways == 1
