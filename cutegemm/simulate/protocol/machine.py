"""Barriers, roles and stages of shared memory: who waits for whom, as a machine that plays programs.

A role's program is a tuple of operations; a program is carried out operation by operation, in any order
against the others'. `interleavings` tries many orders. What is modelled:

    mbarrier        pending arrivals, outstanding bytes, and a phase that ends when both are none. A wait for
                    a parity passes when the phase under way has the other one (PTX ISA, mbarrier.test_wait)
    named barrier   threads that have come, by bar.sync or bar.arrive; a turn ends when all have
    bulk copy       parts of a stage that are under way from the moment they are asked for until they land,
                    in each CTA of a multicast at its own time, which completes bytes on its barrier
    stage           what each part holds, who reads it, and whether it has been read as often as it must
    resource        something that one role has at a time: the tensor cores, a tile of shared memory
    sums            of the parts of a tile, where K is split, in memory that all CTAs share: see `part_state`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Union, get_args

from cutegemm.simulate.protocol.part_state import PartState
from cutegemm.simulate.protocol.program import (
    Arrive,
    AwaitSums,
    BeginRead,
    EndRead,
    Enter,
    Expect,
    Leave,
    Load,
    Misuse,
    NamedArrive,
    NamedSync,
    PartOp,
    Program,
    Protocol,
    ProtocolError,
    SlotOp,
    Tag,
    Wait,
    WaitStores,
)
from cutegemm.simulate.protocol.slot_state import SlotState

_UNDER_WAY = "under way"
Part = Union[None, str, Tag]


class Machine:
    """The state of a protocol; `choices` says what may happen next, `step` lets it happen.

    >>> from cutegemm.simulate.protocol.queue import pingpong_protocol
    >>> machine = Machine(pingpong_protocol(stages=2, k_blocks=1, tiles=1))
    >>> machine.describe(machine.choices()[0])
    "producer of CTA 0: Wait(barrier='empty', index=0, parity=1)"
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        ctas = range(len(protocol.parts))
        self.at = [0] * len(protocol.programs)
        self.turn_awaited: list[tuple[tuple[str, int, int], int] | None] = [None] * len(protocol.programs)
        self.arrivals = {b.name: b.arrivals for b in protocol.barriers}
        # phases ended, arrivals pending, bytes outstanding; for a named barrier: turns ended, threads to come
        self.bars = {
            (b.name, index, cta): (0, b.arrivals, 0)
            for b in protocol.barriers
            for index in range(b.count)
            for cta in ctas
        }
        self.holds: dict[tuple[int, int, str], Part] = {}  # (cta, stage, part)
        self.reading: dict[tuple[int, int], int] = {}  # (cta, stage) -> roles that read it now
        self.unread: dict[tuple[int, int], int] = {}  # (cta, stage) -> reads that the filling still needs
        self.flights: tuple[tuple[int, Load], ...] = ()  # (cta, load) under way
        self.owner: dict[tuple[str, int], int | None] = {}
        self.slots = SlotState()
        self.sums = PartState()

    def copy(self) -> Machine:
        """The same state, to go on from in another way."""
        other = object.__new__(Machine)
        other.__dict__.update(self.__dict__)
        for name in ("at", "turn_awaited", "bars", "holds", "reading", "unread", "owner", "slots", "sums"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def key(self) -> tuple[object, ...]:
        """What two states that go on alike have in common."""
        return (
            tuple(self.at),
            tuple(self.turn_awaited),
            tuple(self.bars.values()),
            frozenset(self.holds.items()),
            frozenset(self.reading.items()),
            frozenset(self.unread.items()),
            frozenset(self.flights),
            frozenset(self.owner.items()),
            self.slots.key(),
            self.sums.key(),
        )

    def choices(self) -> list[int]:
        """Programs that can go on, by number, then bulk copies that may land, counted on from those."""
        programs = self.protocol.programs
        ready = [number for number in range(len(programs)) if self._ready(number)]
        under_way = len(self.flights) + len(self.slots.flights)
        return ready + [len(programs) + flight for flight in range(under_way)]

    @property
    def finished(self) -> bool:
        """Whether every program is at its end and every copy has landed."""
        under_way = self.flights or self.slots.flights
        return not under_way and all(self._ended(number) for number in range(len(self.at)))

    def describe(self, choice: int) -> str:
        """A choice in words."""
        programs = self.protocol.programs
        if choice < len(programs):
            return f"{programs[choice]}: {programs[choice].ops[self.at[choice]]}"
        position = choice - len(programs)
        if position >= len(self.flights):
            program, _, op = self.slots.flights[position - len(self.flights)]
            return f"{programs[program]}: {op} is done"
        cta, load = self.flights[position]
        return f"{load.part} of {_tag(load.tag)} lands in stage {load.stage} of CTA {cta}"

    def step(self, choice: int) -> None:
        """Lets one thing happen.

        raises   ProtocolError where it must not
        """
        programs = self.protocol.programs
        position = choice - len(programs)
        if position >= len(self.flights):
            self._slot_done(position - len(self.flights))
            return
        if position >= 0:
            cta, load = self.flights[position]
            self.flights = self.flights[:position] + self.flights[position + 1 :]
            self._land(cta, load)
            return
        program = programs[choice]
        op = program.ops[self.at[choice]]
        self.at[choice] += 1
        self.turn_awaited[choice] = None
        try:
            _ACTIONS[type(op)](self, choice, program, op)
        except Misuse as what:
            raise ProtocolError(f"{program}: {what}") from what

    def stuck(self) -> str:
        """Why nothing can go on."""
        waiting = []
        for number, program in enumerate(self.protocol.programs):
            if self._ended(number):
                continue
            awaited = self.turn_awaited[number]
            if awaited is not None:
                (name, index, cta), _ = awaited
                missing = self.bars[name, index, cta][1]
                waiting.append(f"{program} waits at {name}[{index}], which {missing} more threads must reach")
            else:
                op = program.ops[self.at[number]]
                if isinstance(op, AwaitSums):
                    waiting.append(f"{program} waits for {self.sums.missing(op)}")
                    continue
                assert isinstance(op, Wait)  # stores that are waited for could be done
                phase, pending, size = self.bars[op.barrier, op.index, program.cta]
                waiting.append(
                    f"{program} waits for parity {op.parity} of {op.barrier}[{op.index}], whose "
                    f"phase {phase} lacks {pending} arrivals and {size} bytes"
                )
        return "deadlock: " + "; ".join(waiting) + "."

    def leftovers(self) -> list[str]:
        """What is wrong when all programs have ended."""
        unread = [
            f"stage {stage} of CTA {cta} is filled, but {count} of its reads never happen."
            for (cta, stage), count in self.unread.items()
            if count
        ]
        return unread + self.sums.leftovers()

    def _ended(self, number: int) -> bool:
        return self.at[number] == len(self.protocol.programs[number].ops) and self._turn_over(number)

    def _ready(self, number: int) -> bool:
        program, at = self.protocol.programs[number], self.at[number]
        if at == len(program.ops) or not self._turn_over(number):
            return False
        op = program.ops[at]
        if isinstance(op, Wait):
            return self.bars[op.barrier, op.index, program.cta][0] & 1 != op.parity
        if isinstance(op, WaitStores):
            return not self.slots.waits(number, op)
        return not isinstance(op, AwaitSums) or not self.sums.waits(number, op)

    def _slot(self, number: int, program: Program, op: SlotOp) -> None:
        self.slots.act(number, op)

    def _part(self, number: int, program: Program, op: PartOp) -> None:
        self.sums.act(number, program.cta, op)

    def _slot_done(self, position: int) -> None:
        flight = self.slots.flights[position]
        fetched = self.slots.land(flight)
        if fetched is not None:
            cta = self.protocol.programs[flight[0]].cta
            what = f"C of subtile {fetched.tag}"
            self._count(fetched.barrier, fetched.index, cta, 0, -fetched.size_bytes, what)

    def _turn_over(self, number: int) -> bool:
        awaited = self.turn_awaited[number]
        return awaited is None or self.bars[awaited[0]][0] > awaited[1]

    def _alive(self, cta: int, who: str) -> None:
        mine = [n for n, program in enumerate(self.protocol.programs) if program.cta == cta]
        if all(self._ended(n) for n in mine):
            raise ProtocolError(f"{who} reaches CTA {cta}, which has ended: its shared memory is gone.")

    def _wait(self, number: int, program: Program, op: Wait) -> None:
        """Passed: `choices` has seen to it."""

    def _arrive(self, number: int, program: Program, op: Arrive) -> None:
        for cta in op.ctas or (program.cta,):
            if cta != program.cta:
                self._alive(cta, f"{program}, arriving at {op.barrier}[{op.index}],")
            self._count(op.barrier, op.index, cta, op.count, 0, str(program))

    def _expect(self, number: int, program: Program, op: Expect) -> None:
        self._count(op.barrier, op.index, program.cta, 1, op.size_bytes, str(program))

    def _count(self, name: str, index: int, cta: int, count: int, size_bytes: int, who: str) -> None:
        phase, pending, outstanding = self.bars[name, index, cta]
        pending, outstanding = pending - count, outstanding + size_bytes
        if pending < 0:
            raise ProtocolError(
                f"{who} arrives at {name}[{index}] of CTA {cta} once more than the {self.arrivals[name]} "
                f"times that end a phase: wrong arrival count in phase {phase}."
            )
        if pending == 0 and outstanding == 0:
            phase, pending = phase + 1, self.arrivals[name]
        self.bars[name, index, cta] = (phase, pending, outstanding)

    def _load(self, number: int, program: Program, op: Load) -> None:
        for cta in op.ctas:
            if cta != program.cta:
                self._alive(cta, f"{program}, loading {op.part},")
            place = (cta, op.stage)
            held = self.holds.get((cta, op.stage, op.part))
            what = f"{program} loads {op.part} of {_tag(op.tag)} to stage {op.stage} of CTA {cta}, which"
            if self.reading.get(place, 0):
                raise ProtocolError(f"{what} is being read: overwritten stage.")
            if held == _UNDER_WAY:
                raise ProtocolError(f"{what} another load is under way to: overwritten stage.")
            if held is not None and held != op.tag and self.unread.get(place, 0):
                raise ProtocolError(f"{what} holds {_tag(held)}, not read yet: overwritten stage.")
            self.holds[cta, op.stage, op.part] = _UNDER_WAY
            self.flights = (*self.flights, (cta, op))

    def _land(self, cta: int, load: Load) -> None:
        self._alive(cta, f"{load.part} of {_tag(load.tag)}")
        place = (cta, load.stage)
        self.holds[cta, load.stage, load.part] = load.tag
        if all(self.holds.get((cta, load.stage, part)) == load.tag for part in self.protocol.parts[cta]):
            self.unread[place] = self.protocol.readers
        self._count(load.barrier, load.index, cta, 0, -load.size_bytes, f"{load.part} of {_tag(load.tag)}")

    def _begin_read(self, number: int, program: Program, op: BeginRead) -> None:
        place = (program.cta, op.stage)
        for part in self.protocol.parts[program.cta]:
            held = self.holds.get((program.cta, op.stage, part))
            if held != op.tag:
                what = "nothing" if held is None else "a load under way" if held == _UNDER_WAY else _tag(held)
                raise ProtocolError(
                    f"{program} reads {_tag(op.tag)} from stage {op.stage}, whose part {part} has {what}: "
                    f"{'early' if held in (None, _UNDER_WAY) else 'wrong'} read."
                )
        self.reading[place] = self.reading.get(place, 0) + 1

    def _end_read(self, number: int, program: Program, op: EndRead) -> None:
        place = (program.cta, op.stage)
        self.reading[place] -= 1
        self.unread[place] -= 1

    def _enter(self, number: int, program: Program, op: Enter) -> None:
        owner = self.owner.get((op.resource, program.cta))
        if owner is not None:
            raise ProtocolError(
                f"{program} takes the {op.resource} while {self.protocol.programs[owner]} has it."
            )
        self.owner[op.resource, program.cta] = number

    def _leave(self, number: int, program: Program, op: Leave) -> None:
        self.owner[op.resource, program.cta] = None

    def _named(self, number: int, program: Program, op: NamedArrive | NamedSync) -> None:
        key = (op.barrier, op.index, program.cta)
        turn = self.bars[key][0]
        self._count(*key, op.threads, 0, str(program))
        if isinstance(op, NamedSync):
            self.turn_awaited[number] = (key, turn)


_ACTIONS: dict[type, Callable[..., None]] = {
    Wait: Machine._wait,
    Arrive: Machine._arrive,
    Expect: Machine._expect,
    Load: Machine._load,
    BeginRead: Machine._begin_read,
    EndRead: Machine._end_read,
    Enter: Machine._enter,
    Leave: Machine._leave,
    NamedArrive: Machine._named,
    NamedSync: Machine._named,
    **dict.fromkeys(get_args(SlotOp), Machine._slot),
    **dict.fromkeys(get_args(PartOp), Machine._part),
}


def _tag(tag: Part) -> str:
    return f"k-block {tag[1]} of tile {tag[0]}" if isinstance(tag, tuple) else str(tag)
