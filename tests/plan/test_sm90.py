"""Hopper plans: what the builder makes of what a person says, and which rules it names where it cannot."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from cutegemm.analysis import check
from cutegemm.build import mma_tma_plan, sm90_plan, with_epilogue
from cutegemm.build.epi_stages import odd_columns
from cutegemm.choice.catalog import plan_named
from cutegemm.choice.ladders.sm90 import SM90_LADDER
from cutegemm.dtypes import DType, f32
from cutegemm.errors import PlanError, UnsupportedError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, product
from cutegemm.plan import Barrier, GemmPlan, OneEach, Operands, Problem, Role
from cutegemm.plan.epilogue import Accumulator, Epilogue, Row, Scalar, Tile
from cutegemm.plan.epilogue.functions import relu, swiglu
from cutegemm.plan.problem import Operand
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.tma import TmaBox
from tests.kernels.sm90_forms import FORMS, form

BF16 = Operands.of("bf16", layout="nt")


def complaints(operands: Operands | None = None, **options) -> str:
    with pytest.raises(PlanError) as caught:
        sm90_plan(operands, **options)
    return str(caught.value)


# --- what the builder makes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tile", "epi_stages", "stages"),
    [((128, 128, 64), 2, 6), ((128, 128, 64), 4, 5), ((128, 192, 64), 2, 4), ((256, 192, 64), 2, 3)],
)
def test_stages_fill_shared_memory(tile, epi_stages, stages):
    """(227 KiB - D's epilogue stages) / a stage: 199680 / 32768 = 6.1, 166912 / 32768 = 5.1, 199680 / 40960 = 4.9."""
    plan = sm90_plan(tile=tile, epi_stages=epi_stages, schedule="cooperative" if tile[0] == 256 else "pingpong")
    assert plan.stages == stages
    used = sum(plan.smem_bytes().values())
    assert used <= 232448 < used + (tile[0] + tile[1]) * 128 + 1024


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_boxes_and_barriers_of_a_cluster(layout, cluster):
    """What the CTAs of a cluster load together is a tile for each; every reader of a stage frees it."""
    plan = sm90_plan(Operands.of("bf16", layout=layout), cluster=cluster, tile=(128, 128, 64))
    for box, sharers in ((plan.a.load, cluster[1]), (plan.b.load, cluster[0])):
        assert box.multicast == sharers
        assert 128 * 64 % (product(box.box) * sharers) == 0
        assert box.box[0] * 16 // 8 == 128  # a row fills the swizzle
    assert plan.barrier("full") == Barrier("full", "mbarrier", plan.stages, 1, 2 * 128 * 64 * 2)
    assert plan.barrier("empty").arrivals == 4 * (cluster[0] + cluster[1] - 1)
    both = sm90_plan(Operands.of("bf16", layout=layout), cluster=cluster, schedule="cooperative", tile=(128, 256, 64))
    assert both.barrier("empty").arrivals == 8 * (cluster[0] + cluster[1] - 1)


def test_named_barriers_have_numbers_of_their_own():
    plan = sm90_plan(split_k=2)
    taken = [plan.barrier_id(b.name) + i for b in plan.barriers if b.kind == "named" for i in range(b.count)]
    assert sorted(taken) == [1, 2, 3, 4, 5, 6]


def test_registers_go_from_the_producer_to_the_consumers():
    """384 threads are launched with 65536 / 384 = 170, in steps of 8: 168 each, 504 for one of each role."""
    for plan in (sm90_plan(), sm90_plan(tile=(128, 192, 64))):
        given = [role.registers for role in plan.roles]
        assert sum(given) <= 504
        assert given[1] >= plan.registers()["accumulators"] + 24
    assert [role.registers for role in sm90_plan(schedule="cooperative", consumers=1, tile=(64, 128, 64)).roles] == [
        None
    ] * 2


def test_cooperative_consumers_take_the_rows_in_halves():
    plan = sm90_plan(schedule="cooperative", tile=(256, 128, 64))
    rows = plan.tiled_mma.offsets_c(Layout((256, 128))) % 256
    assert (rows[:128].max(), rows[128:].min()) == (127, 128)


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_plans(name):
    plan = form(name)
    assert isinstance(plan, GemmPlan)
    again = pickle.loads(pickle.dumps(plan))
    assert again == plan
    assert hash(again) == hash(plan)
    assert (repr(again), again.key()) == (repr(plan), plan.key())
    text = plan.describe(Problem(1000, 1000, 100, operands=plan.operands))
    for word in (
        plan.a.load.name,
        *(f"barrier {b.name}" for b in plan.barriers),
        *(f"role {r.name}" for r in plan.roles),
    ):
        assert word in text


def test_the_description_says_who_waits_for_whom():
    text = sm90_plan(epi_stages=4).describe(Problem(8448, 9216, 512, operands=BF16))
    for line in (
        "4752  66 x 72 x 1 tiles", "132  pingpong, persistent", "2  128 x 128", "5  81920 bytes",
        "8  65536 bytes", "S<3,3,3> o 0 o (128,64,5):(64,1,8192)", "40 registers", "232 registers",
        "5  1 arrivals",
        "mbarrier, 32768 bytes", "5  4 arrivals", "2  256 arrivals", "stmatrix.x4.bf16",
        "tma.store.64x64.bf16.128B",
    ):  # fmt: skip
        assert line in text, line


# --- what it refuses ---------------------------------------------------------------------------------------


def test_every_broken_rule_at_once():
    text = complaints(tile=(128, 256, 64), registers=(40, 233), cluster=(4, 4), epi_stages=1)
    for rule in (
        "+ about 23 = 279 registers; its role has 233",
        "a cluster has 16 CTAs; at most 8 are allowed",
        "has 233 registers; setmaxnreg accepts multiples of 8",
        "the roles ask for 64768 registers, but 384 threads are launched with 64512",
        "and divide the 8 epilogue tiles of 64 x 64",
    ):
        assert rule in text


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"tile": (100, 128, 64)}, "100"),
        ({"tile": (128, 130, 64)}, "n = 130 is not a multiple of 8"),
        ({"stages": 1}, "stages = 1; a mainloop pipeline has at least 2"),
        ({"stages": 7}, ". Take fewer stages or a smaller tile."),
        ({"schedule": "pong"}, "schedule = 'pong' is neither 'pingpong' nor 'cooperative' nor 'single'"),
        ({"schedule": "pingpong", "consumers": 1}, "consumers ="),
        ({"ctas": None}, "the grid must be persistent"),
        ({"ctas": 1, "cluster": (2, 1)}, "a persistent grid of 1 CTAs is smaller than a cluster of 2"),
        ({"schedule": "single", "cluster": (2, 1)}, "'single' consumers need a grid with one CTA for each tile"),
        ({"stagger_cycles": 5}, "stagger_cycles > 0 needs cooperative consumers. Leave stagger_cycles out."),
        ({"overlapped": True}, "an overlapped epilogue needs cooperative consumers and a persistent grid. Leave"),
        ({"schedule": "cooperative", "overlapped": True, "ctas": None}, "needs cooperative consumers and a persistent"),
        ({"schedule": "cooperative", "overlapped": True, "store": "direct"}, "an overlapped epilogue stores D through"),
        ({"schedule": "cooperative", "overlapped": True, "with_c": True}, "an overlapped epilogue is not possible if"),
        (
            {"schedule": "cooperative", "overlapped": True, "tile": (256, 160, 64)},
            "has 232 registers; an overlapped epilogue needs 160 for accumulators, 80 for the previous tile and 32",
        ),
        ({"consumers": 3, "tile": (128, 192, 64)}, "its role has 160"),
        ({"schedule": "cooperative", "consumers": 3, "tile": (192, 256, 64)}, "needs 128 + 26 registers"),
        ({"cluster": (32, 1)}, "multicast = 32 CTAs; 1 to 16 are allowed"),
        (
            {"tile": (64, 24, 32), "cluster": (8, 1), "store": "direct"},
            "24 rows of 64 bytes of a k-major tile do not divide into 8 shares that begin at multiples of 128 bytes",
        ),
        ({"cluster": (3, 1)},
         "tile = (128, 128, 64), cluster = (3, 1): B: 128 rows of 128 bytes of a k-major tile do not divide into 3 "
         "shares that begin at multiples of 128 bytes, as boxes of TMA do. Use 1 or 2 or 4 or 8."),
        ({"tile": (128, 512, 64)}, "tile = (128, 512, 64): B: mode 1 of the box has 512 elements; 1 to 256"),
        ({"tile": (64, 80, 64), "cluster": (3, 1)}, "80 rows of 128 bytes of a k-major tile do not divide into 3 "),
        ({"store": "now"}, "store = 'now'"),
        ({"shared_d": "folded"}, "shared_d = 'folded'"),
        ({"shared_d": "padded", "store": "tma_warp", "epi_stages": 4}, "which cannot store padded rows"),
        ({"epi_tile_n": 48}, ": epilogue tiles of 48 columns do not divide a tile of 128 columns; 16, 32, 64 or 128"),
        ({"tile": (64, 24, 64)},
         "in epilogue tiles of 16, 32 or 64 columns, but none divides a tile of 24 columns. Use a multiple of"),
        ({"store": "tma_warp", "with_c": True, "epi_stages": 4}, "store = 'tma_warp' needs an n-major D, and no C"),
        ({"raster": "spiral"}, "'spiral' is not a raster"),
        ({"schedule": "single", "split_k": 2}, "split-K and stream-K need a producer. Use another schedule than"),
        ({"stream": 1, "schedule": "cooperative", "ctas": None}, "stream-K needs a persistent grid. Leave ctas"),
        ({"split_k": 2, "stream": 1}, "and waves = 1; use either split-K (splits) or stream-K (waves)."),
        ({"split_k": 0}, "splits = 0; at least 1"),
        ({"split_k": 40000}, "a tile may have 40000 K splits; at most 32767 are allowed."),
        ({"ctas": 40000, "stream": 1}, "a tile may have 40000 K splits"),
        ({"l2": ("evict_never", "evict_normal", "evict_normal")}, "evict_never"),
        ({"tile": (256, 512, 256), "schedule": "cooperative"}, "no room for a k-tile, 393216 bytes. Shrink the tile"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(options, rule):
    assert rule in complaints(**options)


ONE = {"tile": (64, 96, 64), "schedule": "cooperative", "consumers": 1}


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"cluster_k": 0}, "cluster_k = 0; a positive integer is expected"),
        ({"cluster_k": -2}, "cluster_k = -2; a positive integer is expected"),
        ({"cluster_k": True}, "cluster_k = True; a positive integer is expected"),
        ({"cluster_k": 7},
         "cluster_k = 7: each CTA must store an equal number of the 96 columns, a multiple of 8."),
        ({"cluster_k": 4}, "in epilogue tiles of 16, 32 or 64 columns, but none divides a tile of 24"),
        ({"cluster_k": 4}, "cluster_k = 4: each CTA stores 24 of the tile's 96 columns."),
        ({"cluster_k": 3, "cluster": (1, 2)},
         "cluster = (1, 2): with cluster_k = 3 its tiles must lie along M. Use (1, 1)."),
        ({"cluster_k": 3, "cluster": (4, 1)}, "a cluster has 12 CTAs; at most 8 are allowed"),
        ({"cluster_k": 3, "ctas": 2}, "a persistent grid of 2 CTAs is smaller than a cluster of 3"),
        ({"cluster_k": 2, "tile": (64, 288, 64), "cluster": (2, 1)}, "cluster_k > 1 needs one wgmma for all 288"),
        ({"cluster_k": 3, "split_k": 2}, "cluster_k > 1 is not possible if K is also split over CTAs"),
        ({"cluster_k": 3, "stream": 1}, "cluster_k > 1 is not possible if K is also split over CTAs"),
        ({"cluster_k": 3, "fixup": True}, "cluster_k > 1 is not possible if K is also split over CTAs"),
        ({"cluster_k": 3, "overlapped": True}, "cluster_k > 1 is not possible if"),
        ({"cluster_k": 3, "schedule": "single"}, "cluster_k > 1 is not possible if the plan has no producer"),
        (
            {"cluster_k": 8, "tile": (128, 256, 64), "schedule": "pingpong", "consumers": 2},
            "no room for a k-tile, 49152 bytes, 262144 bytes of exchanged accumulators",
        ),
    ],
)  # fmt: skip
def test_where_ctas_do_not_share_k(options, rule):
    assert rule in complaints(**{**ONE, **options})


