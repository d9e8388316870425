"""Names of version 0.1 and what they are called since 0.2, applied to files.

`docs/renamed.json` is the table:

    identifiers   old -> new. "a.b" is an attribute b of a name a; "b=" a keyword argument; '"b"' a whole string
    texts         patterns of plan names and of printed words
    prose         patterns of words in comments, docstrings and pages

`python -m docs.evidence rename FILE...` rewrites code and recorded data that use the package.
"""

from __future__ import annotations

import io
import json
import keyword
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

import typer

TABLE = Path(__file__).parents[1] / "renamed.json"
_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*|(?<=\.)[A-Za-z_]\w*")
_ROW = re.compile(r"^(\s*)((?:[a-z_]\w*)(?:, [a-z_]\w*)*)(?=\s{2,}\S)", re.MULTILINE)

Patterns = tuple[tuple[re.Pattern[str], str], ...]


@dataclass(frozen=True)
class Names:
    """The names of version 0.1, and those that replace them.

    >>> names = all_names()
    >>> names.code("sm90_plan(subtile_n=32).packs")
    'sm90_plan(epi_tile_n=32).repacks'
    >>> names.words("transposed:sm90_deferred_2x1/fill")
    'swap_ab:sm90_overlapped_2x1/fixup'
    """

    identifiers: Mapping[str, str]
    texts: Patterns
    prose: Patterns

    def new(self, name: str, before: str = "", after: str = "") -> str:
        """Return the new identifier of `name`, an attribute of `before`, followed by `after`."""
        if after == "=" and not before and f"{name}=" in self.identifiers:
            return self.identifiers[f"{name}="]
        return self.identifiers.get(f"{before}.{name}", self.identifiers.get(name, name))

    def code(self, text: str) -> str:
        """Return a piece of code, such as an expression in an f-string, with new identifiers."""

        def replaced(match: re.Match[str]) -> str:
            before = re.search(r"(\w+)\.$", text[: match.start()])
            after = re.match(r"=(?!=)", text[match.end() :])
            return self.new(match[0], before[1] if before else "", "=" if after else "")

        return _NAME.sub(replaced, text)

    def words(self, text: str) -> str:
        """Return a text with new plan names, and with new identifiers that cannot be ordinary words."""
        unmistakable = self._unmistakable
        text = re.sub(r"(?<![\w/])[A-Za-z_]\w+(?![\w/])", lambda m: unmistakable.get(m[0], m[0]), text)
        return _substituted(text, self.texts)

    def documentation(self, text: str) -> str:
        """Return a comment, docstring or page with new names: in backticks, after `>>>` and in rows of arguments."""
        text = re.sub(r"`[^`\n]+`", lambda m: self.code(m[0]), text)
        text = re.sub(r"^(\s*(?:>>>|\.\.\.) )(.*)$", lambda m: m[1] + self.code(m[2]), text, flags=re.MULTILINE)
        text = _ROW.sub(lambda m: m[1] + ", ".join([self.new(name) for name in m[2].split(", ")]), text)
        return _substituted(self.words(text), self.prose)

    @cached_property
    def _unmistakable(self) -> dict[str, str]:
        """Identifiers with an underscore or a capital inside."""
        names = [name for name in self.identifiers if name.isidentifier()]
        return {
            name: self.identifiers[name] for name in names if "_" in name.strip("_") or re.search(r"[a-z][A-Z]", name)
        }


@cache
def all_names() -> Names:
    """Return the names of the table."""
    table = json.loads(TABLE.read_text())
    return Names(table["identifiers"], _compiled(table["texts"].items()), _compiled(table["prose"].items()))


def renamed(text: str, suffix: str, names: Names) -> str:
    """Return the text of a file with new names.

    suffix   ".py": identifiers and texts; ".md": as in docstrings; another one: plan names and unmistakable identifiers
    """
    if suffix == ".py":
        return _python(text, names)
    return names.documentation(text) if suffix == ".md" else names.words(text)


def rename(files: Annotated[list[Path], typer.Argument(help="Files to rewrite.", exists=True, dir_okay=False)]) -> None:
    """Replace names of version 0.1 in files."""
    for path in files:
        before = path.read_text()
        after = renamed(before, path.suffix, all_names())
        if after != before:
            path.write_text(after)
            print(path)


def _compiled(pairs: Iterable[tuple[str, str]]) -> Patterns:
    return tuple([(re.compile(old), new) for old, new in pairs])


def _substituted(text: str, patterns: Patterns) -> str:
    for pattern, new in patterns:
        text = pattern.sub(new, text)
    return text


def _python(text: str, names: Names) -> str:
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    out, at, before = [], 0, ["", ""]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        first, last = (starts[row - 1] + column for row, column in (token.start, token.end))
        new = token.string
        if token.type == tokenize.NAME and not keyword.iskeyword(new):
            after = re.match(r"=(?!=)", text[last : last + 2])
            new = names.new(new, before[0] if before[1] == "." else "", "=" if after else "")
        elif token.type == tokenize.STRING:
            new = _string(new, names)
        elif token.type == tokenize.COMMENT:
            new = names.documentation(new)
        out += [text[at:first], new]
        at = last
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = [before[1], token.string]
    return "".join([*out, text[at:]])


def _string(literal: str, names: Names) -> str:
    prefix = literal[: re.search(r"['\"]", literal).start()]  # type: ignore[union-attr]
    body = literal[len(prefix) :]
    quotes = body[:3] if body[:3] in ('"""', "'''") else body[:1]
    inner = body[len(quotes) : -len(quotes)]
    if "f" in prefix.lower():
        inner = "".join(_pieces(inner, names.code, names.documentation))
    elif len(quotes) == 1 and inner.isidentifier():
        inner = names.words(names.identifiers.get(f'"{inner}"', names.new(inner)))
    else:
        inner = names.documentation(inner)
    return f"{prefix}{quotes}{inner}{quotes}"


def _pieces(text: str, code: Callable[[str], str], words: Callable[[str], str]) -> Iterator[str]:
    """Yield the pieces of an f-string: expressions in braces through `code`, the rest through `words`."""
    depth, piece, i = 0, "", 0
    while i < len(text):
        if depth == 0 and text[i : i + 2] in ("{{", "}}"):
            piece, i = piece + text[i : i + 2], i + 2
            continue
        if text[i] == "{" and depth == 0:
            yield words(piece)
            piece = ""
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        piece += text[i]
        if text[i] == "}" and depth == 0:
            yield code(piece)
            piece = ""
        i += 1
    yield words(piece)
