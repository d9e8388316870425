"""The pages of the documents are those that the command makes of the recorded measurements."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cutegemm.choice.ladders.simt import SIMT_LADDER
from docs.evidence.commands import app
from docs.evidence.pages import charts, ladder, report, speed
from docs.evidence.pages.markdown import table
from docs.evidence.rows import by_plan, groups, mean_ratio

DOCS = Path(__file__).parents[2] / "docs"
MACHINE = {"gpu": "G", "driver": "1", "torch": "2", "nvidia-cutlass-dsl": "3", "date": "2026-01-01 now"}


def written(folder: Path, name: str, rows: list[dict[str, object]], **more: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"machine": MACHINE, "rows": rows, **more}))


def row(plan: str, ratio: float, m: int = 4, n: int = 5, k: int = 6) -> dict[str, object]:
    return {
        "m": m, "n": n, "k": k, "layout": "nn", "plan": plan, "ratio": ratio, "tflops": 2 * ratio,
        "library_tflops": 2.0,
    }  # fmt: skip


def chosen(plan: str, ratio: float, **shape: int) -> dict[str, object]:
    return {**row(plan, ratio, **shape), "chosen": True}


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return report.pages(DOCS)


def test_the_pages_are_up_to_date(made: dict[str, str]) -> None:
    assert {
        "measured/speed.md",
        "measured/ladder_hopper.md",
        "plots/hopper_sweep.svg",
        "plots/ladder_hopper.svg",
    } <= set(made)
    assert [name for name, text in made.items() if (DOCS / name).read_text() != text] == []
    assert {f"plots/{path.name}" for path in (DOCS / "plots").iterdir()} <= set(made)


def test_every_picture_of_a_page_is_there(made: dict[str, str]) -> None:
    for name, text in made.items():
        for part in text.split("](../plots/")[1:]:
            assert f"plots/{part.split(')')[0]}" in made, name
        assert "** ." not in text  # a step without a reason


def test_a_row_by_hand(tmp_path: Path) -> None:
    """Two plans at one shape: the chosen one's ratio 1.5 is in the table, with the best one, 2.0, next to it."""
    failed = {"m": 4, "n": 5, "k": 6, "layout": "nn", "plan": "r", "error": "no"}
    written(tmp_path, "simt", [chosen("p", 1.5), row("q", 2.0), failed])
    page = speed.pages(tmp_path)["measured/speed.md"]
    assert "| 4×5×6 | nn | 2.0 | 3.0 | 1.500 | `p` | 2.000 |" in page
    assert "Geometric mean of the ratios: 1.500." in page


def test_a_ladder_by_hand(tmp_path: Path) -> None:
    """The sweep, ratios 1/2 and five times 2: a mean of 2^(4/6) = 1.587; none for the step that ran at one of it."""
    shapes = [{"m": 8448, "n": 9216, "k": k} for k in (64, 128, 256, 512, 1024, 2048)]
    written(
        tmp_path, "hopper_ladder",
        [row("sm90_epi_stages", 2.0 if at else 0.5, **shape) for at, shape in enumerate(shapes)]
        + [row("sm90_pingpong", 0.25, **shapes[0]), chosen("sm90_epi_stages", 0.5, **shapes[0])]
        + [chosen("sm90_wide_1x2", 2.0, **shape) for shape in shapes[1:]],
    )  # fmt: skip
    made = ladder.pages(tmp_path)
    page = made["measured/ladder_hopper.md"].splitlines()
    means = [line.split(" | ")[0::2] for line in page if " | " in line and "change" not in line][1:4]
    assert [(cells[0].strip("| "), cells[-1].strip("| ")) for cells in means] == [
        ("`sm90_pingpong`", ""), ("`sm90_epi_stages`", "1.587"), ("chosen by `gemm`", "1.587"),
    ]  # fmt: skip
    assert "| cuBLAS | 2.0 | 2.0 | 2.0 | 2.0 | 2.0 | 2.0 |" in page
    assert "| `sm90_epi_stages` | 1.0 (0.500) | 4.0 (2.000) | 4.0 (2.000) |" in made["measured/ladder_hopper.md"]
    assert "| `sm90_pingpong` | 0.5 (0.250) |  |  |  |  |  |" in page
    assert list(made) == ["measured/ladder_hopper.md", "plots/ladder_hopper.svg"]


