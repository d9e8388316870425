"""Sums that several warps hold, each of its own part of K, and that are added in shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.layout import Layout
from cutegemm.tile.tiled_mma import TiledMma

SUMS_ALIGN_BYTES = 16  # of where they lie in shared memory


@dataclass(frozen=True)
class SharedSums:
    """How the sums of warps that share K become those of a tile of D.

    The warps of a CTA multiply different k of the same rows and columns. So do the CTAs of a cluster along M: each
    multiplies the rows of all of them, and stores its own. When K is done,

        write   each warp its sums of these rows to a place of its own
        add     each thread of `added` the sums of all warps, of its elements of the tile of every CTA, in the order of
                the warps; those of another CTA's tile are written to that CTA's shared memory
        add     the same threads those of all CTAs, in the order of their ranks: the sums of the CTA's tile

    added      threads -> elements of a CTA's tile (bM, bN), whose totals they have and store
    by_warp    (bM * CTAs, bN, warps) of sums, to places in shared memory
    by_cta     (bM, bN, CTAs) of the sums that have come from each CTA, behind these; None where a CTA is by itself
    """

    added: TiledMma
    by_warp: Layout
    by_cta: Layout | None = None

    @property
    def warps(self) -> int:
        """That share K."""
        return self.by_warp[2].size()
