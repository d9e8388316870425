"""Execution of a protocol in many orders: at random, with each role first or last, or exhaustively."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cutegemm.simulator.protocol.machine import Event, Machine, event_text
from cutegemm.simulator.protocol.protocol import Protocol, ProtocolError

_TRACE = 12  # number of events before a fault that are reported with it


@dataclass(frozen=True)
class ProtocolFault:
    """A synchronization fault, found by executing a plan's warp roles in some order, with the operations before it.

    text           description of the fault
    interleaving   name of the first order of execution with this fault
    trace          texts of the operations executed before it; the last one shows the fault
    """

    text: str
    interleaving: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.text} ({self.interleaving})", *(f"    {line}" for line in self.trace)])


@dataclass(frozen=True)
class ProtocolReport:
    """Result of executing a plan's warp roles and barriers in many orders.

    faults          synchronization faults; () if none was found
    interleavings   number of orders (interleavings) that were executed to their end
    states          number of states that an exhaustive search visited; 0 for other executions
    exhaustive      whether the search visited all states; if so, () in `faults` proves that the protocol has none
    """

    faults: tuple[ProtocolFault, ...]
    interleavings: int
    states: int = 0
    exhaustive: bool = False


def play_interleavings(
    protocol: Protocol, *, random_runs: int = 32, seed: int = 0, extremes: bool = True
) -> ProtocolReport:
    """Execute a plan's warp roles and barriers in many orders to find synchronization faults such as deadlocks.

    First come extreme orders: one role always goes before, or after, all others, and loads end as early or as late as
    possible. Then come random orders.

    protocol      the operations of each warp role of each CTA, and the barriers, e.g. from `protocol_of`
    random_runs   number of random orders, where the speeds of roles and loads differ by up to a factor of 1000
    seed          seed of the random orders
    extremes      whether to execute the extreme orders

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
    """Search all orders of execution of a plan's warp roles for synchronization faults, if there are few enough states.

    A state is the position of each role, with the contents of barriers and stages. Each state is visited once. If there
    are more than `max_states`, the search stops, and `exhaustive` of the report is False.

    protocol   the operations of each warp role of each CTA, and the barriers, e.g. from `protocol_of`

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
    """Return the record of a synchronization fault, with the operations before it as texts.

    text           description
    interleaving   name of the order of execution
    events         operations before the fault, the last one at the end
    """
    return ProtocolFault(text, interleaving, tuple([event_text(event) for event in events]))


def _play(machine: Machine, choose: Callable[[Machine], int]) -> list[tuple[str, Sequence[Event]]]:
    """Execute warp roles in one order, to the end or the first fault; return (fault, events before it) pairs.

    machine   simulated roles and barriers in their initial state
    choose    returns the next event of a machine, as an element of `machine.choices()`
    """
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
    """Yield orders in which to execute the warp roles of a protocol: (name, function that chooses the next event).

    The function gets the simulated machine, and returns one of the events that may happen next: a warp role executes
    its next operation, or a TMA load finishes. Random orders choose by chance. Extreme orders let one role run as early
    or as late as possible, with loads that finish early or late.

    protocol      the warp roles with their operations
    random_runs   number of random orders
    seed          seed of the random orders
    extremes      whether to include the extreme orders
    """
    count = len(protocol.processes)
    for loads_first in (True, False) if extremes else ():
        loads = f"loads {'as early' if loads_first else 'as late'} as possible"
        for number, process in enumerate(protocol.processes):
            for first in (True, False):
                name = f"{process} {'before' if first else 'after'} all others, {loads}"
                yield name, _extreme(number, first, loads_first, count)
    for run in range(random_runs):
        yield f"random run {run} of seed {seed}", _at_random(random.Random(f"{seed}.{run}"), count)


def _extreme(number: int, is_first: bool, loads_first: bool, count: int) -> Callable[[Machine], int]:
    """Return a function that chooses the next event so that one warp role goes first, or last, whenever it can.

    number        index of this process (one role of one CTA)
    is_first      True: it goes whenever it can; False: only if no other can
    loads_first   whether loads end before any process goes on, or only if none can
    count         number of processes. Machine choices below it are processes, those from it on are loads that end
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
    """Return a function that chooses the next event at random, with weights that differ by up to a factor of 1000.

    rng     random number generator
    count   number of processes (roles of CTAs). Choices below it are processes, those from it on are loads that end
    """
    *speeds, load_speed = [10 ** rng.uniform(0, 3) for _ in range(count + 1)]

    def choose(machine: Machine) -> int:
        choices = machine.choices()
        return rng.choices(choices, [speeds[c] if c < count else load_speed for c in choices])[0]

    return choose
