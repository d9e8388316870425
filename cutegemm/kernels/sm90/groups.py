"""Operands of grouped GEMMs in kernels: tensor maps that clip at the end of a group, and views of one group."""

from __future__ import annotations

import cutlass.cute as cute

from cutegemm.plan.memory.groups import ROWS, is_clipped, ragged_mode, ragged_modes, ragged_origin
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.work.grouped import GroupTile

_RAGGED_RANK = 4  # modes of a tensor map that clips at the end of a group


def mapped(plan: GemmPlan, name: str, tensor: cute.Tensor) -> cute.Tensor:
    """Return the tensor that the tensor map of an operand describes.

    If TMA has to clip its boxes at the ends of groups, it has the modes of `plan.memory.groups.ragged`. Otherwise it is
    the operand itself.

    name     name of the operand or result
    tensor   the operand in global memory: its two modes and L
    """
    mode = ragged_mode(plan.operands, name)
    if mode is None or not is_clipped(plan.operands, name):
        return tensor
    shape, stride = ragged_modes(tensor.shape[:2], tensor.stride[:2], mode)
    return cute.make_tensor(tensor.iterator, cute.make_layout(shape, stride=stride))


def extents_of(plan: GemmPlan, extents, tile: GroupTile):
    """Return the (M, N) of the D that a work tile belongs to: that of its group, if groups divide M or N.

    extents   (M, N) of all of D
    """
    mode = {"m": 0, "n": 1}.get(plan.operands.groups)
    if mode is None:
        return extents
    return (tile.size, extents[1]) if mode == 0 else (extents[0], tile.size)


def matrix_of(plan: GemmPlan, tensor: cute.Tensor, batch, tile: GroupTile) -> cute.Tensor:
    """Return the matrix (M, N) of one batch or group of D, or of an operand or result of the epilogue.

    tensor   (M, N, L) in memory, with stride 0 along L if groups divide one of its modes; or coordinates that TMA
             takes, with the modes of `plan.memory.groups.ragged`
    batch    index of the batch or group
    tile     the work tile
    """
    mode = {"m": 0, "n": 1}.get(plan.operands.groups)
    if mode is None:
        return tensor[None, None, batch]
    if cute.rank(tensor) == _RAGGED_RANK:
        return cute.domain_offset(ragged_origin(tile.begin, tile.size, mode), tensor)[None, None, 0, 0]
    origin = (tile.begin, 0) if mode == 0 else (0, tile.begin)
    return cute.domain_offset(origin, tensor[None, None, batch])


def tiles_along_k(mX: cute.Tensor, tile: tuple[int, int], step: int) -> cute.Tensor:
    """Tile an operand of a GEMM with groups along K: (b_MN, bK, tiles, k, two modes that move the address).

    Tiles start at any k. See `k_of` for the coordinates of a k-tile of a group.

    mX     coordinates with the modes of `plan.memory.groups.ragged`
    tile   (b_MN, bK)
    step   rows or columns between the starts of neighbouring tiles
    """
    (extent, K, *moves), (by_mn, by_k, *by_moves) = mX.shape, mX.stride
    shape = (*tile, cute.ceil_div(extent, step), K, *moves)
    return cute.make_tensor(mX.iterator, cute.make_layout(shape, stride=(by_mn, by_k, step * by_mn, by_k, *by_moves)))


def k_of(plan: GemmPlan, k_tile, tile: GroupTile) -> tuple:
    """Return the coordinates of a k-tile of a group in the last modes of `tiles_along_k`.

    k_tile   index of the k-tile in its group
    tile     the work tile
    """
    return ROWS - tile.size + k_tile * plan.cta_tile[2], ROWS, tile.begin + tile.size
