"""Every object that lower.py makes is compared with the one that it was made from, in the traced DSL."""

from __future__ import annotations

import functools
import re

import pytest

cute = pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")

from cutegemm.dtypes import DTYPES, bf16, e4m3, f16, f32, f64, tf32  # noqa: E402
from cutegemm.errors import UnsupportedError  # noqa: E402
from cutegemm.kernels import lower  # noqa: E402
from cutegemm.layout import (  # noqa: E402
    ComposedLayout,
    E,
    Layout,
    Swizzle,
    make_identity_layout,
    make_identity_tensor,
)
from cutegemm.plan.shared import smem_align_bytes  # noqa: E402
from cutegemm.tile.copy_atoms import cp_async, ldmatrix, stmatrix, universal_copy  # noqa: E402
from cutegemm.tile.mma_atoms import fma, mma_sync  # noqa: E402
from cutegemm.tile.smem_atoms import KINDS, smem_atom  # noqa: E402
from cutegemm.tile.tiled_copy import TiledCopy  # noqa: E402
from cutegemm.tile.tiled_mma import TiledMma  # noqa: E402
from tests.kernels.plans import random_plans, traced  # noqa: E402
from tests.oracle.dsl import from_dsl  # noqa: E402

SEEDS, OF_A_SEED = 6, 15


@functools.cache
def plans():
    """Random plans: made when the first test asks, not where tests are collected."""
    return [plan for seed in range(SEEDS) for plan in random_plans(OF_A_SEED, seed)]


def test_dtypes():
    for kind in DTYPES:
        assert lower.dtype(kind).width == (32 if kind is tf32 else kind.bits)


LAYOUTS = [
    Layout(8),
    Layout(8, 3),
    Layout((4, 8), (8, 1)),
    Layout((4, (2, 3)), (6, (1, 2))),
    Layout(((2, 2), (3, (1, 5))), ((1, 30), (2, (0, 6)))),
    Layout((4, 8), (1, 0)),
    Layout((4, 8), (E(0), E(1))),
    Layout((4, (2, 3)), (2 * E(1), (E((0, 1)), 5 * E((0, 0))))),
    make_identity_layout((3, (4, 5))),
    ComposedLayout(Swizzle(3, 2, 3), 0, Layout((8, 32), (32, 1))),
    ComposedLayout(Swizzle(2, 0, -3), 7, Layout((8, 32), (1, 8))),
]


def test_layouts_and_their_values():
    """The lowered layout is equal, and so is the offset at every coordinate.

    A swizzle is not turned into bytes here.
    """

    def ask():
        lowered = [lower.layout(one) for one in LAYOUTS]
        integral = [i for i, one in enumerate(LAYOUTS) if not isinstance(one, Layout) or one.is_integral]
        values = {i: [lowered[i](c) for c in range(LAYOUTS[i].size())] for i in integral}
        return [from_dsl(one) for one in lowered], values

    lowered, values = traced(ask)
    assert lowered == LAYOUTS
    assert len(values) == 8
    for i, offsets in values.items():
        assert [int(v) for v in offsets] == LAYOUTS[i].offsets().tolist(), str(LAYOUTS[i])


SWIZZLED = [(k, smem_atom(k, "k", kind)) for k in (f16, bf16, e4m3, f32) for kind in KINDS if kind != "interleave"]
SWIZZLED += [(f32, ComposedLayout(Swizzle(3, 2, 5), 0, Layout((128, 8, 2), (1, 128, 1024))))]


def test_shared_memory_swizzles_bytes():
    """S<b,m,s> on elements is S<b,m+log2(bytes),s> on addresses; its layout stays in elements."""
    import cutlass

    def ask():
        tensors = []
        for kind, given in SWIZZLED:
            made = lower.smem_tensor(cutlass.memory.SmemAllocator(), kind, given)
            tensors.append((str(made.iterator.type), from_dsl(made.layout)))
        return tensors

    for (kind, given), (pointer, layout) in zip(SWIZZLED, traced(ask), strict=True):
        bits, base, shift = map(int, re.search(r"S<(-?\d+),(-?\d+),(-?\d+)>", pointer).groups())
        in_bytes, size = Swizzle(bits, base, shift), kind.bits // 8
        assert layout == given.outer
        before, after = given.outer.offsets() * size, given.offsets() * size
        assert (in_bytes(before) == after).all(), f"{kind} {given} became {pointer}"
        # the bytes of an element stay together, in their order
        assert (in_bytes(before + size - 1) == after + size - 1).all()
        assert f"align<{smem_align_bytes(kind, given)}>" in pointer


def test_a_swizzle_that_is_no_swizzle_of_shared_memory_is_refused():
    import cutlass

    composed = ComposedLayout(Swizzle(2, 2, 3), 4, Layout((8, 32), (32, 1)))

    def ask():
        try:
            return lower.smem_tensor(cutlass.memory.SmemAllocator(), f32, composed)
        except UnsupportedError as error:
            return str(error)

    assert "without an offset" in traced(ask)


ATOMS = [
    *[universal_copy(kind, bits) for kind in (f16, f32, f64) for bits in (32, 64, 128) if bits >= kind.bits],
    *[cp_async(f32, size, cache) for size, cache in ((4, "ca"), (8, "ca"), (16, "ca"), (16, "cg"))],
    *[ldmatrix(f16, count, turned) for count in (1, 2, 4) for turned in (False, True)],
    *[stmatrix(bf16, count, turned) for count in (1, 2, 4) for turned in (False, True)],
]


