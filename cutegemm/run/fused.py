"""gemm with an epilogue: operands by name, their kinds by their shapes, several results.

A warm call looks up the signature of all arguments, allocates what it returns, and launches, as a plain one does. The
epilogue's function is called with symbols when its signature is first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.plan.epilogue import (
    BROADCAST,
    Column,
    Element,
    Epilogue,
    Input,
    Reduction,
    Row,
    Scalar,
    Tensor,
    Tile,
    epilogue_of,
    launch_operands,
)
from cutegemm.plan.epilogue.symbols import result_name
from cutegemm.plan.problem import Operand
from cutegemm.run.checks import (
    check_out,
    extents_of,
    refused,
    shapes_of,
    without_addresses,
    wrong_devices,
    wrong_extents,
    wrong_memory,
    wrong_values,
)
from cutegemm.run.prepare import Ending, How, Prepared, named, prepare
from cutegemm.run.views import ALIGN_BYTES, MODES, View

_MOST_SIGNATURES = 4096
_BLAS = {"alpha": 1.0, "beta": 0.0}  # parameters of `gemm` that an epilogue may take as scalars

_calls: dict[Any, _Call] = {}


class _Call:
    """What a warm call needs.

    launch    takes a, b, the tensors, D, further results, the scalars
    tensors   of the launch: for each the place among the operands that are passed and how it is seen; None for D
    scalars   of the launch: for each the place among the operands that are passed, or a number
    results   D and what is stored beside it, in the order in which the epilogue returns them
    order     of the launch: for each result its place among those
    """

    def __init__(
        self,
        prepared: Prepared,
        epilogue: Epilogue,
        passed: Sequence[str],
        results: Mapping[str, _Result],
        held: Any,
    ) -> None:
        from torch.autograd.graph import increment_version

        from cutegemm.run.torch_ops import devices

        self.prepared, self.results, self.held = prepared, tuple(results.values()), held
        self.written = increment_version
        self.is_single = devices() == 1
        places = {name: place for place, name in enumerate(passed)}
        wanted = launch_operands(epilogue)
        turned, batched = prepared.turned, len(prepared.shape) == 3
        self.tensors = tuple(
            [
                (places[name], _seen(epilogue.kinds[name], prepared.shape if batched else None, turned))
                if name in epilogue.tensors
                else None
                for name in wanted.tensors
            ]
        )
        self.scalars = tuple([(places.get(name), _BLAS.get(name)) for name in wanted.scalars])
        returned = list(results)
        self.order = tuple([returned.index(name) for name in ("d", *epilogue.beside)])
        self.reduces = bool(epilogue.reductions)
        self.launch: Callable[..., Any] | None = None
        if prepared.kernel is not None:
            strides = [view.strides for view in prepared.views]
            tiles = len(epilogue.outputs)
            self.launch = _launcher(prepared.function, turned, (strides[0], strides[1], strides[3]), tiles)


@dataclass(frozen=True)
class _Result:
    """D, or what is stored beside it.

    reduction   None of what is of D's extents
    """

    name: str
    shape: tuple[int, ...]
    dtype: Any
    reduction: Reduction | None = None

    def new(self, like: Any) -> Any:
        """Where it goes, where no tensor is given."""
        return like.new_empty(self.shape, dtype=self.dtype)

    def wrong(self, given: Any, a: Any) -> list[str]:
        """Why the caller's tensor cannot take a reduction, in words."""
        dtype = str(self.dtype).removeprefix("torch.")
        broken = []
        if tuple(given.shape) != self.shape or given.dtype != self.dtype:
            broken.append(
                f"out for {self.reduction} is of {str(given.dtype).removeprefix('torch.')} and has shape "
                f"{tuple(given.shape)}; {dtype} of {self.shape} is expected. Pass None for a new one."
            )
        elif not given.is_contiguous() or given.get_device() != a.get_device():
            broken.append(
                f"out for {self.reduction} lies on {given.device}, with the strides {tuple(given.stride())}; elements "
                f"side by side on {a.device} are expected. Pass None for a new one."
            )
        return broken


