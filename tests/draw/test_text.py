"""Pictures as text, each against a grid that was written by hand or by brute force."""

from __future__ import annotations

import re

import pytest

from cutegemm.build import simt_plan
from cutegemm.draw import (
    Timeline,
    composition_picture,
    draw,
    layout_picture,
    slice_picture,
    swizzle_picture,
    tv_picture,
)
from cutegemm.draw.text import text
from cutegemm.dtypes import f16
from cutegemm.layout import Layout, Swizzle, make_composed_layout, make_identity_layout
from cutegemm.plan import Problem
from cutegemm.tile.mma_atoms import mma_sync
from cutegemm.tile.raster import Raster

HIERARCHICAL = """\
layout: ((2,4),(2,2,2)):((1,4),(2,16,32))
     0  1    2  3    4  5    6  7
  ┌───────┬───────╥───────┬───────┐
0 │  0  2 │ 16 18 ║ 32 34 │ 48 50 │
1 │  1  3 │ 17 19 ║ 33 35 │ 49 51 │
  ├───────┼───────╫───────┼───────┤
2 │  4  6 │ 20 22 ║ 36 38 │ 52 54 │
3 │  5  7 │ 21 23 ║ 37 39 │ 53 55 │
  ├───────┼───────╫───────┼───────┤
4 │  8 10 │ 24 26 ║ 40 42 │ 56 58 │
5 │  9 11 │ 25 27 ║ 41 43 │ 57 59 │
  ├───────┼───────╫───────┼───────┤
6 │ 12 14 │ 28 30 ║ 44 46 │ 60 62 │
7 │ 13 15 │ 29 31 ║ 45 47 │ 61 63 │
  └───────┴───────╨───────┴───────┘
"""


def cells(drawn: str) -> list[list[str]]:
    """The cells of the grids of a text, row by row."""
    return [
        re.sub(r"[│║]", " ", line.split("│", 1)[1]).split()
        for line in drawn.splitlines()
        if line.rstrip().endswith("│")
    ]


def test_the_hierarchy_is_in_the_lines() -> None:
    assert draw(Layout(((2, 4), (2, 2, 2)), ((1, 4), (2, 16, 32))), kind="text") == HIERARCHICAL


@pytest.mark.parametrize(
    "layout",
    [
        Layout((4, 8), (8, 1)),
        Layout(((2, 2), (4, 2)), ((1, 8), (2, 16))),
        Layout((3, 5), (-5, 1)),
        Layout((3, 5), (0, 1)),
        make_composed_layout(Swizzle(2, 1, 3), 5, Layout((8, 16), (16, 1))),
    ],
)
def test_every_cell_is_its_offset(layout: Layout) -> None:
    rows, cols = layout.outer.shape if hasattr(layout, "outer") else (layout[0].size(), layout[1].size())
    table = cells(draw(layout, kind="text"))
    assert table == [[str(layout(r, c)) for c in range(cols)] for r in range(rows)]


def test_rank_one_goes_on_in_the_next_row() -> None:
    table = cells(draw(Layout(70, 3), kind="text"))
    assert [x for row in table for x in row] == [str(3 * i) for i in range(70)]
    assert [len(row) for row in table] == [16, 16, 16, 16, 6]
    assert [len(row) for row in cells(draw(Layout(70, 3), kind="text", width=200))] == [32, 32, 6]


def test_a_row_of_rank_one_is_a_prefix_of_its_extents() -> None:
    table = cells(draw(Layout(((4, 6, 3),), ((1, 4, 100),)), kind="text"))
    assert [len(row) for row in table] == [24, 24, 24]


def test_rank_zero_and_empty_layouts() -> None:
    assert cells(draw(Layout((), ()), kind="text")) == [["0"]]
    assert "empty" in draw(Layout((4, 0)), kind="text")


def test_rank_above_two_is_sliced() -> None:
    layout = Layout((2, 3, 2, 5), (1, 2, 6, 12))
    drawn = draw(layout, kind="text", slices=3)
    assert [title for title in re.findall(r"\(_, _, \d, \d\)", drawn)] == [
        "(_, _, 0, 0)",
        "(_, _, 1, 0)",
        "(_, _, 0, 1)",
    ]
    assert "7 of 10 slices are left out" in drawn


def test_slices_below_each_other_where_they_do_not_fit() -> None:
    narrow = draw(Layout((2, 3, 2)), kind="text", width=24)
    assert cells(narrow) == [["0", "2", "4"], ["1", "3", "5"], ["6", "8", "10"], ["7", "9", "11"]]


@pytest.mark.parametrize("width", [40, 80, 119])
def test_a_large_layout_is_elided_and_fits(width: int) -> None:
    drawn = text(layout_picture(Layout((4096, 4096))), width=width, rows=10)
    grid = [line for line in drawn.splitlines() if "│" in line or "─" in line]
    assert max(map(len, grid)) <= width
    table = cells(drawn)
    assert len(table) == 10
    assert table[-1][-1] == str(4096 * 4096 - 1)
    shown = len(table[0]) - 2
    assert "rows 8 .. 4094 are left out" in drawn
    assert f"columns {shown} .. 4094 are left out" in drawn


