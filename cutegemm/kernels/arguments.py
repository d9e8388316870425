"""Arguments with which a kernel is traced. They stand for all tensors that its plan accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute

from cutegemm.dtypes import f32, tf32
from cutegemm.kernels import lower
from cutegemm.plan.memory.workspace import needs_workspace
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand
from cutegemm.plan.signature import Argument, signature_of, tensor_names

SPACE_ALIGN_BYTES = 16  # alignment of a workspace


@dataclass(frozen=True)
class LaunchArguments:
    """The arguments of a compiled GEMM function (the host function that launches the kernel), by their meaning.

    A caller passes them in the order (a, b, *mainloop, *tensors, d, *results, *spaces, *scalars, stream). The function
    of a plan with swap A/B takes the matrices of A @ B; here they are those of B^T @ A^T.

    a, b       the matrices A and B
    mainloop   further mainloop operands, such as block scales, by name, in the order of `operands.of_mainloop`
    tensors    operands of the epilogue in memory, such as C, in the order of `epilogue.tensors`
    d          the matrix D
    results    auxiliary outputs and results of reductions, in the order of `epilogue.beside`
    spaces     (workspace,) in bytes, if the plan needs one; () if not; (semaphores, workspace) if a plan with warp
               roles splits K
    scalars    scalars of the epilogue, such as alpha, in the order of `epilogue.scalars`
    stream     CUDA stream of the launch
    """

    a: Any
    b: Any
    mainloop: dict[str, Any]
    tensors: tuple[Any, ...]
    d: Any
    results: tuple[Any, ...]
    spaces: tuple[Any, ...]
    scalars: tuple[Any, ...]
    stream: Any


def launch_arguments(plan: GemmPlan, arguments: Sequence[Any]) -> LaunchArguments:
    """Sort the arguments of a compiled GEMM function by meaning, and exchange A and B if the plan swaps A/B.

    arguments   in the caller's order: a, b, further mainloop operands, epilogue inputs, d, further results, workspace,
                scalars
    """
    epilogue = plan.epilogue
    a, b, *rest, stream = arguments
    names = tensor_names(plan)
    first_scalar, space = len(rest) - len(epilogue.scalars), len(names) - 2
    of_launch = dict(zip(names, (a, b, *rest), strict=False))
    if plan.swap_ab:
        of_launch["a"], of_launch["b"] = b, a
        operands = {name: plan.operands.matrix(name) for name in of_launch}
        matrices = [name for name, operand in operands.items() if not operand.broadcast and not operand.modes]
        of_launch |= {name: _exchanged(of_launch[name]) for name in matrices}
    return LaunchArguments(
        of_launch["a"],
        of_launch["b"],
        {name: of_launch[name] for name in plan.operands.of_mainloop},
        tuple([of_launch[name] for name in epilogue.tensors]),
        of_launch["d"],
        tuple([of_launch[name] for name in epilogue.beside]),
        tuple(rest[space:first_scalar]),
        tuple(rest[first_scalar:]),
        stream,
    )


def _exchanged(tensor: cute.Tensor) -> cute.Tensor:
    """Return a view of a matrix, or of a batch of them (batch mode first), with rows and columns exchanged."""
    *batch, rows, columns = range(cute.rank(tensor))
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, mode=[*batch, columns, rows]))


def scalar_type(plan: GemmPlan) -> Any:
    """Return the DSL type of an epilogue's scalars: f32, or f64 if the accumulators are f64."""
    acc = plan.operands.acc
    return lower.dtype(acc if acc.bits > 32 else f32)


def fake_arguments(plan: GemmPlan) -> tuple[Any, ...]:
    """Return placeholder tensors and scalars with which a plan's kernel is traced, in the order of its arguments.

    The tensors have symbolic extents and strides, with the divisors (alignments) that the plan assumes.
    """
    counted = plan.body.has_roles and plan.scheduler.split.is_split
    spaces = (cutlass.Int32, cutlass.Uint8) if counted else (cutlass.Uint8,)
    return (
        *[_fake_tensor(plan, argument) for argument in signature_of(plan)],
        *[_fake_space(kind) for kind in spaces if needs_workspace(plan)],
        *[scalar_type(plan)(0.0) for _ in plan.epilogue.scalars],
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def _fake_space(kind: Any) -> cute.Tensor:
    """Return a one-dimensional placeholder tensor of symbolic size, to trace a kernel with a workspace or semaphores.

    kind   element type in the DSL
    """
    return cute.runtime.make_fake_compact_tensor(kind, (cute.sym_int64(),), assumed_align=SPACE_ALIGN_BYTES)


def _fake_tensor(plan: GemmPlan, argument: Argument) -> cute.Tensor:
    """Return a placeholder tensor with symbolic extents and strides for one argument of the compiled function.

    argument   element type, modes and divisors of the tensor
    """
    kind = argument.dtype
    if kind is tf32 and plan.rounding != "rne":  # the caller passes f32; TMA rounds only tensors declared as tf32
        kind = f32
    extents = [cute.sym_int32(divisibility=divisor) for divisor in argument.extents]
    strides = [1 if each is None else cute.sym_int64(divisibility=each) for each in argument.strides]
    return cute.runtime.make_fake_tensor(
        lower.dtype(kind), tuple(extents), tuple(strides), assumed_align=argument.align_bytes
    )


def seen_as(tensor: cute.Tensor, operand: Operand, batched: bool, like: cute.Tensor) -> cute.Tensor:
    """View an epilogue operand, such as a bias, with the modes (M, N, L) of D; it has stride 0 along modes it lacks.

    A bias of N elements, for example, has stride 0 along M. The view of a row of a gated epilogue has the gates only;
    `glu.up_of` returns the up projections.

    tensor    the operand in memory
    operand   its element type, majorness and broadcast modes
    batched   whether the tensor has a batch mode, which comes first
    like      D as (M, N, L), whose extents the view has
    """
    stride = tensor.layout.stride
    if operand.broadcast:
        by_batch = stride[0] if batched else 0
        along_n = 0 if "n" in operand.broadcast else 2 if operand.gated == "pairs" else 1
        strides = (0 if "m" in operand.broadcast else 1, along_n, by_batch)
        return cute.make_tensor(tensor.iterator, cute.make_layout(like.shape, stride=strides))
    order = [1, 2, 0] if batched else [0, 1]
    matrix = cute.select(tensor.layout, mode=order)
    return cute.make_tensor(tensor.iterator, matrix if batched else cute.append(matrix, cute.make_layout(1, stride=0)))


def operands_seen(
    plan: GemmPlan, given: LaunchArguments, like: cute.Tensor
) -> tuple[tuple[cute.Tensor, ...], tuple[cute.Tensor, ...]]:
    """View the epilogue's tensors, and its auxiliary outputs, with the modes (M, N, L) of D.

    A row, column or single element has a stride of 0 along the modes that it does not have. Scales of a quantized D are
    (M, N / 128, L).

    given     the arguments of the launch, which contain these tensors
    like      D as (M, N, L), whose extents the views have
    returns   (views of the tensors, views of the auxiliary outputs), in the order of the arguments
    """
    epilogue = plan.epilogue
    named = ((epilogue.tensors, given.tensors), ((*epilogue.outputs[1:], *epilogue.scales), given.results))
    return tuple(  # type: ignore[return-value]
        [
            tuple(
                [
                    seen_as(tensor, plan.operands.matrix(name), plan.operands.has_batch(name), like)
                    for name, tensor in zip(names, tensors, strict=False)
                ]
            )
            for names, tensors in named
        ]
    )
