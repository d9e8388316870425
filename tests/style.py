"""Search for sentences that break a rule of style, in docstrings, comments, messages, pages and notebooks.

R1   a description starts with a verb or a noun: "Bytes of results", and not "Of results"
R2   a number has its name: "`count` elements"
R3   the verb is negated: "is not a multiple of 8"
R4   "after", "next to" and "before" for order in time and space
R5   a claim names who measured it, or states only the fact
R6   the noun is repeated: no relative clause that starts with "of" or "by"
R7   "if" and "when" for conditions; "where" is for places
R8   a sentence does not end with the existence of its subject: "an unknown name"
R9   data is loaded, stored, copied or sent
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_BE = r"\b(?:is|are|was|were)"
_DATA = r"\b(?:[ABCD]|[Ss]ums?|[Vv]alues?|(?:[Ss]ub|k-)?[Tt]iles?|[Rr]esults?|[Oo]perands?|[Cc]olumns?)"
_RULES = {
    "R1": re.compile(
        r"(?:[Oo]f (?:an?|the|all|each|these|those|some|one|any|which|whose|what|[A-DK]|[a-z]+s)|[Tt]hat of|[Tt]hose"
        r"|[Tt]he same|(?:[Bb]y|[Ii]n|[Ff]rom|[Tt]o) (?:which|what|whose)|[Aa]s many|[Ww]hose"
        r"|times (?:that|an?|what|as)|[Mm]ore of it|[Ss]hare of that)\b"
    ),
    "R2": re.compile(r"\b[Ss]o (?:many|much)\b(?! (?:that|as)\b)"),
    "R3": re.compile(
        rf"(?<![Tt]here ){_BE} (?:no|none)\b(?! (?:later|other|longer|more|less|shorter|larger|faster)\b)"
        r"|\b(?:has|have) not(?:[.;,)]|$)|\b(?:that|which)(?: \w+){1,3} (?:does|do) not(?:[.;,)]|$)"
    ),
    "R4": re.compile(r"\b(?:[Bb]ehind|[Bb]esides?|[Aa]head of)\b"),
    "R5": re.compile(rf"{_BE} (?:said|told|held (?:to be|against))\b|\b(?:was|were) seen\b|\bin words\b"),
    "R6": re.compile(
        r"\b(?:[Oo]f|[Bb]y|[Tt]o|[Ff]rom|[Tt]hrough) wh(?:ich|om)\b|, (?:and )?(?:in|at) which\b"
        r"|, (?:of|by) (?:these|those|them|each)\b|\b(?:of|to|for) (?:those|these|that) (?:that|which|of|whose)\b"
    ),
    "R7": re.compile(
        r'(?:\b(?:None|False|True|0|[Nn]othing|none|empty)|""|\(\)) where\b'
        r"|\b[Ww]here (?:left out|that is|there (?:is|are)|it (?:is|has|can|may|must)|they (?:are|have)|none|one is"
        r"|some)\b"
    ),
    "R8": re.compile(rf"\b(?:that|which|than|as|what) there (?:is|are|was|were|may be)\b|{_BE} there[.;]"),
    "R9": re.compile(
        rf"{_DATA} (?:leaves?|comes?|go|goes|travels?) (?:by|through|to|straight|out|there|well|so|along|at|in)\b"
        r"|\b(?:leaves?|comes?) through (?:slots|shared)\b"
    ),
}
_FEWEST = 5  # words of a string that counts as a message
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`(*])")
_CODE = re.compile(r"``.+?``|`[^`]+`")
_TOKEN = re.compile(
    r'"""(?P<block>[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*)"""|"(?P<double>(?:[^"\\\n]|\\.)*)"|'
    r"'(?P<single>(?:[^'\\\n]|\\.)*)'|#(?P<comment>[^\n]*)",
    re.DOTALL,
)
_JOINED = re.compile(r"\s*[rbfuRBFU]{0,2}")  # the text between two strings of one expression, or two lines of a comment
_NOT_PROSE = re.compile(r"\s*(?:type:|fmt:|noqa|ruff:|!)")
_DOCTEST = re.compile(r"^ *>>>.*?(?:\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
_ARGUMENT = re.compile(r"\s*[\w`][\w`., *]*?\s{2,}(?=\S)")  # the name in a docstring's list of arguments
_ITEM = re.compile(r"\s*(?:[-*+] |\d+\. |#+ |>)\s*")  # a Markdown list's, heading's or quotation's start
_FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)


class Hit(NamedTuple):
    """A sentence that breaks a rule.

    line   first line of the sentence's paragraph, from 1
    rule   "R1" to "R9"
    """

    file: Path
    line: int
    rule: str
    sentence: str


class _Text(NamedTuple):
    """A piece of prose, of the kind "docstring", "comment", "message" or "page", and its first line."""

    kind: str
    line: int
    text: str


def broken(kind: str, sentence: str) -> list[str]:
    """Return the rules that a sentence breaks.

    kind   kind of the text around it, as in `_Text`; R1 is for docstrings and comments

    >>> broken("docstring", "Of the results, bytes"), broken("page", "Of the results, bytes")
    (['R1'], [])
    """
    prose = _CODE.sub("X", sentence)
    found = [rule for rule, pattern in _RULES.items() if rule != "R1" and pattern.search(prose)]
    starts = kind in ("docstring", "comment") and _RULES["R1"].match(prose)
    return ["R1", *found] if starts else found


def hits(file: Path) -> Iterator[Hit]:
    """Yield the sentences of a Python file, a Markdown page or a notebook that break a rule."""
    texts = {".py": _python, ".md": _page, ".ipynb": _notebook}[file.suffix]
    for kind, start, text in texts(file.read_text("utf-8")):
        for line, sentence in _sentences(kind, text):
            for rule in broken(kind, sentence):
                yield Hit(file, start + line, rule, sentence)


def _page(source: str) -> Iterator[_Text]:
    """Yield a Markdown page, with its blocks of code replaced by empty lines."""
    yield _Text("page", 1, _without(_FENCE, source))


def _notebook(source: str) -> Iterator[_Text]:
    """Yield the Markdown cells of a notebook, with their numbers from 0 as lines."""
    for number, cell in enumerate(json.loads(source)["cells"]):
        if cell["cell_type"] == "markdown":
            yield _Text("page", number, _without(_FENCE, "".join(cell["source"])))


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Return a text with all matches replaced by as many empty lines."""
    return pattern.sub(lambda match: "\n" * match[0].count("\n"), text)


def _python(source: str) -> Iterator[_Text]:
    """Yield the docstrings, comments and messages of a module. Adjacent strings are joined, and lines of a comment."""
    last, line, end = _Text("", 0, ""), 1, 0
    for token in _TOKEN.finditer(source):
        gap = source[end : token.start()]
        line += gap.count("\n")
        alone = not source[source.rfind("\n", 0, token.start()) + 1 : token.start()].strip(" rR")
        kind, text = _kind_and_text(token, alone)
        if kind == last.kind and kind in ("comment", "message") and _JOINED.fullmatch(gap):
            last = last._replace(text=last.text + ("\n" if kind == "comment" else "") + text)
        else:
            yield from _prose(last)
            last = _Text(kind, line, text)
        line += token[0].count("\n")
        end = token.end()
    yield from _prose(last)


def _kind_and_text(token: re.Match[str], alone: bool) -> tuple[str, str]:
    """Return the kind and text of a string or comment: "remark" for a comment after code, which stands for itself.

    alone   whether the token is the first of its line
    """
    if token["comment"] is not None:
        return ("comment" if alone else "remark"), token["comment"]
    if token["block"] is not None and alone:
        return "docstring", token["block"]
    text = next(text for text in (token["block"], token["double"], token["single"]) if text is not None)
    return "message", re.sub(r"\{[^{}]*\}", "{}", text.replace("\\n", "\n"))


def _prose(text: _Text) -> Iterator[_Text]:
    """Yield a text unless it has too few words for a message or is a directive to a tool."""
    if text.kind == "remark":
        text = text._replace(kind="comment")
    if not (text.kind == "message" and len(text.text.split()) < _FEWEST) and not _NOT_PROSE.match(text.text):
        yield text


def _sentences(kind: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a text with the number of lines before their paragraph.

    A blank line, an argument of a docstring, and an item of a page start a paragraph. Tables, code and doctests are
    left out.
    """
    if kind == "docstring":
        text = _without(_DOCTEST, text)
    first, lines = 0, list[str]()
    marks = {"docstring": _ARGUMENT, "page": _ITEM}.get(kind)
    for number, line in enumerate([*text.split("\n"), ""]):
        mark = marks and marks.match(line)
        if mark or not line.strip() or line.lstrip().startswith("|"):
            for sentence in _SENTENCE.split(" ".join(lines)):
                yield first, sentence
            lines.clear()
        if line.strip() and not line.lstrip().startswith("|"):
            first = first if lines else number
            lines.append((line[mark.end() :] if mark else line).strip(" -"))