def test_where_ctas_do_not_share_k_of_such_operands():
    halves = Operands.of("f16", layout="nt", acc="f16")
    assert (
        "cluster_k > 1 needs 32-bit accumulators, not f16. Take accumulators in f32, or leave cluster_k out."
        in complaints(halves, **{**ONE, "tile": (64, 64, 64)}, cluster_k=2)
    )
    whole = Operands.of("s8", layout="nt", out="s32")
    text = complaints(whole, **{**ONE, "tile": (64, 80, 128)}, store="direct", cluster_k=2)
    told = "each of 2 CTAs of the cluster split-K stores 40 of 80 columns: n = 40 is above 32 and not a multiple of 16"
    assert f"{told}, as s8 needs it." in text
    with pytest.raises(PlanError, match="a gated epilogue cannot be combined with cluster split-K"):
        with_epilogue(Epilogue(swiglu(Accumulator())), sm90_plan(BF16, **ONE, cluster_k=3))


def test_a_plan_whose_k_nobody_shares_is_not_told_of_it():
    assert "cluster_k" not in complaints(tile=(64, 100, 64))


@pytest.mark.parametrize(
    ("operands", "rule"),
    [
        (Operands.of("bf16", align_bytes=8), "bytes for the address and for every stride except 1. Align it."),
        (Operands.of("bf16", align_bytes=8), "Or append +repack to the name of the plan."),
        (
            replace(BF16, d=replace(BF16.d, align_bytes=4)),
            "bytes; a TMA store needs 16 for the address, the strides and the contiguous extent.",
        ),
        (
            Operands.of("e4m3", layout="nn", out="bf16"),
            "B is n-major, but wgmma takes only k-major e4m3 operands",
        ),
        (Operands.of("s8", layout="tn", out="s32"), "A is m-major and B is n-major, but"),
        (Operands.of("tf32", layout="tn"), "B is n-major, but"),  # A is read into registers
        (Operands.of("e4m3", align_bytes=8), "pack='ab' to the builder"),
        (Operands.of("f32"), "f32 operands have no wgmma instruction"),
    ],
)
def test_operands_that_tma_or_wgmma_do_not_take(operands, rule):
    assert rule in complaints(operands)


