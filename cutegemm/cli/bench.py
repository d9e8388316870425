"""`cutegemm bench`: measurements, as a table or as data."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Measure the algebra, the simulator, the kernels.")

Json = Annotated[bool, typer.Option("--json", help="For a program.")]


def _show(module: Any, as_json: bool) -> None:
    with Console(stderr=True).status("measuring"):
        found = module.run()
    print(json.dumps(found, indent=2) if as_json else module.table(found))


@app.command("algebra")
def algebra(as_json: Json = False) -> None:
    """Operations of the algebra against the peers that are installed."""
    from cutegemm.bench import algebra as module

    _show(module, as_json)


@app.command("simulate")
def simulate(as_json: Json = False) -> None:
    """Time and memory of the simulator."""
    from cutegemm.bench import simulate as module

    _show(module, as_json)
