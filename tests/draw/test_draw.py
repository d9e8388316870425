"""The public functions, the palette, notebooks, the tables of the page; and drawing keeps out of the way."""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutegemm.analysis import check
from cutegemm.build import Shared, gemv_plan, simt_plan, sm90_plan
from cutegemm.draw import (
    Timeline,
    draw,
    layout_picture,
    notebook,
    plan_timeline,
    protocol_timeline,
    save,
    slice_picture,
    tv_picture,
)
from cutegemm.draw.grids import levels_of, regions
from cutegemm.draw.html import page_data
from cutegemm.draw.owners import holders
from cutegemm.draw.palette import DARK, LIGHT, NAMED
from cutegemm.draw.plans import plan_picture
from cutegemm.dtypes import bf16, f16
from cutegemm.errors import LayoutError, UnsupportedError
from cutegemm.layout import (
    F2Matrix,
    Layout,
    Swizzle,
    Tensor,
    local_tile,
    make_composed_layout,
    make_identity_layout,
    make_identity_tensor,
    to_f2,
)
from cutegemm.plan import Problem
from cutegemm.plan.epilogue import Row, Scalar, parse_epilogue
from cutegemm.plan.program.operations import Arrive
from cutegemm.simulator import protocol_of, simulate
from cutegemm.tile.mma_atoms import mma_sync, wgmma
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_mma import TiledMma
from tests.draw import plans


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: draw(3), "cannot draw 3, a int"),
        (lambda: draw(Layout(4), kind="png"), "kind = 'png'. Use text, svg or html"),
        (lambda: draw(Layout(4), colour="bank"), "'colour' is not an option for a Layout. Use cells, color"),
        (lambda: draw(Layout(4), color="red"), "color = 'red'. Use bank, offset or none"),
        (lambda: draw(Raster("hilbert", 512)), "1024 x 1024 tiles; up to 256 x 256 can be drawn"),
        (lambda: draw(simt_plan(), kind="html", grid=(1, 1)), "'grid' is not an option for the page of a plan"),
        (lambda: draw(Raster("along_m"), grid=(1000, 2)), "up to 256 x 256 can be drawn"),
        (lambda: draw(Layout(3 * 10**20)), "300000000000000000000 elements; 64-bit indices allow up to"),
        (lambda: draw(Layout((4, 1 << 61))), "Draw a slice of it"),
        (lambda: save(Layout(4), "x.png"), "ends in '.png'. Use .svg, .html or .txt"),
        (lambda: slice_picture(Layout((4, 4)), (1, 1)), "holds no None"),
        (lambda: slice_picture(Layout((4, 4, 4)), (1, 1, None)), "has rank 3"),
        (
            lambda: draw(simt_plan(), kind="html", problem=Problem(1 << 20, 1 << 20, 8)),
            "a page shows up to 1048576",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(call: Any, says: str) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(says)):
        call()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: tv_picture(mma_sync(f16, 16).layout_c_tv, (8, 8)), "outside a tile of 64 elements"),
        (lambda: tv_picture(Layout(4), (2, 2)), "does not have the two modes (thread, value)"),
        (lambda: Timeline([("load", "tma")]), "record 0 is ('load', 'tma')"),
        (lambda: Timeline([("load", "tma", 0, 4, 3)]), "ends before it starts"),
    ],
)
def test_wrong_input_is_said(call: Any, says: str) -> None:
    with pytest.raises(LayoutError, match=re.escape(says)):
        call()


