"""Gated epilogues, compiled and emulated; their kernels keep all in registers."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.choose.catalog import plan_named
from cutegemm.run.compile import compile_plan
from cutegemm.run.emulated import emulate
from tests.epilogues import CASES
from tests.gated import BF16, FORMS, held_against_float64

# Those whose code differs most; the simulator carries out all
EMULATED = (
    "pingpong", "pingpong, pairs", "multicast", "n-major", "cooperative", "deferred", "split", "direct", "e4m3, packed",
    "batch", "mma.sync", "mma.sync, n-major", "SIMT", "SIMT, unaligned", "SIMT, split", "SIMT, without shared memory",
)  # fmt: skip


@pytest.mark.parametrize("form", EMULATED)
def test_against_float64(form):
    assert form in FORMS
    held_against_float64(emulate, form)


@pytest.mark.parametrize("case", ["swiglu", "geglu_bias", "pairs"])
@pytest.mark.parametrize(
    "name", ["sm90_wide_2x1", "sm90_cluster_2x1", "sm90_64x192_2x1", "sm90_deferred_2x1"]
)
def test_nothing_spills(name, case):
    if case == "pairs" and name in ("sm90_deferred_2x1", "sm90_wide_2x1"):
        pytest.skip("one reads no tile, the other is not taken for several results")
    found = compile_plan(CASES[case].on(plan_named(name, BF16, case == "pairs"), 16)).resources
    assert (found.stack_bytes, found.count("LDL"), found.count("STL")) == (0, 0, 0)
