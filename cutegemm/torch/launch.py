"""What the functions and the operators compute: by `gemm` on CUDA tensors, by torch itself on all others.

The way by torch is the reference: sums in float32 (float64 of float64, int32 of int8), the epilogue on them, and one
rounding at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from cutegemm.errors import UnsupportedError
from cutegemm.plan.epilogue import Expression, Reduction
from cutegemm.run import torch_ops
from cutegemm.run.calls import How
from cutegemm.run.gemm import gemm
from cutegemm.run.torch_ops import RESULTS
from cutegemm.torch.activations import dgated
from cutegemm.torch.copies import is_loadable, loadable
from cutegemm.torch.halves import (
    halves_of,
    in_halves,
    interleaved_of,
    is_gated,
    parts_named,
    with_parts,
)
from cutegemm.torch.text import Formula, OutDtype, formula, names_in_halves, text_of
from cutegemm.torch.values import Values, stored, tensor_of

PLAIN = "lambda acc: acc"
SCALED = "lambda acc, factor: factor * acc"
LINEAR = "lambda acc, addend, factor, weight: factor * acc + weight * addend"

Outs = Sequence[torch.Tensor | None] | None

AS_CHOSEN = How()
OF_LAYER = How(varying_rows=True)  # whose weight stays, and whose rows vary from call to call


def result_dtype(a: torch.Tensor, out_dtype: OutDtype) -> torch.dtype:
    """Return the type of D: what is asked for, or the first that `gemm` gives of a's type.

    raises   UnsupportedError for a type that is not multiplied
    """
    if a.dtype not in RESULTS:
        served = ", ".join(str(kind).removeprefix("torch.") for kind in RESULTS)
        raise UnsupportedError(f"a product of {a.dtype}: {served} are served.")
    return torch_ops.result_dtypes(a.dtype, (False,), out_dtype)[0]


def sums_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type of the sums of products of a type."""
    if not dtype.is_floating_point:
        return torch.int32
    return dtype if dtype == torch.float64 else torch.float32


def result_dtypes(a: torch.Tensor, results: Sequence[Expression], out_dtype: OutDtype) -> list[torch.dtype]:
    """Return the type of each result of an epilogue: sums and maxima over D are float32, or float64 if a is.

    Results behind those that `out_dtype` names have the type of D.

    raises   UnsupportedError for a type that is not multiplied
    """
    result_dtype(a, out_dtype)
    return torch_ops.result_dtypes(a.dtype, [isinstance(each, Reduction) for each in results], out_dtype)


def allocated(
    a: torch.Tensor, b: Sequence[torch.Tensor], text: str, out_dtype: OutDtype
) -> list[torch.Tensor]:
    """Allocate the results of a product, row-major and not filled. A graph takes its fake results from it."""
    read, n = formula(text), sum(part.shape[-1] for part in b)
    kinds = result_dtypes(a, read.results, out_dtype)
    shapes = read.shapes(a.shape[:-1], n)
    return [a.new_empty(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)]


def joined(b: Sequence[torch.Tensor]) -> torch.Tensor:
    """Matrices side by side as one: a view where they follow each other in memory already, else a copy.

    >>> whole = torch.randn(8, 16)
    >>> joined([whole[:4].t(), whole[4:].t()]).data_ptr() == whole.data_ptr()
    True
    >>> joined([whole[4:].t(), whole[:4].t()]).data_ptr() == whole.data_ptr()
    False
    """
    if len(b) == 1:
        return b[0]
    first = b[0]
    if first.__class__ in (torch.Tensor, torch.nn.Parameter) and _follow(b):
        columns = sum(part.shape[-1] for part in b)
        return first.as_strided((*first.shape[:-1], columns), first.stride())
    return torch.cat(list(b), -1)


