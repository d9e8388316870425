"""How many clusters a scheduler launches: one for each work tile, or as many as a device runs at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from cutegemm.plan.work.arithmetic import INTEGERS, Arithmetic
from cutegemm.plan.work.cluster import ClusterTile

_MOST_CTAS = 1 << 16  # CTAs on a device at a time, at most 32 per SM


@dataclass(frozen=True)
class OneEach:
    """A grid that is not persistent: one cluster is launched for each work tile.

    is_persistent   False: no cluster takes a second work tile
    ctas            0: the number of CTAs depends on the problem
    """

    is_persistent: ClassVar[bool] = False
    ctas: ClassVar[int] = 0

    def clusters(self, count: Any, cluster: ClusterTile, arithmetic: Arithmetic = INTEGERS) -> Any:
        """Return the number of clusters that are launched: `count`, the number of work tiles.

        cluster, arithmetic   not used here, but by the same method of `Persistent`
        """
        return count

    def bounds(self) -> Iterator[str]:
        """Yield nothing, because the class has no fields."""
        yield from ()

    def __str__(self) -> str:
        return "one tile each"


@dataclass(frozen=True)
class Persistent:
    """A persistent grid: as many CTAs as the device runs at a time. Their clusters take one work tile after another.

    ctas            number of CTAs
    is_persistent   True

    >>> cluster = ClusterTile((128, 128, 64), cluster_mn=(2, 1))
    >>> [Persistent(132).clusters(count, cluster) for count in (50, 500)]
    [50, 66]
    """

    ctas: int

    is_persistent: ClassVar[bool] = True

    def clusters(self, count: Any, cluster: ClusterTile, arithmetic: Arithmetic = INTEGERS) -> Any:
        """Return the number of clusters that are launched: at most `count`, unless idle CTAs are allowed.

        count        number of work tiles
        cluster      size of a cluster's tile, and how its CTAs divide it
        arithmetic   minimum, maximum and division for `count`: `INTEGERS`, or those for arrays or kernel values
        """
        resident = self.ctas // cluster.size
        return resident if cluster.idle_ctas else arithmetic.minimum(count, resident)

    def bounds(self) -> Iterator[str]:
        """Yield a sentence if the number of CTAs is out of bounds."""
        if not 1 <= self.ctas <= _MOST_CTAS:
            yield f"a persistent grid of {self.ctas} CTAs; expected 1 to {_MOST_CTAS}."

    def __str__(self) -> str:
        return "persistent"


Grid = OneEach | Persistent


def grid_of(ctas: int | None) -> Grid:
    """Return the grid for a builder's option: a number of persistent CTAs, or a cluster for each work tile.

    ctas   CTAs of a persistent grid; None: no persistent grid

    >>> grid_of(132), grid_of(None)
    (Persistent(ctas=132), OneEach())
    """
    return OneEach() if ctas is None else Persistent(ctas)
