"""An SVG document as it grows: elements, the colours that they use, and how far they reach; text is measured."""

from __future__ import annotations

from html import escape

import numpy as np

from cutegemm.draw.palette import stylesheet

SCOPE = "svg.cutegemm"
PAD = 20
MONO, SANS = 0.605, 0.58  # widths of a character, in font sizes: at least those of the fonts named below

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
    """Elements, the colours that they use, and how far they reach: the size follows from what is drawn."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.used: set[str] = set()
        self.right = 0.0
        self.bottom = 0.0

    def reach(self, x: float, y: float) -> None:
        self.right, self.bottom = max(self.right, x), max(self.bottom, y)

    def add(self, element: str) -> None:
        self.parts.append(element)

    def rect(self, x: float, y: float, width: float, height: float, style: str, extra: str = "") -> None:
        self.reach(x + width, y + height)
        self.used |= set(style.split())
        box = f'x="{num(x)}" y="{num(y)}" width="{num(width)}" height="{num(height)}"'
        self.add(f'<rect {box} class="{style}"{extra}/>')

    def text(self, x: float, y: float, content: str, style: str, size: float, mono: bool = True) -> None:
        """Text at a baseline; with the style `mid` around x, with `end` before it."""
        wide = text_width(content, size, mono)
        kinds = style.split()
        self.reach(x + (wide / 2 if "mid" in kinds else 0 if "end" in kinds else wide), y + size * 0.3)
        self.add(f'<text x="{num(x)}" y="{num(y)}" class="{style}">{escape(content)}</text>')

    def finish(self, title: str, description: str) -> str:
        width, height = num(np.ceil(self.right + PAD)), num(np.ceil(self.bottom + PAD))
        style = _STYLE.format(s=SCOPE) + stylesheet(SCOPE, self.used)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="cutegemm" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" style="max-width:100%;height:auto" role="img">'
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc><style>{style}</style>"
            f'<rect width="{width}" height="{height}" rx="6" class="fill paper"/>{"".join(self.parts)}</svg>'
        )


def num(value: float) -> str:
    """A coordinate with at most two decimals.

    >>> num(3.0), num(2.5), num(1 / 3)
    ('3', '2.5', '0.33')
    """
    return f"{float(value):.2f}".rstrip("0").rstrip(".")


def text_width(content: str, size: float, mono: bool = True) -> float:
    """At least as wide as the text is drawn."""
    return len(content) * size * (MONO if mono else SANS)


def wrapped(content: str, width: float, size: float, mono: bool = True) -> list[str]:
    """The text in lines that fit; broken after a comma, a colon or a space where there is one."""
    most = max(8, int(width / (size * (MONO if mono else SANS))))
    lines, rest = [], content
    while len(rest) > most:
        at = max(rest.rfind(mark, most // 2, most) for mark in (" ", ",", ":"))
        at = at + 1 if at > 0 else most
        lines.append(rest[:at].rstrip())
        rest = rest[at:].lstrip()
    return [*lines, rest] if rest else lines
