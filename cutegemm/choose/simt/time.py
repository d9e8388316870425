"""How long a SIMT plan takes.

    time = start + rounds * (fill and drain) + multiply-adds of the busiest multiprocessor / its rate
           + a pass over each operand that is packed + the sums of parts, written, read and added

and the kernel never takes less than the operands take to come from DRAM. Rates of the chip are those of the `Device`;
`Costs`, and the rates of the plans in `simt.named`, are fitted to docs/evidence/data/simt.json by
`python -m docs.evidence fit-simt`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cutegemm.choose.simt.recipe import SimtRecipe
from cutegemm.machine.arch import WARP_SCHEDULERS, WARP_THREADS
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.memory.packing import ALIGN_BYTES
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.shares import shares_of
from cutegemm.plan.work.split import Split


@dataclass(frozen=True)
class Costs:
    """What is fitted; the defaults are of one H200.

    start_s               of a kernel, until its first loads have come from DRAM
    round_s               of a round of CTAs: first k-tiles are waited for and D is written, with no products meanwhile
    one_warp, two_warps   of the rate, where a scheduler has no more of them, though more would fit
    unaligned             of the rate, where an operand is read by less than 16 bytes
    launch_s              of a kernel that waits for the one before
    through_registers     of the rate of reading, where tiles go through registers, so that one of them alone is under
                          way
    """

    start_s: float = 4e-6
    round_s: float = 5e-6
    one_warp: float = 0.93
    two_warps: float = 0.97
    unaligned: float = 0.93
    launch_s: float = 3e-6
    through_registers: float = 0.6


FITTED = Costs()

_DEEP_K = 48  # of k-tiles that are as long in coming as `round_s` says


def seconds(
    recipe: SimtRecipe,
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    costs: Costs = FITTED,
) -> float:
    """A model of how long the plan of a recipe takes: see the head of this file.

    raises   PlanError where the operands break its rules

    >>> from cutegemm.choose.simt.named import SIMT_PLANS
    >>> ops = Operands.of("f32", layout="tn")
    >>> f"{seconds(SIMT_PLANS[0], ops, Problem(4096, 4096, 4096, operands=ops)) * 1e3:.1f} ms"
    '2.5 ms'
    """
    column, factor = rate_of(recipe, operands, costs)
    return terms(recipe, operands, problem, device, costs).seconds(recipe.rate[column] * factor)


def bound(recipe: SimtRecipe, operands: Operands, problem: Problem, device: Device = DEFAULT_DEVICE) -> str:
    """What the plan of a recipe takes most of its time for, by the model."""
    column, factor = rate_of(recipe, operands)
    return terms(recipe, operands, problem, device).bound(recipe.rate[column] * factor)


@dataclass(frozen=True)
class Terms:
    """What the model adds up, in seconds.

    waiting    of the GEMM kernel, without products
    products   of the busiest multiprocessor, at the rate of 1
    reading    the operands out of DRAM, which goes on meanwhile
    besides    of all other kernels
    """

    waiting: float
    products: float
    reading: float
    besides: float

    def seconds(self, rate: float) -> float:
        """All of it."""
        return max(self.waiting + self.products / rate, self.reading) + self.besides

    def bound(self, rate: float) -> str:
        """What takes most of it."""
        parts = {"waiting": self.waiting, "products": self.products / rate, "packing and sums": self.besides}
        if self.reading > self.waiting + self.products / rate:
            parts = {"DRAM": self.reading, "packing and sums": self.besides}
        return max(parts, key=lambda name: parts[name])


def terms(
    recipe: SimtRecipe, operands: Operands, problem: Problem, device: Device, costs: Costs = FITTED
) -> Terms:
    """The model's terms for the plan of a recipe."""
    plan = replace(recipe, is_packed=False, split=None, ctas=None).build(operands)
    m_tiles, n_tiles, batch = plan.grid(problem)
    tiles = m_tiles * n_tiles * batch
    parts = 1 if recipe.split is None else recipe.split.parts
    rounds, steps, slots = _busiest(plan, problem, device.sms, parts, recipe.ctas, costs)
    bm, bn, _ = plan.cta_tile
    rates, packs = device.measured, recipe.packed(operands)
    besides = reading = 0.0
    for operand, rows in (("a", problem.m), ("b", problem.n)):
        size = rows * problem.k * problem.l * getattr(operands, operand).dtype.bits / 8
        if operand in packs:
            besides += costs.launch_s + 2 * size / (rates.pack_along_mn_gb_s * 1e9)
        is_async = operand in packs or getattr(plan, f"load_{operand}").atom.is_async
        reading += size / (rates.thread_read_gb_s * 1e9 * (1.0 if is_async else costs.through_registers))
    if slots:
        moved = 2 * slots * bm * bn * operands.acc.bits / 8
        besides += costs.launch_s + moved / (rates.sums_gb_s * 1e9)
    at_once = device.sms * plan.ctas_per_sm
    loading = min(1.0, max(1, recipe.ctas or tiles * parts) / at_once)  # CTAs, each with some loads under way
    multiply_adds_per_s = rates.ffma_tflops * 1e12 / 2 / device.sms
    return Terms(
        costs.start_s + costs.round_s * rounds,
        steps * bm * bn / multiply_adds_per_s,
        reading / loading,
        besides,
    )


def rate_of(recipe: SimtRecipe, operands: Operands, costs: Costs = FITTED) -> tuple[str, float]:
    """Which of a recipe's rates is that of the operands, and a factor to it."""
    aligned = recipe.is_packed or min(operands.a.align_bytes, operands.b.align_bytes) >= ALIGN_BYTES
    return "tn" if recipe.is_packed else operands.layout, 1.0 if aligned else costs.unaligned


def _busiest(
    plan: GemmPlan, problem: Problem, sms: int, parts: int, ctas: int | None, costs: Costs
) -> tuple[float, float, float]:
    """(rounds, steps along K of all its CTAs, sums in the workspace) of the multiprocessor with the most to do.

    Steps that a scheduler has one warp for count for more.
    """
    m_tiles, n_tiles, batch = plan.grid(problem)
    tiles = m_tiles * n_tiles * batch
    if ctas:
        shares = shares_of(Split(waves=1), tiles, plan.k_tiles(problem), ctas)
        whole, own = (tiles - shares.shared) / ctas, shares.shared * problem.k / max(1, shares.workers)
        held = max(1, -(-shares.workers // sms))
        steps = whole * problem.k * plan.ctas_per_sm + own * held
        again = min(1.0, plan.stages * plan.cta_tile[2] / _DEEP_K)  # of a round: a second tile is begun
        return whole + 1 + again, steps / _share(plan, held, costs), shares.slots
    most = -(-tiles * parts // sms)
    full, left = divmod(most, plan.ctas_per_sm)
    steps = full * plan.ctas_per_sm + left / _share(plan, left or 1, costs)
    return full + (left > 0), steps * problem.k / parts, tiles * parts if parts > 1 else 0


def _share(plan: GemmPlan, held: int, costs: Costs) -> float:
    """Of the rate of a full multiprocessor, that of one with so many CTAs."""
    warps = held * plan.threads // WARP_THREADS
    if held >= plan.ctas_per_sm or warps > 2 * WARP_SCHEDULERS:
        return 1.0
    return costs.two_warps if warps > WARP_SCHEDULERS else costs.one_warp * warps / WARP_SCHEDULERS
