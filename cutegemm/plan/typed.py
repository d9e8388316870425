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
    """Check the types of named arguments, and return one sentence for each value of a wrong type; [] if all are right.

    values   argument name -> (value, allowed types). A bool does not count as an int

    >>> not_of_types({"fill": ("no", (bool,)), "pad": (4, (int,))})
    ["fill = 'no'; True or False is expected."]
    """
    return [
        f"{name} = {value!r}; {_words(types)} is expected."
        for name, (value, types) in values.items()
        if not any(_is_of(value, kind) for kind in types)
    ]


def not_as_annotated(value: Any) -> Iterator[str]:
    """Yield a sentence for each field of a dataclass instance whose value does not have the annotated type.

    A tuple is checked element by element. A field that holds a dataclass is checked field by field, unless that class
    has a `__post_init__`, which has checked it already.

    value   the dataclass instance

    >>> from cutegemm.plan.role import Role
    >>> list(not_as_annotated(Role("producer", "4", 40)))
    ["warps = '4'; an integer is expected."]
    """
    return (f"{name} {sentence}" for name, sentence in _wrong_fields(value))


class _Kind(NamedTuple):
    """One member of a type annotation, prepared for checks of values. For example, `tuple[int, int] | None` has two.

    type         class that a value must be an instance of
    elements     for a tuple with annotated elements, what each element may be; a single entry for all elements if
                 `any_length`. () if elements are not checked
    any_length   whether it is a tuple of any length, `tuple[X, ...]`
    is_open      whether it is a dataclass without `__post_init__`, whose fields must be checked one by one
    """

    type: type
    elements: tuple[_Expected, ...]
    any_length: bool
    is_open: bool


class _Expected(NamedTuple):
    """All types that one annotation allows, prepared for checks of values.

    kinds    the members of the annotation: one, or several for a union
    leaves   classes whose instances need no check of elements or fields, such as int. They are tested first, because
             nearly all values are of such a class
    words    the types as English text for messages, such as "an integer or None"
    """

    kinds: tuple[_Kind, ...]
    leaves: frozenset[type]
    words: str


def _wrong_fields(value: Any) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each field of a dataclass instance whose value has a wrong type.

    The path names the field, such as "tile[0]"; the text continues the sentence: "= '4'; an integer is expected."
    """
    kind: Any = type(value)
    for name, expected in _fields(kind):
        if type(getattr(value, name)) in expected.leaves:
            continue
        for path, sentence in _wrong(getattr(value, name), expected):
            yield name + path, sentence


def _wrong(value: Any, expected: _Expected) -> Iterator[tuple[str, str]]:
    """Yield (path, text) for each part of `value` that has a wrong type.

    The path leads from `value` to the part: "" for `value` itself, "[0]" for its first element, ".warps" for a field.
    The text continues the sentence, such as "= '4'; an integer is expected."

    expected   the allowed types
    """
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
    """Return (name, allowed types) for each field of the dataclass `kind`, from its annotations. Cached per class."""
    hints = get_type_hints(kind)
    return tuple([(field.name, _expected(hints[field.name])) for field in fields(kind)])


def _expected(annotation: Any) -> _Expected:
    """Convert a type annotation such as `int | None` to the record of allowed types that the checks use."""
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    kinds = tuple(map(_kind, members))
    leaves = [kind.type for kind in kinds if not kind.elements and not kind.is_open]
    return _Expected(kinds, frozenset(leaves), _words(members))


def _kind(member: Any) -> _Kind:
    """Convert one member of a union annotation, such as `tuple[int, ...]`, to the record that the checks use."""
    if get_origin(member) is tuple:
        elements = get_args(member)
        any_length = elements[-1] is Ellipsis
        return _Kind(tuple, tuple(map(_expected, elements[: 1 if any_length else None])), any_length, False)
    is_open = is_dataclass(member) and not hasattr(member, "__post_init__")
    return _Kind(object if member is Any else member, (), False, is_open)


def _is_of(value: Any, kind: type) -> bool:
    """Return whether `value` is an instance of the class `kind`. In contrast to `isinstance`, a bool is not an int."""
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


def _words(members: Sequence[Any]) -> str:
    """Return English text that says which types are allowed, for the end of an error message.

    members   classes, or tuple annotations such as `tuple[int, int]`

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
