"""Emulated SIMT kernels that split K, and kernels that store D through shared memory."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import simt_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.plan import Operands
from cutegemm.run.emulated import emulate
from tests.marks import with_thorough

SMALL = {"block": (32, 32, 8), "warp": (32, 16), "thread": (4, 4), "stages": 3}


def right(plan, m, n, k, seed=None):
    rng = np.random.default_rng(m + n + k)
    a, b, c = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n)))
    return (emulate(plan, a, b, c, alpha=1.5, beta=0.5, seed=seed).d == 1.5 * (a @ b) + 0.5 * c).all()


@pytest.mark.parametrize(
    "options",
    [{"waves": 1, "persistent": 5, "repack": "ab"}, {"split_k": 3, "reduction": "last"}],
    ids=["stream-K on repacked operands", "the last CTA adds"],
)
def test_split_tiles(options):
    """Ragged tiles, fewer k-tiles than CTAs, and K = 0, with a deterministic and with a random schedule of warps."""
    plan = simt_plan(Operands.of("f32", layout="nt", align_bytes=4), **SMALL, **options)
    for shape in ((33, 65, 130), (33, 31, 5), (5, 3, 0)):
        assert right(plan, *shape)
        assert right(plan, *shape, seed=1)


NAMED = ("simt_16x16/k5", "simt_32x32x32/k3", "simt_64x16/k2")


@pytest.mark.parametrize("name", with_thorough(NAMED, NAMED[1:]))
def test_small_tiles_loaded_by_single_elements(name):
    """cp.async loads K-major operands of any alignment. Problems are ragged in all modes.

    Some K splits have no k-tile.
    """
    plan = plan_named(name, Operands.of("f32", layout="nt", align_bytes=4))
    assert plan.a.load.atom.is_async
    assert plan.b.load.atom.is_async
    for shape in ((33, 17, 133), (5, 70, 31)):
        assert right(plan, *shape, seed=1)


@pytest.mark.parametrize("out_major", with_thorough("mn", "n"))
def test_narrow_d(out_major):
    plan = simt_plan(Operands.of("f32", align_bytes=4, out_major=out_major), **SMALL)
    assert plan.store.layout is not None
    assert right(plan, 33, 65, 20, seed=1)
