"""The SIMT plans that have a name; `simt_choice` chooses among them.

A name stands for tile sizes; what else the plan is follows from the operands: how a tile is loaded from their
majorness and alignment, how wide the accesses are from their types. What may follow a name:

    simt_256x128+pack      operands that are k-major, or aligned to less than 16 bytes, are packed first
    simt_128x128/k4        K is split among 4 CTAs, whose sums a second kernel adds
    simt_128x128/k4last    the CTA that ends last adds them
    simt_128x128/s264      a grid of 264 CTAs shares evenly the k-tiles of those tiles that do not fill it
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cutegemm.build.building import Shared
from cutegemm.build.simt import simt_plan
from cutegemm.choose.common import parse_options, parse_tuple
from cutegemm.layout import Swizzle
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.plan.memory.packing import ALIGN_BYTES
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.tile.tiled_copy import TiledCopy

_NAME = re.compile(r"(simt_\d+x\d+(?:x\d+)?)(\+pack)?(?:/k(\d+)(last)?|/s(\d+))?")


@dataclass(frozen=True)
class NamedSimt:
    """A plan by name.

    options   arguments of `simt_plan`
    rate      by layout ("nn", ...): speed on large problems, a loop of multiply-adds alone being 1
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
    if operands.batched:  # a batch of few tiles has nothing to group, and which tile is next is found sooner
        given.setdefault("raster", "along_m")
    given["ctas_per_sm"] = max(1, given.get("ctas_per_sm", 1) * 32 // max(32, widest))
    async_stages, stages = given["stages"] if isinstance(given["stages"], tuple) else (given["stages"],) * 2
    plan = simt_plan(operands, name=name, summary=summary, **{**given, "stages": stages})
    loads = [load for load in (plan.load_a, plan.load_b) if isinstance(load, TiledCopy)]
    if stages != async_stages and all(load.atom.is_async for load in loads):
        plan = simt_plan(operands, name=name, summary=summary, **{**given, "stages": async_stages})
    return plan


def _rates(tn: float, nn: float, tt: float, nt: float) -> dict[str, float]:
    return {"tn": tn, "nn": nn, "tt": tt, "nt": nt}


# Rates: one H200, f32, torch 2.11, normal data, 2026-11-20, by `docs.evidence.fit_simt`. Where a plan was not timed
# they are those of its mirror image, in which A and B change places ("nn" with "tt"), a shade less for 128x256x16; or
# estimates: 32x32, 16x128, 128x16, and 64x256 between 64x128 and 128x128; of 64x256x8 that of
# "nt" was timed, and "nn" in a batch.
NAMED = (
    NamedSimt(
        "simt_256x128",
        "16x8 elements a thread, 8 warps; rows of A outermost",
        {"block": (256, 128, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4},
        _rates(0.911, 0.829, 0.889, 0.831),
    ),
    NamedSimt(
        "simt_128x256",
        "8x16 elements a thread, 8 warps; columns of B outermost",
        {
            "block": (128, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
            "mma_order": "n",
        },
        _rates(0.851, 0.846, 0.843, 0.849),
    ),
    NamedSimt(
        "simt_128x256x16",
        "the mirror image of simt_256x128: 16 k-blocks between barriers instead of 8",
        {
            "block": (128, 256, 16), "warp": (64, 64), "thread": (8, 16), "stages": (3, 2), "unroll": 4,
            "mma_order": "n",
        },
        _rates(0.893, 0.845, 0.832, 0.828),
    ),
    NamedSimt(
        "simt_128x128",
        "8x16 elements a thread, 4 warps; two CTAs a multiprocessor, so that one covers the other's barriers",
        {
            "block": (128, 128, 16), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 4,
            "mma_order": "n", "ctas_per_sm": 2,
        },
        _rates(0.879, 0.828, 0.860, 0.790),
    ),
    NamedSimt(
        "simt_64x256",
        "8x16 elements a thread, 4 warps side by side, two CTAs a multiprocessor; for few rows",
        {
            "block": (64, 256, 16), "warp": (64, 64), "thread": (8, 16), "stages": (3, 2), "unroll": 4,
            "mma_order": "n", "ctas_per_sm": 2,
        },
        _rates(0.870, 0.838, 0.790, 0.710),
    ),
    NamedSimt(
        "simt_64x256x8",
        "k-tiles half as deep, and one more on its way; where those of B go through registers",
        {
            "block": (64, 256, 8), "warp": (64, 64), "thread": (8, 16), "stages": (4, 2), "unroll": 2,
            "mma_order": "n", "ctas_per_sm": 2,
        },
        _rates(0.83, 0.796, 0.78, 0.732),
    ),
    NamedSimt(
        "simt_256x64",
        "16x8 elements a thread, 4 warps on top of each other, two CTAs a multiprocessor; for few columns",
        {
            "block": (256, 64, 16), "warp": (64, 64), "thread": (16, 8), "stages": (3, 2), "unroll": 4,
            "ctas_per_sm": 2, "store": "direct",  # loads of C ahead of stores to shared memory would spill
        },
        _rates(0.889, 0.790, 0.838, 0.703),
    ),
    NamedSimt(
        "simt_128x64",
        "8x8 elements a thread, 4 warps; for middling problems",
        {"block": (128, 64, 16), "warp": (64, 32), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3},
        _rates(0.834, 0.707, 0.827, 0.665),
    ),
    NamedSimt(
        "simt_64x128",
        "8x8 elements a thread, 4 warps; for middling problems of few rows",
        {"block": (64, 128, 16), "warp": (32, 64), "thread": (8, 8), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 3},
        _rates(0.840, 0.799, 0.711, 0.664),
    ),
    NamedSimt(
        "simt_64x64",
        "8x4 elements a thread, 4 warps; for small problems",
        {"block": (64, 64, 16), "warp": (32, 32), "thread": (8, 4), "stages": (3, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.707, 0.572, 0.605, 0.518),
    ),
    NamedSimt(
        "simt_32x256",
        "8x8 elements a thread, 4 warps side by side; for few rows",
        {"block": (32, 256, 8), "warp": (32, 64), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3},
        _rates(0.722, 0.613, 0.391, 0.447),
    ),
    NamedSimt(
        "simt_256x32",
        "8x8 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (256, 32, 8), "warp": (64, 32), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 3},
        _rates(0.722, 0.391, 0.613, 0.447),
    ),
    NamedSimt(
        "simt_16x256",
        "8x8 elements a thread, 2 warps side by side; for very few rows",
        {"block": (16, 256, 8), "warp": (16, 128), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4},
        _rates(0.544, 0.429, 0.370, 0.308),
    ),
    NamedSimt(
        "simt_256x16",
        "8x8 elements a thread, 2 warps on top of each other; for very few columns",
        {"block": (256, 16, 8), "warp": (128, 16), "thread": (8, 8), "stages": (4, 2), "unroll": 2,
         "ctas_per_sm": 4},
        _rates(0.544, 0.370, 0.429, 0.308),
    ),
    NamedSimt(
        "simt_32x32",
        "4x4 elements a thread, 2 warps; for problems of few tiles",
        {"block": (32, 32, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 8},
        _rates(0.32, 0.30, 0.30, 0.28),
    ),
    NamedSimt(
        "simt_16x128",
        "4x4 elements a thread, 4 warps side by side; for few rows",
        {"block": (16, 128, 16), "warp": (16, 32), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.32, 0.30, 0.30, 0.28),
    ),
    NamedSimt(
        "simt_128x16",
        "4x4 elements a thread, 4 warps on top of each other; for few columns",
        {"block": (128, 16, 16), "warp": (32, 16), "thread": (4, 4), "stages": (4, 2), "unroll": 4,
         "ctas_per_sm": 4},
        _rates(0.32, 0.30, 0.30, 0.28),
    ),
)  # fmt: skip
_BY_NAME = {named.name: named for named in NAMED}
_PACKED = "simt_256x128+pack"


def simt_names() -> list[tuple[str, str]]:
    """Every name, with what is behind it; `/k4` and `+pack` may follow each.

    >>> [name for name, _ in simt_names()][:3]
    ['simt_256x128', 'simt_128x256', 'simt_128x256x16']
    """
    packed = (
        _PACKED,
        "the same, operands that are k-major or not aligned copied first, to where they are neither",
    )
    return [*((named.name, named.summary) for named in NAMED), packed]


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
    if match[5]:
        more.update(waves=1, persistent=int(match[5]))
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
    **dict.fromkeys(
        ("stages", "unroll", "ctas_per_sm", "access_bits", "split_k", "waves", "persistent"), int
    ),
    **dict.fromkeys(("shared_a", "shared_b"), _shared),
    **dict.fromkeys(
        (
            "load_a",
            "load_b",
            "lanes_along",
            "raster",
            "mma_order",
            "pack",
            "split_order",
            "reduction",
            "store",
        ),
        str,
    ),
    "prefetch": lambda text: bool(int(text)),
}
