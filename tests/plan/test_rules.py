"""What the rules of a plan count by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cutegemm.build import mma_sync_plan, simt_plan, sm90_plan
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.plan import GemmPlan, Operands, Persistent
from cutegemm.plan.program.thread_schedule import Fetch, Read, Repeat, Sync
from cutegemm.plan.role import Role
from cutegemm.plan.rules.boxes import places
from tests.streams import stream_changes


@pytest.mark.parametrize("spread", [1, 40, 5_000, 10**6, 2**60])
def test_places_are_counted_however_far_apart_they_lie(spread: int) -> None:
    rng = np.random.default_rng(spread)
    for count in (1, 2, 7, 300):
        offsets = rng.integers(-spread, spread, count)
        assert places(offsets) == len(set(offsets.tolist()))


@pytest.mark.parametrize(
    ("stride", "said"),
    [
        ((1, 128, 1024), None),
        ((1, 127, 1024), ", places two elements at one offset."),
        ((0, 128, 1024), ", places two elements at one offset."),
        ((1, 128, 1023), ", places two elements at one offset."),
        ((-1, 128, 1024), "has negative offsets"),
        ((1, 128, 2**40), None),  # so far that nothing is marked for each place between
    ],
)
def test_shared_memory_of_a(stride: tuple[int, int, int], said: str | None) -> None:
    plan = simt_plan(block=(128, 128, 8), stages=2, load_a="register")
    layout = Layout((128, 8, 2), stride)
    try:
        plan.with_stream("a", smem=layout)
        found = ""
    except PlanError as error:
        found = "\n".join(rule for rule in error.violations if "shared memory of A, " in rule)
    assert (said in found) if said else not found


def _pipeline(**changes: Any) -> GemmPlan:
    plan = sm90_plan()
    return plan.with_(body=replace(plan.body, **changes))


def _body(*steps: Any) -> GemmPlan:
    plan = simt_plan()
    return plan.with_(body=replace(plan.body, k_tile=steps))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: simt_plan().with_(family=["simt"]), ["family = ['simt']; a text is expected."]),
        (
            lambda: simt_plan().with_scheduler(grid=Persistent(True)),
            ["scheduler.grid.ctas = True; an integer is expected."],
        ),
        (
            lambda: simt_plan().with_scheduler(grid=132),
            ["scheduler.grid = 132; OneEach or Persistent is expected."],
        ),
        (
            lambda: simt_plan().with_(**stream_changes(simt_plan(), smem_a=None), cta_tile=(1.0, 2, 3), rounding=1),
            [
                "cta_tile[0] = 1.0; an integer is expected.",
                "streams[0].smem = None; Layout or ComposedLayout is expected.",
                "rounding = 1; a text is expected.",
            ],
        ),
        (
            lambda: simt_plan().with_(roles=(Role("all", "8"),)),
            ["roles[0].warps = '8'; an integer is expected."],
        ),
        (lambda: simt_plan().with_(repacks=("a",)), ["repacks[0] = 'a'; Repack is expected."]),
        (
            lambda: _pipeline(stages="4", consumer_tile=(64,)),
            [
                "body.stages = '4'; an integer is expected.",
                "body.consumer_tile = (64,); a tuple of 2 integers is expected.",
            ],
        ),
        (
            lambda: _body(Read(0), Repeat(2, 1, (Sync(),)), Fetch("1")),
            [
                "body.k_tile[1].steps[0] = Sync(); Read or Multiply is expected.",
                "body.k_tile[2].ahead = '1'; an integer is expected.",
            ],
        ),
        (
            lambda: _body(Repeat(0, 1, (Read(-1),)), Fetch(0, chunks=0)),
            [
                f"{Repeat(0, 1, (Read(-1),))} of body.k_tile: times is below 1.",
                "Read(k_block=-1, ahead=0) of body.k_tile: k_block is below 0.",
                "Fetch(ahead=0, chunk=0, chunks=0) of body.k_tile: chunks is below 1.",
            ],
        ),
    ],
)
def test_fields_are_of_the_types_of_their_annotations(make: Callable[[], GemmPlan], said: list[str]) -> None:
    with pytest.raises(PlanError) as refused:
        make()
    assert list(refused.value.violations) == said


@pytest.mark.parametrize(
    "more",
    [{"split_k": 2}, {"split_k": 2, "reduction": "last"}, {"repack": "a"}, {"waves": 1, "persistent": 4}],
)
def test_fragments_from_global_memory_are_those_of_whole_plain_operands(more: dict[str, Any]) -> None:
    with pytest.raises(
        PlanError, match=r"without stages of shared memory K is not split and operands are not repacked."
    ):
        simt_plan(block=(64, 64, 1), warp=(32, 32), thread=(8, 4), stages=0, **more)


def test_what_ldmatrix_does_not_fill_is_no_plan_however_it_is_loaded() -> None:
    for load in ("cp.async", "register"):
        with pytest.raises(PlanError, match="cannot read A: 2 values of a thread"):
            mma_sync_plan(
                Operands.of("tf32", layout="nt"), block=(32, 192, 32), warp=(16, 96), atom_k=4, load=load,
                arch="sm_90",
            )  # fmt: skip
