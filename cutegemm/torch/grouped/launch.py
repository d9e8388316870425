"""Kernels of grouped GEMMs: choose and compile a plan for a signature of the arguments once, then launch it.

TMA needs rows whose pitch is a multiple of 16 bytes. It clips a matrix at the end of a group only along a mode that is
not contiguous: see `plan.memory.groups`. Tensor cores need factors of float8 and float32 whose K is contiguous. Other
matrices are copied first. Such results are stored to the memory of their transpose, and copied.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

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


Loader: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory of a result, for all calls of one signature.

    allocate   function of the tensor a, on whose device it allocates the memory
    parts      function from the memory to what the kernel stores; None: the memory itself
    result     function from the memory to the result; None: the memory itself
    """

    allocate: Loader
    parts: Callable[[torch.Tensor], Sequence[torch.Tensor]] | None = None
    result: Loader | None = None

    @staticmethod
    def of(shape: Sequence[int], dtype: torch.dtype, form: Form, zeroed: bool, interleaved: bool | None) -> _Memory:
        """Return the memory of a result.

        shape         shape of the result
        zeroed        whether it is filled with 0
        interleaved   whether gate and up, stored separately, are adjacent columns of the result. Otherwise they are its
                      halves. None if the kernel stores the result as one
        """
        *front, columns = shape
        if interleaved is None:
            is_plain = form.groups != "n" and columns * dtype.itemsize % ALIGN_BYTES == 0
            return _Memory(
                _allocator(shape, dtype, form, zeroed),
                (lambda memory: (memory.view(-1, columns),)) if form.is_padded else None,
                None if is_plain else torch.Tensor.contiguous,
            )
        half = columns // 2
        if not interleaved and half * dtype.itemsize % ALIGN_BYTES == 0:
            return _Memory(_allocator(shape, dtype, form, zeroed), lambda memory: _rows(memory, form).split(half, -1))
        return _Memory(
            _allocator((2, *front, half), dtype, form, zeroed),
            lambda memory: [_rows(part, form) for part in memory.unbind()],
            lambda memory: _joined(memory[0], memory[1], interleaved),
        )

    def stored(self, memory: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return what the kernel stores: the result, or its gate and its up columns."""
        return (memory,) if self.parts is None else self.parts(memory)

    def finished(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the result after the kernel has stored it."""
        return memory if self.result is None else self.result(memory)


def _rows(x: torch.Tensor, form: Form) -> torch.Tensor:
    """Return the matrices of a padded form as one matrix, and others as they are."""
    return x.view(-1, x.shape[-1]) if form.is_padded else x


def joined_results(results: list[torch.Tensor], interleaved: bool | None) -> list[torch.Tensor]:
    """Return results with the first two as adjacent columns (True) or as halves (False) of one; None: as they are."""
    if interleaved is None:
        return results
    gate, up, *others = results
    return [_joined(gate, up, interleaved), *others]


def _joined(gate: torch.Tensor, up: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Return gate and up as adjacent columns of one tensor if `interleaved`, else as its halves."""
    return interleave(gate, up) if interleaved else torch.cat([gate, up], -1)


@dataclass(frozen=True, slots=True)
class Call:
    """A prepared grouped GEMM, for all calls of one signature: a function of a, b, ends, operands and block scales.

    plan       the plan
    wanted     the plan of the caller, its name, or None; the signature has its address
    function   the compiled kernel: (a, b, tensors in the order of the plan's signature, numbers)
    order      index in (a, b, ends, operands, scales, what is stored) of each tensor that the kernel takes
    loaders    for each of a, b, ends, operands and scales a function to what the kernel takes; None: the tensor itself
    memories   memory of each result
    """

    plan: GemmPlan
    wanted: GemmPlan | str | None
    function: Callable[..., None]
    order: tuple[int, ...]
    loaders: tuple[Loader | None, ...]
    memories: tuple[_Memory, ...]

    def __call__(self, *tensors: torch.Tensor, scalars: Sequence[float] = ()) -> list[torch.Tensor]:
        """Launch the kernel, and return the results.

        scalars   numbers of the epilogue
        """
        passed = _loaded(self.loaders, tensors)
        return self.launch(passed, [memory.allocate(tensors[0]) for memory in self.memories], scalars)

    def launch(
        self, passed: list[torch.Tensor], allocated: Sequence[torch.Tensor], scalars: Sequence[float]
    ) -> list[torch.Tensor]:
        """Launch the kernel on tensors as it takes them, and return the results.

        passed      a, b, ends, operands and scales
        allocated   memory of each result
        """
        for memory, whole in zip(self.memories, allocated, strict=True):
            passed += memory.stored(whole)
        try:
            self.function(*[passed[index] for index in self.order], *scalars)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CutegemmError(
                f"grouped_mm of {tuple(passed[0].shape)} by {tuple(passed[1].shape)}, {self.plan.name}: {error}"
            ) from error
        return [memory.finished(whole) for memory, whole in zip(self.memories, allocated, strict=True)]


def _loaded(loaders: Sequence[Loader | None], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what a kernel takes of each tensor."""
    return [x if load is None else load(x) for load, x in zip(loaders, tensors, strict=True)]


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
    """
    tensors = (a, b, ends, *operands, *scales)
    key = _signature(tensors, len(scales), text, out_dtype, how, zeroed, joined)
    call = _calls.found.get(key)
    if call is not None:
        return call(*tensors, scalars=scalars)
    form, read = Form.of(a, b, ends), formula(text)
    if form.k == 0 or form.l == 0:  # factors without memory, which no kernel can load
        return joined_results(grouped_by_torch(a, b, ends, text, operands, scalars, out_dtype, zeroed), joined)
    memories = _memories(read, form, result_dtypes(a, read.results, out_dtype), zeroed, joined)
    allocated = [memory.allocate(a) for memory in memories]
    if not all(whole.numel() for whole in allocated):
        return [memory.finished(whole) for memory, whole in zip(memories, allocated, strict=True)]
    loaders = _loaders(a, b, operands, scales, form, read)
    passed = _loaded(loaders, tensors)
    stored = [part for memory, whole in zip(memories, allocated, strict=True) for part in memory.stored(whole)]
    count, split = len(operands), _split(text)
    problem, spec = question(form, passed[0], passed[1], operands, split, stored, granularity_of(form, scales))
    chosen = plan_for(problem, spec, how, torch_ops.device_arch(a.get_device()), torch_ops.device_of(a.get_device()))
    function = on_device(compile_plan(chosen, torch_ops.device_arch(a.get_device())).function)
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
) -> Call | None:
    """Return the prepared call of a signature that `compute_grouped` has computed before; None if it has no kernel.

    The arguments are those of `compute_grouped`.
    """
    tensors = (a, b, ends, *operands, *scales)
    call: Call | None = _calls.found.get(_signature(tensors, len(scales), text, out_dtype, how, zeroed, joined))
    return call


def _signature(tensors: Sequence[torch.Tensor], scales: int, text: str, dtype: Any, how: How, *options: Any) -> Any:
    """Return the signature of a call: all that the choice of a kernel depends on.

    tensors   a, b, ends, operands and scales
    scales    number of scales
    """
    places = [(x.dtype, x.shape, x.stride(), x.data_ptr() % ALIGN_BYTES) for x in tensors]
    plan = how.plan if isinstance(how.plan, str) else id(how.plan)
    return (*places, tensors[0].get_device(), scales, text, dtype, plan, how.accumulate, *options)


def _memories(
    read: Formula, form: Form, dtypes: Sequence[torch.dtype], zeroed: bool, joined: bool | None
) -> tuple[_Memory, ...]:
    """Return the memory of each result of an epilogue, of the given types. `joined` is that of `compute_grouped`."""
    made, gates = list(zip(form.result_shapes(read), dtypes, strict=True)), interleaving(read.results)
    found = [None if is_gated(result) else gates for result in read.results]
    if joined is not None:
        ((*front, columns), dtype), *made = made[1:]
        made, found = [((*front, 2 * columns), dtype), *made], [joined, *found[2:]]
    return tuple(
        [_Memory.of(shape, dtype, form, zeroed, each) for (shape, dtype), each in zip(made, found, strict=True)]
    )


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


def _allocator(shape: Sequence[int], dtype: torch.dtype, form: Form, zeroed: bool) -> Loader:
    """Return a function that allocates a result on the device of a tensor.

    TMA can store the memory, and clip it at the end of a group.

    shape    shape of the result
    zeroed   whether it is filled with 0
    """
    unit, is_transposed = max(1, ALIGN_BYTES // dtype.itemsize), form.groups == "n"
    *front, last = (*shape[:-2], shape[-1], shape[-2]) if is_transposed else shape
    whole = (*front, -(-last // unit) * unit)

    def allocate(a: torch.Tensor) -> torch.Tensor:
        memory = a.new_zeros(whole, dtype=dtype) if zeroed else a.new_empty(whole, dtype=dtype)
        if whole[-1] != last:
            memory = memory[..., :last]
        return memory.mT if is_transposed else memory

    return allocate


def _loaders(
    a: torch.Tensor,
    b: torch.Tensor,
    operands: Sequence[torch.Tensor],
    scales: Sequence[torch.Tensor],
    form: Form,
    read: Formula,
) -> tuple[Loader | None, ...]:
    """Return the loaders of a `Call`."""
    flat = _flattened if form.is_padded else None
    of_a, of_b = _factor_loader("a", a if flat is None else flat(a), form), _factor_loader("b", b, form)
    if flat is not None:
        rest, of_a = of_a, flat if of_a is None else lambda x: rest(flat(x))  # type: ignore[misc]
    found: list[Loader | None] = [of_a, of_b, lambda ends: ends.unsqueeze(-1)]
    for name, x in zip(read.names, operands, strict=False):
        seen = _seen(read, name, x, form)[1]
        found.append(_view_loader(x, seen) if seen.data_ptr() == x.data_ptr() else _operand_loader(read, name, form))
    for scale, granularity in zip(scales, granularity_of(form, scales), strict=True):
        is_loadable = loadable_scales(scale, granularity) is scale
        found.append(None if is_loadable else partial(loadable_scales, granularity=granularity))
    return tuple(found)


def _view_loader(x: torch.Tensor, view: torch.Tensor) -> Loader | None:
    """Return a function from a tensor like x to a view with the shape and strides of `view`; None if x has them."""
    shape, strides = view.shape, view.stride()
    return None if (shape, strides) == (x.shape, x.stride()) else lambda x: x.as_strided(shape, strides)


def _operand_loader(read: Formula, name: str, form: Form) -> Loader:
    """Return a function that copies an operand of the epilogue to what a kernel takes."""
    return lambda x: _seen(read, name, x, form)[1]


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


def _factor_loader(name: str, x: torch.Tensor, form: Form) -> Loader | None:
    """Return a function from a factor to what a grouped kernel can load; None if it can load the factor itself.

    It returns a copy, with a warning, if other strides are needed.

    name   "a" or "b"

    >>> form = Form("k", 2, 64, 64, 128)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     _factor_loader("a", torch.zeros(64, 128), form)(torch.zeros(64, 128)).stride()
    (1, 64)
    """
    view, of_k = View.of(name, x, x.dim() == 3), _MODES[name].find("k")
    majors: tuple[int, ...]
    if form.groups == "k":
        majors, which = (1 - of_k,), ", and not be contiguous along K, which groups divide"
    elif x.element_size() != 2:
        majors, which = (of_k,), f", and be contiguous along K, as tensor cores need {x.dtype}"
    else:
        majors, which = (0, 1), ""
    if view.major in majors and view.boxed >= ALIGN_BYTES:
        return None if view.strides is None else _view_loader(x, x.as_strided(x.shape, view.strides))
    major = majors[0] if view.major == majors[0] else majors[-1]

    def copied(x: torch.Tensor) -> torch.Tensor:
        warnings.warn(
            f"grouped_mm: a copy of {name}, of shape {tuple(x.shape)} and strides {x.stride()}, is made in each call. "
            f"Its rows or columns must be contiguous with a pitch of a multiple of {ALIGN_BYTES} bytes{which}.",
            CopyWarning,
            stacklevel=6,
        )
        return padded(x, major)

    return copied


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


def _order(plan: GemmPlan, spec: EpilogueSpec, read: Formula, count: int) -> tuple[int, ...]:
    """Return the field `order` of a `Call`.

    spec    the epilogue, as `question` returns it
    read    the epilogue as the kernel computes it
    count   number of its operands that are tensors
    """
    results = ("d", *spec.epilogue.beside)
    names = (ENDS, *read.names[:count], *scale_names(plan.operands), *results)
    at = {name: 2 + i for i, name in enumerate(names)}
    at[COUNTS] = at[ENDS]
    taken = (*plan.operands.of_mainloop, *plan.epilogue.tensors, "d", *plan.epilogue.beside)
    return (0, 1, *[at[name] for name in taken])


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
