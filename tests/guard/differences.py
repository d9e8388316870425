"""How the guard compares a section of its record with what is measured now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def differences(section: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each difference: a plan that changed, is gone, or is new.

    Plans are compared by content. A plan that is only renamed is not reported: its new label has the content of an old
    one.

    >>> before = {"named a": "1", "named b": "2"}
    >>> list(differences("machine_code", before, {"named a": "1", "named c": "2"}))
    []
    >>> list(differences("machine_code", before, {"named a": "3", "named b": "2"}))
    ['machine_code: changed: named a: 1 -> 3']
    >>> list(differences("machine_code", before, {"named a": "1", "named d": "4"}))
    ['machine_code: gone: named b', 'machine_code: new: named d']
    """
    contents = [{json.dumps(_content(section, value)) for value in side.values()} for side in (before, now)]
    for label, value in before.items():
        if label in now:
            old, new = _content(section, value), _content(section, now[label])
            if old != new:
                yield f"{section}: changed: {label}: {_shown(value)} -> {_shown(now[label])}"
        elif json.dumps(_content(section, value)) not in contents[1]:
            yield f"{section}: gone: {label}"
    for label, value in now.items():
        if label not in before and json.dumps(_content(section, value)) not in contents[0]:
            yield f"{section}: new: {label}"


def _content(section: str, value: Any) -> Any:
    """Return the part of a recorded value that has no name in it."""
    return value[1] if section == "choices" else value


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
