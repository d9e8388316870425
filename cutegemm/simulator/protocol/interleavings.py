"""A protocol played in many orders: at random, with each role as fast or slow as can be, or in all."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cutegemm.simulator.protocol.machine import Event, Machine, told
from cutegemm.simulator.protocol.protocol import Protocol, ProtocolError

_TRACE = 12  # of the last things that happened, told with a fault


@dataclass(frozen=True)
class ProtocolFault:
    """A fault, the interleaving in which it was seen first, and the operations before it."""

    text: str
    interleaving: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.text} ({self.interleaving})", *(f"    {line}" for line in self.trace)])


@dataclass(frozen=True)
class ProtocolReport:
    """The faults of a protocol.

    interleavings   that were played to their end
    states          that were seen by an exhaustive search
    exhaustive      whether it saw all of them
    """

    faults: tuple[ProtocolFault, ...]
    interleavings: int
    states: int = 0
    exhaustive: bool = False


def play_interleavings(
    protocol: Protocol, *, random_runs: int = 32, seed: int = 0, extremes: bool = True
) -> ProtocolReport:
    """Plays a protocol with each role, and the loads, ahead of and behind all others, and at random.

    random_runs   with speeds drawn for each role, far apart
    extremes      whether each role is also played ahead of and behind all others

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.simulator.protocol.protocol import protocol_of
    >>> play_interleavings(protocol_of(sm90_plan(), k_tiles=7, tiles=3), random_runs=4).faults
    ()
    """
    faults: dict[str, ProtocolFault] = {}
    runs = 0
    for name, choose in _orders(protocol, random_runs, seed, extremes):
        runs += 1
        for text, events in _play(Machine(protocol), choose):
            faults.setdefault(text, _fault(text, name, events))
    return ProtocolReport(tuple(faults.values()), runs)


def search_interleavings(protocol: Protocol, max_states: int = 200_000) -> ProtocolReport:
    """Every state that a protocol can come to, by any order; for small ones.

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.simulator.protocol.protocol import protocol_of
    >>> plan = sm90_plan(schedule="cooperative", tile=(64, 64, 64), consumers=1, stages=2, store="direct")
    >>> report = search_interleavings(protocol_of(plan, k_tiles=3, tiles=2))
    >>> report.faults, report.exhaustive
    ((), True)
    """
    faults: dict[str, ProtocolFault] = {}
    first = Machine(protocol)
    seen = {first.key()}
    ends = 0
    stack: list[tuple[Machine, tuple[Event, ...]]] = [(first, ())]
    while stack:
        machine, events = stack.pop()
        choices = machine.choices()
        if not choices:
            ends += 1
            for text in machine.leftovers() if machine.finished else [machine.stuck()]:
                faults.setdefault(text, _fault(text, "exhaustive search", events))
        for choice in choices:
            after = machine.copy()
            with_choice = (*events[1 - _TRACE :], machine.event(choice))
            try:
                after.step(choice)
            except ProtocolError as error:
                faults.setdefault(str(error), _fault(str(error), "exhaustive search", with_choice))
                continue
            key = after.key()
            if key not in seen:
                if len(seen) == max_states:
                    return ProtocolReport(tuple(faults.values()), ends, len(seen), False)
                seen.add(key)
                stack.append((after, with_choice))
    return ProtocolReport(tuple(faults.values()), ends, len(seen), True)


def _fault(text: str, interleaving: str, events: Sequence[Event]) -> ProtocolFault:
    return ProtocolFault(text, interleaving, tuple([told(event) for event in events]))


def _play(machine: Machine, choose: Callable[[Machine], int]) -> list[tuple[str, Sequence[Event]]]:
    """Faults, and the events before them."""
    events: deque[Event] = deque(maxlen=_TRACE)
    while True:
        machine.look()
        if not machine.ready and not machine.copies:
            texts = machine.leftovers() if machine.finished else [machine.stuck()]
            return [(text, events) for text in texts]
        choice = choose(machine)
        events.append(machine.event(choice))
        try:
            machine.step(choice)
        except ProtocolError as error:
            return [(str(error), events)]


def _orders(
    protocol: Protocol, random_runs: int, seed: int, extremes: bool
) -> Iterator[tuple[str, Callable[[Machine], int]]]:
    count = len(protocol.processes)
    for loads_first in (True, False) if extremes else ():
        loads = f"loads {'at once' if loads_first else 'as late as can be'}"
        for number, process in enumerate(protocol.processes):
            for first in (True, False):
                where = f"{process} {'ahead of' if first else 'behind'} all others, {loads}"
                yield where, _extreme(number, first, loads_first, count)
    for run in range(random_runs):
        yield f"random run {run} of seed {seed}", _at_random(random.Random(f"{seed}.{run}"), count)


def _extreme(number: int, is_first: bool, loads_first: bool, count: int) -> Callable[[Machine], int]:
    """The choice of a process before or behind all others, and of loads before or behind these; of equals, the first.

    count   of processes: the number of the first load
    """

    def choose(machine: Machine) -> int:
        ready = machine.ready
        if not ready or (loads_first and machine.copies):
            return count
        if is_first:
            return number if machine.is_among_ready[number] else ready[0]
        return ready[1] if ready[0] == number and len(ready) > 1 else ready[0]

    return choose


def _at_random(rng: random.Random, count: int) -> Callable[[Machine], int]:
    """Processes and loads at speeds that differ by up to a thousand."""
    *speeds, of_loads = [10 ** rng.uniform(0, 3) for _ in range(count + 1)]

    def choose(machine: Machine) -> int:
        choices = machine.choices()
        return rng.choices(choices, [speeds[c] if c < count else of_loads for c in choices])[0]

    return choose
