"""Sentences for numbers that are out of bounds, for the components of a plan."""

from __future__ import annotations

from collections.abc import Iterator

MOST_STAGES = 1024  # a stage has at least 128 bytes; shared memory has 227 KiB


def count_rule(name: str, value: int, least: int = 1, most: int | None = None) -> Iterator[str]:
    """Yield a sentence if a count, the value of a field, is not in [least, most].

    name    name of the field, for the message
    most    largest valid value; None: any

    >>> list(count_rule("body.stages", 0))
    ['body.stages = 0; at least 1 is expected.']
    """
    if value < least:
        yield f"{name} = {value}; at least {least} is expected."
    elif most is not None and value > most:
        yield f"{name} = {value}; at most {most} is expected."


def extents_rule(name: str, value: tuple[int, ...]) -> Iterator[str]:
    """Yield a sentence if one of the extents in a field, such as a tile, is less than 1.

    name    name of the field, for the message
    value   the extents

    >>> list(extents_rule("cta_tile", (128, 0, 64)))
    ['cta_tile = (128, 0, 64); 3 positive integers are expected.']
    """
    if min(value) < 1:
        yield f"{name} = {value!r}; {len(value)} positive integers are expected."
