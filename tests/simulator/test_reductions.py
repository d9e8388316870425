"""Sums and maxima over rows, columns and all of D, simulated; and how the threads of plans hold D for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm import epilogue as e
from cutegemm.build import with_epilogue
from cutegemm.choice.catalog import plan_named
from cutegemm.choice.catalog import plans as names_of_plans
from cutegemm.dtypes import f32
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.epilogue import Column, Row, epilogue_of
from cutegemm.plan.memory import partials
from cutegemm.plan.memory.partials import folding, held_in_units, kept, reducer_shape
from cutegemm.plan.memory.workspace import regions
from cutegemm.plan.problem import Operand
from cutegemm.simulator import reductions, simulate
from tests.epilogues import CASES
from tests.gated import FORMS as GATED
from tests.kernels.sm90_forms import FORMS, form
from tests.reductions import EMPTY, F32, PLANS, REDUCED, hold_against_float64, operands, takes
from tests.simulator.plans import small_plan

ALONG = [("n",), ("m",), ("m", "n")]


@pytest.mark.parametrize("case", REDUCED)
@pytest.mark.parametrize("name", PLANS)
def test_against_float64(name, case):
    if not takes(name, case):
        return
    plan = CASES[case].on(PLANS[name]())
    for m, n, k in ((120, 136, 200), (8, 264, 8)):
        given = operands(plan, case, m, n, k)
        hold_against_float64(plan, simulate(plan, **given), given)


@pytest.mark.parametrize("name", ["simt", "simt, split, kernel", "pingpong", "direct", "mma.sync, TMA"])
def test_of_a_batch(name):
    plan = PLANS[name]()
    plan = CASES["reduced"].on(plan.with_(operands=replace(plan.operands, batched=True)))
    given = operands(plan, "reduced", 72, 80, 40, batch=3)
    hold_against_float64(plan, simulate(plan, **given), given)


def test_no_k_tiles():
    plan = CASES["reduced"].on(PLANS["simt"]())
    given = operands(plan, "reduced", 40, 48, 0)
    hold_against_float64(plan, simulate(plan, **given), given)


@pytest.mark.parametrize("mnk", EMPTY, ids=str)
@pytest.mark.parametrize("name", PLANS)
def test_no_elements(name, mnk):
    """A sum is 0 and a maximum -inf."""
    plan = CASES["reduced"].on(PLANS[name]())
    given = operands(plan, "reduced", *mnk)
    hold_against_float64(plan, simulate(plan, **given), given)


def test_a_maximum_of_what_is_none_is_none():
    case = CASES["absmax"].on(small_plan())
    given = operands(case, "absmax", 8, 8, 8)
    given["a"][3, 3] = np.nan
    assert np.isnan(simulate(case, **given).aux["aux"])


# --- how threads hold D -----------------------------------------------------------------------------------------


def all_plans() -> dict[str, GemmPlan]:
    found = {}
    for name, _ in names_of_plans():
        for dtype, layout in (("f32", "nn"), ("f64", "nn"), ("bf16", "nt"), ("bf16", "nn"), ("tf32", "nt")):
            try:
                found[f"{name} {dtype} {layout}"] = plan_named(name, Operands.of(dtype, layout=layout))
            except PlanError:
                continue
    return {**found, **{name: form(name) for name in FORMS}, **{name: make() for name, make in PLANS.items()}}


@pytest.mark.thorough
def test_each_row_and_column_of_every_plan_has_its_pieces_once():
    """Each element of the tile is part of one partial result, and each of these is of one row: by brute force."""
    known = {}
    for name, plan in all_plans().items():
        bm, bn, _ = plan.cta_tile
        held = held_in_units(plan)
        known.setdefault((held.tobytes(), plan.cta_tile), (name, plan))
    assert len(known) > 20
    for name, plan in known.values():
        bm, bn, _ = plan.cta_tile
        held = held_in_units(plan)
        part = held[:, :1] if held.shape[1] > 4 else held
        thread, unit, register = (index.reshape(-1) for index in np.indices(part.shape))
        warp, lane = divmod(thread, 32)
        m, n = part.reshape(-1) % bm, part.reshape(-1) // bm
        for along in ALONG:
            how = folding(plan, along)
            group = np.array(how.groups)[register]
            row = np.broadcast_to(kept(along, m, n), m.shape)
            places = (warp, lane & ~sum(how.lanes), unit, group)
            extents = [int(place.max()) + 1 for place in places]
            place = np.ravel_multi_index(places, extents)
            both = np.unique(place * (bm * bn) + row)
            assert len(both) == len(np.unique(place)), name
            if part is held:
                warps, _, units, _ = np.unravel_index(both // (bm * bn), extents)
                led = zip((both % (bm * bn)).tolist(), warps.tolist(), units.tolist(), strict=True)
                pieces = {(key, how.piece_of((of_unit, of_warp))) for key, of_warp, of_unit in led}
                rows = {("n",): bm, ("m",): bn}.get(along, 1)
                assert pieces == {(row, piece) for row in range(rows) for piece in range(how.pieces)}, name
                assert len(pieces) == len(both), name


def test_by_hand():
    """A thread of wgmma has two neighbours of a row, and two eight rows below: PTX ISA, Figure 151 (D of m64nNk16)."""
    rows = folding(PLANS["pingpong"](), ("n",))
    assert rows.groups[:8] == (0, 0, 1, 1, 0, 0, 1, 1)
    assert (rows.lanes, rows.pieces) == ((1, 2), 1)
    columns = folding(PLANS["pingpong"](), ("m",))
    assert columns.groups[:8] == (0, 1, 0, 1, 2, 3, 2, 3)
    assert (columns.lanes, columns.pieces) == ((4, 8, 16), 4)
    assert columns.piece_of == Layout((1, 4), (0, 1))


def test_the_workspace():
    """4 x 3 tiles of 32 x 64; a row of the tile has pieces of two warps, a column too, all of it four.

    Each region is whole units of 256 bytes.
    """
    plan = CASES["reduced"].on(PLANS["simt"]())
    found = {region.name: region.size for region in regions(plan, 100, 136, 8, 1)}
    assert found == {
        "partials of aux": 136 * 4 * 2 * 4,
        "partials of aux3": 100 * 3 * 2 * 4 // 256 * 256 + 256,
        "partials of aux4": 136 * 4 * 2 * 4,
        "partials of aux5": 256,
    }


# --- what would be wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lanes": (4, 8)}, "is written 2 times"),
        ({"piece_of": Layout((1, 4), (0, 0))}, "is written 0 times"),
        ({"pieces": 3}, "is written 0 times"),
    ],
)
def test_a_place_that_is_written_twice_or_never_is_seen(monkeypatch, change, says):
    plan = CASES["rms"].on(PLANS["simt"]())
    given = operands(plan, "rms", 64, 64, 8)
    wrong = replace(folding(plan, ("n",)), **change)
    monkeypatch.setattr(reductions, "folding", lambda plan, along: wrong)
    if "pieces" in change:
        monkeypatch.setattr(partials, "folding", lambda plan, along: wrong)
    found = simulate(plan, **given, check="report").faults
    assert "result" in [fault.kind for fault in found]
    assert any(says in text for fault in found for text in fault.examples), found


def test_what_a_result_is_made_of():
    plan = small_plan(F32)
    ending = epilogue_of(lambda acc: (acc, e.row_sum(acc)), {})
    with pytest.raises(PlanError) as error:
        plan.with_(epilogue=ending)
    assert (
        "aux = row_sum(acc) is declared as f32 n-major, 16-byte aligned, but with accumulators in f32 it is a Column "
        "of f32. Use operands.with_aux(aux=Operand.of_kind(Column, f32))." in str(error.value)
    )
    wrong = plan.operands.with_aux(aux=Operand.of_kind(Row, f32))
    with pytest.raises(PlanError, match="is declared as f32 row of N"):
        plan.with_(epilogue=ending, operands=wrong)
    right = plan.operands.with_aux(aux=Operand.of_kind(Column, f32))
    assert plan.with_(epilogue=ending, operands=right).epilogue == ending


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda acc: acc / e.row_sum(acc), "d is acc / row_sum(acc): the reduction row_sum(acc) is complete only"),
        (lambda acc: (acc, 2 * e.total_max(acc)), "aux is 2 * total_max(acc): the reduction total_max"),
        (lambda acc: (acc, e.row_sum(e.row_max(acc))), "aux is row_sum(row_max(acc)): the reduction row_max"),
        (lambda acc: (acc, e.column_max(acc > 0)), "aux reduces the comparison acc > 0, not a number"),
        (lambda acc: e.row_sum(acc), "d is row_sum(acc): the reduction row_sum(acc) is complete only"),
    ],
)  # fmt: skip
def test_what_is_no_result(function, says):
    with pytest.raises(PlanError) as error:
        epilogue_of(function, {})
    assert says in str(error.value)


def test_of_the_transpose_rows_are_columns():
    ending = epilogue_of(lambda acc: (acc, e.row_sum(acc), e.column_max(acc), e.total_max(acc)), {}).transposed
    assert str(ending) == "acc, aux = column_sum(acc), aux2 = row_max(acc), aux3 = total_max(acc)"


def test_a_plan_whose_lanes_have_no_rows_together():
    """A warp whose lane 16 and above are a row further along: by no distance of lanes."""
    plan = PLANS["simt"]()
    held = held_in_units(plan).copy()
    held[32:, 0, 0], held[:-32, 0, 0] = held[:-32, 0, 0].copy(), held[32:, 0, 0].copy()
    held[5, 0, 0] = held[6, 0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partials, "held_in_units", lambda plan: held)
        with pytest.raises(PlanError, match="registers and lanes together do not hold whole rows"):
            partials.folding.__wrapped__(plan, ("n",))


def test_a_second_kernel_reads_neighbours_together():
    assert [reducer_shape(along) for along in ALONG] == [(32, 8), (32, 8), (1, 256)]


def test_of_a_gated_epilogue_values_of_d_are_reduced():
    """No result has all columns of A @ B: half of the accumulators belong to another element of D."""
    ending = epilogue_of(lambda acc: (e.swiglu(acc), e.row_sum(acc)), {})
    with pytest.raises(PlanError, match=r"aux = row_sum\(acc\) reduces all N columns of A @ B; D has N / 2"):
        with_epilogue(ending, PLANS["pingpong"](), {"aux": Operand.of_kind(Column, f32)})
    with pytest.raises(PlanError, match=r"acc is used both in halves\(\) and outside of it"):
        epilogue_of(lambda acc: (e.swiglu(acc), e.row_sum(e.swiglu(acc) + acc)), {})


def test_the_partial_results_of_a_gated_epilogue():
    """Tiles of 64 x 64 sums have 32 columns of D: 100 x 136 sums are 2 x 3 tiles, and D has 68 columns."""
    plan = CASES["gated_sums"].on(GATED["pingpong"][0])
    found = {region.name: region.size for region in regions(plan, 100, 136, 8, 1)}
    assert found == {
        "partials of aux": 100 * 3 * 4 // 256 * 256 + 256,
        "partials of aux3": 68 * 2 * 4 * 4 // 256 * 256 + 256,
        "partials of aux4": 256,
    }
    how = folding(plan, ("n",))
    assert (len(how.groups), how.groups[:8], how.lanes) == (16, (0, 0, 1, 1, 0, 0, 1, 1), (1, 2))
