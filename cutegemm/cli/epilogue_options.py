"""Options of the command line for an epilogue: `--epilogue "gelu(acc + bias)" --operand bias:row:f32`."""

from __future__ import annotations

from typing import Annotated

import typer

EpilogueText = Annotated[
    str | None,
    typer.Option(
        "--epilogue",
        help='What becomes of the sums: "gelu(acc + bias)"; further results behind commas: "relu(acc), aux = acc".',
    ),
]
OperandTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--operand",
        help="An operand of the epilogue, or a further result: NAME:KIND or NAME:KIND:TYPE, where KIND is row (a "
        "number for each column of D), column, tile, element, scalar (NAME:scalar=VALUE) or result.",
    ),
]
