"""Occupancy: CTAs that a multiprocessor holds, the resource that limits them, and the waves of a grid.

Source: NVIDIA's cuda_occupancy.h. Registers are allocated to a warp in units of 256, in one of the four sub-partitions.
Shared memory is allocated to a block in units of 128 bytes, and 1 KiB per block is reserved.
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
from cutegemm.plan.work.grouped import with_equal_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cutegemm.compile.cubin import ResourceReport
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem

SUB_PARTITIONS = 4  # per multiprocessor; each has its own scheduler and a quarter of the registers
REGISTER_STEP = 8  # registers of a thread are allocated in multiples of this


@dataclass(frozen=True)
class Occupancy:
    """Tells how many CTAs of a kernel a multiprocessor holds at once, and which resources limit their number.

    ctas         number of CTAs
    limits       number of CTAs that each resource alone allows: "threads", "registers", "shared memory", "blocks"
    warps        number of resident warps
    max_warps    number of warps that the multiprocessor can hold
    registers    registers of a thread
    smem_bytes   bytes of shared memory of a CTA, without the reserved bytes
    measured     True if `registers` are those of the compiled kernel; False if they are the limit of the plan
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
        """Names of the resources that limit this occupancy, i.e. do not allow one more CTA, such as ("registers",)."""
        least = min(self.limits.values())
        return tuple(name for name, ctas in self.limits.items() if ctas == least)

    @property
    def theoretical(self) -> float:
        """Occupancy as a share: resident warps divided by the warps that a multiprocessor can hold, between 0 and 1."""
        return self.warps / self.max_warps


def occupancy(arch: Arch | str, threads: int, registers: int, smem_bytes: int, *, measured: bool = False) -> Occupancy:
    """Return how many CTAs of a kernel a multiprocessor holds at once, and which resources limit them.

    arch         architecture, or its name
    threads      threads of a CTA
    registers    registers of a thread
    smem_bytes   bytes of shared memory of a CTA, static and dynamic
    measured     True if `registers` are those of a compiled kernel, for reports
    raises       UnsupportedError if `threads` is less than 1, or another number less than 0

    >>> result = occupancy("sm_90", threads=256, registers=128, smem_bytes=40_000)
    >>> result.ctas, result.limited_by, result.theoretical
    (2, ('registers',), 0.25)
    """
    have = arch_named(arch) if isinstance(arch, str) else arch
    if threads < 1 or registers < 0 or smem_bytes < 0:
        raise UnsupportedError(
            f"occupancy: threads = {threads}, registers = {registers}, smem_bytes = {smem_bytes}; they must be at "
            "least 1, 0 and 0."
        )
    warps = -(-threads // WARP_THREADS)
    max_warps = have.threads_per_sm // WARP_THREADS
    per_warp = _up(max(1, registers) * WARP_THREADS, REGISTER_UNIT)
    fits = registers <= MAX_REGISTERS_PER_THREAD and threads <= MAX_THREADS_PER_BLOCK
    # A launch is accepted only if its warps fit when they are distributed evenly over the sub-partitions.
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
    """Return the registers of a thread that the compiler may use for a plan: an upper bound, without compilation.

    Compiled plans come close: of 24 SIMT plans whose data need 64 to 180 registers, 23 use 219 to 255 of the 255 that
    one CTA per multiprocessor allows (DSL 4.8.1, sm_90a, 2026-11-20).

    arch   architecture, which limits the registers
    """
    if all(role.registers for role in plan.roles):
        total = sum(role.warps * (role.registers or 0) for role in plan.roles)
        return _up(-(-total * WARP_THREADS // plan.threads), REGISTER_STEP)
    return register_budget(plan, arch)


def plan_occupancy(plan: GemmPlan, arch: Arch | str | None = None, report: ResourceReport | None = None) -> Occupancy:
    """Return how many CTAs of a plan's kernel a multiprocessor holds at once, and which resources limit them.

    arch     architecture, or its name; None: the plan's
    report   resources of the compiled kernel; None: the registers that the plan allows

    >>> from cutegemm.build import sm90_plan
    >>> result = plan_occupancy(sm90_plan())
    >>> result.ctas, result.limited_by
    (1, ('registers', 'shared memory'))
    """
    have = arch_named(arch or plan.arch) if not isinstance(arch, Arch) else arch
    smem = sum(plan.smem_bytes().values())
    registers = plan_registers(plan, have)
    if report is not None:
        smem, registers = smem + report.static_smem_bytes, report.registers
    return occupancy(have, plan.threads, registers, smem, measured=report is not None)


@dataclass(frozen=True)
class Waves:
    """Tells how well a grid of CTAs fills a device, which executes it in waves, i.e. in rounds of CTAs.

    ctas         CTAs of the grid: one for each tile of D, or for each K split of a tile. If the CTAs of a cluster
                 split K, all of them count, also those whose own columns of D lie outside of D
    per_wave     CTAs that run at once
    tile_waste   share of the tiles' elements that lies outside of D
    is_even      True if a persistent grid divides the k-tiles of the last wave evenly among its CTAs
    persistent   CTAs that are launched to compute all tiles one after another; 0 if each CTA has one tile. Then
                 `ctas` is the number of tiles, and a wave is one tile of each CTA
    """

    ctas: int
    per_wave: int
    tile_waste: float = 0.0
    is_even: bool = False
    persistent: int = 0

    @property
    def count(self) -> int:
        """Number of waves (rounds of CTAs that run at once). A wave that is not full counts as one."""
        return -(-self.ctas // self.per_wave) if self.per_wave else 0

    @property
    def tail(self) -> float:
        """Share of the last wave that is used: its CTAs divided by those that can run at once; 1 if it is full."""
        if self.is_even:
            return 1.0
        return (self.ctas - (self.count - 1) * self.per_wave) / self.per_wave if self.ctas else 1.0

    @property
    def efficiency(self) -> float:
        """Number of CTAs divided by the number that all waves could have; 1 if the last wave is full.

        >>> Waves(133, 132).efficiency, Waves(264, 132).efficiency
        (0.5037878787878788, 1.0)
        """
        return self.ctas / (self.count * self.per_wave) if self.ctas and not self.is_even else 1.0


def waves(plan: GemmPlan, problem: Problem, sms: int, ctas_per_sm: int) -> Waves:
    """Return how the grid of a plan fills a device: its CTAs, the CTAs that run at once (a wave), and the waste.

    sms           number of multiprocessors
    ctas_per_sm   CTAs that a multiprocessor holds at once

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.plan import Problem
    >>> result = waves(sm90_plan(), Problem(4096, 4096, 4096), sms=132, ctas_per_sm=1)
    >>> result.ctas, result.count, round(result.tail, 2)
    (1024, 8, 0.76)
    """
    plan, problem = with_equal_groups(plan, problem)
    m_tiles, n_tiles, batch = plan.mma_grid(problem)
    rows, columns, _ = plan.mma_tile
    covered = m_tiles * rows * n_tiles * columns
    waste = 1 - problem.m * problem.n / covered if covered else 0.0
    ctas = m_tiles * n_tiles * batch * plan.cluster_k * plan.split_k
    is_even = plan.scheduler.is_even(plan.work(problem))
    return Waves(ctas, sms * max(1, ctas_per_sm), waste, is_even, plan.scheduler.grid.ctas)


def _up(value: int, step: int) -> int:
    """Return `value` rounded up to a multiple of `step`."""
    return -(-value // step) * step
