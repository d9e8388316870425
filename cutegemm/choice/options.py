"""Texts that spell out the arguments of a builder: "simt:block=128x128x8,stages=3"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cutegemm.build.building import Shared
from cutegemm.errors import PlanError


def parse_tuple(text: str) -> tuple[int, ...]:
    """128x64x32 as numbers.

    >>> parse_tuple("128x64x32")
    (128, 64, 32)
    """
    return tuple([int(part) for part in text.split("x")])


def parse_flag(text: str) -> bool:
    """1 for yes, 0 for no.

    >>> parse_flag("1"), parse_flag("0")
    (True, False)
    """
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


_READ: dict[Callable[[str], Any], str] = {
    parse_tuple: "numbers joined by x",
    int: "a whole number",
    parse_flag: "1 for yes or 0 for no",
}


def parse_options(text: str, options: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The arguments in "family:name=value,name=value".

    options   for each argument what turns its text into a value
    raises    PlanError with everything that does not read

    >>> parse_options("simt:block=64x64x8,stages=4", {"block": parse_tuple, "stages": int})
    {'block': (64, 64, 8), 'stages': 4}
    """
    found, violations = {}, []
    for part in text.partition(":")[2].split(","):
        key, _, value = part.partition("=")
        if key in found:
            violations.append(f"{key!r} is given twice.")
            continue
        try:
            found[key] = options[key](value)
        except KeyError:
            violations.append(f"{key!r} is no argument; there are {', '.join(options)}.")
        except ValueError:
            expected = _READ.get(options[key], f"a value of {key}")
            violations.append(f"{part!r} does not read as {expected}.")
    if violations:
        raise PlanError(f"plan_named: {text!r}", violations)
    return found


def written(value: Any) -> str:
    """The text of an argument, as `parse_options` reads it.

    >>> written((128, 64, 8)), written(Shared("mn", 4)), written(True), written(None)
    ('128x64x8', 'mn+4', '1', 'none')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        return "+".join(each.removeprefix("evict_") for each in value)
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, Shared):
        swizzle = value.swizzle
        bits = f"^{swizzle.bits}.{swizzle.base}.{swizzle.shift}" if swizzle is not None else ""
        return f"{value.major}{f'+{value.pad}' if value.pad else ''}{bits}"
    return str(value)
