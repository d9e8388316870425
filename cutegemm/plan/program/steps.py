"""Steps: what a warp-specialized role does, one thing after the other; and programs made of them.

A program is read from top to bottom. The kernel traces its steps into code, the simulator plays them as operations on
barriers and memory (see `expand`), `str` prints them, and the barriers are counted from them (see `barriers`).

A role goes through the stages of the mainloop pipeline by a position: a stage, and the parity of its phase. `ForKTiles`
moves it on by one after each k-tile, `Skip` by the k-tiles that other roles take.

| step                 | in the kernel                                     | in shared memory, and at barriers         |
|----------------------|---------------------------------------------------|-------------------------------------------|
| Wait                 | mbarrier.try_wait on a full or empty barrier      | waits for a phase                         |
| Test                 | mbarrier.test_wait: is the next Wait needed?      | -                                         |
| Load                 | expect_tx, and the boxes of A and B by TMA        | fills a stage, of each CTA of a multicast |
| Multiply             | wgmma of a k-tile or some k-blocks, and commit    | begins to read the stage                  |
| MultiplyBlock        | mma.sync of a k-block, fragments read ahead       | begins to read the stage                  |
| WaitMma              | wgmma.wait_group                                  | ends reading                              |
| Release              | a lane of each warp arrives at empty, in each CTA | the stage is free                         |
| Skip, Advance        | move the position                                 | -                                         |
| OpenOrder, PassOrder | bar.arrive                                        | the next consumer may begin               |
| AwaitOrder           | bar.sync                                          | one consumer has the tensor cores         |
| SyncThreads          | bar.sync 0                                        | all threads                               |
| IncrementSemaphore   | atom.add on the tile's semaphore                  | -                                         |
| ReduceSplits         | see `kernels.sm90.split_k`                        | accumulators, in the workspace            |
| SendAccumulators     | st.async to the CTAs of a cluster that splits K   | fills places of accumulators there        |
| AddAccumulators      | ld.shared, and arrivals                           | reads them; the place is free             |
| AwaitConsumed        | mbarrier.try_wait                                 | no CTA arrives here any more              |
| LoadEpiTile          | C to the epilogue stages by TMA                   | fills an epilogue stage                   |
| Evaluate             | the epilogue, on accumulators or an epilogue tile | reads an epilogue stage, if C is there    |
| WaitStores           | cp.async.bulk.wait_group.read                     | stores have read their epilogue stages    |
| WriteEpiStage        | stmatrix, or st.shared                            | writes an epilogue stage                  |
| SyncEpiTile          | bar.sync of the consumer                          | its warps                                 |
| Reduce               | shuffles, and plain stores                        | -                                         |
| StoreEpiStage        | a bulk store, or copies by the threads            | reads an epilogue stage                   |
| StoreTile            | registers to global memory                        | -                                         |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Union

from cutegemm.layout import hooks

# Conditions of `If`.
HAS_K_TILES = "tile has k-tiles"
HAS_ODD_K_TILES = "tile has an odd number of k-tiles"
IS_TILE = "there is a tile"
IS_LAST_SPLIT = "this is the last part of the tile"
TILES_ARE_READ = "C is read, in warp 0"
IS_FIRST_WARP = "in warp 0"

EACH_WARP, FIRST_WARP, ALL = "each warp", "warp 0", "all warps"  # who carries out a step
BEFORE, OTHERS = "the consumers before", "the other consumers"  # whose k-tiles are skipped
# Sums of a consumer, which products are added to: all; those of one of two accumulators; those of half of the columns
ACC, FIRST, SECOND, LEFT, RIGHT = "acc", "first acc", "second acc", "left half of acc", "right half of acc"
# Of a k-tile, what a step multiplies
ALL_BLOCKS, FIRST_BLOCK, OTHER_BLOCKS = "all k-blocks", "k-block 0", "the other k-blocks"
HEAD, TAIL = "head", "tail"  # of the epilogue's expression: of all sums, and of an epilogue tile's after the other


@dataclass(frozen=True)
class Wait:
    """Until the stage is full, or empty.

    ahead   k-tiles further in the ring than the one at the role's position
    """

    barrier: str
    ahead: int = 0

    def __str__(self) -> str:
        verb = "acquire" if self.barrier == "empty" else "wait   "
        return f"{verb}  {self.barrier}[k{_plus(self.ahead)}]"


@dataclass(frozen=True)
class Test:
    """Whether the stage is full: asked ahead, so that the wait for it costs nothing."""

    barrier: str
    ahead: int = 0

    def __str__(self) -> str:
        return f"test     {self.barrier}[k{_plus(self.ahead)}]"


@dataclass(frozen=True)
class Load:
    """One warp: A and B of the k-tile `ahead` of this one, to its stage; nothing past the last k-tile."""

    ahead: int = 0

    def __str__(self) -> str:
        at = f"k{_plus(self.ahead)}"
        return f"load     A[{at}], B[{at}] -> full[{at}]"


@dataclass(frozen=True)
class Multiply:
    """The products of a k-tile, which run on while the role goes on.

    accumulators   `ACC`, which each k-tile adds to; else of this k-tile alone: in one of two accumulators, `FIRST` or
                   `SECOND`; or of half of the columns, `LEFT` or `RIGHT`
    k_blocks       of the k-tile: `ALL_BLOCKS`; or `FIRST_BLOCK`, and in a step behind it `OTHER_BLOCKS`
    """

    accumulators: str = ACC
    k_blocks: str = ALL_BLOCKS

    def blocks_of(self, count: int) -> range:
        """The numbers of its k-blocks, of so many.

        >>> [*Multiply(k_blocks=OTHER_BLOCKS).blocks_of(4)]
        [1, 2, 3]
        """
        first = 1 if self.k_blocks == OTHER_BLOCKS else 0
        return range(first, 1 if self.k_blocks == FIRST_BLOCK else count)

    def __str__(self) -> str:
        of = "" if self.k_blocks == ALL_BLOCKS else f": {self.k_blocks}"
        return f"mma      A[k], B[k] -> {self.accumulators}{', from 0' if self.accumulators != ACC else ''}{of}"


@dataclass(frozen=True)
class ReadFirst:
    """The fragments of a k-tile's first k-block, out of its stage."""

    def __str__(self) -> str:
        return "read     A[k], B[k]: k-block 0"


