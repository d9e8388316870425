"""Roofline: work and bytes at each level of the machine, the least time of each level, and the level that binds.

The levels are the arithmetic, at the peak rate of its pipe; the issue slots of the schedulers, four warp instructions
per clock; shared memory, one wavefront per clock; L2 and DRAM, at their bandwidth. For the levels inside of a
multiprocessor, the busiest one counts, with whole tiles. The bound is the largest of the times. A kernel that overlaps
all levels perfectly reaches it. The epilogue's arithmetic that no mainloop hides is added; see
`analysis.epilogue_cost`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cutegemm.analysis.epilogue_cost import overlapped_seconds
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import SMEM_WAVEFRONT_BYTES, WARP_SCHEDULERS, WARP_THREADS
from cutegemm.plan.work.grouped import with_equal_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cutegemm.analysis.cache.traffic import Traffic
    from cutegemm.analysis.epilogue_cost import EpilogueCost
    from cutegemm.analysis.split_k import Pass
    from cutegemm.machine.device import Device
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


@dataclass(frozen=True)
class Level:
    """Tells how much work a GEMM is for one part of the machine, such as DRAM, and the least time that it takes.

    name        "compute", "issue", "register", "shared", "L2", "DRAM" or "epilogue"
    amount      FLOPs, warp instructions or bytes
    unit        unit of the amount
    intensity   FLOPs of the problem per unit
    seconds     least time; None if the rate of the level is not known
    """

    name: str
    amount: float
    unit: str
    intensity: float
    seconds: float | None


@dataclass(frozen=True)
class Roofline:
    """Predicts the least time of a GEMM, as that of the slowest level of the machine (MMAs, shared memory, L2, DRAM).

    flops    FLOPs of the problem, without those of tile elements outside of D
    levels   from the arithmetic out to DRAM; then the epilogue's arithmetic, if it has any
    added    seconds of the epilogue that no level contains and no mainloop hides
    """

    flops: int
    levels: tuple[Level, ...]
    added: float = 0.0

    @property
    def bound(self) -> Level:
        """The level of this roofline (compute, shared memory, L2, DRAM, ...) with the largest least time."""
        return max((level for level in self.levels if level.seconds is not None), key=lambda x: x.seconds or 0.0)

    @property
    def seconds(self) -> float:
        """Least time of the GEMM in seconds: the slowest level of this roofline, plus the epilogue's exposed time."""
        return (self.bound.seconds or 0.0) + self.added

    @property
    def tflops(self) -> float:
        """Rate of the GEMM in TFLOP/s if it takes the least time that this roofline allows."""
        return self.flops / self.seconds / 1e12 if self.seconds else 0.0

    def level(self, name: str) -> Level:
        """Return one level of this roofline by its name.

        name   "compute", "issue", "register", "shared", "L2", "DRAM" or "epilogue"
        """
        return next(level for level in self.levels if level.name == name)

    def seconds_with(self, **changed: float) -> float:
        """Return the least time in seconds by this roofline if some levels took other times.

        changed   seconds by the name of the level, such as shared=1e-4
        """
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
    """Return the roofline of a plan for a problem: the least time that each level of the machine needs.

    Levels are the MMAs, the issue of instructions, registers, shared memory, L2, DRAM and the epilogue.

    wavefronts     wavefronts in shared memory, of the whole grid
    instructions   warp instructions that access memory, of the whole grid
    traffic        bytes through L2 and DRAM
    passes         data that go through the workspace: operands copied before the GEMM (repacked), and accumulators of
                   K splits. All pass L2; repacked operands pass DRAM too, and so do accumulators if they exceed L2
    sm_share       mean number of tiles of a multiprocessor divided by that of the busiest one
    epilogue       cost of the epilogue; None if it computes nothing
    """
    plan, problem = with_equal_groups(plan, problem)
    flops = problem.flops
    rows, columns, bk = plan.mma_tile
    accumulators = product(plan.mma_grid(problem)) * rows * columns  # elements of all tiles
    covered = accumulators * plan.k_tiles(problem) * bk
    atom = plan.tiled_mma.atom
    m, n, k = atom.shape_mnk
    mma = covered / (m * n * k) * atom.threads / WARP_THREADS  # warp instructions
    clock = device.clock_mhz * 1e6
    peak = device.peak_tflops(atom)
    share = sm_share or 1.0
    issued = mma + instructions
    if plan.body.promoted:
        issued += covered / bk / WARP_THREADS  # threads add the accumulators of each k-tile to a total
    if plan.body.has_roles:
        issued += accumulators * (plan.cluster_k - 1) / WARP_THREADS  # cluster split-K adds those of the other CTAs
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
    per_second = device.sms * WARP_SCHEDULERS * clock * share  # warp instructions
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
    busiest = max(1.0, tiles / device.sms / share)  # tiles of the busiest multiprocessor
    least = overlapped_seconds(mainloop / busiest, alone / busiest, busiest, epilogue.alternating)
    return replace(roof, added=max(0.0, least - roof.seconds))


def register_bytes(plan: GemmPlan) -> float:
    """Return the bytes that an MMA instruction reads from and writes to registers, divided by its multiply-adds.

    An instruction for a tile of M x N x K has M * N * K multiply-adds. It reads and writes the accumulators, and reads
    A and B if they are in registers.

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
    """Return a roofline level whose intensity is `flops` divided by `amount`; the intensity is 0 if `amount` is 0.

    name      name of the level
    amount    FLOPs, warp instructions or bytes
    unit      unit of the amount
    flops     FLOPs of the problem
    seconds   least time; None if the rate of the level is not known
    """
    return Level(name, amount, unit, flops / amount if amount else 0.0, seconds)
