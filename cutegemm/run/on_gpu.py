"""Plans on the GPU of this machine: run once, and timed in turns with the vendor library: see `timing`."""

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
    """Raises UnsupportedError where torch sees no CUDA device."""
    if not torch.cuda.is_available():
        raise UnsupportedError("measurements of kernels need a CUDA device; torch sees none here.")


def run_plan(plan: GemmPlan, tensors: Mapping[str, Any], alpha: float, beta: float) -> np.ndarray:
    """D by a plan's kernel, as float32, or float64 where D is that.

    tensors   "a", "b", "c" and "out", as of `torch_ops.from_numpy`
    """
    result = gemm(tensors["a"], tensors["b"], c=tensors["c"], alpha=alpha, beta=beta, out=tensors["out"], plan=plan)
    found: np.ndarray = (result if result.dtype == torch.float64 else result.float()).cpu().numpy()
    return found


def library(a: Any, b: Any, out: Any, fast_accum: bool) -> Callable[[], Any]:
    """What torch has for these types: matmul, _int_mm, _scaled_mm for float8.

    The last takes a by rows and b by columns alone; what lies otherwise is copied in each call, as its user must.
    """
    if a.dtype == torch.int8:
        return lambda: torch._int_mm(a, b, out=out)
    if a.element_size() == 1:
        one = torch.ones((), device=DEVICE)
        how = {"scale_a": one, "scale_b": one, "out_dtype": out.dtype, "use_fast_accum": fast_accum}
        return lambda: torch._scaled_mm(a.contiguous(), b.mT.contiguous().mT, **how)
    return lambda: torch.matmul(a, b, out=out)


def time_plan(
    plan: GemmPlan, tensors: Mapping[str, Any], problem: Problem, seconds: float = 0.3, swap_ab: bool = False
) -> dict[str, float]:
    """A plan beside the library on tensors "a", "b" and "out".

    swap_ab   whether they are B^T, A^T and D^T: the library is given A, B and D
    returns   "us", "tflops"; and "cublas_tflops", "ratio" where the library multiplies these types and shapes
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
    with contextlib.suppress(RuntimeError, ValueError):  # what torch says of what it does not multiply
        theirs()
        calls.append(theirs)
    ours, *other = alternating(calls, seconds)
    found = {"us": ours * 1e6, "tflops": problem.flops / ours * 1e-12}
    if other:
        found |= {"cublas_tflops": problem.flops / other[0] * 1e-12, "ratio": other[0] / ours}
    return found
