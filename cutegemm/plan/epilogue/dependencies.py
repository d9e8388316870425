"""Cache keys for Python functions that define epilogues: a key changes if a value that the function reads changes.

A kernel is compiled from the expression that the function returns for symbols. If kernels were cached by the function
object alone, a stale kernel would run after a global variable, a default or an attribute that the function reads has
changed. A key contains the values of all names in the function's bytecode. If one of the values can change without
notice, such as the content of a list, the function has no key and is called with symbols again.

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

_MOST_READERS = 4096  # functions whose bytecode analysis is cached
_MOST_VALUES = 256  # comparing a longer key takes longer than calling the function
_DEEPEST = 8  # depth of functions that read other functions
_PACKAGE = "cutegemm."
_FOLDER = f"{Path(__file__).parents[2]}{os.sep}"
_NUMBERS = frozenset([int, float, bool, str, bytes])
# Built-in functions whose result depends on their arguments alone.
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
    """Raised if a function reads a value that can change without notice: its results cannot be cached by a key."""


class _Latest(NamedTuple):
    """The latest cache key of a function, and the immutable objects that it was computed from.

    If the function reads the same objects at its next call, the key is used again without being computed.

    key      the cache key, a tuple, as `state_of` returns it
    read     the objects that the function reads: defaults, global variables, closure variables
    ids      the ids of these objects
    places   (dictionary of a module's variables, name) of each module attribute that the function may read
    there    value that each of these attributes had, or `_ABSENT`
    """

    key: tuple[Any, ...]
    read: list[Any]
    ids: list[int]
    places: list[tuple[dict[str, Any], str]]
    there: list[Any]


class _Reader:
    """Names that the bytecode of a function reads: global variables and attributes, also in functions nested in it.

    They are found once for each code object, and serve to compute the cache key of each function with this code.

    code         the code object. This reference keeps its id from being reused
    names        names of global variables that are read
    attributes   names of attributes that are read, of any object
    is_known     False if the code imports, defines a class, or writes to a global variable, an attribute or a closure
    is_own       True if the code belongs to this package, whose functions do not change
    latest       the latest cache key of a function with this code; None before the first
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
        """Return the objects that a function reads: defaults, global variables and closure variables, in a list.

        The first two entries are its positional and its keyword defaults.

        function   a function with the code of this reader
        raises     _Unknown if a variable has no value
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
            except ValueError:  # an empty closure cell
                raise _Unknown from None
        return found

    def _with_builtins(self, function: FunctionType) -> Any:
        """Return the values of the global variables and built-ins, such as `abs`, that a function reads.

        It is called if not all names are global variables of the function's module.

        returns   the values as a tuple in the order of the names; the value itself if there is a single name
        raises    _Unknown if a name is defined neither in the function's module nor as a built-in
        """
        python = operator.attrgetter("__builtins__")(function)
        if type(python) is not dict:
            raise _Unknown
        try:
            return self._of_globals({**python, **function.__globals__})
        except KeyError:
            raise _Unknown from None


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield the bytecode instructions of a code object, then those of all functions nested in it."""
    yield from dis.get_instructions(code)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _instructions(each)


_readers: dict[int, _Reader] = {}  # by the id of the code


def _reader_of(code: CodeType) -> _Reader:
    """Return the names that a function's bytecode reads; they are found once for each code object, then cached."""
    found = _readers.get(id(code))
    if found is None:
        if len(_readers) >= _MOST_READERS:
            _readers.clear()  # keys that are in use keep references to their readers
        found = _readers[id(code)] = _Reader(code)
    return found


def state_of(function: Any) -> tuple[Any, ...] | None:
    """Return a key for caching by what a Python function computes: functions with equal keys give equal results.

    Kernels are cached by the key of their epilogue function, so that a changed global variable leads to a new kernel.
    The key has the function's code, its defaults, and the values of the global variables, closure variables and module
    attributes that it reads. A Python function among these values contributes the same things of its own. A function of
    this package is its own key.

    function   a Python function; other callables have no key
    returns    a hashable tuple; None if the function has side effects, or reads a value that can change without notice,
               such as a list or an attribute of an object
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
    """Builder of a function's cache key: it collects all values that the function, or one that it calls, reads.

    found        the entries of the key so far
    attributes   names of the attributes that the functions read
    modules      modules that the functions read
    places       (variables of a module, name) for each pair of a module and an attribute
    is_fixed     True while every object in the key is immutable, i.e. the only Python function is the first one
    """

    __slots__ = ("attributes", "found", "is_fixed", "modules", "places")

    def __init__(self) -> None:
        self.found: list[Any] = []
        self.attributes: list[str] = []
        self.modules: list[ModuleType] = []
        self.places: list[tuple[dict[str, Any], str]] = []
        self.is_fixed = True

    def add_function(self, function: FunctionType, reader: _Reader, read: list[Any], depth: int) -> None:
        """Add the code of a function, and all values that it reads, to this cache key.

        reader   the names that the function's bytecode reads
        read     the values that the function reads, as `_Reader.read` returns them
        depth    number of calls from the function that gets the key to this one; 0 for that function
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
        """Add a value that a function reads to this cache key: one entry, or several for a function or a tuple.

        depth    number of calls from the function that gets the key to the one that reads the value
        raises   _Unknown if the value can change without notice, like a list
        """
        kind = type(value)
        if value is None:
            self.found.append(None)
        elif kind in _NUMBERS:
            # 0.0 equals -0.0, and nan does not equal itself: they are compared by their text.
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
        """Add the values of all attributes that the functions read to this key, from all modules that define them.

        raises   _Unknown if no module defines one of them: then it is an attribute of another object
        """
        resolved = set()
        old_modules = old_attributes = 0
        while old_modules < len(self.modules) or old_attributes < len(self.attributes):
            modules, attributes = self.modules[:], self.attributes[:]  # added values may extend both
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
    """Return whether a class or module belongs to this package."""
    name = value.__name__ if type(value) is ModuleType else value.__module__
    return f"{name}.".startswith(_PACKAGE)
