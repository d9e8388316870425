"""Builders and `with_` take an epilogue as a function or text, and compute it."""

from __future__ import annotations

import numpy as np
import pytest

from cutegemm import Operands, PlanError, epilogue, gemv_plan, mma_sync_plan, mma_tma_plan, simt_plan, sm90_plan
from cutegemm.simulator import simulate

BF16 = Operands.of("bf16", layout="nt")
RNG = np.random.default_rng(7)
A, B = RNG.integers(-2, 3, (64, 64)).astype(np.float32), RNG.integers(-2, 3, (64, 64)).astype(np.float32)
BIAS, TILE = RNG.integers(-2, 3, (1, 64)).astype(np.float32), RNG.integers(-2, 3, (64, 64)).astype(np.float32)
BUILDERS = {
    "simt": lambda **more: simt_plan(block=(64, 64, 8), warp=(32, 32), thread=(4, 8), **more),
    "mma_sync": lambda **more: mma_sync_plan(BF16, block=(64, 64, 64), warp=(32, 32), **more),
    "mma_tma": lambda **more: mma_tma_plan(BF16, block=(64, 64, 64), warp=(32, 32), **more),
    "sm90": lambda **more: sm90_plan(BF16, tile=(64, 64, 64), **more),
    "gemv": lambda **more: gemv_plan(BF16, vectors=1, warps=2, **more),
}


def biased(acc, bias, t):
    return epilogue.relu(acc + bias) + t


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("given", [biased, "relu(acc + bias) + t"])
def test_every_builder_takes_an_epilogue(name, given):
    plan = BUILDERS[name](epilogue=given, operands={"bias": "row:f32", "t": "tile"})
    assert str(plan.epilogue) == "relu(acc + bias) + t"
    found = simulate(plan, A, B, bias=BIAS, t=TILE)
    assert np.array_equal(found.d, np.maximum(A @ B + BIAS, 0) + TILE)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_plan_takes_another_epilogue(name):
    plan = BUILDERS[name]().with_(epilogue=lambda acc, s: (acc * s, acc), operands={"s": "scalar", "aux": "f32"})
    assert str(plan.operands.matrix("aux").dtype) == "f32"
    found = simulate(plan, A, B, s=0.5)
    assert np.array_equal(found.aux["aux"], A @ B)
    assert np.array_equal(found.d, 0.5 * (A @ B))


def test_a_gated_epilogue():
    plan = sm90_plan(BF16, tile=(64, 64, 64), epilogue=lambda acc: epilogue.swiglu(acc))
    assert plan.d_tile == (64, 32)
    assert plan.with_(name="other", epilogue="acc").name == "other"


def test_the_first_argument_by_its_name():
    assert sm90_plan(operands=BF16) == sm90_plan(BF16)
    assert sm90_plan(operands=BF16, epilogue="acc").operands.layout == "nt"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"epilogue": biased}, "it has the parameter 'bias', which is not passed"),
        ({"epilogue": biased, "operands": {"bias": "roww", "t": "tile"}}, "operands['bias'] = 'roww'. Use row, column"),
        ({"epilogue": "acc", "operands": {"bias": "f32"}}, "operands['bias']: acc has no operand and no result"),
        ({"epilogue": "acc + t", "operands": {"t": "row:f7"}}, "operands['t'] = 'row:f7'"),
        ({"epilogue": 3}, "epilogue = 3; a function of the accumulator is expected"),
    ],
)
def test_what_is_wrong_is_said(more, said):
    for build in (sm90_plan, sm90_plan().with_):
        with pytest.raises(PlanError) as caught:
            build(**more)
        assert said in str(caught.value)


def test_operands_need_an_epilogue():
    with pytest.raises(PlanError, match="but no epilogue"):
        sm90_plan(operands={"bias": "row"})
    with pytest.raises(PlanError, match="epilogue = None; a function"):
        sm90_plan().with_(operands={"bias": "row"})
