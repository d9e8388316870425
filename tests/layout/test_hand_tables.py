"""Cases computed by hand: each row says how its answer was found, or which figure or table shows it.

[algebra] is CuTe's document on the layout algebra (CUTLASS, media/docs/cpp/cute/02_layout_algebra.md),
[layout] the one on layouts (01_layout.md), [PTX] the PTX ISA's fragment tables. A text stands for the layout
that it prints as, a list for the table of offsets.
"""

from __future__ import annotations

import pytest

import cutegemm.layout as cg
from cutegemm.layout import ComposedLayout, E, Layout, Swizzle


def L(shape, stride=None):
    return Layout(shape, stride)


def composed(bits, base, shift, shape, stride):
    return ComposedLayout(Swizzle(bits, base, shift), 0, Layout(shape, stride))


ROWS = [
    # Layouts as functions
    (lambda: L((2, 3), (3, 1)), [0, 3, 1, 4, 2, 5], "3i + j with i fastest: 0, 3 | 1, 4 | 2, 5"),
    (
        lambda: L((2, (2, 2)), (4, (2, 1))),
        [0, 4, 2, 6, 1, 5, 3, 7],
        "[layout] 2x4 `s2xh4`: rows 0 2 1 3, 4 6 5 7",
    ),
    (lambda: L((4, 2), (1, 0)), [0, 1, 2, 3, 0, 1, 2, 3], "stride 0 repeats the column"),
    (lambda: L(4, -2), [0, -2, -4, -6], "-2i"),
    (lambda: L((3, (2, 2))), "(3,(2,2)):(1,(3,6))", "running products 1, 3, 3*2"),
    (lambda: L((1, 4, 1)), "(1,4,1):(0,1,0)", "an extent of 1 has stride 0"),
    (lambda: L((4, 8), (8, 1))(13), 11, "13 = 1 + 4*3, the coordinate (1, 3): 8 + 3"),
    (lambda: L((3, (2, 4)), (1, (3, 6)))(2, 5), 17, "5 = (1, 2) in (2, 4): 2 + 3 + 2*6"),
    (lambda: L((4, 8), (8, 1))(2, 10), 26, "past the end the last mode runs on: 2*8 + 10"),
    (lambda: L((4, 8), (8, 1)).cosize(), 32, "1 + 3*8 + 7*1"),
    (lambda: L((3, 2), (5, 1)).cosize(), 12, "1 + 2*5 + 1"),
    (lambda: L((4, 2), (-1, 4)).cosize(), 8, "1 + 3*|-1| + 4"),
    (lambda: L((0, 4)).cosize(), 0, "nothing is reached"),
    (
        lambda: cg.composition(L((5, 6, 4), (1, 60, 5)), L((4, 1), (16, -1))),
        "((2,2),1):((181,7),0)",
        "16 = 1 + 5*3: 1 + 180; 32 = 2 + 5*6: 2 + 5; 48: the sum; a mode of 1 never moves, backwards either",
    ),
    (lambda: L((4, 8), (8, 1))(None, 3), "(4):(8)", "the column 3 keeps mode 0"),
    (
        lambda: L((4, (2, 4)), (8, (1, 2))).slice((None, (1, None))),
        (L((4, 4), (8, 2)), 1),
        "digit 1 of stride 1",
    ),
    # Coordinates
    (lambda: cg.idx2crd(13, (4, (2, 3))), (1, (1, 1)), "13 = 1 + 4*3; 3 = 1 + 2*1"),
    (lambda: cg.crd2idx((1, (1, 2)), (4, (2, 3))), 21, "1 + 4*(1 + 2*2)"),
    (lambda: cg.crd2crd((1, (1, 1)), (4, (2, 3)), (3, 8)), (1, 4), "13 = 1 + 3*4"),
    (lambda: cg.make_identity_layout((4, (2, 3)))(13), (1, (1, 1)), "the coordinate of 13, as above"),
    (lambda: cg.make_identity_layout((4, 8)), "(4,8):(1@0,1@1)", "one basis vector a mode"),
    (lambda: L((2, 3), (2 * E(1), E(0)))(1, 2), (2, 2), "1*(0, 2) + 2*(1, 0)"),
    # Construction
    (
        lambda: cg.make_ordered_layout((4, 2, 3), (1, 0, 2)),
        "(4,2,3):(2,1,8)",
        "mode 1 first: 1; then 2; then 2*4",
    ),
    (
        lambda: cg.make_ordered_layout((4, 2, 3), (0, 0, 1)),
        "(4,2,3):(1,4,8)",
        "a tie goes left to right: 1, 4, 8",
    ),
    (
        lambda: cg.make_ordered_layout((2, (3, 4)), (1, 0)),
        "(2,(3,4)):(12,(1,3))",
        "the nested mode first: 1, 3; then 12",
    ),
    (
        lambda: cg.make_layout_like(L((4, 8, 2), (20, 0, 1))),
        "(4,8,2):(2,0,1)",
        "1 < 20: the 2 first, the 0 stays",
    ),
    (lambda: cg.make_layout_like(L((3, 5), (7, 1))), "(3,5):(5,1)", "the 5 first, then 5 apart"),
    # Coalesce and filter
    (lambda: cg.coalesce(L((2, (1, 6)), (1, (6, 2)))), "12:1", "[algebra] 1 goes; 2*1 = 2 merges 2 and 6"),
    (
        lambda: cg.coalesce(L((2, (1, 6)), (1, (6, 2))), (1, 1)),
        "(2,6):(1,2)",
        "[algebra] by mode: each by itself",
    ),
    (lambda: cg.coalesce(L((2, 3, 4), (12, 4, 1))), "(2,3,4):(12,4,1)", "2*12 and 3*4 are not next strides"),
    (lambda: cg.coalesce(L((4, 2, 3), (1, 4, 16))), "(8,3):(1,16)", "4*1 = 4 merges, 8*1 = 8 is not 16"),
    (lambda: cg.coalesce(L((2, 3), (0, 0))), "6:0", "2*0 = 0 merges"),
    (lambda: cg.coalesce(L((1, 1), (5, 7))), "1:0", "nothing moves"),
    (lambda: cg.filter_zeros(L((2, 6, 3), (1, 2, 0))), "(2,6,1):(1,2,0)", "the 3 of stride 0 shrinks"),
    (lambda: cg.filter(L((2, 1, 6, 3), (1, 7, 2, 0))), "12:1", "3:0 and 1:7 go, 2:1 and 6:2 merge"),
    # Composition
    (
        lambda: cg.composition(L((6, 2), (8, 2)), L((4, 3), (3, 1))),
        "((2,2),3):((24,2),8)",
        "[algebra] example 1",
    ),
    (lambda: cg.composition(L(20, 2), L((5, 4), (4, 1))), "(5,4):(8,2)", "[algebra] example 2: twice B"),
    (
        lambda: cg.composition(L((10, 2), (16, 4)), L((5, 4), (1, 5))),
        "(5,(2,2)):(16,(80,4))",
        "[algebra] example 3",
    ),
    (
        lambda: cg.composition(L((12, (4, 8)), (59, (13, 1))), (L(3, 4), L(8, 2))),
        "(3,(2,4)):(236,(26,1))",
        "[algebra] by mode: 4*59; every second of (4,8):(13,1)",
    ),
    (
        lambda: cg.composition(L((12, (4, 8)), (59, (13, 1))), (3, 8)),
        "(3,(4,2)):(59,(13,1))",
        "[algebra] by mode with a shape",
    ),
    (lambda: cg.composition(L((4, 8), (8, 1)), L((2, 2), (1, 4))), [0, 8, 1, 9], "A at 0, 1, 4, 5"),
    (
        lambda: cg.composition(L((4, 6, 8), (2, 3, 5)), L(6, 12)),
        [0, 9, 5, 14, 10, 19],
        "12i = (0, 3(i % 2), i // 2)",
    ),
    (lambda: cg.composition(L((4, 8), (8, 1)), L(4, 0)), "4:0", "A(0) four times"),
    (lambda: cg.composition(L(8, 3), L(4, -1)), "4:-3", "one mode: 3 * -i"),
    (
        lambda: cg.composition(L((4, 8), (E(0), E(1))), L((2, 4), (2, 8))),
        "(2,4):(2@0,2@1)",
        "2 rows, 8 = 2 columns",
    ),
    (
        lambda: cg.composition(composed(2, 0, 2, (4, 4), (4, 1)), L(4, 4)),
        [0, 1, 2, 3],
        "row 0 of S<2,0,2> o (4,4):(4,1): its row bits are 0",
    ),
    # Complement
    (lambda: cg.complement(L(4, 1), 24), "6:4", "[algebra]"),
    (lambda: cg.complement(L(6, 4), 24), "4:1", "[algebra]"),
    (lambda: cg.complement(L((4, 6), (1, 4)), 24), "1:0", "[algebra] nothing is missing"),
    (lambda: cg.complement(L(4, 2), 24), "(2,3):(1,8)", "[algebra]"),
    (lambda: cg.complement(L((2, 4), (1, 6)), 24), "3:2", "[algebra]"),
    (lambda: cg.complement(L((2, 2), (1, 6)), 24), "(3,2):(2,12)", "[algebra]"),
    (
        lambda: cg.complement(L((2, 2), (1, 4)), 10),
        "(2,2):(2,8)",
        "gaps at 2; the period 8 rounds 10 up to 16",
    ),
    (lambda: cg.complement(L(3, 0), 5), "5:1", "one offset: all 5 are gaps"),
    (
        lambda: cg.complement(L((4, 6), (1, 6)), 64),
        "2:36",
        "rows of 4 at a pitch of 6 end at 36; 64 / 36 is 2",
    ),
    (
        lambda: cg.complement(L((4, 6), (1, 9)), 200),
        "(2,4):(4,54)",
        "9 has room for 2 rows of 4; 6 * 9 = 54; 200 / 54 is 4",
    ),
    (
        lambda: cg.logical_product(L((4, 8), (20, 2)), L((3, 2), (2, 1))),
        "((4,8),(3,2)):((20,2),(80,1))",
        "Cecka 2026, section 3.5.1: one more copy fits between steps of 2, the next ones are 4 * 20 further",
    ),
    (
        lambda: cg.blocked_product(L((8, 8), (9, 1)), L((2, 2))),
        "((8,2),(8,2)):((9,72),(1,144))",
        "8 rows at a pitch of 9 end at 72",
    ),
    (
        lambda: cg.tile_to_shape(L((8, 8), (9, 1)), (8, 8), (0, 1)),
        "((8,1),(8,1)):((9,0),(1,0))",
        "its own shape: one copy",
    ),
    (
        lambda: cg.logical_product(L((2, 2, 2), (1, 3, 11)), L(2)),
        "((2,2,2),2):((1,3,11),22)",
        "3 and 11 leave 1 and 5 offsets unused; the second copy starts at 2 * 11",
    ),
    # Inverses
    (lambda: cg.right_inverse(L((4, 8), (8, 1))), "(8,4):(4,1)", "offset 8a + b has the index a + 4b"),
    (lambda: cg.right_inverse(L((4, 2), (1, 8))), "4:1", "4 to 7 are not offsets"),
    (lambda: cg.right_inverse(L((4, 8), (2, 8))), "1:0", "1 is no offset"),
    (
        lambda: cg.right_inverse(L((2, 3, 2), (6, 2, 1))),
        "(2,3,2):(6,2,1)",
        "1: index 6; 2: index 2; 6: index 1",
    ),
    (lambda: cg.left_inverse(L((4, 8), (1, 5))), "(5,8):(1,4)", "a + 5b back to a + 4b; offset 4 is a gap"),
    (lambda: cg.left_inverse(L((4, 2), (2, 1))), "(2,4):(4,1)", "1 has the index 4, 2 the index 1"),
    (lambda: cg.left_inverse(L(3, 4)), "(4,3):(0,1)", "4i back to i, what lies between to 0"),
    (
        lambda: cg.left_inverse(L(((2, 2), (2, 4)), ((0, 2), (0, 4)))),
        "(2,2,4):(0,2,8)",
        "Cecka 2026, table 6: of the offsets 2a + 4b the first indices 2a + 8b",
    ),
    (
        lambda: cg.left_inverse(L(((2, 2), (2, 4)), ((0, 1), (0, 2)))),
        "(2,4):(2,8)",
        "Cecka 2026, table 6: of a + 2b the first index 2a + 8b",
    ),
    (
        lambda: cg.left_inverse(L((5, 2), (0, E(0)))),
        "(2):(5)",
        "mode 0 repeats: coordinate c has the first index 5c",
    ),
    (
        lambda: cg.nullspace(L((2, 3, 4), (0, 1, 0))),
        "(2,4):(1,6)",
        "modes 0 and 2, at index strides 1 and 2*3",
    ),
    # Common vectors
    (
        lambda: cg.max_common_vector(L((4, 8), (1, 4)), L((4, 8), (1, 8))),
        4,
        "the column of 4 is contiguous in both",
    ),
    (
        lambda: cg.max_common_layout(L((4, 8), (8, 1)), L((4, 8), (16, 1))),
        "8:4",
        "a row of 8, every 4th index",
    ),
    (
        lambda: cg.max_common_vector(L((4, 8), (8, 1)), L((4, 8), (1, 4))),
        1,
        "one runs along rows, one along columns",
    ),
    (lambda: cg.max_common_vector(L(6, 1), L((4, 3), (1, 8))), 4, "B jumps from 3 to 8"),
    # Divides
    (
        lambda: cg.logical_divide(L((4, 2, 3), (2, 1, 8)), L(4, 2)),
        "((2,2),(2,3)):((4,1),(2,8))",
        "[algebra] 1-D example: A o (4:2, (2,3):(1,8))",
    ),
    (
        lambda: cg.logical_divide(L((9, (4, 8)), (59, (13, 1))), (L(3, 3), L((2, 4), (1, 8)))),
        "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))",
        "[algebra] 2-D example",
    ),
    (
        lambda: cg.zipped_divide(L((9, (4, 8)), (59, (13, 1))), (L(3, 3), L((2, 4), (1, 8)))),
        "((3,(2,4)),(3,(2,2))):((177,(13,2)),(59,(26,1)))",
        "[algebra] the same, tiles and rests gathered",
    ),
    (lambda: cg.logical_divide(L(10, 1), 4), "(4,3):(1,4)", "10 by 4 rounds up: 3 tiles, the last runs over"),
    (
        lambda: cg.zipped_divide(L((4, 6), (6, 1)), (2, 3)),
        "((2,3),(2,2)):((6,1),(12,3))",
        "2 rows of 6; 3 columns",
    ),
    (lambda: cg.tiled_divide(L((4, 6), (6, 1)), (2, 3)), "((2,3),2,2):((6,1),12,3)", "the rest opened"),
    (lambda: cg.flat_divide(L((4, 6), (6, 1)), (2, 3)), "(2,3,2,2):(6,1,12,3)", "both opened"),
    (
        lambda: cg.zipped_divide(L((4, 6, 5), (30, 5, 1)), (2,)),
        "((2),(2,6,5)):((30),(60,5,1))",
        "modes beyond stay",
    ),
    # Products
    (
        lambda: cg.logical_product(L((2, 2), (4, 1)), 6),
        "((2,2),(2,3)):((4,1),(2,8))",
        "[algebra] 1-D example",
    ),
    (
        lambda: cg.logical_product(L((2, 2), (4, 1)), L((4, 2), (2, 1))),
        "((2,2),(4,2)):((4,1),(8,2))",
        "[algebra] gaps (2,4):(2,8) at 0, 2, 4, 6 and 0, 1: 8 apart and 2 apart",
    ),
    (
        lambda: cg.blocked_product(L((2, 5), (5, 1)), L((3, 4), (1, 3))),
        "((2,3),(5,4)):((5,10),(1,30))",
        "[algebra] figure of blocked_product: blocks of 10, columns of blocks 30",
    ),
    (
        lambda: cg.raked_product(L((2, 5), (5, 1)), L((3, 4), (1, 3))),
        "((3,2),(4,5)):((10,5),(30,1))",
        "[algebra] figure of raked_product: the same, interleaved",
    ),
    (lambda: cg.flat_product(L((2, 2)), L((3, 4))), "(2,2,3,4):(1,2,4,12)", "a block of 4; 3 of them: 12"),
    (lambda: cg.tiled_product(L((2, 2)), L((3, 4))), "((2,2),3,4):((1,2),4,12)", "the same, copies opened"),
    (lambda: cg.zipped_product(L(2, 2), L(4, 1)), "(2,(2,2)):(2,(1,4))", "into the gap at 1, then 4 further"),
    # Tiling and recasting
    (
        lambda: cg.tile_to_shape(L((2, 4), (4, 1)), (4, 8), (1, 0)),
        "((2,2),(4,2)):((4,16),(1,8))",
        "blocks of 8; mode 1 first: 8, then 16",
    ),
    (
        lambda: cg.tile_to_shape(L((2, 4), (4, 1)), (3, 8), (0, 1)),
        "((2,2),(4,2)):((4,8),(1,16))",
        "3 rounds up to 4",
    ),
    (
        lambda: cg.tile_to_shape(composed(3, 4, 3, (8, 64), (64, 1)), (128, 64, 4), (0, 1, 2)),
        "S<3,4,3> o 0 o ((8,16),(64,1),(1,4)):((64,512),(1,0),(0,8192))",
        "wgmma K_SW128: 16 atoms of 512 down M, a stage of 8192",
    ),
    (
        lambda: cg.recast_layout(32, 16, L((8, 64), (64, 1))),
        "(8,32):(32,1)",
        "two 16-bit neighbours are one of 32",
    ),
    (lambda: cg.recast_layout(8, 32, L((4, 2), (2, 1))), "(4,8):(8,1)", "each 32-bit element is 4 bytes"),
    (lambda: cg.recast_layout(32, 8, L(6)), "2:1", "6 bytes are in 2 words, the second half full"),
    (
        lambda: cg.recast_layout(32, 16, L((5, 4), (1, 6))),
        "(3,4):(1,3)",
        "rows of 5 at a pitch of 6 are 3 words each",
    ),
    (lambda: cg.recast_layout(16, 12, L(12)), "9:1", "12 * 12 bits are 9 * 16"),
    (lambda: cg.to_swizzled(L(4, 0)), "4:0", "no swizzle is needed"),
    (
        lambda: cg.recast_layout(64, 16, L((2, 8), (1, 2))),
        "(1,4):(1,1)",
        "pairs of pairs share 64 bits: 16/4",
    ),
    # Modes
    (
        lambda: cg.group_modes(L((4, 2, 3, 5)), 1, 3),
        "(4,(2,3),5):(1,(4,8),24)",
        "strides 1, 4, 8, 24 regrouped",
    ),
    (lambda: cg.select(L((4, 8, 3)), [2, 0]), "(3,4):(32,1)", "modes 2 and 0 of (1, 4, 32)"),
    (
        lambda: cg.dice(L((4, (2, 4)), (8, (1, 2))), (None, (1, 1))),
        "(2,4):(1,2)",
        "what the slice leaves out",
    ),
    (lambda: cg.flatten(L((4, (2, (3, 1))))), "(4,2,3,1):(1,4,8,0)", "leaves side by side"),
    (lambda: cg.prepend(L((4, 2)), L(3, 8)), "(3,4,2):(8,1,4)", "in front"),
    (lambda: cg.append(L((4, 2)), L(1, 0), 4), "(4,2,1,1):(1,4,0,0)", "two copies up to rank 4"),
    # Swizzles
    (lambda: Swizzle(3, 3, 3)(65 + 8), 65, "73 = bits 6, 3, 0: bit 6 flips bit 3"),
    (lambda: Swizzle(2, 0, -2)(3), 15, "bits 0, 1 flip bits 2, 3: 3 + 12"),
    (
        lambda: composed(2, 0, 2, (4, 4), (4, 1)),
        [0, 5, 10, 15, 1, 4, 11, 14, 2, 7, 8, 13, 3, 6, 9, 12],
        "row r, column c lies at 4r + (c xor r)",
    ),
    (
        lambda: composed(3, 3, 3, (8, 64), (64, 1))(3, 21),
        205,
        "row 3, chunk 2 xor 3 = 1, element 5: 192 + 8 + 5",
    ),
    (
        lambda: composed(3, 3, 3, (8, 64), (64, 1))(None, 8).offsets().tolist(),
        [8, 64, 152, 208, 296, 352, 440, 496],
        "chunk 1 of row r lies at chunk 1 xor r: 1, 0, 3, 2, 5, 4, 7, 6",
    ),
    (lambda: str(Swizzle(3, 3, 3).recast(16, 8)), "S<3,4,3>", "8 elements of 16 bits are 16 bytes"),
    # Fragments
    (
        lambda: L(((4, 8), (2, 2)), ((32, 1), (16, 8)))(5, 3),
        57,
        "[PTX] m16n8k16 C: lane 5, c3: row 1 + 8, column 2 + 1",
    ),
    (
        lambda: [L(((4, 8), (2, 2)), ((32, 1), (16, 8)))(31, v) for v in range(4)],
        [103, 119, 111, 127],
        "[PTX] lane 31: rows 7, 7, 15, 15 and columns 6, 7, 6, 7 of 16x8",
    ),
    (
        lambda: [L(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))(6, v) for v in range(8)],
        [65, 81, 73, 89, 193, 209, 201, 217],
        "[PTX] m16n8k16 A, lane 6: rows 1, 1, 9, 9; columns 4, 5, then 12, 13: row + 16*column",
    ),
    (
        lambda: cg.zipped_divide(L((128, 64), (64, 1)), (64, 32))((5, 7), (1, 1)),
        4455,
        "row 64 + 5, column 32 + 7: 69*64 + 39",
    ),
    (
        lambda: cg.local_partition(cg.make_identity_tensor((8, 8)), L((2, 4), (4, 1)), 5)[1, 1],
        (3, 5),
        "5 sits at (1, 1) of the 2x4; its next element is (2, 4) further",
    ),
    (
        lambda: cg.local_tile(cg.make_identity_tensor((10, 8, 3)), (4, 2, 1), (1, None, 2))[3, 1, 0, 3],
        (7, 7, 2),
        "row 4*1 + 3, column 2*3 + 1, plane 2",
    ),
    (lambda: cg.composition(L((4, 8), (8, 1)), (None, 4)), "(4,4):(8,1)", "mode 0 whole, 4 columns"),
    (lambda: cg.filter(L((4, 2), (0, 0))), "1:0", "one offset"),
    (lambda: cg.nullspace(L((4, 8), (8, 1))), "1:0", "no stride is 0"),
    # Coordinates in and out
    (
        lambda: cg.composition(L((4, 8), (8, 1)), L((8, 4), (E(1), E(0)))),
        "(8,4):(1,8)",
        "(x, y) -> row y, column x: the transpose of a row-major matrix",
    ),
    (
        lambda: cg.composition(L((4, (2, 4)), (8, (4, 1))), L((2, 4), (E(0), 2 * E(1)))),
        "(2,4):(8,1)",
        "columns 0, 2, 4, 6 are the coordinates (0, 0..3) of the nested mode: 0, 1, 2, 3",
    ),
    (
        lambda: cg.right_inverse(L((2, 4, 8), (4 * E(0), E(0), E(1)))),
        "((4,2),8):((2,1),8)",
        "row r = 4i + j stands at index i + 2j, so r = (j, i) of (4, 2); column c at 8c",
    ),
    (
        lambda: cg.left_inverse(L((4, 4), (2 * E(1), E(0)))),
        "(4,(2,4)):(4,(0,1))",
        "row r stands at 4r; column 2i at i, the odd ones between do not count",
    ),
    (
        lambda: cg.complement(L((4, 2), (E(0), 2 * E(1))), (8, 12)),
        "(2,(2,3)):(4@0,(1@1,4@1))",
        "rows 4.. again; columns 0 and 2 leave 1, then every 4 up to 12",
    ),
    (
        lambda: cg.zipped_divide(L((4, 8), (8, 1)), L((2, 2), (E(0), E(1)))),
        "((2,2),(2,4)):((8,1),(16,2))",
        "a tile of 2 rows and 2 columns; the next two rows lie 16 further, the next two columns 2",
    ),
    (
        lambda: cg.domain_offset((1, 2), cg.Tensor(None, L((4, 8), (8, 1))))[1, 1],
        19,
        "row 2, column 3: 2*8 + 3",
    ),
    (
        lambda: cg.domain_offset((1, 0), cg.Tensor(None, composed(2, 0, 2, (4, 4), (4, 1))))[1, 1],
        11,
        "row 2, column 1 lies at 4*2 + (1 xor 2)",
    ),
    (
        lambda: cg.make_layout_image_mask(L((2, 4)), (1, 0), mode=1),
        0b10101010,
        "CTAs (1, 0..3) of a cluster 2x4 have the ranks 1, 3, 5, 7",
    ),
    (
        lambda: cg.make_layout_image_mask(L((2, 4)), (1, 2), mode=0),
        0b110000,
        "CTAs (0..1, 2) have the ranks 4 and 5",
    ),
    # Nothing there
    (lambda: cg.composition(L((4, 8), (8, 1)), L((2, 0), (3, 5))), [], "no coordinate, so no offset"),
    (lambda: L((8589934593, 0), (1, 2**70)), [], "neither the extent nor the stride next to a 0 counts"),
]


@pytest.mark.parametrize(("compute", "want", "why"), ROWS, ids=[row[2] for row in ROWS])
def test_row(compute, want, why):
    got = compute()
    if isinstance(want, list) and not isinstance(got, list):
        got = got.offsets().tolist()
    elif isinstance(want, str):
        got = str(got)
    assert got == want
