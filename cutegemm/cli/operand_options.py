"""Options of block scales, of an epilogue, and of groups.

--scales 1x128,128x128
--epilogue "acc + b" --operand b:row
--groups 8 --along m --ends 100,300,512
"""

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
GroupCount = Annotated[
    int | None,
    typer.Option("--groups", help="Number of groups of a grouped GEMM. M, N and K are those of all groups together."),
]
Along = Annotated[str, typer.Option("--along", help="The mode that --groups divide: m, n or k.")]
Ends = Annotated[
    str | None,
    typer.Option(help="End of each group, such as 100,300,512. By default groups have equal sizes."),
]
Sizes = Annotated[str | None, typer.Option(help="Size of each group instead of its end, such as 100,200,212.")]
