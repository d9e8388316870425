"""Arguments that a kernel is traced with: they stand for all that its plan serves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.dtypes import f32, tf32
from cutegemm.kernels import lower
from cutegemm.plan.epilogue import launch_operands
from cutegemm.plan.memory.workspace import needs_workspace
from cutegemm.plan.plan import GemmPlan

SPACE_ALIGN_BYTES = 16  # of a workspace


@dataclass(frozen=True)
class LaunchArguments:
    """The arguments of a compiled function, in this order: (a, b, *tiles, d, *spaces, *scalars, stream).

    tiles     of the epilogue: C, and further ones
    spaces    where the plan needs a workspace: its bytes; before them, where a plan with a pipeline splits K, its
              counters of arrivals
    scalars   of the epilogue: alpha, beta, and further ones
    """

    a: Any
    b: Any
    tiles: tuple[Any, ...]
    d: Any
    spaces: tuple[Any, ...]
    scalars: tuple[Any, ...]
    stream: Any


def launch_arguments(plan: GemmPlan, arguments: Sequence[Any]) -> LaunchArguments:
    """The arguments of a compiled function by what they are."""
    tiles, scalars = launch_operands(plan.epilogue)
    a, b, *rest, stream = arguments
    d, first_scalar = len(tiles), len(rest) - len(scalars)
    return LaunchArguments(
        a, b, tuple(rest[:d]), rest[d], tuple(rest[d + 1 : first_scalar]), tuple(rest[first_scalar:]), stream
    )


def scalar_type(plan: GemmPlan) -> Any:
    """The type of an epilogue's scalars: f32, or f64 where sums are that."""
    acc = plan.operands.acc
    return lower.dtype(acc if acc.bits > 32 else f32)


def fake_arguments(plan: GemmPlan) -> tuple[Any, ...]:
    """The arguments of a compiled function, see `LaunchArguments`: any extents, any leading strides."""
    tiles, scalars = launch_operands(plan.epilogue)
    counted = plan.pipeline is not None and plan.split.is_split
    spaces = (cutlass.Int32, cutlass.Uint8) if counted else (cutlass.Uint8,)
    return (
        *[_fake_tensor(plan, name) for name in ("a", "b", *tiles, "d")],
        *[_fake_space(kind) for kind in spaces if needs_workspace(plan)],
        *[scalar_type(plan)(0.0) for _ in scalars],
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def _fake_space(kind: Any) -> cute.Tensor:
    return cute.runtime.make_fake_compact_tensor(kind, (cute.sym_int64(),), assumed_align=SPACE_ALIGN_BYTES)


def _fake_tensor(plan: GemmPlan, name: str) -> cute.Tensor:
    """(rows, columns) or (L, rows, columns) as the caller has it; TMA asks of strides alone, not of extents."""
    operand, batched = plan.operands.matrix(name), plan.operands.batched
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
