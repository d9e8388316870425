"""How long a plan of mma.sync takes.

    time = start + rounds * (first k-tile, and D) + k-tiles of a CTA * the longest of
               the latency of memory, over the k-tiles that are under way
               the loads of all CTAs of a multiprocessor, by the width of an access
               their products, at the rate of the plan's tiles
           + the sums of parts, written, read and added

and the kernel never takes less than the operands take to come from DRAM. Rates of the chip are those of the `Device`;
`Costs` are fitted to times of one H200 behind a flush of L2, 2026-11-22.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf

from cutegemm.machine.arch import WARP_THREADS
from cutegemm.machine.device import Device
from cutegemm.plan.plan import HALF_BITS, GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.tile.tiled_copy import TiledCopy


@dataclass(frozen=True)
class Costs:
    """What is fitted, in microseconds.

    start          of a kernel, until its first loads are under way
    round          of a round of CTAs: the first k-tile comes and D is written, with no products meanwhile
    latency        of a k-tile that comes from DRAM, or that waits for others that do
    step           of a k-tile, for the barrier and for reading the first fragments
    through_registers   of a k-tile that is written to shared memory when it has come, besides
    access         of a warp's load, by its bytes a lane: of a multiprocessor
    peak           of the tensor cores' peak, what tiles of rate 1 reach
    launch         of a kernel that waits for the one before
    added          for each `at_once` parts, that a thread waits for together
    """

    start: float = 5.5
    round: float = 1.0
    latency: float = 0.8
    step: float = 0.05
    through_registers: float = 0.15
    access: tuple[tuple[int, float], ...] = ((16, 0.004), (8, 0.004), (4, 0.004), (2, 0.003))
    peak: float = 0.78
    launch: float = 3.0
    added: float = 0.6
    at_once: int = 8


FITTED = Costs()


@dataclass(frozen=True)
class Terms:
    """What the model adds up, in microseconds.

    waiting    for the start, the first k-tiles and D
    steps      k-tiles of the busiest multiprocessor's CTAs, one after the other
    latency, loads, products   of a step: the longest is what it takes
    reading    the operands out of DRAM, which goes on meanwhile
    sums       of parts of K
    """

    waiting: float
    steps: float
    latency: float
    loads: float
    products: float
    reading: float
    sums: float

    @property
    def us(self) -> float:
        """All of it."""
        return max(self.waiting + self.steps * self._step, self.waiting + self.reading) + self.sums

    @property
    def _step(self) -> float:
        return max(self.latency, self.loads, self.products)

    @property
    def bound(self) -> str:
        """What takes most of it."""
        parts = {"start and end": self.waiting, "sums of parts": self.sums}
        if self.reading > self.steps * self._step:
            parts["DRAM"] = self.reading
        else:
            name = {"latency": self.latency, "loads": self.loads, "tensor cores": self.products}
            parts[max(name, key=lambda each: name[each])] = self.steps * self._step
        return max(parts, key=lambda each: parts[each])


def terms(
    plan: GemmPlan, problem: Problem, rate: float, device: Device, parts: int = 1, costs: Costs = FITTED
) -> Terms:
    """The model's terms for a plan; products take for ever where the device has no such pipe.

    plan    as it is where K is not split
    rate    of the plan on large problems, that of `mma_128x256` being 1
    parts   that K is split in
    """
    peak = device.peak_tflops(plan.tiled_mma.atom)
    m_tiles, n_tiles, batch = plan.grid(problem)
    tiles, k_tiles, (bm, bn, bk) = m_tiles * n_tiles * batch, plan.k_tiles(problem), plan.cta_tile
    held, per_cta = tiles * parts, ceil(k_tiles / parts)
    per_sm = max(1, ceil(held / device.sms))
    rounds = ceil(per_sm / plan.ctas_per_sm)
    at_once = min(plan.ctas_per_sm, per_sm)
    by_registers = any(isinstance(c, TiledCopy) and not c.atom.is_async for c in (plan.load_a, plan.load_b))
    ahead = 1 if by_registers else max(1, plan.stages - 1)
    latency = costs.latency / ahead + costs.step + (costs.through_registers if by_registers else 0.0)
    of_products = 2 * bm * bn * bk * device.sms / (peak * costs.peak * rate * 1e6) if peak else inf
    # The last round may be of fewer CTAs
    steps = per_cta * (per_sm / at_once)
    cover = (at_once / plan.ctas_per_sm) ** 0.5
    sums = 0.0
    if parts > 1:
        moved = 2 * held * bm * bn * plan.operands.acc.bits / 8
        together = ceil(parts / costs.at_once)
        sums = costs.launch + costs.added * together + moved / (device.measured.sums_gb_s * 1e3)
    of = problem.operands
    size = (problem.m * of.a.dtype.bits + problem.n * of.b.dtype.bits) * problem.k * problem.l / 8
    return Terms(
        waiting=costs.start + costs.round * min(rounds, 1 + (rounds - 1) / plan.ctas_per_sm),
        steps=steps,
        latency=latency,
        loads=at_once * _loads_us(plan, costs),
        products=at_once * of_products / cover,
        reading=size / (device.measured.thread_read_gb_s * 1e3),
        sums=sums,
    )


def _loads_us(plan: GemmPlan, costs: Costs) -> float:
    """Of a k-tile of a CTA, where threads load it; TMA takes no instructions of theirs."""
    (bm, bn, bk), found = plan.cta_tile, 0.0
    for extent, copy in ((bm, plan.load_a), (bn, plan.load_b)):
        if isinstance(copy, TiledCopy):
            loads = extent * bk / (copy.atom.values * WARP_THREADS)
            found += loads * dict(costs.access)[max(copy.atom.bits, HALF_BITS) // 8]
    return found
