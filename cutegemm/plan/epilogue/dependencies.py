"""Keys for caches of what an epilogue's function returns: they change with everything that the function reads.

A kernel follows from the expression that the function returns for symbols. If it were remembered by the function alone,
it would still be taken after a global variable, a default or an attribute that the function reads has changed. A key
holds the values of all that the bytecode of the function names. If one of them may change unseen, the function has no
key, and is called with symbols once more.

>>> from cutegemm.plan.epilogue.functions import relu
>>> def scaled(by):
...     return lambda acc: relu(acc) * by
>>> state_of(scaled(2.0)) == state_of(scaled(2.0)), state_of(scaled(2.0)) == state_of(scaled(3.0))
(True, False)
>>> settings = {"scale": 2.0}
>>> print(state_of(lambda acc: acc * settings["scale"]))
None
"""

from __future__ import annotations

import dis
import math
import operator
import os
from collections.abc import Iterator
from functools import reduce
from operator import itemgetter
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from cutegemm.dtypes import DType

_MOST_READERS = 4096  # functions whose bytecode is remembered
_MOST_VALUES = 256  # a longer key takes longer to compare than a function to call
_DEEPEST = 8  # functions that read one another
_PACKAGE = "cutegemm."
_FOLDER = f"{Path(__file__).parents[2]}{os.sep}"
_NUMBERS = frozenset([int, float, bool, str, bytes])
# Python's own functions whose result depends on their arguments alone.
_PURE: frozenset[Any] = frozenset(
    [
        abs, all, any, bool, dict, divmod, enumerate, filter, float, int, isinstance, len, list, map, max, min, pow,
        range, reduce, reversed, round, set, slice, sorted, str, sum, tuple, zip,
        *[each for of in (math, operator) for each in vars(of).values() if isinstance(each, BuiltinFunctionType)],
    ]
)  # fmt: skip
_OF_PYTHON = (BuiltinFunctionType, type)
_ABSENT = object()


class _Unknown(Exception):
    """A function reads something that has no key."""


class _Latest(NamedTuple):
    """A key, and the objects that it was made of, if none of these can change.

    read     what the function reads: see `_Reader.read`
    ids      the ids of these objects
    places   (variables of a module, name) of each attribute that the function may read
    there    the values at these places, or `_ABSENT`
    """

    key: tuple[Any, ...]
    read: list[Any]
    ids: list[int]
    places: list[tuple[dict[str, Any], str]]
    there: list[Any]


