"""What each operation promises, checked by evaluating every coordinate.

A law takes the result of an operation and its arguments, and returns what is violated, as text, or None. It
looks at the tables of `naive` only. `unanswerable` takes the arguments that an operation refused, and
returns an answer that it should have found, or None. Both serve the properties (test_laws), the mutations
(test_mutation) and the oracle (tests/oracle), which asks them about the DSL's answers too.
"""

from __future__ import annotations

from itertools import pairwise
from itertools import product as cartesian
from math import gcd, prod
from typing import Any

from cutegemm.layout import ComposedLayout, Layout, ScaledBasis, Swizzle
from tests.layout.naive import (
    UNSPECIFIED,
    along,
    at,
    copy_starts,
    function,
    gaps,
    gives_coordinates,
    is_layout,
    leaves,
    mode,
    modes,
    number,
    outer_sum,
    part,
    paths,
    rank,
    refines,
    run_on,
    size,
    table,
)


def first_difference(got: list[int], want: list[int], what: str = "the result") -> str | None:
    if len(got) != len(want):
        return f"{what} has {len(got)} elements instead of {len(want)}"
    wrong = next((i for i, (g, w) in enumerate(zip(got, want, strict=True)) if g != w and w == w), None)
    return None if wrong is None else f"{what} is {got[wrong]} instead of {want[wrong]} at {wrong}"


def first_of(*violations: str | None) -> str | None:
    return next((b for b in violations if b), None)


def unless(condition: bool, violations: str) -> str | None:
    return None if condition else violations


def keeps_swizzle(law):
    """A law of plain layouts for composed ones too: it holds for `outer`, the rest stays."""

    def check(result, layout, *args, **options):
        if not isinstance(layout, ComposedLayout):
            return law(result, layout, *args, **options)
        if not isinstance(result, ComposedLayout) or (result.inner, result.offset) != (
            layout.inner,
            layout.offset,
        ):
            return "the swizzle or its offset is lost"
        args = [a.outer if isinstance(a, ComposedLayout) else a for a in args]
        return law(result.outer, layout.outer, *args, **options)

    return check


# Algebra


@keeps_swizzle
def coalesce(result: Layout, layout: Layout, target_profile: Any = None) -> str | None:
    if isinstance(target_profile, tuple):
        parts = [coalesce(mode(result, m), mode(layout, m), p) for m, p in enumerate(target_profile)]
        kept = range(len(target_profile), rank(layout))
        same = rank(result) == rank(layout) and all(mode(result, m) == mode(layout, m) for m in kept)
        return first_of(unless(same, "the modes beyond the profile changed"), *parts)
    return first_of(first_difference(table(result), table(layout)), is_coalesced(result))


def is_coalesced(layout: Layout) -> str | None:
    flat = modes(layout)
    if layout == Layout(1, 0):
        return None
    if any(isinstance(s, tuple) for s in (layout.shape if isinstance(layout.shape, tuple) else ())):
        return "it is nested"
    if isinstance(layout.shape, tuple) and len(flat) == 1:
        return "a single mode stands in a tuple"
    if any(s == 1 for s, _ in flat):
        return "an extent of 1 is left"
    return unless(all(s0 * d0 != d1 for (s0, d0), (_, d1) in pairwise(flat)), "two neighbours merge")


@keeps_swizzle
def filter_zeros(result: Layout, layout: Layout, target_profile: Any = None) -> str | None:
    profile = layout.stride if target_profile is None else target_profile
    want = [1 if number(p) == 0 else s for (s, _), p in zip(modes(layout), leaves(profile), strict=True)]
    same_strides = result.stride == layout.stride
    return unless(same_strides and leaves(result.shape) == want and rank(result) == rank(layout), f"not {want}")


@keeps_swizzle
def filter(result: Layout, layout: Layout) -> str | None:
    repeats = any(d == 0 for _, d in modes(result)) and result != Layout(1, 0)
    same = set(table(result)) == set(table(layout))
    return first_of(unless(same, "other offsets"), unless(not repeats, "a stride of 0"), is_coalesced(result))


