"""Predicted beside measured: plans and single instructions run under Nsight Compute, and each counter is held
against what `cutegemm.analysis` says of it. `python -m cutegemm.profile --help` says how to run it.
"""

from cutegemm.profile.cases import (
    Case,
    ProbeCase,
    hopper_cases,
    mma_cases,
    proof_cases,
    proof_probes,
    traffic_cases,
)
from cutegemm.profile.compare import Comparison, Row, compare, render, to_dict
from cutegemm.profile.evidence import Evidence, Recorded, replay
from cutegemm.profile.ncu import NcuError, command, parse_csv
from cutegemm.profile.run import profile

__all__ = [
    "Case",
    "Comparison",
    "Evidence",
    "NcuError",
    "ProbeCase",
    "Recorded",
    "Row",
    "command",
    "compare",
    "hopper_cases",
    "mma_cases",
    "parse_csv",
    "profile",
    "proof_cases",
    "proof_probes",
    "render",
    "replay",
    "to_dict",
    "traffic_cases",
]
