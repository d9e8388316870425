"""SVGs taken apart again: text, colours and lines of each cell, sizes, and what must not be in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from cutegemm.build import simt_plan
from cutegemm.draw import (
    Picture,
    Timeline,
    composition_picture,
    draw,
    layout_picture,
    plan_picture,
    raster_picture,
    slice_picture,
    swizzle_picture,
    tiled_mma_picture,
)
from cutegemm.draw.cells import edges
from cutegemm.draw.figures import FIGURES, figures
from cutegemm.draw.layouts import banks
from cutegemm.draw.svg import svg
from cutegemm.dtypes import bf16, f16
from cutegemm.errors import LayoutError
from cutegemm.layout import E, Layout, Swizzle, make_composed_layout
from cutegemm.layout.stride import F2
from cutegemm.tile.copy_atoms import ldmatrix
from cutegemm.tile.mma_atoms import mma_sync, wgmma
from cutegemm.tile.raster import Raster

NAME = "{http://www.w3.org/2000/svg}"
MOVE = re.compile(r"m(-?\d+)\s?(-?\d+)([hv])(\d+)")


class Drawn:
    """One grid of an SVG."""

    def __init__(self, group: ElementTree.Element) -> None:
        self.group = group
        self.rows, self.cols = int(group.get("data-rows", 0)), int(group.get("data-cols", 0))
        self.cell_w, self.cell_h = map(int, group.get("data-cell", "").split())

    def texts(self) -> dict[tuple[int, int], list[str]]:
        """By cell, from the top line down."""
        out: dict[tuple[int, int], list[tuple[float, str]]] = {}
        for kind in ("cell", "two", "low"):
            for part in self.group.iter(f"{NAME}g"):
                if part.get("class") == kind:
                    for x, y, text in placed(part):
                        out.setdefault((int(y // self.cell_h), int(x // self.cell_w)), []).append((y, text))
        return {cell: [t for _, t in sorted(found)] for cell, found in out.items()}

    def colours(self) -> np.ndarray:
        """The palette index of each cell, -1 for none; a cell that is painted twice fails."""
        out = np.full((self.rows, self.cols), -1)
        (cells,) = [g for g in self.group.iter(f"{NAME}g") if g.get("class") == "cells"]
        for path in cells:
            x = y = 0
            d = path.get("d", "")
            assert MOVE.sub("", d) == ""
            for dx, dy, way, length in MOVE.findall(d):
                x, y, n = x + int(dx), y + int(dy), int(length)
                part = out[y, x : x + n] if way == "h" else out[y : y + n, x]
                assert len(part) == n
                assert (part == -1).all()
                part[:] = int(path.get("class", "")[1:])
                x, y = (x + n, y) if way == "h" else (x, y + n)
        return out

    def lines(self, level: int) -> set[tuple[str, int, int]]:
        """Cell edges with a line of a weight: ("v", row, column) left of a cell, ("h", ...) above it."""
        out = set()
        for path in self.group.iter(f"{NAME}path"):
            if f"l{level}" in path.get("class", "").split():
                for x, y, way, length in re.findall(r"M(\d+) (\d+)([vh])(\d+)", path.get("d", "")):
                    c, r = int(x) // self.cell_w, int(y) // self.cell_h
                    for i in range(int(length) // (self.cell_h if way == "v" else self.cell_w)):
                        out.add((way, r + i, c) if way == "v" else (way, r, c + i))
        return out


def placed(group: ElementTree.Element, top: float = 0) -> Iterator[tuple[float, float, str]]:
    """Yield the texts of a group as (x, y, content), also those of groups in it that are shifted down."""
    for node in group:
        if node.tag == f"{NAME}text":
            yield float(node.get("x", 0)), top + float(node.get("y", 0)), node.text or ""
        elif node.tag == f"{NAME}g":
            shift = re.fullmatch(r"translate\(0 ([\d.]+)\)", node.get("transform", "translate(0 0)"))
            yield from placed(node, top + float(shift[1])) if shift else ()


def parsed(picture: Picture | str) -> tuple[ElementTree.Element, list[Drawn]]:
    root = ElementTree.fromstring(picture if isinstance(picture, str) else svg(picture))
    return root, [Drawn(g) for g in root.iter(f"{NAME}g") if g.get("class") == "grid"]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize(
    "layout",
    [
        Layout((8, 8), (8, 1)),
        Layout(((2, 4), (2, 2, 2)), ((1, 4), (2, 16, 32))),
        Layout((16, 8), (9, 1)),
        make_composed_layout(Swizzle(2, 2, 3), 0, Layout((8, 32), (32, 1))),
    ],
)
def test_text_and_bank_of_every_cell(layout: Any, bits: int) -> None:
    _, (grid,) = parsed(layout_picture(layout, element_bits=bits))
    texts, colours = grid.texts(), grid.colours()
    assert len(texts) == layout.size()
    for (r, c), found in texts.items():
        offset = layout(r, c)
        assert found == [str(offset)]
        assert colours[r, c] == offset * bits // 32 % 32


def test_strides_over_f2_are_xored() -> None:
    layout = Layout((8, 8, 2), (F2(9), F2(1), F2(5)))
    _, grids = parsed(layout_picture(layout))
    for index, grid in enumerate(grids):
        assert {cell: int(t) for cell, (t,) in grid.texts().items()} == {
            (r, c): layout(r, c, index) for r in range(8) for c in range(8)
        }
        assert grid.colours()[3, 5] == layout(3, 5, index) % 32


def test_hierarchy_lines_are_where_the_hierarchy_is() -> None:
    _, (grid,) = parsed(layout_picture(Layout(((2, 4), (2, 2, 2)), ((1, 4), (2, 16, 32)))))
    rows, cols = range(8), range(8)
    medium = {("v", r, c) for r in rows for c in (2, 6)} | {("h", r, c) for r in (2, 4, 6) for c in cols}
    assert grid.lines(2) == medium
    assert grid.lines(3) == {("v", r, 4) for r in rows}
    assert grid.lines(1) == set()


def test_a_flat_layout_has_no_hierarchy_lines() -> None:
    _, (grid,) = parsed(layout_picture(Layout((8, 8))))
    assert grid.lines(1) | grid.lines(2) | grid.lines(3) == set()


def test_coordinates_and_no_text() -> None:
    _, (grid,) = parsed(layout_picture(Layout((2, (2, 3))), cells="coordinates", color="none"))
    assert grid.texts()[1, 3] == ["1,(1,1)"]
    _, (bare,) = parsed(layout_picture(Layout((4, 4)), cells="none"))
    assert bare.texts() == {}
    assert (bare.colours() == np.arange(16).reshape(4, 4).T).all()


def test_the_ramp_follows_the_offsets() -> None:
    _, (grid,) = parsed(layout_picture(Layout((16, 16)), color="offset"))
    assert (grid.colours() == np.arange(256).reshape(16, 16).T * 16 // 256).all()


@pytest.mark.parametrize("atom", [mma_sync(f16, 8), mma_sync(f16, 16), mma_sync(bf16, 16)])
def test_an_atom_names_thread_and_value_of_each_element(atom: Any) -> None:
    _root, grids = parsed(draw(atom))
    a, b, c = grids if grids[0].rows == 16 and grids[0].cols == atom.shape_mnk[2] else (grids[1], grids[0], grids[2])
    m, n, _k = atom.shape_mnk
    for grid, layout, extent, turned in (
        (a, atom.layout_a_tv, m, False),
        (b, atom.layout_b_tv, n, True),
        (c, atom.layout_c_tv, m, False),
    ):
        texts, colours = grid.texts(), grid.colours()
        assert len(texts) == grid.rows * grid.cols
        for (r, col), (thread, value) in texts.items():
            x, y = (col, r) if turned else (r, col)
            t, v = int(thread[1:]), int(value[1:])
            assert layout(t, v) == x + extent * y
            assert colours[r, col] == t % 32


def test_b_stands_above_c_and_a_to_the_left_of_it() -> None:
    _root, grids = parsed(draw(mma_sync(f16, 8)))
    at = {}
    for grid in grids:
        x, y = map(float, re.findall(r"[\d.]+", grid.group.get("transform", "")))
        at[grid.rows, grid.cols] = (x, y)
    # A and C are (16, 8) both, B is (8, 8): A comes before C
    places = [tuple(map(float, re.findall(r"[\d.]+", g.group.get("transform", "")))) for g in grids]
    b, a, c = places
    assert b[0] == c[0]
    assert a[1] == c[1]
    assert a[0] < c[0]
    assert b[1] < c[1]


def test_lines_part_threads_and_warps() -> None:
    mma = simt_plan().tiled_mma
    picture = tiled_mma_picture(mma)
    grid = picture.grids[2]
    left, above = edges(grid)
    held = mma.tv_layout_C_tiled.offsets().reshape(256, -1, order="F")
    owner = np.empty(128 * 128, np.int64)
    for t in range(256):
        owner[held[t]] = t
    owner = owner.reshape(128, 128, order="F")
    for r in range(0, 128, 3):
        for c in range(1, 128):
            other = owner[r, c] != owner[r, c - 1]
            assert (left[r, c] > 0) == other
            assert (left[r, c] == 3) == (owner[r, c] // 32 != owner[r, c - 1] // 32)
    assert {int(r) for r in np.nonzero((above == 3).all(axis=1))[0]} == {64}
    assert {int(r) for r in np.nonzero((above == 2).all(axis=1))[0]} == {32, 96}
    assert {int(c) for c in np.nonzero((left == 3).all(axis=0))[0]} == {32, 64, 96}


def test_a_swizzle_before_and_after() -> None:
    composed = make_composed_layout(Swizzle(3, 2, 3), 0, Layout((8, 32), (32, 1)))
    _, (before, after) = parsed(swizzle_picture(composed))
    assert (before.colours() == np.arange(32)).all()
    assert all(before.texts()[r, c] == [str(32 * r + c)] for r in range(8) for c in range(32))
    assert all(after.texts()[r, c] == [str(composed(r, c))] for r in range(8) for c in range(32))
    # a column that was one bank is eight now, one in each group of four
    assert all(len(set(after.colours()[:, c] // 4)) == 8 for c in range(32))


def test_a_composition_follows_each_element() -> None:
    a, b = Layout((4, 8), (8, 1)), Layout((4, 2), (2, 16))
    _, (in_a, in_b, result) = parsed(composition_picture(a, b))
    for r in range(4):
        for c in range(2):
            place = b(r, c)
            colour = in_b.colours()[r, c]
            assert in_a.colours()[place % 4, place // 4] == colour
            assert result.colours()[r, c] == colour
            assert result.texts()[r, c] == [str(a(place))]
    assert (in_a.colours() >= 0).sum() == 8


def test_an_empty_composition_is_said_to_be_empty() -> None:
    for a, b in ((Layout(4, 1), Layout(0, 1)), (Layout((4, 2)), Layout((2, 0), (1, 4)))):
        picture = composition_picture(a, b)
        assert picture.grids == ()
        assert picture.notes == ("A o B is empty: it has no coordinate.",)
        assert "empty" in svg(picture)


def test_a_composition_with_coordinates_shows_the_places_that_they_pick() -> None:
    a, b = Layout((4, 8), (8, 1)), Layout((8, 4), (E(1), E(0)))
    _, (in_a, in_b, result) = parsed(composition_picture(a, b))
    for r in range(8):
        for c in range(4):  # the transpose: row c, column r of A, its place c + 4 r
            assert in_b.texts()[r, c] == [str(c + 4 * r)]
            assert result.texts()[r, c] == [str(8 * c + r)]
            assert in_a.colours()[c, r] == in_b.colours()[r, c] == result.colours()[r, c]


def test_a_slice_lights_up_what_it_takes() -> None:
    layout = Layout((4, (2, 4)), (8, (1, 2)))
    _, (whole, part) = parsed(slice_picture(layout, (None, (1, None))))
    lit = {whole.texts()[r, c][0] for r, c in zip(*np.nonzero(whole.colours() >= 0), strict=True)}
    assert lit == {str(layout(r, (1, c))) for r in range(4) for c in range(4)}
    assert {t for (t,) in part.texts().values()} == lit


def test_a_raster_of_clusters() -> None:
    """5 x 2 tiles in clusters of 2 along M: each cluster's CTAs follow each other, the last row has no second one."""
    _, (grid,) = parsed(raster_picture("along_n", (5, 2), cluster=(2, 1)))
    assert [[grid.texts()[m, n][0] for n in range(2)] for m in range(5)] == [
        ["0", "2"], ["1", "3"], ["4", "6"], ["5", "7"], ["8", "9"],
    ]  # fmt: skip
    with pytest.raises(LayoutError, match=r"cluster = \(0, 1\)\. Use 1 or more CTAs"):
        raster_picture("along_n", (5, 2), cluster=(0, 1))


