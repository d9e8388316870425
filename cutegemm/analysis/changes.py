"""What to change first: every flaw that the analysis sees, ranked by what it costs of the predicted time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cutegemm.analysis.advice as advised
from cutegemm.analysis.accesses import tile_shape
from cutegemm.analysis.roofline import Roofline
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import SMEM_WAVEFRONT_BYTES, arch_named
from cutegemm.plan.work.split import FIXUP, KSplit
from cutegemm.tile.raster import Raster

if TYPE_CHECKING:
    from cutegemm.analysis.globalmem import Sectors
    from cutegemm.analysis.report import AccessCost, Analysis
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

_TILES = (16, 32, 64, 128, 256)
_COLUMNS = {"sm90": tuple(range(16, 257, 16)), "simt": (), "mma_sync": ()}  # further ones along N
_MOST_TRIED = 24
_STREAM_WAVES, _SOME_CTAS = 2, 2  # by which the rules are asked
_NOTABLE = 0.002  # losses below are not worth a line
_BINDING = 0.1  # a level that binds by less is near enough to the next one


@dataclass(frozen=True)
class Change:
    """Something to change.

    loss      the part of the predicted time that it costs; 0 where another bound hides it
    hidden    the part of its own level's time that it costs
    what      is wrong, in numbers
    advice    what to do
    cost      in words, where the model has no number for it
    """

    loss: float
    hidden: float
    what: str
    advice: str
    cost: str = ""


def changes(plan: GemmPlan, problem: Problem, known: Analysis, roof: Roofline) -> list[Change]:
    """Ranked: what costs most of the predicted time first."""
    flaws = [*_conflict_changes(plan, known, roof), *_memory_changes(plan, problem, known, roof)]
    found = [*flaws, *_bound_changes(plan, problem, roof, flaws), *_grid_changes(plan, problem, known, roof)]
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
                f"{known.spills} instructions spill registers to local memory",
                _SPARES_REGISTERS[plan.family],
                "not modelled, and never free",
            )
        )
    return sorted(found, key=lambda c: (not c.cost, -c.loss, -c.hidden))


_SPARES_REGISTERS = {
    "simt": "a smaller thread tile",
    "mma_sync": "a smaller warp tile, or fragments=1",
    "sm90": "a tile of fewer columns, or a cooperative schedule, which halves the sums of a thread",
}


_IMPLEMENTS_MORE = {
    "simt": "a larger thread tile: what it reads serves more products",
    "mma_sync": "a larger warp tile: what it reads serves more products",
    "sm90": "a larger tile for each warpgroup, up to 256 columns: what it reads serves more products",
}


def _bound_changes(plan: GemmPlan, problem: Problem, roof: Roofline, flaws: list[Change]) -> list[Change]:
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
        advice = _IMPLEMENTS_MORE[plan.family] + _such_as(advised.larger(plan, problem))
    elif bound.name == "epilogue":
        advice = "fewer special functions of an element, such as relu for gelu; or more K for each element of D"
    elif bound.name == "L2":
        advice = "a larger CTA tile" + _such_as(advised.larger(plan, problem))
        if plan.body.has_roles and plan.multicast_mn == (1, 1):
            advice += "; or clusters that share a load"
    else:
        advice = f"narrower types, or fusion: the problem has {bound.intensity:.0f} FLOP for each byte"
    return [Change(loss, loss, what, advice)]


def _such_as(text: str | None) -> str:
    """A plan that breaks no rule, as far as one was found."""
    return f", such as {text}" if text else "; the builder makes none that keeps its rules"


def _loss(roof: Roofline, **changed: float) -> float:
    return 1 - roof.seconds_with(**changed) / roof.seconds if roof.seconds else 0.0


def _conflict_changes(plan: GemmPlan, known: Analysis, roof: Roofline) -> list[Change]:
    assert known.waves is not None
    level = roof.level("shared")
    out = []
    for part in known.shared:
        if part.cost.conflicts == 0 or not level.amount:
            continue
        conflicts = part.in_grid[1] - part.in_grid[2]
        planned, done = known.planned(part.op)[1], known.counts(part.op)[1]
        share = min(1.0, conflicts * done / max(1, planned) * SMEM_WAVEFRONT_BYTES / level.amount)
        if part.op == "cp.async":  # the bound leaves out what conflicts add to it
            loss = 1 - roof.seconds / roof.seconds_with(shared=(level.seconds or 0.0) * (1 + share))
        else:
            loss = _loss(roof, shared=(level.seconds or 0.0) * (1 - share))
        where = str(part.cost.worst) if part.cost.worst else "its source in global memory"
        what = f"{part.name} ({part.instruction}) takes {part.cost.ways:.2g} times its wavefronts: {where}"
        out.append(Change(loss, share, what, _conflict_advice(plan, known, part)))
    return out


def _conflict_advice(plan: GemmPlan, known: Analysis, part: AccessCost) -> str:
    if part.cost.worst is None:
        return "let neighbouring lanes read neighbouring addresses"
    search = known.searches.get(part.name[-1].lower())
    if search is None:
        return "another layout in shared memory"
    if search.best is not None:
        room = _room(plan) // max(1, plan.stages)
        ways = [
            c.how + (f" (+{c.extra_bytes} bytes a stage)" if c.extra_bytes else "")
            for c in (search.swizzle, search.padding)
            if c and c.extra_bytes <= room
        ]
        if ways:
            return "conflict-free: " + ", or ".join(ways)
        return "conflict-free with padding alone, which takes more shared memory than there is: spare a stage"
    least = f"; fewest wavefronts: {search.least.how}" if search.least else ""
    return f"{search.reason}{least}"


def _room(plan: GemmPlan) -> int:
    """Bytes of shared memory that a CTA may take beyond what it has."""
    return arch_named(plan.arch).smem_of_each_bytes(plan.ctas_per_sm) - sum(plan.smem_bytes().values())


def _to_fill_the_grid(plan: GemmPlan, problem: Problem) -> str:
    """For a grid whose last wave is not full."""
    if plan.split.fixup:  # of which too little is to be had
        return "another tile size"
    if plan.family == "sm90" and advised.can_implement(plan, problem, split=FIXUP):
        return "another tile size, or /fixup behind the plan's name"
    stream = KSplit(1, waves=_STREAM_WAVES)
    if plan.family == "simt" and advised.can_implement(plan, problem, split=stream, persistent=_SOME_CTAS):
        return "another tile size, or stream-K: waves and persistent of the builder"
    return "another tile size"


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
        advice = _split_advice(plan, problem, min(sms // known.tiles, known.k_tiles))
        out.append(Change(loss, quantized, what, advice))
    if fill.tile_waste > _NOTABLE:
        loss = _loss(roof, **{name: s * (1 - fill.tile_waste) for name, s in local.items()})
        what = f"{fill.tile_waste:.1%} of the tiles' elements lie outside of D"
        out.append(Change(loss, fill.tile_waste, what, _better_tiles(plan, problem)))
    return out


def _split_advice(plan: GemmPlan, problem: Problem, splits: int) -> str:
    """For a grid that leaves multiprocessors idle; parts that would use them all.

    splits   the most that are tried
    """
    reduction = "last" if plan.body else plan.split.reduction
    k_split = replace(plan.split, waves=0, fixup=False, reduction=reduction)
    fits = next(
        (
            count
            for count in range(splits, plan.split_k, -1)
            if advised.can_implement(plan, problem, split=replace(k_split, splits=count))
        ),
        0,
    )
    return f"split K in {fits}, or smaller tiles" if fits else _to_fill_the_grid(plan, problem)


def _better_tiles(plan: GemmPlan, problem: Problem) -> str:
    """The largest tiles that reach less far past the edges of D, of those that a builder makes."""
    extents, own = (problem.m, problem.n), advised.stored_together(plan)
    sizes = [
        sorted({*_TILES, *_COLUMNS[plan.family], tile} if mode else {*_TILES, tile}) for mode, tile in enumerate(own)
    ]
    covered = [{t: -(-extent // t) * t for t in of} for extent, of in zip(extents, sizes, strict=True)]
    now = covered[0][own[0]] * covered[1][own[1]]
    better = [
        (covered[0][m] * covered[1][n], -m * n, (m, n))
        for m in sizes[0] for n in sizes[1]
        if covered[0][m] * covered[1][n] < now
    ]  # fmt: skip
    for _, _, tile in sorted(better)[:_MOST_TRIED]:
        text = advised.with_tile(plan, problem, tile)
        if text is not None:
            splits = [f"{size} along {mode}" for mode, size, old in zip("MN", tile, own, strict=True) if size != old]
            return f"tiles of {' and '.join(splits)}: {text}"
    return "none: no other tile that the builder makes reaches less far"


def _memory_changes(plan: GemmPlan, problem: Problem, known: Analysis, roof: Roofline) -> list[Change]:
    assert known.traffic is not None
    out = []
    dram = roof.level("DRAM")
    best = next(
        t for t in known.rasters
        if t is known.traffic or advised.can_implement(plan, problem, raster=Raster.parse(t.raster))
    )  # fmt: skip
    saved = (known.traffic.dram_read_bytes - best.dram_read_bytes) / dram.amount if dram.amount else 0.0
    if saved > _NOTABLE:
        loss = _loss(roof, DRAM=(dram.seconds or 0.0) * (1 - saved))
        what = f"the raster {known.traffic.raster} reads {known.traffic.dram_read_bytes / 1e9:.2f} GB from DRAM"
        out.append(Change(loss, saved, what, f"{best.raster}: {best.dram_read_bytes / 1e9:.2f} GB"))
    for part in known.global_:
        if part.sectors > part.ideal:
            what = f"{part.name} ({part.instruction}) uses {part.efficiency:.0%} of the sectors that it touches"
            out.append(Change(0.0, 1 - part.efficiency, what, "lanes along the contiguous mode"))
        if part.bits < part.usable_bits and part.op != "tma" and _divides(plan, part):
            what = f"{part.name} moves {part.bits} bits a lane; {part.usable_bits} are usable"
            out.append(Change(0.0, 1 - part.bits / part.usable_bits, what, f"vectors of {part.usable_bits} bits"))
    return out


def _divides(plan: GemmPlan, part: Sectors) -> bool:
    """Whether the threads of a CTA could move the whole tile by accesses of the usable width."""
    name = part.name.split()[-1].lower()
    operand = plan.loaded.matrix(name)
    shape = tile_shape(plan, name)
    along = shape[0 if operand.major == {"a": "m", "b": "n"}.get(name, "m") else 1]
    vector = part.usable_bits // operand.dtype.bits
    return along % vector == 0 and product(shape) % (vector * plan.threads) == 0
