"""Predicted times of many Hopper plans at once: what bounds a wave of the grid, as a formula of the tile.

A *wave* is one tile of D for each multiprocessor (SM). In a wave an SM goes through the k-tiles of a tile, 128 bytes
along K each, one after the other. A k-tile waits for

    tensor cores   MMAs, in proportion to the area of the tile
    L2             loads of rows of A and B, by the cache lines that boxes touch. Multicast divides them among the CTAs
                   of a cluster; rows beyond the end of D, and columns next to the tile, cost more
    latency        latency of a load, divided by the loads in flight

A wave takes at least as long as the store of its tile, and nothing overlaps the last store. In long problems a wave
also takes at least what the chip's power limit allows; this limits a last wave of few tiles less. A problem takes at
least as long as A and B take to be read from memory. Activities that overlap add up like the sides of a right triangle:
see `together`. To this are added the start, which is longer if many CTAs ask for the same few lines, the accumulators
if K is split, and the repack passes.

The rates of the chip are those of its `Device`. `Sm90Costs` is fitted to times of random problems and of linear layers,
after a flush of the L2 cache on an H200 and an H100; `python -m docs.evidence fit-sm90 FILE.json ...` fits it again.

A choice must take only 0.3 ms. So what does not depend on the problem is a cached property of a `Model`, the rest is
computed once per tile, and only what depends on the division of K is computed for each candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cutegemm.choice.candidate import Predicted, Variants
from cutegemm.choice.columns import Column, together
from cutegemm.choice.sm90.costs import COSTS, Sm90Costs
from cutegemm.choice.sm90.lines import WIDTHS_BYTES, touched
from cutegemm.choice.sm90.recipe import Sm90Recipe
from cutegemm.choice.sm90.repack import repack_us
from cutegemm.choice.sm90.shapes import K_TILE_BYTES, Shapes, TileShape, by_orientation
from cutegemm.choice.sm90.tiling import FixupTiles, FixupVariants, Tiling
from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.mainloop.block_scaled import scale_names
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES

_UNIT = 128 * 128  # elements of a tile of D
_UNIT_CYCLES = 512  # clock cycles of the tensor cores for a k-tile of such a tile
_BOUNDS = "tensor cores", "L2", "latency", "store of D", "DRAM", "power", "start", "repack"
_EIGHT_COLUMNS = 0.5  # time of an epilogue tile of eight columns, relative to others
_COOL_US = 4.0  # time of tensor cores; for shorter problems the power limit adds less than 0.1%


@dataclass(frozen=True, eq=False)
class Model:
    """Predicts the times of many Hopper plans for given operands on a device. Methods return one entry per plan.

    shapes     the properties of the plans, as arrays
    operands   types, majorness and alignment of the problem's A to D. If a repack pass copies an operand before the
               GEMM, they are those of the copy
    repacked   names of the operands that are repacked, in "ab"; their rows begin at cache lines
    with_c     whether the epilogue reads a C; `shapes` must be made with the same value
    costs      fitted constants of the model
    """

    shapes: Shapes
    operands: Operands
    device: Device = DEFAULT_DEVICE
    repacked: str = ""
    with_c: bool = False
    costs: Sm90Costs = COSTS

    @classmethod
    def of(cls, recipes: Sequence[Sm90Recipe], operands: Operands, device: Device, costs: Sm90Costs = COSTS) -> Model:
        """Return the time model of the Hopper plans that `recipes` describe, without repack passes.

        recipes    names and arguments of the plans
        operands   operands of the problem for D
        costs      fitted constants of the model
        """
        shapes = [Shapes.of([recipe.shape], operands, recipe.swap_ab) for recipe in recipes]
        return cls(Shapes.joined(shapes), operands, device, costs=costs)

    def tiling(self, problem: Problem) -> Tiling:
        """Return how the tiles of each Hopper plan cover the D of a problem, and how many clusters run at a time."""
        return Tiling.of(self.shapes, problem, self.grid)

    def k_tiles(self, problem: Problem) -> int:
        """Return the number of k-tiles, 128 bytes along K each, that cover the problem's K."""
        return -(-problem.k * self.operands.a.dtype.bits // 8 // K_TILE_BYTES)

    def predict(self, variants: Variants, problem: Problem) -> Predicted:
        """Return the predicted times of Hopper candidates, including their repack passes.

        A repack pass is a kernel that copies an operand before the GEMM.

        variants   the candidates: indices of plans in `shapes`, each with a division of K
        problem    extents of the GEMM; or of several that differ in M, if its M is an array (problems, 1)
        """
        costs, of_plans, tiling = self.costs, variants.of_plans, self.tiling(problem)
        splits = np.broadcast_to(variants.splits, len(variants.recipe))
        fixup_tiles = self._fixup_tiles(variants, problem, tiling)
        start_us = of_plans(self._start_us + self._asked_us(problem, tiling))
        store_us, exposed_us, cd_bytes = self._store(problem, tiling)
        hidden_us = of_plans(store_us * self._does_not_stop)
        waits_squared = of_plans(self._waits_squared)
        l2_us, exposed_us, store_us = map(of_plans, (self._l2_us(problem, tiling), exposed_us, store_us))
        grid, depth, all_k_tiles = of_plans(tiling.grid), of_plans(self.shapes.depth), self.k_tiles(problem)
        k_tiles = np.ceil(all_k_tiles / (splits * of_plans(self._k_tiles_at_once))) * depth
        units = of_plans(tiling.tiles) * splits

        def wave_us(from_l2_us: Column) -> Column:
            """Return the microseconds of one wave: each SM computes one tile of D, or one K split of a tile.

            from_l2_us   microseconds to load the A and B of a k-tile from L2, as an array with one entry per candidate
            """
            k_tile_us = np.sqrt(waits_squared + from_l2_us * from_l2_us)
            return together(2.0, k_tile_us * k_tiles + exposed_us, hidden_us) + costs.tile

        begun = units / grid
        whole = np.floor(begun)
        rest = units - whole * grid
        full_us, last_us = wave_us(l2_us), wave_us(l2_us * (rest / grid)) * np.minimum(rest, 1.0)
        waves_us = whole * full_us + last_us
        if fixup_tiles is not None:
            at, kept = fixup_tiles.at, fixup_tiles.kept / max(1, all_k_tiles)
            waves_us[at] = full_us[at] * (whole[at] + kept)
        long_us = of_plans(self._long_us(problem))
        slower: Column = 1.0
        power_us: Column = 0.0
        if np.any(is_hot := long_us > _COOL_US):
            power_us = self._power_us(long_us) * (1 + costs.rests * exposed_us / full_us) / units
            limited_us = whole * together(4.0, full_us, power_us * grid)
            limited_us = limited_us + together(4.0, last_us, power_us * rest)
            if fixup_tiles is not None:
                limited_us[at] = together(4.0, waves_us[at], power_us[at] * units[at])
            slower = limited_us / waves_us
            if np.ndim(is_hot):
                slower, power_us = np.where(is_hot, slower, 1.0), np.where(is_hot, power_us, 0.0)
        waves = np.maximum(1.0, begun)
        ab_bytes = self._read_bytes(problem, tiling, variants, fixup_tiles, waves)
        memory_us = (ab_bytes + of_plans(cd_bytes)) / (self.device.measured.tma_read_gb_s * 1e3)
        us = together(2.0, waves_us, memory_us) * (slower * of_plans(self._scales_factor))
        us = start_us + us + self._meeting_us(variants, splits, fixup_tiles, np.ceil(begun)) + store_us
        repacking_us = of_plans(repack_us(self.shapes, self.operands, problem, self.device, self.repacked))
        us = us + repacking_us

        def bounds() -> dict[str, Column]:
            """Return the microseconds that each possible bottleneck of a plan would take alone, e.g. {"DRAM": array}.

            Each array has one entry per candidate of the enclosing prediction.
            """
            k_tiles_of_sm = waves * k_tiles
            us_of = (
                of_plans(self._mma_us) * k_tiles_of_sm, l2_us * k_tiles_of_sm,
                of_plans(self._latency_us) * k_tiles_of_sm, store_us * waves, memory_us, power_us * units,
                start_us, repacking_us,
            )  # fmt: skip
            return dict(zip(_BOUNDS, us_of, strict=True))

        return Predicted(us, bounds)

    def _fixup_tiles(self, variants: Variants, problem: Problem, tiling: Tiling) -> FixupTiles | None:
        """Return which tiles candidates with stream-K fixup share with idle CTAs; None if no candidate has fixup.

        variants   the candidates: indices of plans, each with a division of K
        problem    extents of the GEMM
        tiling     how the tiles of each plan cover D
        """
        if isinstance(variants, FixupVariants):
            return variants.fixup_tiles
        if not np.any(variants.fixup):
            return None
        with_fixup = np.flatnonzero(np.broadcast_to(variants.fixup, len(variants.recipe)))
        rows = variants.recipe[with_fixup]
        divided = FixupTiles.of(tiling.tiles[rows], self.k_tiles(problem), tiling.grid[rows])
        return replace(divided, at=with_fixup[divided.at])

    # --- columns that do not depend on the problem ---

    @cached_property
    def grid(self) -> Column:
        """Return the number of clusters of each plan that run on the device at a time."""
        return self.shapes.grid(self.device)

    @cached_property
    def _k_tiles_at_once(self) -> Column:
        """Return the number of k-tiles of 128 bytes that the CTAs of a tile wait for at a time, for each plan.

        It is the number of such k-tiles in a stage, times the CTAs of a cluster that split K.
        """
        return self.shapes.depth * self.shapes.cluster_k

    @cached_property
    def _mma_us(self) -> Column:
        """Return the microseconds of the MMAs of a k-tile for all CTAs that share an SM, for each plan."""
        shapes = self.shapes
        return shapes.ctas_per_sm * shapes.bm * shapes.bn * (_UNIT_CYCLES / _UNIT / self.device.clock_mhz)

    @cached_property
    def _latency_us(self) -> Column:
        """Return the microseconds of each k-tile that are neither its MMAs nor the transfer of its data, for each plan.

        They are fitted constants for a k-tile and its requests, plus the share of the latency of a load that the other
        stages do not hide.
        """
        costs, shapes = self.costs, self.shapes
        return (costs.step + costs.asks * shapes.single + costs.load * shapes.late) * shapes.waits

    @cached_property
    def _waits_squared(self) -> Column:
        """Return the squared microseconds of a k-tile's MMAs, plus those of its latency, for each plan.

        The caller adds the square of the time to load the k-tile from L2. The three overlap, and the root of the sum is
        the time of a k-tile.
        """
        return self._mma_us**2 + self._latency_us**2

    @cached_property
    def _scales_factor(self) -> Column:
        """Return the slowdown of each plan by block scales, apart from that by accumulator promotion.

        Scales of single columns take more registers and reads than those of single rows: 199 x 4632 x 4321 takes 65.6
        us with them along the columns, and 56.5 us with A and B swapped. 4096 x 7168 x 16384 takes 792 us in 128 x 192
        and 747 us in 128 x 128; 1625 x 4716 x 2784 takes 66.6 us in clusters of 1 x 2 and 62.1 us in 2 x 1 (H100,
        2026-11-27).
        """
        names, shapes = scale_names(self.operands), self.shapes
        if not names:
            return np.ones(len(shapes.bm))
        by_mode = {mode[0]: len(mode) == 1 for mode in [self.operands.modes(name)[0] for name in names]}
        of_columns = np.where(shapes.swap_ab, by_mode["m"], by_mode["n"])
        is_large = shapes.bm * shapes.bn > _UNIT
        return (1 + 0.05 * of_columns) * (1 + 0.02 * is_large) * (1 + 0.02 * ((shapes.bn == 128) & (shapes.cn > 1)))

    @cached_property
    def _start_us(self) -> Column:
        """Return the microseconds from the kernel's start until all CTAs of a cluster have their first k-tile."""
        costs, shapes = self.costs, self.shapes
        share = np.where(shapes.single | shapes.splits_k_in_cluster, costs.single, 1.0)
        return costs.start * share + costs.fours * (shapes.cm * shapes.cn // 4)

    @cached_property
    def _does_not_stop(self) -> Column:
        """Return an array: 1 for each plan whose CTAs issue MMAs of the next tile while they store a tile, else 0."""
        return 1.0 - self.shapes.cooperative

    @cached_property
    def _epi_tiles_us(self) -> Column:
        """Return the microseconds of a tile's epilogue that do not depend on bytes: a fixed time per epilogue tile."""
        factor = np.where(self.shapes.by_eight & ~self.shapes.splits_k_in_cluster, _EIGHT_COLUMNS, 1.0)
        return self.costs.epi_tile * factor * self.shapes.epi_tiles

    @cached_property
    def _rows_us(self) -> tuple[Column, Column]:
        """Return (microseconds to load a row of A from L2, those for a row of B) while all SMs load, for each plan.

        A row has 128 bytes along K. Multicast divides the time among the CTAs that share the row. Without multicast,
        loads coalesce in GPC-aware order.
        """
        shapes, costs = self.shapes, self.costs
        row_us: Column = costs.l2 * K_TILE_BYTES / (self.device.measured.sm_l2_gb_s * 1e3)
        row_us = row_us * np.where(shapes.is_large_cluster, costs.l2_fours, 1.0) * shapes.ctas_per_sm
        a_us, b_us = [
            row_us * np.where(self._gpc_aware & (sharers == 1), costs.l2_joined, 1 / sharers)
            for sharers in (shapes.cn, shapes.cm)
        ]
        return a_us, b_us

    @cached_property
    def _gpc_aware(self) -> Column:
        """Return an array of flags, one per plan: do clusters take tiles in GPC-aware order on this device?"""
        return self.shapes.gpc_aware & bool(self.device.tpc_rounds)

    def _along(self, tiling: Tiling) -> tuple[Column, Column]:
        """Return two arrays of flags, one entry per plan: do consecutive tiles lie along D's contiguous mode; is it M?

        M is that of the kernel, i.e. N of the problem for plans that swap A and B.

        tiling   how the tiles of each plan cover D
        """
        across = self.shapes.swap_ab != (self.operands.d.major == "m")
        return np.where(across, self.shapes.along_m, self.shapes.along_n), across

    @cached_property
    def _short_run_factor(self) -> Column:
        """Return the slowdown of threads that store a tile whose columns allow only short runs of lanes.

        The lanes that store a line form runs, and a run must divide the columns of the tile. So the factor is large if
        only a small power of two divides the columns. Runs of less than a sector, or little more, are slow: 4920 x 3236
        x 104 of bf16 takes 51 us in 128 x 168, and 27 us in 128 x 176 (H100, 2026-11-26).
        """
        columns = (self.shapes.bn // self.shapes.cluster_k).astype(int)
        run_bytes = (columns & -columns) * (self.operands.d.dtype.bits // 8)
        return 1 + (SECTOR_BYTES / 2 / run_bytes) ** 2

    @cached_property
    def _partials_kb(self) -> Column:
        """Return the size of a tile's accumulators in KiB, for each plan."""
        return self.shapes.bm * self.shapes.bn * (self.operands.acc.bits / 8 / 1024)

    @cached_property
    def _split_us(self) -> Column:
        """Return the microseconds that a CTA takes to write a tile's accumulators to L2 (split-K), or to read them."""
        return self._partials_kb / self.costs.accumulators

    @cached_property
    def _shared_us(self) -> Column:
        """Return the microseconds to exchange a tile's accumulators within a cluster; 0 without cluster split-K."""
        return np.where(self.shapes.splits_k_in_cluster, self.costs.shared + self._partials_kb / self.costs.sent, 0.0)

    # --- columns for a problem ---

    def _l2_us(self, problem: Problem, tiling: Tiling) -> Column:
        """Return the microseconds to load the A and B of a k-tile from L2 while all SMs load, for each plan.

        tiling   how the tiles of each plan cover D
        """
        shapes, costs = self.shapes, self.costs
        a_lines, b_lines = self._line_factors(problem, self.repacked)
        if self.repacked and np.any(shapes.reads_a):
            in_place, _ = self._line_factors(problem, "", mn_major=self.repacked)
            a_lines = np.where(shapes.reads_a, in_place, a_lines)  # the factor of B holds, repacked or not
        a_us, b_us = self._rows_us
        a_rows = _rows(tiling.m, shapes.bm, shapes.bm, costs.missing)
        b_rows = _rows(tiling.n, shapes.bn, shapes.loaded_n, costs.missing)
        return a_us * a_lines * a_rows + b_us * b_lines * b_rows

    def _asked_us(self, problem: Problem, tiling: Tiling) -> Column:
        """Return the microseconds that first k-tiles take longer because many CTAs request the same cache lines.

        Only the operand whose lines have more requests counts. A line that holds several short rows gets one request
        for each row.

        tiling   how the tiles of each plan cover D
        """
        at_a_time = np.minimum(tiling.tiles, tiling.grid)
        a_readers = np.minimum(tiling.columns, at_a_time / np.minimum(tiling.rows, self.shapes.band))
        a_readers = np.maximum(1.0, a_readers)
        row_bytes = [np.maximum(1, self._row_bytes(name, problem)) for name in "ab"]
        in_line = [np.maximum(1.0, CACHE_LINE_BYTES / size) for size in row_bytes]
        rows_a, rows_b = by_orientation(self.shapes.swap_ab, *in_line)
        return self.costs.asked * np.maximum(a_readers * rows_a, at_a_time / a_readers * rows_b)

    def _store(self, problem: Problem, tiling: Tiling) -> tuple[Column, Column, Column]:
        """Return the predicted times and bytes of storing a tile of D, as three arrays with one entry per plan.

        They are the microseconds for a tile, the part of them that no MMAs overlap, and the bytes in DRAM traffic for
        all of D. The load of C is included. A D that L2 keeps has no DRAM traffic.

        problem   extents of the GEMM
        tiling    how the tiles of each plan cover D
        """
        shapes, costs, d = self.shapes, self.costs, self.operands.d
        d_size = d.dtype.bits / 8
        d_bytes: Column = problem.m * problem.n * problem.l * d_size
        stays = d_bytes <= self.device.measured.l2_kept_bytes
        by_threads = d.align_bytes < TMA_INNER_ALIGNED_BYTES
        along, across = self._along(tiling)
        rate: Column = np.where(along & np.logical_not(stays), costs.store * costs.store_along, costs.store)
        if by_threads:
            rate = rate * np.where(across, costs.store_across, 1.0)
            row = np.where(across, tiling.m / tiling.rows, tiling.n / tiling.columns / shapes.cluster_k)
            more = 1 + costs.ends_of_rows / (np.maximum(1.0, row) * d_size)
            rate, d_bytes = rate / more / np.where(across, 1.0, self._short_run_factor), d_bytes * more
        else:
            columns = np.where(
                shapes.epi_tile_n > 0,
                shapes.epi_tile_n,
                shapes.bn / shapes.cluster_k / np.maximum(1, shapes.epi_tiles),
            )
            box_bytes = np.where(across, CACHE_LINE_BYTES, np.minimum(CACHE_LINE_BYTES, columns * d_size))
            # The rows of a box begin and end within a sector
            is_torn = ~across & (shapes.epi_tile_n * d_size % SECTOR_BYTES > 0)
            is_torn = is_torn | (self._row_bytes("d", problem) % SECTOR_BYTES > 0)
            rate = np.where(is_torn, rate / (1 + SECTOR_BYTES / box_bytes), rate)
        us = tiling.own_m * tiling.own_n * (d_size / 1024) / (shapes.cluster_k * rate) + self._epi_tiles_us
        # The CTAs of an SM store at the same time
        us = us * np.maximum(1.0, shapes.ctas_per_sm * np.minimum(1.0, tiling.tiles / tiling.grid))
        if self.with_c:
            us = 2 * us
        return us, us * self._exposed(tiling, by_threads, stays), d_bytes * (1 - stays + self.with_c)

    def _exposed(self, tiling: Tiling, by_threads: bool, stays: Column) -> Column:
        """Return the fraction of a tile's store time that no MMAs overlap, for each plan.

        tiling       how the tiles of each plan cover D
        by_threads   whether threads store D, because it is not aligned for TMA
        stays        whether L2 keeps all of D
        """
        shapes, costs = self.shapes, self.costs
        if by_threads:
            return 1.0 * shapes.cooperative
        # In a single wave no later tile hides the store
        is_last = tiling.tiles <= tiling.grid
        overlaps = shapes.overlapped & ~is_last
        stops = shapes.cooperative | shapes.overlapped | (is_last & ~shapes.single)
        stops = costs.cooperative * (stops & ~shapes.is_crowded)
        return np.where(overlaps, costs.overlapped, stops) * np.where(stays, 1.0, costs.waited)

    def _meeting_us(self, variants: Variants, splits: Column, fixup_tiles: FixupTiles | None, waves: Column) -> Column:
        """Return the microseconds until CTAs that split a tile's K have added their accumulators, for each candidate.

        They are added in L2, or in shared memory with cluster split-K.

        variants      the candidates
        splits        number of K splits of each candidate's tiles
        fixup_tiles   stream-K fixup of the candidates that have it; None if none has it
        waves         number of waves of each candidate
        """
        costs, of_plans = self.costs, variants.of_plans
        us = of_plans(self._shared_us) * np.where(of_plans(self.shapes.streams), 1.0, waves)
        if (splits > 1).any():
            split_us = of_plans(self._split_us)
            us = us + (costs.meet + splits * split_us) * waves * (splits > 1)
        if fixup_tiles is not None:
            split_us = self._split_us[variants.recipe[fixup_tiles.at]]
            us[fixup_tiles.at] += costs.ends + fixup_tiles.workers / fixup_tiles.shared * split_us
        return us

    def _read_bytes(
        self, problem: Problem, tiling: Tiling, variants: Variants, fixup_tiles: FixupTiles | None, waves: Column
    ) -> Column:
        """Return the bytes of A and B that are read from DRAM, for each candidate.

        What L2 does not keep is read again in each wave of tiles along M or N, and by each helper of stream-K fixup,
        because helpers are out of step with other CTAs.

        tiling        how the tiles of each plan cover D
        variants      the candidates
        fixup_tiles   stream-K fixup of the candidates that have it; None if none has it
        waves         number of waves of each candidate
        """
        k_bytes = problem.k * self.operands.a.dtype.bits / 8 * problem.l
        shapes, of_plans, kept = self.shapes, variants.of_plans, self.device.measured.l2_kept_bytes
        once = of_plans((problem.m + problem.n) * k_bytes)
        if np.all(is_kept := once <= kept):
            return once
        m, n, rows, columns = map(of_plans, (tiling.m, tiling.n, tiling.rows, tiling.columns))
        a = np.where(of_plans(shapes.along_m), np.minimum(waves, columns), 1.0)
        b = np.where(of_plans(shapes.along_n), np.minimum(waves, rows), 1.0)
        if fixup_tiles is not None:
            # Share of all k-tiles that helpers take
            apart, k_tiles = np.zeros(len(variants.recipe)), max(1, self.k_tiles(problem))
            tiles = of_plans(tiling.tiles)[fixup_tiles.at]
            apart[fixup_tiles.at] = (1 - fixup_tiles.kept / k_tiles) * fixup_tiles.shared / tiles
            a = a + apart * (columns - a) * (m * k_bytes > kept)
            b = b + apart * (rows - b) * (n * k_bytes > kept)
        again = (m * a + n * b) * k_bytes
        return np.where(is_kept, once, again) if np.ndim(is_kept) else again

    def _long_us(self, problem: Problem) -> Column:
        """Return the microseconds of the problem's MMAs at the rate that the chip's power limit sustains."""
        k_bytes = problem.k * self.operands.a.dtype.bits / 8
        byte_products = problem.m * problem.n * problem.l * k_bytes
        return byte_products / (self.device.measured.wgmma_tflops * 1e6)

    def _power_us(self, long_us: Column) -> Column:
        """Return the least microseconds that the power limit allows for a problem's MMAs.

        They are less than `long_us` for a short problem, which ends before the chip reaches the limit.

        long_us   microseconds of the problem's MMAs at the rate that the power limit sustains
        """
        return long_us * long_us / (long_us + self.costs.burst)

    def _line_factors(self, problem: Problem, aligned: str, mn_major: str = "") -> tuple[Column, Column]:
        """Return (factor for A, factor for B) on the time to load from L2, relative to TMA boxes of whole cache lines.

        A factor is above 1 if more cache lines are touched: by boxes narrower than a line, or if rows do not begin at
        lines.

        problem    extents of the GEMM
        aligned    names of the operands whose rows begin at cache lines: "", "a", "b" or "ab"
        mn_major   names of the operands that a repack pass copies from an M-major or N-major matrix, e.g. "ab". For
                   these, the factor is that of the matrix before the copy, which itself is K-major
        """
        a_lines, b_lines = [
            touched(CACHE_LINE_BYTES if name in aligned else self._row_bytes(name, problem, mn_major)) for name in "ab"
        ]
        first, second = by_orientation(self.shapes.swap_ab, a_lines[0], b_lines[0])
        if (widths := self._box_widths) is not None:
            lines = [np.choose(widths, choices) for choices in (a_lines, b_lines)]
            second = np.where(widths, np.where(self.shapes.swap_ab, *lines), second)
        return first, second

    @cached_property
    def _box_widths(self) -> Column | None:
        """Return the width of the TMA boxes that load B in each plan, as an index into (128, 64, 32) bytes.

        None if the boxes of all plans have whole cache lines.
        """
        bytes_of_b = self.shapes.loaded_n.astype(int) * (self.operands.b.dtype.bits // 8)
        widths = sum([bytes_of_b % width > 0 for width in WIDTHS_BYTES[:-1]], start=np.zeros(1, int))
        along_mn = [np.bool_(operand.major != "k") for operand in (self.operands.a, self.operands.b)]
        widths = np.where(by_orientation(self.shapes.swap_ab, *along_mn)[1], widths, 0)
        return widths if widths.any() else None

    def _row_bytes(self, name: str, problem: Problem, mn_major: str = "") -> Column:
        """Return the bytes from one contiguous row (or column) of an operand to the next.

        name       "a", "b" or "d"
        problem    extents of the GEMM, and strides of operands that have gaps
        mn_major   names of the operands that a repack pass copies from an M-major or N-major matrix, e.g. "ab". For
                   these, the bytes are those of the matrix before the copy, which itself is K-major
        """
        operand = getattr(self.operands, name)
        major = "m" if name == "a" and name in mn_major else "n" if name in mn_major else operand.major
        extent: Column = getattr(problem, major)
        pitch = dict(problem.ld).get(name)
        if pitch is not None:
            extent = pitch
        return extent * operand.dtype.bits // 8


def predicted_us(
    shape: TileShape,
    operands: Operands,
    problem: Problem,
    device: Device = DEFAULT_DEVICE,
    split: KSplit | None = None,
    costs: Sm90Costs = COSTS,
) -> float:
    """Return the predicted microseconds of one Hopper plan. Repack passes (copies of operands) are not included.

    shape   the plan's tile, cluster and other properties that the time depends on
    split   how K is split; None if it is not
    costs   fitted constants of the time model

    >>> bf16, wide = Operands.of("bf16", layout="nt"), TileShape((128, 256), (2, 1), "overlapped")
    >>> 160 < predicted_us(wide, bf16, Problem(4096, 4096, 4096)) < 200
    True
    """
    split, model = split or KSplit(), Model(Shapes.of([shape], operands), operands, device, costs=costs)
    variants = Variants(np.array([0]), split.splits, fixup=split.fixup)
    return float(model.predict(variants, problem).us[0])


def _rows(extent: Column, tile: Column, loaded: Column, missing: float) -> Column:
    """Return the mean cost of the rows (or columns) of one operand that are loaded for a tile, in units of one row.

    A row within D costs 1; a row that is loaded but not needed costs `missing`. The mean is over the tiles along D. A
    CTA whose whole tile is beyond D loads the last tile again.

    extent    M or N of D, one entry per plan
    tile      bM or bN
    loaded    rows that are loaded for a tile, which may be more than the tile has
    missing   cost of a row that is loaded but not needed
    """
    own = extent / np.ceil(extent / tile)
    return missing * loaded + (1 - missing) * own
