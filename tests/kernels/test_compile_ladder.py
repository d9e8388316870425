"""Machine code of the SIMT ladder, of packing and of split K."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.build import simt_plan
from cutegemm.choice.catalog import plan_named
from cutegemm.choice.ladders.simt import SIMT_LADDER
from cutegemm.compile import cubin
from cutegemm.compile.plans import compile_plan
from cutegemm.plan import Operands
from tests.kernels.plans import check_each, in_groups

# Steps that other tests compile as well
COMPILED = (
    "sgemm_01_naive", "sgemm_02_tiles", "sgemm_05_row_of_4", "sgemm_08_transposed", "sgemm_09_double_buffer",
    "sgemm_13_split_last", "sgemm_14_async_3",
)  # fmt: skip
OTHERS = (
    "sgemm_06_vectors", "sgemm_07_square_of_8", "sgemm_10_swizzle", "sgemm_11_warp_tiles", "sgemm_12_warp_pad",
    "sgemm_13_split_kernel", "sgemm_15_best", "sgemm_15_stream",
)  # fmt: skip


@in_groups("names", COMPILED)
def test_no_step_spills_or_takes_more_than_it_may(names):
    check_each([SIMT_LADDER.step(name).build() for name in names], no_more_than_it_may, are_kept=True)


@pytest.mark.thorough
@in_groups("names", OTHERS)
def test_nor_does_a_larger_one(names):
    check_each([SIMT_LADDER.step(name).build() for name in names], no_more_than_it_may, are_kept=True)


def no_more_than_it_may(kernel):
    assert kernel.violations() == []
    report = kernel.resources
    assert (
        len(re.findall(rf"\.entry {cubin.GEMM_KERNELS}", kernel.ptx)) == 1
    )  # part of the kernel's name that its helpers do not have
    assert report.count("FFMA") > 0
    assert (report.count("BAR") == 0) == (kernel.plan.stages == 0)
    assert (report.count("LDGSTS") > 0) == any(x.atom.is_async for x in (kernel.plan.a.load, kernel.plan.b.load))


def test_thread_numbers_are_read_outside_of_the_loops():
    """What step 3 of the ladder is about: they are read at the start, and once more before the end."""
    for loop in loops_of(compile_plan(SIMT_LADDER.step("sgemm_02_tiles").build())):
        assert not any(re.search(r"\bS2U?R\b.*TID", line) for line in loop)


def loops_of(kernel):
    """The lines of each loop that multiplies."""
    lines = cubin.listing_of(kernel.sass, kernel.resources.kernel).splitlines()
    labels = {m[1]: i for i, line in enumerate(lines) if (m := re.match(r"\s*(\.L_x_\d+):", line))}
    jumps = [
        (labels[m[1]], i) for i, line in enumerate(lines) if "BRA" in line and (m := re.search(r"(\.L_x_\d+)", line))
    ]
    loops = [lines[first:last] for first, last in jumps if first < last]
    loops = [loop for loop in loops if any("FFMA" in line for line in loop)]
    assert loops
    return loops


def first_use(loop, number, registers):
    """The share of a loop's multiply-adds that stand between a line and the first one that reads some registers."""
    done, names = 0, re.compile("|".join(rf"\bR{register}\b" for register in registers))
    for line in loop[number + 1 :] + loop[:number]:
        text = re.sub(r"/\*.*?\*/|@!?U?P\w+", "", line)
        _, _, operands = text.strip().partition(" ")
        read = operands if "ST" in text else operands.partition(",")[2]
        if names.search(read):
            break
        done += "FFMA" in line
    return done / sum("FFMA" in line for line in loop)


@pytest.mark.parametrize(
    ("name", "layout"),
    [("simt_128x64", "nt"), pytest.param("simt_128x64/s396", "nn", marks=pytest.mark.thorough)],
)
def test_nothing_waits_for_a_load_before_the_products(name, layout):
    """Values that are loaded to registers are first read by their store, after most of a k-tile's MMAs."""
    loops = loops_of(compile_plan(plan_named(name, Operands.of("f32", layout=layout))))
    loop = min((each for each in loops if any("LDG." in line for line in each)), key=len)
    loads = [(i, int(m[1])) for i, line in enumerate(loop) if (m := re.search(r"LDG\.E\.128 R(\d+),", line))]
    # Of 128 + 64 rows, 64 bytes each, 128 threads have as many
    assert len(loads) == {"nn": 4, "nt": 6}[layout]
    assert min(first_use(loop, i, range(first, first + 4)) for i, first in loads) > 0.5


