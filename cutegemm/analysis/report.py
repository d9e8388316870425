"""`check`, the complete analysis of a plan without running it, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from cutegemm.analysis.cache.traffic import Traffic, best_rasters, range_in_time
from cutegemm.analysis.changes import Change, changes
from cutegemm.analysis.edges import grid_of_clusters, kinds_of
from cutegemm.analysis.epilogue_cost import EpilogueCost, epilogue_cost
from cutegemm.analysis.executed import EXECUTED_OPS, ExecutedAccesses
from cutegemm.analysis.globalmem import GridSectors, Sectors, global_accesses
from cutegemm.analysis.groups import GroupCost, group_cost
from cutegemm.analysis.occupancy import Occupancy, Waves, plan_occupancy, waves
from cutegemm.analysis.roofline import Roofline, roofline
from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts
from cutegemm.analysis.split_k import Ends, Pass, ends_of, passes_of
from cutegemm.analysis.swizzle import SwizzleSearch, search_plan
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
from cutegemm.plan.work.grouped import with_equal_groups

if TYPE_CHECKING:
    from cutegemm.compile.cubin import ResourceReport
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


_RASTERS = 4  # number of rasters whose traffic is simulated
_MOST_TILES = 1 << 20  # more tiles take over a minute to simulate


@dataclass(frozen=True)
class AccessCost:
    """Counts what one kind of shared-memory access, such as "read A", costs for one tile and in the whole grid.

    name          description of the access, such as "read A"
    instruction   SASS mnemonic
    op            operation: "load", "store", "ldmatrix", "stmatrix", "wgmma", "cp.async", "tma" or "st.async"
    per           what `cost` is for: "k-tile", "tile" or "ragged tile" (a tile that reaches past an edge)
    cost          cost of one CTA for one full k-tile or tile
    times         executions by a CTA for the problem; more than the number of k-tiles if steps after the last k-tile
                  access shared memory too; 0 without a problem
    in_grid       instructions, wavefronts and fewest wavefronts over all tiles of the problem, including ragged ones
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
    """Holds what is predicted for a kernel plan on a device: conflicts, traffic, occupancy, time and advice.

    Fields from `problem` on are None, 0 or empty if the plan was analysed without a problem size.

    plan         name of the plan; `summary` describes it
    arch         name of the architecture
    rules        model of shared memory that predicts wavefronts
    violations   rules that the plan violates
    shared       costs of accesses to shared memory
    global_      costs of accesses to global memory
    occupancy    CTAs that a multiprocessor holds
    launches     dict from kernel name to True if the kernel starts before its predecessor has ended (PDL)
    epilogue     cost of the epilogue; None if it computes nothing
    problem      text of the problem
    groups       what the sizes of the groups of a grouped GEMM cost; None for other GEMMs
    tiles        number of tiles of D
    k_tiles      number of k-tiles of a tile
    waves        waves of the grid
    ends         stores and workspace accesses at the end of work tiles
    passes       data that go through the workspace
    traffic      bytes through L2 and DRAM
    rasters      traffic of the plan's raster and of others
    roofline     time of each level of the machine
    changes      suggested changes
    spills       instructions that spill registers; None without a compiled kernel
    executed     accesses of the compiled kernel; None if it was not executed
    searches     search for a swizzle for each buffer with bank conflicts
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
    groups: GroupCost | None = None
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
        """Return (instructions, wavefronts, fewest wavefronts) of a shared-memory operation, over the whole grid.

        The counts are those of the compiled kernel if it was executed, else those of the plan.

        op   operation, such as "load", "ldmatrix" or "cp.async"
        """
        if self.executed is not None and op in EXECUTED_OPS and op != "cp.async":  # cp.async depends on its source
            done = self.executed.of(op)
            return done.requests, done.wavefronts, done.ideal
        return self.planned(op)

    def planned(self, op: str) -> tuple[int, int, int]:
        """Return (instructions, wavefronts, fewest wavefronts) of a shared-memory operation, as the plan predicts them.

        The counts are those of the plan's accesses in the whole grid, even if the compiled kernel was executed.

        op   operation, such as "load", "ldmatrix" or "cp.async"
        """
        of_semaphores = {"store": self.ends.semaphores, "load": self.ends.asked} if self.ends else {}
        out = [of_semaphores.get(op, 0)] * 3
        for part in self.shared:
            if part.op == op:
                out = [have + more for have, more in zip(out, part.in_grid, strict=True)]
        return out[0], out[1], out[2]

    def sector_count(self, op: str) -> tuple[int, int]:
        """Return (instructions, sectors) of an operation on global memory, over the whole grid of this plan's GEMM.

        Kernels that copy an operand before, or add the accumulators of K splits after, are not included; see
        `passes`.

        op   operation: "ld", "ldgsts", "st" or "tma"
        """
        costs = [self._in_grid(access) for access in self.global_ if access.op == op]
        return sum(cost.requests for cost in costs), sum(cost.sectors for cost in costs)

    def _in_grid(self, access: Sectors) -> GridSectors:
        """Return the cost of an access to global memory over the whole grid of this plan's GEMM.

        If K is split and a second kernel stores some tiles of D, only the tiles that the GEMM itself stores count.

        access   cost of the access for one CTA
        """
        assert self.ends is not None
        if access.in_grid is None:  # accumulators of K splits
            times = self.ends.writes if access.op == "st" else self.ends.reads
            return GridSectors(times * access.requests, times * access.sectors, times * access.sectors)
        if "k-tile" in access.per or self.ends.stores == self.tiles:
            return access.in_grid
        share = self.ends.stores / self.tiles  # share of the tiles that this kernel stores
        counts = (access.in_grid.requests, access.in_grid.sectors, access.in_grid.arriving)
        return GridSectors(*[round(share * count) for count in counts])

    def sum_sectors(self, op: str) -> int:
        """Return how many sectors of accumulators of K splits the GEMM's CTAs write ("st") or read ("ld")."""
        return sum(self._in_grid(a).sectors for a in self.global_ if (a.op, a.per) == (op, "K split"))

    def arriving(self) -> int:
        """Return the number of 32-byte sectors of A and B that arrive in all multiprocessors together."""
        return sum(self._in_grid(access).arriving for access in self.global_ if "k-tile" in access.per)

    def to_dict(self) -> dict[str, Any]:
        """Return this analysis as dicts, lists, numbers and texts that `json.dumps` accepts."""
        device = {
            **asdict_plain(self.device),
            "tflops": dict(self.device.tflops),
            "measured": asdict(self.device.measured),
        }
        del device["own_rates"]  # `measured` contains them
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
            "searches": {buffer: _search_data(search) for buffer, search in self.searches.items()},
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
        out["groups"] = None if self.groups is None else asdict(self.groups)
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
        """Return the report of this analysis as HTML, which a Jupyter notebook shows."""
        from cutegemm.analysis.render import as_html

        return as_html(self)


