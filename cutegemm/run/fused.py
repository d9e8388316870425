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
    launch_operands,
)
from cutegemm.plan.epilogue.dependencies import state_of
from cutegemm.plan.epilogue.expression import expression_of
from cutegemm.plan.epilogue.symbols import result_name
from cutegemm.plan.problem import Operand
from cutegemm.plan.rules.gated import wide_results
from cutegemm.run.calls import BLAS_SCALARS, Calls, How, shapes_of
from cutegemm.run.checks import (
    check_out,
    extents_of,
    refused,
    without_addresses,
    wrong_devices,
    wrong_extents,
    wrong_memory,
)
from cutegemm.run.graph import arguments, through_torch
from cutegemm.run.launches import new_like, of_transpose, on_device
from cutegemm.run.prepare import Prepared, prepare
from cutegemm.run.question import EpilogueSpec
from cutegemm.run.views import ALIGN_BYTES, MODES, View

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


_calls = Calls()
_Fit = tuple[type[Tensor] | None, int]  # see `_fit`


class _Call:
    """What a warm call needs.

    launch     takes a, b, the operands that are passed, and the results
    new        allocates each of these: D, and what is stored beside it, in the order in which they are returned
    reduced    which of them are sums or maxima, by their place
    held       the caller's plan, which the signature names by its id
    as_rows    whether the launch is given the transpose of b, N x K, as a layer keeps its weight
    """

    __slots__ = ("held", "launch", "new", "prepared", "reduced", "results", "written")

    def __init__(
        self,
        prepared: Prepared,
        epilogue: Epilogue,
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
        self.launch = None
        if prepared.kernel is not None:
            launch = _launcher(prepared, epilogue, given, as_rows)
            self.launch = _in_order(launch, epilogue, list(results)) if self.reduced else launch


@dataclass(frozen=True)
class _Result:
    """D, or what is stored beside it.

    shape, dtype   in torch
    reduction      None of what is of D's extents
    """

    shape: tuple[int, ...]
    dtype: Any
    reduction: Reduction | None = None

    @property
    def identity(self) -> float:
        """What no values at all are reduced to."""
        return 0.0 if self.reduction is None else self.reduction.identity

    def wrong(self, given: Any, a: Any) -> list[str]:
        """Why the caller's tensor cannot take a reduction, in words."""
        if tuple(given.shape) != self.shape or given.dtype != self.dtype:
            have, want = [str(dtype).removeprefix("torch.") for dtype in (given.dtype, self.dtype)]
            return [
                f"out for {self.reduction} is of {have} and has shape {tuple(given.shape)}; {want} of {self.shape} is "
                "expected. Pass None for a new one."
            ]
        if given.is_contiguous() and given.get_device() == a.get_device():
            return []
        return [
            f"out for {self.reduction} lies on {given.device}, with the strides {tuple(given.stride())}; elements side "
            f"by side on {a.device} are expected. Pass None for a new one."
        ]


def _in_order(
    launch: Callable[..., None], epilogue: Epilogue, returned: Sequence[str]
) -> Callable[..., None]:
    """A launch of results in the order in which they are returned: the kernel takes sums and maxima last, one number
    as one of one element."""
    order = [returned.index(name) for name in ("d", *epilogue.beside)]
    single = {returned.index(name) for name, each in epilogue.reductions if len(each.along) == 2}

    def ordered(a: Any, b: Any, values: Sequence[Any], results: Sequence[Any]) -> None:
        launch(a, b, values, [results[at].unsqueeze(-1) if at in single else results[at] for at in order])

    return ordered


def _launcher(
    prepared: Prepared, epilogue: Epilogue, given: Mapping[str, Any], as_rows: bool
) -> Callable[..., None]:
    """The launch of a kernel: (a, b, operands in the order of `given`, results) -> None.

    What the kernel is not called with as it is passed is seen otherwise; where all is, nothing is asked again.
    """
    function, batched = prepared.function, len(prepared.shape) == 3
    wanted, names = launch_operands(epilogue), list(given)
    read = [name for name in wanted.tensors if name in epilogue.tensors]
    ways = {name: _seen(epilogue, name, given[name], prepared.shape if batched else None) for name in read}
    changed = [(names.index(name), way) for name, way in ways.items() if way is not None]
    constants = [BLAS_SCALARS[name] for name in wanted.scalars if name not in given]
    # Places in (operands, D and other results, constants) of what the kernel takes behind a and b, in its order.
    count, d = len(wanted.results) + 1, len(names)
    behind = iter(range(d + count, d + count + len(constants)))
    taken = itemgetter(
        *[names.index(name) if name in ways else d for name in wanted.tensors],  # D for one that is not read
        *range(d, d + count),
        *[names.index(name) if name in given else next(behind) for name in wanted.scalars],
    )
    of_a, of_b, _, of_d = [view.strides for view in prepared.views]
    if as_rows:
        of_b = of_transpose(of_b)
    tiles = len(epilogue.outputs)  # results of D's extents, which come first

    def as_given(a: Any, b: Any, values: Sequence[Any], results: Sequence[Any]) -> None:
        if changed:
            values = list(values)
            for place, way in changed:
                values[place] = way(values[place])
        function(a, b.mT if as_rows else b, *taken((*values, *results, *constants)))

    def seen(tensor: Any, of: Any) -> Any:
        return tensor if of is None else tensor.as_strided(tensor.shape, of)

    def as_seen(a: Any, b: Any, values: Sequence[Any], results: Sequence[Any]) -> None:
        from torch.cuda import device

        results = [*[seen(result, of_d) for result in results[:tiles]], *results[tiles:]]
        with device(a.get_device()):
            as_given(seen(a, of_a), seen(b, of_b), values, results)

    return as_seen if any((of_a, of_b, of_d)) else on_device(as_given)


def fused(
    a: Any,
    b: Any,
    c: Any,
    alpha: float,
    beta: float,
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

    operands   by name; alpha, beta and c become some where they are given
    """
    if c is not None:
        operands["c"] = c
    if alpha != 1 or beta != 0:
        operands |= {
            name: value for name, value in (("alpha", alpha), ("beta", beta)) if value != BLAS_SCALARS[name]
        }
    outs = out if out is None or isinstance(out, tuple | list) else (out,)
    values = tuple(operands.values())
    state: Any = state_of(epilogue)
    key: Any
    try:
        if state is None and epilogue is not None:
            epilogue, state = _called(epilogue, a, b, operands)
        key = (
            a.__class__, a.dtype, a.shape, a.stride(), a.data_ptr() & 15, a.get_device(), a.is_neg(),
            b.__class__, b.dtype, b.shape, b.stride(), b.data_ptr() & 15, b.get_device(), b.is_neg(),
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
        if getattr(a, "is_meta", False):  # shapes alone
            return through_torch(arguments(a, b, None, 1.0, 0.0, out, out_dtype, how, epilogue, operands))
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


def _results(a: Any, b: Any, outs: Sequence[Any], call: _Call, given: Mapping[str, Any]) -> list[Any]:
    """D and what is stored beside it: those that are given, else new ones."""
    if len(outs) != len(call.results):
        told = f"out is {len(outs)} tensors; the epilogue returns {len(call.results)}."
        raise refused(a, b, [f"{told} Pass one for each, or None."])
    tiles = [value for value in _tensors(given).values() if value.dim() >= 2]
    for place, each in enumerate(outs):
        if each is not None and place in call.reduced:
            wrong = call.reduced[place].wrong(each, a)
            if wrong:
                raise refused(a, b, wrong)
        elif each is not None:
            for tile in [None, *[t for t in tiles if t.shape[-2:] == each.shape[-2:]]]:
                views = [*call.prepared.views]
                if tile is not None:
                    views[2] = View.of("c", tile, tile.dim() == 3)
                check_out(views, a, b, tile, each)
    return [new() if each is None else each for each, new in zip(outs, call.new, strict=True)]


def _signature(value: Any) -> Any:
    """Of a tensor, all that decides which kernel takes it; of a number, its kind."""
    if value.__class__ is float or value.__class__ is int:
        return float
    return (
        value.__class__, value.dtype, value.shape, value.stride(), value.data_ptr() & 15, value.get_device(),
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
    main = outs[0] if outs else None
    d = main.dtype if main is not None else out_dtype or torch_ops.RESULTS[a.dtype][0]
    results = _results_of(epilogue, shape, d, torch_ops.reduced_dtype(a.dtype), outs)
    tile = _as_batch(tensors[epilogue.tiles[0]], l if batched else None) if epilogue.tiles else None
    further = _of_operands(epilogue, tensors, batched) | _of_results(results, outs, batched)
    ending, trial = EpilogueSpec(epilogue, further), partial(_trial, epilogue, a, b, given, results, outs)
    prepared = prepare(a, b, tile, main, d if main is None else None, 0.0, how, ending, trial)
    if isinstance(prepared, list):
        raise UnsupportedError(
            f"gemm of {shapes_of(a, b)}: {' and '.join(prepared)} has no stride of 1 in its last two dimensions. Pass "
            f"{', '.join(f'{name}.contiguous()' for name in prepared)}."
        )
    return _Call(prepared, epilogue, a, given, results, how.plan, as_rows)


def _checked_epilogue(
    a: Any,
    b: Any,
    function: Callable[..., Any] | None,
    given: Mapping[str, Any],
    tensors: dict[str, Any],
) -> Epilogue:
    """The epilogue, of operands that suit it.

    tensors   a, b, and the operands in memory, as torch has them
    raises    UnsupportedError with every rule that is broken: by a and b; else by the operands; else by what the
              function makes of them
    """
    wrong = without_addresses(tensors) or wrong_extents({"a": tensors["a"], "b": tensors["b"]})
    if not wrong and function is None:
        wrong = [f"{', '.join(given)} given without an epilogue that takes them. Pass epilogue=."]
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
    wrong = [*wide_results(epilogue), *_wrong_columns(b, given, epilogue, fits)]
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


def _wrong_columns(
    b: Any, given: Mapping[str, Any], epilogue: Epilogue, fits: Mapping[str, _Fit]
) -> Iterator[str]:
    """Of rows and tiles, which are as wide as D; or as b, where a row has numbers for gates and for ups."""
    n = b.shape[-1]
    of_d = n // 2 if epilogue.gated else n
    half = f"D has half of the {n} columns of b" if epilogue.gated else f"b has {n} columns"
    for name in epilogue.tensors:
        expected = n if name in epilogue.halved else of_d
        if epilogue.kinds[name] in (Row, Tile) and fits[name][1] != expected:
            shape = tuple(given[name].shape)
            yield f"{name} has shape {shape}, but {half}; {expected} columns of it are expected."


def _trial(
    epilogue: Epilogue,
    a: Any,
    b: Any,
    given: Mapping[str, Any],
    results: Mapping[str, _Result],
    outs: Sequence[Any] | None,
    prepared: Prepared,
) -> Callable[[], None]:
    """A call of what was prepared, for the tuner: its results are written to memory of their own, laid out as those
    that are given are."""
    call = _Call(prepared, epilogue, a, given, results, None)
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


def _of_results(
    results: Mapping[str, _Result], outs: Sequence[Any] | None, batched: bool
) -> dict[str, Operand]:
    """What the results beside D are made of."""
    from cutegemm.run.torch_ops import DTYPES

    passed, found = dict(zip(results, outs or [], strict=False)), {}
    for name, stored in results.items():
        of, each = DTYPES[stored.dtype], passed.get(name)
        if stored.reduction is not None:
            found[name] = Operand.of_kind(stored.reduction.kind, of)
        elif name != "d":
            if each is None:
                view = View.fresh(stored.shape, of.bits // 8, batched)
            else:
                view = View.of("out", each, batched)
            found[name] = Operand(of, MODES["out"][view.major or 0], view.align)
    return found


def _results_of(
    epilogue: Epilogue, shape: tuple[int, ...], d: Any, wide: Any, outs: Sequence[Any] | None
) -> dict[str, _Result]:
    """What the epilogue returns, by name and in its order.

    shape   of D, and `d` its type; `wide`: the type of sums and maxima
    outs    where it goes, as far as that is given: what is of D's extents has its type
    """
    reductions, found = dict(epilogue.reductions), {}
    for place, name in enumerate(["d", *[result_name(i) for i in range(len(epilogue.beside))]]):
        each = outs[place] if outs is not None and place < len(outs) else None
        reduction = reductions.get(name)
        if reduction is None:
            found[name] = _Result(shape, d if each is None else each.dtype)
        else:
            lead, (m, n) = shape[:-2], shape[-2:]
            own = {Column: (m,), Row: (n,)}.get(reduction.kind, ())
            found[name] = _Result((*lead, *own), wide, reduction)
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


def _seen(
    epilogue: Epilogue, name: str, value: Any, shape: tuple[int, ...] | None
) -> Callable[[Any], Any] | None:
    """How the kernel is given an operand: a row, a column or an element as one mode, with the batch before it; None
    where that is how it is passed.

    shape   of D, where it is a batch
    """
    kind = epilogue.kinds[name]
    if issubclass(kind, Tile):
        if shape is None or value.dim() == 3:
            return None
        return lambda tensor: tensor.expand(shape)
    assert kind in BROADCAST
    if shape is None:
        is_flat = value.dim() == 1 and (value.stride(0) == 1 or value.shape[0] == 1)
        return None if is_flat and value.is_contiguous() else lambda tensor: tensor.reshape(-1).contiguous()
    batch = shape[0]

    def spread(tensor: Any) -> Any:
        rows = tensor.reshape(tensor.shape[0] if tensor.dim() == 3 else 1, -1)
        return rows.contiguous().expand(batch, -1)

    return spread
