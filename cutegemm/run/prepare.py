"""From the arguments of a call to what carries it out: checks, the plan, the kernel, what it is to be called with.

All of it follows from the signature of the arguments (types, shapes, strides, alignment, device), and is done once for
each that is new.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cutegemm.choice.names import recipe_named
from cutegemm.compile.plans import CompiledKernel, compile_plan
from cutegemm.dtypes import f32, tf32
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.run import calls, tune
from cutegemm.run.calls import How
from cutegemm.run.checks import (
    extents_of,
    refused,
    wanted_mode,
    wrong_choices,
    wrong_devices,
    wrong_dtypes,
    wrong_extents,
    wrong_memory,
    wrong_out_dtype,
    wrong_values,
)
from cutegemm.run.question import Decision, EpilogueSpec, Question, decide
from cutegemm.run.views import View, operands_of


@dataclass(frozen=True)
class Prepared:
    """What follows from a signature.

    kernel   the compiled kernel, or None where D is empty
    views    of a, b, c and out
    shape    of D, and `dtype`, in torch
    problem  that the kernel carries out
    """

    kernel: CompiledKernel | None
    views: tuple[View, ...]
    shape: tuple[int, ...]
    dtype: Any
    problem: Problem | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The compiled function, or what gives it a workspace besides."""
        assert self.kernel is not None
        assert self.problem is not None
        problem = self.problem
        function: Callable[..., Any] = self.kernel.for_problem(problem.m, problem.n, problem.k, problem.l)
        return function


def named(a: Any, b: Any, c: Any, out: Any, needed: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments that are given, by name; those needed also where they are None."""
    all_of_them = (("a", a), ("b", b), ("c", c), ("out", out))
    return {name: value for name, value in all_of_them if value is not None or name in needed}


_asked: list[Question] | None = None


@contextmanager
def asking() -> Iterator[list[Question]]:
    """Meanwhile nothing is compiled and nothing is launched; what would have been chosen for is noted.

    Results are memory that nothing was written to. It is for all threads of the process.
    """
    global _asked
    calls.forget()
    before, _asked = _asked, []
    try:
        yield _asked
    finally:
        _asked = before
        calls.forget()  # of those that launch nothing


def prepare(
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    out_dtype: Any,
    beta: float,
    how: How,
    ending: EpilogueSpec | None = None,
    trial: Callable[[Prepared], Callable[[], Any]] | None = None,
) -> Prepared | list[str]:
    """Check a signature that is new, and find its kernel.

    c         C; or the first tile that an epilogue reads, which its caller has checked
    trial     what makes a call of something prepared, which writes to nothing of the caller's: for the tuner
    returns   what was found, or the names of the matrices that have no stride of 1
    raises    CutegemmError in words
    """
    plan = how.plan
    from cutegemm.compile import cuda
    from cutegemm.run import torch_ops

    given, gated = named(a, b, c, out), ending.epilogue.gated if ending is not None else ""
    of_gemm = given if ending is None else named(a, b, None, out)
    wrong = [
        *wrong_choices(how),
        *wrong_dtypes(of_gemm, torch_ops),
        *wrong_out_dtype(a.dtype, out_dtype, torch_ops, outs=(out,)),
        *wrong_extents(of_gemm, gated),
        *wrong_values(of_gemm, beta),
        *wrong_memory(of_gemm),
        *wrong_devices(of_gemm),
    ]
    if wrong:
        raise refused(a, b, wrong)
    if isinstance(out_dtype, (tuple, list)):  # for the one result
        (out_dtype,) = out_dtype
    batched, (m, n, k, l) = a.dim() == 3, extents_of(a, b)  # noqa: E741
    columns = n // 2 if gated else n
    result = (l, m, columns) if batched else (m, columns)
    dtype = given["out"].dtype if "out" in given else out_dtype
    if dtype is None and "c" in given and ending is None:
        dtype = given["c"].dtype
    dtype = dtype or torch_ops.RESULTS[a.dtype][0]
    views = {
        name: View.of(name, tensor, batched, wanted_mode(plan, name, tensor.element_size(), gated))
        for name, tensor in given.items()
    }
    copies = [name for name, view in views.items() if view.major is None]
    if copies:
        return copies
    if out is None:
        wanted = wanted_mode(plan, "out", dtype.itemsize, gated)
        views["out"] = View.fresh(result, dtype.itemsize, batched, wanted)
    if plan is None and gated and dtype.itemsize == 1 and views["out"].major == 0:
        rule = "out is column-major; a gated epilogue stores float8 by rows alone. Pass a row-major out."
        raise refused(a, b, [rule])
    views.setdefault("c", views["out"])
    ordered = tuple([views[name] for name in ("a", "b", "c", "out")])
    if 0 in result:
        return Prepared(None, ordered, result, dtype)
    index = a.get_device()
    arch, device = torch_ops.device_arch(index), torch_ops.device_of(index)
    kinds = torch_ops.DTYPES[a.dtype], torch_ops.DTYPES[dtype]
    if plan is None and how.allow_tf32 and kinds[0] is f32:
        kinds = tf32, kinds[1]
    of_c = torch_ops.DTYPES[c.dtype] if c is not None else None
    of_b = torch_ops.DTYPES[b.dtype] if b.dtype != a.dtype else None

    def operands(by_box: str | None) -> Operands:
        return operands_of(views, *kinds, batched, by_box, of_c, of_b)

    question = Question(operands, (m, n, k, l), c is not None, ending, how.accumulate, arch, device)

    def prepared(of: Decision) -> Prepared:
        too_large = list(limits(of.plan, of.problem))
        if too_large:
            raise refused(a, b, too_large)
        return Prepared(compile_plan(of.plan, arch), ordered, result, dtype, of.problem)

    if _asked is not None:
        _asked.append(question)
        return Prepared(None, ordered, result, dtype)
    if plan is not None:
        return prepared(decide(question, recipe_named(plan) if isinstance(plan, str) else plan))
    tuned = None
    if trial is not None:
        tuned = tune.recipe(question, how.tune, lambda of: trial(prepared(of)), lambda: cuda.device_name(index))
    return prepared(decide(question, tuned, how.varying_rows))
