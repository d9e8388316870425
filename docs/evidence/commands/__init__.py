"""`python -m docs.evidence COMMAND`: measure, print tables or JSON, and make pages."""

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
    experts,
    fit_mma_sync,
    fit_simt,
    fit_sm90,
    gathered,
    gemm,
    grouped,
    instructions,
    invariant,
    models,
    prebuilt,
    ranks,
    renamed,
    scaled,
    simt,
    start,
)
from docs.evidence.commands import counted, remade, tables

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Measure the algebra, the simulator and the kernels; make the measured pages.",
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
    """Add a command whose module parses its own options."""

    def command(context: typer.Context) -> None:
        main(context.args)

    app.command(name, help=f"{what} `{name} --help` lists its options.", context_settings=_OWN_OPTIONS)(command)


_add("gemm", gemm.main, "Time GEMMs and cuBLAS: any shapes, types, layouts and plans.")
_add("simt", simt.main, "Time f32 GEMMs by SIMT plans and cuBLAS, and judge the choice.")
_add("choice", choice.main, "Time the chosen plans and cuBLAS on random problems.")
_add("decode", decode.main, "Time few rows by many weights in one CUDA graph.")
_add("chain", chain.main, "Time chains of GEMMs in one CUDA graph.")
_add("epilogues", epilogues.main, "Time GEMMs with an epilogue, and torch.")
_add("experts", experts.main, "Time mixtures of experts, and eager torch with its `grouped_mm`.")
_add("gathered", gathered.main, "Time the first product of a mixture with tokens that are gathered, and copied.")
_add("scaled", scaled.main, "Time block-scaled fp8 GEMMs and torch's `scaled_mm`.")
_add("instructions", instructions.main, "Test which properties of an MMA instruction change the bits of D.")
_add("grouped", grouped.main, "Time grouped GEMMs, torch's grouped_mm, and a loop over the groups.")
_add("invariant", invariant.main, "Time batch-invariant GEMMs, freely chosen ones and cuBLAS on layers of models.")
_add("models", models.main, "Time models of the sizes of public ones before and after `cutegemm.use(model)`.")
_add("ranks", ranks.main, "Time GEMMs of several GPUs, NCCL with cuBLAS, and torch's fused operators.")
_add("prebuilt", prebuilt.main, "Judge a library of prebuilt kernels on models that it was not selected by.")
_add("start", start.main, "Time until calls run at full speed, in new processes with an empty cache.")
_add("fit-simt", fit_simt.main, "Fit the constants of the choice among SIMT plans to measured times.")
_add(
    "fit-mma-sync",
    fit_mma_sync.main,
    "Fit the constants of the choice among mma.sync plans to measured times.",
)
_add("fit-sm90", fit_sm90.main, "Fit the constants of the choice among Hopper plans to measured times.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; an error that the user can correct ends with a message and status 2.

    arguments   None: the arguments of the process
    """
    with ended_in_words("evidence"):
        app(arguments, prog_name="python -m docs.evidence")
