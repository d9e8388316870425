"""Seeded random TiledMmas and TiledCopies, and the answers of this package in the oracle's form."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from cutegemm.dtypes import bf16, e4m3, e5m2, f16, f32, f64, s8
from cutegemm.errors import CutegemmError
from cutegemm.layout.construction import make_ordered_layout
from cutegemm.layout.inttuple import product
from cutegemm.layout.layout import Layout
from cutegemm.layout.swizzle import ComposedLayout
from cutegemm.layout.tensor import make_identity_tensor
from cutegemm.layout.tiling import tile_to_shape
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.copy_atoms import UNIVERSAL_BITS, cp_async, ldmatrix, stmatrix, universal_copy
from cutegemm.tile.mma_atoms import fma, mma_atoms, mma_sync, wgmma
from cutegemm.tile.smem_atoms import KINDS, smem_atom
from cutegemm.tile.tiled_copy import (
    TiledCopy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    make_tiled_copy_C_atom,
    make_tiled_copy_tv,
)
from cutegemm.tile.tiled_mma import TiledMma
from tests.oracle.dsl import Refused
from tests.oracle.dsl_tile import CopyCase, MmaCase, SmemCase, row_major


def answer(case: Any) -> Any:
    """What this package says to a case."""
    try:
        return {MmaCase: _mma, CopyCase: _copy, SmemCase: _smem}[type(case)](case)
    except CutegemmError as error:
        return Refused(str(error))


def _mma(case: MmaCase) -> dict[str, Any]:
    mma = TiledMma(case.atom, case.atom_layout, case.permutation)
    m, n, k = case.extents
    out: dict[str, Any] = {name: getattr(mma, name) for name in ("shape_mnk", "threads", "thr_layout_vmnk", "tile_mnk")}
    out["thr_id"] = case.atom.thr_id
    for operand, shape in (("a", (m, k)), ("b", (n, k)), ("c", (m, n))):
        out[f"layout_{operand}_tv"] = case.atom.layout_tv(operand)
        out[f"layout_{operand}_tv_tiled"] = getattr(mma, f"tv_layout_{operand.upper()}_tiled")
        if not m:
            continue
        whole = (*shape, *case.batch)
        out[f"thrfrg_{operand}"] = mma.thrfrg(operand, row_major(whole))
        out[f"partition_shape_{operand}"] = getattr(mma, f"partition_shape_{operand.upper()}")(whole)
        for thr in case.threads:
            part = getattr(mma.get_slice(thr), f"partition_{operand.upper()}")(make_identity_tensor(whole))
            out[f"partition_{operand}@{thr}"] = (origin(part), part.layout)
    return out


def origin(part: Any) -> tuple[int, ...]:
    """The coordinate of the first element."""
    return part[(0,) * len(part.layout.shape)]


def _copy(case: CopyCase) -> dict[str, Any]:
    copy = tiled_copy(case)
    out: dict[str, Any] = {
        "threads": copy.threads,
        "layout_src_tv": case.atom.layout_src_tv,
        "layout_dst_tv": case.atom.layout_dst_tv,
        "layout_tv": copy.layout_tv,
        "layout_src_tv_tiled": copy.layout_src_tv_tiled,
        "layout_dst_tv_tiled": copy.layout_dst_tv_tiled,
    }
    for thr in case.threads:
        whole = make_identity_tensor(case.extents)
        for side in "sd":
            partition = getattr(copy.get_slice(thr), f"partition_{side.upper()}")
            out[f"partition_{side}@{thr}"] = _try(lambda p=partition, w=whole: _seen(p(w)))
    if case.fragment is not None:
        out["retile"] = _try(lambda: copy.retile(case.fragment))  # type: ignore[arg-type]
    return out


def _seen(part: Any) -> tuple[Any, Any]:
    return origin(part), part.layout


def _try(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except CutegemmError as error:
        return Refused(str(error))


def tiled_copy(case: CopyCase) -> TiledCopy:
    if case.maker == "tiled":
        return TiledCopy(case.atom, *case.args)
    if case.maker == "tv":
        return make_tiled_copy_tv(case.atom, *case.args)
    make = {
        "a": make_tiled_copy_A,
        "b": make_tiled_copy_B,
        "c": make_tiled_copy_C,
        "c_atom": make_tiled_copy_C_atom,
    }[case.maker]
    return make(case.atom, TiledMma(*case.args))


def _smem(case: SmemCase) -> dict[str, Any]:
    """The atom in elements, and as the DSL writes it, with a swizzle on bytes."""
    atom = smem_atom(case.dtype, case.major, case.kind)
    tiled = tile_to_shape(atom, case.shape, case.order)
    return {"atom": in_bytes(atom, case), "tiled": in_bytes(tiled, case)}


def in_bytes(layout: ComposedLayout, case: SmemCase) -> ComposedLayout:
    swizzle = layout.inner.recast(case.dtype.bits, 8)  # type: ignore[union-attr]
    return ComposedLayout(swizzle, 0, layout.outer)


def dsl_has(atom: MmaAtom) -> bool:
    """Whether the DSL has an operation for the atom."""
    family, *_ = atom.name.split(".")
    if family == "fma":
        return atom.a_dtype is atom.c_dtype
    if family == "mma":
        return atom.a_dtype is not s8 and atom.a_dtype is atom.b_dtype
    return True


def every_atom() -> list[MmaCase]:
    """Each MMA atom that the DSL has, by itself; of types that lie as others do, three of the 32 extents along N."""
    one = Layout((1, 1, 1))
    return [
        MmaCase(atom, one, (None, None, None))
        for atom in mma_atoms()
        if dsl_has(atom)
        if not atom.name.startswith("wgmma")
        or (atom.a_dtype, atom.b_dtype, atom.c_dtype) in ((f16, f16, f32), (e4m3, e4m3, f32))
        or atom.shape_mnk[1] in (8, 160, 256)
    ]


def every_copy_atom() -> list[CopyCase]:
    """Each copy atom, over as few threads as it takes."""
    atoms = [universal_copy(t, b) for t in (f16, f32, f64, e4m3) for b in UNIVERSAL_BITS if b % t.bits == 0]
    atoms += [cp_async(t, b, "ca") for t in (f16, f32, e4m3) for b in (4, 8, 16)]
    atoms += [cp_async(t, 16, "cg") for t in (f16, f32, e4m3)]
    for make in (ldmatrix, stmatrix):
        for matrices in (1, 2, 4):
            atoms += [make(t, matrices, False) for t in (f16, bf16, f32, e4m3)]
            atoms += [make(t, matrices, True) for t in (f16, bf16, e4m3)]
    return [
        CopyCase(atom, "tiled", (Layout((atom.threads, atom.values)), (atom.threads, atom.values))) for atom in atoms
    ]


def every_smem_atom() -> list[SmemCase]:
    """Each shared-memory atom, tiled to (128, 64, 4)-like shapes in several orders."""
    shapes = [(128, 128, 4), (64, 256, 3), (256, 128, 1), (128, 128, 7)]
    return [
        SmemCase(dtype, major, kind, shape, order)
        for dtype in (f16, bf16, f32, e4m3, e5m2, s8)
        for major in ("k", "mn")
        for kind in KINDS
        for shape in shapes
        for order in ((0, 1, 2), (1, 0, 2))
    ]


def _shuffled(rng: random.Random, extents: list[int]) -> Layout:
    """A bijection: a compact layout whose modes vary in a random order."""
    order = list(range(len(extents)))
    rng.shuffle(order)
    return make_ordered_layout(tuple(extents), tuple(order))


def _factors(rng: random.Random, n: int, most: int = 3) -> list[int]:
    """Random factors with the product n."""
    out = []
    while n > 1 and len(out) < most - 1:
        f = rng.choice([d for d in range(2, n + 1) if n % d == 0])
        out.append(f)
        n //= f
    return [*out, n] if n > 1 or not out else out


def _atom_layout(rng: random.Random, simt: bool, most: int) -> Layout:
    """Repetitions over threads: hierarchical (lane, warp) modes for SIMT, any order of the modes."""
    while True:
        if simt and rng.random() < 0.7:
            m = (rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 3, 4]))
            n = (rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 3]))
            k = rng.choice([1, 1, 1, 2])
            if product((m, n, k)) > most:
                continue
            ranks = rng.sample(range(5), 5)
            return make_ordered_layout((m, n, k), ((ranks[0], ranks[1]), (ranks[2], ranks[3]), ranks[4]))
        shape = (rng.choice([1, 2, 3, 4, 8]), rng.choice([1, 2, 3, 4]), rng.choice([1, 1, 2]))
        if product(shape) <= most:
            return make_ordered_layout(shape, tuple(rng.sample(range(3), 3)))


def _permutation(rng: random.Random, covered: int) -> Any:
    """None, an extent, or a bijection of a few factors, flat or nested."""
    kind = rng.random()
    if kind < 0.35:
        return None
    extent = covered * rng.choice([1, 2, 2, 3, 4])
    if kind < 0.55:
        return extent
    factors = _factors(rng, extent, 4)
    layout = _shuffled(rng, factors)
    if len(factors) == 1:
        return Layout(factors[0], 1)
    if len(factors) == 4 and rng.random() < 0.5:
        (a, b, c, d), (p, q, r, s) = layout.flat()
        return Layout(((a, b), (c, d)), ((p, q), (r, s)))
    return layout


def random_atom(rng: random.Random) -> MmaAtom:
    """SIMT most often: its atoms leave the most freedom."""
    kind = rng.random()
    if kind < 0.45:
        return fma(rng.choice([f32, f32, f64]))
    if kind < 0.8:
        return rng.choice([atom for atom in mma_atoms("sm_89") if atom.name.startswith("mma") and dsl_has(atom)])
    if rng.random() < 0.6:
        return wgmma(
            rng.choice([f16, bf16]),
            8 * rng.randint(1, 32),
            "k",
            rng.choice(["k", "mn"]),
            rng.choice(["shared", "register"]),
        )
    return wgmma(rng.choice([e4m3, e5m2]), 8 * rng.randint(1, 32), a_source=rng.choice(["shared", "register"]))


def random_tiled_mma(rng: random.Random, atom: MmaAtom) -> tuple[MmaAtom, Layout, tuple[Any, Any, Any]]:
    while True:
        atom_layout = _atom_layout(rng, atom.threads == 1, max(1, 512 // atom.threads))
        covered = [atom.shape_mnk[m] * atom_layout[m].size() for m in range(3)]
        permutation = tuple([_permutation(rng, c) for c in covered])
        try:
            TiledMma(atom, atom_layout, permutation)  # type: ignore[arg-type]
        except CutegemmError:
            continue  # a permutation that tears atoms or repetitions apart
        return atom, atom_layout, permutation  # type: ignore[return-value]


def random_mma(rng: random.Random) -> MmaCase:
    atom, atom_layout, permutation = random_tiled_mma(rng, random_atom(rng))
    mma = TiledMma(atom, atom_layout, permutation)
    extents = tuple([extent * rng.choice([1, 1, 2, 3]) for extent in mma.tile_mnk])
    batch = () if rng.random() < 0.6 else (rng.choice([1, 2, 5]),)
    threads = tuple(sorted({0, rng.randrange(mma.threads), mma.threads - 1}))
    return MmaCase(atom, atom_layout, permutation, extents, batch, threads)  # type: ignore[arg-type]


def random_copy(rng: random.Random) -> CopyCase:
    while True:
        try:
            return rng.choice([_random_tv, _random_tv, _random_tiled, _random_of_mma])(rng)
        except CutegemmError:
            continue  # values that tear the atom's vector apart


def _copy_case(
    rng: random.Random, atom: CopyAtom, maker: str, args: tuple[Any, ...], fragment: Layout | None = None
) -> CopyCase:
    copy = tiled_copy(CopyCase(atom, maker, args))
    tile = [t.size() if isinstance(t, Layout) else t for t in copy.tiler_mn]
    whole = [t.cosize() if isinstance(t, Layout) else t for t in copy.tiler_mn]
    if any(isinstance(t, Layout) for t in copy.tiler_mn):  # a tiler of layouts leaves gaps that its rest fills
        whole = [math.lcm(w, t) for w, t in zip(whole, tile, strict=True)]
    extents = tuple([w * rng.choice([1, 2, 3]) for w in whole])
    extents += () if rng.random() < 0.6 else (rng.choice([1, 3]),)
    threads = tuple(sorted({0, rng.randrange(copy.threads), copy.threads - 1}))
    return CopyCase(atom, maker, args, extents, threads, fragment)


def _vector_atom(rng: random.Random) -> CopyAtom:
    dtype = rng.choice([f32, f32, f16, e4m3])
    if rng.random() < 0.5:
        return universal_copy(dtype, rng.choice([b for b in (32, 64, 128) if b >= dtype.bits]))
    cache, size = rng.choice([("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
    return cp_async(dtype, size, cache)


def _random_tv(rng: random.Random) -> CopyCase:
    """Thread and value layouts laid side by side; the vector is a factor of the values."""
    atom = _vector_atom(rng)
    threads = [rng.choice([1, 2, 4, 8, 16, 32]), rng.choice([1, 2, 3, 4, 8])]
    more = rng.choice([1, 1, 2, 3])
    values = rng.choice([[atom.values, more], [more, atom.values], [atom.values * more, 1], [1, atom.values * more]])
    thr_layout = make_ordered_layout(tuple(threads), tuple(rng.sample(range(2), 2)))
    val_layout = make_ordered_layout(tuple(values), tuple(rng.sample(range(2), 2)))
    fragment = Layout((product(tuple(values)), rng.choice([1, 2, 3]), rng.choice([1, 2])))
    return _copy_case(rng, atom, "tv", (thr_layout, val_layout), fragment if rng.random() < 0.7 else None)


def _random_tiled(rng: random.Random) -> CopyCase:
    """Any bijection from (thread, value) to the tile."""
    atom = _vector_atom(rng)
    threads, values = rng.choice([4, 8, 32, 96]), atom.values * rng.choice([1, 2, 4])
    t, v = _factors(rng, threads, 3), _factors(rng, values, 2)
    whole = _shuffled(rng, t + v)
    cut = len(t)
    layout_tv = Layout((whole.shape[:cut], whole.shape[cut:]), (whole.stride[:cut], whole.stride[cut:]))
    tile_m = rng.choice([d for d in range(1, threads * values + 1) if threads * values % d == 0])
    return _copy_case(rng, atom, "tiled", (layout_tv, (tile_m, threads * values // tile_m)))


def _random_of_mma(rng: random.Random) -> CopyCase:
    """The copies that feed a TiledMma: ldmatrix for A and B, stmatrix or a vector for C."""
    while True:
        atom = mma_sync(rng.choice([f16, bf16]), rng.choice([8, 16]))
        args = random_tiled_mma(rng, atom)
        mma = TiledMma(*args)
        maker = rng.choice(["a", "b", "c", "c_atom"])
        if maker[0] == "c" and args[1][2].size() > 1:
            continue  # the DSL's C of a TiledMma that splits K over threads is wrong: see the oracle's tests
        make = ldmatrix if maker in "ab" else stmatrix
        copy = make(atom.a_dtype, rng.choice([1, 2, 4]), rng.random() < 0.4)
        if maker.startswith("c") and rng.random() < 0.3:
            copy = universal_copy(f32, rng.choice([32, 64]))
        held = {"a": mma.tv_layout_A_tiled, "b": mma.tv_layout_B_tiled}.get(maker, mma.tv_layout_C_tiled)
        if held[1].size() % copy.values:
            continue
        operand = maker[0]
        frg = atom.layout_tv(operand)[1].shape
        i, j = {"a": (0, 2), "b": (1, 2), "c": (0, 1)}[operand]
        whole = [mma.tile_mnk[m] * rng.choice([1, 2]) for m in (i, j)]
        fragment = Layout(getattr(mma, f"partition_shape_{operand.upper()}")(tuple(whole)))
        assert fragment.shape[0] == frg
        return _copy_case(rng, copy, maker, args, fragment if maker != "c_atom" else None)
