"""Machine code of the kernels of the rows of experts: accesses of 16 bytes, all rows at once, no atomics, no spills."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.compile import cubin
from cutegemm.compile.plans import compile_rows
from cutegemm.dtypes import bf16, f32
from cutegemm.plan.memory.rows import RowKernel, SortRows, SpreadRows, SumRows, TotalRows

# instructions that must be present, and their number
KERNELS: list[tuple[RowKernel, dict[str, int]]] = [
    (SortRows(256, 64), {}),
    (SortRows(8, 32, 8), {}),
    (SpreadRows(bf16, 8, 6, f32), {"LDG.E.128": 1, "STG.E.128": 6}),
    (SpreadRows(f32, 4, 2), {"LDG.E.128": 1, "STG.E.128": 2}),
    (SumRows(bf16, 8, 6), {"LDG.E.128": 6, "STG.E.128": 1}),
    (TotalRows(bf16, 8, f32), {}),
]


@pytest.mark.parametrize(("kernel", "counts"), KERNELS, ids=lambda each: str(each) if each else "")
def test_instructions(kernel: RowKernel, counts: dict[str, int]) -> None:
    folder, _ = compile_rows(kernel, "sm_90a")
    path = folder / "kernel.cubin"
    report = cubin.resources(path.read_bytes(), cubin.disassemble(path))
    assert {name: report.count(name) for name in counts} == counts
    assert [report.count(name) for name in ("LDL", "STL", "ATOM", "ATOMG", "ATOMS", "RED")] == [0] * 6
    assert report.stack_bytes == 0


def test_counters_fit_to_shared_memory() -> None:
    """48 KB hold the counters of each warp, and two of sums: 34 x 257, 32 x 371 and 3 x 4000 numbers; not 3 x 7000.

    In a cluster of 8 CTAs they hold 8 more for the counts of each CTA: 42 x 257 and 32 x 371.
    """
    assert [SortRows(count - 1, 32).warps for count in (257, 371, 4000, 7000)] == [32, 30, 1, 0]
    assert [SortRows(count - 1, 32, 8).warps for count in (257, 371)] == [32, 22]
