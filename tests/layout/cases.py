"""Random arguments for every operation, from any source of random numbers.

`random.Random(seed)` gives the oracle its fixed cases; hypothesis gives one that it can shrink.
"""

from __future__ import annotations

from math import prod
from random import Random
from typing import Any

from cutegemm.layout import ComposedLayout, E, Layout, Swizzle

EXTENTS = (1, 2, 2, 2, 3, 4, 4, 5, 6, 8)
WIDTHS = ((16, 8), (32, 8), (8, 16), (16, 32), (8, 32), (16, 16), (4, 8), (32, 16))
SWIZZLES = ((1, 0, 1), (1, 1, 2), (2, 0, 3), (2, 1, 2), (2, 3, 3), (3, 0, 3), (3, 3, 3))


def extents(rng: Random, most: int = 96) -> list[int]:
    out: list[int] = []
    for _ in range(rng.randint(1, 4)):
        extent = rng.choice(EXTENTS)
        if prod(out) * extent <= most:
            out.append(extent)
    return out or [1]


def nest(rng: Random, items: list[Any]) -> list[Any]:
    """Some neighbours gathered, as a list of lists that `tupled` reads."""
    if len(items) < 2 or rng.random() < 0.5:
        return items
    begin = rng.randint(0, len(items) - 2)
    end = rng.randint(begin + 1, len(items))
    return [*items[:begin], nest(rng, items[begin:end]), *items[end:]]


def tupled(items: Any, pick: int) -> Any:
    return tuple(tupled(i, pick) for i in items) if isinstance(items, list) else items[pick]


def of_pairs(rng: Random, pairs: list[tuple[int, Any]], flat: bool = False) -> Layout:
    """A layout with the given leaves, mostly in some hierarchy; a single leaf often by itself."""
    if len(pairs) == 1 and rng.random() < 0.6:
        return Layout(*pairs[0])
    items = pairs if flat else nest(rng, pairs)
    return Layout(tupled(items, 0), tupled(items, 1))


def strides(rng: Random, sizes: list[int], kinds: str) -> list[Any]:
    """p: compact in some order; g: with gaps; d: padded; z: a zero.

    Others: r: arbitrary; n: a negative one; b: coordinates.
    """
    kind = rng.choice(kinds)
    if kind == "b":
        along = [E((m, 1) if rng.random() < 0.2 else m) for m in range(len(sizes))]
        return [0 if rng.random() < 0.1 else rng.choice((1, 1, 2)) * e for e in along]
    if kind == "r":
        return [rng.choice((0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24)) for _ in sizes]
    out, running = [0] * len(sizes), 1
    for m in rng.sample(range(len(sizes)), len(sizes)):
        if kind == "g" and rng.random() < 0.5:
            running *= rng.choice((2, 3, 4))
        if kind == "d" and rng.random() < 0.6:
            running += rng.choice((1, 2, 3, 5, 11))
        out[m] = running if sizes[m] > 1 or rng.random() < 0.5 else 0
        running *= sizes[m]
    if kind == "z":
        out[rng.randrange(len(out))] = 0
    if kind == "n":
        position = rng.randrange(len(out))
        out[position] = -out[position]
    return out


def layout(rng: Random, kinds: str = "ppggzrr", most: int = 96, flat: bool = False) -> Layout:
    sizes = extents(rng, most)
    return of_pairs(rng, list(zip(sizes, strides(rng, sizes, kinds), strict=True)), flat)


def maybe_composed(rng: Random, plain: Layout) -> Layout | ComposedLayout:
    if rng.random() > 0.15 or not plain.is_integral:
        return plain
    return ComposedLayout(Swizzle(*rng.choice(SWIZZLES)), 0, plain)


def rank(value: Layout) -> int:
    return len(value.shape) if isinstance(value.shape, tuple) else 1


