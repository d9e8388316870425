"""How D leaves a plan with a pipeline: epilogue tiles in epilogue stages of shared memory, and the copies into and out
of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import gcd
from typing import Any

from cutegemm.build.building import copy_of_lines
from cutegemm.dtypes import DType
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, coalesce, composition, tile_to_shape
from cutegemm.machine.arch import ACCESS_BITS, CACHE_LINE_BYTES, WARP_THREADS
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.rules.warp_roles import MIN_EPI_STAGES
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.warp_roles import EpiStages
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import ldmatrix, stmatrix, universal_copy
from cutegemm.tile.mma_atoms import ROWS_IN_BANKS, WGMMA_M
from cutegemm.tile.smem_atoms import KINDS, smem_atom, widest_smem_kind
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES, TmaBox

SWIZZLES = {"interleave": "none", "32B": "32B", "64B": "64B", "128B": "128B"}
SHARED_D = ("swizzled", "padded", "plain")
# After each row of a padded epilogue stage: the next row begins 4 banks further, or 8 where elements of 32 bits are in
# pairs.
_PAD_BYTES, MOST_PAD_BYTES = 16, 32
# Of the columns of an epilogue tile that the threads store by less than 16 bytes, by D's majorness: long rows where
# they lie along N; else many, for each of which there is a loop in the code.
_LINE_BYTES = {"n": 768, "m": 256}
_FEW_OF_LIMIT = 4  # times which the columns of an epilogue tile are fewer than they may be: then they are few
_ENOUGH_STAGES = 4  # beside which epilogue tiles are as wide as they can be
WHOLE_COLUMNS = 16  # of an epilogue tile, that one stmatrix.x4 of each warp of a consumer covers
FEWEST_COLUMNS = 8  # the same of stmatrix.x2: of tiles whose columns are an odd multiple of them
_MOST_GROUPS = 9  # of eight columns, in an epilogue tile of such a tile

# What a consumer holds of (64, 16) of its sums: lanes 4 along N, in pairs, and 8 along M; warps 16 rows
# apart; values 2 along N, then 8 rows apart, then 8 columns (the layout of D of wgmma, 16 columns of it).
_FRAGMENT = Layout(((4, 8, 4), (2, 2, 2)), ((2 * WGMMA_M, 1, 16), (WGMMA_M, 8, 8 * WGMMA_M)))
_OF_FEWEST = Layout(((4, 8, 4), (2, 2)), ((2 * WGMMA_M, 1, 16), (WGMMA_M, 8)))  # the same of (64, 8)


def fragment_of(a_source: str, columns: int = WHOLE_COLUMNS) -> Layout:
    """What a consumer holds of 64 rows of its sums, and so many columns: 16, or 8; where wgmma reads A from shared
    memory or from registers.

    >>> print(fragment_of("register"))
    ((4,(4,2),(2,2)),(2,2,2)):((128,(1,16),(8,32)),(64,4,512))
    >>> print(fragment_of("shared", 8))
    ((4,8,4),(2,2)):((128,1,16),(64,8))
    """
    fragment = _FRAGMENT if columns == WHOLE_COLUMNS else _OF_FEWEST
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
    """Makes the epilogue stages of warpgroups whose tiles have so many columns: in steps of 16, or of 8 where 16 do not
    divide them.

    a_source   where wgmma reads A from: shared memory, or registers
    most       columns of an epilogue tile that is not asked for
    stages     that there is room for beside epilogue stages
    """
    step = FEWEST_COLUMNS if columns % WHOLE_COLUMNS else WHOLE_COLUMNS
    return EpiStageBuilder(subject, operands, fragment_of(a_source, step), (WGMMA_M, step), most=most, stages=stages)


class EpiStageBuilder:
    """Makes the epilogue stages that D leaves through, and their shared memory.

    fragment    (thread, value) -> place in a tile: what a consumer holds of it, in the order of its registers
    tile        (M, N) of that tile: the rows of an epilogue tile, and its columns in steps
    in_places   whether neighbours in a fragment are neighbours in D, so that matrices of them can be written
    least       epilogue stages of a consumer
    most        columns of an epilogue tile that is not asked for
    stages      that there is room for beside epilogue stages; None: whatever epilogue stages take
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
    ) -> tuple[EpiStages, SharedLayout]:
        """How D leaves, and the epilogue stages that it passes through: (rows, n, epilogue stages, consumers).

        stored          rows of a box of an n-major D, and for how long the L2 cache is to keep it
        shared_d        one of `SHARED_D`: see `sm90_plan`
        with_c          whether the epilogue reads a tile
        with_operands   whether it reads anything but the sums
        raises          PlanError where no epilogue tiles fill the tile
        """
        c, d = self.operands.c, self.operands.d
        columns, epi_tiles, count = self.division(
            consumer_tile, consumers, epi_tile_n, epi_stages, shared_d, with_c or with_operands
        )
        shape = (self.tile[0], columns)
        store: TmaBox | TiledCopy
        load_c: TmaBox | None = None
        if shared_d == "padded":
            layout, store = self.padded_epi_stages(shape, (count, consumers), stored[0])
        else:
            swizzles = shared_d != "plain"
            layout, store, load_c = self.boxed_epi_stages(shape, (count, consumers), swizzles, *stored)
        by_tma = with_c and load_c is not None and (c.dtype, c.major) == (d.dtype, d.major)
        if not by_tma or c.align_bytes < TMA_INNER_ALIGNED_BYTES or epi_tiles % count:
            load_c = None
        to_shared = TiledCopy(self._matrices(stmatrix), self.fragment, self.tile)
        from_shared = None if load_c is None else TiledCopy(self._matrices(ldmatrix), self.fragment, self.tile)
        return EpiStages(shape, count, to_shared, store, from_shared, load_c), layout

    def division(
        self,
        consumer_tile: tuple[int, int],
        consumers: int,
        epi_tile_n: int | None = None,
        epi_stages: int | None = None,
        shared_d: str = "swizzled",
        with_operands: bool = False,
    ) -> tuple[int, int, int]:
        """Columns of an epilogue tile, epilogue tiles of a consumer, and the epilogue stages that they pass through.

        with_operands   whether the epilogue reads anything but the sums
        raises          PlanError where no epilogue tiles fill the tile
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
        """Slots of a consumer that are not asked for: as many as divide its epilogue tiles, three rather than two, so
        that two stores may be under way while the third is written; but none that take the room of a stage.

        By 128 x 96 in clusters of two, 2816 x 2208 x 256 of bf16 takes 10.95 us with three, 11.31 with two; by
        256 x 144, 8192 x 2304 x 256 takes 27.1 and 27.9 (one H100, 2026-11-25).
        """
        usual = next((s for s in (2, 3, 5) if epi_tiles % s == 0), max(self.least, epi_tiles))
        if self.stages is None or with_operands or epi_tiles < self.least:
            return usual
        most = self.stages_left(2, columns, consumers)
        dividing = [count for count in (3, 2) if epi_tiles % count == 0]
        return next(count for count in (*dividing, usual, 3, 2) if self.stages_left(count, columns, consumers) == most)

    def stages_left(self, count: int, columns: int, consumers: int) -> int:
        """Stages that there is room for beside epilogue stages of so many columns."""
        assert self.stages is not None
        return self.stages(Layout((self.tile[0], columns, count, consumers)))

    def check_columns(self, columns: int, of_tile: int) -> None:
        """Checks that epilogue tiles of so many columns, as they were asked for, fill a tile."""
        step = self.tile[1]
        if of_tile % columns or columns % step:
            serving = [n for n in range(step, of_tile + 1, step) if of_tile % n == 0]
            expected = f"{_either(serving)} are expected" if serving else f"no multiples of {step} do"
            rule = (
                f"epi_tile_n = {columns}: epilogue tiles of {columns} columns do not fill a tile of "
                f"{of_tile}; {expected}."
            )
            raise PlanError(self.subject, [rule])

    def epi_tile_columns(self, consumer_tile: tuple[int, int], consumers: int, epi_stages: int | None = None) -> int:
        """As many as a row of the widest swizzle holds, that leave epilogue tiles enough for the epilogue stages, and
        room for stages; eight where the columns of D lie together, and not the few of a row, which are to be asked for.

        raises   PlanError where no row of a swizzle serves
        """
        rows, columns = consumer_tile
        dtype, n_major = self.operands.d.dtype, self.operands.d.major == "n"
        step = max(self.tile[1], WHOLE_COLUMNS) if n_major else self.tile[1]
        lengths = [size_bytes * 8 // dtype.bits for size_bytes in (128, 64, 32)]
        if step == FEWEST_COLUMNS:
            lengths.append(step)
        wide = [n for n in lengths if n % step == 0 and n <= (self.most or n)]
        if not wide:
            rule = (
                f"D of {dtype} does not leave by TMA: no row of 32, 64 or 128 bytes holds {step} columns or more. "
                "Take store = 'direct'."
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
            rule = (
                f"D of {dtype} leaves in epilogue tiles of {_either(wide[::-1])} columns, none of which fill a tile of "
                f"{columns}. Take a multiple of {wide[-1]}, or store = 'direct'."
            )
            raise PlanError(self.subject, [rule])
        return widths[0]

    def line_columns(self, of_tile: int, with_operands: bool) -> int:
        """Of an epilogue tile that the threads store by less than 16 bytes: see `line_columns`.

        raises   PlanError where the columns of a tile are no multiple of an epilogue tile's least
        """
        step, most = self.tile[1], of_tile if self.most is None else self.most
        columns = line_columns(self.operands.d, of_tile, step, most, with_operands)
        if columns == 0:
            rule = f"a tile of {of_tile} columns does not divide into epilogue tiles of some times {step}."
            raise PlanError(self.subject, [f"{rule} Take store = 'direct'."])
        return columns

    def boxed_epi_stages(
        self, shape: tuple[int, int], copies: tuple[int, int], swizzles: bool, store_rows: int, l2: str
    ) -> tuple[SharedLayout, TmaBox, TmaBox]:
        """Slots that TMA stores and loads: where epilogue tiles lie, and the boxes of D and of C. Rows of an odd number
        of 16 bytes are not swizzled: eight of them begin in eight different groups of banks as they are."""
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
        return layout, store, TmaBox("load", d.dtype, box, swizzle)

    def padded_epi_stages(
        self, shape: tuple[int, int], copies: tuple[int, int], store_rows: int
    ) -> tuple[SharedLayout, TiledCopy]:
        """`padded_rows`, and the copy of whole rows by which threads store them: neighbouring lanes take neighbours,
        as many elements at a time as D is aligned to."""
        d = self.operands.d
        inner, across = shape[::-1] if d.major == "n" else shape
        layout = self.padded_rows(shape, copies)
        vector = min(ACCESS_BITS // d.dtype.bits, d.align_elems)
        run, threads = gcd(WARP_THREADS, inner // vector), self.fragment[0].size()
        violations = []
        if store_rows != self.tile[0]:
            violations.append("warps store rows of their own by TMA, which padded rows do not leave by.")
        if inner % vector or across % (threads // run):
            violations.append(
                f"{threads} threads do not store {across} rows of {inner} elements of {d.dtype}, {vector} each at a "
                "time."
            )
        if violations:
            raise PlanError(self.subject, violations)
        return layout, copy_of_lines(d, vector, run, threads)

    def padded_rows(self, shape: tuple[int, int], copies: tuple[int, int]) -> Layout:
        """Slots whose rows are padded by what the lanes write of a row at once: 16 bytes by stmatrix, 32 as pairs of 32
        bits."""
        d = self.operands.d
        n_major = d.major == "n"
        at_once_bytes = d.dtype.bits if n_major else _PAD_BYTES  # 4 lanes with 2 elements each
        return _rows(shape, copies, n_major, max(_PAD_BYTES, at_once_bytes) * 8 // d.dtype.bits)

    def _matrices(self, move: Callable[..., CopyAtom]) -> CopyAtom:
        """Between fragments and an epilogue stage: matrices of 16-bit elements, or a thread's neighbours.

        Not for elements of 8 bits: a lane would have to hold four neighbours, but wgmma leaves it pairs.
        """
        d = self.operands.d
        if d.dtype.bits == 16 and self.in_places:
            return move(d.dtype, self.fragment[1].size() // 2, d.major == "m")
        return universal_copy(d.dtype, d.dtype.bits * (2 if d.major == "n" else 1))


def has_odd_groups(columns: int | None) -> bool:
    """Whether columns are an odd number of groups of eight; those of an epilogue tile that is not asked for, None, are
    not.

    >>> has_odd_groups(40), has_odd_groups(48), has_odd_groups(None)
    (True, False, False)
    """
    return (columns or 0) % WHOLE_COLUMNS != 0


def odd_columns(of_tile: int) -> int:
    """Columns of an epilogue tile of a tile whose columns are an odd number of groups of eight: the most that an odd
    number of groups divides the tile into, or eight.

    >>> [odd_columns(columns) for columns in (200, 168, 216, 120, 152)]
    [40, 56, 72, 40, 8]
    """
    groups = of_tile // FEWEST_COLUMNS
    dividing = [n for n in range(1, min(groups - 1, _MOST_GROUPS) + 1) if groups % n == 0]
    return FEWEST_COLUMNS * max(dividing, default=1)


def line_columns(
    d: Operand,
    of_tile: int,
    step: int = WHOLE_COLUMNS,
    most: int | None = None,
    with_operands: bool = False,
) -> int:
    """Columns of an epilogue tile that a consumer's threads store by less than 16 bytes: as many as `_LINE_BYTES` lets
    them be, so that few of the sectors that they touch are filled in part; fewer where operands of the epilogue take
    registers. Up to twice as many where the tile would have many epilogue tiles otherwise, each of which is waited for.

    of_tile   columns of a consumer's tile, which they divide; 0 where none of some times `step` do
    most      of them

    >>> from cutegemm.dtypes import bf16, f32
    >>> [line_columns(Operand(kind, "n", kind.bits // 8), 256) for kind in (bf16, f32)]
    [256, 128]
    >>> [line_columns(Operand(bf16, "m", 2), columns) for columns in (160, 176, 192, 208)]  # and not 16 of 176 or 208
    [80, 176, 96, 208]
    """
    size_bytes = CACHE_LINE_BYTES if with_operands else _LINE_BYTES[d.major]
    usual, room = size_bytes * 8 // d.dtype.bits, of_tile if most is None else min(of_tile, most)
    dividing = [n for n in range(step, room + 1, step) if of_tile % n == 0]
    columns = max((n for n in dividing if n <= usual), default=0)
    if columns * _FEW_OF_LIMIT < usual:
        columns = next((n for n in dividing if columns < n <= 2 * usual), columns)
    return columns


def _either(numbers: list[int]) -> str:
    *others, last = [str(number) for number in numbers]
    return f"{', '.join(others)} or {last}" if others else last


def _rows(shape: tuple[int, int], copies: tuple[int, int], n_major: bool, pad: int = 0) -> Layout:
    """Tiles row after row, one after the other, with so many elements of padding after each row."""
    pitch = (shape[1] if n_major else shape[0]) + pad
    size = pitch * (shape[0] if n_major else shape[1])
    return Layout((*shape, *copies), (*((pitch, 1) if n_major else (1, pitch)), size, size * copies[0]))


@lru_cache(maxsize=1024)
def swizzled(dtype: DType, second_major: bool, shape: tuple[int, int], copies: tuple[int, ...]) -> ComposedLayout:
    """Tiles in the widest canonical layout that fits, one after the other.

    second_major   whether neighbours lie along the second mode: a k-major (M, K), an n-major (M, N)
    copies         stages, or epilogue stages and consumers: modes behind the tile's

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
