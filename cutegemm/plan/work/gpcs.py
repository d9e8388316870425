"""The order of the GPCs: which clusters of a persistent grid are neighbours on the chip.

The hardware hands clusters to GPCs in rounds, one to each GPC that has room left. Reads of A and B that meet in a GPC
are joined on their way to L2, so clusters of one GPC had better have neighbouring tiles of D. `GpcRaster.place` numbers
the clusters GPC by GPC; the tile scheduler takes it for the number of the first work tile of a cluster. It is a
permutation of the clusters that are launched, wherever these run: a chip that hands them out otherwise is slower, and
its results are the same.

Which GPC a round begins with depends on where the kernel before ended. So a round that lacks a GPC lacks one that is
not known: its clusters are of the GPC at the same place of a full round, or of the next one. In a GPC the last rounds
come first, so that either way clusters of a GPC are neighbours.

All is arithmetic without a branch on its values: see `plan.work.arithmetic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any

from cutegemm.plan.work.arithmetic import INTEGERS, Arithmetic

LEAST_ORDERED = 128 * 96  # elements of a tile: smaller ones did not gain by the order of the GPCs
PAIR = 2  # multiprocessors of a TPC, and the most CTAs of a cluster of which it is known where they go
_BYTES = 4  # of a number that the host hands to a kernel: one for each GPC
_MOST_CTAS = 255  # whose places are bytes
_QUOTIENT_BITS = 16


@dataclass(frozen=True)
class GpcRaster:
    """How many clusters the hardware hands out in each round. A shorter round lacks the GPCs that came first in the one
    before: they are full.

    >>> order = GpcRaster((3, 2, 1))  # GPC 0 takes the cluster 0; 1 takes 1 and 3; 2 takes 2, 4 and 5
    >>> [order.place(cluster, order.ends(6)) for cluster in range(6)]
    [0, 2, 5, 1, 4, 3]
    >>> [order.place(cluster, order.ends(4)) for cluster in range(4)]
    [0, 2, 3, 1]
    """

    rounds: tuple[int, ...]

    @staticmethod
    def of(tpc_rounds: Sequence[int], cluster_size: int, ctas: int | None) -> GpcRaster | None:
        """That of clusters of one or two CTAs, from the order in which pairs of multiprocessors (TPCs) are handed out.

        Clusters of two fill a TPC each. Of single CTAs, each TPC of a round is given one, then each one more.

        ctas      of the persistent grid
        returns   None where that is not known: of larger clusters, and of more CTAs than there are multiprocessors

        >>> GpcRaster.of((3, 2), 1, 10)
        GpcRaster(rounds=(3, 3, 2, 2))
        """
        most = min(PAIR * sum(tpc_rounds), _MOST_CTAS)
        if cluster_size > PAIR or ctas is None or not 0 < ctas <= most:
            return None
        return GpcRaster(tuple([count for count in tpc_rounds for _ in range(PAIR // cluster_size)]))

    def violations(self) -> Iterator[str]:
        """What is wrong with the rounds.

        >>> list(GpcRaster((2, 3)).violations())
        ['rounds of (2, 3) clusters; positive integers, none larger than the one before, and 255 in all at most are \
expected.']
        """
        is_tuple = isinstance(self.rounds, tuple) and len(self.rounds) > 0
        are_counts = is_tuple and all(type(count) is int and count > 0 for count in self.rounds)
        if not (
            are_counts
            and all(after <= before for before, after in pairwise(self.rounds))
            and self.clusters <= _MOST_CTAS
        ):
            yield (
                f"rounds of {self.rounds} clusters; positive integers, none larger than the one before, and "
                f"{_MOST_CTAS} in all at most are expected."
            )

    @property
    def clusters(self) -> int:
        """That have a place."""
        return sum(self.rounds)

    @property
    def _runs(self) -> list[tuple[int, int, int]]:
        """Rounds of one size: the first cluster, the clusters of a round, and how many rounds."""
        grouped = [(count, len([*same])) for count, same in groupby(self.rounds)]
        firsts = accumulate([count * times for count, times in grouped], initial=0)
        return [(first, count, times) for first, (count, times) in zip(firsts, grouped, strict=False)]

    @property
    def _alone(self) -> int:
        """GPCs that are full when the first run of rounds is over, which come first."""
        sizes = [count for _, count, _ in self._runs]
        return sizes[0] - sizes[1] if len(sizes) > 1 else 0

    def ends(self, clusters: Any, arithmetic: Arithmetic = INTEGERS) -> tuple[Any, ...]:
        """What `place` needs to know of a grid: the end of the places of each GPC but those that are full first, four
        to a number.

        clusters   that are launched
        """
        least, most = arithmetic.minimum, arithmetic.maximum
        gpc_raster = self.rounds[0]
        begins = [*accumulate(self.rounds, initial=0)][:-1]
        host = [most(clusters - begin, 0) for begin in begins]  # in this round, or later
        words = []
        for word in range(self._alone, gpc_raster, _BYTES):
            value: Any = 0
            for gpc in range(word, min(word + _BYTES, gpc_raster)):
                end: Any = 0
                for here, count in zip(host, self.rounds, strict=True):
                    until = gpc + 1 - (gpc_raster - count)  # in this round
                    end = end + least(here, until) if until > 0 else end
                value = value + end * (1 << (8 * (gpc - word)))
            words.append(value)
        return tuple(words)

    def place(self, cluster: Any, ends: tuple[Any, ...], arithmetic: Arithmetic = INTEGERS) -> Any:
        """The place of a cluster among all that are launched, GPC by GPC.

        cluster   by the order in which clusters are launched
        ends      see there
        """
        least, most = arithmetic.minimum, arithmetic.maximum
        (_, widest, times), *runs = self._runs
        alone = self._alone
        turn: Any = cluster * 0 if times == 1 else least(_quotient(cluster, widest), times - 1)
        gpc = cluster - turn * widest
        for first, count, rounds in runs:
            begun = least(_quotient(most(cluster - (first - count), 0), count), rounds)
            turn, gpc = turn + begun, gpc - begun * count
        which, is_alone = most(gpc - alone, 0), arithmetic.is_below(gpc, alone)
        word = ends[0]
        for i in range(1, len(ends)):
            is_later = arithmetic.is_below(_BYTES * i - 1, which)
            word = word + is_later * (ends[i] - ends[i - 1])
        place = ((word >> (which % _BYTES * 8)) & 255) - 1 - turn
        # Those that are full first take their turns side by side.
        return place + is_alone * (gpc + turn * alone - place)


def _quotient(value: Any, divisor: int) -> Any:
    """value // divisor of a small number that is not negative, by a product and a shift.

    >>> all(_quotient(i, d) == i // d for d in range(1, 67) for i in range(2 * 132))
    True
    """
    if divisor == 1:
        return value
    return (value * -(-(1 << _QUOTIENT_BITS) // divisor)) >> _QUOTIENT_BITS
