"""Block-scaled operands: threads multiply the accumulators of a k-tile by scales of A and B, and add them to a total.

An operand has one f32 scale for each row (of B: column) and 128 of K, or one for each block of 128 x 128. Scales of
rows are an operand stream: TMA loads them with the k-tile. Scales of blocks are few. A warp loads those of 32 k-tiles
from global memory at once, one k-tile to each lane. In each k-tile, all lanes read the scales of one lane by a shuffle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from cutegemm.dtypes import f32
from cutegemm.layout import Layout
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.access import GlobalRead, SmemAccess
from cutegemm.plan.mainloop.base import Steps
from cutegemm.plan.mainloop.promoted import Promote, Promoted
from cutegemm.plan.memory.groups import elements_between_starts
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.program.expand import Expansion, State
from cutegemm.plan.program.operations import Compute, Op
from cutegemm.plan.program.steps import Step

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

BLOCK = 128  # elements of K, and of the rows or columns of a block, that share a scale
ROWS, BLOCKS = "1x128", "128x128"
GRANULARITIES = (ROWS, BLOCKS)
_PERIOD = {"m": 64, "n": 8}  # rows and columns of wgmma's accumulator; each thread has two of them
_NAMES = ("scale_a", "scale_b")
LANES = WARP_THREADS  # k-tiles whose block scales the lanes of a warp hold


def with_scales(operands: Operands, scales: Sequence[str]) -> Operands:
    """Return the operands with f32 block scales of A and of B added, under the names "scale_a" and "scale_b".

    scales   (granularity for A, granularity for B). "1x128": a scale for each row of A (column of B) and 128 of K.
             "128x128": a scale for each block of 128 rows (columns) and 128 of K

    >>> str(with_scales(Operands.of("e4m3", layout="nt", out="bf16"), ("1x128", "128x128")).matrix("scale_b"))
    'f32 k-major, 4-byte aligned'
    """
    found = {}
    for name, mode, granularity in zip(_NAMES, "mn", scales, strict=True):
        if granularity == ROWS:
            found[name] = Operand(f32, mode, modes=(mode, f"k/{BLOCK}"))
        else:
            found[name] = Operand(f32, "k", align_bytes=4, modes=(f"{mode}/{BLOCK}", f"k/{BLOCK}"))
    return operands.with_aux(**found)


def scale_names(operands: Operands) -> tuple[str, ...]:
    """Return the names of the operands that are block scales of A or B, in their order; () if there are none."""
    return tuple([name for name in operands.of_mainloop if name in _NAMES])


def has_scales(operands: Operands) -> bool:
    """Return whether some operands include block scales of A or B, which the mainloop reads."""
    return bool(scale_names(operands))


def column_scales(operands: Operands, columns: int) -> int:
    """Return the registers that a thread needs for scales of single columns: 2 for each 8 columns; 0 if it has none.

    operands   operands of the GEMM, with or without block scales
    columns    columns of a consumer's tile
    """
    names = [name for name in scale_names(operands) if operands.modes(name)[0] == "n"]
    return sum([Scales(name, "n", columns, by_block=False).registers for name in names])


@dataclass(frozen=True)
class Scales:
    """The block scales of one operand along the rows, or along the columns, of a consumer's tile.

    name      name of the operand that holds them, such as "scale_a"
    mode      "m": scales of rows; "n": of columns
    extent    rows or columns of a consumer's tile
    by_block  True: a scale belongs to a block of 128 rows or columns; False: each row or column has its own
    """

    name: str
    mode: str
    extent: int
    by_block: bool

    @property
    def run(self) -> int:
        """Return the number of neighbouring rows (or columns) that share one block scale; 1 if each has its own.

        With blocks of 128, it is the largest number that holds in all tiles: e.g. 64 for a tile of 192, whose second
        tile begins in the middle of a block.
        """
        return gcd(BLOCK, self.extent) if self.by_block else 1

    @property
    def layout(self) -> Layout:
        """Return the layout from (position in a run, run) to the index of the block scale, for a consumer's tile.

        A run is a set of neighbouring rows (or columns) that share one scale.

        >>> Scales("scale_b", "n", 192, by_block=True).layout
        Layout((64, 3), (0, 1))
        """
        return Layout((self.run, self.extent // self.run), (0, 1))

    @property
    def registers(self) -> int:
        """Return the number of these block scales that a thread holds in registers at a time.

        With scales of single rows, a thread has those of 2 rows of every 64; with scales of single columns, of 2
        columns of every 8.
        """
        return self.extent // self.run if self.by_block else 2 * self.extent // _PERIOD[self.mode]

    def register(self, place: int, neighbour: int) -> int:
        """Return which of a thread's block scales an accumulator is multiplied by, as an index.

        place       first row of the accumulator's 64 rows, or first column of its 8 columns, in the consumer's tile
        neighbour   0 or 1: the first or second of the two rows (of 64), or columns (of 8), that a thread has
        """
        return int(self.layout(place)) if self.by_block else place // _PERIOD[self.mode] * 2 + neighbour


def scales_of(plan: GemmPlan) -> tuple[Scales, ...]:
    """Return the block scales that a consumer multiplies by: first those of rows (along M), then those of columns (N).

    If the plan swaps A and B, the scales along M are those of the caller's B.
    """
    extents = dict(zip("mn", plan.consumer_mma_tile, strict=True))
    along = sorted([(plan.operands.modes(name)[0], name) for name in scale_names(plan.operands)])
    return tuple([Scales(name, mode[0], extents[mode[0]], by_block=len(mode) > 1) for mode, name in along])


def block_scales_of(plan: GemmPlan) -> tuple[Scales, ...]:
    """Return the block scales of a consumer's tile that belong to blocks of 128 x 128; () for none.

    The lanes of a warp hold them: one k-tile's scales in each lane. Scales of single rows are in shared memory instead.
    """
    return tuple([scales for scales in scales_of(plan) if scales.by_block])


# --- steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClearScales(Step):
    """Program step: set the block scales in a consumer's registers to 0.

    Before the first k-tile, accumulators of 0 are added to the total once. They are multiplied by these scales;
    uninitialized scales could be NaN, and 0 * NaN would spoil the total.
    """

    def __str__(self) -> str:
        return "clear    scales"


@dataclass(frozen=True)
class LoadScales(Step):
    """Program step: load the 128 x 128 block scales of the first 64 k-tiles, two k-tiles in each lane of a warp.

    Lane i loads the scales of k-tiles i and 32 + i to two registers. A consumer later reads the scales of a k-tile from
    its lane by a shuffle. After 32 k-tiles another step replaces the first register by the second.
    """

    def __str__(self) -> str:
        return f"load     scales of blocks of the first {2 * LANES} k-tiles -> lanes"


@dataclass(frozen=True)
class ReadScales(Step):
    """Program step: read the block scales of a k-tile to registers.

    Scales of single rows are read from the stage in shared memory that they were loaded to with the k-tile. Scales of
    128 x 128 blocks are read by a shuffle: each lane of the warp holds the scales of another k-tile, which earlier
    steps have loaded.
    """

    def __str__(self) -> str:
        return "read     scales of A[k], B[k]"


@dataclass(frozen=True)
class ReloadScales(Step):
    """Program step: after every 32 k-tiles, replace the 128 x 128 block scales in the lanes by those of the next 32.

    The new scales were loaded to other registers before, so no thread waits. The step also starts to load the scales
    that are needed 32 k-tiles later.
    """

    def __str__(self) -> str:
        return f"load     scales of blocks of {LANES} later k-tiles -> lanes, if all lanes have been read"


@dataclass(frozen=True)
class PromoteScaled(Promote):
    """Program step: multiply the accumulators of one k-tile by its block scales, and add them to the f32 total."""

    def __str__(self) -> str:
        return f"add      {self.accumulators} * scales to total"


@Expansion.handles(ClearScales, LoadScales, ReloadScales)
def _in_registers(expansion: Expansion, each: Step, at: State, i: int) -> Iterator[Op]:
    yield Compute(each, (at.number, at.k))


@Expansion.handles(ReadScales)
def _read(expansion: Expansion, read: ReadScales, at: State, i: int) -> Iterator[Op]:
    yield Compute(read, (at.number, at.k), expansion.stage(at.position)[0])


@Expansion.handles(PromoteScaled)
def _promote(expansion: Expansion, promote: PromoteScaled, at: State, i: int) -> Iterator[Op]:
    yield Compute(promote, (at.number, i))


# --- the mainloop ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BlockScaled(Promoted):
    """Mainloop for block scales: total += accumulators * scale of A * scale of B, for each k-tile of 128.

    It is accumulator promotion (`Promoted`) with factors: MMAs of each k-tile start from 0, and threads add the scaled
    result to a total in f32.
    """

    promote: ClassVar[type[Promote]] = PromoteScaled
    factor: ClassVar[str] = "block scales"

    def prologue(self, plan: GemmPlan) -> Steps:
        """Return the program steps that clear total, accumulators and scales, and load the first block scales."""
        first = (LoadScales(),) if block_scales_of(plan) else ()
        return (*super().prologue(plan), ClearScales(), *first)

    def read(self, plan: GemmPlan) -> Steps:
        """Return the program step that reads the block scales of a k-tile."""
        return (ReadScales(),)

    def after_two(self, plan: GemmPlan) -> Steps:
        """Return the program step that loads block scales of later k-tiles; () without 128 x 128 blocks."""
        return (ReloadScales(),) if block_scales_of(plan) else ()

    def registers(self, plan: GemmPlan, accumulators: int) -> Mapping[str, int]:
        """Return the registers of a thread for the accumulators of a k-tile and for block scales: use -> number.

        accumulators   number of registers of one set of accumulators
        """
        found = {**super().registers(plan, accumulators), "scales": sum(each.registers for each in scales_of(plan))}
        in_lanes = 2 * sum(each.registers for each in block_scales_of(plan))
        return {**found, "scales of later k-tiles": in_lanes} if in_lanes else found

    def accesses(self, plan: GemmPlan) -> Iterable[SmemAccess]:
        """Yield the reads of block scales from shared memory, for the analysis.

        Scales of rows are read one by one, those of columns two neighbours at a time.
        """
        rows, columns = scales_of(plan)
        lanes = np.arange(32)
        warps = plan.consumer_warps * plan.body.readers
        if not rows.by_block:
            first = np.arange(warps) // plan.consumer_warps * rows.extent + np.arange(warps) % plan.consumer_warps * 16
            own = np.arange(0, rows.extent, _PERIOD["m"])[:, None] + np.array([0, 8])
            elements = first[:, None, None] + (lanes // 4)[None, :, None] + own.reshape(-1)
            yield SmemAccess(f"read {rows.name.upper()}", rows.name, "load", elements, 32)
        if not columns.by_block:
            pairs = (lanes % 4 * 2)[:, None] + np.arange(0, columns.extent, _PERIOD["n"])
            elements = (pairs[:, :, None] + np.arange(2)).reshape(1, len(lanes), -1)
            elements = np.repeat(elements, warps, axis=0)
            apart = elements_between_starts(plan.operands, columns.name)
            yield SmemAccess(f"read {columns.name.upper()}", columns.name, "load", elements, 64 if apart == 1 else 32)

    def global_reads(self, plan: GemmPlan) -> Iterable[GlobalRead]:
        """Yield the reads of 128 x 128 block scales from global memory, for the analysis.

        Each lane of a warp reads the scales of one k-tile, element by element.
        """
        warps = plan.consumer_warps * plan.body.readers
        for scales in block_scales_of(plan):
            yield GlobalRead(f"read {scales.name.upper()}", scales.name, warps * scales.registers, LANES)

    def operands(self, plan: GemmPlan) -> Iterable[str]:
        """Return the names of all operands with block scales.

        Scales of single rows or columns are loaded with k-tiles by TMA; those of 128 x 128 blocks are read by threads.
        """
        return scale_names(plan.operands)

    def rules(self, plan: GemmPlan) -> Iterable[str]:
        """Yield a sentence for each rule on block scales that the plan breaks."""
        yield from super().rules(plan)
        operands, bk = plan.operands, plan.cta_tile[2]
        if [scales.mode for scales in scales_of(plan)] != ["m", "n"]:
            have = ", ".join(scale_names(operands)) or "none"
            yield f"the scales are {have}; a plan needs one operand for the rows of D and one for its columns."
            return
        if bk != BLOCK:
            yield f"bK = {bk}; a scale covers {BLOCK} of K. Take bK = {BLOCK}."
        if plan.cluster_k > 1 or operands.gated:
            yield "block scales do not support cluster_k and gated epilogues. Leave them out."
        if operands.groups == "k":
            yield "groups divide K, so that blocks of 128 of K would belong to two groups. Scale after the product."
        streams = [stream.name for stream in plan.streams]
        for scales in scales_of(plan):
            if scales.by_block and scales.mode == operands.groups:
                yield (
                    f"{scales.name} has a scale for each block of {BLOCK} along {scales.mode.upper()}, which groups "
                    f'divide. Use the granularity "{ROWS}".'
                )
            operand = operands.matrix(scales.name)
            along, deep = operand.modes
            wanted = (f"{scales.mode}/{BLOCK}" if scales.by_block else scales.mode, f"k/{BLOCK}")
            if operand.dtype != f32 or (along, deep) != wanted:
                yield f"{scales.name} is {operand.dtype} with the modes {operand.modes}; it must be f32 with {wanted}."
            if (scales.name in streams) == scales.by_block:
                where = "read from global memory" if scales.by_block else "an operand stream"
                yield f"{scales.name} has the modes {operand.modes}; such scales must be {where}."
