"""gemm with an epilogue: operands by name, their kinds by their shapes, several results.

A warm call looks up the signature of all arguments, allocates what it returns, and launches, as a plain one does. The
epilogue's function is called with symbols when its signature is first seen; or in each call, if it reads something that
may change unseen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import Signature, signature
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from cutegemm.errors import CutegemmError, UnsupportedError
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
from cutegemm.plan.epilogue.symbols import result_name
from cutegemm.plan.problem import Operand
from cutegemm.plan.rules.gated import wide_results
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
from cutegemm.run.graph import are_stood_for, arguments, through_torch
from cutegemm.run.launches import new_like, of_transpose, on_device
from cutegemm.run.prepare import Prepared, prepare
from cutegemm.run.question import EpilogueSpec
from cutegemm.run.views import ALIGN_BYTES, MODES, Region, View

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


_calls = Calls()
_Fit = tuple[type[Tensor] | None, int]  # see `_fit`


class _Call:
    """What a warm call needs.

    launch     takes a, b, the operands that are passed, and the results; None if D is empty
    new        allocates each of the results, in the order in which they are returned
    results    (shape, dtype) of each of them, in torch
    reduced    those of them that are sums or maxima, by their place
    reads      regions of all tensors that are read, by name; None until a call passes tensors for results
    writes     regions of the caller's tensors for results; None in the place of a new one
    held       the caller's plan, which the signature names by its id
    """

    __slots__ = ("held", "launch", "new", "prepared", "reads", "reduced", "results", "writes", "written")

    def __init__(
        self,
        prepared: Prepared,
        a: Any,
        given: Mapping[str, Any],
        results: Mapping[str, _Result],
        held: Any,
        as_rows: bool = False,
    ) -> None:
        from torch.autograd.graph import increment_version

        self.prepared, self.held, self.written = prepared, held, increment_version
        self.results = tuple([(each.shape, each.dtype) for each in results.values()])
        self.new = tuple([new_like(a, *each) for each in self.results])
        of_place = enumerate(results.values())
        self.reduced = {place: each for place, each in of_place if each.reduction is not None}
        self.reads: list[tuple[str, Region]] | None = None
        self.writes: Sequence[Region | None] = ()
        self.launch = None if prepared.kernel is None else _launcher(prepared, given, results, as_rows)


@dataclass(frozen=True)
class _Result:
    """D, or what is stored beside it.

    shape, dtype   in torch
    reduction      None for a result of D's extents
    view           how an auxiliary result of D's extents lies in memory; None for D and for reductions
    """

    shape: tuple[int, ...]
    dtype: Any
    reduction: Reduction | None = None
    view: View | None = None

    @property
    def identity(self) -> float:
        """What no values at all are reduced to."""
        return 0.0 if self.reduction is None else self.reduction.identity

    def wrong(self, name: str, given: Any) -> Iterator[str]:
        """Yield why the caller's tensor cannot take an auxiliary result or a reduction.

        name   of the tensor, as errors have it
        """
        from cutegemm.run.torch_ops import DTYPES

        shape, strides, kind = tuple(given.shape), tuple(given.stride()), DTYPES.get(given.dtype)
        of = "" if self.reduction is None else f", for {self.reduction},"
        remedy = "Pass None for a new tensor."
        if shape != self.shape:
            yield f"{name}{of} has shape {shape}; {self.shape} is expected. {remedy}"
        elif self.reduction is not None and not given.is_contiguous():
            yield f"{name}{of} has strides {strides}; elements side by side are expected. {remedy}"
        elif self.view is not None and self.view.major is None:
            yield f"{name} has strides {strides}; one of the last two must be 1. {remedy}"
        if given.dtype != self.dtype:
            yield f"{name}{of} is of {_type_name(given.dtype)}; {_type_name(self.dtype)} is expected. {remedy}"
        elif kind is None or not kind.is_float:
            yield f"{name} is of {_type_name(given.dtype)}; a floating type is expected of a result beside D. {remedy}"


def _launcher(
    prepared: Prepared, given: Mapping[str, Any], results: Mapping[str, _Result], as_rows: bool
) -> Callable[..., None]:
    """Return the launch of a kernel: (a, b, values of the operands, results) -> None.

    Some tensors are passed to the kernel with another shape or other strides over the same memory. Which ones follows
    from the signature of a call.

    given     the operands by name, in the order of their values
    results   by name, in the order in which they are returned
    as_rows   whether the launch is given the transpose of b, N x K, as a layer keeps its weight
    """
    assert prepared.kernel is not None
    function, epilogue = prepared.function, prepared.kernel.plan.epilogue
    place = {name: number for number, name in enumerate((*given, *results))}
    ways = {name: _operand_way(epilogue.kinds[name], given[name], prepared.shape) for name in epilogue.tensors} | {
        name: _result_way(name, each, prepared.views[3]) for name, each in results.items()
    }
    changed = [(place[name], way) for name, way in ways.items() if way is not None]
    taken = _picking([place[name] for name in (*epilogue.tensors, "d", *epilogue.beside, *epilogue.scalars)])
    of_a, of_b = [view.strides for view in prepared.views[:2]]
    if as_rows:
        of_b = of_transpose(of_b)

    def launch(a: Any, b: Any, values: Sequence[Any], outs: Sequence[Any]) -> None:
        passed: Sequence[Any] = (*values, *outs)
        if changed:
            passed = seen = list(passed)
            for number, way in changed:
                seen[number] = way(seen[number])
        if of_a is not None:
            a = a.as_strided(a.shape, of_a)
        if of_b is not None:
            b = b.as_strided(b.shape, of_b)
        function(a, b.mT if as_rows else b, *taken(passed))

    return on_device(launch)


def _picking(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks the elements of a sequence at these places.

    >>> _picking([2, 0])("abc"), _picking([1])("abc")
    (('c', 'a'), ('b',))
    """
    if len(places) > 1:
        return itemgetter(*places)
    return lambda sequence: (sequence[places[0]],)


