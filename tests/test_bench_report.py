"""The pages of the documents are those that the command makes of the recorded measurements."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cutegemm.bench.pages import charts, report, speed, timed_ladder
from cutegemm.cli import app

DOCS = Path(__file__).parent.parent / "docs"
MACHINE = {"gpu": "G", "driver": "1", "torch": "2", "nvidia-cutlass-dsl": "3", "date": "2026-01-01 now"}


def written(folder: Path, name: str, rows: list[dict[str, object]], **more: object) -> None:
    (folder / f"{name}.json").write_text(json.dumps({"machine": MACHINE, "rows": rows, **more}))


def row(plan: str, ratio: float, m: int = 4, n: int = 5, k: int = 6) -> dict[str, object]:
    return {
        "m": m, "n": n, "k": k, "layout": "nn", "plan": plan, "ratio": ratio, "tflops": 2 * ratio,
        "library_tflops": 2.0,
    }  # fmt: skip


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return report.pages(DOCS)


def test_the_pages_are_up_to_date(made: dict[str, str]) -> None:
    assert {"speed.md", "ladder_hopper.md", "plots/hopper_sweep.svg", "plots/ladder_hopper.svg"} <= set(made)
    assert [name for name, text in made.items() if (DOCS / name).read_text() != text] == []
    assert {f"plots/{path.name}" for path in (DOCS / "plots").iterdir()} <= set(made)


def test_every_picture_of_a_page_is_there(made: dict[str, str]) -> None:
    for name, text in made.items():
        for part in text.split("](plots/")[1:]:
            assert f"plots/{part.split(')')[0]}" in made, name


def test_a_row_by_hand(tmp_path: Path) -> None:
    """Two plans at one shape: the chosen one's ratio 1.5 stands in the table, the best, 2.0, beside it."""
    failed = {"m": 4, "n": 5, "k": 6, "layout": "nn", "plan": "r", "error": "no"}
    written(tmp_path, "simt", [row("p (chosen)", 1.5), row("q", 2.0), failed])
    page = speed.pages(tmp_path)["speed.md"]
    assert "| 4×5×6 | nn | 2.0 | 3.0 | 1.500 | `p` | 2.000 |" in page
    assert "Geometric mean of the ratios: 1.500." in page


def test_a_ladder_by_hand(tmp_path: Path) -> None:
    """K = 64 and 128 of the sweep: sqrt(0.5 * 2) = 1 for the step that ran at both, none for the other."""
    shapes = [{"m": 8448, "n": 9216, "k": k} for k in (64, 128)]
    written(
        tmp_path, "hopper_ladder",
        [row("sm90_slots", 0.5, **shapes[0]), row("sm90_slots", 2.0, **shapes[1]),
         row("sm90_pingpong", 0.25, **shapes[0]), row("sm90_slots (chosen)", 0.5, **shapes[0]),
         row("sm90_wide_1x2 (chosen)", 8.0, **shapes[1])],
    )  # fmt: skip
    made = timed_ladder.pages(tmp_path)
    page = made["ladder_hopper.md"].splitlines()
    means = [line.split(" | ")[0::2] for line in page if " | " in line and "change" not in line][1:4]
    assert [(cells[0].strip("| "), cells[-1].strip("| ")) for cells in means] == [
        ("`sm90_slots`", "1.000"), ("`sm90_pingpong`", ""), ("chosen by `gemm`", "2.000"),
    ]  # fmt: skip
    assert "| cuBLAS | 2.0 | 2.0 |" in page
    assert "| `sm90_slots` | 1.0 (0.500) | 4.0 (2.000) |" in page
    assert "| `sm90_pingpong` | 0.5 (0.250) |  |" in page
    assert list(made) == ["ladder_hopper.md", "plots/ladder_hopper.svg"]


def test_what_is_not_measured_is_left_out(tmp_path: Path) -> None:
    assert list(report.pages(tmp_path)) == ["speed.md"]
    for name in ("simt", "hopper", "hopper_ladder", "mma_power_bf16"):
        written(tmp_path, name, [{"m": 4, "n": 5, "k": 6, "layout": "nn", "plan": "p", "error": "no"}])
    assert list(timed_ladder.pages(tmp_path)) == []
    assert "##" not in speed.pages(tmp_path)["speed.md"]
    written(tmp_path, "simt_host", [], host_us={"gemm": 9.04})
    assert "| gemm | 9.0 |" in speed.pages(tmp_path)["speed.md"]


def test_power(tmp_path: Path) -> None:
    own = {"tflops": 470.0, "clock_mhz": 1545, "power_w": 690.5, "throttle": {"power cap": 0.9}}
    timed = {**row("p", 0.7), "alone": {**own, "share_at_clock": 0.85}, "library_alone": {"tflops": 660.0}}
    written(tmp_path, "mma_power_bf16", [timed], ceiling={**own, "tflops": 553.0})
    page = speed.pages(tmp_path)["speed.md"]
    assert "| 4×5×6 | `p` | 470.0 | 1545 | 690.5 | 0.850 | power cap 90% |" in page
    assert "| 4×5×6 | cuBLAS | 660.0 |  |  |  |  |" in page
    assert "|  | ceiling | 553.0 | 1545 | 690.5 |  | power cap 90% |" in page


