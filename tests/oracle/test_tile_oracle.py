"""tile/ against the CuTe DSL, traced on the CPU: atoms of every kind, and seeded random TiledMmas and TiledCopies.

Sizes are compared first, then shape and stride. Where the two differ, the test shows the law that the DSL's
answer breaks, and only these exceptions pass:

- C of a TiledMma that splits K over threads: the DSL's thread-value layout leaves the tile, since it counts
  the repetitions along K as if they were more of N. Here threads that differ in k alone hold the same of C.
- A copy whose layout takes a thread's elements across the modes of its tile unevenly: no layout of
  coordinates is the answer. The DSL returns one with other elements, or dies; here it is refused.
- `retile` for a TiledMma whose permutation runs the values of a thread against the order of elements: the DSL pairs
  registers with elements of other places.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cutegemm.dtypes import f32
from cutegemm.errors import PlanError
from cutegemm.layout.inttuple import product
from cutegemm.layout.layout import Layout
from cutegemm.layout.tensor import make_identity_tensor
from cutegemm.tile.copy_atoms import universal_copy
from cutegemm.tile.raster import Raster
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma
from tests.oracle import dsl
from tests.oracle.dsl import Refused
from tests.oracle.dsl_tile import CopyCase, MmaCase, ask
from tests.oracle.raster_in_dsl import GRID, POSITIONS, RASTERS
from tests.oracle.tile_cases import (
    answer,
    every_atom,
    every_copy_atom,
    every_smem_atom,
    random_copy,
    random_mma,
    tiled_copy,
)
from tests.tile.naive import copy_elements

SEED = 20261120
RANDOM_MMAS = 300
RANDOM_COPIES = 300

pytestmark = pytest.mark.skipif(dsl.missing() is not None, reason=str(dsl.missing()))


def random_cases() -> list[Any]:
    rng = random.Random(SEED)
    return [random_mma(rng) for _ in range(RANDOM_MMAS)] + [random_copy(rng) for _ in range(RANDOM_COPIES)]


@pytest.fixture(scope="module")
def answers():
    """{kind: [(case, ours, theirs)]}; the DSL is asked once."""
    groups = {
        "mma atoms": every_atom(),
        "copy atoms": every_copy_atom(),
        "smem atoms": every_smem_atom(),
        "random": random_cases(),
    }
    cases = [case for group in groups.values() for case in group]
    theirs = iter(ask(cases))
    return {name: [(case, answer(case), next(theirs)) for case in group] for name, group in groups.items()}


def sizes(value: Any) -> Any:
    """What is compared first."""
    if isinstance(value, tuple):
        return tuple(sizes(v) for v in value)
    return value.size() if hasattr(value, "size") else value


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    """The parts that two answers do not share."""
    assert ours.keys() == theirs.keys()
    return [key for key in theirs if sizes(ours[key]) != sizes(theirs[key]) or ours[key] != theirs[key]]


@pytest.mark.parametrize("kind", ["mma atoms", "copy atoms", "smem atoms"])
def test_tables(answers, kind):
    for case, ours, theirs in answers[kind]:
        assert Refused not in (type(ours), type(theirs)), (case, ours, theirs)
        wrong = differences(ours, theirs)
        assert not wrong, f"{case}: {wrong[0]} is {ours[wrong[0]]}, the DSL's {theirs[wrong[0]]}"


def test_random_tiled_mmas(answers):
    compared, exceptions = 0, 0
    for case, ours, theirs in answers["random"]:
        if not isinstance(case, MmaCase):
            continue
        assert Refused not in (type(ours), type(theirs)), (case, ours, theirs)
        for key in differences(ours, theirs):
            assert leaves_the_tile(case, key, theirs), f"{case}: {key} is {ours[key]}, the DSL's {theirs[key]}"
            exceptions += 1
        compared += len(theirs)
    assert compared > 12 * RANDOM_MMAS
    assert 0 < exceptions < compared // 50


def leaves_the_tile(case: MmaCase, key: str, theirs: dict[str, Any]) -> bool:
    """Whether the DSL's layout of C reaches past the tile, as it does where K is split over threads."""
    m, n, _ = theirs["tile_mnk"]
    return key == "layout_c_tv_tiled" and case.atom_layout[2].size() > 1 and theirs[key].cosize() > m * n


