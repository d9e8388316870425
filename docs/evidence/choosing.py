"""Time that a choice takes on a CPU, for random problems: `python -m docs.evidence choosing`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from cutegemm.choice.catalog import chosen, ranked
from cutegemm.plan.problem import Problem
from docs.evidence.machine import cpu
from docs.evidence.random_problems import drawn

PROBLEMS = 400
_SEED, _OTHERS = 131, 132  # seeds of problems whose plans are built, and only ranked
_WARM = 40  # problems chosen before the timing, so that recipes for each kind of operands exist


def run() -> dict[str, Any]:
    """Return milliseconds by type for ranking the candidates, and for choosing with new plans built on the way."""
    first, others = drawn(_SEED, PROBLEMS), drawn(_OTHERS, PROBLEMS)
    plans: set[str] = set()

    def choose(problem: Problem) -> None:
        plans.add(chosen(problem.operands, problem)[1].name)

    def rank(problem: Problem) -> None:
        next(ranked(problem.operands, problem))

    return {
        **cpu(),
        "problems": PROBLEMS,
        "choosing": _by_type(first, choose),
        "plans": len(plans),
        "ranking": _by_type(others, rank),
    }


def _by_type(problems: Sequence[Problem], done: Callable[[Problem], None]) -> dict[str, dict[str, float]]:
    times: dict[str, list[float]] = {"all": []}
    for number, problem in enumerate([*problems[:_WARM], *problems]):
        started = time.perf_counter()
        done(problem)
        taken = (time.perf_counter() - started) * 1e3
        if number >= 2 * _WARM:  # the first ones are known by now
            for name in ("all", problem.operands.a.dtype.name):
                times.setdefault(name, []).append(taken)
    return {
        name: {"median_ms": statistics.median(found), "one_in_ten_ms": statistics.quantiles(found, n=10)[-1]}
        for name, found in sorted(times.items())
    }


def rows_of(found: dict[str, Any]) -> list[list[str]]:
    """Return rows of a table: the type, then the median and the 90th percentile of ranking and of choosing.

    >>> both = {"all": {"median_ms": 0.2, "one_in_ten_ms": 1.5}}
    >>> rows_of({"ranking": both, "choosing": both})
    [['all', '0.20', '1.50', '0.20', '1.50']]
    """
    return [
        [name, *[f"{found[what][name][key]:.2f}" for what in ("ranking", "choosing") for key in times]]
        for name, times in found["ranking"].items()
    ]


def table(found: dict[str, Any]) -> str:
    """Return the result of `run` as text, one line per type, in milliseconds."""
    lines = [
        f"{found['problems']} problems, {found['plans']} plans built; milliseconds, median and one in ten above",
        f"{'':8} {'ranking':>16} {'choosing':>16}",
    ]
    lines += [f"{name:8} {a:>8}{b:>8} {c:>8}{d:>8}" for name, a, b, c, d in rows_of(found)]
    return "\n".join(lines)
