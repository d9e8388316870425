"""The SIMT plans that have a name, and the choice among them.

A name stands for tile sizes; what else the plan is follows from the operands: how a tile is loaded from their
majorness and alignment, how wide the accesses are from their types. What may follow a name:

    simt_256x128+pack      operands that are k-major, or aligned to less than 16 bytes, are packed first
    simt_128x128/k4        K is split among 4 CTAs, whose sums a second kernel adds
    simt_128x128/k4last    the CTA that ends last adds them
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from cutegemm.errors import PlanError
from cutegemm.layout import Swizzle
from cutegemm.plan.building import ACCESS_BITS, Shared
from cutegemm.plan.choice import parse_options, parse_tuple
from cutegemm.plan.packing import ALIGN_BYTES
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.simt import simt_plan
from cutegemm.tile.tiled_copy import TiledCopy

_NAME = re.compile(r"(simt_\d+x\d+)(\+pack)?(?:/k(\d+)(last)?)?")
_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_LEAST_K = 256  # of a part

# What `choose` adds to K for each tile: filling the pipeline and writing D, in steps of K.
_START_STEPS = 48
# One H200: what cuBLAS does for each of its 132 multiprocessors (51.3 TFLOP/s in all), what a copy moves, and
# what L2 does; a launch that has to wait for the one before.
_MULTIPLY_ADDS_PER_S = 51.3e12 / 2 / 132
_COPY_BYTES_PER_S = 3.4e12
_L2_BYTES_PER_S = 5e12
_LAUNCH_S = 3e-6
_UNALIGNED = 0.85  # of the rate where an operand is read by less than 16 bytes: an estimate


@dataclass(frozen=True)
class NamedSimt:
    """A plan by name.

    options   arguments of `simt_plan`
    rate      by layout ("nn", ...): speed on large problems, that of cuBLAS being 1
    """

    name: str
    summary: str
    options: Mapping[str, Any]
    rate: Mapping[str, float]


def build(name: str, summary: str, operands: Operands, **options: Any) -> GemmPlan:
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


def _rates(tn: float, nn: float, tt: float, nt: float) -> dict[str, float]:
    return {"tn": tn, "nn": nn, "tt": tt, "nt": nt}


# Rates of the three large ones: one H200, f32, 4096 cubed, torch 2.11, normal data, 2026-11-20; those with a
# k-major operand that was not timed, and those of the small ones, are estimates.
_NAMED = (
    NamedSimt(
        "simt_256x128",
        "16x8 elements a thread, 8 warps; rows of A outermost",
        {"block": (256, 128, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4},
        _rates(1.07, 0.98, 1.03, 0.93),
    ),
    NamedSimt(
        "simt_128x256",
        "8x16 elements a thread, 8 warps; columns of B outermost",
        {
            "block": (128, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
            "mma_order": "n",
        },
        _rates(1.04, 1.04, 0.98, 0.93),
    ),
    NamedSimt(
        "simt_128x128",
        "8x16 elements a thread, 4 warps; two CTAs a multiprocessor, so that one covers the other's barriers",
        {
            "block": (128, 128, 16), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 4,
            "mma_order": "n", "ctas_per_sm": 2,
        },
        _rates(1.05, 1.00, 0.99, 0.95),
    ),
    NamedSimt(
        "simt_128x64",
        "8x8 elements a thread, 4 warps; for middling problems",
        {"block": (128, 64, 16), "warp": (64, 32), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3},
        _rates(0.85, 0.83, 0.83, 0.80),
    ),
    NamedSimt(
        "simt_64x128",
        "8x8 elements a thread, 4 warps; for middling problems of few rows",
        {"block": (64, 128, 16), "warp": (32, 64), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3},
        _rates(0.85, 0.83, 0.83, 0.80),
    ),
    NamedSimt(
        "simt_64x64",
        "8x4 elements a thread, 4 warps; for small problems",
        {"block": (64, 64, 16), "warp": (32, 32), "thread": (8, 4), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.62, 0.60, 0.60, 0.58),
    ),
    NamedSimt(
        "simt_32x256",
        "8x8 elements a thread, 4 warps side by side; for few rows",
        {"block": (32, 256, 8), "warp": (32, 64), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3},
        _rates(0.75, 0.73, 0.70, 0.68),
    ),
    NamedSimt(
        "simt_256x32",
        "8x8 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (256, 32, 8), "warp": (64, 32), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3},
        _rates(0.75, 0.70, 0.73, 0.68),
    ),
    NamedSimt(
        "simt_16x256",
        "8x8 elements a thread, 2 warps side by side; for very few rows",
        {"block": (16, 256, 8), "warp": (16, 128), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4},
        _rates(0.65, 0.63, 0.60, 0.58),
    ),
    NamedSimt(
        "simt_256x16",
        "8x8 elements a thread, 2 warps on top of each other; for very few columns",
        {"block": (256, 16, 8), "warp": (128, 16), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4},
        _rates(0.65, 0.60, 0.63, 0.58),
    ),
    NamedSimt(
        "simt_32x32",
        "4x4 elements a thread, 2 warps; for problems of few tiles",
        {"block": (32, 32, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 8},
        _rates(0.40, 0.38, 0.38, 0.36),
    ),
    NamedSimt(
        "simt_16x128",
        "4x4 elements a thread, 4 warps side by side; for few rows",
        {"block": (16, 128, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.40, 0.38, 0.38, 0.36),
    ),
    NamedSimt(
        "simt_128x16",
        "4x4 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (128, 16, 16), "warp": (32, 16), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.40, 0.38, 0.38, 0.36),
    ),
)  # fmt: skip
_BY_NAME = {named.name: named for named in _NAMED}
_PACKED = "simt_256x128+pack"


def simt_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; `/k4` and `+pack` may follow each.

    >>> [name for name, _ in simt_names()][:3]
    ['simt_256x128', 'simt_128x256', 'simt_128x128']
    """
    packed = (
        _PACKED,
        "the same, operands that are k-major or not aligned copied first, to where they are neither",
    )
    return [*((named.name, named.summary) for named in _NAMED), packed]


