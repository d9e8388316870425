"""Machine that executes the processes of a protocol operation by operation, in any order, and checks every operation.

The model:

    mbarrier        pending arrivals, outstanding bytes, and a phase that ends when both are 0. A wait for a parity
                    passes if the current phase has the other parity (PTX ISA, mbarrier.test_wait)
    named barrier   threads that have arrived, by bar.sync or bar.arrive; a round ends when all have arrived
    bulk copy       pieces of a stage that are in flight from the request until they land. In each CTA of a multicast
                    they land at a different time, and complete bytes on the CTA's barrier
    stage           content of each piece, number of readers, and number of reads that are still due. The buffers for
                    accumulators of cluster split-K are stages, too
    resource        something that only one role may use at a time: the tensor cores
    flag            a run-time condition of a process, which decides its branches, such as: this is the last K split
    accumulators    accumulators of K splits, in memory that all CTAs share: see `split_state`

`interleavings` chooses the order.
"""

from __future__ import annotations

from bisect import insort
from typing import Union, get_args

from cutegemm.plan.program.operations import (
    LAST,
    WHOLE_TILE,
    Arrive,
    AwaitAccumulators,
    BeginRead,
    Branch,
    Compute,
    EndRead,
    Enter,
    EpiStageOp,
    Expect,
    FlipPhase,
    Leave,
    Load,
    Mark,
    NamedArrive,
    NamedSync,
    Op,
    Send,
    SplitOp,
    Tag,
    Wait,
    WaitStores,
)
from cutegemm.simulator.protocol.epi_stage_state import EpiStageState
from cutegemm.simulator.protocol.protocol import Misuse, Process, Protocol, ProtocolError
from cutegemm.simulator.protocol.split_state import SplitState

_UNDER_WAY = "under way"
Content = Union[None, str, Tag]  # content of a stage: None, in flight, or the tag of a k-tile or tile
Event = tuple[Union[Process, int], Op, bool]  # (process, or CTA where a load lands; operation; whether a copy ends)


