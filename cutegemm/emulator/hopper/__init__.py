"""What Hopper adds: mbarriers, TMA, st.async, wgmma, clusters, registers that move between warps.

The rules and formats are pure functions (`mbarrier`, `tensormap`, `wgmma`); the handlers around them keep the
machine's memories, clocks and waiting threads right. Importing this registers all of them.
"""

from cutegemm.emulator.hopper import barriers, clusters, loads, registers, sends, stores
from cutegemm.emulator.hopper.warpgroup import watch

__all__ = ["barriers", "clusters", "loads", "registers", "sends", "stores", "watch"]
