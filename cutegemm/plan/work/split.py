"""Split-K and stream-K: several CTAs share a tile of D, each with a part of the k-tiles, and their sums are
added at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.errors import PlanError

ORDERS = ("strided", "blocked")
REDUCTIONS = ("kernel", "last")
_MOST_WAVES = 1024  # that are shared: all of a problem, long before


@dataclass(frozen=True)
class Split:
    """How K is split.

    parts       CTAs that share a tile of D
    waves       of a persistent grid, instead of parts: the k-tiles of the tiles that do not fill the grid are
                divided evenly among all of its CTAs, together with those of waves - 1 whole grids of tiles;
                the other tiles are not split. See `shares`
    owned       of one such wave: each tile keeps a CTA of its own, which takes most of its k-tiles, all in step; only
                the rest is divided, among the CTAs that the wave leaves without a tile
    order       "strided": part p takes the k-tiles p, p + parts, ...; "blocked": neighbours, the first parts
                one more where parts do not divide the k-tiles. There may be fewer k-tiles than parts
    reduction   "kernel": a second kernel adds the parts' sums; "last": the CTA that ends last in a tile does
    raises      PlanError with every rule that is broken

    Either way the sums of all parts are added in the order of the parts: the result does not depend on which
    CTA ends first.
    """

    parts: int = 1
    order: str = "blocked"
    reduction: str = "kernel"
    waves: int = 0
    owned: bool = False

    def __post_init__(self) -> None:
        broken = []
        if self.parts < 1:
            broken.append(f"parts = {self.parts}; at least 1 is expected.")
        if not 0 <= self.waves <= _MOST_WAVES:
            broken.append(f"waves = {self.waves}; 0 to {_MOST_WAVES} are expected.")
        if self.waves > 0 and self.parts > 1:
            broken.append(
                f"{self.parts} parts of each tile and {self.waves} waves of shared tiles; one of both."
            )
        if self.owned and self.waves != 1:
            broken.append(f"{self.waves} waves of shared tiles, each with a CTA of its own; 1 is expected.")
        if self.order not in ORDERS:
            broken.append(f"order = {self.order!r} is none of {', '.join(ORDERS)}.")
        if self.reduction not in REDUCTIONS:
            broken.append(f"reduction = {self.reduction!r} is none of {', '.join(REDUCTIONS)}.")
        if broken:
            raise PlanError("split", broken)

    @property
    def is_split(self) -> bool:
        """Whether a tile may have several parts."""
        return self.parts > 1 or self.waves > 0

    @property
    def k_step(self) -> int:
        """From one k-tile of a part to its next."""
        return self.parts if self.order == "strided" else 1

    def k_range(self, part: Any, k_tiles: Any, minimum: Any = min) -> tuple[Any, Any]:
        """The first k-tile of a part, and how many it has; also of values that a kernel computes with.

        >>> [Split(3, "blocked").k_range(p, 7) for p in range(3)]
        [(0, 3), (3, 2), (5, 2)]
        >>> [Split(3, "strided").k_range(p, 2) for p in range(3)]
        [(0, 1), (1, 1), (2, 0)]
        """
        if self.order == "strided":
            return part, (k_tiles + (self.parts - 1) - part) // self.parts
        each, more = k_tiles // self.parts, k_tiles % self.parts
        first = part * each + minimum(part, more)
        return first, (part + 1) * each + minimum(part + 1, more) - first

    def __str__(self) -> str:
        how = "a second kernel" if self.reduction == "kernel" else "the CTA that ends last"
        division = "each with an owner" if self.owned else "divided evenly" if self.waves else self.order
        return f"{division}, added by {how}"


def by_last(split_k: int = 1, stream: int = 0, fill: bool = False) -> Split:
    """The split that the arguments of `sm90_plan` ask for; the CTA that ends last adds the sums.

    raises   PlanError with every rule that is broken

    >>> by_last(fill=True).waves, by_last(split_k=3).parts
    (1, 3)
    """
    return Split(split_k, waves=stream or int(fill), owned=fill, reduction="last")


FILLED = by_last(fill=True)
