"""An analysis as tables and sentences, before anything is printed: a terminal and a page show the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from cutegemm.analysis.executed import EXECUTED_OPS

if TYPE_CHECKING:
    from cutegemm.analysis.epilogue_cost import EpilogueCost
    from cutegemm.analysis.report import Analysis


@dataclass(frozen=True)
class Section:
    """One part of a report.

    title     may be empty
    columns   (name, "left" or "right") of the table
    rows      of texts, as many as there are columns; may be empty
    lines     sentences that stand before the table, and those of `after` behind it
    """

    title: str
    columns: tuple[tuple[str, str], ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


def sections(analysis: Analysis) -> list[Section]:
    """All parts of a report, in the order in which they are read.

    >>> from cutegemm.analysis import check
    >>> from cutegemm.build import simt_plan
    >>> [section.title for section in sections(check(simt_plan()))]
    ['Shared memory, of a CTA', 'Global memory, of a CTA', 'Occupancy']
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
    if analysis.problem is not None:
        out += [_traffic(analysis), _roofline(analysis), _changes(analysis)]
    return out


def head(analysis: Analysis) -> str:
    """What is analysed, where."""
    of = f", {analysis.problem}" if analysis.problem else ""
    return f"on {analysis.arch} ({analysis.device.name}){of}"


def _shared(analysis: Analysis) -> Section:
    rows = []
    for a in analysis.shared:
        at_source = "read conflicts at the source" if a.cost.conflicts else "-"
        worst = str(a.cost.worst) if a.cost.worst else at_source
        counts = (str(a.cost.requests), str(a.cost.wavefronts), str(a.cost.ideal))
        rows.append((a.name, a.instruction, a.per, *counts, worst))
    columns = (
        ("access", "left"), ("instruction", "left"), ("per", "left"), ("requests", "right"),
        ("wavefronts", "right"), ("ideal", "right"), ("worst collision", "left"),
    )  # fmt: skip
    return Section("Shared memory, of a CTA", columns, tuple(rows))


def _executed(analysis: Analysis) -> Section:
    """The plan's accesses beside those that the kernel carries out, of the whole grid."""
    rows = []
    for op in EXECUTED_OPS:
        planned, done = analysis.planned(op), analysis.counts(op)
        if any(planned) or any(done):
            rows.append((op, *[f"{n:.4g}" for n in (*planned[:2], *done)]))
    columns = (
        ("operation", "left"), ("requests", "right"), ("wavefronts", "right"), ("of the kernel", "right"),
        ("wavefronts", "right"), ("ideal", "right"),
    )  # fmt: skip
    title = "Shared memory, of the grid: of the plan, and as the compiled kernel was executed"
    return Section(title, columns, tuple(rows))


def _global(analysis: Analysis) -> Section:
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
    return Section("Global memory, of a CTA", columns, tuple(rows))


def _epilogue(cost: EpilogueCost) -> Section:
    clocks = "" if cost.tile_clocks is None else f"; a tile takes {cost.tile_clocks:.0f} clocks at least"
    lines = [f"{cost.fp32} instructions and {cost.special} of the special-function unit for an element{clocks}"]
    if cost.hidden is not None and cost.added_seconds is not None:
        in_turn = f"{cost.alternating} tiles of a multiprocessor in turn"
        turns = in_turn if cost.alternating > 1 else "one tile after the other"
        lines.append(f"{turns}: {cost.hidden:.0%} of it behind mainloops, {cost.added_seconds * 1e3:.3f} ms added")
    rows = []
    for part in cost.parts:
        total = "-" if part.total_bytes is None else f"{part.total_bytes / 1e6:.3f}"
        sizes = (str(part.tile_bytes), total, str(part.registers))
        rows.append((part.name, part.what, part.dtype, part.how, *sizes))
    columns = (
        ("operand", "left"), ("what", "left"), ("type", "left"), ("how", "left"), ("bytes a tile", "right"),
        ("MB in all", "right"), ("registers", "right"),
    )  # fmt: skip
    return Section(f"Epilogue {cost.expression}", columns if rows else (), tuple(rows), tuple(lines))


