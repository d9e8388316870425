"""`gemm` with an epilogue: operands by name, their kinds inferred from their shapes, and several results.

A call whose signature is known looks up the prepared call, allocates the results and launches. The epilogue's
function is called with symbols in the first call of a signature. It is called in every call if it reads something
whose changes cannot be noticed, such as an attribute of an object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Signature, signature
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from cutegemm.errors import CutegemmError, PendingError, UnsupportedError
from cutegemm.plan.epilogue import (
    BROADCAST,
    Accumulator,
    Column,
    Element,
    Epilogue,
    Expression,
    Input,
    Reduction,
    Row,
    Scalar,
    Tensor,
    Tile,
    epilogue_of,
)
from cutegemm.plan.epilogue.dependencies import state_of
from cutegemm.plan.epilogue.expression import expression_of
from cutegemm.plan.epilogue.quantized import BlockScale
from cutegemm.plan.epilogue.symbols import result_name
from cutegemm.plan.problem import Operand
from cutegemm.plan.rules.gated import wide_results
from cutegemm.plan.store.quantized import SCALES_OF_D
from cutegemm.run.calls import Calls, How, shapes_of
from cutegemm.run.checks import (
    extents_of,
    is_same,
    overlaps,
    overwritten,
    refused,
    without_addresses,
    without_epilogue,
    without_torch,
    wrong_devices,
    wrong_dtypes,
    wrong_extents,
    wrong_memory,
    wrong_out_dtype,
    wrong_values,
)
from cutegemm.run.graph import arguments, belong_to_transformation, by_torch, through_torch
from cutegemm.run.launches import new_like, of_transpose, on_device
from cutegemm.run.prepare import Prepared, prepare
from cutegemm.run.question import EpilogueSpec
from cutegemm.run.scales import blocks_of, conversion, granularities, new_scales, separated, wrong_scales
from cutegemm.run.views import ALIGN_BYTES, MODES, Region, View

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


_calls = Calls()
_WIDE = (Reduction, BlockScale)  # results of 32 bits, or 64 for float64, whatever the type of D is
_Fit = tuple[type[Tensor] | None, int]  # (kind of an operand, its number of columns), from `_fit`


class _Call:
    """A prepared `gemm` call with an epilogue, used again by all calls of one signature: kernel, outputs and checks.

    A signature consists of the types, shapes, strides, alignments and device of all tensors, and of the options.

    prepared   compiled kernel, memory layouts of the tensors, and the problem
    launch     function of a, b, the operands' values and the results, which launches the kernel; None if D is empty
    new        for each result a function without arguments that allocates it
    results    (shape, torch dtype) of each result
    reduced    for the results that are sums or maxima: index of the result -> its description
    reads      (name, bytes that it occupies) of each tensor that is read, to find overlaps; None until a caller passes
               tensors for results
    writes     bytes that each result's tensor of the caller occupies; None for a new tensor
    written    function of a tensor; it tells autograd that the tensor has changed
    plan       the plan that the caller passed. It is kept alive because the signature contains its id
    """

    __slots__ = ("launch", "new", "plan", "prepared", "reads", "reduced", "results", "writes", "written")

    def __init__(
        self,
        prepared: Prepared,
        a: Any,
        operands: Mapping[str, Any],
        results: Mapping[str, _Result],
        plan: Any,
        as_rows: bool = False,
    ) -> None:
        from torch.autograd.graph import increment_version

        self.prepared, self.plan, self.written = prepared, plan, increment_version
        self.results = tuple([(result.shape, result.dtype) for result in results.values()])
        self.new = tuple([result.new(a) for result in results.values()])
        indexed = enumerate(results.values())
        self.reduced = {index: result for index, result in indexed if result.reduction is not None}
        self.reads: list[tuple[str, Region]] | None = None
        self.writes: Sequence[Region | None] = ()
        self.launch = None if prepared.kernel is None else _launcher(prepared, operands, results, as_rows)


@dataclass(frozen=True)
class _Result:
    """Describes one result of an epilogue: D, an auxiliary output with the extents of D, or a sum or maximum over D.

    shape        shape of the torch tensor
    dtype        its torch dtype
    reduction    the sum or maximum, with the modes that it is taken over; None for D, auxiliary outputs and scales
    view         memory layout of an auxiliary output; None for D, sums, maxima and scales
    are_scales   True if they are the scales of a quantized D
    """

    shape: tuple[int, ...]
    dtype: Any
    reduction: Reduction | None = None
    view: View | None = None
    are_scales: bool = False

    def new(self, a: Any) -> Callable[[], Any]:
        """Return a function that allocates a tensor for this result, on the device of the tensor `a`."""
        if not self.are_scales:
            return new_like(a, self.shape, self.dtype)
        return partial(new_scales, a.new_empty(0), self.shape)

    @property
    def identity(self) -> float:
        """Return the value of this result if D is empty: 0 for a sum, -inf for a maximum, 0 for other results."""
        return 0.0 if self.reduction is None else self.reduction.identity

    def wrong(self, name: str, out: Any) -> Iterator[str]:
        """Yield the reasons why this auxiliary output, sum or maximum cannot be stored to the caller's tensor.

        name   name of the tensor in messages, such as "out[1]"
        out    the caller's tensor
        """
        from cutegemm.run.torch_ops import DTYPES

        shape, strides, kind = tuple(out.shape), tuple(out.stride()), DTYPES.get(out.dtype)
        subject = name if self.reduction is None else f"{name}, for {self.reduction},"
        or_none = "or None for a new tensor."
        if shape != self.shape:
            yield f"{subject} has shape {shape}. Pass a tensor of shape {self.shape}, {or_none}"
        elif self.reduction is not None and not out.is_contiguous():
            yield f"{subject} has strides {strides}. Pass a contiguous tensor, {or_none}"
        elif self.are_scales and out.stride(-2) != 1 and shape[-2] > 1:
            yield f"{subject} has strides {strides}. Pass scales that are contiguous along the rows, {or_none}"
        elif self.view is not None and self.view.major is None:
            yield f"{name} has strides {strides}. Pass a tensor with stride 1 in one of its last two modes, {or_none}"
        if out.dtype != self.dtype:
            yield f"{subject} is of {_type_name(out.dtype)}. Pass a tensor of {_type_name(self.dtype)}, {or_none}"
        elif kind is None or not kind.is_float:
            yield f"{name} is of {_type_name(out.dtype)}. Pass a tensor of a floating type, {or_none}"


def _launcher(
    prepared: Prepared, operands: Mapping[str, Any], results: Mapping[str, _Result], as_rows: bool
) -> Callable[..., None]:
    """Return the function that launches a kernel: (a, b, values of the operands, tensors of the results) -> None.

    Some tensors are passed to the kernel with another shape or other strides, e.g. a row as (L, N). These conversions
    are chosen once, when the call is prepared.

    prepared   the compiled kernel, and the memory layouts of the tensors
    operands   operands of the epilogue by name, in the order of their values
    results    results by name, in the order in which they are returned
    as_rows    True if the launch takes the transpose of b, N x K, as a layer stores its weight
    """
    assert prepared.kernel is not None
    plan, function = prepared.kernel.plan, prepared.function
    epilogue, batched = plan.epilogue, len(prepared.shape) == 3
    scales, _ = separated(operands)
    index_of = {name: index for index, name in enumerate((*operands, *results))}
    conversions = {
        name: _operand_conversion(epilogue.kinds[name], operands[name], prepared.shape) for name in epilogue.tensors
    } | {name: _result_conversion(name, result, prepared.views[3]) for name, result in results.items()}
    for name, of_plan in zip(scales, plan.operands.of_mainloop, strict=True):
        by_block = "/" in plan.operands.modes(of_plan)[0]
        conversions[name] = conversion(name, by_block, operands[name], batched)
    converted = [(index_of[name], convert) for name, convert in conversions.items() if convert is not None]
    in_kernel_order = _picking(
        [index_of[name] for name in (*scales, *epilogue.tensors, "d", *epilogue.beside, *epilogue.scalars)]
    )
    a_strides, b_strides = [view.strides for view in prepared.views[:2]]
    if as_rows:
        b_strides = of_transpose(b_strides)

    def launch(a: Any, b: Any, values: Sequence[Any], outs: Sequence[Any]) -> None:
        """Launch the kernel; tensors whose shape or strides it cannot take are converted first.

        a, b     the factors
        values   values of the epilogue's operands, in the order of their names
        outs     tensor of each result
        """
        passed: Sequence[Any] = (*values, *outs)
        if converted:
            passed = changed = list(passed)
            for index, convert in converted:
                changed[index] = convert(changed[index])
        if a_strides is not None:
            a = a.as_strided(a.shape, a_strides)
        if b_strides is not None:
            b = b.as_strided(b.shape, b_strides)
        function(a, b.mT if as_rows else b, *in_kernel_order(passed))

    return on_device(launch)


def _picking(indices: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks the elements with the given indices from a sequence: [2, 0] gives x -> (x[2], x[0]).

    >>> _picking([2, 0])("abc"), _picking([1])("abc")
    (('c', 'a'), ('b',))
    """
    if len(indices) > 1:
        return itemgetter(*indices)
    return lambda sequence: (sequence[indices[0]],)


