"""Block-scaled plans: the scale of each element, steps, rules and analysis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.analysis import check
from cutegemm.build import sm90_plan
from cutegemm.dtypes import bf16
from cutegemm.errors import PlanError
from cutegemm.layout import Layout, coalesce, composition, right_inverse
from cutegemm.plan import GemmPlan, Operand, Operands, Problem
from cutegemm.plan.mainloop.block_scaled import BLOCK, BlockScaled, ReadScales, ReloadScales, scales_of, with_scales
from cutegemm.plan.mainloop.promoted import Promoted
from cutegemm.plan.program.steps import Release, Wait
from cutegemm.plan.signature import signature_of
from cutegemm.simulator import simulate
from tests.scaled import BLOCKS, FORMS, ROWS, form

E4M3 = Operands.of("e4m3", layout="nt", out="bf16")
LARGE = {"schedule": "cooperative", "tile": (128, 128, 128)}


# --- the scale of each element ------------------------------------------------------------------------


@pytest.mark.parametrize("extent", [64, 96, 112, 128, 160, 192])
def test_elements_of_a_run_share_a_block(extent: int) -> None:
    """Element -> block is (128, blocks):(0, 1). Composed with the runs of a tile, neighbours have the stride 0."""
    scales = scales_of(sm90_plan(E4M3, scales=(ROWS, BLOCKS), **{**LARGE, "tile": (128, extent, 128)}))[1]
    runs = extent // scales.run
    tiles = BLOCK // scales.run  # after as many tiles, blocks and tiles start together
    block_of = Layout((BLOCK, extent * tiles // BLOCK), (0, 1))
    within = composition(block_of, Layout((scales.run, runs * tiles), (1, scales.run)))
    assert all(within((i, run)) == within((0, run)) for run in range(runs * tiles) for i in range(scales.run))
    for tile in range(tiles):
        for element in range(extent):
            register = scales.layout(element)
            assert (tile * extent + register * scales.run) // BLOCK == block_of(tile * extent + element)


@pytest.mark.parametrize("name", FORMS)
def test_a_register_has_the_scale_of_each_of_its_accumulators(name: str) -> None:
    """By the thread-value layout of the MMA: accumulators of a register have one row or column, or one run of them."""
    plan = form(name)
    rows, columns = plan.consumer_mma_tile
    table = plan.consumer_mma.offsets_c(Layout((rows, columns)))  # (threads, values, MMA_M, MMA_N)
    table = table.reshape(table.shape[0], 2, 2, -1, *table.shape[2:], order="F")
    _, _, _, eights, down, across = table.shape
    for number, scales in enumerate(scales_of(plan)):
        own: dict[tuple[int, int], set[int]] = {}
        for v0, v1, eight, m, n in np.ndindex(2, 2, eights, down, across):
            place = (64 * m, 8 * (n * eights + eight))[number]
            register = scales.register(place, (v1, v0)[number])
            for thread in (0, 37, 127):
                at = int(table[thread, v0, v1, eight, m, n])
                own.setdefault((thread, register), set()).add((at % rows, at // rows)[number])
        assert {register for _, register in own} == set(range(scales.registers))
        if scales.by_block:
            assert all({scales.layout(x) for x in found} == {register} for (_, register), found in own.items())
        else:
            assert all(len(found) == 1 for found in own.values())


def test_operands_that_are_swapped() -> None:
    operands = with_scales(E4M3, (ROWS, BLOCKS))
    swapped = operands.transposed
    assert swapped.modes("scale_a") == ("n", "k/128")
    assert swapped.modes("scale_b") == ("m/128", "k/128")
    assert swapped.transposed == operands
    plan = form("rows_blocks", swap_ab=True)
    assert [each.name for each in scales_of(plan)] == ["scale_b", "scale_a"]
    assert "; ".join(map(str, signature_of(plan))) == (
        "a: e4m3 (m, k); b: e4m3 (k, n); scale_a: f32 (m, k/128); scale_b: f32 (n/128, k/128); d: f32 (m, n)"
    )


# --- what a plan is ----------------------------------------------------------------------------------------------


def test_text() -> None:
    plan = sm90_plan(E4M3, scales=(ROWS, BLOCKS), **LARGE)
    text = str(plan.program("consumer 0"))
    assert "clear    scales" in text
    assert "load     scales of blocks of the first 64 k-tiles -> lanes" in text
    assert "read     scales of A[k], B[k]" in text
    assert "load     A[k], B[k], SCALE_A[k] -> full[k]" in str(plan.program("producer"))
    assert "load     scales of blocks of 32 later k-tiles -> lanes, if all lanes have been read" in text
    assert "add      second acc * scales to total" in text
    described = plan.describe()
    assert f"(128,1,{plan.stages}):(1,128,128)" in next(
        line for line in described.splitlines() if "shared SCALE_A" in line
    )
    assert "scale_b f32 k-major, 4-byte aligned" in described
    assert plan.barrier("full").transaction_bytes == 2 * 128 * 128 + 128 * 4
    of_rows = sm90_plan(E4M3, scales=(ROWS, ROWS), **LARGE)
    assert "scales of blocks" not in str(of_rows.program("consumer 0"))
    assert "scales of later k-tiles" not in of_rows.registers()


@pytest.mark.parametrize("name", FORMS)
def test_scales_are_read_between_the_barrier_and_the_release(name: str) -> None:
    """Each stage is read once, and released in the next k-tile, or in the same one if accumulators are added at once.

    The other steps are those of accumulator promotion, and at the end the load of later block scales to lanes.
    """
    plan = form(name)
    mainloop, has_blocks = plan.body.mainloop, BLOCKS in FORMS[name][:2]
    _, loop = mainloop.k_tiles(plan)
    _, plain = Promoted(mainloop.at_once).k_tiles(plan)
    order = [type(each) for each in loop.steps if isinstance(each, (ReadScales, Release)) or each == Wait("full")]
    assert order == ([Wait, ReadScales, Release] if mainloop.at_once else [Wait, Release, ReadScales]) * 2
    assert [type(each) for each in loop.steps].count(ReloadScales) == has_blocks
    assert isinstance(loop.steps[-1], ReloadScales) == has_blocks
    others = [each for each in loop.steps if not isinstance(each, (ReadScales, ReloadScales))]
    assert [str(each).replace(" * scales", "") for each in others] == [str(each) for each in plain.steps]


def test_two_accumulators_or_halves() -> None:
    """With the 32 registers of the scales of 128 columns, two accumulators and a total do not fit."""
    assert sm90_plan(E4M3, scales=(ROWS, BLOCKS), **LARGE).b_column_blocks == 1
    assert sm90_plan(E4M3, scales=(BLOCKS, ROWS), **LARGE).b_column_blocks == 2
    assert sm90_plan(E4M3, scales=(ROWS, ROWS), **LARGE).registers()["scales"] == 2 + 128 // 4


def test_one_accumulator_is_as_wide_as_the_tile() -> None:
    """A thread has 96 accumulators, 96 totals, and the scales of 2 rows and of 3 runs of 64 columns."""
    wide = {**LARGE, "tile": (128, 192, 128)}
    assert sm90_plan(E4M3, scales=(ROWS, BLOCKS), **wide).b_column_blocks == 2
    plan = sm90_plan(E4M3, scales=(ROWS, BLOCKS), at_once=True, **wide)
    assert plan.b_column_blocks == 1
    registers = plan.registers()
    assert (registers["accumulators of a k-tile"], registers["scales"], registers["scales of later k-tiles"]) == (
        96, 2 + 3, 2 * 3,
    )  # fmt: skip


# --- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scales", [(ROWS,), (ROWS, "1x64"), ROWS, 3])
def test_unknown_granularities(scales: object) -> None:
    with pytest.raises(PlanError, match="two of '1x128' or '128x128' are needed, for A and for B"):
        sm90_plan(E4M3, scales=scales, **LARGE)  # type: ignore[arg-type]


def test_rules() -> None:
    with pytest.raises(PlanError, match=r"bK = 64; a scale covers 128 of K. Take bK = 128"):
        sm90_plan(E4M3, scales=(ROWS, BLOCKS), **{**LARGE, "tile": (128, 128, 64)})
    with pytest.raises(PlanError, match=r"block scales do not support cluster_k and gated epilogues. Leave them out."):
        sm90_plan(E4M3, scales=(ROWS, BLOCKS), cluster_k=2, **{**LARGE, "tile": (128, 64, 128)})
    plan = sm90_plan(E4M3, scales=(ROWS, BLOCKS), **LARGE)
    with pytest.raises(PlanError, match=r"a plan needs one operand for the rows of D and one for its columns."):
        plan.with_(operands=replace(plan.operands, aux=plan.operands.aux[:1]))
    with pytest.raises(PlanError, match=r"scale_b is bf16 with the modes \('n/128', 'k/128'\)"):
        plan.with_(operands=plan.operands.with_aux(scale_b=Operand(bf16, "k", modes=("n/128", "k/128"))))
    with pytest.raises(PlanError, match="such scales must be an operand stream"):
        plan.with_(streams=plan.streams[:2])


def test_options_without_what_they_concern() -> None:
    with pytest.raises(PlanError, match="Pass promoted=True or scales too"):
        sm90_plan(E4M3, at_once=True, **LARGE)
    halves = form("rows_blocks_halves_2x1")
    with pytest.raises(PlanError, match="at_once: a wgmma computes 96 of 192 columns"):
        halves.with_(body=replace(halves.body, mainloop=BlockScaled(at_once=True)))


def test_strides_that_tma_does_not_take() -> None:
    """Scales of rows with M contiguous need rows in fours; scales of blocks have any stride."""
    plan = form("rows_blocks")
    violations = plan.violations(problem=Problem(130, 128, 256, operands=plan.operands))
    assert (
        "SCALE_A has the stride 130, 520 bytes, which is not a multiple of 16, which TMA needs. Pad its rows."
        in violations
    )
    leading = (("scale_a", 132), ("scale_b", 3), ("d", 128))
    assert plan.violations(problem=Problem(130, 128, 256, operands=plan.operands, ld=leading)) == []


def test_a_missing_operand() -> None:
    ones = np.ones((128, 128))
    with pytest.raises(PlanError, match=r"scale_b is missing; .* Pass an array of shape \(n/128, k/128\)"):
        simulate(form("rows_blocks"), ones, ones, scale_a=np.ones((128, 1)))


def test_saved() -> None:
    plan = form("rows_blocks_halves_2x1")
    assert GemmPlan.from_json(plan.to_json()) == plan


# --- layouts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("granularities", [(ROWS, BLOCKS), (ROWS, ROWS), (BLOCKS, ROWS)])
def test_layouts_of_scales_in_memory_are_bijective(granularities: tuple[str, str]) -> None:
    """The layouts of scales without padding have a right inverse of their whole size: each offset is one scale."""
    operands = with_scales(E4M3, granularities)
    problem = Problem(384, 640, 1024, operands=operands)
    for name, extent, granularity in zip(("scale_a", "scale_b"), (384, 640), granularities, strict=True):
        layout = problem.layout(name)
        rows = extent if granularity == ROWS else extent // BLOCK
        assert layout.shape == (rows, 1024 // BLOCK, 1)
        assert layout.stride[:2] == ((1, rows) if granularity == ROWS else (8, 1))
        assert coalesce(right_inverse(layout)).size() == layout.size() == layout.cosize()
        assert sorted(layout.offsets().tolist()) == [*range(layout.size())]


@pytest.mark.parametrize("extent", [256, 384])
def test_an_element_to_its_scale(extent: int) -> None:
    """(element of M, element of K) -> scale divides both modes by the block: logical_divide by hand."""
    for rows in (1, BLOCK):
        to_scale = Layout(((rows, extent // rows), (BLOCK, 4)), ((0, 1), (0, extent // rows)))
        for m, k in ((0, 0), (rows - 1, 127), (rows % extent, 128), (extent - 1, 511)):
            assert to_scale((m, k)) == m // rows + k // BLOCK * (extent // rows)
        assert to_scale.cosize() == extent // rows * 4


# --- analysis ----------------------------------------------------------------------------------------------------


def problem_of(plan: GemmPlan) -> Problem:
    return Problem(1024, 1024, 1024, operands=plan.operands)


@pytest.mark.parametrize("name", ["rows_rows", "rows_blocks_halves_2x1", "rows_of_128"])
def test_reads_of_scales_have_no_bank_conflicts(name: str) -> None:
    plan = form(name)
    report = check(plan, problem_of(plan))
    load = next(each for each in report.global_ if each.name == "load SCALE_A")
    assert load.sectors == load.ideal == plan.cta_tile[0] * 4 // 32
    reads = [each for each in report.shared if each.name.startswith("read SCALE")]
    assert len(reads) == (2 if name == "rows_rows" else 1)
    assert all(each.cost.wavefronts == each.cost.ideal for each in reads)
    # A warp reads two rows of 64 of its consumer's
    assert reads[0].cost.requests == plan.threads // 32 // 3 * 2 * 2 * plan.consumer_tile[0] // 64


@pytest.mark.parametrize("columns", [16, 112])
def test_scales_that_do_not_fill_eight_rows_of_16_bytes(columns: int) -> None:
    """They are written without conflicts: 16 scales are 4 rows of 16 bytes, 112 are 28."""
    tile = {"tile": (128, columns, 128), "schedule": "cooperative"}
    plan = sm90_plan(E4M3, scales=(ROWS, ROWS), **tile)
    (fill,) = [each for each in check(plan, problem_of(plan)).shared if each.name == "fill SCALE_B"]
    assert fill.cost.wavefronts == fill.cost.ideal


@pytest.mark.parametrize("k_tiles", [8, 40])
@pytest.mark.parametrize(("name", "registers"), [("rows_blocks", 1), ("rows_blocks_halves_2x1", 3), ("blocks_rows", 1)])
def test_reads_of_block_scales(name: str, registers: int, k_tiles: int) -> None:
    """A lane reads the scale of its own k-tile: 32 neighbours along K, four sectors, for every 32 k-tiles.

    Runs of 192 columns are of 64.
    """
    plan = form(name)
    problem = Problem(1024, 1024, k_tiles * BLOCK, operands=plan.operands)
    (read,) = [each for each in check(plan, problem).global_ if each.name.startswith("read SCALE")]
    assert (read.name, read.instruction) == (f"read SCALE_{'A' if name == 'blocks_rows' else 'B'}", "LDG.32")
    assert (read.requests, read.sectors, read.per) == (8 * registers, 32 * registers, "32 k-tiles")
    tiles = -(-1024 // plan.cta_tile[0]) * -(-1024 // plan.cta_tile[1])
    assert read.in_grid is not None
    assert read.in_grid.requests == tiles * 8 * registers * -(-k_tiles // 32)