def test_a_raster_gives_order_and_wave() -> None:
    raster = Raster("grouped_n", 3)
    _, (grid,) = parsed(raster_picture(raster, (7, 10), ctas_per_wave=16))
    order = raster.order(7, 10)
    for position, (m, n, _) in enumerate(order.tolist()):
        assert grid.texts()[m, n] == [str(position)]
        assert grid.colours()[m, n] // 4 == position // 16
    wave = {(m, n): p // 16 for p, (m, n, _) in enumerate(order.tolist())}
    expected = {("v", m, n) for m in range(7) for n in range(1, 10) if wave[m, n] != wave[m, n - 1]}
    assert {edge for edge in grid.lines(2) if edge[0] == "v"} == expected


def test_a_plan_shows_the_banks_of_its_operands() -> None:
    plan = simt_plan()
    _, grids = parsed(plan_picture(plan))
    a = next(g for g in grids if (g.rows, g.cols) == (128, 16))
    b = next(g for g in grids if (g.rows, g.cols) == (16, 128))
    colours_a, colours_b = a.colours(), b.colours()
    assert all(colours_a[m, k] == plan.a.smem(m, k, 0) % 32 for m in range(128) for k in range(16))
    assert all(colours_b[k, n] == plan.b.smem(n, k, 0) % 32 for n in range(128) for k in range(16))


def test_a_timeline_has_a_bar_for_each_event() -> None:
    events = [
        ("load", "tma", 0, 0, 4),
        ("load", "tma", 1, 4, 8),
        ("mma", "wait", 0, 0, 4),
        ("mma", "wgmma", 0, 4, 9),
    ]
    root = ElementTree.fromstring(draw(Timeline(events)))
    bars = [g for g in root.iter(f"{NAME}g") if g.get("class") == "event"]
    assert [g[0].text for g in bars] == [
        "load: tma, stage 0, 0 .. 4", "load: tma, stage 1, 4 .. 8",
        "mma: wait, stage 0, 0 .. 4", "mma: wgmma, stage 0, 4 .. 9",
    ]  # fmt: skip
    boxes = [
        (float(g.find(f"{NAME}rect").get("x")), float(g.find(f"{NAME}rect").get("width")))
        for g in bars
        if g.find(f"{NAME}rect") is not None
    ]  # type: ignore[union-attr, arg-type]
    assert boxes[1][0] > boxes[0][0]
    assert boxes[2][1] / boxes[0][1] == pytest.approx(5 / 4, rel=0.02)


LARGE: dict[str, Any] = {
    "layout": lambda: layout_picture(Layout((128, 128), (128, 1))),
    "columns": lambda: layout_picture(Layout((128, 128))),
    "hierarchy": lambda: layout_picture(Layout(((8, 4, 4), (16, 8)))),
    "worst": lambda: layout_picture(make_composed_layout(Swizzle(5, 0, 7), 0, Layout((128, 128), (128, 1)))),
    "swizzle": lambda: swizzle_picture(make_composed_layout(Swizzle(5, 0, 7), 0, Layout((128, 128), (128, 1)))),
    "tiled mma": lambda: tiled_mma_picture(simt_plan().tiled_mma),
    "plan": lambda: plan_picture(simt_plan()),
    "raster": lambda: raster_picture("grouped_m:8", (128, 128), ctas_per_wave=132),
    "wgmma": lambda: FIGURES["wgmma_m64n8k16"](),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_picture_is_small_enough_to_commit(name: str) -> None:
    assert len(svg(LARGE[name]()).encode()) < 200_000


def test_a_large_picture_still_says_the_truth() -> None:
    composed = make_composed_layout(Swizzle(5, 0, 7), 0, Layout((128, 128), (128, 1)))
    _, (grid,) = parsed(layout_picture(composed))
    assert (grid.colours() == banks(composed.offsets().reshape(128, 128, order="F"), 32)).all()
    assert grid.texts() == {}


def test_the_regions_of_a_large_picture_are_named() -> None:
    _root, grids = parsed(tiled_mma_picture(simt_plan().tiled_mma))
    grid = max(grids, key=lambda g: g.cols * g.rows)
    mma = simt_plan().tiled_mma
    named = [(x / grid.cell_w, y / grid.cell_h, text) for x, y, text in placed(grid.group)]
    assert len(named) == 1024
    owner = {}
    for t in range(256):
        for e in mma.tv_layout_C_tiled.offsets().reshape(256, -1, order="F")[t]:
            owner[int(e) % 128, int(e) // 128] = t
    assert all(owner[int(y - 0.5), int(x)] == int(text[1:]) for x, y, text in named)


def test_more_than_fits_is_left_out_and_said() -> None:
    drawn = svg(layout_picture(Layout((1000, 4))))
    assert "Rows 255 .. 998 are left out." in drawn
    assert len(drawn) < 200_000


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_sound(name: str) -> None:
    drawn = draw(FIGURES[name]())
    root = ElementTree.fromstring(drawn)
    assert root.find(f"{NAME}title").text  # type: ignore[union-attr]
    assert root.get("role") == "img"
    assert "prefers-color-scheme:dark" in drawn
    assert not re.search(r"(href|src|url\()", drawn)
    assert len(drawn.encode()) < 200_000
    assert list(_uncoloured(root)) == []


def _uncoloured(root: ElementTree.Element) -> Iterator[str]:
    """Colour classes that are used, but that the style does not know."""
    style = "".join(node.text or "" for node in root.iter(f"{NAME}style"))
    for node in root.iter():
        for name in (node.get("class") or "").split():
            if re.fullmatch(r"[cs]\d+", name) and f".{name}{{color:" not in style:
                yield name


def test_figures_are_written(tmp_path: Any) -> None:
    made = figures(tmp_path)
    assert {path.stem for path in made} == set(FIGURES)
    assert all(path.stat().st_size > 2000 for path in made)
    again = figures(tmp_path / "again")
    assert [p.read_bytes() for p in made] == [p.read_bytes() for p in again]


def test_shared_operands_of_wgmma_have_no_holder() -> None:
    drawn = draw(wgmma(bf16, 16))
    assert "in shared memory, read by all 128 threads" in drawn


def test_ldmatrix_has_a_source_and_a_destination() -> None:
    atom = ldmatrix(f16, 4)
    _, (source, destination) = parsed(draw(atom))
    for (r, c), (thread, value) in source.texts().items():
        assert atom.layout_src_tv(int(thread[1:]), int(value[1:])) == 8 * r + c
    for (r, c), (thread, value) in destination.texts().items():
        assert atom.layout_dst_tv(int(thread[1:]), int(value[1:])) == 8 * r + c
