"""An analysis as text, by rich."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutegemm.analysis.ending import Ending
    from cutegemm.analysis.report import Analysis


_GAP = 2  # characters between two columns


def render(analysis: Analysis, *, width: int = 110, color: bool = False) -> str:
    """The report as text."""
    from rich.console import Console

    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        force_jupyter=False,
        highlight=False,
    )
    print_report(analysis, console)
    return file.getvalue()


def as_html(analysis: Analysis, *, width: int = 110) -> str:
    """The report for a notebook."""
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, record=True, force_jupyter=False, highlight=False)
    print_report(analysis, console)
    style = "line-height:1.25;white-space:pre;overflow-x:auto"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


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
    parts = [_shared_table(analysis), _global_table(analysis)]
    for part in parts:
        console.print()
        console.print(part)
    if analysis.ending is not None:
        console.print()
        _print_ending(analysis.ending, console)
    console.print()
    _print_occupancy(analysis, console)
    if analysis.problem is not None:
        console.print()
        console.print(_raster_table(analysis))
        for one in analysis.passes:
            again = 0.0 if one.is_before or analysis.traffic is None else analysis.traffic.sums_read_bytes
            console.print(
                f"  {one.name}: {one.read_bytes / 1e9:.3f} GB read, {one.write_bytes / 1e9:.3f} GB written"
                + (", before the GEMM begins" if one.is_before else ", through the workspace")
                + (f", {again / 1e9:.3f} GB back from DRAM" if again else ""),
                soft_wrap=True,
            )
        console.print()
        console.print(_roofline_table(analysis))
        console.print()
        _print_changes(analysis, console)


@dataclass
class _Table:
    """A table on a console: its rows as lines or, where the console is too narrow for them, each as its cells in words.

    columns   each with its name and how it is justified
    """

    title: str | None
    columns: list[tuple[str, str]]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        """One more row, a cell a column."""
        self.rows.append(cells)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        least = self._least()
        if sum(least) + _GAP * (len(least) - 1) <= options.max_width:
            yield self._wide(least)
            return
        from rich.padding import Padding
        from rich.text import Text

        if self.title:
            yield Text(self.title, style="bold")
        for first, *cells in self.rows:
            yield Text(first)
            named = zip(self.columns[1:], cells, strict=True)
            yield Padding(Text(", ".join([f"{name} {cell}" for (name, _), cell in named])), (0, 0, 0, 4))

    def _least(self) -> list[int]:
        """The characters that each column needs: headers break between words, and so does a last column of text."""
        out = []
        for position, (name, justify) in enumerate(self.columns):
            is_text = justify == "left" and position == len(self.columns) - 1
            cells = [row[position] for row in self.rows]
            words = [word for text in (name, *(cells if is_text else ())) for word in text.split()]
            out.append(max(map(len, words if is_text else [*words, *cells])))
        return out

    def _wide(self, least: list[int]) -> Any:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=self.title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False,
            pad_edge=False, padding=(0, 1, 0, 0),
        )  # fmt: skip
        for width, (name, justify) in zip(least, self.columns, strict=True):
            table.add_column(name, justify=justify, min_width=width)  # type: ignore[arg-type]
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


def _shared_table(analysis: Analysis) -> _Table:
    table = _Table(
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


def _global_table(analysis: Analysis) -> _Table:
    table = _Table(
        "Global memory, of a CTA",
        [("access", "left"), ("instruction", "left"), ("per", "left"), ("requests", "right"),
         ("sectors", "right"), ("ideal", "right"), ("used", "right"), ("usable bits", "right")],
    )  # fmt: skip
    for s in analysis.global_:
        table.add_row(
            s.name, s.instruction, s.per, str(s.requests), str(s.sectors), str(s.ideal),
            f"{s.efficiency:.0%}" if s.sectors else "-", str(s.usable_bits),
        )  # fmt: skip
    return table


def _print_ending(ending: Ending, console: Any) -> None:
    console.print(f"[bold]Epilogue[/bold] {ending.expression}", soft_wrap=True)
    clocks = "" if ending.tile_clocks is None else f"; a tile takes {ending.tile_clocks:.0f} clocks at least"
    console.print(
        f"  {ending.fp32} instructions and {ending.special} of the special-function unit for an element{clocks}",
        soft_wrap=True,
    )
    if ending.hidden is not None and ending.added_seconds is not None:
        turns = (
            f"{ending.in_turns} tiles of a multiprocessor in turn"
            if ending.in_turns > 1
            else "one tile after the other"
        )
        console.print(
            f"  {turns}: {ending.hidden:.0%} of it behind mainloops, {ending.added_seconds * 1e3:.3f} ms added",
            soft_wrap=True,
        )
    if not ending.parts:
        return
    table = _Table(
        None,
        [("operand", "left"), ("what", "left"), ("type", "left"), ("how", "left"), ("bytes a tile", "right"),
         ("MB in all", "right"), ("registers", "right")],
    )  # fmt: skip
    for part in ending.parts:
        total = "-" if part.total_bytes is None else f"{part.total_bytes / 1e6:.3f}"
        table.add_row(
            part.name, part.what, part.dtype, part.how, str(part.tile_bytes), total, str(part.registers)
        )
    console.print(table)


def _print_occupancy(analysis: Analysis, console: Any) -> None:
    held = analysis.occupancy
    limits = ", ".join(f"{name} {count}" for name, count in held.limits.items())
    source = "compiled" if held.measured else "the most it may take"
    console.print("[bold]Occupancy[/bold]")
    console.print(
        f"  {held.ctas} CTA{'' if held.ctas == 1 else 's'} per SM, "
        f"{held.warps} of {held.max_warps} warps "
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
        used = (
            f"{fill.ctas} CTAs in {fill.count} waves of {fill.per_wave}; the last is {fill.tail:.0%} full, "
            f"{fill.efficiency:.1%} of the slots are used"
        )
        if fill.is_even:
            used = f"{fill.ctas} tiles on {fill.per_wave} slots, which share what does not fill them"
        console.print(f"  {used}; {fill.tile_waste:.1%} of the tiles is waste", soft_wrap=True)


def _raster_table(analysis: Analysis) -> _Table:
    own = analysis.traffic
    assert own is not None
    device = analysis.device
    share = f", {device.l2_partitions} partitions" if device.l2_partitions > 1 else ""
    table = _Table(
        f"Traffic of A and B, GB (L2 of {device.l2_bytes >> 20} MiB{share}; D: "
        f"{own.dram_write_bytes / 1e9:.3f} GB); * the plan's raster",
        [("raster", "left"), ("tiles a wave", "right"), ("MB a wave", "right"), ("L2", "right"),
         ("DRAM", "right"), ("L2 hits", "right"), ("between partitions", "right")],
    )  # fmt: skip
    shown = [own, *[t for t in analysis.rasters if t.raster != own.raster][:3]]
    for t in shown:
        name = f"* {t.raster}" if t is own else f"  {t.raster}"
        table.add_row(
            name, f"{t.resident_mn[0]:.1f} + {t.resident_mn[1]:.1f}", f"{t.wave_bytes / 1e6:.1f}",
            f"{t.l2_read_bytes / 1e9:.2f}", f"{t.dram_read_bytes / 1e9:.3f}", f"{t.hit_share:.1%}",
            "-" if t.far_bytes is None else f"{t.far_bytes / 1e9:.3f}",
        )  # fmt: skip
    return table


def _roofline_table(analysis: Analysis) -> _Table:
    roof = analysis.roofline
    assert roof is not None
    table = _Table(
        f"Roofline: {roof.bound.name} binds, {roof.seconds * 1e3:.3f} ms, {roof.tflops:.1f} TFLOP/s at most",
        [("level", "left"), ("amount", "right"), ("FLOP a unit", "right"), ("at least, ms", "right"),
         ("of the bound", "right")],
    )  # fmt: skip
    for level in roof.levels:
        time = "-" if level.seconds is None else f"{level.seconds * 1e3:.3f}"
        part = "-" if level.seconds is None or not roof.seconds else f"{level.seconds / roof.seconds:.0%}"
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
