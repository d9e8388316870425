"""Grouped GEMMs that a mixture of experts repeats with one signature: see `Product`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cutegemm.torch.epilogue import PLAIN
from cutegemm.torch.grouped import library
from cutegemm.torch.grouped.launch import call_of
from cutegemm.torch.grouped.prepared import Call
from cutegemm.torch.launch import AS_CHOSEN


class Product:
    """A grouped GEMM, as a function of a, b, ends and operands that have the same signature in all calls.

    After the first call it launches its kernel without a look at the tensors.

    text, zeroed, joined   as for `launch.compute_grouped`
    """

    def __init__(self, text: str = PLAIN, zeroed: bool = False, joined: bool | None = None) -> None:
        self.text, self.zeroed, self.joined = text, zeroed, joined
        self.call: Call | None = None

    def __call__(
        self,
        *tensors: torch.Tensor,
        index: torch.Tensor | None = None,
        d_index: torch.Tensor | None = None,
        targets: int = 0,
    ) -> Sequence[torch.Tensor]:
        """Return the results.

        tensors            a, b, ends and operands
        index              the row of a for each row of the product, in all calls or in none
        d_index, targets   as for `launch.compute_grouped`, in all calls or in none
        """
        if self.call is not None:
            return self.call(*tensors, *[each for each in (index, d_index) if each is not None])
        a, b, ends, *operands = tensors
        options = self.text, operands, (), None, AS_CHOSEN, self.zeroed, (), self.joined, index, d_index, targets
        results = library.compute(a, b, ends, *options)
        if not library.CHECKS_ENDS:
            self.call = call_of(a, b, ends, *options)
        return results
