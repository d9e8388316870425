"""Kernels compiled ahead of the calls that take them: in parallel, for shapes or for the layers of a model."""

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
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.run.graph import questions_of
from cutegemm.run.question import Question, decide, few_of
from cutegemm.run.tune import recorded
from cutegemm.run.views import View, operands_of

_EACH = 16  # numbers of rows, up to which a choice is made for each


@dataclass(frozen=True)
class Ahead:
    """What was prepared.

    plans      of all kernels that the calls will take, each once
    compiled   how many of them were not there yet
    failed     by the name of a plan, why it was not compiled
    seconds    that it took
    """

    plans: tuple[GemmPlan, ...]
    compiled: int
    failed: dict[str, CutegemmError]
    seconds: float

    def __str__(self) -> str:
        there = len(self.plans) - self.compiled - len(self.failed)
        text = f"{len(self.plans)} kernels: {self.compiled} compiled in {self.seconds:.1f} s, {there} were there"
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
) -> Ahead:
    """Compiles, in parallel, the kernels that calls will take, and says how many there are.

    what                 tuples (M, N, K) or (M, N, K, L), as `gemm` will be called; with `rows`, tuples (N, K) of
                         weights; or a torch.nn.Module, or several, on a CUDA device: of it, and of all that is inside,
                         the layers that cutegemm computes, which are `cutegemm.Linear`, `cutegemm.GatedMLP`, and what
                         `cutegemm.use` replaced
    rows                 that the inputs of layers may have: range(1, 8193) where left out for modules
    dtype, layout, out   of the operands of tuples, as of `Operands.of`, whose rows follow one another
    device               "h100", "h200", ...: whose plans are chosen for tuples; that of this machine where left out
    processes            as many as there are processors where left out
    raises               PlanError with everything that is wrong; CompileError where a process came to a sudden end

    What does not compile is in the result, and says so again when it is called.

    >>> print(cutegemm.prepare([(4096, 4096, 4096), (64, 4096, 4096)]))  # doctest: +SKIP
    2 kernels: 2 compiled in 3.1 s, 0 were there
    >>> print(cutegemm.prepare(model, rows=range(1, 2049)))  # doctest: +SKIP
    17 kernels: 17 compiled in 4.9 s, 0 were there
    """
    started = time.perf_counter()
    if rows is not None and (not len(rows) or _ends(rows)[0] < 1):
        raise PlanError("prepare", [f"rows = {rows!r}; numbers from 1 on are expected."])
    if _are_modules(what):
        questions = questions_of((what, rows if rows is not None else range(1, 8193)))
        plans = plans_of_layers(questions)
    else:
        operands, of = Operands.of(dtype, layout=layout, out=out), chip(device)
        plans = plans_of(list(what), rows, operands, of)
    return compiled(plans, started, processes)


def _are_modules(what: Any) -> bool:
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    given = list(what) if isinstance(what, (list, tuple)) else [what]
    return bool(given) and all(isinstance(each, torch.nn.Module) for each in given)


def chip(name: str | None) -> Device:
    """The device of a name; that of this machine where none is said, or what plans are made for where there is none."""
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
    shapes: Sequence[Any], rows: Sequence[int] | None, operands: Operands, device: Device
) -> list[tuple[GemmPlan, str]]:
    """The plans that `gemm` takes for shapes of compact matrices, or layers for weights; each with its architecture.

    rows     None for shapes; those of the inputs for weights

    >>> (plan, arch), = plans_of([(4096, 4096, 4096)], None, Operands.of("bf16", layout="nt"), DEFAULT_DEVICE)
    >>> plan.family, arch
    ('sm90', 'sm_90a')
    """
    lengths = (3, 4) if rows is None else (2,)
    expected = "(M, N, K), or with L," if rows is None else "(N, K), beside rows,"
    wrong = [
        f"{shape!r}; numbers {expected} are expected."
        for shape in shapes
        if not isinstance(shape, (tuple, list))
        or len(shape) not in lengths
        or any(isinstance(x, bool) or not isinstance(x, int) or x < 1 for x in shape)
    ]
    if wrong:
        raise PlanError("prepare", wrong)
    if rows is not None:
        return plans_of_layers([(question_of((_ends(rows)[1], *shape), operands, device), rows) for shape in shapes])
    questions = [question_of(shape, operands, device) for shape in shapes]
    return [(decide(each, _recorded(each)).plan, device.arch) for each in questions]