class _Reader:
    """What the code of a function reads by name, the functions that it makes included.

    code         the code: while the reader lives, no other code has its id
    names        names of global variables
    attributes   names of attributes of anything
    is_known     False if the code imports, makes a class, or writes to a global variable, an attribute or a closure
    is_own       True if the code is of this package, whose functions do not change
    latest       the latest key of a function of this code
    """

    __slots__ = ("_of_globals", "attributes", "code", "is_known", "is_own", "latest", "names")

    def __init__(self, code: CodeType) -> None:
        self.code, self.is_own = code, code.co_filename.startswith(_FOLDER)
        self.is_known = True
        self.latest: _Latest | None = None
        names: dict[str, None] = {}
        attributes: dict[str, None] = {}
        for each in _instructions(code):
            if each.opcode in dis.hasname:
                if each.opname == "LOAD_GLOBAL":
                    names[each.argval] = None
                elif each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                    attributes[each.argval] = None
                else:
                    self.is_known = False
            elif each.opname in ("STORE_DEREF", "DELETE_DEREF") and each.argval in code.co_freevars:
                self.is_known = False
        self.names, self.attributes = tuple(names), tuple(attributes)
        self._of_globals: Any = itemgetter(*names) if names else None

    def read(self, function: FunctionType) -> list[Any]:
        """The defaults, and the values of the global variables and of the closure, of a function of this code.

        raises   _Unknown if one of them is missing
        """
        found: list[Any] = [function.__defaults__, function.__kwdefaults__]
        if self._of_globals is not None:
            variables = function.__globals__
            if type(variables) is not dict:
                raise _Unknown
            try:
                values = self._of_globals(variables)
            except KeyError:
                values = self._with_builtins(function)
            if len(self.names) == 1:
                found.append(values)
            else:
                found += values
        if function.__closure__ is not None:
            try:
                found += [cell.cell_contents for cell in function.__closure__]
            except ValueError:  # one is empty
                raise _Unknown from None
        return found

    def _with_builtins(self, function: FunctionType) -> Any:
        """The values of the global variables; those that the module lacks are Python's own."""
        python = operator.attrgetter("__builtins__")(function)
        if type(python) is not dict:
            raise _Unknown
        try:
            return self._of_globals({**python, **function.__globals__})
        except KeyError:
            raise _Unknown from None


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a code and of the functions that it makes."""
    yield from dis.get_instructions(code)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _instructions(each)


_readers: dict[int, _Reader] = {}  # by the id of the code


def _reader_of(code: CodeType) -> _Reader:
    found = _readers.get(id(code))
    if found is None:
        if len(_readers) >= _MOST_READERS:
            _readers.clear()  # keys that are in use hold the readers that they are made of
        found = _readers[id(code)] = _Reader(code)
    return found


def state_of(function: Any) -> tuple[Any, ...] | None:
    """A key that two functions share only if they return the same for the same arguments; or None.

    It consists of the function's code, its defaults, and the values of the global variables, of the closure and of the
    attributes of modules that it reads; and of the same for each Python function among these values. A function of this
    package stands for itself.

    function   a Python function; other callables have no key
    returns    None if something that the function reads may change unseen, such as a list or an attribute of an object;
               or if the function changes something
    """
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    reader = _readers.get(id(code)) or _reader_of(code)
    if reader.is_own:
        return (function,)
    if not reader.is_known:
        return None
    try:
        read = reader.read(function)
        ids, latest = [*map(id, read)], reader.latest
        if latest is not None and ids == latest.ids:
            if not latest.places:
                return latest.key
            there = [variables.get(name, _ABSENT) for variables, name in latest.places]
            if all(map(operator.is_, there, latest.there)):
                return latest.key
        key = _Key()
        key.add_function(function, reader, read, 0)
        if key.attributes:
            key.add_attributes()
    except _Unknown:
        return None
    found = tuple(key.found)
    if key.is_fixed:
        there = [variables.get(name, _ABSENT) for variables, name in key.places]
        reader.latest = _Latest(found, read, ids, key.places, there)
    return found


class _Key:
    """A key that is being made.

    found        its values
    attributes   names of the attributes that are read
    modules      that are read
    places       (variables of a module, name) of each attribute and module
    is_fixed     whether no object of it can change: it has no Python function but the first
    """

    __slots__ = ("attributes", "found", "is_fixed", "modules", "places")

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.attributes: list[str] = []
        self.modules: list[ModuleType] = []
        self.places: list[tuple[dict[str, Any], str]] = []
        self.is_fixed = True

    def add_function(self, function: FunctionType, reader: _Reader, read: list[Any], depth: int) -> None:
        """Add a function and all that it reads.

        depth    number of functions around this one
        raises   _Unknown if the function has no key
        """
        if not reader.is_known or depth > _DEEPEST or len(self.found) > _MOST_VALUES or function.__dict__:
            raise _Unknown
        self.found.append(reader)
        self.attributes += [name for name in reader.attributes if name not in self.attributes]
        if function.__kwdefaults__:
            self.is_fixed = False
            read = [read[0], tuple(function.__kwdefaults__.items()), *read[2:]]
        for value in read:
            self.add(value, depth)

    def add(self, value: Any, depth: int) -> None:
        """Add a value that is read.

        raises   _Unknown if it may change unseen
        """
        kind = type(value)
        if value is None:
            self.found.append(None)
        elif kind in _NUMBERS:
            # 0.0 and -0.0 are equal, and nan is not equal to itself: their text tells them.
            self.found += (kind, value if value and value == value else repr(value))
        elif kind is FunctionType:
            reader = _reader_of(value.__code__)
            if reader.is_own:
                self.found.append(value)
            else:
                self.is_fixed = False
                self.add_function(value, reader, reader.read(value), depth + 1)
        elif kind is tuple:
            self.found += (tuple, len(value))
            for each in value:
                self.add(each, depth)
        elif kind is ModuleType:
            self.found.append(value)
            if value not in self.modules:
                self.modules.append(value)
        elif kind is DType or (kind in _OF_PYTHON and (value in _PURE or _is_of_package(value))):
            self.found.append(value)
        else:
            raise _Unknown

    def add_attributes(self) -> None:
        """Add each attribute that is read, from every module that has it.

        raises   _Unknown if no module has one of them: then it is an attribute of something else
        """
        resolved = set()
        old_modules = old_attributes = 0
        while old_modules < len(self.modules) or old_attributes < len(self.attributes):
            modules, attributes = self.modules[:], self.attributes[:]  # what is added may read more of both
            for place, module in enumerate(modules):
                variables = module.__dict__
                for name in attributes[old_attributes if place < old_modules else 0 :]:
                    self.places.append((variables, name))
                    if name in variables:
                        resolved.add(name)
                        self.found += (module, name)
                        self.add(variables[name], 0)
                    elif "__getattr__" in variables and not _is_of_package(module):
                        raise _Unknown
            old_modules, old_attributes = len(modules), len(attributes)
        if len(resolved) < len(self.attributes):
            raise _Unknown


def _is_of_package(value: Any) -> bool:
    """Whether a class or a module is one of this package."""
    name = value.__name__ if type(value) is ModuleType else value.__module__
    return f"{name}.".startswith(_PACKAGE)
