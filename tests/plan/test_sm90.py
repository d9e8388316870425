"""Hopper plans: what the builder makes of what a person says, and which rules it names where it cannot."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, product
from cutegemm.plan import Barrier, GemmPlan, Operands, Problem, Role, sm90_plan
from cutegemm.plan.catalog import choose, plan_named
from cutegemm.plan.sm90_catalog import SM90_LADDER, choose_sm90, predicted_us, sm90_named
from cutegemm.tile.tma import TmaBox
from tests.kernels.sm90_forms import FORMS, form

BF16 = Operands.of("bf16", layout="nt")


def complaints(operands: Operands | None = None, **options) -> str:
    with pytest.raises(PlanError) as caught:
        sm90_plan(operands, **options)
    return str(caught.value)


# --- what the builder makes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tile", "slots", "stages"),
    [((128, 128, 64), 2, 6), ((128, 128, 64), 4, 5), ((128, 192, 64), 2, 4), ((256, 192, 64), 2, 3)],
)
def test_stages_fill_shared_memory(tile, slots, stages):
    """(227 KiB - D's slots) / a stage: 199680 / 32768 = 6.1, 166912 / 32768 = 5.1, 199680 / 40960 = 4.9."""
    plan = sm90_plan(tile=tile, slots=slots, schedule="cooperative" if tile[0] == 256 else "pingpong")
    assert plan.stages == stages
    used = sum(plan.smem_bytes().values())
    assert used <= 232448 < used + (tile[0] + tile[1]) * 128 + 1024


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1), (1, 2), (2, 2), (4, 2)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_boxes_and_barriers_of_a_cluster(layout, cluster):
    """What the CTAs of a cluster load together is a tile for each; every reader of a stage frees it."""
    plan = sm90_plan(Operands.of("bf16", layout=layout), cluster=cluster, tile=(128, 128, 64))
    for box, sharers in ((plan.load_a, cluster[1]), (plan.load_b, cluster[0])):
        assert box.multicast == sharers
        assert 128 * 64 % (product(box.box) * sharers) == 0
        assert box.box[0] * 16 // 8 == 128  # a row fills the swizzle
    assert plan.barrier("full") == Barrier("full", "mbarrier", plan.stages, 1, 2 * 128 * 64 * 2)
    assert plan.barrier("empty").arrivals == 4 * (cluster[0] + cluster[1] - 1)
    both = sm90_plan(
        Operands.of("bf16", layout=layout), cluster=cluster, schedule="cooperative", tile=(128, 256, 64)
    )
    assert both.barrier("empty").arrivals == 8 * (cluster[0] + cluster[1] - 1)


def test_named_barriers_have_numbers_of_their_own():
    plan = sm90_plan(order_epilogue=True, slots=4)
    taken = [plan.barrier_id(b.name) + i for b in plan.barriers if b.kind == "named" for i in range(b.count)]
    assert sorted(taken) == [1, 2, 3, 4, 5, 6]


def test_registers_go_from_the_producer_to_the_consumers():
    """384 threads are launched with 65536 / 384 = 170, in steps of 8: 168 each, 504 for one of each role."""
    for plan in (sm90_plan(), sm90_plan(tile=(128, 192, 64))):
        given = [role.registers for role in plan.roles]
        assert sum(given) <= 504
        assert given[1] >= plan.registers()["accumulators"] + 24
    assert [
        role.registers for role in sm90_plan(schedule="cooperative", consumers=1, tile=(64, 128, 64)).roles
    ] == [None] * 2


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
        plan.load_a.name,
        *(f"barrier {b.name}" for b in plan.barriers),
        *(f"role {r.name}" for r in plan.roles),
    ):
        assert word in text