def simt_named(name: str, operands: Operands) -> GemmPlan | None:
    """The plan of a name, or of "simt:block=64x64x8,..."; None where it is none of a SIMT plan.

    raises   PlanError where the operands break its rules
    """
    if name.startswith("simt:"):
        return build(name, "", operands, **parse_options(name, OPTIONS))
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in _BY_NAME:
        return None
    named = _BY_NAME[match[1]]
    more: dict[str, Any] = {}
    if match[2]:
        more["pack"] = to_pack(operands)
    if match[3]:
        more.update(split_k=int(match[3]), reduction="last" if match[4] else "kernel")
    return build(name, named.summary, operands, **named.options, **more)


def to_pack(operands: Operands) -> str:
    """The operands that packing makes better.

    >>> to_pack(Operands.of("f32", layout="nn")), to_pack(Operands.of("f32", layout="tn"))
    ('a', '')
    """
    found = [
        name for name in "ab"
        if getattr(operands, name).major == "k" or getattr(operands, name).align_bytes < ALIGN_BYTES
    ]  # fmt: skip
    return "".join(found)


def _shared(text: str) -> Shared:
    """mn+4: along M or N, with 4 elements of padding; k^2.3.4: along K, with a swizzle."""
    text, _, swizzle = text.partition("^")
    major, _, pad = text.partition("+")
    bits = [int(part) for part in swizzle.split(".")] if swizzle else []
    return Shared(major=major, pad=int(pad or 0), swizzle=Swizzle(*bits) if bits else None)


OPTIONS: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("block", "warp", "thread", "quad"), parse_tuple),
    **dict.fromkeys(("stages", "unroll", "ctas_per_sm", "access_bits", "split_k"), int),
    **dict.fromkeys(("shared_a", "shared_b"), _shared),
    **dict.fromkeys(
        ("load_a", "load_b", "lanes_along", "raster", "mma_order", "pack", "split_order", "reduction"), str
    ),
    "prefetch": lambda text: bool(int(text)),
}