def composition(result: Any, a: Any, b: Any, past_end: bool = True) -> str | None:
    """`past_end` asks for the values past the end of A too, where it runs on along its last mode."""
    if isinstance(a, Swizzle):
        return first_difference(table(result), list(map(function(a), table(b))))
    if isinstance(a, ComposedLayout):
        if not isinstance(result, ComposedLayout) or (result.inner, result.offset) != (a.inner, a.offset):
            return "the swizzle or its offset is lost"
        return composition(result.outer, a.outer, b, past_end)
    if b is None:
        return unless(result == a, "a mode changed where the tiler holds None")
    if isinstance(b, tuple):
        if rank(result) != len(b):
            return f"rank {rank(result)} for a tiler of {len(b)}"
        return first_of(*[composition(mode(result, m), mode(a, m), t, past_end) for m, t in enumerate(b)])
    b = Layout(b, 1) if isinstance(b, int) else b
    if not refines(result.shape, b.shape):
        return f"the shape {result.shape} does not refine {b.shape}"
    if gives_coordinates(b):
        values = [[run_on(part(a, path), i) for i in table(along(b, path))] for path in paths(b)]
        return first_difference(table(result), [sum(parts) for parts in zip(*values, strict=True)])
    want = [run_on(a, i) if past_end or i < size(a) else UNSPECIFIED for i in table(b)]
    return first_difference(table(result), want)


def no_composition(a: Any, b: Any) -> str | None:
    if isinstance(a, ComposedLayout):
        return no_composition(a.outer, b)
    if isinstance(b, tuple):
        parts = [no_composition(mode(a, m), t) for m, t in enumerate(b)] if len(b) <= rank(a) else [None]
        return "; ".join(parts) if all(parts) else None
    b = Layout(b, 1) if isinstance(b, int) else b
    if b is None or not a.is_integral:  # a stride that is a sum of basis vectors is not one
        return None
    if gives_coordinates(b):
        parts = [no_composition(part(a, path), along(b, path)) for path in paths(b)]
        return "; ".join(parts) if all(parts) else None
    tables = [[run_on(a, i * d) for i in range(s)] for s, d in modes(b)]
    found = all(map(is_layout, tables)) and outer_sum(*tables) == [run_on(a, i) for i in table(b)]
    return f"leaf by leaf: {tables}" if found else None


