"""Imports go one way: a package takes from those below it alone, and everything it takes is named here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "cutegemm"

# Each row may import from the rows above it, and from its own package.
ROWS = (
    ("errors",),
    ("dtypes",),
    ("layout",),
    ("machine", "tile"),
    ("plan",),
    ("build",),
    ("analysis", "choose", "emulate", "simulate"),
    ("draw",),
    ("kernels",),
    ("run",),
    ("profile",),
    ("cli",),
    ("__main__",),
)
ROW = {name: number for number, row in enumerate(ROWS) for name in row}


def imported(source: str) -> set[str]:
    """Parts of this package that a module imports when it is itself imported.

    >>> sorted(imported("from cutegemm.plan.plan import GemmPlan; import cutegemm.tile; from cutegemm import dtypes"))
    ['dtypes', 'plan', 'tile']
    """
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = node.module == "cutegemm"
            found |= {f"cutegemm.{alias.name}" for alias in node.names} if inside else {node.module}
    return {name.split(".")[1] for name in found if name.startswith("cutegemm.")}


def parts() -> dict[str, list[Path]]:
    """The modules of each part, by its name."""
    found: dict[str, list[Path]] = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        found.setdefault(file.relative_to(PACKAGE).parts[0].removesuffix(".py"), []).append(file)
    return {name: files for name, files in found.items() if name != "__init__"}


def test_every_part_has_its_row():
    assert set(parts()) == set(ROW)


@pytest.mark.parametrize("part", sorted(ROW))
def test_a_part_imports_from_those_below_it(part):
    for file in parts()[part]:
        above = {x for x in imported(file.read_text()) - {part} if ROW[x] >= ROW[part]}
        assert not above, f"{file.relative_to(PACKAGE)} imports {', '.join(sorted(above))}"