def _operand_way(kind: type[Input], value: Any, shape: tuple[int, ...]) -> Callable[[Any], Any] | None:
    """Return how the kernel is passed an operand in memory; None for the tensor itself.

    A row, a column or an element becomes one mode of elements side by side, with the batch before it; a tile becomes
    one for each matrix of the batch.

    shape   of D
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

    def spread(tensor: Any) -> Any:
        rows = tensor.reshape(tensor.shape[0] if tensor.dim() == 3 else 1, -1)
        return rows.contiguous().expand(shape[0], -1)

    return spread


def _result_way(name: str, result: _Result, of_d: View) -> Callable[[Any], Any] | None:
    """Return how the kernel is passed a result; None for the tensor itself.

    of_d   how D lies in memory
    """
    if result.reduction is not None:  # one number is passed as one element
        return (lambda tensor: tensor.unsqueeze(-1)) if len(result.reduction.along) == 2 else None
    view = of_d if name == "d" else result.view
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
    epilogue: Callable[..., Any] | None,
    operands: dict[str, Any],
) -> Any:
    """`gemm` with an epilogue and its operands.

    operands   by name; c, alpha and beta are added to them if they are passed
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
            epilogue, state = _called(epilogue, a, b, operands)
        key = (
            a.__class__, a.dtype, a.shape, a.stride(), (a.data_ptr() or 0.5) % 16, a.get_device(), a.is_neg(),
            b.__class__, b.dtype, b.shape, b.stride(), (b.data_ptr() or 0.5) % 16, b.get_device(), b.is_neg(),
            plan if plan is None or plan.__class__ is str else id(plan), accumulate, allow_tf32, out_dtype,
            varying_rows, tune, state,
            None if outs is None else tuple([None if each is None else _signature(each) for each in outs]),
            *operands, *[_signature(value) for value in values],
        )  # fmt: skip
        call = _calls.found.get(key)
    except (AttributeError, RuntimeError, TypeError):
        key = call = None
    if call is None:
        how = How(plan, accumulate, allow_tf32, varying_rows, tune)
        stood_for = key is None and _are_stood_for({"a": a, "b": b, **_tensors(operands)})
        if stood_for or getattr(a, "is_meta", False):  # shapes alone
            return through_torch(arguments(a, b, None, None, None, out, out_dtype, how, epilogue, operands))
        others = _as_tensors(a, b, outs, operands)
        if others is not None:
            found = fused(*others[:2], None, None, None, others[2], plan, accumulate, allow_tf32, out_dtype,
                          varying_rows, tune, epilogue, others[3])  # fmt: skip
            return _as_arrays(a, outs, found)
        call = prepared_fused(a, b, outs, out_dtype, how, epilogue, operands)
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
        for place, of in call.reduced.items():  # of no values at all
            results[place].fill_(of.identity)
    for each in outs or ():
        if each is not None:
            call.written(each)  # so that autograd sees that it has changed
    return results[0] if len(results) == 1 else tuple(results)