def complement(result: Layout, layout: Layout, cotarget: Any) -> str | None:
    if gives_coordinates(layout):
        parts = [(along(result, (m,)), along(layout, (m,)), extent) for m, extent in enumerate(cotarget)]
        return first_of(*[complement(_without_zeros(r), s, extent) for r, s, extent in parts])
    total = size(cotarget)
    starts, offsets = table(result), sorted(set(table(layout)))
    covered = sorted(outer_sum(offsets, starts))
    period = max([s * d for s, d in modes(layout) if s > 1], default=1) or 1
    periods = -(-total // period)
    within = [start for start in starts if start < period]
    return first_of(
        unless(bool(starts) or periods == 0, "there is no copy"),
        unless(len(set(covered)) == len(covered), "copies overlap"),
        unless(starts == sorted(starts), "it does not increase"),
        unless(
            starts == [period * p + start for p in range(periods) for start in within],
            f"no {periods} periods of {period}",
        ),
        unless(not starts or copy_starts(layout, len(within)) == within, "other copies"),
        unless(max(within, default=0) + max(offsets) < period, "a copy leaves its period"),
        unless(
            not _nests(layout) or covered == list(range(periods * period)),
            f"it does not cover [0, {periods * period}) once",
        ),
        is_coalesced(result),
    )


def _nests(layout: Layout) -> bool:
    """Whether each sorted stride is a multiple of the extent times stride before it: no padding."""
    period = 1
    for d, s in sorted((d, s) for s, d in modes(layout) if s > 1 and d != 0):
        if d < period or d % period:
            return False
        period = s * d
    return True


def _without_zeros(layout: Layout) -> Layout:
    kept = [(s, d) for s, d in modes(layout) if d != 0 and s != 1]
    if len(kept) < 2:
        return Layout(*(kept or [(1, 0)])[0])
    return Layout(tuple(s for s, _ in kept), tuple(d for _, d in kept))


def no_complement(layout: Layout, cotarget: Any) -> str | None:
    if gives_coordinates(layout):
        parts = [no_complement(along(layout, (m,)), extent) for m, extent in enumerate(cotarget)]
        return "; ".join(parts) if all(parts) else None
    if len(set(table(layout))) != prod(s for s, d in modes(layout) if d != 0):
        return None
    starts = copy_starts(layout, 2) if min(d for _, d in modes(layout)) >= 0 else None
    starts = starts or gaps(table(layout), size(cotarget))
    return f"{starts}" if starts and is_layout(starts) else None


def no_rest(tile: Layout, cotarget: Any) -> str | None:
    """Why copies of a tile, refused by a divide, would do: they leave no gaps."""
    return no_complement(tile, cotarget) if not _padded(tile) else None


def _padded(layout: Layout) -> bool:
    return copy_starts(layout, 1) is not None and not _nests(layout)


def right_inverse(result: Layout, layout: Layout) -> str | None:
    if gives_coordinates(layout):
        return _inverse_of_coordinates(result, layout, lambda m: len(right_run(along(layout, (m,)))))
    inverse = table(result)
    longest = 1
    if len(set(table(layout))) == size(layout) and min(d for _, d in modes(layout)) >= 0:
        index_of = {offset: i for i, offset in enumerate(table(layout))}
        run = next(n for n in range(size(layout) + 1) if n not in index_of)
        longest = max(n for n in range(1, run + 1) if is_layout([index_of[i] for i in range(n)]))
    return first_of(
        unless(max(inverse) < size(layout), "it leaves the layout"),
        first_difference(list(map(function(layout), inverse)), list(range(len(inverse))), "L(R)"),
        unless(len(inverse) >= longest, f"{len(inverse)} elements, {longest} are contiguous"),
    )


def _inverse_of_coordinates(result: Layout, layout: Layout, length_of: Any) -> str | None:
    """L(R(c)) == c for every coordinate c of R, whose mode m has as many elements as `length_of` says."""
    lengths = [length_of(m) for m in range(1 + max(path[0] for path in paths(layout)))]
    if _sizes(result) != lengths:
        return f"modes of {_sizes(result)} elements instead of {lengths}"
    for c in cartesian(*map(range, lengths)):
        index = sum(at(mode(result, m), i) for m, i in enumerate(c))
        back = tuple(at(along(layout, (m,)), index) for m in range(len(lengths)))
        if index >= size(layout) or back != c:
            return f"L(R({c})) is {back}"
    return None


def _left_inverse_of_coordinates(result: Layout, layout: Layout) -> str | None:
    for i in range(size(layout)):
        coord = [at(along(layout, (m,)), i) for m in range(rank(result))]
        back = sum(at(mode(result, m), c) for m, c in enumerate(coord))
        again = [at(along(layout, (m,)), back) for m in range(rank(result))]
        if not 0 <= back < size(layout) or again != coord or (back != i and not _stands_still(layout)):
            return f"R(L({i})) is {back}"
    return None


def _stands_still(layout: Layout) -> bool:
    """Whether a mode of stride 0 repeats offsets."""
    return any(d == 0 and s > 1 for s, d in modes(layout))


def left_inverse(result: Layout, layout: Layout) -> str | None:
    if gives_coordinates(layout):
        return _left_inverse_of_coordinates(result, layout)
    period = max([s * d for s, d in modes(layout) if s > 1], default=1) or 1
    back = list(map(function(result), table(layout)))
    first = [table(layout).index(i) for i in table(layout)]
    return first_of(
        first_difference(back, first, "R(L)"),
        unless(_stands_still(layout) or back == list(range(size(layout))), "R(L(i)) is not i"),
        unless(size(result) == period, f"{size(result)} elements; the largest stride ends at {period}"),
    )


def no_left_inverse(layout: Layout) -> str | None:
    """An inverse whose strides are found digit by digit, for offsets that are distinct and not negative."""
    if gives_coordinates(layout):
        parts = [no_left_inverse(_without_zeros(along(layout, path))) for path in paths(layout)]
        return "; ".join(parts) if all(parts) else None
    flat = sorted(
        (d, s, start) for (s, d), start in zip(modes(layout), _starts(layout), strict=True) if s > 1 and d != 0
    )
    if any(d <= 0 for d, _, _ in flat) or any(d1 % d0 or d1 < d0 * s0 for (d0, s0, _), (d1, _, _) in pairwise(flat)):
        return None
    return f"strides {flat} nest"


def _starts(layout: Layout) -> list[int]:
    return [prod(s for s, _ in modes(layout)[:m]) for m in range(len(modes(layout)))]


def nullspace(result: Layout, layout: Layout) -> str | None:
    count = prod(s for s, d in modes(layout) if d == 0)
    return first_of(
        unless(all(at(layout, i) == 0 for i in table(result)), "an element outside the kernel"),
        unless(len(set(table(result))) == size(result) == count, f"not {count} distinct elements"),
    )


def max_common_layout(result: Layout, a: Layout, b: Layout) -> str | None:
    identity = list(range(size(result)))
    return first_of(
        unless(max(table(result)) < min(size(a), size(b)), "it leaves the smaller layout"),
        first_difference(list(map(function(a), table(result))), identity, "A(R)"),
        first_difference(list(map(function(b), table(result))), identity, "B(R)"),
        max_common_vector(size(result), a, b),
    )


def right_run(layout: Layout) -> list[int]:
    """The indices of the offsets 0, 1, ... as far as the modes of stride 1, s, s*s', ... reach."""
    flat = list(zip(modes(layout), _starts(layout), strict=True))
    run, current = [0], 1
    while following := next(((s, start) for (s, d), start in flat if d == current and s > 1), None):
        run = outer_sum(run, [i * following[1] for i in range(following[0])])
        current *= following[0]
    return run


def max_common_vector(result: int, a: Layout, b: Layout) -> str | None:
    run_a, run_b = right_run(a), right_run(b)
    longest = max(n for n in range(1, len(run_a) + 1) if run_a[:n] == run_b[:n] and is_layout(run_a[:n]))
    return unless(result == longest, f"{result} elements, {longest} are common")


# Divides and products


def _divided(layout: Layout, tiler: Any) -> list[tuple[list[int], list[int]]] | None:
    """(tile, rest) for each mode, from the definition; None if the tile has no complement."""
    if not isinstance(tiler, tuple):
        tile = Layout(tiler, 1) if isinstance(tiler, int) else tiler
        rest = gaps(table(tile), size(layout))
        return rest and [([run_on(layout, i) for i in table(tile)], [run_on(layout, i) for i in rest])]
    out = []
    for m, t in enumerate(tiler):
        part = mode(layout, m)
        divided = [(table(part), [0])] if t is None else _divided(part, t)
        if divided is None:
            return None
        out += divided
    return out


def _sizes(layout: Any) -> list[int]:
    return [size(mode(layout, m)) for m in range(rank(layout))]


def _has_form(result: Layout, form: list[list[list[int]]]) -> str | None:
    """`form`: for each mode of the result, the tables of its parts."""
    want = [prod(len(t) for t in parts) for parts in form]
    return first_of(
        unless(_sizes(result) == want, f"modes of {_sizes(result)} elements instead of {want}"),
        first_difference(table(result), outer_sum(*[t for parts in form for t in parts])),
    )


def divide(form: str):
    @keeps_swizzle
    def law(result: Any, layout: Layout, tiler: Any) -> str | None:
        pairs = _divided(layout, tiler)
        if pairs is None:
            return "the tile has no complement"
        beyond = [table(mode(layout, m)) for m in range(len(pairs), rank(layout))] if isinstance(tiler, tuple) else []
        tiles, rests = [p[0] for p in pairs], [p[1] for p in pairs] + beyond
        if form == "logical" and isinstance(tiler, tuple):
            return _has_form(result, [*[list(p) for p in pairs], *[[t] for t in beyond]])
        if not isinstance(tiler, tuple):
            if form in ("logical", "zipped"):
                return _has_form(result, [tiles, rests])
            # The rest, or the tile too, is opened into as many modes as the composition gave it.
            return first_difference(table(result), outer_sum(tiles[0], rests[0]))
        both = {"zipped": [tiles, rests], "tiled": [tiles, *[[r] for r in rests]]}
        whole = result if form == "flat" else mode(result, 0)
        kept = [m for m, t in enumerate(tiler) if t is None]
        return first_of(
            _has_form(result, both.get(form, [[t] for t in (*tiles, *rests)])),
            unless(
                all(mode(whole, m) == mode(layout, m) for m in kept),
                "a mode changed where the tiler holds None",
            ),
        )

    return law


def no_divide(layout: Any, tiler: Any) -> str | None:
    layout = layout.outer if isinstance(layout, ComposedLayout) else layout
    if isinstance(tiler, tuple):
        parts = [no_divide(mode(layout, m), t) for m, t in enumerate(tiler)] if len(tiler) <= rank(layout) else [None]
        return "; ".join(parts) if all(parts) else None
    if tiler is None:
        return "the mode itself"
    tile = Layout(tiler, 1) if isinstance(tiler, int) else tiler
    rest = gaps(table(tile), size(layout))
    if (
        rest is None
        or no_rest(tile, size(layout)) is None
        or not is_layout(rest)
        or no_composition(layout, tile) is None
    ):
        return None
    values = [run_on(layout, i) for i in rest]
    both = outer_sum([run_on(layout, i) for i in table(tile)], values)
    whole = [run_on(layout, i) for i in outer_sum(table(tile), rest)]
    return f"rest {values}" if is_layout(values) and both == whole else None


def _copies(block: Layout, tiler: Layout) -> list[int] | None:
    reach = 1 + max(table(tiler))
    starts = copy_starts(block, reach) or gaps(table(block), size(block) * reach)
    return starts and [starts[i] for i in table(tiler)]


def product(form: str):
    @keeps_swizzle
    def law(result: Any, block: Layout, tiler: Any) -> str | None:
        copies = _copies(block, tiler)
        if copies is None:
            return "the block has no complement"
        if form in ("logical", "zipped"):
            return _has_form(result, [[table(block)], [copies]])
        return first_difference(table(result), outer_sum(table(block), copies))

    return law


def no_product(block: Any, tiler: Layout) -> str | None:
    block = block.outer if isinstance(block, ComposedLayout) else block
    reach = 1 + max(table(tiler))
    starts = copy_starts(block, reach) or gaps(table(block), size(block) * reach)
    if starts is None or not is_layout(starts):
        return None
    tables = [[starts[i * d] for i in range(s)] for s, d in modes(tiler)]
    found = all(map(is_layout, tables)) and outer_sum(*tables) == [starts[i] for i in table(tiler)]
    return f"copies {tables}" if found else None


def interleaved(order: str):
    """blocked: each mode is (block, copies); raked: (copies, block)."""

    @keeps_swizzle
    def law(result: Any, block: Layout, tiler: Layout) -> str | None:
        copies = _copies(block, tiler)
        if copies is None:
            return "the block has no complement"
        count = max(rank(block), rank(tiler))
        inner = [size(mode(block, m)) if m < rank(block) else 1 for m in range(count)]
        outer = [size(mode(tiler, m)) if m < rank(tiler) else 1 for m in range(count)]
        return _side_by_side(result, table(block), inner, copies, outer, raked=order == "raked")

    return law


def _side_by_side(
    result: Layout,
    block: list[int],
    inner: list[int],
    copies: list[int],
    outer: list[int],
    raked: bool = False,
) -> str | None:
    sizes = [i * o for i, o in zip(inner, outer, strict=True)]
    one_mode = len(sizes) == 1 and size(result) == sizes[0]
    if _sizes(result) != sizes and not one_mode:
        return f"modes of {_sizes(result)} elements instead of {sizes}"
    want = []
    for index in range(prod(sizes)):
        b, c, b_step, c_step = 0, 0, 1, 1
        for i, o, s in zip(inner, outer, sizes, strict=True):
            index, digit = divmod(index, s)
            b_digit, c_digit = (digit // o, digit % o) if raked else (digit % i, digit // i)
            b, c, b_step, c_step = b + b_digit * b_step, c + c_digit * c_step, b_step * i, c_step * o
        want.append(block[b] + copies[c])
    return first_difference(table(result), want)


@keeps_swizzle
def tile_to_shape(result: Any, block: Layout, trg_shape: Any, order: Any) -> str | None:
    inner, orders, outer = _tiles(block, trg_shape, order)
    starts = copy_starts(block, prod(outer)) or gaps(table(block), size(block) * prod(outer))
    if starts is None:
        return "the block has no complement"
    copies = [starts[i] for i in _ordered(outer, orders)]
    return _side_by_side(result, table(block), inner, copies, outer)


def _tiles(block: Layout, trg_shape: Any, order: Any) -> tuple[list[int], list[int], list[int]]:
    """For each mode the extent of the block, the order, and how many copies there are."""
    targets = [size(s) for s in trg_shape] if isinstance(trg_shape, tuple) else [trg_shape]
    inner = [size(mode(block, m)) if m < rank(block) else 1 for m in range(len(targets))]
    outer = [-(-t // i) for t, i in zip(targets, inner, strict=True)]
    return inner, list(order) if isinstance(order, tuple) else [order], outer


def _ordered(extents: list[int], order: list[int]) -> list[int]:
    strides = [0] * len(extents)
    for m in range(len(extents)):
        before = [n for n in range(len(extents)) if (order[n], n) < (order[m], m)]
        strides[m] = prod(extents[n] for n in before)
    return outer_sum(*[[i * d for i in range(s)] for s, d in zip(extents, strides, strict=True)])


def no_tile_to_shape(block: Any, trg_shape: Any, order: Any) -> str | None:
    """The copies' strides, each as far as its first copy starts."""
    block = block.outer if isinstance(block, ComposedLayout) else block
    _, orders, outer = _tiles(block, trg_shape, order)
    starts = copy_starts(block, prod(outer)) or gaps(table(block), size(block) * prod(outer))
    if starts is None or not is_layout(starts):
        return None
    copies = [starts[i] for i in _ordered(outer, orders)]
    steps = [prod(outer[:m]) for m in range(len(outer))]
    tables = [copies[: step * extent : step] for step, extent in zip(steps, outer, strict=True)]
    return f"copies {tables}" if all(map(is_layout, tables)) and outer_sum(*tables) == copies else None


def recast_layout(result: Layout, new_bits: int, old_bits: int, layout: Any) -> str | None:
    """Unit by unit of the common divisor of the widths: each lies in the wide element at its own coordinate."""
    common = gcd(old_bits, new_bits)
    parts, wide = old_bits // common, new_bits // common
    if isinstance(layout, ComposedLayout):
        ratio = max(parts, wide)
        if min(parts, wide) > 1 or ratio & (ratio - 1):
            return "a swizzle of units that are not a power of two"
        before = [at(layout.inner, layout.offset + o) for o in table(layout.outer)]
        want = {(i * parts + part) // wide for i in before for part in range(parts)}
        return first_of(
            recast_layout(result.outer, new_bits, old_bits, layout.outer),
            unless(set(table(result)) == want, "other memory"),
        )
    violations: list[str | None] = ["no mode takes up the parts of an element"]
    for split in _splits(layout, parts):
        violations.append(_recast_by(split, result, layout, parts, wide))
        if violations[-1] is None:
            return None
    return violations[-1]


def _splits(layout: Layout, parts: int) -> list[int | None]:
    """The leaves that may take up the parts of an element."""
    return [None] if parts == 1 else [m for m, (s, d) in enumerate(modes(layout)) if d == 1 or s == 1]


def _units(split: int | None, layout: Layout, parts: int, wide: int) -> list[tuple[int, int, int]]:
    """For each leaf its extent and stride in units, and how many of its steps one wide element holds."""
    out = []
    for m, (s, d) in enumerate(modes(layout)):
        extent, stride = (s * parts, 1) if m == split else (s, d * parts)
        per_wide = wide // stride if 0 < stride <= wide and wide % stride == 0 else 1
        if per_wide == 1 and stride % wide and 0 < (extent - 1) * stride < wide:
            per_wide = extent
        out.append((extent, stride, per_wide))
    return out


def _recast_by(split: int | None, result: Layout, layout: Layout, parts: int, wide: int) -> str | None:
    units = _units(split, layout, parts, wide)
    if [-(-extent // per) for extent, _, per in units] != [r for r, _ in modes(result)]:
        return f"extents {result.shape} instead of the extents of {units}"
    for coord in cartesian(*[range(extent) for extent, _, _ in units]):
        unit = sum(c * stride for c, (_, stride, _) in zip(coord, units, strict=True))
        steps = zip(coord, units, modes(result), strict=True)
        element = sum(c // per * stride for c, (_, _, per), (_, stride) in steps)
        if element != unit // wide:
            return f"unit {unit} at {coord} lies in the element {element}"
    return None


def no_recast(new_bits: int, old_bits: int, layout: Any) -> str | None:
    """Every leaf with the stride of its first step from one wide element to another."""
    common = gcd(old_bits, new_bits)
    parts, wide = old_bits // common, new_bits // common
    if isinstance(layout, ComposedLayout):
        ratio = max(parts, wide)
        torn = new_bits > old_bits << layout.inner.base or layout.offset * old_bits % new_bits
        uneven = min(parts, wide) > 1 or ratio & (ratio - 1)
        return None if torn or uneven else no_recast(new_bits, old_bits, layout.outer)
    for split in _splits(layout, parts):
        units = _units(split, layout, parts, wide)
        found = [(-(-extent // per), per * stride // wide) for extent, stride, per in units]
        if any(r > 1 and per * stride % wide for (r, _), (_, stride, per) in zip(found, units, strict=True)):
            continue  # steps of a fraction of a wide element
        result = Layout(tuple(s for s, _ in found), tuple(d for _, d in found))
        if recast_layout(result, new_bits, old_bits, layout) is None:
            return str(result)
    return None


def make_ordered_layout(result: Layout, shape: Any, order: Any) -> str | None:
    extents, orders = leaves(shape), []
    _spread(order, shape, orders)
    return first_of(
        unless(result.shape == shape, "another shape"),
        first_difference(table(result), _ordered(extents, orders)),
    )


def _spread(order: Any, shape: Any, out: list[int]) -> None:
    if isinstance(order, tuple):
        for o, s in zip(order, shape, strict=True):
            _spread(o, s, out)
    else:
        out += [order] * len(leaves(shape))


def make_layout_like(result: Layout, layout: Layout) -> str | None:
    moving = [m for m, (s, d) in enumerate(modes(layout)) if s > 1 and d != 0]
    new, old = modes(result), modes(layout)
    held = sorted(set(table(result)))
    return first_of(
        unless(result.shape == layout.shape, "another shape"),
        unless(held == list(range(prod(old[m][0] for m in moving))), "not compact"),
        unless(
            sorted(moving, key=lambda m: (old[m][1], m)) == sorted(moving, key=lambda m: new[m][1]),
            "other order",
        ),
    )


def make_identity_layout(result: Layout, shape: Any) -> str | None:
    """Each leaf moves by 1 along the basis vector of its own path; a bare extent counts."""

    def paths(s: Any, path: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [p for m, x in enumerate(s) for p in paths(x, (*path, m))] if isinstance(s, tuple) else [path]

    want = [ScaledBasis(1, p) if p else 1 for p in paths(shape, ())]
    return unless(result.shape == shape and leaves(result.stride) == want, "a coordinate does not give itself")


def make_layout_tv(result: tuple[Any, Layout], thr: Layout, val: Layout) -> str | None:
    """Mode by mode the values of a thread lie side by side, and the threads after one another."""
    if no_layout_tv(thr, val) is None:
        return "a thread or a value is missing or repeated"
    tiler, layout_tv = result
    threads, values = _sizes(thr), _sizes(val)
    extents = [t * v for t, v in zip(threads, values, strict=True)]
    want = {}
    for index in range(prod(extents)):
        t, v, rest = 0, 0, index
        for m, extent in enumerate(extents):
            rest, digit = divmod(rest, extent)
            t += digit // values[m] * prod(threads[:m])
            v += digit % values[m] * prod(values[:m])
        want[at(thr, t), at(val, v)] = index
    ordered = [want.get((t, v)) for v in range(size(val)) for t in range(size(thr))]
    return first_of(
        unless(list(tiler) == extents, f"a tile of {tiler}"),
        unless(_sizes(layout_tv) == [size(thr), size(val)], "other threads or values"),
        first_difference(table(layout_tv), ordered),
    )


def no_layout_tv(thr: Layout, val: Layout) -> str | None:
    """Refused where a number of a thread or a value is missing, or stands at two places."""
    numbers = [sorted(table(x)) == list(range(size(x))) for x in (thr, val)]
    return "each number stands at one place" if all(numbers) else None


def no_append(layout: Any, elem: Layout) -> str | None:
    """Refused where coordinates would meet offsets, or one mode would be a number and a tuple."""
    paths_of_both = sorted({*paths(layout), *paths(elem)})
    if any(b[: len(a)] == a for a, b in pairwise(paths_of_both)):
        return None
    moves = any(d != 0 and s > 1 for x in (layout, elem) if not gives_coordinates(x) for s, d in modes(x))
    return None if moves and paths_of_both else "offsets alone or coordinates alone"


# Modes


def flatten(result: Any, layout: Any) -> str | None:
    deep = isinstance(result.shape, tuple) and any(isinstance(s, tuple) for s in result.shape)
    return first_of(unless(not deep, "it is nested"), first_difference(table(result), table(layout)))


def select(result: Any, layout: Any, mode: list[int]) -> str | None:
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    shape, stride = tuple(outer.shape[m] for m in mode), tuple(outer.stride[m] for m in mode)
    return _is(result, layout, Layout(shape, stride))


def _is(result: Any, layout: Any, want: Layout) -> str | None:
    if isinstance(layout, ComposedLayout):
        return unless(result == ComposedLayout(layout.inner, layout.offset, want), f"not {want}")
    return unless(result == want, f"not {want}")


def group_modes(result: Any, layout: Any, begin: int, end: int) -> str | None:
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    s, d = outer.shape, outer.stride
    shape, stride = (*s[:begin], s[begin:end], *s[end:]), (*d[:begin], d[begin:end], *d[end:])
    return _is(result, layout, Layout(shape, stride))


def append(result: Any, layout: Layout, elem: Layout) -> str | None:
    tables = [table(mode(layout, m)) for m in range(rank(layout))]
    return _has_form(result, [*[[t] for t in tables], [table(elem)]])


def prepend(result: Any, layout: Layout, elem: Layout) -> str | None:
    tables = [table(mode(layout, m)) for m in range(rank(layout))]
    return _has_form(result, [[table(elem)], *[[t] for t in tables]])


def _parts(layout: Layout, coord: Any) -> tuple[list[Layout], list[tuple[Layout, Any]]]:
    """The layouts of the modes whose coordinate is None, and (layout, coordinate) of the others."""
    if coord is None:
        return [layout], []
    if isinstance(coord, tuple):
        halves = [_parts(mode(layout, m), c) for m, c in enumerate(coord)]
        return [x for h in halves for x in h[0]], [x for h in halves for x in h[1]]
    return [], [(layout, coord)]


def slice_and_offset(result: tuple[Layout, Any], coord: Any, layout: Layout) -> str | None:
    cut = _parts(layout, coord)[1]
    got, offset = result
    return first_of(
        unless(offset == sum(at(part, c) for part, c in cut), f"the offset {offset}"),
        slice_(got, layout, coord) if not isinstance(layout, ComposedLayout) else None,
    )


def slice_(result: Any, layout: Any, coord: Any) -> str | None:
    if isinstance(layout, ComposedLayout):
        kept, cut = _parts(layout.outer, coord)
        fixed = layout.offset + sum(at(part, c) for part, c in cut)
        want = [at(layout.inner, fixed + i) for i in outer_sum(*map(table, kept))]
        return first_difference(table(result), want)
    kept, _ = _parts(layout, coord)
    return unless(result == (Layout(tuple(k.shape for k in kept), tuple(k.stride for k in kept))), f"not {kept}")


def dice(result: Any, layout: Layout, dicer: Any) -> str | None:
    cut = [part for part, _ in _parts(layout, dicer)[1]]
    return unless(result == Layout(tuple(k.shape for k in cut), tuple(k.stride for k in cut)), f"not {cut}")


def crd2idx(result: Any, coord: Any, layout: Any) -> str | None:
    layout = layout if isinstance(layout, (Layout, ComposedLayout)) else Layout(layout)
    index = _index(coord, layout.shape)
    return unless(result == at(layout, index), f"{result} instead of {at(layout, index)}")


def _index(coord: Any, shape: Any) -> int:
    if not isinstance(coord, tuple):
        return coord
    out, step = 0, 1
    for c, s in zip(coord, shape, strict=True):
        out += _index(c, s) * step
        step *= size(s)
    return out


def idx2crd(result: Any, index: int, shape: Any) -> str | None:
    return unless(_index(result, shape) == index and refines(shape, shape) and _congruent(result, shape), f"{result}")


def _congruent(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def call(result: int, layout: Any, index: int) -> str | None:
    return unless(result == at(layout, index), f"{result} instead of {at(layout, index)}")


def size_of(result: int, layout: Any) -> str | None:
    return unless(result == len(table(layout)), f"{result} elements")


def cosize(result: int, layout: Layout) -> str | None:
    reach = 1 + max(abs(i) for i in table(Layout(layout.shape, _absolute(layout.stride))))
    return unless(result == reach, f"{result} instead of {reach}")


def _absolute(stride: Any) -> Any:
    return tuple(map(_absolute, stride)) if isinstance(stride, tuple) else abs(stride)


LAWS = {
    "coalesce": coalesce,
    "filter_zeros": filter_zeros,
    "filter": filter,
    "composition": composition,
    "complement": complement,
    "right_inverse": right_inverse,
    "left_inverse": left_inverse,
    "nullspace": nullspace,
    "max_common_layout": max_common_layout,
    "max_common_vector": max_common_vector,
    "logical_divide": divide("logical"),
    "zipped_divide": divide("zipped"),
    "tiled_divide": divide("tiled"),
    "flat_divide": divide("flat"),
    "logical_product": product("logical"),
    "zipped_product": product("zipped"),
    "tiled_product": product("tiled"),
    "flat_product": product("flat"),
    "blocked_product": interleaved("blocked"),
    "raked_product": interleaved("raked"),
    "tile_to_shape": tile_to_shape,
    "recast_layout": recast_layout,
    "make_ordered_layout": make_ordered_layout,
    "make_layout_like": make_layout_like,
    "make_identity_layout": make_identity_layout,
    "make_layout_tv": make_layout_tv,
    "flatten": flatten,
    "select": select,
    "group_modes": group_modes,
    "append": append,
    "prepend": prepend,
    "slice_": slice_,
    "slice_and_offset": slice_and_offset,
    "dice": dice,
    "crd2idx": crd2idx,
    "idx2crd": idx2crd,
    "call": call,
    "size": size_of,
    "cosize": cosize,
}

UNANSWERABLE = {
    "composition": no_composition,
    "complement": no_complement,
    "left_inverse": no_left_inverse,
    "logical_divide": no_divide,
    "zipped_divide": no_divide,
    "tiled_divide": no_divide,
    "flat_divide": no_divide,
    "logical_product": no_product,
    "zipped_product": no_product,
    "tiled_product": no_product,
    "flat_product": no_product,
    "blocked_product": no_product,
    "raked_product": no_product,
    "tile_to_shape": no_tile_to_shape,
    "recast_layout": no_recast,
    "make_layout_tv": no_layout_tv,
    "append": no_append,
    "prepend": no_append,
}
