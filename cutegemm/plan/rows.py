"""Rows of the description of a plan: (level, count, shape or unit, details)."""

from __future__ import annotations

from cutegemm.layout import size
from cutegemm.layout.inttuple import product
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

Row = tuple[str, str, str, str]


def copy_row(label: str, copy: TiledCopy | TmaBox, tile_shape: tuple[int, int], more: str = "") -> Row:
    """Return the row of a copy: the shape of its tile, or the number and shape of its TMA boxes.

    label        first column of the row
    tile_shape   rows and columns that are copied in all
    more         text that is appended if the copy is a TMA box
    """
    if isinstance(copy, TmaBox):
        boxes = product(tile_shape) // product(copy.box) // copy.multicast
        policy = "" if copy.l2_policy == "evict_normal" else f", {copy.l2_policy}"
        return (label, str(boxes), " x ".join(str(e) for e in copy.box), f"{copy.name}{policy}{more}")
    tile = " x ".join(str(size(t)) for t in copy.tiler_mn)
    return (label, "1", tile, f"{copy.atom.name} by {copy.layout_tv}")