def test_other_architectures_say_what_they_lack():
    text = "\n".join(sm90_plan(cluster=(2, 1)).violations("sm_80"))
    for feature in ("needs sm_90a", "tma.load", "the plan uses cluster", "the plan uses setmaxnreg"):
        assert feature in text
    assert any("needs sm_90a; sm_100a does not support it" in rule for rule in sm90_plan().violations("sm_100a"))


def test_barriers_are_counted_and_not_given():
    plan = sm90_plan()
    with pytest.raises(PlanError, match="is not a field of a plan; the fields are"):
        plan.with_(barriers=plan.barriers[1:])
    with pytest.raises(
        UnsupportedError, match=": 'splits' is not the name of one; the names are full, empty, epi_tile, order"
    ):
        plan.barrier("splits")


def test_more_named_barriers_than_a_cta_has():
    """6 consumers, each with a barrier for its turn, its epilogue tiles and its parts: 18, and that of all threads."""
    rule = "named barriers, including the one of all threads; a CTA has 16."
    assert rule in complaints(tile=(64, 16, 64), consumers=6, split_k=2)


def test_an_epilogue_of_further_operands():
    more = sm90_plan().with_(epilogue=Epilogue(Scalar("gamma") * Accumulator() + Tile("e")))
    assert more.fetched_tile == ""
    assert "epilogue of epilogue tile i, with E from global memory" in str(more.program("consumer 0"))
    by_tma = sm90_plan(with_c=True)
    renamed = by_tma.with_(epilogue=Epilogue(Accumulator() + Tile("residual") * Row("bias")))
    assert renamed.fetched_tile == "residual"
    text = (
        "epilogue of epilogue tile i, with residual from its epilogue stage (waits for c[i]) and bias "
        "from global memory"
    )
    assert text in str(renamed.program("consumer 0"))
    with pytest.raises(
        PlanError, match=r"is f32 n-major; it must be bf16 n-major like the epilogue stages that it is loaded into."
    ):
        renamed.with_(operands=renamed.operands.with_aux(residual=Operand(f32, "n")))
    assert sm90_plan().with_(epilogue=Epilogue(Scalar("alpha") * Accumulator() + 1)).has_c is False


