"""An analysis as text, by rich."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from cutegemm.analysis.tables import Section, head, sections

if TYPE_CHECKING:
    from cutegemm.analysis.report import Analysis


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
    console.print(f"[bold]{analysis.plan}[/bold] {head(analysis)}")
    if analysis.summary:
        console.print(f"  {analysis.summary}")
    for violation in analysis.violations:
        console.print(f"  [red]broken rule:[/red] {violation}", soft_wrap=False)
    for section in sections(analysis):
        console.print()
        _print(section, console)


def _print(section: Section, console: Any) -> None:
    if section.lines or not section.rows:
        console.print(f"[bold]{section.title}[/bold]", soft_wrap=True)
    for line in section.lines:
        console.print(f"  {line}", soft_wrap=True)
    if section.rows:
        console.print(_table(section))
    for line in section.after:
        console.print(f"  {line}", soft_wrap=True)


def _table(section: Section) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(
        title=None if section.lines else section.title, title_justify="left", title_style="bold",
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    for position, (name, justify) in enumerate(section.columns):
        table.add_column(name, justify=justify, no_wrap=position == 0)  # type: ignore[arg-type]
    for row in section.rows:
        table.add_row(*row)
    return table
