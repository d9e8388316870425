"""A protocol played with durations: each operation as early as its role and the barriers allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from cutegemm.errors import LayoutError
from cutegemm.plan.program.operations import Compute, Load, LoadEpiStage, Op, Send, StoreEpiStage, WriteEpiStage
from cutegemm.plan.program.steps import FIRST_BLOCK, AddAccumulators, Multiply, MultiplyBlock, StoreTile
from cutegemm.simulator.protocol.machine import Machine
from cutegemm.simulator.protocol.protocol import Process

_EPI_STAGE_OPS = (LoadEpiStage, WriteEpiStage, StoreEpiStage)


@dataclass(frozen=True)
class Durations:
    """In one unit.

    load           from the moment that a bulk copy of A, B or C is asked for until it lands; asking takes 1. So long
                   sums are under way to another CTA
    multiply       that the products of a k-tile take
    store          that storing a tile takes a consumer. A bulk store reads its epilogue stage for as long as writing
                   the epilogue stage took
    accumulators   that a consumer takes to send a tile's sums to the CTAs that share K, and as long to add what has
                   come
    """

    load: float = 6
    multiply: float = 4
    store: float = 12
    accumulators: float = 2


@dataclass(frozen=True)
class Played:
    """What the machine has just done.

    number      of the process, or None where a bulk copy has landed
    op          the operation, the one at `place` of the process
    start, end  of the time that it takes its role: the same where it takes none
    name        what it is called where it takes time
    stage       of shared memory that it works on, where it takes time
    since       from when on the role waited for it, or None
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
    """Plays a machine to its end, and tells of each operation right after it: the machine's state is then that.

    raises   LayoutError where the roles wait for each other for ever
    """
    programs = machine.protocol.processes
    takes = _Takes(programs, durations)
    free, waits = [0.0] * len(programs), [-1.0] * len(programs)
    loads: list[float] = []  # when each copy under way ends, in the order in which the machine has them
    copies: list[float] = []  # the same of copies to and from epilogue stages
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
        copies += [now + takes.copy(program, op)] * (len(machine.epi_stages.flights) - len(copies))
        took, name, stage = takes.of(program, op)
        free[choice] = now + took
        yield Played(choice, op, now, now + took, name, stage, since, place)


def _multiplies(op: Op) -> TypeGuard[Compute]:
    """Whether it takes the time of products: where a k-tile's are issued in two steps, the second one does."""
    if not isinstance(op, Compute):
        return False
    step = op.step
    return isinstance(step, MultiplyBlock) or (isinstance(step, Multiply) and step.k_blocks != FIRST_BLOCK)


class _Takes:
    """How long operations take, where a tile or a k-tile is shared out among several of them."""

    def __init__(self, programs: tuple[Process, ...], durations: Durations) -> None:
        self.durations = durations
        self.of_tile = Counter(
            [(p.cta, p.role, op.tag[0]) for p in programs for op in p.ops if isinstance(op, WriteEpiStage)]
        )
        self.of_k_tile = Counter([(p.cta, p.name, op.tag) for p in programs for op in p.ops if _multiplies(op)])

    def copy(self, program: Process, op: Op) -> float:
        """The bulk copy to or from an epilogue stage that an operation asks for."""
        return self.durations.load if isinstance(op, LoadEpiStage) else self._epi_tile(program, op)

    def _epi_tile(self, program: Process, op: Op) -> float:
        if not isinstance(op, _EPI_STAGE_OPS):
            return 0.0
        return self.durations.store / max(1, self.of_tile[program.cta, program.role, op.tag[0]])

    def of(self, program: Process, op: Op) -> tuple[float, str, int | None]:
        """(time of the role, name, stage)."""
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
