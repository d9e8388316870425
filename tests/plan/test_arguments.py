"""What is passed to a builder or to the catalog by mistake is said in words, all of it at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cutegemm import (
    LayoutError,
    Operands,
    PlanError,
    Problem,
    UnsupportedError,
    mma_sync_plan,
    plan_named,
    simt_plan,
    sm90_plan,
)
from cutegemm.analysis import search_plan
from cutegemm.plan.catalog import choose


@pytest.mark.parametrize(
    ("call", "rules"),
    [
        (lambda: simt_plan("f32"), ["operands = 'f32'; Operands are expected"]),
        (
            lambda: simt_plan(block=128, warp=[64, 32], thread=(8.0, 8), quad=(True, 4), stages="3"),
            ["block = 128; 3", "warp = [64, 32]; 2", "thread = (8.0, 8); 2", "quad = (True, 4); 2", "stages = '3'; an"],
        ),
        (lambda: simt_plan(block=(128, -128, 8)), ["block = (128, -128, 8); 3 positive integers are expected."]),
        (lambda: mma_sync_plan("bf16", block=(128, 128)), ["operands = 'bf16'", "block = (128, 128); 3"]),
        (lambda: mma_sync_plan(stages=None), ["stages = None; an integer is expected."]),
        (
            lambda: sm90_plan(tile=(128, 128), cluster=2, stages=2.5, split_k="4"),
            ["tile = (128, 128); 3", "cluster = 2; 2", "stages = 2.5; an integer", "split_k = '4'; an integer"],
        ),
        (lambda: simt_plan(raster="zigzag", pack="c"), ["Raster.parse: 'zigzag' is no raster", "pack = 'c' is none"]),
        (lambda: mma_sync_plan(raster="zigzag", read="no"), ["Raster.parse: 'zigzag'", "read = 'no' is neither"]),
        (lambda: plan_named("simt:block=128x128", Operands.of("f32")), ["block = (128, 128); 3"]),
        (lambda: simt_plan().with_(stages=3, name="x", tile=1), ["'stages' is no field of a plan", "'tile' is no"]),
        (lambda: Problem(1, -2, 3, operands="f32"), ["n = -2; an integer", "operands = 'f32'; Operands are"]),
        (lambda: plan_named(3, "f32"), ["operands = 'f32'", "name = 3; the name of a plan is expected"]),
    ],
)  # fmt: skip
def test_arguments_of_another_kind(call: Callable[[], object], rules: list[str]) -> None:
    with pytest.raises(PlanError) as caught:
        call()
    assert [said[: len(rule)] for said, rule in zip(caught.value.violations, rules, strict=True)] == rules


def test_a_part_that_a_plan_has_not() -> None:
    with pytest.raises(UnsupportedError, match="nothing is called 'full'; there are cta"):
        simt_plan().barrier("full")
    with pytest.raises(
        UnsupportedError, match="nothing is called 'all'; there are producer, consumer 0, consumer 1"
    ):
        sm90_plan().role("all")
    with pytest.raises(LayoutError, match="keeps no X in shared memory"):
        search_plan(simt_plan(), "x")


def test_a_reason_is_said_once() -> None:
    """TMA loads neither matrix, for any of the plans."""
    odd = Operands.of("e4m3", layout="nt", align_bytes=2)
    with pytest.raises(PlanError) as caught:
        choose(odd, Problem(130, 70, 50, operands=odd))
    assert [rule.split(";")[0].split(": ")[1] for rule in caught.value.violations] == [
        "A is aligned to 2 bytes", "B is aligned to 2 bytes"
    ]  # fmt: skip
    with pytest.raises(
        PlanError, match="e4m3 is multiplied by wgmma alone, which sm_90a has and sm_80 has not"
    ):
        choose(Operands.of("e4m3", layout="nt"), Problem(128, 128, 128), "sm_80")
