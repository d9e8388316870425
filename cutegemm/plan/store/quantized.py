"""Quantize a tile of D by blocks of 1 x 128 before it is stored: see `plan.epilogue.quantized`.

A thread of wgmma has two rows of every 64, and four lanes share a row. So the largest magnitude of 128 columns is that
of a thread's registers, and two shuffles. No warp needs the values of another one.

| step of a consumer, for its tile                                                   |
|------------------------------------------------------------------------------------|
| evaluate the epilogue for all accumulators, in f32 and in place                    |
| find the largest magnitude of each row and block of 128 columns                    |
| compute its scale, and store it: one lane of four                                  |
| multiply the values by the reciprocals of the scales                               |

Then the tile is converted and stored like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from cutegemm.dtypes import f32
from cutegemm.plan.epilogue.quantized import Quantized
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.plan.memory.partials import held_in_units
from cutegemm.plan.problem import Operand
from cutegemm.plan.program.expand import Expansion, State
from cutegemm.plan.program.operations import Compute, Op
from cutegemm.plan.program.steps import Step

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan

SCALES_OF_D = Operand(f32, "m", align_bytes=4, modes=("m", f"n/{BLOCK}"))
SHARERS = (1, 2)  # distances of the lanes that share a row of wgmma's accumulators


@dataclass(frozen=True)
class QuantizeTile(Step):
    """Program step: evaluate the epilogue of a tile and quantize it: store block scales, and divide the values by them.

    Each row has a scale for every 128 columns. The values stay in registers, to be stored by later steps.

    scales   name of the result that holds the scales
    read     names of the operands that are read from global memory
    """

    scales: str
    read: tuple[str, ...] = ()

    def __str__(self) -> str:
        sources = f", with {', '.join(self.read)} from global memory" if self.read else ""
        return f"quantize acc{sources}; a scale of each row and {BLOCK} columns -> {self.scales}"


@Expansion.handles(QuantizeTile)
def _quantize_tile(expansion: Expansion, quantize: QuantizeTile, at: State, i: int) -> Iterator[Op]:
    yield Compute(quantize, (at.number, i))


def quantize_steps(plan: GemmPlan) -> tuple[Step, ...]:
    """Return the program step that quantizes a tile of D, in a tuple; () if the epilogue does not quantize."""
    epilogue = plan.epilogue
    return tuple([QuantizeTile(name, epilogue.tensors) for name in epilogue.scales])


@cache
def block_groups(plan: GemmPlan) -> tuple[int, ...]:
    """Return, for each register of a thread, the number of the block that its element belongs to.

    A block is 128 columns of a row, and has one scale when D is quantized. The thread's blocks are numbered in the
    order of their first registers.

    >>> from cutegemm.build import sm90_plan
    >>> groups = block_groups(sm90_plan(tile=(64, 256, 64)))
    >>> groups[:6], groups[-4:], len(groups)
    ((0, 0, 1, 1, 0, 0), (2, 2, 3, 3), 128)
    """
    elements, rows = held_in_units(plan)[0, 0], plan.d_tile[0]
    keys = [(int(element % rows), int(element // rows // BLOCK)) for element in elements]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return tuple([numbers[key] for key in keys])


def quantize_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each rule on quantizing D that the plan breaks."""
    values, d = plan.epilogue.expression, plan.operands.d
    if not isinstance(values, Quantized):
        return
    if d.dtype != values.dtype:
        yield f"quantize makes {values.dtype}, but D is {d.dtype}. Make D {values.dtype}."
    if d.major != "n":
        yield f"quantize stores rows of D, but D is {d.major}-major. Make D n-major."
    for name in plan.epilogue.scales:
        if plan.operands.matrix(name) != SCALES_OF_D:
            yield f"{name} is {plan.operands.matrix(name)}; the scales of D are {SCALES_OF_D}, by (m, n/{BLOCK})."
    yield from tile_rules(plan, bool(plan.operands.gated))


def tile_rules(plan: GemmPlan, gated: bool) -> Iterator[str]:
    """Yield a sentence for each rule on the tile and the store that a plan with a quantized D breaks.

    gated   whether D has half of the columns of A @ B, in the plan or after its epilogue is replaced
    """
    is_staged = plan.body.has_roles and plan.store.stage_copy is not None
    if not is_staged or not plan.tiled_mma.atom.is_of_warpgroup or plan.body.overlapped:
        yield (
            "quantize needs a plan with wgmma that stores D through epilogue stages, without an overlapped epilogue. "
            "Use an sm90_plan with store='tma'."
        )
        return
    columns = plan.consumer_tile[1] // (2 if gated else 1)
    if columns % BLOCK:
        yield f"a consumer's tile of D has {columns} columns; quantize needs a multiple of {BLOCK}."