def test_roles_that_are_no_warpgroups():
    plan = sm90_plan()
    with pytest.raises(PlanError, match=r"the roles have \[1, 4, 4\] warps"):
        plan.with_(roles=(Role("producer", 1, 40), *plan.roles[1:]))


def test_boxes_that_do_not_fill_a_tile():
    plan = sm90_plan()
    with pytest.raises(PlanError, match="boxes of 64 x 96 of A do not divide"):
        plan.with_stream("a", load=TmaBox("load", plan.operands.a.dtype, (64, 96), "128B"))
    with pytest.raises(PlanError, match="with multicast to 1"):
        plan.with_stream("a", load=TmaBox("load", plan.operands.a.dtype, (64, 64), "128B", multicast=2))


def test_shared_memory_of_another_shape():
    plan = sm90_plan()
    with pytest.raises(PlanError, match="the shared memory of D is"):
        plan.with_(
            store=replace(plan.store, smem=ComposedLayout(Swizzle(3, 3, 3), 0, Layout((64, 64, 2), (64, 1, 4096))))
        )


def test_rules_of_a_problem():
    """A and B may end anywhere; what TMA writes of D ends at a multiple of 16 bytes."""
    plan = sm90_plan()
    assert plan.violations(problem=Problem(33, 40, 77, operands=BF16, ld=(("a", 80), ("b", 80)))) == []
    ragged = plan.violations(problem=Problem(33, 41, 80, operands=BF16, ld=(("d", 48), ("c", 48))))
    assert len(ragged) == 1
    assert "D has 41 elements along n" in ragged[0]
    stride = plan.violations(problem=Problem(33, 40, 77, operands=BF16))
    assert len(stride) == 2
    assert "A has the stride 77, 154 bytes" in stride[0]


