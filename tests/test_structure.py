"""Imports between folders of the package go in one direction, and modules do not import each other in a circle.

All imports count, also those inside functions and by name (`import_module`). Imports under `TYPE_CHECKING`, for
annotations, do not count.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "cutegemm"
_MOST_FILES = 20  # files of a folder

# A folder may import from itself, and from the folders in the rows above it.
ROWS = (
    ("errors", "version"),
    ("dtypes",),
    ("layout",),
    ("machine", "tile"),
    ("plan",),
    ("build", "epilogue"),
    ("analysis", "choice", "emulator", "simulator"),
    ("draw", "parse"),
    ("kernels", "ranks"),
    ("compile",),
    ("run",),
    ("interop", "profile", "torch"),
    ("explore",),
    ("cli",),
    ("__main__",),
)
ROW = {name: number for number, row in enumerate(ROWS) for name in row}


@cache
def sources() -> dict[str, str]:
    """Return module name -> source text, for all modules of the package."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text()
    return found


def last_name(node: ast.AST) -> str:
    """Return the last name of an expression, such as c for c and for a.b.c; "" for other expressions."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below a node, also in functions and classes, except those under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and last_name(child.test) == "TYPE_CHECKING":
            for other in child.orelse:
                yield other
                yield from statements(other)
        else:
            yield child
            yield from statements(child)


@cache
def named(source: str) -> tuple[str, ...]:
    """Return the dotted names that a module imports: `from a.b import c` gives a.b.c.

    >>> named("import a.b; from a import c\\ndef f():\\n  from a.d import e")
    ('a.b', 'a.c', 'a.d.e')
    >>> named("if TYPE_CHECKING:\\n  import a\\nelse:\\n  import b\\nimport_module('c.d')")
    ('b', 'c.d')
    """
    found: list[str] = []
    for node in statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not read"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and last_name(node.func) == "import_module":
            found += [str(name.value) for name in node.args if isinstance(name, ast.Constant)]
    return tuple(found)


def imports(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Return module -> modules of the package that it imports."""

    def module_of(name: str) -> str | None:
        while name and name not in modules:
            name = name.rpartition(".")[0]
        return name or None

    return {
        module: {found for name in named(source) if (found := module_of(name)) not in (None, module)}
        for module, source in modules.items()
    }  # type: ignore[return-value]


def upward(modules: Mapping[str, str]) -> list[str]:
    """Return a text such as "a.b imports c.d" for each import from a folder that is not below the module's own."""

    def row(module: str) -> int:
        return ROW[module.split(".")[1]] if "." in module else -1  # the package itself stands for errors and layouts

    return [
        f"{module} imports {other}"
        for module, others in imports(modules).items()
        for other in sorted(others)
        if module.split(".")[1:2] != other.split(".")[1:2] and -1 < row(module) <= row(other)
    ]


def circles(modules: Mapping[str, str]) -> list[set[str]]:
    """Return the largest sets of modules that all import each other, directly or through others of the set."""
    graph = imports(modules)
    reached: dict[str, set[str]] = {}
    for module in graph:
        seen: set[str] = set()
        ahead = [module]
        while ahead:
            more = graph[ahead.pop()] - seen
            seen |= more
            ahead += more
        reached[module] = seen
    found = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
        if module in reached[module]
    }
    return sorted(map(set, found), key=min)


def test_every_room_has_its_row():
    rooms = {module.split(".")[1] for module in sources() if "." in module}
    assert rooms == set(ROW)


def test_a_room_imports_from_those_below_it():
    bad = upward(sources())
    assert not bad, "\n".join(bad)


def test_only_the_api_of_torch_knows_models_of_others():
    """Only cutegemm/torch/__init__.py imports cutegemm/torch/models, which may import all of cutegemm/torch."""
    models = "cutegemm.torch.models"
    bad = [
        f"{module} imports {other}"
        for module, others in imports(sources()).items()
        for other in others
        if other.startswith(models) and not module.startswith(models)
    ]
    assert set(bad) <= {f"cutegemm.torch imports {models}", f"cutegemm imports {models}.preparation"}


def test_the_emulator_knows_no_plan():
    """The emulator takes PTX and a launch. It does not import plans or the code that compiles them."""
    found = {
        other.split(".")[1]
        for module, others in imports(sources()).items()
        if module.startswith("cutegemm.emulator")
        for other in others
    }
    assert found <= {"emulator", "errors", "dtypes", "layout", "machine", "tile"}


def test_no_files_import_each_other_in_a_circle():
    found = circles(sources())
    assert not found, "\n".join(", ".join(sorted(circle)) for circle in found)


def test_an_import_inside_a_function_is_seen():
    below = {"cutegemm.tile.atoms": "def f():\n    from cutegemm.plan import GemmPlan\n", "cutegemm.plan": ""}
    assert upward(below) == ["cutegemm.tile.atoms imports cutegemm.plan"]
    by_name = {**below, "cutegemm.tile.atoms": "x = lambda: import_module('cutegemm.plan')"}
    assert upward(by_name) == upward(below)
    of_types = {
        **below,
        "cutegemm.tile.atoms": "if TYPE_CHECKING:\n    from cutegemm.plan import GemmPlan\n",
    }
    assert upward(of_types) == []
    down = {"cutegemm.plan": "from cutegemm.tile.atoms import x", "cutegemm.tile.atoms": ""}
    assert upward(down) == []


def test_rooms_of_one_row_do_not_import_each_other():
    modules = {"cutegemm.choice.catalog": "import cutegemm.simulator", "cutegemm.simulator": ""}
    assert upward(modules) == ["cutegemm.choice.catalog imports cutegemm.simulator"]


def test_a_circle_is_seen():
    modules = {
        "cutegemm.layout": "from cutegemm.layout.a import x",
        "cutegemm.layout.a": "from cutegemm.layout import b",
        "cutegemm.layout.b": "def f():\n    from cutegemm.layout.c import y",
        "cutegemm.layout.c": "class C:\n    def m(self):\n        from cutegemm.layout.a import x",
    }
    assert circles(modules) == [{"cutegemm.layout.a", "cutegemm.layout.b", "cutegemm.layout.c"}]
    modules["cutegemm.layout.c"] = (
        "from cutegemm.layout import x"  # the folder's own __init__, which imports everything
    )
    assert circles(modules) == [set(modules)]
    modules["cutegemm.layout.c"] = "if TYPE_CHECKING:\n    from cutegemm.layout.a import x"
    assert circles(modules) == []


def test_a_folder_has_at_most_20_files():
    """A folder of the package with more files is divided, or its small files are merged."""
    counts = Counter(file.parent for file in PACKAGE.rglob("*.py"))
    crowded = {folder.name: count for folder, count in counts.items() if count > _MOST_FILES}
    assert not crowded, crowded
