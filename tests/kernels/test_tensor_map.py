"""Tensor maps as the host code of a kernel writes them, read back where the emulator meets them."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import sm90_plan
from cutegemm.emulate.hopper import tensormap
from cutegemm.plan import Operands
from cutegemm.run.compile import compile_plan
from cutegemm.run.emulated import emulate

SMALL = {"tile": (128, 64, 64), "schedule": "cooperative", "ctas": 2}


@pytest.mark.parametrize(
    ("promotion", "layout", "cluster"), [(256, "nt", (2, 1)), (256, "tn", (1, 1)), (0, "nt", (1, 1))]
)
def test_l2_promotion_of_a_and_b(promotion, layout, cluster, monkeypatch):
    """Of the operands alone, multicast or not; the kernel and what it computes are the same."""
    maps, read = {}, tensormap._read
    monkeypatch.setattr(tensormap, "_read", lambda raw: maps.setdefault(raw, read(raw)))
    operands = Operands.of("bf16", layout=layout)
    plan = sm90_plan(operands, cluster=cluster, l2_promotion=promotion, **SMALL)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((136, 72), (72, 80)))
    assert np.array_equal(emulate(plan, a, b).d, a @ b)
    promotions = {(found.extents, found.l2_promotion) for found in maps.values()}
    of_a, of_b = ((72, 136), (72, 80)) if layout == "nt" else ((136, 72), (80, 72))
    assert promotions == {(of_a, promotion), (of_b, promotion), ((80, 136), 128)}


def test_the_machine_code_does_not_depend_on_it():
    plans = [sm90_plan(cluster=(2, 1), l2_promotion=promotion, **SMALL) for promotion in (128, 256)]
    assert plans[0].key() != plans[1].key()
    codes = [(compile_plan(plan).folder / "kernel.cubin").read_bytes() for plan in plans]
    assert codes[0] == codes[1]
