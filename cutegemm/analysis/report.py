"""`check`: all that can be said of a plan without running it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cutegemm.analysis.accesses import (
    Access,
    buffer_layout,
    executions,
    ragged_tiles,
    shared_accesses,
    tile_shape,
)
from cutegemm.analysis.changes import Change, changes
from cutegemm.analysis.edges import grid_of_clusters, kinds_of
from cutegemm.analysis.epilogue_cost import EpilogueCost, epilogue_cost
from cutegemm.analysis.executed import EXECUTED_OPS, ExecutedAccesses
from cutegemm.analysis.globalmem import GridSectors, Sectors, global_accesses
from cutegemm.analysis.occupancy import Occupancy, Waves, plan_occupancy, waves
from cutegemm.analysis.roofline import Roofline, roofline
from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts
from cutegemm.analysis.split_k import Ends, Pass, ends_of, passes_of
from cutegemm.analysis.swizzle import SwizzleSearch, search_plan
from cutegemm.analysis.traffic import Traffic, best_rasters, range_in_time
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import Arch, arch_named
from cutegemm.machine.device import Device, default_device, device_named
from cutegemm.plan.arguments import check_is_plan
from cutegemm.plan.launches import GEMM, launches_of, uses_pdl
from cutegemm.plan.memory.workspace import regions, repacked_bytes_of
from cutegemm.plan.problem import check_is_problem
from cutegemm.plan.rules.limits import limits
from cutegemm.plan.rules.violations import other_operands

if TYPE_CHECKING:
    from cutegemm.compile.cubin import ResourceReport
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


_RASTERS = 4  # that are compared in time
_MOST_TILES = 1 << 20  # whose traffic takes less than a minute to follow


@dataclass(frozen=True)
class AccessCost:
    """One access to shared memory, of one CTA.

    cost      of one full k-tile, or of the full tile, as `per` says
    per       "k-tile", "tile", or "ragged tile"
    times     how often a CTA does it for the problem: a few times more than there are k-tiles where the
              schedule's steps past the last one still store or read; 0 without a problem
    in_grid   instructions, wavefronts and least wavefronts of all tiles of the problem, ragged ones as they are
    """

    name: str
    instruction: str
    op: str
    per: str
    cost: Wavefronts
    times: float = 0.0
    in_grid: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True)
class Analysis:
    """What is predicted of a plan. Fields from `problem` on are None or empty where none was given.

    launches   the kernels of a call, and whether each begins before the one before it has ended
    """

    plan: str
    summary: str
    arch: str
    device: Device
    rules: Rules
    violations: tuple[str, ...]
    shared: tuple[AccessCost, ...]
    global_: tuple[Sectors, ...]
    occupancy: Occupancy
    launches: Mapping[str, bool]
    epilogue: EpilogueCost | None = None
    problem: str | None = None
    tiles: int = 0
    k_tiles: int = 0
    waves: Waves | None = None
    ends: Ends | None = None
    passes: tuple[Pass, ...] = ()
    traffic: Traffic | None = None
    rasters: tuple[Traffic, ...] = ()
    roofline: Roofline | None = None
    changes: tuple[Change, ...] = ()
    spills: int | None = None
    executed: ExecutedAccesses | None = None
    searches: dict[str, SwizzleSearch] = field(default_factory=dict, compare=False)

    def counts(self, op: str) -> tuple[int, int, int]:
        """(instructions, wavefronts, ideal wavefronts) of one kind of shared access in the whole grid: of the compiled
        kernel where it was executed, else of the plan."""
        if self.executed is not None and op in EXECUTED_OPS and op != "cp.async":  # which depends on its source
            done = self.executed.of(op)
            return done.requests, done.wavefronts, done.ideal
        return self.planned(op)

    def planned(self, op: str) -> tuple[int, int, int]:
        """The same of the plan's own accesses."""
        of_tickets = {"store": self.ends.semaphores, "load": self.ends.asked} if self.ends else {}
        out = [of_tickets.get(op, 0)] * 3
        for part in self.shared:
            if part.op == op:
                out = [have + more for have, more in zip(out, part.in_grid, strict=True)]
        return out[0], out[1], out[2]

    def sector_count(self, op: str) -> tuple[int, int]:
        """(instructions, sectors) of one kind of global access in the grid of the GEMM.

        What packs operands before it, or adds the sums of parts behind it, is not in it: see `passes`.
        """
        found = [self._in_grid(part) for part in self.global_ if part.op == op]
        return sum(part.requests for part in found), sum(part.sectors for part in found)

    def _in_grid(self, part: Sectors) -> GridSectors:
        assert self.ends is not None
        if part.in_grid is None:  # sums of parts of K
            times = self.ends.writes if part.op == "st" else self.ends.reads
            return GridSectors(times * part.requests, times * part.sectors, times * part.sectors)
        if part.per == "k-tile" or self.ends.stores == self.tiles:
            return part.in_grid
        share = self.ends.stores / self.tiles  # of the tiles, which this kernel ends
        held = (part.in_grid.requests, part.in_grid.sectors, part.in_grid.arriving)
        return GridSectors(*[round(share * count) for count in held])

    def sum_sectors(self, op: str) -> int:
        """Sectors of the sums of parts of K that the GEMM's CTAs write ("st") or read again ("ld")."""
        return sum(self._in_grid(p).sectors for p in self.global_ if (p.op, p.per) == (op, "K split"))

    def arriving(self) -> int:
        """Sectors of A and B that come to multiprocessors."""
        return sum(self._in_grid(part).arriving for part in self.global_ if part.per == "k-tile")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        device = {
            **asdict_plain(self.device),
            "tflops": dict(self.device.tflops),
            "measured": asdict(self.device.measured),
        }
        del device["own_rates"]  # they are among those
        out: dict[str, Any] = {
            "plan": self.plan,
            "summary": self.summary,
            "arch": self.arch,
            "device": device,
            "rules": self.rules.name,
            "violations": list(self.violations),
            "shared": [
                {
                    "name": a.name,
                    "instruction": a.instruction,
                    "per": a.per,
                    "times": a.times,
                    "requests": a.cost.requests,
                    "wavefronts": a.cost.wavefronts,
                    "ideal": a.cost.ideal,
                    "worst": asdict(a.cost.worst) if a.cost.worst else None,
                }
                for a in self.shared
            ],
            "global": [{**asdict(s), "efficiency": s.efficiency} for s in self.global_],
            "occupancy": {
                **asdict_plain(self.occupancy),
                "limits": dict(self.occupancy.limits),
                "limited_by": list(self.occupancy.limited_by),
                "theoretical": self.occupancy.theoretical,
            },
            "launches": dict(self.launches),
            "epilogue": None if self.epilogue is None else asdict(self.epilogue),
            "spills": self.spills,
            "executed": None
            if self.executed is None
            else {op: [w.requests, w.wavefronts, w.ideal] for op, w in self.executed.counts.items()},
            "searches": {buffer: _found(search) for buffer, search in self.searches.items()},
        }
        if self.problem is None:
            return out
        assert self.waves is not None
        assert self.traffic is not None
        assert self.roofline is not None
        out["problem"] = self.problem
        out["k_tiles"] = self.k_tiles
        out["waves"] = {
            **asdict(self.waves),
            "count": self.waves.count,
            "tail": self.waves.tail,
            "efficiency": self.waves.efficiency,
        }
        out["passes"] = [asdict(p) for p in self.passes]
        out["traffic"] = {**asdict(self.traffic), "hit_share": self.traffic.hit_share}
        out["rasters"] = [
            {"raster": t.raster, "dram_read_bytes": t.dram_read_bytes, "hit_share": t.hit_share} for t in self.rasters
        ]
        out["roofline"] = {
            "bound": self.roofline.bound.name,
            "seconds": self.roofline.seconds,
            "tflops": self.roofline.tflops,
            "added": self.roofline.added,
            "levels": [asdict(level) for level in self.roofline.levels],
        }
        out["changes"] = [asdict(c) for c in self.changes]
        return out

    def __str__(self) -> str:
        from cutegemm.analysis.render import render

        return render(self)

    def _repr_html_(self) -> str:
        """The report that a notebook shows."""
        from cutegemm.analysis.render import as_html

        return as_html(self)


