"""Steps of warp-specialized roles, and the programs that are made of them.

A program is executed from top to bottom. The kernel traces its steps into code. The simulator executes them as
operations on barriers and memory (see `expand`). `str` prints them. The barriers of a plan are counted from them (see
`barriers`).

Each role has a position in the mainloop pipeline: a stage, and the parity of the stage's phase. `ForKTiles` advances
the position by one after each k-tile. `Skip` advances it by the k-tiles that other consumers take.

| step                 | in the kernel                                     | in shared memory, and at barriers         |
|----------------------|---------------------------------------------------|-------------------------------------------|
| Wait                 | mbarrier.try_wait on a full or empty barrier      | waits for a phase                         |
| Test                 | mbarrier.test_wait: is the next Wait needed?      | -                                         |
| Load                 | expect_tx, and the boxes of A and B by TMA        | fills a stage of each multicast CTA       |
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
from typing import Any, ClassVar

from cutegemm.layout import hooks

# Conditions of `If`.
HAS_K_TILES = "tile has k-tiles"
HAS_ODD_K_TILES = "tile has an odd number of k-tiles"
IS_TILE = "there is a tile"
IS_LAST_SPLIT = "this is the last K split of the tile"
TILES_ARE_READ = "C is read, in warp 0"
IS_FIRST_WARP = "in warp 0"

EACH_WARP, FIRST_WARP, ALL = "each warp", "warp 0", "all warps"  # who carries out a step
BEFORE, OTHERS = "the consumers before", "the other consumers"  # consumers that own the skipped k-tiles
# Accumulators of a consumer: the only ones; the first or second set of two; or those of half of the columns
ACC, FIRST, SECOND, LEFT, RIGHT = "acc", "first acc", "second acc", "left half of acc", "right half of acc"
# The k-blocks of a k-tile that a step multiplies
ALL_BLOCKS, FIRST_BLOCK, OTHER_BLOCKS = "all k-blocks", "k-block 0", "the other k-blocks"
HEAD, TAIL = "head", "tail"  # sections of the epilogue: on all accumulators, and on each epilogue tile


class Step:
    """Base class of the steps that make up a warp role's program, such as `Wait` or `Load`.

    `str` prints a step on one line.

    changes   names of the run-time values that the step changes, such as "stage". A loop around the step keeps them
              from one iteration to the next
    """

    changes: ClassVar[tuple[str, ...]] = ()

    @property
    def takes_mma_time(self) -> bool:
        """Return whether the step takes as long as MMAs, in drawings of a program over time."""
        return False


class Block(Step):
    """Base class of program steps that contain steps: the loops and branches of a warp role's program."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Wait(Step):
    """Program step: wait until the stage of a k-tile is full (consumer wait) or empty (producer acquire).

    barrier   the mbarrier to wait for: "full" or "empty"
    ahead     number of k-tiles from the one that the role works on to the one that is waited for
    """

    barrier: str
    ahead: int = 0

    def __str__(self) -> str:
        verb = "acquire" if self.barrier == "empty" else "wait   "
        return f"{verb}  {self.barrier}[k{_plus(self.ahead)}]"


@dataclass(frozen=True)
class Load(Step):
    """Program step: load a k-tile of A, B and further operands to its stage by TMA. One warp executes it.

    ahead     number of k-tiles from the one that the role works on to the one that is loaded. Nothing is loaded if the
              work tile has no such k-tile
    further   names of the operands that are loaded with A and B, such as block scales

    >>> print(Load(further=("scale_a",)))
    load     A[k], B[k], SCALE_A[k] -> full[k]
    """

    ahead: int = 0
    further: tuple[str, ...] = ()

    def __str__(self) -> str:
        at = f"k{_plus(self.ahead)}"
        loaded = [f"{name.upper()}[{at}]" for name in ("a", "b", *self.further)]
        return f"load     {', '.join(loaded)} -> full[{at}]"


