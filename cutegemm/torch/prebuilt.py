"""The kernels of a prebuilt library: few that serve nearly all calls on the layers of public models.

Each kernel has operands of certain types, memory orders and alignments, a certain epilogue, and serves any extents. The
calls of `calls_of` are grouped by what kernels cannot change. For each group, `selected` chooses kernels that together
lose little time on samples of all models and numbers of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from cutegemm.choice.models import MOST_ROWS, Model
from cutegemm.choice.recipe import Recipe
from cutegemm.choice.times import Numbering, Times
from cutegemm.machine.device import Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.run.calls import How
from cutegemm.run.gemm import gemm
from cutegemm.run.prepare import asking
from cutegemm.run.question import Question
from cutegemm.torch.activations import activated, dactivated, dgated, gated
from cutegemm.torch.launch import OF_LAYER, by_gemm

BF16, F16, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
DTYPES = {"bf16": BF16, "f16": F16, "fp8": E4M3}
SCALED = "lambda acc, scale_a, scale_b: acc * scale_a * scale_b"
MOST_PLANS = 64  # largest number of plans of one group of calls
SAMPLES_PER_PLAN = 2  # smallest number of samples for each of them
LEAST_GAIN = 1.5e-4  # a plan of a group lowers the mean loss of predicted time by at least this
_ROWS = 64  # rows of the inputs of the calls that are asked; the samples have other numbers
_LEAST_TRAINED = 32  # rows of the smallest batch that gradients are sampled for
_UNSERVED = 1.3  # slowdown that a sample without a kernel counts as
_NEAR = 1.15  # candidates up to this multiple of the least predicted time are considered
_NO_ENTRY = 1 << 40  # larger than the number of candidates of all samples
_MANY_ROWS = 1024  # smallest number of rows with more conditions in `EpilogueSpec.can_implement`


@dataclass(frozen=True)
class Kind:
    """Describes one kind of `gemm` call that a layer of a model makes, such as its forward pass or weight gradient.

    A library of kernels is selected for such calls with all numbers of tokens.

    name    such as "forward" or "weight gradient"
    call    function without arguments that makes the call for one layer
    grows   extent of the GEMM that is the number of tokens: "m", or "k" for the gradient of a weight
    least   the smallest number of tokens to select kernels for
    """

    name: str
    call: Callable[[], Any]
    grows: str = "m"
    least: int = 1


@dataclass(frozen=True)
class Sample:
    """A `gemm` call of a layer with one number of rows, to predict how fast each kernel of a library computes it.

    kind       name of the call, such as "forward"
    question   types, strides, extents and epilogue of the call; from them, plans and their times are predicted
    """

    kind: str
    question: Question

    @property
    def group(self) -> tuple[Any, ...]:
        """Return what this call's kernel is compiled for, as a key: types, memory orders, alignments and epilogue.

        Calls with equal tuples can use the same kernels.
        """
        question = self.question
        epilogue = None if question.ending is None else question.ending.epilogue
        return question.boxed, question.problem.operands, question.has_c, epilogue, question.accumulate


def calls_of(model: Model, dtype: str) -> Iterator[Kind]:
    """Yield the `gemm` calls that the layers of a model make in inference and in training, as `Kind` objects.

    model   the model, by the extents of its layers
    dtype   "bf16", "f16" or "fp8". With "fp8", weights and inputs are float8_e4m3fn, gradients are float8_e5m2, and
            all matrices are K-major, as the tensor cores read them; the result is bfloat16
    """
    kind = DTYPES[dtype]
    for n, k in dict.fromkeys(model.weights):
        x, w, g = torch.empty(_ROWS, k, dtype=kind), torch.empty(n, k, dtype=kind), torch.empty(_ROWS, n, dtype=kind)
        if dtype == "fp8":
            yield from _fp8(x, w, g.to(E5M2))
            continue
        yield Kind("forward", partial(gemm, x, w.t(), varying_rows=True))
        bias = torch.empty(n, dtype=kind)
        yield Kind("forward, bias", partial(by_gemm, x, w.t(), activated(None, ("bias",)), (bias,), how=OF_LAYER))
        yield Kind("data gradient", partial(gemm, g, w, out_dtype=kind, varying_rows=True), least=_LEAST_TRAINED)
        yield Kind("weight gradient", partial(gemm, g.t(), x, out_dtype=kind), "k", _LEAST_TRAINED)
    if dtype != "fp8":
        yield from _mlp(model, kind)


def _fp8(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Iterator[Kind]:
    """Yield the `gemm` calls of a linear layer in float8, plain and with one scale per matrix, as `Kind` objects.

    x, w, g   input, weight, and gradient of the result
    """
    scales = torch.empty(()), torch.empty(())
    transposed = torch.empty(w.shape[::-1], dtype=E4M3)  # B in another layout: K-major for the gradient
    yield Kind("forward", partial(gemm, x, w.t(), varying_rows=True))
    yield Kind("data gradient", partial(gemm, g, transposed.t()), least=_LEAST_TRAINED)
    for accumulate in ("fast", "promoted"):
        how = How(accumulate=accumulate)
        scaled = partial(by_gemm, text=SCALED, operands=scales, out_dtype=BF16, how=how)
        yield Kind(f"forward, scaled, {accumulate}", partial(scaled, x, w.t()))
        yield Kind(f"data gradient, scaled, {accumulate}", partial(scaled, g, transposed.t()), least=_LEAST_TRAINED)


def _mlp(model: Model, kind: torch.dtype) -> Iterator[Kind]:
    """Yield the `gemm` calls of an MLP whose activation is computed in the epilogue, forward and backward.

    Each is a `Kind`: a name such as "forward", and a function without arguments that makes the call.

    model   extents and activation of the MLP
    kind    torch dtype of all tensors
    """
    n, k = model.hidden
    name, hidden = model.activation, n // 2 if model.is_gated else n
    x, w, bias = torch.empty(_ROWS, k, dtype=kind), torch.empty(n, k, dtype=kind), torch.empty(n, dtype=kind)
    dy, down, preact = (torch.empty(shape, dtype=kind) for shape in ((_ROWS, k), (k, hidden), (_ROWS, n)))
    forward = partial(by_gemm, x, w.t(), how=OF_LAYER)
    if model.is_gated:
        yield Kind(f"{name}, inference", partial(forward, gated(name, (), False, False)))
        yield Kind(f"{name}, training", partial(forward, gated(name, (), False, True)), least=_LEAST_TRAINED)
        outs = (*torch.empty_like(preact).split(hidden, -1), None)
        backward = partial(by_gemm, dy, down, dgated(name), preact.split(hidden, -1), (), kind, OF_LAYER, outs)
        yield Kind(f"{name}, backward", backward, least=_LEAST_TRAINED)
        return
    for is_training, least in ((False, 1), (True, _LEAST_TRAINED)):
        text = activated(name, ("bias",), is_training)
        when = "training" if is_training else "inference"
        yield Kind(f"{name}, {when}", partial(forward, text, (bias,)), least=least)
    backward = partial(by_gemm, dy, down, dactivated(name), (preact,), how=OF_LAYER)
    yield Kind(f"{name}, backward", backward, least=_LEAST_TRAINED)


def samples_of(
    models: Iterable[Model], dtype: str, device: Device, rows_of: Callable[[Model, Kind], Iterable[int]]
) -> list[Sample]:
    """Return the `gemm` calls that the layers of models make for some numbers of rows; equal calls occur once.

    models    models, by the extents of their layers
    dtype     "bf16", "f16" or "fp8"
    device    device that kernels are chosen for; no GPU is needed
    rows_of   function that returns the numbers of rows to sample for one model and kind of call

    >>> from cutegemm.choice.models import MODELS
    >>> from cutegemm.machine.device import DEFAULT_DEVICE
    >>> found = samples_of([MODELS["ViT-B/16"]], "bf16", DEFAULT_DEVICE, lambda model, kind: (197, 394))
    >>> sorted({sample.kind for sample in found})[:3], len(found)
    (['data gradient', 'forward', 'forward, bias'], 46)
    """
    found: dict[Any, Sample] = {}
    for model in models:
        for kind in calls_of(model, dtype):
            with torch.no_grad(), asking(device) as asked:
                kind.call()
            (template,) = asked
            for rows in rows_of(model, kind):
                m, n, k, l = template.extents  # noqa: E741
                extents = (rows, n, k, l) if kind.grows == "m" else (m, n, rows, l)
                question = replace(template, extents=extents)
                sample = Sample(kind.name, question)
                found.setdefault((kind.name, extents, sample.group), sample)
    return list(found.values())


def sampled_rows(model: Model, kind: Kind) -> list[int]:
    """Return the numbers of rows that kernels are selected for: each about 1.4 times the one before.

    They are multiples of the number of tokens of one input, such as 197 for a vision transformer.

    model   the model, with its number of tokens
    kind    kind of call, with its smallest number of rows

    >>> from cutegemm.choice.models import MODELS
    >>> kind = Kind("forward", lambda: None)
    >>> sampled_rows(MODELS["ViT-L/16"], kind)[:3], sampled_rows(MODELS["Phi 4"], kind)[:9]
    ([197, 394, 591], [1, 2, 3, 4, 6, 8, 11, 16, 23])
    """
    tokens, rows, found = model.tokens, 1.0, set[int]()
    while rows <= MOST_ROWS:
        count = tokens * max(1, round(rows / tokens))
        if count >= kind.least:
            found.add(count)
        rows *= 2**0.5
    return sorted(found)


@dataclass(frozen=True)
class Selection:
    """Lists the plans that a library of kernels contains for a group of `gemm` calls, and how much slower they are.

    All calls of a group have the same types, memory orders and epilogue, so that the same kernels can compute them.

    dtype     "bf16", "f16" or "fp8"
    kinds     names of the calls in the group, such as "forward"
    recipes   the named set of options of each plan, e.g. tile and cluster size
    plans     the plans
    loss      mean slowdown of the calls with the best of these plans, compared with the best of all plans: 0.02 for 2%.
              A call that none of the plans can compute counts as 30%
    """

    dtype: str
    kinds: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    plans: tuple[GemmPlan, ...]
    loss: float


class _Table:
    """Selects a few kernel plans with which all `gemm` calls of a group are nearly as fast as with their best plans.

    It has a table of predicted slowdowns: for each plan and each call, the predicted time divided by the least time of
    any plan for that call. Plans are built only to find the least time, and if they would be selected.

    samples   the calls of the group, which the same kernels can compute; each has another size
    """

    def __init__(self, samples: Sequence[Sample]) -> None:
        self.samples, self._recipes, self._valid = samples, Numbering(), dict[tuple[int, bool], bool]()
        self._has_many_rows = np.array([sample.question.extents[0] >= _MANY_ROWS for sample in samples])
        found = [self._near(index) for index in range(len(samples))]
        columns = np.repeat(np.arange(len(samples)), [len(times.us) for times in found])
        self._numbers, rows = np.unique(np.concatenate([times.numbers for times in found]), return_inverse=True)
        shape = len(self._numbers), len(samples)  # (recipes, samples)
        self._slower, self._order = np.full(shape, _UNSERVED, np.float32), np.full(shape, _NO_ENTRY)
        self._slower[rows, columns] = np.concatenate([times.us / times.us[:1] for times in found])
        self._order[rows, columns] = np.arange(len(columns))

    def _near(self, index: int) -> Times:
        """Return the candidates for a sampled call from its fastest valid plan up to 1.15 times its time (`_NEAR`)."""
        question = self.samples[index].question
        times = question.times(self._recipes, question.extents[:1]).ascending()
        first = next((place for place, one in enumerate(times.numbers.tolist()) if self._is_valid(one, index)), None)
        return times.where(slice(first, None)).within(_NEAR) if first is not None else times.where(slice(0))

    def _is_valid(self, number: int, index: int) -> bool:
        """Return True if named options (a recipe), by their number, give a valid plan for a sampled call.

        Results are cached: plans do not depend on extents, so all calls of the group share them.
        """
        key = number, bool(self._has_many_rows[index])
        if key not in self._valid:
            self._valid[key] = _plan_of(self.samples[index], self._recipes[number]) is not None
        return self._valid[key]

    def search(self) -> tuple[tuple[Recipe, ...], float]:
        """Select a few plans with which all calls of this group are nearly as fast as with their best plans.

        Plans are added one by one: each time the plan that lowers the mean slowdown of the calls most, until that is
        less than 0.015% (`LEAST_GAIN`). At most 64 plans are selected, and at most one for 2 sampled calls.

        returns   the options of each plan, and the mean slowdown: 0.02 for 2%
        """
        most = min(MOST_PLANS, -(-len(self.samples) // SAMPLES_PER_PLAN), len(self._numbers))
        chosen, fastest = list[int](), np.full(len(self.samples), _UNSERVED, np.float32)
        while len(chosen) < most:
            best, total = self._best(fastest)
            if float(fastest.sum() - total) < LEAST_GAIN * len(self.samples):
                break
            chosen.append(best)
            fastest = np.minimum(fastest, self._slower[best])
        return tuple([self._recipes[int(self._numbers[row])] for row in chosen]), float(fastest.mean()) - 1

    def _best(self, fastest: np.ndarray) -> tuple[int, np.float32]:
        """Return the row of the valid plan that lowers the sum of the slowdowns of all calls most, and that sum.

        fastest   slowdown of each call with the plans that are selected already
        """
        sums = np.minimum(fastest, self._slower).sum(1)
        while True:
            best = min(np.flatnonzero(sums == sums.min()).tolist(), key=lambda row: self._order[row].min())
            if not self._remove_invalid(best):
                return best, sums[best]
            sums[best] = np.minimum(fastest, self._slower[best]).sum()

    def _remove_invalid(self, row: int) -> bool:
        """Remove a plan's entries for the calls that it does not serve; return False if it has no such entry."""
        removed = False
        for some in (self._has_many_rows, ~self._has_many_rows):
            columns = np.flatnonzero(some & (self._order[row] < _NO_ENTRY))
            if len(columns) and not self._is_valid(int(self._numbers[row]), columns[0]):
                self._slower[row, columns], self._order[row, columns] = _UNSERVED, _NO_ENTRY
                removed = True
        return removed