def _follow(b: Sequence[torch.Tensor]) -> bool:
    """Whether each part begins in memory where the columns of the one before it end."""
    first = b[0]
    storage, at = first.untyped_storage().data_ptr(), first.data_ptr()
    for part in b:
        if part.data_ptr() != at or part.stride() != first.stride() or part.dtype != first.dtype:
            return False
        if part.untyped_storage().data_ptr() != storage:
            return False
        at += part.shape[-1] * part.stride(-1) * part.element_size()
    return True


def compute(
    a: torch.Tensor,
    b: Sequence[torch.Tensor],
    text: str,
    operands: Sequence[torch.Tensor] = (),
    scalars: Sequence[float] = (),
    out_dtype: OutDtype = None,
    how: How = AS_CHOSEN,
    outs: Outs = None,
) -> list[torch.Tensor]:
    """Return the results of a product and its epilogue, D first.

    b          matrices side by side
    text       the epilogue: see `text`
    operands   tensors of the epilogue, in the order of its parameters; `scalars` come after them
    outs       tensors that results are written to, in the order of the results; None for a new one
    """
    whole = b[0] if len(b) == 1 else joined(b)
    if not a.is_cuda:
        return by_torch(a, whole, formula(text), [*operands, *scalars], out_dtype, outs)
    return by_gemm(a, whole, text, operands, scalars, out_dtype, how, outs)


def by_gemm(
    a: torch.Tensor,
    whole: torch.Tensor,
    text: str,
    operands: Sequence[torch.Tensor] = (),
    scalars: Sequence[float] = (),
    out_dtype: OutDtype = None,
    how: How = AS_CHOSEN,
    outs: Outs = None,
) -> list[torch.Tensor]:
    """Return what `compute` does, by `gemm`; operands of any strides are copied if no kernel reads them as they lie."""
    names = ("the first factor", "the second factor", *formula(text).names)
    a, whole, operands = loadable(a, whole, operands, names)
    if outs is not None and not all(out is None or is_loadable(out) for out in outs):
        kinds = tuple(_dtypes_with(a, formula(text), out_dtype, outs))
        passed = [out if out is not None and is_loadable(out) else None for out in outs]
        found = by_gemm(a, whole, text, operands, scalars, kinds, how, passed)
        return [each if out is None else out.copy_(each) for each, out in zip(found, outs, strict=True)]
    lowered = _lowered(text, _tiles_in_halves(text, a, whole, operands))
    if lowered.interleaved is not None or (outs is not None and len(outs) > 1):
        return _by_parts(lowered, a, whole, formula(text), [*operands, *scalars], out_dtype, how, outs)
    keywords: dict[str, Any] = dict(vars(how))
    out = None if outs is None else outs[0]
    if out is not None:
        keywords["out"] = out
    elif out_dtype is not None:
        keywords["out_dtype"] = tuple(result_dtypes(a, formula(text).results, out_dtype))
    if text == PLAIN:
        return [gemm(a, whole, **keywords)]
    if text == SCALED:
        return [gemm(a, whole, alpha=scalars[0], **keywords)]
    dtype = result_dtype(a, out_dtype) if out is None else out.dtype
    if (
        text == LINEAR
        and operands[0].shape == (*a.shape[:-1], whole.shape[-1])
        and operands[0].dtype == dtype
    ):
        return [gemm(a, whole, c=operands[0], alpha=scalars[0], beta=scalars[1], **keywords)]
    read = lowered.read
    found = gemm(a, whole, epilogue=read.function, **keywords, **read.named([*operands, *scalars]))
    return list(found) if isinstance(found, tuple) else [found]


def factors_read(
    a: torch.Tensor, b: tuple[torch.Tensor, ...], text: str, scalars: Sequence[float]
) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    """Return the factors that are read: of an alpha of 0 none of their elements, so that no NaN of theirs counts.

    scalars   numbers of the epilogue; alpha is the first of `SCALED` and `LINEAR`
    """
    if text not in (SCALED, LINEAR) or scalars[0] != 0:
        return a, b
    return a[..., :0], tuple([part[..., :0, :] for part in b])


