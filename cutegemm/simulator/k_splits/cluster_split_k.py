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
    """Simulates how the CTAs of a cluster that split K exchange and add their accumulators (cluster split-K).

    Each CTA stores some columns of the tile. It receives the accumulators of these columns from all CTAs through shared
    memory, and `total` adds them and removes them.

    plan       plan with cluster split-K
    elements   index in the consumer's tile of D of the element whose total each register gets: (consumers, threads,
               registers)
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

        They belong to the columns that the receiving CTA stores, in the order of the registers that receive them.

        accumulators   accumulators of the consumer: (CTAs, M, N)
        consumer       index of the consumer in its CTA
        to             index of the receiving CTA among the CTAs that split K
        """
        registers = self.sends[:, to]
        values: np.ndarray = accumulators[:, self.rows[:, registers], self.columns[:, registers]]
        return values

    def land(self, cta: int, send: Send, values: np.ndarray) -> None:
        """Write received accumulators to the simulated shared memory of a CTA, when the transfer ends.

        cta      index of the receiving CTA
        send     the simulated operation that sent them; it names the sender and the receive buffer
        values   the accumulators: (CTAs, threads, registers)
        """
        consumer = send.index
        place = self.memory.get((cta, consumer))
        if place is None or place.shape[1] != len(values):
            place = np.repeat(self._nothing()[:, None], len(values), axis=1)
            self.memory[cta, consumer] = place
        place[self._places(send.sender, consumer)] = np.moveaxis(values, 0, -1)

    def total(self, cta: int, consumer: int) -> np.ndarray:
        """Return the sum of the accumulators that a consumer has received from all CTAs, in their order: (CTAs, M, N).

        The sum is for the columns of the tile that this CTA stores.

        cta        index of the CTA that has received them
        consumer   index of the consumer in the CTA
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
        """Return the shared-memory offsets where a CTA receives another CTA's accumulators: (threads, registers).

        sender     index of the sending CTA among the CTAs that split K
        consumer   index of the consumer in the receiving CTA
        """
        _, threads, vectors, *_ = self.layout.shape
        thread, register = np.indices((threads, ACCUMULATOR_VECTOR * vectors))
        by_vector, by_thread, by_vectors, by_cta, by_consumer = self.layout.stride
        within = (
            register % ACCUMULATOR_VECTOR * by_vector + thread * by_thread + register // ACCUMULATOR_VECTOR * by_vectors
        )
        places: np.ndarray = within + sender * by_cta + consumer * by_consumer
        return places