def _as_tensors(
    a: Any, b: Any, outs: Sequence[Any] | None, operands: Mapping[str, Any]
) -> tuple[Any, Any, Sequence[Any] | None, dict[str, Any]] | None:
    """Return a, b, outs and operands as torch tensors over the memory of other frameworks' arrays; None if none of them
    is such an array.

    raises   UnsupportedError for what is neither a tensor nor an array with DLPack
    """
    from cutegemm.run.torch_ops import tensors_of

    named = {_out_name(place, outs or ()): out for place, out in enumerate(outs or ()) if out is not None}
    given = {"a": a, "b": b, **_tensors(operands), **named}
    tensors = tensors_of(given)
    if all(tensors[name] is value for name, value in given.items()):
        return None
    names = [_out_name(place, outs or ()) for place in range(len(outs or ()))]
    passed = None if outs is None else [tensors.get(name) for name in names]
    return tensors["a"], tensors["b"], passed, {name: tensors.get(name, x) for name, x in operands.items()}


def _as_arrays(a: Any, outs: Sequence[Any] | None, found: Any) -> Any:
    """Return results as arrays of the framework of a; those that went into the caller's arrays as these."""
    from cutegemm.run.torch_ops import like

    results = found if isinstance(found, tuple) else (found,)
    given = outs or [None] * len(results)
    arrays = [like(a if out is None else out, result) for out, result in zip(given, results, strict=True)]
    returned = [array if out is None else out for out, array in zip(given, arrays, strict=True)]
    return tuple(returned) if isinstance(found, tuple) else returned[0]


def _results(a: Any, b: Any, outs: Sequence[Any], call: _Call, given: Mapping[str, Any]) -> list[Any]:
    """Return the caller's tensors for the results, and new ones in the place of None.

    raises   UnsupportedError if one of the caller's overlaps another one or a tensor that is read, or is to have
             gradients
    """
    if call.reads is None:
        call.writes = [None if out is None else Region.of(out) for out in outs]
        call.reads = [(name, Region.of(x)) for name, x in {"a": a, "b": b, **_tensors(given)}.items()]
    passed = {"a": a, "b": b, **given}
    read = [(name, region, passed[name], passed[name].data_ptr()) for name, region in call.reads]
    written: list[tuple[Region, int, int]] = []
    for place, (out, region) in enumerate(zip(outs, call.writes, strict=True)):
        if region is None:
            continue
        if out.requires_grad:
            wrong = wrong_values({_out_name(place, outs): out}, 0.0)
            if wrong:
                raise refused(a, b, wrong)
        start = out.data_ptr()
        for name, other, tensor, at in read:
            is_factor = name in ("a", "b")
            if (is_factor or not is_same(tensor, out)) and overlaps(region, start, other, at):
                may_be_out = not is_factor and tensor.shape == out.shape
                raise refused(a, b, [overwritten(_out_name(place, outs), name, may_be_out)])
        for other, at, before in written:
            if overlaps(region, start, other, at):
                names = f"{_out_name(before, outs)} and {_out_name(place, outs)}"
                raise refused(a, b, [f"{names} overlap in memory. Pass tensors that lie apart, or None."])
        written.append((region, start, place))
    return [new() if out is None else out for out, new in zip(outs, call.new, strict=True)]


def _signature(value: Any) -> Any:
    """Of a tensor, all that decides which kernel takes it; of a number, its kind."""
    if value.__class__ is float or value.__class__ is int:
        return float
    return (
        value.__class__, value.dtype, value.shape, value.stride(), (value.data_ptr() or 0.5) % 16, value.get_device(),
        value.is_neg(),
    )  # fmt: skip


class _Called:
    """A caller's function after it was called with symbols: it returns once more what it returned then."""

    __slots__ = ("function", "returned")

    def __init__(self, function: Callable[..., Any], returned: Any) -> None:
        self.function, self.returned = function, returned

    @property
    def __signature__(self) -> Signature:
        return signature(self.function)

    def __call__(self, acc: Any, **operands: Any) -> Any:
        return self.returned