# --- names, and the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize("named", SM90_LADDER, ids=lambda named: named.name)
def test_names_serve_all_that_wgmma_does(named):
    for layout in ("nn", "nt", "tn", "tt"):
        for out, out_major, with_c in (("bf16", "n", False), ("bf16", "m", True), ("f32", "n", True)):
            operands = Operands.of("bf16", layout=layout, out=out, out_major=out_major)
            assert named.build(operands, with_c).has_c == with_c
    for out, out_major in (("bf16", "n"), ("e4m3", "n"), ("e4m3", "m")):
        operands = Operands.of("e4m3", layout="nt", out=out, out_major=out_major)
        assert named.build(operands).cta_tile[2] == 128


def aligned_to(align: int, **of: str) -> Operands:
    operands = Operands.of("bf16", layout="nt", **of)
    return replace(operands, c=replace(operands.c, align_bytes=align), d=replace(operands.d, align_bytes=align))


@pytest.mark.parametrize(
    ("name", "align", "of", "columns", "width"),
    [
        ("sm90_wide_2x1", 2, {}, 192, 16),  # 384 bytes
        ("sm90_wide_2x1", 4, {}, 192, 32),
        ("sm90_wide_2x1", 8, {}, 192, 64),
        ("sm90_wide_2x1", 4, {"out": "f32"}, 192, 32),  # 768 bytes
        ("sm90_128x256", 4, {"out": "f32"}, 128, 32),  # 256 would be 1024, more than 768
        ("sm90_256x192", 4, {"out": "f32"}, 96, 32),  # 192 would leave room for two stages of 56 KiB
        ("sm90_wide_2x1", 2, {"out_major": "m"}, 96, 16),  # the number of elements in 256 bytes
        ("sm90_epi_stages", 2, {}, 128, 16),
        ("sm90_64x128", 2, {}, 128, 16),
        ("sm90_64x32", 2, {}, 32, 16),  # and not 16, as a box has
        ("sm90_192x160", 4, {"out": "f32"}, 80, 32),
    ],
)
def test_d_that_tma_cannot_store_leaves_by_lines(name, align, of, columns, width):
    """By the consumer's threads, as much at a time as D is aligned to; one epilogue stage is enough for them."""
    plan = plan_named(name, aligned_to(align, **of))
    assert plan.store.line_copy is not None
    assert (plan.store.epi_tile, plan.store.count, plan.store.line_copy.atom.bits) == (
        (64, columns),
        1,
        width,
    )
    assert plan.store.rotates_lines
    assert not plan_named("sm90_padded", BF16).store.rotates_lines


def test_epilogues_shorten_lines():
    """Rows of 128 bytes with operands and functions, and of 64 with several results.

    Registers also hold what is read and computed.
    """
    acc, of_row = Accumulator(), {"bias": Operand.of_kind(Row, BF16.d.dtype)}
    plain = plan_named("sm90_epi_stages", aligned_to(2))
    assert plan_named("sm90_epi_stages", aligned_to(2), True).store.epi_tile == (64, 64)
    assert with_epilogue(Epilogue(acc + Row("bias")), plain, of_row).store.epi_tile == (64, 64)
    assert with_epilogue(Epilogue(relu(acc)), plain).store.epi_tile == (64, 64)
    several = with_epilogue(Epilogue(relu(acc), aux=(("aux", acc),)), plain, {"aux": plain.operands.d})
    assert (several.store.epi_tile, several.epi_stage_results) == ((64, 32), ("aux", "d"))
    for alone in (acc, 2 * acc, acc * Scalar("alpha")):
        assert with_epilogue(Epilogue(alone), plain).store == plain.store
    narrow = sm90_plan(aligned_to(2), shared_d="padded", epi_tile_n=16)
    assert with_epilogue(Epilogue(acc + Row("bias")), narrow, of_row).store == narrow.store
    of_warps = mma_tma_plan(aligned_to(2))
    assert with_epilogue(Epilogue(acc + Row("bias")), of_warps, of_row).store == of_warps.store


