"""A kernel that quantizes a matrix by blocks: values of float8, and an f32 scale for each block.

The blocks are those of block-scaled operands: 1 x 128 or 128 x 128 elements of a matrix (rows, K).

    largest    448 of e4m3, 57344 of e5m2
    scale      largest magnitude of the block / `largest`, at least 2**-126. With `power_of_two`, the next power of two
    value      element * (1 / scale), each rounded to f32, then rounded to the nearest float8 and clamped to `largest`

A block of zeros has the scale 1. If an element is infinite or NaN, the scale and all values of its block are NaN, so
that the error shows in every product with the block. Beyond the edges of the matrix, elements count as 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from cutegemm.dtypes import DType
from cutegemm.layout import Layout
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.mainloop.block_scaled import BLOCK, BLOCKS
from cutegemm.tile.atoms import runs_on
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_tv

_WARPS = 8  # warps of a CTA
_COLUMNS = BLOCK // WARP_THREADS  # neighbouring elements of a row that a thread has
_ROWS = 4  # rows of each warp if every row has its own scales: the scales of a CTA fill a cache line
_MIN_ARCH = "sm_89"  # first architecture that converts to float8. Source: PTX ISA, cvt
LEAST_SCALE = 2.0**-126  # its reciprocal is finite


@dataclass(frozen=True)
class Quantize:
    """The kernel that quantizes a matrix (rows, K) to float8 values and one f32 scale for each block of elements.

    Each CTA computes one tile of the matrix.

    family         name of the kind of kernel; it is the same for all of these kernels
    source         element type of the matrix: f32, f16 or bf16
    target         element type of the values: e4m3 or e5m2
    granularity    elements that share a scale: "1x128" (128 of one row) or "128x128"
    power_of_two   whether scales are rounded up to powers of two
    vector         elements of an access to global memory: 1, 2 or 4. K and the distance of rows are multiples of it

    >>> from cutegemm.dtypes import bf16, e4m3
    >>> quantize = Quantize(bf16, e4m3, "1x128")
    >>> quantize.tile, quantize.threads, str(quantize.load)
    ((32, 128), 256, 'copy.64b.bf16 by ((32,8),(4,4)):((128,4),(32,1)), tile (32,128): 256 threads')
    """

    family: ClassVar[str] = "quantize"

    source: DType
    target: DType
    granularity: str
    power_of_two: bool = False
    vector: int = _COLUMNS

    @property
    def name(self) -> str:
        """Return the name of this kernel for messages, such as "quantize bf16 to e4m3 by 1x128"."""
        powers = ", powers of two" if self.power_of_two else ""
        return f"quantize {self.source} to {self.target} by {self.granularity}{powers}"

    def key(self) -> str:
        """Return the text under which this kernel is cached: kernels with the same code have the same text."""
        return f"{self.name} {self.vector}"

    def violations(self, arch: str) -> Iterator[str]:
        """Yield a sentence for each rule that this kernel breaks on an architecture, such as a lack of float8.

        arch   name of the architecture, such as "sm_90a"
        """
        if not runs_on(_MIN_ARCH, arch):
            yield f"{arch} does not convert to float8. Compile for {_MIN_ARCH} or later."

    @property
    def by_block(self) -> bool:
        """Return whether 128 rows share a scale ("128x128"), in contrast to one row ("1x128")."""
        return self.granularity == BLOCKS

    @property
    def threads(self) -> int:
        """Return the number of threads of a CTA of this kernel."""
        return _WARPS * WARP_THREADS

    @property
    def rows_of_warp(self) -> int:
        """Return the number of rows of a CTA's tile that each warp quantizes: 16 with scales per 128 rows, else 4."""
        return BLOCK // _WARPS if self.by_block else _ROWS

    @property
    def tile(self) -> tuple[int, int]:
        """Return (rows, columns) of the tile that a CTA quantizes.

        It is (128, 128) with one scale for each 128 rows, and (32, 128) with one for each row.
        """
        return self.rows_of_warp * _WARPS, BLOCK

    @property
    def scales(self) -> Layout:
        """Return the layout that maps (row, column) of a CTA's tile to the index of its scale within the tile.

        >>> from cutegemm.dtypes import bf16, e4m3
        >>> print(Quantize(bf16, e4m3, "1x128").scales, Quantize(bf16, e4m3, "128x128").scales)
        (32,128):(1,0) (128,128):(0,0)
        """
        return Layout(self.tile, (int(not self.by_block), 0))

    @cached_property
    def load(self) -> TiledCopy:
        """Return the tiled copy from the matrix to registers.

        Each warp reads whole rows of the tile; a lane has 4 adjacent elements of a row.
        """
        return self._copy(self.source)

    @cached_property
    def store(self) -> TiledCopy:
        """Return the tiled copy of float8 values from registers to global memory, by the same threads as `load`."""
        return self._copy(self.target)

    def _copy(self, dtype: DType) -> TiledCopy:
        threads = Layout((_WARPS, WARP_THREADS), (WARP_THREADS, 1))
        values = Layout((self.rows_of_warp, _COLUMNS), (_COLUMNS, 1))
        return make_tiled_copy_tv(universal_copy(dtype, dtype.bits * self.vector), threads, values)
