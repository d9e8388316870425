"""Thread-value layouts, which map (thread, value) to a colexicographic index in a tile."""

from __future__ import annotations

from functools import lru_cache

from cutegemm.errors import LayoutError
from cutegemm.layout.algebra import composition
from cutegemm.layout.inttuple import product_each
from cutegemm.layout.inverses import right_inverse
from cutegemm.layout.layout import Layout
from cutegemm.layout.modes import require_layout
from cutegemm.layout.tiling import raked_product


def numbers_once(layout: Layout) -> bool:
    """Return True if the offsets of a layout are 0, 1, ..., size - 1 in any order, each once.

    >>> numbers_once(Layout((4, 8), (8, 1))), numbers_once(Layout(4, 2))
    (True, False)
    """
    extents, strides = layout.flat()
    if not layout.is_integral:
        return False
    following = 1
    for d, s in sorted(zip(strides, extents, strict=True)):
        if s != 1 and d != following:
            return False
        following *= s
    return following > 0


def make_layout_tv(thr_layout: Layout, val_layout: Layout) -> tuple[tuple[int, ...], Layout]:
    """Return the tile that threads and their values cover, and the layout of the elements of each thread.

    thr_layout   (m, n) -> thread: each of the threads 0, 1, ... occurs once
    val_layout   (m, n) -> value of a thread: each of the values 0, 1, ... occurs once. The values of a thread are
                 adjacent in the tile
    returns      (tiler_mn, layout_tv): the extents of the tile, and (thread, value) -> colexicographic index in
                 the tile
    raises       LayoutError if a thread or a value has no coordinate or several
    source       CuTe DSL, `make_layout_tv`

    >>> make_layout_tv(Layout((4, 8), (8, 1)), Layout((2, 2), (2, 1)))
    ((8, 16), Layout(((8, 4), (2, 2)), ((16, 2), (8, 1))))
    """
    for name, layout in (("thr_layout", thr_layout), ("val_layout", val_layout)):
        require_layout(f"make_layout_tv(thr_layout, val_layout): {name}", layout)
    return _layout_tv(thr_layout, val_layout)


@lru_cache(maxsize=4096)  # many plans share a layout
def _layout_tv(thr_layout: Layout, val_layout: Layout) -> tuple[tuple[int, ...], Layout]:
    """Return the tile that threads and their values cover, and the layout of each thread's elements, without checks.

    thr_layout   (m, n) -> thread
    val_layout   (m, n) -> value of a thread
    returns      the extents of the tile, and (thread, value) -> colexicographic index in the tile
    """
    for name, what, layout in (
        ("thr_layout", "threads", thr_layout),
        ("val_layout", "values", val_layout),
    ):
        if not numbers_once(layout):
            raise LayoutError(
                f"make_layout_tv: {name} = {layout} does not map one coordinate to each of the {layout.size()} {what} "
                f"0 to {layout.size() - 1}.\n  Choose strides without gaps and repeats, such as {Layout(layout.shape)}."
            )
    layout_mn = raked_product(thr_layout, val_layout)
    numbered = Layout((thr_layout.size(), val_layout.size()))
    return product_each(layout_mn.shape), composition(right_inverse(layout_mn), numbered)
