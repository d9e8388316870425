"""How the groups of a grouped GEMM lie in memory, and how one tensor map serves groups of any size.

The rows of all groups lie one after the other in one matrix, and a tensor in device memory says where each group ends;
or all groups have room for the same number of rows, and the tensor says how many each one has.
A TMA box is clipped at the extents of its tensor map, which the host has written before the sizes are known. So the
mode that groups divide gets a huge extent, `ROWS`, and a tile is addressed backwards from its end: row r of a group of
`size` rows has the coordinate ROWS - size + r. It is inside if and only if r < size, so the hardware clips a box at the
end of its group. Two more modes move the address to where the group is: their strides are 2^34 - s and s elements,
where s is the stride of a row, and their coordinates ROWS and `end`. Addresses have 64 bits and wrap around:

    ROWS * (2^34 - s) + end * s + (ROWS - size + r) * s = 2^64 + (end - size + r) * s

since ROWS = 2^30. In bytes of elements of 2^b bytes, the first term is a multiple of 2^64 too.

source   the descriptors of Triton's `triton.tools.ragged_tma`, and quack's `create_ragged_tensor_for_tma`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cutegemm.dtypes import s32
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.plan.problem import D_INDEX, INDEX, Operand, Operands, Problem
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

ENDS = "ends"  # name of the operand with the end of each group
COUNTS = "counts"  # name of the operand with the size of each group, if groups begin at multiples of extent / groups
ROWS = 1 << 30  # extent of the ragged mode in a tensor map
PITCH = 1 << 34  # in elements; ROWS * PITCH elements are a multiple of 2^64 bytes
MOVES = (1 << 31) - (1 << 16)  # extent of the two modes that move the address
SIZES = Operand(s32, "l", 4, modes=("l", "1"))  # the operand `ENDS` or `COUNTS`


def with_group_ends(operands: Operands) -> Operands:
    """Return the operands of a grouped GEMM with the ends of its groups.

    Operands without groups are returned as is, and so are those that have ends or counts already.

    >>> str(with_group_ends(Operands.of("bf16", batched=True, groups="m")).matrix("ends").dtype)
    's32'
    """
    if not operands.groups or {ENDS, COUNTS} & dict(operands.aux).keys():
        return operands
    return operands.with_aux(**{ENDS: SIZES})


def with_index(operands: Operands, name: str = INDEX) -> Operands:
    """Return the operands of a grouped GEMM with an index of rows, which it gathers from A or adds to D.

    An operand `INDEX` has the row of A for each row of D. An index that A does not have gives a row of zeros.
    An operand `D_INDEX` has the row of D that each row of A @ B is added to. A row that D does not have is dropped.
    If groups divide N, columns take the place of rows, and B that of A.

    operands   groups divide M or N
    name       `INDEX` or `D_INDEX`
    raises     PlanError for other operands or names

    >>> operands = with_index(Operands.of("bf16", layout="nt", batched=True, groups="m"))
    >>> operands.gathered, operands.transposed.gathered
    ('a', 'b')
    """
    if operands.groups not in ("m", "n"):
        rule = f"operands have groups = {operands.groups!r}, but rows are selected for groups along M or N only."
        raise PlanError("with_index", [f"{rule} Make them with batched=True and groups='m' or 'n'."])
    if name not in (INDEX, D_INDEX):
        raise PlanError("with_index", [f"name = {name!r} selects no rows. Pass {INDEX!r} for A, or {D_INDEX!r} for D."])
    return operands.with_aux(**{name: Operand(s32, operands.groups, 4, modes=(operands.groups, "1"))})


def operand_of_sizes(operands: Operands) -> str:
    """Return the name of the operand that says how large groups are: `ENDS`, or `COUNTS` if the operands have it.

    >>> operand_of_sizes(Operands.of("bf16", batched=True, groups="m").with_aux(counts=SIZES))
    'counts'
    """
    return COUNTS if COUNTS in dict(operands.aux) else ENDS


def group_bounds(name: str, values: np.ndarray, extent: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first element of each group, and the number of its elements.

    Ends that decrease or exceed the extent give groups without elements.

    name     `ENDS` or `COUNTS`
    values   element of that operand for each group
    extent   extent of the mode that groups divide

    >>> begins, sizes = group_bounds("ends", np.array([2, 2, 9]), 6)
    >>> begins.tolist(), sizes.tolist()
    ([0, 2, 2], [2, 0, 4])
    >>> begins, sizes = group_bounds("counts", np.array([1, 0, 9]), 6)
    >>> begins.tolist(), sizes.tolist()
    ([0, 2, 4], [1, 0, 2])
    """
    if name == COUNTS:
        room = extent // max(1, len(values))
        return room * np.arange(len(values)), np.clip(values, 0, room)
    ends = np.clip(values, 0, extent)
    begins = np.concatenate([np.zeros(1, ends.dtype), ends])[:-1]
    return begins, np.maximum(ends - begins, 0)


def ragged(layout: Layout, mode: int) -> Layout:
    """Return the layout of a tensor map whose boxes are clipped at the ends of groups.

    layout   (rows, columns) of the matrix that holds all groups, with strides in elements
    mode     index of the mode that the groups divide. Its stride must not be 1: TMA needs a multiple of 16 bytes

    >>> str(ragged(Layout((1000, 64), (64, 1)), 0))
    '(1073741824,64,2147418112,2147418112):(64,1,17179869120,64)'
    """
    shape, stride = ragged_modes(layout.shape, layout.stride, mode)
    return Layout(shape, stride)