def _called(
    function: Callable[..., Any], a: Any, b: Any, given: Mapping[str, Any]
) -> tuple[_Called, tuple[Expression | None, ...]]:
    """Call a function with symbols of its operands; and the expressions that it returns, for the signature of a call.

    given    the operands by name
    raises   TypeError if an operand fits no symbol, or if the function raises, or returns something else
    """
    try:
        kinds = {name: _fit(a, b, tuple(x.shape))[0] for name, x in _tensors(given).items()}
        symbols = {name: kinds.get(name, Scalar)(name) for name in given}  # type: ignore[misc]
        returned = function(Accumulator(), **symbols)
    except Exception as error:
        raise TypeError("the function was not called") from error
    results = tuple(map(expression_of, returned if isinstance(returned, tuple | list) else (returned,)))
    if None in results:
        raise TypeError("the function returned no expression")
    return _Called(function, returned), results


def _type_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _are_stood_for(given: dict[str, Any]) -> bool:
    """Whether tensors are those of a transformation of torch, such as vmap."""
    try:
        from cutegemm.run import torch_ops
    except ImportError as error:
        raise without_torch() from error
    tensors = torch_ops.tensors_of(given)
    return bool(without_addresses(tensors)) and are_stood_for(tensors)


def _tensors(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if not isinstance(value, int | float)}


def prepared_fused(
    a: Any,
    b: Any,
    outs: Sequence[Any] | None,
    out_dtype: Any,
    how: How,
    function: Callable[..., Any] | None,
    given: Mapping[str, Any],
    as_rows: bool = False,
) -> _Call:
    """Check a signature that is new, and find its kernel.

    outs       where each result goes; None for a new tensor
    function   the epilogue's, which is called with symbols
    given      the operands by name
    as_rows    whether the launch is given the transpose of b: see `_Call`
    raises     UnsupportedError with every rule that is broken
    """
    from cutegemm.run import torch_ops

    tensors = torch_ops.tensors_of({"a": a, "b": b, **_tensors(given)})
    epilogue = _checked_epilogue(a, b, function, given, tensors)
    m, n, _, l = extents_of(a, b)  # noqa: E741
    columns, batched = n // 2 if epilogue.gated else n, a.dim() == 3
    shape = (l, m, columns) if batched else (m, columns)
    passed = _passed(a, b, epilogue, outs)
    results = _results_of(a, b, epilogue, shape, passed, out_dtype)
    main, d = passed["d"], results["d"].dtype
    tile = _as_batch(tensors[epilogue.tiles[0]], l if batched else None) if epilogue.tiles else None
    aux = _of_operands(epilogue, tensors, batched) | _of_results(results)
    ending, trial = EpilogueSpec(epilogue, aux), partial(_trial, a, b, given, results, outs)
    prepared = prepare(a, b, tile, main, d if main is None else None, 0.0, how, ending, trial)
    if isinstance(prepared, list):
        raise UnsupportedError(
            f"gemm of {shapes_of(a, b)}: {' and '.join(prepared)} has no stride of 1 in its last two dimensions. Pass "
            f"{', '.join(f'{name}.contiguous()' for name in prepared)}."
        )
    return _Call(prepared, a, given, results, how.plan, as_rows)


def _checked_epilogue(
    a: Any,
    b: Any,
    function: Callable[..., Any] | None,
    given: Mapping[str, Any],
    tensors: dict[str, Any],
) -> Epilogue:
    """Return the epilogue of a function and of operands that suit it.

    tensors   a, b, and the operands in memory, as torch has them
    raises    UnsupportedError with every rule that is broken: by a and b; else by the operands; else by what the
              function makes of them
    """
    from cutegemm.run import torch_ops

    factors = {"a": tensors["a"], "b": tensors["b"]}
    wrong = without_addresses(tensors) or [*wrong_dtypes(factors, torch_ops), *wrong_extents(factors)]
    if not wrong and function is None:
        wrong = [without_epilogue(given)]
    if wrong:
        raise refused(a, b, wrong)
    assert function is not None
    fits = {name: _fit(a, b, tuple(value.shape)) for name, value in _tensors(given).items()}
    wrong = [
        *_wrong_shapes(a, b, given, fits),
        *_wrong_types({name: tensors[name] for name in fits}),
        *wrong_devices(tensors),
        *wrong_memory(tensors),
    ]
    if wrong:
        raise refused(a, b, wrong)
    kinds: dict[str, type[Input]] = dict.fromkeys([name for name in given if name not in fits], Scalar)
    kinds |= {name: kind for name, (kind, _) in fits.items() if kind is not None}
    epilogue = epilogue_of(function, kinds)
    wrong = [
        *wide_results(epilogue),
        *_wrong_columns(b, given, epilogue, fits),
        *_wrong_tiles(epilogue, tensors),
    ]
    if wrong:
        raise refused(a, b, wrong)
    return epilogue


