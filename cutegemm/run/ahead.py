"""Compile kernels before they are called, in parallel, for given shapes or for the layers of a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from cutegemm.choice.recipe import Recipe
from cutegemm.choice.rows import looked_at
from cutegemm.compile import cache
from cutegemm.compile.exported import loaded
from cutegemm.compile.plans import compile_plans
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.machine.device import DEFAULT_DEVICE, Device, device_named
from cutegemm.plan.memory.rows import RowKernel
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.run.graph import kernels_of_groups, questions_of
from cutegemm.run.question import Question, decide, few_of
from cutegemm.run.tune import recorded
from cutegemm.run.views import View, operands_of

_MOST_CHOICES = 16  # a layer with at most this many numbers of rows gets a choice for each of them


@dataclass(frozen=True)
class Ahead:
    """The result of `prepare`: which kernels later calls of `gemm` will use, and how many of them were compiled now.

    plans      the plan of each kernel (a `GemmPlan`), and kernels of the rows of experts, without repetitions
    compiled   number of kernels that were compiled now; other kernels were compiled before, or failed
    failed     plan name -> error, for the plans that did not compile
    seconds    time that `prepare` took
    """

    plans: tuple[GemmPlan | RowKernel, ...]
    compiled: int
    failed: dict[str, CutegemmError]
    seconds: float

    def __str__(self) -> str:
        existing = len(self.plans) - self.compiled - len(self.failed)
        text = f"{len(self.plans)} kernels: {self.compiled} compiled in {self.seconds:.1f} s, {existing} existed before"
        return text + "".join([f"\n  {name} failed: {error}" for name, error in self.failed.items()])


def prepare(
    what: Any,
    *,
    rows: Sequence[int] | None = None,
    dtype: DType | str = "bf16",
    layout: str = "nt",
    out: DType | str | None = None,
    device: str | None = None,
    processes: int | None = None,
    backward: bool = False,
    groups: int | None = None,
) -> Ahead:
    """Compile, in parallel, the kernels that later calls will use, print how many there are, and return them.

    `what` is one of three things:

    - tuples (M, N, K) or (M, N, K, L), the shapes that `gemm` will be called with; with `groups`, (M, N, K) for
      `grouped_mm`, where M is the number of rows of all groups
    - with `rows`, tuples (N, K), the shapes of the weights of layers, or of each of the weights of `groups`
    - a torch.nn.Module, or a list of them, on a CUDA device: its layers that cutegemm computes, at any depth. These are
      `cutegemm.Linear`, `cutegemm.GatedMLP`, and layers and experts that `cutegemm.use` has replaced

    rows                 numbers of rows that the inputs of layers may have, and of tokens of experts; None:
                         range(1, 8193) for modules
    dtype, layout, out   for tuples: type of A and B, layout letters of both as in BLAS ("nt": A row-major, B
                         column-major), and type of D, None for the default. The matrices are compact
    device               device that plans are chosen for, such as "h100", for tuples; None: the GPU of this machine
    processes            number of processes that compile; None: the number of processors
    backward             for modules: whether the kernels of experts for training are compiled, too. Other layers
                         compile theirs at the first call
    groups               for tuples: number of groups of rows of `grouped_mm`; None for `gemm`
    raises               PlanError with every invalid tuple or number; CompileError if a process exits early

    An error of compilation is in the result. A call that needs the plan raises it again.

    >>> print(cutegemm.prepare([(4096, 4096, 4096), (64, 4096, 4096)]))  # doctest: +SKIP
    2 kernels: 2 compiled in 3.1 s, 0 existed before
    >>> len(cutegemm.prepare([(4096, 7168)], rows=range(1, 65537), groups=64).plans)  # doctest: +SKIP
    6
    >>> print(cutegemm.prepare(model, rows=range(1, 2049)))  # doctest: +SKIP
    17 kernels: 17 compiled in 4.9 s, 0 existed before
    """
    started = time.perf_counter()
    plans: list[tuple[Any, str]]
    if rows is not None and (not len(rows) or _ends(rows)[0] < 1):
        raise PlanError("prepare", [f"rows = {rows!r} is empty or has a number below 1. Pass numbers of 1 or more."])
    if _are_modules(what):
        questions, kernels = questions_of(what, rows if rows is not None else range(1, 8193), backward)
        plans = [*plans_of_layers(questions), *kernels]
    else:
        plans = plans_of(list(what), rows, Operands.of(dtype, layout=layout, out=out), chip(device), groups)
    return compiled(plans, started, processes)


def _are_modules(what: Any) -> bool:
    """Return True if `what`, the first argument of `prepare`, is a torch.nn.Module or a non-empty list of modules."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    values = list(what) if isinstance(what, (list, tuple)) else [what]
    return bool(values) and all(isinstance(value, torch.nn.Module) for value in values)


