"""The command line: `cutegemm gemm | show | plans | explain | check | explore | profile | figures | tune | ...`."""

from __future__ import annotations

from typing import Annotated

import typer

import cutegemm
from cutegemm.cli import ahead, explain, gemm, inspect
from cutegemm.cli.explore import explore
from cutegemm.errors import ended_in_words

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
)
app.command("gemm", cls=gemm.Command)(gemm.command)
app.command("show")(inspect.show)
app.command("plans")(inspect.plans)
app.command("explain")(explain.explain)
app.command("check")(inspect.check)
app.command("explore")(explore)
app.command("profile")(inspect.profile)
app.command("figures")(inspect.figures)
app.command("tune")(ahead.tune)
app.command("prepare")(ahead.prepare)
app.command("export")(ahead.export)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cutegemm {cutegemm.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """GEMMs described by layouts: checked, simulated, analysed, drawn, compiled and run."""


def main() -> None:
    """The entry point: errors that a user can cause end with a message and status 2."""
    with ended_in_words("cutegemm"):
        app()