@dataclass(frozen=True)
class MultiplyBlock:
    """The products of a k-block, whose fragments have been read.

    k_block    of the k-tile
    ahead      of the k-tile whose fragments are read meanwhile: 0 the next k-block's, 1 the next k-tile's
               first ones; None for none
    releases   after the first products all of the stage has been read: it is released
    """

    k_block: int
    ahead: int | None = 0
    releases: bool = False

    def __str__(self) -> str:
        text = f"mma      A[k], B[k] -> acc: k-block {self.k_block}"
        if self.ahead is not None:
            text += f"; read {'k-block ' + str(self.k_block + 1) if not self.ahead else 'k-block 0 of k + 1'}"
        return text + ("; release empty[k]" if self.releases else "")


@dataclass(frozen=True)
class WaitMma:
    """Until no more than the last `pending` products are under way.

    of   what each of them is of: a k-tile, half of its columns, or a k-block
    """

    pending: int
    of: str = "k-tile"

    def __str__(self) -> str:
        but = {0: "", 1: f" but this {self.of}'s"}
        return f"wait     for all MMAs{but.get(self.pending, f' but those of {self.pending}')}"


@dataclass(frozen=True)
class Release:
    """Each warp has read a stage, and says so in every CTA that loads to it.

    previous   the stage of the k-tile before, or behind the loop that of the last one; at a tile's first
               k-tile there is none
    """

    previous: bool = False

    def __str__(self) -> str:
        return f"release  empty[k{' - 1' if self.previous else ''}]"


@dataclass(frozen=True)
class Skip:
    """Past the k-tiles of others.

    whose   `BEFORE`: of the consumers before this one; `OTHERS`: between this consumer's tile and its next
    """

    whose: str

    def __str__(self) -> str:
        return f"skip     the k-tiles of {self.whose}"


@dataclass(frozen=True)
class Advance:
    """On to the stage of the next k-tile, behind one that stands outside of a loop, or is not the last of its turn."""

    def __str__(self) -> str:
        return "advance  past k"


