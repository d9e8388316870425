"""Layouts the slow way: lists of offsets, from the shape and the stride alone.

Nothing here calls the code under test; it reads `.shape` and `.stride`. A basis vector counts as a large
integer of its own, so that layouts of coordinates have integer tables too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product as cartesian
from math import nan, prod
from typing import Any

from cutegemm.layout import ComposedLayout, Layout, ScaledBasis, Swizzle

_BASES: dict[Any, int] = {}


def number(stride: Any) -> int:
    """An integer stride as it is; the basis vector of each mode as a power of a large prime."""
    if isinstance(stride, ScaledBasis):
        return stride.value * 1_000_003 ** (2 + _BASES.setdefault(stride.mode, len(_BASES)))
    return stride


def leaves(value: Any) -> list[Any]:
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, tuple) else [value]


def size(value: Any) -> int:
    return prod(leaves(value if isinstance(value, (int, tuple)) else value.shape))


def modes(layout: Layout) -> list[tuple[int, int]]:
    """(extent, stride) of each leaf."""
    return list(zip(leaves(layout.shape), map(number, leaves(layout.stride)), strict=True))


def function(layout: Any) -> Callable[[int], int]:
    """Colexicographic index -> offset, running on along the last leaf."""
    if isinstance(layout, Swizzle):
        bits = ((1 << layout.bits) - 1) << layout.base
        if layout.shift < 0:
            return lambda index: index ^ ((index & bits) << -layout.shift)
        return lambda index: index ^ ((index >> layout.shift) & bits)
    if isinstance(layout, ComposedLayout):
        inner, outer = function(layout.inner), function(layout.outer)
        return lambda index: inner(layout.offset + outer(index))
    *before, (_, last_stride) = modes(layout)

    def offset(index: int) -> int:
        out = 0
        for extent, stride in before:
            index, digit = divmod(index, extent)
            out += digit * stride
        return out + index * last_stride

    return offset


def at(layout: Any, index: int) -> int:
    """The offset at a colexicographic index, running on along the last leaf."""
    return function(layout)(index)


UNSPECIFIED = nan  # survives every sum; equal to nothing


def run_on(layout: Layout, index: int) -> float:
    """The offset at an index; past the end unspecified after a last extent of 1, which has no direction."""
    ends = modes(layout)[-1][0] == 1 and len(modes(layout)) > 1
    return UNSPECIFIED if index < 0 or (ends and index >= size(layout)) else at(layout, index)


def table(layout: Any) -> list[int]:
    return list(map(function(layout), range(size(layout))))


def gives_coordinates(layout: Any) -> bool:
    return any(isinstance(d, ScaledBasis) for d in leaves(layout.stride))


def paths(layout: Layout) -> list[tuple[int, ...]]:
    """The modes of the coordinate that a layout's strides move along."""
    return sorted({d.mode for d in leaves(layout.stride) if isinstance(d, ScaledBasis)})


def along(layout: Layout, path: tuple[int, ...]) -> Layout:
    """The layout of what it moves along one mode of the coordinate; its other strides are 0."""
    moved = [d.value if isinstance(d, ScaledBasis) and d.mode == path else 0 for d in leaves(layout.stride)]
    return Layout(tuple(leaves(layout.shape)), tuple(moved))


def part(layout: Layout, path: Sequence[int]) -> Layout:
    """The mode at a path; a layout of one mode is its own mode 0."""
    for m in path:
        layout = mode(layout, m)
    return layout


def mode(layout: Any, m: int) -> Any:
    if isinstance(layout, ComposedLayout):
        return ComposedLayout(layout.inner, layout.offset, mode(layout.outer, m))
    return Layout(layout.shape[m], layout.stride[m]) if isinstance(layout.shape, tuple) else layout


def rank(value: Any) -> int:
    value = value if isinstance(value, (int, tuple)) else value.shape
    return len(value) if isinstance(value, tuple) else 1


def outer_sum(*tables: Sequence[int]) -> list[int]:
    """Every sum of one entry of each table, the first table varying fastest."""
    return [sum(parts) for parts in map(reversed, cartesian(*reversed(tables)))]


def is_layout(values: Sequence[int]) -> bool:
    """Whether some layout has exactly these offsets: linear in blocks, and again over the blocks."""
    n = len(values)
    if n == 1:
        return values[0] == 0
    for block in (b for b in range(2, n + 1) if n % b == 0):
        inner, over = values[:block], values[::block]
        linear = all(v == i * values[1] for i, v in enumerate(inner))
        if linear and list(values) == outer_sum(inner, over) and is_layout(over):
            return True
    return False


def gaps(offsets: Iterable[int], total: int) -> list[int] | None:
    """The increasing starting offsets of copies of a set that cover [0, total or more) once.

    None if no copies do. They are unique: the first offset not yet covered must start the next copy.
    """
    tile, starts, covered, start = sorted(set(offsets)), [], set(), 0
    if tile[0] != 0:
        return None
    while start < total or len(covered) != start:
        copy = {start + offset for offset in tile}
        if copy & covered or start > 4 * (total + tile[-1]):
            return None
        covered |= copy
        starts.append(start)
        while start in covered:
            start += 1
    return starts


def copy_starts(block: Layout, count: int) -> list[int] | None:
    """Where the first copies of a block start, in increasing order; None if its modes are interleaved.

    Modes by stride: below the stride of the next mode there is room for `count` copies, then the next mode's period
    starts.
    """
    radices, period = [], 1  # (copies at this step, step)
    for d, s in sorted((d, s) for s, d in modes(block) if s > 1 and d != 0):
        if d < period:
            return None
        radices.append((d // period, period))
        period = s * d
    starts = []
    for index in range(count):
        start = 0
        for room, step in radices:
            index, digit = divmod(index, room)
            start += digit * step
        starts.append(start + index * period)
    return starts


def refines(fine: Any, coarse: Any) -> bool:
    """Whether `fine` splits the leaves of `coarse` and nothing else."""
    if not isinstance(coarse, tuple):
        return size(fine) == coarse
    same_rank = isinstance(fine, tuple) and len(fine) == len(coarse)
    return same_rank and all(refines(f, c) for f, c in zip(fine, coarse, strict=True))
