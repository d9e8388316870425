"""Marks of parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

Given = TypeVar("Given")


def with_thorough(
    given: Iterable[Given], thorough: Collection[str], name: Callable[[Given], str] = str
) -> list[ParameterSet]:
    """Parameters by their names, of which those that are named are marked `thorough`: more of what the others hold.

    raises   ValueError where a name is of none of them
    """
    values = list(given)
    unknown = {*thorough} - {name(value) for value in values}
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not among {[name(value) for value in values]}")
    marks = [[pytest.mark.thorough] if name(value) in thorough else [] for value in values]
    return [pytest.param(value, marks=own, id=name(value)) for value, own in zip(values, marks, strict=True)]