def choose_simt(operands: Operands, problem: Problem, arch: str, multiprocessors: int) -> GemmPlan:
    """The named plan, packed or not, K split or not, that `seconds` holds to be the fastest.

    raises   PlanError where none serves the operands on the architecture
    """
    chosen = simt_named(ranked(operands, problem, arch, multiprocessors)[0], operands)
    assert chosen is not None
    return chosen


def ranked(
    operands: Operands, problem: Problem, arch: str, multiprocessors: int, within: float = 1e9
) -> list[str]:
    """The names of plans that serve, that which `seconds` holds to be the fastest first.

    within   times its time
    raises   PlanError where none does
    """
    found: list[tuple[float, str]] = []
    broken: list[str] = []
    packs = to_pack(operands)
    narrow = _UNALIGNED if min(operands.a.align_bytes, operands.b.align_bytes) < ALIGN_BYTES else 1.0
    for named in _NAMED:
        plan, refused = _if_it_serves(named.name, operands, arch)
        if plan is None:
            broken += [f"{named.name}: {rule}" for rule in refused]
            continue
        m_tiles, n_tiles, batch = plan.grid(problem)
        tiles = max(1, m_tiles * n_tiles * batch)
        full = multiprocessors * plan.ctas_per_sm // tiles
        for pack in ("", packs) if packs else ("",):
            for parts in sorted({1, full, *_SPLITS} - {0}):
                if parts > 1 and (problem.k < parts * _LEAST_K or parts > full + 1):
                    continue
                name = named.name + ("+pack" if pack else "") + (f"/k{parts}" if parts > 1 else "")
                rate = named.rate["tn"] if pack else named.rate[operands.layout] * narrow
                found.append((seconds(plan, problem, rate, multiprocessors, parts, pack), name))
    if not found:
        raise PlanError(f"choose: no named plan for {operands} on {arch}", broken)
    least = min(found)[0]
    return [name for time, name in sorted(found) if time <= within * least]


def seconds(
    plan: GemmPlan, problem: Problem, rate: float, multiprocessors: int, parts: int = 1, pack: str = ""
) -> float:
    """A model of how long a plan takes, its operands in `pack` packed first and K split into parts.

    The multiprocessor with the most CTAs decides: each costs bM * bN * (K / parts + a constant), at the
    plan's rate on large problems, less where fewer CTAs than planned share it: the square root of the share,
    as their latencies are covered less. Never less than a copy of all operands takes.

    rate   of large problems, that of cuBLAS being 1
    """
    m_tiles, n_tiles, batch = plan.grid(problem)
    bm, bn, _ = plan.cta_tile
    tiles = m_tiles * n_tiles * batch
    most = -(-tiles * parts // multiprocessors)
    resident = min(plan.ctas_per_sm, most) / plan.ctas_per_sm
    work = most * bm * bn * (problem.k / parts + _START_STEPS)
    total = work / (_MULTIPLY_ADDS_PER_S * rate * max(resident, 1e-9) ** 0.5)
    total = max(total, problem.min_bytes / _COPY_BYTES_PER_S)
    for name in pack:
        rows = problem.m if name == "a" else problem.n
        elements = rows * problem.k * problem.l
        total += _LAUNCH_S + 2 * elements * plan.operands.a.dtype.bits / 8 / _COPY_BYTES_PER_S
    if parts > 1:
        total += _LAUNCH_S + 2 * tiles * bm * bn * parts * plan.operands.acc.bits / 8 / _L2_BYTES_PER_S
    return float(total)


@cache
def _if_it_serves(name: str, operands: Operands, arch: str) -> tuple[GemmPlan | None, tuple[str, ...]]:
    try:
        plan = simt_named(name, operands)
    except PlanError as error:
        return None, error.violations
    assert plan is not None
    broken = plan.violations(arch)
    return (None, tuple(broken)) if broken else (plan, ())
