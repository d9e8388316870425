"""`run`, `report` and `listing`: repeat all measurements, and make the pages."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from cutegemm.compile.listing import listing as listing_of
from cutegemm.errors import UnsupportedError
from docs.evidence.pages import listing as pingpong
from docs.evidence.pages import report as pages
from docs.evidence.steps import Step
from docs.evidence.steps_run import DONE, FAILED, SKIPPED, Outcome, machine_has, named, run

_COLOURS = {DONE: "green", FAILED: "red", SKIPPED: "yellow"}


def run_steps(
    out: Annotated[Path, typer.Option(help="The folder of the files.")] = Path("docs/evidence/data"),
    only: Annotated[list[str] | None, typer.Option(help="A file's name, or names with *; repeat it.")] = None,
    budget: Annotated[float | None, typer.Option(help="Seconds for all; what does not fit is left out.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Only list the steps.")] = False,
) -> None:
    """Make every file of docs/evidence/data again, the most important ones first; then run `report`.

    Each step is a process with a time limit. The status is 1 if a step failed or no step was done.
    """
    steps = named(only or [])
    console = Console(highlight=False)
    if listed:
        console.print(_catalogue(steps))
        return
    has = machine_has()
    outcomes: list[Outcome] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(step.seconds for step in steps))

        def started(step: Step) -> None:
            progress.update(task, description=f"{step.name}, about {step.seconds:.0f} s")

        for outcome in run(steps, out, has, budget, started):
            outcomes.append(outcome)
            progress.advance(task, outcome.step.seconds)
            progress.console.print(_line(outcome))
    console.print(_table(outcomes))
    states = [outcome.state for outcome in outcomes]
    if DONE in states:
        console.print("`python -m docs.evidence report` makes the pages of the documents of them.")
    if FAILED in states or DONE not in states:
        raise typer.Exit(1)


def report(docs: Annotated[Path, typer.Option(help="The folder of the documents.")] = Path("docs")) -> None:
    """Make the measured pages with plots and tables from docs/evidence/data, and run the notebooks again."""
    data = docs / "evidence" / "data"
    if not data.is_dir():
        raise UnsupportedError(f"report: cannot find the folder {data}, of whose measurements pages are made.")
    for path in pages.write(docs):
        print(path)


def listing(docs: Annotated[Path, typer.Option(help="The folder of the documents.")] = Path("docs")) -> None:
    """Compile the Hopper pingpong kernel and make its page, docs/pingpong.md. No GPU is needed."""
    path = docs / pingpong.FILE
    path.write_text(pingpong.page(listing_of(pingpong.plan(), pingpong.ARCH), version("nvidia-cutlass-dsl")))
    print(path)


def _catalogue(steps: tuple[Step, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("file", style="bold", no_wrap=True)
    table.add_column("seconds", justify="right")
    table.add_column("what it proves, [dim]and needs[/dim]")
    for step in steps:
        needs = f" [dim]({', '.join(step.needs)})[/dim]" if step.needs else ""
        table.add_row(step.name, f"{step.seconds:.0f}", escape(step.proves) + needs)
    table.add_row("", f"{sum(step.seconds for step in steps):.0f}", "all of them")
    return table


def _state(outcome: Outcome) -> str:
    colour = _COLOURS[outcome.state]
    return f"[{colour}]{outcome.state}[/{colour}]"


def _line(outcome: Outcome) -> str:
    return f"{_state(outcome)} {outcome.step.name} {outcome.seconds:.1f} s"


def _table(outcomes: list[Outcome]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("file", style="bold", no_wrap=True)
    table.add_column("")
    table.add_column("seconds", justify="right")
    table.add_column("")
    for outcome in outcomes:
        seconds = "" if outcome.state == SKIPPED else f"{outcome.seconds:.1f}"
        table.add_row(outcome.step.name, _state(outcome), seconds, escape(outcome.said))
    return table
