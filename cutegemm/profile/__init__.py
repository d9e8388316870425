"""Predicted beside measured: plans run under Nsight Compute, and each counter is held against what
`cutegemm.analysis` says of it.
"""

from cutegemm.profile.case import Case
from cutegemm.profile.compare import Comparison, compare, render, to_dict
from cutegemm.profile.run import profile

__all__ = ["Case", "Comparison", "compare", "profile", "render", "to_dict"]
