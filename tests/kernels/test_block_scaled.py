"""Machine code of block-scaled plans: MMAs, loads and multiply-adds as planned, in registers that do not spill."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.compile.plans import CompiledKernel
from cutegemm.layout import product
from cutegemm.plan.mainloop.block_scaled import scales_of
from tests.kernels.plans import check_each, in_groups
from tests.scaled import FORMS, form

TURNS = 3  # k-tiles in the code: an odd one, and two of the loop
COMPILED = (
    "rows_blocks",
    "rows_blocks_halves_2x1",
    "rows_rows_112_1x2",
    "blocks_rows",
    "blocks_rows_pingpong",
    "at_once_2x1",
    "at_once_192",
)


def check(kernel: CompiledKernel) -> None:
    plan, report = kernel.plan, kernel.resources
    assert kernel.violations() == []
    assert (report.count("LDL"), report.count("STL"), report.stack_bytes) == (0, 0, 0)
    m, n, k = plan.tiled_mma.atom.shape_mnk
    blocks = plan.b_column_blocks
    atoms = product(plan.consumer_mma_tile) // (m * n)
    assert report.count(f"QGMMA.{m}x{n}x{k}.F32.E4M3.E4M3") == TURNS * plan.k_blocks * atoms
    assert report.count("WARPGROUP.ARRIVE") == TURNS * blocks
    assert report.count("WARPGROUP.DEPBAR") == TURNS * blocks  # the program's waits, and no others
    # One multiply-add for each accumulator of each k-tile that is promoted
    assert report.count("FFMA") == TURNS * product(plan.consumer_mma_tile) // 128
    rows, columns = scales_of(plan)
    of_blocks = sum(each.registers for each in (rows, columns) if each.by_block)
    semaphores = int(plan.scheduler.split.is_split)
    assert report.count("SHFL") == TURNS * of_blocks + semaphores  # ptxas adds once for all lanes, and sends the result
    if not semaphores:  # two loads before the loop, and one in it for two k-tiles
        assert report.count("LDG") == 3 * of_blocks
    pairs = report.count("LDS.64")
    assert pairs == (0 if columns.by_block else TURNS * columns.registers // 2)
    assert report.count("LDS") - pairs - semaphores == (0 if rows.by_block else TURNS * rows.registers)
    load = f"UTMALDG.{2 + plan.operands.batched}D"
    multicast = report.count(f"{load}.MULTICAST")
    assert report.count(load) == len(plan.streams)
    assert multicast == sum(stream.multicast > 1 for stream in plan.streams)


@in_groups("names", COMPILED)
def test_compiled(names: list[str]) -> None:
    check_each([form(name, out="bf16") for name in names], check)


@pytest.mark.thorough
@in_groups("names", [name for name in FORMS if name not in (*COMPILED, "any_columns")])
def test_all_forms(names: list[str]) -> None:
    check_each([form(name, out="bf16") for name in names], check)
