"""`explain`: the steps of an operation of the algebra, as text."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from cutegemm.errors import LayoutError
from cutegemm.layout import algebra, coordinates, f2, inverses, tiling
from cutegemm.layout.inttuple import as_int_tuple, product, shown
from cutegemm.layout.layout import Layout, concatenate, cute_text
from cutegemm.layout.modes import get, require_layout
from cutegemm.layout.stride import ScaledBasis
from cutegemm.layout.swizzle import ComposedLayout, Swizzle

_SHOWN = 8  # number of offsets that a step lists


def explain(operation: str | Callable[..., Any], *args: Any) -> str:
    """Return the derivation of an operation's result as lines of text. The last line is the result or the error.

    operation   coalesce, composition, complement, right_inverse, left_inverse, a divide or a product; or its
                name
    args        arguments of the operation
    raises      LayoutError for another operation or another number of arguments

    >>> print(explain("complement", Layout(4, 2), 16))
    complement of 4:2 in 16
      modes by stride: 4:2; covered so far: [0, 1)
      4:2 begins at 2 = 2 * 1: the gap is filled by 2:1; covered so far: [0, 8)
      16 / 8 = 2 copies fill the rest: 2:8
    = (2,2):(1,8)
    """
    name = operation if isinstance(operation, str) else getattr(operation, "__name__", str(operation))
    if name not in _STEPS:
        raise LayoutError(
            f"explain(operation, *args): operation is {shown(operation)}; one of {', '.join(_STEPS)} is expected."
        )
    function = next(getattr(where, name) for where in (algebra, inverses, tiling) if hasattr(where, name))
    takes = len(signature(_STEPS[name]).parameters)
    if len(args) != takes:
        raise LayoutError(
            f"explain(operation, *args): {name} takes {takes} argument{'s' if takes > 1 else ''}, not {len(args)}."
        )
    lines = _derivation(name, *args)
    try:
        lines.append(f"= {function(*args)}")
    except LayoutError as error:
        lines.append(f"refused: {error}")
    return "\n".join(lines)


def _derivation(name: str, first: Any, *rest: Any) -> list[str]:
    """Return how an operation of the layout algebra gets its result: lines of text, a title and one line for each step.

    name          name of the operation, such as "composition"
    first, rest   its arguments
    """
    if isinstance(first, ComposedLayout):
        return [
            f"{first.inner} o {first.offset} stays on the left; to its right:",
            *_derivation(name, first.outer, *rest),
        ]
    if name == "composition" and isinstance(first, Swizzle):
        return [f"composition: {first} stays on the left of {rest[0]}"]
    require_layout(f"explain(operation, *args): the first argument of {name}", first)
    try:
        title, steps = _STEPS[name](first, *rest)
    except (LayoutError, ZeroDivisionError):  # the last line has the error of the operation
        return [f"{name}({', '.join(cute_text(x) for x in (first, *rest))})"]
    return [title, *[f"  {step}" for step in steps]]


def _modes(layout: Layout) -> list[tuple[int, Any]]:
    """Return (extent, stride) of each leaf of a layout, from left to right: (4,8):(8,1) gives (4, 8) and (8, 1)."""
    return list(zip(*layout.flat(), strict=True))


def _coalesce(layout: Layout) -> tuple[str, list[str]]:
    """Explain `coalesce(layout)`: return a title, and one line of text for each step that leads to the result."""
    steps: list[str] = []
    if layout.is_xor:
        return f"coalesce {layout}", _matrix_steps(layout)
    kept: list[tuple[int, Any]] = []
    for s, d in _modes(layout):
        if s == 1:
            steps.append(f"1:{d} has one element: removed")
        elif kept and d == kept[-1][0] * kept[-1][1]:
            n, e = kept[-1]
            steps.append(f"{n}:{e} ends where {s}:{d} begins, {n} * {e} = {d}: together {n * s}:{e}")
            kept[-1] = (n * s, e)
        else:
            if kept:
                n, e = kept[-1]
                steps.append(f"{n}:{e} ends at {n * e}, {s}:{d} steps by {d}: they stay apart")
            kept.append((s, d))
    return f"coalesce {layout}", steps or ["one mode: nothing to merge"]


def _composition(a: Any, b: Any) -> tuple[str, list[str]]:
    """Explain `composition(a, b)`: return a title, and one line of text for each step that leads to the result.

    a   a layout, the outer function
    b   a layout, an integer n for n:1, or a tuple of these, one for each mode of `a`
    """
    title = f"composition A o B for A = {a}, B = {cute_text(b) if isinstance(b, tuple) else b}"
    if isinstance(b, tuple):
        steps: list[str] = []
        for m, part in enumerate(b):
            steps.append(f"mode {m}: A is {a[m]}")
            if part is not None:
                steps += [f"  {step}" for step in _composition(a[m], _as_layout(part))[1]]
        return title, steps
    layout = _as_layout(b)
    if a.is_xor or layout.is_xor:
        return title, [
            "over F2, the matrix of A o B is that of A times that of B",
            *_matrix_steps(a, "A"),
            *_matrix_steps(layout, "B"),
        ]
    if not layout.is_integral:
        steps = []
        for path in coordinates.paths_of(layout):
            part, of_b = get(a, path), coordinates.along(layout, path)
            steps += _along(path, f"A is {part}, B {of_b}", _composition(part, of_b)[1])
        return title, steps
    flat = algebra.coalesce(a) if a.flat()[0] else Layout(1, 0)
    steps = [f"A coalesced: {flat}"] if flat != a else []
    for s, d in _modes(layout):
        steps += _walk(flat, s, d)
    return title, steps


def _as_layout(value: Any) -> Layout:
    """Return an argument as a layout: a layout as it is, and an integer n as the layout n:1."""
    return value if isinstance(value, Layout) else Layout(as_int_tuple(value), 1)


def _walk(a: Layout, s: int, d: Any) -> list[str]:
    """Return the steps that derive the composition A o s:d, as lines of text.

    a      A, coalesced
    s, d   extent and stride of one mode of B
    """
    steps = [f"{s}:{d} of B takes {s} steps of {d} through A:"]
    if s == 1 or d == 0:
        return [*steps, "  it stays at one element"]
    if not isinstance(d, int) or d < 0:
        return [*steps, "  no rule of divisibility applies: a table of the offsets decides"]
    modes = _modes(a)
    left, step = s, d
    for j, (n, e) in enumerate(modes):
        last = j == len(modes) - 1
        if not last and step >= n:
            if step % n:
                return [*steps, f"  {n}:{e}: {n} does not divide the step {step}", *_by_offsets(a, s, d)]
            steps.append(f"  a step passes over all of {n}:{e}: in the next mode it is {step} / {n} = {step // n}")
            step //= n
            continue
        room = -(-n // step)
        if last or left <= room:
            return [
                *steps,
                f"  {n}:{e}: {left} steps of {step} fit, each {step} * {e} = {step * e}: {left}:{step * e}",
            ]
        if n % step:
            return [
                *steps,
                f"  {n}:{e}: {left} steps of {step} pass its end, and {step} does not divide {n}",
                *_by_offsets(a, s, d),
            ]
        if left % room:
            return [
                *steps,
                f"  {n}:{e} has room for {room}, which does not divide {left}",
                *_by_offsets(a, s, d),
            ]
        steps.append(f"  {n}:{e}: {room} steps of {step} fit, each {step} * {e} = {step * e}: {room}:{step * e}")
        left //= room
        step = 1
        steps.append(f"  {left} times it continues in the next mode")
    raise AssertionError("the last mode takes all remaining steps")


def _by_offsets(a: Layout, s: int, d: int) -> list[str]:
    """Return a step of text that lists the offsets of A o s:d, if CuTe's rules of divisibility do not apply.

    a      A, coalesced
    s, d   extent and stride of one mode of B
    """
    shown = min(s, _SHOWN)
    more = ", ..." if s > shown else ""
    indices = ", ".join(str(i * d) for i in range(shown))
    offsets = ", ".join(str(a(i * d)) for i in range(shown))
    return [f"  so the offsets decide: A at {indices}{more} is {offsets}{more}"]


def _complement(layout: Layout, cotarget: Any) -> tuple[str, list[str]]:
    """Explain `complement(layout, cotarget)`: return a title, and one line of text for each step to the result.

    cotarget   size of the space to cover, or a shape of that size
    """
    target = cotarget.shape if isinstance(cotarget, Layout) else as_int_tuple(cotarget)
    total = product(target)
    title = f"complement of {layout} in {cute_text(target) if layout.is_coordinates else total}"
    if layout.is_xor:
        return title, [*_matrix_steps(layout), "the rest is spanned by the unit vectors that lead no image"]
    if layout.is_coordinates:
        steps = []
        for path in coordinates.paths_of(layout):
            part, extent = coordinates.along(layout, path), product(get(target, path))
            steps += _along(path, f"{part} in {extent}", _complement(part, extent)[1])
        return title, steps
    period = 1
    modes = sorted([(d, s) for s, d in _modes(layout) if s != 1 and d != 0])
    listed = ", ".join(f"{s}:{d}" for d, s in modes) or "none"
    steps = [f"modes by stride: {listed}; covered so far: [0, 1)"]
    for d, s in modes:
        if d < period:
            return title, [*steps, f"{s}:{d} begins before {period}: the modes are interleaved"]
        gap, lost = divmod(d, period)
        filled = f"the gap is filled by {gap}:{period}" if gap > 1 else "no gap"
        begins = f"{gap} * {period}" + (f" + {lost} of padding" if lost else "")
        period = s * d
        steps.append(f"{s}:{d} begins at {d} = {begins}: {filled}; covered so far: [0, {period})")
    copies = -(-total // period)
    steps.append(
        f"{total} / {period} = {copies} copies fill the rest: {copies}:{period}"
        if copies > 1
        else "everything is covered"
    )
    return title, steps


def _logical_divide(layout: Layout, tiler: Any) -> tuple[str, list[str]]:
    """Explain `logical_divide(layout, tiler)`: return a title, and one line of text for each step to the result.

    tiler   a layout, an integer n for n:1, None, or a tuple of these, one for each mode of the layout
    """
    title = f"logical_divide {layout} by {cute_text(tiler) if isinstance(tiler, tuple) else tiler}"
    if isinstance(tiler, tuple):
        steps: list[str] = []
        for m, part in enumerate(tiler):
            steps.append(f"mode {m}: {layout[m]} by {part}")
            if part is not None:
                steps += [f"  {step}" for step in _logical_divide(layout[m], part)[1]]
        return title, steps
    tile = _as_layout(tiler)
    steps = [f"the tile is {tile}"]
    target = layout.shape if tile.is_coordinates else layout.size()
    steps += _complement(tile, target)[1]
    try:
        rest = inverses.rest_of(tile, target)
    except LayoutError:
        return title, [*steps, "the tile has no complement, or a padded one"]
    steps.append(f"its complement in {cute_text(target)}, the tiles, is {rest}")
    steps += _composition(layout, concatenate([tile, rest]))[1]
    return title, steps


def _logical_product(block: Layout, tiler: Any) -> tuple[str, list[str]]:
    """Explain `logical_product(block, tiler)`: return a title, and one line of text for each step to the result.

    The title names the operation and its arguments, e.g. "logical_product of 4:1 by 2:1".

    block   the layout to copy
    tiler   a layout or an integer n for n:1, which numbers the copies; None; or a tuple of these, one for each mode
    """
    title = f"logical_product of {block} by {cute_text(tiler) if isinstance(tiler, tuple) else tiler}"
    if isinstance(tiler, tuple):
        steps: list[str] = []
        for m, part in enumerate(tiler):
            steps.append(f"mode {m}: {block[m]} by {part}")
            if part is not None:
                steps += [f"  {step}" for step in _logical_product(block[m], part)[1]]
        return title, steps
    copies = _as_layout(tiler)
    steps = [f"the block is {block}, of {block.size()} elements; its copies are numbered by {copies}"]
    try:
        places = inverses.copies_of(block, copies.cosize())
    except LayoutError:
        return title, [*steps, "the block has no complement"]
    steps.append(f"the complement of the block, where its copies begin, is {places}")
    return title, [*steps, *_composition(places, copies)[1]]


def _regrouped(
    name: str, base: Callable[[Layout, Any], tuple[str, list[str]]], how: str
) -> Callable[[Layout, Any], tuple[str, list[str]]]:
    """Return a function (layout, tiler) -> (title, lines of text) that explains an operation such as zipped_divide.

    Such an operation computes another one and then regroups the modes of its result.

    name   name of the operation
    base   function of the same form that explains the other operation, such as logical_divide
    how    text of the last step: how the modes are grouped
    """

    def steps(layout: Layout, tiler: Any) -> tuple[str, list[str]]:
        title, base_steps = base(layout, tiler)
        return f"{name}: {title}", [*base_steps, how]

    return steps


def _right_inverse(layout: Layout) -> tuple[str, list[str]]:
    """Explain `right_inverse(layout)`: return a title, and one line of text for each step that leads to the result."""
    title = f"right_inverse of {layout}: R with L(R(i)) = i"
    if layout.is_xor:
        return title, [*_matrix_steps(layout), "R takes each unit vector to the bits that give it"]
    return title, _mode_by_mode("right_inverse", layout, _contiguous_modes)


def _contiguous_modes(modes: list[inverses.Mode]) -> list[str]:
    """Explain a right inverse, one line of text for each mode: modes are taken as long as offsets follow without a gap.

    modes   (stride, step, extent) of each mode, sorted by stride; `step` is how far the index advances if the mode's
            coordinate grows by 1
    """
    steps, current = [], 1
    for d, start, s in modes:
        if d == current:
            steps.append(f"offset {current} is at index {start}: {s}:{d} of L gives {s}:{start} of R")
            current *= s
        elif d > current:
            return [*steps, f"L does not reach offset {current}, the next one is {d}: R ends at {current}"]
        else:
            steps.append(f"{s}:{d} repeats offsets below {current}: skipped")
    return [*steps, f"R covers the offsets 0 to {current - 1}"]


def _left_inverse(layout: Layout) -> tuple[str, list[str]]:
    """Explain `left_inverse(layout)`: return a title, and one line of text for each step that leads to the result."""
    title = f"left_inverse of {layout}: R with R(L(i)) = i"
    if layout.is_xor:
        return title, [
            *_matrix_steps(layout),
            "R takes each column back to its unit vector, and the rest to 0",
        ]
    return title, _mode_by_mode("left_inverse", layout, _nested_modes)


def _nested_modes(modes: list[inverses.Mode]) -> list[str]:
    """Explain a left inverse, one line of text for each mode of the layout.

    modes   (stride, step, extent) of each mode, sorted by stride; `step` is how far the index advances if the mode's
            coordinate grows by 1
    """
    steps: list[str] = []
    before, extent, start = 1, 1, 0
    for d, position, s in modes:
        if d == 0:
            steps.append(f"{s}:0 repeats offsets: R gives the first index of each")
            continue
        if d < before * extent or d % before:
            return [*steps, f"{d} is below {before * extent} or not a multiple of {before}: no left inverse"]
        if d != before:
            steps.append(f"{d // before} steps of {before} lead to offset {d}: {d // before}:{start}")
        steps.append(f"{s}:{d} of L begins at index {position}")
        before, extent, start = d, s, position
    return [*steps, f"the last mode: {extent}:{start}"]


def _mode_by_mode(operation: str, layout: Layout, steps_of: Callable[[list[inverses.Mode]], list[str]]) -> list[str]:
    """Explain an inverse of a layout as lines of text; for a layout of coordinates, each entry by itself.

    operation   "right_inverse" or "left_inverse", for error messages
    steps_of    function from a list of modes (stride, step, extent), sorted by stride, to lines of text; `step` is how
                far the index advances if the mode's coordinate grows by 1
    """
    by_path = inverses.modes_by_path(operation, layout)
    if () in by_path:
        return steps_of(by_path[()])
    return [
        step
        for path, modes in by_path.items()
        for step in _along(path, ", ".join(f"{s}:{d}" for d, _, s in modes) or "nothing", steps_of(modes))
    ]


def _along(path: coordinates.Path, what: str, steps: list[str]) -> list[str]:
    """Return lines of an explanation, indented below a heading for one entry of a coordinate.

    path    indices of the entry, from the outermost one inwards
    what    name of what the steps compute, for the heading
    steps   the steps, as lines of text
    """
    return [f"along {ScaledBasis(1, path)}: {what}", *[f"  {step}" for step in steps]]


def _matrix_steps(layout: Layout, name: str = "L") -> list[str]:
    """Return the lines of an explanation that show the matrix of a layout over F2 (bits, with XOR as addition).

    layout   layout that is linear over F2
    name     name of the layout in the text
    """
    columns = ", ".join(str(c) for c in f2.to_f2(layout).columns)
    return [f"{name} = {layout} takes the bits of an index to {columns}"]


_STEPS: dict[str, Callable[..., tuple[str, list[str]]]] = {
    "coalesce": _coalesce,
    "composition": _composition,
    "complement": _complement,
    "logical_divide": _logical_divide,
    "zipped_divide": _regrouped("zipped_divide", _logical_divide, "the tile's modes together, then the rest's"),
    "tiled_divide": _regrouped("tiled_divide", _logical_divide, "the tile's modes together, then each of the rest's"),
    "flat_divide": _regrouped("flat_divide", _logical_divide, "each of the tile's modes, then each of the rest's"),
    "logical_product": _logical_product,
    "zipped_product": _regrouped("zipped_product", _logical_product, "the block's modes together, then the copies'"),
    "tiled_product": _regrouped("tiled_product", _logical_product, "the block's modes together, then each copy mode"),
    "flat_product": _regrouped("flat_product", _logical_product, "each of the block's modes, then each copy mode"),
    "blocked_product": _regrouped("blocked_product", _logical_product, "mode by mode: (block, copies)"),
    "raked_product": _regrouped("raked_product", _logical_product, "mode by mode: (copies, block), coalesced"),
    "right_inverse": _right_inverse,
    "left_inverse": _left_inverse,
}
