"""The reason and the predicted time that `cutegemm gemm` prints for a plan, and the commands that it suggests."""

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
from cutegemm.machine.arch import arch_named
from cutegemm.machine.device import Device
from cutegemm.parse.epilogue import ParsedEpilogue
from cutegemm.parse.plan import scales_text
from cutegemm.plan import GemmPlan, Problem

_OTHERS = 2  # number of next-best candidates to print


@dataclass(frozen=True)
class Why:
    """Explains to the user why `cutegemm gemm` uses a plan for a problem, and how fast it should be.

    reason       why this plan is used, as text for the user, e.g. "lowest predicted time of 40 plans"
    us           predicted time in microseconds; None if the problem has too many tiles to be analysed
    tflops       predicted speed in TFLOP/s; 0 if `us` is None
    bound        name of what takes most of the time, such as "DRAM"; "" if `us` is None
    is_at_most   True if `us` is the roofline, i.e. a lower bound of the time; False if the time model predicts it
    device       name of the device that the time is predicted for
    stand_in     note that the device has another architecture than the plan, because no rates are known for that one;
                 "" if both have the same
    """

    reason: str
    us: float | None
    tflops: float
    bound: str
    is_at_most: bool
    device: str
    stand_in: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return this explanation as a dict for JSON: why a plan is used, and its predicted time, speed and bottleneck.

        The keys are "reason", "us", "tflops", "bound", "is_at_most", "device" and "stand_in".
        """
        return dict(vars(self))

    def __str__(self) -> str:
        if self.us is None:
            return "nothing: the problem has more tiles than an analysis follows"
        us, speed = f"{self.us:.4g} us", f"{self.tflops:.4g} TFLOP/s on {self.device}{self.stand_in}"
        if self.is_at_most:
            return f"at least {us}, at most {speed}: {self.bound} binds"
        return f"{us}, {speed}, by the model of time: most of it {self.bound}"

    @property
    def label(self) -> str:
        """Kind of the predicted time: "roofline" for a lower bound, "predicted" for the time model."""
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
    """Explain why a plan is used for a problem, e.g. "lowest predicted time of 40 plans", and predict its speed.

    The result also has the predicted microseconds, TFLOP/s and bottleneck. They come from the time model. With a custom
    epilogue, or if the plan is not among those that the model compares, they come from the roofline, a lower bound of
    the time.

    recipe         named options that the plan was built from
    plan           the plan that is used
    asked          the plan name that the user gave; None if the plan was chosen
    problem        the problem that the plan solves: transposed if the recipe swaps A and B
    arch, device   architecture of the plan, and device whose rates predict the time
    ending         the custom epilogue; None for alpha * acc + beta * c
    """
    known = [] if ending is not None else _next_best(recipe, problem, arch, device)
    us: float | None
    if asked is not None:
        reason = "asked for"
    elif known:
        reason = f"lowest predicted time of {len(known)} plans"
        others = [f"{one.recipe} {one.us:.4g} us" for one in known[1 : 1 + _OTHERS]]
        if others:
            reason += f"; next {', '.join(others)}"
    else:
        reason = "chosen for the GEMM alone; the cost of the epilogue is not considered"
    us, bound = (known[0].us, known[0].bound) if known else _roofline(plan, problem, arch, device)
    is_of_arch = arch_named(arch).capability == arch_named(device.arch).capability
    stand_in = "" if is_of_arch else f" ({device.arch}; no rates of {arch} are known)"
    return Why(reason, us, problem.flops / us / 1e6 if us else 0.0, bound, not known, device.name, stand_in)


def _roofline(plan: GemmPlan, problem: Problem, arch: str, device: Device) -> tuple[float | None, str]:
    """Return the roofline of a plan (a lower bound of its time) in microseconds, and the name of what limits it.

    The limit is a level of the machine, such as "DRAM". The result is (None, "") if the problem has too many tiles to
    be analysed.
    """
    try:
        roof = check(plan, problem, arch, device, search=False).roofline
    except UnsupportedError:
        return None, ""
    assert roof is not None
    return roof.seconds * 1e6, roof.bound.name


def _next_best(recipe: Recipe, problem: Problem, arch: str, device: Device) -> list[Candidate]:
    """Return the chosen plan as a candidate, followed by all slower candidates in the order of predicted time.

    recipe    named options of the chosen plan. If it is not a candidate, the list is empty
    problem   the problem that the plan solves: transposed if the recipe swaps A and B
    """
    stated = problem.transposed if recipe.swap_ab else problem
    candidates = list(ranked(stated.operands, stated, arch, device))
    position = next((position for position, one in enumerate(candidates) if one.recipe == recipe), None)
    return [] if position is None else candidates[position:]


def next_commands(plan: str, problem: Problem, layout: str, is_chosen: bool, epilogue: Sequence[str] = ()) -> list[str]:
    """Return commands that a user can run next to see more about a plan and why it was chosen.

    plan        name of the plan
    problem     the problem as the user stated it
    layout      BLAS letters of A and B, such as "nt"
    is_chosen   True if the plan was chosen and not asked for by name; adds `cutegemm explain`, which compares
                candidates
    epilogue    the command-line options of the epilogue, such as ["--epilogue", "relu(acc)"]; empty for none

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
    scales = scales_text(problem.operands)
    options = ("" if kind is f32 else f" --dtype {kind}") + letters + (f" --scales {scales}" if scales else "")
    ending = f" {shlex.join(epilogue)}" if epilogue else ""
    extents = [problem.m, problem.n, problem.k]
    groups = problem.operands.groups
    is_batch = problem.operands.batched and not groups
    batch = f" --batch {problem.l}" if is_batch else ""
    options += f" --groups {problem.l}" * bool(groups) + f" --along {groups}" * (groups not in ("", "m"))
    asked = f"cutegemm explain {' '.join(map(str, extents))}{batch}{options}"
    as_text = "x".join(map(str, [*extents, *([problem.l] if is_batch else [])]))
    return [
        *([asked] if is_chosen else []),
        f"cutegemm check {plan}{options}{ending} --problem {as_text}",
        f"cutegemm show {plan}{options}{ending} --html plan.html",
        "cutegemm explore",
    ]