def _operand_conversion(kind: type[Input], value: Any, shape: tuple[int, ...]) -> Callable[[Any], Any] | None:
    """Return the function that converts the tensor of an operand of the epilogue to the shape that the kernel takes.

    A row, column or element becomes contiguous, of shape (elements,) or (L, elements). A tile is expanded to the
    shape of D.

    kind      kind of the operand: Row (N elements), Column (M), Element (one) or Tile (M x N)
    value     a tensor of the operand, which stands for all with the same type, shape and strides
    shape     shape of D
    returns   tensor -> tensor; None if the kernel gets the tensor unchanged
    """
    batched = len(shape) == 3
    if issubclass(kind, Tile):
        whole = value.expand(shape)
        strides = View.of("c", whole, batched).strides or tuple(whole.stride())
        if (tuple(value.shape), tuple(value.stride())) == (shape, strides):
            return None
        return lambda tensor: tensor.as_strided(shape, strides)
    assert kind in BROADCAST
    if not batched:
        is_flat = value.dim() == 1 and (value.stride(0) == 1 or value.shape[0] == 1)
        return None if is_flat and value.is_contiguous() else lambda tensor: tensor.reshape(-1).contiguous()

    def expand(tensor: Any) -> Any:
        """Return a row, column or element as a contiguous tensor (L, elements), with one line for each matrix."""
        rows = tensor.reshape(tensor.shape[0] if tensor.dim() == 3 else 1, -1)
        return rows.contiguous().expand(shape[0], -1)

    return expand


