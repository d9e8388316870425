"""A Hopper plan by name: its tile and options, and how it is made for operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutegemm.build.sm90 import sm90_plan
from cutegemm.choose.sm90.time import K_TILE_BYTES, TileShape
from cutegemm.machine.device import H200_MULTIPROCESSORS
from cutegemm.plan.memory.packing import to_pack_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.work.split import Split, by_last
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

STREAM_WAVES = 2  # so that most tiles have two parts, of which one is written long before it is read
PACK = "+pack"
_SPLITTING = ("split_k", "stream", "fill")  # options that say how K is split
_DEFERRED_BITS = 16  # of an element of D, that registers hold beside the sums of the next tile


@dataclass(frozen=True)
class NamedSm90:
    """A Hopper plan by name.

    tile        (bM, bN); bK is 128 bytes
    options     arguments of `sm90_plan`
    is_chosen   whether `choose` considers it
    """

    name: str
    summary: str
    tile: tuple[int, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    is_chosen: bool = False

    @property
    def shape(self) -> TileShape:
        """What its time depends on.

        >>> NamedSm90("mine", "", (256, 160), {"schedule": "cooperative", "raster": "along_n"}).shape
        TileShape(tile=(256, 160), cluster=(1, 1), epilogue='cooperative', raster='along_n')
        """
        behind = "deferred" if self.options.get("deferred") else self.options.get("schedule", "pingpong")
        epilogue = behind if behind in ("pingpong", "deferred") else "cooperative"
        raster = self.options.get("raster", TileShape.raster)
        return TileShape(self.tile, self.options.get("cluster", (1, 1)), epilogue, raster)

    @property
    def split(self) -> Split:
        """How K is split, without a suffix that says so.

        >>> NamedSm90("mine", "", (128, 128), {"fill": True}).split.owned
        True
        """
        return by_last(**{name: self.options[name] for name in _SPLITTING if name in self.options})

    def called(self, split: Split | None = None, is_packed: bool = False) -> str:
        """The name with packing and a split of K behind it."""
        name = self.name + (PACK if is_packed else "")
        if split is None or not split.is_split:
            return name
        if split.owned:
            return f"{name}/fill"
        waves = "" if split.waves == STREAM_WAVES else str(split.waves)
        return f"{name}/k{split.parts}" if split.parts > 1 else f"{name}/stream{waves}"

    def build(
        self,
        operands: Operands,
        with_c: bool = False,
        ctas: int = H200_MULTIPROCESSORS,
        split: Split | None = None,
        is_packed: bool = False,
    ) -> GemmPlan:
        """The plan for operands; a D that is not aligned to 16 bytes leaves straight out of registers.

        What cannot be stored behind the next tile's products is stored before them: with C, a D of 32 bits, and one
        that leaves straight out of registers.

        ctas        of a persistent grid
        split       of K, instead of that of the name
        is_packed   whether operands are packed that are in the way
        raises      PlanError where the operands break its rules
        """
        options: dict[str, Any] = {"ctas": ctas, **self.options}
        if split is not None and split.is_split:
            options |= {"split_k": split.parts, "stream": split.waves, "fill": split.owned}
        if not through_slots(operands):
            options["store"] = "direct"
        if with_c and options.get("store") == "tma_warp":  # C comes to whole subtiles
            options["store"] = "tma"
        if with_c or options.get("store") == "direct" or operands.d.dtype.bits > _DEFERRED_BITS:
            options.pop("deferred", None)
        ops = operands.as_tf32
        bk = K_TILE_BYTES * 8 // ops.a.dtype.bits
        return sm90_plan(
            ops,
            name=self.called(split, is_packed),
            summary=self.summary,
            tile=(*self.tile, bk),
            with_c=with_c,
            pack=to_pack_for_wgmma(ops) if is_packed else "",
            **options,
        )


def through_slots(operands: Operands) -> bool:
    """Whether TMA can store D, or the threads 16 bytes at a time."""
    return operands.d.align_bytes >= TMA_INNER_ALIGNED_BYTES
