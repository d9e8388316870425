"""Tensor parallelism: GEMMs of several GPUs, whose communication overlaps with the GEMMs.

functions                         `functional`; `library` has the operators of torch.library, and the gradients
modules                           `modules`, and `styles` for `parallelize_module`
calls                             `calls`: by an engine, or by collectives of torch.distributed
engine                            `engine` executes schedules of `cutegemm.ranks`; `memory`: symmetric memory and flags;
                                  `exchange`: kernels that copy or add; `work`: what the GEMMs compute; `groups`: groups
                                  of ranks
"""

from cutegemm.torch.distributed.calls import PeerWarning
from cutegemm.torch.distributed.functional import all_gather_mm, mm_all_reduce, mm_reduce_scatter, replicated_mm
from cutegemm.torch.distributed.memory import set_timeout
from cutegemm.torch.distributed.modules import ColumnParallelLinear, RowParallelLinear
from cutegemm.torch.distributed.styles import ColumnParallel, RowParallel

__all__ = [
    "ColumnParallel",
    "ColumnParallelLinear",
    "PeerWarning",
    "RowParallel",
    "RowParallelLinear",
    "all_gather_mm",
    "mm_all_reduce",
    "mm_reduce_scatter",
    "replicated_mm",
    "set_timeout",
]
