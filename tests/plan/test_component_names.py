"""Readers of plans name no class of a component. They ask a component by the methods of its interface.

The class of a component, and a step that a component defines, may be named only in

- a file that defines a component or an interface, so that one can derive from another;
- an `__init__` of the plan or of the package, which exports it;
- the builders, which make components;
- a file of the kernels or the simulator that registers how this class is traced or simulated, by a decorator.

An interface may be named everywhere, but only its own file tests whether an object has it.
"""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import get_args, get_type_hints

import pytest

import cutegemm.plan
from cutegemm.plan import OperandStream, Store, TileScheduler, WarpRoles
from cutegemm.plan.mainloop.base import Mainloop
from cutegemm.plan.program.steps import Step
from cutegemm.plan.program.thread_schedule import ThreadSchedule
from tests.test_structure import last_name, sources

INTERFACES = (OperandStream, Mainloop, Store, TileScheduler, ThreadSchedule, WarpRoles)
MAKERS = ("cutegemm.build.",)
REGISTERING = ("cutegemm.kernels.", "cutegemm.simulator.")
_OWN = "cutegemm."


def subclasses(kind: type) -> set[type]:
    """Return all classes of the package that derive from a class."""
    found = {other for each in kind.__subclasses__() for other in (each, *subclasses(each))}
    return {each for each in found if each.__module__.startswith(_OWN)}


@cache
def components() -> dict[str, str]:
    """Return name -> module of each class of a component, and of each step that is defined next to one."""
    for module in pkgutil.walk_packages(cutegemm.plan.__path__, "cutegemm.plan."):
        import_module(module.name)
    kinds = {each for interface in INTERFACES for each in subclasses(interface)}
    kinds |= {each for hint in get_type_hints(TileScheduler).values() for each in get_args(hint)}
    modules = {each.__module__ for each in kinds}
    kinds |= {each for each in subclasses(Step) if each.__module__ in modules}
    return {each.__name__: each.__module__ for each in kinds}


@cache
def defining() -> frozenset[str]:
    """Return the modules that define a component or an interface."""
    return frozenset(components().values()) | {each.__module__ for each in INTERFACES}


@cache
def exporting() -> frozenset[str]:
    """Return the `__init__` modules of the package and of the folders of the plan."""
    folders = {module.rpartition(".")[0] for module in sources()}
    return frozenset({folder for folder in folders if f"{folder}.".startswith("cutegemm.plan.")} | {"cutegemm"})


def registered(tree: ast.Module) -> set[str]:
    """Return the classes that are arguments of decorators, as in `@Player.handles(Promote)`."""
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    calls = [each for function in functions for each in function.decorator_list if isinstance(each, ast.Call)]
    return {last_name(argument) for call in calls for argument in call.args}


def imported(tree: ast.Module, kinds: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of those classes that are imported from their modules, or from one that exports them.

    kinds   name of a class -> its module
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for name in [alias.name for alias in node.names]:
                if name in kinds and node.module in {kinds[name], *exporting()}:
                    yield name


def mentioned(tree: ast.Module) -> Iterator[str]:
    """Yield all attributes and texts, such as TmaStore in `store.TmaStore` and in `type(x).__name__ == "TmaStore"`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant):
            yield str(node.value)


def compared(tree: ast.Module) -> Iterator[str]:
    """Yield the classes in the second argument of `isinstance` and `issubclass`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and last_name(node.func) in ("isinstance", "issubclass"):
            yield from [last_name(each) for each in ast.walk(node.args[1])]


def misnamed(module: str, source: str) -> set[str]:
    """Return the classes of components that a module names, or tests for, although it may not."""
    if module in defining() or module in exporting() or module.startswith(MAKERS):
        return set()
    tree = ast.parse(source)
    allowed = registered(tree) if module.startswith(REGISTERING) else set()
    names = {*imported(tree, components()), *components().keys() & set(mentioned(tree))}
    interfaces = {each.__name__: each.__module__ for each in INTERFACES}
    return (names - allowed) | {*imported(tree, interfaces)} & set(compared(tree))


def test_readers_name_no_component():
    bad = [f"{module} names {name}" for module, text in sources().items() for name in sorted(misnamed(module, text))]
    assert not bad, "\n".join(bad)


def test_the_components_are_found():
    found = components()
    for name in ("TmaStore", "LineStore", "SharedShared", "BlockScaled", "SlicedSchedule", "Persistent", "GpcRaster"):
        assert found[name].startswith("cutegemm.plan."), name
    assert found["MultiplyBlock"] == "cutegemm.plan.mainloop.warp_mma"
    assert not {"Store", "Mainloop", "Multiply", "StoreTile", "WarpRoles"} & set(found)


@pytest.mark.parametrize(
    ("module", "source", "names"),
    [
        ("cutegemm.draw", "from cutegemm.plan.store import TmaStore", {"TmaStore"}),
        ("cutegemm.draw.x", "from cutegemm.plan.store import TmaStore", {"TmaStore"}),
        ("cutegemm.draw.x", "def f(s):\n  from cutegemm.plan.store.tma import TmaStore as T", {"TmaStore"}),
        ("cutegemm.draw.x", "import cutegemm.plan as p\nx = p.Persistent(3)", {"Persistent"}),
        ("cutegemm.draw.x", "x = type(store).__name__ == 'LineStore'", {"LineStore"}),
        ("cutegemm.plan.rules.x", "from cutegemm.plan import Store\nx = isinstance(y, (int, Store))", {"Store"}),
        ("cutegemm.plan.rules.x", "from cutegemm.plan import Store\ndef f(x: Store): pass", set()),
        ("cutegemm.build.x", "from cutegemm.plan.store import TmaStore", set()),
        ("cutegemm.kernels.x", "from cutegemm.plan.store import TmaStore", {"TmaStore"}),
        (
            "cutegemm.kernels.x",
            "from cutegemm.plan.store import LineStore, TmaStore\n@Storage.stores(TmaStore)\nclass S: pass",
            {"LineStore"},
        ),
        (
            "cutegemm.draw.x",
            "from cutegemm.plan.store import TmaStore\n@Storage.stores(TmaStore)\nclass S: pass",
            {"TmaStore"},
        ),
    ],
)
def test_a_named_component_is_seen(module: str, source: str, names: set[str]) -> None:
    assert misnamed(module, source) == names
