"""What the epilogue adds: bytes, registers, instructions, and time that the mainloop does not hide.

A tile's instructions are issued 128 of threads a clock, and of those that go to the special-function unit 16: whichever
takes longer is the least time E of a tile's epilogue. The mainloop needs M for a tile: the bound of all other levels,
shared among a multiprocessor's tiles. Tiles that are in work at once, T of a multiprocessor, hide one's epilogue behind
another one's mainloop: pingpong consumers take turns, and so do CTAs that share a multiprocessor. Then R tiles take

    max(R * M + E, R * E + M, ceil(R / T) * (M + E)),

of which the largest of R * M and R * E are levels of the roofline; what exceeds them is added to it. One tile after the
other, T = 1, adds all of E. A consumer that stores behind the next tile's products computes before them: it hides its
stores, and no instructions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import SECTOR_BYTES, WARP_SCHEDULERS, WARP_THREADS
from cutegemm.machine.device import SPECIAL_PER_CLOCK
from cutegemm.plan.epilogue import operations
from cutegemm.plan.epilogue_access import registers_at_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cutegemm.analysis.globalmem import Sectors
    from cutegemm.machine.device import Device
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


@dataclass(frozen=True)
class Part:
    """An operand in memory or a result beside D.

    what          "row of N", "column of M", "one element", "tile" or "result"
    how           "by TMA" to the epilogue stages that D leaves through, "through epilogue stages" as D, or "by threads"
    tile_bytes    of sectors that a CTA asks for, or writes, for a tile
    total_bytes   of all its elements; None without a problem
    registers     of a thread
    """

    name: str
    what: str
    dtype: str
    how: str
    tile_bytes: int
    total_bytes: int | None
    registers: int


@dataclass(frozen=True)
class EpilogueCost:
    """The epilogue of a plan, without the steps that some values of its scalars leave out.

    expression      what is counted
    fp32, special   instructions of an element of D
    tile_clocks     E: of a multiprocessor for a CTA's tile, at least; None for sums of f64, whose rate is not known
    alternating     T: tiles of a multiprocessor in work at once
    parts           operands in memory, and results beside D
    hidden          the part of its time that mainloops hide; None without a problem
    added_seconds   by which the roofline is more than all levels but its own; None without a problem
    """

    expression: str
    fp32: int
    special: int
    tile_clocks: float | None
    alternating: int
    parts: tuple[Part, ...]
    hidden: float | None = None
    added_seconds: float | None = None


_LIES = {("m",): "row of N", ("n",): "column of M", ("m", "n"): "one element", (): "tile"}


def clocks(plan: GemmPlan, device: Device, elements: float) -> float | None:
    """The least clocks of a multiprocessor for the epilogue of so many elements.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.machine.device import device_named
    >>> from cutegemm.plan.epilogue import parse_epilogue
    >>> plan = sm90_plan().with_(epilogue=parse_epilogue("silu(acc)"))  # 4 instructions and 2 of the special unit
    >>> clocks(plan, device_named("h200"), 128)
    16.0
    """
    cost = operations(plan.epilogue.acting())
    if cost.fp32 + cost.special == 0:
        return 0.0
    if plan.operands.acc.bits > 32:
        return None
    issued = WARP_SCHEDULERS * WARP_THREADS
    rates = (
        (cost.fp32 + cost.special) / issued,
        cost.fp32 / device.fp32_per_clock,
        cost.special / SPECIAL_PER_CLOCK,
    )
    return elements * max(rates)


def epilogue_cost(
    plan: GemmPlan, device: Device, accesses: Sequence[Sectors], ctas_per_sm: int, problem: Problem | None
) -> EpilogueCost | None:
    """The epilogue's cost, without what depends on the mainloop; None where nothing acts whatever the scalars are.

    accesses      the plan's to global memory
    ctas_per_sm   that a multiprocessor holds
    """
    counted = plan.epilogue.acting()
    if not counted.steps:
        return None
    asked = {part.name: part.sectors * SECTOR_BYTES for part in accesses}
    registers, parts, elements = registers_at_end(plan), [], product(plan.d_tile)
    results = plan.epilogue.outputs[1:]
    for name in (*counted.tensors, *results):
        operand, verb = plan.operands.matrix(name), "store" if name in results else "load"
        how = "by TMA" if name == plan.fetched_tile else "by threads"
        if name in plan.epi_stage_results:
            how = "through epilogue stages"
        parts.append(
            Part(
                name.upper(),
                "result" if name in results else _LIES[operand.broadcast],
                str(operand.dtype),
                how,
                asked.get(f"{verb} {name.upper()}", elements * operand.dtype.bits // 8),
                None if problem is None else problem.bytes_of(name),
                registers[name],
            )
        )
    cost = operations(counted)
    turns = max(1, ctas_per_sm) * plan.body.tiles_in_flight
    return EpilogueCost(str(counted), cost.fp32, cost.special, clocks(plan, device, elements), turns, tuple(parts))


def behind(mainloop_seconds: float, epilogue_seconds: float, tiles: float, alternating: int) -> float:
    """The least time of a multiprocessor for its tiles.

    mainloop_seconds, epilogue_seconds   of a tile
    tiles                                of the multiprocessor
    alternating                          that are in work at once

    >>> [behind(10.0, 4.0, 6, turns) for turns in (1, 2, 3)], behind(10.0, 14.0, 6, 2)
    ([84.0, 64.0, 64.0], 94.0)
    """
    if not tiles:
        return 0.0
    rounds = tiles if alternating == 1 else math.ceil(tiles / alternating)
    both = mainloop_seconds + epilogue_seconds
    return max(tiles * mainloop_seconds + epilogue_seconds, tiles * epilogue_seconds + mainloop_seconds, rounds * both)
