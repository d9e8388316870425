"""What the catalogs of named plans share: texts that spell out a builder's arguments, a model of time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutegemm.errors import PlanError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem


def parse_tuple(text: str) -> tuple[int, ...]:
    """128x64x32 as numbers.

    >>> parse_tuple("128x64x32")
    (128, 64, 32)
    """
    return tuple([int(part) for part in text.split("x")])


_READ: dict[Callable[[str], Any], str] = {parse_tuple: "numbers joined by x", int: "a whole number"}


def parse_options(text: str, options: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The arguments in "family:name=value,name=value".

    options   for each argument what turns its text into a value
    raises    PlanError with everything that does not read

    >>> parse_options("simt:block=64x64x8,stages=4", {"block": parse_tuple, "stages": int})
    {'block': (64, 64, 8), 'stages': 4}
    """
    found, broken = {}, []
    for part in text.partition(":")[2].split(","):
        key, _, value = part.partition("=")
        if key in found:
            broken.append(f"{key!r} is given twice.")
            continue
        try:
            found[key] = options[key](value)
        except KeyError:
            broken.append(f"{key!r} is no argument; there are {', '.join(options)}.")
        except ValueError:
            expected = _READ.get(options[key], f"a value of {key}")
            broken.append(f"{part!r} does not read as {expected}.")
    if broken:
        raise PlanError(f"plan_named: {text!r}", broken)
    return found


def by_reason(refusals: Sequence[tuple[str, str]]) -> list[str]:
    """Why plans were refused, each reason once, with the first of its plans and how many others there are.

    Reasons that differ in their numbers alone are alike: those of the first plan are said.

    refusals   names of plans with a broken rule of each

    >>> by_reason([("small", "no room"), ("large", "no room"), ("large", "odd")])
    ['small and 1 more: no room', 'large: odd']
    >>> by_reason([("small", "8 x 8 tiles are too many"), ("large", "4 x 4 tiles are too many")])
    ['small, and 1 more alike: 8 x 8 tiles are too many']
    """
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, rule in refusals:
        groups.setdefault(re.sub(r"\d+", "0", rule), []).append((name, rule))
    return [_said(group) for group in groups.values()]


def _said(group: list[tuple[str, str]]) -> str:
    (name, rule), *others = group
    if not others:
        return f"{name}: {rule}"
    is_same = all(other == rule for _, other in others)
    return (
        f"{name} and {len(others)} more: {rule}"
        if is_same
        else f"{name}, and {len(others)} more alike: {rule}"
    )


def busiest_cost(
    plan: GemmPlan, problem: Problem, rate: float, multiprocessors: int, start_steps: int
) -> float:
    """Multiply-adds that the multiprocessor with the most tiles takes, at a rate.

    It has ceil(tiles / multiprocessors) of them, each costs bM * bN * (K + start_steps), and they run at the
    plan's rate on large problems, less where fewer CTAs than planned share the multiprocessor: the square
    root of the share, as their latencies are covered less.
    """
    m_tiles, n_tiles, batch = plan.grid(problem)
    most = max(1, -(-m_tiles * n_tiles * batch // multiprocessors))
    resident = min(plan.ctas_per_sm, most) / plan.ctas_per_sm
    bm, bn, _ = plan.cta_tile
    return float(most * bm * bn * (problem.k + start_steps) / (rate * resident**0.5))
