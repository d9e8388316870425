"""Instructions that sm_90 adds: mbarrier, TMA, st.async, wgmma, clusters, setmaxnreg.

`mbarrier`, `tensormap` and `wgmma` implement rules and formats as pure functions. The other modules define handlers,
which connect them to the machine's memories, race detection and waiting threads. Importing this package registers all
handlers.
"""

from cutegemm.emulator.hopper import barriers, clusters, loads, registers, sends, stores
from cutegemm.emulator.hopper.warpgroup import watch

__all__ = ["barriers", "clusters", "loads", "registers", "sends", "stores", "watch"]
