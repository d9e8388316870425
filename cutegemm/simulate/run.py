"""A plan carried out on the CPU: `simulate`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.dtypes import round_to, tf32
from cutegemm.errors import PlanError, SimulationError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.plan.rules import problem_rules
from cutegemm.simulate.checks import check_tables
from cutegemm.simulate.copies import CtaGroup, OperandFlow
from cutegemm.simulate.division import divided, workspace_slots
from cutegemm.simulate.epilogue import Epilogue
from cutegemm.simulate.mainloop import run_mainloop
from cutegemm.simulate.memory import GlobalMatrix
from cutegemm.simulate.packing import pack
from cutegemm.simulate.parts import Parts
from cutegemm.simulate.pipeline import run_pipeline
from cutegemm.simulate.report import Fault, Report, tile_text
from cutegemm.simulate.tables import plan_tables

# Accumulators of the CTAs that are simulated together: 1 MiB of them stays in a core's cache.
_SUMS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class SimulationStats:
    """What a simulation did.

    ctas, k_tiles   CTAs that ran, and steps of each along K
    multiply_adds   those of the ragged edges included
    loaded_a_elems, loaded_b_elems   read from global memory by all CTAs
    seconds         it took
    """

    ctas: int
    k_tiles: int
    multiply_adds: int
    loaded_a_elems: int
    loaded_b_elems: int
    seconds: float


@dataclass(frozen=True)
class SimulationResult:
    """D, what went wrong on the way, and what was done."""

    d: np.ndarray
    faults: tuple[Fault, ...]
    stats: SimulationStats


def simulate(
    plan: GemmPlan,
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    problem: Problem | None = None,
    check: bool | str = True,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Does what the kernel of a plan does, in numpy: every copy, every product, by the plan's own layouts.

    Shared memory and registers are poisoned first, and D as well; global memory is laid out anew as the
    problem says, with guard bands around each matrix. C is not read where beta is 0.

    a, b       arrays (M, K) and (K, N), or (L, M, K) and (L, K, N), of any strides
    c          (M, N) or (L, M, N); needed where beta is not 0
    problem    extents and leading strides; where left out, those of the arrays, with gaps between the rows
    check      True: raise for any fault. "report": leave them in the result. False: look for none, and take
               problems that the plan is not made for
    progress   called now and then with the fraction that is done
    raises     PlanError where the arrays or the problem do not fit the plan; SimulationError with every fault

    >>> from cutegemm.plan import simt_plan
    >>> a, b = np.ones((4, 8)), np.eye(8)[:, :4]
    >>> plan = simt_plan(block=(32, 32, 8), warp=(32, 32), thread=(8, 4))
    >>> simulate(plan, a, b, alpha=2).d
    array([[2., 2., 2., 2.],
           [2., 2., 2., 2.],
           [2., 2., 2., 2.],
           [2., 2., 2., 2.]], dtype=float32)
    """
    started = time.perf_counter()
    checked = check is not False
    given = given_arrays("simulate", plan, a, b, c, beta)
    problem = problem_of("simulate", plan, given, problem)
    if check is True:
        broken = list(problem_rules(plan, problem))
        if broken:
            raise PlanError(f"simulate: plan {plan.name!r} on {problem}", broken)
    report = Report()
    matrices = laid_out(problem, given)
    carry_out = run_schedule if plan.pipeline is None else run_pipeline
    with np.errstate(over="ignore", invalid="ignore"):  # the caller's infinities are the caller's
        stats = carry_out(plan, problem, matrices, alpha, beta, report, checked, progress)
    faults = report.faults()
    if faults and check is True:
        raise SimulationError(f"simulate: plan {plan.name!r} on {problem}", faults)
    d = np.moveaxis(matrices["d"].view(matrices["d"].buffer), 2, 0).copy()
    batched = any(array.ndim == 3 for array in given.values())
    return SimulationResult(
        d if batched else d[0], faults, SimulationStats(*stats, time.perf_counter() - started)
    )


def given_arrays(
    operation: str, plan: GemmPlan, a: Any, b: Any, c: Any, beta: float
) -> dict[str, np.ndarray]:
    """The arrays that take part: C only where beta is not 0. raises PlanError in the name of an operation"""
    given = {"a": np.asarray(a), "b": np.asarray(b)}
    if beta != 0:
        if c is None:
            raise PlanError(operation, [f"beta is {beta}, but no C is given."])
        if not plan.has_c:
            raise PlanError(operation, [f"beta is {beta}, but the plan {plan.name!r} cannot read C."])
        given["c"] = np.asarray(c)
    return given


def laid_out(problem: Problem, given: dict[str, np.ndarray]) -> dict[str, GlobalMatrix]:
    """The arrays and D in memory as a problem lays them out, by the problem's types."""
    matrices = {name: GlobalMatrix(problem, name) for name in (*given, "d")}
    for name, array in given.items():
        kind = matrices[name].dtype
        seen = _as_modes(array, name)
        matrices[name].view(matrices[name].buffer)[...] = seen if kind is tf32 else round_to(kind, seen)
    return matrices