def _result_conversion(name: str, result: _Result, d_view: View) -> Callable[[Any], Any] | None:
    """Return the function that converts the tensor of a result to the shape and strides that the kernel takes.

    name      name of the result in the epilogue, such as "d"
    result    its shape, type, reduction and memory layout
    d_view    memory layout of D
    returns   tensor -> tensor; None if the kernel gets the tensor unchanged
    """
    if result.are_scales:
        return None
    if result.reduction is not None:  # the kernel takes a total as a tensor of one element
        return (lambda tensor: tensor.unsqueeze(-1)) if len(result.reduction.along) == 2 else None
    view = d_view if name == "d" else result.view
    assert view is not None
    strides = view.strides
    return None if strides is None else lambda tensor: tensor.as_strided(tensor.shape, strides)


def fused(
    a: Any,
    b: Any,
    c: Any,
    alpha: float | None,
    beta: float | None,
    out: Any,
    plan: GemmPlan | str | None,
    accumulate: str,
    allow_tf32: bool,
    out_dtype: Any,
    varying_rows: bool,
    tune: bool,
    batch_invariant: bool,
    epilogue: Callable[..., Any] | None,
    operands: dict[str, Any],
) -> Any:
    """Compute `gemm` with an epilogue; return its result, or a tuple if the epilogue returns several results.

    This is the part of `gemm` for calls with an epilogue. The arguments have the meaning that they have in `gemm`.

    operands   operands of the epilogue by name, e.g. {"bias": tensor}. The arguments c, alpha and beta that are not
               None become further entries of this dict
    """
    if c is not None:
        operands["c"] = c
    if alpha is not None:
        operands["alpha"] = alpha
    if beta is not None:
        operands["beta"] = beta
    if out_dtype.__class__ is list:
        out_dtype = tuple(out_dtype)
    outs = out if out is None or isinstance(out, tuple | list) else (out,)
    values = tuple(operands.values())
    state: Any = state_of(epilogue)
    key: Any
    try:
        if state is None and epilogue is not None:
            epilogue, state = _evaluate(epilogue, a, b, operands)
        key = (
            a.__class__, a.dtype, a.shape, a.stride(), (a.data_ptr() or 0.5) % 16, a.get_device(), a.is_neg(),
            b.__class__, b.dtype, b.shape, b.stride(), (b.data_ptr() or 0.5) % 16, b.get_device(), b.is_neg(),
            plan if plan is None or plan.__class__ is str else id(plan), accumulate, allow_tf32, out_dtype,
            varying_rows, tune, batch_invariant, state,
            None if outs is None else tuple([None if x is None else _signature(x) for x in outs]),
            *operands, *[_signature(value) for value in values],
        )  # fmt: skip
        call = _calls.found.get(key)
    except (AttributeError, RuntimeError, TypeError):
        key = call = None
    if call is None:
        how = How(plan, accumulate, allow_tf32, varying_rows, tune, batch_invariant)
        is_transformed = key is None and _in_transformation({"a": a, "b": b, **_tensors(operands)})
        if is_transformed or getattr(a, "is_meta", False):  # a tensor on the meta device has only a shape
            return through_torch(arguments(a, b, None, None, None, out, out_dtype, how, epilogue, operands))
        as_tensors = _as_tensors(a, b, outs, operands)
        if as_tensors is not None:
            returned = fused(*as_tensors[:2], None, None, None, as_tensors[2], plan, accumulate, allow_tf32, out_dtype,
                             varying_rows, tune, batch_invariant, epilogue, as_tensors[3])  # fmt: skip
            return _as_arrays(a, outs, returned)
        try:
            call = prepared_fused(a, b, outs, out_dtype, how, epilogue, operands)
        except PendingError:
            return by_torch(arguments(a, b, None, None, None, out, out_dtype, how, epilogue, operands))
        if key is not None:
            _calls.keep(key, call)
    if outs is None:
        results = [new() for new in call.new]
    else:
        results = _results(a, b, outs, call, operands)
    if call.launch is not None:
        try:
            call.launch(a, b, values, results)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CutegemmError(f"gemm of {shapes_of(a, b)} by {call.prepared.kernel!r}: {error}") from error
    else:
        for index, reduction in call.reduced.items():  # D is empty, so the reductions are over no elements
            results[index].fill_(reduction.identity)
    for tensor in outs or ():
        if tensor is not None:
            call.written(tensor)
    return results[0] if len(results) == 1 else tuple(results)


