"""Simulate a protocol over time: each operation has a duration, and starts as early as the barriers allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from cutegemm.errors import LayoutError
from cutegemm.plan.program.operations import Compute, Load, LoadEpiStage, Op, Send, StoreEpiStage, WriteEpiStage
from cutegemm.plan.program.steps import AddAccumulators, StoreTile
from cutegemm.simulator.protocol.machine import Machine
from cutegemm.simulator.protocol.protocol import Process

_EPI_STAGE_OPS = (LoadEpiStage, WriteEpiStage, StoreEpiStage)


@dataclass(frozen=True)
class Durations:
    """Sets how long operations of a warp-specialised GEMM take in a simulation, all in one arbitrary unit.

    load           from the issue of a bulk copy of A, B or C until its data has arrived (the issue itself takes 1);
                   also the time until accumulators that are sent to another CTA have arrived
    multiply       MMAs of a k-tile
    store          store of a tile of D by its warps. A bulk store from an epilogue stage (buffer of shared memory)
                   reads the stage for as long as writing it took
    accumulators   sending a tile's accumulators to the CTAs that share K; adding received accumulators takes as long
    """

    load: float = 6
    multiply: float = 4
    store: float = 12
    accumulators: float = 2


@dataclass(frozen=True)
class Played:
    """Records one step of a simulation over time: an operation of a warp role of a CTA, or the arrival of a bulk copy.

    Times are in the unit of the simulation's `Durations`.

    number       index of the warp role among all roles of all CTAs, or None for the arrival of a bulk copy
    op           operation, or None for the arrival of a bulk copy
    start, end   time that the operation occupies its role; equal if it takes no time
    name         name such as "multiply"; empty for an operation that takes no time
    stage        shared-memory stage that the operation works on, or None
    since        time when the role began to wait for the operation, or None if it did not wait
    place        index of the operation in the list of operations of its role
    """

    number: int | None
    op: Op | None
    start: float
    end: float
    name: str = ""
    stage: int | None = None
    since: float | None = None
    place: int = 0


def played(machine: Machine, durations: Durations) -> Iterator[Played]:
    """Simulate the warp roles of a CTA or cluster over time, and yield each operation or arrival after it is done.

    When a step is yielded, `machine` is in the state after that step.

    machine     simulator of the roles: each role's list of operations, and the barriers, in their initial state
    durations   how long operations take, in any unit; the yielded times have the same unit
    raises      LayoutError if the roles deadlock
    """
    programs = machine.protocol.processes
    times = _OpTimes(programs, durations)
    free, waits = [0.0] * len(programs), [-1.0] * len(programs)
    loads: list[float] = []  # end of each copy in flight, in the order of machine.flights
    copies: list[float] = []  # end of each copy to or from an epilogue stage
    now = 0.0
    while not machine.finished:
        ends = [*free, *loads, *copies]
        ready = [choice for choice in machine.choices() if ends[choice] <= now]
        for number in range(len(programs)):
            over = machine.at[number] == len(programs[number].ops)
            if free[number] <= now and number not in ready and not over and waits[number] < 0:
                waits[number] = now
        if not ready:
            ahead = [t for t in ends if t > now]
            if not ahead:
                raise LayoutError(f"protocol_timeline: {machine.stuck()}")
            now = min(ahead)
            continue
        choice = ready[0]
        if choice >= len(programs):
            machine.step(choice)
            position = choice - len(programs)
            if position < len(loads):
                loads.pop(position)
            else:
                copies.pop(position - len(loads))
            yield Played(None, None, now, now)
            continue
        program, place = programs[choice], machine.at[choice]
        op = program.ops[place]
        since = waits[choice] if 0 <= waits[choice] < now else None
        waits[choice] = -1.0
        machine.step(choice)
        loads += [now + durations.load] * (len(machine.flights) - len(loads))
        copies += [now + times.copy(program, op)] * (len(machine.epi_stages.flights) - len(copies))
        took, name, stage = times.busy(program, op)
        free[choice] = now + took
        yield Played(choice, op, now, now + took, name, stage, since, place)


def _multiplies(op: Op) -> TypeGuard[Compute]:
    """Return True if an operation of a warp role is an MMA step, which takes time in the simulation."""
    return isinstance(op, Compute) and op.step.takes_mma_time


class _OpTimes:
    """Computes how long a single operation takes in a simulation, from the times of whole tiles and k-tiles.

    The operations of a tile or k-tile share its time equally: if a tile is stored in 4 steps, each takes a quarter.

    programs    the list of operations of each warp role of each CTA
    durations   time of a load, of the MMAs of a k-tile and of the store of a tile, in any unit
    """

    def __init__(self, programs: tuple[Process, ...], durations: Durations) -> None:
        self.durations = durations
        self.of_tile = Counter(
            [(p.cta, p.role, op.tag[0]) for p in programs for op in p.ops if isinstance(op, WriteEpiStage)]
        )
        self.of_k_tile = Counter([(p.cta, p.name, op.tag) for p in programs for op in p.ops if _multiplies(op)])

    def copy(self, program: Process, op: Op) -> float:
        """Return how long a bulk copy between global memory and an epilogue stage takes, from its issue to its end.

        An epilogue stage is a buffer of shared memory for a part of C or D. The time is in the unit of this object's
        durations.

        program   the list of operations of the warp role that issues the copy
        op        the operation that issues it: a load of C into an epilogue stage, or a store of D from one
        """
        return self.durations.load if isinstance(op, LoadEpiStage) else self._epi_tile(program, op)

    def _epi_tile(self, program: Process, op: Op) -> float:
        """Return the time to store one part of a tile of D through an epilogue stage (a buffer of shared memory).

        It is 0 if the operation does not use an epilogue stage. The unit is that of this object's durations.

        program   the list of operations of the warp role that executes the operation
        op        the operation
        """
        if not isinstance(op, _EPI_STAGE_OPS):
            return 0.0
        return self.durations.store / max(1, self.of_tile[program.cta, program.role, op.tag[0]])

    def busy(self, program: Process, op: Op) -> tuple[float, str, int | None]:
        """Return how long an operation keeps its warp role busy, and how a timeline shows it: (time, name, stage).

        program   the list of operations of the warp role
        op        the operation
        returns   time       in the unit of this object's durations; 0 if the operation takes no time
                  name       such as "multiply" or "load a"; "" if it takes no time
                  stage      shared-memory stage that it works on, or None
        """
        if isinstance(op, Send):
            return self.durations.accumulators, "send accumulators", None
        if isinstance(op, Compute) and isinstance(op.step, AddAccumulators):
            return self.durations.accumulators, "add accumulators", None
        if isinstance(op, Load):
            return 1, f"load {op.operand}", op.stage
        if isinstance(op, WriteEpiStage):
            return self._epi_tile(program, op), "store", None
        if _multiplies(op):
            parts = self.of_k_tile[program.cta, program.name, op.tag]
            return self.durations.multiply / parts, "multiply", op.stage
        if isinstance(op, Compute) and isinstance(op.step, StoreTile):
            return self.durations.store, "store", None
        return 0.0, "", None
