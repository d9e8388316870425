"""`python -m docs.evidence COMMAND`: measurements, as a table or as data, and the pages that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer

from cutegemm.errors import ended_in_words
from docs.evidence import (
    chain,
    choice,
    decode,
    epilogues,
    fit_mma_sync,
    fit_simt,
    fit_sm90,
    gemm,
    models,
    renamed,
    scaled,
    simt,
)
from docs.evidence.commands import counted, remade, tables

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Measure the algebra, the simulator, the kernels; make the pages of the documents.",
)
app.command("run")(remade.run_steps)
app.command("report")(remade.report)
app.command("listing")(remade.listing)
app.command("algebra")(tables.algebra)
app.command("simulate")(tables.simulate)
app.command("choosing")(tables.choosing)
app.command("functions")(tables.functions)
app.command("ladder")(tables.ladder)
app.command("rename")(renamed.rename)
app.command("counters")(counted.counters)
app.command("replay")(counted.replayed)
app.command("proof")(counted.proof)
app.command("sanitize")(counted.sanitized)

_OWN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def _add(name: str, main: Callable[[Sequence[str]], Any], what: str) -> None:
    """A command whose module reads its own options."""

    def command(context: typer.Context) -> None:
        main(context.args)

    app.command(name, help=f"{what} `{name} --help` lists its options.", context_settings=_OWN_OPTIONS)(command)


_add("gemm", gemm.main, "GEMMs beside the vendor library: any shapes, types, layouts and plans.")
_add("simt", simt.main, "f32 GEMMs by threads beside the vendor library, and the choice among their plans.")
_add("choice", choice.main, "The choice beside the vendor library, on problems drawn by a seed.")
_add("decode", decode.main, "Few rows by many weights in one CUDA graph.")
_add("chain", chain.main, "Products one behind the other in one CUDA graph.")
_add("epilogues", epilogues.main, "GEMMs with an epilogue beside torch.")
_add("scaled", scaled.main, "Block-scaled fp8 GEMMs and torch's scaled_mm.")
_add("models", models.main, "Models of the sizes of Llama and GPT-2 before and after `cutegemm.use(model)`.")
_add("fit-simt", fit_simt.main, "The constants of the choice among SIMT plans, from measured times.")
_add(
    "fit-mma-sync",
    fit_mma_sync.main,
    "The constants of the choice among mma.sync plans, from measured times.",
)
_add("fit-sm90", fit_sm90.main, "The constants of the choice among Hopper plans, from measured times.")


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: errors that a user can cause end with a message and status 2.

    arguments   the process's where left out
    """
    with ended_in_words("evidence"):
        app(arguments, prog_name="python -m docs.evidence")