def ragged_modes(shape: Sequence[Any], stride: Sequence[Any], mode: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return shape and stride of `ragged`, from those of a matrix. They may be traced values."""
    extents = tuple([ROWS if i == mode else extent for i, extent in enumerate(shape)])
    by_row = stride[mode]
    return (*extents, MOVES, MOVES), (*stride, PITCH - by_row, by_row)


def ragged_origin(begin: Any, size: Any, mode: int) -> tuple[Any, ...]:
    """Return the coordinate, in `ragged`, of the first element of a group. The others follow in the first two modes.

    begin   index of the group's first row
    size    number of rows of the group

    >>> matrix = Layout((1000, 64), (64, 1))
    >>> first = ragged(matrix, 0)(ragged_origin(300, 20, 0))
    >>> first % 2**63 == matrix((300, 0))  # elements of two bytes: addresses wrap around at 2^63 elements
    True
    """
    origin: list[Any] = [0, 0, ROWS, begin + size]
    origin[mode] = ROWS - size
    return tuple(origin)


def ragged_mode(operands: Operands, name: str) -> int | None:
    """Return the index of the mode of an operand that groups divide; None if it does not have that mode.

    It is None for a D that rows are added to: a group may have any of its rows.

    name   name of the operand or result

    >>> operands = Operands.of("bf16", batched=True, groups="m")
    >>> ragged_mode(operands, "a"), ragged_mode(operands, "b"), ragged_mode(operands, "d")
    (0, None, 0)
    """
    is_target = name == "d" and operands.scattered
    if not operands.groups or is_target or operands.groups not in operands.modes_with_elements(name):
        return None
    return [mode[0] for mode in operands.modes(name)].index(operands.groups)


def is_clipped(operands: Operands, name: str) -> bool:
    """Return whether what TMA copies of an operand is clipped at the end of its group.

    Groups that divide M or N need no clipping of A and B: the rows of other groups are multiplied, but not stored.
    If groups divide K, they would be added, so both are clipped.

    name   name of the operand or result

    >>> [is_clipped(Operands.of("bf16", batched=True, groups=mode), "a") for mode in "mk"]
    [False, True]
    """
    if ragged_mode(operands, name) is None:
        return False
    return operands.groups == "k" or name not in ("a", "b", *operands.of_mainloop)


def elements_between_starts(operands: Operands, name: str) -> int:
    """Return how many elements apart the boxes of an operand can start, along the mode that groups divide.

    TMA starts boxes at multiples of 16 bytes of the contiguous mode; on Hopper another start is an illegal instruction.
    A tile of such an operand begins at the last start that is not after its first element, and is longer by the
    distance. If groups do not divide the contiguous mode, the distance is 1. Groups never divide that of A and B.

    name   name of an operand that the mainloop loads

    >>> from cutegemm.plan.mainloop.block_scaled import with_scales
    >>> grouped = Operands.of("e4m3", layout="nt", out="bf16", batched=True, groups="m")
    >>> [elements_between_starts(with_scales(grouped, ("1x128", "128x128")), name) for name in ("a", "scale_a")]
    [1, 4]
    """
    operand = operands.matrix(name)
    if name in ("a", "b") or ragged_mode(operands, name) is None or operand.major != operands.groups:
        return 1
    return TMA_INNER_ALIGNED_BYTES * 8 // operand.dtype.bits


def elements_of_stage(operands: Operands, name: str, tile: int) -> int:
    """Return how many rows (or columns) of an operand a stage holds, so that it has a tile of any group.

    name   name of an operand that the mainloop loads
    tile   rows (or columns) of the tile
    """
    apart = elements_between_starts(operands, name)
    return tile if apart == 1 else tile + apart


def batch_of_equal_groups(problem: Problem) -> Problem:
    """Return the batched problem whose matrices are the groups, if all groups have the same size.

    Leading strides remain. A problem without groups is returned as is.

    problem   a grouped problem; its number of groups is L

    >>> operands = Operands.of("bf16", batched=True, groups="m")
    >>> str(batch_of_equal_groups(Problem(1000, 64, 128, 8, operands)))
    '125x64x128x8'
    """
    operands = problem.operands
    if not operands.groups:
        return problem
    dense = without_groups(operands)
    names = [name for name in ("a", "b", "c", "d", *dict(dense.aux)) if not dense.matrix(name).broadcast]
    leading = tuple([(name, max(problem.layout(name).stride[:2])) for name in names])
    own = -(-getattr(problem, operands.groups) // max(1, problem.l))
    return replace(problem, operands=dense, ld=leading, sources=None, targets=None, **{operands.groups: own})


def without_groups(operands: Operands) -> Operands:
    """Return the operands of a batch whose matrices are the groups, without the ends of groups and indices of rows.

    >>> grouped = with_group_ends(Operands.of("bf16", batched=True, groups="m"))
    >>> without_groups(grouped) == Operands.of("bf16", batched=True)
    True
    """
    indices = ((INDEX, operands.gathered), (D_INDEX, operands.scattered))
    own = (ENDS, COUNTS, *[name for name, selects in indices if selects])
    aux = tuple([(name, operand) for name, operand in operands.aux if name not in own])
    return replace(operands, groups="", aux=aux)