def _occupancy(analysis: Analysis) -> Section:
    held = analysis.occupancy
    limits = ", ".join(f"{name} {count}" for name, count in held.limits.items())
    source = "compiled" if held.measured else "the most it may take"
    lines = [
        f"{held.ctas} CTA{'' if held.ctas == 1 else 's'} per SM, {held.warps} of {held.max_warps} warps "
        f"({held.theoretical:.1%}); limited by {', '.join(held.limited_by)}",
        f"would hold: {limits}; {held.registers} registers ({source}), {held.smem_bytes} bytes shared",
    ]
    if analysis.spills:
        lines.append(f"{analysis.spills} instructions spill registers to local memory: no level below counts them")
    elif analysis.spills is not None:
        lines.append("0 spills")
    fill = analysis.waves
    if fill is not None:
        grid = f"{fill.ctas} CTAs in {fill.count} waves of {fill.per_wave}"
        if fill.persistent:
            grid = f"{fill.ctas} tiles on {fill.persistent} persistent CTAs in {fill.count} rounds of {fill.per_wave}"
        used = f"{grid}; the last is {fill.tail:.0%} full, {fill.efficiency:.1%} of the epilogue stages are used"
        if fill.is_even:
            used = f"{fill.ctas} tiles on {fill.per_wave} epilogue stages, which share what does not fill them"
        lines.append(f"{used}; {fill.tile_waste:.1%} of the tiles is waste")
    return Section("Occupancy", lines=tuple(lines))


def _launches(launches: Mapping[str, bool]) -> Section:
    names = list(launches)
    lines = [f"1. {names[0]}"]
    for number, (before, name) in enumerate(pairwise(names), 2):
        early = f"while {before} runs, for whose end it waits behind its prologue"
        lines.append(f"{number}. {name}, {early if launches[name] else f'when {before} has ended'}")
    return Section("Launches", lines=tuple(lines))


def _traffic(analysis: Analysis) -> Section:
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
        ("raster", "left"), ("tiles a wave", "right"), ("MB a wave", "right"), ("L2", "right"),
        ("DRAM", "right"), ("L2 hits", "right"), ("between partitions", "right"),
    )  # fmt: skip
    after = []
    if own.dram_range is not None:
        low, high = own.dram_range
        after.append(f"a launch reads {low / 1e9:.3f} to {high / 1e9:.3f} GB from DRAM: they differ")
    for one in analysis.passes:
        again = 0.0 if one.is_before else own.partials_read_bytes
        after.append(
            f"{one.name}: {one.read_bytes / 1e9:.3f} GB read, {one.write_bytes / 1e9:.3f} GB written"
            + (", before the GEMM begins" if one.is_before else ", through the workspace")
            + (f", {again / 1e9:.3f} GB back from DRAM" if again else "")
        )
    title = (
        f"Traffic of A and B, GB (L2 of {device.l2_bytes >> 20} MiB{share}; D: "
        f"{own.dram_write_bytes / 1e9:.3f} GB); * the plan's raster"
    )
    return Section(title, columns, tuple(rows), after=tuple(after))


def _roofline(analysis: Analysis) -> Section:
    roof = analysis.roofline
    assert roof is not None
    rows = []
    for level in roof.levels:
        time = "-" if level.seconds is None else f"{level.seconds * 1e3:.3f}"
        part = "-" if level.seconds is None or not roof.seconds else f"{level.seconds / roof.seconds:.0%}"
        rows.append((level.name, f"{level.amount:.3g} {level.unit}", f"{level.intensity:.3g}", time, part))
    columns = (
        ("level", "left"), ("amount", "right"), ("FLOP a unit", "right"), ("at least, ms", "right"),
        ("of the bound", "right"),
    )  # fmt: skip
    title = (
        f"Roofline: {roof.bound.name} binds, {roof.seconds * 1e3:.3f} ms, {roof.tflops:.1f} TFLOP/s "
        f"{_whose_bound(analysis)}"
    )
    return Section(title, columns, tuple(rows))


def _whose_bound(analysis: Analysis) -> str:
    """A bound holds of the kernel where its own accesses are counted, or where shared memory does not bind."""
    if analysis.executed is not None and not analysis.executed.rewritten:
        return "at most"
    roof = analysis.roofline
    assert roof is not None
    if roof.bound.name != "shared" or not any(part.op in EXECUTED_OPS for part in analysis.shared):
        return "at most"
    if analysis.executed is not None:
        return "by its PTX's accesses; ptxas joins some"
    return "by the plan's own accesses, which a compiler may join: --compiled counts the kernel's"


def _changes(analysis: Analysis) -> Section:
    lines = []
    for number, change in enumerate(analysis.changes, 1):
        cost = change.cost or (f"costs {change.loss:.1%}" if change.loss > 0 else "hidden behind the bound")
        lines += [f"{number}. {change.what} ({cost})", f"   {change.advice}"]
    return Section("What to change first", lines=tuple(lines or ["nothing that this analysis sees"]))