def _found(search: SwizzleSearch) -> dict[str, Any]:
    """What a search found, or why there is nothing."""
    named = {"swizzle": search.swizzle, "padding": search.padding, "fewest_wavefronts": search.least}
    out: dict[str, Any] = {
        name: None if c is None else {"how": c.how, "layout": str(c.layout), "extra_bytes": c.extra_bytes,
                                      "wavefronts": c.wavefronts}
        for name, c in named.items()
    }  # fmt: skip
    return {**out, "reason": search.reason, "tried": search.tried}


def asdict_plain(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, mappings left as they are (`asdict` cannot copy a read-only one)."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def check(
    plan: GemmPlan,
    problem: Problem | None = None,
    arch: Arch | str | None = None,
    device: Device | str | None = None,
    report: ResourceReport | None = None,
    *,
    rules: Rules = DEFAULT_RULES,
    search: bool = True,
    executed: ExecutedAccesses | None = None,
) -> Analysis:
    """What a plan will do on a device.

    problem   without one, what does not depend on extents
    arch      the plan's own where left out, or the device's
    device    a name or a Device; one that stands for the architecture where left out
    report    of the compiled kernel, whose registers then count
    rules     of shared memory; see `analysis.shared`
    search    whether a swizzle is looked for where a buffer has conflicts, and a better raster
    executed  what the compiled kernel does to shared memory, of `run.executed.executed_accesses`; it then counts
              instead of the plan's accesses

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> found = check(simt_plan(), Problem(4096, 4096, 4096), device="h200")
    >>> found.waves.count, found.roofline.bound.name
    (8, 'issue')
    """
    check_is_plan("check", plan)
    if problem is not None:
        _check_problem(plan, problem)
    target = device if device is None or isinstance(device, Device) else device_named(device)
    if arch is None:
        arch = target.arch if target is not None else plan.arch
    have = arch if isinstance(arch, Arch) else arch_named(arch)
    target = target or default_device(have.name)
    accesses = shared_accesses(plan, problem)
    k_tiles = plan.k_tiles(problem) if problem is not None else 0
    shared = tuple([_access_cost(plan, problem, a, k_tiles, rules) for a in accesses])
    sectors, held = tuple(global_accesses(plan, problem)), plan_occupancy(plan, have, report)
    common: dict[str, Any] = {
        "plan": plan.name,
        "summary": plan.summary,
        "arch": have.name,
        "device": target,
        "rules": rules,
        "violations": tuple(plan.violations(have.name, problem)),
        "shared": shared,
        "global_": sectors,
        "occupancy": held,
        "launches": _launches(plan, have, problem),
        "epilogue": epilogue_cost(plan, target, sectors, held.ctas, problem),
        "spills": report.spills if report is not None else None,
        "executed": executed,
        "searches": _searches(plan, accesses, shared, rules) if search else {},
    }
    if problem is None:
        return Analysis(**common)
    return _with_problem(plan, problem, target, common, search)


