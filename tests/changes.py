"""Epilogue functions that read a variable, and changes of that variable that turn `acc * 2` into `acc * 3`."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

from cutegemm.epilogue import relu

Function = Callable[..., Any]
CHANGES: dict[str, Callable[[Any], tuple[Function, Callable[[], None]]]] = {}

scale = 2.0
numbers = (2.0, 1.0)
settings = {"scale": 2.0}
module = types.ModuleType("module")
inner_module = types.ModuleType("module.inner")


def change(build: Callable[[Any], tuple[Function, Callable[[], None]]]) -> None:
    """Register a function that returns an epilogue function and its change.

    Its argument is pytest's `monkeypatch`, which undoes the change after the test.
    """
    CHANGES[build.__name__.replace("_", " ")] = build


def doubled(x: Any) -> Any:
    return x * 2.0


def tripled(x: Any) -> Any:
    return x * 3.0


def scaled(x: Any) -> Any:
    return x * scale


def by_default(acc: Any, s: float = 2.0) -> Any:
    return acc * s


def by_keyword(acc: Any, *, s: float = 2.0) -> Any:
    return acc * s


def by_attribute(acc: Any) -> Any:
    return acc * by_attribute.scale  # type: ignore[attr-defined]


@wraps(relu)
def like_relu(acc: Any) -> Any:
    return acc * scale


@dataclass
class Scaled:
    scale: float = 2.0
    several: list[float] = field(default_factory=lambda: [2.0])

    factor = 2.0

    def __call__(self, acc: Any) -> Any:
        return acc * self.scale

    def method(self, acc: Any) -> Any:
        return acc * self.several[0]

    @property
    def read(self) -> float:
        return self.scale

    @classmethod
    def of_class(cls, acc: Any) -> Any:
        return acc * cls.factor

    @staticmethod
    def static(acc: Any) -> Any:
        return acc * scale


class Inheriting(Scaled):
    def __call__(self, acc: Any) -> Any:
        return super().__call__(acc)


thing = Scaled()


def of_cell(value: Any) -> tuple[Function, Callable[[Any], None]]:
    """Return a function that reads a variable of its closure, and a function that sets that variable."""

    def function(acc: Any) -> Any:
        return acc * value

    def set_to(other: Any) -> None:
        nonlocal value
        value = other

    return function, set_to


def global_set(patch: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: patch.setitem(globals(), name, value)


@change
def a_global_number(patch):
    return (lambda acc: acc * scale), global_set(patch, "scale", 3.0)


@change
def a_global_tuple(patch):
    return (lambda acc: acc * numbers[0]), global_set(patch, "numbers", (3.0, 1.0))


@change
def a_global_function(patch):
    return (lambda acc: doubled(acc)), global_set(patch, "doubled", tripled)


@change
def a_global_of_a_function_that_is_called(patch):
    return (lambda acc: scaled(acc)), global_set(patch, "scale", 3.0)


@change
def a_global_of_a_function_with_the_name_of_another(patch):
    return (lambda acc: like_relu(acc)), global_set(patch, "scale", 3.0)


@change
def a_global_of_a_nested_function(patch):
    return (lambda acc: (lambda x: x * scale)(acc)), global_set(patch, "scale", 3.0)


@change
def a_global_of_a_comprehension(patch):
    return (lambda acc: sum([acc * s for s in (scale - 1.0, 1.0)])), global_set(patch, "scale", 3.0)


@change
def a_name_of_python(patch):
    patch.setitem(globals(), "round", doubled)
    return (lambda acc: round(acc)), global_set(patch, "round", tripled)


@change
def the_code(patch):
    def function(acc):
        return acc * 2.0

    return function, lambda: setattr(function, "__code__", tripled.__code__)


@change
def a_default(patch):
    return by_default, lambda: patch.setattr(by_default, "__defaults__", (3.0,))


@change
def a_default_of_a_function_that_is_called(patch):
    return (lambda acc: by_default(acc)), lambda: patch.setattr(by_default, "__defaults__", (3.0,))


@change
def the_defaults_of_keywords(patch):
    return by_keyword, lambda: patch.setattr(by_keyword, "__kwdefaults__", {"s": 3.0})


@change
def a_default_of_a_keyword(patch):
    return by_keyword, lambda: patch.setitem(by_keyword.__kwdefaults__, "s", 3.0)


@change
def a_list_that_is_a_default(patch):
    several = [2.0]
    return (lambda acc, s=several: acc * s[0]), lambda: several.__setitem__(0, 3.0)


@change
def a_closure(patch):
    function, set_to = of_cell(2.0)
    return function, lambda: set_to(3.0)


@change
def a_closure_of_a_closure(patch):
    function, set_to = of_cell(2.0)
    return (lambda acc: function(acc)), lambda: set_to(3.0)


@change
def a_list_in_a_closure(patch):
    several = [2.0]
    return (lambda acc: acc * several[0]), lambda: several.__setitem__(0, 3.0)


@change
def an_object_in_a_closure(patch):
    own = Scaled()
    return (lambda acc: acc * own.scale), lambda: setattr(own, "scale", 3.0)


@change
def an_attribute_of_a_global_object(patch):
    return (lambda acc: acc * thing.scale), lambda: patch.setattr(thing, "scale", 3.0)


@change
def a_property(patch):
    return (lambda acc: acc * thing.read), lambda: patch.setattr(thing, "scale", 3.0)


@change
def a_global_object(patch):
    return (lambda acc: acc * thing.scale), global_set(patch, "thing", Scaled(3.0))


@change
def an_attribute_of_a_function(patch):
    patch.setattr(by_attribute, "scale", 2.0, raising=False)
    return by_attribute, lambda: patch.setattr(by_attribute, "scale", 3.0)


@change
def an_entry_of_a_dictionary(patch):
    return (lambda acc: acc * settings["scale"]), lambda: patch.setitem(settings, "scale", 3.0)


@change
def an_attribute_of_a_module(patch):
    patch.setattr(module, "scale", 2.0, raising=False)
    return (lambda acc: acc * module.scale), lambda: patch.setattr(module, "scale", 3.0)


@change
def a_function_of_a_module(patch):
    patch.setattr(module, "scaled", doubled, raising=False)
    return (lambda acc: module.scaled(acc)), lambda: patch.setattr(module, "scaled", tripled)


@change
def an_attribute_of_a_module_in_a_module(patch):
    patch.setattr(module, "inner", inner_module, raising=False)
    patch.setattr(inner_module, "scale", 2.0, raising=False)
    return (lambda acc: acc * module.inner.scale), lambda: patch.setattr(inner_module, "scale", 3.0)


@change
def an_object_in_a_module(patch):
    own = Scaled()
    patch.setattr(module, "own", own, raising=False)
    patch.setattr(
        module, "scale", 5.0, raising=False
    )  # a module attribute of the same name, which the function does not read
    return (lambda acc: acc * module.own.scale), lambda: setattr(own, "scale", 3.0)


@change
def an_attribute_of_a_module_that_is_passed(patch):
    patch.setattr(module, "scale", 2.0, raising=False)
    patch.setattr(inner_module, "scale", 5.0, raising=False)
    return (lambda acc: (lambda of: acc * of.scale + 0.0 * inner_module.scale)(module)), lambda: patch.setattr(
        module, "scale", 3.0
    )


@change
def what_is_imported(patch):
    def function(acc):
        from tests.changes import scale

        return acc * scale

    return function, global_set(patch, "scale", 3.0)


@change
def a_keyword_of_a_partial_function(patch):
    function = partial(by_default, s=2.0)
    return function, lambda: function.keywords.__setitem__("s", 3.0)


@change
def a_global_of_a_partial_function(patch):
    return partial(lambda acc: acc * scale), global_set(patch, "scale", 3.0)


@change
def a_callable_object(patch):
    own = Scaled()
    return own, lambda: setattr(own, "scale", 3.0)


@change
def a_callable_object_that_inherits(patch):
    own = Inheriting()
    return own, lambda: setattr(own, "scale", 3.0)


@change
def a_method(patch):
    own = Scaled()
    return own.method, lambda: own.several.__setitem__(0, 3.0)


@change
def a_method_of_a_class(patch):
    return Scaled.of_class, lambda: patch.setattr(Scaled, "factor", 3.0)


@change
def a_static_method(patch):
    return Scaled.static, global_set(patch, "scale", 3.0)


@change
def an_argument_of_a_function_of_python(patch):
    return (lambda acc: acc * math.sqrt(scale * scale)), global_set(patch, "scale", 3.0)
