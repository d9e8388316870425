"""Occupancy: how many CTAs a multiprocessor holds, what limits them, and how a grid fills the device.

Source: NVIDIA's cuda_occupancy.h. Registers are given to a warp in units of 256, in each of the four
sub-partitions for itself; shared memory to a block in units of 128 bytes, 1 KiB more reserved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.errors import UnsupportedError
from cutegemm.machine.arch import (
    MAX_REGISTERS_PER_THREAD,
    MAX_THREADS_PER_BLOCK,
    REGISTER_UNIT,
    SMEM_RESERVED_BYTES,
    SMEM_UNIT_BYTES,
    WARP_THREADS,
    Arch,
    arch_named,
)
from cutegemm.plan.rules.registers import register_budget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cutegemm.compile.cubin import ResourceReport
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

SUB_PARTITIONS = 4  # of a multiprocessor, each with its scheduler and its quarter of the registers
REGISTER_STEP = 8  # a thread's registers are given in steps


@dataclass(frozen=True)
class Occupancy:
    """How a multiprocessor holds CTAs.

    ctas        at once
    limits      how many CTAs each resource by itself would hold: threads, registers, shared memory, blocks
    warps       that are resident
    max_warps   that could be
    registers   of a thread
    smem_bytes  of a CTA, without what the system reserves
    measured    whether the registers are those of a compiled kernel, not the most that the plan leaves it
    """

    ctas: int
    limits: Mapping[str, int]
    warps: int
    max_warps: int
    registers: int
    smem_bytes: int
    measured: bool = False

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that hold no further CTA."""
        least = min(self.limits.values())
        return tuple(name for name, ctas in self.limits.items() if ctas == least)

    @property
    def theoretical(self) -> float:
        """Resident warps over those that could be."""
        return self.warps / self.max_warps


def occupancy(arch: Arch | str, threads: int, registers: int, smem_bytes: int, *, measured: bool = False) -> Occupancy:
    """The occupancy of a kernel.

    threads      of a CTA
    registers    of a thread
    smem_bytes   of a CTA, static and dynamic
    raises       UnsupportedError for less than a thread, or less than nothing

    >>> held = occupancy("sm_90", threads=256, registers=128, smem_bytes=40_000)
    >>> held.ctas, held.limited_by, held.theoretical
    (2, ('registers',), 0.25)
    """
    have = arch_named(arch) if isinstance(arch, str) else arch
    if threads < 1 or registers < 0 or smem_bytes < 0:
        raise UnsupportedError(
            f"occupancy: {threads} threads, {registers} registers, {smem_bytes} bytes; at least 1, 0, 0 are expected."
        )
    warps = -(-threads // WARP_THREADS)
    max_warps = have.threads_per_sm // WARP_THREADS
    per_warp = _up(max(1, registers) * WARP_THREADS, REGISTER_UNIT)
    fits = registers <= MAX_REGISTERS_PER_THREAD and threads <= MAX_THREADS_PER_BLOCK
    # A launch is checked as if its warps were spread evenly over the sub-partitions.
    fits = fits and per_warp * _up(warps, SUB_PARTITIONS) <= have.registers_per_sm
    by_registers = have.registers_per_sm // SUB_PARTITIONS // per_warp * SUB_PARTITIONS // warps if fits else 0
    allocated = _up(smem_bytes, SMEM_UNIT_BYTES) + SMEM_RESERVED_BYTES
    by_smem = have.smem_per_sm_bytes // allocated if smem_bytes <= have.smem_per_block_bytes else 0
    limits = {
        "threads": max_warps // warps if threads <= MAX_THREADS_PER_BLOCK else 0,
        "registers": by_registers,
        "shared memory": by_smem,
        "blocks": have.blocks_per_sm,
    }
    ctas = min(limits.values())
    return Occupancy(ctas, limits, ctas * warps, max_warps, registers, smem_bytes, measured)


def plan_registers(plan: GemmPlan, arch: Arch) -> int:
    """Registers of a thread where nothing has been compiled: as many as the compiler may take.

    It takes them: of 24 compiled SIMT plans, whose data need 64 to 180, 23 had 219 to 255 of the 255 that one
    CTA a multiprocessor leaves (DSL 4.8.1, sm_90a, 2026-11-20).
    """
    if all(role.registers for role in plan.roles):
        total = sum(role.warps * (role.registers or 0) for role in plan.roles)
        return _up(-(-total * WARP_THREADS // plan.threads), REGISTER_STEP)
    return register_budget(plan, arch)


def plan_occupancy(plan: GemmPlan, arch: Arch | str | None = None, report: ResourceReport | None = None) -> Occupancy:
    """The occupancy of a plan: by the compiled kernel's registers where a report is given."""
    have = arch_named(arch or plan.arch) if not isinstance(arch, Arch) else arch
    smem = sum(plan.smem_bytes().values())
    registers = plan_registers(plan, have)
    if report is not None:
        smem, registers = smem + report.static_smem_bytes, report.registers
    return occupancy(have, plan.threads, registers, smem, measured=report is not None)


@dataclass(frozen=True)
class Waves:
    """How the CTAs of a grid fill a device.

    ctas       of the grid, one for each tile of D, or for each part of one; where CTAs share K, those too whose own
               columns lie outside of D, as they multiply for the others
    per_wave   that run together
    tile_waste the part of the tiles' elements that lies outside of D
    is_even    whether the k-tiles of what does not fill a wave are shared by all of a persistent grid
    persistent number of CTAs that are launched to compute all tiles one after another; 0 if each CTA has one tile. Then
               `ctas` is the number of tiles, and a wave is one tile of each CTA
    """

    ctas: int
    per_wave: int
    tile_waste: float = 0.0
    is_even: bool = False
    persistent: int = 0

    @property
    def count(self) -> int:
        """Waves, the last one counted whole."""
        return -(-self.ctas // self.per_wave) if self.per_wave else 0

    @property
    def tail(self) -> float:
        """How full the last wave is."""
        if self.is_even:
            return 1.0
        return (self.ctas - (self.count - 1) * self.per_wave) / self.per_wave if self.ctas else 1.0

    @property
    def efficiency(self) -> float:
        """CTAs over those that the whole waves would hold: 1 without quantization loss.

        >>> Waves(133, 132).efficiency, Waves(264, 132).efficiency
        (0.5037878787878788, 1.0)
        """
        return self.ctas / (self.count * self.per_wave) if self.ctas and not self.is_even else 1.0


def waves(plan: GemmPlan, problem: Problem, sms: int, ctas_per_sm: int) -> Waves:
    """How the grid of a problem fills a device of `sms` multiprocessors."""
    m_tiles, n_tiles, batch = plan.mma_grid(problem)
    rows, columns, _ = plan.mma_tile
    covered = m_tiles * rows * n_tiles * columns
    waste = 1 - problem.m * problem.n / covered if covered else 0.0
    ctas = m_tiles * n_tiles * batch * plan.cluster_k * plan.split_k
    is_even = plan.split.waves > 0
    if plan.split.fixup:  # unless it would not pay
        is_even = plan.scheduler.of(problem).shared > 0
    return Waves(ctas, sms * max(1, ctas_per_sm), waste, is_even, plan.scheduler.persistent or 0)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
