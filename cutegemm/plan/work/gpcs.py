"""GPC-aware rasterization: number the clusters of a persistent grid so that those of one GPC are neighbours.

The hardware assigns clusters to GPCs in rounds: one cluster to each GPC that has room left. Reads of A and B by SMs of
one GPC are coalesced on their way to L2, so clusters of one GPC should compute neighbouring tiles of D.
`GpcRaster.place` numbers the clusters GPC by GPC, and the tile scheduler takes this number as the number of the
cluster's first work tile. It is a permutation of the launched clusters, wherever they run. On a chip that assigns
clusters in another order, the kernel is slower and the result is the same.

The first GPC of a round depends on where the previous kernel ended. So if a round is shorter, it is not known which
GPC is missing: a cluster of the round is on the GPC at the same position of a full round, or on the next GPC. Within a
GPC the last rounds are numbered first, so that clusters of a GPC are neighbours in both cases.

All functions compute without branches on their values; see `plan.work.arithmetic`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from cutegemm.plan.work.arithmetic import INTEGERS, Arithmetic

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

LEAST_ORDERED = 128 * 96  # elements of a CTA tile: smaller tiles do not gain from GPC-aware rasterization
PAIR = 2  # SMs of a TPC; also the largest cluster whose assignment to GPCs is known
_BYTES = 4  # bytes of an integer that the host passes to a kernel; each byte describes a GPC
_MOST_CTAS = 255  # most clusters: a place must fit in a byte
_QUOTIENT_BITS = 16  # fraction bits of the reciprocal in `_quotient`


@dataclass(frozen=True)
class LaunchOrder:
    """The order of clusters if they take tiles as they are launched: the place of a cluster is its index in the grid.

    It is the alternative to `GpcRaster`, which numbers clusters by the hardware's GPCs (groups of SMs), and has the
    same methods.

    by_gpc   False: clusters are not numbered GPC by GPC

    >>> [LaunchOrder().place(cluster, ()) for cluster in range(3)]
    [0, 1, 2]
    """

    by_gpc: ClassVar[bool] = False

    def ends(self, clusters: Any, arithmetic: Arithmetic = INTEGERS) -> tuple[Any, ...]:
        """Return (): this order needs no values of the grid. The order by GPCs has the same method, and needs some."""
        return ()

    def place(self, cluster: Any, ends: tuple[Any, ...], arithmetic: Arithmetic = INTEGERS) -> Any:
        """Return the place of a cluster in the order in which clusters take tiles: here its index in the launched grid.

        cluster      index of the cluster in the grid
        ends         result of `ends`, which is not used here
        arithmetic   kind of the values (integers, arrays, kernel values), which is not used here
        """
        return cluster

    def bounds(self) -> Iterator[str]:
        """Yield nothing, because the class has no fields."""
        yield from ()

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield nothing: every plan may launch its clusters in order."""
        yield from ()

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class GpcRaster:
    """The order of clusters GPC by GPC, so that clusters of one GPC (a group of SMs) take neighbouring tiles of D.

    The hardware assigns the clusters of a persistent grid to GPCs in rounds: one to each GPC that is not full. `place`
    converts the index of a cluster in the grid to its index in the new order, which counts all clusters of GPC 0 first,
    then those of GPC 1, and so on.

    rounds   number of clusters assigned in each round, not increasing: when GPCs are full, later rounds are shorter.
             The first GPCs are full first
    by_gpc   True: clusters are numbered GPC by GPC

    >>> order = GpcRaster((3, 2, 1))  # GPC 0 takes the cluster 0; 1 takes 1 and 3; 2 takes 2, 4 and 5
    >>> [order.place(cluster, order.ends(6)) for cluster in range(6)]
    [0, 2, 5, 1, 4, 3]
    >>> [order.place(cluster, order.ends(4)) for cluster in range(4)]
    [0, 2, 3, 1]
    """

    rounds: tuple[int, ...]

    by_gpc: ClassVar[bool] = True

    @staticmethod
    def of(tpc_rounds: Sequence[int], cluster_size: int, ctas: int | None) -> GpcRaster | None:
        """Return the order GPC by GPC for clusters of one or two CTAs; None if it is not known how they are assigned.

        A cluster of two CTAs fills a TPC (a pair of SMs). Single CTAs come in two rounds for each round of TPCs: one
        CTA to each TPC, then another one to each. The assignment is not known for larger clusters, for a grid that is
        not persistent, and for more CTAs than SMs.

        tpc_rounds     number of TPCs that the hardware fills in each round, e.g. (3, 2) for GPCs of 1, 2 and 2 TPCs
        cluster_size   number of CTAs of a cluster
        ctas           number of CTAs of the persistent grid; None: the grid is not persistent

        >>> GpcRaster.of((3, 2), 1, 10)
        GpcRaster(rounds=(3, 3, 2, 2))
        """
        most = min(PAIR * sum(tpc_rounds), _MOST_CTAS)
        if cluster_size > PAIR or ctas is None or not 0 < ctas <= most:
            return None
        return GpcRaster(tuple([count for count in tpc_rounds for _ in range(PAIR // cluster_size)]))

    def bounds(self) -> Iterator[str]:
        """Yield a sentence if the numbers of clusters in the rounds are out of bounds or increase.

        >>> list(GpcRaster((2, 3)).bounds())
        ['rounds = (2, 3); expected positive integers in descending order, with a sum of at most 255.']
        """
        is_tuple = isinstance(self.rounds, tuple) and len(self.rounds) > 0
        are_counts = is_tuple and all(type(count) is int and count > 0 for count in self.rounds)
        if not (
            are_counts
            and all(after <= before for before, after in pairwise(self.rounds))
            and self.clusters <= _MOST_CTAS
        ):
            yield (
                f"rounds = {self.rounds}; expected positive integers in descending order, with a sum of at "
                f"most {_MOST_CTAS}."
            )

    def rules(self, plan: GemmPlan) -> Iterator[str]:
        """Yield a sentence for each reason why a plan cannot order clusters GPC by GPC.

        That needs wgmma, and a persistent grid with no more clusters than `rounds` has.
        """
        clusters = plan.scheduler.resident(plan.cluster_tile)
        if not plan.tiled_mma.atom.is_of_warpgroup:
            yield "gpc_raster needs wgmma; plans with mma.sync do not support it. Leave gpc_raster out."
        if not plan.scheduler.grid.is_persistent:
            yield "gpc_raster needs a persistent grid. Leave gpc_raster out."
        elif clusters > self.clusters:
            yield (
                f"the grid has {clusters} clusters, but gpc_raster describes only {self.clusters}, in rounds "
                f"of {self.rounds}."
            )

    def __str__(self) -> str:
        return ", clusters GPC by GPC"

    @property
    def clusters(self) -> int:
        """Return the largest number of clusters that a grid with this order may have: the sum of `rounds`."""
        return sum(self.rounds)

    @property
    def _runs(self) -> list[tuple[int, int, int]]:
        """Group successive rounds of equal size; return (first cluster, clusters of a round, number of rounds) of each.

        For example, the rounds (3, 3, 2, 1) have three groups: (0, 3, 2), (6, 2, 1) and (8, 1, 1).
        """
        grouped = [(count, len([*same])) for count, same in groupby(self.rounds)]
        firsts = accumulate([count * times for count, times in grouped], initial=0)
        return [(first, count, times) for first, (count, times) in zip(firsts, grouped, strict=False)]

    @property
    def _alone(self) -> int:
        """Return the number of GPCs that take clusters only in the first rounds, which all have the same size.

        These GPCs are full when the rounds become shorter for the first time. Their clusters come first in the order.
        """
        sizes = [count for _, count, _ in self._runs]
        return sizes[0] - sizes[1] if len(sizes) > 1 else 0

    def ends(self, clusters: Any, arithmetic: Arithmetic = INTEGERS) -> tuple[Any, ...]:
        """Return where the clusters of each GPC end, if all launched clusters are counted GPC by GPC.

        It is computed once for a grid; `place` needs it for each cluster. The ends are packed: each is a byte, and an
        integer holds four of them. GPCs that take clusters only in the first rounds, which have equal size, are left
        out, since `place` computes their clusters without it.

        clusters     number of launched clusters
        arithmetic   minimum, maximum and division for these values: `INTEGERS`, or those for arrays or kernel values
        returns      the integers with the packed ends
        """
        least, most = arithmetic.minimum, arithmetic.maximum
        gpc_raster = self.rounds[0]
        begins = [*accumulate(self.rounds, initial=0)][:-1]
        host = [most(clusters - begin, 0) for begin in begins]  # clusters in this round or later ones
        words = []
        for word in range(self._alone, gpc_raster, _BYTES):
            value: Any = 0
            for gpc in range(word, min(word + _BYTES, gpc_raster)):
                end: Any = 0
                for here, count in zip(host, self.rounds, strict=True):
                    until = gpc + 1 - (gpc_raster - count)  # clusters of this round in GPCs up to this one
                    end = end + least(here, until) if until > 0 else end
                value = value + end * (1 << (8 * (gpc - word)))
            words.append(value)
        return tuple(words)

    def place(self, cluster: Any, ends: tuple[Any, ...], arithmetic: Arithmetic = INTEGERS) -> Any:
        """Return the place of a cluster: its index when all launched clusters are counted GPC by GPC.

        cluster      index of the cluster in launch order
        ends         the result of the method `ends` for the grid
        arithmetic   minimum, maximum and division for these values: `INTEGERS`, or those for arrays or kernel values
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
        # The GPCs that are full first are numbered together, round by round.
        return place + is_alone * (gpc + turn * alone - place)


def _quotient(value: Any, divisor: int) -> Any:
    """Return value // divisor for small integers, computed by a multiplication and a shift.

    value   an integer in [0, about 256); or an array of such integers, or a traced value

    >>> all(_quotient(i, d) == i // d for d in range(1, 67) for i in range(2 * 132))
    True
    """
    if divisor == 1:
        return value
    return (value * -(-(1 << _QUOTIENT_BITS) // divisor)) >> _QUOTIENT_BITS
