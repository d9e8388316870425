"""Layouts that give coordinates: taken apart by the mode that each stride moves along, and put together again.

`8:1@1` moves along mode 1 of the coordinate alone, where it is `8:1`. So an operation on a layout that gives
coordinates is that operation on offsets, once for each mode.
"""

from __future__ import annotations

from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout.construction import identity_strides
from cutegemm.layout.inttuple import transform_leaf
from cutegemm.layout.layout import Layout, concatenate
from cutegemm.layout.stride import ScaledBasis

Path = tuple[int, ...]


def paths_of(operation: str, layout: Layout) -> list[Path]:
    """The modes of the coordinate that the strides move along.

    raises   LayoutError where an integer stride moves too, or one moves along a mode and another along a part
             of that mode: no coordinate is their sum
    """
    paths: set[Path] = set()
    for s, d in zip(*layout.flat(), strict=True):
        if isinstance(d, ScaledBasis):
            paths.add(d.mode)
        elif d != 0 and s != 1:
            raise LayoutError(
                f"{operation}: {layout} mixes coordinates with offsets, those of its stride {d}."
            )
    for path in paths:
        for other in paths:
            if len(path) < len(other) and other[: len(path)] == path:
                raise LayoutError(
                    f"{operation}: {layout} moves along {ScaledBasis(1, path)} and along {ScaledBasis(1, other)}, "
                    "a part of that mode. Give both the same path."
                )
    return sorted(paths)


def leaves_along(layout: Layout, path: Path) -> list[int]:
    """The positions of the leaves that move along one mode of the coordinate."""
    strides = layout.flat()[1]
    return [p for p, d in enumerate(strides) if isinstance(d, ScaledBasis) and d.mode == path]


def along(layout: Layout, path: Path) -> Layout:
    """These leaves alone, as a layout of offsets."""
    extents, strides = layout.flat()
    places = leaves_along(layout, path)
    return Layout._of(tuple([extents[p] for p in places]), tuple([strides[p].value for p in places]))


def scaled(layout: Layout, path: Path) -> Layout:
    """The layout of offsets as one that moves along a mode of the coordinate."""
    return Layout._of(layout.shape, transform_leaf(lambda d: ScaledBasis(d, path), layout.stride))


def assembled(parts: dict[Path, Layout], target: Any = None, path: Path = ()) -> Layout:
    """The layout with these parts at the modes of a coordinate.

    target   the shape of the coordinates: a mode without a part keeps its own coordinate. Where it is left out,
             such a mode is 1:0
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
