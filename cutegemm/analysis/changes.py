"""Changes to a plan that the analysis suggests, ranked by the share of the predicted time that each flaw costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cutegemm.analysis.advice as advised
from cutegemm.analysis.accesses import tile_shape
from cutegemm.analysis.roofline import Roofline
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import SMEM_WAVEFRONT_BYTES, arch_named
from cutegemm.plan.work.grid import grid_of
from cutegemm.plan.work.split import FIXUP, KSplit
from cutegemm.tile.raster import Raster

if TYPE_CHECKING:
    from cutegemm.analysis.globalmem import Sectors
    from cutegemm.analysis.report import AccessCost, Analysis
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

_TILES = (16, 32, 64, 128, 256)
_COLUMNS = {"sm90": tuple(range(16, 257, 16)), "simt": (), "mma_sync": ()}  # additional extents along N
_MOST_TRIED = 24
_STREAM_WAVES, _SOME_CTAS = 2, 2  # any values for which the rules decide whether stream-K is possible
_NOTABLE = 0.002  # smaller losses are not reported
_BINDING = 0.1  # the binding level is not reported if it exceeds the next one by less


@dataclass(frozen=True)
class Change:
    """A piece of advice in the report on a plan: a flaw, such as bank conflicts, its cost, and how to repair it.

    loss     share of the predicted time that the flaw costs; 0 if another level of the roofline is the bottleneck
    hidden   share of the time of the affected roofline level (such as shared memory) that the flaw costs
    what     the flaw as text, with its numbers
    advice   the change as text
    cost     the cost as text if the model has no number for it; else ""
    """

    loss: float
    hidden: float
    what: str
    advice: str
    cost: str = ""


def changes(plan: GemmPlan, problem: Problem, known: Analysis, roof: Roofline) -> list[Change]:
    """Return all changes to a plan that its analysis suggests, the one that saves most of the predicted time first.

    known   the analysis without its roofline and changes
    roof    the roofline of the plan
    """
    flaws = [*_conflict_changes(plan, known, roof), *_memory_changes(plan, problem, known, roof)]
    out = [*flaws, *_bound_changes(plan, problem, roof, flaws), *_grid_changes(plan, problem, known, roof)]
    fits = known.occupancy
    if fits.ctas < plan.ctas_per_sm:
        limits = ", ".join(fits.limited_by)
        what = f"{fits.ctas} CTAs fit on a multiprocessor, limited by {limits}; the plan requires {plan.ctas_per_sm}"
        out.append(Change(1 - fits.ctas / plan.ctas_per_sm, 0.0, what, f"use less of: {limits}"))
    if known.spills:
        out.append(
            Change(
                0.0,
                1.0,
                f"{known.spills} instructions spill registers to local memory",
                _SPARES_REGISTERS[plan.family],
                "not modelled, but never free",
            )
        )
    return sorted(out, key=lambda c: (not c.cost, -c.loss, -c.hidden))


_SPARES_REGISTERS = {
    "simt": "a smaller thread tile",
    "mma_sync": "a smaller warp tile, or fragments=1",
    "sm90": "a tile of fewer columns, or a cooperative schedule, which halves the accumulators of a thread",
}


_IMPLEMENTS_MORE = {
    "simt": "a larger thread tile, which multiplies each element that it reads more often",
    "mma_sync": "a larger warp tile, which multiplies each element that it reads more often",
    "sm90": "a larger tile per warpgroup, up to 256 columns, which multiplies each element that it reads more often",
}


def _bound_changes(plan: GemmPlan, problem: Problem, roof: Roofline, flaws: list[Change]) -> list[Change]:
    """Return a list with the change that relieves the slowest level of the roofline, such as shared memory.

    The excess of a level is how much longer it takes than the second slowest one, as a share of its time. The list is
    empty if arithmetic is the slowest level, if the excess is below 10%, or if a flaw that was found already costs
    over half of the excess.

    roof    the roofline of the plan
    flaws   other changes that were found already
    """
    bound = roof.bound
    others = [level for level in roof.levels if level.seconds is not None and level is not bound]
    second = max(others, key=lambda level: level.seconds or 0.0)
    if bound.name == "compute" or not bound.seconds:
        return []
    loss = 1 - (second.seconds or 0.0) / bound.seconds
    if loss <= _BINDING or any(c.loss > loss / 2 for c in flaws):
        return []
    what = (
        f"{bound.name} binds: {bound.seconds * 1e3:.3f} ms; the next level, {second.name}, takes "
        f"{(second.seconds or 0.0) * 1e3:.3f} ms"
    )
    if bound.name == "issue" and not plan.stages:
        advice = "tiles of A and B in shared memory: now each thread of a CTA reads its elements from global memory"
    elif bound.name in ("issue", "shared"):
        advice = _IMPLEMENTS_MORE[plan.family] + _such_as(advised.larger(plan, problem))
    elif bound.name == "epilogue":
        advice = "fewer special functions per element, such as relu instead of gelu; or a larger K"
    elif bound.name == "L2":
        advice = "a larger CTA tile" + _such_as(advised.larger(plan, problem))
        if plan.body.has_roles and plan.multicast_mn == (1, 1):
            advice += "; or clusters with multicast loads"
    else:
        advice = f"narrower types, or fusion: the problem has {bound.intensity:.0f} FLOP per byte"
    return [Change(loss, loss, what, advice)]


def _such_as(text: str | None) -> str:
    """Return the end of a sentence of advice: ", such as PLAN", or a remark that no such plan satisfies the rules.

    text   text of the plan; None if the builder has no valid one
    """
    return f", such as {text}" if text else "; no such plan of the builder satisfies the rules"


def _loss(roof: Roofline, **changed: float) -> float:
    """Return the share of the predicted time that is saved if some roofline levels take other times.

    roof      the roofline of the plan
    changed   new time of a level in seconds, by its name, such as shared=1e-4
    """
    return 1 - roof.seconds_with(**changed) / roof.seconds if roof.seconds else 0.0


def _conflict_changes(plan: GemmPlan, known: Analysis, roof: Roofline) -> list[Change]:
    """Return a `Change` (flaw and repair) for each shared-memory access of the plan that has bank conflicts.

    known   the analysis, which has the costs of the accesses
    roof    the roofline, which gives the time that conflicts cost
    """
    assert known.waves is not None
    level = roof.level("shared")
    out = []
    for access in known.shared:
        if access.cost.conflicts == 0 or not level.amount:
            continue
        conflicts = access.in_grid[1] - access.in_grid[2]
        planned, done = known.planned(access.op)[1], known.counts(access.op)[1]
        share = min(1.0, conflicts * done / max(1, planned) * SMEM_WAVEFRONT_BYTES / level.amount)
        if access.op == "cp.async":  # the bound does not include the conflicts of cp.async
            loss = 1 - roof.seconds / roof.seconds_with(shared=(level.seconds or 0.0) * (1 + share))
        else:
            loss = _loss(roof, shared=(level.seconds or 0.0) * (1 - share))
        where = str(access.cost.worst) if access.cost.worst else "its source in global memory"
        what = f"{access.name} ({access.instruction}) takes {access.cost.ways:.2g} times the fewest wavefronts: {where}"
        out.append(Change(loss, share, what, _conflict_advice(plan, known, access)))
    return out


def _conflict_advice(plan: GemmPlan, known: Analysis, access: AccessCost) -> str:
    """Return the advice for a shared-memory access with bank conflicts: a swizzle, a padding, or why none helps.

    known    the analysis, whose `searches` have the result of the search for a swizzle
    access   cost of the access
    """
    if access.cost.worst is None:
        return "let neighbouring lanes read neighbouring addresses"
    search = known.searches.get(access.name[-1].lower())
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
        return "only padding is conflict-free, and it exceeds shared memory: use one stage less"
    least = f"; fewest wavefronts: {search.least.how}" if search.least else ""
    return f"{search.reason}{least}"


def _room(plan: GemmPlan) -> int:
    """Return the bytes of shared memory that a plan leaves unused per CTA, e.g. for more stages or padding."""
    return arch_named(plan.arch).smem_of_each_bytes(plan.ctas_per_sm) - sum(plan.smem_bytes().values())


def _to_fill_the_grid(plan: GemmPlan, problem: Problem) -> str:
    """Return the advice, as text, for a grid whose last wave of CTAs leaves multiprocessors idle."""
    if plan.scheduler.split.fixup:  # the stream-K fixup is in use already
        return "another tile size"
    if plan.family == "sm90" and advised.can_schedule(plan, problem, split=FIXUP):
        return "another tile size, or /fixup after the plan's name"
    stream = KSplit(1, waves=_STREAM_WAVES)
    if plan.family == "simt" and advised.can_schedule(plan, problem, split=stream, grid=grid_of(_SOME_CTAS)):
        return "another tile size, or stream-K: arguments `waves` and `persistent` of the builder"
    return "another tile size"


def _grid_changes(plan: GemmPlan, problem: Problem, known: Analysis, roof: Roofline) -> list[Change]:
    """Return a `Change` (flaw and repair) for multiprocessors idle in the last wave, or tile elements outside of D.

    known   the analysis without its roofline and changes
    roof    the roofline, which gives the time that is lost
    """
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
        what = f"{count} on {sms} multiprocessors: the busiest has {most}, the average {mean:.2f}"
        advice = _split_advice(plan, problem, min(sms // known.tiles, known.k_tiles))
        out.append(Change(loss, quantized, what, advice))
    if fill.tile_waste > _NOTABLE:
        loss = _loss(roof, **{name: s * (1 - fill.tile_waste) for name, s in local.items()})
        what = f"{fill.tile_waste:.1%} of the tiles' elements lie outside of D"
        out.append(Change(loss, fill.tile_waste, what, _better_tiles(plan, problem)))
    return out


def _split_advice(plan: GemmPlan, problem: Problem, splits: int) -> str:
    """Return the advice, as text, for a grid that leaves multiprocessors idle: split K further, or use another tile.

    splits   largest number of K splits to try
    """
    reduction = "last" if plan.body.has_roles else plan.scheduler.split.reduction
    k_split = replace(plan.scheduler.split, waves=0, fixup=False, reduction=reduction)
    fits = next(
        (
            count
            for count in range(splits, plan.split_k, -1)
            if advised.can_schedule(plan, problem, split=replace(k_split, splits=count))
        ),
        0,
    )
    return f"split K in {fits}, or smaller tiles" if fits else _to_fill_the_grid(plan, problem)


def _better_tiles(plan: GemmPlan, problem: Problem) -> str:
    """Return the advice, as text, for tiles that reach past the edges of D: the largest tile that wastes least.

    Only tiles for which the builder makes a plan without violations count.
    """
    extents, own = (problem.m, problem.n), advised.stored_together(plan)
    sizes = [
        sorted({*_TILES, *_COLUMNS[plan.family], tile} if mode else {*_TILES, tile}) for mode, tile in enumerate(own)
    ]
    covered = [{t: -(-extent // t) * t for t in tiles} for extent, tiles in zip(extents, sizes, strict=True)]
    now = covered[0][own[0]] * covered[1][own[1]]
    better = [
        (covered[0][m] * covered[1][n], -m * n, (m, n))
        for m in sizes[0] for n in sizes[1]
        if covered[0][m] * covered[1][n] < now
    ]  # fmt: skip
    for _, _, tile in sorted(better)[:_MOST_TRIED]:
        text = advised.with_tile(plan, problem, tile)
        if text is not None:
            changed = [f"{size} along {mode}" for mode, size, old in zip("MN", tile, own, strict=True) if size != old]
            return f"tiles of {' and '.join(changed)}: {text}"
    return "none: no other tile of the builder wastes less"


def _memory_changes(plan: GemmPlan, problem: Problem, known: Analysis, roof: Roofline) -> list[Change]:
    """Return changes that save global-memory traffic: a better order of tiles, and better accesses.

    An order of tiles is reported if another one reads less from DRAM. An access is reported if it is not coalesced, or
    narrower than the alignment allows.

    known   the analysis without its roofline and changes
    roof    the roofline, which gives the time that is lost
    """
    assert known.traffic is not None
    out = []
    dram = roof.level("DRAM")
    best = next(
        t for t in known.rasters
        if t is known.traffic or advised.can_schedule(plan, problem, raster=Raster.parse(t.raster))
    )  # fmt: skip
    saved = (known.traffic.dram_read_bytes - best.dram_read_bytes) / dram.amount if dram.amount else 0.0
    if saved > _NOTABLE:
        loss = _loss(roof, DRAM=(dram.seconds or 0.0) * (1 - saved))
        what = f"the raster {known.traffic.raster} reads {known.traffic.dram_read_bytes / 1e9:.2f} GB from DRAM"
        out.append(Change(loss, saved, what, f"{best.raster}: {best.dram_read_bytes / 1e9:.2f} GB"))
    for access in known.global_:
        if access.sectors > access.ideal:
            what = f"{access.name} ({access.instruction}) uses {access.efficiency:.0%} of the bytes of its sectors"
            out.append(Change(0.0, 1 - access.efficiency, what, "arrange lanes along the contiguous mode"))
        if access.bits < access.usable_bits and access.op != "tma" and _divides(plan, access):
            what = f"{access.name} moves {access.bits} bits per lane; {access.usable_bits} are possible"
            out.append(Change(0.0, 1 - access.bits / access.usable_bits, what, f"vectors of {access.usable_bits} bits"))
    return out


def _divides(plan: GemmPlan, access: Sectors) -> bool:
    """Return True if the threads of a CTA can move a whole tile by accesses of the widest usable width.

    access   cost of the present access to global memory, with the width that its alignment allows
    """
    name = access.name.split()[-1].lower()
    operand = plan.loaded.matrix(name)
    shape = tile_shape(plan, name)
    along = shape[0 if operand.major == {"a": "m", "b": "n"}.get(name, "m") else 1]
    vector = access.usable_bits // operand.dtype.bits
    return along % vector == 0 and product(shape) % (vector * plan.threads) == 0
