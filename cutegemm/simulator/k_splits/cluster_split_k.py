"""Cluster split-K on the CPU: accumulators go from registers to the shared memory of another CTA, which adds them."""

from __future__ import annotations

import numpy as np

from cutegemm.layout import Layout
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program.operations import Send
from cutegemm.plan.reduction import ACCUMULATOR_VECTOR, exchanged, sent
from cutegemm.simulator.memory import is_poison, poison
from cutegemm.simulator.report import Report


class ClusterSplitK:
    """Simulated exchange of accumulators in a cluster that splits K: what the consumers of each CTA have received.

    Accumulators are removed when they have been added.

    plan       plan with cluster split-K
    elements   element of the consumer's tile of D whose total each register gets: (consumers, threads, registers)
    report     collects faults
    """

    def __init__(self, plan: GemmPlan, elements: np.ndarray, report: Report) -> None:
        self.plan, self.elements, self.report, self.tile = plan, elements, report, plan.consumer_tile
        rows, columns = plan.consumer_mma_tile
        table = plan.consumer_mma.offsets_c(Layout((rows, columns)))
        # (threads, registers) element of the tile that the consumer multiplies
        summed = table.reshape(table.shape[0], -1, order="F")
        self.rows, self.columns = summed % rows, summed // rows
        self.layout = exchanged(plan)
        self.sends = sent(plan).offsets().reshape((-1, plan.cluster_k), order="F")  # registers, by receiving CTA
        self.memory: dict[tuple[int, int], np.ndarray] = {}

    def sent(self, accumulators: np.ndarray, consumer: int, to: int) -> np.ndarray:
        """Return the accumulators that a consumer sends to one CTA of its cluster: (CTAs, threads, registers).

        They are in the register order of the receiving CTA.

        accumulators   accumulators of the consumer: (CTAs, M, N)
        consumer       index of the consumer
        to             index of the receiving CTA among those that split K
        """
        registers = self.sends[:, to]
        values: np.ndarray = accumulators[:, self.rows[:, registers], self.columns[:, registers]]
        return values

    def land(self, cta: int, send: Send, values: np.ndarray) -> None:
        """Write received accumulators to the simulated shared memory of a CTA.

        cta      index of the CTA
        send     the operation that sent them, which names the sender and the buffer
        values   the accumulators: (CTAs, threads, registers)
        """
        consumer = send.index
        place = self.memory.get((cta, consumer))
        if place is None or place.shape[1] != len(values):
            place = np.repeat(self._nothing()[:, None], len(values), axis=1)
            self.memory[cta, consumer] = place
        place[self._places(send.sender, consumer)] = np.moveaxis(values, 0, -1)

    def total(self, cta: int, consumer: int) -> np.ndarray:
        """Return the accumulators of a consumer's own columns, added over all CTAs in order: (CTAs, M, N).

        cta        index of the CTA that has received them
        consumer   index of the consumer
        """
        place = self.memory.pop((cta, consumer))
        total: np.ndarray | None = None
        for sender in range(self.plan.cluster_k):
            theirs = place[self._places(sender, consumer)]  # (threads, registers, CTAs)
            if is_poison(theirs).any():
                self.report.add("hole", f"accumulators of CTA {sender} are added, but it has not sent them.")
            total = theirs.copy() if total is None else total + theirs
        assert total is not None
        rows, columns = self.tile
        out = np.zeros((place.shape[1], rows, columns), place.dtype)
        own = self.elements[consumer]
        out[:, own % rows, own // rows] = np.moveaxis(total, -1, 0)
        return out

    def _nothing(self) -> np.ndarray:
        """Return a CTA's simulated shared memory for received accumulators, filled with poison (never written)."""
        return poison(self.layout.cosize(), self.plan.operands.acc)

    def _places(self, sender: int, consumer: int) -> np.ndarray:
        """Return the offsets in shared memory of the accumulators that one CTA has sent: (threads, registers).

        sender     index of the sending CTA among those that split K
        consumer   index of the consumer of the receiving CTA
        """
        _, threads, vectors, *_ = self.layout.shape
        thread, register = np.indices((threads, ACCUMULATOR_VECTOR * vectors))
        by_vector, by_thread, by_vectors, by_cta, by_consumer = self.layout.stride
        within = (
            register % ACCUMULATOR_VECTOR * by_vector + thread * by_thread + register // ACCUMULATOR_VECTOR * by_vectors
        )
        places: np.ndarray = within + sender * by_cta + consumer * by_consumer
        return places