def _launches(plan: GemmPlan, arch: Arch, problem: Problem | None) -> dict[str, bool]:
    """The kernels of a call, and whether each begins early: for a problem, or for small ones."""
    parts = [] if problem is None else regions(plan, problem.m, problem.n, problem.k, problem.l)
    packed = {GEMM: repacked_bytes_of(parts)}
    return {name: uses_pdl(launch, packed.get(name, 0)) for name, launch in launches_of(plan, arch).items()}


def _access_cost(plan: GemmPlan, problem: Problem | None, access: Access, k_tiles: int, rules: Rules) -> AccessCost:
    """An access to shared memory: of a full tile and, where there is a problem, of all of its tiles."""
    layout = buffer_layout(plan, access.buffer)
    times, full = executions(plan, access, k_tiles), access.cost(layout, rules)
    found = AccessCost(access.name, access.instruction(layout), access.op, access.per, full, times)
    if problem is None:
        return found
    if access.matrix is not None:
        shape = tile_shape(plan, access.matrix)
        of_kinds: list[tuple[float, Wavefronts]] = [
            (kind.count, access.cost(layout, rules, kind, shape)) for kind in kinds_of(plan, access.matrix, problem)
        ]
    else:
        ctas = product(grid_of_clusters(plan, problem)) * plan.split_k
        often = ragged_tiles(plan, problem) if access.per == "ragged tile" else ctas * times
        of_kinds = [(often, full)]
    accumulators = [
        round(sum(count * getattr(one, part) for count, one in of_kinds))
        for part in ("requests", "wavefronts", "ideal")
    ]
    return replace(found, in_grid=(accumulators[0], accumulators[1], accumulators[2]))


