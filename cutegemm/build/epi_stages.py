"""Epilogue stages of plans with warp roles: their shared memory, and the copies of D and C through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Any

from cutegemm.build.building import copy_of_lines
from cutegemm.dtypes import DType
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, coalesce, composition, tile_to_shape
from cutegemm.machine.arch import ACCESS_BITS, CACHE_LINE_BYTES, WARP_THREADS
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.store import LineStore, StagedStore, TmaStore
from cutegemm.plan.store.tma import MIN_EPI_STAGES
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import ldmatrix, stmatrix, universal_copy
from cutegemm.tile.mma_atoms import ROWS_IN_BANKS, WGMMA_M
from cutegemm.tile.smem_atoms import KINDS, smem_atom, widest_smem_kind
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES, TmaBox

SWIZZLES = {"interleave": "none", "32B": "32B", "64B": "64B", "128B": "128B"}
SHARED_D = ("swizzled", "padded", "plain")
# Padding after each row of a padded epilogue stage, in bytes: the next row begins 4 banks further, or 8 banks for pairs
# of 32-bit elements.
_PAD_BYTES, MOST_PAD_BYTES = 16, 32
# Usual width of an epilogue tile that threads store by less than 16 bytes, in bytes of one row, by the majorness of D.
# Rows of an N-major D are long, so that few sectors are partial.
_LINE_BYTES = {"n": 768, "m": 256}
_FEW_OF_LIMIT = 4  # an epilogue tile is narrow if this many times its columns are still below the usual width
_ENOUGH_STAGES = 4  # mainloop stages that are enough: epilogue tiles are not made narrower for more
WHOLE_COLUMNS = 16  # columns of D that one stmatrix.x4 of each warp of a consumer covers
FEWEST_COLUMNS = 8  # columns that stmatrix.x2 covers, for tiles with an odd number of groups of eight columns
_MOST_GROUPS = 9  # groups of eight columns in an epilogue tile of such a tile

# (thread, value) -> place in a column-major tile (64, 16): the layout of wgmma's accumulators for 16 columns. Lanes: 4
# along N, two columns apart, and 8 along M; warps: 16 rows apart; values: 2 along N, then 8 rows, then 8 columns apart.
_FRAGMENT = Layout(((4, 8, 4), (2, 2, 2)), ((2 * WGMMA_M, 1, 16), (WGMMA_M, 8, 8 * WGMMA_M)))
_FRAGMENT_OF_8 = Layout(((4, 8, 4), (2, 2)), ((2 * WGMMA_M, 1, 16), (WGMMA_M, 8)))  # for a tile (64, 8)


def fragment_of(a_source: str, columns: int = WHOLE_COLUMNS) -> Layout:
    """Return the accumulator layout of a warpgroup's wgmma: (thread, value) -> offset in a 64-row tile of D.

    Offsets count the tile column by column: offset 1 is row 1 of column 0, and offset 64 is row 0 of column 1.

    a_source   "shared" or "register": where wgmma reads A from. With "register", the rows of the tile are permuted
    columns    columns of the tile, 16 or 8

    >>> print(fragment_of("register"))
    ((4,(4,2),(2,2)),(2,2,2)):((128,(1,16),(8,32)),(64,4,512))
    >>> print(fragment_of("shared", 8))
    ((4,8,4),(2,2)):((128,1,16),(64,8))
    """
    fragment = _FRAGMENT if columns == WHOLE_COLUMNS else _FRAGMENT_OF_8
    if a_source != "register":
        return fragment
    return composition(Layout((ROWS_IN_BANKS.shape, columns), (ROWS_IN_BANKS.stride, WGMMA_M)), fragment)


def warpgroup_epi_stages(
    subject: str,
    operands: Operands,
    columns: int,
    a_source: str = "shared",
    most: int | None = None,
    stages: Callable[[SharedLayout], int] | None = None,
) -> EpiStageBuilder:
    """Return a builder of epilogue stages (shared-memory buffers for D) for plans that multiply by wgmma.

    An epilogue stage holds an epilogue tile, i.e. 64 rows and some columns of D. The columns are a multiple of 16, or
    of 8 if 16 does not divide `columns`.

    subject    what an error is about, such as "sm90_plan 'mine'"
    operands   types and majorness of C and D
    columns    columns of D that a consumer warpgroup computes
    a_source   "shared" or "register": where wgmma reads A from
    most       largest number of columns of an epilogue tile that the builder chooses; None: no limit
    stages     function from the layout of epilogue stages to the number of mainloop stages that fit next to them; the
               builder then leaves room for mainloop stages. None: epilogue stages may take that room
    """
    step = FEWEST_COLUMNS if columns % WHOLE_COLUMNS else WHOLE_COLUMNS
    return EpiStageBuilder(subject, operands, fragment_of(a_source, step), (WGMMA_M, step), most=most, stages=stages)


class EpiStageBuilder:
    """Chooses the epilogue stages of a plan, i.e. its shared-memory buffers for D, which hold one epilogue tile each.

    A consumer is a warpgroup or warp that multiplies, and then stores its tile of D as several epilogue tiles. The
    method `epi_stages` chooses their width and the number of stages, and returns how D is stored.

    fragment    accumulators of a consumer in the smallest epilogue tile: (thread, register) -> offset in that
                column-major tile
    tile        (M, N) of the smallest epilogue tile, e.g. (64, 16). Every epilogue tile has M rows and a multiple of N
                columns
    in_places   True if rows and columns of the fragment are consecutive in D, so that stmatrix can write it
    least       smallest number of epilogue stages per consumer
    most        largest number of columns of an epilogue tile that the builder chooses; None: no limit
    stages      function from the layout of epilogue stages to the number of mainloop stages that fit next to them; the
                builder then leaves room for mainloop stages. None: epilogue stages may take that room
    """

    def __init__(
        self,
        subject: str,
        operands: Operands,
        fragment: Layout,
        tile: tuple[int, int],
        in_places: bool = True,
        least: int = MIN_EPI_STAGES,
        most: int | None = None,
        stages: Callable[[SharedLayout], int] | None = None,
    ) -> None:
        self.subject, self.operands = subject, operands
        self.fragment, self.tile, self.in_places, self.least = fragment, tile, in_places, least
        self.most, self.stages = most, stages

    def epi_stages(
        self,
        consumer_tile: tuple[int, int],
        consumers: int,
        stored: tuple[int, str],
        shared_d: str,
        epi_tile_n: int | None,
        epi_stages: int | None,
        with_c: bool,
        with_operands: bool = False,
    ) -> StagedStore:
        """Choose the epilogue stages (shared-memory buffers for D) of a plan, and return how D is stored through them.

        consumer_tile   (M, N) of D that a consumer (a warpgroup or warp that multiplies) computes
        consumers       number of consumers of a CTA
        stored          (rows, policy): rows of the TMA box that stores an N-major D, and the L2 policy of D, e.g. (64,
                        "evict_first")
        shared_d        layout in shared memory: "swizzled" or "plain", which TMA stores, or "padded", which threads
                        store
        epi_tile_n      columns of an epilogue tile; None: the builder chooses
        epi_stages      epilogue stages per consumer; None: the builder chooses
        with_c          True if the epilogue reads C or another matrix of D's shape
        with_operands   True if the epilogue reads anything but the accumulators
        raises          PlanError if no epilogue tiles fill the consumer's tile
        """
        c, d = self.operands.c, self.operands.d
        columns, epi_tiles, count = self.division(
            consumer_tile, consumers, epi_tile_n, epi_stages, shared_d, with_c or with_operands
        )
        shape = (self.tile[0], columns)
        to_shared = TiledCopy(self._matrices(stmatrix), self.fragment, self.tile)
        if shared_d == "padded":
            layout, copy = self.padded_epi_stages(shape, (count, consumers), stored[0])
            return LineStore(shape, count, to_shared, layout, copy)
        layout, box, load_c = self.boxed_epi_stages(shape, (count, consumers), shared_d != "plain", *stored)
        by_tma = with_c and load_c is not None and (c.dtype, c.major) == (d.dtype, d.major)
        if not by_tma or c.align_bytes < TMA_INNER_ALIGNED_BYTES or epi_tiles % count:
            return TmaStore(shape, count, to_shared, layout, box)
        from_shared = TiledCopy(self._matrices(ldmatrix), self.fragment, self.tile)
        return TmaStore(shape, count, to_shared, layout, box, load_c, from_shared)

    def division(
        self,
        consumer_tile: tuple[int, int],
        consumers: int,
        epi_tile_n: int | None = None,
        epi_stages: int | None = None,
        shared_d: str = "swizzled",
        with_operands: bool = False,
    ) -> tuple[int, int, int]:
        """Divide a consumer's tile of D into epilogue tiles, which are stored one by one through epilogue stages.

        consumer_tile, consumers   (M, N) of D that a consumer (warpgroup or warp) computes, and the number of consumers
        epi_tile_n, epi_stages     requested columns of an epilogue tile, and stages per consumer; None: the builder
                                   chooses
        shared_d                   layout in shared memory: "swizzled" or "plain", which TMA stores, or "padded", which
                                   threads store
        with_operands              True if the epilogue reads anything but the accumulators
        returns                    (columns of an epilogue tile, epilogue tiles per consumer, epilogue stages per
                                   consumer)
        raises                     PlanError if no epilogue tiles fill the consumer's tile
        """
        if epi_tile_n is not None:
            self.check_columns(epi_tile_n, consumer_tile[1])
        by_lines = shared_d == "padded" and self.operands.d.align_bytes < TMA_INNER_ALIGNED_BYTES
        if by_lines:
            columns = epi_tile_n or self.line_columns(consumer_tile[1], with_operands)
        else:
            columns = epi_tile_n or self.epi_tile_columns(consumer_tile, consumers, epi_stages)
        epi_tiles = consumer_tile[0] // self.tile[0] * (consumer_tile[1] // columns)
        if epi_stages is None:
            epi_stages = 1 if by_lines else self.count(epi_tiles, columns, consumers, with_operands)
        return columns, epi_tiles, epi_stages

    def count(self, epi_tiles: int, columns: int, consumers: int, with_operands: bool) -> int:
        """Return the default number of epilogue stages (shared-memory buffers for D) per consumer.

        It divides the number of epilogue tiles. Three are preferred to two, so that two stores can run while a third
        stage is written. But epilogue stages never take the room of a mainloop stage. 2816 x 2208 x 256 of bf16 in 128
        x 96, clusters of two, takes 10.95 us with three stages and 11.31 us with two (H100, 2026-11-25).

        epi_tiles       number of epilogue tiles per consumer (warpgroup or warp that multiplies)
        columns         columns of an epilogue tile
        consumers       number of consumers of a CTA
        with_operands   True if the epilogue reads anything but the accumulators
        """
        usual = next((s for s in (2, 3, 5) if epi_tiles % s == 0), max(self.least, epi_tiles))
        if self.stages is None or with_operands or epi_tiles < self.least:
            return usual
        most = self.stages_left(2, columns, consumers)
        dividing = [count for count in (3, 2) if epi_tiles % count == 0]
        return next(count for count in (*dividing, usual, 3, 2) if self.stages_left(count, columns, consumers) == most)

    def stages_left(self, count: int, columns: int, consumers: int) -> int:
        """Return the number of mainloop stages that fit in shared memory next to the epilogue stages of all consumers.

        count       epilogue stages per consumer (warpgroup or warp that multiplies)
        columns     columns of an epilogue stage
        consumers   number of consumers of a CTA
        """
        assert self.stages is not None
        return self.stages(Layout((self.tile[0], columns, count, consumers)))

    def check_columns(self, columns: int, tile_columns: int) -> None:
        """Raise PlanError unless a consumer's tile of D can be divided into epilogue tiles of the given width.

        The width must divide the columns of the tile, and be a multiple of what one stmatrix covers.

        columns        columns of an epilogue tile, as the user requested
        tile_columns   columns of D that a consumer (warpgroup or warp) computes
        """
        step = self.tile[1]
        if tile_columns % columns or columns % step:
            serving = [n for n in range(step, tile_columns + 1, step) if tile_columns % n == 0]
            expected = f"{_either(serving)} are expected" if serving else f"none that is a multiple of {step} does"
            rule = (
                f"epi_tile_n = {columns}: epilogue tiles of {columns} columns do not divide a tile of "
                f"{tile_columns} columns; {expected}."
            )
            raise PlanError(self.subject, [rule])

    def epi_tile_columns(self, consumer_tile: tuple[int, int], consumers: int, epi_stages: int | None = None) -> int:
        """Return the default width of an epilogue tile that TMA stores.

        It is the widest row of a swizzle (128, 64 or 32 bytes) that leaves enough epilogue tiles for the epilogue
        stages, and room for mainloop stages. For an M-major D it may also be eight columns.

        consumer_tile   (M, N) of D that a consumer (warpgroup or warp) computes
        consumers       number of consumers of a CTA
        epi_stages      epilogue stages per consumer; None: not requested
        returns         number of columns
        raises          PlanError if no row of a swizzle is possible
        """
        rows, columns = consumer_tile
        dtype, n_major = self.operands.d.dtype, self.operands.d.major == "n"
        step = max(self.tile[1], WHOLE_COLUMNS) if n_major else self.tile[1]
        row_bytes = (128,) if n_major and self.operands.scattered else (128, 64, 32)
        lengths = [size_bytes * 8 // dtype.bits for size_bytes in row_bytes]
        if step == FEWEST_COLUMNS:
            lengths.append(step)
        wide = [n for n in lengths if n % step == 0 and n <= (self.most or n)]
        if not wide:
            rule = (
                f"TMA cannot store D of {dtype}: no row of 32, 64 or 128 bytes holds {step} columns or more. "
                "Use store = 'direct'."
            )
            raise PlanError(self.subject, [rule])
        widths = [n for n in wide if columns % n == 0]
        serving = []
        for n in widths:
            epi_tiles = rows // self.tile[0] * (columns // n)
            if epi_tiles >= self.least and epi_tiles % (epi_stages or 1) == 0:
                serving.append(n)
        if serving:
            if self.stages is None or epi_stages is not None:
                return serving[0]
            room = [min(_ENOUGH_STAGES, self.stages_left(self.least, n, consumers)) for n in serving]
            return serving[room.index(max(room))]
        if not widths:
            otherwise = "" if self.operands.scattered else ", or store = 'direct'"
            rule = (
                f"TMA stores D of {dtype} in epilogue tiles of {_either(wide[::-1])} columns, but none divides "
                f"a tile of {columns} columns. Use a multiple of {wide[-1]}{otherwise}."
            )
            raise PlanError(self.subject, [rule])
        return widths[0]

    def line_columns(self, tile_columns: int, with_operands: bool) -> int:
        """Return the columns of an epilogue tile for a D that threads store because TMA cannot, e.g. an unaligned D.

        tile_columns    columns of D that a consumer (warpgroup or warp) computes
        with_operands   True if the epilogue reads anything but the accumulators
        returns         number of columns, a divisor of `tile_columns`, chosen as by the function `line_columns`
        raises          PlanError if `tile_columns` is not a multiple of the columns of the smallest epilogue tile
        """
        step, most = self.tile[1], tile_columns if self.most is None else self.most
        columns = line_columns(self.operands.d, tile_columns, step, most, with_operands)
        if columns == 0:
            rule = f"no epilogue tile with a multiple of {step} columns divides a tile of {tile_columns} columns."
            raise PlanError(self.subject, [f"{rule} Use store = 'direct'."])
        return columns

    def boxed_epi_stages(
        self, shape: tuple[int, int], copies: tuple[int, int], swizzles: bool, store_rows: int, l2: str
    ) -> tuple[SharedLayout, TmaBox, TmaBox]:
        """Return the layout of epilogue stages that TMA stores, the TMA box that stores D and the TMA box that loads C.

        If an operand selects the rows of D that rows are added to, a box has one row.

        The layout is swizzled against bank conflicts if `swizzles` is True. Rows whose length is an odd multiple of 16
        bytes need no swizzle: eight such rows begin in eight different groups of banks.

        shape        (rows, columns) of an epilogue tile
        copies       (epilogue stages per consumer, consumers)
        swizzles     False if rows must not be swizzled
        store_rows   rows of a TMA box of an N-major D
        l2           L2 policy of D, such as "evict_first"
        """
        d = self.operands.d
        n_major = d.major == "n"
        inner = shape[1] if n_major else shape[0]
        kind = widest_smem_kind(d.dtype, inner)
        if swizzles and SWIZZLES[kind] != "none":
            layout: SharedLayout = swizzled(d.dtype, n_major, shape, copies)
            width, swizzle = KINDS[kind][1] * 8 // d.dtype.bits, SWIZZLES[kind]
        else:
            layout = _rows(shape, copies, n_major)
            width, swizzle = inner, "none"
        box = (width, store_rows if n_major else shape[1])
        store = TmaBox("store", d.dtype, box, swizzle, l2_policy=l2)
        if self.operands.scattered:
            store = replace(store, direction="reduce_add", box=(width, 1))
        return layout, store, TmaBox("load", d.dtype, box, swizzle)

    def padded_epi_stages(
        self, shape: tuple[int, int], copies: tuple[int, int], store_rows: int
    ) -> tuple[SharedLayout, TiledCopy]:
        """Return the layout of epilogue stages with padded rows, and the tiled copy that stores them to global memory.

        Neighbouring threads copy neighbouring vectors of a row; a vector is as wide as D is aligned, at most 16 bytes.

        shape        (rows, columns) of an epilogue tile
        copies       (epilogue stages per consumer, consumers)
        store_rows   rows that are stored at a time; it must be all rows of an epilogue tile
        raises       PlanError if warps are to store their own rows by TMA, or if threads do not divide the rows evenly
        """
        d = self.operands.d
        inner, across = shape[::-1] if d.major == "n" else shape
        layout = self.padded_rows(shape, copies)
        vector = min(ACCESS_BITS // d.dtype.bits, d.align_elems)
        run, threads = gcd(WARP_THREADS, inner // vector), self.fragment[0].size()
        violations = []
        if store_rows != self.tile[0]:
            violations.append("warps cannot store their own rows: that needs TMA, which cannot store padded rows.")
        if inner % vector or across % (threads // run):
            violations.append(
                f"{threads} threads cannot store {across} rows of {inner} elements of {d.dtype} evenly, {vector} "
                "elements per access."
            )
        if violations:
            raise PlanError(self.subject, violations)
        return layout, copy_of_lines(d, vector, run, threads)

    def padded_rows(self, shape: tuple[int, int], copies: tuple[int, int]) -> Layout:
        """Return the layout of epilogue stages whose rows are padded so that a warp writes them without bank conflicts.

        The padding after a row is as long as what the lanes of a warp write to one row at once: 16 bytes for stmatrix,
        32 bytes for pairs of 32-bit elements. So neighbouring rows begin in different banks.

        shape    (rows, columns) of an epilogue tile
        copies   (epilogue stages per consumer, consumers)
        """
        d = self.operands.d
        n_major = d.major == "n"
        at_once_bytes = d.dtype.bits if n_major else _PAD_BYTES  # 4 lanes write 2 elements each
        return _rows(shape, copies, n_major, max(_PAD_BYTES, at_once_bytes) * 8 // d.dtype.bits)

    def _matrices(self, move: Callable[..., CopyAtom]) -> CopyAtom:
        """Return the copy atom that moves accumulator fragments to or from an epilogue stage in shared memory.

        It is stmatrix or ldmatrix for 16-bit elements. Other elements are copied as pairs along an N-major D, or one by
        one: stmatrix of 8-bit elements would need four neighbours per lane, but wgmma gives a lane two.

        move   the function `stmatrix` or `ldmatrix`, which makes the atom for 16-bit elements
        """
        d = self.operands.d
        if d.dtype.bits == 16 and self.in_places:
            return move(d.dtype, self.fragment[1].size() // 2, d.major == "m")
        return universal_copy(d.dtype, d.dtype.bits * (2 if d.major == "n" else 1))


def has_odd_groups(columns: int | None) -> bool:
    """Return True if 8, but not 16, divides the number of columns of a tile: they are an odd number of groups of eight.

    columns   number of columns, a multiple of 8; None if it is not chosen yet, for which the result is False

    >>> has_odd_groups(40), has_odd_groups(48), has_odd_groups(None)
    (True, False, False)
    """
    return (columns or 0) % WHOLE_COLUMNS != 0


def odd_columns(tile_columns: int) -> int:
    """Return the width of an epilogue tile for a tile of D whose columns are a multiple of 8, but not of 16.

    Columns count in groups of eight here, and both tiles have an odd number of groups. The result has the largest
    number of groups that divides those of the tile, is less than them and at most 9. E.g. 200 columns are 25 groups,
    and an epilogue tile has 5 groups, i.e. 40 columns.

    tile_columns   columns of the tile of D

    >>> [odd_columns(columns) for columns in (200, 168, 216, 120, 152)]
    [40, 56, 72, 40, 8]
    """
    groups = tile_columns // FEWEST_COLUMNS
    dividing = [n for n in range(1, min(groups - 1, _MOST_GROUPS) + 1) if groups % n == 0]
    return FEWEST_COLUMNS * max(dividing, default=1)


def line_columns(
    d: Operand,
    tile_columns: int,
    step: int = WHOLE_COLUMNS,
    most: int | None = None,
    with_operands: bool = False,
) -> int:
    """Return the width in columns of an epilogue tile for a D that threads store by accesses of less than 16 bytes.

    The result is the largest divisor of the tile's columns within a limit. The limit is 768 bytes for a row of an
    N-major D, 256 bytes for an M-major D, or 128 bytes if operands of the epilogue need registers. It is doubled if the
    tile would have many epilogue tiles, because threads wait for each of them.

    d               element type and majorness of D
    tile_columns    columns of D that a consumer (warpgroup) computes
    step            the result is a multiple of it
    most            largest result; None: no limit
    with_operands   True if the epilogue reads anything but the accumulators
    returns         number of columns; 0 if no multiple of `step` divides `tile_columns`

    >>> from cutegemm.dtypes import bf16, f32
    >>> [line_columns(Operand(kind, "n", kind.bits // 8), 256) for kind in (bf16, f32)]
    [256, 128]
    >>> [line_columns(Operand(bf16, "m", 2), columns) for columns in (160, 176, 192, 208)]  # and not 16 of 176 or 208
    [80, 176, 96, 208]
    """
    size_bytes = CACHE_LINE_BYTES if with_operands else _LINE_BYTES[d.major]
    usual, limit = size_bytes * 8 // d.dtype.bits, tile_columns if most is None else min(tile_columns, most)
    dividing = [n for n in range(step, limit + 1, step) if tile_columns % n == 0]
    columns = max((n for n in dividing if n <= usual), default=0)
    if columns * _FEW_OF_LIMIT < usual:
        columns = next((n for n in dividing if columns < n <= 2 * usual), columns)
    return columns


def _either(numbers: list[int]) -> str:
    """Join numbers to English text for a message, such as "8, 16 or 32"."""
    *others, last = [str(number) for number in numbers]
    return f"{', '.join(others)} or {last}" if others else last


def _rows(shape: tuple[int, int], copies: tuple[int, int], n_major: bool, pad: int = 0) -> Layout:
    """Return the unswizzled layout of row- or column-major tiles in memory: (rows, columns, *copies) -> offset.

    The tiles lie one after the other.

    shape     (rows, columns) of a tile
    copies    number of tiles along each further mode: (epilogue stages per consumer, consumers)
    n_major   True if tiles are row-major, False if they are column-major
    pad       unused elements after each contiguous row or column
    """
    pitch = (shape[1] if n_major else shape[0]) + pad
    size = pitch * (shape[0] if n_major else shape[1])
    return Layout((*shape, *copies), (*((pitch, 1) if n_major else (1, pitch)), size, size * copies[0]))


@lru_cache(maxsize=1024)
def swizzled(dtype: DType, second_major: bool, shape: tuple[int, int], copies: tuple[int, ...]) -> ComposedLayout:
    """Return the swizzled shared-memory layout of tiles one after the other: (*shape, *copies) -> offset.

    The swizzle is the widest of the canonical ones for TMA and wgmma (128, 64 or 32 bytes) that fits the contiguous
    mode. Results are cached.

    dtype          element type
    second_major   True if the second mode is contiguous, as in a K-major (M, K) or an N-major (M, N) tile
    shape          (M, K), (N, K) or (M, N) of a tile
    copies         number of tiles along each further mode: (mainloop stages,), or (epilogue stages, consumers)

    >>> from cutegemm.dtypes import bf16
    >>> str(swizzled(bf16, False, (128, 64), (4,)))
    'S<3,3,3> o 0 o ((64,2),64,4):((1,4096),64,8192)'
    """
    inner = shape[1] if second_major else shape[0]
    atom = smem_atom(dtype, "k" if second_major else "mn", widest_smem_kind(dtype, inner))
    order = (0, 1) if second_major else (1, 0)
    tiled = tile_to_shape(atom, (*shape, *copies), (*order, *range(2, 2 + len(copies))))
    outer: Any = coalesce(tiled.outer, (1,) * (2 + len(copies)))
    inner_swizzle = tiled.inner
    assert isinstance(inner_swizzle, Swizzle)
    return ComposedLayout(inner_swizzle, 0, outer)
