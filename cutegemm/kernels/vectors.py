"""Copy vectors of neighbouring elements in one thread. All functions run while the kernel is traced.

`cute.copy` handles tensors with any modes. To find that a vector has one mode takes it a millisecond, 30 times as long
as the access itself, and the epilogue of a large tile has a thousand vectors.
"""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
from cutlass import Boolean

from cutegemm.kernels import lower
from cutegemm.tile.atoms import CopyAtom


def copy_vector(atom: CopyAtom, source: cute.Tensor, target: cute.Tensor, where: Any = None) -> None:
    """Copy a vector of neighbouring elements by a copy atom, in as many accesses as needed.

    source   vector that is read
    target   vector that is written
    where    predicate as returned by `condition`: nothing is copied if it does not hold; None: always copy
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
    """Convert a run-time Boolean to the predicate tensor of one access, as `copy_vector` takes it.

    holds   whether the access is made
    """
    out = cute.make_rmem_tensor((1,), Boolean)
    out[0] = holds
    return out


def flat(tensor: cute.Tensor) -> cute.Tensor:
    """View a tensor of any rank as a vector, i.e. with a single mode."""
    shape = tensor.shape
    if not isinstance(shape, int) and len(shape) == 1 and isinstance(shape[0], int):
        return tensor
    of_one = cute.coalesce(tensor).layout
    return cute.make_tensor(tensor.iterator, cute.make_layout((of_one.shape,), stride=(of_one.stride,)))


def by_vectors(tensor: cute.Tensor, vector: Any) -> cute.Tensor:
    """View a thread's elements of a tile as (elements of a vector, vectors), both single modes.

    tensor   the elements, with the modes of the accumulators
    vector   shape of the elements that make a vector
    """
    return cute.coalesce(cute.zipped_divide(tensor, vector), target_profile=(1, 1))


def zeros(values: int, kind: Any) -> cute.Tensor:
    """Return a vector of `values` registers of the DSL type `kind`, all set to 0."""
    out = cute.make_rmem_tensor((values,), kind)
    for v in range(values):
        out[v] = kind(0)
    return out
