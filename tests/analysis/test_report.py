"""`check`, its text and its JSON, and the search for swizzles."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

from cutegemm.analysis import check, search_plan, search_swizzle, shared_accesses
from cutegemm.analysis.accesses import Access, core_matrices
from cutegemm.analysis.changes import _conflict_advice
from cutegemm.analysis.render import render
from cutegemm.build import Shared, simt_plan
from cutegemm.build.sm90 import sm90_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.dtypes import bf16, f32
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, tile_to_shape
from cutegemm.plan import Operands, Problem
from cutegemm.tile.smem_atoms import smem_atom


def k_major(pad):
    """A lies along k in shared memory, 8 elements a row; a warp's 8 rows of lanes are 4 rows apart."""
    return simt_plan(block=(128, 128, 8), warp=(64, 32), shared_a=Shared("k", pad))


@pytest.mark.parametrize(("pad", "ways"), [(0, 8), (1, 1), (2, 2), (4, 4)])
def test_planned_conflicts(pad, ways):
    """Lane m reads row 4 m of 8 + pad words: banks 4 (8 + pad) m: 32 m, 36 m, 40 m, 48 m."""
    found = {a.name: a for a in check(k_major(pad)).shared}["read A"]
    assert found.instruction == "LDS"
    assert found.cost.ways == ways


def test_names_of_the_instructions():
    found = {a.name: a.instruction for a in check(simt_plan()).shared}
    assert found == {"fill A": "STS", "fill B": "LDGSTS.128", "read A": "LDS.128", "read B": "LDS.128"}


@pytest.mark.parametrize(
    ("problem", "rules"),
    [
        (Problem(4, 4, 2**31 - 1), ["K = 2147483647, rounded up to whole tiles"]),
        (Problem(4, 4, 10**12), ["K = 1000000000000, rounded up to whole tiles"]),
        (
            Problem(4, 4, 4, operands=Operands.of("f32", layout="tt")),
            ["A is f32 m-major; the plan is made for f32 k-major", "B is f32 k-major; the plan is made for"],
        ),
        (Problem(4, 4, 4, operands=Operands.of("f32", out="f16")), ["C is f16", "D is f16"]),
    ],
    ids=str,
)
def test_a_problem_of_another_plan_is_refused_at_once(problem, rules):
    start = time.process_time()
    with pytest.raises(PlanError) as refused:
        check(simt_plan(), problem)
    assert time.process_time() - start < 2
    said = refused.value.violations
    assert all(rule.startswith(words) for rule, words in zip(said, rules, strict=True))
    assert set(said) <= set(simt_plan().violations(problem=problem))


def test_counts_of_a_plan():
    """128 x 128 x 8 by 8 warps: in each of 8 k-blocks, each warp reads 2 quads of A and 2 of B."""
    plan = simt_plan(block=(128, 128, 8), warp=(64, 32))
    cost = {a.name: a.cost for a in check(plan).shared}
    assert cost["read A"].requests == cost["read B"].requests == 8 * 8 * 2
    # A: 8 addresses of a quad, each for 4 lanes 8 apart: 4 phases. B: 4 addresses for 8 neighbours: 2
    assert (cost["read A"].wavefronts, cost["read B"].wavefronts) == (8 * 8 * 2 * 4, 8 * 8 * 2 * 2)
    found = check(plan, Problem(256, 256, 64))
    # 4 CTAs; 8 k-tiles of 8 k-blocks, and one k-block that is read in vain at the end: 65 / 8 k-tiles
    assert found.counts("load") == (4 * 65 * 32, 4 * 65 * 96, 4 * 65 * 96)
    assert found.counts("store")[0] == 4 * 9 * 32  # two stages: the store after the last k-tile is not needed
    assert found.sector_count("st") == (4 * 128, 4 * 2048)


def test_the_ragged_first_tile_moves_the_sectors():
    aligned, skewed = (check(simt_plan(), Problem(128, 128, k)).sector_count("ld")[1] for k in (64, 68))
    assert skewed > aligned // 4 * 5  # 5 k-tiles, and rows of 64 bytes that begin in the middle of a sector


def test_json_is_plain_data():
    for problem in (None, Problem(1000, 900, 70)):
        data = json.loads(json.dumps(check(k_major(0), problem, device="a100-80gb").to_dict()))
        assert data["plan"] == "simt"
    assert data["roofline"]["bound"] in ("issue", "shared", "compute")
    assert data["changes"][0]["what"]
    assert data["shared"][2]["worst"]["lanes"]
    found = data["searches"]["a"]
    assert (found["swizzle"] or found["padding"])["wavefronts"] > 0
    assert found["reason"] == ""
    assert data["traffic"]["far_bytes"] > 0


