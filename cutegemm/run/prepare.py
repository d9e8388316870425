"""Prepare a call of `gemm`: check the arguments, choose a plan and compile it.

All of this follows from the signature of the arguments (types, shapes, strides, alignments, device), so it is done once
for each signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cutegemm.choice.names import recipe_named
from cutegemm.compile import background
from cutegemm.compile.plans import CompiledKernel, compile_plan
from cutegemm.dtypes import f32, tf32
from cutegemm.machine.device import Device
from cutegemm.plan.mainloop.block_scaled import with_scales
from cutegemm.plan.memory.rows import RowKernel
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.run import calls, tune
from cutegemm.run.calls import ASKING, How, shapes_of
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
    """The compiled kernel for `gemm` calls of one signature (types, shapes, strides, options), and what a launch needs.

    kernel    the compiled kernel; None if D is empty
    views     memory layouts of a, b, c and out: contiguous mode, alignment, strides
    shape     shape of D
    dtype     torch dtype of D
    problem   the problem that the kernel solves, D^T = B^T A^T if the plan swaps A and B; None if D is empty
    """

    kernel: CompiledKernel | None
    views: tuple[View, ...]
    shape: tuple[int, ...]
    dtype: Any
    problem: Problem | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """Return the function that launches this kernel, called with the same tensors and numbers as the kernel.

        For D = alpha * A @ B + beta * C it is called as (a, b, c, d, alpha, beta), or (a, b, d, alpha) if the kernel
        does not read C. With an epilogue expression it takes a, b, the expression's tensors, the results and its
        scalars. It provides the kernel's workspace in global memory.
        """
        assert self.kernel is not None
        assert self.problem is not None
        problem = self.problem
        function: Callable[..., Any] = self.kernel.for_problem(problem.m, problem.n, problem.k, problem.l)
        return function


def named(a: Any, b: Any, c: Any, out: Any, needed: Sequence[str] = ()) -> dict[str, Any]:
    """Return those of a, b, c and out that are not None, as a dictionary by name.

    needed   names that are included even if their value is None
    """
    matrices = (("a", a), ("b", b), ("c", c), ("out", out))
    return {name: value for name, value in matrices if value is not None or name in needed}


@contextmanager
def asking(
    device: Device | None = None, kernels: list[tuple[GemmPlan | RowKernel, str]] | None = None
) -> Iterator[list[Question]]:
    """Make calls of `gemm` only collect what the choice of their plans depends on, while the context is active.

    Nothing is compiled or launched, and the calls return uninitialized tensors. The context yields a list with one
    `Question` (types, extents, strides, epilogue and options) for each call. Calls of other threads are not affected.

    device    device to choose plans for, whatever memory the tensors are in, so that no GPU is needed; None: theirs
    kernels   list that gets (plan, architecture) of each grouped GEMM, whose plan is chosen at once, and (kernel,
              architecture) of each kernel of the rows of experts; None: they are dropped
    """
    calls.forget()
    before = ASKING.questions, ASKING.kernels, ASKING.device
    questions: list[Question] = []
    ASKING.questions, ASKING.kernels, ASKING.device = questions, [] if kernels is None else kernels, device
    try:
        yield questions
    finally:
        ASKING.questions, ASKING.kernels, ASKING.device = before


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
    scales: tuple[str, str] | None = None,
) -> Prepared | list[str]:
    """Check the arguments of a `gemm` call, choose its plan and compile it; later calls with this signature reuse it.

    a, b        the factors
    c           C or None; with an epilogue, the first M x N operand that it reads, which the caller has checked
    out         the caller's tensor for the result, or None
    out_dtype   type of the result if `out` is None; None for the default
    beta        factor of c
    how         options of `gemm`
    ending      the epilogue; None for alpha * acc + beta * c
    trial       function that gets a compiled kernel and returns a function without arguments that launches it, for the
                tuner to time. The launch must not write to the caller's tensors. None: the tuner is not used
    scales      granularity of the block scales of a and of b, "1x128" or "128x128"; None without block scales
    returns     the prepared kernel; or the names of the matrices without a stride of 1 in their last two modes, which
                must be copied
    raises      UnsupportedError with every rule that the arguments break; PlanError; CompileError; PendingError if
                torch computes the call until its kernel is compiled
    """
    plan = how.plan
    from cutegemm.compile import cuda
    from cutegemm.run import torch_ops

    matrices, gated = named(a, b, c, out), ending.epilogue.gated if ending is not None else ""
    to_check = matrices if ending is None else named(a, b, None, out)
    wrong = [
        *wrong_choices(how),
        *wrong_dtypes(to_check, torch_ops),
        *wrong_out_dtype(a.dtype, out_dtype, torch_ops, outs=(out,)),
        *wrong_extents(to_check, gated),
        *wrong_values(to_check, beta),
        *wrong_memory(to_check),
        *wrong_devices(to_check),
    ]
    if wrong:
        raise refused(a, b, wrong)
    if isinstance(out_dtype, (tuple, list)):  # it has one type
        (out_dtype,) = out_dtype
    batched, (m, n, k, l) = a.dim() == 3, extents_of(a, b)  # noqa: E741
    columns = n // 2 if gated else n
    d_shape = (l, m, columns) if batched else (m, columns)
    dtype = matrices["out"].dtype if "out" in matrices else out_dtype
    if dtype is None and "c" in matrices and ending is None:
        dtype = matrices["c"].dtype
    dtype = dtype or torch_ops.RESULTS[a.dtype][0]
    views = {
        name: View.of(name, tensor, batched, wanted_mode(plan, name, tensor.element_size(), gated))
        for name, tensor in matrices.items()
    }
    copies = [name for name, view in views.items() if view.major is None]
    if copies:
        return copies
    if out is None:
        wanted = wanted_mode(plan, "out", dtype.itemsize, gated)
        views["out"] = View.fresh(d_shape, dtype.itemsize, batched, wanted)
    if plan is None and gated and dtype.itemsize == 1 and views["out"].major == 0:
        rule = (
            "out is column-major, but a gated epilogue stores float8 to row-major tensors only. Pass a row-major out."
        )
        raise refused(a, b, [rule])
    views.setdefault("c", views["out"])
    ordered = tuple([views[name] for name in ("a", "b", "c", "out")])
    if 0 in d_shape:
        return Prepared(None, ordered, d_shape, dtype)
    index, stand_in = a.get_device(), ASKING.device
    if stand_in is None:
        arch, device = torch_ops.device_arch(index), torch_ops.device_of(index)
    else:
        arch, device = stand_in.arch, stand_in
    kinds = torch_ops.DTYPES[a.dtype], torch_ops.DTYPES[dtype]
    if plan is None and how.allow_tf32 and kinds[0] is f32:
        kinds = tf32, kinds[1]
    c_kind = torch_ops.DTYPES[c.dtype] if c is not None else None
    b_kind = torch_ops.DTYPES[b.dtype] if b.dtype != a.dtype else None

    def operands(by_box: str | None) -> Operands:
        """Return type, majorness and alignment of the call's matrices, which depend on who loads them.

        by_box   names of the matrices that TMA loads, such as "ab"; None if threads load all of them
        """
        found = operands_of(views, *kinds, batched, by_box, c_kind, b_kind)
        return found if scales is None else with_scales(found, scales)

    question = Question(
        operands, (m, n, k, l), c is not None, ending, how.accumulate, arch, device, how.batch_invariant
    )

    def prepared(decision: Decision, is_trial: bool = False) -> Prepared:
        """Compile a plan that was chosen and return the kernel, after checking that the problem is not too large.

        decision   the plan, and the problem that it solves
        is_trial   True if the tuner times the kernel, so that torch must not compute the call instead
        raises     PendingError if torch computes the call until the kernel, which is compiled in the background, is
                   ready
        """
        too_large = list(limits(decision.plan, decision.problem))
        if too_large:
            raise refused(a, b, too_large)
        if not is_trial and not how.batch_invariant:
            background.need(decision.plan, arch, lambda: f"gemm of {shapes_of(a, b)}")
        return Prepared(compile_plan(decision.plan, arch), ordered, d_shape, dtype, decision.problem)

    if ASKING.questions is not None:
        ASKING.questions.append(question)
        return Prepared(None, ordered, d_shape, dtype)
    if plan is not None:
        return prepared(decide(question, recipe_named(plan) if isinstance(plan, str) else plan))
    tuned = None
    if trial is not None:
        tuned = tune.recipe(
            question, how.tune, lambda decision: trial(prepared(decision, True)), lambda: cuda.device_name(index)
        )
    return prepared(decide(question, tuned, how.varying_rows))
