"""Why no plan serves: the rules that candidates break, each said once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cutegemm.errors import PlanError


class TooLargeError(PlanError):
    """A problem is too large for a plan that otherwise serves it."""


def by_reason(refusals: Sequence[tuple[object, str]]) -> list[str]:
    """Why plans were refused, each reason once, with the first of its plans and how many others there are.

    Reasons that differ in their numbers alone are alike: those of the first plan are said.

    refusals   recipes of plans, or their names, with a broken rule of each

    >>> by_reason([("small", "no room"), ("large", "no room"), ("large", "odd")])
    ['small and 1 more: no room', 'large: odd']
    >>> by_reason([("small", "8 x 8 tiles are too many"), ("large", "4 x 4 tiles are too many")])
    ['small, and 1 more alike: 8 x 8 tiles are too many']
    """
    groups: dict[str, list[tuple[object, str]]] = {}
    for plan, rule in refusals:
        groups.setdefault(re.sub(r"\d+", "0", rule), []).append((plan, rule))
    return [_said(group) for group in groups.values()]


def _said(group: list[tuple[object, str]]) -> str:
    (plan, rule), *others = group
    if not others:
        return f"{plan}: {rule}"
    is_same = all(other == rule for _, other in others)
    return f"{plan} and {len(others)} more: {rule}" if is_same else f"{plan}, and {len(others)} more alike: {rule}"
