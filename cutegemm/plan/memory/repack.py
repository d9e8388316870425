"""Repack passes: an operand is copied before the GEMM, to a layout that the mainloop loads faster.

The contiguous mode of the repacked matrix depends on the kernel that follows. For SIMT plans it is M or N: their
threads then copy by 128-bit cp.async and do not transpose. For Hopper plans it is K: wgmma reads elements of 8 and 32
bits from shared memory only if they are K-major. Rows or columns that were not aligned are aligned in the copy.
A repack pass moves 2 * M * K elements; the GEMM that follows computes 2 * M * N * K operations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.machine.arch import ACCESS_BITS, CACHE_LINE_BYTES, REGISTER_BITS
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.work.arithmetic import ceil_div
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_tv
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

ALIGN_BYTES = ACCESS_BITS // 8
# Elements of a tile's side. Tiles of a half or a quarter of that were 0.5 us faster at best where they give a small
# operand more CTAs, and took 1.02 to 1.4 times as long for 4096 x 4096 of tf32 and fp8 (H200, 2026-11-22).
_LEAST_SIDE = 64
_THREADS = 256
_CHUNK_BITS = 3  # 8 vectors of 16 bytes lie side by side in the banks of shared memory


@dataclass(frozen=True)
class Repack:
    """How a kernel before the GEMM (a repack pass) copies A or B to a layout that the mainloop loads faster.

    Each CTA copies one tile, through shared memory. A row or column of the copy along its contiguous mode, called a
    run, is padded with zeros to whole cache lines. So TMA can load the matrix, and a warp's stores of 512 bytes touch
    four lines, not five.

    name     "a" or "b"
    major    "m", "n" or "k": the contiguous mode of the repacked matrix
    tile     (rows of A or columns of B, k) that a CTA copies, in elements
    load     copy from global memory to registers, along the operand's contiguous mode
    put      copy of the same elements of a thread to shared memory, along the contiguous mode of the repacked matrix
    smem     layout of the tile in shared memory, (rows of A or columns of B, k)
    store    copy from shared memory to the repacked matrix (rows of A or columns of B, k, L)
    """

    name: str
    major: str
    tile: tuple[int, int]
    load: TiledCopy
    put: TiledCopy
    smem: SharedLayout
    store: TiledCopy

    @property
    def threads(self) -> int:
        """Return the number of threads in each CTA of the repack pass."""
        return self.load.threads

    @property
    def line(self) -> int:
        """Return the number of elements of the repacked operand in a cache line."""
        return CACHE_LINE_BYTES * 8 // self.store.atom.dtype.bits

    @property
    def read(self) -> CopyAtom:
        """Return the copy atom that reads a repacked tile from shared memory to registers, before it is stored."""
        return self.store.atom

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return the order of a thread's writes to shared memory in a repack pass, as indices of its loads.

        The thread loads along one mode and writes along another. Entry i is the index of the load that the i-th written
        element came from.
        """
        of_first = [copy.layout_tv[1].offsets().tolist() for copy in (self.load, self.put)]
        return tuple([of_first[0].index(place) for place in of_first[1]])

    def run(self, elements: Any) -> Any:
        """Return the distance between two runs of the repacked matrix: `elements`, rounded up to whole cache lines.

        A run is a row or column along the contiguous mode. The padding is zeros.

        elements   elements of a run without the padding: an integer, or a value that a kernel computes

        >>> make_repack(Operands.of("f32"), "a", "m").run(4097)
        4128
        """
        return ceil_div(elements, self.line) * self.line

    def extents(self, rows: Any, columns: Any, maximum: Any = max) -> tuple[Any, Any]:
        """Return (rows of A or columns of B, k) of the repacked matrix with its padding, in elements.

        The contiguous mode is padded to whole cache lines. A k-major matrix has at least one column: TMA has no extent
        of 0.

        rows      rows of A, or columns of B
        columns   extent along K
        maximum   function that returns the larger of two values: `max` for integers, another one for traced values

        >>> of_bytes = Operands.of("e4m3", layout="tn")
        >>> make_repack(of_bytes, "a", "k").extents(100, 300), make_repack(of_bytes, "a", "m").extents(100, 300)
        ((100, 384), (128, 300))
        """
        if self.major == "k":
            return rows, self.run(maximum(columns, 1))
        return self.run(rows), columns

    def strides(self, extents: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the strides (along rows of A or columns of B, along k) of the repacked matrix, in elements.

        extents   as the method `extents` returns them
        """
        return (extents[1], 1) if self.major == "k" else (1, extents[0])

    def ctas(self, rows: Any, columns: Any, batch: Any) -> Any:
        """Return the number of CTAs that repack this operand: one for each tile of each matrix of the batch.

        rows      rows of A, or columns of B
        columns   extent along K
        batch     number of matrices. All three are integers, or values that a kernel computes

        >>> make_repack(Operands.of("f32"), "a", "m").ctas(100, 65, 3)
        12
        """
        return self.divided_by(rows, columns)[0] * batch

    def divided_by(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """Return the two divisors that `tile_at` needs for the tile of a CTA: (tiles of a matrix, tiles along a run).

        A run is a row or column of the repacked matrix along its contiguous mode.

        rows      rows of A, or columns of B
        columns   extent along K

        >>> make_repack(Operands.of("f32"), "a", "m").divided_by(300, 65)
        (10, 5)
        """
        of_rows, of_columns = [ceil_div(e, t) for e, t in zip((rows, columns), self.tile, strict=True)]
        return of_rows * of_columns, of_columns if self.major == "k" else of_rows

    def tile_at(self, cta: Any, divisors: tuple[Any, Any], batched: bool = True) -> tuple[Any, Any, Any]:
        """Return the tile that a CTA repacks: (index along rows of A or columns of B, index along k, batch).

        CTAs with consecutive indices take neighbouring tiles along the contiguous mode of the repacked matrix.

        cta        index of the CTA among those that repack this operand
        divisors   the result of `divided_by`, in a form that is faster to divide by
        batched    whether there may be several matrices; False: batch is 0

        >>> repack = make_repack(Operands.of("f32"), "a", "m")
        >>> [repack.tile_at(cta, repack.divided_by(300, 65)) for cta in (0, 4, 5, 10)]
        [(0, 0, 0), (4, 0, 0), (0, 1, 0), (0, 0, 1)]
        """
        of_matrix, of_run = divisors
        batch = cta // of_matrix if batched else 0
        within = cta % of_matrix if batched else cta
        along, run = within % of_run, within // of_run
        return (run, along, batch) if self.major == "k" else (along, run, batch)

    def __str__(self) -> str:
        return (
            f"{self.name.upper()} to {self.major}-major by tiles of {self.tile[0]} x {self.tile[1]}, "
            f"{self.threads} threads"
        )


def as_repacked(operands: Operands, repacks: tuple[Repack, ...]) -> Operands:
    """Return the operands as the GEMM loads them: repacked ones have their new majorness and an alignment of 16 bytes.

    operands   operands of the caller
    repacks    the operands that a kernel copies before the GEMM

    >>> operands = Operands.of("f32", align_bytes=4)
    >>> str(as_repacked(operands, make_repacks(operands, "a", along_k=False)).a)
    'f32 m-major, 16-byte aligned'
    """
    made: dict[str, Any] = {
        p.name: replace(getattr(operands, p.name), major=p.major, align_bytes=ALIGN_BYTES) for p in repacks
    }
    return replace(operands, **made) if made else operands


def repacked_for_wgmma(operands: Operands) -> str:
    """Return which operands must be copied to another layout before wgmma can use them: "", "a", "b" or "ab".

    These are the operands that TMA cannot load because of their alignment, or that wgmma cannot read from shared memory
    in their majorness.

    operands   the operands, where `align_bytes` divides all addresses and strides

    >>> [repacked_for_wgmma(Operands.of(dtype, layout="tn")) for dtype in ("bf16", "e4m3")]
    ['', 'ab']
    >>> repacked_for_wgmma(Operands.of("bf16", align_bytes=2))
    'ab'
    """
    found = [
        name for name in "ab"
        for operand in [getattr(operands, name)]
        if operand.align_bytes < TMA_INNER_ALIGNED_BYTES or needs_transpose(operand)
    ]  # fmt: skip
    return "".join(found)


def needs_transpose(operand: Operand) -> bool:
    """Return whether wgmma needs a k-major copy of an operand, because it cannot read its present majorness.

    wgmma reads m- or n-major operands only if their elements have 16 bits.
    """
    return operand.dtype.bits != 16 and operand.major != "k"


def is_to_read(operands: Operands) -> bool:
    """Return whether wgmma can take A from registers, without a transposed copy: A is 32-bit and not k-major."""
    return operands.a.dtype.bits == REGISTER_BITS and needs_transpose(operands.a)


def make_repacks(operands: Operands, names: str, along_k: bool) -> tuple[Repack, ...]:
    """Return how a kernel copies some operands before the GEMM: a repack pass for each.

    names     the operands: "a", "b", "ab", or "" for none
    along_k   True: the repacked matrices are contiguous along K; False: A along M, and B along N
    raises    PlanError for other names, or if an operand's element type cannot be repacked
    """
    if names not in ("", "a", "b", "ab"):
        raise PlanError("repack", [f"repack = {names!r} is not 'a', 'b' or 'ab'."])
    majors = {"a": "k", "b": "k"} if along_k else {"a": "m", "b": "n"}
    return tuple([make_repack(operands, name, majors[name]) for name in names])


def make_repack(operands: Operands, name: str, major: str) -> Repack:
    """Return how a kernel copies A or B before the GEMM: the repack pass of one operand.

    operands   operands of the GEMM, as the caller has them
    name       "a" or "b"
    major      contiguous mode of the repacked matrix: "k"; or "m" for A, "n" for B
    raises     PlanError if the operand's element type cannot be repacked
    """
    return _packing(getattr(operands, name), name, major)


@lru_cache(maxsize=1024)  # many plans pack alike
def _packing(operand: Operand, name: str, major: str) -> Repack:
    bits = operand.dtype.bits
    if bits > ACCESS_BITS // 2 or ACCESS_BITS % bits:
        raise PlanError("repack", [f"a repack pass cannot copy elements of {operand.dtype}."])
    vector, line = ACCESS_BITS // bits, CACHE_LINE_BYTES * 8 // bits
    side = max(_LEAST_SIDE, line)
    width = min(vector, operand.align_elems)
    source, target = operand.major == "k", major == "k"
    # A thread that transposes has a block: `width` elements along the source, `depth` along the target
    depth = 1 if source == target else min(vector, side * side // (_THREADS * width))

    def copy(along: int, elements: int, others: int = 1, turned: bool = False) -> TiledCopy:
        """Return the tiled copy of a square tile where each thread copies a block of `elements` by `others` elements.

        along      mode of the tile, 0 or 1, along which the lanes of a warp are neighbours
        elements   extent of a thread's block along that mode
        others     extent of a thread's block along the other mode
        turned     mode that one access of a thread follows. False: the mode `along`, with `elements` elements; True:
                   the other mode, with `others`
        """
        atom = universal_copy(operand.dtype, bits * (others if turned else elements))
        lanes = side // elements
        threads, values = (lanes, _THREADS // lanes), (elements, others)
        order = (others, 1) if turned else (1, elements)
        if along == 0:
            return make_tiled_copy_tv(atom, Layout(threads), Layout(values, order))
        return make_tiled_copy_tv(atom, Layout(threads[::-1], (lanes, 1)), Layout(values[::-1], order[::-1]))

    plain = Layout((side, side), (side, 1) if target else (1, side))
    smem: SharedLayout = plain
    if source != target:  # 8 threads side by side put their vectors into 8 runs, at 8 places of the banks
        base = _log2(vector)
        smem = ComposedLayout(Swizzle(_CHUNK_BITS, base, _log2(side) + _log2(width) - base), 0, plain)
    return Repack(
        name,
        major,
        (side, side),
        copy(source, width, depth),
        copy(source, width, depth, source != target),
        smem,
        copy(target, vector),
    )


def _log2(power: int) -> int:
    return power.bit_length() - 1