def test_what_a_cpu_measures(tmp_path: Path) -> None:
    own = {"machine": "M", "python": "3.12", "date": "2026-01-02T03:04", "numpy": "2"}
    plans = {"p": {"seconds": 0.07, "peak_mb": 61.0, "within": True}}
    (tmp_path / "simulate.json").write_text(json.dumps({**own, "extent": 512, "plans": plans}))
    found = {"versions": {"ours": "1"}, "offsets": {"elements": 9, "us": 3.0, "ratio": 490.0}}
    rows = [{"operation": "size", "arguments": ["4:1"], "us": {"ours": 0.5}}]
    (tmp_path / "algebra.json").write_text(json.dumps({**own, **found, "rows": rows}))
    page = speed.pages(tmp_path)["speed.md"]
    assert "| p | 0.070 | 61 |" in page
    assert "512³ on one core, every check on: M, Python 3.12, 2026-01-02" in page
    assert "| `size` | `4:1` | 0.50 |" in page
    assert "490 times as fast" in page


def step(name: str, number: int, tflops: float) -> dict[str, object]:
    counts = dict.fromkeys(
        [f"{kind}_wavefronts" for kind in ("load", "store", "async")]
        + [f"{kind}_sectors" for kind in ("load", "async", "store")], 2e6,
    )  # fmt: skip
    return {
        "name": name, "number": number, "change": f"change {number}", "why": f"why {number}", "threads": 256,
        "registers": 128, "spills": number, "ctas_per_sm": 2, "occupancy": 0.25, "bound": "shared",
        "bound_tflops": 30.0, "peak_tflops": 60.0, "predicted": counts,
        "measured": {"load_wavefronts": 3e6} if number else {}, "tflops": {"4096": tflops},
        "ratio": {"4096": tflops / 50}, "intensity": {"register": 1.0, "shared": 2.0, "L2": 4.0, "DRAM": 8.0},
    }  # fmt: skip


def test_a_ladder_with_counters_by_hand(tmp_path: Path) -> None:
    """10 and 15 TFLOP/s of 50 and of a peak of 60; the second one 1.5 times as fast."""
    (tmp_path / "benchmarks").mkdir()
    found = {
        "ladder": "simt", "title": "SGEMM", "data": "f32, row-major matrices", "counted_size": 2048,
        "machine": MACHINE, "library": "torch.matmul", "library_tflops": {"4096": 50.0}, "failed": {"three": "why"},
        "steps": [step("one", 0, 10.0), step("two", 1, 15.0)],
    }  # fmt: skip
    (tmp_path / "benchmarks" / "ladder_simt.json").write_text(json.dumps(found))
    (tmp_path / "analysis.md").write_text("text")
    done = CliRunner().invoke(app, ["bench", "report", "--docs", str(tmp_path)])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "ladder_simt.md").read_text()
    assert "f32, row-major matrices, normal data" in page
    assert "torch.matmul: 50.0 TFLOP/s at 4096³" in page
    assert "| `one` | change 0 | 10.00 | 0.200 | 16.7% | 128 | 2 x 256 | 25% | shared, 30.0 TFLOP/s |" in page
    assert "| `two` | change 1 | 15.00 | 0.300 | 25.0% | 128 (1 spills) |" in page
    assert "| `one` | 2.00 | 2.00 | 2.00 | 4.00 | 2.00 | 1.0 | 2.0 | 4.0 | 8.0 |" in page
    assert "| `two` | 2.00 / 3.00 | 2.00 |" in page
    assert "**1. `two`: change 1.** why 1 1.50 times the speed of the step before at 4096³." in page
    assert "Left out: `three`: why." in page
    assert "](plots/ladder_simt.svg)" in page
    plot = texts(drawn((tmp_path / "plots" / "ladder_simt.svg").read_text()))
    assert {"one", "two", "10.0 (0.20)", "15.0 (0.30)", "cuBLAS 50.0", "peak 60"} <= set(plot)
    assert "[SGEMM](ladder_simt.md)" in (tmp_path / "speed.md").read_text()
    assert (tmp_path / "analysis.md").read_text() == "text"


# --- plots --------------------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"


def drawn(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def test_bars_are_as_long_as_their_values() -> None:
    """560 units are the longest value, 2; the mark at 1 stands at half of that."""
    root = drawn(charts.bars("T", ["a", "b"], {"s": [2.0, 0.5], "t": [1.0, None]}, {"here": 1.0}))
    boxes = [
        box for box in root.iter(f"{SVG}rect") if "fill" in box.get("class", "") and box.get("y") != "46"
    ]
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
    assert "<b>" not in charts.bars("<b>", ["<b>"], {"<b>": [1.0]}, {})
