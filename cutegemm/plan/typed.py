"""Check values against types and annotations, and return a sentence for each value of a wrong type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

_WORDS = {bool: "True or False", NoneType: "None", int: "an integer", str: "a text"}
_PLURALS = {int: "integers", str: "texts"}


def not_of_types(values: Mapping[str, tuple[Any, tuple[type, ...]]]) -> list[str]:
    """Return a sentence for each value that is not of one of its types.

    values   (value, allowed types) by name. A bool is not an int

    >>> not_of_types({"fill": ("no", (bool,)), "pad": (4, (int,))})
    ["fill = 'no'; True or False is expected."]
    """
    return [
        f"{name} = {value!r}; {_words(types)} is expected."
        for name, (value, types) in values.items()
        if not any(_is_of(value, kind) for kind in types)
    ]


def not_as_annotated(value: Any) -> Iterator[str]:
    """Yield a sentence for each field of a dataclass that is not of its annotated type.

    A tuple is checked element by element. A field that is a dataclass is checked field by field, unless it has a
    `__post_init__`, which has checked it.

    >>> from cutegemm.plan.role import Role
    >>> list(not_as_annotated(Role("producer", "4", 40)))
    ["warps = '4'; an integer is expected."]
    """
    return (f"{name} {sentence}" for name, sentence in _wrong_fields(value))


class _Kind(NamedTuple):
    """One of the types that an annotation allows.

    type         the class
    elements     for a tuple with annotated elements, what each element may be; one entry for all elements if
                 `any_length`. Otherwise ()
    any_length   whether it is a tuple of any length
    is_open      whether it is a dataclass without `__post_init__`, whose fields must be checked here
    """

    type: type
    elements: tuple[_Expected, ...]
    any_length: bool
    is_open: bool


class _Expected(NamedTuple):
    """All types that an annotation allows.

    kinds    the types
    leaves   the types whose values need no further check; nearly all values are of one of them
    words    the types as English text, such as "an integer or None"
    """

    kinds: tuple[_Kind, ...]
    leaves: frozenset[type]
    words: str


def _wrong_fields(value: Any) -> Iterator[tuple[str, str]]:
    """Yield (path, rest of the sentence) for each wrong value in a dataclass. A path is, for example, "tile[0]"."""
    kind: Any = type(value)
    for name, expected in _fields(kind):
        if type(getattr(value, name)) in expected.leaves:
            continue
        for path, sentence in _wrong(getattr(value, name), expected):
            yield name + path, sentence


def _wrong(value: Any, expected: _Expected) -> Iterator[tuple[str, str]]:
    """Yield (path, rest of the sentence) for each wrong value in `value`. The path of `value` itself is ""."""
    kind = next((kind for kind in expected.kinds if _is_of(value, kind.type)), None)
    if kind is None or (kind.elements and not kind.any_length and len(kind.elements) != len(value)):
        yield "", f"= {value!r}; {expected.words} is expected."
    elif kind.elements:
        elements = kind.elements * len(value) if kind.any_length else kind.elements
        for i, element in enumerate(value):
            for path, sentence in _wrong(element, elements[i]):
                yield f"[{i}]{path}", sentence
    elif kind.is_open:
        for path, sentence in _wrong_fields(value):
            yield f".{path}", sentence


@cache
def _fields(kind: type) -> tuple[tuple[str, _Expected], ...]:
    """Return (name, allowed types) of each field of a dataclass."""
    hints = get_type_hints(kind)
    return tuple([(field.name, _expected(hints[field.name])) for field in fields(kind)])


def _expected(annotation: Any) -> _Expected:
    """Return the types that an annotation allows; a union allows several."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = tuple(map(_kind, members))
    leaves = [kind.type for kind in kinds if not kind.elements and not kind.is_open]
    return _Expected(kinds, frozenset(leaves), _words(members))


def _kind(member: Any) -> _Kind:
    """Return the type that one member of a union allows."""
    if get_origin(member) is tuple:
        elements = get_args(member)
        any_length = elements[-1] is Ellipsis
        return _Kind(tuple, tuple(map(_expected, elements[: 1 if any_length else None])), any_length, False)
    is_open = is_dataclass(member) and not hasattr(member, "__post_init__")
    return _Kind(object if member is Any else member, (), False, is_open)


def _is_of(value: Any, kind: type) -> bool:
    """Return whether a value is an instance of a type. In contrast to `isinstance`, a bool is not an int."""
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


def _words(members: Sequence[Any]) -> str:
    """Return the English text for a value of one of several types.

    members   types or annotations of tuples

    >>> _words((int, NoneType)), _words((tuple[int, int],)), _words((tuple[str, ...],))
    ('an integer or None', 'a tuple of 2 integers', 'a tuple of texts')
    """
    out = []
    for member in members:
        if get_origin(member) is tuple:
            first, *others = get_args(member)
            count = "" if others == [Ellipsis] else f"{1 + len(others)} "
            out.append(f"a tuple of {count}{_PLURALS.get(first) or _expected(first).words}")
        else:
            out.append(_WORDS.get(member) or member.__name__)
    return " or ".join(out)
