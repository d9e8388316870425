"""The recipe of a SIMT plan.

A name stands for tile sizes; what else the plan is follows from the operands: how a tile is loaded from their
majorness and alignment, how wide the accesses are from their types.
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
    """mn+4: along M or N, with 4 elements of padding; k^2.3.4: along K, with a swizzle."""
    text, _, swizzle = text.partition("^")
    major, _, pad = text.partition("+")
    if not swizzle:
        return Shared(major=major, pad=int(pad or 0))
    bits, base, shift = map(int, swizzle.split("."))
    return Shared(major=major, pad=int(pad or 0), swizzle=Swizzle(bits, base, shift))


@dataclass(frozen=True)
class SimtRecipe(Recipe):
    """What a SIMT plan is before its operands are known.

    Of `options`, `stages` may be a pair: with cp.async alone, and where a tile goes through registers, as such a tile
    is one more on its way already. `access_elems` are the elements that a thread moves at once, at most.
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
        """The plan for operands: `simt_plan`, its options fitted to the width of their elements.

        raises   PlanError where they break its rules
        """
        widest = max(operands.a.dtype.bits, operands.b.dtype.bits, operands.acc.bits)
        quad = min(4, ACCESS_BITS // widest)
        given = {"quad": (quad, quad), "stages": 2, **self.options, "repack": self.repacked(operands)}
        given |= self.split_options
        if operands.batched:  # a batch of few tiles has nothing to group, and which tile is next is found sooner
            given.setdefault("raster", "along_m")
        given["ctas_per_sm"] = max(1, given.get("ctas_per_sm", 1) * 32 // max(32, widest))
        elems = given.pop("access_elems", None)
        if elems is not None:
            given["access_bits"] = min(ACCESS_BITS, elems * operands.a.dtype.bits)
        stages = given["stages"]
        async_stages, given["stages"] = stages if isinstance(stages, tuple) else (stages, stages)
        called: dict[str, Any] = {"name": self.plan_name, "summary": self.summary}
        plan = simt_plan(operands, **called, **given)
        loads = [load for load in (plan.load_a, plan.load_b) if isinstance(load, TiledCopy)]
        if given["stages"] != async_stages and all(load.atom.is_async for load in loads):
            plan = simt_plan(operands, **called, **{**given, "stages": async_stages})
        return plan

    def to_repack(self, operands: Operands) -> str:
        """The operands that packing makes better: k-major ones, and those that are aligned to less than 16 bytes.

        >>> plan = SimtRecipe("mine", "", {})
        >>> [plan.to_repack(Operands.of("f32", layout=layout)) for layout in ("nn", "tn")]
        ['a', '']
        """
        found = [
            name for name in "ab"
            if getattr(operands, name).major == "k" or getattr(operands, name).align_bytes < ALIGN_BYTES
        ]  # fmt: skip
        return "".join(found)
