"""Docstrings as Markdown. They are written for a terminal: fields in two columns, examples as doctests.

name     what it is        a row of a table
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
    """Turns every docstring into Markdown while griffe collects it."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring's text as Markdown.

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
    """The lines of a paragraph, a table, an example or a text that is set apart by its indentation."""
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
    """Sentences, behind which fields may begin: each a name, two spaces or more, and what it is."""
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
    """Whether a line is a field: two columns, and those that follow are fields or run on below the second one."""
    found = None if lines[at].startswith(" ") else _FIELD.fullmatch(lines[at])
    return found is not None and all(line.startswith("  ") or _FIELD.fullmatch(line) for line in lines[at + 1 :])


def _escaped(text: str) -> str:
    """Without what Markdown and HTML would take for theirs, outside of code."""
    parts = _CODE.split(text)
    return "".join(
        [part if i % 2 else re.sub(r"([*_\[\]])", r"\\\1", part.replace("<", "&lt;")) for i, part in enumerate(parts)]
    )
