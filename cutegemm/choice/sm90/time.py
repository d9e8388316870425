"""How long Hopper plans will take, many at a time: what bounds a wave of the grid, in a formula of the tile.

A *wave* is a tile of D for each multiprocessor. In a wave a multiprocessor takes the k-tiles of a tile, 128 bytes along
K each, one after the other. A k-tile waits for

    tensor cores   for the area of the tile
    L2             for the rows of A and of B that a CTA loads, and that a multicast loads once for its cluster, by the
                   lines that boxes touch; rows beyond the end, and columns beside the tile, are dearer
    latency        of a load, over the stages that are under way

and a wave is no shorter than it takes to store the tile; nothing overlaps the store of the last one. In the long run a
wave takes no less than the chip's power allows: the last one, of few tiles, is the shorter for it. A problem takes no
less than reading A and B from memory does. What goes on at the same time adds up like the sides of a right triangle:
`together`. Besides, a problem takes the start, longer if many CTAs ask for the same few lines, the accumulators of the
parts if K is split, and the packing of operands.

Rates of a chip are those of its `Device`. `Sm90Costs` is fitted to what an H200 and an H100 took, after a flush of the
L2 cache, for random problems and for linear layers; `python -m docs.evidence fit-sm90 FILE.json ...` fits it anew.

A choice is to take 0.3 ms. So what does not depend on the problem is a property of a `Model`, found once; the rest is
found for each tile, and for each candidate only what depends on how K is divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cutegemm.choice.candidate import Predicted, Variants
from cutegemm.choice.columns import Column, of_rows, together
from cutegemm.choice.sm90.costs import COSTS, Sm90Costs
from cutegemm.choice.sm90.lines import WIDTHS_BYTES, touched
from cutegemm.choice.sm90.recipe import Sm90Recipe
from cutegemm.choice.sm90.repack import repack_us
from cutegemm.choice.sm90.shapes import K_TILE_BYTES, Shapes, TileShape, by_orientation
from cutegemm.choice.sm90.tiling import FixupTiles, FixupVariants, Tiling
from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

_UNIT = 128 * 128  # elements of D
_UNIT_CYCLES = 512  # of the tensor cores, for a k-tile of so many
_BOUNDS = "tensor cores", "L2", "latency", "store of D", "DRAM", "power", "start", "repack"
_OF_FEWEST = 0.5  # of what an epilogue tile takes, one of eight columns
_COOL_US = 4.0  # of tensor cores, for which power does not matter: the limit adds less than 0.1%


@dataclass(frozen=True, eq=False)
class Model:
    """The times of plans that have these shapes.

    operands   as the GEMM for D loads them, after packing
    packed     names of the operands that are packed, whose rows begin at lines
    with_c     whether a tile of C is read for each tile of D; `shapes` are to be made with the same
    """

    shapes: Shapes
    operands: Operands
    device: Device = DEFAULT_DEVICE
    packed: str = ""
    with_c: bool = False
    costs: Sm90Costs = COSTS

    @classmethod
    def of(cls, recipes: Sequence[Sm90Recipe], operands: Operands, device: Device, costs: Sm90Costs = COSTS) -> Model:
        """Return the times of the plans of recipes, which pack nothing."""
        shapes = [Shapes.of([recipe.shape], operands, recipe.swap_ab) for recipe in recipes]
        return cls(Shapes.joined(shapes), operands, device, costs=costs)

    def tiling(self, problem: Problem) -> Tiling:
        """How the tiles lie over D."""
        return Tiling.of(self.shapes, problem, self.grid)

    def k_tiles(self, problem: Problem) -> int:
        """Of 128 bytes along K."""
        return -(-problem.k * self.operands.a.dtype.bits // 8 // K_TILE_BYTES)

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return how long candidates take, packing included: see `candidate.Family`."""
        costs, of, tiling = self.costs, variants.recipe, self.tiling(problem)
        splits, fixup_tiles = np.broadcast_to(variants.splits, len(of)), self._fixup_tiles(variants, problem, tiling)
        start_us = of_rows(self._start_us + self._asked_us(problem, tiling), of)
        store_us, exposed_us, beside_bytes = self._store(problem, tiling)
        hidden_us = of_rows(store_us * self._does_not_stop, of)
        beside_us = of_rows(self._waits_squared, of)
        l2_us, exposed_us, store_us = [of_rows(us, of) for us in (self._l2_us(problem, tiling), exposed_us, store_us)]
        grid, depth, all_k_tiles = (
            of_rows(tiling.grid, of),
            of_rows(self.shapes.depth, of),
            self.k_tiles(problem),
        )
        k_tiles = np.ceil(all_k_tiles / (splits * of_rows(self._k_tiles_at_once, of))) * depth
        units = of_rows(tiling.tiles, of) * splits

        def wave_us(from_l2_us: Column) -> Column:
            """Microseconds of a wave, if a k-tile takes so long from L2."""
            k_tile_us = np.sqrt(beside_us + from_l2_us * from_l2_us)
            return together(2.0, k_tile_us * k_tiles + exposed_us, hidden_us) + costs.tile

        begun = units / grid
        whole = np.floor(begun)
        rest = units - whole * grid
        full_us, last_us = wave_us(l2_us), wave_us(l2_us * (rest / grid)) * np.minimum(rest, 1.0)
        waves_us = whole * full_us + last_us
        if fixup_tiles is not None:
            at, kept = fixup_tiles.at, fixup_tiles.kept / max(1, all_k_tiles)
            waves_us[at] = full_us[at] * (whole[at] + kept)
        long_us, slower = self._long_us(problem), 1.0
        power_us: Column = 0.0
        if long_us > _COOL_US:
            power_us = self._power_us(long_us) * (1 + costs.rests * exposed_us / full_us) / units
            limited_us = whole * together(4.0, full_us, power_us * grid)
            limited_us = limited_us + together(4.0, last_us, power_us * rest)
            if fixup_tiles is not None:
                limited_us[at] = together(4.0, waves_us[at], power_us[at] * units[at])
            slower = limited_us / waves_us
        waves = np.maximum(1.0, begun)
        read_bytes = self._read_bytes(problem, tiling, of, fixup_tiles, waves)
        memory_us = (read_bytes + of_rows(beside_bytes, of)) / (self.device.measured.tma_read_gb_s * 1e3)
        us = together(2.0, waves_us, memory_us) * slower
        us = start_us + us + self._meeting_us(of, splits, fixup_tiles, np.ceil(begun)) + store_us
        repacking_us = of_rows(repack_us(self.shapes, self.operands, problem, self.device, self.packed), of)
        us = us + repacking_us

        def bounds() -> dict[str, Column]:
            of_k = waves * k_tiles
            found = (
                of_rows(self._mma_us, of) * of_k, l2_us * of_k, of_rows(self._latency_us, of) * of_k,
                store_us * waves, memory_us, power_us * units, start_us, repacking_us,
            )  # fmt: skip
            return dict(zip(_BOUNDS, found, strict=True))

        return Predicted(us, bounds)

    def _fixup_tiles(self, variants: Variants, problem: Problem, tiling: Tiling) -> FixupTiles | None:
        """Return how the owners of tiles are helped; None if no candidate has owners."""
        if isinstance(variants, FixupVariants):
            return variants.fixup_tiles
        if not np.any(variants.fixup):
            return None
        owning = np.flatnonzero(np.broadcast_to(variants.fixup, len(variants.recipe)))
        rows = variants.recipe[owning]
        found = FixupTiles.of(tiling.tiles[rows], self.k_tiles(problem), tiling.grid[rows])
        return replace(found, at=owning[found.at])

    # --- of each tile, whatever the problem ---

    @cached_property
    def grid(self) -> Column:
        """Clusters that run at a time."""
        return self.shapes.grid(self.device)

    @cached_property
    def _k_tiles_at_once(self) -> Column:
        """Of 128 bytes, which the CTAs that share K wait for."""
        return self.shapes.depth * self.shapes.cluster_k

    @cached_property
    def _mma_us(self) -> Column:
        """The products of a k-tile."""
        shapes = self.shapes
        return shapes.ctas_per_sm * shapes.bm * shapes.bn * (_UNIT_CYCLES / _UNIT / self.device.clock_mhz)

    @cached_property
    def _latency_us(self) -> Column:
        """What a k-tile waits for loads and its step."""
        costs, shapes = self.costs, self.shapes
        return (costs.step + costs.asks * shapes.single + costs.load * shapes.late) * shapes.waits

    @cached_property
    def _waits_squared(self) -> Column:
        return self._mma_us**2 + self._latency_us**2

    @cached_property
    def _start_us(self) -> Column:
        """Until the first k-tile is there, and a cluster has met."""
        costs, shapes = self.costs, self.shapes
        share = np.where(shapes.single | shapes.splits_k_in_cluster, costs.single, 1.0)
        return costs.start * share + costs.fours * (shapes.cm * shapes.cn // 4)

    @cached_property
    def _does_not_stop(self) -> Column:
        """1 where a CTA multiplies while it stores a tile, else 0."""
        return 1.0 - self.shapes.cooperative

    @cached_property
    def _epi_tiles_us(self) -> Column:
        fewest = np.where(self.shapes.by_eight & ~self.shapes.splits_k_in_cluster, _OF_FEWEST, 1.0)
        return self.costs.epi_tile * fewest * self.shapes.epi_tiles

    @cached_property
    def _rows_us(self) -> tuple[Column, Column]:
        """A row of A of a k-tile from L2, and one of B, when all multiprocessors read: their shares of a multicast.

        Reads without a multicast are joined if clusters take tiles in the order of the GPCs.
        """
        shapes, costs = self.shapes, self.costs
        row_us: Column = costs.l2 * K_TILE_BYTES / (self.device.measured.sm_l2_gb_s * 1e3)
        row_us = row_us * np.where(shapes.is_large_cluster, costs.l2_fours, 1.0) * shapes.ctas_per_sm
        gpc_aware = shapes.gpc_aware & bool(self.device.tpc_rounds)
        a_us, b_us = [
            row_us * np.where(gpc_aware & (sharers == 1), costs.l2_joined, 1 / sharers)
            for sharers in (shapes.cn, shapes.cm)
        ]
        return a_us, b_us

    @cached_property
    def _along(self) -> tuple[Column, Column]:
        """Whether tiles follow each other along the rows of D, as it lies in memory; and whether those of a plan are
        its columns."""
        across = self.shapes.swap_ab != (self.operands.d.major == "m")
        return np.where(across, self.shapes.along_m, self.shapes.along_n), across

    @cached_property
    def _of_short_runs(self) -> Column:
        """Times what threads take to store lines along the columns of a tile, by runs of lanes that divide them: more
        where a run has less than a sector, or little more; see `EpiStageBuilder.padded_epi_stages`. 4920 x 3236 x 104
        of bf16 takes 51 us by 128 x 168, 27 by 128 x 176 and 22 by 128 x 224 (one H100, 2026-11-26)."""
        columns = (self.shapes.bn // self.shapes.cluster_k).astype(int)
        run_bytes = (columns & -columns) * (self.operands.d.dtype.bits // 8)
        return 1 + (SECTOR_BYTES / 2 / run_bytes) ** 2

    @cached_property
    def _partials_kb(self) -> Column:
        return self.shapes.bm * self.shapes.bn * (self.operands.acc.bits / 8 / 1024)

    @cached_property
    def _split_us(self) -> Column:
        """To write the sums of a part, or to read them."""
        return self._partials_kb / self.costs.accumulators

    @cached_property
    def _shared_us(self) -> Column:
        """Until each CTA has the sums of its own columns, where CTAs share K."""
        return np.where(self.shapes.splits_k_in_cluster, self.costs.shared + self._partials_kb / self.costs.sent, 0.0)

    # --- of each tile of a problem ---

    def _l2_us(self, problem: Problem, tiling: Tiling) -> Column:
        """What a CTA reads of A and of B from L2 for a k-tile, when all multiprocessors do."""
        shapes, costs = self.shapes, self.costs
        of_a, of_b = self._dearer(problem, self.packed)
        if self.packed and np.any(shapes.reads_a):
            in_place, _ = self._dearer(problem, "", of_mn=self.packed)
            of_a = np.where(shapes.reads_a, in_place, of_a)  # B is packed there, or as it is
        a_us, b_us = self._rows_us
        a_rows = _rows(tiling.m, shapes.bm, shapes.bm, costs.missing)
        b_rows = _rows(tiling.n, shapes.bn, shapes.loaded_n, costs.missing)
        return a_us * of_a * a_rows + b_us * of_b * b_rows

    def _asked_us(self, problem: Problem, tiling: Tiling) -> Column:
        """Until all CTAs have the lines of their first k-tile that they ask for at the same time, of the operand of
        which there are few: once for each row that a line holds."""
        at_a_time = np.minimum(tiling.tiles, tiling.grid)
        of_a = np.minimum(tiling.columns, at_a_time / np.minimum(tiling.rows, self.shapes.band))
        of_a = np.maximum(1.0, of_a)
        in_line = [max(1.0, CACHE_LINE_BYTES / max(1, self._row_bytes(name, problem))) for name in "ab"]
        rows_a, rows_b = by_orientation(self.shapes.swap_ab, *in_line)
        return self.costs.asked * np.maximum(of_a * rows_a, at_a_time / of_a * rows_b)

    def _store(self, problem: Problem, tiling: Tiling) -> tuple[Column, Column, Column]:
        """What it takes to store a tile, and to read as much for it; the part of that which no products overlap; and
        bytes of D that L2 does not keep, and of C."""
        shapes, costs, d = self.shapes, self.costs, self.operands.d
        d_size = d.dtype.bits / 8
        d_bytes: Column = problem.m * problem.n * problem.l * d_size
        stays = d_bytes <= self.device.measured.l2_kept_bytes
        by_threads = d.align_bytes < TMA_INNER_ALIGNED_BYTES
        along, across = self._along
        rate: Column = costs.store if stays else np.where(along, costs.store * costs.store_along, costs.store)
        if by_threads:
            rate = rate * np.where(across, costs.store_across, 1.0)
            row = np.where(across, tiling.m / tiling.rows, tiling.n / tiling.columns / shapes.cluster_k)
            more = 1 + costs.ends_of_rows / (np.maximum(1.0, row) * d_size)
            rate, d_bytes = rate / more / np.where(across, 1.0, self._of_short_runs), d_bytes * more
        else:
            columns = np.where(
                shapes.epi_tile_n > 0,
                shapes.epi_tile_n,
                shapes.bn / shapes.cluster_k / np.maximum(1, shapes.epi_tiles),
            )
            box_bytes = np.where(across, CACHE_LINE_BYTES, np.minimum(CACHE_LINE_BYTES, columns * d_size))
            # Each row of a box begins and ends in part of a sector
            is_torn = ~across & (shapes.epi_tile_n * d_size % SECTOR_BYTES > 0)
            is_torn |= self._row_bytes("d", problem) % SECTOR_BYTES > 0
            rate = np.where(is_torn, rate / (1 + SECTOR_BYTES / box_bytes), rate)
        us = tiling.own_m * tiling.own_n * (d_size / 1024) / (shapes.cluster_k * rate) + self._epi_tiles_us
        # CTAs of a multiprocessor store side by side
        us = us * np.maximum(1.0, shapes.ctas_per_sm * np.minimum(1.0, tiling.tiles / tiling.grid))
        if self.with_c:
            us = 2 * us
        leaving = 0 if stays else 1
        return us, us * self._exposed(tiling, by_threads, stays), d_bytes * (leaving + self.with_c)

    def _exposed(self, tiling: Tiling, by_threads: bool, stays: bool) -> Column:
        """The share of a store that no products overlap."""
        shapes, costs = self.shapes, self.costs
        if by_threads:
            return 1.0 * shapes.cooperative
        # Of one wave no tile has a next one behind whose products its store could go on
        is_last = tiling.tiles <= tiling.grid
        defers = shapes.overlapped & ~is_last
        stops = shapes.cooperative | shapes.overlapped | (is_last & ~shapes.single)
        stops = costs.cooperative * (stops & ~shapes.is_crowded)
        return np.where(defers, costs.overlapped, stops) * (1.0 if stays else costs.waited)

    def _meeting_us(self, of: Column, splits: Column, fixup_tiles: FixupTiles | None, waves: Column) -> Column:
        """Until the CTAs that share a tile have added their accumulators: in the workspace, or in shared memory."""
        costs = self.costs
        us = of_rows(self._shared_us, of) * np.where(of_rows(self.shapes.streams, of), 1.0, waves)
        if (splits > 1).any():
            part_us = of_rows(self._split_us, of)
            us = us + (costs.meet + splits * part_us) * waves * (splits > 1)
        if fixup_tiles is not None:
            part_us = self._split_us[of[fixup_tiles.at]]
            us[fixup_tiles.at] += costs.ends + fixup_tiles.workers / fixup_tiles.shared * part_us
        return us

    def _read_bytes(
        self, problem: Problem, tiling: Tiling, of: Column, fixup_tiles: FixupTiles | None, waves: Column
    ) -> Column:
        """Bytes of A and B that are read from memory. What L2 does not keep is read once more for each wave of tiles
        along M or N, and by each CTA that helps an owner, which is out of step with the others."""
        k_bytes = problem.k * self.operands.a.dtype.bits / 8 * problem.l
        kept, once = self.device.measured.l2_kept_bytes, (problem.m + problem.n) * k_bytes
        if once <= kept:
            return once
        shapes = self.shapes
        m, n = of_rows(tiling.m, of), of_rows(tiling.n, of)
        rows, columns = of_rows(tiling.rows, of), of_rows(tiling.columns, of)
        a = np.where(of_rows(shapes.along_m, of), np.minimum(waves, columns), 1.0)
        b = np.where(of_rows(shapes.along_n, of), np.minimum(waves, rows), 1.0)
        if fixup_tiles is not None:
            # The share of all k-tiles that are taken by helpers of their tiles' owners
            apart, k_tiles = np.zeros(len(of)), max(1, self.k_tiles(problem))
            apart[fixup_tiles.at] = (
                (1 - fixup_tiles.kept / k_tiles) * fixup_tiles.shared / tiling.tiles[of[fixup_tiles.at]]
            )
            a = a + apart * (columns - a) * (m * k_bytes > kept)
            b = b + apart * (rows - b) * (n * k_bytes > kept)
        return (m * a + n * b) * k_bytes

    def _long_us(self, problem: Problem) -> float:
        """What tensor cores take that never rest, at the chip's power limit."""
        k_bytes = problem.k * self.operands.a.dtype.bits / 8
        products = problem.m * problem.n * problem.l * k_bytes
        return products / (self.device.measured.wgmma_tflops * 1e6)

    def _power_us(self, long_us: float) -> float:
        """What the chip's power allows, where it is at its limit in the long run alone."""
        return long_us * long_us / (long_us + self.costs.burst)

    def _dearer(self, problem: Problem, packed: str, of_mn: str = "") -> tuple[Column, Column]:
        """Return the factors on reads of whole lines from L2, of the first operand of a plan, and of the second one.

        Boxes of part of a line, and rows that do not begin at lines, touch more of them.

        packed   names of the operands whose rows begin at lines
        of_mn    names of those that lie along M or N, though `operands` has them as they would be packed
        """
        of_a, of_b = [
            touched(CACHE_LINE_BYTES if name in packed else self._row_bytes(name, problem, of_mn)) for name in "ab"
        ]
        first, second = by_orientation(self.shapes.swap_ab, of_a[0], of_b[0])
        if (splits := self._parts_of_lines) is not None:
            second = np.where(splits, np.where(self.shapes.swap_ab, *np.array((of_a, of_b))[:, splits]), second)
        return first, second

    @cached_property
    def _parts_of_lines(self) -> Column | None:
        """Index into `WIDTHS_BYTES` of the rows of the boxes of the second operand; None if all have whole lines."""
        bytes_of_b = self.shapes.loaded_n.astype(int) * (self.operands.b.dtype.bits // 8)
        splits = sum([bytes_of_b % width > 0 for width in WIDTHS_BYTES[:-1]], start=np.zeros(1, int))
        along_mn = [np.bool_(operand.major != "k") for operand in (self.operands.a, self.operands.b)]
        splits = np.where(by_orientation(self.shapes.swap_ab, *along_mn)[1], splits, 0)
        return splits if splits.any() else None

    def _row_bytes(self, name: str, problem: Problem, of_mn: str = "") -> int:
        """From a row of an operand to the next one.

        of_mn   names of those whose rows lie along M or N, whatever `operands` says
        """
        operand = getattr(self.operands, name)
        major = "m" if name == "a" and name in of_mn else "n" if name in of_mn else operand.major
        extent: int = getattr(problem, major)
        if problem.ld:
            extent = int(dict(problem.ld).get(name, extent))
        return extent * operand.dtype.bits // 8


def predicted_us(
    shape: TileShape,
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    split: KSplit | None = None,
    costs: Sm90Costs = COSTS,
) -> float:
    """Return the predicted microseconds of one plan.

    >>> bf16, wide = Operands.of("bf16", layout="nt"), TileShape((128, 256), (2, 1), "overlapped")
    >>> 160 < predicted_us(wide, bf16, Problem(4096, 4096, 4096)) < 200
    True
    """
    given, model = split or KSplit(), Model(Shapes.of([shape], operands), operands, device, costs=costs)
    variants = Variants(np.array([0]), given.splits, fixup=given.fixup)
    return float(model.predict(variants, problem).us[0])


def _rows(extent: Column, tile: Column, loaded: Column, missing: float) -> Column:
    """What the rows of a tile along M or N cost, in rows: those that there are, on the mean, and those loaded beyond
    the end, or beside the tile. A CTA of a cluster whose whole tile is beyond it loads the last one again."""
    own = extent / np.ceil(extent / tile)
    return missing * loaded + (1 - missing) * own
