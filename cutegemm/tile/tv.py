"""Thread-value layouts: (thread, value) -> colexicographic index into a tile."""

from __future__ import annotations

from cutegemm.layout.algebra import composition
from cutegemm.layout.inttuple import product_each
from cutegemm.layout.inverses import right_inverse
from cutegemm.layout.layout import Layout
from cutegemm.layout.tiling import raked_product


def make_layout_tv(thr_layout: Layout, val_layout: Layout) -> tuple[tuple[int, ...], Layout]:
    """The tile that threads and their values cover, and who holds what in it.

    thr_layout   (m, n) -> thread
    val_layout   (m, n) -> value of a thread; a thread's values lie side by side
    returns      (tiler_mn, layout_tv): the extents of the tile, and (thread, value) -> index into it
    source       CuTe DSL, `make_layout_tv`

    >>> make_layout_tv(Layout((4, 8), (8, 1)), Layout((2, 2), (2, 1)))
    ((8, 16), Layout(((8, 4), (2, 2)), ((16, 2), (8, 1))))
    """
    layout_mn = raked_product(thr_layout, val_layout)
    numbered = Layout((thr_layout.size(), val_layout.size()))
    return product_each(layout_mn.shape), composition(right_inverse(layout_mn), numbered)