def _launcher(
    function: Callable[..., Any], turned: bool, strides: Sequence[Any], tiles: int
) -> Callable[..., Any]:
    """What takes a, b, the epilogue's tensors as the kernel sees them, all results, and the scalars.

    tiles   how many of the results are of D's extents, the first ones
    """
    if not turned and not any(strides):
        return lambda a, b, tensors, results, scalars: function(a, b, *tensors, *results, *scalars)

    def seen(tensor: Any, of: Any) -> Any:
        return tensor if of is None else tensor.as_strided(tensor.shape, of)

    def launch(a: Any, b: Any, tensors: Any, results: Any, scalars: Any) -> None:
        a, b = seen(a, strides[0]), seen(b, strides[1])
        of_d, reduced = [seen(result, strides[2]) for result in results[:tiles]], results[tiles:]
        if turned:
            a, b, of_d = b.mT, a.mT, [result.mT for result in of_d]
        function(a, b, *tensors, *of_d, *reduced, *scalars)

    return launch


def fused(
    a: Any,
    b: Any,
    c: Any,
    alpha: float,
    beta: float,
    out: Any,
    how: How,
    epilogue: Callable[..., Any] | None,
    operands: Mapping[str, Any],
) -> Any:
    """`gemm` with an epilogue and its operands."""
    given = dict(operands)
    if c is not None:
        given["c"] = c
    outs = out if out is None or isinstance(out, tuple | list) else (out,)
    plan = how.plan
    try:
        key = (
            _signature(a), _signature(b), plan if plan.__class__ is str else id(plan), how.accumulate, how.allow_tf32,
            how.out_dtype, _identity(epilogue), alpha == 1, beta == 0,
            None if outs is None else tuple([None if each is None else _signature(each) for each in outs]),
            tuple([(name, _signature(value)) for name, value in given.items()]),
        )  # fmt: skip
    except (AttributeError, RuntimeError, TypeError):
        key = None
    call = _calls.get(key) if key is not None else None
    if call is None:
        call = _prepared(a, b, alpha, beta, outs, how, epilogue, given)
        if key is not None:
            if len(_calls) >= _MOST_SIGNATURES:
                _calls.clear()
            _calls[key] = call
    wanting = [each for each in (a, b, *given.values()) if getattr(each, "requires_grad", False)]
    if wanting:
        wrong = wrong_values({**named(a, b, None, None), **_tensors(given)}, 0.0)
        if wrong:
            raise refused(a, b, wrong)
    results = _results(a, b, outs, call, given)
    if call.launch is not None:
        values = tuple(given.values())
        tensors = [results[0] if at is None else at[1](values[at[0]]) for at in call.tensors]
        if call.prepared.turned:
            tensors = [
                results[0].mT if at is None else each for at, each in zip(call.tensors, tensors, strict=True)
            ]
        launched = results
        if call.reduces:
            launched = [_launched(results[place], call.results[place]) for place in call.order]
        own = {"alpha": alpha, "beta": beta}
        names = tuple(own)
        scalars = [
            values[place] if place is not None else own[names[i]] if i < len(names) else default
            for i, (place, default) in enumerate(call.scalars)
        ]
        try:
            if call.is_single:
                call.launch(a, b, tensors, launched, scalars)
            else:
                from torch.cuda import device

                with device(a.get_device()):
                    call.launch(a, b, tensors, launched, scalars)
        except (TypeError, ValueError, RuntimeError) as error:
            raise CutegemmError(f"gemm of {shapes_of(a, b)} by {call.prepared.kernel!r}: {error}") from error
    else:
        for each, of in zip(results, call.results, strict=True):
            if of.reduction is not None:
                each.fill_(of.reduction.identity)
    if outs is not None:
        for each in outs:
            if each is not None:
                call.written(each)
    return results[0] if len(results) == 1 else tuple(results)


