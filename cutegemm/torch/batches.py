"""The operators under vmap: a product for each of a batch is one product with more rows, or a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cutegemm.plan.epilogue import Reduction
from cutegemm.run.calls import How
from cutegemm.torch.launch import AS_CHOSEN, PLAIN
from cutegemm.torch.text import formula, types_read, types_text

Dims = Sequence[int | None]
_AS_CHOSEN = AS_CHOSEN.options


def batched_mm(
    info: Any,
    in_dims: Any,
    a: Any,
    b: Any,
    out_dtype: torch.dtype | None = None,
    varying_rows: bool = False,
) -> tuple[Any, Any]:
    """`cutegemm::mm` over a batch."""
    dims: Any = (in_dims[0], [in_dims[1]], None, [])
    types = None if out_dtype is None else types_text(out_dtype)
    found, _ = batched_gemm(info, dims, a, [b], PLAIN, [], [], types, *How(varying_rows=varying_rows).options)
    return found[0], 0


def batched_gemm(
    info: Any,
    in_dims: Any,
    a: torch.Tensor,
    b: Sequence[torch.Tensor],
    epilogue: str,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    types: str | None,
    *how: Any,
) -> tuple[Any, Any]:
    """`cutegemm::gemm` over a batch."""

    def product(a: torch.Tensor, b: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]) -> Any:
        """What `a`, `b` and `operands` become, as one product or a batch of them."""
        if epilogue == PLAIN and len(b) == 1 and how == _AS_CHOSEN:
            return [torch.ops.cutegemm.mm(a, b[0], types_read(types))]
        return torch.ops.cutegemm.gemm(a, list(b), epilogue, list(operands), list(scalars), types, *how)

    size, of_a, of_b, of_operands = info.batch_size, in_dims[0], in_dims[1], in_dims[3]
    of_b, of_operands = _each(of_b, b), _each(of_operands, operands)
    rank = a.dim() - (of_a is not None)
    rows = a.movedim(of_a, 0) if of_a is not None else a.expand(size, *a.shape)
    folds = of_a is not None and rank == 2 and all(dim is None for dim in of_b)
    folds = folds and not any(
        isinstance(result, Reduction) and "m" in result.along for result in formula(epilogue).results
    )
    if folds and all(dim is None and x.dim() < 2 for dim, x in zip(of_operands, operands, strict=True)):
        found = product(rows.flatten(0, -2), b, operands)
        results = [each.unflatten(0, (size, rows.shape[1])) for each in found]
        return results, [0] * len(results)
    length = () if rank == 2 else (rows.shape[1],)

    def in_front(x: torch.Tensor, dim: int | None, own: int) -> torch.Tensor:
        """Return (both batches as one, matrix) of an operand: vmap's batch `dim`, and its own of `own` dimensions."""
        x = x.unsqueeze(0) if dim is None else x.movedim(dim, 0)
        while x.dim() < own + 1:
            x = x.unsqueeze(1)
        return x.expand(size, *length, *x.shape[-2:]).flatten(0, -3)

    whole = [in_front(x, dim, rank) for x, dim in zip(b, of_b, strict=True)]
    given = [in_front(x, dim, rank) for x, dim in zip(operands, of_operands, strict=True)]
    found = product(rows.flatten(0, -3), whole, given)
    results = [each.unflatten(0, (size, *length)) for each in found]
    return results, [0] * len(results)


def _each(dims: Any, tensors: Sequence[torch.Tensor]) -> Dims:
    return list(dims) if isinstance(dims, (list, tuple)) else [dims] * len(tensors)