@dataclass(frozen=True)
class Promote:
    """The sums of a k-tile to those of the k-tiles before.

    accumulators   which of them; see `Multiply`
    """

    accumulators: str

    def __str__(self) -> str:
        return f"add      {self.accumulators} to total"


@dataclass(frozen=True)
class Clear:
    """Sums of 0.

    what   "total", or sums as in `Multiply`, which are added to it before any k-tile's
    """

    what: str

    def __str__(self) -> str:
        return f"clear    {self.what}"


@dataclass(frozen=True)
class OpenOrder:
    """The last consumer lets the first one begin."""

    def __str__(self) -> str:
        return "signal   order[0], by the last consumer"


@dataclass(frozen=True)
class AwaitOrder:
    """Until the consumer before has issued its products."""

    def __str__(self) -> str:
        return "wait     order of this consumer"


@dataclass(frozen=True)
class PassOrder:
    """To the next consumer."""

    def __str__(self) -> str:
        return "signal   order of the next consumer"


@dataclass(frozen=True)
class Stagger:
    """Each consumer begins so many cycles after the one before, from when the first stage is full."""

    cycles: int

    def __str__(self) -> str:
        return f"wait     full[0], then {self.cycles} cycles for each consumer before"


@dataclass(frozen=True)
class SyncThreads:
    """The barrier of all threads: all have read what they had waited for."""

    def __str__(self) -> str:
        return "sync     read"


@dataclass(frozen=True)
class IncrementSemaphore:
    """The number of this part among those of its tile that have ended, where the tile has parts."""

    def __str__(self) -> str:
        return "semaphore   of the tile, where it has parts"


@dataclass(frozen=True)
class ReduceSplits:
    """The last part adds the sums of all; the others write theirs to the workspace."""

    def __str__(self) -> str:
        return "reduce   the K splits: the last one adds all accumulators, the others store theirs"


@dataclass(frozen=True)
class SendAccumulators:
    """Where CTAs of a cluster share K: the sums of each CTA's columns to its shared memory, when it has added those of
    the tile before."""

    def __str__(self) -> str:
        return "send     the accumulators of each CTA's columns -> that CTA, accumulators (waits for consumed)"


@dataclass(frozen=True)
class AddAccumulators:
    """The sums of the own columns that have come from all CTAs, in their order; their place is free then."""

    def __str__(self) -> str:
        return "add      the accumulators of all CTAs (waits for accumulators) -> acc; release consumed"


@dataclass(frozen=True)
class AwaitConsumed:
    """Until all CTAs have added what was sent to them last, and so will not arrive here any more."""

    def __str__(self) -> str:
        return "wait     consumed"


@dataclass(frozen=True)
class LoadEpiTile:
    """One warp: the epilogue's tile operand, where it is read: epilogue tiles to epilogue stages that are free.

    ahead   None: those that have an epilogue stage, before the first epilogue tile; else the epilogue tile so many
            further, if it has none yet
    """

    ahead: int | None = None

    def __str__(self) -> str:
        if self.ahead is None:
            return "fetch    C of the first epilogue tiles -> their epilogue stages, c"
        return f"fetch    C of epilogue tile i + {self.ahead} -> its epilogue stage, c[i + {self.ahead}]"


@dataclass(frozen=True)
class Evaluate:
    """The epilogue's expression: what scales the sums, or what is computed of an epilogue tile's.

    section   `HEAD` or `TAIL`
    fetched   the tile operand that has come to the epilogue tile's epilogue stage, or ""
    read      operands that are read from global memory
    """

    section: str
    fetched: str = ""
    read: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.section == HEAD:
            return "epilogue of acc"
        sources = [f"{_matrix(self.fetched)} from its epilogue stage (waits for c[i])"] if self.fetched else []
        sources += [_from_global(self.read)] if self.read else []
        return f"epilogue of epilogue tile i{', with ' if sources else ''}{' and '.join(sources)}"


@dataclass(frozen=True)
class StoreAux:
    """Results beside D, of an epilogue tile: out of registers to global memory.

    names   of the results
    """

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"store    {', '.join(self.names)} of epilogue tile i -> global memory"


