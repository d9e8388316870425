"""Compiled Hopper plans that pack operands, executed on the CPU: exact, into a workspace that is poisoned."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import round_to
from cutegemm.errors import EmulationError
from cutegemm.run.emulated import emulate
from cutegemm.simulate import simulate
from tests.kernels.sm90_forms import fitting, form
from tests.kernels.test_sm90 import PACKED


def operands(plan, m, n, k):
    batch = (2,) if plan.operands.batched else ()
    rng = np.random.default_rng(k)
    return [rng.integers(-3, 4, (*batch, *s)).astype(np.float32) for s in ((m, k), (k, n), (m, n))]


@pytest.mark.parametrize("name", PACKED)
def test_exact(name):
    """On ragged tiles, and with no k at all."""
    plan = form(name, 2)
    bm, bn, bk = plan.cta_tile
    for shape in ((bm + 9, bn + 11, bk + 5), (3, 5, 0)):
        a, b, c = operands(plan, *fitting(plan, *shape))
        given, want = ({"c": c, "beta": -1.0}, a @ b - c) if plan.has_c else ({}, a @ b)
        found = emulate(plan, a, b, **given)
        assert np.array_equal(found.d, round_to(plan.operands.d.dtype, want))
        assert [launch.is_early for launch in found.launches] == [True, True]


def test_tf32_is_rounded_as_the_simulator_has_it():
    """Packing keeps all bits of f32; TMA rounds them."""
    plan = form("pack_tf32", 2)
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 40)), np.eye(40)[:, :24]
    found = emulate(plan, a, b).d
    assert np.array_equal(found, simulate(plan, a, b).d)
    assert not np.array_equal(found, (a @ b).astype(np.float32))


def test_padding_that_is_not_written():
    """Planted in the PTX: nothing is stored, so that the GEMM reads what nobody wrote."""
    plan = form("pack_tf32", 2)
    text = compile_plan(plan).ptx
    head, behind = text.split(".entry kernel_cutlass_pack_kernel", 1)
    broken = head + ".entry kernel_cutlass_pack_kernel" + re.sub(r"st\.global\.v4[^;]*;", "", behind, count=1)
    assert broken != text
    a, b, _ = operands(plan, 64, 128, 32)
    with pytest.raises(EmulationError):
        emulate(plan, a, b, ptx=broken)
