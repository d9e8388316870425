"""Stores: how a tile of D gets from the accumulators of threads to global memory. One file each.

`base` is the interface. A plan has one of them as `plan.store`:

    RegisterStore   threads store vectors of D directly from registers
    SharedStore     all threads pass the whole tile through shared memory, which A and B have used before
    TmaStore        consumers pass one epilogue tile after the other through epilogue stages, which TMA stores
    LineStore       like it, but the threads of the consumer store the lines of an epilogue stage

`quantized` is a step before the last two: it quantizes the tile in registers.
"""

from cutegemm.plan.store.base import Store
from cutegemm.plan.store.lines import LineStore
from cutegemm.plan.store.register import RegisterStore
from cutegemm.plan.store.shared import SharedStore
from cutegemm.plan.store.staged import StagedStore, staged
from cutegemm.plan.store.tma import TmaStore

__all__ = ["LineStore", "RegisterStore", "SharedStore", "StagedStore", "Store", "TmaStore", "staged"]