def test_copy_atoms():
    def ask():
        out = []
        for atom in ATOMS:
            made = lower.copy_atom(atom)
            out.append((str(made.type), from_dsl(made.layout_src_tv), from_dsl(made.layout_dst_tv)))
        return out

    for atom, (text, src, dst) in zip(ATOMS, traced(ask), strict=True):
        assert (src, dst) == (atom.layout_src_tv, atom.layout_dst_tv), str(atom)
        if atom.name.startswith("cp.async"):
            assert ("global" in text) == (".cg." in atom.name), text


@pytest.mark.parametrize("number", range(0, SEEDS * OF_A_SEED, 9))
def test_what_a_plan_becomes(number):
    """All tiled objects of a plan, and what threads see of tiles through them."""
    check_plans([plans()[number]])


def test_many_plans():
    check_plans(plans())


def check_plans(given):
    answers = traced(lambda: [lowered(plan) for plan in given])
    for plan, (made, made_parts) in zip(given, answers, strict=True):
        ours, our_parts = expected(plan)
        assert made == ours, plan.describe()
        for name, (origin, layout) in our_parts.items():
            assert made_parts[name][1] == layout, f"{name} of\n{plan.describe()}"
            assert tuple(made_parts[name][0]) == origin, f"{name} of\n{plan.describe()}"


def lowered(plan):
    mma, loads = lower.tiled_mma(plan.tiled_mma), [lower.tiled_copy(c) for c in (plan.a.load, plan.b.load)]
    out = {
        "tile": tuple(mma.get_tile_size(mode) for mode in range(3)),
        "threads": (mma.size, loads[0].size, loads[1].size),
        "thr_layout": from_dsl(mma.thr_layout_vmnk),
        **{f"mma_{o.lower()}": from_dsl(getattr(mma, f"tv_layout_{o}_tiled")) for o in "ABC"},
        **{f"src_{i}": from_dsl(load.layout_src_tv_tiled) for i, load in enumerate(loads)},
        **{f"dst_{i}": from_dsl(load.layout_dst_tv_tiled) for i, load in enumerate(loads)},
    }
    bm, bn, bk = plan.cta_tile
    parts = {}
    for thr in some_threads(plan):
        for operand, shape in (("A", (bm, bk)), ("B", (bn, bk)), ("C", (bm, bn))):
            part = getattr(mma.get_slice(thr), f"partition_{operand}")(cute.make_identity_tensor(shape))
            parts[f"{operand}@{thr}"] = (from_dsl(part.iterator), from_dsl(part.layout))
        for operand, load, extent in (("A", loads[0], bm), ("B", loads[1], bn)):
            part = load.get_slice(thr).partition_S(cute.make_identity_tensor((extent, bk)))
            parts[f"load {operand}@{thr}"] = (from_dsl(part.iterator), from_dsl(part.layout))
    return out, parts


def expected(plan):
    mma: TiledMma = plan.tiled_mma
    loads: list[TiledCopy] = [plan.a.load, plan.b.load]
    out = {
        "tile": mma.tile_mnk,
        "threads": (mma.threads, loads[0].threads, loads[1].threads),
        "thr_layout": mma.thr_layout_vmnk,
        **{f"mma_{o}": getattr(mma, f"tv_layout_{o.upper()}_tiled") for o in "abc"},
        **{f"src_{i}": load.layout_src_tv_tiled for i, load in enumerate(loads)},
        **{f"dst_{i}": load.layout_dst_tv_tiled for i, load in enumerate(loads)},
    }
    bm, bn, bk = plan.cta_tile
    parts = {}
    for thr in some_threads(plan):
        for operand, shape in (("A", (bm, bk)), ("B", (bn, bk)), ("C", (bm, bn))):
            part = getattr(mma.get_slice(thr), f"partition_{operand}")(make_identity_tensor(shape))
            parts[f"{operand}@{thr}"] = (origin(part), part.layout)
        for operand, load, extent in (("A", loads[0], bm), ("B", loads[1], bn)):
            part = load.get_slice(thr).partition_S(make_identity_tensor((extent, bk)))
            parts[f"load {operand}@{thr}"] = (origin(part), part.layout)
    return out, parts


def some_threads(plan):
    return (0, plan.threads // 2 + 5, plan.threads - 1)


def origin(part):
    at = part[(0,) * len(part.layout.shape)]
    return at + (0,) * (2 - len(at))


def test_tensor_core_atoms():
    """mma.sync: what the next family of kernels is built of."""
    atoms = [mma_sync(f16, 16), mma_sync(bf16, 8), mma_sync(tf32, 8)]
    cases = [TiledMma(atom, Layout((2, 2, 1)), (32, 32, atom.shape_mnk[2])) for atom in atoms]

    def ask():
        made = [lower.tiled_mma(case) for case in cases]
        return [[from_dsl(getattr(m, f"tv_layout_{o}_tiled")) for o in "ABC"] for m in made]

    for case, made in zip(cases, traced(ask), strict=True):
        assert made == [case.tv_layout_A_tiled, case.tv_layout_B_tiled, case.tv_layout_C_tiled], str(case)


def test_a_fault_would_show(monkeypatch):
    """The comparison can fail: a lowering that forgets the permutation is noticed."""

    def forgetful(mma):
        return cute.make_tiled_mma(lower.mma_op(mma.atom), lower.layout(mma.atom_layout_mnk))

    monkeypatch.setattr(lower, "tiled_mma", forgetful)
    plan = next(p for p in plans() if p.tiled_mma.tile_mnk != (1, 1, 1) and p.cta_tile[0] > 32)
    with pytest.raises(AssertionError):
        check_plans([plan])


def test_fma_of_another_type_is_partitioned_all_the_same():
    assert fma(f16, f32).layout_c_tv == fma().layout_c_tv
