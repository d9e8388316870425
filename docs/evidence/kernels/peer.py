"""A GEMM of another project in the CuTe DSL, compiled for one problem, to be timed next to the plans."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute

from cutegemm.kernels import lower
from cutegemm.plan.problem import Operand, Problem

_ATOMS_MNK = (2, 2, 1)  # warps of the example's own default


class TensorOpExample:
    """CUTLASS's example for Ampere with the interface of a plan's kernel: (a, b, d, stream), without a batch.

    made   an instance of its class `TensorOpGemm`, which takes (M, K, L), (N, K, L), (M, N, L) and a stream
    """

    def __init__(self, made: Any) -> None:
        self.made = made

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, stream):
        self.made(self.batch_of_one(a, 0, 1), self.batch_of_one(b, 1, 0), self.batch_of_one(d, 0, 1), stream)

    def batch_of_one(self, tensor: cute.Tensor, first: int, second: int) -> cute.Tensor:
        """Return a matrix with its modes in CuTe's order, and a batch mode of 1."""
        matrix = cute.select(tensor.layout, mode=[first, second])
        return cute.make_tensor(tensor.iterator, cute.append(matrix, cute.make_layout(1, stride=0)))


def compile_tensorop(kind: Any, problem: Problem) -> Any:
    """Return the example's kernel, compiled for the extents of a problem and called with (a, b, d) as in torch.

    kind      class `TensorOpGemm` of the example
    """
    ops = problem.operands
    types = [lower.dtype(t) for t in (ops.a.dtype, ops.d.dtype, ops.acc)]
    arguments = (
        _fake(ops.a, (problem.m, problem.k), "m"),
        _fake(ops.b, (problem.k, problem.n), "k"),
        _fake(ops.d, (problem.m, problem.n), "m"),
        cute.runtime.make_fake_stream(use_tvm_ffi_env_stream=True),
    )
    return cute.compile(TensorOpExample(kind(*types, _ATOMS_MNK)), *arguments, options="--enable-tvm-ffi")


def _fake(operand: Operand, shape: tuple[int, int], first_mode: str) -> cute.Tensor:
    order = (0, 1) if operand.major == first_mode else (1, 0)
    return cute.runtime.make_fake_compact_tensor(
        lower.dtype(operand.dtype), shape, stride_order=order, assumed_align=operand.align_bytes
    )
