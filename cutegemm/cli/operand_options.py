"""The command-line options of an epilogue: `--epilogue "gelu(acc + bias)" --operand bias:row:f32`."""

from __future__ import annotations

from typing import Annotated

import typer

EpilogueText = Annotated[
    str | None,
    typer.Option(
        "--epilogue",
        help='Expression that computes D from the accumulator: "gelu(acc + bias)". '
        'Auxiliary outputs follow after commas: "relu(acc), aux = acc".',
    ),
]
OperandTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--operand",
        help="An operand or auxiliary output of the epilogue: NAME:KIND or NAME:KIND:TYPE. KIND is row (one "
        "number for each column of D), column, tile, element, scalar (NAME:scalar=VALUE) or result.",
    ),
]
