"""The sums of the parts of a split K: through the workspace, and added in their order."""

from __future__ import annotations

import numpy as np

from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.workspace import sums_layout
from cutegemm.simulate.memory import is_poison, poison
from cutegemm.simulate.report import Report
from cutegemm.simulate.tables import PlanTables


class Parts:
    """What the CTAs of some tiles write to the workspace.

    ctas   tiles that are simulated together
    """

    def __init__(self, plan: GemmPlan, tables: PlanTables, ctas: int, report: Report) -> None:
        self.plan, self.report, self.ctas = plan, report, ctas
        self.shape = tables.held.shape
        self.layout = sums_layout(plan, ctas)
        self.memory = poison(int(self.layout.cosize()), plan.operands.acc)
        self.written = np.zeros(len(self.memory), np.uint8)
        self.places = _places(plan, self.shape)

    def write(self, part: int, sums: np.ndarray) -> None:
        """The sums (rest_m, rest_n, value * thread * CTA) of one part."""
        index = self._index(part)
        np.add.at(self.written, index.reshape(-1), 1)
        self.memory[index] = sums.reshape(index.shape)

    def total(self) -> np.ndarray:
        """All parts' sums, the first part's first."""
        twice = int((self.written > 1).sum())
        if twice:
            self.report.add("result", f"{twice} places of the workspace are written more than once.")
        out = np.zeros((*self.shape, self.ctas), self.memory.dtype)
        for part in range(self.plan.split_k):
            held = self.memory[self._index(part)]
            if is_poison(held).any():
                self.report.add("hole", f"sums of part {part} are added that no CTA has written.")
            out += held
        return out.reshape(self.shape[0], self.shape[1], -1)

    def _index(self, part: int) -> np.ndarray:
        """(rest_m, rest_n, value, thread, CTA) places in the workspace."""
        stride = self.layout.stride
        index: np.ndarray = self.places[..., None] + np.arange(self.ctas) * stride[3] + part * stride[4]
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
    stride = sums_layout(plan, 1).stride
    places: np.ndarray = within * stride[0] + thread * stride[1] + which * stride[2]
    return places
