"""Whether values are of the types that they have to be, in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any


def not_of_types(values: Mapping[str, tuple[Any, tuple[type, ...]]]) -> list[str]:
    """Which values are of other types than they have to be.

    values   by name a value, and its types; a bool is no int

    >>> not_of_types({"fill": ("no", (bool,)), "pad": (4, (int,))})
    ["fill = 'no'; True or False is expected."]
    """
    words = {bool: "True or False", NoneType: "None", int: "an integer", str: "a text"}
    return [
        f"{name} = {value!r}; {' or '.join([words.get(each, each.__name__) for each in types])} is expected."
        for name, (value, types) in values.items()
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types)
    ]
