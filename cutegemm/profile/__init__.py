"""Predicted beside measured: plans and single instructions run under Nsight Compute, and each counter is held
against what `cutegemm.analysis` says of it. `python -m cutegemm.profile --help` says how to run it.
"""

from cutegemm.profile.cases import Case
from cutegemm.profile.compare import compare, render, to_dict
from cutegemm.profile.run import profile

__all__ = ["Case", "compare", "profile", "render", "to_dict"]
