"""The SIMT builder: what it derives from tile sizes, and what it refuses, all at once."""

import pickle

import numpy as np
import pytest

from cutegemm import Operands, PlanError, Problem, make_identity_layout, simt_plan
from cutegemm.plan.program.thread_schedule import multistage, single_stage


def rules(**arguments) -> str:
    with pytest.raises(PlanError) as caught:
        simt_plan(**arguments)
    return "\n".join(caught.value.violations)


def test_thread_tile_by_hand() -> None:
    """Thread 5 = lane 5 of warp 0: lanes run along M first (8 x 4), so lane_m = 5, lane_n = 0. Its rows are
    quads of 4 at 5*4 and, 8 lanes further, at 32 + 5*4; its columns quads at 0 and, 4 lanes further, at 16."""
    plan = simt_plan(block=(128, 128, 8), warp=(64, 32), thread=(8, 8))
    held = plan.tiled_mma.offsets_c(make_identity_layout((128, 128)))[5].reshape(-1, 2)
    assert sorted(set(held[:, 0])) == [20, 21, 22, 23, 52, 53, 54, 55]
    assert sorted(set(held[:, 1])) == [0, 1, 2, 3, 16, 17, 18, 19]


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("block", "warp", "thread"), [((128, 128, 8), (64, 32), (8, 8)), ((64, 32, 16), (32, 16), (4, 4))]
)
def test_copies_move_every_element_once(layout, block, warp, thread) -> None:
    plan = simt_plan(Operands.of("f32", layout=layout), block=block, warp=warp, thread=thread)
    for copy, extent, smem in ((plan.a.load, block[0], plan.a.smem), (plan.b.load, block[1], plan.b.smem)):
        stage = smem(None, None, 0)
        written = copy.offsets_d(stage).reshape(-1)
        assert np.array_equal(np.sort(written), np.sort(stage.offsets()))
        assert len(written) == extent * block[2]


@pytest.mark.parametrize("layout", ["nn", "tt"])
@pytest.mark.parametrize(("rows", "warp", "thread"), [(96, 48, 6), (160, 80, 10), (192, 96, 12)])
def test_rows_that_are_no_power_of_two(layout, rows, warp, thread) -> None:
    """128 threads copy a k-major A of 96 rows by 32 of them and 16 along K: all of it is multiplied, and once."""
    from cutegemm.simulator import simulate

    tiles = {"block": (rows, 64, 16), "warp": (warp, 32), "thread": (thread, 8), "quad": (2, 4)}
    plan = simt_plan(Operands.of("f32", layout=layout).fitted(rows + 3, 72, 40), **tiles)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 4, shape).astype(np.float32) for shape in ((rows + 3, 40), (40, 72)))
    assert (simulate(plan, a, b).d == a @ b).all()


def test_threads_that_do_not_divide_a_tile() -> None:
    """192 threads copy 128 x 6 elements at a time: of a tile that is 12 deep, or 48, but not 16."""
    six = {"warp": (32, 64), "thread": (8, 8)}
    assert "elements along K, or a number of warps with other than 192 threads" in rules(block=(96, 128, 16), **six)
    assert simt_plan(block=(96, 128, 48), **six, stages=1).threads == 192


def test_every_broken_rule_at_once() -> None:
    said = rules(block=(100, 128, 7), warp=(64, 33), thread=(8, 8), stages=-1, load_a="x", unroll=3)
    for part in ("stages = -1", "load_a = 'x'", "100 elements", "128 elements", "33 elements", "unroll = 3"):
        assert part in said


def test_warp_larger_than_block() -> None:
    assert "32 elements of the block tile along M are not a multiple of the 64" in rules(
        block=(32, 32, 8), warp=(64, 64), thread=(8, 8)
    )


def test_budgets() -> None:
    said = rules(block=(256, 256, 64), warp=(64, 64), thread=(16, 8), stages=4)
    assert "bytes exceeds the 166912 bytes of a CTA on sm_80" in said
    assert "registers" in said


def test_another_architecture_has_other_limits() -> None:
    plan = simt_plan(Operands.of("f32", layout="tn"), block=(256, 128, 16), warp=(64, 64), thread=(16, 8), stages=5)
    assert plan.violations() == []
    assert any("sm_89" in rule for rule in plan.violations("sm_89"))


@pytest.mark.parametrize(
    ("m", "n", "k", "what"),
    [(4094, 4096, 64, "A has 4094 elements along m"), (64, 66, 64, "B has 66 elements along n")],
)
def test_problem_rules(m, n, k, what) -> None:
    operands = Operands.of("f32", layout="tn")
    said = simt_plan(operands).violations(problem=Problem(m, n, k, operands=operands))
    assert any(rule.startswith(what) for rule in said)


def test_a_copy_that_misses_elements_is_refused() -> None:
    """Half of the threads' values left out: the copy's tile is no longer covered."""
    from cutegemm.layout import Layout
    from cutegemm.tile import TiledCopy

    plan = simt_plan(Operands.of("f32", layout="tn"), block=(128, 128, 16))
    copy = plan.a.load
    twice = Layout((copy.layout_tv.shape[0], copy.layout_tv.shape[1]), (0, copy.layout_tv.stride[1]))
    with pytest.raises(PlanError, match=r"of the .* elements of its tile"):
        plan.with_stream("a", load=TiledCopy(copy.atom, twice, copy.tiler_mn))


def test_plans_are_values() -> None:
    plan = simt_plan(stages=3)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert hash(again) == hash(plan)
    assert again.key() == plan.key()
    assert simt_plan(stages=2).key() != plan.key()


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("k_blocks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_schedules_are_sound(stages, k_blocks, is_async) -> None:
    for k_tiles in (0, 1, stages - 1, stages, 2 * stages + 1):
        assert multistage(stages, k_blocks).hazards(is_async, k_tiles) == []
        assert single_stage(k_blocks).hazards(is_async, k_tiles) == []


def test_a_loop_plays_as_if_unrolled() -> None:
    """Rolled and unrolled, the products come in the same order."""
    from cutegemm.plan.program.thread_schedule import Multiply

    def products(schedule):
        return [(t, step.k_block) for t, step in schedule.play(3) if isinstance(step, Multiply)]

    assert products(multistage(3, 16, unroll=4)) == products(multistage(3, 16))
