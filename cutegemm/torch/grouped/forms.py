"""The forms of a grouped GEMM, by the ranks of its factors, and the operands of an epilogue in each of them.

| a         | b         | groups divide | D         |
|-----------|-----------|---------------|-----------|
| (M, K)    | (L, K, N) | M             | (M, N)    |
| (L, M, K) | (K, N)    | N             | (M, N)    |
| (M, K)    | (K, N)    | K             | (L, M, N) |
| (L, M, K) | (L, K, N) | nothing       | (L, M, N) |
| (L, M, K) | (L, K, N) | M, padded     | (L, M, N) |

`ends` has the end of each of the L groups along the mode that groups divide. A padded form has the number of valid rows
of each matrix instead. A kernel takes its matrices as one, of L * M rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cutegemm.plan.epilogue import Column, Element, Row, Tensor, Tile, epilogue_of
from cutegemm.plan.memory.groups import COUNTS, ENDS, group_bounds
from cutegemm.torch.epilogue import Formula, formula

_GROUPS = {(2, 3): "m", (3, 2): "n", (2, 2): "k", (3, 3): ""}  # ranks of a and b -> the mode that groups divide


@dataclass(frozen=True)
class Form:
    """The form of a grouped GEMM, with its extents. Under torch.compile, extents may be symbols.

    groups       the mode that groups divide: "m", "n" or "k"; "" for a batch, whose groups are matrices
    l, m, n, k   number of groups, and extents of a and b
    is_padded    whether each group is a matrix of a with its valid rows first
    """

    groups: str
    l: Any  # noqa: E741
    m: Any
    n: Any
    k: Any
    is_padded: bool = False

    @staticmethod
    def of(a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor | None, index: torch.Tensor | None = None) -> Form:
        """Return the form of a call with these factors. Only a batch has no ends; two batches have counts instead.

        index   the row of a for each row of the product; None: each row is its own

        >>> Form.of(torch.ones(8, 4), torch.ones(3, 4, 2), torch.tensor([2, 5, 8]))
        Form(groups='m', l=3, m=8, n=2, k=4, is_padded=False)
        """
        (m, k), n = a.shape[-2:], b.shape[-1]
        if index is not None:
            m = index.shape[0]
        is_padded = ends is not None and a.dim() == b.dim() == 3
        groups = "m" if is_padded else _GROUPS[a.dim(), b.dim()]
        return Form(groups, a.shape[0] if ends is None else ends.shape[0], m, n, k, is_padded)

    @property
    def flat(self) -> Form:
        """Return the form as a kernel takes it: that of one matrix with the rows of all groups, if it is padded."""
        return replace(self, m=self.l * self.m, is_padded=False) if self.is_padded else self

    def result_shapes(self, read: Formula) -> list[tuple[Any, ...]]:
        """Return the shape of each result of an epilogue."""
        return read.shapes((self.m,) if self.groups in ("m", "n") and not self.is_padded else (self.l, self.m), self.n)

    def operand(self, x: torch.Tensor, columns: Any) -> tuple[type[Tensor], torch.Tensor] | None:
        """Return the kind of an operand of the epilogue, and the tensor as a kernel takes it; None for a wrong shape.

        An operand has one element, or one for each column of shape (N,), for each row of shape (M, 1), or for each
        element of D. Rows and columns of single groups have shapes (L, 1, N) and (L, M, 1).

        columns   number of columns of D, or of b for a row of a gated epilogue
        """
        if self.is_padded:
            if x.dim() == 2:
                return None
            return self.flat.operand(x.flatten(0, 1) if x.shape[:2] == (self.l, self.m) else x, columns)
        shape, of_groups = tuple(x.shape), self.has_groups(x)
        if shape in ((), (1,)):
            return Element, x.reshape(1, 1).expand(self.l, 1)
        if shape == (columns,) or (of_groups and self.groups != "n" and shape == (self.l, 1, columns)):
            whole = x.reshape(-1, columns).contiguous()
            return Row, whole[0] if self.groups == "n" else whole.expand(self.l, columns)
        if shape == (self.m, 1) or (of_groups and self.groups != "m" and shape == (self.l, self.m, 1)):
            whole = x.reshape(-1, self.m).contiguous()
            return Column, whole[0] if self.groups == "m" else whole.expand(self.l, self.m)
        if self.groups in ("m", "n"):
            return (Tile, x) if shape == (self.m, columns) else None
        if shape in ((self.l, self.m, columns), (self.m, columns)):
            return Tile, x.expand(self.l, self.m, columns)
        return None

    def has_groups(self, x: torch.Tensor) -> bool:
        """Return whether a row or column operand has an own one for each group."""
        along_groups = {"m": 1, "n": 2}.get(self.groups)  # dimension that must have the extent 1
        return x.dim() == 3 and (along_groups is None or x.shape[along_groups] == 1)

    def slices(self, group: int, begin: int, end: int) -> tuple[Any, Any, Any]:
        """Return the indices of a group in a, in b, and in D.

        begin, end   first element of the group along the mode that groups divide, and the end of the group
        """
        own, everything = slice(begin, end), slice(None)
        if self.is_padded:
            return (group, own), group, (group, own)
        if self.groups == "m":
            return own, group, own
        if self.groups == "n":
            return group, (everything, own), (everything, own)
        return (everything, own), own, group

    def own_operand(self, x: Any, group: int, begin: int, end: int) -> Any:
        """Return the part of an operand of the epilogue that belongs to a group: it broadcasts to the group's D.

        x            tensor as the caller passes it, or a number
        begin, end   as for `slices`
        """
        if not isinstance(x, torch.Tensor) or x.dim() == 0:
            return x
        if self.is_padded and x.dim() == 3 and x.shape[1] == self.m:
            return x[group, begin:end]
        if self.has_groups(x) or (self.groups == "k" and x.dim() == 3):
            return x[group]
        if self.groups == "m" and x.dim() == 2:
            return x[begin:end]
        if self.groups == "n" and x.shape[-1] == self.n and x.shape[-1] != 1:
            return x[..., begin:end]
        return x

    def bounds(self, ends: Sequence[int]) -> list[tuple[int, int]]:
        """Return (begin, end) of each group, in its own matrix if the form is padded.

        ends   end of each group, or the number of its rows if the form is padded

        >>> Form("m", 2, 6, 4, 4).bounds([2, 9]), Form("m", 2, 6, 4, 4, is_padded=True).bounds([2, 9])
        ([(0, 2), (2, 6)], [(0, 2), (0, 6)])
        """
        begins, sizes = group_bounds(COUNTS if self.is_padded else ENDS, np.array(ends, np.int64), self.flat.divided)
        if self.is_padded:
            begins = 0 * begins
        return list(zip(begins.tolist(), (begins + sizes).tolist(), strict=True))

    @property
    def divided(self) -> Any:
        """Extent of the mode that groups divide; of the rows of each matrix if the form is padded."""
        return {"m": self.m, "n": self.n, "k": self.k}[self.groups]

    def wrong_ends(self, ends: Sequence[int]) -> list[str]:
        """Return an error message for each rule that the ends of groups violate. It names the first wrong element.

        ends   as for `bounds`

        >>> Form("m", 3, 6, 4, 4).wrong_ends([2, 9, 1])
        ['offs[2] is 1, less than offs[1], which is 9. Ends of groups must not decrease.', \
'offs[1] is 9. Pass 0 to 6, the extent that groups divide.']
        """
        name, rules = "counts" if self.is_padded else "offs", []
        falls = [i for i in range(1, len(ends)) if ends[i] < ends[i - 1] and not self.is_padded]
        if falls:
            i = falls[0]
            rules.append(
                f"{name}[{i}] is {ends[i]}, less than {name}[{i - 1}], which is {ends[i - 1]}. Ends of groups must not "
                "decrease."
            )
        outside = [i for i, end in enumerate(ends) if not 0 <= end <= self.divided]
        if outside:
            meaning = "the rows of each matrix" if self.is_padded else "the extent that groups divide"
            rules.append(f"{name}[{outside[0]}] is {ends[outside[0]]}. Pass 0 to {self.divided}, {meaning}.")
        return rules


@lru_cache(maxsize=1024)
def _halved(text: str) -> frozenset[str]:
    """Return the names of the rows of an epilogue that are read by halves, or by pairs of columns."""
    read = formula(text)
    return frozenset(epilogue_of(read.function, dict.fromkeys(read.names, Row)).halved)


def is_wide(read: Formula, name: str) -> bool:
    """Return whether a row of the epilogue has the columns of b, although a gated D has only half of them.

    >>> is_wide(formula("lambda acc, bias: swiglu(acc + bias)"), "bias")
    True
    """
    return name in _halved(read.text)


def operand_of(read: Formula, name: str, x: torch.Tensor, form: Form) -> tuple[type[Tensor], torch.Tensor]:
    """Return the kind of an operand of the epilogue, and the tensor as a kernel takes it. Its shape was checked."""
    seen = form.operand(x, form.n if is_wide(read, name) else read.columns_of_d(form.n))
    assert seen is not None
    return seen
