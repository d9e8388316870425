"""How the steps of single mainloops are simulated. Importing the package registers the functions of its files.

Their arguments are described by `Player`, which comes first.
"""

from cutegemm.simulator.mainloops import block_scaled, promoted, warp_mma

__all__ = ["block_scaled", "promoted", "warp_mma"]