def test_coordinates() -> None:
    table = cells(draw(make_identity_layout((2, 3)), kind="text"))
    assert table == [["0,0", "0,1", "0,2"], ["1,0", "1,1", "1,2"]]


def test_a_thread_value_layout_says_who_holds_each_element() -> None:
    layout = mma_sync(f16, 16).layout_c_tv
    drawn = re.findall(r"T(\d+) V(\d)", text(tv_picture(layout, (16, 8))))
    assert len(drawn) == 128
    for place, (thread, value) in enumerate(drawn):
        assert layout(int(thread), int(value)) == place // 8 + 16 * (place % 8)


def test_an_atom_has_b_above_c_and_a_beside_it() -> None:
    wide, narrow = (draw(mma_sync(f16, 8), kind="text", width=w) for w in (150, 40))
    last_b = wide.splitlines().index(next(line for line in wide.splitlines() if line.startswith(" " * 60)))
    assert last_b < next(i for i, line in enumerate(wide.splitlines()) if line.startswith("m\\k"))
    assert re.findall(r"T(\d+) V(\d)", narrow)
    assert "m\\k" in narrow
    assert "k\\n" in narrow
    # row 3 of C: lanes 12 to 15, two values each (PTX ISA, "Matrix Fragments for mma.m16n8k8")
    assert "12.0 12.1 13.0 13.1 14.0 14.1 15.0 15.1" in draw(mma_sync(f16, 16), kind="text", width=150)


def test_a_short_cell_is_explained() -> None:
    assert "12.3: thread 12, value 3" in draw(mma_sync(f16, 16), kind="text", width=150)


def test_a_raster_gives_the_order_and_the_waves() -> None:
    table = cells(draw(Raster("grouped_m", 2), kind="text", grid=(5, 6), ctas_per_wave=8))
    for m, row in enumerate(table):
        for n, cell in enumerate(row):
            position = next(i for i in range(30) if Raster("grouped_m", 2).tile(i, 5, 6)[:2] == (m, n))
            assert cell == f"{position}{'abcd'[position // 8]}"


def test_a_swizzle_before_and_after() -> None:
    drawn = text(swizzle_picture(Swizzle(2, 4, 3)))
    assert "0 │  0  1  2  3  4  5  6  7 │" in drawn
    assert "1 │  9  8 11 10 13 12 15 14 │" in drawn
    assert "unit of 16 elements" in drawn


def test_a_slice_and_a_composition_mark_what_they_pick() -> None:
    sliced = text(slice_picture(Layout((4, 6)), (2, None)))
    assert re.findall(r"(\d+)\*", sliced) == ["2", "6", "10", "14", "18", "22"]
    composed = text(composition_picture(Layout((4, 4), (4, 1)), Layout((2, 2), (1, 4))))
    assert re.findall(r"(\d+)\*", composed) == ["0", "1", "4", "5"]
    assert "(4,4):(4,1) o (2,2):(1,4) = (2,2):(4,1)" in composed


def test_a_plan_is_its_hierarchy_and_two_maps() -> None:
    plan, problem = simt_plan(), Problem(512, 512, 64)
    drawn = draw(plan, kind="text", problem=problem)
    assert drawn.startswith(plan.describe(problem))
    assert "warps of D, 128 x 128" in drawn
    assert re.search(r"64 │  1  3  5  7 │", drawn)


def test_a_timeline() -> None:
    drawn = draw(
        Timeline([("load", "tma", 0, 0, 4), ("mma", "wait full", 0, 0, 4), ("mma", "wgmma", 0, 4, 8)]),
        kind="text",
    )
    assert "load │0000    │" in drawn
    assert " mma │....0000│" in drawn


def test_no_colour_codes() -> None:
    for thing in (Layout((4, 4)), mma_sync(f16, 16), simt_plan()):
        assert "\x1b" not in draw(thing, kind="text")


@pytest.mark.parametrize(
    ("layout", "last"),
    [
        (Layout(10**10), 10**10 - 1),
        (Layout((10**10, 3), (3, 1)), 3 * 10**10 - 1),
        (Layout((4, 8), (1, 10**20)), 7 * 10**20 + 3),
        # 9999999999 = 0x2540be3ff: bits 6 to 8 are 7, and 7 XOR 7 = 0 in bits 3 to 5
        (make_composed_layout(Swizzle(3, 3, 3), 0, Layout((10**10,), (1,))), 0x2540BE3C7),
    ],
    ids=str,
)
def test_layouts_that_no_memory_holds_are_shown_in_part(layout, last):
    said = draw(layout, kind="text", width=100)
    assert str(last) in said
    assert "left out" in said
