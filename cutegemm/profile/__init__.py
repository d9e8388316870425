"""Compare the predictions of `cutegemm.analysis` with the counters of Nsight Compute.

`profile` launches plans under ncu and returns one `Comparison` per case. `render` prints them as tables.
"""

from cutegemm.profile.case import Case
from cutegemm.profile.compare import Comparison, compare, render, to_dict
from cutegemm.profile.run import profile

__all__ = ["Case", "Comparison", "compare", "profile", "render", "to_dict"]
