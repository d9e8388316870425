"""What each GPU architecture has and allows, with the source of every number."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.errors import UnsupportedError

WARP_THREADS = 32
REGISTER_BITS = 32
WARPGROUP_THREADS = 128
SMEM_BANKS = 32
SMEM_BANK_BYTES = 4
SMEM_WAVEFRONT_BYTES = SMEM_BANKS * SMEM_BANK_BYTES  # that shared memory moves in a clock
SECTOR_BYTES = 32
CACHE_LINE_BYTES = 128
ACCESS_BITS = 128  # of a thread to memory at once, at most: ld.global.v4 (PTX ISA)

DEFAULT_ARCH = "sm_90a"  # where none is named

# CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per Compute
# Capability": a block may be given up to this many threads, a thread this many registers.
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
MAX_GRID_X, MAX_GRID_Y = 2**31 - 1, 65535
MAX_NAMED_BARRIERS = 16
MAX_CLUSTER_CTAS = 8  # there, "Thread Block Clusters": the portable size
# There, chapters on compute capabilities 8.x and 9.0: each issues an instruction of a warp in a clock.
WARP_SCHEDULERS = 4

# CUDA occupancy calculator (cuda_occupancy.h): registers are given to a warp in units of 256, shared
# memory to a block in units of 128 bytes, with 1 KiB a block reserved from compute capability 8.0 on.
REGISTER_UNIT = 256
SMEM_UNIT_BYTES = 128
SMEM_RESERVED_BYTES = 1024
SMEM_MAX_ALIGN_BYTES = 1024  # of a buffer: the reserved part lies before the first one


@dataclass(frozen=True)
class Arch:
    """The limits of one architecture.

    name                 as the compiler is told: sm_90a has wgmma and setmaxnreg, sm_90 has not
    capability           compute capability, times ten
    threads_per_sm, blocks_per_sm, registers_per_sm   resident at most
    smem_per_sm_bytes    shared memory of a multiprocessor, reserved parts included
    smem_per_block_bytes what one block may ask for, after opting in
    features             instructions that not every architecture has
    """

    name: str
    capability: int
    threads_per_sm: int
    blocks_per_sm: int
    registers_per_sm: int
    smem_per_sm_bytes: int
    smem_per_block_bytes: int
    features: frozenset[str]

    def has(self, feature: str) -> bool:
        """Whether it has cp_async, ldmatrix, stmatrix, mma_sync, tma, cluster, dependent_launch (griddepcontrol), wgmma
        or setmaxnreg."""
        return feature in self.features

    def smem_of_each_bytes(self, ctas: int) -> int:
        """Shared memory that each of so many CTAs of a multiprocessor may ask for.

        >>> arch_named("sm_90a").smem_of_each_bytes(1), arch_named("sm_90a").smem_of_each_bytes(2)
        (232448, 115712)
        """
        return min(self.smem_per_block_bytes, self.smem_per_sm_bytes // ctas - SMEM_RESERVED_BYTES)


_AMPERE = frozenset({"cp_async", "ldmatrix", "mma_sync"})
_HOPPER = _AMPERE | {"stmatrix", "tma", "cluster", "dependent_launch"}


def _arch(name: str, threads: int, blocks: int, smem_kib: int, features: frozenset[str]) -> Arch:
    capability = int(name[3:].rstrip("a"))
    return Arch(name, capability, threads, blocks, 65536, smem_kib << 10, (smem_kib - 1) << 10, features)


# CUDA C++ Programming Guide, the same table; features from the PTX ISA's "Target ISA Notes".
ARCHS = {
    arch.name: arch
    for arch in (
        _arch("sm_80", 2048, 32, 164, _AMPERE),
        _arch("sm_86", 1536, 16, 100, _AMPERE),
        _arch("sm_89", 1536, 24, 100, _AMPERE),
        _arch("sm_90", 2048, 32, 228, _HOPPER),
        _arch("sm_90a", 2048, 32, 228, _HOPPER | {"wgmma", "setmaxnreg"}),
        _arch("sm_100", 2048, 32, 228, _HOPPER),
        _arch("sm_100a", 2048, 32, 228, _HOPPER | {"setmaxnreg"}),
        _arch("sm_120", 1536, 24, 100, _HOPPER),
        _arch("sm_120a", 1536, 24, 100, _HOPPER | {"setmaxnreg"}),
    )
}


def arch_named(name: str) -> Arch:
    """The architecture called `name`.

    raises   UnsupportedError for one that is not in the table

    >>> arch_named("sm_90a").smem_per_block_bytes
    232448
    """
    found = ARCHS.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnsupportedError(f"architecture {name!r} is not known; known are {', '.join(ARCHS)}.")
    return found