@dataclass(frozen=True)
class Multiply(Step):
    """Program step: issue the MMAs of a k-tile, without waiting for them.

    accumulators   where the MMAs add. `ACC`: to the accumulators of all k-tiles. `FIRST` or `SECOND`: to one of two
                   sets, from 0. `LEFT` or `RIGHT`: to half of the columns, from 0
    k_blocks       `ALL_BLOCKS` of the k-tile; or `FIRST_BLOCK`, and in a later step `OTHER_BLOCKS`
    """

    accumulators: str = ACC
    k_blocks: str = ALL_BLOCKS

    @property
    def takes_mma_time(self) -> bool:
        """Return whether this step takes as long as the MMAs of a k-tile, in drawings of a program over time.

        It is False for a step that multiplies only the first k-block; the step for the other k-blocks then counts for
        all.
        """
        return self.k_blocks != FIRST_BLOCK

    def blocks_of(self, count: int) -> range:
        """Return the indices of the k-blocks that this step multiplies, if a k-tile has `count` of them.

        >>> [*Multiply(k_blocks=OTHER_BLOCKS).blocks_of(4)]
        [1, 2, 3]
        """
        first = 1 if self.k_blocks == OTHER_BLOCKS else 0
        return range(first, 1 if self.k_blocks == FIRST_BLOCK else count)

    def __str__(self) -> str:
        of = "" if self.k_blocks == ALL_BLOCKS else f": {self.k_blocks}"
        return f"mma      A[k], B[k] -> {self.accumulators}{', from 0' if self.accumulators != ACC else ''}{of}"


@dataclass(frozen=True)
class WaitMma(Step):
    """Program step: wait until at most the last `pending` groups of MMAs are unfinished (wgmma.wait_group).

    pending   number of groups that may be unfinished
    of        what the MMAs of a group multiply, for printing: a k-tile, half of its columns, or a k-block
    """

    pending: int
    of: str = "k-tile"

    def __str__(self) -> str:
        but = {0: "", 1: f" but this {self.of}'s"}
        return f"wait     for all MMAs{but.get(self.pending, f' but those of {self.pending}')}"


@dataclass(frozen=True)
class Release(Step):
    """Program step: release a stage, so that it can be loaded again.

    Each warp that has read the stage arrives at its empty barrier, in every CTA that loads to it.

    previous   False: release the stage of this k-tile. True: release the stage of the previous k-tile. At the first
               k-tile of a tile nothing is then released, and after the loop the stage of the last k-tile is
    """

    previous: bool = False

    def __str__(self) -> str:
        return f"release  empty[k{' - 1' if self.previous else ''}]"


@dataclass(frozen=True)
class Skip(Step):
    """Program step: move on in the mainloop pipeline, past the k-tiles that other pingpong consumers take.

    whose   `BEFORE`: skip the first tiles of the consumers before this one. `OTHERS`: skip the tiles between this
            consumer's tile and its next one
    """

    changes: ClassVar[tuple[str, ...]] = ("stage", "phase")

    whose: str

    def __str__(self) -> str:
        return f"skip     the k-tiles of {self.whose}"


@dataclass(frozen=True)
class Advance(Step):
    """Program step: move on by one k-tile in the mainloop pipeline.

    Loops over k-tiles do so by themselves; the step is for use outside of a loop, or between the two k-tiles of an
    iteration.
    """

    changes: ClassVar[tuple[str, ...]] = ("stage", "phase", "last")

    def __str__(self) -> str:
        return "advance  past k"


@dataclass(frozen=True)
class Clear(Step):
    """Program step: set accumulators to 0.

    what   "total": the f32 sum of accumulator promotion. Or the name of a set of accumulators (see `Multiply`) that is
           added to the total once before any k-tile has been multiplied
    """

    what: str

    def __str__(self) -> str:
        return f"clear    {self.what}"


@dataclass(frozen=True)
class OpenOrder(Step):
    """Program step: let the first pingpong consumer issue MMAs, by a signal at its order barrier.

    Pingpong consumers issue MMAs in turn. The last consumer executes this step, once, at its start.
    """

    def __str__(self) -> str:
        return "signal   order[0], by the last consumer"


@dataclass(frozen=True)
class AwaitOrder(Step):
    """Program step: wait for the turn to issue MMAs, i.e. until the previous pingpong consumer has issued its MMAs.

    Each pingpong consumer has an order barrier that the previous one signals.
    """

    def __str__(self) -> str:
        return "wait     order of this consumer"


@dataclass(frozen=True)
class PassOrder(Step):
    """Program step: signal the order barrier of the next pingpong consumer, which may then issue its MMAs."""

    def __str__(self) -> str:
        return "signal   order of the next consumer"


@dataclass(frozen=True)
class Stagger(Step):
    """Program step: start each consumer some cycles after the one before, so that consumers store at different times.

    cycles   clock cycles from the start of one consumer to the next. The first one starts when stage 0 is full
    """

    cycles: int

    def __str__(self) -> str:
        return f"wait     full[0], then {self.cycles} cycles for each consumer before"


@dataclass(frozen=True)
class SyncThreads(Step):
    """Program step: synchronize all threads of the CTA after they have read the stage that they waited for."""

    def __str__(self) -> str:
        return "sync     read"