def by_torch(
    a: torch.Tensor,
    b: torch.Tensor,
    read: Formula,
    given: Sequence[Any],
    out_dtype: OutDtype,
    outs: Outs = None,
) -> list[torch.Tensor]:
    """Return the results by torch's own operations, each of which it can differentiate and transform."""
    rows, columns = a.shape[:-1], b.shape[-1]
    given = [_widened(x, sums_dtype(a.dtype)) for x in given]
    values = Values(lambda: sums(a, b), read.named(given), (*rows, read.columns_of_d(columns)))
    kinds = _dtypes_with(a, read, out_dtype, outs)
    found, sources = [], [*given]
    for result, shape, kind in zip(read.results, read.shapes(rows, columns), kinds, strict=True):
        source = tensor_of(values(result))
        value = stored(source, kind)
        value = value if value.shape == shape else value.expand(shape)
        # A result has memory of its own, also if it is an operand, a part of the sums, or another result once more.
        is_shared = value._is_view() or any(source is each for each in sources)
        found.append(value.clone(memory_format=torch.contiguous_format) if is_shared else value.contiguous())
        sources.append(source)
    if outs is None:
        return found
    return [each if out is None else out.copy_(each) for each, out in zip(found, outs, strict=True)]


def _widened(x: Any, kind: torch.dtype) -> Any:
    """Return an operand in the type of the sums, as a kernel computes with it, unless its own type is wider."""
    is_narrow = isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype.itemsize < kind.itemsize
    return x.to(kind) if is_narrow and kind.is_floating_point else x


def _dtypes_with(a: torch.Tensor, read: Formula, out_dtype: OutDtype, outs: Outs) -> list[torch.dtype]:
    """Return the type of each result, which is that of its tensor in `outs` if there is one."""
    kinds = result_dtypes(a, read.results, out_dtype)
    if outs is None:
        return kinds
    return [kind if out is None else out.dtype for kind, out in zip(kinds, outs, strict=True)]


@dataclass(frozen=True)
class Lowered:
    """An epilogue as a kernel computes it.

    read          each result and tile operand with all columns of A @ B is replaced by its gate and its up; those of
                  an operand have the names of `parts_named`
    interleaved   whether gates and ups of these are neighbours in memory; None if nothing was replaced
    """

    read: Formula
    interleaved: bool | None


@lru_cache(maxsize=1024)
def _lowered(text: str, tiles: tuple[str, ...]) -> Lowered:
    """Lower an epilogue.

    tiles   operands with all columns of A @ B that stand inside of halves() or pairs()

    >>> _lowered("lambda acc, c: (reglu(acc + c), acc + c)", ("c",)).read.text
    'lambda acc, c_gate, c_up: (relu(halves(acc)[0] + c_gate) * ..., halves(acc)[0] + c_gate, halves(acc)[1] + c_up)'
    """
    read = formula(text)
    results, interleaved = in_halves(read.results)
    if tiles:
        interleaved = interleaved_of(read.results)
        results = with_parts(results, tiles)
    if interleaved is None:
        return Lowered(read, None)
    names = [each for name in read.names for each in (parts_named(name) if name in tiles else (name,))]
    return Lowered(formula(text_of(results, names)), interleaved)


def _tiles_in_halves(
    text: str, a: torch.Tensor, b: torch.Tensor, operands: Sequence[torch.Tensor]
) -> tuple[str, ...]:
    """Return the names of the operands in halves() or pairs() that are M x N; a kernel reads a single row as a row."""
    names = names_in_halves(text)
    if not names or a.shape[-2] == 1:
        return ()
    whole = (a.shape[-2], b.shape[-1])
    pairs = zip(formula(text).names, operands, strict=False)
    return tuple([name for name, x in pairs if name in names and x.dim() > 1 and x.shape[-2:] == whole])


