"""Packing: an operand is copied first, to memory where the mainloop can load it as it loads best.

As in a BLAS for CPUs, which packs panels before it multiplies. What is contiguous in the packed matrix is up to the
kernel that follows: M or N for SIMT plans, whose threads then copy by 128-bit cp.async and transpose nothing; K for
Hopper plans, whose wgmma takes elements of other than 16 bits no other way. Runs that are not aligned become so on the
way. It costs 2 * M * K elements of memory traffic against the 2 * M * N * K operations that follow.
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
    """How one operand is packed, tile by tile, a CTA a tile.

    name     "a" or "b"
    major    "m", "n" or "k": the contiguous mode of the packed matrix
    tile     (mn, k) elements of a CTA
    load     global memory to registers, along the operand's contiguous mode
    put      registers to shared memory, along that of the packed matrix; a thread's elements are those that it loads
    smem     shared memory (mn, k) that the tile passes through
    store    shared memory to the packed matrix (mn, k, L)

    Each run of the packed matrix ends with zeros, up to the next multiple of a cache line. So every run begins at a
    line: a warp's 512 bytes of it are four lines, not five; and TMA takes it.
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
        """Return the number of threads of a CTA."""
        return self.load.threads

    @property
    def line(self) -> int:
        """Return the number of elements of a cache line."""
        return CACHE_LINE_BYTES * 8 // self.store.atom.dtype.bits

    @property
    def read(self) -> CopyAtom:
        """Return the copy from shared memory to registers, by the vectors that are stored."""
        return self.store.atom

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Return, for each value that a thread writes to shared memory, the index of that value among those it has
        loaded.
        """
        of_first = [copy.layout_tv[1].offsets().tolist() for copy in (self.load, self.put)]
        return tuple([of_first[0].index(place) for place in of_first[1]])

    def run(self, elements: Any) -> Any:
        """Return the distance between two runs of the repacked matrix, in elements; also for values that a kernel
        computes.

        >>> make_repack(Operands.of("f32"), "a", "m").run(4097)
        4128
        """
        return ceil_div(elements, self.line) * self.line

    def extents(self, rows: Any, columns: Any, maximum: Any = max) -> tuple[Any, Any]:
        """Return the (mn, k) of the repacked matrix, with the zeros at the end of each run.

        A k-major matrix has at least one column: TMA has no extent of 0.

        >>> of_bytes = Operands.of("e4m3", layout="tn")
        >>> make_repack(of_bytes, "a", "k").extents(100, 300), make_repack(of_bytes, "a", "m").extents(100, 300)
        ((100, 384), (128, 300))
        """
        if self.major == "k":
            return rows, self.run(maximum(columns, 1))
        return self.run(rows), columns

    def strides(self, extents: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the strides of a repacked matrix along (mn, k)."""
        return (extents[1], 1) if self.major == "k" else (1, extents[0])

    def ctas(self, rows: Any, columns: Any, batch: Any) -> Any:
        """Return the CTAs that repack a matrix (rows, columns, batch); also for values that a kernel computes.

        >>> make_repack(Operands.of("f32"), "a", "m").ctas(100, 65, 3)
        12
        """
        return self.divided_by(rows, columns)[0] * batch

    def divided_by(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """Return what the index of a CTA is divided by: the tiles of a matrix, and the tiles along a run that is
        written.

        >>> make_repack(Operands.of("f32"), "a", "m").divided_by(300, 65)
        (10, 5)
        """
        of_rows, of_columns = [ceil_div(e, t) for e, t in zip((rows, columns), self.tile, strict=True)]
        return of_rows * of_columns, of_columns if self.major == "k" else of_rows

    def tile_at(self, cta: Any, divisors: tuple[Any, Any], batched: bool = True) -> tuple[Any, Any, Any]:
        """The tile (mn, k) of a CTA, and its batch: one behind the other along the runs that are written.

        divisors   the result of `divided_by`, in a form that is faster to divide by
        batched    whether there may be several batches

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
    """Return the operands as they are after the repack passes.

    >>> operands = Operands.of("f32", align_bytes=4)
    >>> str(as_repacked(operands, make_repacks(operands, "a", along_k=False)).a)
    'f32 m-major, 16-byte aligned'
    """
    made: dict[str, Any] = {
        p.name: replace(getattr(operands, p.name), major=p.major, align_bytes=ALIGN_BYTES) for p in repacks
    }
    return replace(operands, **made) if made else operands


def repacked_for_wgmma(operands: Operands) -> str:
    """The operands that TMA cannot load, or wgmma not multiply, as they are.

    operands   as TMA loads A and B: aligned by their addresses and strides

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
    """Return whether wgmma takes an operand only if it is k-major."""
    return operand.dtype.bits != 16 and operand.major != "k"


def is_to_read(operands: Operands) -> bool:
    """Return whether wgmma takes A from registers, in either majorness: its elements have 32 bits."""
    return operands.a.dtype.bits == REGISTER_BITS and needs_transpose(operands.a)


def make_repacks(operands: Operands, names: str, along_k: bool) -> tuple[Repack, ...]:
    """The packings of some operands.

    names     "a", "b", "ab" or none
    along_k   whether the packed matrices are contiguous along K; else along M and N
    raises    PlanError where there are no such operands, or they cannot be packed
    """
    if names not in ("", "a", "b", "ab"):
        raise PlanError("repack", [f"repack = {names!r} is none of 'a', 'b' and 'ab'."])
    majors = {"a": "k", "b": "k"} if along_k else {"a": "m", "b": "n"}
    return tuple([make_repack(operands, name, majors[name]) for name in names])


def make_repack(operands: Operands, name: str, major: str) -> Repack:
    """The packing of A or of B.

    major    the contiguous mode of the packed matrix: "k", or the other one of the operand's
    raises   PlanError where the operand cannot be packed
    """
    return _packing(getattr(operands, name), name, major)


@lru_cache(maxsize=1024)  # many plans pack alike
def _packing(operand: Operand, name: str, major: str) -> Repack:
    bits = operand.dtype.bits
    if bits > ACCESS_BITS // 2 or ACCESS_BITS % bits:
        raise PlanError("repack", [f"{operand.dtype} is not packed."])
    vector, line = ACCESS_BITS // bits, CACHE_LINE_BYTES * 8 // bits
    side = max(_LEAST_SIDE, line)
    width = min(vector, operand.align_elems)
    source, target = operand.major == "k", major == "k"
    # A thread that transposes has a block: `width` elements along the source, `depth` along the target
    depth = 1 if source == target else min(vector, side * side // (_THREADS * width))

    def copy(along: int, elements: int, others: int = 1, turned: bool = False) -> TiledCopy:
        """Threads along mode `along`, each with so many neighbours along it and along the other mode.

        turned   an access is to the neighbours along the other mode
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