@dataclass(frozen=True)
class IncrementSemaphore(Step):
    """Program step: increment the semaphore of the tile in global memory, if K is split.

    The old value tells how many K splits of the tile have done so before. The last one adds the accumulators of all.
    """

    def __str__(self) -> str:
        return "signal   semaphore of the tile, if K is split"


@dataclass(frozen=True)
class ReduceSplits(Step):
    """Program step: combine the K splits of a tile.

    A K split that does not end last stores its accumulators to the workspace. The K split that ends last adds the
    accumulators of all K splits.
    """

    def __str__(self) -> str:
        return "reduce   the K splits: the last one adds all accumulators, the others store theirs"


@dataclass(frozen=True)
class SendAccumulators(Step):
    """Program step of cluster split-K: send to each CTA of the cluster the accumulators of that CTA's own columns.

    It first waits until the receivers have added the accumulators of the tile before.
    """

    def __str__(self) -> str:
        return "send     the accumulators of each CTA's columns -> that CTA, accumulators (waits for consumed)"


@dataclass(frozen=True)
class AddAccumulators(Step):
    """Program step of cluster split-K: add the accumulators that all CTAs have sent for this CTA's columns.

    They are added in the order of the CTAs. Afterwards the shared memory that received them is free.
    """

    changes: ClassVar[tuple[str, ...]] = ("accumulators_phase",)

    def __str__(self) -> str:
        return "add      the accumulators of all CTAs (waits for accumulators) -> acc; release consumed"


@dataclass(frozen=True)
class AwaitConsumed(Step):
    """Program step of cluster split-K: wait until all CTAs have added the accumulators that this CTA sent last.

    Only then may the CTA end: before, other CTAs may still arrive at its barriers.
    """

    def __str__(self) -> str:
        return "wait     consumed"


@dataclass(frozen=True)
class LoadEpiTile(Step):
    """Program step: load the epilogue's M x N operand, such as C, to free epilogue stages by TMA. One warp executes it.

    ahead   None: load the first epilogue tiles, one for each stage. A number: while epilogue tile i is stored, load
            tile i + `ahead`, if it exists and has not been loaded yet
    """

    changes: ClassVar[tuple[str, ...]] = ("c_phase",)  # the epilogue tiles after this step invert it

    ahead: int | None = None

    def __str__(self) -> str:
        if self.ahead is None:
            return "load     C of the first epilogue tiles -> their epilogue stages, c"
        return f"load     C of epilogue tile i + {self.ahead} -> its epilogue stage, c[i + {self.ahead}]"


@dataclass(frozen=True)
class Evaluate(Step):
    """Program step: evaluate a section of the epilogue, the head on all accumulators or the tail on one epilogue tile.

    For alpha * acc + beta * c the head is alpha * acc, the tail acc + beta * c.

    section   `HEAD` (leading scaling by scalars) or `TAIL` (the rest)
    fetched   name of the M x N operand that TMA has loaded to the epilogue stage; "" for none
    read      names of the operands that are read from global memory
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
class StoreAux(Step):
    """Program step: store auxiliary outputs of an epilogue tile from registers to global memory.

    names   names of the auxiliary outputs
    """

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"store    {', '.join(self.names)} of epilogue tile i -> global memory"


@dataclass(frozen=True)
class Reduce(Step):
    """Program step: add the values of an epilogue tile to a warp's row or column sums (or maxima).

    A warp's result, a partial one, is stored to the workspace after the last epilogue tile that contributes to it.

    names   names of the epilogue's results that are reductions
    """

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"reduce   {', '.join(self.names)} of epilogue tile i; partial results that are complete -> workspace"


@dataclass(frozen=True)
class KeepTile(Step):
    """Program step: evaluate a tile's epilogue and keep D in registers, to be stored during the next tile's MMAs.

    read      names of the operands that are read from global memory
    aux       names of the auxiliary outputs, which are stored at once
    reduced   names of the sums and maxima; their partial results are stored to the workspace at once
    groups    whether the tile belongs to a group, whose first row and size are kept as well
    """

    read: tuple[str, ...] = ()
    aux: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    groups: bool = False

    @property
    def changes(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the names of the loop-carried variables that the step changes."""
        of_group = ("overlapped_begin", "overlapped_size") if self.groups else ()
        return ("left", "overlapped_m", "overlapped_n", "overlapped_l", *of_group)

    def __str__(self) -> str:
        sources = f", with {_from_global(self.read)}" if self.read else ""
        stored = f"; store {', '.join(self.aux)}" if self.aux else ""
        return f"keep     the tile, converted{sources}{stored}{_reduced(self.reduced)}"


