"""The simulator: a plan carried out on the CPU, thread by thread, in numpy; and the barriers of its roles.

what is given           `run`, `arguments`, `task`
by one schedule         `scheduled`, `tables`, `checks`, `mainloop`, `copies`, `division`, `parts`
by programs of roles    `roles`, `work`, `boxes`, `epilogue stages`
the epilogue            `values`, `tile_store`
memory and findings     `memory`, `repack`, `report`
who waits for whom      `protocol`
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
