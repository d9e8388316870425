"""What `check` advises is a plan that its builder makes."""

from __future__ import annotations

import re

import pytest

from cutegemm.analysis import check
from cutegemm.analysis.advice import larger, with_tile
from cutegemm.choice.catalog import plan_named
from cutegemm.errors import CutegemmError
from cutegemm.plan import Operands, Problem
from cutegemm.plan.work.split import KSplit

SPELLED = re.compile(r"(?:simt|mma_sync|mma_tma|sm90):\S+")


@pytest.mark.parametrize(
    ("name", "dtype", "extents"),
    [
        ("simt_32x32", "f32", (1024, 2048, 4096)),
        ("simt_128x128", "f32", (72, 200, 512)),
        ("mma_64x64", "f16", (100, 4096, 4096)),
        ("mma_128x256", "tf32", (1000, 40, 256)),
        ("mma_tma_128x256", "bf16", (300, 300, 64)),
        ("sm90_pingpong", "bf16", (4096, 4096, 4096)),
        ("sm90_pingpong", "bf16", (300, 600, 64)),
        ("sm90_64x16", "bf16", (2048, 1024, 8192)),
        ("sm90_promoted_2x1", "e4m3", (500, 500, 4096)),
        ("sm90_192x160_1x2/fixup", "bf16", (300, 700, 200)),
        ("sm90_wide_2x1/stream", "bf16", (300, 700, 400)),
    ],
)
def test_advised_plans_keep_the_rules(name, dtype, extents):
    operands = Operands.of(dtype, layout="nt")
    plan = plan_named(name, operands)
    problem = Problem(*extents, operands=plan.operands)
    for change in check(plan, problem, device="h200").changes:
        for text in SPELLED.findall(change.advice):
            advised = plan_named(text.rstrip(";,."), operands)
            assert not advised.violations(advised.arch, problem), text
        parts = re.search(r"split K in (\d+)", change.advice)
        if parts:
            made = plan.with_scheduler(split=KSplit(int(parts[1]), reduction="last" if plan.body else "kernel"))
            assert not made.violations(made.arch, problem)


def test_no_split_is_advised_to_a_family_that_has_none():
    plan = plan_named("mma_128x128", Operands.of("bf16"))
    problem = Problem(128, 128, 65536, operands=plan.operands)
    advice = [change.advice for change in check(plan, problem, device="h200").changes]
    assert not any("split K" in text or "stream-K" in text for text in advice)
    with pytest.raises(CutegemmError):
        plan.with_scheduler(split=KSplit(4))


def test_tiles_that_no_builder_makes():
    plan = plan_named("sm90_pingpong", Operands.of("bf16", layout="nt"))
    problem = Problem(4096, 4096, 4096, operands=plan.operands)
    assert with_tile(plan, problem, (100, 128)) is None
    assert with_tile(plan, problem, (128, 512)) is None
    assert larger(plan_named("sm90:tile=256x208x64,schedule=cooperative", plan.operands), problem) is None
