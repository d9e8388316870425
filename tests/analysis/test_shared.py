"""Wavefronts: tables worked out by hand, then random accesses in lockstep with sets."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.analysis import PLAIN, UNIFORM_PAIRS, bank_conflicts, wavefronts
from cutegemm.analysis.accesses import Access, core_matrices
from cutegemm.analysis.foreign import check_part
from cutegemm.dtypes import bf16, f16
from cutegemm.errors import LayoutError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, make_identity_layout, tile_to_shape
from cutegemm.tile.smem_atoms import smem_atom
from tests.analysis import naive

LANES = np.arange(32)

# (what, bytes of each lane, bits, op, wavefronts, ideal): bank = byte / 4 % 32
BY_HAND = [
    ("32 words in a row lie in 32 banks", LANES * 4, 32, "load", 1, 1),
    ("a stride of 2 words uses the 16 even banks, each for lanes t and t + 16", LANES * 8, 32, "load", 2, 1),
    ("a stride of 4 words uses 8 banks, 4 lanes each", LANES * 16, 32, "store", 4, 1),
    ("a stride of 8 words uses 4 banks, 8 lanes each", LANES * 32, 32, "load", 8, 1),
    ("a stride of 32 words stays in bank 0", LANES * 128, 32, "load", 32, 1),
    ("a stride of 33 words moves on by a bank a lane", LANES * 132, 32, "load", 1, 1),
    ("a stride of 3 words: 3 and 32 have no common divisor", LANES * 12, 32, "store", 1, 1),
    ("one word for all is broadcast", LANES * 0, 32, "load", 1, 1),
    ("one word for all is one bank in a store too", LANES * 0, 32, "store", 1, 1),
    ("31 lanes in word 0, one in word 32, both of bank 0", np.where(LANES == 31, 128, 0), 32, "load", 2, 1),
    ("halves of words: lanes 2i and 2i + 1 share one", LANES * 2, 16, "load", 1, 1),
    ("bytes 64 apart: words 16 apart, banks 0 and 16, 16 lanes each", LANES * 64, 8, "load", 16, 1),
    ("64 bits in a row: a half-warp asks for 32 words", LANES * 8, 64, "load", 2, 2),
    ("64 bits, 2 apart: a half-warp spans 64 words, its banks twice", LANES * 16, 64, "load", 4, 2),
    ("64 bits, the same for all: both half-warps at once", LANES * 0, 64, "load", 1, 1),
    ("stores do not merge", LANES * 0, 64, "store", 2, 2),
    ("64 bits by pairs of lanes: 16 pairs ask for 32 words", LANES // 2 * 8, 64, "load", 1, 1),
    ("64 bits, lanes t and t ^ 2 alike", (LANES // 4 * 2 + LANES % 2) * 8, 64, "load", 1, 1),
    ("64 bits, lanes t and t + 16 alike: no pair that is looked at", LANES % 16 * 8, 64, "load", 2, 2),
    ("128 bits in a row: a quarter-warp asks for 32 words", LANES * 16, 128, "load", 4, 4),
    ("128 bits in a row, written", LANES * 16, 128, "store", 4, 4),
    ("128 bits, 2 apart: a quarter-warp spans 64 words", LANES * 32, 128, "load", 8, 4),
    ("128 bits, 8 apart: all 8 lanes of a quarter in 4 banks", LANES * 128, 128, "load", 32, 4),
    ("128 bits by pairs: 8 addresses of a half-warp ask for 32 words", LANES // 2 * 16, 128, "load", 2, 2),
    ("128 bits by eights: 4 addresses in a row", LANES // 8 * 16, 128, "load", 2, 2),
    ("128 bits by eights, 128 bytes apart: two of a half collide", LANES // 8 * 128, 128, "load", 4, 2),
    ("64 bits by pairs, 128 bytes apart: 16 words of a bank", LANES // 2 * 128, 64, "load", 16, 1),
    ("128 bits, 8 addresses in a row, four times over", LANES % 8 * 16, 128, "load", 4, 4),
    ("128 bits, the same for all", LANES * 0, 128, "load", 2, 2),
    ("8 rows of 16 bytes, 128 bytes apart: all in banks 0 to 3", LANES[:8] * 128, 128, "ldmatrix", 8, 1),
    ("8 rows of 16 bytes, 144 bytes apart: 9 times 4 banks on", LANES[:8] * 144, 128, "ldmatrix", 1, 1),
    ("8 rows of 16 bytes in a row", LANES[:8] * 16, 128, "stmatrix", 1, 1),
    ("4 matrices of 8 rows, 256 bytes apart", LANES * 256, 128, "stmatrix", 32, 4),
    ("2 matrices of rows in a row", LANES[:16] * 16, 128, "ldmatrix", 2, 2),
    ("cp.async of 16 bytes in a row", LANES * 16, 128, "cp.async", 4, 4),
    ("cp.async of 16 bytes, 2 apart: no two lanes are moved alike", LANES * 32, 128, "cp.async", 32, 4),
    ("cp.async of 16 bytes, reversed: XOR 7 for all", LANES[::-1] * 16, 128, "cp.async", 4, 4),
    ("cp.async of 4 bytes: equal addresses do not merge", LANES * 0, 32, "cp.async", 32, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("addresses", "bits", "op", "want", "ideal"),
    [row[1:] for row in BY_HAND],
    ids=[row[0] for row in BY_HAND],
)
def test_by_hand(addresses, bits, op, want, ideal):
    total, least = wavefronts([addresses], bits, op=op)
    assert (int(total[0]), int(least[0])) == (want, ideal)


def test_plain_rules_never_merge():
    assert wavefronts([LANES * 0], 128, rules=PLAIN)[0].tolist() == [4]
    assert wavefronts([LANES // 2 * 8], 64, rules=PLAIN)[0].tolist() == [2]


def test_cp_async_reads_count_too():
    """Lanes write 32 words in a row, but read 4 rows of 8 words that start in the same bank: 4 wavefronts."""
    rows = LANES // 8 * 4096 + LANES % 8 * 4
    assert wavefronts([LANES * 4], 32, op="cp.async", sources=[rows])[0].tolist() == [4]
    assert wavefronts([LANES * 4], 32, op="cp.async", sources=[LANES * 4])[0].tolist() == [1]


def copied(moves):
    """Wavefronts of eight copies of 16 bytes, each (line, chunk) to (line, chunk)."""
    read, written = ([[(line * 8 + chunk) * 16 for line, chunk in side]] for side in zip(*moves, strict=True))
    return int(wavefronts(written, 128, op="cp.async", sources=np.array(read))[0][0])


def test_two_copies_of_a_line_go_together_as_counted():
    """Which bits of the chunks differ, read and written; counted on an H200, the other six lanes alone."""
    together = {(1, 1), (2, 2), (2, 6), (4, 4), (6, 2), (6, 6)}
    alone = [((40 + lane, lane), (40 + lane, lane)) for lane in range(2, 8)]
    for source, read, target, written in itertools.product(range(8), range(1, 8), range(8), range(1, 8)):
        moves = [((8, source), (8, target)), ((8, source ^ read), (8, target ^ written)), *alone]
        assert copied(moves) == 8 - ((read, written) in together)
    for lines in ((9, 8), (8, 9), (9, 9)):
        assert copied([((8, 0), (8, 0)), ((lines[0], 1), (lines[1], 1)), *alone]) == 8


@pytest.mark.parametrize(
    ("moves", "counted"),
    [
        ("0>4 1>5 2>6 3>7 4>0 5>1 6>2 7>3", 1),  # four whole sectors
        ("2>6 6>2 4>0 0>4 5>1 7>3 1>5", 2),  # three whole sectors, and half of one
        ("1>5 2>6 5>1 6>2 7>3", 3),  # one whole; 1 and 5; 2
        ("7>4 6>5 3>0 5>6 0>3 4>7", 3),  # 7 6 5 4; 3; 0
        ("1>5 0>0 3>3 2>2 6>7 4>4 5>6 7>1", 6),  # 3 2; 0 4; 1; 5; 6; 7
        ("2>7 6>2 7>4 4>5 0>1 1>3 3>6 5>0", 6),  # 2 3; 4 0; 1; 5; 6; 7
        ("7>5 0>0 2>6 4>4 1>2 6>3 3>1 5>7", 4),  # 0 2 4; 3 5 7; 1; 6
    ],
)
def test_copies_of_a_line_as_counted(moves, counted):
    """On an H200, from one line to one; what goes together is in the comment."""
    found = [((8, int(move[0])), (8, int(move[2]))) for move in moves.split()]
    assert copied(found) == counted


def test_tma_never_conflicts():
    total, ideal = wavefronts([LANES * 16], 128, op="tma")
    assert total.tolist() == ideal.tolist() == [4]


# --- ldmatrix and stmatrix on tiles -------------------------------------------------------------------------


def rows(tile, op):
    """All 8x8 matrices of a tile, a row a lane."""
    return Access("rows", "a", op, core_matrices(tile, "k", 16), 16, 128, "tile")


ROWS = Layout((64, 64), (64, 1))

# (what, layout of a 64 x 64 tile of 16-bit elements, wavefronts for each matrix of 8 rows)
TILES = [
    ("rows of 128 bytes: 8 rows in the same 4 banks", ROWS, 8),
    ("rows of 128 bytes, swizzled: chunk c of row r at c ^ r", ComposedLayout(Swizzle(3, 3, 3), 0, ROWS), 1),
    ("2 bits swizzled: rows r and r + 4 collide", ComposedLayout(Swizzle(2, 3, 3), 0, ROWS), 2),
    ("1 bit swizzled: rows of one parity collide", ComposedLayout(Swizzle(1, 3, 3), 0, ROWS), 4),
    ("rows of 144 bytes: 9 chunks on, so 1 chunk on among the 8 of the banks", Layout((64, 64), (72, 1)), 1),
    ("rows of 160 bytes: 2 chunks on: 4 different of 8", Layout((64, 64), (80, 1)), 2),
    ("rows of 192 bytes: 4 chunks on: 2 different", Layout((64, 64), (96, 1)), 4),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "ways"), [row[1:] for row in TILES], ids=[row[0] for row in TILES])
@pytest.mark.parametrize("op", ["ldmatrix", "stmatrix"])
def test_matrices(layout, ways, op):
    found = rows((64, 64), op).cost(layout)
    assert (found.ideal, found.wavefronts) == (64, 64 * ways)
    assert (found.worst is None) == (ways == 1)
    if ways > 1:
        assert found.worst.ways == ways


# The study in shared/seeds/001: stmatrix of a 128 x 128 tile of 16-bit elements; rows of 256 bytes.
STMATRIX = [
    ("naive", Layout((128, 128), (128, 1)), 8),
    ("padded by 8 elements", Layout((128, 128), (136, 1)), 1),
    (
        "swizzled: two 128-byte atoms side by side",
        tile_to_shape(smem_atom(bf16, "k", "128B"), (128, 128), (0, 1)),
        1,
    ),
]


@pytest.mark.parametrize(("layout", "ways"), [row[1:] for row in STMATRIX], ids=[row[0] for row in STMATRIX])
def test_stmatrix_of_the_pingpong_study(layout, ways):
    found = rows((128, 128), "stmatrix").cost(layout)
    assert found.wavefronts == found.ideal * ways


@pytest.mark.parametrize("kind", ["interleave", "32B", "64B", "128B"])
@pytest.mark.parametrize("major", ["k", "mn"])
def test_wgmma_reads_its_own_atoms_without_conflicts(kind, major):
    layout = tile_to_shape(smem_atom(f16, major, kind), (64, 64), (0, 1))
    access = Access("read A", "a", "wgmma", core_matrices((64, 64), major, 16), 16, 128, "k-tile")
    assert access.cost(layout).conflicts == 0


# --- bare layouts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("access_bits", "form", "requests"), [(None, 4, 1), (128, 4, 1), (64, 2, 2), (32, 1, 4)])
@pytest.mark.parametrize("op", ["ldmatrix", "stmatrix"])
def test_every_function_counts_the_same_form_of_ldmatrix(op, access_bits, form, requests):
    """32 rows of 128 bytes without a swizzle: in each matrix 8 rows meet in the same banks."""
    plain, rows = Layout((128, 64), (64, 1)), Layout((32, 8), (1, 128))
    found = bank_conflicts(plain, rows, element_bits=16, op=op, access_bits=access_bits)
    assert found == check_part(rows, plain, "bf16", op=op, access_bits=access_bits)
    assert (found.form, found.requests, found.wavefronts, found.ideal) == (f"{op}.x{form}", requests, 32, 4)


def test_lanes_that_repeat_rows_make_a_smaller_ldmatrix():
    """Lanes 8 to 31 repeat the addresses of lanes 0 to 7, as in the source layout of CuTe's SM75_U32x1_LDSM_N."""
    repeated = Layout(((8, 4), 8), ((1, 0), 128))
    found = check_part(repeated, Layout((128, 64), (64, 1)), "bf16", op="ldmatrix")
    assert (found.form, found.requests, found.wavefronts, found.ideal) == ("ldmatrix.x1", 1, 8, 1)


