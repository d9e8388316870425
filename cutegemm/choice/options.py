"""Read and write the arguments of a builder as text: "simt:block=128x128x8,stages=3"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cutegemm.build.building import Shared
from cutegemm.errors import PlanError


def parse_tuple(text: str) -> tuple[int, ...]:
    """Return the integers of a text with "x" between them, such as "128x64x32".

    >>> parse_tuple("128x64x32")
    (128, 64, 32)
    """
    return tuple([int(part) for part in text.split("x")])


def parse_flag(text: str) -> bool:
    """Return True for "1" and False for "0"; ValueError for any other text.

    >>> parse_flag("1"), parse_flag("0")
    (True, False)
    """
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


_READ: dict[Callable[[str], Any], str] = {
    parse_tuple: "numbers joined by x are",
    int: "a whole number is",
    parse_flag: "1 for yes or 0 for no is",
}


def parse_options(text: str, options: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """Return the arguments (name -> value) in a text of the form "family:name=value,name=value".

    options   the known arguments: name -> function that converts the text of a value
    raises    PlanError with every argument that is unknown, given twice, or not valid

    >>> parse_options("simt:block=64x64x8,stages=4", {"block": parse_tuple, "stages": int})
    {'block': (64, 64, 8), 'stages': 4}
    """
    arguments, violations = {}, []
    for argument in text.partition(":")[2].split(","):
        key, _, value = argument.partition("=")
        if key in arguments:
            violations.append(f"{key!r} is given twice.")
            continue
        try:
            arguments[key] = options[key](value)
        except KeyError:
            violations.append(f"{key!r} is not an argument; the arguments are {', '.join(options)}.")
        except ValueError:
            expected = _READ.get(options[key], f"a value of {key} is")
            violations.append(f"{argument!r}: {expected} expected.")
    if violations:
        raise PlanError(f"plan_named: {text!r}", violations)
    return arguments


def written(value: Any) -> str:
    """Return an argument of a builder as text, in the form that `parse_options` reads.

    >>> written((128, 64, 8)), written(Shared("mn", 4)), written(True), written(None)
    ('128x64x8', 'mn+4', '1', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, tuple) and all(isinstance(entry, str) for entry in value):
        return "+".join(entry.removeprefix("evict_") for entry in value)
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, Shared):
        swizzle = value.swizzle
        bits = f"^{swizzle.bits}.{swizzle.base}.{swizzle.shift}" if swizzle is not None else ""
        return f"{value.major}{f'+{value.pad}' if value.pad else ''}{bits}"
    return str(value)