def chip(name: str | None) -> Device:
    """Return the device model (rates and sizes that predicted times depend on) for a name such as "h100".

    name   name of a device; None: the GPU of this machine, or an H200 if it has none
    """
    if name is not None:
        return device_named(name)
    try:
        import torch
    except ImportError:
        return DEFAULT_DEVICE
    if not torch.cuda.is_available():
        return DEFAULT_DEVICE
    from cutegemm.run.torch_ops import device_of

    return device_of(torch.cuda.current_device())


def plans_of(
    shapes: Sequence[Any],
    rows: Sequence[int] | None,
    operands: Operands,
    device: Device,
    groups: int | None = None,
) -> list[tuple[GemmPlan, str]]:
    """Return (plan, architecture) of each kernel that `gemm` or `grouped_mm` will use for the given shapes.

    shapes     (M, N, K) or (M, N, K, L) of compact matrices if `rows` is None, else (N, K) of the weights of layers.
               With groups, they have no L
    rows       numbers of rows that the inputs of layers may have; None if `shapes` are not weights
    operands   element types and majorness of the matrices
    device     device that plans are chosen for
    groups     number of groups of rows of `grouped_mm`; None for `gemm`
    raises     PlanError with every invalid shape

    >>> (plan, arch), = plans_of([(4096, 4096, 4096)], None, Operands.of("bf16", layout="nt"), DEFAULT_DEVICE)
    >>> plan.family, arch
    ('sm90', 'sm_90a')
    """
    lengths: tuple[int, ...]
    if rows is not None:
        lengths, remedy = (2,), "(N, K), since rows are passed"
    elif groups is not None:
        lengths, remedy = (3,), "(M, N, K), since groups are passed"
    else:
        lengths, remedy = (3, 4), "(M, N, K) or (M, N, K, L)"
    wrong = [] if groups is None or groups >= 1 else [f"groups = {groups} is less than 1. Pass 1 or more."]
    wrong += [
        f"the shape {shape!r} is invalid. Pass integers of 1 or more: {remedy}."
        for shape in shapes
        if not isinstance(shape, (tuple, list))
        or len(shape) not in lengths
        or any(isinstance(x, bool) or not isinstance(x, int) or x < 1 for x in shape)
    ]
    if wrong:
        raise PlanError("prepare", wrong)
    if groups is not None:
        last = 1 if rows is None else _ends(rows)[1]
        whole = [(last, *shape)[-3:] for shape in shapes]
        kernels: list[tuple[GemmPlan, str]] = kernels_of_groups(whole, rows, groups, operands, device)
        return kernels
    if rows is not None:
        return plans_of_layers([(question_of((_ends(rows)[1], *shape), operands, device), rows) for shape in shapes])
    questions = [question_of(shape, operands, device) for shape in shapes]
    return [(decide(question, _recorded(question)).plan, device.arch) for question in questions]


