"""The sums of CTAs that share K on the CPU: from registers to the shared memory of another CTA, and from there into its
totals."""

from __future__ import annotations

import numpy as np

from cutegemm.layout import Layout
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program.operations import Send
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR, exchanged, sent
from cutegemm.simulator.memory import is_poison, poison
from cutegemm.simulator.report import Report


class ClusterSplitK:
    """What has come to the consumers of each CTA; nothing of it is left when it has been added.

    held   (consumers, threads, registers) element of its own tile of D that each register is to have the total of
    """

    def __init__(self, plan: GemmPlan, held: np.ndarray, report: Report) -> None:
        self.plan, self.held, self.report, self.tile = plan, held, report, plan.consumer_tile
        rows, columns = plan.consumer_mma_tile
        table = plan.consumer_mma.offsets_c(Layout((rows, columns)))
        # (threads, registers) element of the tile that is multiplied
        summed = table.reshape(table.shape[0], -1, order="F")
        self.rows, self.columns = summed % rows, summed // rows
        self.layout = exchanged(plan)
        self.sends = sent(plan).offsets().reshape((-1, plan.cluster_k), order="F")  # registers, by where they go
        self.memory: dict[tuple[int, int], np.ndarray] = {}

    def sent(self, accumulators: np.ndarray, consumer: int, to: int) -> np.ndarray:
        """Of a consumer's sums (CTAs, M, N) those of the columns of one of the CTAs that share K: (CTAs, threads,
        registers), as that one's threads are to have them."""
        registers = self.sends[:, to]
        found: np.ndarray = accumulators[:, self.rows[:, registers], self.columns[:, registers]]
        return found

    def land(self, cta: int, send: Send, values: np.ndarray) -> None:
        """What was sent is in the shared memory of a CTA."""
        consumer = send.index
        place = self.memory.get((cta, consumer))
        if place is None or place.shape[1] != len(values):
            place = np.repeat(self._nothing()[:, None], len(values), axis=1)
            self.memory[cta, consumer] = place
        place[self._places(send.sender, consumer)] = np.moveaxis(values, 0, -1)

    def total(self, cta: int, consumer: int) -> np.ndarray:
        """The sums (CTAs, M, N) of the own columns, of all CTAs in their order."""
        place = self.memory.pop((cta, consumer))
        total: np.ndarray | None = None
        for part in range(self.plan.cluster_k):
            theirs = place[self._places(part, consumer)]  # (threads, registers, CTAs)
            if is_poison(theirs).any():
                self.report.add("hole", f"sums of CTA {part} are added that it has not sent.")
            total = theirs.copy() if total is None else total + theirs
        assert total is not None
        rows, columns = self.tile
        out = np.zeros((place.shape[1], rows, columns), place.dtype)
        own = self.held[consumer]
        out[:, own % rows, own // rows] = np.moveaxis(total, -1, 0)
        return out

    def _nothing(self) -> np.ndarray:
        return poison(self.layout.cosize(), self.plan.operands.acc)

    def _places(self, part: int, consumer: int) -> np.ndarray:
        """(threads, registers) of shared memory where a CTA's sums lie."""
        _, threads, vectors, *_ = self.layout.shape
        thread, register = np.indices((threads, ACCUMULATOR_VECTOR * vectors))
        by_vector, by_thread, by_vectors, by_cta, by_consumer = self.layout.stride
        within = (
            register % ACCUMULATOR_VECTOR * by_vector + thread * by_thread + register // ACCUMULATOR_VECTOR * by_vectors
        )
        places: np.ndarray = within + part * by_cta + consumer * by_consumer
        return places
