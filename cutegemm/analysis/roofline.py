"""Roofline: work and bytes at each level of the machine, the time each level needs, and the one that binds.

Each level by itself gives a least time: the arithmetic at the peak of its pipe; the scheduler's epilogue stages, four
instructions of a warp a clock; shared memory, a wavefront a clock; L2 and DRAM at their bandwidth. The work
of a multiprocessor is counted for the one that gets most tiles, whole tiles at a time. The bound is the
largest of these times; a kernel that overlaps all of them perfectly would reach it. What of an epilogue's arithmetic no
mainloop hides is added: see `analysis.epilogue_cost`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutegemm.analysis.epilogue_cost import behind
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import SMEM_WAVEFRONT_BYTES, WARP_SCHEDULERS, WARP_THREADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cutegemm.analysis.epilogue_cost import EpilogueCost
    from cutegemm.analysis.split_k import Pass
    from cutegemm.analysis.traffic import Traffic
    from cutegemm.machine.device import Device
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


@dataclass(frozen=True)
class Level:
    """One level of the machine.

    name        "compute", "issue", "register", "shared", "L2", "DRAM" or "epilogue"
    amount      FLOPs, instructions of a warp, or bytes
    unit        of the amount
    intensity   FLOPs of the problem for each unit
    seconds     that it takes at the least, or None where the rate is not known
    """

    name: str
    amount: float
    unit: str
    intensity: float
    seconds: float | None


@dataclass(frozen=True)
class Roofline:
    """All levels of one GEMM.

    flops    of the problem, without what ragged tiles waste
    levels   from the arithmetic out to the memory; last the epilogue's arithmetic, where there is some
    added    seconds of the epilogue that no level has and no mainloop hides
    """

    flops: int
    levels: tuple[Level, ...]
    added: float = 0.0

    @property
    def bound(self) -> Level:
        """The level that takes longest."""
        return max((level for level in self.levels if level.seconds is not None), key=lambda x: x.seconds or 0.0)

    @property
    def seconds(self) -> float:
        """The least time."""
        return (self.bound.seconds or 0.0) + self.added

    @property
    def tflops(self) -> float:
        """The rate that this time implies."""
        return self.flops / self.seconds / 1e12 if self.seconds else 0.0

    def level(self, name: str) -> Level:
        """The level of a name."""
        return next(level for level in self.levels if level.name == name)

    def seconds_with(self, **changed: float) -> float:
        """The least time if some levels took other times, in seconds by name."""
        most = max(changed.get(x.name, x.seconds) for x in self.levels if x.seconds is not None)
        return most + self.added


def roofline(
    plan: GemmPlan,
    problem: Problem,
    device: Device,
    *,
    wavefronts: float,
    instructions: float,
    traffic: Traffic,
    passes: Sequence[Pass] = (),
    sm_share: float,
    epilogue: EpilogueCost | None = None,
) -> Roofline:
    """The roofline of a plan.

    wavefronts     of shared memory, of the whole grid
    instructions   of warps that touch memory, of the whole grid
    traffic        through L2 and DRAM
    passes         through the workspace: all of it passes L2; DRAM those before the GEMM, and sums beyond what L2 holds
    sm_share       tiles of an average multiprocessor over those of the one that has most
    epilogue       what the epilogue costs, if anything
    """
    flops = problem.flops
    rows, columns, bk = plan.mma_tile
    accumulators = product(plan.mma_grid(problem)) * rows * columns  # of all k-tiles of an element of D
    covered = accumulators * plan.k_tiles(problem) * bk
    atom = plan.tiled_mma.atom
    m, n, k = atom.shape_mnk
    mma = covered / (m * n * k) * atom.threads / WARP_THREADS  # instructions of warps
    clock = device.clock_mhz * 1e6
    peak = device.peak_tflops(atom)
    share = sm_share or 1.0
    issued = mma + instructions
    if plan.body.promoted:
        issued += covered / bk / WARP_THREADS  # threads add up the sums of each k-tile
    if plan.body.has_roles:
        issued += accumulators * (plan.cluster_k - 1) / WARP_THREADS  # those of the other CTAs that share K are added
    tiles = product(plan.grid(problem))
    operations = (
        0 if epilogue is None else (epilogue.fp32 + epilogue.special) * tiles * product(plan.d_tile) / WARP_THREADS
    )
    l2 = traffic.l2_read_bytes + sum(one.write_bytes + one.read_bytes for one in passes)
    dram = traffic.dram_read_bytes + traffic.dram_write_bytes + traffic.epilogue_bytes
    if epilogue is not None:
        l2 += tiles * sum(part.tile_bytes for part in epilogue.parts if part.what != "result")
    for one in passes:
        if one.is_before or one.write_bytes > device.l2_bytes:
            again = 0.0 if one.is_before else traffic.partials_read_bytes
            dram += one.write_bytes + (again or one.read_bytes)
    per_second = device.sms * WARP_SCHEDULERS * clock * share  # instructions of warps
    levels = [
        _level("compute", 2.0 * covered, "FLOP", flops, 2.0 * covered / (peak * 1e12) / share if peak else None),
        _level("issue", issued, "instructions", flops, issued / per_second),
        _level("register", covered * register_bytes(plan), "bytes", flops, None),
        _level(
            "shared",
            wavefronts * SMEM_WAVEFRONT_BYTES,
            "bytes",
            flops,
            wavefronts / (device.sms * clock) / share,
        ),
        _level("L2", l2, "bytes", flops, l2 / device.l2_bytes_per_s),
        _level("DRAM", dram, "bytes", flops, dram / (device.dram_gb_s * 1e9)),
    ]
    if epilogue is None or not operations:
        return Roofline(flops, tuple(levels))
    mainloop = Roofline(flops, tuple(levels)).seconds
    levels[1] = _level("issue", issued + operations, "instructions", flops, (issued + operations) / per_second)
    alone = None if epilogue.tile_clocks is None else tiles * epilogue.tile_clocks / (device.sms * clock) / share
    levels.append(_level("epilogue", operations, "instructions", flops, alone))
    roof = Roofline(flops, tuple(levels))
    if alone is None:
        return roof
    of_busiest = max(1.0, tiles / device.sms / share)
    least = behind(mainloop / of_busiest, alone / of_busiest, of_busiest, epilogue.alternating)
    return replace(roof, added=max(0.0, least - roof.seconds))


def register_bytes(plan: GemmPlan) -> float:
    """Bytes that the MMA atom reads from and writes to registers for one product of two elements.

    >>> from cutegemm.build import simt_plan
    >>> register_bytes(simt_plan())
    16.0
    """
    atom = plan.tiled_mma.atom
    m, n, k = atom.shape_mnk
    moved = 2 * m * n * atom.c_dtype.bits
    if atom.a_source == "register":
        moved += m * k * atom.a_dtype.bits
    if atom.b_source == "register":
        moved += n * k * atom.b_dtype.bits
    return moved / 8 / (m * n * k)


def _level(name: str, amount: float, unit: str, flops: int, seconds: float | None) -> Level:
    return Level(name, amount, unit, flops / amount if amount else 0.0, seconds)