def test_shapes_of_no_whole_suite_stand_by_themselves() -> None:
    """All of "small" but one, and a square: the mean of 0.25 and 1 is that of what is left."""
    rows = [row("p", 0.25, 16, 4096, 4096), row("p", 1.0, 4096, 4096, 4096), row("q", 1.0, 16, 4096, 4096)]
    timed = by_plan(rows)
    assert groups(timed) == {"": ["16×4096×4096", "4096×4096×4096"]}
    assert mean_ratio(timed["p"], groups(timed)[""]) == pytest.approx(0.5)
    assert mean_ratio(timed["q"], groups(timed)[""]) is None
    assert list(by_plan([*rows, {**row("p", 1.0), "layout": "tn"}])) == ["p nn", "q nn", "p tn"]


def test_what_is_not_measured_is_left_out(tmp_path: Path) -> None:
    assert list(report.pages(tmp_path)) == ["measured/speed.md"]
    for name in ("simt", "hopper", "hopper_ladder", "mma_power_bf16"):
        written(tmp_path, name, [{"m": 4, "n": 5, "k": 6, "layout": "nn", "plan": "p", "error": "no"}])
    assert list(ladder.pages(tmp_path)) == []
    assert "##" not in speed.pages(tmp_path)["measured/speed.md"]
    written(tmp_path, "simt_host", [], host_us={"gemm": 9.04})
    assert "| gemm | 9.0 |" in speed.pages(tmp_path)["measured/speed.md"]


def test_numbers_stand_to_the_right() -> None:
    rows = [("a", "1,024", "-3.1% **!**", "x 2", ""), ("b", "7", "50% (0.5)", "3", "1")]
    assert table("vwxyz", rows).splitlines()[1] == "| --- | ---: | ---: | --- | ---: |"


def test_power(tmp_path: Path) -> None:
    own = {"tflops": 470.0, "clock_mhz": 1545, "power_w": 690.5, "throttle": {"power cap": 0.9}}
    timed = {**row("p", 0.7), "alone": {**own, "share_at_clock": 0.85}, "library_alone": {"tflops": 660.0}}
    their = {**timed, "plan": "their", "peer": True, "layout": "nt", "alone": {"tflops": 480.0}}
    written(tmp_path, "mma_power_bf16", [timed, their], ceiling={**own, "tflops": 553.0})
    page = speed.pages(tmp_path)["measured/speed.md"]
    assert "| 4×5×6 | nn | `p` | 470.0 | 1545 | 690.5 | 0.850 | power cap 90% |" in page
    assert "| 4×5×6 | nn | cuBLAS | 660.0 |  |  |  |  |" in page
    assert "| 4×5×6 | nt | their | 480.0 |  |  |  |  |" in page
    assert "|  |  | mma.sync alone | 553.0 | 1545 | 690.5 |  | power cap 90% |" in page


def test_what_a_cpu_measures(tmp_path: Path) -> None:
    own = {"machine": "M", "python": "3.12", "date": "2026-01-02T03:04", "numpy": "2"}
    both = {"all": {"median_ms": 0.2, "one_in_ten_ms": 1.5}}
    found = {"problems": 400, "plans": 194, "ranking": both, "choosing": both}
    (tmp_path / "choosing.json").write_text(json.dumps({**own, **found}))
    page = speed.pages(tmp_path)["measured/speed.md"]
    assert "of 400 random problems" in page
    assert "194 in all. M, Python 3.12, numpy 2, 2026-01-02: `choosing.json`" in page
    assert "| all | 0.20 | 1.50 | 0.20 | 1.50 |" in page


def step(spills: int, **measured: float) -> dict[str, object]:
    counts = [*(f"{kind}_wavefronts" for kind in ("load", "store", "async")), "load_sectors", "store_sectors"]
    return {
        "threads": 256, "registers": 128, "spills": spills, "ctas_per_sm": 2, "occupancy": 0.25, "bound": "shared",
        "bound_tflops": 30.0, "peak_tflops": 60.0, "predicted": dict.fromkeys(counts, 2e6), "measured": measured,
        "intensity": {"register": 1.0, "shared": 2.0, "L2": 4.0, "DRAM": 8.0},
    }  # fmt: skip