def _by_parts(
    lowered: Lowered,
    a: torch.Tensor,
    b: torch.Tensor,
    read: Formula,
    given: Sequence[Any],
    out_dtype: OutDtype,
    how: How,
    outs: Outs,
) -> list[torch.Tensor]:
    """Return the results of one kernel, each in its tensor in `outs` if there is one.

    A gated epilogue may have results with all columns of A @ B. The kernel stores the gates and the ups of such a
    result into the two halves of one tensor. If they are interleaved it stores two tensors, which are joined.

    read   the epilogue as it was given; `lowered` is what the kernel computes
    """
    kinds, interleaved = _dtypes_with(a, read, out_dtype, outs), lowered.interleaved
    outs = outs or [None] * len(kinds)
    shape, is_whole = (*a.shape[:-1], b.shape[-1]), [False] * len(kinds)
    if interleaved is not None:
        is_whole = [not is_gated(result) for result in read.results]
    whole: list[torch.Tensor | None] = []  # which both parts of a result are stored into
    targets: list[torch.Tensor | None] = []
    for out, kind, of_both in zip(outs, kinds, is_whole, strict=True):
        joint = (
            (a.new_empty(shape, dtype=kind) if out is None else out) if of_both and not interleaved else None
        )
        whole.append(joint)
        targets += (
            joint.split(shape[-1] // 2, -1) if joint is not None else [None, None] if of_both else [out]
        )
    parts = [kind for kind, of_both in zip(kinds, is_whole, strict=True) for _ in range(1 + of_both)]
    named = dict(zip(read.names, given, strict=True))
    for name in [name for name in read.names if name not in lowered.read.names]:
        named |= dict(zip(parts_named(name), halves_of(named.pop(name), bool(interleaved)), strict=True))
    keywords = {**vars(how), **named, "out_dtype": tuple(parts), "out": tuple(targets)}
    found = gemm(a, b, epilogue=lowered.read.function, **keywords)
    stored_parts = iter(found if isinstance(found, tuple) else (found,))
    results = []
    for out, joint, of_both in zip(outs, whole, is_whole, strict=True):
        halves = [next(stored_parts) for _ in range(1 + of_both)]
        if of_both and joint is None:
            both = torch.stack(halves, -1).resize_(shape)
            results.append(both if out is None else out.copy_(both))
        else:
            results.append(halves[0] if joint is None else joint)
    return results


def dgated_of(
    a: torch.Tensor,
    b: torch.Tensor,
    preact: torch.Tensor,
    activation: str,
    out_dtype: torch.dtype | None = None,
    how: How = AS_CHOSEN,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of preact, whose halves are gates and ups, and the gated values, by one kernel.

    a, b   their product is the gradient of the gated values
    """
    if not a.is_cuda:
        return dgated_by_torch(a, b, preact, activation, out_dtype)
    a, b, (preact,) = loadable(a, b, (preact,), ("the first factor", "the second factor", "preact"))
    dx = a.new_empty(preact.shape, dtype=result_dtype(a, out_dtype))
    outs, operands = (*dx.split(b.shape[-1], -1), None), preact.split(b.shape[-1], -1)
    return dx, by_gemm(a, b, dgated(activation), operands, (), dx.dtype, how, outs)[2]


def dgated_by_torch(
    a: torch.Tensor,
    b: torch.Tensor,
    preact: torch.Tensor,
    activation: str,
    out_dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what `dgated_of` does, by torch's own operations."""
    operands = torch.split(preact, b.shape[-1], -1)
    *both, hidden = by_torch(a, b, formula(dgated(activation)), operands, out_dtype)
    return torch.cat(both, -1), hidden


def sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b in the type of its sums, by torch; also under torch.autocast, which would round them."""
    kind = sums_dtype(a.dtype)
    with torch.autocast(a.device.type, enabled=False):
        return torch.matmul(a.to(kind), b.to(kind))
