"""A protocol: the programs of a plan as processes, one for each role of some CTAs, and the barriers between them."""

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
    """The operations of one role of one CTA, or of one warp of it.

    name   in messages
    role   by which it holds what one role has at a time
    """

    cta: int
    role: str
    ops: tuple[Op, ...]
    name: str = ""

    def __str__(self) -> str:
        return f"{self.name or self.role} of CTA {self.cta}"


@dataclass(frozen=True)
class Protocol:
    """Processes, and the barriers that hold them together.

    barriers       of each CTA; `arrivals` end a phase, a named barrier's are threads
    operands       of a stage, by CTA: all must be there before it is read
    readers        processes that read each filling of a stage
    stages         of the ring; those behind them are places of sums, where CTAs share K: one for each consumer. None:
                   all that there are
    accumulators   the parts of such a place, each filling of which `of_sums` processes read
    tiles          of consumers, by their counters: each is to be stored once
    """

    barriers: tuple[Barrier, ...]
    processes: tuple[Process, ...]
    operands: tuple[tuple[str, ...], ...]
    readers: int = 1
    stages: int | None = None
    accumulators: tuple[str, ...] = ()
    of_sums: int = 1
    tiles: frozenset[int] = frozenset()

    @cached_property
    def of_cta(self) -> dict[int, list[int]]:
        """CTA -> its processes, by number."""
        return {
            cta: [number for number, process in enumerate(self.processes) if process.cta == cta]
            for cta in range(len(self.operands))
        }

    @cached_property
    def waiters(self) -> dict[tuple[str, int, int], set[int]]:
        """Barrier, index, CTA -> processes that wait there at some time, by number."""
        found: dict[tuple[str, int, int], set[int]] = {}
        for number, process in enumerate(self.processes):
            for op in process.ops:
                if isinstance(op, (Wait, NamedSync)):
                    found.setdefault((op.barrier, op.index, process.cta), set()).add(number)
        return found

    @cached_property
    def waiters_for_accumulators(self) -> tuple[int, ...]:
        """Processes that wait for sums of other parts at some time, by number."""
        return tuple(
            [
                n
                for n, process in enumerate(self.processes)
                if any(isinstance(op, AwaitAccumulators) for op in process.ops)
            ]
        )

    def edited(self, edit: Callable[[Process, Op], Op | None]) -> Protocol:
        """The protocol with each operation put through `edit`; None takes it out. For planting faults.

        An operation that is taken out leaves a branch over it as long as it was: take none out from below a branch.
        """
        processes = []
        for process in self.processes:
            edited = [edit(process, op) for op in process.ops]
            processes.append(replace(process, ops=tuple([op for op in edited if op is not None])))
        return replace(self, processes=tuple(processes))

    def with_barrier(self, name: str, **changes: Any) -> Protocol:
        """The protocol with a barrier changed."""
        return replace(self, barriers=tuple([replace(b, **changes) if b.name == name else b for b in self.barriers]))


class ProtocolError(Exception):
    """A fault in one interleaving."""


class Misuse(Exception):
    """A fault before it is known which process did it; the machine makes a `ProtocolError` of it."""


def protocol_of(
    plan: GemmPlan,
    *,
    k_tiles: int | Sequence[int],
    tiles: int = 1,
    warps: bool = False,
    programs: Mapping[str, Program] | None = None,
    reads_c: bool = True,
) -> Protocol:
    """The protocol of a plan: its programs, as the roles of its CTAs carry them out, and its barriers.

    k_tiles    of a tile of D; or one number for each tile of a CTA
    tiles      that a CTA takes; where K is split, tiles of clusters that all of the grid shares
    warps      whether the warps of a consumer are told apart: what one has done and another has not is seen then
    programs   by role, instead of the plan's; the barriers stay those of the plan. For planting faults
    reads_c    whether C is read: beta is not 0
    raises     UnsupportedError for a plan whose threads all follow one schedule

    >>> from cutegemm.build import sm90_plan
    >>> from cutegemm.simulator.protocol.interleavings import play_interleavings
    >>> play_interleavings(protocol_of(sm90_plan(), k_tiles=9, tiles=3)).faults
    ()
    """
    if not plan.body.has_roles:
        raise UnsupportedError(
            f"protocol_of: all threads of the plan {plan.name!r} follow one schedule; no role waits."
        )
    return protocol_for(plan, work_of(plan, k_tiles=k_tiles, tiles=tiles), warps, programs, reads_c)


def protocol_for(
    plan: GemmPlan,
    work: Sequence[Sequence[WorkTile]],
    warps: bool = False,
    programs: Mapping[str, Program] | None = None,
    reads_c: bool = True,
) -> Protocol:
    """The same for the work tiles of each cluster; see `protocol_of`."""
    in_cluster = product(plan.cluster_mn)
    known = {**plan.programs, **(programs or {})}
    split_by, processes, operands = (plan.consumer_warps if warps else 1), [], []
    for cluster, tiles in enumerate(work):
        for rank in range(in_cluster):
            cta, own = cluster * in_cluster + rank, [plan.scheduler.share_of(tile, rank) for tile in tiles]
            for number, role in enumerate(plan.roles):
                own_parts = 1 if role.name == "producer" else split_by
                for warp in range(own_parts):
                    ops = expand(plan, known[role.name], Place(cta, number, warp, own_parts), own, reads_c=reads_c)
                    name = f"warp {warp} of {role.name}" if own_parts > 1 else role.name
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
    of_sums = [accumulators_sender(rank, warp) for rank in range(plan.cluster_k) for warp in range(split_by)]
    return Protocol(
        plan.barriers,
        tuple(processes),
        tuple(operands),
        reads,
        plan.stages,
        tuple(of_sums) if plan.cluster_k > 1 else (),
        split_by,
        stored,
    )


def work_of(plan: GemmPlan, *, k_tiles: int | Sequence[int], tiles: int = 1) -> list[list[WorkTile]]:
    """The work tiles of each cluster that takes part: one cluster, or where K is split all of the grid's.

    >>> from cutegemm.build import sm90_plan
    >>> [[tile.k_count for tile in own] for own in work_of(sm90_plan(stream=1, ctas=2), tiles=5, k_tiles=30)]
    [[15, 0, 30, 30], [15, 0, 30, 30]]
    """
    if not plan.split.is_split:
        counts = [k_tiles] * tiles if isinstance(k_tiles, int) else list(k_tiles)
        return [[WorkTile(number, 0, count, 1, 0, 0) for number, count in enumerate(counts)]]
    assert isinstance(k_tiles, int)
    bm, bn, _ = plan.cta_tile
    grid = plan.scheduler.tiles(tiles * bm * plan.cluster_mn[0], bn).work(k_tiles)
    return [[grid.work_tile(number) for number in grid.numbers(cluster)] for cluster in range(grid.clusters)]
