"""Pictures of groups, by hand: tiles of 4 rows of groups of 5, 0, 8 and 3 rows, and two rows after the last group."""

from __future__ import annotations

import pytest

from cutegemm.build import sm90_plan
from cutegemm.draw import draw, groups_picture
from cutegemm.draw.groups import schedule_picture
from cutegemm.draw.html import page_data
from cutegemm.errors import UnsupportedError
from cutegemm.plan import Operands, Problem
from tests.grouped import form

ENDS = [5, 5, 13, 16]


def test_work_tiles_of_rows() -> None:
    """5 rows are 2 tiles, for each of 3 along N: 0 to 5. Tiles 1, 3 and 5 have one row. 8 rows are tiles 6 to 11."""
    grid, _ = groups_picture(ENDS, 18).grids
    labels = grid.labels.tolist()
    assert labels[:4] == [["0", "2", "4"]] * 4
    assert labels[4] == ["1", "3", "5"]
    assert labels[5:13] == [["6", "8", "10"]] * 4 + [["7", "9", "11"]] * 4
    assert labels[13:] == [["12", "13", "14"]] * 3 + [["", "", ""]] * 2
    assert grid.owners[0][:, 0].tolist() == [0] * 5 + [2] * 8 + [3] * 3 + [-1] * 2


def test_boxes_are_clipped_where_coordinates_are_not_negative() -> None:
    """The second box of group 0 has its last row, at -1, and three rows after its end. Group 1 has no box."""
    _, grid = groups_picture(ENDS, 18).grids
    assert grid.row_ticks == ("0,0", "0,1", "2,0", "2,1", "3,0")
    assert grid.labels[1].tolist() == ["-1", "0", "1", "2"]
    assert grid.marks is not None
    assert ["".join(row) for row in grid.marks] == ["xxxx", "x...", "xxxx", "xxxx", "xxx."]


def test_no_rows_and_too_many() -> None:
    assert "0 rows, 2 groups" in draw(groups_picture([0, 0]), kind="text")
    with pytest.raises(UnsupportedError, match="groups_picture: 300 rows in 3 tiles along N; up to 256"):
        groups_picture([300])


@pytest.mark.parametrize(("name", "grid"), [("m", (2, 2, 4)), ("n", (2, 1, 4)), ("k", (8, 2, 4))])
def test_page_has_the_tiles_of_equal_groups(name: str, grid: tuple[int, int, int]) -> None:
    """4 groups of 125 rows, of 32 columns, or of any k."""
    plan = form(name)
    shown = page_data(plan, Problem(500 if name != "n" else 128, 128, 128, 4, plan.operands), None)["grid"]
    assert (shown["m"], shown["n"], shown["l"]) == grid


def test_schedule_by_hand() -> None:
    """Groups of 40, 0 and 70 rows and 2 tiles along N, tiles of 64 x 64: 2 and 4 work tiles for 4 CTAs."""
    operands = Operands.of("bf16", layout="nt", batched=True, groups="m")
    plan = sm90_plan(operands, tile=(64, 64, 64), ctas=4)
    problem = Problem(128, 128, 64, 3, plan.operands)
    picture = schedule_picture(plan, problem, [40, 40, 110])
    (grid,) = picture.grids
    assert grid.labels.tolist() == [["0", "0", "2", "2"], ["2", "2", "", ""]]
    assert grid.owners[1].tolist() == [[0, 1, 2, 3], [4, 5, -1, -1]]
    assert grid.colours is not None
    assert (grid.colours == -1).tolist() == [[False] * 4, [False, False, True, True]]
    assert "6 work tiles of 3 groups, 4 clusters of 1 CTA" in draw(picture, kind="text")
    assert "<svg" in draw(picture, kind="svg")
    assert schedule_picture(plan, problem, [0, 0, 0]).grids[0].rows == 0


def test_the_last_rounds_are_drawn() -> None:
    """8192 rows in tiles of 64 are 128 work tiles: 64 rounds of 2 CTAs. The last 16 are drawn."""
    operands = Operands.of("bf16", layout="nt", batched=True, groups="m")
    plan = sm90_plan(operands, tile=(64, 64, 64), ctas=2)
    picture = schedule_picture(plan, Problem(8192, 64, 64, 8, plan.operands))
    assert picture.grids[0].row_ticks == tuple(map(str, range(48, 64)))
    assert picture.notes == ("Other rounds are left out.",)
