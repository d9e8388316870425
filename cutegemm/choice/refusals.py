"""The reasons why no plan can be chosen: the rules that candidates break, each listed once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cutegemm.errors import PlanError


class TooLargeError(PlanError):
    """Raised if a plan could implement the operands, but the problem's extents exceed its limits."""


def by_reason(refusals: Sequence[tuple[object, str]]) -> list[str]:
    """Summarize why plans cannot be used: one line of text per reason, with the first plan and the number of others.

    Reasons that differ only in their numbers count as one; the numbers shown are those of the first plan.

    refusals   a pair (recipe or name of a plan, violated rule as text) for each rule that a plan violates

    >>> by_reason([("small", "no room"), ("large", "no room"), ("large", "odd")])
    ['small and 1 more: no room', 'large: odd']
    >>> by_reason([("small", "8 x 8 tiles are too many"), ("large", "4 x 4 tiles are too many")])
    ['small, and 1 more alike: 8 x 8 tiles are too many']
    """
    groups: dict[str, list[tuple[object, str]]] = {}
    for plan, rule in refusals:
        groups.setdefault(re.sub(r"\d+", "0", rule), []).append((plan, rule))
    return [_reason_text(group) for group in groups.values()]


def _reason_text(group: list[tuple[object, str]]) -> str:
    """Return one line of text for plans that violate the same rule: the rule, the first plan, the number of others.

    group   (recipe or name of a plan, violated rule as text) for each of these plans
    """
    (plan, rule), *others = group
    if not others:
        return f"{plan}: {rule}"
    is_same = all(other == rule for _, other in others)
    return f"{plan} and {len(others)} more: {rule}" if is_same else f"{plan}, and {len(others)} more alike: {rule}"