def _plan_of(sample: Sample, recipe: Recipe) -> GemmPlan | None:
    """Return the plan that a recipe (named plan options) gives for a sampled call; None if the plan is not valid."""
    decision = sample.question.served(recipe)
    return None if decision is None else decision.plan


def _selection(dtype: str, samples: Sequence[Sample], recipes: tuple[Recipe, ...], loss: float) -> Selection:
    """Build the selected plans for a group of `gemm` calls, and return them with their options and mean slowdown.

    dtype     "bf16", "f16" or "fp8"
    samples   calls of the group; the plans are built for the smallest and the largest of them
    recipes   the selected options (tile size, cluster size etc.), one set for each plan
    loss      mean slowdown with these plans: 0.02 if calls take 2% longer than with their best plans
    """
    ends = [end(samples, key=lambda sample: sample.question.extents[0]) for end in (min, max)]
    plans = [_plan_of(sample, recipe) for recipe in recipes for sample in ends]
    kinds = tuple(dict.fromkeys(sample.kind for sample in samples))
    return Selection(dtype, kinds, recipes, tuple(dict.fromkeys(plan for plan in plans if plan is not None)), loss)


def library_plans(models: Iterable[Model], dtypes: Iterable[str], device: Device) -> Iterator[Selection]:
    """Yield the plans for a library of kernels for the layers of models, by groups of calls that share kernels.

    The choice is the same for bf16 and f16, whose rates are equal, so f16 gets the recipes (plan options) of bf16.

    models   models, by the extents of their layers
    dtypes   some of "bf16", "f16" and "fp8"
    device   device that kernels are chosen for
    """
    every, known = list(models), dict[Any, tuple[tuple[Recipe, ...], float]]()
    for dtype in dtypes:
        groups: dict[Any, list[Sample]] = {}
        for sample in samples_of(every, dtype, device, sampled_rows):
            groups.setdefault(sample.group, []).append(sample)
        for samples in groups.values():
            bits = samples[0].question.problem.operands.a.dtype.bits
            calls = bits, tuple([(sample.kind, sample.question.extents) for sample in samples])
            if calls not in known:
                known[calls] = _Table(samples).search()
            yield _selection(dtype, samples, *known[calls])
