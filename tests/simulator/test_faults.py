"""Planted faults: each is found and reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.build import simt_plan
from cutegemm.errors import SimulationError
from cutegemm.layout import Layout
from cutegemm.plan import Operands, Problem, TileScheduler
from cutegemm.plan.program.thread_schedule import Fetch, Read, Sync, Wait
from cutegemm.simulator import simulate
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma
from tests.simulator.plans import WARPS, overlapping, small_plan, violations


def faults(plan, extents=(40, 40, 24), **options):
    """Faults by kind, in a run over integers; a run with check=True must raise the same."""
    m, n, k = extents
    rng = np.random.default_rng(0)
    a, b = rng.integers(1, 5, (m, k)), rng.integers(1, 5, (k, n))
    result = simulate(plan, a, b, check="report", **options)
    if result.faults and "problem" not in options:
        with pytest.raises(SimulationError) as raised:
            simulate(plan, a, b)
        assert raised.value.faults == result.faults
    return {fault.kind: fault for fault in result.faults}, result.d, a @ b


def one_element_loads(**changes):
    return small_plan(Operands.of("f32", layout="tn", align_bytes=4), **changes)


def test_a_sound_plan_has_no_faults():
    assert faults(small_plan())[0] == {}


def test_a_copy_that_misses_elements():
    plan = one_element_loads()
    half = TiledCopy(plan.a.load.atom, Layout((32, 4), (1, 32)), (32, 8))
    found, d, want = faults(violations(plan, load_a=half))
    assert found["copy"].count == 32 * 4
    assert found["copy"].examples[0] == "A(m 0, k 4) of a tile is copied by no thread."
    assert "thread 0 reads offset 128 of stage 0 for A(m 0, k 4), where nothing is copied." in found["hole"].examples
    assert not np.array_equal(d, want)


def test_a_copy_that_writes_twice():
    plan = one_element_loads()
    twice = TiledCopy(plan.a.load.atom, Layout((32, (8, 2)), (1, (32, 0))), (32, 8))
    found, _, _ = faults(violations(plan, load_a=twice))
    assert set(found) == {"copy"}
    assert found["copy"].count == 2 * 256  # two stages
    assert "is written 2 times in stage 0: by thread 0 with A(m 0, k 0) and thread 0" in found["copy"].examples[0]


@pytest.mark.parametrize("load", ["cp.async", "register"])
def test_a_stage_that_is_read_before_the_barrier(load):
    plan = one_element_loads(load_a=load, load_b=load)
    schedule = plan.body
    without = replace(schedule, prologue=tuple([s for s in schedule.prologue if not isinstance(s, Sync)]))
    found, _, _ = faults(violations(plan, body=without))
    assert "A: k-tile 0 is read from stage 0, but its copy is not followed by a barrier." in found["stage"].examples
    assert "CTA 0 of the tile (0, 0, 0): thread 0 reads A(m 0, k 0) of k-tile 0" in found["hole"].examples[0]


def test_a_stage_that_is_read_before_its_copy_is_waited_for():
    plan = one_element_loads(stages=3)
    schedule = plan.body
    early = tuple([Wait(2) if isinstance(s, Wait) else s for s in schedule.k_tile])
    found, _, _ = faults(violations(plan, body=replace(schedule, k_tile=early)), extents=(32, 32, 64))
    assert any("has not been waited for" in text for text in found["stage"].examples)
    assert "hole" in found


def test_a_stage_that_is_overwritten_while_it_may_be_read():
    plan = one_element_loads()
    body = tuple([s for s in plan.body.k_tile if not isinstance(s, Sync)])
    found, _, _ = faults(violations(plan, body=replace(plan.body, k_tile=body)))
    assert any("is overwritten by k-tile" in text for text in found["stage"].examples)


def test_what_hazards_says_is_what_the_simulator_says():
    plan = one_element_loads()
    body = tuple([s for s in plan.body.k_tile if not isinstance(s, (Sync, Read))])
    schedule = replace(plan.body, k_tile=body)
    found, _, _ = faults(violations(plan, body=schedule))
    hazards = schedule.hazards(True, 3, 8)
    assert hazards
    assert set(found["stage"].examples) <= {f"{name}: {text}" for name in "AB" for text in hazards}
    assert found["stage"].count == 2 * len(hazards)


def test_a_k_block_that_is_left_out():
    plan = one_element_loads()
    found, _, _ = faults(violations(plan, body=replace(plan.body, k_tile=plan.body.k_tile[:-1])))
    assert "A: k-block 7 of k-tile 0 is never multiplied." in found["stage"].examples


class Dropping(Raster):
    """Gives the last tile away for the first."""

    def tile(self, linear, grid_m, grid_n, minimum=min, *others):
        m, n, batch = super().tile(linear, grid_m, grid_n, minimum, *others)
        last = linear == grid_m * grid_n - 1
        return np.where(last, 0, m), np.where(last, 0, n), batch


class Straying(Raster):
    """Takes the tiles one further along M."""

    def tile(self, linear, grid_m, grid_n, minimum=min, *others):
        m, n, batch = super().tile(linear, grid_m, grid_n, minimum, *others)
        return m + 1, n, batch


def test_a_raster_that_drops_a_tile():
    found, d, want = faults(violations(small_plan(), scheduler=TileScheduler(Dropping("along_m"))))
    assert found["raster"].examples == (
        "CTAs 0, 3 take the tile (0, 0, 0).", "no CTA takes the tile (1, 1, 0).",
    )  # fmt: skip
    assert found["result"].count == 32 * 32 + 8 * 8
    assert found["result"].examples[0] == "D(m 0, n 0, l 0) is written 2 times."
    assert np.isnan(d[32:, 32:]).all()
    assert np.array_equal(d[:32], want[:32])


def test_a_raster_that_leaves_the_grid():
    found, _, _ = faults(violations(small_plan(), scheduler=TileScheduler(Straying("along_m"))))
    assert "CTA 1 takes the tile (2, 0, 0), which is outside of the grid (2, 2, 1)." in found["raster"].examples


def test_shared_memory_that_overlaps():
    plan = one_element_loads()
    found, _, _ = faults(violations(plan, smem_a=overlapping(plan.a.smem)))
    assert (
        "A(m 16, k 0) of stage 0 and A(m 0, k 1) of stage 0 have the same offset 16 in" in found["shared"].examples[0]
    )
    assert {"copy", "fragment"} <= set(found)


def test_a_permutation_that_takes_elements_twice():
    plan = small_plan()
    _, n, k = plan.tiled_mma.permutation_mnk
    twice = violations(plan.tiled_mma, permutation_mnk=(Layout(((4, 1), (4, 2)), ((4, 32), (1, 0))), n, k))
    found, _, _ = faults(violations(plan, tiled_mma=twice), extents=(32, 32, 8))
    assert found["result"].examples[0] == "D(m 0, n 0) of a tile is accumulated 2 times, by threads 0."
    assert found["result"].count == 32 * 32 + 32 * 32  # summed up twice, and written twice


def test_a_permutation_that_tears_vectors_apart():
    plan = small_plan()
    torn = TiledMma(plan.tiled_mma.atom, plan.tiled_mma.atom_layout_mnk, (32, 32, None))
    found, d, want = faults(violations(plan, tiled_mma=torn), extents=(32, 64, 8))
    assert set(found) == {"alignment"}
    told = " ".join(found["alignment"].examples)
    assert "reads 4 elements of A at once" in told
    assert np.array_equal(d, want)  # element by element it would be right


class Turned(TiledMma):
    """Each thread reads what the thread before it holds."""

    def offsets_a(self, target):
        return np.roll(super().offsets_a(target), 1, axis=0)


class TurnedInShared(TiledMma):
    """Overlaps in shared memory only: its layout has three modes."""

    def offsets_a(self, target):
        offsets = super().offsets_a(target)
        return np.roll(offsets, 1, axis=0) if len(target.shape) == 3 else offsets


@pytest.mark.parametrize(("kind", "mma"), [("product", Turned), ("fragment", TurnedInShared)])
def test_a_fragment_that_is_read_through_the_wrong_layout(kind, mma):
    plan = small_plan()
    own = plan.tiled_mma
    wrong = mma(own.atom, own.atom_layout_mnk, own.permutation_mnk)
    found, d, want = faults(violations(plan, tiled_mma=wrong))
    assert kind in found
    assert not np.array_equal(d, want)
    if kind == "fragment":
        assert found[kind].examples[0].startswith("thread 0 reads offset 12 of stage 0 for A(m 0, k 0), where A(m")
    else:
        assert "thread 0 adds A(m 12, k 0) * B(n 0, k 0) to D(m 0, n 0)" in found[kind].examples[0]


def test_extents_that_vectors_do_not_divide():
    """The kernel predicates a vector by its first element: it would read and write past the edge."""
    problem = Problem(40, 38, 24, operands=Operands.of("f32"), ld=(("b", 40), ("d", 40)))
    found, _, _ = faults(small_plan(), (40, 38, 24), problem=problem)
    outside = found["outside"].examples
    assert "CTA 2 of the tile (0, 1, 0): thread 1 reads B(n 38, k 0) of a matrix of 38 x 24." in outside
    assert found["outside"].count == 2 * 24 * 2 + 2 * 40  # 2 columns: of B by 2 CTAs along m, of D by one


def test_strides_that_misalign_vectors():
    problem = Problem(32, 32, 8, operands=Operands.of("f32"), ld=(("a", 9), ("d", 33)))
    found, d, want = faults(small_plan(), (32, 32, 8), problem=problem)
    assert set(found) == {"alignment"}
    assert "reads 4 elements at once from A(m 1, k 0), whose address" in found["alignment"].examples[0]
    assert np.array_equal(d, want)


def test_a_vector_across_the_contiguous_mode():
    plan = small_plan(Operands.of("f32", layout="tn"))
    across = TiledCopy(universal_copy(plan.operands.a.dtype, 128), Layout((32, 4), (1, 32)), (32, 4))
    found, _, _ = faults(violations(plan, load_a=across))
    assert (
        "A(m 0, k 0), A(m 0, k 1), A(m 0, k 2), A(m 0, k 3) at once, which are not contiguous"
        in found["alignment"].examples[0]
    )


def test_a_vector_that_a_thread_has_not_got_of_d():
    plan = small_plan(quad=(1, 1))
    wide = violations(plan, store=replace(plan.store, atom=universal_copy(plan.operands.d.dtype, 128)))
    found, _, _ = faults(wide, extents=(32, 32, 8))
    assert set(found) == {"alignment"}
    assert (
        found["alignment"]
        .examples[0]
        .startswith("CTA 0 of the tile (0, 0, 0): thread 0 stores 4 elements of D at once to the addresses 260, 268, ")
    )


def test_twenty_examples_of_a_kind_and_the_count():
    plan = one_element_loads()
    found, _, _ = faults(violations(plan, smem_a=overlapping(plan.a.smem)))
    assert len(found["fragment"].examples) == 20
    assert found["fragment"].count > 20
    assert f"fragment, {found['fragment'].count} times:\n    - thread" in str(found["fragment"])


def test_nothing_is_looked_for_where_it_is_not_asked():
    plan = one_element_loads()
    wrong = violations(plan, smem_a=overlapping(plan.a.smem))
    assert simulate(wrong, np.ones((8, 8)), np.ones((8, 8)), check=False).faults == ()


def test_a_fetch_past_the_last_tile_is_none():
    plan = simt_plan(**WARPS, stages=4)
    assert isinstance(plan.body.prologue[0], Fetch)
    assert faults(plan, (64, 64, 4))[0] == {}
