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
from cutegemm.plan.problem import Operand

SPACE_ALIGN_BYTES = 16  # of a workspace


@dataclass(frozen=True)
class LaunchArguments:
    """The arguments of a compiled function, in this order: (a, b, *tensors, d, *results, *spaces, *scalars, stream).

    The function of a plan that is transposed is given the matrices of A @ B; here they are those of B^T @ A^T.

    tensors   of the epilogue: C, and further ones
    results   of the epilogue beside D
    spaces    where the plan needs a workspace: its bytes; before them, where a plan with a pipeline splits K, its
              counters of arrivals
    scalars   of the epilogue: alpha, beta, and further ones
    """

    a: Any
    b: Any
    tensors: tuple[Any, ...]
    d: Any
    results: tuple[Any, ...]
    spaces: tuple[Any, ...]
    scalars: tuple[Any, ...]
    stream: Any


def launch_arguments(plan: GemmPlan, arguments: Sequence[Any]) -> LaunchArguments:
    """The arguments of a compiled function by what they are."""
    names = launch_operands(plan.epilogue)
    a, b, *rest, stream = arguments
    first_scalar, space = len(rest) - len(names.scalars), len(names.tensors) + 1 + len(names.results)
    of_launch = {"a": a, "b": b, **dict(zip((*names.tensors, "d", *names.results), rest, strict=False))}
    if plan.transposed:
        of_launch["a"], of_launch["b"] = b, a
        matrices = [name for name in of_launch if not plan.operands.matrix(name).broadcast]
        of_launch |= {name: _exchanged(of_launch[name]) for name in matrices}
    return LaunchArguments(
        of_launch["a"],
        of_launch["b"],
        tuple([of_launch[name] for name in names.tensors]),
        of_launch["d"],
        tuple([of_launch[name] for name in names.results]),
        tuple(rest[space:first_scalar]),
        tuple(rest[first_scalar:]),
        stream,
    )


def _exchanged(tensor: cute.Tensor) -> cute.Tensor:
    """A matrix as its transpose, or each of a batch, which comes first."""
    *batch, rows, columns = range(cute.rank(tensor))
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[*batch, columns, rows]))


def scalar_type(plan: GemmPlan) -> Any:
    """The type of an epilogue's scalars: f32, or f64 where sums are that."""
    acc = plan.operands.acc
    return lower.dtype(acc if acc.bits > 32 else f32)


def fake_arguments(plan: GemmPlan) -> tuple[Any, ...]:
    """The arguments of a compiled function, see `LaunchArguments`: any extents, any leading strides."""
    names = launch_operands(plan.epilogue)
    counted = plan.pipeline is not None and plan.split.is_split
    spaces = (cutlass.Int32, cutlass.Uint8) if counted else (cutlass.Uint8,)
    loaded = ("b", "a") if plan.transposed else ("a", "b")
    return (
        *[_fake_tensor(plan, name) for name in (*loaded, *names.tensors, "d", *names.results)],
        *[_fake_space(kind) for kind in spaces if needs_workspace(plan)],
        *[scalar_type(plan)(0.0) for _ in names.scalars],
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def _fake_space(kind: Any) -> cute.Tensor:
    return cute.runtime.make_fake_compact_tensor(kind, (cute.sym_int64(),), assumed_align=SPACE_ALIGN_BYTES)


def _fake_tensor(plan: GemmPlan, name: str) -> cute.Tensor:
    """A matrix of the plan's, (rows, columns) or (L, rows, columns); for a plan that is transposed, its transpose. TMA
    asks of strides alone, not of extents."""
    operand, batched = plan.operands.matrix(name), plan.operands.batched
    align = operand.align_elems
    if operand.broadcast:
        return _fake_broadcast(plan, operand)
    by_box = plan.pipeline is not None and all(packing.name != name for packing in plan.packs)
    is_first = operand.major == ("k" if name == "b" else "m")
    extents = [
        cute.sym_int32(divisibility=align if major and not by_box else 1)
        for major in (is_first, not is_first)
    ]
    leading = cute.sym_int64(divisibility=align)
    strides: list[Any] = [1, leading] if is_first else [leading, 1]
    if plan.transposed:
        extents, strides = extents[::-1], strides[::-1]
    if batched:
        extents = [cute.sym_int32(), *extents]
        strides = [cute.sym_int64(divisibility=align), *strides]
    kind = operand.dtype
    if kind is tf32 and plan.rounding != "rne":  # the caller's are f32; of tf32, TMA rounds them
        kind = f32
    return cute.runtime.make_fake_tensor(
        lower.dtype(kind), tuple(extents), tuple(strides), assumed_align=operand.align_bytes
    )


def _fake_broadcast(plan: GemmPlan, operand: Operand) -> cute.Tensor:
    """A row, a column or a single element: (extent) or (L, extent), whose elements lie side by side."""
    extents: list[Any] = [cute.sym_int32()]
    strides: list[Any] = [1]
    if plan.operands.batched:
        extents = [cute.sym_int32(), *extents]
        strides = [cute.sym_int64(divisibility=operand.align_elems), *strides]
    return cute.runtime.make_fake_tensor(
        lower.dtype(operand.dtype), tuple(extents), tuple(strides), assumed_align=operand.align_bytes
    )


def seen_as(tensor: cute.Tensor, operand: Operand, batched: bool, like: cute.Tensor) -> cute.Tensor:
    """An epilogue's operand as (M, N, L): one that stays the same along a mode has a stride of 0 there. Of a row beside
    a gated B, the numbers of the gates.

    like   D as (M, N, L)
    """
    stride = tensor.layout.stride
    if operand.broadcast:
        by_batch = stride[0] if batched else 0
        along_n = 0 if "n" in operand.broadcast else 2 if operand.gated == "pairs" else 1
        strides = (0 if "m" in operand.broadcast else 1, along_n, by_batch)
        return cute.make_tensor(tensor.iterator, cute.make_layout(like.shape, stride=strides))
    order = [1, 2, 0] if batched else [0, 1]
    matrix = cute.select(tensor.layout, mode=order)
    return cute.make_tensor(
        tensor.iterator, matrix if batched else cute.append(matrix, cute.make_layout(1, stride=0))
    )


def operands_seen(
    plan: GemmPlan, given: LaunchArguments, like: cute.Tensor
) -> tuple[tuple[cute.Tensor, ...], tuple[cute.Tensor, ...]]:
    """The epilogue's tensors and results of D's extents, each as (M, N, L)."""
    names, further = launch_operands(plan.epilogue), plan.epilogue.outputs[1:]
    return tuple(  # type: ignore[return-value]
        [
            tuple(
                [
                    seen_as(tensor, plan.operands.matrix(name), plan.operands.batched, like)
                    for name, tensor in zip(own, tensors, strict=False)
                ]
            )
            for own, tensors in ((names.tensors, given.tensors), (further, given.results))
        ]
    )
