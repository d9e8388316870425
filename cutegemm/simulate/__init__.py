"""The simulator: a plan carried out on the CPU, thread by thread, in numpy; and the barriers of its roles.

what is given           `run`, `arguments`, `task`
data, by one schedule   `scheduled`, `tables`, `checks`, `mainloop`, `copies`, `epilogue`
                        `packing`, `division`, `parts`
data, by a pipeline     `pipeline`, `units`, `boxes`, `leaving`
memory and findings     `memory`, `report`
who waits for whom      `protocol`
"""

from cutegemm.errors import SimulationError
from cutegemm.simulate.protocol.interleavings import ProtocolReport, play_interleavings, search_interleavings
from cutegemm.simulate.protocol.protocol import protocol_of
from cutegemm.simulate.report import Fault
from cutegemm.simulate.run import SimulationResult, SimulationStats, simulate

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
