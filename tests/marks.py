"""Pytest parameters with the mark `thorough`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

Given = TypeVar("Given")


def with_thorough(
    given: Iterable[Given], thorough: Collection[str], name: Callable[[Given], str] = str
) -> list[ParameterSet]:
    """Return pytest parameters with the values as ids. The named tests get the mark `thorough`.

    A thorough test repeats what another one tests, for more values.

    given      values of the parameter
    thorough   names of the values to mark
    name       function that returns the name of a value
    raises     ValueError if a name in `thorough` belongs to no value
    """
    values = list(given)
    unknown = {*thorough} - {name(value) for value in values}
    if unknown:
        raise ValueError(f"{sorted(unknown)} are not among {[name(value) for value in values]}")
    marks = [[pytest.mark.thorough] if name(value) in thorough else [] for value in values]
    return [pytest.param(value, marks=own, id=name(value)) for value, own in zip(values, marks, strict=True)]
