"""Kernels of grouped GEMMs: choose and compile a plan for a signature of the arguments once, then launch it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import torch

from cutegemm.choice.grouped import chosen_grouped
from cutegemm.choice.names import recipe_named
from cutegemm.compile.plans import compile_plan
from cutegemm.errors import PlanError
from cutegemm.machine.device import Device
from cutegemm.plan.epilogue import Epilogue, Input, Row, Scalar, Tensor, Tile, epilogue_of
from cutegemm.plan.mainloop.block_scaled import scale_names, with_scales
from cutegemm.plan.memory.groups import COUNTS, ENDS, SIZES, with_group_ends, with_index
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import D_INDEX, INDEX, Operand, Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.run import torch_ops
from cutegemm.run.calls import ASKING, Calls, How
from cutegemm.run.launches import on_device
from cutegemm.run.question import EpilogueSpec
from cutegemm.run.views import ALIGN_BYTES, MODES, View
from cutegemm.torch.epilogue import Formula, OutDtype, formula, is_gated, text_of
from cutegemm.torch.grouped.forms import Form
from cutegemm.torch.grouped.prepared import (
    Call,
    Memory,
    granularity_of,
    joined_results,
    loadable_operand,
    loaded,
    loaders_of,
)
from cutegemm.torch.grouped.reference import added_rows, grouped_by_torch, rows_of
from cutegemm.torch.launch import interleaving, split_results
from cutegemm.torch.reference import result_dtypes

_calls = Calls()


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
    joined: bool | None = None,
    index: torch.Tensor | None = None,
    d_index: torch.Tensor | None = None,
    targets: int = 0,
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
    joined      whether the first two results are returned as one: as adjacent columns of it (True), or as its halves
                (False). None: they are two
    index       (M,) int32: the row of a for each row of the product, if groups divide M; None: each row is its own
    d_index     (M,) int32: the row of the only result that each row of the product is added to, in any order, if groups
                divide M; None: each row is its own
    targets     number of rows of that result; 0 without `d_index`
    """
    indices = [each for each in (index, d_index) if each is not None]
    tensors = (a, b, ends, *operands, *scales, *indices)
    key = _signature(tensors, len(scales), text, out_dtype, how, zeroed, joined, index is None, targets)
    call = _calls.found.get(key)
    if call is not None:
        return call(*tensors, scalars=scalars)
    if any(x.is_neg() for x in tensors):  # kernels read memory, which has the other sign
        a, b, ends, *others = [x.resolve_neg() for x in tensors]
        operands, scales = others[: len(operands)], others[len(operands) : len(operands) + len(scales)]
        index, d_index = [each if each is None else each.resolve_neg() for each in (index, d_index)]
        options = text, operands, scalars, out_dtype, how, zeroed, scales, joined, index, d_index, targets
        return compute_grouped(a, b, ends, *options)
    form, read = Form.of(a, b, ends, index), formula(text)
    if form.k == 0 or form.l == 0 or not len(a):  # factors without memory, which no kernel can load
        rows = a if index is None else rows_of(a, index)
        results = grouped_by_torch(rows, b, ends, text, operands, scalars, out_dtype, zeroed or targets > 0)
        return joined_results(results if d_index is None else added_rows(results, d_index, targets), joined)
    memories = _memories(read, form, result_dtypes(a, read.results, out_dtype), zeroed, joined, targets)
    allocated = [memory.allocate(a) for memory in memories]
    if not all(whole.numel() for whole in allocated):
        return [memory.finished(whole) for memory, whole in zip(memories, allocated, strict=True)]
    loaders = loaders_of(a, b, operands, scales, form, read, len(indices))
    passed = loaded(loaders, tensors)
    stored = [part for memory, whole in zip(memories, allocated, strict=True) for part in memory.stored(whole)]
    count, split = len(operands), _split(text)
    granularity = granularity_of(form, scales)
    selected = tuple([name for name, each in ((INDEX, index), (D_INDEX, d_index)) if each is not None])
    problem, spec = question(form, passed[0], passed[1], operands, split, stored, granularity, selected)
    arch, device = _target(a)
    chosen = plan_for(problem, spec, how, arch, device)
    if ASKING.notes(chosen, arch):
        return [memory.finished(whole) for memory, whole in zip(memories, allocated, strict=True)]
    function = on_device(compile_plan(chosen, arch).function)
    call = Call(chosen, how.plan, function, _order(chosen, spec, split, count), loaders, memories)
    _calls.keep(key, call)
    return call.launch(passed, allocated, scalars)