@dataclass(frozen=True)
class Reduce:
    """Values of an epilogue tile to the sums or maxima that a warp has of its rows or columns; those to which the
    epilogue tile is the last to add, to the workspace.

    names   of the results
    """

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"reduce   {', '.join(self.names)} of epilogue tile i; partial results that are complete -> workspace"


@dataclass(frozen=True)
class KeepTile:
    """What the epilogue makes of the tile, in registers, to be stored behind the products of the next one.

    read      operands of the epilogue, which are read from global memory
    aux       results that are stored beside D, at once
    reduced   results that are sums or maxima, whose partial results go to the workspace at once
    """

    read: tuple[str, ...] = ()
    aux: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    def __str__(self) -> str:
        sources = f", with {_from_global(self.read)}" if self.read else ""
        stored = f"; store {', '.join(self.aux)}" if self.aux else ""
        return f"keep     the tile, converted{sources}{stored}{_reduced(self.reduced)}"


@dataclass(frozen=True)
class WaitStores:
    """Until no more than `pending` stores of this warp still read their epilogue stages.

    by   `FIRST_WARP`, where it stores for all; `EACH_WARP`; or `ALL`, whoever stores
    """

    pending: int
    by: str

    def __str__(self) -> str:
        which = f"all stores but {self.pending}" if self.pending else "all stores"
        return f"wait     until {which} have read their epilogue stages{'' if self.by == ALL else f', by {self.by}'}"


@dataclass(frozen=True)
class WriteEpiStage:
    """An epilogue tile's values to its epilogue stage.

    result   of the epilogue: D, or one beside it, which has an epilogue stage of its own
    """

    result: str = "d"

    def __str__(self) -> str:
        return f"write    {'' if self.result == 'd' else f'{self.result} of '}epilogue tile i -> epilogue stage"


@dataclass(frozen=True)
class SyncEpiTile:
    """The warps of the consumer: all have written the epilogue stage, and may write to the next one."""

    def __str__(self) -> str:
        return "sync     epilogue tile"


@dataclass(frozen=True)
class StoreEpiStage:
    """An epilogue stage to global memory.

    by       `FIRST_WARP`: all of the epilogue stage; `EACH_WARP`: its own rows, which all of its lanes have written,
             and if they copy them, have read when it goes on; `ALL`: copies by all threads
    by_tma   a bulk store, which is waited for by `WaitStores`
    result   of the epilogue
    """

    by: str
    by_tma: bool = True
    result: str = "d"

    def __str__(self) -> str:
        return f"store    epilogue stage -> {_matrix(self.result)}{' by TMA' if self.by_tma else ''}, by {self.by}"


@dataclass(frozen=True)
class StoreTile:
    """The tile straight out of registers.

    read      operands of the epilogue, which are read from global memory
    aux       results that are stored beside D
    reduced   results that are sums or maxima, whose partial results go to the workspace
    """

    read: tuple[str, ...] = ()
    aux: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    def __str__(self) -> str:
        sources = f", with {_from_global(self.read)}," if self.read else ""
        return f"store    acc{sources} -> {', '.join(['D', *self.aux])}{_reduced(self.reduced)}"


def _matrix(name: str) -> str:
    return name.upper() if len(name) == 1 else name


def _reduced(names: tuple[str, ...]) -> str:
    return f"; reduce {', '.join(names)} -> workspace" if names else ""


def _from_global(names: tuple[str, ...]) -> str:
    return f"{', '.join([_matrix(name) for name in names])} from global memory"


# --- loops and branches ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForTiles:
    """The work tiles of the CTA, every `every`-th from the role's own turn.

    lasting   one turn more, without a tile, where one is still held
    """

    steps: tuple[Step, ...]
    every: int = 1
    lasting: bool = False

    def __str__(self) -> str:
        ordinal = {2: "2nd", 3: "3rd"}.get(self.every, f"{self.every}th")
        which = f", every {ordinal} from this consumer's first" if self.every > 1 else ""
        return f"for tile in work{which}{', and until all are stored' if self.lasting else ''}:"


@dataclass(frozen=True)
class ForKTiles:
    """The k-tiles of the tile; the position moves on by one after each.

    but_last   all but the last one, which stands apart
    by         two at a time, between which the steps move the position on: all but an odd one before them
    """

    steps: tuple[Step, ...]
    but_last: bool = False
    by: int = 1

    def __str__(self) -> str:
        which = f"{', two at a time' if self.by > 1 else ''}{' but the last' if self.but_last else ''}"
        return f"for k in tile.k_tiles{which}:"