def _search_data(search: SwizzleSearch) -> dict[str, Any]:
    """Return the result of a search for a swizzle as plain data for JSON, with the reason if it failed."""
    named = {"swizzle": search.swizzle, "padding": search.padding, "fewest_wavefronts": search.least}
    out: dict[str, Any] = {
        name: None if c is None else {"how": c.how, "layout": str(c.layout), "extra_bytes": c.extra_bytes,
                                      "wavefronts": c.wavefronts}
        for name, c in named.items()
    }  # fmt: skip
    return {**out, "reason": search.reason, "tried": search.tried}


def asdict_plain(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance as a dict, name -> value, without copying the values.

    `dataclasses.asdict` fails to copy a read-only mapping.
    """
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
    ends: Sequence[int] | None = None,
) -> Analysis:
    """Predict bank conflicts, memory traffic, occupancy and time of a plan on a device, and suggest changes.

    Groups of a grouped GEMM are taken to have the same size, except for `Analysis.groups` if their ends are passed.

    problem    extents of the GEMM; None: only predictions that do not depend on them
    arch       architecture; None: that of the device if one is passed, else the plan's
    device     a Device or its name; None: the default device of the architecture
    report     resources of the compiled kernel; None: the registers that the plan allows
    rules      model of shared memory: which groups of lanes are served together
    search     True to search for a swizzle for buffers with bank conflicts, and for a better raster
    executed   shared-memory accesses of the compiled kernel, from `run.executed.executed_accesses`; they replace
               those of the plan; None: the plan's
    ends       end of each group of a grouped GEMM; None: groups of equal size
    raises     UnsupportedError or PlanError if the problem is not one that the plan can compute

    >>> from cutegemm.build import simt_plan
    >>> from cutegemm.plan import Operands, Problem
    >>> result = check(simt_plan(), Problem(4096, 4096, 4096), device="h200")
    >>> result.waves.count, result.roofline.bound.name
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
    violations = tuple(plan.violations(have.name, problem))
    if ends is not None:
        _check_ends(plan, problem, ends)
    grouped, stated, (plan, problem) = plan, problem, with_equal_groups(plan, problem)
    accesses = shared_accesses(plan, problem)
    k_tiles = plan.k_tiles(problem) if problem is not None else 0
    shared = tuple([_access_cost(plan, problem, a, k_tiles, rules) for a in accesses])
    sectors, fits = tuple(global_accesses(plan, problem)), plan_occupancy(plan, have, report)
    common: dict[str, Any] = {
        "plan": plan.name,
        "summary": plan.summary,
        "arch": have.name,
        "device": target,
        "rules": rules,
        "violations": violations,
        "shared": shared,
        "global_": sectors,
        "occupancy": fits,
        "launches": _launches(plan, have, problem),
        "epilogue": epilogue_cost(plan, target, sectors, fits.ctas, problem),
        "spills": report.spills if report is not None else None,
        "executed": executed,
        "searches": _searches(plan, accesses, shared, rules) if search else {},
    }
    if problem is None or stated is None:
        return Analysis(**common)
    found = _with_problem(plan, problem, target, common, search)
    if not grouped.operands.groups:
        return replace(found, problem=str(stated))
    assert found.waves is not None
    cost = group_cost(grouped, stated, ends, found.waves.per_wave)
    return replace(found, problem=f"{stated}, {stated.l} groups of equal size", groups=cost)


def _launches(plan: GemmPlan, arch: Arch, problem: Problem | None) -> dict[str, bool]:
    """Return the kernels of a call as name -> True if the kernel starts before its predecessor has ended (PDL).

    problem   decides whether the GEMM starts early after a kernel that copies an operand; None: a small problem
    arch      architecture, which may or may not have PDL
    """
    parts = [] if problem is None else regions(plan, problem.m, problem.n, problem.k, problem.l)
    repacked = {GEMM: repacked_bytes_of(parts)}
    return {name: uses_pdl(launch, repacked.get(name, 0)) for name, launch in launches_of(plan, arch).items()}


def _access_cost(plan: GemmPlan, problem: Problem | None, access: Access, k_tiles: int, rules: Rules) -> AccessCost:
    """Return the cost of an access to shared memory: for one full tile and, with a problem, for all tiles.

    k_tiles   number of k-tiles of a tile
    access    the access
    rules     model of shared memory: which groups of lanes are served together
    """
    layout = buffer_layout(plan, access.buffer)
    times, full = executions(plan, access, k_tiles), access.cost(layout, rules)
    single = AccessCost(access.name, access.instruction(layout), access.op, access.per, full, times)
    if problem is None:
        return single
    if access.matrix is not None:
        shape = tile_shape(plan, access.matrix)
        counted: list[tuple[float, Wavefronts]] = [
            (kind.count, access.cost(layout, rules, kind, shape)) for kind in kinds_of(plan, access.matrix, problem)
        ]
    else:
        ctas = product(grid_of_clusters(plan, problem)) * plan.split_k
        often = ragged_tiles(plan, problem) if access.per == "ragged tile" else ctas * times
        counted = [(often, full)]
    requests, wavefronts, ideal = (
        round(sum(count * getattr(one, name) for count, one in counted)) for name in ("requests", "wavefronts", "ideal")
    )
    return replace(single, in_grid=(requests, wavefronts, ideal))


def _searches(
    plan: GemmPlan, accesses: list[Any], shared: tuple[AccessCost, ...], rules: Rules
) -> dict[str, SwizzleSearch]:
    """Search for a swizzle for each shared-memory buffer with bank conflicts; return buffer name -> result.

    accesses   accesses of the plan to shared memory
    shared     their costs, in the same order
    rules      model of shared memory: which groups of lanes are served together
    """
    blamed = {a.buffer for a, c in zip(accesses, shared, strict=True) if c.cost.conflicts and c.cost.worst is not None}
    return {buffer: search_plan(plan, buffer, rules) for buffer in sorted(blamed)}


def _check_problem(plan: GemmPlan, problem: Problem) -> None:
    """Raise an error unless a plan computes a problem, and the problem has few enough tiles to simulate.

    raises   UnsupportedError if `problem` is not a Problem or has too many tiles; PlanError if it has other operands
             than the plan, or exceeds the integers of the plan's kernels
    """
    check_is_problem("check", problem)
    dense, equal = with_equal_groups(plan, problem)
    m_tiles, n_tiles, batch = dense.grid(equal)
    if m_tiles * n_tiles * batch > _MOST_TILES:
        raise UnsupportedError(
            f"check: {problem} has {m_tiles} x {n_tiles} x {batch} tiles of {plan.name}; the traffic of at most "
            f"{_MOST_TILES} tiles is simulated. Pass a smaller problem of the same shape."
        )
    violations = [*other_operands(plan, problem), *limits(plan, problem)]
    if violations:
        raise PlanError(f"check: plan {plan.name!r} on {problem}", violations)


def _check_ends(plan: GemmPlan, problem: Problem | None, ends: Sequence[int]) -> None:
    """Raise PlanError unless a problem has groups, and as many ends, which ascend and do not exceed the extent."""
    if problem is None or not plan.operands.groups:
        raise PlanError("check", [f"ends = {list(ends)} are passed without groups. Pass a grouped plan and problem."])
    extent = getattr(problem, plan.operands.groups)
    if len(ends) != problem.l or list(ends) != sorted(ends) or not (ends[0] >= 0 and ends[-1] <= extent):
        rule = f"ends = {list(ends)} are not {problem.l} ends from 0 to {extent} that do not decrease."
        raise PlanError("check", [rule])


def _with_problem(plan: GemmPlan, problem: Problem, device: Device, common: dict[str, Any], search: bool) -> Analysis:
    """Return the whole analysis of a plan for a problem on a device: traffic, waves, roofline and suggested changes.

    common   the fields of the result that do not depend on the problem, by name
    search   True to simulate other rasters (orders of the tiles) too
    """
    fits: Occupancy = common["occupancy"]
    m_tiles, n_tiles, batch = plan.grid(problem)
    fill = waves(plan, problem, device.sms, fits.ctas)
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
    idle = max(1, product(grid_of_clusters(plan, problem))) / max(1, working)  # CTAs per CTA that multiplies for D
    # The fewest wavefronts of cp.async: its conflicts are modelled for single instructions only.
    least = [known.counts(op)[2 if op == "cp.async" else 1] / idle for op in sorted(ops)]
    lsu = [known.counts(op)[0] for op in sorted(ops - {"wgmma", "tma"})]
    stored = [known.sector_count(op)[0] for op in ("ld", "st")]
    most = -(-fill.ctas // device.sms)

    rasters = best_rasters(
        plan, problem, device, ctas_per_wave=fill.per_wave, most=_RASTERS if search else 1
    )  # fmt: skip
    own = next(t for t in rasters if t.raster == str(plan.scheduler.raster))
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
    """Return the cost of the epilogue with its fields `hidden` and `added_seconds` computed from the roofline.

    cost   cost of the epilogue; None if it computes nothing, for which None is returned
    roof   the roofline of the plan
    """
    alone = next((level.seconds for level in roof.levels if level.name == "epilogue"), None)
    if cost is None or not alone:
        return cost
    others = max(x.seconds for x in roof.levels if x.seconds is not None and x.name != "epilogue")
    shown = max(0.0, roof.seconds - others)
    return replace(cost, hidden=max(0.0, 1 - shown / alone), added_seconds=shown)
