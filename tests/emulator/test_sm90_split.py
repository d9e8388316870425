"""Emulated sm_90 kernels that split K: exact results, with the same bits in any order of the CTAs."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import sm90_plan
from cutegemm.compile.plans import compile_plan
from cutegemm.dtypes import round_to
from cutegemm.errors import EmulationError
from cutegemm.plan import Operands
from cutegemm.run.emulated import emulate
from tests.kernels.plans import asks_for_the_shared_memory_of

SMALL = {"tile": (64, 64, 64), "epi_tile_n": 32, "ctas": 4}
TALL = {**SMALL, "tile": (128, 64, 64), "schedule": "cooperative"}


def of(**options):
    return Operands.of(options.pop("dtype", "bf16"), **{"layout": "nt", **options})


@pytest.mark.parametrize(
    ("options", "mnk"),
    [
        ({**SMALL, "split_k": 8, "with_c": True, "epi_stages": 2}, (70, 72, 130)),  # more K splits than k-tiles
        ({**SMALL, "split_k": 8, "with_c": True, "epi_stages": 2}, (70, 72, 0)),
        pytest.param({**TALL, "stream": 1, "store": "direct"}, (300, 72, 620), marks=pytest.mark.thorough),
        ({**SMALL, "fixup": True, "cluster": (2, 1), "ctas": 6}, (64 * 7 - 3, 64, 420)),
        pytest.param(  # 4 tiles, a whole wave: none is shared
            {**TALL, "stream": 1, "store": "direct"}, (256, 128, 40), marks=pytest.mark.thorough
        ),
    ],
    ids=str,
)
def test_exact(options, mnk):
    """D is exact, with a deterministic and with a random schedule, and semaphores are zero again after the launch.

    The workspace is poisoned, and no race is reported.
    """
    (m, n, k), plan = mnk, sm90_plan(of(), **options)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-3, 4, s).astype(np.float32) for s in ((m, k), (k, n), (m, n)))
    given, want = ({"c": c, "alpha": 2, "beta": -1}, 2 * (a @ b) - c) if plan.has_c else ({}, a @ b)
    for seed in (None, 1):
        found = emulate(plan, a, b, **given, seed=seed)
        assert np.array_equal(found.d, round_to(plan.operands.d.dtype, want))
        assert asks_for_the_shared_memory_of(plan, found)


def test_the_same_bits_in_any_order():
    """D has the same bits with any schedule, although another consumer may be the last one of a tile."""
    plan = sm90_plan(of(out="f32"), **SMALL, split_k=4)
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(70, 344)), rng.normal(size=(344, 40))
    first = emulate(plan, a, b).d
    assert all(np.array_equal(first, emulate(plan, a, b, seed=seed).d) for seed in range(2))
    assert not np.array_equal(
        first, emulate(sm90_plan(of(out="f32"), **SMALL), a, b).d
    )  # without K splits, additions have another order


def test_a_missing_wait_for_other_k_splits_is_found():
    """If the last consumer does not wait for the other K splits, D is wrong or an error is raised."""
    plan = sm90_plan(of(), **SMALL, split_k=4)
    text = compile_plan(plan).ptx
    pattern = r"ld\.acquire\.gpu\.global\.b32\s+(%r\d+),[^;]*;"
    assert len(re.findall(pattern, text)) == 1
    violations = re.sub(pattern, r"mov.b32 \1, 196608;", text)  # 3 << 16: three parts are written
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, s).astype(np.float32) for s in ((64, 256), (256, 64)))
    found = []
    for seed in range(6):
        try:
            found.append(np.array_equal(emulate(plan, a, b, ptx=violations, seed=seed).d, a @ b))
        except EmulationError:
            found.append(False)
    assert not all(found)
