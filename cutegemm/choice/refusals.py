"""The reasons why no plan can be chosen: the rules that candidates break, each listed once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cutegemm.errors import PlanError


class TooLargeError(PlanError):
    """The problem is too large for a plan that could implement it otherwise."""


def by_reason(refusals: Sequence[tuple[object, str]]) -> list[str]:
    """Return the reasons why plans were refused, each once, with its first plan and the number of further plans.

    Reasons that differ only in their numbers count as one; the numbers shown are those of the first plan.

    refusals   recipes of plans, or their names, each with a rule that the plan breaks

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
    """Return one line for the plans of a group, which broke the same rule."""
    (plan, rule), *others = group
    if not others:
        return f"{plan}: {rule}"
    is_same = all(other == rule for _, other in others)
    return f"{plan} and {len(others)} more: {rule}" if is_same else f"{plan}, and {len(others)} more alike: {rule}"
