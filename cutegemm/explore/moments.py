"""The moments of a pipeline, one after the other: where each role is in its program, and what barriers say."""

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

Place = tuple[Mapping[str, str], int]  # part -> what it holds; readers
_MOST = 3000
_FLAGS = {op.LAST: "this is the tile's last part", op.KEPT: "a tile is held"}


@dataclass(frozen=True)
class Moment:
    """One thing that has just happened in the CTA that is shown.

    role           who did it, or None where a bulk copy has landed
    text           what
    at             role -> the line of its program that it is at, or None past its end
    waits          roles that cannot go on
    barriers       (name, index) -> phases ended, arrivals that are missing, bytes that are missing
    stages         of each stage, part -> what it holds; and how many roles read it
    accumulators   the same of the place of each consumer's sums, where CTAs share K
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
    """What happens in the first CTA, as early as the barriers let it: see `draw.played`.

    raises   UnsupportedError for a plan whose threads all follow one schedule
    """
    shown, k_tiles, tiles = shown_of(plan)
    protocol = protocol_of(shown, k_tiles=k_tiles, tiles=tiles)
    own = [number for number, process in enumerate(protocol.processes) if process.cta == 0]
    work = [shown.scheduler.share_of(tile, 0) for tile in work_of(shown, k_tiles=k_tiles, tiles=tiles)[0]]
    lines = {
        number: lines_of(shown, shown.program(shown.roles[place].name), PlaceOfRole(0, place), work)
        for place, number in enumerate(own)
    }
    machine, out = Machine(protocol), []
    before: tuple[tuple[Place, ...], tuple[Place, ...]] | None = None
    for did in played(machine, Durations()):
        landed = did.number is None
        held = _stages(machine, plan.stages), _accumulator_places(machine)
        if landed and held == before:
            continue  # in another CTA, or of an epilogue stage
        if did.number is not None and did.number not in lines:
            continue
        text = told(did.op, plan.stages)
        if landed and before is not None and held[1] != before[1]:
            text = "sums have come"
        before = held
        out.append(_moment(machine, protocol, did, lines, text, *held))
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
    at: dict[str, int | None] = {}
    ready = set(machine.choices())
    waits = set()
    for number, of_ops in lines.items():
        role, here = protocol.processes[number].role, machine.at[number]
        if number == did.number:
            here = did.place
        elif here < len(of_ops) and number not in ready:
            waits.add(role)
        at[role] = of_ops[here] if here < len(of_ops) else None
    who = None if did.number is None else protocol.processes[did.number].role
    barriers = {(name, index): state for (name, index, cta), state in machine.bars.items() if cta == 0}
    return Moment(did.start, who, text, at, frozenset(waits), barriers, stages, accumulators)


def _accumulator_places(machine: Machine) -> tuple[Place, ...]:
    """Behind the stages: one for each consumer that is sent sums."""
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
    return f"of tile {what[0]}" if isinstance(what, tuple) else _held(what)


def _stages(machine: Machine, count: int) -> tuple[Place, ...]:
    parts = machine.protocol.operands[0]
    return tuple(
        [
            (
                {part: _held(machine.holds.get((0, stage, part))) for part in parts},
                machine.reading.get((0, stage), 0),
            )
            for stage in range(count)
        ]
    )


def _held(what: object) -> str:
    if isinstance(what, tuple):
        return f"k-tile {what[1]} of tile {what[0]}"
    return "" if what is None else str(what)


def told(each: op.Op | None, stages: int | None = None) -> str:
    """An operation in words.

    stages   of the ring, behind which there are places of sums; none where left out

    >>> told(op.Wait("full", 2, 1))
    'passes full[2]'
    >>> told(None)
    'a bulk copy has landed'
    """
    if each is None:
        return "a bulk copy has landed"
    if stages is not None and isinstance(each, (op.BeginRead, op.EndRead)) and each.stage >= stages:
        begins = isinstance(each, op.BeginRead)
        return "begins to read the sums that have come" if begins else "has read the sums that have come"
    words = _TOLD.get(type(each))
    return _words(type(each).__name__) if words is None else words(each)


def _passes(each: Any) -> str:
    return f"passes {each.barrier}[{each.index}]"


def _arrives(each: Any) -> str:
    return f"arrives at {each.barrier}[{each.index}]"


_TOLD: dict[type, Callable[[Any], str]] = {
    op.Wait: _passes,
    op.NamedSync: _passes,
    op.Arrive: _arrives,
    op.NamedArrive: _arrives,
    op.Expect: lambda each: f"expects {each.size_bytes} bytes at {each.barrier}[{each.index}]",
    op.Load: lambda each: f"asks for {each.operand} of k-tile {each.tag[1]}, to stage {each.stage}",
    op.Send: lambda each: f"sends sums of tile {each.tag[0]} to {len(each.ctas)} CTAs, each those of its columns",
    op.BeginRead: lambda each: f"begins to read stage {each.stage}: k-tile {each.tag[1]} of tile {each.tag[0]}",
    op.EndRead: lambda each: f"has read stage {each.stage}",
    op.Enter: lambda each: f"has the {each.resource}",
    op.Leave: lambda each: f"gives the {each.resource} back",
    op.Branch: lambda each: f"asks whether {_FLAGS[each.flag]}",
    op.Compute: lambda each: " ".join(str(each.step).split()),
}


def _words(name: str) -> str:
    """The words of a name.

    >>> _words("StoreEpiStage")
    'store epi stage'
    """
    return "".join([f" {letter.lower()}" if letter.isupper() else letter for letter in name]).strip()