def test_first_use_by_hand():
    """Of four multiply-adds two stand before the move that reads R5; a store reads all that it names."""
    products = ["/*0010*/ FFMA R0, R1, R2, R0 ;"] * 2
    loop = [
        "/*0000*/ @!P0 LDG.E.128 R4, desc[UR4][R8.64] ;",
        *products,
        "/*0040*/ @!P0 MOV R9, R5 ;",
        *products,
    ]
    assert first_use(loop, 0, range(4, 8)) == 0.5
    assert first_use([*loop[:3], *products, "/*0050*/ STS [R3], R7 ;"], 0, range(4, 8)) == 1.0


@pytest.mark.thorough
def test_packing_leaves_the_mainloop_of_operands_that_need_none():
    """The kernel that multiplies is the one for m-major A and n-major B, all of it by 128-bit cp.async."""
    packed = plan_named("simt_256x128+repack", Operands.of("f32", layout="nt"))
    plain = plan_named("simt_256x128", Operands.of("f32", layout="tn"))
    reports = [compile_plan(plan).resources for plan in (packed, plain)]
    for opcode in ("FFMA", "LDS", "LDGSTS", "BAR"):
        assert reports[0].count(opcode) == reports[1].count(opcode)
    assert reports[0].registers <= reports[1].registers + 8
    sass = compile_plan(packed).sass
    assert sass.count(".section\t.text.kernel_cutlass_repack_kernel") == 1


@pytest.mark.thorough
def test_split():
    tiles = {"block": (64, 64, 8), "warp": (32, 32), "thread": (8, 4), "quad": (2, 2)}
    ways = [("kernel", "f64"), ("last", "f16")]  # SIMT plans for f32 are steps of the ladder
    check_each(
        [simt_plan(Operands.of(dtype), **tiles, split_k=3, reduction=how) for how, dtype in ways],
        meets_its_parts,
    )


def meets_its_parts(kernel):
    assert kernel.violations() == []
    by_atomics = kernel.resources.count("ATOMG") + kernel.resources.count("ATOM") > 0
    assert by_atomics == (kernel.plan.scheduler.split.reduction == "last")
    assert kernel.needs_workspace


def register_stalls(sass: str) -> float:
    """Cycles that a multiply-add waits for its operands, on average over the loops of a kernel.

    The register file has two banks, even and odd; each gives one register a cycle; an operand marked
    `reuse` is kept for the same place of the next instruction. A bank may lag by two cycles. (Volta's banks:
    Jia et al., "Dissecting the NVIDIA Volta GPU Architecture via Microbenchmarking", 2018.)
    """
    held: dict[int, int] = {}
    behind, cycle, count = [0, 0], 0, 0
    for line in sass.splitlines():
        found = re.match(r"\s*/\*[0-9a-f]+\*/\s+FFMA(?:\.\w+)* (.*?);?\s*(?:/\*|$)", line)
        if found is None:
            held = {}
            continue
        sources = [re.fullmatch(r"-?R(\d+)(\.reuse)?", text.strip()) for text in found[1].split(",")[1:4]]
        kept, cycle, count = {}, cycle + 1, count + 1
        for place, register in enumerate(sources):
            if register is None:  # a constant, or RZ
                continue
            number = int(register[1])
            if held.get(place) != number:
                behind[number % 2] = max(behind[number % 2], cycle - 1) + 1
            if register[2]:
                kept[place] = number
        held = kept
        cycle += max(0, max(behind) - cycle - 2)
    return (cycle - count) / count


def test_register_stalls_by_hand():
    """Three even registers: one cycle, and two more for the bank, which may lag by two.

    The second one finds it lagging by two cycles; it needs three more, and waits for them. With R4 kept it needs two.
    """
    one = "/*0000*/  FFMA R0, R2, R4, R0 ;"
    assert register_stalls(one) == 0
    assert register_stalls(f"{one}\n{one}") == 1.0
    kept = one.replace("R4", "R4.reuse")
    assert register_stalls(f"{kept}\n{one}") == 0.5
    assert register_stalls("\n".join(["/*0000*/  FFMA R1, R2, R4.reuse, R1 ;"] * 9)) == 0


@pytest.mark.parametrize("suffix", ["/k2", pytest.param("/s132", marks=pytest.mark.thorough)])
def test_shared_tiles_do_not_slow_the_mainloop(suffix):
    """Both have equally many instructions, and equally few bank conflicts of registers.

    What is written at the end decides it.
    """
    ops = Operands.of("f32")
    plain, shared = [compile_plan(plan_named(f"simt_128x256{end}", ops)) for end in ("", suffix)]
    assert shared.violations() == []
    listings = [cubin.listing_of(kernel.sass, kernel.resources.kernel) for kernel in (plain, shared)]
    stalls = [register_stalls(text) for text in listings]
    assert stalls[0] < 0.12
    assert stalls[1] < stalls[0] + 0.02
    for opcode in ("LDS", "LDGSTS"):
        assert shared.resources.count(opcode) == plain.resources.count(opcode)
