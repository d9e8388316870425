"""The explorer in a real browser: typing, links, the way back, both widths, both schemes, and Python in the page."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cutegemm.explore.server import Explorer
from cutegemm.explore.static import write
from cutegemm.layout import Layout, composition
from tests.draw import browser as driver

pytestmark = [
    pytest.mark.skipif(bool(driver.missing()), reason=driver.missing()),
    pytest.mark.xdist_group("browser"),
]

CONFLICT = "plan=simt:block=128x128x8,warp=64x32,thread=8x8,shared_a=k&layout=nn"
VIEWS = {
    "layouts": "view=layouts",
    "swizzle": "view=layouts&expr=S<3,3,3> o 0 o (8,64):(64,1)",
    "refused": "view=layouts&expr=composition((6,2):(1,7), (3,2):(2,3))",
    "rules": "view=rules",
    "violations": "view=rules&plan=sm90:tile=100x100x64,cluster=3x1",
    "kept": "view=rules&plan=simt:block=1x1&last=plan%3Dsimt_64x64%26layout%3Dnn",
    "tile": "view=tile",
    "banks": f"view=banks&{CONFLICT}",
    "pipeline": "view=pipeline&t=60",
    "schedule": "view=pipeline&plan=simt_256x128&layout=nn&t=9",
    "time": "view=report",
    "advice": "view=report&plan=sm90_pingpong",
    "code": "view=code",
}
# The lowest contrast of text with its background: WCAG 2.2, 1.4.3 (level AA).
CONTRAST = 4.5
_LOW = """
const least = arguments[0];
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const background = (node) => {
  for (; node; node = node.parentElement) {
    const found = numbers(getComputedStyle(node).backgroundColor);
    if (found.length === 3 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const low = [];
for (const node of document.querySelectorAll("#app *")) {
  if (node.closest("svg, canvas") || !node.checkVisibility()) continue;
  if (![...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim())) continue;
  if (node.closest(".tile i.bank")) continue;
  const [a, b] = [light(numbers(getComputedStyle(node).color)), light(background(node))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < least) low.push([node.textContent.trim().slice(0, 40), (a + 0.05) / (b + 0.05)]);
}
return low;
"""


class Explored:
    """The explorer in a browser."""

    def __init__(self, root: str) -> None:
        self.root, self.browser = root, driver.Browser()

    def cdp(self, command: str, **parameters: Any) -> Any:
        """A command of the Chrome DevTools protocol."""
        return self.browser.call(
            "POST", f"{self.browser.session}/goog/cdp/execute", {"cmd": command, "params": parameters}
        )

    def shown_at(self, width: int, scheme: str) -> None:
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, query: str) -> None:
        self.browser.call("POST", f"{self.browser.session}/url", {"url": f"{self.root}?{query}"})

    def run(self, script: str, *args: Any) -> Any:
        return self.browser.run(script, *args)

    def until(self, script: str, *args: Any, seconds: float = 30.0) -> Any:
        """What a script returns, once that is something."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.run(script, *args)
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError(f"{script} is still nothing: {self.run('return document.body.innerText')[:400]}")

    def type(self, css: str, text: str) -> None:
        """Real keys, at the end of a field."""
        self.run(
            "const node = document.querySelector(arguments[0]); node.focus();"
            "node.setSelectionRange(node.value.length, node.value.length)",
            css,
        )
        pressed = [{"type": kind, "value": letter} for letter in text for kind in ("keyDown", "keyUp")]
        keys = [{"type": "key", "id": "keys", "actions": pressed}]
        self.browser.call("POST", f"{self.browser.session}/actions", {"actions": keys})

    def click(self, text: str) -> None:
        self.run("[...document.querySelectorAll('a')].find((a) => a.textContent === arguments[0]).click()", text)

    def failures(self) -> list[str]:
        return [entry["message"] for entry in self.browser.log() if entry["level"] == "SEVERE"]


@pytest.fixture(scope="module")
def explored() -> Iterator[Explored]:
    with Explorer(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = Explored(server.url)
        found.shown_at(1400, "light")
        yield found
        found.browser.close()
        server.shutdown()


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_fits_and_can_be_read(explored: Explored, view: str) -> None:
    """At both widths nothing is wider than the page, nothing fails, and text stands out from its background."""
    explored.failures()
    for width, scheme in ((1400, "light"), (1400, "dark"), (420, "dark"), (420, "light")):
        explored.shown_at(width, scheme)
        explored.open(VIEWS[view])
        explored.until("return document.querySelector('#main')")
        # A phone widens innerWidth to what overflows, so it cannot be used here.
        assert explored.run("return document.documentElement.scrollWidth") <= width, scheme
        assert explored.run(_LOW, CONTRAST) == [], (width, scheme)
    explored.shown_at(1400, "light")
    assert explored.failures() == []


def test_typing_is_seen_at_once_and_stays_where_it_is(explored: Explored) -> None:
    explored.open("view=layouts&expr=composition((6,2):(8,2), (4,3):(3,1)")
    assert "is expected at the end" in explored.until("return document.querySelector('.error')?.textContent")
    explored.type("#f-expr", ")")
    result = str(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
    assert explored.until("return document.querySelector('.result')?.textContent") == f"= {result}"
    assert explored.run("return document.activeElement.id") == "f-expr"
    assert explored.run("return document.activeElement.value") == "composition((6,2):(8,2), (4,3):(3,1))"
    assert explored.until("return location.search.endsWith(':(3,1))') && location.search").startswith("?view=layouts")
    explored.type("#f-expr", " ")
    explored.type("#f-expr", "x")
    explored.until("return document.querySelector('.error')")
    assert explored.run("return document.activeElement.value").endswith(") x")


def test_links_and_the_way_back(explored: Explored) -> None:
    explored.open("view=rules&plan=simt_256x128&layout=nn")
    for name, query in (("tile", "view=tile"), ("banks", "view=banks"), ("pipeline", "view=pipeline")):
        explored.click(name)
        explored.until("return location.search.includes(arguments[0])", query)
        assert explored.until("return document.querySelector('nav [aria-current=page]')?.textContent") == name
        assert explored.run("return document.querySelector('#f-plan').value") == "simt_256x128"
    assert explored.run("return document.title") == "simt_256x128: cutegemm explorer"
    explored.run("history.back()")
    explored.until("return location.search.includes('view=banks')")
    explored.until("return document.querySelector('nav [aria-current=page]')?.textContent === 'banks'")
    assert explored.failures() == []


def test_a_plan_is_edited(explored: Explored) -> None:
    """A field of the editor makes another plan, whose broken rules are listed; what is typed stays."""
    explored.open(f"view=rules&{CONFLICT}")
    explored.run("document.querySelector('#editor').open = true")
    assert explored.until("return document.querySelector('.kept')")
    explored.run(
        "const f = document.getElementById('f-o.block'); f.focus(); f.value = '128x100x8';"
        "f.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert "100" in explored.until("return document.querySelector('.rules')?.textContent")
    assert "block=128x100x8" in explored.run("return document.querySelector('#f-plan').value")
    assert explored.run("return document.activeElement.id") == "f-o.block"
    assert explored.run("return document.querySelector('#editor').open")
    assert "128 x 128 x 8" in explored.run("return document.querySelector('.last').textContent")
    explored.run(
        "const f = document.getElementById('f-o.block'); f.value = '128x64x8';"
        "f.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert explored.until("return document.querySelector('.kept')")
    assert explored.run("return document.querySelector('.last')") is None
    assert "last=" not in explored.run("return location.search")


def test_the_pipeline_is_stepped_through_by_keys(explored: Explored) -> None:
    explored.open("view=pipeline&t=10")
    explored.until("return document.querySelector('.result')?.textContent.startsWith('11 of')")
    explored.run("document.querySelector('#f-t').focus()")
    for keys, shown in ((["ArrowRight"], "12 of"), (["ArrowLeft", "ArrowLeft"], "10 of"), (["Home"], "1 of")):
        explored.browser.keys(*keys)
        explored.until("return document.querySelector('.result').textContent.startsWith(arguments[0])", shown)
        assert explored.run("return document.activeElement.id") == "f-t"
    explored.run("[...document.querySelectorAll('a.button')].find((a) => a.textContent === 'next').focus()")
    explored.browser.keys("Enter")
    explored.until("return document.querySelector('.result').textContent.startsWith('2 of')")


def test_a_bank_is_picked(explored: Explored) -> None:
    explored.open(f"view=banks&{CONFLICT}")
    assert explored.until("return document.querySelectorAll('.bank.meets').length") == 1
    explored.click("fill B")
    explored.until("return !document.querySelector('.bank.meets')")
    assert explored.run("return document.querySelector('tr.marked th').textContent") == "fill B"


def test_the_tile_is_that_of_the_plan_and_its_element_stands_in_the_link(explored: Explored) -> None:
    explored.open("view=tile&plan=simt_256x128&layout=nn&m=7&n=9")
    explored.until("return document.querySelector('.tile[data-ready]')")
    assert explored.run("return document.querySelector('#element').textContent") == "D[7, 9]"
    explored.run("document.querySelector('#d-over').focus()")
    explored.browser.keys("ArrowDown", "ArrowRight", "Enter")
    explored.until("return location.search.includes('m=8') && location.search.includes('n=10')")
    explored.run(
        "const f = document.querySelector('#f-plan'); f.value = 'simt_64x64';"
        "f.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    explored.until("return document.querySelector('#p-cta')?.parentNode.textContent.includes('64 × 64')")
    assert explored.run("return document.querySelectorAll('.tile').length") == 1
    assert explored.run("return document.querySelector('.tile').dataset.ready") == "yes"


def test_the_keyboard_reaches_everything_in_order(explored: Explored) -> None:
    """Tab goes through all that can be used, the way to the content first, and each of them has a name."""
    explored.open(f"view=banks&{CONFLICT}")
    explored.until("return document.querySelector('.bank.meets')")
    unnamed, order = explored.run(
        """
        const used = [...document.querySelectorAll("a[href], button, select, input, textarea, summary, [tabindex='0']")]
          .filter((node) => node.checkVisibility() && node.type !== "hidden");
        const named = (n) => n.ariaLabel || n.textContent.trim() || n.labels?.length;
        const bad = used.filter((n) => n.tabIndex < 0 || !named(n));
        return [bad.length, used.slice(0, 4).map((n) => n.textContent.trim())];
        """
    )
    assert unnamed == 0
    assert order == ["Skip to the content", "cutegemm", "layouts", "rules"]


def test_without_a_script_links_and_buttons_do(explored: Explored) -> None:
    explored.cdp("Emulation.setScriptExecutionDisabled", value=True)
    try:
        explored.open("view=rules&plan=simt_64x64&layout=nn")
        document = explored.cdp("DOM.getDocument", depth=-1)["root"]["nodeId"]
        html = explored.cdp("DOM.getOuterHTML", nodeId=document)["outerHTML"]
        assert "all rules kept" in html
        assert '<button type="submit">show</button>' in html
    finally:
        explored.cdp("Emulation.setScriptExecutionDisabled", value=False)


PYODIDE = os.environ.get("CUTEGEMM_PYODIDE", "")


@pytest.mark.skipif(
    not PYODIDE,
    reason="CUTEGEMM_PYODIDE names no folder of a distribution of Pyodide with numpy: docs/explorer.md",
)
def test_the_static_page_answers_as_the_server_does(explored: Explored, tmp_path: Path) -> None:
    """Python in the browser returns each view exactly as Python here does."""
    from cutegemm.explore import answer

    write(tmp_path, PYODIDE)
    quiet: Callable[..., SimpleHTTPRequestHandler] = partial(_Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        static = Explored(f"http://127.0.0.1:{files.server_address[1]}/")
        try:
            static.open("view=layouts&expr=complement(4:2, 16)")
            static.until("return document.querySelector('#steps')", seconds=120)
            for name, query in VIEWS.items():
                html = static.browser.run_async(
                    "const [query, done] = arguments; let got;"
                    "const keep = ({ detail }) => { got = detail.ctx.text; };"
                    "document.addEventListener('htmx:after:request', keep, { once: true });"
                    "htmx.ajax('GET', '?' + query, { target: '#app', swap: 'innerMorph' }).then(() => done(got))",
                    query,
                )
                assert html.endswith(answer(query).html), name
            static.click("banks")
            static.until("return document.querySelector('nav [aria-current=page]')?.textContent === 'banks'")
            assert static.failures() == []
        finally:
            static.browser.close()
            files.shutdown()


@pytest.mark.parametrize("missing", ["runtime", "worker"])
def test_the_static_page_says_that_python_cannot_be_loaded(tmp_path: Path, missing: str) -> None:
    """Nothing listens at the address of the runtime, or the worker is missing: the page names it, and goes on waiting
    for nothing."""
    write(tmp_path, "http://127.0.0.1:9/none/")
    if missing == "worker":
        (tmp_path / "assets" / "worker.js").unlink()
    quiet: Callable[..., SimpleHTTPRequestHandler] = partial(_Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), quiet) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        static = Explored(f"http://127.0.0.1:{files.server_address[1]}/")
        try:
            static.open("view=layouts")
            said = static.until("return document.querySelector('#main > .error')?.textContent")
            wanted = "could not be loaded from http://127.0.0.1:9/none/" if missing == "runtime" else "did not start"
            assert wanted in said
            assert static.run("return document.querySelector('#progress')") is None
        finally:
            static.browser.close()
            files.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
