"""Machine code of Hopper plans, read back: the instructions that the plan speaks of, as many as it says."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.choice.catalog import plan_named
from cutegemm.compile.cubin import ResourceReport
from cutegemm.compile.plans import CompiledKernel, compile_plan
from cutegemm.layout import product, size
from cutegemm.plan import GemmPlan, Operands
from cutegemm.plan.launches import launches_of
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR
from cutegemm.plan.store import TmaStore
from tests.kernels.plans import check_each, in_groups
from tests.kernels.sm90_forms import ALONE, PAIRS, on_few_ctas
from tests.marks import with_thorough

PACKED = ("pack_bf16_c", "pack_e4m3", "pack_e5m2_e4m3", "pack_s8_split", "pack_tf32")
_ACCESS = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?((?:LD|ST)[GSL][\w.]*)", re.M)
_MNEMONICS = {"e4m3": "QGMMA", "e5m2": "QGMMA", "s8": "IGMMA"}  # others: HGMMA


def named(name: str, layout: str = "nt", **options) -> GemmPlan:
    return plan_named(name, Operands.of("bf16", layout=layout), **options)


def boxes(plan: GemmPlan, operand: str) -> int:
    """Return the instructions of a CTA that load its share of a k-tile.

    If all CTAs of a multicast load a tile, the DSL makes boxes of up to 256 rows, and each CTA loads its share of each
    box.
    """
    bm, bn, bk = plan.loaded_tile
    box, extent = (plan.a.load, bm) if operand == "a" else (plan.b.load, bn)
    count = extent * bk // product(box.box)
    return count // box.multicast if box.box[1] * box.multicast <= 256 else count


def check(kernel: CompiledKernel) -> None:
    plan, report = kernel.plan, kernel.resources
    pipeline, store = plan.body, plan.store
    assert kernel.violations() == []
    assert (report.count("LDL"), report.count("STL"), report.stack_bytes) == (0, 0, 0)

    # The products of a k-tile, of the planned shape, and nothing that makes them wait for each other
    m, n, k = plan.tiled_mma.atom.shape_mnk
    products = report.count(f"{_MNEMONICS.get(plan.operands.a.dtype.name, 'HGMMA')}.{m}x{n}x{k}")
    # On two levels those of an odd one, and of two that follow each other; of all columns, or of halves
    columns = plan.consumer_mma_tile[1] // n
    turns, waits = (1, 2) if not pipeline.promoted else (3, 3) if columns == 1 else (3, 6)
    assert products == turns * plan.k_blocks * pipeline.consumer_tile[0] // m * columns
    issued = {name: count for name, count in report.instructions.items() if "GMMA" in name}
    assert sum(issued.values()) == products
    assert not [name for name in issued if name.endswith(".SAT")]  # int8: wraps past 32 bits, never clamps
    types = f".{plan.operands.a.dtype}.{plan.operands.b.dtype}".upper()
    assert report.count("QGMMA") in (0, sum(count for name, count in issued.items() if types in name))
    assert report.count("WARPGROUP") == turns * (columns if pipeline.promoted else 1) + waits
    if plan.tiled_mma.atom.a_source == "register":  # a load for each element that a thread multiplies
        of_thread = pipeline.consumer_tile[0] * plan.cta_tile[2] // 128
        others = report.count("LDS.") + plan.scheduler.split.is_split
        assert of_thread <= report.count("LDS") - others <= of_thread + plan.has_c * product(pipeline.consumer_tile)

    # Loads: a box of A and of B for each share of a k-tile, multicast where CTAs share it
    dim = "3D" if plan.operands.batched else "2D"
    fills = pipeline.stages if pipeline.kind == "single" else 1
    expected = {True: 0, False: 0}
    for operand, box in (("a", plan.a.load), ("b", plan.b.load)):
        expected[box.multicast > 1] += fills * boxes(plan, operand)
    multicast = report.count(f"UTMALDG.{dim}.MULTICAST")
    own = report.count(f"UTMALDG.{dim}") - multicast - expected[False]
    if store.fetched is not None:
        of_c = product(store.epi_tile) // product(store.fetched.box)
        assert own % of_c == 0
        assert own // of_c >= product(store.epi_tiles(pipeline.consumer_tile))
    else:
        assert own == 0
    assert multicast == expected[True]

    # The way out
    if store.layout is None:
        assert report.count("UTMASTG") == 0
        stores = product(pipeline.consumer_tile) // 128 // plan.store.atom.values
        assert report.count("STG") == stores + parts_stored(plan)
    else:
        # Overlapped: the tile is stored during the MMAs of the next tile, and after them if that tile has too few
        count = product(store.epi_tiles(pipeline.consumer_tile)) * (1 + pipeline.overlapped)
        check_leaving(plan, report, count, dim)
    check_parts(plan, report)

    given = [role.registers for role in plan.roles if role.registers]
    assert report.count("USETMAXREG") == (2 if given else 0)
    if given:
        numbers = {int(text) for text in re.findall(r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32\s+(\d+)", kernel.ptx)}
        assert numbers == set(given)


def parts_stored(plan: GemmPlan) -> int:
    """Stores of 16 bytes that write a thread's accumulators to the workspace, and the store of a tile's counter."""
    return product(plan.consumer_tile) // 128 // ACCUMULATOR_VECTOR + 1 if plan.scheduler.split.is_split else 0


def sums_received(plan: GemmPlan) -> int:
    """Return how often a thread reads 16 bytes of accumulators that the CTAs of its cluster have sent."""
    return product(plan.consumer_tile) // 128 // ACCUMULATOR_VECTOR * plan.cluster_k if plan.cluster_k > 1 else 0


def check_parts(plan: GemmPlan, report: ResourceReport) -> None:
    """Where K is split.

    An atomic increment of the semaphore, stores or loads of accumulators, and a signal; otherwise none of them.
    """
    counts = [report.count(name) for name in ("ATOMG.E.ADD", "REDG.E.ADD", "LDG.E.STRONG")]
    assert counts == [int(plan.scheduler.split.is_split)] * 3
    if plan.scheduler.split.is_split:
        vectors = parts_stored(plan) - 1
        assert report.count("STG.E.128") == vectors
        assert report.count("LDG.E.128") >= 2 * vectors  # K splits before this one, and after it


def check_leaving(plan: GemmPlan, report: ResourceReport, epi_tiles: int, dim: str) -> None:
    """Into an epilogue stage by stmatrix or by pairs of neighbours; out of it by TMA, or by 16 bytes of a thread, or by
    what D is aligned to: four lines in a loop, or 16 of its reads, and one line at a time where too few are left."""
    store, d = plan.store, plan.operands.d
    each = product(store.epi_tile) // 128
    if isinstance(store, TmaStore):
        of_warp = 4 if store.box.box[1] < store.epi_tile[0] and d.major == "n" else 1
        stores = product(store.epi_tile) // product(store.box.box) // of_warp
        assert report.count(f"UTMASTG.{dim}") == epi_tiles * stores
        assert report.count("STG") == parts_stored(plan)
    elif store.copy.atom.bits == 128:
        accesses = epi_tiles * each * d.dtype.bits // 128
        assert report.count("LDS.128") == accesses + sums_received(plan)
        assert report.count("STG.E.128") == accesses
        assert report.count("UTMASTG") == 0
    else:
        bits, along = store.copy.atom.bits, "mn".index(d.major)
        of_line = store.epi_tile[along] // size(store.copy.tiler_mn[along])
        lines = each * d.dtype.bits // bits // of_line
        at_once = min(lines, 4, max(1, 16 // of_line))
        accesses = epi_tiles * of_line * (at_once + (at_once > 1))
        assert report.count("STG") == accesses + parts_stored(plan)
        width = {8: ".U8", 16: ".U16", 32: "", 64: ".64"}[bits]
        assert report.instructions[f"STG.E{width}"] == accesses + (parts_stored(plan) > 0) * (bits == 32)
        assert report.count("UTMASTG") == 0
    if d.dtype.bits == 16:
        matrices = 4 if store.epi_tile[1] % 16 == 0 else 2  # of 8 columns, two below each other
        assert report.count("STSM") == epi_tiles * store.epi_tile[1] // (4 * matrices)
        assert {name for name in report.instructions if name.startswith("STSM")} == {
            f"STSM.16.{'MT88' if d.major == 'm' else 'M88'}.{matrices}"
        }
    else:
        semaphores = int(plan.scheduler.split.is_split)
        assert report.count("STS") == epi_tiles * each // plan.store.atom.values + semaphores
        if d.dtype.bits == 8:  # each two sums of a thread by one saturating conversion, with none to spare
            assert report.count(f"F2FP.SATFINITE.{d.dtype.name.upper()}.F32") == epi_tiles * each // 2
            assert report.count("STS.U16") == epi_tiles * each // 2 or d.major == "m"
    if plan.has_c and store.fetched is None:
        c = plan.operands.c
        pairs = 2 if c.major == "n" and c.align_elems >= 2 else 1
        assert report.count("LDG") == epi_tiles * each // pairs


@in_groups("names", ALONE)
def test_each_component_alone(names):
    check_each([on_few_ctas(name) for name in names], check, are_kept=True)


@pytest.mark.thorough
@in_groups("names", PAIRS)
def test_each_pair_that_meets(names):
    check_each([on_few_ctas(name) for name in names], check, are_kept=True)


@pytest.mark.parametrize("name", with_thorough(PACKED, {*PACKED} & {*PAIRS}))
def test_what_packs_an_operand(name):
    """One kernel loads as many bytes at a time as alignment allows, and stores 16. The GEMM starts while it runs."""
    plan = on_few_ctas(name)
    sections = compile_plan(plan).sass.split(".section\t.text.")
    (own,) = [text for text in sections if text.startswith("kernel_cutlass_repack_kernel")]
    (gemm,) = [text for text in sections if text.startswith("kernel_cutlass_kernel")]
    accesses = set(_ACCESS.findall(own))
    loads = {8: "LDG.E.U8", 16: "LDG.E.U16", 32: "LDG.E", 64: "LDG.E.64", 128: "LDG.E.128"}
    loaded = {loads[repack.load.atom.bits] for repack in plan.repacks}
    assert {"LDS.128", "STG.E.128"} <= accesses
    assert accesses & set(loads.values()) == loaded
    puts = accesses - loaded - {"LDS.128", "STG.E.128"}
    assert puts
    assert all(put.startswith("STS") for put in puts)
    assert own.index("ACQBULK") < own.index("PREEXIT")  # griddepcontrol.wait, .launch_dependents
    assert own.index("ACQBULK") < own.index("LDG")
    assert ("PREEXIT" in gemm) is launches_of(plan)["gemm"].releases
    assert gemm.index("SYNCS.EXCH") < gemm.index("ACQBULK") < gemm.index("UTMALDG")


def test_the_resources_are_those_of_the_gemm():
    """Which is shorter here than what packs 64 bytes a thread, one by one."""
    operands = Operands.of("e4m3", layout="tn", out="f32", align_bytes=4).fitted(9, 9, 9)
    plan = plan_named("sm90_64x16+repack", operands)
    assert compile_plan(plan).resources.count("QGMMA") == 4


# The most accumulators with each way out, each schedule and each way to divide K; two rasters that no form has.
LARGEST = ("sm90_wide_2x1", "sm90_overlapped_2x1", "sm90_256x160", "sm90_fixup")
NAMED = ("sm90_multistage", "sm90_hilbert")


@in_groups("names", LARGEST)
def test_the_largest_named_plans_are_what_they_say(names):
    check_each([named(name) for name in names], check)


@pytest.mark.thorough
@in_groups("names", NAMED)
def test_named_plans_are_what_they_say(names):
    check_each([named(name) for name in names], check)


@pytest.mark.thorough
def test_a_named_plan_with_c():
    check(compile_plan(named("sm90_wide_2x1", "nn", with_c=True)))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("sm90:tile=192x128x128", "e4m3"),
        pytest.param("sm90_wide_along_n", "e4m3", marks=pytest.mark.slow),
        pytest.param("sm90_wide_along_n_1x2", "bf16", marks=pytest.mark.slow),
        pytest.param("sm90_wide_along_n_2x1", "e4m3", marks=pytest.mark.slow),
        pytest.param("sm90_stream", "e4m3", marks=pytest.mark.slow),
        pytest.param("sm90_fixup", "e4m3", marks=pytest.mark.slow),
        pytest.param("sm90_promoted_2x1", "e4m3", marks=pytest.mark.slow),
    ],
)
def test_a_d_of_bytes_beside_many_sums_does_not_spill(name, dtype):
    """With epilogue tiles of 64 columns and more these spilled 12 to 144 times (DSL 4.8.1)."""
    plan = plan_named(name, Operands.of(dtype, layout="nt", out="e4m3"))
    resources = compile_plan(plan).resources
    assert (resources.spills, resources.stack_bytes) == (0, 0)
    assert plan.store.epi_tile[1] == 32
