"""The sums of the parts of a split K: through the workspace, and added in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cutegemm.plan.memory.workspace import partials_layout
from cutegemm.plan.plan import GemmPlan
from cutegemm.simulator.memory import is_poison, poison
from cutegemm.simulator.report import Report
from cutegemm.simulator.tables import PlanTables


class SplitKWorkspace:
    """The workspace that sums of parts pass through.

    slots   of a tile's sums, each
    """

    def __init__(self, plan: GemmPlan, tables: PlanTables, slots: int, report: Report) -> None:
        self.report = report
        self.shape = tables.held.shape
        layout = partials_layout(plan, max(1, slots))
        self.epi_stages, self.by_slot = slots, int(layout.stride[3])
        self.memory = poison(int(layout.cosize()), plan.operands.acc)
        self.written = np.zeros(len(self.memory), np.uint8)
        self.places = _places(plan, self.shape)

    def write(self, slots: np.ndarray, accumulators: np.ndarray) -> None:
        """The sums (rest_m, rest_n, value * thread * CTA) of a part of each CTA's tile, to a slot of each."""
        index = self._index(slots)
        np.add.at(self.written, index.reshape(-1), 1)
        twice = int((self.written[index] > 1).sum())
        if twice:
            self.report.add("result", f"{twice} places of the workspace are written more than once.")
        self.memory[index] = accumulators.reshape(index.shape)

    def total(self, splits: Sequence[np.ndarray]) -> np.ndarray:
        """The sums in the slots of each part (CTA,), the first part's first."""
        out = np.zeros((*self.shape, len(splits[0])), self.memory.dtype)
        for k_split, slots in enumerate(splits):
            held = self.memory[self._index(slots)]
            if is_poison(held).any():
                self.report.add("hole", f"sums of part {k_split} are added that no CTA has written.")
            out += held
        return out.reshape(self.shape[0], self.shape[1], -1)

    def _index(self, slots: np.ndarray) -> np.ndarray:
        """(rest_m, rest_n, value, thread, CTA) places in the workspace."""
        if len(slots) and not 0 <= slots.min() <= slots.max() < self.epi_stages:
            self.report.add("outside", f"slots {slots.tolist()} of a workspace of {self.epi_stages} are taken.")
            slots = slots % max(1, self.epi_stages)
        index: np.ndarray = self.places[..., None] + slots * self.by_slot
        return index


def _places(plan: GemmPlan, shape: tuple[int, ...]) -> np.ndarray:
    """(rest_m, rest_n, value, thread) places from the beginning of a tile's part on."""
    rest_m, values = shape[0], shape[2]
    m, n, value, thread = np.indices(shape)
    vector = plan.store_d.values
    if values % vector == 0:
        within, which = value % vector, value // vector + values // vector * (m + rest_m * n)
    elif plan.operands.d.major == "n":
        within, which = n % vector, value + values * (m + rest_m * (n // vector))
    else:
        within, which = m % vector, value + values * (m // vector + rest_m // vector * n)
    stride = partials_layout(plan, 1).stride
    places: np.ndarray = within * stride[0] + thread * stride[1] + which * stride[2]
    return places
