"""Compiled grouped GEMMs on the CPU: ends of groups that need each part of the search, against float64."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import re
from typing import Any

import numpy as np

from cutegemm.compile.plans import compile_plan
from cutegemm.emulator.scheduler import Scheduler
from cutegemm.errors import EmulationError
from cutegemm.run.emulated import Emulation, emulate
from tests.grouped import FORMS, arguments, check_results, form
from tests.marks import with_thorough

# More groups than a warp has lanes. Groups 0, 1, 33 and 37 have elements; the ends then fall, and the last is too large
ENDS = [20, 85, *[85] * 31, 90, *[90] * 3, 100, 60, 10]
ALONE = ("m", "n", "k")


def run(name: str, ends: list[int], extent: int = 96, other: int = 80, k: int = 0, **options: Any) -> Emulation:
    """Emulate a form on two CTAs for each CTA of a cluster, and check its results.

    extent   extent of the mode that groups divide
    other    extent of the other modes
    k        another extent of K; 0 for none
    """
    groups, size = FORMS[name][0], form(name).cluster_tile.size
    m, n, own = (extent if mode == groups else other for mode in "mnk")
    k = k or own
    given = arguments(name, m, n, k, ends)
    result = emulate(form(name, ctas=2 * size), **given, **options)
    check_results(name, given, {"d": result.d, **result.aux})
    return result


@pytest.mark.parametrize("name", with_thorough(FORMS, {*FORMS} - {*ALONE, "m_added", "n_added"}))
def test_emulated(name: str) -> None:
    """D is poisoned, and the emulator reports a write after the last end or past the end of a group."""
    run(name, ENDS if FORMS[name][0] != "k" else [20, 20, 90, 200, 50])


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["m", "n", "m_cooperative_2x1"])
def test_groups_at_the_ends_of_a_warp(name: str) -> None:
    """A warp looks at 32 groups at once: those with elements are the first or the last of its lanes."""
    sizes = np.zeros(100, int)
    sizes[[0, 31, 32, 63, 64, 96, 99]] = 1, 70, 1, 65, 130, 3, 64
    run(name, np.cumsum(sizes).tolist(), extent=int(sizes.sum()))


@pytest.mark.parametrize("name", ALONE)
def test_tensor_maps_have_four_modes_if_they_clip(name: str) -> None:
    """A box of the operand that is clipped has four coordinates. The others have two, or three with a batch."""
    loads, stores = {"m": ("23", "4"), "n": ("23", "4"), "k": ("4", "3")}[name]
    found = run(name, [96], other=64).instructions
    for direction, ranks in (("shared::cta.global", loads), ("global.shared::cta", stores)):
        tensors = [
            opcode for opcode in found if opcode.startswith("cp.async.bulk.tensor") and f".{direction}." in opcode
        ]
        assert sorted({opcode.split(".")[4][0] for opcode in tensors}) == [*ranks]


@pytest.mark.parametrize("name", ALONE)
def test_groups_without_elements(name: str) -> None:
    """If groups divide M or N, nothing is written: D has the NaN that it was filled with. If they divide K, D is 0."""
    d = run(name, [0, 0, 0]).d
    assert (d.shape == (3, 80, 80) and not d.any()) if name == "k" else np.isnan(d).all()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("seed", range(6))
def test_in_any_order(name: str, seed: int) -> None:
    """Warps go on by chance, and copies land by chance."""
    sizes = np.random.default_rng(seed).integers(0, 60, 5) * (np.arange(5) != seed)
    run(name, np.cumsum(sizes).tolist(), extent=int(sizes.sum()) + 3, seed=seed)


@pytest.mark.parametrize(
    ("name", "moved", "said"),
    [
        ("m", -1, "writes the memory outside of D"),
        ("m", 1, "never writes 240 elements of D"),  # 3 groups lose a row of 80
        ("n", -1, "writes the memory outside of D"),
        ("k", -1, "reads the memory outside of A"),
    ],
)
def test_coordinates_that_are_one_off(name: str, moved: int, said: str) -> None:
    """A planted fault: the kernel adds 2^30 to the coordinates of a tile, and this PTX adds one less or one more."""

    def shifted(match: re.Match[str]) -> str:
        return f"{match[1]}{int(match[2]) + moved};"

    ptx = re.sub(r"(add\.s32\s+%r\d+, %r\d+, )(10737418\d\d);", shifted, compile_plan(form(name, ctas=2)).ptx)
    with pytest.raises(EmulationError, match=said):
        run(name, [20, 50, 96], ptx=ptx)


@pytest.mark.parametrize("name", ["m_added", "n_added"])
def test_rows_that_are_stored_or_added_twice_or_never(name: str) -> None:
    """Planted faults: PTX that stores rows instead of adding them, or that adds each one twice, or never."""
    ptx = compile_plan(form(name, ctas=2)).ptx
    stored = re.sub(r"cp\.reduce(\S+)\.add\.tile", r"cp\1.tile", ptx)
    twice = re.sub(r"(cp\.reduce.*)", r"\1\n\1", ptx)
    never = re.sub(r".*cp\.reduce.*", "", ptx)
    assert len({ptx, stored, twice, never}) == 4
    counted = r"writes \d+ elements of D {} than the index says"
    faults = ((stored, "race|not ordered"), (twice, counted.format("more")), (never, counted.format("less")))
    for fault, said in faults:
        with pytest.raises(EmulationError, match=said):
            run(name, [20, 50, 96], ptx=fault)


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("name", ["m_index", "n_index_2x1"])
def test_a_late_warp_of_the_producer(name: str, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warp goes on only if nothing else can. It has no row of most groups. They have more k-tiles than stages."""

    def last(machine: Scheduler) -> tuple[int, np.ndarray]:
        """Choose the threads at the lowest instruction, those of the late warp after all others and all copies."""
        ready = machine._ready
        while all((machine.own_warp_of[threads] == late).all() for threads in ready.values()) and machine._deferred:
            machine._run_deferred()
        at = min(ready, key=lambda at: ((machine.own_warp_of[ready[at]] == late).all(), at))
        threads = ready.pop(at)
        is_late = machine.own_warp_of[threads] == late
        if is_late.any() and not is_late.all():
            ready[at], threads = threads[is_late], threads[~is_late]
        return at, np.sort(np.concatenate([threads, machine._incomplete.pop(at, np.array([], int))]))

    monkeypatch.setattr(Scheduler, "_next_group", last)
    run(name, [1, 2, 3, 64, 96], k=64 * 9)
