"""Build HTML by nested calls such as `el("p", "a < b", id="x")`. Text is escaped; `Html` is inserted as it is."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Union

_VOID = frozenset({"input", "br", "hr", "meta", "link", "wbr"})


class Html(str):
    """A string that is HTML already, so that it is inserted into other HTML without escaping."""

    __slots__ = ()


Child = Union[str, int, float, None, Iterable["Child"]]


def joined(*children: Child) -> Html:
    """Return texts and HTML elements as one piece of HTML, in their order; plain text is escaped.

    children   text and numbers (escaped), `Html` (inserted as it is), None (skipped), or iterables of these

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
    """Return an HTML element, such as `<p id="x">text</p>` for `el("p", "text", id="x")`.

    tag          name of the element
    children     its content: text (escaped), `Html`, None (skipped), or iterables of these
    attributes   value by name. A trailing underscore is dropped and others become hyphens: `class_` is class,
                 `aria_label` is aria-label. True is an attribute without a value. False and None leave it out

    >>> el("label", "tile", for_="x", aria_hidden=None, hidden=True)
    '<label for="x" hidden>tile</label>'
    """
    written = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        written.append(f" {key}" if value is True else f' {key}="{escape(str(value))}"')
    opening = f"<{tag}{''.join(written)}>"
    return Html(opening if tag in _VOID else f"{opening}{joined(*children)}</{tag}>")


def code(text: str) -> Html:
    """Return program text as an HTML element that may be wrapped after each comma."""
    return el("code", *[joined(part, el("wbr")) for part in text.replace(",", ",\0").split("\0")])


def table(
    columns: Iterable[tuple[str, str]],
    rows: Iterable[Iterable[Child]],
    *,
    label: str,
    marked: int | None = None,
) -> Html:
    """Return an HTML table in a frame that scrolls if the table is too wide.

    The first cell of each row is its heading.

    columns   (heading, alignment) of each column; the alignment is "left" or "right"
    rows      cells of each row, one for each column
    label     description of the table for screen readers
    marked    index of the highlighted row; None for none
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
    """Return wide content in an HTML frame that scrolls, by keyboard as well.

    content   text or elements
    label     description of the content for screen readers
    class_    further CSS classes of the frame
    """
    return el("div", content, class_=f"scroll {class_}".strip(), tabindex=0, role="region", aria_label=label)


def said(text: str) -> Html:
    """Return preformatted text as an HTML element: its line breaks and spaces are kept."""
    return el("pre", text)


def error(text: str) -> Html:
    """Return an error message as an HTML alert box."""
    return el("div", el("pre", text), class_="error", role="alert")
