"""Analysis report as tables and sentences, which the terminal and the explorer show alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from cutegemm.analysis.executed import EXECUTED_OPS

if TYPE_CHECKING:
    from cutegemm.analysis.epilogue_cost import EpilogueCost
    from cutegemm.analysis.groups import GroupCost
    from cutegemm.analysis.report import Analysis


@dataclass(frozen=True)
class Section:
    """Holds one section of a report before it is printed as text or HTML: a title, sentences and a table.

    title     may be ""
    columns   (name, "left" or "right") of each column of the table
    rows      cells of each row, as texts; () for a section without a table
    lines     sentences before the table
    after     sentences after the table
    """

    title: str
    columns: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def sections(analysis: Analysis) -> list[Section]:
    """Return all sections of the report of an analysis, in reading order.

    >>> from cutegemm.analysis import check
    >>> from cutegemm.build import simt_plan
    >>> [section.title for section in sections(check(simt_plan()))]
    ['Shared memory, per CTA', 'Global memory, per CTA', 'Occupancy']
    """
    out = [_shared(analysis)]
    if analysis.executed is not None:
        out.append(_executed(analysis))
    out.append(_global(analysis))
    if analysis.epilogue is not None:
        out.append(_epilogue(analysis.epilogue))
    out.append(_occupancy(analysis))
    if len(analysis.launches) > 1:
        out.append(_launches(analysis.launches))
    if analysis.groups is not None:
        out.append(_groups(analysis.groups))
    if analysis.problem is not None:
        out += [_traffic(analysis), _roofline(analysis), _changes(analysis)]
    return out


def head(analysis: Analysis) -> str:
    """Return the first line of a report, without the plan's name: architecture, device and problem."""
    problem = f", {analysis.problem}" if analysis.problem else ""
    return f"on {analysis.arch} ({analysis.device.name}){problem}"


def _shared(analysis: Analysis) -> Section:
    """Return the section of a report on shared-memory accesses: a row for each access, with its wavefronts."""
    rows = []
    for a in analysis.shared:
        without_worst = "read conflicts at the source" if a.cost.conflicts else "-"
        worst = str(a.cost.worst) if a.cost.worst else without_worst
        counts = (str(a.cost.requests), str(a.cost.wavefronts), str(a.cost.ideal))
        rows.append((a.name, a.instruction, a.per, *counts, worst))
    columns = (
        ("access", "left"), ("instruction", "left"), ("per", "left"), ("requests", "right"),
        ("wavefronts", "right"), ("ideal", "right"), ("worst collision", "left"),
    )  # fmt: skip
    return Section("Shared memory, per CTA", columns, tuple(rows))


def _executed(analysis: Analysis) -> Section:
    """Return the section of a report that compares planned and executed shared-memory accesses of the whole grid."""
    rows = []
    for op in EXECUTED_OPS:
        planned, done = analysis.planned(op), analysis.counts(op)
        if any(planned) or any(done):
            rows.append((op, *[f"{n:.4g}" for n in (*planned[:2], *done)]))
    columns = (
        ("operation", "left"), ("requests", "right"), ("wavefronts", "right"), ("kernel's requests", "right"),
        ("wavefronts", "right"), ("ideal", "right"),
    )  # fmt: skip
    title = "Shared memory, all CTAs: accesses of the plan, then of the executed kernel"
    return Section(title, columns, tuple(rows))


def _global(analysis: Analysis) -> Section:
    """Return the section of a report on global-memory accesses: a row for each access, with its sectors."""
    rows = [
        (
            s.name, s.instruction, s.per, str(s.requests), str(s.sectors), str(s.ideal),
            f"{s.efficiency:.0%}" if s.sectors else "-", str(s.usable_bits),
        )
        for s in analysis.global_
    ]  # fmt: skip
    columns = (
        ("access", "left"), ("instruction", "left"), ("per", "left"), ("requests", "right"),
        ("sectors", "right"), ("ideal", "right"), ("used", "right"), ("usable bits", "right"),
    )  # fmt: skip
    return Section("Global memory, per CTA", columns, tuple(rows))