def run_schedule(
    plan: GemmPlan,
    problem: Problem,
    matrices: dict[str, GlobalMatrix],
    alpha: float,
    beta: float,
    report: Report,
    checked: bool,
    progress: Callable[[float], None] | None,
) -> tuple[int, int, int, int, int]:
    """A plan whose threads all do the same; (CTAs, k-tiles, multiply-adds, elements loaded of A, of B)."""
    tables = plan_tables(plan)
    if checked:
        check_tables(plan, tables, report)
    scale = 1.0 if plan.split.is_split else alpha  # the sums of parts are scaled before they are added
    epilogue = Epilogue(plan, tables, matrices["d"], matrices.get("c"), scale, beta, report, checked)
    bm, bn, bk = plan.cta_tile
    assert plan.schedule is not None  # or there were no tables
    schedule, k_tiles = plan.schedule, plan.k_tiles(problem)
    k_first = problem.k - k_tiles * bk
    ctas = _ctas(plan, problem, report)
    together = max(1, _SUMS_AT_ONCE // (bm * bn))
    ticks, total = 0, -(-len(ctas) // together) * max(1, k_tiles)
    for packing in plan.packs:
        matrices[packing.name] = pack(plan, packing, problem, matrices[packing.name], report, checked)

    def ticked() -> None:
        nonlocal ticks
        ticks += 1
        if progress is not None:
            progress(ticks / total)

    loaded = [0, 0]
    shared = Parts(plan, tables, workspace_slots(plan, problem), report)
    for own, pieces in divided(plan, problem, ctas[:, 0], together, report):
        position, m_tile, n_tile, batch = ctas[own].T
        group = CtaGroup(position, m_tile, n_tile, batch)
        ragged = ((m_tile + 1) * bm > problem.m) | ((n_tile + 1) * bn > problem.n) | (k_first < 0)
        for piece in pieces:
            a, b = (
                OperandFlow(
                    t, matrices[name], group, tile * t.extent, ragged, k_first + piece.k_first * bk,
                    schedule, piece.k_count, report, checked, plan.split.k_step,
                )
                for name, t, tile in (("a", tables.a, m_tile), ("b", tables.b, n_tile))
            )  # fmt: skip
            flows = (a, b)
            sums = run_mainloop(plan, tables, schedule, flows, piece.k_count, report, ticked)
            loaded = [have + flow.loaded_elems for have, flow in zip(loaded, flows, strict=True)]
            if plan.split.is_split:
                sums *= sums.dtype.type(alpha)
            if piece.slots is not None:
                shared.write(piece.slots, sums)
        slots = [piece.slots for piece in pieces if piece.slots is not None]
        epilogue.write(shared.total(slots) if slots else sums, group)
    if checked:
        epilogue.finish()
    if progress is not None:
        progress(1.0)
    return len(ctas), k_tiles, len(ctas) * k_tiles * bm * bn * bk, loaded[0], loaded[1]


def _ctas(plan: GemmPlan, problem: Problem, report: Report) -> np.ndarray:
    """(position, m_tile, n_tile, l) of every CTA whose tile exists."""
    grid = plan.grid(problem)
    count = grid[0] * grid[1] * grid[2]
    position = np.arange(count, dtype=np.int64)
    if count == 0:
        return np.zeros((0, 4), np.int64)
    tiles = np.stack([position, *plan.raster.tile(position, grid[0], grid[1], np.minimum)], axis=1)
    exists = ((tiles[:, 1:] >= 0) & (tiles[:, 1:] < grid)).all(axis=1)
    report.add_each(
        "raster",
        tiles[~exists],
        lambda t: f"CTA {t[0]} takes the tile {tile_text(t[1:])}, outside of a grid of {grid}.",
    )
    tiles = tiles[exists]
    number = np.ravel_multi_index(tuple(tiles[:, 1:].T), grid)
    times = np.bincount(number, minlength=count)

    def describe(tile: int) -> str:
        takers = tiles[number == tile, 0]
        who = "no CTA takes" if len(takers) == 0 else f"CTAs {', '.join(map(str, takers[:4]))} take"
        return f"{who} the tile {tile_text(np.unravel_index(tile, grid))}."

    report.add_each("raster", np.flatnonzero(times != 1), describe)
    return tiles


def _as_modes(array: np.ndarray, name: str) -> np.ndarray:
    """(M, K, L), (N, K, L) or (M, N, L) of an array as the caller has it."""
    stacked = array if array.ndim == 3 else array[None]
    return np.moveaxis(stacked, 0, 2) if name != "b" else stacked.transpose(2, 1, 0)


def problem_of(
    operation: str, plan: GemmPlan, given: dict[str, np.ndarray], problem: Problem | None
) -> Problem:
    """The problem that the arrays are, with gaps between rows; or the given one, which they must be."""
    broken = [
        f"{name.upper()} has the shape {array.shape}; two modes are expected, or three with a batch."
        for name, array in given.items()
        if array.ndim not in (2, 3)
    ]
    if broken:
        raise PlanError(operation, broken)
    shapes = {name: _as_modes(array, name).shape for name, array in given.items()}
    m, k, batch = shapes["a"]
    n = shapes["b"][0]
    expected = {"a": (m, k, batch), "b": (n, k, batch), "c": (m, n, batch)}
    told = {name: array.shape for name, array in given.items()}
    if any(shapes[name] != expected[name] for name in shapes):
        raise PlanError(operation, [f"the shapes {told} do not fit D = A @ B + C."])
    if problem is None:
        return Problem(m, n, k, batch, plan.operands, _padded(plan, {"m": m, "n": n, "k": k}))
    if (problem.m, problem.n, problem.k, problem.l) != (m, n, k, batch):
        raise PlanError(operation, [f"the problem is {problem}, but the arrays have the shapes {told}."])
    return problem


def _padded(plan: GemmPlan, extents: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Leading strides with a gap of one aligned access, and aligned as the plan needs."""
    out = []
    for name in ("a", "b", "c", "d"):
        operand = getattr(plan.operands, name)
        units = -(-extents[operand.major] // operand.align_elems) + 1
        out.append((name, units * operand.align_elems))
    return tuple(out)