@dataclass(frozen=True)
class ForAhead:
    """The first k-tiles of the tile, before the loop over all: the position stays where it is."""

    steps: tuple[Step, ...]
    count: int

    def __str__(self) -> str:
        return f"for k in the first {self.count} k-tiles:"


@dataclass(frozen=True)
class ForStages:
    """Each stage of the ring once."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "for k in the next stages, once around the pipeline:"


@dataclass(frozen=True)
class ForEpiTiles:
    """The epilogue tiles of the consumer's tile.

    overlapped   of the tile that is held: those that are left
    """

    steps: tuple[Step, ...]
    overlapped: bool = False

    def __str__(self) -> str:
        return "for epilogue tile i that is left of the tile kept:" if self.overlapped else "for epilogue tile i:"


@dataclass(frozen=True)
class OverlappedEpiTile:
    """Behind the products of the k-th k-tile: the k-th epilogue tile of the tile that is held, if it is left."""

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "if epilogue tile i = k of the tile kept is left:"


@dataclass(frozen=True)
class If:
    """The steps where a condition holds."""

    condition: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"if {self.condition}:"


Block = Union[ForTiles, ForKTiles, ForAhead, ForStages, ForEpiTiles, OverlappedEpiTile, If]
BLOCKS = (ForTiles, ForKTiles, ForAhead, ForStages, ForEpiTiles, OverlappedEpiTile, If)
Step = Union[
    Block, Wait, Test, Load, Multiply, ReadFirst, MultiplyBlock, WaitMma, Release, Skip, Advance, Promote, Clear,
    OpenOrder, AwaitOrder, PassOrder, Stagger, SyncThreads, IncrementSemaphore, ReduceSplits, SendAccumulators,
    AddAccumulators, AwaitConsumed, LoadEpiTile, Evaluate, StoreAux, Reduce, KeepTile, WaitStores, WriteEpiStage,
    SyncEpiTile, StoreEpiStage, StoreTile,
]  # fmt: skip


@dataclass(frozen=True)
class Program(hooks.Shown):
    """What a role does.

    >>> print(Program((ForTiles((ForKTiles((Wait("empty"), Load())),)),)))
    for tile in work:
      for k in tile.k_tiles:
        acquire  empty[k]
        load     A[k], B[k] -> full[k]
    """

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "\n".join(_lines(self.steps, 0))

    def walk(self) -> Iterator[Step]:
        """Every step, those inside of loops and branches too, from top to bottom."""
        return _walk(self.steps)

    def has(self, kind: type) -> bool:
        """Whether there is a step of a kind."""
        return any(isinstance(step, kind) for step in self.walk())

    def edited(self, edit: Any) -> Program:
        """The program with each step put through `edit`, which returns a step, or None to take it out; loops
        and branches after their steps. For planting faults.

        >>> program = Program((ForTiles((ForKTiles((Wait("empty"), Load())),)),))
        >>> program.edited(lambda step: None if isinstance(step, Wait) else step).has(Wait)
        False
        """
        return Program(_edited(self.steps, edit))


def _walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    for step in steps:
        yield step
        if isinstance(step, BLOCKS):
            yield from _walk(step.steps)


def _lines(steps: tuple[Step, ...], depth: int) -> Iterator[str]:
    for step in steps:
        yield f"{'  ' * depth}{step}"
        if isinstance(step, BLOCKS):
            yield from _lines(step.steps, depth + 1)


def height(step: Step) -> int:
    """Lines of a program that a step takes: those of its own steps too."""
    return 1 + sum(map(height, step.steps)) if isinstance(step, BLOCKS) else 1


def _edited(steps: tuple[Step, ...], edit: Any) -> tuple[Step, ...]:
    out = []
    for step in steps:
        inner = replace(step, steps=_edited(step.steps, edit)) if isinstance(step, BLOCKS) else step
        changed = edit(inner)
        if changed is not None:
            out.append(changed)
    return tuple(out)


def _plus(ahead: int) -> str:
    return f" + {ahead}" if ahead else ""