@dataclass(frozen=True)
class WaitStores(Step):
    """Program step: wait until at most `pending` TMA stores of this warp still read their epilogue stages.

    pending   number of stores that may still read
    by        the warps that wait: `FIRST_WARP`, if it stores for all; `EACH_WARP`, if each stores its own rows; `ALL`,
              in either case
    """

    pending: int
    by: str

    def __str__(self) -> str:
        which = f"all stores but {self.pending}" if self.pending else "all stores"
        return f"wait     until {which} have read their epilogue stages{'' if self.by == ALL else f', by {self.by}'}"


@dataclass(frozen=True)
class WriteEpiStage(Step):
    """Program step: write the values of an epilogue tile from registers to its epilogue stage in shared memory.

    result   "d", or the name of an auxiliary output, which takes another epilogue stage than D
    """

    result: str = "d"

    def __str__(self) -> str:
        return f"write    {'' if self.result == 'd' else f'{self.result} of '}epilogue tile i -> epilogue stage"


@dataclass(frozen=True)
class SyncEpiTile(Step):
    """Program step: synchronize the warps of a consumer after they have written an epilogue stage, before it is stored.

    It is also used before a stage is written again: all warps then know that the earlier store of the stage has read
    it.
    """

    def __str__(self) -> str:
        return "sync     epilogue tile"


@dataclass(frozen=True)
class StoreEpiStage(Step):
    """Program step: store an epilogue stage from shared to global memory.

    by       `FIRST_WARP`: warp 0 stores the whole stage. `EACH_WARP`: each warp stores its own rows. `ALL`: all threads
             copy the stage
    by_tma   whether it is a bulk store by TMA, which `WaitStores` waits for; otherwise threads copy the stage
    result   "d", or the name of an auxiliary output
    index    name of the operand with the row of D that TMA adds each row to; "" if the stage is stored
    """

    by: str
    by_tma: bool = True
    result: str = "d"
    index: str = ""

    def __str__(self) -> str:
        if self.index:
            return f"add      rows of epilogue stage -> D[{self.index}] by TMA, by {self.by}"
        return f"store    epilogue stage -> {_matrix(self.result)}{' by TMA' if self.by_tma else ''}, by {self.by}"


@dataclass(frozen=True)
class StoreTile(Step):
    """Program step: evaluate the epilogue's tail and store the whole tile directly from registers to global memory.

    read      names of the epilogue's operands that are read from global memory
    aux       names of the auxiliary outputs, which are also stored
    reduced   names of the sums and maxima, whose partial results are stored to the workspace
    """

    read: tuple[str, ...] = ()
    aux: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()

    def __str__(self) -> str:
        sources = f", with {_from_global(self.read)}," if self.read else ""
        return f"store    acc{sources} -> {', '.join(['D', *self.aux])}{_reduced(self.reduced)}"


def _matrix(name: str) -> str:
    """Return the name under which a program prints a matrix: "C" for "c", and longer names such as "bias" unchanged."""
    return name.upper() if len(name) == 1 else name


def _reduced(names: tuple[str, ...]) -> str:
    """Return the end of a step's printed line with its reductions, e.g. "; reduce total -> workspace"; "" for none."""
    return f"; reduce {', '.join(names)} -> workspace" if names else ""


def _from_global(names: tuple[str, ...]) -> str:
    """Return the text "C, bias from global memory" for the operand names ("c", "bias")."""
    return f"{', '.join([_matrix(name) for name in names])} from global memory"


# --- loops and branches ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForTiles(Block):
    """Loop of a program: run the steps for each work tile that this role takes of its CTA's.

    every     1: the role takes all work tiles. n: it takes every n-th, and consumer i starts with work tile i
    lasting   whether to run the steps once more at the end, without a work tile, to store the tile kept in registers
    """

    steps: tuple[Step, ...]
    every: int = 1
    lasting: bool = False

    def __str__(self) -> str:
        ordinal = {2: "2nd", 3: "3rd"}.get(self.every, f"{self.every}th")
        which = f", every {ordinal} from this consumer's first" if self.every > 1 else ""
        return f"for tile in work{which}{', and until all are stored' if self.lasting else ''}:"


