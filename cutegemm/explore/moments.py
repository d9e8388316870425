"""The moments of a pipeline in order of time: the line that each role is at, its barriers and its stages.

A moment is one operation of a role, or the arrival of data of a bulk copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from cutegemm.draw.played import Durations, Played, played
from cutegemm.draw.timeline import shown_of
from cutegemm.plan import GemmPlan
from cutegemm.plan.program import operations as op
from cutegemm.plan.program.expand import Place as PlaceOfRole
from cutegemm.plan.program.expand import lines_of
from cutegemm.simulator.protocol.machine import Machine
from cutegemm.simulator.protocol.protocol import Protocol, protocol_of, work_of

Place = tuple[Mapping[str, str], int]  # (content by operand or sending CTA, number of roles that read it)
_MOST = 3000  # limit of the moments of a plan
_FLAGS = {op.LAST: "this is the last K split of the tile", op.KEPT: "a tile waits for its overlapped epilogue"}


@dataclass(frozen=True)
class Moment:
    """Describes one event of a simulated CTA, and the state of its barriers and stages right after the event.

    An event is an operation of a warp role (producer or consumer), or the arrival of a bulk copy (TMA).

    time           start of the event, in units of the time that the issue of a copy takes
    role           name of the warp role; None if the event is the arrival of a copy
    text           description of the event, such as "passes full[2]"
    at             dict from role name to the program line that the role is at; None if its program has ended
    waits          names of the roles that are blocked at a barrier
    barriers       dict from (barrier name, index) to (completed phases, missing arrivals, missing bytes)
    stages         for each mainloop stage, ({operand: text of its content}, number of roles that read it now)
    accumulators   for each buffer for accumulators of other CTAs, ({sending CTA: text}, number of roles that read it
                   now); () without cluster split-K
    """

    time: float
    role: str | None
    text: str
    at: Mapping[str, int | None]
    waits: frozenset[str]
    barriers: Mapping[tuple[str, int], tuple[int, int, int]]
    stages: tuple[Place, ...]
    accumulators: tuple[Place, ...] = ()


@lru_cache(maxsize=8)
def moments(plan: GemmPlan) -> tuple[Moment, ...]:
    """Simulate the warp roles of CTA 0 of a plan and return their events, in the order of time.

    Each operation happens as early as its barriers allow. A few tiles of a few k-tiles are simulated, and at most 3000
    events are returned.

    raises   UnsupportedError if the plan has no warp roles
    """
    shown, k_tiles, tiles = shown_of(plan)
    protocol = protocol_of(shown, k_tiles=k_tiles, tiles=tiles)
    numbers = [number for number, process in enumerate(protocol.processes) if process.cta == 0]
    work = [shown.cluster_tile.share_of(tile, 0) for tile in work_of(shown, k_tiles=k_tiles, tiles=tiles)[0]]
    lines = {
        number: lines_of(shown, shown.program(shown.roles[place].name), PlaceOfRole(0, place), work)
        for place, number in enumerate(numbers)
    }
    machine, out = Machine(protocol), []
    before: tuple[tuple[Place, ...], tuple[Place, ...]] | None = None
    for did in played(machine, Durations()):
        is_arrival = did.number is None
        places = _stages(machine, plan.stages), _accumulator_places(machine)
        if is_arrival and places == before:
            continue  # the data arrived in another CTA or in an epilogue stage
        if did.number is not None and did.number not in lines:
            continue
        text = told(did.op, plan.stages)
        if is_arrival and before is not None and places[1] != before[1]:
            text = "accumulators have arrived"
        before = places
        out.append(_moment(machine, protocol, did, lines, text, *places))
        if len(out) == _MOST:
            break
    return tuple(out)


def _moment(
    machine: Machine,
    protocol: Protocol,
    did: Played,
    lines: Mapping[int, tuple[int, ...]],
    text: str,
    stages: tuple[Place, ...],
    accumulators: tuple[Place, ...],
) -> Moment:
    """Return the record of one event of a simulation: the event, and the state of CTA 0 right after it.

    Processes are warp roles of one CTA, such as the producer of CTA 0.

    machine        the simulation, stopped right after the event
    protocol       the processes that are simulated, and their barriers
    did            the event: index of the process that acted (None for the arrival of a copy), and start time
    lines          for each process of CTA 0, by index: the program line of each of its operations
    text           description of the event
    stages         for each mainloop stage, its content by operand and the number of roles that read it
    accumulators   for each buffer of accumulators from other CTAs, its content by sending CTA and the number of roles
                   that read it; empty without cluster split-K
    """
    at: dict[str, int | None] = {}
    ready = set(machine.choices())
    waits = set()
    for number, line_of in lines.items():
        role, position = protocol.processes[number].role, machine.at[number]
        if number == did.number:
            position = did.place
        elif position < len(line_of) and number not in ready:
            waits.add(role)
        at[role] = line_of[position] if position < len(line_of) else None
    role_or_none = None if did.number is None else protocol.processes[did.number].role
    barriers = {(name, index): state for (name, index, cta), state in machine.bars.items() if cta == 0}
    return Moment(did.start, role_or_none, text, at, frozenset(waits), barriers, stages, accumulators)


def _accumulator_places(machine: Machine) -> tuple[Place, ...]:
    """Return the content of the buffers for accumulators that consumers receive from other CTAs.

    The result has an entry for each buffer of CTA 0: a dict from sending CTA to a text such as "of tile 1", and the
    number of warp roles that read the buffer now. It is empty without cluster split-K.

    machine   the simulation
    """
    protocol = machine.protocol
    if protocol.stages is None or not protocol.accumulators:
        return ()
    count = next(barrier.count for barrier in protocol.barriers if barrier.name == "accumulators")
    return tuple(
        [
            (
                {part: _accumulators_content(machine.holds.get((0, place, part))) for part in protocol.accumulators},
                machine.reading.get((0, place), 0),
            )
            for place in range(protocol.stages, protocol.stages + count)
        ]
    )


def _accumulators_content(what: object) -> str:
    """Describe the content of a buffer for accumulators from other CTAs: "of tile 1", "under way", or "" if empty.

    what   a tuple whose first entry is the tile index and whose other entries are not shown; a text, such as "under
           way", for data that is not complete; None for an empty buffer
    """
    return f"of tile {what[0]}" if isinstance(what, tuple) else _stage_content(what)


def _stages(machine: Machine, count: int) -> tuple[Place, ...]:
    """Return what each mainloop stage of CTA 0 contains: (description by operand, number of roles that read it).

    machine   the simulation, whose state is read
    count     number of stages
    """
    operands = machine.protocol.operands[0]
    return tuple(
        [
            (
                {operand: _stage_content(machine.holds.get((0, stage, operand))) for operand in operands},
                machine.reading.get((0, stage), 0),
            )
            for stage in range(count)
        ]
    )


def _stage_content(what: object) -> str:
    """Describe the content of a mainloop stage: "k-tile 2 of tile 0", "under way", or "" if empty.

    what   (tile, k-tile) as indices; a text, such as "under way", for data that is not complete; None for an empty
           stage
    """
    if isinstance(what, tuple):
        return f"k-tile {what[1]} of tile {what[0]}"
    return "" if what is None else str(what)


def told(each: op.Op | None, stages: int | None = None) -> str:
    """Describe an operation of a warp role for the user, such as "passes full[2]" or "has read stage 1".

    each     the operation; None if a bulk copy (TMA) has arrived
    stages   number of mainloop stages; a stage with this index or a higher one is a buffer of received accumulators.
             None if the plan has no such buffers

    >>> told(op.Wait("full", 2, 1))
    'passes full[2]'
    >>> told(None)
    'a bulk copy has arrived'
    """
    if each is None:
        return "a bulk copy has arrived"
    if stages is not None and isinstance(each, (op.BeginRead, op.EndRead)) and each.stage >= stages:
        begins = isinstance(each, op.BeginRead)
        return "begins to read the received accumulators" if begins else "has read the received accumulators"
    words = _DESCRIPTIONS.get(type(each))
    return _words(type(each).__name__) if words is None else words(each)


def _passes(wait: Any) -> str:
    """Return the text for a warp role that has waited at a barrier and continues, such as "passes full[2]".

    wait   the operation of the role; its attributes `barrier` and `index` are "full" and 2 in this example
    """
    return f"passes {wait.barrier}[{wait.index}]"


def _arrives(arrival: Any) -> str:
    """Return the text for a warp role that arrives at a barrier, such as "arrives at empty[2]".

    arrival   the operation of the role; its attributes `barrier` and `index` are "empty" and 2 in this example
    """
    return f"arrives at {arrival.barrier}[{arrival.index}]"


_DESCRIPTIONS: dict[type, Callable[[Any], str]] = {
    op.Wait: _passes,
    op.NamedSync: _passes,
    op.Arrive: _arrives,
    op.NamedArrive: _arrives,
    op.Expect: lambda each: f"expects {each.size_bytes} bytes at {each.barrier}[{each.index}]",
    op.Load: lambda each: f"issues the load of {each.operand} of k-tile {each.tag[1]} into stage {each.stage}",
    op.Send: lambda each: f"sends accumulators of tile {each.tag[0]} to {len(each.ctas)} CTAs, by their columns",
    op.BeginRead: lambda each: f"begins to read stage {each.stage}: k-tile {each.tag[1]} of tile {each.tag[0]}",
    op.EndRead: lambda each: f"has read stage {each.stage}",
    op.Enter: lambda each: f"acquires the {each.resource}",
    op.Leave: lambda each: f"releases the {each.resource}",
    op.Branch: lambda each: f"tests whether {_FLAGS[each.flag]}",
    op.Compute: lambda each: " ".join(str(each.step).split()),
}


def _words(name: str) -> str:
    """Return a CamelCase class name as lower-case words, e.g. "WaitFull" as "wait full".

    >>> _words("StoreEpiStage")
    'store epi stage'
    """
    return "".join([f" {letter.lower()}" if letter.isupper() else letter for letter in name]).strip()
