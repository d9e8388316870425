"""Hopper plans that pack operands, simulated: right for every type, majorness and alignment, and faults seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.build import sm90_plan
from cutegemm.dtypes import round_to
from cutegemm.layout import Layout
from cutegemm.plan import Operands
from cutegemm.simulator import simulate
from tests.simulator.plans import violations

LAYOUTS = ("nn", "nt", "tn", "tt")


def plan_of(dtype, layout, align=16, repack="ab", **options):
    """64 x 64 x 128 bytes, on 3 CTAs; D is aligned to its elements alone."""
    result = "s32" if dtype == "s8" else "f32"
    ops = Operands.of(dtype, layout=layout, out=result, batched=True)
    loose = replace(ops.d, align_bytes=4)
    ops = replace(ops, c=loose, d=loose)
    for name in repack:
        ops = replace(ops, **{name: replace(getattr(ops, name), align_bytes=align)})
    bk = 1024 // ops.a.dtype.bits
    return sm90_plan(ops, tile=(64, 64, bk), store="direct", ctas=3, repack=repack, **options)


def right(plan, m, n, k, alpha=1.0, beta=0.0):
    rng = np.random.default_rng(m + 7 * n + 49 * k)
    a, b, c = (rng.integers(-4, 4, (2, *shape)).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    want = alpha * (a @ b) + (beta * c if beta else 0)
    given = {"c": c, "beta": beta} if beta else {}
    return np.array_equal(simulate(plan, a, b, alpha=alpha, **given).d, want)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32", "e4m3", "e5m2", "s8"])
def test_every_type_and_layout(dtype, layout):
    """Aligned, and ragged: less than a tile, a bit more than one, one element, no k."""
    assert right(plan_of(dtype, layout), 80, 96, 144)
    ragged = plan_of(dtype, layout, align=Operands.of(dtype).a.dtype.bits // 8)
    for shape in ((67, 130, 65), (1, 1, 1), (65, 3, 0), (3, 200, 131)):
        assert right(ragged, *shape)


def test_with_c_and_parts():
    plan = plan_of("tf32", "tn", 4, with_c=True, split_k=3)
    assert right(plan, 130, 67, 201, alpha=2, beta=-0.5)


@pytest.mark.parametrize("name", ["a", "b"])
def test_one_operand(name):
    """The other one is loaded as it is, by TMA, whatever the length of its rows."""
    layout = {"a": "tt", "b": "nn"}[name]
    assert right(plan_of("e4m3", layout, 1, repack=name), 67, 70, 99)


def test_tf32_is_rounded_as_it_is_without_packing():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 70, 90)).astype(np.float32), rng.normal(size=(2, 90, 80)).astype(np.float32)
    packed = simulate(plan_of("tf32", "tn", 4), a, b).d
    alone = simulate(plan_of("tf32", "nt", repack=""), a, b).d
    assert np.array_equal(packed, alone)
    assert not np.allclose(packed, a @ b, rtol=1e-6, atol=1e-6)
    assert np.allclose(packed, a @ b, rtol=1e-2, atol=1e-2)


def test_the_padding_is_zeros():
    """Along K it is multiplied; what follows the operand's rows is NaN."""
    plan = plan_of("bf16", "tn", 2)
    a, b = np.full((2, 66, 65), 3.0), np.full((2, 65, 66), 1.0)
    assert (simulate(plan, a, b).d == round_to(plan.operands.d.dtype, 3.0 * 65)).all()


def kinds(plan, m=72, n=72, k=72):
    a, b = np.ones((2, m, k), np.float32), np.ones((2, k, n), np.float32)
    return {fault.kind for fault in simulate(plan, a, b, check="report").faults}


def test_packing_that_loses_elements():
    plan = plan_of("tf32", "tt", repack="a")
    repack = plan.repacks[0]
    assert kinds(plan) == set()
    overlapping = replace(repack, smem=Layout((64, 64), (32, 1)))
    assert "copy" in kinds(violations(plan, repacks=(overlapping,)))
    torn = replace(repack, smem=Layout((64, 64), (65, 1)))
    assert "alignment" in kinds(violations(plan, repacks=(torn,)))
    not_turned = replace(repack, put=replace(repack.put, layout_tv=repack.load.layout_tv))
    assert "copy" in kinds(violations(plan, repacks=(not_turned,))) or "alignment" in kinds(
        violations(plan, repacks=(not_turned,))
    )