@pytest.mark.parametrize("access_bits", [16, 48, 256])
def test_a_form_of_ldmatrix_that_is_not_known(access_bits):
    with pytest.raises(LayoutError, match=r"Use 32 for \.x1, 64 for \.x2 or 128 for \.x4"):
        check_part("(32,8):(1,128)", "(128,64):(64,1)", "bf16", op="ldmatrix", access_bits=access_bits)


def test_bank_conflicts_of_a_transposed_tile():
    columns = Layout((32, 32), (1, 32))  # lane t reads element (t, v): the tile is walked by columns
    row_major = Layout((32, 32), (32, 1))
    assert bank_conflicts(row_major, columns, element_bits=32).wavefronts == 32 * 32
    assert bank_conflicts(Layout((32, 32), (33, 1)), columns, element_bits=32).conflicts == 0
    swizzled = ComposedLayout(Swizzle(5, 0, 5), 0, row_major)
    assert bank_conflicts(swizzled, columns, element_bits=32).conflicts == 0


def test_the_worst_collision_names_lanes_banks_and_words():
    found = bank_conflicts(Layout((8, 8), (8, 1)), Layout((32, 2), (1, 32)), element_bits=32)
    # lane t at (t % 8, t / 8): words 8 * (t % 8) + t / 8, so lanes t, t + 4 share a bank
    assert found.worst.ways == 2
    assert found.worst.lanes == (0, 4)
    assert found.worst.words == (0, 128)
    assert found.worst.bank == 0
    assert str(found.worst) == "2-way: lanes 0, 4 of warp 0 in bank 0"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wavefronts([LANES * 4], 24), "bits = 24 is not one of"),
        (lambda: wavefronts([LANES * 4], 32, op="jump"), "'jump'"),
        (lambda: wavefronts([LANES * 4], 64), "lane 1 of request 0 accesses byte 4, which is not a multiple of 8"),
        (lambda: wavefronts([LANES * 4], 32, op="ldmatrix"), "accesses a row of 128"),
        (lambda: wavefronts(LANES, 32), "(requests, lanes)"),
        (
            lambda: bank_conflicts(Layout(64, 2), Layout((32, 2), (2, 1)), element_bits=32, access_bits=64),
            "not contiguous",
        ),
        (lambda: bank_conflicts(Layout(96), Layout((48, 2), (2, 1)), element_bits=32), "not whole warps"),
        (
            lambda: bank_conflicts(Layout((8, 8)), Layout((32, 4)), element_bits=32),
            "tv accesses elements 0 to 127; the tile (8,8):(1,8) has 64",
        ),
        (
            lambda: bank_conflicts(make_identity_layout((8, 8)), Layout((32, 2)), element_bits=32),
            "returns coordinates",
        ),
        (lambda: bank_conflicts(Layout(64), np.arange(64), element_bits=32), "(threads, values)"),
    ],
)  # fmt: skip
def test_refusals(call, message):
    with pytest.raises(LayoutError, match=message.replace("(", r"\(").replace(")", r"\)")):
        call()


