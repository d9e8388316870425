"""mma.sync by consumers that are warps: fragments are read one k-block ahead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutegemm.plan.mainloop.base import Mainloop, Steps
from cutegemm.plan.program.expand import Expansion, State
from cutegemm.plan.program.operations import BeginRead, Compute, EndRead, Op
from cutegemm.plan.program.steps import HAS_K_TILES, Advance, Clear, ForKTiles, If, Step, Wait

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan


@dataclass(frozen=True)
class Test(Step):
    """Program step: test early whether a stage is full (or empty), so that the `Wait` for it a bit later costs nothing.

    barrier   "full" or "empty"
    ahead     number of k-tiles from the one that the role works on to the one whose stage is tested
    """

    barrier: str
    ahead: int = 0

    def __str__(self) -> str:
        return f"test     {self.barrier}[k{f' + {self.ahead}' if self.ahead else ''}]"


@dataclass(frozen=True)
class ReadFirst(Step):
    """Program step: read the fragments of the first k-block of a k-tile from its stage to registers."""

    def __str__(self) -> str:
        return "read     A[k], B[k]: k-block 0"


@dataclass(frozen=True)
class MultiplyBlock(Step):
    """Program step: multiply a k-block by mma.sync, and meanwhile read the fragments of the next one to registers.

    k_block    index of the k-block in the k-tile
    ahead      what is read meanwhile: 0, the next k-block; 1, the first k-block of the next k-tile; None, nothing
    releases   whether the stage is released after the first MMAs: all of it has been read then
    """

    k_block: int
    ahead: int | None = 0
    releases: bool = False

    @property
    def takes_mma_time(self) -> bool:
        """Return True: in drawings of a program over time, the step takes as long as the MMAs of its k-block."""
        return True

    def __str__(self) -> str:
        text = f"mma      A[k], B[k] -> acc: k-block {self.k_block}"
        if self.ahead is not None:
            text += f"; read {'k-block ' + str(self.k_block + 1) if not self.ahead else 'k-block 0 of k + 1'}"
        return text + ("; release empty[k]" if self.releases else "")


@Expansion.handles(Test)
def _test(expansion: Expansion, test: Test, at: State, i: int) -> Iterator[Op]:
    yield from ()


@Expansion.handles(ReadFirst)
def _read_first(expansion: Expansion, read: ReadFirst, at: State, i: int) -> Iterator[Op]:
    yield BeginRead(expansion.stage(at.position)[0], (at.number, 0))


@Expansion.handles(MultiplyBlock)
def _multiply_block(expansion: Expansion, block: MultiplyBlock, at: State, i: int) -> Iterator[Op]:
    stage = expansion.stage(at.position)[0]
    if block.ahead == 1:
        yield BeginRead(expansion.stage(at.position + 1)[0], (at.number, at.k + 1))
    yield Compute(block, (at.number, at.k), stage)
    if block.releases:
        yield EndRead(stage)
        yield expansion.released(stage)


class WarpMma(Mainloop):
    """Mainloop for mma.sync: warps multiply a k-block while they read the next one's fragments from shared memory."""

    def k_tiles(self, plan: GemmPlan) -> Steps:
        """Return the program steps for all k-tiles of a tile: a loop, and then the last k-tile.

        The last one has steps of its own, because no fragments of a next k-tile are read there.
        """
        loop = ForKTiles(tuple(_k_blocks(plan.k_blocks, reads_on=True)), but_last=True)
        last = _k_blocks(plan.k_blocks, reads_on=False)
        return (Clear("acc"), If(HAS_K_TILES, (Wait("full"), ReadFirst(), loop, *last, Advance())))

    def epilogue(self, plan: GemmPlan) -> Steps:
        """Return (), no program steps: the accumulators of mma.sync are complete when the instruction returns."""
        return ()


def _k_blocks(count: int, reads_on: bool) -> list[Step]:
    """Return the program steps for one k-tile with mma.sync: multiply each k-block, and read the next one meanwhile.

    count      number of k-blocks of a k-tile
    reads_on   whether the last steps read fragments of the next k-tile; its barrier is tested one k-block earlier
    """
    steps: list[Step] = []
    for k_block in range(count):
        is_last = k_block == count - 1
        if reads_on and k_block == count - 2:
            steps.append(Test("full", ahead=1))
        if reads_on and is_last:
            steps.append(Wait("full", ahead=1))
        ahead = (1 if reads_on else None) if is_last else 0
        steps.append(MultiplyBlock(k_block, ahead, releases=is_last))
    return steps
