"""The gradients of a product with an epilogue: by a, b and its operands.

With g the derivative by the sums, which `pullback` finds of the epilogue, they are g B^T, A^T g, and sums of g times
what an operand is multiplied with. The sums themselves are seldom needed: what the rules read is a result that was
stored, or is stored for them (`with_kept`); otherwise the product is computed once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from cutegemm.plan.epilogue import Compare, Expression, Tensor
from cutegemm.run.calls import How
from cutegemm.torch.launch import AS_CHOSEN, PLAIN, joined, sums_dtype
from cutegemm.torch.pullback import ACC, OfExpressions, OfTensors, pullback, used
from cutegemm.torch.route import Route, route_of
from cutegemm.torch.text import OutDtype, formula, text_of
from cutegemm.torch.traced import constant
from cutegemm.torch.values import Values, nodes_of

Multiply = Callable[[torch.Tensor, torch.Tensor, torch.dtype, How], torch.Tensor]


@dataclass(frozen=True)
class Call:
    """A product as its gradients are made of it, without its tensors.

    text        the epilogue
    scalars     numbers, the last operands of it
    out_dtype   types of its results, as `gemm` takes them
    """

    text: str
    scalars: tuple[float, ...] = ()
    out_dtype: OutDtype = None
    how: How = AS_CHOSEN


@dataclass(frozen=True)
class Needed:
    """What the derivatives of an epilogue are made of.

    names     operands, and "acc" where the product has to be computed once more
    results   the numbers of the results
    """

    names: frozenset[str]
    results: frozenset[int]


@lru_cache(maxsize=4096)
def needed(text: str, wanted: frozenset[str]) -> Needed:
    """What the derivatives by some operands, or by the sums, are made of.

    >>> needed("lambda acc, bias: gelu(acc + bias)", frozenset({"acc", "bias"}))
    Needed(names=frozenset({...}), results=frozenset())
    >>> needed("lambda acc, bias: tanh(acc + bias)", frozenset({"acc", "bias"}))
    Needed(names=frozenset(), results=frozenset({0}))
    """
    results = formula(text).results
    stored = {result: Tensor(f"result {i}") for i, result in reversed(list(enumerate(results)))}
    upstream = [Tensor(f"g {i}") for i in range(len(results))]
    found = pullback(results, upstream, lambda node: _where(node, stored), wanted, OfExpressions())
    names = used(found)
    numbers = [int(name.split()[1]) for name in names if name.startswith("result ")]
    return Needed(frozenset(name for name in names if " " not in name), frozenset(numbers))


def _where(node: Expression, stored: dict[Expression, Tensor]) -> Expression:
    """An expression with what is stored in the place of its parts."""
    if node in stored:
        return stored[node]
    return node.with_children(*[_where(child, stored) for child in node.children])


@constant
def with_kept(text: str, operands: int) -> str:
    """The epilogue with one more result, where its derivatives then need not compute the product once more.

    operands   how many of its operands are tensors, by which it may be differentiated

    >>> with_kept("lambda acc, bias: gelu(acc + bias)", 1)
    'lambda acc, bias: (gelu(acc + bias), acc + bias)'
    >>> with_kept("lambda acc, bias: relu(acc + bias)", 1)
    'lambda acc, bias: relu(acc + bias)'
    """
    read = formula(text)
    wanted = frozenset([ACC, *read.names[:operands]])
    if ACC not in needed(text, wanted).names:
        return text
    inner = [
        node
        for node in nodes_of(read.results)
        if node.has_accumulator and node not in read.results and not isinstance(node, Compare)
    ]
    for node in sorted(inner, key=lambda node: -len(list(node.nodes()))):
        kept = text_of([*read.results, node], read.names)
        if ACC not in needed(kept, wanted).names:
            return kept
    return text


def wanted_of(call: Call, needs: Sequence[bool], parts: int) -> frozenset[str]:
    """The names to differentiate by.

    needs   of a, of the parts of b, and of the operands, whether a gradient is asked for
    """
    names = formula(call.text).names[: len(needs) - 1 - parts]
    wanted = [name for name, need in zip(names, needs[1 + parts :], strict=True) if need]
    return frozenset([ACC, *wanted] if any(needs[: 1 + parts]) else wanted)


def saved(
    call: Call,
    tensors: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    needs: Sequence[bool],
    parts: int,
) -> list[torch.Tensor | None]:
    """What the backward pass reads, of tensors (a, parts of b, operands) and results; None for what it does not."""
    if call.text == PLAIN:
        b = tensors[1 : 1 + parts] if needs[0] else [None] * parts
        return [tensors[0] if any(needs[1:]) else None, *b, None]
    names = formula(call.text).names
    asked = needed(call.text, wanted_of(call, needs, parts))
    again = ACC in asked.names
    a, b, operands = tensors[0], tensors[1 : 1 + parts], tensors[1 + parts :]
    return [
        a if again or any(needs[1 : 1 + parts]) else None,
        *[part if again or needs[0] else None for part in b],
        *[x if name in asked.names else None for x, name in zip(operands, names, strict=False)],
        *[x if i in asked.results else None for i, x in enumerate(results)],
    ]


@dataclass(frozen=True)
class Extents:
    """Of what is not saved: shape, type, and whether columns are contiguous."""

    shape: torch.Size
    dtype: torch.dtype
    by_columns: bool

    @staticmethod
    def of(tensor: torch.Tensor) -> Extents:
        """Those of a tensor."""
        by_columns = tensor.dim() > 1 and tensor.stride(-2) == 1 and tensor.stride(-1) != 1
        return Extents(tensor.shape, tensor.dtype, by_columns)


def gradients(
    call: Call,
    extents: Sequence[Extents],
    parts: int,
    kept: Sequence[torch.Tensor | None],
    upstream: Sequence[torch.Tensor | None],
    needs: Sequence[bool],
    multiply: Multiply,
) -> list[torch.Tensor | None]:
    """The gradients by a, the parts of b and the operands; None where none is asked for.

    extents    of a, the parts of b and the operands
    kept       what `saved` gave
    upstream   the gradients of the results; None where one has none
    multiply   the product of two matrices, in a type, which records gradients itself
    """
    read, count = formula(call.text), len(extents)
    a, b = kept[0], kept[1 : 1 + parts]

    def times(x: Any, y: Any, dtype: torch.dtype, by_rows: bool = False) -> torch.Tensor:
        """by_rows: whether its rows are those of a, which may vary from call to call."""
        return multiply(x, y, dtype, _of_gradients(call.how, by_rows))

    if call.text == PLAIN:
        found = {} if upstream[0] is None else {ACC: upstream[0]}
    else:
        columns = sum(of.shape[-1] for of in extents[1 : 1 + parts])
        shape = (*extents[0].shape[:-1], read.columns_of_d(columns))
        found = _by_names(
            call, a, b, kept[1 + parts :], upstream, wanted_of(call, needs, parts), shape, times
        )
    gradient: list[torch.Tensor | None] = [None] * count
    g = found.get(ACC)
    if g is not None:
        kind = extents[0].dtype if extents[0].dtype.itemsize > 1 else torch.bfloat16
        g = loadable(g.to(kind))
        if needs[0]:
            gradient[0] = by_a(g, [part.to(kind) for part in b], extents[0], kind, times)  # type: ignore[union-attr]
        if any(needs[1 : 1 + parts]):
            assert a is not None
            gradient[1 : 1 + parts] = by_parts(a.to(kind), g, extents[1 : 1 + parts], kind, times)
    for i, (name, of) in enumerate(zip(read.names, extents[1 + parts :], strict=False), 1 + parts):
        if needs[i] and name in found:
            gradient[i] = found[name].sum_to_size(of.shape)
    return [
        x.to(of.dtype) if x is not None and need else None
        for x, of, need in zip(gradient, extents, needs, strict=True)
    ]


def _by_names(
    call: Call,
    a: Any,
    b: Sequence[Any],
    behind: Sequence[torch.Tensor | None],
    upstream: Sequence[torch.Tensor | None],
    wanted: frozenset[str],
    shape: Sequence[int],
    times: Any,
) -> dict[str, Any]:
    """Return the derivatives of an epilogue by the sums and its operands, by name.

    behind   of what `saved` gave, the operands and the results
    shape    extents of D
    """
    read = formula(call.text)
    operands = behind[: len(behind) - len(read.results)]
    pairs = reversed(list(zip(read.results, behind[len(operands) :], strict=True)))
    known = {expression: x for expression, x in pairs if x is not None}

    def again() -> torch.Tensor:
        product: torch.Tensor = times(a, joined(b), sums_dtype(a.dtype))
        return product

    values = Values(again, dict(zip(read.names, [*operands, *call.scalars], strict=True)), shape, known)
    return pullback(read.results, upstream, values, wanted, OfTensors(shape))


@lru_cache(maxsize=256)
def _of_gradients(how: How, by_rows: bool) -> How:
    """How products of a gradient are chosen: the plan of one that is not transposed is none of these."""
    return replace(how, plan=None, varying_rows=how.varying_rows and by_rows)


def by_a(
    g: torch.Tensor, parts: Sequence[torch.Tensor], of: Extents, kind: torch.dtype, times: Any
) -> torch.Tensor:
    """g B^T, in the order of a's memory.

    parts   of B, side by side
    """
    if of.by_columns:
        by_columns: torch.Tensor = times(joined(parts), g.mT, kind)
        return by_columns.mT
    if len(parts) > 1 and not torch.is_grad_enabled() and route_of(g, *parts) is Route.OPERATOR:
        in_graph: torch.Tensor = torch.ops.cutegemm.mm_parts(g, list(parts), kind)
        return in_graph
    found: torch.Tensor = times(g, joined(parts).mT, kind, True)
    return found


def by_parts(
    a: torch.Tensor, g: torch.Tensor, parts: Sequence[Extents], kind: torch.dtype, times: Any
) -> Sequence[torch.Tensor]:
    """A^T g, some of its columns for each part of B; in the order of B's memory, so that nobody copies it once more."""
    whole = times(g.mT, a, kind).mT if parts[0].by_columns else times(a.mT, g, kind)
    return torch.split(whole, [part.shape[-1] for part in parts], -1) if len(parts) > 1 else [whole]


def loadable(g: torch.Tensor) -> torch.Tensor:
    """Autograd hands over numbers that were expanded, as of a sum, without elements of their own."""
    return g if g.stride(-1) == 1 or g.stride(-2) == 1 else g.contiguous()
