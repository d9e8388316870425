"""Rows of the description of a plan: (level, count, shape or unit, details)."""

from __future__ import annotations

from cutegemm.layout import size
from cutegemm.layout.inttuple import product
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

Row = tuple[str, str, str, str]


def copy_row(label: str, copy: TiledCopy | TmaBox, tile_shape: tuple[int, int], more: str = "") -> Row:
    """Return one line of a plan's printed description, (label, count, shape, details), for a copy.

    For a copy by threads, the count is "1" and the shape is that of its tile, such as "128 x 8". For a TMA box, the
    count is the number of boxes that one CTA loads, and the shape is that of a box.

    label        first column of the line, such as "load A"
    copy         tiled copy by threads, or a TMA box
    tile_shape   (rows, columns) that all boxes together cover
    more         text that is appended to the details of a TMA box; "" for nothing
    """
    if isinstance(copy, TmaBox):
        boxes = product(tile_shape) // product(copy.box) // copy.multicast
        policy = "" if copy.l2_policy == "evict_normal" else f", {copy.l2_policy}"
        return (label, str(boxes), " x ".join(str(e) for e in copy.box), f"{copy.name}{policy}{more}")
    tile = " x ".join(str(size(t)) for t in copy.tiler_mn)
    return (label, "1", tile, f"{copy.atom.name} by {copy.layout_tv}")