def test_a_ladder_with_counters_by_hand(tmp_path: Path) -> None:
    """15, 9 and 12 TFLOP/s of 20 and of a peak of 60; the last two are slower than the first."""
    names = [one.name for one in SIMT_LADDER.steps[:3]]
    speeds = [
        {**row(name, tflops / 20), "tflops": tflops, "library_tflops": 20.0}
        for name, tflops in zip([*names[:2], "simt_64x64"], (15.0, 9.0, 12.0), strict=True)
    ]
    (tmp_path / "evidence" / "data").mkdir(parents=True)
    written(
        tmp_path / "evidence" / "data", "ladder_simt", [*speeds, {"plan": names[2], "error": "why"}],
        ladder="simt", counted_size=2048, not_counted="no ncu",
        steps={names[0]: step(0), names[1]: step(1, load_wavefronts=3e6)},
    )  # fmt: skip
    (tmp_path / "measured").mkdir()
    (tmp_path / "measured" / "counters.md").write_text("text")
    done = CliRunner().invoke(app, ["report", "--docs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "measured" / "ladder_simt.md").read_text()
    assert f"simt: {SIMT_LADDER.data}; G, driver 1, torch 2" in page
    assert f"| `{names[0]}` | {SIMT_LADDER.steps[0].change} | 0.750 |" in page
    assert "## TFLOP/s (ratio to cuBLAS, share of the chip's 60): simt" in page
    assert f"| `{names[1]}` | 9.0 (0.450, 15.0%) |" in page
    assert "| `simt_64x64` | 12.0 (0.600, 20.0%) |" in page
    assert f"| `{names[0]}` | 128 | 2 x 256 | 25% | shared, 30.0 TFLOP/s |" in page
    assert f"| `{names[1]}` | 128 (1 spills) |" in page
    assert f"| `{names[0]}` | 2.00 | 2.00 | 2.00 | 2.00 | 2.00 | 1.0 | 2.0 | 4.0 | 8.0 |" in page
    assert f"| `{names[1]}` | 2.00 / 3.00 | 2.00 |" in page
    whys = [part for part in page.split("## Why")[1].split("\n\n") if part]
    assert [why.split("`")[1] for why in whys] == names[:2]
    assert whys[0].endswith("one element of A, which all lanes share.")
    assert whys[1].endswith(" It is slower: 0.60 times the fastest speed before it.\n")
    assert f"Left out: `{names[2]}`: why" in page
    assert "What is missing was not counted: no ncu" in page
    assert "](../plots/ladder_simt.svg)" in page
    plot = texts(drawn((tmp_path / "plots" / "ladder_simt.svg").read_text()))
    assert {*names[:2], "simt_64x64", "0.750", "0.450", "cuBLAS"} <= set(plot)
    assert "[The SIMT ladder](ladder_simt.md)" in (tmp_path / "measured" / "speed.md").read_text()
    assert (tmp_path / "measured" / "counters.md").read_text() == "text"


# --- plots --------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_bars_are_as_long_as_their_values() -> None:
    """560 units are the longest value, 2; the mark at 1 stands at half of that."""
    root = drawn(charts.bars("T", ["a", "b"], {"s": [2.0, 0.5], "t": [1.0, None]}, {"here": 1.0}, ["2.00", "0.50"]))
    boxes = [box for box in root.iter(f"{SVG}rect") if "fill" in box.get("class", "") and box.get("y") != "46"]
    widths = [float(box.get("width", 0)) for box in boxes if box.get("rx") is None]
    assert widths == [560, 280, 140]
    left = float(next(box for box in boxes if box.get("rx") is None).get("x", 0))
    mark = next(path for path in root.iter(f"{SVG}path") if path.get("stroke-dasharray"))
    assert float(mark.get("d", "").removeprefix("M").split()[0]) == pytest.approx(left + 280)
    assert {"T", "a", "b", "s", "t", "here", "2.00", "0.50"} <= set(texts(root))


def test_curves_lie_where_their_values_are() -> None:
    """Over a logarithmic axis 64, 128, 256 are evenly spaced, and twice the value is twice as high."""
    root = drawn(charts.curves("T", [64, 128, 256], {"s": [1.0, 2.0, 4.0], "t": [None, 3.0, 3.0]}, "K", "X"))
    points = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{SVG}circle")]
    assert len(points) == 5
    (x0, y0), (x1, y1), (x2, y2) = points[:3]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert (y1 - y2) == pytest.approx(2 * (y0 - y1), abs=0.03)
    assert points[3] == (x1, pytest.approx((y1 + y2) / 2, abs=0.02))
    assert {"64", "128", "256", "K", "T, X"} <= set(texts(root))


def test_a_name_is_not_markup() -> None:
    assert "<b>" not in charts.bars("<b>", ["<b>"], {"<b>": [1.0]}, {}, ["<b>"])
