"""A canvas that collects SVG elements and computes the size of the document."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

import numpy as np

from cutegemm.draw.palette import stylesheet

SCOPE = "svg.cg"  # short, since each rule repeats it
PAD = 20
MONO, SANS = 0.605, 0.58  # width of a character relative to the font size: an upper bound for the fonts in _STYLE

_STYLE = (
    "{s}{{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace}}"
    "{s} text{{fill:currentColor}}"
    "{s} .title,{s} .say{{font-family:"
    "system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif}}"
    "{s} .title{{font-size:15px;font-weight:600}}{s} .say{{font-size:11.5px}}{s} .mono{{font-size:11.5px}}"
    "{s} .head{{font-size:12px;font-weight:600}}{s} .tick{{font-size:9.5px}}{s} .cell{{font-size:11px}}"
    "{s} .two{{font-size:10.5px}}{s} .low{{font-size:9px;opacity:.72}}{s} .joint{{font-size:22px}}"
    "{s} .mid text,{s} text.mid{{text-anchor:middle}}{s} text.end,{s} .end text{{text-anchor:end}}"
    "{s} .cells path{{fill:none;stroke:currentColor;stroke-width:1;shape-rendering:crispEdges}}"
    "{s} .lines path{{fill:none;stroke:currentColor}}{s} .l0{{stroke-width:1}}"
    "{s} .l1{{stroke-width:1;opacity:.32}}{s} .l2{{stroke-width:1.3;opacity:.75}}{s} .l3{{stroke-width:2.6}}"
    "{s} .trail{{fill:none;stroke:currentColor;stroke-width:1.4;opacity:.22;stroke-linejoin:round}}"
    "{s} .fill{{fill:currentColor}}{s} .frame{{fill:none;stroke:currentColor;stroke-width:1.2}}"
)


class Canvas:
    """Builds an SVG document: methods append rectangles and texts, and `finish` returns the document as text.

    parts           SVG elements in drawing order
    right, bottom   largest x and y coordinates that elements reach, in pixels
    """

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.right = 0.0
        self.bottom = 0.0

    def reach(self, x: float, y: float) -> None:
        """Extend the size of this SVG document so that it contains the point (x, y), in pixels."""
        self.right, self.bottom = max(self.right, x), max(self.bottom, y)

    def add(self, element: str) -> None:
        """Append an SVG element (its text) to this document without changing the document's size."""
        self.parts.append(element)

    def rect(self, x: float, y: float, width: float, height: float, style: str, extra: str = "") -> None:
        """Append a rectangle to this SVG document; (x, y) is its top left corner, and all lengths are in pixels.

        style           class names, separated by spaces
        extra           more attributes, with a leading space
        width, height   extents of the rectangle
        """
        self.reach(x + width, y + height)
        box = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"'
        self.add(f'<rect {box} class="{style}"{extra}/>')

    def text(self, x: float, y: float, content: str, style: str, size: float, mono: bool = True) -> None:
        """Append a text to this SVG document, with its baseline at y.

        The text starts at x. With the class `mid` it is centred at x, and with the class `end` it ends at x.

        content the text
        style   class names, separated by spaces
        size    font size in pixels; decides the width of the text
        mono    True if the font is monospaced
        """
        self._reach_text(x, y, content, style.split(), size, mono)
        self.add(f'<text x="{num(x)}" y="{num(y)}" class="{style}">{escape(content)}</text>')

    def series(self, items: Sequence[tuple[float, float, str]], style: str, size: float) -> None:
        """Append several texts of one style to this SVG document.

        items   (x, y, content) of each text, in pixels; a text starts at x, with its baseline at y
        style   CSS class names, separated by spaces; the class `mid` centres texts at x, `end` lets them end at x
        size    font size in pixels
        """
        for x, y, content in items:
            self._reach_text(x, y, content, style.split(), size)
        self.add(f'<g class="{style}">{texts(items)}</g>')

    def _reach_text(
        self, x: float, y: float, content: str, kinds: Sequence[str], size: float, mono: bool = True
    ) -> None:
        """Extend the size of this SVG document so that it contains a text.

        x, y      position of the text's baseline in pixels
        content   the text
        kinds     CSS classes; `mid` means that the text is centred at x, `end` that it ends at x, else it starts there
        size      font size in pixels
        mono      True if the font is monospaced
        """
        wide = text_width(content, size, mono)
        self.reach(x + (wide / 2 if "mid" in kinds else 0 if "end" in kinds else wide), y + size * 0.3)

    def finish(self, title: str, description: str) -> str:
        """Return this SVG document as text, with its title, description, style sheet and background.

        title         what the document shows, for tooltips and screen readers
        description   details, for screen readers
        """
        width, height = num(np.ceil(self.right + PAD)), num(np.ceil(self.bottom + PAD))
        body = f'<rect width="{width}" height="{height}" rx="6" class="fill paper"/>{"".join(self.parts)}'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="cg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" style="max-width:100%;height:auto" role="img">'
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{_style_of(body)}</style>{body}</svg>"
        )


def _style_of(body: str) -> str:
    """Return the CSS rules of the classes that SVG elements use, and no others, which keeps files small."""
    used = {name for names in re.findall(r'class="([^"]*)"', body) for name in names.split()}
    rules = [(re.findall(r"\.(\w+)", rule.partition("{{")[0]), rule) for rule in re.findall(r".+?}}", _STYLE)]
    kept = "".join([rule for names, rule in rules if not names or used & set(names)])
    return kept.format(s=SCOPE) + stylesheet(SCOPE, used)


def num(value: float) -> str:
    """Return a coordinate as text for SVG, with at most two decimals and no trailing zeros: 2.50 becomes "2.5".

    >>> num(3.0), num(2.5), num(1 / 3)
    ('3', '2.5', '0.33')
    """
    return f"{float(value):.2f}".rstrip("0").rstrip(".")


def texts(items: Iterable[tuple[float, float, str]]) -> str:
    """Return the SVG of several texts, each with its position.

    Neighbouring items with the same y are put into one SVG group, which keeps files small.

    items   (x, y, content) of each text, in pixels

    >>> texts([(1, 9, "a"), (2, 9, "b"), (1, 20, "c")])
    '<g transform="translate(0 9)"><text x="1">a</text><text x="2">b</text></g><text x="1" y="20">c</text>'
    """
    out = []
    for y, line in groupby(items, key=lambda item: num(item[1])):
        row = [(num(x), escape(content)) for x, _, content in line]
        if len(row) == 1:
            out.append(f'<text x="{row[0][0]}" y="{y}">{row[0][1]}</text>')
        else:
            out += [f'<g transform="translate(0 {y})">', *[f'<text x="{x}">{said}</text>' for x, said in row], "</g>"]
    return "".join(out)


def text_width(content: str, size: float, mono: bool = True) -> float:
    """Return an upper bound of the width of a text in pixels.

    content   the text
    size      font size in pixels
    mono      True if the font is monospaced
    """
    return len(content) * size * (MONO if mono else SANS)


def wrapped(content: str, width: float, size: float, mono: bool = True) -> list[str]:
    """Break a text into lines of at most `width` pixels.

    A line ends after a space, a comma or a colon if there is one in its second half.

    content   the text
    width     maximum width of a line in pixels
    size      font size in pixels
    mono      True if the font is monospaced
    """
    most = max(8, int(width / (size * (MONO if mono else SANS))))
    lines, rest = [], content
    while len(rest) > most:
        at = max(rest.rfind(mark, most // 2, most) for mark in (" ", ",", ":"))
        at = at + 1 if at > 0 else most
        lines.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, rest] if rest else lines
