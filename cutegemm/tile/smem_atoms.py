"""Shared-memory layout atoms: the smallest layouts that wgmma reads and TMA writes."""

from __future__ import annotations

from cutegemm.dtypes import DType
from cutegemm.errors import PlanError
from cutegemm.layout.layout import Layout
from cutegemm.layout.swizzle import ComposedLayout, Swizzle
from cutegemm.tile.atoms import table_of_atoms

# kind -> (bits of the swizzle, bytes of a row)
KINDS = {"interleave": (0, 16), "32B": (1, 32), "64B": (2, 64), "128B": (3, 128)}
SMEM_ATOM_ROWS = 8


@table_of_atoms
def smem_atom(dtype: DType, major: str, kind: str) -> ComposedLayout:
    """Return the smallest layout in shared memory that wgmma reads: 8 rows, contiguous along `major`.

    Offsets count elements: the 128-byte swizzle, S<3,4,3> on bytes, is S<3,3,3> on 16-bit elements.
    `tile_to_shape` repeats the atom over a (M, K) or (N, K) tile, or over (M, K, stages).

    dtype    element type of 8 to 64 bits
    major    contiguous mode: k for (8, row):(row, 1), or mn for (row, 8):(1, row)
    kind     length of a row, and swizzle of the 8 rows: interleave (16 bytes, no swizzle), 32B, 64B or 128B
    raises   PlanError with every broken rule
    source   CuTe, mma_traits_sm90_gmma.hpp:74-83; PTX ISA, "Shared Memory Matrix Layout" of wgmma

    >>> from cutegemm.dtypes import bf16, f32
    >>> str(smem_atom(bf16, "k", "128B")), str(smem_atom(f32, "mn", "32B"))
    ('S<3,3,3> o 0 o (8,64):(64,1)', 'S<1,2,3> o 0 o (8,8):(1,8)')
    """
    rules = []
    if major not in ("k", "mn"):
        rules.append(f"major = {major!r} is not k or mn")
    if kind not in KINDS:
        rules.append(f"kind = {kind!r} is not one of {', '.join(KINDS)}")
    if rules:
        raise PlanError(f"smem_atom of {dtype}", rules)
    bits, row_bytes = KINDS[kind]
    row = row_bytes * 8 // dtype.bits
    rows = SMEM_ATOM_ROWS
    outer = Layout((rows, row), (row, 1)) if major == "k" else Layout((row, rows), (1, row))
    return ComposedLayout(Swizzle(bits, 4, 3).recast(8, dtype.bits), 0, outer)


def widest_smem_kind(dtype: DType, extent: int) -> str:
    """Return the widest swizzle of a wgmma operand in shared memory whose row length divides `extent`.

    dtype     element type
    extent    extent of the tile along its contiguous mode, in elements
    returns   "128B", "64B", "32B" or "interleave" (16 bytes, no swizzle)
    raises    PlanError if 16 bytes, the shortest row, do not divide the extent

    >>> from cutegemm.dtypes import bf16
    >>> widest_smem_kind(bf16, 64), widest_smem_kind(bf16, 96)
    ('128B', '64B')
    """
    dtype = DType.parse(dtype)
    if type(extent) is not int:
        raise PlanError(f"widest_smem_kind of {dtype}", [f"extent = {extent!r} is not an integer"])
    for kind, (_, row_bytes) in reversed(KINDS.items()):
        if extent > 0 and extent * dtype.bits % (row_bytes * 8) == 0:
            return kind
    size = extent * dtype.bits / 8
    rule = f"{extent} elements are {size:g} bytes, which is not a multiple of 16 bytes, the shortest row"
    raise PlanError(f"widest_smem_kind of {dtype}", [rule])
