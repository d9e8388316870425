"""Compiled block-scaled plans on the CPU: small ragged problems against float64."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

import numpy as np

from cutegemm.analysis import check
from cutegemm.plan import Problem
from cutegemm.run.emulated import emulate
from cutegemm.run.executed import executed_accesses
from tests.kernels.sm90_forms import fitting
from tests.marks import with_thorough
from tests.scaled import FORMS, arguments, check_result, form

ALONE = ("rows_blocks", "rows_blocks_halves_2x1", "blocks_rows_pingpong", "any_columns", "at_once_2x1")


@pytest.mark.parametrize("name", with_thorough(FORMS, {*FORMS} - {*ALONE}))
def test_emulated(name: str) -> None:
    plan = form(name)
    given = arguments(plan, *fitting(plan, 150, 201, 600))
    check_result(plan, given, emulate(plan, **given).d)


@pytest.mark.parametrize("name", ["blocks_blocks_split", "rows_rows"])
def test_swapped(name: str) -> None:
    plan = form(name, swap_ab=True)
    given = arguments(plan, 132, 100, 300)
    check_result(plan, given, emulate(plan, **given).d)


def test_an_even_and_an_odd_number_of_k_tiles_in_any_order() -> None:
    """Warps go on by chance, and copies land by chance."""
    for k in (100, 256):
        plan = form("rows_blocks_halves_2x1", out="f32")
        given = arguments(plan, 100, 196, k)
        check_result(plan, given, emulate(plan, **given, seed=k).d)


@pytest.mark.parametrize("name", ["rows_rows", "blocks_rows_pingpong"])
def test_the_analysis_predicts_the_accesses_of_the_kernel(name: str) -> None:
    plan = form(name, out="bf16")
    rows, columns, _ = plan.cta_tile
    problem = Problem(rows, columns, 1280, operands=plan.operands)
    found = executed_accesses(plan, problem)
    assert found is not None
    load = found.counts["load"]
    assert check(plan, problem).counts("load") == (load.requests, load.wavefronts, load.ideal)
    ragged = Problem(rows + 7, 2 * columns, 1296, operands=plan.operands)
    assert executed_accesses(plan, ragged) is not None


@pytest.mark.parametrize("name", ["blocks_rows_pingpong", "at_once_2x1", "at_once_blocks_split"])
@pytest.mark.parametrize("k_tiles", [66, 67])
def test_more_k_tiles_than_lanes(name: str, k_tiles: int) -> None:
    plan = form(name)
    given = arguments(plan, 36, 132, k_tiles * 128 - 16)
    check_result(plan, given, emulate(plan, **given).d)


@pytest.mark.parametrize("name", ["rows_blocks", "at_once_2x1"])
def test_no_k(name: str) -> None:
    plan = form(name)
    assert not emulate(plan, **arguments(plan, 20, 132, 0)).d.any()


def test_a_scale_that_is_not_finite_stays_in_its_rows() -> None:
    plan = form("rows_blocks", ctas=1)
    given = arguments(plan, 200, 100, 200)
    given["scale_a"][7, 1] = np.nan
    d = emulate(plan, **given).d
    others = np.arange(200) != 7
    assert not np.isfinite(d[7]).any()
    check_result(plan, {**given, "a": given["a"][others], "scale_a": given["scale_a"][others]}, d[others])
