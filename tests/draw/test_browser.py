"""The page of a plan in a real browser: what pointing at an element says, against the layouts themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutegemm.draw import draw, layout_picture, save, swizzle_picture, tiled_mma_picture
from cutegemm.draw.figures import FIGURES
from cutegemm.draw.palette import LIGHT
from cutegemm.layout import Layout, Swizzle, make_composed_layout, make_identity_layout
from cutegemm.plan import GemmPlan, Operands, Problem
from tests.draw import browser as driver
from tests.draw import plans

pytestmark = [
    pytest.mark.skipif(bool(driver.missing()), reason=driver.missing()),
    pytest.mark.xdist_group("browser"),
]

WAVE = 24
TIMES = "\u00d7"


@pytest.fixture(scope="module")
def chrome() -> Iterator[driver.Browser]:
    browser = driver.Browser()
    yield browser
    browser.close()


class Page:
    """The page of a plan, open in the browser."""

    def __init__(self, chrome: driver.Browser, plan: GemmPlan, path: Path) -> None:
        self.chrome, self.plan = chrome, plan
        operands = plan.operands if isinstance(plan.operands, Operands) else Operands.of()
        self.problem = Problem(1000, 904, 256, operands=operands)
        save(plan, path, problem=self.problem, ctas_per_wave=WAVE)
        chrome.call("POST", f"{chrome.session}/url", {"url": "about:blank"})
        chrome.log("performance")  # what the browser asked for by itself until here
        chrome.open(path)
        assert chrome.run("return document.querySelector('.tile').dataset.ready") == "yes"

    def point(self, panel: str, row: int, col: int, *, click: bool = False) -> dict[str, str]:
        """The real pointer at the middle of a cell; what the page says then."""
        _, bn, bk = self.plan.cta_tile
        x, y = self.chrome.run(
            """
            const [panel, row, col, cols] = arguments, node = document.getElementById(panel + '-over');
            const cell = node.getBoundingClientRect().width / cols;
            scrollBy(0, node.getBoundingClientRect().top + row * cell - innerHeight / 2);
            const box = node.getBoundingClientRect();
            return [box.left + (col + 0.5) * cell, box.top + (row + 0.5) * cell];
            """,
            panel,
            row,
            col,
            bk if panel == "a" else bn,
        )
        self.chrome.move(x, y, click=click)
        return self.read()

    def read(self) -> dict[str, str]:
        self.chrome.settle()
        found: dict[str, str] = self.chrome.run(
            "const out = {};"
            "for (const n of document.querySelectorAll('[id^=f-],[id^=p-],[id^=s-],#element'))"
            "out[n.id] = n.textContent; return out"
        )
        return found

    def feeds(self) -> list[list[str]]:
        """The rows of the table of what feeds an element."""
        found: list[list[str]] = self.chrome.run(
            "return [...document.querySelectorAll('#feeds tbody tr')]"
            ".map(row => [...row.cells].map(cell => cell.textContent))"
        )
        return found

    def holder(self, row: int, col: int) -> tuple[int, int]:
        """The thread that holds D[row, col], and its value: each thread is asked for its coordinates."""
        bm, bn, _ = self.plan.cta_tile
        for thread in range(self.plan.threads):
            held = self.plan.tiled_mma.get_slice(thread).partition_C(make_identity_layout((bm, bn)))
            for value in range(held.size()):
                if tuple(held[value]) == (row, col):
                    return thread, value
        raise AssertionError("nobody holds it")


@pytest.fixture(scope="module", params=["simt", "tensor_cores"])
def page(chrome: driver.Browser, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Page:
    plan = getattr(plans, request.param)()
    return Page(chrome, plan, tmp_path_factory.mktemp("page") / "plan.html")


@pytest.mark.parametrize(("row", "col"), [(0, 0), (37, 70), (127, 127), (64, 5)])
def test_pointing_at_an_element_of_d(page: Page, row: int, col: int) -> None:
    thread, value = page.holder(row, col)
    said = page.point("d", row, col)
    assert said["element"] == f"D[{row}, {col}]"
    assert said["p-warp"] == str(thread // 32)
    assert said["p-warpgroup"] == str(thread // 128)
    assert said["p-thread"] == f"lane {thread % 32}"
    assert said["p-value"] == f"V{value}"
    assert said["f-register"] == f"register {value}"
    assert said["f-thread"] == f"{thread}: warp {thread // 32}, lane {thread % 32}"


@pytest.mark.parametrize("stage", [0, 2])
def test_the_elements_that_feed_it(page: Page, stage: int) -> None:
    row, col = 93, 41
    plan = page.plan
    page.chrome.choose("stage", stage)
    page.point("d", row, col)
    thread, _ = page.holder(row, col)
    warp = thread // 32
    table, step = page.feeds(), plan.tiled_mma.tile_mnk[2]
    assert len(table) == plan.cta_tile[2]
    parts = {"a": (plan.a.smem, row, plan.operands.a), "b": (plan.b.smem, col, plan.operands.b)}
    for k in range(0, plan.cta_tile[2], 3):
        cells = table[k]
        assert cells[0] == str(k)
        for (operand, (layout, x, kind)), at in zip(parts.items(), (1, 4), strict=True):
            byte = layout(x, k, stage) * kind.dtype.bits // 8
            assert cells[at : at + 2] == [f"0x{byte:04x}", str(byte // 4 % 32)]
            holders = []
            for lane in range(32):
                part = plan.tiled_mma.get_slice(32 * warp + lane)
                view = getattr(part, f"partition_{operand.upper()}")(make_identity_layout((128, step)))
                coords = [tuple(view[v]) for v in range(view.size())]
                if (x, k % step) in coords:
                    holders.append((lane, coords.index((x, k % step))))
            own = [value for lane, value in holders if lane == thread % 32]
            expected = f"own V{own[0]}" if own else f"L{holders[0][0]} V{holders[0][1]}"
            assert cells[at + 2] == expected
    page.chrome.choose("stage", 0)


@pytest.mark.parametrize("operand", ["a", "b"])
def test_pointing_at_an_operand(page: Page, operand: str) -> None:
    x, k = 77, 11
    plan = page.plan
    said = page.point(operand, *((x, k) if operand == "a" else (k, x)))
    stream = plan.stream(operand)
    layout, load, kind = stream.smem, stream.load, stream.read
    byte = layout(x, k, 0) * kind.dtype.bits // 8
    thread = int(np.argwhere(load.offsets_d(Layout((128, plan.cta_tile[2]))) == x + 128 * k)[0][0])
    assert said["element"] == (f"A[{x}, {k}]" if operand == "a" else f"B[{k}, {x}]")
    assert said["f-value"] == f"0x{byte:04x} of {operand.upper()}"
    assert said["f-register"] == f"bank {byte // 4 % 32}"
    assert said["f-thread"].startswith(f"copied by thread {thread},")


def test_the_keyboard_moves_and_pins(page: Page) -> None:
    page.point("d", 10, 20, click=True)
    assert page.chrome.text("#pin") == "pinned"
    assert page.point("d", 90, 90)["element"] == "D[10, 20]"  # the pointer no longer counts
    page.chrome.run("document.getElementById('d-over').focus()")
    for keys, element in (
        (["ArrowDown", "ArrowRight", "ArrowRight"], "D[11, 22]"),
        (["Shift+ArrowDown", "Home", "ArrowUp"], "D[18, 0]"),
        (["Shift+ArrowLeft", "PageDown", "End"], "D[127, 127]"),
    ):
        page.chrome.keys(*keys)
        assert page.read()["element"] == element
    page.chrome.keys("Escape")
    assert page.chrome.text("#pin") == "follows the pointer"


def test_the_grid_gives_the_block(page: Page) -> None:
    m, n, _ = page.plan.grid(page.problem)
    m_tile, n_tile, _ = page.plan.scheduler.raster.order(m, n)[37].tolist()
    page.chrome.choose("order", 37)
    said = page.point("d", 3, 4)
    assert said["p-grid"] == f"({m_tile}, {n_tile})"
    assert said["s-grid"].startswith(f"CTA 37 of {m} {TIMES} {n} {TIMES} 1, wave {37 // WAVE}")
    assert said["element"] == f"D[{128 * m_tile + 3}, {128 * n_tile + 4}]"
    page.chrome.choose("order", 0)


def test_all_choices_of_colour_and_size_paint(page: Page) -> None:
    def colours(panel: str) -> int:
        seen: int = page.chrome.run(
            """
            const c = document.getElementById(arguments[0] + '-base'), seen = new Set();
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]);
            return seen.size;
            """,
            panel,
        )
        return seen

    for control, value, panel in (
        ("color-d", "lane", "d"),
        ("color-d", "value", "d"),
        ("color-ab", "copier", "a"),
        ("color-ab", "reader", "b"),
        ("zoom", "9", "d"),
    ):
        page.chrome.choose(control, value)
        assert colours(panel) > 4
    for control, value in (("color-d", "warp"), ("color-ab", "bank"), ("zoom", "fit")):
        page.chrome.choose(control, value)


def test_the_colour_of_a_cell_is_its_bank(page: Page) -> None:
    row, k = 50, 7
    plan = page.plan
    pixel = page.chrome.run(
        """
        const [row, k, cols] = arguments, c = document.getElementById('a-base'), cell = c.width / cols;
        return [...c.getContext('2d').getImageData((k + 0.5) * cell, (row + 0.5) * cell, 1, 1).data];
        """,
        row,
        k,
        plan.cta_tile[2],
    )
    bank = plan.a.smem(row, k, 0) * plan.operands.a.dtype.bits // 32 % 32
    assert "#" + "".join(f"{v:02x}" for v in pixel[:3]) == LIGHT[bank]


@pytest.mark.slow  # a time, which a machine with other work does not keep
def test_hovering_does_not_stutter(page: Page) -> None:
    """All that is looked up and drawn for an element fits a 60 Hz frame, on average of a thousand."""
    consumed = page.chrome.run(
        """
        const canvas = document.getElementById('d-over'), box = canvas.getBoundingClientRect();
        const cell = box.width / 128, frame = window.requestAnimationFrame;
        window.requestAnimationFrame = (draw) => { draw(); return 0; };
        const begin = performance.now();
        for (let i = 0; i < 1000; i++) {
          const clientX = box.left + (i * 37 % 128 + 0.5) * cell;
          const clientY = box.top + (i * 53 % 128 + 0.5) * cell;
          canvas.dispatchEvent(new PointerEvent('pointermove', {clientX, clientY}));
        }
        window.requestAnimationFrame = frame;
        return (performance.now() - begin) / 1000;
        """
    )
    assert consumed < 16.7


def test_nothing_is_loaded_and_nothing_fails(page: Page) -> None:
    assert [entry for entry in page.chrome.log() if entry["level"] == "SEVERE"] == []
    messages = [json.loads(entry["message"])["message"] for entry in page.chrome.log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_every_control_is_reached_by_the_keyboard_and_named(page: Page) -> None:
    unnamed = page.chrome.run(
        """
        return [...document.querySelectorAll('button, select, input, canvas[tabindex]')].filter((node) =>
          node.tabIndex < 0 || !(node.ariaLabel || node.textContent.trim() || node.labels?.length)).length;
        """
    )
    assert unnamed == 0


def test_a_link_may_name_an_element(page: Page, tmp_path: Path) -> None:
    path = save(page.plan, tmp_path / "plan.html")
    page.chrome.open(path, "#m=12&n=34")
    assert page.read()["element"] == "D[12, 34]"
    assert page.read()["p-grid"] == "any"


def _clipped(chrome: driver.Browser) -> Any:
    """Texts of an SVG that reach out of it, and texts of a cell that are wider than the cell."""
    return chrome.run(
        """
        const svg = document.querySelector('svg'), home = svg.getBoundingClientRect(), out = [];
        const scale = home.width / svg.viewBox.baseVal.width;
        for (const t of svg.querySelectorAll('text')) {
          const b = t.getBoundingClientRect();
          const across = Math.max(home.left - b.left, b.right - home.right);
          const over = Math.max(across, home.top - b.top, b.bottom - home.bottom);
          if (over > 0.5) out.push(['outside', t.textContent]);
        }
        for (const g of svg.querySelectorAll('g.grid')) {
          const wide = Number(g.dataset.cell.split(' ')[0]) * scale;
          for (const t of g.querySelectorAll('.cell text, .two text, .low text'))
            if (t.getBoundingClientRect().width > wide) out.push(['too wide', t.textContent]);
        }
        return out;
        """
    )


PICTURES = {
    **FIGURES,
    "coordinates": lambda: layout_picture(make_identity_layout((9, 7))),
    "slices": lambda: layout_picture(Layout((4, 3, 5))),
    "long offsets": lambda: layout_picture(Layout((8, 8), (1 << 40, 1))),
    "large": lambda: swizzle_picture(make_composed_layout(Swizzle(3, 4, 3), 0, Layout((128, 128), (128, 1)))),
    "two warpgroups": lambda: tiled_mma_picture(plans.warpgroups()),
}


@pytest.mark.parametrize("name", PICTURES)
def test_no_text_is_clipped(chrome: driver.Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "picture.html"
    path.write_text(draw(PICTURES[name](), kind="html"), encoding="utf-8")
    chrome.open(path)
    assert _clipped(chrome) == []
