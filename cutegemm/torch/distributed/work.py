"""What the GEMMs of a call compute: a product with the gathered rows, or a sum of the products of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from cutegemm.run.calls import How
from cutegemm.run.gemm import gemm
from cutegemm.torch.epilogue import PLAIN, OutDtype, formula
from cutegemm.torch.launch import AS_CHOSEN, compute
from cutegemm.torch.reference import accumulator_dtype, result_dtype, result_dtypes


def _signature(*tensors: torch.Tensor) -> tuple[Any, ...]:
    """Return what kernels depend on: types, shapes, strides and alignments of tensors."""
    return tuple([(x.dtype, x.shape, x.stride(), x.data_ptr() % 16) for x in tensors])


@dataclass(frozen=True)
class Gathered:
    """The rows of all ranks times the weights of this rank, with an epilogue. Each result has the rows of all ranks.

    x          rows of this rank, contiguous
    b          weights of this rank. Several are multiplied one by one, without an epilogue
    text       the epilogue as text
    operands   tensors of the epilogue, of M x N, M x 1, N or one element
    scalars    numbers of the epilogue
    results    tensors to store to: results of the epilogue, or of each of `b`
    """

    x: torch.Tensor
    b: Sequence[torch.Tensor]
    text: str
    operands: Sequence[torch.Tensor]
    scalars: Sequence[float]
    results: Sequence[torch.Tensor]
    how: How = AS_CHOSEN

    adds_more = False  # gathered rows are not added, so that no sum has a bias

    @property
    def d(self) -> torch.Tensor:
        return self.results[0]

    @cached_property
    def signature(self) -> Any:
        tensors = (self.x, *self.b, *self.operands, *self.results)
        return (*_signature(*tensors), self.text, tuple(self.scalars), self.how)

    def multiply(
        self, a: torch.Tensor, out: torch.Tensor | None, first_row: int, adds: Sequence[torch.Tensor], is_final: bool
    ) -> None:
        """Multiply rows of any rank, and store rows of all results."""
        rows = a.shape[0]
        outs = self.results if rows == self.d.shape[0] else [x.narrow(0, first_row, rows) for x in self.results]
        if self.text == PLAIN:
            for b, d in zip(self.b, outs, strict=True):
                _multiply(a, b, d, self.how)
            return
        m = self.d.shape[0]
        operands = [x.narrow(0, first_row, rows) if x.dim() == 2 and x.shape[0] == m else x for x in self.operands]
        compute(a, self.b, self.text, operands, self.scalars, how=self.how, outs=outs)

    def add(self, sources: Sequence[torch.Tensor], out: torch.Tensor | None, first_row: int, is_final: bool) -> None:
        """Fail: gathered rows are not added."""
        raise TypeError("rows that are gathered are not added")


@dataclass(frozen=True)
class Reduced:
    """The sum over the ranks of their products, plus a bias: the rows of this rank, or all rows.

    x      columns of A of this rank, M x K
    b      weights of this rank, K x N
    bias   (N,), which the owner of a row adds once; or None
    d      tensor to store to
    """

    x: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor | None
    d: torch.Tensor

    @property
    def adds_more(self) -> bool:
        return self.bias is not None

    @cached_property
    def signature(self) -> Any:
        return _signature(self.x, self.b, self.d, *([] if self.bias is None else [self.bias]))

    def multiply(
        self, a: torch.Tensor, out: torch.Tensor | None, first_row: int, adds: Sequence[torch.Tensor], is_final: bool
    ) -> None:
        """Multiply rows, add partial results of other ranks and, if the sum is final, the bias."""
        target = self._target(a.shape[0], first_row) if out is None else out
        added = [*adds, self.bias] if is_final and self.bias is not None else adds
        if not added:
            _multiply(a, self.b, target, AS_CHOSEN)
        elif len(added) == 1 and added[0] is not self.bias and a.is_cuda:
            gemm(a, self.b, c=added[0], beta=1.0, out=target)
        else:
            compute(a, (self.b,), sum_text(len(added)), added, outs=(target,))

    def add(self, sources: Sequence[torch.Tensor], out: torch.Tensor | None, first_row: int, is_final: bool) -> None:
        """Add products of all ranks in order, then the bias if the sum is final, with one rounding."""
        target = self._target(sources[0].shape[0], first_row) if out is None else out
        added = [*sources, self.bias] if is_final and self.bias is not None else list(sources)
        if len(added) == 2 and added[0].dtype == added[1].dtype == target.dtype:
            torch.add(*added, out=target)  # rounds once
            return
        total = added[0].to(accumulator_dtype(self.x.dtype)) + added[1]
        for each in added[2:]:
            total += each
        target.copy_(total)

    def _target(self, rows: int, first_row: int) -> torch.Tensor:
        """Return some rows of the result."""
        return self.d if rows == self.d.shape[0] else self.d.narrow(0, first_row, rows)


def _multiply(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, how: How) -> None:
    """Store a @ b. A warm call on a GPU goes straight to `gemm`."""
    if not a.is_cuda:
        compute(a, (b,), PLAIN, how=how, outs=(out,))
    elif how is AS_CHOSEN:
        gemm(a, b, out=out)
    else:
        gemm(a, b, out=out, **vars(how))


def sum_text(count: int) -> str:
    """Return the epilogue that adds tensors to the accumulator in order, as text.

    >>> sum_text(2)
    'lambda acc, r0, r1: acc + r0 + r1'
    """
    names = [f"r{i}" for i in range(count)]
    return f"lambda {', '.join(['acc', *names])}: {' + '.join(['acc', *names])}"


def new_results(
    a: torch.Tensor, ranks: int, b: Sequence[torch.Tensor], text: str, out_dtype: OutDtype
) -> list[torch.Tensor]:
    """Return new tensors for the results of `Gathered`, with the rows of all ranks.

    a           rows of this rank
    text        the epilogue as text; several weights have a plain result each
    out_dtype   torch dtype of all results, or a sequence with a dtype or None for each; None: the default of `gemm`
    """
    rows = a.shape[0] * ranks
    if text == PLAIN:
        dtype = result_dtypes(a, formula(PLAIN).results, out_dtype)[0]
        return [a.new_empty((rows, part.shape[1]), dtype=dtype) for part in b]
    read = formula(text)
    dtypes = result_dtypes(a, read.results, out_dtype)
    shapes = read.shapes((rows,), b[0].shape[1])
    return [a.new_empty(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


def new_sum(a: torch.Tensor, b: torch.Tensor, ranks: int = 1) -> torch.Tensor:
    """Return a new tensor for the result of `Reduced`.

    ranks   number of ranks that share the rows; 1 for all rows
    """
    return a.new_empty((a.shape[0] // ranks, b.shape[1]), dtype=result_dtype(a, None))
