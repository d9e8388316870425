"""The recipe of a SIMT plan.

A name fixes the tile sizes. The rest follows from the operands: the copies of A and B from their majorness and
alignment, the width of the accesses from their types.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from cutegemm.build.building import Shared
from cutegemm.build.simt import simt_plan
from cutegemm.choice.options import parse_flag, parse_tuple
from cutegemm.choice.recipe import BuildTarget, Recipe
from cutegemm.layout import Swizzle
from cutegemm.machine.arch import ACCESS_BITS
from cutegemm.plan.memory.repack import ALIGN_BYTES
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.tile.tiled_copy import TiledCopy


def _shared(text: str) -> Shared:
    """Parse the layout of a tile in shared memory from a text such as "mn+4".

    text   contiguous mode ("mn" or "k"), then padding or swizzle: "mn+4" is contiguous along M or N, padded by 4
           elements; "k^2.3.4" is contiguous along K, swizzled by S<2, 3, 4>
    """
    text, _, swizzle = text.partition("^")
    major, _, pad = text.partition("+")
    if not swizzle:
        return Shared(major=major, pad=int(pad or 0))
    bits, base, shift = map(int, swizzle.split("."))
    return Shared(major=major, pad=int(pad or 0), swizzle=Swizzle(bits, base, shift))


@dataclass(frozen=True)
class SimtRecipe(Recipe):
    """A SIMT plan that is not built yet: its name, and its options; `build` makes it for given operands.

    In the options of a built-in plan, "stages" may be a pair: the number of stages if cp.async loads both tiles, and
    the number if a tile is loaded through registers, which then hold one more k-tile. Its option "access_elems" is the
    largest number of elements of one memory access.
    """

    family: ClassVar[str] = "simt"
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        **dict.fromkeys(("block", "warp", "thread", "quad"), parse_tuple),
        **dict.fromkeys(("stages", "unroll", "ctas_per_sm", "access_bits", "split_k", "waves", "persistent"), int),
        **dict.fromkeys(("shared_a", "shared_b"), _shared),
        **dict.fromkeys(("load_a", "load_b", "lanes_along", "raster", "mma_order", "repack"), str),
        **dict.fromkeys(("split_order", "reduction", "store"), str),
        "prefetch": parse_flag,
    }
    splits: ClassVar[frozenset[str]] = frozenset({"k", "last", "s"})
    reduction: ClassVar[str] = "kernel"

    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """Build the SIMT plan for the operands as the kernel sees them, with options adapted to their types.

        operands   transposed already if the plan swaps A and B
        target     architecture and device properties that the plan is built for
        raises     PlanError if the operands break rules of the plan
        """
        widest = max(operands.a.dtype.bits, operands.b.dtype.bits, operands.acc.bits)
        quad = min(4, ACCESS_BITS // widest)
        options = {"quad": (quad, quad), "stages": 2, **self.options, "repack": self.repacked(operands)}
        options |= self.split_options
        if operands.batched:  # a batch of few tiles gains nothing from grouping, and `along_m` is faster to compute
            options.setdefault("raster", "along_m")
        options["ctas_per_sm"] = max(1, options.get("ctas_per_sm", 1) * 32 // max(32, widest))
        elems = options.pop("access_elems", None)
        if elems is not None:
            options["access_bits"] = min(ACCESS_BITS, elems * operands.a.dtype.bits)
        stages = options["stages"]
        async_stages, options["stages"] = stages if isinstance(stages, tuple) else (stages, stages)
        texts: dict[str, Any] = {"name": self.plan_name, "summary": self.summary}
        plan = simt_plan(operands, **texts, **options)
        loads = [load for load in (plan.a.load, plan.b.load) if isinstance(load, TiledCopy)]
        if options["stages"] != async_stages and all(load.atom.is_async for load in loads):
            plan = simt_plan(operands, **texts, **{**options, "stages": async_stages})
        return plan

    def to_repack(self, operands: Operands) -> str:
        """Return which operands should go through a repack pass (a copy kernel before the GEMM): "", "a", "b" or "ab".

        They are the operands that are K-major, or aligned to less than 16 bytes, since SIMT plans load both slowly.

        operands   as the kernel sees them: transposed if the plan swaps A and B

        >>> plan = SimtRecipe("mine", "", {})
        >>> [plan.to_repack(Operands.of("f32", layout=layout)) for layout in ("nn", "tn")]
        ['a', '']
        """
        names = [
            name for name in "ab"
            if getattr(operands, name).major == "k" or getattr(operands, name).align_bytes < ALIGN_BYTES
        ]  # fmt: skip
        return "".join(names)