def _recorded(question: Question) -> Recipe | None:
    """What a table of tuned plans says for the GPU of this machine, where there is one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    from cutegemm.compile.cuda import device_name

    return recorded(question, device_name(torch.cuda.current_device()))


def question_of(shape: Sequence[int], operands: Operands, device: Device) -> Question:
    """What `gemm` asks of compact matrices of a shape, of the types and the majorness of some operands."""
    m, n, k, *batch = shape
    l, batched = (batch[0], True) if batch else (1, False)  # noqa: E741
    views = {}
    for name, extents, is_turned, kind in (
        ("a", (m, k), operands.a.major == "m", operands.a.dtype),
        ("b", (k, n), operands.b.major == "k", operands.b.dtype),
        ("out", (m, n), operands.d.major == "m", operands.d.dtype),
    ):
        along = (1, extents[0]) if is_turned else (extents[1], 1)
        lead = ((l,), (extents[0] * extents[1],)) if batched else ((), ())
        views[name] = View((*lead[0], *extents), (*lead[1], *along), kind.bits // 8, 0, batched)
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
    """The fewest and the most; of a range without looking at each."""
    ends = (rows[0], rows[-1]) if isinstance(rows, range) else rows
    return min(ends), max(ends)


def plans_of_layers(questions: Iterable[tuple[Question, Sequence[int]]]) -> list[tuple[GemmPlan, str]]:
    """The plans of layers whose inputs have any of some numbers of rows: those of the few that are taken for them."""
    found = []
    for question, rows in questions:
        met = rows if len(rows) <= _EACH else {*_ends(rows), *[n for n in looked_at(_ends(rows)[1]) if n in rows]}
        at = [question.of_rows(each) for each in met]
        decided = [decide(each, _recorded(each), varying_rows=True) for each in at]
        if len(met) < len(rows):  # others may be taken for the rows between
            served = [question.served(recipe, rows=1) for recipe in few_of(question)]
            decided += [each for each in served if each is not None]
        found += [(each.plan, question.arch) for each in decided]
    return found


def compiled(plans: Iterable[tuple[GemmPlan, str]], started: float, processes: int | None) -> Ahead:
    """Compiles what is not there yet, and shows how far it has come."""
    wanted = {(plan.key(), arch): plan for plan, arch in plans}
    missing: dict[str, list[GemmPlan]] = {}
    for (_, arch), plan in wanted.items():
        if loaded(plan, arch) is None and cache.intact(cache.entry(plan, arch)) is None:
            missing.setdefault(arch, []).append(plan)
    count = sum(map(len, missing.values()))
    failed: dict[str, CutegemmError] = {}
    with _progress(count) as done:
        for arch, of_arch in missing.items():
            errors = compile_plans(of_arch, arch, processes, done)
            failed |= {plan.name: error for plan, error in zip(of_arch, errors, strict=True) if error}
    seconds = time.perf_counter() - started
    found = Ahead(tuple(wanted.values()), count - len(failed), failed, seconds)
    print(f"cutegemm: {found}", file=sys.stderr)
    return found


def _progress(count: int) -> Any:
    """Shows on a terminal how many of some kernels have been compiled; gives what is called behind each."""
    if not count or not sys.stderr.isatty():
        return nullcontext(lambda: None)
    from contextlib import contextmanager

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    @contextmanager
    def shown() -> Any:
        columns = TextColumn("compiling"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=count)
            yield lambda: bar.advance(task)

    return shown()
