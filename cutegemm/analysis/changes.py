"""What to change first: every flaw that the analysis sees, ranked by what it costs of the predicted time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.analysis.roofline import Roofline
from cutegemm.machine.arch import SMEM_WAVEFRONT_BYTES

if TYPE_CHECKING:
    from cutegemm.analysis.report import AccessCost, Analysis
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

_TILES = (16, 32, 64, 128, 256)
_NOTABLE = 0.002  # losses below are not worth a line
_BINDING = 0.1  # a level that binds by less is near enough to the next one


@dataclass(frozen=True)
class Change:
    """Something to change.

    loss      the part of the predicted time that it costs; 0 where another bound hides it
    hidden    the part of its own level's time that it costs
    what      is wrong, in numbers
    advice    what to do
    """

    loss: float
    hidden: float
    what: str
    advice: str


def changes(plan: GemmPlan, problem: Problem, known: Analysis, roof: Roofline) -> list[Change]:
    """Ranked: what costs most of the predicted time first."""
    flaws = [*_conflict_changes(known, roof), *_memory_changes(known, roof)]
    found = [*flaws, *_bound_changes(plan, roof, flaws), *_grid_changes(plan, problem, known, roof)]
    held = known.occupancy
    if held.ctas < plan.ctas_per_sm:
        limits = ", ".join(held.limited_by)
        what = f"{held.ctas} CTAs fit, limited by {limits}; the plan counts on {plan.ctas_per_sm}"
        found.append(Change(1 - held.ctas / plan.ctas_per_sm, 0.0, what, f"spare {limits}"))
    if known.spills:
        found.append(
            Change(
                0.0,
                1.0,
                f"{known.spills} spills to local memory",
                "a smaller thread tile, or fewer registers held",
            )
        )
    return sorted(found, key=lambda c: (-c.loss, -c.hidden))


_SERVES_MORE = {
    "simt": "a larger thread tile: what it reads serves more products",
    "mma_sync": "a larger warp tile: what it reads serves more products",
    "sm90": "a larger tile for each warpgroup, up to 256 columns: what it reads serves more products",
}


def _bound_changes(plan: GemmPlan, roof: Roofline, flaws: list[Change]) -> list[Change]:
    """The level that binds, where it is not the arithmetic and no flaw explains half of it."""
    bound = roof.bound
    others = [level for level in roof.levels if level.seconds is not None and level is not bound]
    second = max(others, key=lambda level: level.seconds or 0.0)
    if bound.name == "compute" or not bound.seconds:
        return []
    loss = 1 - (second.seconds or 0.0) / bound.seconds
    if loss <= _BINDING or any(c.loss > loss / 2 for c in flaws):
        return []
    what = (
        f"{bound.name} binds: {bound.seconds * 1e3:.3f} ms, where {second.name} needs "
        f"{(second.seconds or 0.0) * 1e3:.3f}"
    )
    if bound.name == "issue" and not plan.stages:
        advice = "tiles of A and B in shared memory: the threads of a CTA read them from global memory each for itself"
    elif bound.name in ("issue", "shared"):
        advice = _SERVES_MORE[plan.family]
    elif bound.name == "epilogue":
        advice = (
            "fewer special functions of an element, such as relu for gelu; or more K for each element of D"
        )
    elif bound.name == "L2":
        advice = "a larger CTA tile, or clusters that share a load"
    else:
        advice = f"narrower types, or fusion: the problem has {bound.intensity:.0f} FLOP for each byte"
    return [Change(loss, loss, what, advice)]


def _loss(roof: Roofline, **changed: float) -> float:
    return 1 - roof.seconds_with(**changed) / roof.seconds if roof.seconds else 0.0


def _conflict_changes(known: Analysis, roof: Roofline) -> list[Change]:
    assert known.waves is not None
    level = roof.level("shared")
    out = []
    for part in known.shared:
        if part.cost.conflicts == 0 or not level.amount:
            continue
        share = known.waves.ctas * part.times * part.cost.conflicts * SMEM_WAVEFRONT_BYTES / level.amount
        loss = _loss(roof, shared=(level.seconds or 0.0) * (1 - share))
        where = str(part.cost.worst) if part.cost.worst else "its source in global memory"
        what = f"{part.name} ({part.instruction}) takes {part.cost.ways:.2g} times its wavefronts: {where}"
        out.append(Change(loss, share, what, _conflict_advice(known, part)))
    return out


def _conflict_advice(known: Analysis, part: AccessCost) -> str:
    if part.cost.worst is None:
        return "let neighbouring lanes read neighbouring addresses"
    search = known.searches.get(part.name[-1].lower())
    if search is None:
        return "another layout in shared memory"
    if search.best is not None:
        ways = [
            c.how + (f" (+{c.extra_bytes} bytes a stage)" if c.extra_bytes else "")
            for c in (search.swizzle, search.padding)
            if c
        ]
        return "conflict-free: " + ", or ".join(ways)
    least = f"; fewest wavefronts: {search.least.how}" if search.least else ""
    return f"{search.reason}{least}"


def _to_fill_the_grid(plan: GemmPlan) -> str:
    """For a grid whose last wave is not full."""
    if plan.split.owned:  # of which too little is to be had
        return "another tile size"
    can_fill = plan.family == "sm90" and plan.pipeline is not None and plan.pipeline.ctas is not None
    return "another tile size, or " + ("/fill behind the plan's name" if can_fill else "stream-K")


def _grid_changes(plan: GemmPlan, problem: Problem, known: Analysis, roof: Roofline) -> list[Change]:
    fill = known.waves
    assert fill is not None
    out = []
    sms = known.device.sms
    most = -(-fill.ctas // sms)
    quantized = 1 - fill.ctas / (most * sms) if most and not fill.is_even else 0.0
    local = {x.name: x.seconds for x in roof.levels if x.name in ("compute", "issue", "shared") and x.seconds}
    if quantized > _NOTABLE:
        loss = _loss(roof, **{name: s * (1 - quantized) for name, s in local.items()})
        mean = fill.ctas / sms
        count = f"{fill.ctas} CTA" if fill.ctas == 1 else f"{fill.ctas} CTAs"
        what = f"{count} on {sms} multiprocessors: the busiest takes {most}, the average {mean:.2f}"
        parts = min(sms // known.tiles, known.k_tiles)
        advice = f"split K in {parts}, or smaller tiles" if parts > plan.split_k else _to_fill_the_grid(plan)
        out.append(Change(loss, quantized, what, advice))
    if fill.tile_waste > _NOTABLE:
        loss = _loss(roof, **{name: s * (1 - fill.tile_waste) for name, s in local.items()})
        what = f"{fill.tile_waste:.1%} of the tiles' elements lie outside of D"
        out.append(Change(loss, fill.tile_waste, what, _better_tiles(plan, problem)))
    return out


def _better_tiles(plan: GemmPlan, problem: Problem) -> str:
    """The largest tiles that reach less far past the edges of D."""
    parts = []
    for mode, extent, tile in zip(("M", "N"), (problem.m, problem.n), plan.cta_tile, strict=False):
        covered = {t: -(-extent // t) * t for t in (tile, *_TILES)}
        least = min(covered.values())
        if covered[tile] > least:
            parts.append(f"{max(t for t in _TILES if covered[t] == least)} along {mode}")
    return f"tiles of {' and '.join(parts)}" if parts else "none: no other tile of 16 to 256 reaches less far"


def _memory_changes(known: Analysis, roof: Roofline) -> list[Change]:
    assert known.traffic is not None
    out = []
    dram = roof.level("DRAM")
    best = known.rasters[0]
    saved = (known.traffic.dram_read_bytes - best.dram_read_bytes) / dram.amount if dram.amount else 0.0
    if saved > _NOTABLE:
        loss = _loss(roof, DRAM=(dram.seconds or 0.0) * (1 - saved))
        what = (
            f"the raster {known.traffic.raster} reads {known.traffic.dram_read_bytes / 1e9:.2f} GB from DRAM"
        )
        out.append(Change(loss, saved, what, f"{best.raster}: {best.dram_read_bytes / 1e9:.2f} GB"))
    for part in known.global_:
        if part.sectors > part.ideal:
            what = (
                f"{part.name} ({part.instruction}) uses {part.efficiency:.0%} of the sectors that it touches"
            )
            out.append(Change(0.0, 1 - part.efficiency, what, "lanes along the contiguous mode"))
        if part.bits < part.usable_bits and part.op != "tma":
            what = f"{part.name} moves {part.bits} bits a lane; {part.usable_bits} are usable"
            out.append(
                Change(0.0, 1 - part.bits / part.usable_bits, what, f"vectors of {part.usable_bits} bits")
            )
    return out