def _results(a: Any, b: Any, outs: Sequence[Any] | None, call: _Call, given: Mapping[str, Any]) -> list[Any]:
    """D and what is stored beside it: those that are given, else new ones."""
    if outs is None:
        return [each.new(a) for each in call.results]
    found = list(outs)
    if len(found) != len(call.results):
        raise refused(
            a,
            b,
            [
                f"out is {len(found)} tensors; the epilogue returns {len(call.results)}. Pass one for each, or None."
            ],
        )
    tiles = [value for value in _tensors(given).values() if value.dim() >= 2]
    for each, of in zip(found, call.results, strict=True):
        if each is not None and of.reduction is not None:
            broken = of.wrong(each, a)
            if broken:
                raise refused(a, b, broken)
        elif each is not None:
            for tile in [None, *[t for t in tiles if t.shape[-2:] == each.shape[-2:]]]:
                views = [*call.prepared.views]
                if tile is not None:
                    views[2] = View.of("c", tile, tile.dim() == 3)
                check_out(a, b, tile, each, views)
    return [of.new(a) if each is None else each for each, of in zip(found, call.results, strict=True)]


def _launched(result: Any, of: _Result) -> Any:
    """A result as the kernel takes it: a number as one of one element."""
    if of.reduction is None or len(of.reduction.along) == 1:
        return result
    return result.unsqueeze(-1)


def _signature(value: Any) -> Any:
    """Of a tensor, all that decides which kernel takes it; of a number, its kind."""
    if isinstance(value, int | float):
        return float
    return (
        value.__class__,
        value.dtype,
        value.shape,
        value.stride(),
        value.data_ptr() & 15,
        value.get_device(),
        value.is_neg(),
    )


def _identity(epilogue: Callable[..., Any] | None) -> Any:
    """The same for functions that do the same: one that is made anew for each call, as a lambda is, has one code."""
    code = getattr(epilogue, "__code__", None)
    if code is None:
        return epilogue
    cells = tuple([cell.cell_contents for cell in epilogue.__closure__ or ()])  # type: ignore[union-attr]
    return (code, cells, epilogue.__defaults__, tuple((epilogue.__kwdefaults__ or {}).items()))  # type: ignore[union-attr]


def _tensors(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if not isinstance(value, int | float)}


