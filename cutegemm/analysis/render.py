"""Analysis report as text, HTML or rich console output."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutegemm.analysis.tables import Section, head, sections

if TYPE_CHECKING:
    from cutegemm.analysis.report import Analysis


_GAP = 2  # characters between two columns


def render(analysis: Analysis, *, width: int = 110, color: bool = False) -> str:
    """Return the report of an analysis as text.

    width   characters of a line
    color   True to add the colour codes of a terminal

    >>> from cutegemm.analysis import check
    >>> from cutegemm.build import simt_plan
    >>> render(check(simt_plan())).splitlines()[0]
    'simt on sm_80 (a100-80gb)'
    """
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
    """Return the report of an analysis as HTML for a notebook.

    width   characters of a line
    """
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, record=True, force_jupyter=False, highlight=False)
    print_report(analysis, console)
    style = "line-height:1.25;white-space:pre;overflow-x:auto"
    return console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')


def print_report(analysis: Analysis, console: Any) -> None:
    """Print the report of an analysis on a rich console (`rich.console.Console`)."""
    console.print(f"[bold]{analysis.plan}[/bold] {head(analysis)}")
    if analysis.summary:
        console.print(f"  {analysis.summary}")
    for violation in analysis.violations:
        console.print(f"  [red]violated rule:[/red] {violation}", soft_wrap=False)
    for section in sections(analysis):
        console.print()
        _print(section, console)


def _print(section: Section, console: Any) -> None:
    """Print one section of a report (title, sentences, table) on a rich console (`rich.console.Console`)."""
    if section.lines or not section.rows:
        console.print(f"[bold]{section.title}[/bold]", soft_wrap=True)
    for line in section.lines:
        console.print(f"  {line}", soft_wrap=True)
    if section.rows:
        console.print(_table(section))
    for line in section.after:
        console.print(f"  {line}", soft_wrap=True)


def _table(section: Section) -> _Table:
    """Return the table of a report's section as an object that rich prints.

    The table has the section's title, unless sentences precede it.
    """
    return _Table(None if section.lines else section.title, section.columns, section.rows)


@dataclass(frozen=True)
class _Table:
    """A table for a rich console. If the console is too narrow, each row becomes a paragraph of column names and cells.

    section   section of a report, with the columns and rows of its table
    """

    title: str | None
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, ...], ...]

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
        """Return the smallest width of each column of this table, in characters, with which it can be printed.

        Headers, and a last column of text, may break between words.
        """
        out = []
        for position, (name, justify) in enumerate(self.columns):
            is_text = justify == "left" and position == len(self.columns) - 1
            cells = [row[position] for row in self.rows]
            words = [word for text in (name, *(cells if is_text else ())) for word in text.split()]
            out.append(max(map(len, words if is_text else [*words, *cells])))
        return out

    def _wide(self, least: list[int]) -> Any:
        """Return this table as a rich table, for a console that is wide enough.

        least   smallest width of each column, in characters
        """
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
