"""Plans whose CTAs of a cluster share K: every figure counted again by loops over CTAs, their k-tiles and rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cutegemm.analysis import check, gpc_reads, plan_occupancy, shared_accesses, traffic, waves
from cutegemm.analysis.accesses import buffer_layout, executions
from cutegemm.analysis.advice import stored_together, with_tile
from cutegemm.analysis.cache.pace import demand
from cutegemm.analysis.cache.traffic import work_of
from cutegemm.analysis.globalmem import global_accesses
from cutegemm.build import gemv_plan, sm90_plan
from cutegemm.choice.names import recipe_named
from cutegemm.cli.corner import corner_of
from cutegemm.cli.inputs import Extents
from cutegemm.machine.device import device_named
from cutegemm.plan import GemmPlan, Operands, Problem
from tests.analysis import naive

H100 = device_named("h100")
BF16 = Operands.of("bf16", layout="nt")
COOPERATIVE = {"schedule": "cooperative", "consumers": 1}
PLANS = {
    "4": sm90_plan(BF16, tile=(64, 64, 64), cluster_k=4, **COOPERATIVE),
    "2 in 2x1": sm90_plan(BF16, tile=(64, 64, 64), cluster_k=2, cluster=(2, 1), **COOPERATIVE),
    "2 of two consumers": sm90_plan(BF16, tile=(128, 64, 64), cluster_k=2, schedule="cooperative"),
    "3 in turn": sm90_plan(BF16, tile=(64, 96, 64), cluster_k=3, raster="along_n"),
    "3 in 2x1": sm90_plan(BF16, tile=(64, 96, 64), cluster_k=3, cluster=(2, 1), **COOPERATIVE),
}
# The last clusters reach past D along M and along N, and the last k-tile past K; and one of fewer k-tiles than CTAs.
RAGGED = [(100, 200, 1000), (330, 40, 136), (64, 64, 64)]


def loads(plan: GemmPlan, problem: Problem):
    """(operand, first row or column, first k, CTAs that it comes to) of each k-tile's load, CTA by CTA."""
    m_tiles, n_tiles = [-(-extent // tile) for extent, tile in zip((problem.m, problem.n), plan.mma_tile, strict=False)]
    work = plan.work(problem)
    shares = plan.a.load.multicast, plan.b.load.multicast
    rows, columns, bk = plan.mma_tile
    for cluster in work.tiles.order().tolist():
        for rank, tile in enumerate(cluster):
            m, n, _ = work.tiles.loaded_mnl(tuple(tile), m_tiles, n_tiles)
            first, count = plan.cluster_tile.k_range(rank, work.k_tiles)
            for k in range(first, first + count):
                yield "a", m * rows, k * bk, shares[0]
                yield "b", n * columns, k * bk, shares[1]


@pytest.mark.parametrize("mnk", RAGGED)
@pytest.mark.parametrize("name", PLANS)
def test_bytes_that_are_loaded(name: str, mnk: tuple[int, int, int]) -> None:
    plan, problem = PLANS[name], Problem(*mnk, operands=BF16)
    asked = arrived = 0.0
    for operand, first, k, ctas in loads(plan, problem):
        extent = problem.m if operand == "a" else problem.n
        rows = min(plan.mma_tile[operand == "b"], extent - first)
        size = rows * min(64, problem.k - k) * 2
        arrived += size
        asked += size / ctas
    found = traffic(plan, problem, ctas_per_wave=132, l2_bytes=50 << 20)
    assert (found.l2_read_bytes, found.sm_read_bytes) == (int(asked), arrived)
    assert found.dram_read_bytes == found.min_bytes == (problem.m + problem.n) * problem.k * 2


@pytest.mark.parametrize("mnk", RAGGED)
@pytest.mark.parametrize("name", PLANS)
def test_sectors_that_are_loaded(name: str, mnk: tuple[int, int, int]) -> None:
    """Return the sectors that a row of a box, 64 elements, touches, and zeros for what lies outside."""
    plan, problem = PLANS[name], Problem(*mnk, operands=BF16)
    boxes = {"a": 0.0, "b": 0.0}
    sectors = {"a": 0, "b": 0}
    for operand, first, k, ctas in loads(plan, problem):
        extent = problem.m if operand == "a" else problem.n
        boxes[operand] += 1 / ctas * (plan.mma_tile[operand == "b"] // box_rows(plan, operand))
        for row in range(first, first + plan.mma_tile[operand == "b"]):
            inside = 2 * min(64, problem.k - k) if row < extent else 0
            at = 2 * (row * problem.k + k)
            sectors[operand] += len({byte // 32 for byte in range(at, at + inside)}) + -(-(128 - inside) // 32)
    for part in global_accesses(plan, problem):
        operand = part.name.split()[-1].lower()
        if part.op == "tma":
            assert part.in_grid is not None
            assert part.in_grid.arriving == sectors[operand]
            ctas = plan.stream(operand).load.multicast
            assert part.in_grid.sectors == sectors[operand] // ctas
            assert part.in_grid.requests == round(boxes[operand] * ctas)


def box_rows(plan: GemmPlan, operand: str) -> int:
    """Rows that the CTAs of a multicast ask for together."""
    box = plan.stream(operand).load
    return box.box[1] * box.multicast


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_skinny_plans_load_what_they_multiply(cluster: int) -> None:
    """Their CTAs share K along M: each loads the rows of all of them and the columns, of its part of the k-tiles."""
    plan, (m, n, k) = gemv_plan(tile=(32, 8), cluster=cluster, vectors=2), (100, 20, 5000)
    rows, columns, bk = plan.mma_tile
    k_tiles, size = -(-k // bk), 0
    for first_m in range(0, m, rows):
        for first_n in range(0, n, columns):
            for rank in range(cluster):
                first, count = plan.k_range(rank, k_tiles)
                for k_tile in range(first, first + count):  # the first one is the ragged one
                    deep = bk - max(0, -(k - (k_tiles - k_tile) * bk))
                    size += 2 * deep * (min(rows, m - first_m) + min(columns, n - first_n))
    found = traffic(plan, Problem(m, n, k, operands=plan.operands), ctas_per_wave=264, l2_bytes=50 << 20)
    assert found.l2_read_bytes == found.sm_read_bytes == size


def test_counted_by_hand() -> None:
    """100 x 200 by 64 x 64: 2 x 4 products, each by 4 CTAs. The last three CTAs have no column of D."""
    plan, problem = PLANS["4"], Problem(100, 200, 1000, operands=BF16)
    fill = waves(plan, problem, 132, 1)
    assert plan.grid(problem) == (2, 13, 1)
    assert (fill.ctas, fill.tile_waste) == (32, pytest.approx(1 - 100 * 200 / (128 * 256)))
    known = check(plan, problem, device=H100, search=False)
    assert known.roofline is not None
    assert known.traffic is not None
    assert known.roofline.level("compute").amount == 2 * 128 * 256 * 1024
    assert known.traffic.resident_mn == (2, 4)
    # 16 k-tiles of 8 products: the tensor cores read A and B of each, 64 rows of 128 bytes, 4 times 16 wavefronts.
    assert known.counts("wgmma")[1] == 2 * 8 * 16 * 64
    assert known.counts("tma")[1] == 2 * 8 * 16 * 64
    # Each CTA is sent 64 x 16 sums of 4 bytes by 4 CTAs, 512 bytes by an instruction, and reads them.
    assert known.counts("st.async") == known.counts("load") == (32 * 32, 32 * 128, 32 * 128)


@pytest.mark.parametrize("name", PLANS)
def test_k_tiles_of_a_cta(name: str) -> None:
    plan = PLANS[name]
    for k_tiles in (0, 1, 2, 7, 16):
        parts = [plan.cluster_tile.k_range(rank, k_tiles)[1] for rank in range(np.prod(plan.cluster_mn).item())]
        for access in shared_accesses(plan):
            mean = 1.0 if access.per == "tile" else sum(parts) / len(parts)
            assert executions(plan, access, k_tiles) == pytest.approx(mean)


@pytest.mark.parametrize("name", PLANS)
def test_sums_are_sent_and_read_without_conflicts(name: str) -> None:
    """Each place of a tile's sums once by a consumer's threads; each instruction as lanes are served one by one."""
    plan = PLANS[name]
    layout = buffer_layout(plan, "accumulators")
    of_sums = {access.op: access for access in shared_accesses(plan) if access.buffer == "accumulators"}
    assert set(of_sums) == {"st.async", "load"}
    for op, access in of_sums.items():
        addresses, bits = access.addresses(layout)
        places = np.sort((addresses[..., None] + 4 * np.arange(4)).ravel())
        own = np.prod(plan.consumer_tile) * plan.body.readers * plan.cluster_k
        assert places.tolist() == (4 * np.arange(own)).tolist()
        lanes = addresses.reshape(-1, 32)
        counted = [naive.wavefronts(of.tolist(), bits, "load" if op == "load" else "store") for of in lanes]
        cost = access.cost(layout)
        assert (cost.wavefronts, cost.ideal) == tuple(np.sum(counted, axis=0).tolist())
        assert cost.conflicts == 0


def test_occupancy_counts_the_place_of_sums() -> None:
    plan = PLANS["2 of two consumers"]
    of_sums = 2 * 128 * 32 * 4  # from each of two CTAs, of the own columns
    assert plan.smem_bytes()["accumulators"] == of_sums
    assert plan_occupancy(plan).smem_bytes == sum(plan.smem_bytes().values())


def test_demand_is_that_of_what_is_multiplied() -> None:
    """As of a tile of 64 x 64 by one CTA; with B multicast to two, three quarters of it."""
    plain = sm90_plan(BF16, tile=(64, 64, 64))
    assert demand(PLANS["4"], H100) == pytest.approx(demand(plain, H100))
    assert demand(PLANS["2 in 2x1"], H100) == pytest.approx(0.75 * demand(plain, H100))


@pytest.mark.parametrize("name", PLANS)
def test_what_a_cluster_touches(name: str) -> None:
    """One panel of B, and one of A for each CTA along M; whole panels, though each CTA takes a part of K."""
    plan, problem = PLANS[name], Problem(300, 500, 1000, operands=BF16)
    work = work_of(plan, problem, plan.scheduler.raster)
    rows, columns, _ = plan.mma_tile
    order = plan.work(problem).tiles.order()
    assert work.panels_a.shape == (len(order), plan.cluster_mn[0])
    assert work.panels_b.shape == (len(order), 1)
    for tile, cluster in enumerate(order.tolist()):
        last = -(-300 // rows) - 1
        assert set(work.panels_a[tile].tolist()) == {min(last, m) for m, _, _ in cluster}
        assert {n * plan.cta_tile[1] // columns for _, n, _ in cluster} == set(work.panels_b[tile].tolist())
    assert work.bytes_a.sum() == 300 * 1000 * 2
    assert work.bytes_b.sum() == 500 * 1000 * 2
    assert work.bytes_d == np.prod(plan.cluster_mn) * np.prod(plan.cta_tile[:2]) * 2


@pytest.mark.parametrize("raster", ["along_m", "along_n", "even:8"])
@pytest.mark.parametrize("mnk", [(2048, 2048, 512), (1216, 2064, 100), (300, 4000, 1000)])
def test_reads_of_a_gpc(raster: str, mnk: tuple[int, int, int]) -> None:
    """Of two CTAs that share K: each asks for its own k-tiles of the same tiles of A and of B."""
    plan = sm90_plan(BF16, tile=(64, 64, 64), cluster_k=2, raster=raster, **COOPERATIVE)
    problem = Problem(*mnk, operands=BF16)
    work = plan.work(problem)
    gpc_of = {work.place(launched): H100.gpc_of_tpc[launched] for launched in range(work.clusters)}
    asked, apart = [0, 0], [0, 0]
    reads: set[tuple[int, ...]] = set()
    for number in range(work.count):
        one, turn = number % work.clusters, number // work.clusters
        for rank in range(2):
            m, n, _ = work.tile_mnl(work.tile((number,)), rank)
            first, count = plan.cluster_tile.k_range(rank, work.k_tiles)
            for operand, place in enumerate((m, n // 2)):
                for k_tile in range(first, first + count):
                    key = operand, gpc_of[one], turn, place, k_tile
                    asked[operand] += 1
                    apart[operand] += key not in reads
                    reads.add(key)
    found = gpc_reads(plan, problem, H100)
    assert found is not None
    assert found.asked == tuple(count * 64 * 64 * 2 for count in asked)
    assert found.apart == tuple(count * 64 * 64 * 2 for count in apart)


def test_advice_keeps_the_ctas_that_share_k() -> None:
    plan, problem = PLANS["2 in 2x1"], Problem(640, 640, 640, operands=BF16)
    assert stored_together(plan) == (64, 64)
    text = with_tile(plan, problem, (64, 128))
    assert text is not None
    made = recipe_named(text).build(BF16)
    assert (made.cluster_k, made.mma_tile, made.cta_tile) == (2, (64, 128, 64), (64, 64, 64))
    assert (made.cluster_mn, made.multicast_mn) == ((2, 2), (2, 1))


def test_advice_of_tiles_compares_what_clusters_cover() -> None:
    """200 columns by 64 are 256, though by the 16 that a CTA stores they are 208: tiles that cover less are named."""
    known = check(PLANS["4"], Problem(128, 200, 1000, operands=BF16), device=H100, search=False)
    (advice,) = [change.advice for change in known.changes if "outside of D" in change.what]
    assert advice.startswith("tiles of ")
    assert "along N" in advice


def test_description_says_who_multiplies_and_who_stores() -> None:
    lines = [line.split() for line in PLANS["4"].describe(Problem(100, 200, 1000, operands=BF16)).splitlines()]
    said = {" ".join(line[:2]) if line[0] in ("shared", "load") else line[0]: " ".join(line) for line in lines}
    assert said["k-tiles"].endswith("cluster split-K: each CTA multiplies 64 x 64 by its k-tiles, and stores 64 x 16")
    assert said["consumer"].startswith("consumer 1 64 x 64 128 threads")
    assert said["shared accumulators"].startswith("shared accumulators 4 16384 bytes")
    assert said["load B"].startswith("load B 1 64 x 64")
    assert said["thread"].startswith("thread 256 8 of D")
    assert "k-tiles" not in sm90_plan(BF16).describe()


def test_plans_of_one_cta_for_a_tile_are_as_they_were() -> None:
    """All figures are those without cluster split-K, for every cluster."""
    for cluster in ((1, 1), (2, 1), (1, 2)):
        plan = sm90_plan(BF16, cluster=cluster)
        assert plan.mma_tile == plan.cta_tile
        assert stored_together(plan) == plan.d_tile
        one = waves(plan, Problem(1000, 1000, 64, operands=BF16), 132, 1)
        assert one == replace(one, ctas=64)
        assert not [access for access in shared_accesses(plan) if access.buffer == "accumulators"]


def test_the_corner_refills_the_stages_of_each_cta() -> None:
    """A CTA has a quarter of the k-tiles: those of the corner are four times those that refill its stages twice."""
    plan, problem = PLANS["4"], Problem(4096, 4096, 65536, operands=BF16)
    found = corner_of(plan, problem, Extents(4096, 4096, 65536, None), 1 << 30)
    assert found is not None
    k_tiles = -(-found.extents.k // 64)
    each = plan.cluster_tile.k_range(0, k_tiles)[1]
    assert each > 2 * plan.stages
    assert found.exercised[0] == f"{each} k-tiles through {plan.stages} stages"
