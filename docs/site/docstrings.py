"""Docstrings as Markdown. They are written for a terminal: fields in two columns, examples as doctests.

name     meaning           a row of a table
>>> call()                 an example
raises   LayoutError ...   also a row

>>> call()                 an example
raises   LayoutError ...   a row as well
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from griffe import Extension, Object

_FIELD = re.compile(r"(?P<name>\S(?:.*?\S)?) {2,}(?P<text>\S.*)")
_CODE = re.compile(r"(`[^`]*`)")


class TerminalDocstrings(Extension):
    """Convert every docstring to Markdown while griffe collects it."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Handle a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return the text of a docstring as Markdown.

    >>> print(as_markdown("The size.\\n\\nmode   which one\\n\\n>>> size(4)\\n4"))
    The size.
    <BLANKLINE>
    | | |
    |---|---|
    | `mode` | which one |
    <BLANKLINE>
    ```pycon
    >>> size(4)
    4
    ```
    """
    return "\n\n".join(
        ["\n".join(_block(block)) for block in re.split(r"\n[ \t]*\n", text.strip("\n")) if block.strip()]
    )


def _block(block: str) -> Iterator[str]:
    """Yield the lines of a paragraph, a table, an example or an indented text."""
    lines = block.split("\n")
    if lines[0].lstrip().startswith(">>>"):
        indent = len(lines[0]) - len(lines[0].lstrip())
        yield from ("```pycon", *[line[indent:] for line in lines], "```")
    elif lines[0].startswith("|"):
        yield from lines
    elif lines[0].startswith("    "):
        yield from ("```text", *[line[4:] for line in lines], "```")
    else:
        yield from _paragraph(lines)


def _paragraph(lines: list[str]) -> Iterator[str]:
    """Yield sentences, and the fields that may follow: each a name, two or more spaces, and its meaning."""
    first = next((i for i, line in enumerate(lines) if _is_field(lines, i)), len(lines))
    yield from map(_escaped, lines[:first])
    if first == len(lines):
        return
    rows: list[list[str]] = []
    for line in lines[first:]:
        found = _FIELD.fullmatch(line) if not line.startswith(" ") else None
        if found is not None:
            rows.append([found["name"], found["text"]])
        elif rows:
            rows[-1][1] += f" {line.strip()}"
    yield from ("", "| | |", "|---|---|") if first else ("| | |", "|---|---|")
    for name, text in rows:
        yield f"| `{name}` | {_escaped(text).replace('|', chr(92) + '|')} |"


def _is_field(lines: list[str], at: int) -> bool:
    """Return whether a line is a field: two columns, and only fields or their continuations follow."""
    found = None if lines[at].startswith(" ") else _FIELD.fullmatch(lines[at])
    return found is not None and all(line.startswith("  ") or _FIELD.fullmatch(line) for line in lines[at + 1 :])


def _escaped(text: str) -> str:
    """Return text with Markdown and HTML markup outside of code escaped."""
    parts = _CODE.split(text)
    return "".join(
        [part if i % 2 else re.sub(r"([*_\[\]])", r"\\\1", part.replace("<", "&lt;")) for i, part in enumerate(parts)]
    )