def _searches(
    plan: GemmPlan, accesses: list[Any], shared: tuple[AccessCost, ...], rules: Rules
) -> dict[str, SwizzleSearch]:
    """For each buffer that has conflicts which its layout is to blame for."""
    blamed = {a.buffer for a, c in zip(accesses, shared, strict=True) if c.cost.conflicts and c.cost.worst is not None}
    return {buffer: search_plan(plan, buffer, rules) for buffer in sorted(blamed)}


def _check_problem(plan: GemmPlan, problem: Problem) -> None:
    """Checks that tables of a problem can be made, before one is.

    raises   UnsupportedError for what is no problem, and for more tiles than are followed; PlanError for other operands
             than the plan's, and for more than its kernels count
    """
    check_is_problem("check", problem)
    m_tiles, n_tiles, batch = plan.grid(problem)
    if m_tiles * n_tiles * batch > _MOST_TILES:
        raise UnsupportedError(
            f"check: {problem} has {m_tiles} x {n_tiles} x {batch} tiles of {plan.name}; the traffic of up to "
            f"{_MOST_TILES} is followed. Give a smaller problem, of the same shape."
        )
    violations = [*other_operands(plan, problem), *limits(plan, problem)]
    if violations:
        raise PlanError(f"check: plan {plan.name!r} on {problem}", violations)


def _with_problem(plan: GemmPlan, problem: Problem, device: Device, common: dict[str, Any], search: bool) -> Analysis:
    held: Occupancy = common["occupancy"]
    m_tiles, n_tiles, batch = plan.grid(problem)
    fill = waves(plan, problem, device.sms, held.ctas)
    known = Analysis(
        **common,
        problem=str(problem),
        tiles=m_tiles * n_tiles * batch,
        k_tiles=plan.k_tiles(problem),
        waves=fill,
        ends=ends_of(plan, problem),
        passes=tuple(passes_of(plan, problem)),
    )
    ops = {a.op for a in known.shared}
    working = plan.cluster_k * product(plan.mma_grid(problem))
    idle = max(1, product(grid_of_clusters(plan, problem))) / max(1, working)  # CTAs for each that multiplies for D
    # The copies of cp.async at their best: what more they take is known of single ones alone.
    least = [known.counts(op)[2 if op == "cp.async" else 1] / idle for op in sorted(ops)]
    lsu = [known.counts(op)[0] for op in sorted(ops - {"wgmma", "tma"})]
    stored = [known.sector_count(op)[0] for op in ("ld", "st")]
    most = -(-fill.ctas // device.sms)

    rasters = best_rasters(
        plan, problem, device, ctas_per_wave=fill.per_wave, most=_RASTERS if search else 1
    )  # fmt: skip
    own = next(t for t in rasters if t.raster == str(plan.raster))
    moved = range_in_time(plan, problem, device, own, fill.per_wave)
    rasters = [moved if t is own else t for t in rasters]
    known = replace(known, traffic=moved, rasters=tuple(rasters))
    roof = roofline(
        plan,
        problem,
        device,
        wavefronts=sum(least),
        instructions=sum(lsu) + sum(stored),
        traffic=moved,
        passes=known.passes,
        sm_share=fill.ctas / (most * device.sms) if most and not fill.is_even else 1.0,
        epilogue=known.epilogue,
    )
    known = replace(known, epilogue=_in_time(known.epilogue, roof))
    return replace(known, roofline=roof, changes=tuple(changes(plan, problem, known, roof)))


def _in_time(cost: EpilogueCost | None, roof: Roofline) -> EpilogueCost | None:
    """The epilogue with what of its time is hidden behind the mainloop."""
    alone = next((level.seconds for level in roof.levels if level.name == "epilogue"), None)
    if cost is None or not alone:
        return cost
    others = max(x.seconds for x in roof.levels if x.seconds is not None and x.name != "epilogue")
    shown = max(0.0, roof.seconds - others)
    return replace(cost, hidden=max(0.0, 1 - shown / alone), added_seconds=shown)