def test_the_worst_is_named_first():
    found = check(k_major(0), Problem(4096, 4096, 4096), device="h200")
    assert found.roofline.bound.name == "shared"
    assert found.changes[0].what.startswith("read A (LDS) takes 8 times")
    assert "swizzle S<3,2,3>" in found.changes[0].advice  # vectors of 4 elements, 8 of them in 128 bytes
    assert found.changes[0].loss > 0.3
    losses = [c.loss for c in found.changes]
    assert losses == sorted(losses, reverse=True)


def test_the_text_says_it_all():
    text = str(check(k_major(0), Problem(4096, 4096, 4096), device="h200"))
    for part in (
        "Shared memory",
        "Global memory",
        "Occupancy",
        "Traffic",
        "Roofline",
        "What to change first",
        "8-way",
        "GB (varies)",
        "for the accesses of the plan, which the compiler may merge",
    ):
        assert part in " ".join(text.split())
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) < 160


def test_without_a_problem_the_text_stops_at_the_occupancy():
    text = str(check(simt_plan()))
    assert "Occupancy" in text
    assert "Roofline" not in text


# --- search -------------------------------------------------------------------------------------------------


def matrices(op, major="k", tile=(64, 64), name=None):
    return Access(name or op, "a", op, core_matrices(tile, major, 16), 16, 128, "k-tile")


def rows_of_128_bits(op, tile=(64, 64), name="fill A"):
    """32 lanes write 4 rows of 8 vectors along k at a time, as a copy from a k-major matrix does."""
    index = Layout(tile).offsets().reshape(tile[1], tile[0]).T
    return Access(name, "a", op, index.reshape(-1, 32, 8), 16, 128, "k-tile")


def test_ldmatrix_and_cp_async_agree_on_the_128_byte_swizzle():
    found = search_swizzle([rows_of_128_bits("cp.async"), matrices("ldmatrix")], (64, 64), bf16, "k")
    assert found.best.how == "swizzle S<3,3,3>"
    assert found.best.extra_bytes == 0
    assert found.reason == ""
    padded = search_swizzle([matrices("ldmatrix")], (64, 64), bf16, "k").padding
    assert padded.how == "padding of 8 elements"  # rows of 144 bytes: 8 of them start in 8 groups of 4 banks


def test_where_wgmma_reads_only_its_atoms_are_tried():
    found = search_swizzle([matrices("wgmma"), rows_of_128_bits("cp.async")], (64, 64), bf16, "k")
    assert found.best.how == "128B atom"
    assert found.tried <= 4
    assert found.best.is_free


def test_a_plan_that_is_free_needs_nothing():
    assert search_plan(simt_plan(), "b").best.how == "plain"


def test_the_swizzle_that_a_plan_is_told_of_serves_it():
    """Check says which swizzle frees A's buffer; a layout with it has no conflicts."""
    plan = k_major(0)
    found = search_plan(plan, "a").best
    stage = [a for a in shared_accesses(plan) if a.buffer == "a"]
    assert all(a.cost(found.layout).conflicts == 0 for a in stage if a.op != "cp.async")
    assert isinstance(found.layout, (Layout, ComposedLayout))


def test_no_layout_and_the_pair_that_is_the_reason():
    """Rows read whole and columns read whole in vectors of 128 bits: a vector lies along k or along m."""
    tile = (32, 32)
    index = Layout(tile).offsets().reshape(32, 32).T
    along_k = Access("read rows", "a", "load", index.reshape(1, 32, 32), 32, 128, "k-tile")
    along_m = Access("read columns", "a", "load", index.T.reshape(1, 32, 32), 32, 128, "k-tile")
    alone = search_swizzle([along_k], tile, f32, "k")
    assert alone.best is not None
    found = search_swizzle([along_k, along_m], tile, f32, "k")
    assert found.best is None
    assert found.reason.startswith("read columns conflicts by itself")


def free_only_in(layout, name):
    """A store of 32 lanes that covers the 32 banks in one layout, the lanes in many rows of the banks: other
    layouts bring some of them together."""
    where = np.argsort(layout.offsets())
    lanes = np.arange(32)
    offsets = (lanes + 32 * (lanes * 5 % 16)) * 2  # 16-bit elements: the first of a word
    return Access(name, "a", "store", where[offsets].reshape(1, 32, 1), 16, 16, "k-tile")


def test_the_pair_is_named():
    tile = (64, 64)
    wide, plain = (tile_to_shape(smem_atom(bf16, "k", kind), tile, (0, 1)) for kind in ("128B", "interleave"))
    first, second = free_only_in(wide, "store rows"), free_only_in(plain, "read rows")
    for alone in (first, second):
        assert search_swizzle([alone], tile, bf16, "k", hardware=True).best is not None
    found = search_swizzle([matrices("wgmma"), first, second], tile, bf16, "k")
    assert found.best is None
    assert found.reason == (
        "store rows and read rows are each free of conflicts in some layout, but together in none of the 4 tried."
    )
    assert found.least is not None


