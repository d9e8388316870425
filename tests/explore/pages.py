"""A page as a tree, to ask what stands in it and whether it can be reached and read."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import quote

from cutegemm.explore import answer

_VOID = {"input", "br", "hr", "meta", "link", "wbr", "path", "rect"}


class Page(HTMLParser):
    """The elements of a page: (tag, attributes, text inside)."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.open: list[int] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in _VOID:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.elements[self.open.pop()][0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        for number in self.open:
            self.elements[number][2].append(data)

    def all(self, tag: str, **having: str) -> list[tuple[dict[str, str | None], str]]:
        """(attributes, text) of the elements of a tag with some attributes; `class_` is one of its classes."""
        return [
            (attributes, "".join(text))
            for name, attributes, text in self.elements
            if name == tag
            and all(
                value in (attributes.get(key.rstrip("_")) or "").split()
                if key == "class_"
                else attributes.get(key.replace("_", "-")) == value
                for key, value in having.items()
            )
        ]

    def texts(self, tag: str, **having: str) -> list[str]:
        return [" ".join(text.split()) for _, text in self.all(tag, **having)]


def fields(shown: Page) -> dict[str, str]:
    """The values that the fields of a page would send, of inputs and selections by name."""
    found: dict[str, str] = {}
    select = ""
    for tag, attributes, _ in shown.elements:
        if tag == "input" and attributes.get("value") is not None:
            found[attributes.get("name") or ""] = attributes["value"] or ""
        elif tag == "select":
            select = attributes.get("name") or ""
        elif tag == "option" and select and "selected" in attributes:
            found[select] = attributes.get("value") or ""
    return found


def query(**values: str | int) -> str:
    return "&".join(f"{name}={quote(str(value))}" for name, value in values.items())


def page(**values: str | int) -> Page:
    """The page of a state."""
    return Page(answer(query(**values)).html)
