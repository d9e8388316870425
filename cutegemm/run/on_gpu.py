"""Plans on the GPU of this machine: run once, and timed in turns with the vendor library.

The chip throttles by power, so what ran before, and what the numbers are, decides a rate as much as the kernel does.
Therefore every round runs every call once, in an order drawn anew, behind a write to more memory than the L2 cache
holds; medians of the rounds are compared.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cutegemm.errors import UnsupportedError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.run.gemm import gemm

DEVICE = "cuda"
_FLUSH_BYTES = 256 << 20  # more than any L2 cache
_WARM_SECONDS, _LEAST_ROUNDS = 0.1, 3


def need_gpu() -> None:
    """Raises UnsupportedError where torch sees no CUDA device."""
    if not torch.cuda.is_available():
        raise UnsupportedError("measurements of kernels need a CUDA device; torch sees none here.")


def run_plan(plan: GemmPlan, tensors: Mapping[str, Any], alpha: float, beta: float) -> np.ndarray:
    """D by a plan's kernel, as float32, or float64 where D is that.

    tensors   "a", "b", "c" and "out", as of `torch_ops.from_numpy`
    """
    result = gemm(
        tensors["a"], tensors["b"], c=tensors["c"], alpha=alpha, beta=beta, out=tensors["out"], plan=plan
    )
    found: np.ndarray = (result if result.dtype == torch.float64 else result.float()).cpu().numpy()
    return found


def in_turns(calls: Sequence[Callable[[], Any]], seconds: float) -> list[float]:
    """The median seconds of each call; every round runs each once, and three rounds are the fewest."""
    order, places = random.Random(0), list(range(len(calls)))
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=DEVICE)

    def timed(call: Callable[[], Any]) -> tuple[Any, Any]:
        flush.zero_()  # also hides the launch: the device is busy while the host goes on
        event: Any = torch.cuda.Event
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        return start, end

    def until(deadline: float, least: int) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in calls]
        while len(found[0]) < least or time.perf_counter() < deadline:
            order.shuffle(places)
            events = [(place, *timed(calls[place])) for place in places]
            torch.cuda.synchronize()
            for place, start, end in events:
                found[place].append(start.elapsed_time(end) * 1e-3)
        return found

    until(time.perf_counter() + _WARM_SECONDS, 1)
    return [statistics.median(times) for times in until(time.perf_counter() + seconds, _LEAST_ROUNDS)]


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
    plan: GemmPlan, tensors: Mapping[str, Any], problem: Problem, seconds: float = 0.3
) -> dict[str, float]:
    """A plan beside the library on tensors "a", "b" and "out".

    returns  "us", "tflops"; and "cublas_tflops", "ratio" where the library multiplies these types and shapes
    """
    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = plan.operands.a.dtype.name == "tf32"
    a, b, out = tensors["a"], tensors["b"], tensors["out"]
    is_fast = plan.pipeline is not None and not plan.pipeline.two_level
    theirs = library(a, b, out, is_fast)
    if a.element_size() > 1 and out.dtype != a.dtype:
        theirs = lambda: torch.matmul(a, b)  # noqa: E731
    calls: list[Callable[[], Any]] = [lambda: gemm(a, b, out=out, plan=plan)]
    with contextlib.suppress(RuntimeError, ValueError):  # what torch says of what it does not multiply
        theirs()
        calls.append(theirs)
    ours, *other = in_turns(calls, seconds)
    found = {"us": ours * 1e6, "tflops": problem.flops / ours * 1e-12}
    if other:
        found |= {"cublas_tflops": problem.flops / other[0] * 1e-12, "ratio": other[0] / ours}
    return found
