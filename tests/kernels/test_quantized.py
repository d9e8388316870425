"""Machine code of plans that quantize D: two shuffles and one store for each scale of a thread, without spills."""

from __future__ import annotations

import pytest

pytest.importorskip("cutlass.cute", reason="the CuTe DSL is not installed")
pytest.importorskip("tvm_ffi", reason="apache-tvm-ffi is not installed")

from cutegemm.compile.plans import compile_plan
from cutegemm.plan.store.quantized import SHARERS, block_groups
from tests.quantized import form


@pytest.mark.parametrize("name", ["128x128", "64x256", "gated", "block_scaled"])
def test_instructions(name: str) -> None:
    plan = form(name)
    report, scales = compile_plan(plan, "sm_90a").resources, len(set(block_groups(plan)))
    assert scales == {"64x256": 4}.get(name, 2)
    assert report.count("SHFL.BFLY") == len(SHARERS) * scales
    assert report.count("STG") == scales  # TMA stores D
    assert (report.count("LDL"), report.count("STL"), report.stack_bytes) == (0, 0, 0)
