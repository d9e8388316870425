"""What the catalogs of named plans share: texts that spell out a builder's arguments, a model of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cutegemm.errors import PlanError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem

H200_MULTIPROCESSORS = 132  # where none are said


def parse_tuple(text: str) -> tuple[int, ...]:
    """128x64x32 as numbers.

    >>> parse_tuple("128x64x32")
    (128, 64, 32)
    """
    return tuple([int(part) for part in text.split("x")])


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
        try:
            found[key] = options[key](value)
        except KeyError:
            broken.append(f"{key!r} is no argument; there are {', '.join(options)}.")
        except ValueError:
            broken.append(f"{part!r} does not read as numbers joined by x.")
    if broken:
        raise PlanError(f"plan_named: {text!r}", broken)
    return found


def by_reason(refusals: Sequence[tuple[str, str]]) -> list[str]:
    """Why plans were refused, each reason once, with the first of its plans and how many others there are.

    refusals   names of plans with a broken rule of each

    >>> by_reason([("small", "no room"), ("large", "no room"), ("large", "odd")])
    ['small and 1 more: no room', 'large: odd']
    """
    names: dict[str, list[str]] = {}
    for name, rule in refusals:
        names.setdefault(rule, []).append(name)
    return [
        f"{first}{f' and {len(others)} more' if others else ''}: {rule}"
        for rule, (first, *others) in names.items()
    ]


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
