"""Plans with a part changed by chance, as a person might mistake it."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from cutegemm.build import gemv_plan, mma_sync_plan, mma_tma_plan, simt_plan, sm90_plan
from cutegemm.dtypes import DType
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.epilogue import Epilogue
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.copy_atoms import cp_async, global_load, ldmatrix, stmatrix, universal_copy
from cutegemm.tile.mma_atoms import fma, mma_sync, wgmma

_WORDS = {
    "kind": ("pingpong", "cooperative", "single", "along_m", "cta", "named", "mbarrier", "?"),
    "swizzle": ("none", "32B", "64B", "128B"),
    "direction": ("load", "store", "reduce_add"),
    "major": ("m", "n", "k"),
    "family": ("simt", "mma_sync", "sm90", "?"),
    "arch": ("sm_80", "sm_90", "sm_90a"),
    "mma_order": ("m", "n", "k"),
    "rounding": ("rz", "rna", "rne"),
    "order": ("strided", "blocked"),
    "reduction": ("kernel", "last"),
    "l2_policy": ("evict_normal", "evict_first", "evict_last"),
}
_SETTLED = ("name", "summary", "source", "aliases")


@cache
def seeds() -> tuple[GemmPlan, ...]:
    """Small valid plans, of every family and every way of D."""
    small: dict[str, Any] = {"tile": (64, 64, 64), "epi_tile_n": 32, "ctas": 3}
    wide: dict[str, Any] = {"tile": (128, 64, 64), "epi_tile_n": 32, "ctas": 3, "schedule": "cooperative"}
    nt, tn = Operands.of("bf16", layout="nt"), Operands.of("f16", layout="tn", out_major="m")
    warps: dict[str, Any] = {"block": (64, 64, 32), "warp": (32, 32), "ctas": 3, "stages": 2}
    return (
        sm90_plan(nt, stages=3, **small),
        sm90_plan(nt, stages=3, with_c=True, **small),
        sm90_plan(tn, stages=3, **{**small, "epi_tile_n": None}),
        sm90_plan(nt, stages=2, cluster=(2, 1), **wide),
        sm90_plan(nt, stages=3, store="tma_warp", **wide),
        sm90_plan(nt, stages=3, overlapped=True, **wide),
        sm90_plan(nt, stages=3, shared_d="padded", **small),
        sm90_plan(nt, stages=3, store="direct", **small),
        sm90_plan(nt, stages=2, split_k=2, **small),
        sm90_plan(nt, stages=2, gpc_raster=True, tpc_rounds=(2, 1), **small),
        sm90_plan(Operands.of("e4m3", layout="nt", out="bf16"), stages=2, **{**small, "tile": (64, 64, 64)}),
        sm90_plan(Operands.of("tf32", layout="nt"), stages=2, **{**small, "tile": (64, 64, 32)}),
        sm90_plan(nt, stages=3, **{**small, "schedule": "single", "ctas": None, "epi_stages": 2}),
        mma_tma_plan(Operands.of("bf16", layout="tn"), **warps),
        mma_tma_plan(Operands.of("tf32", layout="nt"), **warps),
        mma_sync_plan(nt, block=(64, 64, 32), warp=(32, 32), stages=3),
        mma_sync_plan(Operands.of("tf32", layout="nn"), block=(64, 64, 16), warp=(32, 32), stages=2),
        simt_plan(block=(32, 32, 8), warp=(32, 32), thread=(8, 4)),
        simt_plan(block=(64, 64, 8), warp=(32, 32), thread=(8, 4), split_k=2),
        simt_plan(block=(64, 64, 1), warp=(32, 32), thread=(8, 4), stages=0),
        gemv_plan(Operands.of("f16", layout="nt"), warps=2, vectors=1),
        gemv_plan(Operands.of("f16", layout="nt", out_major="m"), tile=(32, 8), warps=2, vectors=2, cluster=2),
    )


@cache
def _atoms() -> tuple[tuple[CopyAtom, ...], tuple[MmaAtom, ...]]:
    f32, bf16, f16 = (DType.parse(name) for name in ("f32", "bf16", "f16"))
    copies = (
        universal_copy(f32, 32),
        universal_copy(f32, 128),
        universal_copy(bf16, 16),
        universal_copy(bf16, 32),
        universal_copy(bf16, 128),
        global_load(bf16, 64),
        cp_async(f32, 4),
        cp_async(bf16, 16, "cg"),
        cp_async(f16, 8),
        ldmatrix(bf16, 4),
        ldmatrix(bf16, 2, True),
        stmatrix(bf16, 4),
        stmatrix(bf16, 4, True),
        stmatrix(f16, 4, True),
        stmatrix(bf16, 2),
    )
    multiply = (
        fma(),
        mma_sync(bf16, 16),
        mma_sync(bf16, 8),
        mma_sync(f16, 16),
        wgmma(bf16, 64),
        wgmma(bf16, 32),
        wgmma(bf16, 128),
        wgmma(bf16, 64, b_major="mn"),
        wgmma(bf16, 64, a_major="mn"),
        wgmma(bf16, 64, a_source="register"),
    )
    return copies, multiply


def mutant(chance: random.Random) -> tuple[str, GemmPlan, dict[str, Any]]:
    """Description of a change, the plan, and its fields after the change.

    raises   what the part that is changed raises
    """
    plan = chance.choice(seeds())
    name = chance.choice([f.name for f in fields(plan) if f.name not in _SETTLED])
    if chance.random() < 0.15:
        other = chance.choice(seeds())
        return f"{name} of {other.operands} {other.cta_tile}", plan, {name: getattr(other, name)}
    value = _changed(name, getattr(plan, name), chance)
    return f"{name} = {value}", plan, {name: value}


def _changed(name: str, value: Any, chance: random.Random) -> Any:
    """A value like this one."""
    copies, multiply = _atoms()
    if isinstance(value, Epilogue):
        return chance.choice(seeds()).epilogue
    if value is None:
        return chance.choice([None, 0, 1, "?"])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice([value + 1, value - 1, 2 * value, value // 2, 0, -1, value + 8, 10**12])
    if isinstance(value, str):
        return chance.choice(_WORDS.get(name, (value + "?",)))
    if isinstance(value, DType):
        return DType.parse(chance.choice(["f32", "bf16", "f16", "tf32", "e4m3", "s8"]))
    if isinstance(value, CopyAtom):
        return chance.choice(copies)
    if isinstance(value, MmaAtom):
        return chance.choice(multiply)
    if isinstance(value, ComposedLayout):
        return _changed_swizzle(value, chance)
    if isinstance(value, Layout):
        return _changed_layout(value, chance)
    if isinstance(value, tuple):
        return _changed_tuple(name, value, chance)
    if is_dataclass(value):
        parts = [f.name for f in fields(value) if f.name not in _SETTLED]
        if not parts:
            return None
        part = chance.choice(parts)
        made: Any = value
        return replace(made, **{part: _changed(part, getattr(value, part), chance)})
    raise AssertionError(f"{name} = {value!r} is changed in no way")


def _changed_tuple(name: str, value: tuple[Any, ...], chance: random.Random) -> tuple[Any, ...]:
    if not value:
        return (None,)
    at, items = chance.randrange(len(value)), list(value)
    how = chance.random()
    if how < 0.7:
        items[at] = _changed(name, items[at], chance)
    elif how < 0.8:
        items[at], items[0] = items[0], items[at]
    elif how < 0.9:
        del items[at]
    else:
        items.append(items[at])
    return tuple(items)


def _changed_swizzle(value: ComposedLayout, chance: random.Random) -> Any:
    how = chance.random()
    assert isinstance(value.inner, Swizzle)
    if how < 0.5:
        old = value.inner
        new = [chance.choice([n, n, n + 1, max(0, n - 1)]) for n in (old.bits, old.base, old.shift)]
        return ComposedLayout(Swizzle(*new), 0, value.outer)
    if how < 0.6:
        return value.outer
    if how < 0.65:
        return ComposedLayout(value.inner, 64, value.outer)
    if how < 0.7:
        return ComposedLayout(Layout(1 << 20, 1), 0, value.outer)
    return ComposedLayout(value.inner, 0, _changed_layout(value.outer, chance))


def _changed_layout(value: Layout, chance: random.Random) -> Layout:
    how = chance.random()
    shape, stride = value.shape, value.stride
    if how < 0.25:  # other strides
        return Layout(shape, _each(stride, lambda d: chance.choice([d, d, d, 2 * d, d // 2, d + 8, -d, 0, 1])))
    if how < 0.45:  # the other order
        return Layout(shape) if isinstance(shape, int) else _ordered(value, chance)
    if how < 0.55:
        return Layout(shape, _each(stride, lambda d: d * chance.choice([1, 1, 2**40, 2**62])))
    if how < 0.65 and isinstance(shape, tuple):
        return Layout(shape[::-1], stride[::-1])
    if how < 0.75 and isinstance(shape, tuple) and len(shape) > 1:
        return Layout(shape[:-1], stride[:-1])
    return Layout(_each(shape, lambda s: chance.choice([s, s, s, 2 * s, max(1, s // 2), s + 1])), stride)


def _ordered(value: Layout, chance: random.Random) -> Layout:
    """Compact, its modes in another order."""
    extents = value.flat()[0]
    order = chance.sample(range(len(extents)), len(extents))
    strides, running = [0] * len(extents), 1
    for mode in order:
        strides[mode] = running
        running *= extents[mode]
    left = iter(strides)
    return Layout(value.shape, _each(value.stride, lambda _: next(left)))


def _each(value: Any, function: Any) -> Any:
    return tuple([_each(v, function) for v in value]) if isinstance(value, tuple) else function(value)
