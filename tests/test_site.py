"""The documentation site: its pages, docstrings as Markdown, and links in notebooks.

`mkdocs build --strict` builds the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
CONFIG = (ROOT / "mkdocs.yml").read_text()


def test_every_page_is_in_the_navigation() -> None:
    """The navigation has exactly the pages that exist, and README is the first."""
    named = set(re.findall(r"[:-] ([\w/]+\.(?:md|ipynb))$", CONFIG, re.MULTILINE)) - {"index.md"}
    folder = ROOT / "docs"
    there = {str(path.relative_to(folder)) for path in (*folder.rglob("*.md"), *folder.rglob("*.ipynb"))}
    assert len(there) > 30
    assert named == {name for name in there if ".ipynb_checkpoints" not in name}


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_links_lead_to_files_of_the_site(page: Path) -> None:
    """A link to another file of the repository works on a code host, but not on the site."""
    links = re.findall(r"\]\(([^)#:\s]+\.\w+)(?:#[^)]*)?\)", page.read_text())
    targets = {link: (page.parent / link).resolve() for link in links}
    assert [link for link, path in targets.items() if not path.exists() or ROOT / "docs" not in path.parents] == []


def test_every_module_of_the_reference_is_there() -> None:
    import importlib

    named = [
        found
        for page in (ROOT / "docs" / "api").glob("*.md")
        for found in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.MULTILINE)
    ]
    assert len(named) >= 15
    for name in named:
        if name.startswith("cutegemm.torch"):  # which cannot be imported without torch
            assert (ROOT / name.replace(".", "/") / "__init__.py").exists()
            continue
        module, _, last = name.rpartition(".")
        assert last == "Recipe" or importlib.import_module(name)
        assert last != "Recipe" or hasattr(importlib.import_module(module), last)


@pytest.fixture
def as_markdown():
    pytest.importorskip("griffe", reason="the extra `docs` is not installed")
    from docs.site.docstrings import as_markdown

    return as_markdown


def test_fields_are_tables(as_markdown) -> None:
    said = as_markdown("The size.\n\nmode   which one,\n       of all | some")
    assert said.splitlines() == [
        "The size.",
        "",
        "| | |",
        "|---|---|",
        "| `mode` | which one, of all \\| some |",
    ]


def test_fields_behind_a_sentence(as_markdown) -> None:
    said = as_markdown("What it does.\nname   what it is called\nunit   of it, S<1,2,3>\n       and more")
    assert said.splitlines() == [
        "What it does.",
        "",
        "| | |",
        "|---|---|",
        "| `name` | what it is called |",
        "| `unit` | of it, S&lt;1,2,3> and more |",
    ]


def test_examples_are_code(as_markdown) -> None:
    said = as_markdown("Text.\n\n>>> f(2**3)\n8\n\n    a  drawing\n\nMore *text*, `2**3`.")
    assert said == "Text.\n\n```pycon\n>>> f(2**3)\n8\n```\n\n```text\na  drawing\n```\n\nMore \\*text\\*, `2**3`."


def test_sentences_stay_sentences(as_markdown) -> None:
    """Two spaces within a line do not make a table."""
    assert as_markdown("A line.  Another one\nand a third.") == "A line.  Another one\nand a third."


def test_links_of_notebooks_lead_to_pages() -> None:
    pytest.importorskip("mkdocs", reason="the extra `docs` is not installed")
    from docs.site.hooks import on_page_content

    html = '<a href="../speed.md#how">x</a> <a href="other.ipynb">y</a> <a href="https://a.b/c.md">z</a>'
    notebook, page = (SimpleNamespace(file=SimpleNamespace(src_uri=name)) for name in ("n/a.ipynb", "a.md"))
    wanted = '<a href="../speed.html#how">x</a> <a href="other.html">y</a> <a href="https://a.b/c.md">z</a>'
    assert on_page_content(html, notebook) == wanted
    assert on_page_content(html, page) == html
