"""Split-K and stream-K: several CTAs compute one tile of D, and their accumulators are added at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.errors import PlanError

ORDERS = ("strided", "blocked")
REDUCTIONS = ("kernel", "last")
_MOST_WAVES = 1024  # waves that stream-K may divide; no problem has as many


@dataclass(frozen=True)
class KSplit:
    """How the k-tiles of a tile of D are divided among several CTAs: split-K or stream-K.

    splits      split-K: number of K splits of each tile; 1: no split-K
    waves       stream-K: number of waves of tiles whose K is divided evenly among all CTAs of the persistent grid: the
                last, incomplete wave, and `waves` - 1 full ones. Other tiles are not split. 0: no stream-K
    fixup       stream-K with `waves` = 1: each split tile has an owner, a CTA that takes most of its k-tiles. CTAs that
                the last wave leaves without a tile take the rest
    order       "strided": K split p takes the k-tiles p, p + splits, ...; "blocked": it takes adjacent k-tiles, and the
                first splits take one more if needed. A K split may be empty
    reduction   "kernel": a second kernel adds the accumulators of all K splits; "last": the CTA that ends last does
    raises      PlanError with every rule that is broken

    Accumulators are added in the order of the K splits, so the result does not depend on which CTA ends first.
    """

    splits: int = 1
    order: str = "blocked"
    reduction: str = "kernel"
    waves: int = 0
    fixup: bool = False

    def __post_init__(self) -> None:
        violations = []
        if self.splits < 1:
            violations.append(f"splits = {self.splits}; at least 1 is expected.")
        if not 0 <= self.waves <= _MOST_WAVES:
            violations.append(f"waves = {self.waves}; expected 0 to {_MOST_WAVES}.")
        if self.waves > 0 and self.splits > 1:
            violations.append(
                f"splits = {self.splits} and waves = {self.waves}; use either split-K (splits) or stream-K (waves)."
            )
        if self.fixup and self.waves != 1:
            violations.append(f"fixup = True needs waves = 1, not {self.waves}.")
        if self.order not in ORDERS:
            violations.append(f"order = {self.order!r} is not one of {', '.join(ORDERS)}.")
        if self.reduction not in REDUCTIONS:
            violations.append(f"reduction = {self.reduction!r} is not one of {', '.join(REDUCTIONS)}.")
        if violations:
            raise PlanError("split", violations)

    @property
    def is_split(self) -> bool:
        """Return whether several CTAs may share a tile of D (split-K or stream-K)."""
        return self.splits > 1 or self.waves > 0

    @property
    def k_step(self) -> int:
        """Return the distance between two successive k-tiles of a K split: `splits` if they are strided, else 1."""
        return self.splits if self.order == "strided" else 1

    def k_range(self, k_split: Any, k_tiles: Any, minimum: Any = min) -> tuple[Any, Any]:
        """Return (first k-tile, number of k-tiles) of a K split.

        k_split   index of the K split
        k_tiles   number of k-tiles of the tile
        minimum   function that returns the smaller of two values: `min` for integers, others for arrays and traced
                  values

        >>> [KSplit(3, "blocked").k_range(p, 7) for p in range(3)]
        [(0, 3), (3, 2), (5, 2)]
        >>> [KSplit(3, "strided").k_range(p, 2) for p in range(3)]
        [(0, 1), (1, 1), (2, 0)]
        """
        if self.order == "strided":
            return k_split, (k_tiles + (self.splits - 1) - k_split) // self.splits
        each, more = k_tiles // self.splits, k_tiles % self.splits
        first = k_split * each + minimum(k_split, more)
        return first, (k_split + 1) * each + minimum(k_split + 1, more) - first

    def __str__(self) -> str:
        """Return the division of K and the way to add accumulators as text."""
        how = "a second kernel" if self.reduction == "kernel" else "the CTA that ends last"
        division = "fixup" if self.fixup else "divided evenly" if self.waves else self.order
        return f"{division}, added by {how}"


def by_last_cta(split_k: int = 1, stream: int = 0, fixup: bool = False) -> KSplit:
    """Return the K split for the arguments of `sm90_plan`, where the CTA that ends last adds the accumulators.

    split_k   number of K splits of each tile; 1: no split-K
    stream    number of stream-K waves; 0: no stream-K
    fixup     whether the last wave is divided with fixup: each split tile has an owner that takes most of its k-tiles
    raises    PlanError with every rule that is broken

    >>> by_last_cta(fixup=True).waves, by_last_cta(split_k=3).splits
    (1, 3)
    """
    return KSplit(split_k, waves=stream or int(fixup), fixup=fixup, reduction="last")


FIXUP = by_last_cta(fixup=True)