@dataclass(frozen=True)
class ForKTiles(Block):
    """Loop of a program: run the steps for each k-tile of a work tile, and move on in the mainloop pipeline after each.

    but_last   whether to leave out the last k-tile, because steps after the loop handle it
    by         k-tiles of an iteration: 1 or 2. With 2, the steps move on between the two k-tiles, and steps before the
               loop handle the first k-tile if their number is odd
    """

    changes: ClassVar[tuple[str, ...]] = ("stage", "phase")

    steps: tuple[Step, ...]
    but_last: bool = False
    by: int = 1

    def __str__(self) -> str:
        which = f"{', two at a time' if self.by > 1 else ''}{' but the last' if self.but_last else ''}"
        return f"for k in tile.k_tiles{which}:"


@dataclass(frozen=True)
class ForAhead(Block):
    """Loop of a program: run the steps for the first `count` k-tiles of a work tile, e.g. to load them.

    The role's position in the mainloop pipeline is the same afterwards as before.
    """

    steps: tuple[Step, ...]
    count: int

    def __str__(self) -> str:
        return f"for k in the first {self.count} k-tiles:"


@dataclass(frozen=True)
class ForStages(Block):
    """Loop of a program: run the steps once for each stage of the mainloop pipeline, from the present stage on."""

    changes: ClassVar[tuple[str, ...]] = ("stage", "phase")

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "for k in the next stages, once around the pipeline:"


@dataclass(frozen=True)
class ForEpiTiles(Block):
    """Loop of a program: run the steps for each epilogue tile of the consumer's tile.

    overlapped   False: the tile that was just multiplied. True: the tile kept in registers (overlapped epilogue), and
                 only its epilogue tiles that have not been stored yet
    """

    steps: tuple[Step, ...]
    overlapped: bool = False

    def __str__(self) -> str:
        return "for epilogue tile i that is left of the tile kept:" if self.overlapped else "for epilogue tile i:"


@dataclass(frozen=True)
class OverlappedEpiTile(Block):
    """Branch of a program: in iteration k of the loop over k-tiles, run steps for epilogue tile k of the previous tile.

    The previous tile was kept in registers, and is stored while the MMAs of this one run (overlapped epilogue).
    """

    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return "if epilogue tile i = k of the tile kept is left:"


@dataclass(frozen=True)
class If(Block):
    """Branch of a program: run the steps if a condition is true when the program is executed.

    condition   text of the condition, one of the constants of this module, such as `IS_LAST_SPLIT`
    """

    condition: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"if {self.condition}:"


@dataclass(frozen=True)
class Program(hooks.Listing):
    """The program of a warp role: its steps, executed from top to bottom. `str` prints them, one a line.

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
        """Yield every step of this program from top to bottom, including those inside loops and branches."""
        return _walk(self.steps)

    def has(self, kind: type) -> bool:
        """Return whether this program has a step of the class `kind`, also inside loops and branches."""
        return any(isinstance(step, kind) for step in self.walk())

    def edited(self, edit: Any) -> Program:
        """Return this program with each step replaced by `edit(step)`; a result of None removes the step.

        Loops and branches are edited after the steps inside them. Tests use it to make faulty programs.

        >>> program = Program((ForTiles((ForKTiles((Wait("empty"), Load())),)),))
        >>> program.edited(lambda step: None if isinstance(step, Wait) else step).has(Wait)
        False
        """
        return Program(_edited(self.steps, edit))


def _walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Yield the given steps of a program, each followed by the steps inside it, from top to bottom."""
    for step in steps:
        yield step
        if isinstance(step, Block):
            yield from _walk(step.steps)


def _lines(steps: tuple[Step, ...], depth: int) -> Iterator[str]:
    """Yield the printed lines of some program steps, indented by `depth` levels; steps inside loops by one more."""
    for step in steps:
        yield f"{'  ' * depth}{step}"
        if isinstance(step, Block):
            yield from _lines(step.steps, depth + 1)


def height(step: Step) -> int:
    """Return the number of lines that a program step takes when printed, including the steps inside it."""
    return 1 + sum(map(height, step.steps)) if isinstance(step, Block) else 1


def _edited(steps: tuple[Step, ...], edit: Any) -> tuple[Step, ...]:
    """Return program steps after `edit(step)` has replaced each of them, or removed it by returning None."""
    out = []
    for step in steps:
        inner: Any = step
        if isinstance(step, Block):
            inner = replace(inner, steps=_edited(step.steps, edit))
        changed = edit(inner)
        if changed is not None:
            out.append(changed)
    return tuple(out)


def _plus(ahead: int) -> str:
    """Return the printed offset from a k-tile: " + 2" for 2, and "" for 0."""
    return f" + {ahead}" if ahead else ""
