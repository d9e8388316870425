"""Memory that a kernel takes besides its operands, out of torch's allocator: see `plan.workspace`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cutegemm.plan.memory.workspace import workspace_bytes
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem


@dataclass(frozen=True)
class Sizes:
    """What the kernel of one problem takes.

    counters   of arrivals, int32 and zero, as the kernel leaves them; None where they lie in the workspace, if anywhere
    zeroed     bytes of the workspace that are to be zero, its first
    total      bytes of the workspace
    """

    counters: int | None
    zeroed: int
    total: int


def sizes_of(plan: GemmPlan, m: int, n: int, k: int, l: int) -> Sizes:  # noqa: E741
    """For a problem of these extents.

    >>> from cutegemm.build import simt_plan, sm90_plan
    >>> from cutegemm.plan import Operands
    >>> sizes_of(simt_plan(split_k=4, reduction="last"), 128, 128, 1024, 1)
    Sizes(counters=None, zeroed=256, total=262400)
    >>> sizes_of(sm90_plan(split_k=4), 128, 128, 1024, 1)
    Sizes(counters=64, zeroed=0, total=262144)
    >>> sizes_of(sm90_plan(Operands.of("bf16", layout="nt", batched=True), split_k=4), 128, 128, 1024, 3)
    Sizes(counters=64, zeroed=0, total=786432)
    """
    total, zeroed = workspace_bytes(plan, Problem(m, n, k, l, plan.operands))
    if plan.pipeline is None or not plan.split.is_split:
        return Sizes(None, zeroed, max(1, total))
    return Sizes(zeroed // 4, 0, max(1, total - zeroed))


class Spaces:
    """The workspaces of one kernel. torch is imported when the first is made."""

    def __init__(self) -> None:
        import torch

        self._is_capturing = torch.cuda.is_current_stream_capturing
        self._stream = torch.cuda.current_stream
        self._uint8, self._int32 = torch.uint8, torch.int32
        self._kept: dict[tuple[int, int], Any] = {}

    def take(self, like: Any, sizes: Sizes) -> tuple[Any, ...]:
        """The counters, if there are any, and the workspace, on the device of a tensor, for the current stream."""
        space = like.new_empty(sizes.total, dtype=self._uint8)
        if sizes.zeroed:
            space[: sizes.zeroed].zero_()
        if sizes.counters is None:
            return (space,)
        return self._counters(like, sizes.counters), space

    def _counters(self, like: Any, count: int) -> Any:
        """Counters that are zero, kept for each stream, whose kernels run one after the other.

        A graph that is captured has its own, which it sets to zero each time: it may run on another stream.
        """
        if self._is_capturing():
            return like.new_zeros(max(1, count), dtype=self._int32)
        device = like.get_device()
        key = (device, self._stream(device).cuda_stream)
        kept = self._kept.get(key)
        if kept is None or len(kept) < count:
            kept = self._kept[key] = like.new_zeros(max(1, count), dtype=self._int32)
        return kept