def _as_tensors(
    a: Any, b: Any, outs: Sequence[Any] | None, operands: Mapping[str, Any]
) -> tuple[Any, Any, Sequence[Any] | None, dict[str, Any]] | None:
    """Return the arguments of a `gemm` call with an epilogue as torch tensors over the memory of other arrays.

    a, b       the factors
    outs       for each result the array that the caller passed to store it to, or None; None if no arrays are passed
    operands   operands of the epilogue by name: arrays or numbers
    returns    (a, b, outs, operands); None if all of them are torch tensors or numbers already
    raises     UnsupportedError for a value that is neither a tensor, nor an array with DLPack, nor a number
    """
    from cutegemm.run.torch_ops import tensors_of

    out_tensors = {_out_name(index, outs or ()): out for index, out in enumerate(outs or ()) if out is not None}
    values = {"a": a, "b": b, **_tensors(operands), **out_tensors}
    tensors = tensors_of(values)
    if all(tensors[name] is value for name, value in values.items()):
        return None
    names = [_out_name(index, outs or ()) for index in range(len(outs or ()))]
    new_outs = None if outs is None else [tensors.get(name) for name in names]
    return tensors["a"], tensors["b"], new_outs, {name: tensors.get(name, x) for name, x in operands.items()}


def _as_arrays(a: Any, outs: Sequence[Any] | None, returned: Any) -> Any:
    """Convert the results of a call from torch tensors to arrays of the framework of `a`, such as CuPy.

    A result that was stored to an array of the caller is returned as that array.

    a          the first factor, as the caller passed it
    outs       for each result the caller's array that it was stored to, or None for a new result; None if all are new
    returned   the results: a torch tensor, or a tuple of them
    returns    an array, or a tuple of arrays
    """
    from cutegemm.run.torch_ops import like

    tensors = returned if isinstance(returned, tuple) else (returned,)
    own = outs or [None] * len(tensors)
    arrays = [like(a if out is None else out, tensor) for out, tensor in zip(own, tensors, strict=True)]
    results = [array if out is None else out for out, array in zip(own, arrays, strict=True)]
    return tuple(results) if isinstance(returned, tuple) else results[0]


def _results(a: Any, b: Any, outs: Sequence[Any], call: _Call, operands: Mapping[str, Any]) -> list[Any]:
    """Return the tensor that each result is stored to: the caller's tensor, or a new one if the caller passed none.

    a, b       the factors, which the results must not overlap
    outs       for each result the tensor that the caller passed, or None
    call       the prepared call, which allocates new tensors
    operands   operands of the epilogue by name
    raises     UnsupportedError if a tensor of the caller overlaps another one or a tensor that is read, or requires
               gradients
    """
    if call.reads is None:
        call.writes = [None if out is None else Region.of(out) for out in outs]
        call.reads = [(name, Region.of(x)) for name, x in {"a": a, "b": b, **_tensors(operands)}.items()]
    arguments_by_name = {"a": a, "b": b, **operands}
    inputs = [
        (name, region, arguments_by_name[name], arguments_by_name[name].data_ptr()) for name, region in call.reads
    ]
    earlier_outs: list[tuple[Region, int, int]] = []  # (region, address, index)
    for index, (out, region) in enumerate(zip(outs, call.writes, strict=True)):
        if region is None:
            continue
        if out.requires_grad:
            wrong = wrong_values({_out_name(index, outs): out}, 0.0)
            if wrong:
                raise refused(a, b, wrong)
        address = out.data_ptr()
        for name, other, tensor, other_address in inputs:
            is_factor = name in ("a", "b")
            if (is_factor or not is_same(tensor, out)) and overlaps(region, address, other, other_address):
                may_be_out = not is_factor and tensor.shape == out.shape
                raise refused(a, b, [overwritten(_out_name(index, outs), name, may_be_out)])
        for other, other_address, other_index in earlier_outs:
            if overlaps(region, address, other, other_address):
                names = f"{_out_name(other_index, outs)} and {_out_name(index, outs)}"
                raise refused(a, b, [f"{names} overlap in memory. Pass tensors that do not overlap, or None."])
        earlier_outs.append((region, address, index))
    return [new() if out is None else out for out, new in zip(outs, call.new, strict=True)]


def _signature(value: Any) -> Any:
    """Return what one argument contributes to the signature, i.e. the key of the cache of prepared calls.

    For a tensor it is a tuple of all that the choice of a kernel depends on: type, shape, strides, alignment and
    device. For a number it is the class float, because all numbers use the same kernel.

    value   a tensor or number that the user passed
    """
    if value.__class__ is float or value.__class__ is int:
        return float
    return (
        value.__class__, value.dtype, value.shape, value.stride(), (value.data_ptr() or 0.5) % 16, value.get_device(),
        value.is_neg(),
    )  # fmt: skip


