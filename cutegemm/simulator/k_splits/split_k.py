"""Workspace of split-K plans with one schedule: accumulators of K splits, added in the order of the K splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutegemm.plan.memory.workspace import partials_layout
from cutegemm.plan.plan import GemmPlan
from cutegemm.simulator.memory import is_poison, poison
from cutegemm.simulator.report import Report
from cutegemm.simulator.tables import PlanTables


class SplitKWorkspace:
    """Simulates the workspace in global memory that K splits are added in, for plans without warp roles.

    `write` stores the accumulators of a K split, `total` adds those of all K splits of a tile. A slot of the workspace
    holds the accumulators of one K split of one tile.

    plan     plan that splits K
    tables   index tables of the plan
    slots    number of slots
    report   collects faults
    """

    def __init__(self, plan: GemmPlan, tables: PlanTables, slots: int, report: Report) -> None:
        self.report = report
        self.shape = tables.elements.shape
        layout = partials_layout(plan, max(1, slots))
        self.slots, self.by_slot = slots, int(layout.stride[3])
        self.memory = poison(int(layout.cosize()), plan.operands.acc)
        self.written = np.zeros(len(self.memory), np.uint8)
        self.places = _places(plan, self.shape)

    def write(self, slots: np.ndarray, accumulators: np.ndarray) -> None:
        """Write the accumulators of one K split of several CTAs to the simulated workspace.

        slots          for each CTA, the index of the slot to write: memory for the accumulators of one K split of one
                       tile
        accumulators   accumulators of all CTAs. Axes: MMA atoms of a thread along M, the same along N, registers of an
                       atom in all threads of all CTAs (the CTA fastest)
        """
        index = self._index(slots)
        np.add.at(self.written, index.reshape(-1), 1)
        twice = int((self.written[index] > 1).sum())
        if twice:
            self.report.add("result", f"{twice} elements of the workspace are written more than once.")
        self.memory[index] = accumulators.reshape(index.shape)

    def total(self, splits: Sequence[np.ndarray]) -> np.ndarray:
        """Return the sums of the accumulators of all K splits, added in the order of the splits, for several tiles.

        splits    for each K split, the index of the workspace slot that holds it, for each tile: arrays (tiles,)
        returns   sums, with these axes: MMA atoms of a thread along M, the same along N, registers of an atom in all
                  threads for all tiles (the tile fastest)
        """
        out = np.zeros((*self.shape, len(splits[0])), self.memory.dtype)
        for k_split, slots in enumerate(splits):
            accumulators = self.memory[self._index(slots)]
            if is_poison(accumulators).any():
                text = f"accumulators of K split {k_split} are added, but no CTA has written them."
                self.report.add("hole", text)
            out += accumulators
        return out.reshape(self.shape[0], self.shape[1], -1)

    def _index(self, slots: np.ndarray) -> np.ndarray:
        """Return the offset in the simulated workspace of each accumulator of the K splits with these slots.

        A slot is the part of the workspace that holds the accumulators of one K split of one tile. Slots outside of the
        workspace are reported as faults of the plan.

        slots     indices of the slots
        returns   array with five axes: MMA atoms of a thread along M, and along N; values of an atom; threads; slots
        """
        if len(slots) and not 0 <= slots.min() <= slots.max() < self.slots:
            self.report.add("outside", f"slots {slots.tolist()} exceed the {self.slots} slots of the workspace.")
            slots = slots % max(1, self.slots)
        index: np.ndarray = self.places[..., None] + slots * self.by_slot
        return index


def _places(plan: GemmPlan, shape: tuple[int, ...]) -> np.ndarray:
    """Return the offset of each accumulator of a CTA in the part of the workspace that holds one K split of a tile.

    shape     lengths of the result's axes: MMA atoms of a thread along M, and along N; values of an atom; threads
    returns   offsets in elements, of that shape
    """
    rest_m, values = shape[0], shape[2]
    m, n, value, thread = np.indices(shape)
    vector = plan.store.atom.values
    if values % vector == 0:
        within, which = value % vector, value // vector + values // vector * (m + rest_m * n)
    elif plan.operands.d.major == "n":
        within, which = n % vector, value + values * (m + rest_m * (n // vector))
    else:
        within, which = m % vector, value + values * (m // vector + rest_m // vector * n)
    stride = partials_layout(plan, 1).stride
    places: np.ndarray = within * stride[0] + thread * stride[1] + which * stride[2]
    return places
