"""Simulator: executes a plan on the CPU in numpy, thread by thread, and checks the barriers of its roles.

arguments and result       `run`, `arguments`, `task`
plans with one schedule    `scheduled`, `gemv`, `tables`, `checks`, `mainloop`, `copies`
plans with warp roles      `roles`, `mainloops`, `work`, `boxes`
split of K                 `k_splits`
epilogue                   `values`, `functions`, `stores`, `reductions`, `quantized`, `blocks`
memory and faults          `memory`, `repack`, `report`
barriers                   `protocol`
"""

from cutegemm.errors import SimulationError
from cutegemm.simulator.protocol.interleavings import ProtocolReport, play_interleavings, search_interleavings
from cutegemm.simulator.protocol.protocol import protocol_of
from cutegemm.simulator.report import Fault
from cutegemm.simulator.run import SimulationResult, SimulationStats, simulate

__all__ = [
    "Fault",
    "ProtocolReport",
    "SimulationError",
    "SimulationResult",
    "SimulationStats",
    "play_interleavings",
    "protocol_of",
    "search_interleavings",
    "simulate",
]