def _fit(a: Any, b: Any, shape: tuple[int, ...]) -> _Fit:
    """What an operand of a shape is, and beside how many columns of D: as many as b has, or half as many."""
    m, n, _, l = extents_of(a, b)  # noqa: E741
    for columns in (n, n // 2) if n % 2 == 0 else (n,):
        kind = kind_of(shape, m, columns, l if a.dim() == 3 else None)
        if kind is not None:
            return kind, columns
    return None, n


def _wrong_shapes(a: Any, b: Any, given: Mapping[str, Any], fits: Mapping[str, _Fit]) -> Iterator[str]:
    m, n, _, l = extents_of(a, b)  # noqa: E741
    batch = f", with or without {l} in front" if a.dim() == 3 else ""
    for name, (kind, _) in fits.items():
        if kind is None:
            yield (
                f"{name} has shape {tuple(given[name].shape)}; () for one number, {(n,)} for one to a column, {(m, 1)} "
                f"for one to a row, or {(m, n)} for one to each element of the result is expected{batch}."
            )


def _wrong_types(operands: Mapping[str, Any]) -> Iterator[str]:
    from cutegemm.run.torch_ops import DTYPES

    for name, value in operands.items():
        if value.dtype not in DTYPES:
            yield f"{name} is of {str(value.dtype).removeprefix('torch.')}, which no kernel reads."


def _wrong_columns(b: Any, given: Mapping[str, Any], epilogue: Epilogue, fits: Mapping[str, _Fit]) -> Iterator[str]:
    """Of rows and tiles, which are as wide as D; or as b, where a row has numbers for gates and for ups."""
    n = b.shape[-1]
    of_d = n // 2 if epilogue.gated else n
    half = f"D has half of the {n} columns of b" if epilogue.gated else f"b has {n} columns"
    for name in epilogue.tensors:
        expected = n if name in epilogue.halved else of_d
        if epilogue.kinds[name] in (Row, Tile) and fits[name][1] != expected:
            shape = tuple(given[name].shape)
            yield f"{name} has shape {shape}, but {half}; {expected} columns of it are expected."


def _wrong_tiles(epilogue: Epilogue, tensors: Mapping[str, Any]) -> Iterator[str]:
    for name in epilogue.tiles:
        tensor = tensors[name]
        if View.of("c", tensor, tensor.dim() == 3).major is None:
            yield (
                f"{name} has strides {tuple(tensor.stride())}; one of the last two must be 1. Pass {name}.contiguous()."
            )


def _trial(
    a: Any,
    b: Any,
    given: Mapping[str, Any],
    results: Mapping[str, _Result],
    outs: Sequence[Any] | None,
    prepared: Prepared,
) -> Callable[[], None]:
    """A call of what was prepared, for the tuner: its results are written to memory of their own, laid out as those
    that are given are."""
    call = _Call(prepared, a, given, results, None)
    own = [new() for new in call.new]
    for place, each in enumerate(outs or ()):
        if each is not None:
            own[place] = each.new_empty_strided(each.shape, each.stride())
    launch, values = call.launch, tuple(given.values())
    assert launch is not None
    return lambda: launch(a, b, values, own)


def _of_operands(epilogue: Epilogue, tensors: Mapping[str, Any], batched: bool) -> dict[str, Operand]:
    """What the operands in memory are made of: all but the first tile, which takes the place of C."""
    first = epilogue.tiles[0] if epilogue.tiles else None
    return {
        name: _operand(epilogue.kinds[name], tensors[name], batched, name in epilogue.halved)  # type: ignore[arg-type]
        for name in epilogue.tensors
        if name != first
    }


def _of_results(results: Mapping[str, _Result]) -> dict[str, Operand]:
    """Return what the results beside D are made of, by name."""
    from cutegemm.run.torch_ops import DTYPES

    found = {}
    for name, stored in results.items():
        of = DTYPES[stored.dtype]
        if stored.reduction is not None:
            found[name] = Operand.of_kind(stored.reduction.kind, of)
        elif stored.view is not None:
            found[name] = Operand(of, MODES["out"][stored.view.major or 0], stored.view.align)
    return found


def _passed(a: Any, b: Any, epilogue: Epilogue, outs: Sequence[Any] | None) -> dict[str, Any]:
    """Return the caller's tensor for each result, by name and in the order in which they are returned.

    outs     one tensor for each result, or None in its place for a new one; None if no tensor is passed
    raises   UnsupportedError for another number of tensors, and for those that no kernel writes to
    """
    from cutegemm.run import torch_ops

    names = ["d", *[result_name(i) for i in range(len(epilogue.beside))]]
    given = [None] * len(names) if outs is None else outs
    if len(given) != len(names):
        told = f"out is {len(given)} tensors; the epilogue returns {len(names)}."
        raise refused(a, b, [f"{told} Pass one for each, or None."])
    tensors = torch_ops.tensors_of(
        {_out_name(place, names): each for place, each in enumerate(given) if each is not None}
    )
    wrong = without_addresses(tensors) or [*wrong_memory(tensors), *wrong_devices({"a": a, **tensors})]
    if wrong:
        raise refused(a, b, wrong)
    return dict(zip(names, given, strict=True))


def _out_name(place: int, names: Sequence[Any]) -> str:
    """Return how errors name the tensor of a result.

    >>> _out_name(0, ["d"]), _out_name(1, ["d", "aux"])
    ('out', 'out[1]')
    """
    return "out" if len(names) == 1 else f"out[{place}]"


def _results_of(
    a: Any, b: Any, epilogue: Epilogue, shape: tuple[int, ...], passed: Mapping[str, Any], out_dtype: Any
) -> dict[str, _Result]:
    """Return what the epilogue's function returns, by name and in its order.

    shape    of D
    passed   the caller's tensor for each result; None for a new one
    raises   UnsupportedError with every rule that the types break which are asked for; else with those that the tensors
             of auxiliary results and reductions break
    """
    from cutegemm.run import torch_ops

    reductions, (*batch, m, n), outs = dict(epilogue.reductions), shape, list(passed.values())
    reduced = [reductions.get(name) for name in passed]
    wrong = wrong_out_dtype(a.dtype, out_dtype, torch_ops, reduced, outs)
    if wrong:
        raise refused(a, b, wrong)
    given = [None if out is None else out.dtype for out in outs]
    dtypes = torch_ops.result_dtypes(a.dtype, [each is not None for each in reduced], out_dtype, given)
    found: dict[str, _Result] = {}
    for place, (name, dtype, reduction, out) in enumerate(zip(passed, dtypes, reduced, outs, strict=True)):
        if name == "d":
            found[name] = _Result(shape, dtype)
            continue
        if reduction is not None:
            own = {Column: (m,), Row: (n,)}.get(reduction.kind, ())
            found[name] = _Result((*batch, *own), dtype, reduction)
        elif out is None:
            found[name] = _Result(shape, dtype, view=View.fresh(shape, dtype.itemsize, bool(batch)))
        else:
            view = View.of("out", out, bool(batch)) if tuple(out.shape) == shape else None
            found[name] = _Result(shape, dtype, view=view)
        if out is not None:
            wrong += found[name].wrong(_out_name(place, list(passed)), out)
    if wrong:
        raise refused(a, b, wrong)
    return found


def kind_of(shape: tuple[int, ...], m: int, n: int, l: int | None) -> type[Tensor] | None:  # noqa: E741
    """What an operand of a shape is beside an M x N result, of a batch of l or of None; None for a shape that fits
    nothing. Where M or N is 1, a tile is what it is taken for last.

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


def _operand(kind: type[Tensor], tensor: Any, batched: bool, halved: bool = False) -> Operand:
    """What an operand is made of, as the kernel will see it.

    halved   whether it is a row of which one half or the other is read
    """
    from cutegemm.run.torch_ops import DTYPES

    of = DTYPES[tensor.dtype]
    if kind is Tile:
        view = View.of(
            "c",
            _as_batch(tensor, tensor.shape[0] if tensor.dim() == 3 else 1) if batched else tensor,
            batched,
        )
        return Operand(of, MODES["c"][view.major or 0], view.align)
    align = tensor.data_ptr() | ALIGN_BYTES
    if tensor.dim() == 3:
        align |= tensor.stride(0) * (of.bits // 8)
    along = (tensor.shape[-1] // 2 if halved else math.prod(tensor.shape[-2:])) * (of.bits // 8)
    align |= along  # whole vectors, up to its end
    return Operand.of_kind(kind, of, align_bytes=min(ALIGN_BYTES, align & -align))


def _as_batch(tensor: Any, l: int | None) -> Any:  # noqa: E741
    """A tile as one for each of a batch of l."""
    return tensor if l is None else tensor.expand(l, *tensor.shape[-2:])
