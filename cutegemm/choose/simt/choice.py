"""The choice among the named SIMT plans: a model of how long each takes.

    time = start + rounds * (fill and drain) + multiply-adds of the busiest multiprocessor / its rate
           + a pass over each operand that is packed + the sums of parts, written, read and added

and the kernel never takes less than the operands take to come from DRAM. The constants are one H200's, fitted to
docs/evidence/data/simt.json by `python -m docs.evidence fit-simt`; the rates of the plans are in `simt_catalog`, by
the same command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from cutegemm.choose.common import by_reason
from cutegemm.choose.simt.named import NAMED, simt_named, to_pack
from cutegemm.errors import PlanError
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.memory.packing import ALIGN_BYTES
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.rules.limits import limits
from cutegemm.plan.work.shares import shares_of
from cutegemm.plan.work.split import Split


@dataclass(frozen=True)
class Costs:
    """What the model knows of a machine; the defaults are one H200's.

    multiply_adds_per_s   of a multiprocessor, by a loop of FFMA on registers alone
    start_s               of a kernel, until its first loads have come from DRAM
    round_s               of a round of CTAs: first k-tiles are waited for and D is written, with no products meanwhile
    one_warp, two_warps   of the rate, where a scheduler has no more of them, though more would fit
    unaligned             of the rate, where an operand is read by less than 16 bytes
    launch_s              of a kernel that waits for the one before
    read_bytes_per_s      from DRAM
    through_registers     of that, where tiles go through registers, so that one of them alone is under way
    copy_bytes_per_s      read or written by a copy
    sums_bytes_per_s      written by one kernel or read by the next, through L2
    """

    multiply_adds_per_s: float = 63.8e12 / 2 / 132
    start_s: float = 4e-6
    round_s: float = 5e-6
    one_warp: float = 0.93
    two_warps: float = 0.97
    unaligned: float = 0.93
    launch_s: float = 3e-6
    read_bytes_per_s: float = 3.8e12
    through_registers: float = 0.6
    copy_bytes_per_s: float = 3.5e12
    sums_bytes_per_s: float = 3e12


H200 = Costs()

_SPLITS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_LEAST_K = 256  # of a part
_SCHEDULERS = 4
_DEEP_K = 48  # of a queue that is as long in coming as `round_s` says
_FEW = 2  # grids of tiles: beyond that evenly divided k-tiles bring little, and have not been timed


def choose_simt(operands: Operands, problem: Problem, arch: str, multiprocessors: int) -> GemmPlan:
    """The named plan, packed or not, K split or not, that `seconds` holds to be the fastest.

    raises   PlanError where none serves the operands and the problem on the architecture
    """
    refusals: list[tuple[str, str]] = []
    for name in ranked(operands, problem, arch, multiprocessors):
        try:
            plan = simt_named(name, operands)
        except PlanError as error:
            refusals += [(name, rule) for rule in error.violations]
            continue
        assert plan is not None
        # What is packed comes by cp.async alone, so that the queue may be deeper than that of the plan as it is
        refused = [*plan.violations(arch), *limits(plan, problem)]
        if not refused:
            return plan
        refusals += [(name, rule) for rule in refused]
    raise PlanError(f"choose: no named plan for {problem} of {operands} on {arch}", by_reason(refusals))


def ranked(
    operands: Operands, problem: Problem, arch: str, multiprocessors: int, within: float = 1e9
) -> list[str]:
    """The names of plans that serve, that which `seconds` holds to be the fastest first.

    within   times its time
    raises   PlanError where none does
    """
    found: list[tuple[float, str]] = []
    refusals: list[tuple[str, str]] = []
    packs = to_pack(operands)
    for named in NAMED:
        plan, refused = _if_it_serves(named.name, operands, arch)
        if plan is None:
            refusals += [(named.name, rule) for rule in refused]
            continue
        m_tiles, n_tiles, batch = plan.grid(problem)
        tiles = max(1, m_tiles * n_tiles * batch)
        at_once = multiprocessors * plan.ctas_per_sm
        full = at_once // tiles
        suffixes = [""]
        for parts in sorted({full, *_SPLITS} - {0, 1}):
            if problem.k >= parts * _LEAST_K and parts <= full + 1:
                suffixes.append(f"/k{parts}")
        if tiles % at_once and tiles < _FEW * at_once and tiles * problem.k >= at_once * _LEAST_K:
            suffixes.append(f"/s{at_once}")
        for pack in ("", "+pack") if packs else ("",):
            for suffix in suffixes:
                name = named.name + pack + suffix
                found.append((seconds(name, operands, problem, multiprocessors), name))
    if not found:
        raise PlanError(f"choose: no named plan for {operands} on {arch}", by_reason(refusals))
    least = min(found)[0]
    return [name for time, name in sorted(found) if time <= within * least]


def seconds(
    name: str, operands: Operands, problem: Problem, multiprocessors: int, costs: Costs = H200
) -> float:
    """A model of how long a named plan takes: see the head of this file.

    raises   PlanError where the operands break its rules

    >>> ops = Operands.of("f32", layout="tn")
    >>> f"{seconds('simt_256x128', ops, Problem(4096, 4096, 4096, operands=ops), 132) * 1e3:.1f} ms"
    '2.5 ms'
    """
    rates, column, factor = rate_of(name, operands, costs)
    return terms(name, operands, problem, multiprocessors, costs).seconds(rates[column] * factor)


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


def terms(name: str, operands: Operands, problem: Problem, multiprocessors: int, costs: Costs) -> Terms:
    """The model's terms for a named plan."""
    base, pack, parts, ctas = parse(name)
    plan = _built(base, operands)
    m_tiles, n_tiles, batch = plan.grid(problem)
    tiles = m_tiles * n_tiles * batch
    rounds, steps, slots = _busiest(plan, problem, multiprocessors, parts, ctas, costs)
    bm, bn, _ = plan.cta_tile
    packs = to_pack(operands) if pack else ""
    besides = reading = 0.0
    for operand, rows in (("a", problem.m), ("b", problem.n)):
        size = rows * problem.k * problem.l * getattr(operands, operand).dtype.bits / 8
        if operand in packs:
            besides += costs.launch_s + 2 * size / costs.copy_bytes_per_s
        is_async = operand in packs or getattr(plan, f"load_{operand}").atom.is_async
        reading += size / (costs.read_bytes_per_s * (1.0 if is_async else costs.through_registers))
    if slots:
        moved = 2 * slots * bm * bn * operands.acc.bits / 8
        besides += costs.launch_s + moved / costs.sums_bytes_per_s
    at_once = multiprocessors * plan.ctas_per_sm
    loading = min(1.0, max(1, ctas or tiles * parts) / at_once)  # CTAs, each with some loads under way
    return Terms(
        costs.start_s + costs.round_s * rounds,
        steps * bm * bn / costs.multiply_adds_per_s,
        reading / loading,
        besides,
    )


