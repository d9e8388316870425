"""The exchange kernel of a group of ranks: it stores rows of one rank on all ranks, or adds rows of all ranks.

    "spread"      each CTA stores its share of the rows of this rank to the memory of all ranks, then meets the others
    "met sum"     each CTA meets the others, then adds its share of the rows in the memory of several ranks
    "sum"         the same without a meeting

To meet, a CTA sets a flag in the memory of each rank. Then it waits for the flags in its own memory, which the CTAs of
the same index on all ranks set. A flag is the number of the meeting, so it never has to be reset, and a CUDA graph can
replay the kernel. The CTAs of a grid need not run at the same time: each waits for one CTA of each rank, whose kernel
waits for nothing before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cutegemm.dtypes import DType
from cutegemm.machine.arch import arch_named
from cutegemm.plan.launches import OVERLAP

MOST_RANKS = 8  # addresses that the kernel takes
VECTOR_BYTES = 16  # bytes of an access; addresses and sizes of rows are multiples of them
_FLOATS = ("bf16", "f16", "f32")


@dataclass(frozen=True)
class Exchange:
    """The exchange kernel: each rank has contiguous rows of one matrix, a multiple of 16 bytes in all.

    family      name of the kind of kernel; it is the same for all of these kernels
    operation   "spread", "met sum" or "sum"
    ranks       number of ranks
    dtype       element type; a sum is computed in f32, in the order of its addresses, and rounded once

    >>> from cutegemm.dtypes import bf16
    >>> exchange = Exchange("met sum", 2, bf16)
    >>> exchange.name, exchange.flags, list(exchange.violations("sm_90a"))
    ('met sum bf16 of 2 ranks', 256, [])
    """

    family: ClassVar[str] = "exchange"
    threads: ClassVar[int] = 512  # threads per CTA
    most_ctas: ClassVar[int] = 128

    operation: str
    ranks: int
    dtype: DType

    @property
    def name(self) -> str:
        """Return the name of this kernel for messages, such as "met sum bf16 of 2 ranks"."""
        return f"{self.operation} {self.dtype} of {self.ranks} ranks"

    @property
    def adds(self) -> bool:
        """Return whether this kernel adds rows."""
        return self.operation != "spread"

    @property
    def meets(self) -> bool:
        """Return whether the CTAs of this kernel wait for other ranks."""
        return self.operation != "sum"

    def key(self) -> str:
        """Return the text under which this kernel is cached: kernels with the same code have the same text."""
        return self.name

    def violations(self, arch: str) -> Iterator[str]:
        """Yield a sentence for each rule that this kernel breaks on an architecture.

        arch   name of the architecture, such as "sm_90a"
        """
        if not arch_named(arch).has(OVERLAP):
            yield f"{arch} has no programmatic dependent launch. Compile for sm_90 or later."
        if not 2 <= self.ranks <= MOST_RANKS:
            yield f"ranks = {self.ranks}; the kernel takes 2 to {MOST_RANKS}."
        if self.adds and self.dtype.name not in _FLOATS:
            yield f"dtype = {self.dtype}; the kernel adds {', '.join(_FLOATS)}."

    @property
    def flags(self) -> int:
        """Return the number of int32 flags that each rank needs, and of the counters of meetings."""
        return self.most_ctas * self.ranks
