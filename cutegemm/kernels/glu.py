"""Gated epilogues (GLU): the columns of B, and row operands of the epilogue, divided into gates and up projections.

Gates and up projections may alternate ("pairs"), or all gates come first, then all up projections ("halves").
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand
from cutegemm.plan.stream import OperandStream


def columns_of_b(plan: GemmPlan, mD: cute.Tensor) -> Any:
    """Return the number of columns of A @ B: N of D (M, N, L), or 2 N for a gated epilogue.

    A gated epilogue combines a gate and an up column of A @ B to one column of D.

    mD   D in global memory
    """
    return mD.shape[1] * 2 if plan.operands.gated else mD.shape[1]


def box_tile(plan: GemmPlan, stream: OperandStream) -> tuple[int, ...]:
    """Return the shape of the tile of an operand that TMA loads for each k-tile.

    It is (rows or columns, k), and (gate columns, 2, k) for the B of a gated epilogue. If rows are gathered, it is one
    row.

    stream   the operand: its tile, its box and its stages in shared memory
    """
    rows, columns = stream.tile
    if stream.index:
        return 1, columns
    return (rows // 2, 2, columns) if plan.operands.gated and stream.name == "b" else (rows, columns)


def gate_and_up(mB: cute.Tensor, plan: GemmPlan, half: Any) -> cute.Tensor:
    """View the B (N, K, L) of a gated epilogue as (gate columns, 2, K, L).

    Index 0 of the second mode selects the gates, index 1 the up projection.

    half   number of columns of D: half the columns of B
    """
    (_, K, L), (by_n, by_k, by_l) = mB.shape, mB.stride
    by_column, to_up = steps(plan.loaded.b, by_n, half)
    layout = cute.make_layout((half, 2, K, L), stride=(by_column, to_up, by_k, by_l))
    return cute.make_tensor(mB.iterator, layout)


def by_blocks(mB: cute.Tensor, plan: GemmPlan, half: Any) -> tuple[cute.Tensor, cute.Tensor]:
    """View B (N, K, L) in the column order of the tiles: blocks of gate columns, each followed by its up columns.

    half      number of columns of D
    returns   two tensors. B, where the mode of columns has four modes: gates of a block, gate or up, blocks of a tile,
              tiles. And the coordinates (column of D, k) of each element of B, in the same shape without L
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
    """View a tile of D in the shape of the accumulators: each accumulator gets the element of D that it contributes to.

    In a gated epilogue (GLU), two accumulators, a gate and its up projection, give one element of D. Both have that
    element in the view: the mode from gates to ups has stride 0. Without a gated epilogue the view is the tile itself.

    tile   the tile of D, or of the coordinates of its elements
    plan   the plan, which says how gate and up columns alternate in the accumulators
    """
    glu = plan.glu
    if glu is None:
        return tile
    of_n = cute.make_layout((glu.block, 2, glu.blocks), stride=(1, 0, glu.block))
    return cute.composition(tile, (cute.make_layout(plan.cta_tile[0]), of_n))


def steps(operand: Operand, stride: Any, half: Any) -> tuple[Any, Any]:
    """Return two distances in memory, in elements: between neighbouring gates, and from a gate to its up projection.

    They depend on whether gates and up projections alternate in memory, or all up projections follow all gates.

    operand   B, or a row operand of the epilogue
    stride    stride of its columns
    half      number of columns of D
    """
    if operand.gated == "pairs":
        return 2 * stride, stride
    return stride, cute.assume(half * stride, divby=operand.align_elems)


def up_of(row: cute.Tensor, operand: Operand) -> cute.Tensor:
    """View the up projections of a row operand (M, N, L) of a gated epilogue.

    row       a view of the gates of the same operand
    operand   its element type and its pairing of gates and up projections
    """
    _, to_up = steps(operand, 1, row.shape[1])
    return cute.make_tensor(row.iterator + to_up, row.layout)


class Both:
    """Pairs of gate and up values that behave as one fragment: element i is (gates[i], ups[i])."""

    def __init__(self, gates: Any, ups: Any) -> None:
        self.gates, self.ups = gates, ups

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.gates[i], self.ups[i]
