"""HTML as nested calls: `el("p", "a < b", id="x")`; texts are escaped, what is HTML already is not."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Union

_VOID = frozenset({"input", "br", "hr", "meta", "link", "wbr"})


class Html(str):
    """A text that is HTML."""

    __slots__ = ()


Child = Union[str, int, float, None, Iterable["Child"]]


def joined(*children: Child) -> Html:
    """Children one after the other; None is nothing.

    >>> joined("1 < 2", [el("br"), None])
    '1 &lt; 2<br>'
    """
    out = []
    for child in children:
        if isinstance(child, Html):
            out.append(str(child))
        elif isinstance(child, (str, int, float)):
            out.append(escape(str(child), quote=False))
        elif child is not None:
            out.append(str(joined(*child)))
    return Html("".join(out))


def el(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. `class_` and `for_` are class and for, `aria_label` is aria-label; True is an attribute without a
    value, False and None are none.

    >>> el("label", "tile", for_="x", aria_hidden=None, hidden=True)
    '<label for="x" hidden>tile</label>'
    """
    said = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        said.append(f" {key}" if value is True else f' {key}="{escape(str(value))}"')
    opening = f"<{tag}{''.join(said)}>"
    return Html(opening if tag in _VOID else f"{opening}{joined(*children)}</{tag}>")


def code(text: str) -> Html:
    """A text of a program or a layout, which may break behind a comma."""
    return el("code", *[joined(part, el("wbr")) for part in text.replace(",", ",\0").split("\0")])


def table(
    columns: Iterable[tuple[str, str]],
    rows: Iterable[Iterable[Child]],
    *,
    label: str,
    marked: int | None = None,
) -> Html:
    """A table with a heading for each row, in a frame that scrolls by itself where it is too wide.

    columns   (name, "left" or "right")
    label     what it is, for who does not see it
    marked    a row that stands out
    """
    names = list(columns)
    head = el("tr", [el("th", name, scope="col", class_=side) for name, side in names])
    body = []
    for number, row in enumerate(rows):
        cells = [
            el("th", cell, scope="row", class_=side) if i == 0 else el("td", cell, class_=side)
            for i, ((_, side), cell) in enumerate(zip(names, row, strict=True))
        ]
        body.append(el("tr", cells, class_="marked" if number == marked else None))
    return scrolling(el("table", el("thead", head), el("tbody", body)), label)


def scrolling(content: Child, label: str, class_: str = "") -> Html:
    """Something wide in a frame of its own, which the keyboard scrolls too."""
    return el("div", content, class_=f"scroll {class_}".strip(), tabindex=0, role="region", aria_label=label)


def said(text: str) -> Html:
    """Lines of plain text as they are."""
    return el("pre", text)


def error(text: str) -> Html:
    """What is wrong, in the words of an error."""
    return el("div", el("pre", text), class_="error", role="alert")
