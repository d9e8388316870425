"""The recipe of a Hopper plan: its tile and options, and how they become a plan for operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from cutegemm.build.sm90 import sm90_plan
from cutegemm.choice.options import parse_flag, parse_tuple
from cutegemm.choice.recipe import BuildTarget, Recipe
from cutegemm.choice.sm90.shapes import K_TILE_BYTES, TileShape, may_overlap
from cutegemm.errors import PlanError
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import arch_named
from cutegemm.plan.memory.repack import is_to_read, repacked_for_wgmma
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands
from cutegemm.plan.work.split import KSplit, by_last_cta
from cutegemm.tile.mma_atoms import WGMMA_M
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

# Options for an A in shared memory; plans that read A into registers do not have them
_SHARED_A_OPTIONS = ("overlapped", "stagger_cycles", "alone")
_MOST_BESIDE_A = 256 * 192  # accumulators of a tile; with as many, no registers are left for A
_SPLITTING = ("split_k", "stream", "fixup")  # options that say how K is split


def _policies(text: str) -> tuple[str, ...]:
    """Parse the L2 cache policies of A, B and D: "last+last+first" gives ("last", "last", "first")."""
    return tuple([f"evict_{policy}" for policy in text.split("+")])


@dataclass(frozen=True)
class Sm90Recipe(Recipe):
    """A Hopper plan that is not built yet: its name, and its options; `build` makes it for given operands.

    Options that a user spelled out are passed to `sm90_plan` unchanged. In the options of a built-in plan, "tile" is
    (bM, bN), and a k-tile has "depth" (default 1) times 128 bytes along K. Its option "alone" is True if each CTA
    computes one tile only, which its consumer warpgroups then share.
    """

    family: ClassVar[str] = "sm90"
    arguments: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        **dict.fromkeys(("tile", "cluster", "registers"), parse_tuple),
        **dict.fromkeys(("consumers", "stages", "epi_tile_n", "epi_stages", "stagger_cycles"), int),
        **dict.fromkeys(("split_k", "stream", "cluster_k", "ctas_per_sm"), int),
        **dict.fromkeys(("schedule", "store", "shared_d", "raster", "repack"), str),
        "l2": _policies,
        "ctas": lambda text: None if text == "none" else int(text),
        **dict.fromkeys(("promoted", "at_once", "overlapped", "fixup", "gpc_raster"), parse_flag),
    }
    loads_boxes: ClassVar[bool] = True
    splits: ClassVar[frozenset[str]] = frozenset({"k", "stream", "fixup"})

    @property
    def tile(self) -> tuple[int, int]:
        """Return the tile (bM, bN) of a CTA of this plan."""
        rows, columns, *_ = self.options["tile"]
        return rows, columns

    @cached_property
    def shape(self) -> TileShape:
        """Return the tile, cluster and other properties of this plan that its predicted time depends on.

        >>> options = {"tile": (256, 160), "schedule": "cooperative", "raster": "along_n"}
        >>> Sm90Recipe("mine", "", options).shape  # doctest: +NORMALIZE_WHITESPACE
        TileShape(tile=(256, 160), cluster=(1, 1), epilogue='cooperative', raster='along_n', promoted=False,
                  consumers=2, epi_tile_n=None, epi_stages=None, is_direct=False, depth=1, cluster_k=1, ctas_per_sm=1,
                  alone=False)
        """
        options = self.options
        epilogue = "overlapped" if options.get("overlapped") else options.get("schedule", "pingpong")
        return TileShape(
            self.tile,
            options.get("cluster", (1, 1)),
            epilogue,
            options.get("raster", TileShape.raster),
            bool(options.get("promoted")),
            options.get("consumers", 1 if epilogue == "single" else TileShape.consumers),
            options.get("epi_tile_n"),
            options.get("epi_stages"),
            options.get("store") == "direct",
            options.get("depth", TileShape.depth),
            options.get("cluster_k", TileShape.cluster_k),
            options.get("ctas_per_sm", TileShape.ctas_per_sm),
            options.get("alone", TileShape.alone),
        )

    @property
    def may_read(self) -> bool:
        """Return whether this plan has a variant whose threads load A into registers for wgmma.

        Its consumer warpgroups must be able to share a tile, so that one loads A while others multiply, and must have
        registers left for A.
        """
        (rows, columns), shape = self.tile, self.shape
        is_usual = product(shape.cluster) <= 2 and shape.depth == 1
        is_usual &= shape.epilogue != "single" and not shape.is_direct
        return is_usual and rows >= 2 * WGMMA_M and columns >= WGMMA_M and rows * columns < _MOST_BESIDE_A

    @property
    def reading(self) -> Sm90Recipe:
        """Return the variant of this recipe (name and arguments of a plan) whose threads load A into registers.

        wgmma then takes A from registers. The consumer warpgroups share each tile, and store it before they begin the
        next one.
        """
        options = {name: value for name, value in self.options.items() if name not in _SHARED_A_OPTIONS}
        summary = "{} x {} by consumers that share the tile and read A into registers".format(*self.tile)
        return replace(self, summary=summary, options={**options, "schedule": "cooperative"})

    @property
    def cluster_ctas(self) -> int:
        """Return the number of CTAs of a cluster of this plan, including those that split K."""
        return product(self.options.get("cluster", (1, 1))) * self.options.get("cluster_k", 1)

    @property
    def division(self) -> KSplit:
        """Return how this plan splits K among CTAs (split-K or stream-K), if at all.

        A suffix of the plan's name, such as "/k4" for four K splits, decides. Without one, the plan's options do.

        >>> Sm90Recipe("mine", "", {"tile": (128, 128), "fixup": True}).division.fixup
        True
        """
        if self.split is not None:
            return self.split
        return by_last_cta(**{name: self.options[name] for name in _SPLITTING if name in self.options})

    @property
    def accumulates_as(self) -> object:
        """Return the options of this plan that its order of adding products along K depends on, as a comparable key.

        Plans with equal keys have the same order. So the order of all plans is known after one plan per key has been
        built.
        """
        shape = self.shape
        how = (shape.depth, shape.cluster_k, shape.promoted, self.division, self.ctas, self.swap_ab)
        return self if self.spelled_out else (self.family, *how)

    def build_for(self, operands: Operands, target: BuildTarget) -> GemmPlan:
        """Build the Hopper plan for the operands as the kernel sees them: already transposed if it swaps A and B.

        TMA stores D if it is aligned to 16 bytes. Otherwise threads store it: line by line through shared memory, or
        from registers if the tile does not allow that.

        Options that the user spelled out are not changed. Others are adapted: the epilogue overlaps MMAs of the next
        tile only if the plan does not read C, and D is aligned and has at most 16 bits. A tile that is alone in its CTA
        is shared by the consumers only if D is aligned and has 16 bits. Consumers also share each tile if threads read
        A into registers.

        target   architecture and device properties that the plan is built for
        raises   PlanError if the operands break rules of the plan
        """
        ops, with_c = operands.as_tf32, target.with_c
        repack = self.repacked(ops)
        reads_a = not self.spelled_out and is_to_read(ops) and "a" not in repack and self.may_read
        recipe = self.reading if reads_a else self
        most = arch_named(target.arch).blocks_per_sm
        options: dict[str, Any] = {
            "ctas": target.sms * min(max(1, recipe.options.get("ctas_per_sm", 1)), most),
            "tpc_rounds": target.tpc_rounds,
            **recipe.options,
            "repack": repack,
        }
        options |= {"name": self.plan_name, "summary": recipe.summary, "with_c": with_c}
        if not self.spelled_out:
            if self.split is not None:
                options |= {"split_k": self.split.splits, "stream": self.split.waves, "fixup": self.split.fixup}
            if with_c and options.get("store") == "tma_warp":  # TMA loads C by whole epilogue tiles
                options["store"] = "tma"
            if with_c or options.get("store") == "direct" or not may_overlap(operands):
                options.pop("overlapped", None)
            if options.pop("alone", False) and self.shape.is_pingpong(operands):
                options["schedule"] = "pingpong"
            k_tile_bytes = K_TILE_BYTES * options.pop("depth", 1)
            options["tile"] = (*self.tile, k_tile_bytes * 8 // ops.a.dtype.bits)
        if operands.d.align_bytes >= TMA_INNER_ALIGNED_BYTES or options.get("store") == "direct":
            return sm90_plan(ops, **options)
        lines = {**options, "store": "tma", "shared_d": "padded", "epi_stages": None}
        if not self.spelled_out:  # the option is for boxes; lines are as long as possible
            lines["epi_tile_n"] = None
        try:
            return sm90_plan(ops, **lines)
        except PlanError:  # no epilogue tiles fill the tile, or they do not fit shared memory
            return sm90_plan(ops, **{**options, "store": "direct"})

    def to_repack(self, operands: Operands) -> str:
        """Return which operands need a repack pass (a copy kernel before the GEMM): "", "a", "b" or "ab".

        TMA cannot load these operands as they are, or wgmma cannot multiply them. It is "b" instead of "ab" if threads
        can read A into registers.

        operands   as the kernel sees them: transposed if this recipe swaps A and B
        """
        needed = repacked_for_wgmma(operands)
        return "b" if needed == "ab" and self.may_read and can_read(operands) else needed


def can_read(operands: Operands) -> bool:
    """Return whether a Hopper plan for these operands can load A by its threads into registers, and multiply it there.

    This replaces a repack pass (a copy kernel before the GEMM). A must have 32-bit elements, not be K-major, and be
    aligned for TMA. D must be N-major or have as many bits as A: threads hold the rows of D in groups of four, and
    stmatrix stores an M-major D of 16 bits in groups of eight.

    >>> [can_read(Operands.of("tf32", layout=layout)) for layout in ("tn", "nt")], can_read(Operands.of("bf16"))
    ([True, False], False)
    """
    a, d = operands.a, operands.d
    is_stored = d.dtype.bits == a.dtype.bits or d.major == "n"
    return is_to_read(operands) and a.align_bytes >= TMA_INNER_ALIGNED_BYTES and is_stored