def _prepared(
    a: Any,
    b: Any,
    alpha: float,
    beta: float,
    outs: Sequence[Any] | None,
    how: How,
    function: Callable[..., Any] | None,
    given: Mapping[str, Any],
) -> _Call:
    """Checks a signature that is new, and finds its kernel."""
    from cutegemm.run import torch_ops

    tensors = torch_ops.tensors_of({"a": a, "b": b, **_tensors(given)})
    wrong = without_addresses(tensors) or wrong_extents({"a": tensors["a"], "b": tensors["b"]})
    if wrong:
        raise refused(a, b, wrong)
    if function is None:
        raise refused(
            a, b, [f"{', '.join(given)} given without an epilogue that takes them. Pass epilogue=."]
        )
    m, n, _, l = extents_of(a, b)  # noqa: E741
    batched = a.dim() == 3
    shapes = {name: tuple(value.shape) for name, value in _tensors(given).items()}
    kinds: dict[str, type[Input]] = {name: Scalar for name in given if name not in shapes}
    wrong = []
    for name, shape in shapes.items():
        kind = kind_of(shape, m, n, l if batched else None)
        if kind is None:
            batch = f", with or without {l} in front" if batched else ""
            wrong.append(
                f"{name} has shape {shape}; () for one number, {(n,)} for one to a column, {(m, 1)} for one to a row, "
                f"or {(m, n)} for one to each element of the result is expected{batch}."
            )
        else:
            kinds[name] = kind
    operands = {name: tensors[name] for name in shapes}
    known = tuple(torch_ops.DTYPES)
    wrong += [
        f"{name} is of {str(value.dtype).removeprefix('torch.')}, which no kernel reads."
        for name, value in operands.items()
        if value.dtype not in known
    ]
    wrong += wrong_devices(tensors) + wrong_memory(tensors)
    if wrong:
        raise refused(a, b, wrong)
    blas = {name: Scalar for name, value in (("alpha", alpha), ("beta", beta)) if value != _BLAS[name]}
    epilogue = epilogue_of(function, {**kinds, **blas})
    first = next(iter(epilogue.tiles), None)
    result = (outs or [None])[0]
    main = next((each for each in (result,) if each is not None), None)
    d = main.dtype if main is not None else how.out_dtype or torch_ops.RESULTS[a.dtype][0]
    shape = (l, m, n) if batched else (m, n)
    wide = torch_ops.reduced_dtype(a.dtype)
    results = _results_of(epilogue, shape, d, wide, outs)
    further = {
        name: _operand(epilogue.kinds[name], operands[name], torch_ops, batched)  # type: ignore[arg-type]
        for name in epilogue.tensors
        if name != first
    }
    passed = dict(zip(results, outs or [], strict=False))
    for name, result in results.items():
        of, each = torch_ops.DTYPES[result.dtype], passed.get(name)
        if result.reduction is not None:
            further[name] = Operand.of_kind(result.reduction.kind, of)
        elif name != "d":
            view = View.fresh(shape, of.bits // 8, batched) if each is None else View.of("out", each, batched)
            further[name] = Operand(of, MODES["out"][view.major or 0], view.align)
    tile = _as_batch(operands[first], l if batched else None) if first is not None else None
    ending = Ending(epilogue, further)
    prepared = prepare(a, b, tile, main, 0.0, replace(how, out_dtype=d if main is None else None), ending)
    if isinstance(prepared, list):
        raise UnsupportedError(
            f"gemm of {shapes_of(a, b)}: {' and '.join(prepared)} has no stride of 1 in its last two dimensions. Pass "
            f"{', '.join(f'{name}.contiguous()' for name in prepared)}."
        )
    return _Call(prepared, epilogue, tuple(given), results, (how.plan, function))


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
            found[name] = _Result(name, shape, d if each is None else each.dtype)
        else:
            lead, (m, n) = shape[:-2], shape[-2:]
            own = {Column: (m,), Row: (n,)}.get(reduction.kind, ())
            found[name] = _Result(name, (*lead, *own), wide, reduction)
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


def _operand(kind: type[Tensor], tensor: Any, torch_ops: Any, batched: bool) -> Operand:
    """What an operand is made of, as the kernel will see it."""
    of = torch_ops.DTYPES[tensor.dtype]
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
    along = tensor.numel() * (of.bits // 8)
    align |= along  # whole vectors, up to its end
    return Operand.of_kind(kind, of, align_bytes=min(ALIGN_BYTES, align & -align))


def _as_batch(tensor: Any, l: int | None) -> Any:  # noqa: E741
    """A tile as one for each of a batch of l."""
    return tensor if l is None else tensor.expand(l, *tensor.shape[-2:])


def _seen(kind: type[Input], shape: tuple[int, ...] | None, turned: bool) -> Callable[[Any], Any]:
    """How the kernel is given an operand: a row, a column or an element as one mode, with the batch before it.

    shape   of D, where it is a batch
    """
    if issubclass(kind, Tile):
        if shape is None:
            return (lambda tensor: tensor.mT) if turned else (lambda tensor: tensor)
        whole = shape
        return (lambda tensor: tensor.expand(whole).mT) if turned else (lambda tensor: tensor.expand(whole))
    assert kind in BROADCAST
    if shape is None:
        return lambda tensor: tensor.reshape(-1)
    batch = shape[0]
    extent = {Row: shape[2], Column: shape[1], Element: 1}[kind]

    def spread(tensor: Any) -> Any:
        rows = tensor.reshape(tensor.shape[0] if tensor.dim() == 3 else 1, extent)
        return rows.expand(batch, extent)

    return spread