def test_the_report_names_the_reason_where_no_layout_helps():
    """Two accesses that no layout serves: the advice is the pair, and the layout that costs least."""
    found = search_swizzle([matrices("wgmma"), free_only_in(
        tile_to_shape(smem_atom(bf16, "k", "interleave"), (64, 64), (0, 1)), "store rows"
    ), free_only_in(tile_to_shape(smem_atom(bf16, "k", "128B"), (64, 64), (0, 1)), "read rows")],
        (64, 64), bf16, "k")  # fmt: skip
    plain = check(k_major(0), Problem(4096, 4096, 4096), device="h200")
    part = next(a for a in plain.shared if a.name == "read A")
    told = _conflict_advice(k_major(0), replace(plain, searches={"a": found}), part)
    assert told.startswith("store rows and read rows are each free of conflicts in some layout")
    assert told.endswith(f"; fewest wavefronts: {found.least.how}")
    assert json.loads(json.dumps(replace(plain, searches={"a": found}).to_dict()))["searches"]["a"]["reason"]


def test_a_hopper_plan_and_the_swizzle_of_its_d():
    ops = Operands.of("bf16", layout="nt")
    problem = Problem(8192, 8192, 1024, operands=ops)
    plan = sm90_plan(ops, shared_d="plain")
    found = check(plan, problem, device="h200")
    cost = {a.name: a.cost for a in found.shared}
    assert cost["store D"].ways == 8  # rows of 128 bytes
    assert [a.op for a in found.shared] == ["tma", "tma", "wgmma", "wgmma", "stmatrix"]
    # 128 x 64 of 16 bits a k-tile: 128 rows of 128 bytes of A and of B; wgmma reads B for both halves of M
    assert [cost[name].wavefronts for name in ("fill A", "fill B", "read A", "read B")] == [
        128,
        128,
        128,
        256,
    ]
    assert found.searches["d"].best.how == "128B atom"
    swizzled = check(sm90_plan(ops), problem, device="h200")
    assert all(a.cost.conflicts == 0 for a in swizzled.shared)
    assert swizzled.occupancy.ctas == 1
    assert swizzled.sector_count("tma")[1] * 32 == swizzled.traffic.l2_read_bytes


def advice_of(plan: str, dtype: str, problem: tuple[int, int, int]) -> dict[str, str]:
    """What is wrong -> what to do, by the first words of the first."""
    operands = Operands.of(dtype)
    found = check(plan_named(plan, operands), Problem(*problem, operands=operands), device="h200")
    return {c.what: c.advice for c in found.changes}


@pytest.mark.parametrize(
    ("plan", "dtype", "problem", "what", "advice"),
    [
        # every product takes two loads of its own: 21 FLOP an instruction, a third of what the FMAs would allow
        ("sgemm_01_naive", "f32", (2048, 2048, 2048), "issue binds", "in shared memory"),
        # 4 x 4 a thread: 16 products for 8 elements read
        ("simt_32x32", "f32", (2048, 2048, 2048), "shared binds", "a larger thread tile"),
        ("sm90_pingpong", "bf16", (4096, 4096, 4096), "shared binds", "a larger tile per warpgroup"),
        # 2 * 4096^2 * 64 FLOP over 33.6 MB of D and 1 MB of A and B: 62
        ("sm90_pingpong", "bf16", (4096, 4096, 64), "DRAM binds", "62 FLOP per byte"),
        # one tile: 132 parts of K would use every multiprocessor; half of the tile lies past each edge
        ("simt_128x128", "f32", (64, 64, 65536), "1 CTA on 132", "split K in 132"),
        ("simt_128x128", "f32", (64, 64, 65536), "75.0% of the tiles", "tiles of 64 along M and 64 along N"),
        # 2 tiles of 64 cover 128 rows, 7 of 16 cover 112
        ("mma_64x64", "f16", (100, 4096, 4096), "21.9% of the tiles", "tiles of 16 along M"),
    ],
)  # fmt: skip
def test_advice(plan, dtype, problem, what, advice):
    found = advice_of(plan, dtype, problem)
    assert [advice in a for w, a in found.items() if w.startswith(what)] == [True], found


def test_what_the_arithmetic_binds_has_no_bound_to_change():
    assert not any("binds" in what for what in advice_of("mma_128x128", "bf16", (4096, 4096, 4096)))


def test_the_report_is_whole_at_80_columns():
    """No cell is cut short, and no table is wider than the terminal."""
    operands = Operands.of("bf16")
    found = check(plan_named("sm90_pingpong", operands), Problem(4096, 4096, 4096, operands=operands), device="h200")
    said = render(found, width=80)
    assert "…" not in said
    assert max(len(line) for line in said.splitlines() if "│" in line or "─" in line) <= 80


def test_a_report_in_a_notebook_is_shown_once(monkeypatch):
    """In a notebook, rich displays what is printed on a console, unless that is switched off.

    Only the report is returned.
    """

    def display(*_):
        raise AssertionError("displayed in addition to the returned value")

    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", display)
    found = check(simt_plan(), device="h200")
    assert "Occupancy" in found._repr_html_()
    assert "Occupancy" in str(found)