def test_save_goes_by_the_ending(tmp_path: Path) -> None:
    layout = Layout((4, 4))
    assert save(layout, tmp_path / "deep" / "x.svg").read_text("utf-8").startswith("<svg")
    assert save(layout, tmp_path / "x.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert save(layout, str(tmp_path / "x.txt")).read_text("utf-8") == draw(layout, kind="text")


@pytest.mark.parametrize(
    "thing",
    [
        Layout(((2, 2), 4)),
        Layout(7),
        make_identity_layout((3, 4)),
        make_composed_layout(Swizzle(2, 0, 3), 0, Layout((8, 8), (8, 1))),
        TiledMma(mma_sync(f16, 16), Layout((2, 2, 1)), (32, 32, 16)),
        simt_plan().a.load,
        simt_plan(),
        Swizzle(3, 3, 3),
        Tensor(np.arange(8), Layout((2, 4))),
        make_identity_tensor((2, 4)),
        to_f2(Layout((2, 4))),
        Raster("grouped_m", 4),
        mma_sync(f16, 16),
        plan_timeline(sm90_plan(stages=4)),
        layout_picture(Layout(4)),
    ],
)
def test_notebooks_show_a_drawing(thing: Any) -> None:
    assert thing._repr_html_().startswith("<svg")


@pytest.mark.parametrize(
    ("thing", "parts"),
    [
        (
            parse_epilogue("gelu(acc * s + bias), aux = acc", {"bias": Row, "s": Scalar}),
            ["<b>gelu(acc * s + bias), aux = acc</b>", "bias: row of N", "s: scalar", "instructions"],
        ),
        (Row("bias"), ["<b>bias</b>", "bias: row of N"]),
        (sm90_plan().program("producer"), ["    <b>acquire</b>  empty[k]", "A[k], B[k] -&gt; full[k]"]),
        (simt_plan().body, ["<b>for</b> k in tile.k_tiles:", "  <b>mma</b>"]),
        (simulate(simt_plan(), np.ones((128, 16)), np.ones((16, 128))), ["<b>D</b> 128 x 128", "no fault"]),
        (check(simt_plan()), ["Shared memory, per CTA", "Occupancy", "<span"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_notebooks_show_text_of_what_has_no_picture(thing: Any, parts: list[str]) -> None:
    said = thing._repr_html_()
    assert said.startswith("<pre")
    assert [part for part in parts if part not in said] == []


def test_a_tensor_is_drawn_by_what_it_holds() -> None:
    """Elements and not offsets, from where the tensor begins; nothing past the end of the array."""
    held = Tensor(np.array([0.5, 7, 8, 9, 10, 11]), Layout((2, 2), (2, 1)), 1)
    assert draw(held, kind="text").splitlines()[3:5] == ["0 │  7  8 │", "1 │  9 10 │"]
    ragged = local_tile(Tensor(np.arange(3), Layout(3)), 2, 1)
    assert "1 │" not in draw(ragged, kind="text")
    assert "2" in draw(ragged, kind="text")
    assert "2,5" in draw(make_identity_tensor((4, 8))[2, None], kind="text")


def test_a_matrix_is_drawn_by_its_bits() -> None:
    """Columns 1 and 3: 01 and 11 from the lowest bit down."""
    assert draw(F2Matrix((1, 3)), kind="text").splitlines()[3:5] == ["0 │ 1 1 │", "1 │ 0 1 │"]


def test_a_notebook_never_fails() -> None:
    assert Layout((0, 4))._repr_html_().startswith("<svg")
    assert notebook(Raster("hilbert", 1 << 20)) == "<pre>hilbert:1048576</pre>"
    assert notebook("a <text>") == "<pre>a &lt;text&gt;</pre>"
    assert Layout((1 << 20, 1 << 20))._repr_html_().startswith("<svg")


def test_styles_of_drawings_on_one_page_do_not_disagree() -> None:
    """Inline SVGs share a style: a class must mean the same in all of them."""
    meaning: dict[str, list[str]] = {}
    for thing in (Layout((8, 8)), mma_sync(f16, 16), simt_plan(), Layout(70)):
        style = re.findall(r"<style>(.*?)</style>", draw(thing))[0]
        for theme, rules in zip(("light", "dark"), style.split("@media(prefers-color-scheme:dark)"), strict=True):
            here: dict[str, list[str]] = {}
            for name, body in re.findall(r"(svg\.cg[^{}]*)\{([^{}]*)\}", rules):
                here.setdefault(theme + name, []).append(body)
            for name, bodies in here.items():
                assert meaning.setdefault(name, bodies) == bodies


def test_importing_the_package_does_not_import_drawing() -> None:
    script = (
        "import sys, cutegemm, cutegemm.layout, cutegemm.plan\n"
        "before = [m for m in sys.modules if m.startswith('cutegemm.draw')]\n"
        "cutegemm.layout.Layout(4)._repr_html_()\n"
        "print(before, 'cutegemm.draw' in sys.modules, 'rich' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[] True False"


def luminance(colour: str) -> float:
    linear = linear_rgb(colour)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def linear_rgb(colour: str) -> np.ndarray:
    srgb = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize(("palette", "theme"), [(LIGHT, 0), (DARK, 1)])
def test_ink_is_legible_on_every_colour(palette: tuple[str, ...], theme: int) -> None:
    """WCAG 2.2, 1.4.3: a contrast of at least 4.5."""
    ink = luminance(NAMED["ink"][theme])
    for colour in (*palette, NAMED["paper"][theme], NAMED["empty"][theme]):
        low, high = sorted((ink, luminance(colour)))
        assert (high + 0.05) / (low + 0.05) >= 4.5


# Machado, Oliveira, Fernandes, "A Physiologically-based Model for Simulation of Color Vision Deficiency",
# 2009, severity 1.0: protanopia, deuteranopia, tritanopia.
BLINDNESS = {
    "none": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def oklab(linear: np.ndarray) -> np.ndarray:
    cones = np.cbrt(
        np.clip(linear, 0, None)
        @ np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        ).T
    )
    return (
        cones
        @ np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        ).T
    )


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("palette", [LIGHT, DARK])
def test_the_hues_can_be_told_apart(palette: tuple[str, ...], kind: str) -> None:
    """0.02 is what is just seen between patches side by side; the hues keep twice that."""
    hues = np.array([linear_rgb(c) for c in palette[1::4]]) @ np.array(BLINDNESS[kind]).T
    seen = oklab(np.clip(hues, 0, 1))
    distance = np.linalg.norm(seen[:, None] - seen[None], axis=-1) + np.eye(8)
    assert distance.min() >= 0.04


def test_levels_and_regions() -> None:
    assert levels_of((4,)) == (0, 0, 0, 0)
    assert levels_of((2, 1, 2)) == (0, 0, 2, 0)
    assert levels_of((1, 3)) == (0, 0, 0)
    assert levels_of(()) == (0,)
    table = np.random.default_rng(0).integers(-1, 3, (13, 11))
    again = np.full_like(table, -1)
    for who, r, c, rows, cols in regions(table):
        assert (again[r : r + rows, c : c + cols] == -1).all()
        again[r : r + rows, c : c + cols] = who
    assert (again == table).all()


def test_holders_against_brute_force() -> None:
    table = np.random.default_rng(1).integers(0, 40, (8, 6))
    thread, value, count = holders(table, 50)
    for e in range(50):
        found = [(t, v) for t in range(8) for v in range(6) if table[t, v] == e]
        assert (thread[e], value[e]) == (found[0] if found else (-1, -1))
        assert count[e] == len({t for t, _ in found})


def unpacked(packed: dict[str, str]) -> np.ndarray:
    kinds = {"u8": "<u1", "u16": "<u2", "u32": "<u4"}
    return np.frombuffer(base64.b64decode(packed["data"]), kinds[packed["type"]]).astype(np.int64)


def embedded(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" class="tables">(.*?)</script>', page, re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


PLANS = {
    "simt": simt_plan(),
    "swizzled": simt_plan(shared_a=Shared(swizzle=Swizzle(2, 2, 5)), shared_b=Shared(major="k", pad=1), stages=3),
    "mma_sync": plans.tensor_cores(),
    "narrow": simt_plan(block=(64, 64, 16), warp=(32, 16), thread=(4, 4), raster="along_n"),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_tables_of_the_page_are_those_of_the_layouts(name: str) -> None:
    plan = PLANS[name]
    problem = Problem(704, 504, 64, operands=plan.operands)
    page = draw(plan, kind="html", problem=problem)
    data = embedded(page)
    bm, bn, bk = plan.cta_tile
    thread, value = unpacked(data["d"]["thread"]), unpacked(data["d"]["value"])
    table = plan.tiled_mma.offsets_c(Layout((bm, bn))).reshape(plan.threads, -1, order="F")
    assert (table[thread, value] == np.arange(bm * bn)).all()
    for operand, layout, extent, load in (
        ("a", plan.a.smem, bm, plan.a.load),
        ("b", plan.b.smem, bn, plan.b.load),
    ):
        table = unpacked(data[operand]["smem"])
        shifts = data[operand]["shifts"]
        for stage in range(plan.stages):
            for k in range(0, bk, 3):
                for x in range(0, extent, 5):
                    at = x + extent * k
                    found = table[at] + shifts[stage] if shifts else table[at + extent * bk * stage]
                    assert found == layout(x, k, stage)
        copier = unpacked(data[operand]["copier"])
        copied = load.offsets_d(Layout((extent, bk)))
        assert all(at in copied[copier[at]] for at in range(0, extent * bk, 7))
        held = unpacked(data[operand]["held"]).reshape(plan.threads, -1)
        part = plan.tiled_mma.get_slice(77 % plan.threads)
        view = (part.partition_A if operand == "a" else part.partition_B)(Layout((extent, plan.tiled_mma.tile_mnk[2])))
        assert held[77 % plan.threads].tolist() == [view[i] for i in range(view.size())]
    grid = plan.grid(problem)
    position = unpacked(data["grid"]["position"])
    for at, (m, n, _) in enumerate(plan.scheduler.raster.order(*grid).tolist()):
        assert position[m + grid[0] * n] == at


def test_the_page_counts_the_ctas_of_a_cluster_together() -> None:
    """3 x 2 tiles in clusters of 2 along M, along N first: 0 1 | 2 3, then the last row alone, 4 | 5."""
    plan = sm90_plan(tile=(64, 128, 64), cluster=(2, 1), raster="along_n")
    page = draw(plan, kind="html", problem=Problem(192, 256, 64, operands=plan.operands))
    position = unpacked(embedded(page)["grid"]["position"])
    assert position.reshape(2, 3).T.tolist() == [[0, 2], [1, 3], [4, 5]]


def test_the_page_shows_what_ctas_that_share_k_multiply() -> None:
    """All four have the tile of 64 x 64, and the thread of an element is the same in each; 2 x 4 of them, the last one
    along N with columns of a single CTA."""
    plan = sm90_plan(tile=(64, 64, 64), cluster_k=4, schedule="cooperative", consumers=1, raster="along_n")
    problem = Problem(100, 200, 640, operands=plan.operands)
    data = embedded(draw(plan, kind="html", problem=problem))
    assert (data["tile"], data["own"], data["cluster"]) == ([64, 64, 64], [64, 16], [1, 4])
    thread, value = unpacked(data["d"]["thread"]), unpacked(data["d"]["value"])
    table = plan.tiled_mma.offsets_c(Layout((64, 64))).reshape(128, -1, order="F")
    assert (table[thread, value] == np.arange(64 * 64)).all()
    stored = plan.stored_by_threads  # (first, last) columns of one CTA
    for column in range(64):
        for row in range(0, 64, 5):
            assert row + 64 * (column % 16) in stored[thread[row + 64 * column]]
    assert len(unpacked(data["b"]["smem"])) == 64 * 64
    grid = data["grid"]
    assert (grid["m"], grid["n"], grid["l"]) == (2, 4, 1)
    assert unpacked(grid["position"]).reshape(4, 2).T.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert page_data(plan, problem, 132)["grid"]["wave"] == 33


def test_the_page_of_ctas_that_share_k_in_larger_clusters() -> None:
    """3 x 2 products of 64 x 64 in clusters of two along M, along N first: 0 1 | 2 3, then the last row, 4 | 5."""
    plan = sm90_plan(tile=(64, 64, 64), cluster_k=2, cluster=(2, 1), raster="along_n")
    data = page_data(plan, Problem(192, 128, 640, operands=plan.operands), None)
    assert unpacked(data["grid"]["position"]).reshape(2, 3).T.tolist() == [[0, 2], [1, 3], [4, 5]]


def test_a_plan_without_tiles_in_shared_memory_has_no_page() -> None:
    with pytest.raises(UnsupportedError, match="do not pass through shared memory"):
        draw(gemv_plan(), kind="html")


def test_a_plan_whose_ctas_share_k_is_drawn() -> None:
    plan = sm90_plan(tile=(64, 64, 64), cluster_k=4, schedule="cooperative", consumers=1)
    a, b, accumulators = plan_picture(plan).grids
    assert (a.labels.shape, b.labels.shape, accumulators.labels.shape) == ((64, 64), (64, 64), (64, 64))
    assert accumulators.title == "accumulators in registers"
    assert "4 CTAs share K, and each stores 64 x 16" in plan_picture(plan).subtitle


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
def test_sums_of_ctas_that_share_k_are_on_the_timeline(schedule: str) -> None:
    """The accumulators of each tile are sent once after its MMAs, added when all have arrived, 6 later, and then
    stored."""
    plan = sm90_plan(
        tile=(64, 64, 64), cluster_k=2, stages=3, schedule=schedule, consumers=1 + (schedule != "cooperative")
    )
    timeline = plan_timeline(plan)
    assert timeline.title == "sm90: 4 tiles of 8 k-tiles shared by 2 CTAs, 3 stages"
    done = [e for e in timeline.events if e.role.startswith("consumer") and not e.is_wait]
    assert sum(e.event == "multiply" for e in done) == 4 * 4
    assert {e.stage for e in done if "accumulators" in e.event} == {None}
    for role in dict.fromkeys(e.role for e in done):
        mine = sorted((e for e in done if e.role == role), key=lambda e: e.start)
        steps = [event for event, _ in itertools.groupby(e.event for e in mine)]
        tiles = 4 // len({e.role for e in done})
        assert steps == ["multiply", "send accumulators", "add accumulators", "store"] * tiles
        for sent, added in zip(
            [e for e in mine if e.event == "send accumulators"],
            [e for e in mine if e.event == "add accumulators"],
            strict=True,
        ):
            assert added.start >= sent.start + 6


def test_the_page_stands_alone() -> None:
    page = draw(simt_plan(name="</script><b>"), kind="html")
    assert "default-src 'none'" in page
    assert not re.search(r"(?:src|href)\s*=", page)
    assert not re.search(r"https?://(?!www\.w3\.org)", page)
    assert len(page.encode()) < 200_000
    assert "<b>" not in page.replace("<b id", "")  # a name is text, never markup
    assert page.count("</script>") == 2


def test_elements_that_nobody_holds_and_stages_that_are_no_shifts() -> None:
    from cutegemm.draw.html import _stages

    places, shifts = _stages(np.array([[0, 5], [1, 4]]))
    assert shifts is None
    assert unpacked(places).tolist() == [0, 1, 5, 4]
    data = page_data(simt_plan(), None, None)
    assert data["grid"] is None


@pytest.mark.parametrize("n", [8, 64, 256])
def test_wgmma_atoms_draw(n: int) -> None:
    for kind in ("text", "svg", "html"):
        assert draw(wgmma(bf16, n), kind=kind)


def test_a_protocol_is_played_as_early_as_its_barriers_allow() -> None:
    protocol = protocol_of(sm90_plan(stages=3), k_tiles=4, tiles=4)
    timeline = protocol_timeline(protocol, load=5, multiply=3, store=9)
    reads = [e for e in timeline.events if e.event == "multiply"]
    assert len(reads) == 16
    by_start = sorted(reads, key=lambda e: e.start)
    assert [e.stage for e in by_start] == [i % 3 for i in range(16)]
    assert all(a.end <= b.start for a, b in itertools.pairwise(by_start))  # the mainloops take turns
    for role in timeline.roles:
        mine = sorted((e for e in timeline.events if e.role == role), key=lambda e: (e.start, e.end))
        assert all(a.end <= b.start for a, b in itertools.pairwise(mine))
    first_load = min(e.start for e in timeline.events if e.event.startswith("load"))
    assert by_start[0].start >= first_load + 5


def test_a_deadlock_is_said() -> None:
    stuck = protocol_of(sm90_plan(stages=2), k_tiles=3, tiles=2).edited(
        lambda _, op: None if isinstance(op, Arrive) else op
    )
    with pytest.raises(LayoutError, match="deadlock"):
        protocol_timeline(stuck)
