"""`check`: all that can be said of a plan without running it, as data and as text."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from cutegemm.analysis.accesses import buffer_layout, executions, shared_accesses
from cutegemm.analysis.devices import Device, default_device, device_named
from cutegemm.analysis.globalmem import Sectors, global_accesses
from cutegemm.analysis.occupancy import Occupancy, Waves, plan_occupancy, waves
from cutegemm.analysis.roofline import WAVEFRONT_BYTES, Roofline, roofline
from cutegemm.analysis.shared import DEFAULT_RULES, Rules, Wavefronts
from cutegemm.analysis.swizzle import SwizzleSearch, search_plan
from cutegemm.analysis.traffic import Traffic, compare_rasters, traffic
from cutegemm.arch import Arch, arch_named

if TYPE_CHECKING:
    from cutegemm.cubin import ResourceReport
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

_NOTABLE = 0.002  # losses below are not worth a line


@dataclass(frozen=True)
class AccessCost:
    """One access to shared memory, of one CTA.

    cost      of one k-tile, or of the tile, as `per` says
    per       "k-tile" or "tile"
    times     how often a CTA does it for the problem: a few times more than there are k-tiles where the
              schedule's steps past the last one still store or read; 0 without a problem
    """

    name: str
    instruction: str
    op: str
    per: str
    cost: Wavefronts
    times: float = 0.0


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


@dataclass(frozen=True)
class Analysis:
    """What is predicted of a plan. Fields from `problem` on are None or empty where none was given."""

    plan: str
    summary: str
    arch: str
    device: Device
    rules: Rules
    violations: tuple[str, ...]
    shared: tuple[AccessCost, ...]
    global_: tuple[Sectors, ...]
    occupancy: Occupancy
    problem: str | None = None
    k_tiles: int = 0
    waves: Waves | None = None
    traffic: Traffic | None = None
    rasters: tuple[Traffic, ...] = ()
    roofline: Roofline | None = None
    changes: tuple[Change, ...] = ()
    spills: int | None = None
    searches: dict[str, SwizzleSearch] = field(default_factory=dict, compare=False)

    def counts(self, op: str) -> tuple[int, int, int]:
        """(instructions, wavefronts, ideal wavefronts) of one kind of shared access in the whole grid."""
        assert self.waves is not None
        out = [0, 0, 0]
        for part in self.shared:
            if part.op == op:
                for i, value in enumerate((part.cost.requests, part.cost.wavefronts, part.cost.ideal)):
                    out[i] += round(self.waves.ctas * part.times * value)
        return out[0], out[1], out[2]

    def sector_count(self, op: str) -> tuple[int, int]:
        """(instructions, sectors) of one kind of global access in the whole grid."""
        assert self.waves is not None
        out = [0, 0]
        for part in self.global_:
            if part.op == op:
                times = self.waves.ctas * (self.k_tiles if part.per == "k-tile" else 1)
                out[0] += times * part.requests
                out[1] += times * part.sectors
        return out[0], out[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        device = {**asdict_plain(self.device), "tflops": dict(self.device.tflops)}
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
            "spills": self.spills,
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
        out["traffic"] = {**asdict(self.traffic), "hit_share": self.traffic.hit_share}
        out["rasters"] = [
            {"raster": t.raster, "dram_read_bytes": t.dram_read_bytes, "hit_share": t.hit_share}
            for t in self.rasters
        ]
        out["roofline"] = {
            "bound": self.roofline.bound.name,
            "seconds": self.roofline.seconds,
            "tflops": self.roofline.tflops,
            "levels": [asdict(level) for level in self.roofline.levels],
        }
        out["changes"] = [asdict(c) for c in self.changes]
        return out

    def __str__(self) -> str:
        return render(self)


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
) -> Analysis:
    """What a plan will do on a device.

    problem   without one, what does not depend on extents
    arch      the plan's own where left out, or the device's
    device    a name or a Device; one that stands for the architecture where left out
    report    of the compiled kernel, whose registers then count
    rules     of shared memory; see `analysis.shared`
    search    whether a swizzle is looked for where a buffer has conflicts

    >>> from cutegemm.plan import Operands, Problem, simt_plan
    >>> found = check(simt_plan(), Problem(4096, 4096, 4096), device="h200")
    >>> found.waves.count, found.roofline.bound.name
    (8, 'issue')
    """
    target = device_named(device) if isinstance(device, str) else device
    if arch is None:
        arch = target.arch if target is not None else plan.arch
    have = arch_named(arch) if isinstance(arch, str) else arch
    target = target or default_device(have.name)
    accesses = shared_accesses(plan, problem)
    k_tiles = plan.k_tiles(problem) if problem is not None else 0
    shared = tuple(
        [
            AccessCost(
                a.name,
                a.instruction(buffer_layout(plan, a.buffer)),
                a.op,
                a.per,
                a.cost(buffer_layout(plan, a.buffer), rules),
                executions(plan, a, k_tiles),
            )
            for a in accesses
        ]
    )
    common: dict[str, Any] = {
        "plan": plan.name,
        "summary": plan.summary,
        "arch": have.name,
        "device": target,
        "rules": rules,
        "violations": tuple(plan.violations(have.name, problem)),
        "shared": shared,
        "global_": tuple(global_accesses(plan, problem)),
        "occupancy": plan_occupancy(plan, have, report),
        "spills": report.spills if report is not None else None,
        "searches": _searches(plan, accesses, shared, rules) if search else {},
    }
    if problem is None:
        return Analysis(**common)
    return _with_problem(plan, problem, target, common)


def _searches(
    plan: GemmPlan, accesses: list[Any], shared: tuple[AccessCost, ...], rules: Rules
) -> dict[str, SwizzleSearch]:
    """For each buffer that has conflicts which its layout is to blame for."""
    blamed = {
        a.buffer
        for a, c in zip(accesses, shared, strict=True)
        if c.cost.conflicts and c.cost.worst is not None
    }
    return {buffer: search_plan(plan, buffer, rules) for buffer in sorted(blamed)}


def _with_problem(plan: GemmPlan, problem: Problem, device: Device, common: dict[str, Any]) -> Analysis:
    held: Occupancy = common["occupancy"]
    fill = waves(plan, problem, device.sms, held.ctas)
    l2 = device.l2_bytes // device.l2_partitions
    moved = traffic(plan, problem, ctas_per_wave=fill.per_wave, l2_bytes=l2)
    rasters = compare_rasters(plan, problem, ctas_per_wave=fill.per_wave, l2_bytes=l2)
    known = Analysis(
        **common,
        problem=str(problem),
        k_tiles=plan.k_tiles(problem),
        waves=fill,
        traffic=moved,
        rasters=tuple(rasters),
    )
    ops = {a.op for a in known.shared}
    counted = [known.counts(op) for op in sorted(ops)]
    lsu = [known.counts(op)[0] for op in sorted(ops - {"wgmma", "tma"})]
    stored = [known.sector_count(op)[0] for op in ("ld", "st")]
    most = -(-fill.ctas // device.sms)
    roof = roofline(
        plan,
        problem,
        device,
        wavefronts=sum(c[1] for c in counted),
        instructions=sum(lsu) + sum(stored),
        traffic=moved,
        sm_share=fill.ctas / (most * device.sms) if most else 1.0,
    )
    fields = {name: getattr(known, name) for name in known.__dataclass_fields__}
    return Analysis(**{**fields, "roofline": roof, "changes": tuple(_changes(plan, known, roof))})


def _changes(plan: GemmPlan, known: Analysis, roof: Roofline) -> list[Change]:
    """Ranked: what costs most of the predicted time first."""
    found = [
        *_conflict_changes(known, roof),
        *_grid_changes(plan, known, roof),
        *_memory_changes(known, roof),
    ]
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


def _loss(roof: Roofline, **changed: float) -> float:
    return 1 - roof.seconds_with(**changed) / roof.seconds if roof.seconds else 0.0


def _conflict_changes(known: Analysis, roof: Roofline) -> list[Change]:
    assert known.waves is not None
    level = roof.level("shared")
    out = []
    for part in known.shared:
        if part.cost.conflicts == 0:
            continue
        share = known.waves.ctas * part.times * part.cost.conflicts * WAVEFRONT_BYTES / level.amount
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


def _grid_changes(plan: GemmPlan, known: Analysis, roof: Roofline) -> list[Change]:
    fill = known.waves
    assert fill is not None
    out = []
    sms = known.device.sms
    most = -(-fill.ctas // sms)
    quantized = 1 - fill.ctas / (most * sms) if most else 0.0
    local = {x.name: x.seconds for x in roof.levels if x.name in ("compute", "issue", "shared") and x.seconds}
    if quantized > _NOTABLE:
        loss = _loss(roof, **{name: s * (1 - quantized) for name, s in local.items()})
        mean = fill.ctas / sms
        what = f"{fill.ctas} CTAs on {sms} multiprocessors: the busiest takes {most}, the average {mean:.2f}"
        out.append(Change(loss, quantized, what, "another tile size, split-K or stream-K"))
    if fill.tile_waste > _NOTABLE:
        loss = _loss(roof, **{name: s * (1 - fill.tile_waste) for name, s in local.items()})
        what = f"{fill.tile_waste:.1%} of the tiles' elements lie outside of D"
        out.append(Change(loss, fill.tile_waste, what, f"a tile that divides {known.problem}"))
    return out


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


# --- text ---------------------------------------------------------------------------------------------------


def render(analysis: Analysis, *, width: int = 110, color: bool = False) -> str:
    """The report as text."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
    )
    print_report(analysis, console)
    return file.getvalue()


