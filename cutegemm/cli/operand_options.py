"""Options of block scales, `--scales 1x128,128x128`, and of an epilogue, `--epilogue "acc + b" --operand b:row`."""

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
Scales = Annotated[
    str | None,
    typer.Option(
        "--scales",
        help="Block scales of float8 A and B: 1x128, one for each row and 128 of K, or 128x128, such as 1x128,128x128.",
    ),
]
