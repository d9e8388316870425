"""Packing: an operand is copied first, to memory where the mainloop can read it by its widest accesses.

As in a BLAS for CPUs, which packs panels before it multiplies. A k-major operand is turned round on the way,
and rows that are not aligned become so: then the mainloop copies it with 128-bit cp.async, without any
transposition. It costs 2 * M * K elements of memory traffic against the 2 * M * N * K operations that follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.arch import CACHE_LINE_BYTES, WARP_THREADS
from cutegemm.errors import PlanError
from cutegemm.plan.building import ACCESS_BITS, K_RUN, Builder, Shared
from cutegemm.plan.plan import SharedLayout
from cutegemm.plan.problem import Operand, Operands
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.tiled_copy import TiledCopy

ALIGN_BYTES = ACCESS_BITS // 8
_TILE = (64, 64)
_THREADS = 256


@dataclass(frozen=True)
class Packing:
    """How one operand is packed, tile by tile, a CTA a tile.

    name     "a" or "b"
    tile     (mn, k) elements of a CTA
    load     global memory to registers, along the operand's contiguous mode
    smem     shared memory (mn, k) that the tile passes through
    store    shared memory to the packed matrix (mn, k, L), whose mode mn is contiguous

    Rows beyond the operand's extent, up to the next multiple of a cache line, are zeros. So every run of the packed
    matrix begins at a line: a warp's 512 bytes of it are four lines, not five.
    """

    name: str
    tile: tuple[int, int]
    load: TiledCopy
    smem: SharedLayout
    store: TiledCopy

    @property
    def threads(self) -> int:
        """Of a CTA."""
        return self.load.threads

    @property
    def line(self) -> int:
        """Elements of a cache line."""
        return CACHE_LINE_BYTES * 8 // self.store.atom.dtype.bits

    @property
    def read(self) -> CopyAtom:
        """Shared memory to registers, by the vectors that are stored."""
        return self.store.atom

    def extent(self, rows: Any) -> Any:
        """Rows of the packed matrix, which is also its leading stride; also of values that a kernel computes
        with.

        >>> make_packing(Operands.of("f32"), "a").extent(4097)
        4128
        """
        line = self.line
        return (rows + (line - 1)) // line * line

    def ctas(self, rows: Any, columns: Any, batch: Any) -> Any:
        """Those that pack a matrix (rows, columns, batch); also of values that a kernel computes with.

        >>> make_packing(Operands.of("f32"), "a").ctas(100, 65, 3)
        12
        """
        of_rows, of_columns = [(e + (t - 1)) // t for e, t in zip((rows, columns), self.tile, strict=True)]
        return of_rows * of_columns * batch

    def __str__(self) -> str:
        return f"{self.name.upper()} by tiles of {self.tile[0]} x {self.tile[1]}, {self.threads} threads"


def packed(operand: Operand, first_mode: str) -> Operand:
    """An operand as it is after packing.

    first_mode   "m" of A, "n" of B
    """
    return Operand(operand.dtype, first_mode, ALIGN_BYTES)


def make_packing(operands: Operands, name: str) -> Packing:
    """The packing of A or of B.

    raises   PlanError where the operand cannot be packed
    """
    operand: Operand = getattr(operands, name)
    if operand.dtype.bits > ACCESS_BITS // 2 or ACCESS_BITS % operand.dtype.bits:
        raise PlanError("packing", [f"{operand.dtype} is not packed."])
    builder = Builder(f"packing of {name.upper()}", operands, (*_TILE, _TILE[1]), 1, {})
    vector = ACCESS_BITS // operand.dtype.bits
    width = min(vector, operand.align_elems)
    load = builder.attempt(lambda: builder.copy(operand, _TILE[0], _THREADS, "register", width, k_run=K_RUN))
    target = packed(operand, "m" if name == "a" else "n")
    store = builder.attempt(lambda: builder.copy(target, _TILE[0], _THREADS, "register", vector))
    if load is None or store is None:
        raise PlanError(builder.subject, builder.broken)
    assert store.atom == universal_copy(operand.dtype, ACCESS_BITS)
    assert load.threads == store.threads == _THREADS
    assert _THREADS % WARP_THREADS == 0
    return Packing(name, _TILE, load, Shared(pad=vector).layout(_TILE[0], _TILE[1], 1), store)
