"""The simulator: a plan carried out on the CPU, thread by thread, in numpy; and the barriers of its roles."""

from cutegemm.errors import SimulationError
from cutegemm.simulate.interleavings import ProtocolReport, play_interleavings, search_interleavings
from cutegemm.simulate.pingpong import protocol_of
from cutegemm.simulate.report import Fault
from cutegemm.simulate.run import SimulationResult, SimulationStats, simulate
from cutegemm.simulate.slots import epilogue_protocol

__all__ = [
    "Fault",
    "ProtocolReport",
    "SimulationError",
    "SimulationResult",
    "SimulationStats",
    "epilogue_protocol",
    "play_interleavings",
    "protocol_of",
    "search_interleavings",
    "simulate",
]