def call_of(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    text: str,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    out_dtype: OutDtype,
    how: How,
    zeroed: bool,
    scales: Sequence[torch.Tensor],
    joined: bool | None,
    index: torch.Tensor | None,
    d_index: torch.Tensor | None,
    targets: int,
) -> Call | None:
    """Return the prepared call of a signature that `compute_grouped` has computed before; None if it has no kernel.

    The arguments are those of `compute_grouped`.
    """
    tensors = (a, b, ends, *operands, *scales, *[each for each in (index, d_index) if each is not None])
    key = _signature(tensors, len(scales), text, out_dtype, how, zeroed, joined, index is None, targets)
    call: Call | None = _calls.found.get(key)
    return call


def _signature(tensors: Sequence[torch.Tensor], scales: int, text: str, dtype: Any, how: How, *options: Any) -> Any:
    """Return the signature of a call: all that the choice of a kernel depends on.

    tensors   a, b, ends, operands, scales, and indices of rows if there are any
    scales    number of scales
    """
    places = [(x.dtype, x.shape, x.stride(), x.data_ptr() % ALIGN_BYTES, x.is_neg()) for x in tensors]
    plan = how.plan if isinstance(how.plan, str) else id(how.plan)
    return (*places, tensors[0].get_device(), scales, text, dtype, plan, how.accumulate, *options)


def _target(a: torch.Tensor) -> tuple[str, Device]:
    """Return the architecture and the device that plans are chosen for: those of a tensor, or of `prepare.asking`."""
    if ASKING.device is not None:
        return ASKING.device.arch, ASKING.device
    index = a.get_device()
    return torch_ops.device_arch(index), torch_ops.device_of(index)


def _memories(
    read: Formula, form: Form, dtypes: Sequence[torch.dtype], zeroed: bool, joined: bool | None, targets: int
) -> tuple[Memory, ...]:
    """Return the memory of each result of an epilogue, of the given types. See `compute_grouped` for the others."""
    if targets:  # rows are added to zeros
        return (Memory.of((targets, form.n), dtypes[0], form, True, None),)
    made, gates = list(zip(form.result_shapes(read), dtypes, strict=True)), interleaving(read.results)
    found = [None if is_gated(result) else gates for result in read.results]
    if joined is not None:
        ((*front, columns), dtype), *made = made[1:]
        made, found = [((*front, 2 * columns), dtype), *made], [joined, *found[2:]]
    return tuple(
        [Memory.of(shape, dtype, form, zeroed, each) for (shape, dtype), each in zip(made, found, strict=True)]
    )


@lru_cache(maxsize=1024)
def _split(text: str) -> Formula:
    """Return an epilogue as a kernel computes it: gate and up of a result with all columns of b are two results.

    >>> _split("lambda acc: (swiglu(acc), acc)").text
    'lambda acc: (silu(halves(acc)[0]) * halves(acc)[1], halves(acc)[0], halves(acc)[1])'
    """
    read = formula(text)
    return formula(text_of(split_results(read.results), read.names))


@lru_cache
def has_grouped_kernels(index: int) -> bool:
    """Return whether grouped kernels run on a GPU: it has the architecture of Hopper.

    index   index of the device
    """
    return torch_ops.device_arch(index).startswith("sm_90")


def _order(plan: GemmPlan, spec: EpilogueSpec, read: Formula, count: int) -> tuple[int, ...]:
    """Return the field `order` of a `Call`.

    spec    the epilogue, as `question` returns it
    read    the epilogue as the kernel computes it
    count   number of its operands that are tensors
    """
    results = ("d", *spec.epilogue.beside)
    indices = [name for name in (INDEX, D_INDEX) if name in plan.operands.of_mainloop]
    names = (ENDS, *read.names[:count], *scale_names(plan.operands), *indices, *results)
    at = {name: 2 + i for i, name in enumerate(names)}
    at[COUNTS] = at[ENDS]
    taken = (*plan.operands.of_mainloop, *plan.epilogue.tensors, "d", *plan.epilogue.beside)
    return (0, 1, *[at[name] for name in taken])


