"""Emulated sm_90 kernels with a repack pass: TMA rounds tf32, and the pass writes the padding."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.compile.plans import compile_plan
from cutegemm.errors import EmulationError
from cutegemm.run.emulated import emulate
from cutegemm.simulator import simulate
from tests.kernels.sm90_forms import on_few_ctas


def test_tf32_is_rounded_as_in_the_simulator():
    """The repack pass keeps all bits of f32; TMA rounds them."""
    plan = on_few_ctas("pack_tf32")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(30, 40)), np.eye(40)[:, :24]
    found = emulate(plan, a, b).d
    assert np.array_equal(found, simulate(plan, a, b).d)
    assert not np.array_equal(found, (a @ b).astype(np.float32))


def test_unwritten_padding_is_found():
    """Without a store of the repack pass, the GEMM reads unwritten memory: an error."""
    plan = on_few_ctas("pack_tf32")
    text = compile_plan(plan).ptx
    head, behind = text.split(".entry kernel_cutlass_repack_kernel", 1)
    violations = head + ".entry kernel_cutlass_repack_kernel" + re.sub(r"st\.global\.v4[^;]*;", "", behind, count=1)
    assert violations != text
    a, b = np.ones((64, 32), np.float32), np.ones((32, 128), np.float32)
    with pytest.raises(EmulationError):
        emulate(plan, a, b, ptx=violations)
