"""The command line: `cutegemm gemm | show | plans | check | profile | figures | bench`."""

from __future__ import annotations

import sys

import typer

from cutegemm.cli import bench, gemm, inspect
from cutegemm.errors import CutegemmError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="GEMMs described by layouts: checked, simulated, analysed, drawn, compiled and run.",
)
app.command("gemm")(gemm.command)
app.command("show")(inspect.show)
app.command("plans")(inspect.plans)
app.command("check")(inspect.check)
app.command("profile")(inspect.profile)
app.command("figures")(inspect.figures)
app.add_typer(bench.app, name="bench")


def main() -> None:
    """The entry point: errors that a user can cause end with a message and status 2."""
    try:
        app()
    except (CutegemmError, OSError) as error:
        print(f"cutegemm: {error}", file=sys.stderr)
        sys.exit(2)
    except MemoryError as error:
        print(f"cutegemm: this does not fit into memory: {error}", file=sys.stderr)
        sys.exit(2)