class _Evaluated:
    """Replaces the user's epilogue function: calling this object returns the expressions that the function returned.

    The function was called once with symbols in place of tensors. It is not called again.
    """

    __slots__ = ("function", "returned")

    def __init__(self, function: Callable[..., Any], returned: Any) -> None:
        self.function, self.returned = function, returned

    @property
    def __signature__(self) -> Signature:
        return signature(self.function)

    def __call__(self, acc: Any, **operands: Any) -> Any:
        return self.returned


def _evaluate(
    function: Callable[..., Any], a: Any, b: Any, operands: Mapping[str, Any]
) -> tuple[_Evaluated, tuple[Expression | None, ...]]:
    """Call the user's epilogue function with symbols, and return a function that replaces it, and the expressions.

    A symbol stands for the accumulator or an operand, so the function returns expressions such as gelu(acc + bias)
    instead of values. They are part of the key under which the prepared call is cached.

    function   the user's function of the accumulator and of the operands
    a, b       the factors, whose shapes decide whether an operand is a row, a column or a matrix
    operands   operands by name
    raises     TypeError if the shape of an operand fits no symbol, or if the function raises or returns something that
               is not an expression
    """
    try:
        _, operands = separated(operands)
        kinds = {name: _fit(a, b, tuple(x.shape))[0] for name, x in _tensors(operands).items()}
        symbols = {name: kinds.get(name, Scalar)(name) for name in operands}  # type: ignore[misc]
        returned = function(Accumulator(), **symbols)
    except Exception as error:
        raise TypeError("the function was not called") from error
    results = tuple(map(expression_of, returned if isinstance(returned, tuple | list) else (returned,)))
    if None in results:
        raise TypeError("the function returned something that is not an expression")
    return _Evaluated(function, returned), results


def _type_name(dtype: Any) -> str:
    """Return the name of a torch dtype without "torch.", for messages."""
    return str(dtype).removeprefix("torch.")


def _in_transformation(values: dict[str, Any]) -> bool:
    """Return True if a tensor belongs to a transformation of torch, such as vmap, and so has no address.

    values   arguments of the call by name; those that are not tensors are ignored
    """
    try:
        from cutegemm.run import torch_ops
    except ImportError as error:
        raise without_torch() from error
    tensors = torch_ops.tensors_of(values)
    return bool(without_addresses(tensors)) and belong_to_transformation(tensors)


def _tensors(operands: Mapping[str, Any]) -> dict[str, Any]:
    """Return those operands of an epilogue that are tensors, by name; numbers are left out."""
    return {name: value for name, value in operands.items() if not isinstance(value, int | float)}


def prepared_fused(
    a: Any,
    b: Any,
    outs: Sequence[Any] | None,
    out_dtype: Any,
    how: How,
    function: Callable[..., Any] | None,
    operands: Mapping[str, Any],
    as_rows: bool = False,
) -> _Call:
    """Check the arguments of a `gemm` call with an epilogue, choose and compile its plan, and return the prepared call.

    This runs for the first call of a signature (types, shapes, strides and options); later calls use the result
    again.

    outs        for each result the tensor to store it to, or None for a new one; None if the caller passes no tensors
    out_dtype   torch dtype of new results, or one or None for each; None for the default
    how         options of `gemm`
    function    function of the epilogue; None for none
    operands    operands of the epilogue by name
    as_rows     True if `launch` takes the transpose of b, N x K, as a layer stores its weight
    raises      UnsupportedError with every violated rule
    """
    from cutegemm.run import torch_ops

    tensors = torch_ops.tensors_of({"a": a, "b": b, **_tensors(operands)})
    scales, of_epilogue = separated(operands)
    epilogue = _checked_epilogue(a, b, function, of_epilogue, tensors)
    wrong = wrong_scales(a, b, scales) if scales else []
    if wrong:
        raise refused(a, b, wrong)
    m, n, _, l = extents_of(a, b)  # noqa: E741
    columns, batched = n // 2 if epilogue.gated else n, a.dim() == 3
    shape = (l, m, columns) if batched else (m, columns)
    caller_outs = _passed(a, b, epilogue, outs)
    results = _results_of(a, b, epilogue, shape, caller_outs, out_dtype)
    out, d_dtype = caller_outs["d"], results["d"].dtype
    tile = _as_batch(tensors[epilogue.tiles[0]], l if batched else None) if epilogue.tiles else None
    aux = _aux_operands(epilogue, tensors, batched) | _aux_results(results)
    spec, trial = EpilogueSpec(epilogue, aux), partial(_trial, a, b, operands, results, outs)
    by = granularities(a, b, scales) if scales else None
    prepared = prepare(a, b, tile, out, d_dtype if out is None else None, 0.0, how, spec, trial, by)
    if isinstance(prepared, list):
        raise UnsupportedError(
            f"gemm of {shapes_of(a, b)}: neither of the last two strides of {' and of '.join(prepared)} is 1. Pass "
            f"{', '.join(f'{name}.contiguous()' for name in prepared)}."
        )
    return _Call(prepared, a, operands, results, how.plan, as_rows)


