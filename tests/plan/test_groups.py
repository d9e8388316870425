"""Grouped GEMMs in plans: the layout that clips at ends of groups, work tiles by hand, rules, text and JSON."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutegemm.build import mma_sync_plan, simt_plan, sm90_plan
from cutegemm.choice.grouped import chosen_grouped
from cutegemm.dtypes import f32, s32
from cutegemm.errors import PlanError
from cutegemm.layout import Layout
from cutegemm.plan import GemmPlan, Operands, Problem
from cutegemm.plan.epilogue import Row
from cutegemm.plan.memory.groups import (
    ENDS,
    MOVES,
    PITCH,
    ROWS,
    is_clipped,
    ragged,
    ragged_mode,
    ragged_origin,
    with_group_ends,
    with_index,
    without_groups,
)
from cutegemm.plan.problem import D_INDEX, Operand
from cutegemm.plan.rules.limits import limits
from cutegemm.plan.signature import signature_of
from cutegemm.plan.work.arithmetic import search
from cutegemm.plan.work.grouped import MOST_TILES, GroupedScheduler, GroupTile, with_equal_groups
from cutegemm.plan.work.work import Work
from tests.epilogues import CASES
from tests.grouped import FORMS, LAYOUTS, bounds, form

MOST_STRIDE = 1 << 40  # bytes; strides of a tensor map are less, and multiples of 16
MOST_COORDINATE = (1 << 31) - 1


def operands_of(groups: str, **options: Any) -> Operands:
    layout, major = LAYOUTS[groups]
    return Operands.of("bf16", **{"layout": layout, "out_major": major, "batched": True, "groups": groups, **options})


def plan_of(groups: str, **options: Any) -> GemmPlan:
    options = {"tile": (64, 64, 64), "epi_tile_n": 32, "ctas": 2, "raster": "along_m", **options}
    return sm90_plan(operands_of(groups), **options)


def work_of(plan: GemmPlan, mnk: tuple[int, int, int], ends: list[int]) -> Work:
    """Return the work tiles of a problem with these ends of its groups."""
    problem = Problem(*mnk, len(ends), plan.operands)
    return plan.work(problem, {ENDS: np.array(ends).reshape(-1, 1, 1)})


# --- the layout of a tensor map that clips at ends of groups -------------------------------------------------------


@st.composite
def groups_in_memory(draw: Callable[..., Any]) -> tuple[int, int, list[tuple[int, int]]]:
    """Return bytes of an element, the stride of a row in elements, and (begin, size) of some groups of rows."""
    element = draw(st.sampled_from([1, 2, 4]))
    stride = draw(st.integers(1, 1 << 20)) * 16 // element
    sizes = draw(st.lists(st.one_of(st.integers(0, 300), st.integers(0, ROWS // 8)), min_size=1, max_size=6))
    return element, stride, list(zip(accumulate(sizes, initial=0), sizes, strict=False))


@settings(max_examples=60, deadline=None)
@given(groups_in_memory(), st.sampled_from([0, 1]), st.sampled_from([64, 128, 256]), st.integers(0, 1 << 47))
def test_boxes_cover_the_rows_of_their_group(
    memory: tuple[int, int, list[tuple[int, int]]], mode: int, rows: int, base: int
) -> None:
    """In each tile of a group, the elements inside of the tensor map are its rows, at their addresses modulo 2^64.

    The first, the second and the last tile of each group are tried, and one tile past its end.
    """
    element, by_row, groups = memory
    columns = 8
    extents, strides = ((1, columns), (by_row, 1)) if mode == 0 else ((columns, 1), (1, by_row))
    layout = ragged(Layout(extents, strides), mode)
    shape, stride = (np.array(x, np.uint64) for x in (layout.shape, layout.stride))
    assert all(0 < each * element < MOST_STRIDE for each in layout.stride)
    assert all(each * element % 16 == 0 for each in layout.stride if each != 1)
    r, c = np.arange(rows)[:, None] + np.zeros((1, columns + 2), int), np.arange(columns + 2) + np.zeros((rows, 1), int)
    for begin, size in groups:
        tiles = -(-size // rows)
        for tile in {0, min(1, tiles), max(0, tiles - 1), tiles}:
            row = tile * rows + r
            origin = [np.full(row.shape, x) for x in ragged_origin(begin, size, mode)]
            origin[mode], origin[1 - mode] = origin[mode] + row, c
            at = np.stack(origin, axis=-1)
            assert at.max() <= MOST_COORDINATE
            coordinates = at.astype(np.uint64)
            inside = (coordinates < shape).all(axis=-1)
            np.testing.assert_array_equal(inside, (row < size) & (c < columns))
            address = np.uint64(base) + (coordinates * stride).sum(axis=-1, dtype=np.uint64) * np.uint64(element)
            wanted = np.uint64(base) + ((begin + row) * by_row + c).astype(np.uint64) * np.uint64(element)
            np.testing.assert_array_equal(address[inside], wanted[inside])


def test_extents_of_the_moves_include_the_largest_coordinates() -> None:
    """The coordinates of the two modes that move the address are ROWS and an end, at most ROWS - 1."""
    assert ROWS < MOVES <= 1 << 31
    assert ROWS * PITCH % 2**64 == 0
    assert ragged(Layout((5, 64), (64, 1)), 0).shape == (ROWS, 64, MOVES, MOVES)
    assert ragged_origin(ROWS - 3, 2, 1) == (0, ROWS - 2, ROWS, ROWS - 1)


@pytest.mark.parametrize(
    ("groups", "modes", "clipped"),
    [
        ("m", {"a": 0, "b": None, "d": 0}, "d"),
        ("n", {"a": None, "b": 0, "d": 1}, "d"),
        ("k", {"a": 1, "b": 1, "d": None}, "ab"),
    ],
)
def test_what_groups_divide(groups: str, modes: dict[str, int | None], clipped: str) -> None:
    operands = operands_of(groups)
    assert {name: ragged_mode(operands, name) for name in "abd"} == modes
    assert "".join([name for name in "abd" if is_clipped(operands, name)]) == clipped


# --- work tiles ----------------------------------------------------------------------------------------------------


def tiles_of(work: Work) -> list[list[tuple[tuple[int, ...], int, int]]]:
    """Return ((m_tile, n_tile, group), begin, size) of the work tiles of each cluster."""
    out = []
    for place in range(work.clusters):
        own = work.of_cluster(place)
        assert all(isinstance(tile, GroupTile) for tile in own)
        out.append([(work.tile_mnl(tile), tile.begin, tile.size) for tile in own])  # type: ignore[attr-defined]
    return out


def test_l2_evicts_the_d_of_groups_along_k_first() -> None:
    for groups, policy in (("m", "evict_normal"), ("n", "evict_normal"), ("k", "evict_first")):
        assert plan_of(groups).store.box.l2_policy == policy
        assert plan_of(groups, l2=("evict_normal",) * 3).store.box.l2_policy == "evict_normal"


def test_groups_of_rows_by_hand() -> None:
    """100 rows are 2 tiles of 64, along N there are 2: tiles 0 to 3. Group 1 is empty. Group 2 has tiles 4 and 5.

    CTA 0 takes the even tiles, and CTA 1 the odd ones. Along M, tile 1 is below tile 0. A state has the group's first
    tile, its first row and its rows.
    """
    work = work_of(plan_of("m"), (200, 128, 128), [100, 100, 164])
    assert (work.count, work.clusters) == (6, 2)
    assert [[*work.states(place)] for place in range(2)] == [
        [(0, 0, 0, 0, 100), (2, 0, 0, 0, 100), (4, 2, 4, 100, 64)],
        [(1, 0, 0, 0, 100), (3, 0, 0, 0, 100), (5, 2, 4, 100, 64)],
    ]
    assert tiles_of(work) == [
        [((0, 0, 0), 0, 100), ((0, 1, 0), 0, 100), ((0, 0, 2), 100, 64)],
        [((1, 0, 0), 0, 100), ((1, 1, 0), 0, 100), ((0, 1, 2), 100, 64)],
    ]
    assert [tile.k_count for tile in work.of_cluster(0)] == [2, 2, 2]


def test_groups_of_columns_by_hand() -> None:
    """The groups are those above, but along N, with 2 tiles along M. Group 2 has tiles 4 and 5, one below the other."""
    work = work_of(plan_of("n"), (128, 200, 128), [100, 100, 164])
    assert [[*work.states(place)] for place in range(2)] == [
        [(0, 0, 0, 0, 100), (2, 0, 0, 0, 100), (4, 2, 4, 100, 64)],
        [(1, 0, 0, 0, 100), (3, 0, 0, 0, 100), (5, 2, 4, 100, 64)],
    ]
    assert tiles_of(work) == [
        [((0, 0, 0), 0, 100), ((0, 1, 0), 0, 100), ((0, 0, 2), 100, 64)],
        [((1, 0, 0), 0, 100), ((1, 1, 0), 0, 100), ((1, 0, 2), 100, 64)],
    ]


def test_groups_of_k_by_hand() -> None:
    """Each group has 2 tiles of D. 100 k are 2 k-tiles of 64; a group without k has one, of zeros; 64 are one.

    CTA 0 takes m_tile 0 of each group. Its consumer 1 begins with group 1, after the 2 k-tiles of group 0.
    """
    work = work_of(plan_of("k"), (128, 64, 200), [100, 100, 164])
    assert [[*work.states(place)] for place in range(2)] == [[(0,), (2,), (4,)], [(1,), (3,), (5,)]]
    assert tiles_of(work) == [
        [((0, 0, 0), 0, 100), ((0, 0, 1), 100, 0), ((0, 0, 2), 100, 64)],
        [((1, 0, 0), 0, 100), ((1, 0, 1), 100, 0), ((1, 0, 2), 100, 64)],
    ]
    assert [tile.k_count for tile in work.of_cluster(0)] == [2, 1, 1]
    first = work.first(0)
    assert [work.first_of(first, turn, 2) for turn in range(2)] == [(0,), (2,)]
    assert [work.k_tiles_before(first, turn, 2) for turn in range(2)] == [0, 2]
    assert [work.k_tiles_between((number,), 2) for number in (0, 2)] == [1, 1]


def test_clusters_by_hand() -> None:
    """A cluster of two CTAs along M has 128 rows: one for each group. CTA 1 is past the 64 rows of group 1."""
    plan = plan_of("m", cluster=(2, 1), schedule="cooperative", consumers=1)
    work = work_of(plan, (200, 64, 64), [100, 164])
    assert (work.count, work.clusters) == (2, 1)
    assert [[work.tile_mnl(tile, rank) for rank in range(2)] for tile in work.of_cluster(0)] == [
        [(0, 0, 0), (1, 0, 0)],
        [(0, 0, 1), (1, 0, 1)],
    ]
    assert [work.ctas_along(group) for group in range(2)] == [(2, 1), (1, 1)]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["m", "m_cooperative_2x1", "m_along_n", "n", "n_cooperative_1x2", "n_2x1", "k", "k_1x2"]),
    st.lists(st.integers(-20, 500), min_size=1, max_size=6),
    st.integers(1, 400),
    st.integers(1, 300),
    st.integers(1, 9),
)
def test_clusters_take_each_tile_of_each_group_once(
    name: str, ends: list[int], extent: int, other: int, ctas: int
) -> None:
    """The tiles of any ends are those that follow from the bounds of the groups; consumers in turn take the same."""
    groups, plan = FORMS[name][0], form(name, ctas=2 * ctas)
    m, n, k = (extent if mode == groups else other for mode in "mnk")
    work, (bm, bn, bk) = work_of(plan, (m, n, k), ends), plan.cta_tile
    wanted = {}
    for group, (begin, end) in enumerate(bounds(ends, extent)):
        size = end - begin
        rows, columns = (size if mode == groups else whole for mode, whole in (("m", m), ("n", n)))
        depth = max(1, -(-size // bk)) if groups == "k" else -(-k // bk)
        for m_tile in range(-(-rows // bm)):
            for n_tile in range(-(-columns // bn)):
                wanted[m_tile, n_tile, group] = (begin, size, depth)
    found = []
    for place in range(work.clusters):
        states, tiles = [*work.states(place)], work.of_cluster(place)
        for rank in range(plan.cluster_tile.size):
            found += [(work.tile_mnl(tile, rank), (tile.begin, tile.size, tile.k_count)) for tile in tiles]  # type: ignore[attr-defined]
        for turn in range(min(2, len(states))):
            assert work.first_of(states[0], turn, 2) == states[turn]
            assert work.k_tiles_before(states[0], turn, 2) == sum(tile.k_count for tile in tiles[:turn])
        for number, state in enumerate(states[:-2]):
            assert work.ahead(state, 2) == states[number + 2]
            assert work.k_tiles_between(state, 2) == tiles[number + 1].k_count
    inside = [each for each in found if each[0] in wanted]
    assert (len(inside), dict(inside)) == (len(wanted), wanted)


@given(st.lists(st.integers(0, 70), max_size=100), st.integers(0, 100), st.integers(0, 400), st.integers(-1000, 1000))
def test_search(sizes: list[int], start: int, ahead: int, first: int) -> None:
    """The run is the last one that begins at most at the number, found from the list of all numbers.

    A run of `size` has twice as many numbers.
    """
    start = min(start, len(sizes))
    bounds = [(sum(sizes[:run]), size) for run, size in enumerate([*sizes, 0])]
    owners = [run for run in range(start, len(sizes)) for _ in range(2 * sizes[run])]
    found = search(first + ahead, (start, first, *bounds[start]), len(sizes), bounds.__getitem__, lambda size: 2 * size)
    run = owners[ahead] if ahead < len(owners) else len(sizes)
    assert found == (run, first + 2 * sum(sizes[start:run]), *bounds[run])


def test_groups_of_equal_size_if_their_ends_are_not_known() -> None:
    plan = plan_of("m")
    work = plan.work(Problem(300, 64, 64, 3, plan.operands))
    assert [work.bounds(group) for group in range(3)] == [(0, 100), (100, 100), (200, 100)]  # type: ignore[attr-defined]
    assert work.count == 6


# --- rules, text and JSON ------------------------------------------------------------------------------------------

RULES: dict[str, tuple[Callable[[], Any], str]] = {
    "single": (
        lambda: sm90_plan(operands_of("m"), schedule="single", ctas=None),
        r"a grouped GEMM needs a producer\. Use schedule='pingpong' or 'cooperative'\.",
    ),
    "split-K": (lambda: sm90_plan(operands_of("k"), split_k=2), r"cannot split K\. Leave split_k, stream"),
    "stream-K": (lambda: sm90_plan(operands_of("n"), stream=1), r"cannot split K\. Leave split_k, stream"),
    "cluster split-K": (
        lambda: sm90_plan(operands_of("m"), cluster_k=2, schedule="cooperative"),
        r"cannot split K\. Leave split_k, stream",
    ),
    "repack": (
        lambda: sm90_plan(operands_of("m", layout="nn"), repack="b"),
        r"cannot repack operands\. Leave repack out\.",
    ),
    "reductions": (
        lambda: CASES["rms"].on(sm90_plan(operands_of("m"), with_c=True)),
        r"cannot reduce; its epilogue is acc \+ residual, aux = row_sum",
    ),
    "gated columns": (
        lambda: CASES["swiglu"].on(sm90_plan(operands_of("n"))),
        r"groups divide N of B, whose columns a gated epilogue pairs\. Let groups divide M\.",
    ),
    "gated, groups of K": (
        lambda: CASES["swiglu"].on(sm90_plan(operands_of("k"), tile=(64, 128, 64))),
        r"groups divide K of B, whose columns a gated epilogue pairs\. Let groups divide M\.",
    ),
    "D along M": (
        lambda: sm90_plan(operands_of("m", out_major="m")),
        r"1 rule is broken\.\n  - D is m-major, but groups divide that mode; TMA cannot start or clip a box",
    ),
    "A along M": (
        lambda: sm90_plan(operands_of("m", layout="tt")),
        r"1 rule is broken\.\n  - A is m-major, but groups divide that mode; TMA cannot start or clip a box",
    ),
    "A and B along K": (
        lambda: sm90_plan(operands_of("k", layout="nt")),
        r"2 rules are broken\.\n  - A is k-major, .*\n  - B is k-major, .* Store B with the other mode contiguous\.",
    ),
    "other groups": (
        lambda: sm90_plan(operands_of("m")).with_scheduler(mode="n"),
        r"the operands have groups along 'm', but the scheduler has groups along 'n'\.",
    ),
    "operands without groups": (
        lambda: sm90_plan(operands_of("m")).with_(operands=Operands.of("bf16", layout="nt", batched=True)),
        r"the operands have no groups, but the scheduler has groups along 'm'\.",
    ),
    "threads": (
        lambda: simt_plan(operands_of("m")),
        r"have groups along 'm', but the scheduler has no groups\. sm90_plan makes plans for groups\.",
    ),
    "mma.sync": (lambda: mma_sync_plan(operands_of("m")), r"but the scheduler has no groups\. sm90_plan makes"),
    "a mode": (
        lambda: Operands.of("bf16", batched=True, groups="l"),
        r"groups = 'l'; groups divide the mode 'm', 'n' or 'k', or none with ''\.",
    ),
    "a batch": (
        lambda: Operands.of("bf16", groups="m"),
        r"groups need a batch mode, which numbers them\. Pass batched=True\.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rules(name: str) -> None:
    make, said = RULES[name]
    with pytest.raises(PlanError, match=said):
        make()


def test_limits() -> None:
    plan = sm90_plan(operands_of("m"))

    def said(m: int, groups: int) -> list[str]:
        return list(limits(plan, Problem(m, 64, 64, groups, plan.operands)))

    too_large = "a group may have {} tiles; kernels divide numbers below 2097152. Take a larger tile."
    assert said(128 * MOST_TILES, 3) == []
    assert said(128 * MOST_TILES + 1, 3) == [too_large.format(2097153)]
    assert said(ROWS - 1, 3) == [too_large.format(8388608)]
    assert said(ROWS, 3)[1:] == [f"groups divide {ROWS} elements; a tensor map clips at most {ROWS - 1}."]
    many, _ = limits(plan, Problem(1 << 20, 1 << 30, 64, 4, plan.operands))
    assert many == "2048 x 8388608 x 4 tiles are more than the 2147483647 CTAs that a grid may have."
    assert said(64, 0) == ["L = 0; a grouped GEMM has at least one group."]


@pytest.mark.parametrize("name", FORMS)
def test_a_saved_plan_returns_as_it_was(name: str) -> None:
    plan = form(name)
    again = GemmPlan.from_json(plan.to_json())
    assert again == plan
    assert (again.key(), type(again.scheduler)) == (plan.key(), GroupedScheduler)
    assert again.scheduler.groups == FORMS[name][0]


def test_problems_without_a_choice() -> None:
    operands = Operands.of("bf16", layout="nt", batched=True)
    with pytest.raises(PlanError) as caught:
        chosen_grouped(Problem(64, 64, 64, 2, operands), "sm_80")
    assert caught.value.violations == (
        "the problem has no groups. Call choose, or pass operands with groups = 'm', 'n' or 'k'.",
        "kernels of groups need wgmma of sm_90a; sm_80 does not have it. Pass tensors on the CPU.",
    )
    grouped = Operands.of("bf16", layout="nt", batched=True, groups="m")
    with pytest.raises(PlanError, match=r"it does not compute the epilogue at full speed. Pass a plan by name."):
        chosen_grouped(Problem(64, 64, 64, 2, grouped), can_implement=lambda plan, swap_ab: None)


@pytest.mark.parametrize(("groups", "along"), [("m", "M"), ("n", "N"), ("k", "K")])
def test_description(groups: str, along: str) -> None:
    plan = plan_of(groups)
    said = f"along {along} group ends in device memory, operand 'ends'"
    for problem, count, counted in (
        (None, "L", ""),
        (Problem(256, 256, 256, 7, plan.operands), "7", "; the tiles are those of equal groups"),
    ):
        line = next(line for line in plan.describe(problem).splitlines() if line.startswith("groups"))
        assert " ".join(line.split()) == f"groups {count} {said}{counted}"
    assert f"groups along {groups}" in str(plan.operands)


@pytest.mark.parametrize("groups", ["m", "n", "k"])
def test_the_swapped_problem(groups: str) -> None:
    """D^T = B^T A^T: groups of M become groups of N and the other way round."""
    problem = Problem(96, 64, 32, 4, operands_of(groups))
    assert problem.transposed.operands.groups == {"m": "n", "n": "m", "k": "k"}[groups]
    assert problem.transposed.transposed == problem
    assert problem.transposed.flops == problem.flops == 2 * 96 * 64 * 32


# --- rows that are gathered ----------------------------------------------------------------------------------------


def gathering(**options: Any) -> GemmPlan:
    """A plan for groups of rows that are selected by an index."""
    grouped = with_group_ends(Operands.of("bf16", layout="nt", batched=True, groups="m"))
    return sm90_plan(with_index(grouped), **options)


def test_a_box_has_one_row_without_multicast() -> None:
    """Two CTAs with the same rows load them twice. All bytes of a stage complete its barrier, as for larger boxes."""
    plan, whole = gathering(cluster=(1, 2)), sm90_plan(cluster=(1, 2))
    assert (plan.a.load.box, plan.a.load.multicast, plan.a.index) == ((64, 1), 1, "index")
    assert (plan.b.load, plan.b.index) == (whole.b.load, "")
    assert plan.barrier("full").transaction_bytes == whole.barrier("full").transaction_bytes
    assert (plan.barrier("full").arrivals, whole.barrier("full").arrivals) == (4, 1)  # the warps that load
    assert [str(each) for each in signature_of(plan)] == [
        "a: bf16 (sources, k)", "b: bf16 (l, k, n)", "ends: s32 (l, 1)", "index: s32 (m, 1)", "d: bf16 (m, n)",
    ]  # fmt: skip


def test_other_families_do_not_read_an_index() -> None:
    operands = Operands.of("bf16", layout="nt").with_aux(index=Operand(s32, "m", 4, modes=("m", "1")))
    with pytest.raises(PlanError, match="does not read index"):
        mma_sync_plan(operands)
    with pytest.raises(PlanError, match="rows of A are gathered for groups along M only"):
        sm90_plan(operands)


def adding(groups: str = "m", out: str = "bf16", **options: Any) -> GemmPlan:
    """A plan for groups whose rows are added to selected rows of D."""
    return sm90_plan(with_index(with_group_ends(operands_of(groups, out=out)), D_INDEX), **options)


def test_a_box_adds_one_row_of_128_bytes() -> None:
    for groups, columns, out in (("m", 64, "bf16"), ("m", 32, "f32"), ("n", 64, "bf16"), ("n", 32, "f32")):
        plan = adding(groups, out)
        assert (plan.store.boxes[0][1].name, plan.store.epi_tile[0]) == (f"tma.reduce_add.{columns}x1.{out}.128B", 64)
        plain, batch = with_equal_groups(plan, Problem(800, 800, 64, 8, plan.operands, targets=3))
        assert plain.store == sm90_plan(operands_of(groups, out=out), epi_tile_n=plan.store.epi_tile[1]).store
        assert (batch.targets, batch.m * batch.n) == (None, 800 * 100)
    for groups, by in (("m", "each warp"), ("n", "warp 0")):
        added = f"add      rows of epilogue stage -> D[d_index] by TMA, by {by}"
        assert added in str(adding(groups).program("consumer 0"))
    names = [str(each) for each in signature_of(adding())]
    assert names[2:] == ["ends: s32 (l, 1)", "d_index: s32 (m, 1)", "d: bf16 (targets, n)"]


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"tile": (128, 128, 32)}, "TMA starts boxes at multiples of 128 bytes. Use a multiple of 64 as bK."),
        ({"schedule": "single"}, "rows of A are loaded by four warps of a producer. Use schedule='pingpong'"),
    ],
)
def test_rules_of_gathered_rows(options: dict[str, Any], rule: str) -> None:
    _refused(gathering, options, rule)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"tile": (128, 96, 64)}, "but none divides a tile of 96 columns. Use a multiple of 64."),
        ({"epi_tile_n": 32}, "Use a multiple of 64 as bN (bM if D is m-major) and as epi_tile_n."),
        ({"store": "direct"}, "rows of D are added by TMA from the tiles of warpgroups. Use an sm90_plan with store="),
        ({"shared_d": "padded"}, "store='tma' or 'tma_warp', and with shared_d='swizzled' or 'plain'."),
        ({"with_c": True}, "rows are added to a D that is alone, but the epilogue is alpha * acc + beta * c."),
        ({"out": "e4m3"}, "D is of e4m3, but TMA adds f16, bf16 and f32."),
    ],
)
def test_rules_of_added_rows(options: dict[str, Any], rule: str) -> None:
    _refused(adding, options, rule)


def _refused(make: Callable[..., GemmPlan], options: dict[str, Any], rule: str) -> None:
    with pytest.raises(PlanError) as caught:
        make(**options)
    assert rule in str(caught.value)


def test_rows_are_added_for_groups_along_the_other_mode_of_d() -> None:
    for operands in (operands_of("m", out_major="m"), operands_of("m").transposed, operands_of("k")):
        index = Operand(s32, "m", 4, modes=("m", "1"))
        with pytest.raises(PlanError, match="are added to for groups along its other mode only"):
            sm90_plan(with_group_ends(operands).with_aux(d_index=index))
    for epilogue in ("preact", "geglu_bias", "residual"):
        with pytest.raises(PlanError, match="a D that is alone, but the epilogue is"):
            CASES[epilogue].on(adding())
    with pytest.raises(PlanError, match="does not read d_index"):
        mma_sync_plan(Operands.of("bf16", layout="nt").with_aux(d_index=index))


def test_operands_of_an_index() -> None:
    """Other modes make no index; an operand of an epilogue may have its name."""
    grouped = with_group_ends(Operands.of("bf16", layout="nt", batched=True, groups="m"))
    with pytest.raises(PlanError, match="index is of f32, but kernels read indices of rows as s32"):
        sm90_plan(grouped.with_aux(index=Operand(f32, "m", 4, modes=("m", "1"))))
    for modes in (("l", "1"), ("m", "k")):
        with pytest.raises(PlanError, match="does not read index"):
            sm90_plan(grouped.with_aux(index=Operand(s32, modes[0], 4, modes=modes)))
    with pytest.raises(PlanError, match="groups = 'k', but rows are selected for groups along M or N only"):
        with_index(operands_of("k"))
    with pytest.raises(PlanError, match=r"name = 'rows' selects no rows. Pass 'index' for A, or 'd_index' for D"):
        with_index(operands_of("m"), "rows")
    operands = grouped.with_aux(index=Operand.of_kind(Row, f32))
    assert operands.gathered == ""
    assert dict(without_groups(operands).aux).keys() == {"index"}


@pytest.mark.parametrize("sources", [-1, 2.5, True, "5"])
def test_sources_of_a_problem(sources: Any) -> None:
    with pytest.raises(PlanError, match=r"sources = .*; an integer of 0 or more, or None, is expected"):
        Problem(64, 64, 64, 2, gathering().operands, sources=sources)
    with pytest.raises(PlanError, match="sources = 5, but no operand 'index' selects rows"):
        Problem(64, 64, 64, sources=5)
    (rule,) = limits(gathering(), Problem(64, 64, 64, 2, gathering().operands, sources=0))
    assert rule.startswith("sources = 0, but TMA loads rows of A from at least one.")
    with pytest.raises(PlanError, match="targets = 5, but no operand 'd_index' selects rows"):
        Problem(64, 64, 64, targets=5)
    (rule,) = limits(adding(), Problem(64, 64, 64, 2, adding().operands, targets=0))
    assert rule.startswith("targets = 0, but TMA adds rows to a D that has at least one.")


def test_equal_groups_load_many_rows_in_a_box() -> None:
    plan, problem = with_equal_groups(gathering(cluster=(1, 2)), None)
    assert problem is None
    assert plan.a.index  # without a problem, the plan is returned as it is
    plan, problem = with_equal_groups(plan, Problem(1000, 64, 128, 8, plan.operands, sources=300))
    assert (plan.a.load, plan.a.index, str(problem)) == (sm90_plan(cluster=(1, 2)).a.load, "", "125x64x128x8")
