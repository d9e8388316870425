"""Layouts of coordinates, split by the mode that each stride moves along, and reassembled.

`8:1@1` moves only along mode 1 of the coordinate. Along that mode, it is the layout of offsets `8:1`. An
operation on a layout of coordinates is therefore the operation on layouts of offsets, once for each mode.

A *path* is a tuple of mode indices, from the outermost mode inwards.
"""

from __future__ import annotations

from typing import Any

from cutegemm.layout.construction import identity_strides
from cutegemm.layout.inttuple import map_leaves
from cutegemm.layout.layout import Layout, concatenate
from cutegemm.layout.stride import ScaledBasis

Path = tuple[int, ...]


def paths_of(layout: Layout) -> list[Path]:
    """Return which entries of its coordinates a layout of coordinates changes, as a sorted list of paths.

    A path is a tuple of mode indices, from the outermost mode inwards. For example, (4,8):(1@0,1@1) has the paths (0,)
    and (1,).
    """
    return sorted({d.mode for d in layout.flat()[1] if isinstance(d, ScaledBasis)})


def leaves_along(layout: Layout, path: Path) -> list[int]:
    """Return which leaves of a layout of coordinates change one entry of the coordinate, as positions among all leaves.

    For example, for (4,8):(1@0,1@1) and the path (1,), the result is [1], because only the second leaf has a stride @1.

    layout   layout of coordinates, whose strides are scaled basis vectors
    path     indices of the entry of the coordinate, from the outermost one inwards
    """
    strides = layout.flat()[1]
    return [p for p, d in enumerate(strides) if isinstance(d, ScaledBasis) and d.mode == path]


def along(layout: Layout, path: Path) -> Layout:
    """Return how a layout of coordinates changes one entry of the coordinate, as a layout of integer offsets.

    Only the leaves that change this entry remain. For example, for entry 1, (4,8):(1@0,2@1) gives (8):(2).

    layout   layout of coordinates, whose strides are scaled basis vectors
    path     indices of the entry, from the outermost one inwards
    """
    extents, strides = layout.flat()
    places = leaves_along(layout, path)
    return Layout._unchecked(tuple([extents[p] for p in places]), tuple([strides[p].value for p in places]))


def scaled(layout: Layout, path: Path) -> Layout:
    """Return a layout of integer offsets as a layout of coordinates that moves along one mode: 8:2 becomes 8:2@1.

    path   indices of the mode, from the outermost one inwards, such as (1,)
    """
    return Layout._unchecked(layout.shape, map_leaves(lambda d: ScaledBasis(d, path), layout.stride))


def assembled(parts: dict[Path, Layout], target: Any = None, path: Path = ()) -> Layout:
    """Return the layout of coordinates with one mode for each entry of the coordinate: 4:1@0 and 8:1@1 give (4,8).

    parts    path of a mode (indices from the outermost mode inwards) -> layout that moves along that mode
    target   shape of the coordinates; a mode that is not in `parts` returns its own coordinate. None: such a mode is
             1:0
    path     path of the mode to assemble; () for the whole layout
    """
    if path in parts:
        return parts[path]
    below = [p[len(path)] for p in parts if p[: len(path)] == path]
    if not below:
        return Layout._unchecked(1, 0) if target is None else Layout._unchecked(target, identity_strides(target, path))
    if target is None:
        inner = (None,) * (1 + max(below))
    else:
        inner = target if isinstance(target, tuple) else (target,)
    return concatenate([assembled(parts, t, (*path, m)) for m, t in enumerate(inner)])