def test_random_tiled_copies(answers):
    compared, refused, died, against = 0, 0, 0, 0
    for case, ours, theirs in answers["random"]:
        if not isinstance(case, CopyCase):
            continue
        assert not isinstance(ours, Refused), (case, ours)
        if isinstance(theirs, Refused):  # its process died: brute force decides
            died += 1
            assert case.maker == "tiled", (case, theirs)
            assert is_the_definition(case, ours), (case, theirs)
            continue
        for key in differences(ours, theirs):
            if isinstance(ours[key], Refused):
                refused += 1
                assert wrong_for_a_thread(case, theirs), (case, key)
            elif key == "retile" and not tiled_copy(case).retiles_in_element_order:
                against += 1
                assert holds_what_is_moved(case, ours[key]), case
                assert not holds_what_is_moved(case, theirs[key]), case
            else:
                pytest.fail(f"{case}: {key} is {ours[key]}, the DSL's {theirs[key]}")
        compared += len(theirs)
    assert compared > 8 * RANDOM_COPIES
    assert refused < compared // 20
    assert against < compared // 50
    assert died < RANDOM_COPIES // 20


def holds_what_is_moved(case: CopyCase, retiled: Layout) -> bool:
    """Whether a retiled fragment has each element where the copy moves it, for a few threads."""
    copy, mma, operand = tiled_copy(case), TiledMma(*case.args), case.maker
    assert case.fragment is not None
    assert copy.fragment_shape is not None
    tiles = [
        product(rest) // product(of_one)
        for rest, of_one in zip(case.fragment.shape[1:], copy.fragment_shape[1:], strict=True)
    ]
    shape = tuple([t * extent for t, extent in zip(tiles, copy.tiler_mn, strict=True)])
    side = "partition_S" if operand == "c" else "partition_D"
    for thr in (0, mma.threads - 1):
        held = getattr(mma.get_slice(thr), f"partition_{operand.upper()}")(make_identity_tensor(shape)).offsets()
        moved = getattr(copy.get_slice(thr), side)(make_identity_tensor(shape)).offsets()
        if (held[retiled.offsets()] != moved).any():
            return False
    return True


def is_the_definition(case: CopyCase, ours: dict[str, Any]) -> bool:
    return all(
        isinstance(ours[key], Refused) or same_elements(case, key, ours[key])
        for key in ours
        if key.startswith("partition")
    )


def wrong_for_a_thread(case: CopyCase, theirs: dict[str, Any]) -> bool:
    """Whether the DSL refuses too, or gives one of the threads elements that are not its own."""
    parts = [key for key in theirs if key.startswith("partition")]
    return any(isinstance(theirs[key], Refused) or not same_elements(case, key, theirs[key]) for key in parts)


def same_elements(case: CopyCase, key: str, seen: tuple[Any, Layout]) -> bool:
    """Whether a partition, its origin and its layout, names the elements that the definition gives."""
    at, layout = seen
    side, thr = key[len("partition_") :].split("@")
    expected = copy_elements(tiled_copy(case), side, case.extents)[int(thr)]
    flat = expected.reshape(-1, expected.shape[-1], order="F").tolist()
    if layout.size() != len(flat):
        return False
    for index, element in enumerate(flat):
        step = layout(index)
        step = step if isinstance(step, tuple) else (0,)
        step += (0,) * (len(at) - len(step))
        if [a + s for a, s in zip(at, step, strict=True)] != element:
            return False
    return True


def test_copies_that_tear_a_vector_apart_are_refused_where_the_dsl_is_wrong():
    """A thread's 3 values down M times 2 across N hold no two-element vector that starts at value 2."""
    atom = universal_copy(f32, 64)
    args = (Layout((2, 4)), Layout((3, 2)))
    with pytest.raises(PlanError, match="does not divide into blocks of 1 threads by 2 values"):
        tiled_copy(CopyCase(atom, "tv", args))
    whole = TiledCopy(universal_copy(f32, 32), Layout(((2, 4), (3, 2)), ((3, 12), (1, 6))), (6, 8))
    [theirs] = ask([CopyCase(atom, "tv", args, (6, 8), (5,))])
    origin, layout = theirs["partition_s@5"]
    seen = {tuple(a + s for a, s in zip(origin, layout(i), strict=True)) for i in range(layout.size())}
    expected = copy_elements(whole, "s", (6, 8))[5].reshape(-1, 2)
    assert seen != {tuple(element) for element in expected.tolist()}


def test_the_oracle_can_disagree():
    """A wrong answer is found: the transposed table of an atom does not pass for the plain one."""
    [case] = [c for c in every_copy_atom() if c.atom.name == "ldmatrix.x4.f16"]
    [other] = [c for c in every_copy_atom() if c.atom.name == "ldmatrix.x4.trans.f16"]
    [theirs] = ask([case])
    assert not differences(answer(case), theirs)
    assert "layout_dst_tv" in differences(answer(other), theirs)


def test_rasters_are_the_same_lines_in_the_dsl():
    """`tile` traced with values known at run time only, then run on the CPU."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.oracle.raster_in_dsl"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "CUTE_DSL_ARCH": "sm_90a"},
        check=True,
    )
    shown = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    rasters = [Raster.parse(text) for text in RASTERS]
    assert shown == [raster.tile(position, *GRID) for position in POSITIONS for raster in rasters]
