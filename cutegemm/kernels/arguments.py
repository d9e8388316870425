"""Arguments that a kernel is traced with: they stand for all that its plan serves."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.dtypes import f32, tf32
from cutegemm.kernels import lower
from cutegemm.plan.memory.workspace import needs_workspace
from cutegemm.plan.plan import GemmPlan

SPACE_ALIGN_BYTES = 16  # of a workspace


def fake_arguments(plan: GemmPlan) -> tuple[Any, ...]:
    """a, b, c, d, a workspace where there is one, alpha, beta, the stream: any extents, any leading strides.

    A workspace is bytes; where a plan with a pipeline splits K, its counters of arrivals come first.
    """
    acc = plan.operands.acc
    scale = lower.dtype(acc if acc.bits > 32 else f32)
    counted = plan.pipeline is not None and plan.split.is_split
    spaces = (cutlass.Int32, cutlass.Uint8) if counted else (cutlass.Uint8,)
    return (
        *[_fake_tensor(plan, name) for name in "abcd"],
        *[_fake_space(kind) for kind in spaces if needs_workspace(plan)],
        scale(1.0),
        scale(0.0),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def _fake_space(kind: Any) -> cute.Tensor:
    return cute.runtime.make_fake_compact_tensor(kind, (cute.sym_int64(),), assumed_align=SPACE_ALIGN_BYTES)


def _fake_tensor(plan: GemmPlan, name: str) -> cute.Tensor:
    """(rows, columns) or (L, rows, columns) as the caller has it; TMA asks of strides alone, not of extents."""
    operand, batched = getattr(plan.operands, name), plan.operands.batched
    align = operand.align_elems
    by_box = plan.pipeline is not None and all(packing.name != name for packing in plan.packs)
    is_first = operand.major == ("k" if name == "b" else "m")
    extents = [
        cute.sym_int32(divisibility=align if major and not by_box else 1)
        for major in (is_first, not is_first)
    ]
    leading = cute.sym_int64(divisibility=align)
    strides: list[Any] = [1, leading] if is_first else [leading, 1]
    if batched:
        extents = [cute.sym_int32(), *extents]
        strides = [cute.sym_int64(divisibility=align), *strides]
    kind = operand.dtype
    if kind is tf32 and plan.rounding != "rne":  # the caller's are f32; of tf32, TMA rounds them
        kind = f32
    return cute.runtime.make_fake_tensor(
        lower.dtype(kind), tuple(extents), tuple(strides), assumed_align=operand.align_bytes
    )