def _checked_epilogue(
    a: Any,
    b: Any,
    function: Callable[..., Any] | None,
    operands: Mapping[str, Any],
    tensors: dict[str, Any],
) -> Epilogue:
    """Check a, b and the operands of a `gemm` call, and return the epilogue that the user's function describes.

    function   the user's function of the accumulator and of the operands; None if operands were passed without one
    operands   operands by name: arrays and numbers
    tensors    a, b and the operands that are not numbers, as torch tensors
    raises     UnsupportedError with every rule that a and b violate, else that the operands violate, else that the
               expressions of the function violate
    """
    from cutegemm.run import torch_ops

    factors = {"a": tensors["a"], "b": tensors["b"]}
    wrong = without_addresses(tensors) or [*wrong_dtypes(factors, torch_ops), *wrong_extents(factors)]
    if not wrong and function is None:
        wrong = [without_epilogue(operands)]
    if wrong:
        raise refused(a, b, wrong)
    assert function is not None
    fits = {name: _fit(a, b, tuple(value.shape)) for name, value in _tensors(operands).items()}
    wrong = [
        *_wrong_shapes(a, b, operands, fits),
        *_wrong_types({name: tensors[name] for name in fits}),
        *wrong_devices(tensors),
        *wrong_memory(tensors),
    ]
    if wrong:
        raise refused(a, b, wrong)
    kinds: dict[str, type[Input]] = dict.fromkeys([name for name in operands if name not in fits], Scalar)
    kinds |= {name: kind for name, (kind, _) in fits.items() if kind is not None}
    epilogue = epilogue_of(function, kinds)
    wrong = [
        *wide_results(epilogue),
        *_wrong_columns(b, operands, epilogue, fits),
        *_wrong_tiles(epilogue, tensors),
    ]
    if wrong:
        raise refused(a, b, wrong)
    return epilogue