def print_report(analysis: Analysis, console: Any) -> None:
    """The report on a rich console."""
    head = f"[bold]{analysis.plan}[/bold] on {analysis.arch} ({analysis.device.name})"
    if analysis.problem:
        head += f", {analysis.problem}"
    console.print(head)
    if analysis.summary:
        console.print(f"  {analysis.summary}")
    for violation in analysis.violations:
        console.print(f"  [red]broken rule:[/red] {violation}", soft_wrap=False)
    console.print(_shared_table(analysis))
    console.print(_global_table(analysis))
    _print_occupancy(analysis, console)
    if analysis.problem is not None:
        console.print(_raster_table(analysis))
        console.print(_roofline_table(analysis))
        _print_changes(analysis, console)


def _table(title: str, columns: list[tuple[str, str]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in columns:
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    return table


def _shared_table(analysis: Analysis) -> Any:
    table = _table(
        "Shared memory, of a CTA",
        [("access", "left"), ("instruction", "left"), ("per", "left"), ("requests", "right"),
         ("wavefronts", "right"), ("ideal", "right"), ("worst collision", "left")],
    )  # fmt: skip
    for a in analysis.shared:
        worst = (
            str(a.cost.worst)
            if a.cost.worst
            else ("read conflicts at the source" if a.cost.conflicts else "-")
        )
        table.add_row(
            a.name,
            a.instruction,
            a.per,
            str(a.cost.requests),
            str(a.cost.wavefronts),
            str(a.cost.ideal),
            worst,
        )
    return table


def _global_table(analysis: Analysis) -> Any:
    table = _table(
        "Global memory, of a CTA",
        [("access", "left"), ("instruction", "left"), ("per", "left"), ("requests", "right"),
         ("sectors", "right"), ("ideal", "right"), ("used", "right"), ("usable bits", "right")],
    )  # fmt: skip
    for s in analysis.global_:
        table.add_row(
            s.name, s.instruction, s.per, str(s.requests), str(s.sectors), str(s.ideal),
            f"{s.efficiency:.0%}", str(s.usable_bits),
        )  # fmt: skip
    return table


def _print_occupancy(analysis: Analysis, console: Any) -> None:
    held = analysis.occupancy
    limits = ", ".join(f"{name} {count}" for name, count in held.limits.items())
    source = "compiled" if held.measured else "the most it may take"
    console.print("[bold]Occupancy[/bold]")
    console.print(
        f"  {held.ctas} CTAs a multiprocessor, {held.warps} of {held.max_warps} warps "
        f"({held.theoretical:.1%}); limited by {', '.join(held.limited_by)}",
        soft_wrap=True,
    )
    console.print(
        f"  would hold: {limits}; {held.registers} registers ({source}), {held.smem_bytes} bytes shared",
        soft_wrap=True,
    )
    if analysis.spills is not None:
        console.print(f"  {analysis.spills} spills")
    fill = analysis.waves
    if fill is not None:
        console.print(
            f"  {fill.ctas} CTAs in {fill.count} waves of {fill.per_wave}; the last is {fill.tail:.0%} full, "
            f"{fill.efficiency:.1%} of the slots are used; {fill.tile_waste:.1%} of the tiles is waste",
            soft_wrap=True,
        )
    console.print()


def _raster_table(analysis: Analysis) -> Any:
    own = analysis.traffic
    assert own is not None
    device = analysis.device
    share = f", {device.l2_partitions} partitions" if device.l2_partitions > 1 else ""
    table = _table(
        f"Traffic (L2 of {device.l2_bytes >> 20} MiB{share}); * the plan's raster",
        [("raster", "left"), ("A, B tiles a wave", "right"), ("MB a wave", "right"), ("L2, GB", "right"),
         ("DRAM, GB", "right"), ("L2 hits", "right"), ("written, GB", "right")],
    )  # fmt: skip
    shown = [own, *[t for t in analysis.rasters if t.raster != own.raster][:3]]
    for t in shown:
        name = f"* {t.raster}" if t is own else f"  {t.raster}"
        table.add_row(
            name, f"{t.resident_mn[0]:.1f}, {t.resident_mn[1]:.1f}", f"{t.wave_bytes / 1e6:.1f}",
            f"{t.l2_read_bytes / 1e9:.2f}", f"{t.dram_read_bytes / 1e9:.3f}", f"{t.hit_share:.1%}",
            f"{t.dram_write_bytes / 1e9:.3f}",
        )  # fmt: skip
    return table


def _roofline_table(analysis: Analysis) -> Any:
    roof = analysis.roofline
    assert roof is not None
    table = _table(
        f"Roofline: {roof.bound.name} binds, {roof.seconds * 1e3:.3f} ms, {roof.tflops:.1f} TFLOP/s at most",
        [("level", "left"), ("amount", "right"), ("FLOP a unit", "right"), ("least time, ms", "right"),
         ("of the bound", "right")],
    )  # fmt: skip
    for level in roof.levels:
        time = "-" if level.seconds is None else f"{level.seconds * 1e3:.3f}"
        part = "-" if level.seconds is None else f"{level.seconds / roof.seconds:.0%}"
        table.add_row(level.name, f"{level.amount:.3g} {level.unit}", f"{level.intensity:.3g}", time, part)
    return table


def _print_changes(analysis: Analysis, console: Any) -> None:
    console.print("[bold]What to change first[/bold]")
    if not analysis.changes:
        console.print("  nothing that this analysis sees")
    for number, change in enumerate(analysis.changes, 1):
        cost = f"costs {change.loss:.1%}" if change.loss > 0 else "hidden behind the bound"
        console.print(f"  {number}. {change.what} ({cost})", soft_wrap=True)
        console.print(f"     {change.advice}", soft_wrap=True)
