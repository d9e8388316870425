"""Prose keeps the rules of style: see `tests/style.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.style import Hit, broken, hits

ROOT = Path(__file__).parent.parent
FOLDERS = ("cutegemm", "docs", "examples", "tests")
MOST_WAIVERS = 40
# (file, part of the sentence, reason): sentences that a rule finds although they are right.
WAIVERS = (
    ("cutegemm/emulator/hopper/tensormap.py", "its words are", "32-bit words, not language"),
    ("tests/plan/test_program.py", "for tile in work: clear", "a printed program"),
)
# rule, a bad sentence, its good twin
PLANTED = (
    ("R1", "Of results that remain", "Bytes of results"),
    ("R1", "that of rows", "that many rows"),
    ("R2", "of so many elements", "so many that fit"),
    ("R3", "is no multiple", "there is no multiple"),
    ("R3", "which it has not.", "which has not run"),
    ("R4", "behind the loop", "after the loop"),
    ("R5", "were seen twice", "we measured twice"),
    ("R6", "tiles, of which two", "two of the tiles"),
    ("R7", "None where absent", "None if absent"),
    ("R8", "names that there are", "names that are there"),
    ("R9", "D leaves through slots", "D is stored"),
)


def found() -> list[Hit]:
    """Return all hits in the project's prose, with paths from its root."""
    files = [ROOT / "README.md"]
    for folder in FOLDERS:
        files += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".md", ".ipynb")]
    return [hit._replace(file=path.relative_to(ROOT)) for path in files for hit in hits(path)]


def test_prose_keeps_the_rules() -> None:
    """Every hit has a waiver, and every waiver a hit."""
    unused, left = {(file, part) for file, part, _ in WAIVERS}, []
    for hit in found():
        waived = {(file, part) for file, part, _ in WAIVERS if file == hit.file.as_posix() and part in hit.sentence}
        unused -= waived
        left += [] if waived else [f"{hit.file}:{hit.line} {hit.rule}: {hit.sentence}"]
    assert left == []
    assert unused == set()
    assert len(WAIVERS) <= MOST_WAIVERS


@pytest.mark.parametrize(("rule", "bad", "good"), PLANTED)
def test_each_rule_tells_bad_from_good(rule: str, bad: str, good: str) -> None:
    assert (broken("docstring", bad), broken("docstring", good)) == ([rule], [])


def test_planted_sentences_are_found_where_prose_stands(tmp_path: Path) -> None:
    """In docstrings and their arguments, comments over two lines, joined messages, and pages; not in code."""
    module, page = tmp_path / "a.py", tmp_path / "a.md"
    module.write_text(
        'def f(x):\n    """Return.\n\n    x   by BEH the loop\n\n    >>> "BEH"\n    """\n'
        "    # a sentence goes on, BEH\n    # the end\n"
        '    raise E(f"{x} is stored " "BEH the loop")\n    y = "BEH"  # BEH it\n'.replace("BEH", "behind")
    )
    page.write_text("A line\nBEH `BEH`.\n\n```\nBEH\n```\n- an item BEH\n".replace("BEH", "behind"))
    assert [(hit.line, hit.rule) for hit in hits(module)] == [(4, "R4"), (8, "R4"), (10, "R4"), (11, "R4")]
    assert [(hit.line, hit.rule) for hit in hits(page)] == [(1, "R4"), (7, "R4")]
