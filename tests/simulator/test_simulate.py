"""The simulator against numpy: exact for integers, whatever the extents, the layouts and the schedule."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm.build import simt_plan
from cutegemm.dtypes import DType, round_to
from cutegemm.errors import CutegemmError, PlanError, UnsupportedError
from cutegemm.plan import Operands, Problem
from cutegemm.plan.epilogue import SCALED
from cutegemm.simulator import simulate
from tests.simulator.plans import LAYOUTS, SMALL, WARPS, mma_sync_plan, small_plan, violations

RAGGED = [(0, 5, 3), (5, 0, 3), (5, 3, 0), (1, 1, 1), (1, 40, 9), (33, 31, 8), (32, 64, 16), (70, 45, 29)]


def integers(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(-6, 7, shape).astype(np.float64) for shape in shapes]


def unaligned(**options):
    """Operands that need no alignment beyond that of an element."""
    return Operands.of("f32", align_bytes=4, **options)


@pytest.mark.parametrize("extents", RAGGED, ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_ragged_extents_and_majorness(layout, extents):
    m, n, k = extents
    a, b = integers((m, k), (k, n))
    for out_major in "mn":
        plan = small_plan(unaligned(layout=layout, out_major=out_major))
        assert np.array_equal(simulate(plan, a, b).d, a @ b)


@pytest.mark.parametrize("shared", LAYOUTS)
@pytest.mark.parametrize("load", ["cp.async", "register"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_shared_layouts_loads_and_stages(stages, load, shared):
    a, b = integers((44, 52), (52, 36))
    for layout in ("nn", "tt"):
        plan = small_plan(
            Operands.of("f32", layout=layout),
            stages=stages, load_a=load, load_b=load, shared_a=LAYOUTS[shared], shared_b=LAYOUTS[shared],
        )  # fmt: skip
        assert np.array_equal(simulate(plan, a, b).d, a @ b)


@pytest.mark.parametrize("raster", ["along_m", "along_n", "grouped_m:2", "grouped_n:3", "log_tile:1"])
@pytest.mark.parametrize("tile", [SMALL, WARPS], ids=["one warp", "four warps"])
def test_rasters(tile, raster):
    a, b = integers((132, 12), (12, 100))
    assert np.array_equal(simulate(simt_plan(**tile, raster=raster), a, b).d, a @ b)


@pytest.mark.parametrize("unroll", [None, 2, 4])
@pytest.mark.parametrize("stages", [2, 3])
def test_unrolled_loops(stages, unroll):
    a, b = integers((64, 40), (40, 64))
    assert np.array_equal(simulate(small_plan(stages=stages, unroll=unroll), a, b).d, a @ b)


def test_many_plans_at_random():
    rng = np.random.default_rng(1)
    carried_out = 0
    for seed in range(120):
        pick = lambda *options: options[rng.integers(len(options))]  # noqa: E731
        kind = pick("f32", "f64")
        layout, major = pick("nn", "nt", "tn", "tt"), pick("m", "n")
        ops = Operands.of(kind, layout=layout, out_major=major, align_bytes=pick(8, 16))
        unit = ops.a.align_elems
        try:
            plan = simt_plan(
                ops, block=pick((32, 32, 8), (64, 64, 8), (64, 32, 4)), warp=pick((32, 32), (32, 16)),
                thread=pick((8, 4), (4, 4)), quad=pick((4, 4), (2, 4), (1, 1)), stages=pick(1, 2, 3),
                lanes_along=pick("m", "n"), raster=pick("along_n", "grouped_m:2"), mma_order=pick("m", "n"),
                load_a=pick(None, "cp.async", "register"), shared_b=pick(None, *LAYOUTS.values()),
            )  # fmt: skip
        except PlanError:
            continue
        m, n, k = (int(x) * unit for x in rng.integers(0, 30, 3))
        a, b, c = integers((m, k), (k, n), (m, n), seed=seed)
        d = simulate(plan, a, b, c, alpha=2, beta=-1).d
        assert np.array_equal(d, 2 * (a @ b) - c)
        carried_out += 1
    assert carried_out >= 40


@pytest.mark.parametrize(("alpha", "beta"), [(1, 0), (0, 0), (-2, 0), (1, 1), (0.5, -3)])
def test_alpha_and_beta(alpha, beta):
    a, b, c = integers((37, 10), (10, 50), (37, 50))
    d = simulate(small_plan(unaligned()), a, b, c, alpha=alpha, beta=beta).d
    assert np.array_equal(d, alpha * (a @ b) + beta * c)


def test_c_is_not_read_where_beta_is_0():
    a, b = integers((8, 8), (8, 8))
    poisoned = np.full((8, 8), np.nan)
    assert np.array_equal(simulate(small_plan(), a, b, poisoned).d, a @ b)
    assert np.isnan(simulate(small_plan(), a, b, poisoned, beta=1).d).all()


def test_a_c_of_another_majorness():
    ops = Operands.of("f32")
    ops = Operands(ops.a, ops.b, Operands.of("f32", out_major="m").c, ops.d, ops.acc)
    a, b, c = integers((36, 8), (8, 40), (36, 40))
    assert np.array_equal(simulate(small_plan(ops), a, b, c, beta=1).d, a @ b + c)


@pytest.mark.parametrize("batch", [0, 1, 3])
def test_batch(batch):
    a, b, c = integers((batch, 36, 20), (batch, 20, 40), (batch, 36, 40))
    plan = small_plan(Operands.of("f32", batched=True), raster="grouped_n:2")
    assert np.array_equal(simulate(plan, a, b, c, beta=2).d, a @ b + 2 * c)


def test_inputs_of_any_strides():
    a, b = integers((80, 40), (24, 40))
    d = simulate(small_plan(), a[::-2, ::2], b.T[::2, ::-1]).d
    assert np.array_equal(d, a[::-2, ::2] @ b.T[::2, ::-1])


def test_leading_strides_of_a_problem():
    a, b = integers((8, 12), (12, 16))
    problem = Problem(8, 16, 12, operands=Operands.of("f32"), ld=(("a", 12), ("b", 64), ("d", 20)))
    assert np.array_equal(simulate(small_plan(), a, b, problem=problem).d, a @ b)


def test_nan_and_infinity_of_the_caller_are_no_holes():
    a, b = np.full((8, 8), np.nan), np.full((8, 8), np.inf)
    result = simulate(small_plan(), a, b)
    assert result.faults == ()
    assert np.isnan(result.d).all()


@pytest.mark.parametrize(("dtype", "acc"), [("f16", "f32"), ("bf16", "f32"), ("f16", "f16"), ("f64", "f64")])
def test_other_types(dtype, acc):
    a, b = integers((40, 16), (16, 24))
    a, b = a % 4, b % 4
    plan = small_plan(Operands.of(dtype, acc=acc), load_a="register", load_b="register")
    assert np.array_equal(simulate(plan, a, b).d, a @ b)


@pytest.mark.parametrize(
    ("dtype", "k", "matrices", "acc"),
    [
        ("f16", 16, None, None), ("f16", 16, 4, None), ("bf16", 8, 2, None), ("f16", 8, 1, "f16"),
        ("tf32", 8, None, None), ("tf32", 4, None, None), ("s8", 32, None, None), ("s8", 16, None, None),
    ],
)  # fmt: skip
def test_tensor_core_atoms_take_the_same_way(dtype, k, matrices, acc):
    a, b = integers((80, 96), (96, 48))
    a, b = a % 3, b % 3
    plan = mma_sync_plan(dtype, k, matrices=matrices, acc=acc)
    assert np.array_equal(simulate(plan, a, b).d, a @ b)


def test_tf32_drops_the_low_bits_of_its_operands():
    kind = DType.parse("tf32")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(64, 16)).astype(np.float32), np.eye(16, 32)
    d = simulate(mma_sync_plan("tf32", 8), a, b).d
    assert np.array_equal(d[:, :16], round_to(kind, round_to(kind, a, "rz")))


def test_d_is_rounded_to_its_type():
    ops = Operands.of("f32", out="bf16")
    a, b = integers((32, 32), (32, 32))
    d = simulate(small_plan(ops), a / 7, b).d
    assert np.array_equal(d, round_to(DType.parse("bf16"), d))
    assert np.allclose(d, a / 7 @ b, rtol=2**-8, atol=1e-4)


def test_floats_are_as_near_as_float32_sums_are():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(64, 256)), rng.normal(size=(256, 64))
    d = simulate(simt_plan(**WARPS), a, b).d
    assert np.abs(d - a.astype(np.float32).astype(np.float64) @ b.astype(np.float32)).max() < 2e-4


def test_the_result_says_what_was_done():
    a, b = integers((40, 20), (20, 40))
    fractions = []
    result = simulate(small_plan(), a, b, progress=fractions.append)
    assert (result.stats.ctas, result.stats.k_tiles) == (4, 3)
    assert result.stats.loaded_a_elems == 2 * 40 * 20  # by each of two columns of CTAs
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert result.d.shape == (40, 40)
    assert result.d.dtype == np.float32


def test_one_cta_at_a_time_and_many_agree(monkeypatch):
    a, b = integers((100, 36), (36, 68))
    together = simulate(small_plan(), a, b).d
    monkeypatch.setattr("cutegemm.simulator.task._ACCUMULATORS_AT_ONCE", 1)
    assert np.array_equal(simulate(small_plan(), a, b).d, together)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": np.ones((4, 4)), "b": np.ones((8, 4))}, "do not fit"),
        ({"a": np.ones(4), "b": np.ones((4, 4))}, "Pass two modes"),
        ({"a": np.ones((4, 4)), "b": np.ones((4, 4)), "beta": 1}, "C is missing"),
        ({"a": np.ones((2, 4, 4)), "b": np.ones((2, 4, 4))}, "do not have a batch mode. Make them with batched=True"),
        (
            {"a": np.ones((4, 4)), "b": np.ones((4, 4)), "check": "raise"},
            "check = 'raise' is not one of True",
        ),
        ({"a": np.ones((4, 3)), "b": np.ones((3, 4))}, "12 bytes, which is not a multiple of 16, "),
        ({"a": np.ones((4, 4)), "b": np.ones((4, 4)), "problem": Problem(4, 4, 8)}, "the problem is 4x4x8"),
        (
            {"a": 1j * np.ones((4, 4)), "b": [["x"]]},
            "(?s)A has the type complex128, .* B has the type <U1, which",
        ),
        (
            {"a": [[1, 2], [3]], "b": np.ones((4, 4)), "beta": 1},
            "(?s)A is a list that is not an array.* C is missing",
        ),
    ],
)
def test_what_does_not_fit_is_told(arguments, message):
    with pytest.raises(CutegemmError, match=message):
        simulate(small_plan(), **arguments)


def test_a_plan_that_cannot_read_c():
    with pytest.raises(PlanError, match="cannot read C"):
        simulate(small_plan().with_(epilogue=SCALED), *[np.ones((4, 4))] * 3, beta=1)


def test_the_name_of_a_plan_is_no_plan():
    with pytest.raises(UnsupportedError, match=r"plan = 'simt_64x64'; .* plan_named\('simt_64x64', operands\)"):
        simulate("simt_64x64", np.ones((4, 4)), np.ones((4, 4)))


def test_shared_operands_are_not_simulated():
    plan = small_plan()
    atom = violations(plan.tiled_mma.atom, a_source="shared")
    with pytest.raises(UnsupportedError, match="from shared memory"):
        simulate(violations(plan, tiled_mma=violations(plan.tiled_mma, atom=atom)), np.ones((4, 4)), np.ones((4, 4)))