def plan_for(problem: Problem, spec: EpilogueSpec, how: How, arch: str, device: Any) -> GemmPlan:
    """Return the plan of a call: the one that the caller wants, or the one with the lowest predicted time.

    raises   PlanError with every rule that a wanted plan breaks, or if no plan can implement the call
    """
    if how.plan is None:
        groups = problem.operands.groups
        extent, rows = size_class(getattr(problem, groups), problem.l)
        rounded = replace(problem, ld=(), **cast(dict[str, Any], {groups: extent}))
        if groups != "m":
            rows = size_class(problem.m, 1)[1]
        return _chosen(rounded, rows, spec.epilogue, tuple(spec.aux.items()), arch, device, how.accumulate)
    plan = how.plan
    if isinstance(plan, str):
        recipe, has_c = recipe_named(plan), bool(spec.epilogue.tiles)
        plan = recipe.as_launched(spec.on(recipe.build(problem.operands, has_c, arch, device), recipe.swap_ab))
    wrong = list(limits(plan, problem.transposed if plan.swap_ab else problem))
    if wrong:
        raise PlanError(f"grouped_mm by {plan.name}", wrong)
    return plan


@lru_cache(maxsize=1024)
def _chosen(
    problem: Problem,
    rows: int,
    epilogue: Epilogue,
    aux: tuple[tuple[str, Operand], ...],
    arch: str,
    device: Any,
    accumulate: str,
) -> GemmPlan:
    """Return the plan with the lowest predicted time.

    problem         the problem, with rounded extents
    rows            number of rows of the D of a group, in the mean, rounded down to a power of two
    epilogue, aux   fields of the call's `EpilogueSpec`
    """
    spec = EpilogueSpec(epilogue, dict(aux))

    def with_ending(plan: GemmPlan, swap_ab: bool) -> GemmPlan | None:
        """Return the plan with the epilogue of the call; None if it cannot have it at full speed."""
        return spec.on(plan, swap_ab) if spec.can_implement(plan, rows) else None

    return chosen_grouped(problem, arch, device, accumulate, bool(epilogue.tiles), with_ending)[1]


def size_class(extent: int, groups: int) -> tuple[int, int]:
    """Return all that the choice of a plan depends on of the extent that groups divide: few plans serve all extents.

    returns   the extent rounded up to a power of two, and the mean extent of a group rounded down to one, or 0

    >>> size_class(300, 8), size_class(3, 8)
    ((512, 32), (8, 0))
    """
    return 1 << (max(1, extent, groups) - 1).bit_length(), 1 << (extent // max(1, groups)).bit_length() >> 1


def question(
    form: Form,
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Sequence[torch.Tensor],
    read: Formula,
    results: Sequence[torch.Tensor],
    granularity: tuple[str, ...] = (),
    indices: Sequence[str] = (),
) -> tuple[Problem, EpilogueSpec]:
    """Return the grouped problem of a call, and its epilogue with the types of its tensors.

    operands      tensors of the epilogue, as the caller passes them
    results       tensors for the results
    granularity   "1x128" or "128x128" for the block scales of a and of b; () without them
    indices       names of the operands that select rows: `INDEX` of a, `D_INDEX` of the result
    raises        PlanError for an epilogue that reduces
    """
    kinds: dict[str, type[Input]] = dict.fromkeys(read.names, Scalar)
    tensors = {}
    for name, x in zip(read.names, operands, strict=False):
        kinds[name], tensors[name] = loadable_operand(read, name, x, form)
    epilogue = _epilogue(read.text, tuple(kinds.values()))
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
    for name in indices:
        whole = with_index(whole, name)
    return Problem(form.flat.m, form.n, form.k, form.l, whole), EpilogueSpec(epilogue, aux)


@lru_cache(maxsize=1024)
def _epilogue(text: str, kinds: tuple[type[Input], ...]) -> Epilogue:
    """Return an epilogue whose operands have the given kinds."""
    read = formula(text)
    return epilogue_of(read.function, dict(zip(read.names, kinds, strict=True)))


def _matrix(name: str, x: torch.Tensor) -> Operand:
    """Return type, majorness and alignment of a matrix, or of a batch of them.

    name   "a", "b", or "c" for a matrix with the modes of D
    """
    view = View.of(name, x, x.dim() == 3)
    align = view.align if name == "c" else view.boxed
    return Operand(torch_ops.DTYPES[x.dtype], MODES[name][view.major or 0], align)


def _operand(kind: type[Input], x: torch.Tensor) -> Operand:
    """Return type, majorness and alignment of an operand of the epilogue, as a kernel takes it."""
    assert issubclass(kind, Tensor)
    if kind is Tile:
        return _matrix("c", x)
    row = x.shape[-1] * x.element_size() if kind is Row else x.element_size()
    bits = ALIGN_BYTES | row | x.data_ptr() % ALIGN_BYTES
    return Operand.of_kind(kind, torch_ops.DTYPES[x.dtype], align_bytes=bits & -bits)
