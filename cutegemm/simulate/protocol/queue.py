"""The protocol of a producer and consumers: pingpong, where they take tiles in turn, and cooperative.

    barrier           kind       one for each   arrivals that end a phase
    full              mbarrier   stage          1: the CTA's producer; and the bytes of both tiles
    empty             mbarrier   stage          each warp of each reader, in each CTA that shares a load with
                                                this one
    order mainloop    see below  turn           the consumer before has issued its products
    order epilogue    see below  turn           the consumer before has written its tile

The queue of stages carries the k-blocks of all tiles one after the other. A consumer passes over those that
are not its own: `skip`, the one place where that is said. The order barriers belong to pingpong, and a plan
may go without that of the epilogue where each consumer has shared memory for D of its own. They are
mbarriers, at which the threads of the consumer before arrive, or named barriers, which the threads of both
reach.

In a cluster each CTA loads a slice of its A, multicast to the CTAs of its row, and a slice of its B,
multicast to those of its column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cutegemm.errors import UnsupportedError
from cutegemm.machine.arch import WARP_THREADS, WARPGROUP_THREADS
from cutegemm.plan.plan import Barrier, GemmPlan, Role
from cutegemm.simulate.protocol.program import (
    Arrive,
    BeginRead,
    EndRead,
    Enter,
    Expect,
    Leave,
    Load,
    NamedArrive,
    NamedSync,
    Op,
    Program,
    Protocol,
    Wait,
)

ROLES = (Role("producer", 4), Role("consumer 0", 4), Role("consumer 1", 4))
_ORDERED = {"order mainloop": "tensor cores", "order epilogue": "shared tile of D"}


def pingpong_barriers(
    stages: int,
    cluster_mn: tuple[int, int] = (1, 1),
    *,
    stage_bytes: int = 32768,
    turns: int = 2,
    readers: int = 1,
    order: str = "named",
) -> tuple[Barrier, ...]:
    """The barriers with the arrivals that the protocol needs.

    stage_bytes   of A and B together
    turns         tiles that are in work at once: 2 for pingpong; 1 where all consumers share a tile
    readers       consumers that read each stage
    order         kind of the order barriers: "mbarrier" or "named"

    >>> [(b.name, b.arrivals) for b in pingpong_barriers(4, (2, 1))][:2]
    [('full', 1), ('empty', 8)]
    """
    warps = readers * WARPGROUP_THREADS // WARP_THREADS
    arrivals = WARPGROUP_THREADS if order == "mbarrier" else 2 * WARPGROUP_THREADS
    return (
        Barrier("full", "mbarrier", stages, 1, stage_bytes),
        Barrier("empty", "mbarrier", stages, warps * (sum(cluster_mn) - 1)),
        *[Barrier(name, order, turns, arrivals) for name in _ORDERED if turns > 1],
    )


@dataclass(frozen=True)
class _Queue:
    """What all roles know of it.

    k_blocks      of each tile, or where K is split of each unit
    skipped       k-blocks that a consumer passes over between two of its tiles; None: those of the other turns
    loaded_bytes  of A and of B in a stage
    """

    barriers: dict[str, Barrier]
    stages: int
    k_blocks: tuple[int, ...]
    cluster_mn: tuple[int, int]
    turns: int
    skipped: int | None
    loaded_bytes: tuple[int, int]

    def passed(self, first: int, turns: int) -> int:
        """k-blocks of so many tiles from the `first`-th on, which another turn takes from the queue."""
        if self.skipped is not None:
            return turns * self.skipped // max(1, self.turns - 1)
        return sum(self.k_blocks[first : first + turns])

    def at(self, position: int) -> tuple[int, int]:
        """The stage of the k-block at a position of the queue, and the parity of its turn."""
        return position % self.stages, position // self.stages & 1


def pingpong_protocol(
    roles: tuple[Role, ...] = ROLES,
    barriers: tuple[Barrier, ...] | None = None,
    *,
    stages: int,
    k_blocks: int | Sequence[int],
    tiles: int,
    cluster_mn: tuple[int, int] = (1, 1),
    turns: int = 2,
    skip: int | None = None,
    loaded_bytes: tuple[int, int] | None = None,
) -> Protocol:
    """The programs of every role of every CTA of a cluster.

    roles          a producer and its consumers
    barriers       `pingpong_barriers` where left out
    k_blocks       of a tile: stages that it takes; or one number for each
    tiles          that a CTA works on
    turns          tiles that are in work at once: 2 for pingpong; 1 where all consumers share a tile
    skip           k-blocks that a consumer passes over between two of its tiles; those of the other turns
                   where left out
    loaded_bytes   of A and of B in a stage; where left out half each of what the barrier `full` waits for

    >>> protocol = pingpong_protocol(stages=4, k_blocks=2, tiles=1)
    >>> [(program.role, len(program.ops)) for program in protocol.programs]
    [('producer', 12), ('consumer 0', 16), ('consumer 1', 2)]
    """
    consumers = [role for role in roles if role.name.startswith("consumer")]
    readers = len(consumers) // turns
    known = barriers or pingpong_barriers(stages, cluster_mn, turns=turns, readers=readers)
    of_each = (k_blocks,) * tiles if isinstance(k_blocks, int) else tuple(k_blocks)
    by_name = {b.name: b for b in known}
    half = by_name["full"].transaction_bytes // 2
    queue = _Queue(by_name, stages, of_each, cluster_mn, turns, skip, loaded_bytes or (half, half))
    programs, parts = [], []
    for cta in range(cluster_mn[0] * cluster_mn[1]):
        programs.append(Program(cta, "producer", tuple(_produce(queue, cta))))
        for number, role in enumerate(consumers):
            ops = _consume(queue, cta, number % turns, WARP_THREADS * role.warps)
            programs.append(Program(cta, role.name, tuple(ops)))
        from_row = [_slice_a(source, cluster_mn) for source in _row(cta, cluster_mn)]
        from_column = [_slice_b(source, cluster_mn) for source in _column(cta, cluster_mn)]
        parts.append((*from_row, *from_column))
    return Protocol(known, tuple(programs), tuple(parts), readers)


def protocol_of(
    plan: GemmPlan, *, k_blocks: int | Sequence[int], tiles: int = 1, skip: int | None = None
) -> Protocol:
    """The protocol of a plan: its roles, its barriers with the arrivals and bytes that it names, its boxes.

    k_blocks   of a tile of D: k-tiles, each a stage of the queue; or one number for each unit that a CTA takes,
               where K is split: see `unit_counts`
    tiles      that a CTA takes, where `k_blocks` is one number
    raises     UnsupportedError for a plan without a queue, whose threads all do the same
    """
    pipeline = plan.pipeline
    if pipeline is None:
        raise UnsupportedError(f"protocol_of: the plan {plan.name!r} has no queue that this would play.")
    bm, bn, bk = plan.cta_tile
    if pipeline.kind == "single":
        return _without_producer(plan, k_blocks if isinstance(k_blocks, int) else sum(k_blocks))
    return pingpong_protocol(
        plan.roles,
        plan.barriers,
        stages=pipeline.stages,
        k_blocks=k_blocks,
        tiles=tiles,
        cluster_mn=plan.cluster_mn,
        turns=pipeline.turns,
        skip=skip,
        loaded_bytes=(bm * bk * plan.operands.a.dtype.bits // 8, bn * bk * plan.operands.b.dtype.bits // 8),
    )


def _without_producer(plan: GemmPlan, k_blocks: int) -> Protocol:
    """One tile of a CTA; the first consumer asks for the k-tile that is `stages` - 1 ahead."""
    stages, ahead = plan.stages, plan.stages - 1
    sizes = [
        extent * plan.cta_tile[2] * operand.dtype.bits // 8
        for extent, operand in zip(plan.cta_tile, (plan.operands.a, plan.operands.b), strict=False)
    ]

    def fill(k_block: int) -> Iterator[Op]:
        stage = k_block % stages
        yield Expect("full", stage, plan.barrier("full").transaction_bytes)
        for part, size_bytes in zip(("A0", "B0"), sizes, strict=True):
            yield Load("full", stage, stage, part, (0, k_block), size_bytes, (0,))

    def consume(first: bool, threads: int) -> Iterator[Op]:
        for k_block in range(min(ahead, k_blocks) if first else 0):
            yield from fill(k_block)
        for k_block in range(k_blocks):
            yield Wait("full", k_block % stages, k_block // stages & 1)
            yield BeginRead(k_block % stages, (0, k_block))
            if k_block:
                yield EndRead((k_block - 1) % stages)
            yield NamedSync("read", 0, threads)
            if first and k_block + ahead < k_blocks:
                yield from fill(k_block + ahead)
        if k_blocks:
            yield EndRead((k_blocks - 1) % stages)

    programs = [
        Program(0, role.name, tuple(consume(number == 0, WARP_THREADS * role.warps)))
        for number, role in enumerate(plan.roles)
    ]
    return Protocol(plan.barriers, tuple(programs), (("A0", "B0"),), len(programs))


def _row(cta: int, cluster_mn: tuple[int, int]) -> tuple[int, ...]:
    """CTAs with the same rows of A; CTAs are counted along M first."""
    return tuple(range(cta % cluster_mn[0], cluster_mn[0] * cluster_mn[1], cluster_mn[0]))


def _column(cta: int, cluster_mn: tuple[int, int]) -> tuple[int, ...]:
    """CTAs with the same columns of B."""
    first = cta - cta % cluster_mn[0]
    return tuple(range(first, first + cluster_mn[0]))


def _slice_a(cta: int, cluster_mn: tuple[int, int]) -> str:
    return f"A{cta // cluster_mn[0]}"


def _slice_b(cta: int, cluster_mn: tuple[int, int]) -> str:
    return f"B{cta % cluster_mn[0]}"


def _produce(queue: _Queue, cta: int) -> Iterator[Op]:
    """Fills the queue, then waits until it is empty: a CTA must not end while others still arrive at it."""
    expected = queue.barriers["full"].transaction_bytes
    row, column = _row(cta, queue.cluster_mn), _column(cta, queue.cluster_mn)
    slice_a, slice_b = _slice_a(cta, queue.cluster_mn), _slice_b(cta, queue.cluster_mn)
    position = 0
    for tile, count in enumerate(queue.k_blocks):
        for k_block in range(count):
            stage, parity = queue.at(position)
            yield Wait("empty", stage, parity ^ 1)
            yield Expect("full", stage, expected)
            tag = (tile, k_block)
            yield Load("full", stage, stage, slice_a, tag, queue.loaded_bytes[0] // len(row), row)
            yield Load("full", stage, stage, slice_b, tag, queue.loaded_bytes[1] // len(column), column)
            position += 1
    for _ in range(queue.stages):
        stage, parity = queue.at(position)
        yield Wait("empty", stage, parity ^ 1)
        position += 1


def _consume(queue: _Queue, cta: int, turn: int, threads: int) -> Iterator[Op]:
    """Multiplies and stores the tiles of a turn.

    The products of a k-block are under way when the next begin, and its stage is released then: two stages
    are held at a time, so with a single one it is released at once.
    """
    sources = tuple(sorted({*_row(cta, queue.cluster_mn), *_column(cta, queue.cluster_mn)}))
    mainloop, epilogue = (_Order(queue, name, turn, threads) for name in _ORDERED)
    yield from mainloop.begin()
    yield from epilogue.begin()
    delay = int(queue.stages > 1)
    position = queue.passed(0, turn)
    for count, tile in enumerate(range(turn, len(queue.k_blocks), queue.turns)):
        yield from mainloop.enter(count)
        for k_block in range(queue.k_blocks[tile]):
            stage, parity = queue.at(position)
            yield Wait("full", stage, parity)
            yield BeginRead(stage, (tile, k_block))
            if k_block >= delay:
                yield from _release(queue.at(position - delay)[0], threads, sources)
            position += 1
        yield from mainloop.leave()
        if delay and queue.k_blocks[tile]:
            yield from _release(queue.at(position - 1)[0], threads, sources)
        yield from epilogue.enter(count)
        yield from epilogue.leave()
        position += queue.passed(tile + 1, queue.turns - 1)


def _release(stage: int, threads: int, sources: tuple[int, ...]) -> Iterator[Op]:
    """A lane of each warp tells all CTAs that load to this stage."""
    yield EndRead(stage)
    yield Arrive("empty", stage, threads // WARP_THREADS, sources)


@dataclass(frozen=True)
class _Order:
    """What one turn after the other has, where there is a barrier for it: entered, left and passed on."""

    queue: _Queue
    name: str
    turn: int
    threads: int

    @property
    def _kind(self) -> str | None:
        return self.queue.barriers[self.name].kind if self.name in self.queue.barriers else None

    def begin(self) -> Iterator[Op]:
        """The first turn need not wait: of a named barrier the last one reaches it for that."""
        if self._kind == "named" and self.turn == self.queue.turns - 1 and self.queue.k_blocks:
            yield NamedArrive(self.name, 0, self.threads)

    def enter(self, count: int) -> Iterator[Op]:
        """For the `count`-th time; an mbarrier that no phase has ended on lets the first turn pass."""
        if self._kind is None:
            return
        if self._kind == "named":
            yield NamedSync(self.name, self.turn, self.threads)
        else:
            yield Wait(self.name, self.turn, (count & 1) if self.turn else (count & 1) ^ 1)
        yield Enter(_ORDERED[self.name])

    def leave(self) -> Iterator[Op]:
        """Passes it on to the next turn."""
        if self._kind is None:
            return
        following = (self.turn + 1) % self.queue.turns
        yield Leave(_ORDERED[self.name])
        if self._kind == "named":
            yield NamedArrive(self.name, following, self.threads)
        else:
            yield Arrive(self.name, following, self.threads)
