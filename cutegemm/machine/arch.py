"""Features and limits of each GPU architecture, with the source of every number."""

from __future__ import annotations

from dataclasses import dataclass

from cutegemm.errors import UnsupportedError

WARP_THREADS = 32
REGISTER_BITS = 32
WARPGROUP_THREADS = 128
SMEM_BANKS = 32
SMEM_BANK_BYTES = 4
SMEM_WAVEFRONT_BYTES = SMEM_BANKS * SMEM_BANK_BYTES  # bytes that shared memory moves in one clock
SECTOR_BYTES = 32
CACHE_LINE_BYTES = 128
ACCESS_BITS = 128  # widest memory access of a thread: ld.global.v4 (PTX ISA)

DEFAULT_ARCH = "sm_90a"  # used if no architecture is named

# CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per Compute Capability"
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
MAX_GRID_X, MAX_GRID_Y = 2**31 - 1, 65535
MAX_NAMED_BARRIERS = 16
MAX_CLUSTER_CTAS = 8  # portable size; the guide, "Thread Block Clusters"
# Each scheduler issues one warp instruction per clock; the guide, chapters on compute capabilities 8.x and 9.0
WARP_SCHEDULERS = 4

# CUDA occupancy calculator (cuda_occupancy.h): registers are allocated to a warp in units of 256, shared memory to a
# block in units of 128 bytes. From compute capability 8.0 on, 1 KiB per block is reserved.
REGISTER_UNIT = 256
SMEM_UNIT_BYTES = 128
SMEM_RESERVED_BYTES = 1024
SMEM_MAX_ALIGN_BYTES = 1024  # largest alignment of a buffer; the reserved part precedes the first buffer


@dataclass(frozen=True)
class Arch:
    """Limits of one GPU architecture (compile target) that a kernel must respect, and its optional instructions.

    name                   name for the compiler, e.g. sm_90a; only the variant with "a" has wgmma and setmaxnreg
    capability             compute capability times ten: 90 for sm_90 and sm_90a
    threads_per_sm         largest number of resident threads per multiprocessor (SM)
    blocks_per_sm          largest number of resident blocks per SM
    registers_per_sm       number of 32-bit registers per SM
    smem_per_sm_bytes      shared memory per SM in bytes, including the 1 KiB per block that CUDA reserves
    smem_per_block_bytes   shared memory in bytes that one block can use after opting in (dynamic shared memory)
    features               names of the optional instructions that the architecture has, e.g. "tma"; see `has`

    >>> arch_named("sm_90a").smem_per_block_bytes
    232448
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
        """Return True if this architecture has an optional instruction.

        feature   cp_async, ldmatrix, stmatrix, mma_sync, tma, cluster, dependent_launch (griddepcontrol), wgmma or
                  setmaxnreg; False for any other name

        >>> arch_named("sm_90a").has("wgmma"), arch_named("sm_90").has("wgmma")
        (True, False)
        """
        return feature in self.features

    def smem_of_each_bytes(self, ctas: int) -> int:
        """Return the shared memory in bytes that each of `ctas` CTAs can use if all of them reside on one SM.

        It is an equal share of the SM's shared memory, without the 1 KiB that CUDA reserves per CTA, and at most what
        one CTA may have.

        >>> arch_named("sm_90a").smem_of_each_bytes(1), arch_named("sm_90a").smem_of_each_bytes(2)
        (232448, 115712)
        """
        return min(self.smem_per_block_bytes, self.smem_per_sm_bytes // ctas - SMEM_RESERVED_BYTES)


_AMPERE = frozenset({"cp_async", "ldmatrix", "mma_sync"})
_HOPPER = _AMPERE | {"stmatrix", "tma", "cluster", "dependent_launch"}


def _arch(name: str, threads: int, blocks: int, smem_kib: int, features: frozenset[str]) -> Arch:
    """Return the `Arch` of a compile target with 65536 registers per multiprocessor (SM).

    name       name for the compiler, e.g. sm_90a; its number becomes the compute capability
    threads    largest number of resident threads per SM
    blocks     largest number of resident blocks per SM
    smem_kib   shared memory per SM in KiB; one block can use all but 1 KiB of it
    features   names of the optional instructions that the architecture has, e.g. "tma"
    """
    capability = int(name[3:].rstrip("a"))
    return Arch(name, capability, threads, blocks, 65536, smem_kib << 10, (smem_kib - 1) << 10, features)


# CUDA C++ Programming Guide, the same table; features from the "Target ISA Notes" of the PTX ISA
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
    """Return the limits and features of an architecture, looked up by its compiler name.

    name     such as "sm_90a"
    raises   UnsupportedError for a name that is not in the table; the message lists the known names

    >>> arch_named("sm_90a").smem_per_block_bytes
    232448
    """
    arch = ARCHS.get(name) if isinstance(name, str) else None
    if arch is None:
        raise UnsupportedError(f"architecture {name!r} is not known. Use one of {', '.join(ARCHS)}.")
    return arch