def rate_of(name: str, operands: Operands, costs: Costs = H200) -> tuple[Mapping[str, float], str, float]:
    """Rates of a named plan's tiles, which of them is that of the operands, and a factor to it."""
    base, pack, _, _ = parse(name)
    rates = next(named.rate for named in NAMED if named.name == base)
    aligned = pack or min(operands.a.align_bytes, operands.b.align_bytes) >= ALIGN_BYTES
    return rates, "tn" if pack else operands.layout, 1.0 if aligned else costs.unaligned


def parse(name: str) -> tuple[str, bool, int, int]:
    """A name of `ranked` as (tile sizes, whether operands are packed, parts of K, CTAs that share k-tiles or 0).

    >>> parse("simt_128x128+pack/k4"), parse("simt_64x64/s528")
    (('simt_128x128', True, 4, 0), ('simt_64x64', False, 1, 528))
    """
    base, _, suffix = name.partition("/")
    tile, _, pack = base.partition("+")
    number = int(suffix[1:].removesuffix("last")) if suffix else 0
    return tile, bool(pack), number if suffix.startswith("k") else 1, number if suffix.startswith("s") else 0


def _busiest(
    plan: GemmPlan, problem: Problem, multiprocessors: int, parts: int, ctas: int, costs: Costs
) -> tuple[float, float, float]:
    """(rounds, steps along K of all its CTAs, sums in the workspace) of the multiprocessor with the most to do.

    Steps that a scheduler has one warp for count for more.
    """
    m_tiles, n_tiles, batch = plan.grid(problem)
    tiles = m_tiles * n_tiles * batch
    if ctas:
        shares = shares_of(Split(waves=1), tiles, plan.k_tiles(problem), ctas)
        whole, own = (tiles - shares.shared) / ctas, shares.shared * problem.k / max(1, shares.workers)
        held = max(1, -(-shares.workers // multiprocessors))
        steps = whole * problem.k * plan.ctas_per_sm + own * held
        again = min(1.0, plan.stages * plan.cta_tile[2] / _DEEP_K)  # of a round: a second tile is begun
        return whole + 1 + again, steps / _share(plan, held, costs), shares.slots
    most = -(-tiles * parts // multiprocessors)
    full, left = divmod(most, plan.ctas_per_sm)
    steps = full * plan.ctas_per_sm + left / _share(plan, left or 1, costs)
    return full + (left > 0), steps * problem.k / parts, tiles * parts if parts > 1 else 0


def _share(plan: GemmPlan, held: int, costs: Costs) -> float:
    """Of the rate of a full multiprocessor, that of one with so many CTAs."""
    warps = held * plan.threads // WARP_THREADS
    if held >= plan.ctas_per_sm or warps > 2 * _SCHEDULERS:
        return 1.0
    return costs.two_warps if warps > _SCHEDULERS else costs.one_warp * warps / _SCHEDULERS


@cache
def _built(name: str, operands: Operands) -> GemmPlan:
    plan = simt_named(name, operands)
    assert plan is not None
    return plan


@cache
def _if_it_serves(name: str, operands: Operands, arch: str) -> tuple[GemmPlan | None, tuple[str, ...]]:
    try:
        plan = _built(name, operands)
    except PlanError as error:
        return None, error.violations
    broken = plan.violations(arch)
    return (None, tuple(broken)) if broken else (plan, ())
