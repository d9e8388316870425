"""Of gated epilogues: B, and rows beside it, as the columns of gates and of ups."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand
from cutegemm.plan.stream import OperandStream


def columns_of_b(plan: GemmPlan, mD: cute.Tensor) -> Any:
    """Columns of A @ B, of which D (M, N, L) may have half."""
    return mD.shape[1] * 2 if plan.operands.gated else mD.shape[1]


def box_tile(plan: GemmPlan, stream: OperandStream) -> tuple[int, ...]:
    """Return what TMA loads of a stream for a k-tile: (rows, k), or (gate columns, 2, k) of a gated B."""
    rows, columns = stream.tile
    return (rows // 2, 2, columns) if plan.operands.gated and stream.name == "b" else (rows, columns)


def gate_and_up(mB: cute.Tensor, plan: GemmPlan, half: Any) -> cute.Tensor:
    """B (N, K, L) as (gates, gate or up, K, L).

    half   columns of D
    """
    (_, K, L), (by_n, by_k, by_l) = mB.shape, mB.stride
    by_column, to_up = steps(plan.loaded.b, by_n, half)
    layout = cute.make_layout((half, 2, K, L), stride=(by_column, to_up, by_k, by_l))
    return cute.make_tensor(mB.iterator, layout)


def by_blocks(mB: cute.Tensor, plan: GemmPlan, half: Any) -> tuple[cute.Tensor, cute.Tensor]:
    """B (N, K, L), and the coordinates (column of D, k) of its elements, as tiles have them: ((gates of a block, gate
    or up, blocks, tiles), K, L).

    half   columns of D
    """
    glu = plan.glu
    assert glu is not None
    (_, K, L), (by_n, by_k, by_l) = mB.shape, mB.stride
    by_column, to_up = steps(plan.loaded.b, by_n, half)
    block, columns = glu.block, glu.d_columns
    shape = (block, 2, glu.blocks, cute.ceil_div(half, columns))
    strides = (by_column, to_up, block * by_column, columns * by_column)
    whole = cute.make_layout((shape, K, L), stride=(strides, by_k, by_l))
    of_d = (cute.E(0), 0, block * cute.E(0), columns * cute.E(0))
    coords = cute.make_identity_tensor((half, K))
    layout = cute.make_layout((shape, K), stride=(of_d, cute.E(1)))
    return cute.make_tensor(mB.iterator, whole), cute.make_tensor(coords.iterator, layout)


def as_accumulators(tile: cute.Tensor, plan: GemmPlan) -> cute.Tensor:
    """A tile of D as the sums see it: gate and up at the same place."""
    glu = plan.glu
    if glu is None:
        return tile
    of_n = cute.make_layout((glu.block, 2, glu.blocks), stride=(1, 0, glu.block))
    return cute.composition(tile, (cute.make_layout(plan.cta_tile[0]), of_n))


def steps(operand: Operand, stride: Any, half: Any) -> tuple[Any, Any]:
    """From a gate to the next one, and to its up.

    stride   of the columns of B, or of a row beside it
    half     columns of D
    """
    if operand.gated == "pairs":
        return 2 * stride, stride
    return stride, cute.assume(half * stride, divby=operand.align_elems)


def up_of(row: cute.Tensor, operand: Operand) -> cute.Tensor:
    """The numbers of the ups of a row (M, N, L), which is given as those of the gates."""
    _, to_up = steps(operand, 1, row.shape[1])
    return cute.make_tensor(row.iterator + to_up, row.layout)


class Both:
    """Elements of fragments of gates and of ups: (gate, up) of each."""

    def __init__(self, gates: Any, ups: Any) -> None:
        self.gates, self.ups = gates, ups

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.gates[i], self.ups[i]
