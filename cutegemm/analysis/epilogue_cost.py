"""Cost of an epilogue: bytes, registers, instructions, and the time that the mainloop does not hide.

A multiprocessor issues 128 thread instructions per clock, at most 16 of them to the special-function unit. The
slower of the two limits gives E, the least time of a tile's epilogue. M is the time of a tile's mainloop: the bound of
all other roofline levels, divided by the tiles of a multiprocessor.

A multiprocessor works on T tiles at once: T is the number of its CTAs, times the number of consumers if they alternate
(pingpong). If T is above 1, the epilogue of one tile overlaps the mainloop of another, and R tiles take at least

    max(R * M + E, R * E + M, ceil(R / T) * (M + E)).

R * M and R * E are levels of the roofline; the time beyond the larger of them is added to it. If T is 1, all of E is
added for each tile. An overlapped epilogue computes before the MMAs of the next tile: it hides its stores, but not its
instructions.
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
    """Tells the cost of one matrix that the epilogue reads, such as a bias, or of an auxiliary output that it stores.

    what          kind: "row of N", "column of M", "one element", "tile" or "result"
    dtype         type of the elements
    how           path: "by TMA" to the epilogue stages of D, "through epilogue stages" as D, or "by threads"
    tile_bytes    bytes of the sectors that a CTA reads or writes for a tile
    total_bytes   bytes of all elements; None without a problem
    registers     32-bit registers that it takes in each thread
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
    """Predicts what a plan's epilogue costs: instructions, clocks, memory and time.

    Steps that some values of the scalars make unnecessary, such as reading C if beta is 0, do not count.

    expression      the expression that is counted
    fp32, special   instructions per element of D: of the f32 pipe, and of the special-function unit
    tile_clocks     E, the least clocks of a multiprocessor for a CTA's tile; None for f64, whose rate is not known
    alternating     T, the number of tiles that a multiprocessor works on at once
    parts           matrices that the epilogue reads, and auxiliary outputs
    hidden          share of the epilogue's time that mainloops hide; None without a problem
    added_seconds   seconds of the roofline beyond all levels but the epilogue; None without a problem
    """

    expression: str
    fp32: int
    special: int
    tile_clocks: float | None
    alternating: int
    parts: tuple[Part, ...]
    hidden: float | None = None
    added_seconds: float | None = None


_KINDS = {("m",): "row of N", ("n",): "column of M", ("m", "n"): "one element", (): "tile"}


def clocks(plan: GemmPlan, device: Device, elements: float) -> float | None:
    """Return the least clock cycles that a multiprocessor needs for the epilogue of `elements` elements of D.

    The result is None for f64, whose rate is not known.

    elements   number of elements of D

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
    """Return the cost of a plan's epilogue; the fields `hidden` and `added_seconds` need a roofline and stay None.

    accesses      the plan's accesses to global memory
    ctas_per_sm   CTAs that a multiprocessor holds
    problem       problem for the total bytes of matrices in memory; None: these fields stay None
    returns       None if the epilogue computes nothing for some values of its scalars, such as alpha * acc + beta * c
    """
    counted = plan.epilogue.acting()
    if not counted.steps:
        return None
    bytes_by_access = {access.name: access.sectors * SECTOR_BYTES for access in accesses}
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
                "result" if name in results else _KINDS[operand.broadcast],
                str(operand.dtype),
                how,
                bytes_by_access.get(f"{verb} {name.upper()}", elements * operand.dtype.bits // 8),
                None if problem is None else problem.bytes_of(name),
                registers[name],
            )
        )
    cost = operations(counted)
    alternating = max(1, ctas_per_sm) * plan.body.tiles_in_flight
    return EpilogueCost(
        str(counted), cost.fp32, cost.special, clocks(plan, device, elements), alternating, tuple(parts)
    )


def overlapped_seconds(mainloop_seconds: float, epilogue_seconds: float, tiles: float, alternating: int) -> float:
    """Return the least time of a multiprocessor for its tiles, if epilogues overlap the mainloops of other tiles.

    mainloop_seconds   seconds of the mainloop of a tile
    epilogue_seconds   seconds of the epilogue of a tile
    tiles              number of tiles of the multiprocessor
    alternating        number of tiles that it works on at once, e.g. 2 for two CTAs per multiprocessor

    >>> [overlapped_seconds(10.0, 4.0, 6, at_once) for at_once in (1, 2, 3)], overlapped_seconds(10.0, 14.0, 6, 2)
    ([84.0, 64.0, 64.0], 94.0)
    """
    if not tiles:
        return 0.0
    rounds = tiles if alternating == 1 else math.ceil(tiles / alternating)
    both = mainloop_seconds + epilogue_seconds
    return max(tiles * mainloop_seconds + epilogue_seconds, tiles * epilogue_seconds + mainloop_seconds, rounds * both)
