"""Random block-scaled problems: the chosen plan, the next ones by predicted time, and torch's scaled_mm.

`python -m docs.evidence scaled --seed 1 --count 300` calls `run`. Extents are uniform in their logarithm. In half of
the problems, N and K are multiples of 16, which torch's scaled_mm requires; in the others M, N and K are any numbers.

| part of the time                                          | 300 problems on an H100 with 16 cores, estimated |
|-----------------------------------------------------------|--------------------------------------------------|
| choose the plans                                          | 15 s                                             |
| compile about 300 kernels, 3 s each, in 16 processes      | 60 s                                             |
| make the matrices, and check 64 rows by float64           | 60 s                                             |
| measure, 0.1 s for each problem and at least three rounds | 60 s                                             |

No problem is begun after `budget` seconds. The record says how many were measured.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.machine.device import Device
from cutegemm.plan import GemmPlan
from cutegemm.plan.mainloop.block_scaled import BLOCK, BLOCKS
from docs.evidence.benchmark import record
from docs.evidence.choice import distribution
from docs.evidence.measure import machine, need_gpu, this_device
from docs.evidence.scaled import CHOSEN, RECIPES, Contest, Row, name_of, raced, stored, told

EXTENTS = {"m": (1, 8192), "n": (64, 8192), "k": (128, 8192)}
ALIGNED = 16  # elements that torch's scaled_mm requires of N and K
OTHERS = 1  # plans that are timed in addition to the chosen one


@dataclass(frozen=True)
class Case:
    """A random problem.

    recipe   granularity of the scales of A and of B
    """

    m: int
    n: int
    k: int
    recipe: tuple[str, str]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return M, N and K."""
        return self.m, self.n, self.k


def drawn(seed: int, count: int) -> list[Case]:
    """Return `count` random problems; the same seed gives the same problems.

    >>> drawn(1, 2)
    [Case(m=3, n=3920, k=3072, recipe=('1x128', '128x128')), Case(m=10, n=708, k=830, recipe=('1x128', '1x128'))]
    """
    chance, found = random.Random(seed), []
    for number in range(count):
        m, n, k = [round(2 ** chance.uniform(*map(math.log2, EXTENTS[mode]))) for mode in "mnk"]
        if number % 2 == 0:
            n, k = [-(-extent // ALIGNED) * ALIGNED for extent in (n, k)]
        found.append(Case(m, n, k, RECIPES[number % len(RECIPES)]))
    return found


def plans_of(case: Case, device: Device, count: int = OTHERS) -> dict[str | None, GemmPlan]:
    """Return plans for a problem: the one that `gemm` chooses, by None, and the next ones by predicted time, by name.

    It needs no GPU.

    count   number of the next ones

    >>> from cutegemm.machine.device import device_named
    >>> [*plans_of(Case(4096, 4096, 7168, RECIPES[0]), device_named("h100"), 2)]
    [None, 'sm90_promoted_128x128_1x2', 'swap_ab:sm90_promoted']
    """
    import torch

    from cutegemm.run.gemm import gemm
    from cutegemm.run.prepare import asking
    from cutegemm.run.question import decide

    m, n, k = case.shape
    deep = -(-k // BLOCK)
    a, b = [torch.empty(rows, k, dtype=torch.float8_e4m3fn) for rows in (m, n)]
    scale_a, scale_b = [
        torch.empty(-(-rows // BLOCK), deep) if granularity == BLOCKS else torch.empty(deep, rows).t()
        for rows, granularity in zip((m, n), case.recipe, strict=True)
    ]
    with asking(device) as questions:
        gemm(a, b.t(), scales=(scale_a, scale_b.t()), out=torch.empty(m, n, dtype=torch.bfloat16))
    (question,) = questions
    found: dict[str | None, GemmPlan] = {None: decide(question).plan}
    for candidate in question.ranked():
        decision = question.served(candidate.recipe)
        if len(found) <= count and decision is not None and decision.plan != found[None]:
            found[str(candidate.recipe)] = decision.plan
        if len(found) > count:
            break
    return found


def measured(case: Case, plans: Mapping[str | None, GemmPlan], seconds: float) -> Row:
    """Return the row of one problem.

    plans     the plans to time, as `plans_of` returns them
    seconds   least time of measuring
    """
    contest = Contest(*case.shape, case.recipe)
    calls = {name or CHOSEN: contest.by_gemm(name) for name in plans}
    row = raced(contest, calls, {"torch": contest.by_torch()}, seconds)
    return {**row, "chosen": name_of(plans[None])}


def summary(rows: Sequence[Row]) -> str:
    """Return the distributions of the ratios of random problems, and the problems with a wrong result.

    >>> row = {"m": 3, "n": 64, "k": 130, "failed": {}, "torch_to_chosen": 1.25, "best_to_chosen": 0.9}
    >>> print(summary([row, {**row, "torch_to_chosen": None, "failed": {"chosen": "the errors are large"}}]))
    torch / chosen: 1 problems, mean 1.250, one in ten below 1.250, least 1.250
    best / chosen: 2 problems, mean 0.900, one in ten below 0.900, least 0.900
    wrong or failed: 3x64x130 chosen: the errors are large
    """
    lines = []
    for name, key in (("torch / chosen", "torch_to_chosen"), ("best / chosen", "best_to_chosen")):
        found = sorted(row[key] for row in rows if row[key] is not None)
        if found:
            count, mean, tenth, least = distribution(found)
            lines.append(f"{name}: {count} problems, mean {mean:.3f}, one in ten below {tenth:.3f}, least {least:.3f}")
    for row in rows:
        own = {name: why for name, why in row["failed"].items() if name != "torch"}
        where = f"{row['m']}x{row['n']}x{row['k']}"
        lines += [f"wrong or failed: {where} {name}: {why}" for name, why in own.items()]
    return "\n".join(lines)


def run(seed: int, count: int, seconds: float, budget: float, path: Path | None) -> None:
    """Compile the plans of random problems, then check and time one problem after the other.

    seconds   least time of measuring of each problem
    budget    seconds after which no further problem is begun
    path      file for all numbers; None for none
    """
    from cutegemm.compile.plans import compile_missing

    need_gpu()
    started, device, cases = time.monotonic(), this_device(), drawn(seed, count)
    plans = [plans_of(case, device) for case in cases]
    compile_missing([plan for own in plans for plan in own.values()])
    compiled = time.monotonic() - started
    print(f"compiled in {compiled:.0f} s", flush=True)
    found: dict[str, Any] = {"machine": machine(), "seed": seed, "count": count, "budget": budget, "rows": []}

    every: list[Row] = []

    def rows() -> Iterator[list[Row]]:
        for case, own in zip(cases, plans, strict=True):
            if time.monotonic() - started > budget:
                return
            row = measured(case, own, seconds)
            print(told(row), flush=True)
            every.append(row)
            yield [stored(row)]

    record(found, rows(), path)
    taken = time.monotonic() - started
    print(f"{len(found['rows'])} of {count} problems in {taken:.0f} s, {compiled:.0f} of them for compilation")
    print(summary(every))
