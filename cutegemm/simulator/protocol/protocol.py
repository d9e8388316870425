"""Protocol of a plan: its programs as processes, one for each role of some CTAs, and the barriers between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from cutegemm.errors import UnsupportedError
from cutegemm.layout.inttuple import product
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.program.barriers import Barrier
from cutegemm.plan.program.expand import Place, accumulators_sender, expand
from cutegemm.plan.program.operations import AwaitAccumulators, NamedSync, Op, Wait
from cutegemm.plan.program.steps import Program
from cutegemm.plan.work.division import WorkTile


@dataclass(frozen=True)
class Process:
    """A simulated warp role of one CTA (or one warp of it), as the list of operations that it executes in order.

    cta    index of the CTA
    role   name of the role. Processes of one role may use an exclusive resource, such as the tensor cores, at the same
           time; those of different roles may not
    ops    operations, such as waits and loads, in order
    name   name for messages; "": the role
    """

    cta: int
    role: str
    ops: tuple[Op, ...]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or self.role} of CTA {self.cta}"


@dataclass(frozen=True)
class Protocol:
    """Input of a search for synchronization faults: the operations of the warp roles of some CTAs, and their barriers.

    barriers       barriers of each CTA, with the number of arrivals (for named barriers, threads) that end a phase
    processes      the warp roles: one process for each role of each CTA
    operands       for each CTA, the names of the operands that must be loaded before a stage is read
    readers        number of processes that read a stage each time it is filled
    stages         number of mainloop stages. Stages with higher indices are receive buffers for accumulators (cluster
                   split-K), one for each consumer. None: there are no such buffers
    accumulators   senders that fill a receive buffer; () without cluster split-K
    accumulator_readers   number of processes that read a receive buffer each time it is filled
    tiles          tiles that must be stored exactly once each, by the indices of their semaphores
    """

    barriers: tuple[Barrier, ...]
    processes: tuple[Process, ...]
    operands: tuple[tuple[str, ...], ...]
    readers: int = 1
    stages: int | None = None
    accumulators: tuple[str, ...] = ()
    accumulator_readers: int = 1
    tiles: frozenset[int] = frozenset()

    @cached_property
    def of_cta(self) -> dict[int, list[int]]:
        """Return which processes each CTA has: index of the CTA -> indices in `processes`.

        A process is a role of a CTA.
        """
        return {
            cta: [number for number, process in enumerate(self.processes) if process.cta == cta]
            for cta in range(len(self.operands))
        }

    @cached_property
    def waiters(self) -> dict[tuple[str, int, int], set[int]]:
        """Return the processes that ever wait at each barrier: (name, index, CTA) -> indices in `processes`.

        A process is one role of one CTA.
        """
        out: dict[tuple[str, int, int], set[int]] = {}
        for number, process in enumerate(self.processes):
            for op in process.ops:
                if isinstance(op, (Wait, NamedSync)):
                    out.setdefault((op.barrier, op.index, process.cta), set()).add(number)
        return out

    @cached_property
    def waiters_for_accumulators(self) -> tuple[int, ...]:
        """Return the indices of the processes (roles of CTAs) that ever wait for accumulators of other K splits."""
        return tuple(
            [
                n
                for n, process in enumerate(self.processes)
                if any(isinstance(op, AwaitAccumulators) for op in process.ops)
            ]
        )

    def edited(self, edit: Callable[[Process, Op], Op | None]) -> Protocol:
        """Return a copy where each operation is replaced by the result of `edit`, or removed if that is None.

        Tests plant faults with it. A branch skips a fixed number of operations, so do not remove one that it skips.

        edit   called with each process (a role of a CTA) and each of its operations
        """
        processes = []
        for process in self.processes:
            edited = [edit(process, op) for op in process.ops]
            processes.append(replace(process, ops=tuple([op for op in edited if op is not None])))
        return replace(self, processes=tuple(processes))

    def with_barrier(self, name: str, **changes: Any) -> Protocol:
        """Return this protocol with changed fields of one barrier, e.g. a wrong arrival count.

        Tests plant faults with it.

        name      name of the barrier, such as "full"
        changes   fields of `Barrier` and their new values
        """
        return replace(self, barriers=tuple([replace(b, **changes) if b.name == name else b for b in self.barriers]))


class ProtocolError(Exception):
    """Raised when an operation of a simulated warp role breaks a synchronization rule, e.g. reads a stage too early."""


class Misuse(Exception):
    """Raised for a broken synchronization rule by code that does not know which simulated warp role broke it.

    `Machine`, which executes the warp roles, catches it and raises a `ProtocolError` that names the role.
    """


def protocol_of(
    plan: GemmPlan,
    *,
    k_tiles: int | Sequence[int],
    tiles: int = 1,
    warps: bool = False,
    programs: Mapping[str, Program] | None = None,
    reads_c: bool = True,
) -> Protocol:
    """Return the operations of all warp roles of a plan, in program order, with their barriers, to search for faults.

    Pass the result to `play_interleavings` or `search_interleavings`, which execute the operations of the roles in many
    orders and report synchronization faults.

    k_tiles    number of k-tiles of a tile; or a sequence with one number for each tile of a CTA
    tiles      number of tiles that a CTA takes; if K is split, number of tiles that the clusters of the grid share
    warps      True: each warp of a consumer is simulated on its own, which also finds missing synchronization between
               warps; False: a consumer is simulated as a whole
    programs   role -> program to execute instead of the plan's, e.g. one with a planted fault to test the search. The
               barriers are still those of the plan
    reads_c    whether the epilogue reads C
    raises     UnsupportedError for a plan whose threads all follow one schedule

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.simulator.protocol.interleavings import play_interleavings
    >>> play_interleavings(protocol_of(sm90_plan(), k_tiles=9, tiles=3)).faults
    ()
    """
    if not plan.body.has_roles:
        raise UnsupportedError(
            f"protocol_of: the plan {plan.name!r} has no warp roles: all of its threads follow one schedule."
        )
    return protocol_for(plan, work_of(plan, k_tiles=k_tiles, tiles=tiles), warps, programs, reads_c)


def protocol_for(
    plan: GemmPlan,
    work: Sequence[Sequence[WorkTile]],
    warps: bool = False,
    programs: Mapping[str, Program] | None = None,
    reads_c: bool = True,
) -> Protocol:
    """Return the operations of all warp roles of a plan for given work tiles, in program order, with their barriers.

    The result is executed in many orders to find synchronization faults.

    work       for each cluster, its work tiles (tiles of D with all or some of their k-tiles) in order
    warps      True: each warp of a consumer is simulated on its own; False: a consumer is simulated as a whole
    programs   role -> program to execute instead of the plan's; None: no replacement
    reads_c    whether the epilogue reads C
    """
    in_cluster = product(plan.cluster_mn)
    known = {**plan.programs, **(programs or {})}
    split_by, processes, operands = (plan.consumer_warps if warps else 1), [], []
    for cluster, tiles in enumerate(work):
        for rank in range(in_cluster):
            cta, own = cluster * in_cluster + rank, [plan.cluster_tile.share_of(tile, rank) for tile in tiles]
            for number, role in enumerate(plan.roles):
                count = 1 if role.name == "producer" else split_by
                for warp in range(count):
                    ops = expand(plan, known[role.name], Place(cta, number, warp, count), own, reads_c=reads_c)
                    name = f"warp {warp} of {role.name}" if count > 1 else role.name
                    processes.append(Process(cta, role.name, ops, name))
            operands.append(
                tuple([f"{stream.name.upper()}{i}" for stream in plan.streams for i in range(stream.multicast)])
            )
    readers = plan.body.readers
    stored = frozenset(
        [
            (int(tile.tile) * in_cluster + rank) * readers + own
            for tiles in work
            for tile in tiles
            if tile.splits
            for rank in range(in_cluster)
            for own in range(readers)
        ]
    )
    reads = readers * split_by * plan.b_column_blocks
    senders = [accumulators_sender(rank, warp) for rank in range(plan.cluster_k) for warp in range(split_by)]
    return Protocol(
        plan.barriers,
        tuple(processes),
        tuple(operands),
        reads,
        plan.stages,
        tuple(senders) if plan.cluster_k > 1 else (),
        split_by,
        stored,
    )


def work_of(plan: GemmPlan, *, k_tiles: int | Sequence[int], tiles: int = 1) -> list[list[WorkTile]]:
    """Return example work tiles for a search for faults: of all clusters of the grid if K is split, else of one.

    A work tile is a tile of D with all or some of its k-tiles. The result has a list of them for each cluster.

    k_tiles   number of k-tiles of a tile; or a sequence with one number for each tile of a CTA
    tiles     number of tiles that a CTA takes; if K is split, number of tiles that the clusters of the grid share

    >>> from cutegemm.build import sm90_plan
    >>> [[tile.k_count for tile in own] for own in work_of(sm90_plan(stream=1, ctas=2), tiles=5, k_tiles=30)]
    [[15, 0, 30, 30], [15, 0, 30, 30]]
    """
    if not plan.scheduler.split.is_split:
        counts = [k_tiles] * tiles if isinstance(k_tiles, int) else list(k_tiles)
        return [[WorkTile(number, 0, count, 1, 0, 0) for number, count in enumerate(counts)]]
    assert isinstance(k_tiles, int)
    bm, bn, _ = plan.cta_tile
    work = plan.scheduler.tiles(plan.cluster_tile, tiles * bm * plan.cluster_mn[0], bn).work(k_tiles)
    return [work.of_cluster(place) for place in range(work.clusters)]
