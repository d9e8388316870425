"""What the functions and the operators compute: by `gemm` on CUDA tensors, by torch itself on all others.

The way by torch is the reference: sums in float32 (float64 of float64, int32 of int8), the epilogue on them, and one
rounding at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from cutegemm.torch.halves import in_halves, is_gated
from cutegemm.torch.text import Formula, OutDtype, formula, text_of
from cutegemm.torch.values import Values, stored, tensor_of

PLAIN = "lambda acc: acc"
SCALED = "lambda acc, factor: factor * acc"
LINEAR = "lambda acc, addend, factor, weight: factor * acc + weight * addend"

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
    out: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return the results of a product and its epilogue, D first.

    b          matrices side by side
    text       the epilogue: see `text`
    operands   tensors of the epilogue, in the order of its parameters; `scalars` come after them
    out        tensor that D is written to
    """
    whole = b[0] if len(b) == 1 else joined(b)
    if not a.is_cuda:
        return by_torch(a, whole, formula(text), [*operands, *scalars], out_dtype, out)
    return by_gemm(a, whole, text, operands, scalars, out_dtype, how, out)


def by_gemm(
    a: torch.Tensor,
    whole: torch.Tensor,
    text: str,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    out_dtype: torch.dtype | None,
    how: How,
    out: torch.Tensor | None,
) -> list[torch.Tensor]:
    """Return what `compute` does, by `gemm`; operands of any strides are copied if no kernel reads them as they lie."""
    names = ("the first factor", "the second factor", *formula(text).names)
    a, whole, operands = loadable(a, whole, operands, names)
    if out is not None and not is_loadable(out):
        d, *others = by_gemm(a, whole, text, operands, scalars, out.dtype, how, None)
        return [out.copy_(d), *others]
    if _parted(text)[1] is not None:
        kinds = result_dtypes(a, formula(text).results, out_dtype if out is None else out.dtype)
        results = _of_halves(a, whole, formula(text), [*operands, *scalars], kinds, how)
        return results if out is None else [out.copy_(results[0]), *results[1:]]
    keywords: dict[str, Any] = dict(vars(how))
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
    read = formula(text)
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
    out: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return the results by torch's own operations, each of which it can differentiate and transform."""
    rows, columns = a.shape[:-1], b.shape[-1]
    values = Values(lambda: sums(a, b), read.named(given), (*rows, read.columns_of_d(columns)))
    kinds = result_dtypes(a, read.results, out.dtype if out is not None else out_dtype)
    found, sources = [], [*given]
    for result, shape, kind in zip(read.results, read.shapes(rows, columns), kinds, strict=True):
        source = tensor_of(values(result))
        value = stored(source, kind)
        value = value if value.shape == shape else value.expand(shape)
        # A result has memory of its own, also if it is an operand, a part of the sums, or another result once more.
        is_shared = value._is_view() or any(source is each for each in sources)
        found.append(value.clone(memory_format=torch.contiguous_format) if is_shared else value.contiguous())
        sources.append(source)
    if out is not None:
        found[0] = out.copy_(found[0])
    return found


@lru_cache(maxsize=1024)
def _parted(text: str) -> tuple[Formula, bool | None]:
    """An epilogue as a kernel stores it: see `in_halves`."""
    read = formula(text)
    results, interleaved = in_halves(read.results)
    return (read if interleaved is None else formula(text_of(results, read.names))), interleaved


def _of_halves(
    a: torch.Tensor,
    b: torch.Tensor,
    read: Formula,
    given: Sequence[Any],
    dtypes: Sequence[torch.dtype],
    how: How,
) -> list[torch.Tensor]:
    """Return the results of an epilogue some of which have half of b's columns, and others all of them.

    One kernel stores gates and ups of a wide result into the halves of one tensor; if gates and ups are neighbours in
    a row, into two tensors that are joined.

    dtypes   of the results
    """
    parted, interleaved = _parted(read.text)
    shape, wide = (*a.shape[:-1], b.shape[-1]), [not is_gated(result) for result in read.results]
    whole = [
        a.new_empty(shape, dtype=dtype) if each and not interleaved else None
        for each, dtype in zip(wide, dtypes, strict=True)
    ]
    of_parts = tuple([dtype for is_wide, dtype in zip(wide, dtypes, strict=True) for _ in range(1 + is_wide)])
    outs: list[torch.Tensor | None] = []
    for is_wide, of in zip(wide, whole, strict=True):
        outs += [None] * (1 + is_wide) if of is None else of.split(shape[-1] // 2, -1)
    keywords = {**vars(how), **parted.named(given), "out_dtype": of_parts}
    found = iter(gemm(a, b, epilogue=parted.function, out=tuple(outs), **keywords))
    results = []
    for is_wide, of in zip(wide, whole, strict=True):
        halves = [next(found) for _ in range(1 + is_wide)]
        if of is not None:
            results.append(of)
        else:
            results.append(torch.stack(halves, -1).resize_(shape) if is_wide else halves[0])
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
    gate, up = preact.split(b.shape[-1], -1)
    dx = a.new_empty(preact.shape, dtype=result_dtype(a, out_dtype))
    return dx, _into_halves(a, b, formula(dgated(activation)), gate, up, dx, how)


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


def _into_halves(
    a: torch.Tensor, b: torch.Tensor, read: Formula, gate: Any, up: Any, dx: torch.Tensor, how: How
) -> torch.Tensor:
    """The third result of an epilogue, whose first two go into the halves of dx."""
    outs = (*dx.split(b.shape[-1], -1), None)
    keywords = {**vars(how), "out_dtype": dx.dtype, "gate": gate, "up": up}
    third: torch.Tensor = gemm(a, b, epilogue=read.function, out=outs, **keywords)[2]
    return third


def sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b in the type of its sums, by torch; also under torch.autocast, which would round them."""
    kind = sums_dtype(a.dtype)
    with torch.autocast(a.device.type, enabled=False):
        return torch.matmul(a.to(kind), b.to(kind))