def test_deferred_stores_are_those_of_tma():
    for operands, overlapped in ((BF16, True), (aligned_to(2), False)):
        assert plan_named("sm90_overlapped", operands).body.overlapped == overlapped


def test_some_tiles_leave_out_of_registers():
    """64 x 16, whose recipe says so; not 64 x 24, which leaves by lines, or eight columns of an m-major D at a time."""
    for align, width in ((2, 16), (4, 32)):
        plan = plan_named("sm90_64x16", aligned_to(align))
        assert (plan.store.layout, plan.store.atom.bits) == (None, width)
        lines = plan_named("sm90_64x24", aligned_to(align)).store
        assert (lines.epi_tile, lines.copy.atom.bits) == ((64, 24), width)
    turned = sm90_plan(Operands.of("bf16", layout="nt", out_major="m"), tile=(64, 24, 64)).store
    assert (turned.epi_tile, turned.box.box) == ((64, 8), (64, 8))
    assert turned.to_shared.atom.name == "stmatrix.x2.trans.bf16"


@pytest.mark.parametrize("changes", [{"major": "m"}, {"align_bytes": 4}, {"dtype": DType.parse("f32")}], ids=str)
def test_c_that_is_not_like_d_is_read_straight(changes):
    """D is stored by TMA as before; only C is not loaded by it."""
    plan = plan_named("sm90_epi_stages", replace(BF16, c=replace(BF16.c, **changes)), True)
    assert plan.store.stored_by_tma
    assert (plan.store.fetched, plan.store.from_shared) == (None, None)
    assert "c" not in {barrier.name for barrier in plan.barriers}
    assert plan_named("sm90_epi_stages", BF16, True).store.fetched is not None
    assert "load C" in plan.describe()
    assert plan.violations(problem=Problem(64, 72, 64, operands=plan.operands)) == []


@pytest.mark.parametrize(
    ("out", "major", "pitch", "ways"),
    [
        ("bf16", "n", 72, 8),
        ("bf16", "m", 72, 8),
        ("f32", "n", 40, 4),
        ("f32", "m", 68, 4),
        ("e4m3", "n", 144, 8),
    ],
)
def test_padded_slots_are_free_of_conflicts_where_plain_ones_are_not(out, major, pitch, ways):
    """(64 + 8) * 2, (32 + 8) * 4, (64 + 4) * 4 and 128 + 16 bytes: each row 4 banks further, or 8.

    Of plain rows all 8 that a warp writes at once begin in one bank, or 4 of a half-warp's pairs of f32; m-major
    f32 goes by single elements, 4 columns at once.
    """
    kind = "e4m3" if out == "e4m3" else "bf16"
    operands = Operands.of(kind, layout="nt", out=out, out_major=major)
    tile = (128, 128, 128 if kind == "e4m3" else 64)
    costs = {}
    for shared_d in ("plain", "padded", "swizzled"):
        plan = sm90_plan(operands, tile=tile, shared_d=shared_d)
        costs[shared_d] = {a.name: a.cost for a in check(plan).shared if a.name.endswith("D")}
    padded = sm90_plan(operands, tile=tile, shared_d="padded")
    assert max(padded.store.layout[i].stride for i in (0, 1)) == pitch
    assert {name: cost.conflicts for name, cost in costs["padded"].items()} == {"store D": 0, "read D": 0}
    assert costs["plain"]["store D"].ways == ways
    pairs_of_chunks = (out, major) == ("f32", "n")  # 32 bytes a row: two of the 16 that a swizzle exchanges
    assert costs["swizzled"]["store D"].ways == 1 + pairs_of_chunks


@pytest.mark.parametrize(
    ("out", "major", "align", "reads"),
    [("bf16", "n", 2, 512), ("bf16", "m", 2, 512), ("bf16", "n", 4, 256), ("bf16", "n", 8, 256),
     ("f32", "n", 4, 512), ("f32", "m", 4, 512), ("f32", "n", 8, 512)],
)  # fmt: skip
def test_lines_are_written_and_read_without_conflicts(out, major, align, reads):
    """128 x 128 elements: a warp reads 32 at once, or 64 by 4 bytes, or 128 bytes in each of two wavefronts."""
    operands = Operands.of("bf16", layout="nt", out=out, out_major=major)
    plan = sm90_plan(replace(operands, d=replace(operands.d, align_bytes=align)), shared_d="padded")
    costs = {a.name: a.cost for a in check(plan).shared if a.name.endswith("D")}
    assert {name: cost.conflicts for name, cost in costs.items()} == {"store D": 0, "read D": 0}
    assert costs["read D"].wavefronts == reads