def _fit(a: Any, b: Any, shape: tuple[int, ...]) -> _Fit:
    """Classify an epilogue operand by its shape: (Element, Row, Column or Tile, number of columns that it fits).

    A shape is compared with that of a D with N columns, as b has. If it does not fit, it is compared with a D of N / 2
    columns, which a gated epilogue computes.

    a, b      factors of the call
    shape     shape of the operand: () is an Element, (N,) a Row, (M, 1) a Column and (M, N) a Tile, possibly batched
    returns   (class, N or N / 2); (None, N) for a shape that fits none
    """
    m, n, _, l = extents_of(a, b)  # noqa: E741
    for columns in (n, n // 2) if n % 2 == 0 else (n,):
        kind = kind_of(shape, m, columns, l if a.dim() == 3 else None)
        if kind is not None:
            return kind, columns
    return None, n


def _wrong_shapes(a: Any, b: Any, operands: Mapping[str, Any], fits: Mapping[str, _Fit]) -> Iterator[str]:
    """Yield an error message for each epilogue operand whose shape is not that of a number, row, column or tile.

    a, b       the factors, whose shapes give M, N and L
    operands   operands of the epilogue by name
    fits       name -> (Element, Row, Column or Tile, number of columns that the shape fits); the class is None for a
               wrong shape
    """
    m, n, _, l = extents_of(a, b)  # noqa: E741
    batch = f", with or without {l} in front" if a.dim() == 3 else ""
    for name, (kind, _) in fits.items():
        if kind is None:
            yield (
                f"{name} has shape {tuple(operands[name].shape)}. Pass one number of shape (), one for each column of "
                f"shape {(n,)}, one for each row of shape {(m, 1)}, or one for each element of the result of shape "
                f"{(m, n)}{batch}."
            )


def _wrong_types(operands: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error message for each operand of the epilogue whose element type kernels cannot read.

    operands   tensors by name
    """
    from cutegemm.run.torch_ops import DTYPES

    known = ", ".join(map(_type_name, DTYPES))
    for name, value in operands.items():
        if value.dtype not in DTYPES:
            yield f"{name} is of {_type_name(value.dtype)}, which no kernel reads. Pass one of {known}."


def _wrong_columns(b: Any, operands: Mapping[str, Any], epilogue: Epilogue, fits: Mapping[str, _Fit]) -> Iterator[str]:
    """Yield an error message for each operand of the epilogue (row or tile) whose number of columns is wrong.

    It must be the number of columns of D. It may also be that of b, if a gated epilogue reads one half of the operand
    for gate and one for up.

    b          the second factor, K x N
    operands   operands of the epilogue by name
    epilogue   expressions of the user's function
    fits       name -> (Element, Row, Column or Tile, number of columns that the shape fits)
    """
    n = b.shape[-1]
    d_columns = n // 2 if epilogue.gated else n
    reason = f"D has half of the {n} columns of b" if epilogue.gated else f"b has {n} columns"
    for name in epilogue.tensors:
        needed = n if name in epilogue.halved else d_columns
        if epilogue.kinds[name] in (Row, Tile) and fits[name][1] != needed:
            yield f"{name} has shape {tuple(operands[name].shape)}, but {reason}. Pass a tensor of {needed} columns."


def _wrong_tiles(epilogue: Epilogue, tensors: Mapping[str, Any]) -> Iterator[str]:
    """Yield an error message for each M x N operand of the epilogue whose last two strides do not include a 1.

    epilogue   expressions of the user's function, which say which operands are M x N
    tensors    operands of the epilogue that are tensors, by name
    """
    for name in epilogue.tiles:
        tensor = tensors[name]
        if View.of("c", tensor, tensor.dim() == 3).major is None:
            yield (
                f"{name} has strides {tuple(tensor.stride())}, but one of the last two must be 1. Pass "
                f"{name}.contiguous()."
            )


def _trial(
    a: Any,
    b: Any,
    operands: Mapping[str, Any],
    results: Mapping[str, _Result],
    outs: Sequence[Any] | None,
    prepared: Prepared,
) -> Callable[[], None]:
    """Return a function without arguments that launches a prepared kernel, so that the tuner can time it.

    The kernel stores to new tensors, which have the strides of the caller's tensors. The caller's tensors are not
    written.

    a, b       the factors
    operands   operands of the epilogue by name
    results    results by name
    outs       for each result the caller's tensor, or None; None if the caller passes no tensors
    prepared   the compiled kernel
    """
    call = _Call(prepared, a, operands, results, None)
    new_outs = [new() for new in call.new]
    for index, out in enumerate(outs or ()):
        if out is not None:
            new_outs[index] = out.new_empty_strided(out.shape, out.stride())
    launch, values = call.launch, tuple(operands.values())
    assert launch is not None
    return lambda: launch(a, b, values, new_outs)


def _aux_operands(epilogue: Epilogue, tensors: Mapping[str, Any], batched: bool) -> dict[str, Operand]:
    """Return name -> `Operand` (type, majorness and alignment) of each tensor that the epilogue reads.

    The first operand with M x N elements is left out: the kernel loads it in the place of C, and it is described there.

    epilogue   the epilogue
    tensors    operands of the epilogue that are tensors, by name
    batched    True if D is a batch of matrices
    """
    first = epilogue.tiles[0] if epilogue.tiles else None
    return {
        name: operand_of(epilogue.kinds[name], tensors[name], batched, name in epilogue.halved)  # type: ignore[arg-type]
        for name in epilogue.tensors
        if name != first
    }


def _aux_results(results: Mapping[str, _Result]) -> dict[str, Operand]:
    """Return result name -> `Operand` (type, majorness and alignment), for each result of an epilogue except D.

    results   all results by name: shape, type, reduction and memory layout
    """
    from cutegemm.run.torch_ops import DTYPES

    aux = {}
    for name, result in results.items():
        kind = DTYPES[result.dtype]
        if result.reduction is not None:
            aux[name] = Operand.of_kind(result.reduction.kind, kind)
        elif result.are_scales:
            aux[name] = SCALES_OF_D
        elif result.view is not None:
            aux[name] = Operand(kind, MODES["out"][result.view.major or 0], result.view.align)
    return aux


def _passed(a: Any, b: Any, epilogue: Epilogue, outs: Sequence[Any] | None) -> dict[str, Any]:
    """Return result name -> the tensor that the caller passed for it, or None, in the order of the epilogue's results.

    a, b       the factors
    epilogue   the epilogue, which has one or several results
    outs       the argument `out`: a tensor or None for each result; None if the caller passes no tensors
    raises     UnsupportedError if the number of tensors is wrong, or if a kernel cannot write to one of them
    """
    from cutegemm.run import torch_ops

    names = ["d", *[result_name(i) for i in range(len(epilogue.beside))]]
    tensors_or_none = [None] * len(names) if outs is None else outs
    if len(tensors_or_none) != len(names):
        count = len(tensors_or_none)
        raise refused(
            a,
            b,
            [f"out has {count} tensors, but the epilogue returns {len(names)}. Pass a tensor or None for each result."],
        )
    tensors = torch_ops.tensors_of(
        {_out_name(index, names): out for index, out in enumerate(tensors_or_none) if out is not None}
    )
    wrong = without_addresses(tensors) or [*wrong_memory(tensors), *wrong_devices({"a": a, **tensors})]
    if wrong:
        raise refused(a, b, wrong)
    return dict(zip(names, tensors_or_none, strict=True))


def _out_name(index: int, outs: Sequence[Any]) -> str:
    """Return the name of a result's tensor in messages: "out", or "out[1]" if the epilogue has several results.

    index   index of the result
    outs    all results, or their names

    >>> _out_name(0, ["d"]), _out_name(1, ["d", "aux"])
    ('out', 'out[1]')
    """
    return "out" if len(outs) == 1 else f"out[{index}]"


def _results_of(
    a: Any, b: Any, epilogue: Epilogue, shape: tuple[int, ...], caller_outs: Mapping[str, Any], out_dtype: Any
) -> dict[str, _Result]:
    """Return result name -> `_Result` (shape, type, reduction, memory layout), in the order of the epilogue's results.

    a, b          the factors; error messages contain their shapes
    shape         shape of D
    caller_outs   result name -> the caller's tensor, or None for a new one
    out_dtype     torch dtype of new results, or one or None for each; None for the default
    raises        UnsupportedError with every rule that `out_dtype` violates, else with every rule that the caller's
                  tensors violate
    """
    from cutegemm.run import torch_ops

    out_dtype = torch_ops.of_quantized(epilogue.expression, out_dtype)
    (*batch, m, n), outs = shape, list(caller_outs.values())
    wide = {name: each for name, each in (*epilogue.aux, *epilogue.reductions) if isinstance(each, _WIDE)}
    reduced = [wide.get(name) for name in caller_outs]
    wrong = wrong_out_dtype(a.dtype, out_dtype, torch_ops, reduced, outs)
    if wrong:
        raise refused(a, b, wrong)
    out_dtypes = [None if out is None else out.dtype for out in outs]
    dtypes = torch_ops.result_dtypes(a.dtype, [reduction is not None for reduction in reduced], out_dtype, out_dtypes)
    results: dict[str, _Result] = {}
    for index, (name, dtype, reduction, out) in enumerate(zip(caller_outs, dtypes, reduced, outs, strict=True)):
        if name == "d":
            results[name] = _Result(shape, dtype)
            continue
        if isinstance(reduction, BlockScale):
            results[name] = _Result((*batch, m, blocks_of(n)), dtype, are_scales=True)
        elif reduction is not None:
            modes = {Column: (m,), Row: (n,)}.get(reduction.kind, ())
            results[name] = _Result((*batch, *modes), dtype, reduction)
        elif out is None:
            results[name] = _Result(shape, dtype, view=View.fresh(shape, dtype.itemsize, bool(batch)))
        else:
            view = View.of("out", out, bool(batch)) if tuple(out.shape) == shape else None
            results[name] = _Result(shape, dtype, view=view)
        if out is not None:
            wrong += results[name].wrong(_out_name(index, outs), out)
    if wrong:
        raise refused(a, b, wrong)
    return results


def kind_of(shape: tuple[int, ...], m: int, n: int, l: int | None) -> type[Tensor] | None:  # noqa: E741
    """Classify an operand of an epilogue by its shape, and return its class; None for a shape that fits none.

    The classes are Element (one number), Row (N elements), Column (M elements) and Tile (M x N elements). A shape that
    fits several classes, since M or N is 1, gets the first of them in this order.

    shape   shape of the operand, with or without a batch mode in front
    m, n    extents of D
    l       number of matrices of a batch; None without a batch

    >>> [kind.__name__ for kind in (kind_of((), 4, 6, None), kind_of((6,), 4, 6, None), kind_of((4, 1), 4, 6, None))]
    ['Element', 'Row', 'Column']
    >>> kind_of((4, 6), 4, 6, None).__name__, kind_of((3, 1, 6), 4, 6, 3).__name__, kind_of((4,), 4, 6, None)
    ('Tile', 'Row', None)
    """
    if len(shape) == 3:
        if l is None or shape[0] not in (1, l):
            return None
        shape = shape[1:]
    if all(extent == 1 for extent in shape):
        return Element
    if shape in ((n,), (1, n)):
        return Row
    if shape == (m, 1):
        return Column
    return Tile if shape == (m, n) else None


def operand_of(kind: type[Tensor], tensor: Any, batched: bool, halved: bool = False) -> Operand:
    """Describe an epilogue's operand for the kernel: element type, majorness, and the alignment that loads can rely on.

    A Row, Column or Element is one contiguous line. Its alignment is limited by its address, its length and its batch
    stride, so that no vector load reaches beyond the last element.

    kind      Element, Row, Column or Tile
    tensor    the caller's tensor
    batched   True if D is a batch of matrices
    halved    True if the tensor is a row whose first half belongs to gate and whose second half to up columns (gated
              epilogue); then each half must be aligned
    """
    from cutegemm.run.torch_ops import DTYPES

    dtype = DTYPES[tensor.dtype]
    if kind is Tile:
        view = View.of(
            "c",
            _as_batch(tensor, tensor.shape[0] if tensor.dim() == 3 else 1) if batched else tensor,
            batched,
        )
        return Operand(dtype, MODES["c"][view.major or 0], view.align)
    align = tensor.data_ptr() | ALIGN_BYTES
    if tensor.dim() == 3:
        align |= tensor.stride(0) * (dtype.bits // 8)
    # The length must be a multiple of the vector too: no vector may reach beyond the last element.
    align |= (tensor.shape[-1] // 2 if halved else math.prod(tensor.shape[-2:])) * (dtype.bits // 8)
    return Operand.of_kind(kind, dtype, align_bytes=min(ALIGN_BYTES, align & -align))


def _as_batch(tensor: Any, l: int | None) -> Any:  # noqa: E741
    """Return an M x N tensor expanded to a batch of `l` matrices; the tensor itself if `l` is None."""
    return tensor if l is None else tensor.expand(l, *tensor.shape[-2:])
