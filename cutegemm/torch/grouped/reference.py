"""Grouped GEMMs by operations of torch, one group after the other: for tensors on the CPU, and for transformations.

The operations have derivatives of all kinds, and batch rules of torch.vmap.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from cutegemm.torch.dispatch import is_transformed
from cutegemm.torch.epilogue import OutDtype, formula
from cutegemm.torch.grouped.forms import Form
from cutegemm.torch.reference import by_torch, dequantized, result_dtypes


def grouped_by_torch(
    a: torch.Tensor,
    b: torch.Tensor,
    ends: torch.Tensor,
    text: str,
    operands: Sequence[torch.Tensor],
    scalars: Sequence[float],
    out_dtype: OutDtype,
    zeroed: bool,
    scales: Sequence[torch.Tensor] = (),
) -> list[torch.Tensor]:
    """Return the results of an epilogue of a grouped a @ b. The ends of the groups are read, so this waits for them.

    The arguments are those of `launch.compute_grouped`.

    >>> a, b, ends = torch.ones(3, 2), torch.stack([torch.eye(2), 2 * torch.eye(2)]), torch.tensor([1, 3])
    >>> grouped_by_torch(a, b, ends, "lambda acc: acc", (), (), None, False)[0]
    tensor([[1., 1.],
            [2., 2.],
            [2., 2.]])
    """
    read, form = formula(text), Form.of(a, b, ends)
    results = allocated(a, b, ends, text, out_dtype, zeroed)
    is_first = True
    if scales:
        a, b = dequantized(a, scales[0]), dequantized(b.mT, scales[1]).mT
    for group, (begin, end) in enumerate(form.bounds(ends.tolist())):
        if begin == end and form.groups != "k":
            continue
        of_a, of_b, of_d = form.slices(group, begin, end)
        own = [form.own_operand(x, group, begin, end) for x in operands]
        found = by_torch(a[of_a], b[of_b], read, [*own, *scalars], tuple([each.dtype for each in results]))
        if is_first and is_transformed(*found):  # batches of torch.vmap are stored to batches only
            results = [
                each.new_zeros(result.shape) if zeroed else each.new_empty(result.shape)
                for each, result in zip(found, results, strict=True)
            ]
        is_first = False
        for result, values in zip(results, found, strict=True):
            result[of_d] = values
    return results


def rows_of(a: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return the rows of a matrix that an index selects: row r is a[index[r]], or zeros if a does not have that row.

    >>> rows_of(torch.tensor([[1.0], [2.0]]), torch.tensor([1, 0, 2], dtype=torch.int32)).flatten()
    tensor([2., 1., 0.])
    """
    if a.shape[0] == 0:
        return F.pad(a, (0, 0, 0, index.shape[0]))  # zeros, with a gradient
    has_row = (index >= 0) & (index < a.shape[0])
    return torch.where(has_row.unsqueeze(1), a[index.long().clamp(0, a.shape[0] - 1)], 0)


def added_rows(results: Sequence[torch.Tensor], index: torch.Tensor, targets: int) -> list[torch.Tensor]:
    """Add each row of the only result to the row of zeros that an index names; return the sums in a list.

    targets   number of rows of the sums

    >>> added_rows([torch.tensor([[1.0], [2.0], [4.0]])], torch.tensor([1, 0, 1], dtype=torch.int32), 2)[0].flatten()
    tensor([2., 5.])
    """
    (rows,) = results
    return [rows.new_zeros((targets, rows.shape[1])).index_add_(0, index, rows)]


def allocated(
    a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor, text: str, out_dtype: OutDtype, zeroed: bool = False
) -> list[torch.Tensor]:
    """Allocate the results of a grouped GEMM, row-major. A graph of torch.compile takes its fake results from here.

    zeroed   whether they are filled with 0
    """
    read, form = formula(text), Form.of(a, b, ends)
    dtypes = result_dtypes(a, read.results, out_dtype)
    make = a.new_zeros if zeroed else a.new_empty
    return [make(shape, dtype=dtype) for shape, dtype in zip(form.result_shapes(read), dtypes, strict=True)]