def test_a_turned_line_of_no_whole_lines_of_banks_has_conflicts():
    """64 rows of 96 elements of 16 bits, 97 apart: row r is turned by r % 32 of the 32 that a warp takes at once.

    In the first 32 elements, lanes from r on read words 0 to (31 - r) // 2, the others words from (96 - r) // 2 on, 48
    words or 16 banks later: if r is odd, both have one bank. The other 64 of a row are read 32 at a time.
    """
    plan = sm90_plan(aligned_to(2), tile=(64, 96, 64), shared_d="padded")
    problem = Problem(64, 96, 64, operands=plan.operands, ld=(("c", 97), ("d", 97)))
    (found,) = [access for access in check(plan, problem).shared if access.name == "read D"]
    assert found.in_grid == (64 * 3, 64 * 3 + 32, 64 * 3)


@pytest.mark.parametrize(("epi_tile_n", "sectors"), [(128, 8 * 8 + 120 * 9), (64, 8 * 8 + 120 * 10)])
def test_sectors_of_lines(epi_tile_n, sectors):
    """Rows of 2046 bytes: row r begins -2r bytes off a sector, on one where r is a multiple of 16: 8 rows of 128. The
    256 bytes of another touch 9 sectors, or as two lines of 128, each by itself, 5 and 5. Out of registers 4 lanes of a
    row store each second element, by one instruction in each of 8 rows."""
    odd = aligned_to(2)
    problem = Problem(1024, 1023, 64, operands=odd)
    stores = {}
    for how in ({"shared_d": "padded", "epi_tile_n": epi_tile_n}, {"store": "direct"}):
        (found,) = [x for x in check(sm90_plan(odd, **how), problem).global_ if x.name == "store D"]
        stores[next(iter(how))] = (found.requests, found.sectors)
    assert stores["shared_d"] == (512, sectors)
    assert stores["store"][0] == 512
    assert stores["store"][1] >= 8 * 512


@pytest.mark.parametrize(("columns", "of_subtile"), [(200, 40), (168, 56), (216, 72), (120, 40)])
def test_rows_of_an_odd_number_of_16_bytes_are_not_swizzled(columns, of_subtile):
    """Row r of 5 times 16 bytes begins in the group of banks 5r % 8: 0, 5, 2, 7, 4, 1, 6, 3 of eight rows; 7 and 9
    times 16 bytes alike. So an epilogue tile is stored as one box, and stmatrix writes eight rows at once."""
    plan = sm90_plan(BF16, tile=(128, columns, 64), schedule="cooperative", epi_tile_n=of_subtile)
    assert odd_columns(columns) == of_subtile
    assert [str(plan.store.layout[mode]) for mode in (0, 1)] == [f"64:{of_subtile}", f"{of_subtile}:1"]
    assert (plan.store.box.box, plan.store.box.swizzle) == ((of_subtile, 64), "none")
    stores = [a for a in check(plan, Problem(512, 600, 128, operands=BF16)).shared if a.op == "stmatrix"]
    assert stores
    assert all(access.cost.conflicts == 0 for access in stores)


def test_rows_of_a_transposed_d_are_swizzled():
    plan = sm90_plan(BF16.transposed, tile=(128, 200, 64), schedule="cooperative", epi_tile_n=40)
    assert (plan.store.box.box, plan.store.box.swizzle) == ((64, 40), "128B")


@pytest.mark.parametrize(
    ("tile", "epi_stages", "columns"),
    [
        ((128, 128, 128), None, 128),
        ((128, 128, 128), 4, 64),
        ((64, 128, 128), None, 64),
        ((64, 64, 128), 2, 32),
    ],
)
def test_subtiles_of_bytes_are_enough_for_the_slots(tile, epi_stages, columns):
    bytewise = Operands.of("e4m3", layout="nt")
    plan = sm90_plan(bytewise, tile=tile, epi_stages=epi_stages)
    assert plan.store.epi_tile == (64, columns)
    assert plan.store.box.swizzle == {128: "128B", 64: "64B", 32: "32B"}[columns]
    narrow = complaints(bytewise, tile=tile, epi_tile_n=16, shared_d="padded")
    assert "128 threads cannot store 64 rows of 16 elements of e4m3 evenly, 16 elements per access" in narrow