def _epilogue(cost: EpilogueCost) -> Section:
    """Return the section of a report on the epilogue's cost: instructions, registers and the operands in memory."""
    clocks = "" if cost.tile_clocks is None else f"; a tile takes at least {cost.tile_clocks:.0f} clocks"
    lines = [f"{cost.fp32} f32 and {cost.special} special-function instructions per element{clocks}"]
    if cost.hidden is not None and cost.added_seconds is not None:
        several = f"a multiprocessor works on {cost.alternating} tiles at once"
        order = several if cost.alternating > 1 else "a multiprocessor works on one tile at a time"
        lines.append(
            f"{order}: mainloops hide {cost.hidden:.0%} of the epilogue, and the rest adds "
            f"{cost.added_seconds * 1e3:.3f} ms"
        )
    rows = []
    for part in cost.parts:
        total = "-" if part.total_bytes is None else f"{part.total_bytes / 1e6:.3f}"
        sizes = (str(part.tile_bytes), total, str(part.registers))
        rows.append((part.name, part.what, part.dtype, part.how, *sizes))
    columns = (
        ("operand", "left"), ("what", "left"), ("type", "left"), ("how", "left"), ("bytes per tile", "right"),
        ("MB in total", "right"), ("registers", "right"),
    )  # fmt: skip
    return Section(f"Epilogue {cost.expression}", columns if rows else (), tuple(rows), tuple(lines))


def _occupancy(analysis: Analysis) -> Section:
    """Return the section of a report on occupancy, spilled registers and waves of CTAs."""
    fits = analysis.occupancy
    limits = ", ".join(f"{name} {count}" for name, count in fits.limits.items())
    source = "compiled" if fits.measured else "limit of the plan"
    lines = [
        f"{fits.ctas} CTA{'' if fits.ctas == 1 else 's'} per SM, {fits.warps} of {fits.max_warps} warps "
        f"({fits.theoretical:.1%}); limited by {', '.join(fits.limited_by)}",
        f"CTAs that each resource allows: {limits}; {fits.registers} registers ({source}), {fits.smem_bytes} bytes of "
        "shared memory",
    ]
    if analysis.spills:
        lines.append(
            f"{analysis.spills} instructions spill registers to local memory; the roofline does not count them"
        )
    elif analysis.spills is not None:
        lines.append("0 spills")
    fill = analysis.waves
    if fill is not None:
        grid = f"{fill.ctas} CTAs in {fill.count} waves of {fill.per_wave}"
        if fill.persistent:
            grid = f"{fill.ctas} tiles on {fill.persistent} persistent CTAs in {fill.count} rounds of {fill.per_wave}"
        used = f"{grid}; the last is {fill.tail:.0%} full, {fill.efficiency:.1%} of the CTA slots are used"
        if fill.is_even:
            used = f"{fill.ctas} tiles on {fill.per_wave} persistent CTAs, which share the k-tiles of the last wave"
        lines.append(f"{used}; {fill.tile_waste:.1%} of the tiles' elements lie outside of D")
    return Section("Occupancy", lines=tuple(lines))


def _groups(cost: GroupCost) -> Section:
    """Return the section of a report on the sizes of groups: weights, tiles, and how evenly CTAs share them."""
    what = {"m": "rows", "n": "columns", "k": "k"}[cost.along]
    sizes = f"{cost.least}" if cost.least == cost.most else f"{cost.least} to {cost.most}"
    whose = "as given" if cost.is_known else "taken to be equal"
    empty = f"; {cost.empty} of them empty" if cost.empty else ""
    lines = [f"{cost.count} groups of {sizes} {what}, {whose}{empty}"]
    if cost.all_weight_bytes:
        read, every = cost.weight_bytes / 1e6, cost.all_weight_bytes / 1e6
        lines.append(f"weights of groups with {what}: {read:.3f} MB, of {every:.3f} MB of all groups")
    lines.append(
        f"{cost.tiles} tiles on {cost.per_wave} CTAs in {cost.rounds} round{'s' * (cost.rounds != 1)}; "
        f"the last is {cost.tail:.0%} full; the CTA with the most k-tiles has {cost.imbalance:.1%} more than the mean"
    )
    lines.append(f"{cost.waste:.1%} of the {what} of tiles belong to no group")
    after = ("The other sections take groups of equal size.",) if cost.is_known else ()
    return Section("Groups", lines=tuple(lines), after=after)


def _launches(launches: Mapping[str, bool]) -> Section:
    """Return the section of a report on the kernels that a call launches.

    launches   name of a kernel -> True if it starts before its predecessor has ended
    """
    names = list(launches)
    lines = [f"1. {names[0]}"]
    for number, (before, name) in enumerate(pairwise(names), 2):
        early = f"starts while {before} runs, and waits for its end after the prologue"
        lines.append(f"{number}. {name}, {early if launches[name] else f'starts when {before} has ended'}")
    return Section("Launches", lines=tuple(lines))


