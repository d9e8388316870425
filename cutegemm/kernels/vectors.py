"""Neighbours of a thread, moved from one place to another; what is here is run while tracing.

`cute.copy` loops over the modes of any tensors. To find out that a vector has one takes it a millisecond, thirty times
as long as the access itself does, and an epilogue of a large tile has a thousand of them.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Boolean

from cutegemm.kernels import lower
from cutegemm.tile.atoms import CopyAtom


def copy_vector(atom: CopyAtom, source: cute.Tensor, target: cute.Tensor, where: Any = None) -> None:
    """A vector, in as many accesses of an atom as it takes.

    where   of `condition`: nothing is moved where it does not hold
    """
    source, target = flat(source), flat(target)
    accesses = source.shape[0] // atom.values
    if accesses > 1:
        source, target = [cute.logical_divide(x, (atom.values,)) for x in (source, target)]
        source, target = [cute.group_modes(x, 0, 1) for x in (source, target)]
        if where is not None:
            where = cute.make_tensor(where.iterator, cute.make_layout((accesses,), stride=(0,)))
    cute.copy_atom_call(lower.copy_atom(atom, source.element_type), source, target, pred=where)


def condition(holds: Any) -> cute.Tensor:
    """What an access is made under: where a Boolean that is known when the kernel runs holds."""
    out = cute.make_rmem_tensor((1,), Boolean)
    out[0] = holds
    return out


def flat(tensor: cute.Tensor) -> cute.Tensor:
    """A vector as (elements)."""
    shape = tensor.shape
    if not isinstance(shape, int) and len(shape) == 1 and isinstance(shape[0], int):
        return tensor
    of_one = cute.coalesce(tensor).layout
    return cute.make_tensor(tensor.iterator, cute.make_layout((of_one.shape,), stride=(of_one.stride,)))


def by_vectors(tensor: cute.Tensor, vector: Any) -> cute.Tensor:
    """A thread's part of a tile as (elements, vectors), each of them one mode.

    vector   the tile of elements that make a vector
    """
    return cute.coalesce(cute.zipped_divide(tensor, vector), target_profile=(1, 1))


def zeros(values: int, kind: Any) -> cute.Tensor:
    """A vector of registers."""
    out = cute.make_rmem_tensor((values,), kind)
    for v in range(values):
        out[v] = kind(0)
    return out