def test_a_plan_spelled_out():
    text = "sm90:tile=256x128x64,schedule=cooperative,cluster=1x2,stagger_cycles=300,ctas=none"
    text += ",l2=last+normal+first"
    plan = plan_named(text, BF16)
    assert (plan.cta_tile, plan.cluster_mn, plan.scheduler.grid) == ((256, 128, 64), (1, 2), OneEach())
    assert (plan.body.stagger_cycles, plan.a.load.l2_policy) == (300, "evict_last")
    with pytest.raises(PlanError, match="'tyle' is not an argument"):
        plan_named("sm90:tyle=1x1x1", BF16)
    with pytest.raises(PlanError, match="'epi_stages=two': a whole number is expected"):
        plan_named("sm90:epi_stages=two", BF16)


# --- a split of K ------------------------------------------------------------------------------------------


def test_a_split_in_the_description():
    text = sm90_plan(tile=(64, 128, 64), split_k=4).describe()
    for line in (
        "4  K splits", "blocked, added by the CTA that ends last",
        "2  8 bytes", "barrier splits", "2  128 arrivals", "128 accumulators of other K splits",
    ):  # fmt: skip
        assert line in text, line
    text = sm90_plan(stream=2).describe(Problem(512, 28672, 8192, operands=BF16))
    assert "2  stream-K waves" in text
    assert "divided evenly, added by the CTA that ends last" in text
    assert "1  stream-K wave " in sm90_plan(stream=1).describe()


def test_a_split_costs_a_word_a_consumer_and_registers_for_other_parts():
    """232 registers hold 128 sums, 8 vectors of another part and of a total, 64, and what addresses take."""
    for tile, accumulators, vectors in (((128, 128, 64), 128, 8), ((64, 128, 64), 64, 16), ((128, 192, 64), 192, 2)):
        plan, whole = sm90_plan(tile=tile, split_k=2), sm90_plan(tile=tile)
        assert plan.smem_bytes() == {**whole.smem_bytes(), "semaphores": 8}
        assert plan.registers() == {"accumulators": accumulators, "accumulators of other K splits": 8 * vectors}
        assert sum(plan.registers().values()) + 24 <= max(r.registers for r in plan.roles)
        assert plan.stages == whole.stages


def test_a_split_that_a_pipeline_does_not_carry_out():
    plan = sm90_plan(split_k=2)
    with pytest.raises(PlanError) as caught:
        plan.with_scheduler(split=KSplit(2, "strided", "kernel"))
    assert "order = 'strided'; a plan with warp roles splits K in 'blocked' order only." in str(caught.value)
    assert "reduction = 'kernel'; with warp roles the CTA that ends last adds the K splits" in str(caught.value)
    assert sm90_plan().with_scheduler(split=KSplit(2, reduction="last")).barriers == plan.barriers


def test_names_of_splits():
    """A K split at the end of a name; the spelled out arguments make an equal plan."""
    for name, text in (
        ("sm90_64x128/k4", "sm90:tile=64x128x64,epi_stages=2,store=tma_warp,split_k=4"),
        ("sm90_cooperative_2x1/stream", None),
        ("sm90_wide_2x1/stream1", "sm90:tile=128x192x64,cluster=2x1,stream=1"),
        ("sm90_wide_2x1/fixup", "sm90:tile=128x192x64,cluster=2x1,fixup=1"),
        ("sm90_stream", "sm90:tile=128x256x64,schedule=cooperative,cluster=2x1,stream=2"),
        ("sm90_fixup", "sm90:tile=128x128x64,cluster=2x1,fixup=1"),
        ("sm90_split", "sm90:tile=64x128x64,epi_stages=2,split_k=4"),
    ):
        plan = plan_named(name, BF16)
        assert plan.name == name
        assert text is None or plan_named(text, BF16).key() == plan.key()
    assert plan_named("sm90_cooperative_2x1/stream", BF16).scheduler.split.waves == 2
    for wrong in (
        "sm90_epi_stages/fill2",
        "sm90_epi_stages/k2/fixup",
        "sm90_64x128/k",
        "sm90_64x128/k4last",
        "sm90_what/k2",
        "sm90_epi_stages/streams",
    ):
        with pytest.raises(UnsupportedError, match="no plan is called"):
            plan_named(wrong, BF16)
    with pytest.raises(
        PlanError, match=r"split-K and stream-K need a producer. Use another schedule than 'single', or leave them out."
    ):
        plan_named("sm90_multistage/k2", BF16)
