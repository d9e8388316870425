"""The plans that have a name, and the choice among them.

A name stands for tile sizes; what else the plan is follows from the operands: how a tile is loaded from their
majorness and alignment, how wide the accesses are from their types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.simt import ACCESS_BITS, Shared, simt_plan
from cutegemm.plan.sm90_catalog import choose_sm90, sm90_named, sm90_names
from cutegemm.tile.tiled_copy import TiledCopy

DEFAULT_ARCH = "sm_90a"
H200_MULTIPROCESSORS = 132

# What `choose` adds to K for each tile: filling the pipeline and writing D, in steps of K.
_START_STEPS = 48


@dataclass(frozen=True)
class NamedPlan:
    """A plan by name.

    options   arguments of `simt_plan`
    rate      by layout ("nn", ...): speed on large problems, that of cuBLAS being 1
    raises    PlanError where the operands break its rules
    """

    name: str
    summary: str
    options: Mapping[str, Any]
    rate: Mapping[str, float]

    def build(self, operands: Operands) -> GemmPlan:
        """The plan for operands."""
        return _build(self.name, self.summary, operands, **self.options)


def _build(name: str, summary: str, operands: Operands, **options: Any) -> GemmPlan:
    """`simt_plan`, its options fitted to the width of the operands.

    `stages` may be a pair: with cp.async alone, and where a tile goes through registers, as such a tile is
    one more on its way already.
    """
    widest = max(operands.a.dtype.bits, operands.b.dtype.bits, operands.acc.bits)
    quad = min(4, ACCESS_BITS // widest)
    given = {"quad": (quad, quad), "stages": 2, **options}
    given["ctas_per_sm"] = max(1, given.get("ctas_per_sm", 1) * 32 // max(32, widest))
    async_stages, stages = given["stages"] if isinstance(given["stages"], tuple) else (given["stages"],) * 2
    plan = simt_plan(operands, name=name, summary=summary, **{**given, "stages": stages})
    loads = [load for load in (plan.load_a, plan.load_b) if isinstance(load, TiledCopy)]
    if stages != async_stages and all(load.atom.is_async for load in loads):
        plan = simt_plan(operands, name=name, summary=summary, **{**given, "stages": async_stages})
    return plan


# Rates of the three large ones: one H200, f32, 4096 cubed, torch 2.11, normal data, 2026-11-20; those with a
# k-major operand that was not timed, and those of the small ones, are estimates.
_NAMED = (
    NamedPlan(
        "simt_256x128",
        "16x8 elements a thread, 8 warps; rows of A outermost",
        {"block": (256, 128, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4},
        {"tn": 1.08, "nn": 0.98, "tt": 1.03, "nt": 0.93},
    ),
    NamedPlan(
        "simt_128x256",
        "8x16 elements a thread, 8 warps; columns of B outermost",
        {
            "block": (128, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
            "mma_order": "n",
        },
        {"tn": 1.04, "nn": 1.04, "tt": 0.98, "nt": 0.93},
    ),
    NamedPlan(
        "simt_128x128",
        "8x16 elements a thread, 4 warps; two CTAs a multiprocessor, so that one covers the other's barriers",
        {
            "block": (128, 128, 16), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 4,
            "mma_order": "n", "ctas_per_sm": 2,
        },
        {"tn": 1.05, "nn": 1.00, "tt": 0.99, "nt": 0.95},
    ),
    NamedPlan(
        "simt_128x64",
        "8x8 elements a thread, 4 warps; for middling problems",
        {"block": (128, 64, 16), "warp": (64, 32), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3},
        {"tn": 0.85, "nn": 0.83, "tt": 0.83, "nt": 0.80},
    ),
    NamedPlan(
        "simt_64x64",
        "8x4 elements a thread, 4 warps; for small problems",
        {"block": (64, 64, 16), "warp": (32, 32), "thread": (8, 4), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 4},
        {"tn": 0.62, "nn": 0.60, "tt": 0.60, "nt": 0.58},
    ),
    NamedPlan(
        "simt_32x32",
        "4x4 elements a thread, 2 warps; for problems of few tiles",
        {"block": (32, 32, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 8},
        {"tn": 0.40, "nn": 0.38, "tt": 0.38, "nt": 0.36},
    ),
    NamedPlan(
        "simt_16x128",
        "4x4 elements a thread, 4 warps side by side; for few rows",
        {"block": (16, 128, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4},
        {"tn": 0.40, "nn": 0.38, "tt": 0.38, "nt": 0.36},
    ),
    NamedPlan(
        "simt_128x16",
        "4x4 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (128, 16, 16), "warp": (32, 16), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4},
        {"tn": 0.40, "nn": 0.38, "tt": 0.38, "nt": 0.36},
    ),
)  # fmt: skip
_BY_NAME = {named.name: named for named in _NAMED}


def plans() -> list[tuple[str, str]]:
    """Every name, with what is behind it.

    >>> plans()[2][0]
    'simt_128x128'
    """
    return [(named.name, named.summary) for named in _NAMED] + sm90_names()


@cache
def plan_named(name: str, operands: Operands, with_c: bool = False) -> GemmPlan:
    """The plan of a name, or of a text that spells out the arguments of a builder.

    name     one of `plans()`, "simt:block=128x128x8,warp=64x32,thread=8x8,stages=3,mma_order=n" for
             `simt_plan`, or "sm90:tile=128x128x64,cluster=2x1,slots=4" for `sm90_plan`
    with_c   whether the kernel must be able to read C; one of `simt_plan` always is
    raises   UnsupportedError for another name; PlanError where the operands break the plan's rules

    >>> plan_named("simt_64x64", Operands.of("f32")).cta_tile
    (64, 64, 16)
    >>> plan_named("simt:block=64x64x8,warp=32x32,thread=8x4,stages=4", Operands.of("f32")).stages
    4
    """
    if name.startswith("simt:"):
        return _build(name, "", operands, **_parse_options(name))
    if name.startswith("sm90"):
        plan = sm90_named(name, operands, with_c)
        if plan is not None:
            return plan
    if name not in _BY_NAME:
        known = ", ".join(known for known, _ in plans())
        raise UnsupportedError(
            f"plan_named: no plan is called {name!r}. There are {known}, simt:block=... and sm90:tile=..."
        )
    return _BY_NAME[name].build(operands)


def _tuple(text: str) -> tuple[int, ...]:
    return tuple([int(part) for part in text.split("x")])


def _shared(text: str) -> Shared:
    """mn+4: along M or N, with 4 elements of padding."""
    major, _, pad = text.partition("+")
    return Shared(major=major, pad=int(pad or 0))


_OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("block", "warp", "thread", "quad"), _tuple),
    **dict.fromkeys(("stages", "unroll", "ctas_per_sm"), int),
    **dict.fromkeys(("shared_a", "shared_b"), _shared),
    **dict.fromkeys(("load_a", "load_b", "lanes_along", "raster", "mma_order"), str),
}


def _parse_options(text: str) -> dict[str, Any]:
    found, broken = {}, []
    for part in text.removeprefix("simt:").split(","):
        key, _, value = part.partition("=")
        try:
            found[key] = _OPTIONS[key](value)
        except KeyError:
            broken.append(f"{key!r} is no argument; there are {', '.join(_OPTIONS)}.")
        except ValueError:
            broken.append(f"{part!r} does not read as numbers joined by x.")
    if broken:
        raise PlanError(f"plan_named: {text!r}", broken)
    return found


@lru_cache(maxsize=4096)
def choose(
    operands: Operands,
    problem: Problem,
    arch: str = DEFAULT_ARCH,
    multiprocessors: int = H200_MULTIPROCESSORS,
    with_c: bool = False,
) -> GemmPlan:
    """The named plan that a simple model holds to be the fastest.

    On sm_90a narrow inputs that TMA can load are multiplied by wgmma: see `choose_sm90`. Of SIMT plans the multiprocessor with the most tiles decides: it has ceil(tiles / multiprocessors) of them, each costs
    bM * bN * (K + a constant), and they run at the plan's rate on large problems, less where fewer CTAs
    than planned share the multiprocessor: the square root of the share, as their latencies are covered less.

    raises   PlanError where no named plan serves the operands on the architecture

    >>> small, large = Problem(128, 128, 512), Problem(8192, 8192, 512)
    >>> choose(Operands.of("f32"), small).name, choose(Operands.of("f32"), large).name
    ('simt_32x32', 'simt_128x256')
    """
    best: tuple[float, GemmPlan] | None = None
    broken: list[str] = []
    if arch == "sm_90a" and operands.a.dtype.bits <= 16:
        try:
            return choose_sm90(operands, problem, multiprocessors, with_c)
        except PlanError as error:
            broken += error.violations
    for named in _NAMED:
        plan, refused = _if_it_serves(named.name, operands, arch)
        if plan is None:
            broken += [f"{named.name}: {rule}" for rule in refused]
            continue
        cost = _cost(plan, problem, named.rate[operands.layout], multiprocessors)
        if best is None or cost < best[0]:
            best = (cost, plan)
    if best is None:
        raise PlanError(f"choose: no named plan for {operands} on {arch}", broken)
    return best[1]


@cache
def _if_it_serves(name: str, operands: Operands, arch: str) -> tuple[GemmPlan | None, tuple[str, ...]]:
    try:
        plan = plan_named(name, operands)
    except PlanError as error:
        return None, error.violations
    broken = plan.violations(arch)
    return (None, tuple(broken)) if broken else (plan, ())


def _cost(plan: GemmPlan, problem: Problem, rate: float, multiprocessors: int) -> float:
    """Steps of K of one multiply-add each that the busiest multiprocessor takes, at the rate of cuBLAS."""
    m_tiles, n_tiles, batch = plan.grid(problem)
    most = -(-m_tiles * n_tiles * batch // multiprocessors)
    resident = min(plan.ctas_per_sm, most) / plan.ctas_per_sm
    bm, bn, _ = plan.cta_tile
    return float(most * bm * bn * (problem.k + _START_STEPS) / (rate * resident**0.5))
