"""Kernels of the rows of experts: their order, copies of tokens to rows, and sums of rows to tokens.

A router chooses k experts of each of T tokens. The T * k rows of all experts are sorted by expert. `place` is an int32
vector of T * k elements: entry t * k + i of the router's index has row place[t * k + i].

| kernel     | computes                                                          | CTAs                         |
|------------|-------------------------------------------------------------------|------------------------------|
| SortRows   | place, and the end of the rows of each expert, from the index     | one, or a cluster            |
| SortTokens | the same, and the token and the weight of each row                | one, or a cluster            |
| SpreadRows | rows[place[t * k + i]] = x[t], and the same of weights (T, k)     | one for each token and chunk |
| SumRows    | y[t] = rows[place[t * k]] + rows[place[t * k + 1]] + ...          | one for each token and chunk |
| TotalRows  | the sum of the elements of each row, by entry of the index        | one for four entries         |

The threads of a CTA access a chunk of a row at once, a vector each. In TotalRows, a warp has a row. No kernel uses
atomics: results have the same bits in each run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from cutegemm.dtypes import DType
from cutegemm.machine.arch import WARP_THREADS

_THREADS = 128  # threads of a CTA that copies or adds rows
_MOST_WARPS = 32  # warps of a CTA that sorts
_MOST_COUNTERS = 12 * 1024 - 64  # int32 counters in 48 KB of shared memory
SORTED_AT_ONCE = 4  # entries of the index that each thread loads before it uses them


class RowKernel:
    """One of the kernels of this module. Its text `key()` is equal for kernels with the same code."""

    family: ClassVar[str] = "rows"
    swap_ab: ClassVar[bool] = False  # as for plans, which a library lists together with these kernels

    @property
    def name(self) -> str:
        """Return the name of this kernel for messages."""
        return str(self)

    def key(self) -> str:
        """Return the text under which this kernel is cached: kernels with the same code have the same text."""
        return str(self)

    def violations(self, arch: str) -> Iterator[str]:
        """Yield a sentence for each rule that this kernel breaks on an architecture: none."""
        return iter(())


@dataclass(frozen=True)
class SortRows(RowKernel):
    """The stable counting sort of a router's index, in one CTA or one cluster.

    Each warp has adjacent entries, and counters of its own for each expert. It counts its entries. Then the counts of
    earlier experts, CTAs and warps are added; CTAs exchange theirs through distributed shared memory. At last the warp
    reads its entries again, and places them.

    experts      number L of experts. Entries from L on are placed last
    index_bits   bits of an entry of the index: 32 or 64
    ctas         number of CTAs, all in one cluster: 1 to 8

    >>> kernel = SortRows(256, 64)
    >>> kernel.warps, kernel.counters
    (32, 257)
    """

    experts: int
    index_bits: int
    ctas: int = 1

    @property
    def counters(self) -> int:
        """Return the number of counters of a warp: one for each expert, and one for entries of no expert."""
        return self.experts + 1

    @property
    def warps(self) -> int:
        """Return the number of warps of a CTA: the most whose counters fit to shared memory; or 0.

        Two more sets of counters hold sums, and a cluster has one for each CTA.
        """
        others = 2 + (self.ctas if self.ctas > 1 else 0)
        return max(0, min(_MOST_WARPS, _MOST_COUNTERS // self.counters - others))

    @property
    def threads(self) -> int:
        """Return the number of threads of a CTA."""
        return self.warps * WARP_THREADS


@dataclass(frozen=True, kw_only=True)
class SortTokens(SortRows):
    """The sort of `SortRows`, which also writes the token and the weight of each row.

    count    number k of entries of each token
    weight   element type of the weights
    """

    count: int
    weight: DType


@dataclass(frozen=True)
class TokenRows(RowKernel):
    """A kernel between the row of each token and its k rows. A CTA accesses a chunk of each, a vector by each thread.

    dtype    element type of the rows
    vector   elements of an access. The length and the pitch of rows are multiples of it
    count    number k of rows of each token
    """

    dtype: DType
    vector: int
    count: int

    @property
    def threads(self) -> int:
        """Return the number of threads of a CTA."""
        return _THREADS

    @property
    def chunk(self) -> int:
        """Return the number of elements of a row that a CTA copies or adds."""
        return self.threads * self.vector


@dataclass(frozen=True)
class SpreadRows(TokenRows):
    """The kernel that copies the row of each token to its k rows, and the weights of the token with it.

    weight   element type of the weights; None without weights
    """

    weight: DType | None = None


@dataclass(frozen=True)
class SumRows(TokenRows):
    """The kernel that adds the k rows of each token in float32, in the order of its experts."""


@dataclass(frozen=True)
class TotalRows(RowKernel):
    """The kernel that adds the elements of each row in float32.

    dtype    element type of the rows
    vector   elements of an access. The length and the pitch of rows are multiples of it
    total    element type of the results
    """

    dtype: DType
    vector: int
    total: DType

    @property
    def threads(self) -> int:
        """Return the number of threads of a CTA."""
        return _THREADS

    @property
    def rows(self) -> int:
        """Return the number of rows that a CTA adds: one for each warp."""
        return self.threads // WARP_THREADS
