"""Why `cutegemm gemm` takes a plan, how fast it is held to be, and what to ask next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutegemm.analysis import check
from cutegemm.choice.candidate import Candidate
from cutegemm.choice.catalog import ranked
from cutegemm.choice.recipe import Recipe
from cutegemm.dtypes import f32
from cutegemm.errors import UnsupportedError
from cutegemm.machine.device import Device
from cutegemm.parse.epilogue import ParsedEpilogue
from cutegemm.plan import GemmPlan, Problem

_OTHERS = 2  # candidates behind the first that are told


@dataclass(frozen=True)
class Why:
    """What is told of a plan before anything is carried out.

    reason       why it is this one
    us           microseconds that are predicted; None where the problem is too large to be analysed
    tflops       what that is for the problem
    bound        what takes most of the time
    is_at_most   whether the time is that of the roofline, which no run falls below
    device       that it is predicted for
    """

    reason: str
    us: float | None
    tflops: float
    bound: str
    is_at_most: bool
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(vars(self))

    def __str__(self) -> str:
        if self.us is None:
            return "nothing: the problem has more tiles than an analysis follows"
        us, speed = f"{self.us:.4g} us", f"{self.tflops:.4g} TFLOP/s on {self.device}"
        if self.is_at_most:
            return f"at least {us}, at most {speed}: {self.bound} binds"
        return f"{us}, {speed}, by the model of time: most of it {self.bound}"

    @property
    def label(self) -> str:
        """What the time is."""
        return "roofline" if self.is_at_most else "predicted"


def why(
    recipe: Recipe,
    plan: GemmPlan,
    asked: str | None,
    problem: Problem,
    arch: str,
    device: Device,
    ending: ParsedEpilogue | None,
) -> Why:
    """Why a plan is taken for a problem, and its predicted speed.

    problem  as the plan multiplies it
    asked    the name that the user gave; None where the plan was chosen
    ending   its epilogue, which the model of time of the choice does not know
    """
    known = [] if ending is not None else _compared(recipe, problem, arch, device)
    us: float | None
    if asked is not None:
        reason = "asked for"
    elif known:
        reason = f"held to be the fastest of {len(known)} plans"
        behind = [f"{one.recipe} {one.us:.4g} us" for one in known[1 : 1 + _OTHERS]]
        if behind:
            reason += f"; next {', '.join(behind)}"
    else:
        reason = "chosen for the product; its epilogue is not weighed"
    us, bound = (known[0].us, known[0].bound) if known else _at_most(plan, problem, arch, device)
    flop = 2.0 * problem.m * problem.n * problem.k * problem.l
    return Why(reason, us, flop / us / 1e6 if us else 0.0, bound, not known, device.name)


def _at_most(plan: GemmPlan, problem: Problem, arch: str, device: Device) -> tuple[float | None, str]:
    """Microseconds of the roofline, and what binds; None where there are too many tiles to follow."""
    try:
        roof = check(plan, problem, arch, device, search=False).roofline
    except UnsupportedError:
        return None, ""
    assert roof is not None
    return roof.seconds * 1e6, roof.bound.name


def _compared(recipe: Recipe, problem: Problem, arch: str, device: Device) -> list[Candidate]:
    """The recipe as a candidate, and those behind it, by predicted time; none where it is not among them."""
    of = problem.transposed if recipe.swap_ab else problem
    found = list(ranked(of.operands, of, arch, device))
    place = next((place for place, one in enumerate(found) if one.recipe == recipe), None)
    return [] if place is None else found[place:]


def next_commands(plan: str, problem: Problem, layout: str, is_chosen: bool, epilogue: Sequence[str] = ()) -> list[str]:
    """Commands that tell more of a plan, and of its choice.

    epilogue   the options that gave it one

    >>> from cutegemm.plan import Operands
    >>> of = Problem(64, 64, 64, operands=Operands.of("f16"))
    >>> for command in next_commands("mma_64x64", of, "nn", True):
    ...     print(command)
    cutegemm explain 64 64 64 --dtype f16
    cutegemm check mma_64x64 --dtype f16 --problem 64x64x64
    cutegemm show mma_64x64 --dtype f16 --html plan.html
    cutegemm explore
    """
    kind = problem.operands.a.dtype
    letters = "" if layout == "nn" else f" --layout {layout}"
    options = ("" if kind is f32 else f" --dtype {kind}") + letters
    ending = f" {shlex.join(epilogue)}" if epilogue else ""
    extents = [problem.m, problem.n, problem.k]
    batch = f" --batch {problem.l}" if problem.operands.batched else ""
    asked = f"cutegemm explain {' '.join(map(str, extents))}{batch}{options}"
    as_text = "x".join(map(str, [*extents, *([problem.l] if batch else [])]))
    return [
        *([asked] if is_chosen else []),
        f"cutegemm check {plan}{options}{ending} --problem {as_text}",
        f"cutegemm show {plan}{options}{ending} --html plan.html",
        "cutegemm explore",
    ]