def _traffic(analysis: Analysis) -> Section:
    """Return the section of a report on the bytes that pass L2 and DRAM."""
    own = analysis.traffic
    assert own is not None
    device = analysis.device
    share = f", {device.l2_partitions} partitions" if device.l2_partitions > 1 else ""
    rows = []
    for t in (own, *[t for t in analysis.rasters if t.raster != own.raster][:3]):
        name = f"* {t.raster}" if t is own else f"  {t.raster}"
        far = "-" if t.far_bytes is None else f"{t.far_bytes / 1e9:.3f}"
        rows.append(
            (
                name, f"{t.resident_mn[0]:.1f} + {t.resident_mn[1]:.1f}", f"{t.wave_bytes / 1e6:.1f}",
                f"{t.l2_read_bytes / 1e9:.2f}", f"{t.dram_read_bytes / 1e9:.3f}", f"{t.hit_share:.1%}", far,
            )
        )  # fmt: skip
    columns = (
        ("raster", "left"), ("tiles per wave", "right"), ("MB per wave", "right"), ("L2", "right"),
        ("DRAM", "right"), ("L2 hits", "right"), ("between partitions", "right"),
    )  # fmt: skip
    after = []
    if own.dram_range is not None:
        low, high = own.dram_range
        after.append(f"DRAM reads per launch: {low / 1e9:.3f} to {high / 1e9:.3f} GB (varies)")
    for one in analysis.passes:
        again = 0.0 if one.is_before else own.partials_read_bytes
        after.append(
            f"{one.name}: {one.read_bytes / 1e9:.3f} GB read, {one.write_bytes / 1e9:.3f} GB written"
            + (", before the GEMM begins" if one.is_before else ", through the workspace")
            + (f", {again / 1e9:.3f} GB of it from DRAM" if again else "")
        )
    title = (
        f"Traffic of A and B in GB (L2: {device.l2_bytes >> 20} MiB{share}; D: "
        f"{own.dram_write_bytes / 1e9:.3f} GB); * the plan's raster"
    )
    return Section(title, columns, tuple(rows), after=tuple(after))


def _roofline(analysis: Analysis) -> Section:
    """Return the section of a report on the roofline: a row for each level (compute, shared memory, L2, DRAM, ...)."""
    roof = analysis.roofline
    assert roof is not None
    rows = []
    for level in roof.levels:
        time = "-" if level.seconds is None else f"{level.seconds * 1e3:.3f}"
        share = "-" if level.seconds is None or not roof.seconds else f"{level.seconds / roof.seconds:.0%}"
        rows.append((level.name, f"{level.amount:.3g} {level.unit}", f"{level.intensity:.3g}", time, share))
    columns = (
        ("level", "left"), ("amount", "right"), ("FLOP per unit", "right"), ("least ms", "right"),
        ("share of bound", "right"),
    )  # fmt: skip
    title = (
        f"Roofline: {roof.bound.name} binds, {roof.seconds * 1e3:.3f} ms, {roof.tflops:.1f} TFLOP/s "
        f"{_whose_bound(analysis)}"
    )
    return Section(title, columns, tuple(rows))


def _whose_bound(analysis: Analysis) -> str:
    """Return words for a report that tell how reliable the roofline's rate is: "at most", or "for the accesses of ...".

    It is "at most" if the kernel cannot be faster: its own accesses are counted, or shared memory is not the
    bottleneck. Otherwise the compiler may merge accesses, and the words name the accesses that are counted.
    """
    if analysis.executed is not None and not analysis.executed.rewritten:
        return "at most"
    roof = analysis.roofline
    assert roof is not None
    if roof.bound.name != "shared" or not any(access.op in EXECUTED_OPS for access in analysis.shared):
        return "at most"
    if analysis.executed is not None:
        return "for the accesses of the PTX; ptxas merges some of them"
    return "for the accesses of the plan, which the compiler may merge; --compiled counts those of the kernel"


def _changes(analysis: Analysis) -> Section:
    """Return the section of a report on suggested changes, with the share of the time that each flaw costs."""
    lines = []
    for number, change in enumerate(analysis.changes, 1):
        cost = change.cost or (f"costs {change.loss:.1%}" if change.loss > 0 else "hidden by the bound")
        lines += [f"{number}. {change.what} ({cost})", f"   {change.advice}"]
    return Section("What to change first", lines=tuple(lines or ["nothing: the analysis finds no flaw"]))