# --- lockstep -----------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    data=st.data(),
    bits=st.sampled_from([8, 16, 32, 64, 128]),
    op=st.sampled_from(["load", "store", "ldmatrix", "stmatrix"]),
)
def test_lockstep_with_sets(data, bits, op):
    if op.endswith("matrix"):
        bits = 128
    lanes = data.draw(st.sampled_from([8, 16, 32])) if op.endswith("matrix") else 32
    reach = data.draw(st.sampled_from([1, 4, 64, 1000]))
    epi_stages = data.draw(
        st.lists(st.lists(st.integers(0, reach), min_size=lanes, max_size=lanes), min_size=1, max_size=4)
    )
    if data.draw(st.booleans()):
        mask = data.draw(st.sampled_from([1, 2, 4]))
        epi_stages = [[row[min(i, i ^ mask)] for i in range(lanes)] for row in epi_stages]
    table = np.array(epi_stages) * (bits // 8)
    total, ideal = wavefronts(table, bits, op=op, rules=UNIFORM_PAIRS)
    want = [naive.wavefronts(row, bits, op) for row in table.tolist()]
    assert list(zip(total.tolist(), ideal.tolist(), strict=True)) == want


@settings(max_examples=100, deadline=None)
@given(
    shift=st.integers(0, 50),
    epi_stages=st.lists(st.integers(0, 300), min_size=32, max_size=32),
    bits=st.sampled_from([32, 64, 128]),
    op=st.sampled_from(["load", "store", "cp.async"]),
)
def test_moving_all_lanes_by_whole_rounds_of_the_banks_changes_nothing(shift, epi_stages, bits, op):
    table = np.array([epi_stages]) * (bits // 8)
    sources = table if op == "cp.async" else None
    here = wavefronts(table, bits, op=op, sources=sources)[0]
    there = wavefronts(table + 128 * shift, bits, op=op, sources=sources)[0]
    assert here.tolist() == there.tolist()


@settings(max_examples=100, deadline=None)
@given(epi_stages=st.lists(st.integers(0, 300), min_size=32, max_size=32), bits=st.sampled_from([32, 64]))
def test_cp_async_lies_between_its_busier_side_and_both_sides_after_each_other(epi_stages, bits):
    write = np.array([epi_stages]) * (bits // 8)
    read = np.arange(32)[None] * (bits // 8)
    both = int(wavefronts(write, bits, op="cp.async", sources=write)[0][0])
    alone = int(wavefronts(write, bits, op="cp.async", sources=read)[0][0])
    stored = int(wavefronts(write, bits, op="store")[0][0])
    assert stored <= alone <= both <= 2 * alone


@settings(max_examples=100, deadline=None)
@given(epi_stages=st.lists(st.integers(0, 300), min_size=32, max_size=32))
def test_cp_async_of_16_bytes_costs_what_its_write_costs_or_more(epi_stages):
    write = np.array([epi_stages]) * 16
    total = int(wavefronts(write, 128, op="cp.async", sources=np.arange(32)[None] * 16)[0][0])
    assert int(wavefronts(write, 128, op="store")[0][0]) <= total <= 32
