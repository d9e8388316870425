"""Layouts of coordinates, split by the mode that each stride moves along, and put together again.

`8:1@1` moves along mode 1 of the coordinate alone, and there it is `8:1`. So an operation on a layout of coordinates
is that operation on a layout of offsets, once for each mode.
"""

from __future__ import annotations

from typing import Any

from cutegemm.layout.construction import identity_strides
from cutegemm.layout.inttuple import map_leaves
from cutegemm.layout.layout import Layout, concatenate
from cutegemm.layout.stride import ScaledBasis

Path = tuple[int, ...]


def paths_of(layout: Layout) -> list[Path]:
    """The modes of the coordinate that the strides move along."""
    return sorted({d.mode for d in layout.flat()[1] if isinstance(d, ScaledBasis)})


def leaves_along(layout: Layout, path: Path) -> list[int]:
    """The positions of the leaves that move along one mode of the coordinate."""
    strides = layout.flat()[1]
    return [p for p, d in enumerate(strides) if isinstance(d, ScaledBasis) and d.mode == path]


def along(layout: Layout, path: Path) -> Layout:
    """The leaves that move along one mode of the coordinate, as a layout of offsets."""
    extents, strides = layout.flat()
    places = leaves_along(layout, path)
    return Layout._of(tuple([extents[p] for p in places]), tuple([strides[p].value for p in places]))


def scaled(layout: Layout, path: Path) -> Layout:
    """A layout of offsets as a layout that moves along one mode of the coordinate."""
    return Layout._of(layout.shape, map_leaves(lambda d: ScaledBasis(d, path), layout.stride))


def assembled(parts: dict[Path, Layout], target: Any = None, path: Path = ()) -> Layout:
    """The layout with these parts at the modes of a coordinate.

    target   the shape of the coordinates: a mode without a part keeps its own coordinate; with None such a mode
             is 1:0
    """
    if path in parts:
        return parts[path]
    below = [p[len(path)] for p in parts if p[: len(path)] == path]
    if not below:
        return Layout._of(1, 0) if target is None else Layout._of(target, identity_strides(target, path))
    if target is None:
        inner = (None,) * (1 + max(below))
    else:
        inner = target if isinstance(target, tuple) else (target,)
    return concatenate([assembled(parts, t, (*path, m)) for m, t in enumerate(inner)])
