"""Problems that are too large for a plan, and that the choice still finds one that serves, or says why none does."""

from __future__ import annotations

import random

import pytest

from cutegemm.build import simt_plan, sm90_plan
from cutegemm.choice.catalog import choose, plan_named
from cutegemm.errors import PlanError
from cutegemm.machine.device import DEFAULT_DEVICE
from cutegemm.plan import Operands, Problem
from cutegemm.plan.rules.limits import limits

MOST = 2**31 - 1024  # the largest extent that gemm takes
SMALL = {"block": (64, 64, 8), "warp": (32, 32), "thread": (8, 4)}


@pytest.mark.parametrize(
    ("plan", "mnk", "said"),
    [
        # 2^31 / 64 rows of tiles and almost 64 columns fill a grid
        (simt_plan(**SMALL), (MOST, 64 * 65, 8), ["33554416 x 65 x 1 tiles"]),
        (simt_plan(**SMALL), (MOST, 64 * 64, 8), []),
        # packed by tiles of 64 x 64: 2^31 / 64 = 2^25 along K, times 64 of rows
        (simt_plan(**SMALL, repack="a"), (64 * 64, 64, MOST), []),
        (simt_plan(**SMALL, repack="a"), (64 * 65, 64, MOST), ["the repack pass of A takes 2181037040 CTAs"]),
        (simt_plan(**SMALL, repack="b"), (64 * 65, 64, MOST), []),
        # one tile of 2^28 k-tiles, which the 3 beyond it make 5 of; 8 of them past 2^31
        (simt_plan(**SMALL, waves=1, persistent=100), (64, 64, MOST), []),
        (simt_plan(**SMALL, waves=1, persistent=100), (64 * 8, 64, MOST), ["stream-K divides 8 tiles of 268435328"]),
        (simt_plan(**SMALL, waves=1, persistent=8), (64 * 8, 64, MOST), []),  # they fill the grid: none is shared
        (simt_plan(**SMALL, split_k=100), (64 * 8, 64, MOST), []),
        # clusters of 8 x 1 tiles of 256 rows end at 2^31
        (sm90_plan(cluster=(8, 1), tile=(256, 64, 64), schedule="cooperative"), (MOST, 64, 64), ["M = 2147482624"]),
        (sm90_plan(split_k=130), (128, 128 * 2**24, 64), ["N = 2147483648", "16777216 tiles with 130 K splits each"]),
        (sm90_plan(), (MOST, MOST, MOST), ["16777208 x 16777208 x 1 tiles"]),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)  # fmt: skip
def test_what_is_too_large(plan, mnk, said):
    problem = Problem(*mnk, operands=plan.operands)
    found = list(limits(plan, problem))
    assert len(found) == len(said)
    assert all(rule.startswith(words) for rule, words in zip(found, said, strict=True))
    assert plan.violations("sm_90a", problem) == found


def test_as_many_parts_as_a_grid_has_along_its_second_axis():
    assert simt_plan(**SMALL, split_k=65535).split_k == 65535
    with pytest.raises(PlanError, match=r"split_k = 65536; the second axis of a grid has at most 65535 CTAs."):
        simt_plan(**SMALL, split_k=65536)


def test_a_packed_plan_is_chosen_only_where_it_fits():
    """Packed, simt_32x32 has 4 stages, 16 KiB with D: 8 CTAs of them are more than the 100 KiB of an SM of sm_86."""
    operands = Operands.of("f32", align_bytes=4)
    assert not plan_named("simt_32x32", operands).violations("sm_86")
    assert plan_named("simt_32x32+repack", operands).violations("sm_86")
    for mnk in ((3, 8, 12), (1592, 63, 1936), (2624, 12384, 13)):
        problem = Problem(*mnk, operands=operands)
        assert choose(operands, problem, "sm_86", DEFAULT_DEVICE.with_sms(84)).violations("sm_86", problem) == []


def test_the_choice_serves_any_problem_or_says_what_is_too_large():
    """Extents of 0 and 1 and up to the largest, by chance."""
    chance = random.Random(5)

    def extent() -> int:
        return chance.choice([0, 1, chance.randint(1, 300) * 16, int(2 ** chance.uniform(0, 26.9)) * 16])

    served, refused = 0, []
    for _ in range(40):
        dtype, arch = chance.choice(
            [("f32", "sm_86"), ("f32", "sm_90a"), ("f64", "sm_80"), ("bf16", "sm_90a"), ("bf16", "sm_80")]
        )
        align = 16 if dtype == "bf16" and arch == "sm_90a" else 8
        operands = Operands.of(dtype, layout="nt", align_bytes=align, batched=True)
        m, n, k, batch = (extent() for _ in range(4))
        leading = tuple([(name, max(8, -(-e // 8) * 8)) for name, e in zip("abcd", (k, k, n, n), strict=True)])
        unit = align * 8 // operands.a.dtype.bits
        problem = Problem(m, -(-n // unit) * unit, -(-k // unit) * unit, batch, operands, leading)
        try:
            plan = choose(operands, problem, arch)
        except PlanError as error:
            refused.append(str(error))
        else:
            served += 1
            assert plan.violations(arch, problem) == []
    assert all("tiles are more than the 2147483647 CTAs" in words for words in refused)
    assert served > len(refused) > 0
