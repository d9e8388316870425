"""A component from outside the package: a third operand stream that is loaded for each k-tile and added to D.

D = A @ B + the sum over k-tiles of row k of X, for an X of N columns and one row for every 64 of K. Everything that the
component needs is in this file: its stream, its mainloop with a step of its own, and what the expansion, the simulator
and the kernels do with the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from cutegemm.analysis import check
from cutegemm.build import sm90_plan
from cutegemm.dtypes import f32
from cutegemm.errors import PlanError, SimulationError
from cutegemm.layout import Layout
from cutegemm.plan import GemmPlan, Operand, Operands, OperandStream, Problem
from cutegemm.plan.access import SmemAccess
from cutegemm.plan.mainloop.base import Mainloop, Steps
from cutegemm.plan.program.expand import Expansion, State
from cutegemm.plan.program.operations import Compute, EndRead, Op
from cutegemm.plan.program.steps import Multiply, Release, Step, Wait
from cutegemm.simulator import play_interleavings, protocol_of, simulate
from cutegemm.simulator.protocol.protocol import Process
from cutegemm.simulator.roles import Player
from cutegemm.tile.tma import TmaBox

BK, COLUMNS, STAGES = 64, 128, 4
X = Operand(f32, "n", modes=("n", f"k/{BK}"))


# --- the component -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AddRow(Step):
    """Wait for the MMAs of a k-tile, and add the row of X in its stage to the accumulators."""

    def __str__(self) -> str:
        return "add      X[k] to acc, when all MMAs have ended"


class WithRow(Mainloop):
    """wgmma of A and B from shared memory; after each k-tile, threads add a row of X to the accumulators."""

    def k_tile(self, plan: GemmPlan) -> Steps:
        return (Wait("full"), Multiply(), AddRow(), Release())

    def epilogue(self, plan: GemmPlan) -> Steps:
        return ()  # each k-tile waits for its MMAs and releases its stage

    def accesses(self, plan: GemmPlan) -> Iterable[SmemAccess]:
        """A thread reads two neighbours at a time; the four lanes of a row read 8 columns, all rows the same."""
        lanes = np.arange(32) % 4
        pairs = lanes[:, None] * 2 + np.arange(0, plan.mma_tile[1], 8)
        elements = (pairs[:, :, None] + np.arange(2)).reshape(1, 32, -1)
        yield SmemAccess("read X", "x", "load", np.repeat(elements, plan.tiled_mma.threads // 32, axis=0), 64)


@Expansion.handles(AddRow)
def expanded(expansion: Expansion, add: AddRow, at: State, i: int) -> Iterator[Op]:
    stage = expansion.stage(at.position)[0]
    yield Compute(add, (at.number, at.k), stage)
    yield EndRead(stage)  # the stage was read since its MMAs began
    at.running = ()


@Player.handles(AddRow)
def simulated(player: Player, add: AddRow, number: int, process: Process, op: Compute) -> None:
    _, columns = player.own_split(process)
    row = player.flows[process.cta]["x"].read(op.stage)[columns, 0].T  # (CTAs, N)
    player.accumulators[number] = player.accumulators[number] + row[:, None, :]


def register_kernel() -> None:
    """Register how the step is traced; the kernels need the CuTe DSL."""
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import warpgroup

    from cutegemm.kernels import lower
    from cutegemm.kernels.sm90.consumer import ConsumerTracer

    @ConsumerTracer.handles(AddRow)
    def traced(tracer: Any, add: AddRow, at: Any) -> None:
        warpgroup.wait_group(0)
        acc, row = tracer.products.total, tracer.pipeline_state.smem["x"]
        own = lower.tiled_mma(tracer.plan.consumer_mma).get_slice(tracer.who.tid)
        place = own.partition_C(cute.make_identity_tensor(tracer.plan.consumer_mma_tile))
        for i in range(cute.size(acc)):
            acc[i] = acc[i] + row[place[i][1], 0, at.stage]
        cute.arch.sync_warp()


def plan_with_row(schedule: str = "cooperative", **options: Any) -> GemmPlan:
    """Return a plan with the stream and the mainloop."""
    operands = Operands.of("bf16", layout="nt", out="f32")
    base = sm90_plan(operands, tile=(128, COLUMNS, BK), schedule=schedule, stages=STAGES, **options)
    box = TmaBox("load", f32, (COLUMNS, 1), "none")
    row = OperandStream("x", "n", box, Layout((COLUMNS, 1, STAGES), (1, COLUMNS, COLUMNS)))
    return base.with_(
        name="with_row",
        operands=operands.with_aux(x=X),
        streams=(*base.streams, row),
        body=replace(base.body, mainloop=WithRow()),
    )


def random_arguments(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A, B and X of small integers: all sums are exact."""
    rng = np.random.default_rng(m * n + k)
    a, b, x = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n)), rng.integers(-4, 5, (n, -(-k // BK)))
    return a.astype(np.float32), b.astype(np.float32), x.astype(np.float32)


# --- what the package does with it --------------------------------------------------------------------------------


def test_text() -> None:
    plan = plan_with_row()
    assert "add      X[k] to acc, when all MMAs have ended" in str(plan.program("consumer 0"))
    described = plan.describe()
    assert f"{STAGES * COLUMNS * 4} bytes" in next(line for line in described.splitlines() if "shared X" in line)
    assert plan.barrier("full").transaction_bytes == 2 * 128 * 64 * 2 + COLUMNS * 4


@pytest.mark.parametrize("schedule", ["cooperative", "pingpong"])
@pytest.mark.parametrize("problem", [(128, 128, 64), (200, 136, 200), (300, 264, 1000)])
def test_simulated(schedule: str, problem: tuple[int, int, int]) -> None:
    a, b, x = random_arguments(*problem)
    result = simulate(plan_with_row(schedule, ctas=2), a, b, x=x)
    np.testing.assert_array_equal(result.d, a @ b + x.sum(axis=1))


def test_orders_of_execution() -> None:
    for schedule in ("cooperative", "pingpong"):
        plan = plan_with_row(schedule)
        assert play_interleavings(protocol_of(plan, k_tiles=2 * STAGES + 1, tiles=3)).faults == ()


def test_planted_faults() -> None:
    """Without the wait for a stage, and with a stage that is released before the row is read."""
    plan = plan_with_row()
    a, b, x = random_arguments(128, 128, 640)

    @dataclass(frozen=True)
    class Early(WithRow):
        def k_tile(self, plan: GemmPlan) -> Steps:
            return (Wait("full"), Multiply(), Release(), AddRow())

    @dataclass(frozen=True)
    class Unwaited(WithRow):
        def k_tile(self, plan: GemmPlan) -> Steps:
            return (Multiply(), AddRow(), Release())

    for mainloop in (Early(), Unwaited()):
        wrong = plan.with_(body=replace(plan.body, mainloop=mainloop))
        assert play_interleavings(protocol_of(wrong, k_tiles=9, tiles=2)).faults != ()
    with pytest.raises(SimulationError):
        simulate(plan.with_(body=replace(plan.body, mainloop=Unwaited())), a, b, x=x)


def test_rules() -> None:
    plan = plan_with_row()
    with pytest.raises(PlanError, match="the shared memory of X"):
        plan.with_stream("x", smem=Layout((COLUMNS, 1, STAGES), (1, COLUMNS, 0)))
    with pytest.raises(PlanError, match="boxes of 96 x 1 of X do not divide"):
        plan.with_stream("x", load=TmaBox("load", f32, (96, 1), "none"))
    with pytest.raises(PlanError, match="X is not loaded by TMA"):
        plan.with_stream("x", load=plan.store.to_shared)


def test_analysis() -> None:
    """A CTA loads 512 bytes of X for each k-tile, 16 sectors, and reads them without a bank conflict."""
    plan = plan_with_row()
    report = check(plan, Problem(1024, 1024, 1024, operands=plan.operands))
    load = next(each for each in report.global_ if each.name == "load X")
    assert (load.sectors, load.ideal) == (16, 16)
    read = next(each for each in report.shared if each.name == "read X")
    assert read.cost.wavefronts == read.cost.ideal


def test_compiled_and_emulated() -> None:
    pytest.importorskip("cutlass")
    from cutegemm.run.emulated import emulate

    register_kernel()
    a, b, x = random_arguments(200, 136, 200)
    result = emulate(plan_with_row(ctas=2), a, b, x=x)
    np.testing.assert_array_equal(result.d, a @ b + x.sum(axis=1))