class Machine:
    """Simulated state of the warp roles of some CTAs and their barriers, executed operation by operation in any order.

    `choices` returns the events that may happen next: a role that goes on, or a load that ends. `step` executes one,
    and raises an error if it breaks a synchronization rule, e.g. if a stage is overwritten before it is read.

    A process is one role of one CTA. The methods in `_ACTIONS` execute an operation, with these arguments:

    number    index of the process in the list of all processes
    process   the process, with its CTA, role and list of operations
    op        the operation to execute

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.simulator.protocol.protocol import protocol_of
    >>> machine = Machine(protocol_of(sm90_plan(), k_tiles=1))
    >>> machine.describe(machine.choices()[0])
    "producer of CTA 0: Wait(barrier='empty', index=0, parity=1, flipped=False)"
    """

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        ctas = range(len(protocol.operands))
        self.at = [0] * len(protocol.processes)
        self.order_awaited: list[tuple[tuple[str, int, int], int] | None] = [None] * len(protocol.processes)
        self.arrivals = {b.name: b.arrivals for b in protocol.barriers}
        # (phases ended, arrivals pending, bytes outstanding); for a named barrier the arrivals are threads
        self.bars = {
            (b.name, index, cta): (0, b.arrivals, 0)
            for b in protocol.barriers
            for index in range(b.count)
            for cta in ctas
        }
        self.holds: dict[tuple[int, int, str], Content] = {}  # (cta, stage, operand) -> content
        self.reading: dict[tuple[int, int], int] = {}  # (cta, stage) -> number of processes that read it now
        self.unread: dict[tuple[int, int], int] = {}  # (cta, stage) -> reads that are still due
        self.flights: tuple[tuple[int, Load], ...] = ()  # (cta, load) in flight
        self.owner: dict[tuple[str, int], tuple[str, int]] = {}  # (resource, cta) -> (role, number of its processes)
        self.flipped = [0] * len(protocol.processes)
        self.flags: list[frozenset[str]] = [frozenset()] * len(protocol.processes)
        self.epi_stages = EpiStageState()
        self.split_k_partials = SplitState()
        self.ready: list[int] = []  # processes that can continue, except those in `unseen`
        self.is_among_ready = [False] * len(protocol.processes)
        self.unseen = set(range(len(protocol.processes)))  # processes whose entry in `ready` may be out of date

    def copy(self) -> Machine:
        """Return a copy of this machine's state (roles, barriers and stages) that can be changed independently."""
        other = object.__new__(Machine)
        other.__dict__.update(self.__dict__)
        for name in (
            "at",
            "order_awaited",
            "bars",
            "holds",
            "reading",
            "unread",
            "owner",
            "epi_stages",
            "split_k_partials",
            "flipped",
            "flags",
            "ready",
            "is_among_ready",
            "unseen",
        ):
            setattr(other, name, getattr(self, name).copy())
        return other

    def key(self) -> tuple[object, ...]:
        """Return a hashable key of this machine's state, so that a search of all orders can visit each state once.

        States with equal keys have the same possible continuations.
        """
        return (
            tuple(self.at),
            tuple(self.order_awaited),
            tuple(self.flipped),
            tuple(self.flags),
            tuple(self.bars.values()),
            frozenset(self.holds.items()),
            frozenset(self.reading.items()),
            frozenset(self.unread.items()),
            frozenset(self.flights),
            frozenset(self.owner.items()),
            self.epi_stages.key(),
            self.split_k_partials.key(),
        )

    def choices(self) -> list[int]:
        """Return the events that may happen next in this machine, as integers.

        With P processes (roles of CTAs), i < P means that process i executes its next operation. P + i means that the
        i-th bulk copy in flight ends.
        """
        self.look()
        first, copies = len(self.at), len(self.flights) + len(self.epi_stages.flights)
        return [*self.ready, *range(first, first + copies)] if copies else self.ready.copy()

    def look(self) -> None:
        """Update the list `ready` of the processes (roles of CTAs) that can execute their next operation now."""
        ready, known = self.ready, self.is_among_ready
        for number in self.unseen:
            now = self.is_ready(number)
            if now != known[number]:
                known[number] = now
                if now:
                    insort(ready, number)
                else:
                    ready.remove(number)
        self.unseen.clear()

    @property
    def copies(self) -> int:
        """Return the number of bulk copies (TMA loads and stores) that have started and not ended."""
        return len(self.flights) + len(self.epi_stages.flights)

    @property
    def finished(self) -> bool:
        """Return whether every process (role of a CTA) has executed all its operations, and all copies have ended."""
        return not self.copies and all(self._ended(number) for number in range(len(self.at)))

    def describe(self, choice: int) -> str:
        """Return an event as text for messages: the process (role of a CTA), and its operation.

        choice   an element of `choices`
        """
        return event_text(self.event(choice))

    def event(self, choice: int) -> Event:
        """Return the event for an element of `choices`: (who, operation, whether it is the end of a copy).

        "Who" is the process (role of a CTA) that executes the operation, or the index of the CTA where a load ends.

        choice   an element of `choices`, i.e. an index of a process or of a copy in flight
        """
        processes = self.protocol.processes
        if choice < len(processes):
            process = processes[choice]
            return process, process.ops[self.at[choice]], False
        position = choice - len(processes)
        if position >= len(self.flights):
            number, _, _, op = self.epi_stages.flights[position - len(self.flights)]
            return processes[number], op, True
        return *self.flights[position], True

    def step(self, choice: int) -> None:
        """Execute one event: the next operation of a process (role of a CTA), or the end of a bulk copy.

        choice   an element of `choices`
        raises   ProtocolError if the operation violates a synchronization rule
        """
        processes = self.protocol.processes
        position = choice - len(processes)
        if position < 0:
            process, at = processes[choice], self.at[choice]
            op = process.ops[at]
            self.at[choice] = at + 1
            self.order_awaited[choice] = None
            self.unseen.add(choice)
            try:
                getattr(self, _ACTIONS[type(op)])(choice, process, op)
            except Misuse as what:
                raise ProtocolError(f"{process}: {what}") from what
        elif position < len(self.flights):
            cta, load = self.flights[position]
            self.flights = self.flights[:position] + self.flights[position + 1 :]
            self._land(cta, load)
        else:
            self._epi_stage_done(position - len(self.flights))

    def stuck(self) -> str:
        """Return the text of a deadlock fault: which process (role of a CTA) waits for which barrier or data."""
        waiting = []
        for number, process in enumerate(self.protocol.processes):
            if self._ended(number):
                continue
            awaited = self.order_awaited[number]
            if awaited is not None:
                (name, index, cta), _ = awaited
                missing = self.bars[name, index, cta][1]
                waiting.append(f"{process} waits at {name}[{index}] for {missing} more threads")
            else:
                op = process.ops[self.at[number]]
                if isinstance(op, AwaitAccumulators):
                    waiting.append(f"{process} waits for {self.split_k_partials.missing(op)}")
                    continue
                assert isinstance(op, Wait)  # a process that waits for stores can always continue later
                phase, pending, size = self.bars[op.barrier, op.index, process.cta]
                waiting.append(
                    f"{process} waits for parity {op.parity} of {op.barrier}[{op.index}], whose "
                    f"phase {phase} lacks {pending} arrivals and {size} bytes"
                )
        return "deadlock: " + "; ".join(waiting) + "."

    def leftovers(self) -> list[str]:
        """Return the faults that show only after all processes (roles of CTAs) have ended, as texts.

        For example, a stage is filled and never read, or a tile is not stored.
        """
        unread = [
            f"stage {stage} of CTA {cta} is filled, but {count} of its reads never happen."
            for (cta, stage), count in self.unread.items()
            if count
        ]
        return unread + self.split_k_partials.leftovers(self.protocol.tiles)

    def _ended(self, number: int) -> bool:
        """Return whether a process (role of a CTA) has executed all operations and need not wait at a named barrier.

        number   index of the process in the list of all simulated processes
        """
        return self.at[number] == len(self.protocol.processes[number].ops) and self._is_barrier_complete(number)

    def is_ready(self, number: int) -> bool:
        """Return whether a process (role of a CTA) can execute its next operation now, i.e. need not wait.

        number   index of the process in the list of all simulated processes
        """
        awaited = self.order_awaited[number]
        if awaited is not None and self.bars[awaited[0]][0] <= awaited[1]:
            return False
        process, at = self.protocol.processes[number], self.at[number]
        if at == len(process.ops):
            return False
        op = process.ops[at]
        if type(op) is Wait:
            parity = op.parity ^ (op.flipped and self.flipped[number])
            return self.bars[op.barrier, op.index, process.cta][0] & 1 != parity
        if type(op) is WaitStores:
            return not self.epi_stages.waits(number, op)
        return type(op) is not AwaitAccumulators or not self.split_k_partials.waits(number, op)

    def _epi_stage(self, number: int, process: Process, op: EpiStageOp) -> None:
        """Execute an operation that accesses an epilogue stage (shared memory for an epilogue tile).

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """
        self.epi_stages.act(number, process.cta, op)

    def _k_split(self, number: int, process: Process, op: SplitOp) -> None:
        """Execute an operation on the K splits of a tile: on its semaphore, or on accumulators in the workspace.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """
        was_last = self.split_k_partials.act(number, process.cta, op)
        self.unseen.update(self.protocol.waiters_for_accumulators)
        if was_last is not None:
            self._flag(number, LAST, was_last)

    def _epi_stage_done(self, position: int) -> None:
        """Finish a TMA copy of an epilogue stage. If it is a load, its bytes complete on its mbarrier.

        position   index of the copy among those in flight
        """
        flight = self.epi_stages.flights[position]
        fetched = self.epi_stages.land(flight)
        self.unseen.add(flight[0])
        if fetched is not None:
            cta = self.protocol.processes[flight[0]].cta
            what = f"C of epilogue tile {fetched.tag}"
            self._count(fetched.barrier, fetched.index, cta, 0, -fetched.size_bytes, what)

    def _is_barrier_complete(self, number: int) -> bool:
        """Return False if a process (role of a CTA) still waits at a named barrier (bar.sync), else True.

        number   index of the process in the list of all simulated processes
        """
        awaited = self.order_awaited[number]
        return awaited is None or self.bars[awaited[0]][0] > awaited[1]

    def _check_alive(self, cta: int, who: str) -> None:
        """Raise an error if a CTA has ended: other CTAs of the cluster must no longer access its shared memory.

        cta      index of the CTA
        who      text that names the access, for the message
        raises   ProtocolError if the CTA has ended
        """
        if all(self._ended(n) for n in self.protocol.of_cta[cta]):
            raise ProtocolError(f"{who} reaches CTA {cta}, which has ended: its shared memory is gone.")

    def _wait(self, number: int, process: Process, op: Wait) -> None:
        """Execute a wait for an mbarrier, which changes nothing: `is_ready` has checked that the phase is complete.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """

    def _arrive(self, number: int, process: Process, op: Arrive) -> None:
        """Arrive at an mbarrier in one or several CTAs.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        raises    ProtocolError if the barrier has more arrivals than a phase needs, or a CTA has ended
        """
        for cta in op.ctas or (process.cta,):
            if cta != process.cta:
                self._check_alive(cta, f"{process}, arriving at {op.barrier}[{op.index}],")
            self._count(op.barrier, op.index, cta, op.count, 0, str(process))

    def _expect(self, number: int, process: Process, op: Expect) -> None:
        """Arrive at an mbarrier, and add the bytes that its phase waits for.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute, which names the barrier
        """
        self._count(op.barrier, op.index, process.cta, 1, op.size_bytes, str(process))

    def _count(self, name: str, index: int, cta: int, count: int, size_bytes: int, who: str) -> None:
        """Count arrivals and bytes at an mbarrier. If the phase then needs no more of either, the next phase starts.

        name         name of the barrier
        index        index of the barrier among those of this name
        cta          index of the CTA that has the barrier
        count        number of arrivals
        size_bytes   number of further bytes that the phase waits for; negative for bytes that have landed
        who          text that names what arrives, for the message
        raises       ProtocolError if there are more arrivals than a phase needs
        """
        phase, pending, outstanding = self.bars[name, index, cta]
        pending, outstanding = pending - count, outstanding + size_bytes
        if pending < 0:
            raise ProtocolError(
                f"{who} arrives at {name}[{index}] of CTA {cta} once more than the {self.arrivals[name]} "
                f"times that end a phase: wrong arrival count in phase {phase}."
            )
        if pending == 0 and outstanding == 0:
            phase, pending = phase + 1, self.arrivals[name]
            self.unseen.update(self.protocol.waiters.get((name, index, cta), ()))
        self.bars[name, index, cta] = (phase, pending, outstanding)

    def _load(self, number: int, process: Process, op: Load) -> None:
        """Start a bulk load to a stage of one or several CTAs, or a transfer of accumulators to other CTAs.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        raises    ProtocolError if the target is still being read or loaded, or holds data that has not been read
        """
        for cta in op.ctas:
            if cta != process.cta:
                self._check_alive(cta, f"{process}, loading {op.operand},")
            place = (cta, op.stage)
            content = self.holds.get((cta, op.stage, op.operand))
            what = f"{process} loads {op.operand} of {_tag(op.tag)} to stage {op.stage} of CTA {cta}, which"
            if isinstance(op, Send):
                what = f"{process} sends accumulators of {_tag(op.tag)} to CTA {cta}, whose buffer for them"
            if self.reading.get(place, 0):
                raise ProtocolError(f"{what} is being read: overwritten stage.")
            if content == _UNDER_WAY:
                raise ProtocolError(f"{what} is the target of another load in flight: overwritten stage.")
            if content is not None and content != op.tag and self.unread.get(place, 0):
                raise ProtocolError(f"{what} contains {_tag(content)}, which is not read yet: overwritten stage.")
            self.holds[cta, op.stage, op.operand] = _UNDER_WAY
            self.flights = (*self.flights, (cta, op))

    def _land(self, cta: int, load: Load) -> None:
        """Finish a TMA load in one CTA: its data is in the stage, and its bytes complete on the mbarrier.

        cta    index of the CTA
        load   the operation that started the load
        """
        self._check_alive(cta, f"{load.operand} of {_tag(load.tag)}")
        place = (cta, load.stage)
        self.holds[cta, load.stage, load.operand] = load.tag
        if all(self.holds.get((cta, load.stage, operand)) == load.tag for operand in self.operands_of(cta, load.stage)):
            self.unread[place] = (
                self.protocol.readers if self.is_mainloop_stage(load.stage) else self.protocol.accumulator_readers
            )
        self._count(load.barrier, load.index, cta, 0, -load.size_bytes, f"{load.operand} of {_tag(load.tag)}")

    def operands_of(self, cta: int, stage: int) -> tuple[str, ...]:
        """Return the names of the operands that must all be loaded before a stage of a CTA is read, e.g. ("A0", "B0").

        With cluster split-K, `stage` may be a receive buffer for accumulators; then the names are those of the senders.

        cta     index of the CTA
        stage   index of the stage
        """
        return self.protocol.operands[cta] if self.is_mainloop_stage(stage) else self.protocol.accumulators

    def is_mainloop_stage(self, stage: int) -> bool:
        """Return whether a stage belongs to the mainloop pipeline.

        Other stages are buffers for accumulators of cluster split-K.
        """
        return self.protocol.stages is None or stage < self.protocol.stages

    def _begin_read(self, number: int, process: Process, op: BeginRead) -> None:
        """Check that a stage contains the k-tile that a process (role of a CTA) reads, and count it as a reader.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        raises    ProtocolError if the stage contains something else
        """
        self._check_holds(process, op)
        place = (process.cta, op.stage)
        self.reading[place] = self.reading.get(place, 0) + 1

    def _check_holds(self, process: Process, op: BeginRead | Compute) -> None:
        """Check that a stage contains what an operation reads.

        process   the process (role of a CTA) that reads
        op        the operation to execute, which names the stage, and the tile and k-tile that it must contain
        raises    ProtocolError if an operand in the stage is missing, in flight, or of another k-tile
        """
        for operand in self.operands_of(process.cta, op.stage):
            content = self.holds.get((process.cta, op.stage, operand))
            if content != op.tag:
                what = "still in flight" if content == _UNDER_WAY else f"that of {_tag(content)}"
                raise ProtocolError(
                    f"{process} reads {_tag(op.tag)} from stage {op.stage}, but operand {operand} in the stage is "
                    f"{'missing' if content is None else what}: "
                    f"{'early' if content in (None, _UNDER_WAY) else 'wrong'} read."
                )

    def _end_read(self, number: int, process: Process, op: EndRead) -> None:
        """End the read of a stage by a process (role of a CTA).

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute, which names the stage
        """
        place = (process.cta, op.stage)
        self.reading[place] -= 1
        self.unread[place] -= 1

    def _enter(self, number: int, process: Process, op: Enter) -> None:
        """Take exclusive use of a resource, such as the tensor cores, for the role of a process.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        raises    ProtocolError if another role has the resource
        """
        key = (op.resource, process.cta)
        role, count = self.owner.get(key, (process.role, 0))
        if count and role != process.role:
            raise ProtocolError(f"{process} takes the {op.resource} while {role} has it.")
        self.owner[key] = (process.role, count + 1)

    def _leave(self, number: int, process: Process, op: Leave) -> None:
        """Release a resource, such as the tensor cores, that the role of a process has.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """
        key = (op.resource, process.cta)
        role, count = self.owner[key]
        self.owner[key] = (role, count - 1)

    def _flip_phase(self, number: int, process: Process, op: FlipPhase) -> None:
        """Invert the parity of the process's later waits with `flipped`, which then wait for a barrier's next phase.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """
        self.flipped[number] ^= 1

    def _mark(self, number: int, process: Process, op: Mark) -> None:
        """Set a flag of a process to the operation's value. Flags, such as "last K split", decide its branches.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute, which names the flag
        """
        self._flag(number, op.flag, op.value)

    def _flag(self, number: int, flag: str, value: bool) -> None:
        """Set or clear a flag of a process (role of a CTA). Flags decide the branches of its program.

        number   index of the process in the list of all simulated processes
        flag     name of the flag, such as "last" for the K split of a tile that ends last
        value    new value
        """
        flags = self.flags[number] - {flag}
        self.flags[number] = flags | {flag} if value else flags

    def _branch(self, number: int, process: Process, op: Branch) -> None:
        """Skip the next operations of a process (role of a CTA) if its flag is not set.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute, which names the flag and the number of operations
        """
        if op.flag not in self.flags[number]:
            self.at[number] += op.count

    def _compute(self, number: int, process: Process, op: Compute) -> None:
        """Check that the stage that a computation reads contains its k-tile; registers need no check.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """
        if op.stage >= 0:
            self._check_holds(process, op)

    def _named(self, number: int, process: Process, op: NamedArrive | NamedSync) -> None:
        """Arrive at a named barrier; for bar.sync, also wait until it is complete.

        number    index of `process` in the list of all simulated processes
        process   the simulated warp role of one CTA that executes the operation, e.g. consumer 0 of CTA 1
        op        the operation to execute
        """
        key = (op.barrier, op.index, process.cta)
        order = self.bars[key][0]
        self._count(*key, op.threads, 0, str(process))
        if isinstance(op, NamedSync):
            self.order_awaited[number] = (key, order)