def _recorded(question: Question) -> Recipe | None:
    """Return the recipe that a file of tuned plans names for a `gemm` call on this machine's GPU, or None.

    A recipe is a named set of options that gives a plan once the operands are known. A file of tuned plans holds the
    fastest recipe of calls that were timed.

    question   what the choice of the call's plan depends on: types, strides, extents, epilogue, device
    returns    the recipe; None if no file is in use, none has a record for the call, or there is no GPU
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    from cutegemm.compile.cuda import device_name

    return recorded(question, device_name(torch.cuda.current_device()))


def question_of(shape: Sequence[int], operands: Operands, device: Device) -> Question:
    """Return all that the plan of a `gemm` call depends on, for compact matrices that are aligned to 16 bytes.

    shape      (M, N, K) or (M, N, K, L)
    operands   element types and majorness of the matrices
    device     device that a plan is chosen for
    """
    m, n, k, *batch = shape
    l, batched = (batch[0], True) if batch else (1, False)  # noqa: E741
    views = {}
    for name, extents, is_column_major, kind in (
        ("a", (m, k), operands.a.major == "m", operands.a.dtype),
        ("b", (k, n), operands.b.major == "k", operands.b.dtype),
        ("out", (m, n), operands.d.major == "m", operands.d.dtype),
    ):
        strides = (1, extents[0]) if is_column_major else (extents[1], 1)
        batch_shape, batch_strides = ((l,), (extents[0] * extents[1],)) if batched else ((), ())
        views[name] = View((*batch_shape, *extents), (*batch_strides, *strides), kind.bits // 8, 0, batched)
    views["c"] = views["out"]
    kinds = operands.a.dtype, operands.d.dtype
    return Question(
        lambda by_box: operands_of(views, *kinds, batched, by_box, of_b=operands.b.dtype),
        (m, n, k, l),
        False,
        None,
        "fast",
        device.arch,
        device,
    )


def _ends(rows: Sequence[int]) -> tuple[int, int]:
    """Return the smallest and the largest of some numbers of rows, without iterating over a range.

    rows   a range, or another sequence of integers
    """
    ends = (rows[0], rows[-1]) if isinstance(rows, range) else rows
    return min(ends), max(ends)


def plans_of_layers(questions: Iterable[tuple[Question, Sequence[int]]]) -> list[tuple[GemmPlan, str]]:
    """Return (plan, architecture) of each kernel that layers use for the numbers of rows of their inputs.

    questions   for each layer: the `Question` that its plans are chosen by (types, strides, extents, epilogue, device),
                and the numbers of rows of its input. The number of rows in the `Question` itself is ignored
    """
    plans = []
    for question, rows in questions:
        sampled = (
            rows if len(rows) <= _MOST_CHOICES else {*_ends(rows), *[n for n in looked_at(_ends(rows)[1]) if n in rows]}
        )
        sampled_questions = [question.of_rows(count) for count in sampled]
        decisions = [decide(one, _recorded(one), varying_rows=True) for one in sampled_questions]
        if len(sampled) < len(rows) and not all(
            loaded(decision.plan, question.arch) is not None for decision in decisions
        ):  # rows between the samples may use any of the few recipes of the layer
            served = [question.served(recipe, rows=1) for recipe in few_of(question)]
            decisions += [decision for decision in served if decision is not None]
        plans += [(decision.plan, question.arch) for decision in decisions]
    return plans


def compiled(plans: Iterable[tuple[GemmPlan | RowKernel, str]], started: float, processes: int | None) -> Ahead:
    """Compile the plans that have no kernel yet, with a progress bar, and print and return what was compiled.

    plans       (plan, architecture) of each kernel; repetitions are removed
    started     value of time.perf_counter() at the start of the time that is reported
    processes   number of processes that compile; None: the number of processors
    """
    wanted = {(plan.key(), arch): plan for plan, arch in plans}
    missing: dict[str, list[GemmPlan | RowKernel]] = {}
    for (_, arch), plan in wanted.items():
        if loaded(plan, arch) is None and cache.intact(cache.entry(plan, arch)) is None:
            missing.setdefault(arch, []).append(plan)
    count = sum(map(len, missing.values()))
    failed: dict[str, CutegemmError] = {}
    with progress(count) as done:
        for arch, plans_of_arch in missing.items():
            errors = compile_plans(plans_of_arch, arch, processes, done)
            failed |= {plan.name: error for plan, error in zip(plans_of_arch, errors, strict=True) if error}
    seconds = time.perf_counter() - started
    result = Ahead(tuple(wanted.values()), count - len(failed), failed, seconds)
    print(f"cutegemm: {result}", file=sys.stderr)
    return result


def progress(count: int) -> Any:
    """Return a context manager that shows a progress bar for `count` kernels, if stderr is a terminal.

    The `with` statement yields a function to call, without arguments, after each kernel.
    """
    if not count or not sys.stderr.isatty():
        return nullcontext(lambda: None)
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    @contextmanager
    def shown() -> Any:
        """Show the progress bar, and yield the function that advances it by one kernel."""
        columns = TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=count)
            yield lambda: bar.advance(task)

    return shown()
