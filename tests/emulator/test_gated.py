"""Emulated kernels with gated epilogues (GLU) against float64, and their registers: none is spilled."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.choice.catalog import plan_named
from cutegemm.run.emulated import emulate
from tests.epilogues import CASES
from tests.gated import BF16, FORMS, held_against_float64, reduces
from tests.kernels.plans import check_each
from tests.marks import with_thorough

# The forms whose code differs most; the tests of the simulator cover all forms
EMULATED = ("pingpong", "overlapped", "direct", "mma.sync", "SIMT")
THOROUGH = (
    "multicast", "split", "e4m3, packed", "tf32, A out of registers", "mma.sync by TMA, lines", "SIMT, split",
)  # fmt: skip


@pytest.mark.parametrize("form", with_thorough((*EMULATED, *THOROUGH), THOROUGH))
def test_against_float64(form):
    assert form in FORMS
    held_against_float64(emulate, form)


REDUCED = ("pingpong", "SIMT")
MORE = ("direct", "mma.sync", "SIMT, split")


@pytest.mark.parametrize("form", with_thorough((*REDUCED, *MORE), MORE))
def test_sums_and_maxima_against_float64(form):
    held_against_float64(emulate, form, reduces(form))


# The first plan cannot read a tile operand, the second is not chosen for several results
WITHOUT_TILES = ("sm90_overlapped_2x1", "sm90_wide_2x1")


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["geglu_bias", "gated_rms"])
def test_nothing_spills(case):
    names = ("sm90_wide_2x1", "sm90_64x192_2x1", "sm90_overlapped_2x1", "mma_tma_256x128")
    reads_tiles = case == "gated_rms"
    taken = [name for name in names if not reads_tiles or name not in WITHOUT_TILES]

    def spills_nothing(kernel):
        found = kernel.resources
        assert (found.stack_bytes, found.count("LDL"), found.count("STL")) == (0, 0, 0)

    plans = [CASES[case].on(plan_named(name, BF16, reads_tiles), 16) for name in taken]
    check_each(plans, spills_nothing)