_ACTIONS: dict[type, str] = {
    Wait: "_wait",
    Arrive: "_arrive",
    Expect: "_expect",
    Load: "_load",
    Send: "_load",
    BeginRead: "_begin_read",
    EndRead: "_end_read",
    Enter: "_enter",
    Leave: "_leave",
    FlipPhase: "_flip_phase",
    Mark: "_mark",
    Branch: "_branch",
    Compute: "_compute",
    NamedArrive: "_named",
    NamedSync: "_named",
    **dict.fromkeys(get_args(EpiStageOp), "_epi_stage"),
    **dict.fromkeys(get_args(SplitOp), "_k_split"),
}


def _tag(tag: Content) -> str:
    """Return the name of the k-tile that a stage contains for messages, such as "k-tile 3 of tile 0".

    tag   (tile, k-tile), or what else a stage may contain
    """
    if not isinstance(tag, tuple):
        return str(tag)
    tile, k_tile = tag
    return f"tile {tile}" if k_tile == WHOLE_TILE else f"k-tile {k_tile} of tile {tile}"


def event_text(event: Event) -> str:
    """Return an event as text for messages: the operation, and the warp role that executes it or the CTA of a load."""
    who, op, is_end = event
    if isinstance(who, Process):
        return f"{who}: {op}{' is done' if is_end else ''}"
    assert isinstance(op, Load)
    return f"{op.operand} of {_tag(op.tag)} lands in stage {op.stage} of CTA {who}"
