"""Kernels of grouped GEMMs: choose and compile a plan for a signature of the arguments once, then launch it.

TMA needs rows whose pitch is a multiple of 16 bytes. It clips a matrix at the end of a group only along a mode that is
not contiguous: see `plan.memory.groups`. Tensor cores need factors of float8 and float32 whose K is contiguous. Other
matrices are copied first. Such results are stored to the memory of their transpose, and copied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from cutegemm.choice.grouped import chosen_grouped
from cutegemm.choice.names import recipe_named
from cutegemm.compile.plans import compile_plan
from cutegemm.errors import CopyWarning, CutegemmError, PlanError
from cutegemm.plan.epilogue import Input, Row, Scalar, Tensor, Tile, epilogue_of
from cutegemm.plan.mainloop.block_scaled import BLOCKS, ROWS, scale_names, with_scales
from cutegemm.plan.memory.groups import COUNTS, ENDS, SIZES, with_group_ends
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.run import torch_ops
from cutegemm.run.calls import Calls, How
from cutegemm.run.launches import on_device
from cutegemm.run.question import EpilogueSpec
from cutegemm.run.views import ALIGN_BYTES, View
from cutegemm.torch.epilogue import Formula, OutDtype, formula, is_gated, text_of
from cutegemm.torch.grouped.forms import Form
from cutegemm.torch.grouped.reference import grouped_by_torch
from cutegemm.torch.launch import interleaving, split_results
from cutegemm.torch.reference import interleave, result_dtypes

_calls = Calls()
_MODES = {"a": "mk", "b": "kn", "c": "mn"}


@dataclass(frozen=True)
class _Call:
    """A prepared grouped GEMM, for all calls of one signature.

    plan      the plan
    function  the compiled kernel: (a, b, tensors in the order of the plan's signature, numbers)
    order     index in (ends, operands, results) of each tensor that the kernel takes after A and B
    """

    plan: GemmPlan
    function: Callable[..., None]
    order: tuple[int, ...]


def compute_grouped(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    text: str,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    out_dtype: OutDtype,
    how: How,
    zeroed: bool,
    scales: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """Return the results of an epilogue of a grouped a @ b, D first, by a kernel. The tensors are on a CUDA device.

    a, b        factors in one of the forms of `forms`
    ends        (groups,) int32: the end of each group, or the number of its rows if the form is padded
    text        the epilogue, as `torch.epilogue.formula` parses it
    operands    tensors of the epilogue, in the order of its parameters, of shapes that `Form.operand` takes
    scalars     numbers of the epilogue
    out_dtype   as for `reference.result_dtypes`
    how         options: a plan or its name, and the accumulation
    zeroed      whether elements of results that belong to no group are 0. Otherwise they are not written
    scales      block scales of a and of b: (M, K/128), and (L, N, K/128) or (L, N/128, K/128); () without them
    """
    form, read = Form.of(a, b, ends), formula(text)
    if form.k == 0 or form.l == 0:  # factors without memory, which no kernel can load
        return grouped_by_torch(a, b, ends, text, operands, scalars, out_dtype, zeroed)
    dtypes, shapes = result_dtypes(a, read.results, out_dtype), form.result_shapes(read)
    a, b = loadable("a", _flattened(a) if form.is_padded else a, form), loadable("b", b, form)
    stored = [
        _Stored.of(a, shape, dtype, form, zeroed, None if is_gated(result) else interleaving(read.results))
        for result, shape, dtype in zip(read.results, shapes, dtypes, strict=True)
    ]
    if 0 in shapes[0]:
        return [each.result() for each in stored]
    read, results = _split(text), [part for each in stored for part in each.parts]
    if form.is_padded:
        results = [part.view(-1, part.shape[-1]) for part in results]
    tensors = [_seen(read, name, x, form)[1] for name, x in zip(read.names, operands, strict=False)]
    granularity = granularity_of(form, scales)
    scales = [loadable_scales(each, by) for each, by in zip(scales, granularity, strict=True)]
    key: Any = tuple([_signature(each) for each in (a, b, ends, *tensors, *results, *scales)])
    key = (
        *key,
        form.is_padded,
        text,
        tuple(dtypes),
        how.plan if isinstance(how.plan, str) else id(how.plan),
        how.accumulate,
    )
    call = _calls.found.get(key)
    if call is None:
        problem, spec = question(form, a, b, operands, read, results, granularity)
        call = _prepared(problem, spec, read, len(tensors), how, a.get_device())
        _calls.keep(key, call)
    passed = (ends.unsqueeze(-1), *tensors, *results, *scales)
    try:
        call.function(a, b, *[passed[index] for index in call.order], *scalars)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CutegemmError(f"grouped_mm of {tuple(a.shape)} by {tuple(b.shape)}, {call.plan.name}: {error}") from error
    return [each.result() for each in stored]


@lru_cache(maxsize=1024)
def _split(text: str) -> Formula:
    """Return an epilogue as a kernel computes it: gate and up of a result with all columns of b are two results.

    >>> _split("lambda acc: (swiglu(acc), acc)").text
    'lambda acc: (silu(halves(acc)[0]) * halves(acc)[1], halves(acc)[0], halves(acc)[1])'
    """
    read = formula(text)
    return formula(text_of(split_results(read.results), read.names))


def is_wide(read: Formula, name: str) -> bool:
    """Return whether a row of the epilogue has the columns of b, although a gated D has only half of them.

    >>> is_wide(formula("lambda acc, bias: swiglu(acc + bias)"), "bias")
    True
    """
    return name in epilogue_of(read.function, dict.fromkeys(read.names, Row)).halved


def _seen(read: Formula, name: str, x: torch.Tensor, form: Form) -> tuple[type[Tensor], torch.Tensor]:
    """Return the kind of an operand of the epilogue, and the tensor as a kernel takes it. Its shape was checked."""
    seen = form.operand(x, form.n if is_wide(read, name) else read.columns_of_d(form.n))
    assert seen is not None
    return seen


def _signature(tensor: torch.Tensor) -> Any:
    """Return what a tensor adds to the signature of a call: everything that the choice of a kernel depends on."""
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr() % ALIGN_BYTES, tensor.get_device()


@dataclass(frozen=True)
class _Stored:
    """The memory of a result of a call.

    parts        what a kernel stores: the result, or its gate and its up columns
    whole        the result, if the parts are parts of its memory; else None
    interleaved  whether gate and up are adjacent columns of the result
    """

    parts: tuple[torch.Tensor, ...]
    whole: torch.Tensor | None
    interleaved: bool

    @staticmethod
    def of(
        a: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, form: Form, zeroed: bool, interleaved: bool | None
    ) -> _Stored:
        """Allocate a result in memory on the device of `a`.

        interleaved   as the field, if gate and up are stored separately; None if they are not
        """
        if interleaved is None:
            whole = _result(a, shape, dtype, form, zeroed)
            return _Stored((whole,), whole, False)
        half = shape[-1] // 2
        if interleaved or half * dtype.itemsize % ALIGN_BYTES:
            of_half = (*shape[:-1], half)
            parts = [_result(a, of_half, dtype, form, zeroed) for _ in range(2)]
            return _Stored(tuple(parts), None, interleaved)
        whole = _result(a, shape, dtype, form, zeroed)
        return _Stored(whole.split(half, -1), whole, False)

    def result(self) -> torch.Tensor:
        """Return the result after the kernel has stored its parts."""
        if self.whole is not None:
            return self.whole.contiguous()
        return interleave(*self.parts) if self.interleaved else torch.cat(self.parts, -1)


def _result(a: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, form: Form, zeroed: bool) -> torch.Tensor:
    """Allocate a result in memory that TMA can store, and clip at the end of a group.

    shape    shape of the result
    zeroed   whether it is filled with 0
    """
    unit = max(1, ALIGN_BYTES // dtype.itemsize)
    *front, last = shape[::-1] if form.groups == "n" else shape
    make = a.new_zeros if zeroed else a.new_empty
    whole = make((*front, -(-last // unit) * unit), dtype=dtype)[..., :last]
    return whole.mT if form.groups == "n" else whole


def _flattened(a: torch.Tensor) -> torch.Tensor:
    """Return the rows of a batch as one matrix: a view, or a copy with a warning."""
    flat = a.flatten(0, 1)
    if flat.data_ptr() != a.data_ptr():
        warnings.warn(
            f"grouped_mm: a copy of a, of shape {tuple(a.shape)} and strides {a.stride()}, is made in each call. Its "
            "matrices must follow each other without gaps.",
            CopyWarning,
            stacklevel=4,
        )
    return flat


def loadable(name: str, x: torch.Tensor, form: Form) -> torch.Tensor:
    """Return a factor as a grouped kernel can load it: itself, or a copy with other strides, with a warning.

    name   "a" or "b"

    >>> form = Form("k", 2, 64, 64, 128)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     loadable("a", torch.zeros(64, 128), form).stride()
    (1, 64)
    """
    view, of_k = View.of(name, x, x.dim() == 3), _MODES[name].find("k")
    majors: tuple[int, ...]
    if form.groups == "k":
        majors, which = (1 - of_k,), ", and not be contiguous along K, which groups divide"
    elif form.groups in _MODES[name]:
        majors, which = (of_k,), f", and be contiguous along K, not {form.groups.upper()}, which groups divide"
    elif x.element_size() != 2:
        majors, which = (of_k,), f", and be contiguous along K, as tensor cores need {x.dtype}"
    else:
        majors, which = (0, 1), ""
    if view.major in majors and view.boxed >= ALIGN_BYTES:
        return x if view.strides is None else x.as_strided(x.shape, view.strides)
    warnings.warn(
        f"grouped_mm: a copy of {name}, of shape {tuple(x.shape)} and strides {x.stride()}, is made in each call. Its "
        f"rows or columns must be contiguous with a pitch of a multiple of {ALIGN_BYTES} bytes{which}.",
        CopyWarning,
        stacklevel=4,
    )
    return padded(x, majors[0] if view.major == majors[0] else majors[-1])


def padded(x: torch.Tensor, major: int) -> torch.Tensor:
    """Return a copy of a matrix or batch whose rows or columns are contiguous and start at multiples of 16 bytes.

    major   1 for contiguous rows, 0 for contiguous columns

    >>> padded(torch.zeros(3, 5, dtype=torch.bfloat16), 1).stride()
    (8, 1)
    """
    if major == 0:
        return padded(x.mT, 1).mT
    unit = max(1, ALIGN_BYTES // x.element_size())
    *front, last = x.shape
    return x.new_empty((*front, -(-last // unit) * unit))[..., :last].copy_(x)


def granularity_of(form: Form, scales: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """Return whether each block scale of a and of b belongs to a row or to a block: "1x128" or "128x128"; () for none.

    scales   as for `compute_grouped`
    """
    return (ROWS, ROWS if scales[1].shape[-2] == form.n else BLOCKS) if scales else ()


def loadable_scales(scales: torch.Tensor, granularity: str) -> torch.Tensor:
    """Return block scales as a kernel loads them: contiguous along K, or along the rows with a pitch of 16 bytes.

    scales        (rows or blocks of rows, K/128), with L in front or not
    granularity   "1x128" or "128x128"
    """
    if granularity == BLOCKS:
        return scales.contiguous()
    view = View(tuple(scales.shape), tuple(scales.stride()), 4, scales.data_ptr(), scales.dim() == 3, wanted=0)
    if view.major == 0 and view.boxed >= ALIGN_BYTES and view.strides is None:
        return scales
    return padded(scales, 0)


@lru_cache
def has_grouped_kernels(index: int) -> bool:
    """Return whether grouped kernels run on a GPU: it has the architecture of Hopper.

    index   index of the device
    """
    return torch_ops.device_arch(index).startswith("sm_90")


def _prepared(problem: Problem, spec: EpilogueSpec, read: Formula, count: int, how: How, index: int) -> _Call:
    """Choose and compile the plan of a call that is made first with its signature.

    problem, spec   results of `question`
    count           number of operands of the epilogue that are tensors
    index           index of the device
    """
    plan = plan_for(problem, spec, how, torch_ops.device_arch(index), torch_ops.device_of(index))
    function = on_device(compile_plan(plan, torch_ops.device_arch(index)).function)
    at = {name: 1 + i for i, name in enumerate(read.names[:count])} | {ENDS: 0, COUNTS: 0}
    results = ("d", *spec.epilogue.beside)
    at |= {name: 1 + count + i for i, name in enumerate((*results, *scale_names(plan.operands)))}
    names = (*plan.operands.of_mainloop, *plan.epilogue.tensors, "d", *plan.epilogue.beside)
    return _Call(plan, function, tuple([at[name] for name in names]))


def plan_for(problem: Problem, spec: EpilogueSpec, how: How, arch: str, device: Any) -> GemmPlan:
    """Return the plan of a call: the one that the caller wants, or the one with the lowest predicted time.

    raises   PlanError with every rule that a wanted plan breaks, or if no plan can implement the call
    """
    has_c = bool(spec.epilogue.tiles)

    def with_ending(plan: GemmPlan, swap_ab: bool) -> GemmPlan | None:
        """Return the plan with the epilogue of the call; None if it cannot have it at full speed."""
        return spec.on(plan, swap_ab) if spec.can_implement(plan, problem.m) else None

    if how.plan is None:
        return chosen_grouped(_rounded(problem), arch, device, how.accumulate, has_c, with_ending)[1]
    plan = how.plan
    if isinstance(plan, str):
        recipe = recipe_named(plan)
        plan = recipe.as_launched(spec.on(recipe.build(problem.operands, has_c, arch, device), recipe.swap_ab))
    wrong = list(limits(plan, problem.transposed if plan.swap_ab else problem))
    if wrong:
        raise PlanError(f"grouped_mm by {plan.name}", wrong)
    return plan


def _rounded(problem: Problem) -> Problem:
    """Return a problem with the extent that groups divide rounded up to a power of two: few plans serve all extents."""
    mode = problem.operands.groups
    extent = max(1, getattr(problem, mode), problem.l)
    return replace(problem, ld=(), **{mode: 1 << (extent - 1).bit_length()})


def question(
    form: Form,
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Sequence[torch.Tensor],
    read: Formula,
    results: Sequence[torch.Tensor],
    granularity: tuple[str, ...] = (),
) -> tuple[Problem, EpilogueSpec]:
    """Return the grouped problem of a call, and its epilogue with the types of its tensors.

    operands      tensors of the epilogue, as the caller passes them
    results       tensors for the results
    granularity   "1x128" or "128x128" for the block scales of a and of b; () without them
    raises        PlanError for an epilogue that reduces
    """
    kinds: dict[str, type[Input]] = dict.fromkeys(read.names, Scalar)
    tensors = {}
    for name, x in zip(read.names, operands, strict=False):
        kinds[name], tensors[name] = _seen(read, name, x, form)
    epilogue = epilogue_of(read.function, kinds)
    if epilogue.reductions:
        rule = f"the epilogue {epilogue} reduces, but grouped kernels cannot. Reduce the result."
        raise PlanError("grouped_mm", [rule])
    first = epilogue.tiles[0] if epilogue.tiles else None
    aux = {name: _operand(kinds[name], tensors[name]) for name in epilogue.tensors if name != first}
    aux |= {name: _matrix("c", x) for name, x in zip(epilogue.beside, results[1:], strict=True)}
    c = results[0] if first is None else tensors[first]
    made = _matrix("a", a), _matrix("b", b), _matrix("c", c), _matrix("c", results[0])
    acc = Operands.of("tf32" if a.dtype == torch.float32 else torch_ops.DTYPES[a.dtype]).acc
    whole = Operands(*made, acc, batched=True, groups=form.groups).as_tf32
    if granularity:
        whole = with_scales(whole, granularity)
    whole = whole.with_aux(**{COUNTS: SIZES}) if form.is_padded else with_group_ends(whole)
    return Problem(form.flat.m, form.n, form.k, form.l, whole), EpilogueSpec(epilogue, aux)


def _matrix(name: str, x: torch.Tensor) -> Operand:
    """Return type, majorness and alignment of a matrix, or of a batch of them.

    name   "a", "b", or "c" for a matrix with the modes of D
    """
    view = View.of(name, x, x.dim() == 3)
    align = view.align if name == "c" else view.boxed
    return Operand(torch_ops.DTYPES[x.dtype], _MODES[name][view.major or 0], align)


def _operand(kind: type[Input], x: torch.Tensor) -> Operand:
    """Return type, majorness and alignment of an operand of the epilogue, as a kernel takes it."""
    assert issubclass(kind, Tensor)
    if kind is Tile:
        return _matrix("c", x)
    row = x.shape[-1] * x.element_size() if kind is Row else x.element_size()
    bits = ALIGN_BYTES | row | x.data_ptr() % ALIGN_BYTES
    return Operand.of_kind(kind, torch_ops.DTYPES[x.dtype], align_bytes=bits & -bits)