def test_the_description_says_who_waits_for_whom():
    text = sm90_plan(slots=4).describe(Problem(8448, 9216, 512, operands=BF16))
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
    text = complaints(tile=(128, 256, 64), registers=(40, 233), cluster=(4, 4), slots=3)
    for rule in (
        "256 (accumulators) + about 24 = 280 registers; its role has 233",
        "a cluster of 16 CTAs; 8 are the most",
        "consumer 0 has 233 registers; multiples of 8",
        "the roles ask for 64768 registers; 384 threads are launched with 64512",
        "3 slots for 8 subtiles",
    ):
        assert rule in text


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"tile": (100, 128, 64)}, "100"),
        ({"tile": (128, 130, 64)}, "n = 130; multiples of 8"),
        ({"stages": 1}, "the queue has 1 stages; at least 2"),
        ({"stages": 7}, "bytes is over the 232448"),
        ({"schedule": "pong"}, "'pong'; pingpong, cooperative, single"),
        ({"schedule": "pingpong", "consumers": 1}, "1 consumers cannot work as pingpong"),
        ({"ctas": None}, "the grid must be persistent"),
        ({"ctas": 1, "cluster": (2, 1)}, "1 CTAs holds no cluster of 2"),
        ({"schedule": "single", "cluster": (2, 1)}, "one tile a CTA, without clusters"),
        ({"schedule": "cooperative", "order_epilogue": True}, "only pingpong consumers store in turn"),
        ({"stagger_cycles": 5}, "only cooperative consumers begin"),
        ({"consumers": 3, "tile": (128, 192, 64)}, "its role has 160"),
        ({"schedule": "cooperative", "consumers": 3, "tile": (192, 256, 64)}, "needs 128 + 26 registers"),
        ({"cluster": (32, 1)}, "128 rows of a k-major tile do not divide into 32 shares"),
        ({"store": "now"}, "store = 'now'"),
        ({"shared_d": "folded"}, "shared_d = 'folded'"),
        ({"subtile_n": 48}, "subtiles of 48 columns"),
        ({"store": "tma_warp", "with_c": True, "slots": 4}, "warps store rows of their own only"),
        ({"raster": "spiral"}, "'spiral' is no raster"),
        ({"l2": ("evict_never", "evict_normal", "evict_normal")}, "evict_never"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(options, rule):
    assert rule in complaints(**options)


@pytest.mark.parametrize(
    ("operands", "rule"),
    [
        (Operands.of("bf16", align_bytes=8), "A is aligned to 8 bytes; TMA needs 16"),
        (replace(BF16, d=replace(BF16.d, align_bytes=4)), "a store by TMA needs 16, of the address"),
        (Operands.of("e4m3", layout="nn", out="bf16"), "e4m3 operands are k-major"),
        (Operands.of("f32"), "no wgmma of f32"),
    ],
)
def test_operands_that_tma_or_wgmma_do_not_take(operands, rule):
    assert rule in complaints(operands)


def test_other_architectures_say_what_they_lack():
    text = "\n".join(sm90_plan(cluster=(2, 1)).violations("sm_80"))
    for feature in ("needs sm_90a", "tma.load", "the plan needs cluster", "the plan needs setmaxnreg"):
        assert feature in text
    assert any("sm_90a, which sm_100a is not" in rule for rule in sm90_plan().violations("sm_100a"))


def test_a_barrier_that_counts_wrong_is_no_plan():
    plan = sm90_plan()
    for name, changes, rule in (
        ("empty", {"arrivals": 3}, "the barrier 'empty' has (count, arrivals, bytes) = (6, 3, 0)"),
        ("full", {"transaction_bytes": 100}, "(6, 1, 100); what arrives asks for (6, 1, 32768)"),
        ("order mainloop", {"count": 1}, "'order mainloop' has (count, arrivals, bytes) = (1, 256, 0)"),
    ):
        edited = tuple(replace(b, **changes) if b.name == name else b for b in plan.barriers)
        with pytest.raises(PlanError, match=r"asks for"):
            plan.with_(barriers=edited)
        with pytest.raises(PlanError) as caught:
            plan.with_(barriers=edited)
        assert rule in str(caught.value)
    with pytest.raises(PlanError, match="there is no barrier 'full'"):
        plan.with_(barriers=plan.barriers[1:])


def test_roles_that_are_no_warpgroups():
    plan = sm90_plan()
    with pytest.raises(PlanError, match=r"the roles have \[1, 4, 4\] warps"):
        plan.with_(roles=(Role("producer", 1, 40), *plan.roles[1:]))


def test_boxes_that_do_not_fill_a_tile():
    plan = sm90_plan()
    with pytest.raises(PlanError, match="boxes of 64 x 96 of A do not fill"):
        plan.with_(load_a=TmaBox("load", plan.operands.a.dtype, (64, 96), "128B"))
    with pytest.raises(PlanError, match="multicast to 1 is expected"):
        plan.with_(load_a=TmaBox("load", plan.operands.a.dtype, (64, 64), "128B", multicast=2))


def test_shared_memory_of_another_shape():
    plan = sm90_plan()
    with pytest.raises(PlanError, match="the shared memory of D is"):
        plan.with_(smem_d=ComposedLayout(Swizzle(3, 3, 3), 0, Layout((64, 64, 2), (64, 1, 4096))))


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
        for out in ("bf16", "f32"):
            for out_major in "nm":
                operands = Operands.of("bf16", layout=layout, out=out, out_major=out_major)
                for with_c in (False, True):
                    assert named.build(operands, with_c).has_c == with_c
    assert named.build(Operands.of("e4m3", layout="nt", out="bf16")).cta_tile[2] == 128


def test_d_that_tma_cannot_store_leaves_out_of_registers():
    for align, width in ((2, 16), (4, 32)):
        operands = replace(BF16, d=replace(BF16.d, align_bytes=align))
        plan = sm90_named("sm90_wide_2x1", operands)
        assert plan.epilogue is None
        assert plan.store_d.bits == width
    other_c = replace(BF16, c=replace(BF16.c, major="m"))
    assert sm90_named("sm90_slots", other_c, True).epilogue is None
    assert sm90_named("sm90_slots", other_c, False).epilogue is not None


def test_a_plan_spelled_out():
    text = "sm90:tile=256x128x64,schedule=cooperative,cluster=1x2,stagger_cycles=300,ctas=none"
    text += ",l2=last+normal+first"
    plan = plan_named(text, BF16)
    assert (plan.cta_tile, plan.cluster_mn, plan.pipeline.ctas) == ((256, 128, 64), (1, 2), None)
    assert (plan.pipeline.stagger_cycles, plan.load_a.l2_policy) == (300, "evict_last")
    with pytest.raises(PlanError, match="'tyle' is no argument"):
        plan_named("sm90:tyle=1x1x1", BF16)
    with pytest.raises(PlanError, match="'slots=two' does not read"):
        plan_named("sm90:slots=two", BF16)


def test_the_choice():
    """Many short tiles want pingpong, many long ones the large tiles, few the small ones."""
    assert choose(BF16, Problem(8448, 9216, 64)).pipeline.kind == "pingpong"
    assert choose(BF16, Problem(16384, 16384, 16384)).pipeline.kind == "cooperative"
    assert choose(BF16, Problem(256, 512, 4096)).cta_tile[:2] == (64, 64)
    assert choose(BF16, Problem(4096, 4096, 4096), multiprocessors=114).pipeline.ctas == 114
    assert choose(BF16, Problem(4096, 4096, 4096), "sm_80").family != "sm90"
    assert choose(Operands.of("bf16", align_bytes=2), Problem(4096, 4096, 4096)).family != "sm90"
    assert choose(BF16, Problem(4096, 4096, 4096), with_c=True).has_c


def test_the_model_grows_with_the_work():
    for named in SM90_LADDER:
        if named.turn_us is None:
            continue
        times = [
            predicted_us(named, BF16, Problem(m, 4096, k), 132)
            for m, k in ((512, 64), (512, 512), (4096, 512), (4096, 4096))
        ]
        assert times == sorted(times)
    assert choose_sm90(BF16, Problem(0, 0, 0)) is not None
