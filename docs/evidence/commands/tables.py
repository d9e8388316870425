"""`algebra`, `simulate`, `choosing`, `functions` and `ladder`: one measurement, as a table or as JSON."""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated, Any

import typer
from rich.console import Console

from cutegemm.errors import UnsupportedError
from docs.evidence.files import record_text
from docs.evidence.rows import without_rates

Json = Annotated[bool, typer.Option("--json", help="For a program.")]


def _show(module: Any, as_json: bool) -> None:
    with Console(stderr=True).status("measuring"):
        found = module.run()
    print(json.dumps(found, indent=2) if as_json else module.table(found))


def algebra(as_json: Json = False) -> None:
    """Time operations of the algebra and of the other libraries that are installed."""
    from docs.evidence import algebra as module

    _show(module, as_json)


def simulate(as_json: Json = False) -> None:
    """Measure time and memory of the simulator."""
    from docs.evidence import simulate as module

    _show(module, as_json)


def choosing(as_json: Json = False) -> None:
    """Time the choice of a plan on random problems."""
    from docs.evidence import choosing as module

    _show(module, as_json)


def ladder(
    name: Annotated[str, typer.Argument(help="simt, mma_tf32, mma_bf16, mma_f16 or sm90")] = "simt",
    as_json: Json = False,
    counters: Annotated[bool, typer.Option(help="Also the counters of ncu, if it is installed.")] = True,
    sizes: Annotated[str, typer.Option(help="N of the problems N x N x N.")] = "4096,6144",
) -> None:
    """Compile and analyse every step of a ladder, and time it if the machine has a GPU."""
    from docs.evidence import ladder as module

    if name not in module.LADDERS:
        known = ", ".join(module.LADDERS)
        raise UnsupportedError(f"ladder: no ladder is called {name!r}; there are {known}.")
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", sizes):
        raise UnsupportedError(f"ladder: --sizes {sizes!r} is not a list of numbers such as 4096,6144.")
    with Console(stderr=True).status("measuring"):
        found = module.run(
            name, [int(n) for n in sizes.split(",")], module.COUNTED_SIZE if counters else None,
            say=lambda line: print(line, file=sys.stderr),
        )  # fmt: skip
    if as_json:
        print(record_text({**found, "rows": [*map(without_rates, found["rows"])]}))
    else:
        print(module.table(found))


def functions(
    kind: Annotated[str, typer.Argument(help="f32 or f64")] = "f32",
    gpu: Annotated[bool, typer.Option(help="On the GPU that is here, not emulated.")] = False,
    step: Annotated[int | None, typer.Option(help="Every how many-th pattern of bits is an input.", min=1)] = None,
    as_json: Json = False,
) -> None:
    """Measure errors of the elementwise functions against float64, and count their instructions."""
    from docs.evidence import functions as module

    if kind not in module.FLOATS:
        raise UnsupportedError(f"functions: {kind!r} is not one of the types; use {', '.join(module.FLOATS)}.")
    with Console(stderr=True).status("measuring"):
        found = module.run(kind, gpu, step)
    print(json.dumps(found, indent=1) if as_json else module.table(found))