def size(shape: Any) -> int:
    return prod(map(size, shape)) if isinstance(shape, tuple) else shape


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def within(rng: Random, total: int) -> Layout:
    """A layout into [0, total), mostly one that divides it."""
    if rng.random() < 0.3:
        return layout(rng, "pgr", most=max(total, 2))
    pairs, step = [], 1
    for _ in range(rng.randint(1, 3)):
        step *= rng.choice(divisors(max(total // step, 1)))
        extent = rng.choice(divisors(max(total // step, 1)))
        pairs.append((extent, step))
        step *= extent
    rng.shuffle(pairs)
    return of_pairs(rng, pairs)


def tiler(rng: Random, target: Layout, deep: bool = True) -> Any:
    """For one divide or composition: a layout, an integer, or a tuple by mode."""
    total = size(target.shape)
    chance = rng.random()
    if deep and chance < 0.4 and isinstance(target.shape, tuple):
        count = rng.randint(1, len(target.shape))
        parts = [Layout(target.shape[m], target.stride[m]) for m in range(count)]
        return tuple(None if rng.random() < 0.15 else tiler(rng, part, deep=False) for part in parts)
    if chance < 0.6:
        return rng.choice(divisors(total)) if rng.random() < 0.8 else rng.randint(1, 2 * total)
    return within(rng, total)


def coord(rng: Random, shape: Any, none: float = 0.0) -> Any:
    """A coordinate; None at some modes."""
    if rng.random() < none:
        return None
    if isinstance(shape, tuple) and (rng.random() < 0.7 or none):
        return tuple(coord(rng, s, none) for s in shape)
    return rng.randrange(size(shape))


def has_none(value: Any) -> bool:
    return any(map(has_none, value)) if isinstance(value, tuple) else value is None


def _coalesce(rng):
    target = maybe_composed(rng, layout(rng, "ppggzrrnb"))
    plain = target if isinstance(target, Layout) else target.outer
    if rng.random() < 0.5 or not isinstance(plain.shape, tuple):
        return (target,), {}
    return (target,), {"target_profile": (1,) * rng.randint(1, len(plain.shape))}


def into_coordinates(rng: Random, extents: list[int]) -> Layout:
    """A layout of coordinates with these extents, mostly one that divides each of them."""
    pairs = []
    for m, extent in enumerate(extents):
        one = within(rng, extent)
        flat = [(s, d) for s, d in zip(_leaves(one.shape), _leaves(one.stride), strict=True)]
        pairs += [(s, rng.choice((0, d * E(m))) if rng.random() < 0.1 else d * E(m)) for s, d in flat]
    rng.shuffle(pairs)
    return of_pairs(rng, pairs)


def _coordinates(rng):
    return into_coordinates(rng, [rng.choice((1, 2, 4, 6, 8, 12)) for _ in range(rng.randint(1, 3))])


def _composition(rng):
    a = layout(rng, "ppggzrrnb")
    if rng.random() < 0.2:
        modes = a.shape if isinstance(a.shape, tuple) else (a.shape,)
        return (maybe_composed(rng, a), into_coordinates(rng, [size(s) for s in modes])), {}
    b = tiler(rng, a) if rng.random() < 0.5 else within(rng, size(a.shape))
    return (maybe_composed(rng, a), b), {}


def _complement(rng):
    if rng.random() < 0.2:
        return (
            a := _coordinates(rng),
            tuple(rng.choice((1, 8, 12, 24)) for _ in range(1 + _last_mode(a))),
        ), {}
    a = layout(rng, "pgggzdd" if rng.random() < 0.8 else "nr")
    return (a, rng.choice((size(a.shape), 24, 64, 96, 7, 1))), {}


def _last_mode(a: Layout) -> int:
    return max((d.mode[0] for d in _leaves(a.stride) if d != 0), default=0)


def _inverse(rng, kinds):
    return ((_coordinates(rng) if rng.random() < 0.2 else layout(rng, kinds)),), {}


def _common(rng):
    a = layout(rng, "pg")
    kept = strides(rng, sizes := _leaves(a.shape), "pg")
    b = Layout(a.shape, _like(a.shape, kept)) if rng.random() < 0.7 else layout(rng, "pgr")
    return ((a, b) if sizes and rng.random() < 0.8 else (a, a)), {}


def _leaves(shape):
    return [x for s in shape for x in _leaves(s)] if isinstance(shape, tuple) else [shape]


def _like(shape, values):
    values = iter(values) if isinstance(values, list) else values
    return tuple(_like(s, values) for s in shape) if isinstance(shape, tuple) else next(values)


def _divide(rng):
    target = layout(rng, "ppgzb", most=64)
    return (maybe_composed(rng, target), tiler(rng, target)), {}


def _product(rng):
    block = layout(rng, "ppggzdd", most=24)
    return (maybe_composed(rng, block), layout(rng, "ppgz", most=16)), {}


def _tile_to_shape(rng):
    block = layout(rng, "ppgd", most=32)
    modes = block.shape if isinstance(block.shape, tuple) else (block.shape,)
    target = tuple(size(s) * rng.choice((1, 1, 2, 3, 4)) for s in modes)
    if rng.random() < 0.2:
        target = (*target, rng.choice((2, 3)))
    elif rng.random() < 0.2:
        target = tuple(s + rng.randint(0, 2) for s in target)
    order = tuple(rng.sample(range(len(target)), len(target)))
    return (maybe_composed(rng, block), target, order), {}


def _recast(rng):
    old, new = rng.choice((*WIDTHS, *WIDTHS, (8, 24), (24, 8), (16, 12), (12, 16), (6, 8)))
    plain = layout(rng, "ppg")
    return (new, old, maybe_composed(rng, plain)), {}


def _ordered(rng):
    shape = layout(rng).shape
    modes = len(shape) if isinstance(shape, tuple) else 0
    return (shape, tuple(rng.randint(0, 4) for _ in range(modes)) if modes else 0), {}


def _tuple(rng, kinds="pgrb"):
    a = layout(rng, kinds)
    return a if isinstance(a.shape, tuple) else Layout((a.shape,), (a.stride,))


def _select(rng):
    a = _tuple(rng)
    return (maybe_composed(rng, a),), {"mode": rng.sample(range(rank(a)), rng.randint(1, rank(a)))}


def _group(rng):
    a = _tuple(rng)
    begin = rng.randrange(rank(a))
    return (maybe_composed(rng, a), begin, rng.randint(begin + 1, rank(a))), {}


def slice_arguments(rng):
    a = _tuple(rng, "pgr")
    c = tuple(coord(rng, s, none=0.4) for s in a.shape)
    if not has_none(c):
        kept = rng.randrange(len(c))
        c = (*c[:kept], None, *c[kept + 1 :])
    return a, c


def _thread_value(rng):
    """Threads and values of two modes, mostly compact."""
    pair = []
    for most in (32, 16):
        sizes = [rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 3, 4))]
        sizes[1] = min(sizes[1], most // sizes[0])
        pair.append(Layout(tuple(sizes), tuple(strides(rng, sizes, "ppppppgzrn"))))
    return tuple(pair), {}


def _one(kinds="ppggzrr"):
    return lambda rng: ((layout(rng, kinds),), {})


ARGUMENTS = {
    "coalesce": _coalesce,
    "filter_zeros": _one(),
    "filter": lambda rng: ((maybe_composed(rng, layout(rng)),), {}),
    "composition": _composition,
    "complement": _complement,
    "right_inverse": lambda rng: _inverse(rng, "ppppgzr"),
    "left_inverse": lambda rng: _inverse(rng, "ppggggzr"),
    "nullspace": _one("pzzz"),
    "max_common_layout": _common,
    "max_common_vector": _common,
    "logical_divide": _divide,
    "zipped_divide": _divide,
    "tiled_divide": _divide,
    "flat_divide": _divide,
    "logical_product": _product,
    "zipped_product": _product,
    "tiled_product": _product,
    "flat_product": _product,
    "blocked_product": _product,
    "raked_product": _product,
    "tile_to_shape": _tile_to_shape,
    "recast_layout": _recast,
    "make_ordered_layout": _ordered,
    "make_layout_like": _one(),
    "make_identity_layout": lambda rng: ((layout(rng).shape,), {}),
    "make_layout_tv": _thread_value,
    "flatten": _one("pgb"),
    "select": _select,
    "group_modes": _group,
    "append": lambda rng: ((layout(rng, "pgb"), layout(rng, most=8)), {}),
    "prepend": lambda rng: ((layout(rng, "pgb"), layout(rng, most=8)), {}),
    "slice_": lambda rng: (slice_arguments(rng), {}),
    "slice_and_offset": lambda rng: (slice_arguments(rng)[::-1], {}),
    "dice": lambda rng: (slice_arguments(rng), {}),
    "crd2idx": lambda rng: ((coord(rng, (a := layout(rng)).shape), a), {}),
    "idx2crd": lambda rng: ((rng.randrange(size(s := layout(rng).shape)), s), {}),
    "call": lambda rng: ((a := maybe_composed(rng, layout(rng)), rng.randrange(size(a.shape))), {}),
    "size": _one(),
    "cosize": _one("ppggzrrn"),
}
