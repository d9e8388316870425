"""Run plans on the GPU of this machine, and time them against the vendor library."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from cutegemm.errors import UnsupportedError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.run.gemm import gemm
from cutegemm.run.timing import DEVICE as DEVICE
from cutegemm.run.timing import alternating as alternating


def need_gpu() -> None:
    """Raise UnsupportedError if torch does not see a CUDA device."""
    if not torch.cuda.is_available():
        raise UnsupportedError("measurements need a CUDA device, and torch does not see one. Run it on a GPU machine.")


def run_plan(plan: GemmPlan, tensors: Mapping[str, Any], alpha: float, beta: float) -> np.ndarray:
    """Run the kernel of a plan on the GPU and return D as a numpy array of float32, or of float64 if D is float64.

    tensors       "a", "b", "c" and "out", from `torch_ops.from_numpy`
    alpha, beta   factors of A @ B and of C
    """
    result = gemm(tensors["a"], tensors["b"], c=tensors["c"], alpha=alpha, beta=beta, out=tensors["out"], plan=plan)
    d: np.ndarray = (result if result.dtype == torch.float64 else result.float()).cpu().numpy()
    return d


def library(a: Any, b: Any, out: Any, fast_accum: bool) -> Callable[[], Any]:
    """Return a function without arguments that multiplies a and b with the vendor library (cuBLAS), through torch.

    It calls matmul; _int_mm for int8, and _scaled_mm for float8. _scaled_mm needs a row-major a and a column-major b.
    Other matrices are copied in each call, and the copy is timed: users of _scaled_mm have to do the same.

    out          tensor for the result; _scaled_mm takes only its type
    fast_accum   use_fast_accum of _scaled_mm
    """
    if a.dtype == torch.int8:
        return lambda: torch._int_mm(a, b, out=out)
    if a.element_size() == 1:
        one = torch.ones((), device=DEVICE)
        options = {"scale_a": one, "scale_b": one, "out_dtype": out.dtype, "use_fast_accum": fast_accum}
        return lambda: torch._scaled_mm(a.contiguous(), b.mT.contiguous().mT, **options)
    return lambda: torch.matmul(a, b, out=out)


def time_plan(
    plan: GemmPlan, tensors: Mapping[str, Any], problem: Problem, seconds: float = 0.3, swap_ab: bool = False
) -> dict[str, float]:
    """Time a plan's kernel and the vendor library (cuBLAS) on the same tensors, in alternation.

    tensors   "a", "b" and "out"
    problem   the problem that the plan solves, for the number of operations
    seconds   time to spend on measuring, in seconds
    swap_ab   True if the tensors are B^T, A^T and D^T; the library then gets A, B and D
    returns   "us" and "tflops" of the plan. If the library supports the types and shapes, also "cublas_tflops" and
              "ratio", the library's time divided by the plan's
    """
    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = plan.operands.a.dtype.name == "tf32"
    a, b, out = tensors["a"], tensors["b"], tensors["out"]
    is_fast = plan.body.has_roles and not plan.body.promoted
    x, y, d = (b.mT, a.mT, out.mT) if swap_ab else (a, b, out)
    theirs = library(x, y, d, is_fast)
    if a.element_size() > 1 and out.dtype != a.dtype:
        theirs = lambda: torch.matmul(x, y)  # noqa: E731
    calls: list[Callable[[], Any]] = [lambda: gemm(a, b, out=out, plan=plan)]
    with contextlib.suppress(RuntimeError, ValueError):  # raised by torch for types and shapes it does not support
        theirs()
        calls.append(theirs)
    ours, *other = alternating(calls, seconds)
    rates = {"us": ours * 1e6, "tflops": problem.flops / ours * 1e-12}
    if other:
        rates |= {"cublas_tflops": problem.flops / other[0] * 1e-12, "ratio": other[0] / ours}
    return rates
