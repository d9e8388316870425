"""Sectors of global-memory accesses: the 32-byte sectors that each warp instruction touches, and the fewest possible.

The model. One instruction of a warp is one request, whatever its width. It asks once for every 32-byte sector that one
of its lanes touches. The fewest sectors are the requested bytes divided by 32. This holds for loads, stores and
cp.async. Lanes outside of a ragged matrix ask for nothing.

cp.async of 16 bytes bypasses L1 and writes directly to shared memory, so its destination counts too. A sector whose
halves go to two lines of 128 bytes is requested twice. A sector whose halves go to two sectors of shared memory arrives
twice. A pad of an odd multiple of 16 bytes causes both. Counters of an H200 confirm this for pads; the model assumes
the same for rows that start within a sector.

Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"; Nsight Compute, "Memory Tables".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.analysis.accesses import (
    buffer_layout,
    by_warps,
    global_table,
    read_always,
    shared_accesses,
    spread_by_lanes,
    stored_by_lanes,
    through_shared,
    tile_shape,
)
from cutegemm.analysis.edges import Kind, strides_of
from cutegemm.analysis.edges import kinds_of as edge_kinds
from cutegemm.analysis.shared import byte_addresses
from cutegemm.analysis.split_k import layout_of_partials
from cutegemm.dtypes import tf32
from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES, WARP_THREADS
from cutegemm.plan.mainloop.block_scaled import BLOCK
from cutegemm.plan.work.arithmetic import ceil_div
from cutegemm.plan.work.grouped import with_equal_groups
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.access import GlobalRead
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand, Problem

_ACCESS_BYTES = 16  # widest load or store of a lane
_MULTICAST_BYTES = 64  # alignment of rows that multicast reads without extra sectors
_PAST_L1 = "cp.async.cg"
_NOWHERE = np.iinfo(np.int64).max  # stands for the sector of an inactive lane


@dataclass(frozen=True)
class GridSectors:
    """Counts what one global-memory access of a plan, such as "load A", costs for all tiles of a problem together.

    requests   warp instructions with at least one active lane
    sectors    32-byte sectors that these instructions touch, added over instructions
    arriving   32-byte sectors that are sent from L2 to multiprocessors. They are fewer than `sectors` if L1 joins loads
               of one sector by a CTA. They are more if 16-byte cp.async copies write the two halves of a sector to
               different sectors of shared memory, because such a sector is sent twice
    """

    requests: int
    sectors: int
    arriving: int


@dataclass(frozen=True)
class Sectors:
    """Counts what one access of a plan to global memory, such as "load A", costs one CTA for a full tile.

    name          description of the access
    instruction   SASS mnemonic with its width, such as LDG.128; or TMA
    op            "ld", "ldgsts" (cp.async), "st" or "tma", as hardware counters name it
    requests      warp instructions
    sectors       32-byte sectors that they touch
    ideal         fewest sectors that contain the requested bytes
    bits          bits that a lane accesses per instruction
    usable_bits   bits of the widest access that the matrix's alignment allows
    per           requests and sectors are counted for one "k-tile", "tile", range of K ("K split") or "32 k-tiles"
    in_grid       counts for all tiles together; None without a problem, and for accumulators of K splits
    by_l1         True if L1 keeps the loaded data
    is_torn       True if a multicast load receives more sectors than it touches, because its rows are misaligned
    """

    name: str
    instruction: str
    op: str
    requests: int
    sectors: int
    ideal: int
    bits: int
    usable_bits: int
    per: str
    in_grid: GridSectors | None = None
    by_l1: bool = False
    is_torn: bool = False

    @property
    def efficiency(self) -> float:
        """Fewest sectors that contain the requested bytes, divided by the sectors that are touched; 1 is best."""
        return self.ideal / self.sectors if self.sectors else 1.0


def sectors(addresses: Any, bits: int, active: Any = None) -> np.ndarray:
    """Return the number of distinct 32-byte sectors that each request (warp instruction) touches.

    addresses   byte address of each lane; a row for each request (warp instruction), a column for each lane
    bits        bits that a lane accesses
    active      boolean array of the same shape: True for lanes that execute the access; None: all lanes
    returns     integer array with an entry for each request

    >>> lanes = np.arange(32)
    >>> sectors([lanes * 4, lanes * 8, lanes * 128], 32).tolist()
    [4, 8, 32]
    >>> sectors([lanes * 4], 32, [lanes < 9]).tolist()
    [2]
    """
    table = np.asarray(addresses, dtype=np.int64)
    size = bits // 8
    first, last = table // SECTOR_BYTES, (table + size - 1) // SECTOR_BYTES
    both = np.concatenate([first, last], axis=1)
    if active is None:
        touched = np.sort(both, axis=1)
        return 1 + (touched[:, 1:] != touched[:, :-1]).sum(axis=1)
    on = np.asarray(active, dtype=bool)
    touched = np.sort(np.where(np.concatenate([on, on], axis=1), both, _NOWHERE), axis=1)
    distinct = 1 + (touched[:, 1:] != touched[:, :-1]).sum(axis=1)
    return np.asarray(distinct - (touched[:, -1] == _NOWHERE))


def usable_bits(operand: Operand, problem: Problem | None = None, name: str = "") -> int:
    """Return the bits of the widest vector along an operand's contiguous mode that is aligned everywhere.

    problem   problem whose strides and extents limit the width too; None: the operand's alignment alone
    name      name of the operand in the problem, such as "a"

    >>> from cutegemm.plan import Operands, Problem
    >>> ops = Operands.of("f32")
    >>> usable_bits(ops.a), usable_bits(ops.a, Problem(64, 64, 62, operands=ops), "a")
    (128, 64)
    """
    widest = min(_ACCESS_BYTES, operand.align_bytes)
    if problem is not None:
        layout = problem.layout(name)
        size = operand.dtype.bits / 8
        first_major = operand.major == {"a": "m", "b": "n"}.get(name, "m")
        extents = [layout.shape[0 if first_major else 1] * size]
        extents += [d * size for s, d in zip(layout.shape, layout.stride, strict=True) if d != 1 and s > 1]
        while widest * 8 > operand.dtype.bits and any(e % widest for e in extents):
            widest //= 2
    return max(widest * 8, operand.dtype.bits)


def global_accesses(
    plan: GemmPlan, problem: Problem | None = None, scalars: Mapping[str, float] | None = None
) -> list[Sectors]:
    """Return every access of a plan to global memory.

    problem   problem that gives strides and extents; None: rows are aligned and far apart
    scalars   values of the epilogue's scalars, which decide the operands that are read. None: only operands that are
              always read count, so C does not (it is not read if beta is 0)

    >>> from cutegemm.build import simt_plan
    >>> [(access.name, access.instruction, access.sectors, access.ideal) for access in global_accesses(simt_plan())]
    [('load A', 'LDG.128', 256, 256), ('load B', 'LDGSTS.128', 256, 256), ('store D', 'STG.128', 2048, 2048)]
    """
    plan, problem = with_equal_groups(plan, problem)
    bm, bn, bk = plan.mma_tile
    out = []
    for stream in plan.streams:
        name, load, extent = stream.name, stream.load, bm if stream.mode == "m" else bn
        operand = plan.loaded.matrix(name)
        label = f"load {name.upper()}"
        if isinstance(load, TmaBox):
            out.append(_boxes(plan, name, label, load, problem, "k-tile"))
            continue
        elements = by_warps(load.offsets_s(Layout((extent, bk))))
        op = "ldgsts" if load.atom.is_async else "ld"
        cost = _sectors(plan, name, label, op, elements, load.atom.bits, operand, problem, "k-tile")
        out.append(replace(cost, by_l1=not load.atom.name.startswith(_PAST_L1)))
    out += [_single(plan, read, problem) for read in plan.body.mainloop.global_reads(plan)]
    read = read_always(plan) if scalars is None else plan.epilogue.tensors_read(scalars)
    out += [_read_by_epilogue(plan, name, problem) for name in read]
    copy = plan.store.line_copy
    shared = through_shared(plan)
    if copy is not None:
        elements, bits = by_warps(copy.offsets_d(Layout(plan.d_tile))), copy.atom.bits
        for name in shared:
            label, operand = f"store {name.upper()}", plan.operands.matrix(name)
            out.append(_sectors(plan, name, label, "st", elements, bits, operand, problem, "tile", plan.store.rotated))
    out += [_stored(plan, name, problem) for name in plan.epilogue.outputs if name not in shared]
    out += [_scales_of_d(plan, name, problem) for name in plan.epilogue.scales]
    if plan.scheduler.split.is_split:
        out += _split_k_partials(plan)
    return out


def _single(plan: GemmPlan, read: GlobalRead, problem: Problem | None) -> Sectors:
    """Return the cost of global reads of single elements, such as block scales, one for each k-tile and instruction.

    A CTA reads one element for each k-tile and each block along the tile. Warps that read a sector at the same time
    fetch it once, through L1.

    read      the operand and its elements
    problem   problem for the cost in the whole grid; None for one CTA only
    """
    bits = plan.operands.matrix(read.operand).dtype.bits
    of_each = ceil_div(read.k_tiles * bits // 8, SECTOR_BYTES)
    in_grid = None
    if problem is not None:
        bm, bn, bk = plan.cta_tile
        tiles = ceil_div(problem.m, bm) * ceil_div(problem.n, bn) * problem.l
        times = tiles * ceil_div(ceil_div(problem.k, bk), read.k_tiles)
        mode, _, every = plan.operands.modes(read.operand)[0].partition("/")
        fetched = ceil_div(bm if mode == "m" else bn, int(every or 1)) * of_each
        in_grid = GridSectors(read.requests * times, read.requests * of_each * times, fetched * times)
    per = f"{read.k_tiles} k-tiles"
    count = read.requests * of_each
    return Sectors(read.label, f"LDG.{bits}", "ld", read.requests, count, count, bits, bits, per, in_grid, by_l1=True)


def _scales_of_d(plan: GemmPlan, name: str, problem: Problem | None) -> Sectors:
    """Return the global-memory cost of storing the scales of a quantized D, one for each row and 128 columns.

    A warp instruction stores the scales of 8 rows, which are one sector of 32 bytes. The model assumes that columns of
    scales begin at sectors.

    name      name of the result that has the scales
    problem   problem for the cost in the whole grid; None for one CTA only
    """
    bits, (rows, columns) = plan.operands.matrix(name).dtype.bits, plan.d_tile
    of_each = SECTOR_BYTES * 8 // bits
    count, in_grid = rows // of_each * (columns // BLOCK), None
    if problem is not None:
        stored = ceil_div(problem.m, of_each) * ceil_div(problem.n, BLOCK) * problem.l
        in_grid = GridSectors(stored, stored, stored)
    return Sectors(f"store {name.upper()}", f"STG.{bits}", "st", count, count, count, bits, bits, "tile", in_grid)


def _read_by_epilogue(plan: GemmPlan, name: str, problem: Problem | None) -> Sectors:
    """Return the cost of reading an operand of the epilogue: a tile by TMA to the epilogue stages, or by threads.

    Threads read an element of a broadcast operand once for all elements of D that they compute together.

    name      name of the operand, such as "c"
    problem   problem that gives strides and extents; None: rows are aligned and far apart
    """
    label, operand = f"load {name.upper()}", plan.operands.matrix(name)
    if plan.store.fetched is not None and name == plan.fetched_tile:
        return _boxes(plan, name, label, plan.store.fetched, problem, "tile")
    elements = spread_by_lanes(plan, name) if operand.broadcast else stored_by_lanes(plan, operand.major)
    return _sectors(plan, name, label, "ld", elements, plan.access(name).bits, operand, problem, "tile")


def _split_k_partials(plan: GemmPlan) -> list[Sectors]:
    """Return the global-memory costs of accumulators of K splits: writes, and reads if the GEMM itself adds them."""
    layout, consumers = layout_of_partials(plan)
    vector, threads, vectors = layout.shape[:3]
    bits = plan.operands.acc.bits
    wide = min(vector * bits, _ACCESS_BYTES * 8)  # bits of an access
    first = Layout(
        (WARP_THREADS, threads // WARP_THREADS, vectors, vector * bits // wide),
        (layout.stride[1], WARP_THREADS * layout.stride[1], layout.stride[2], wide // bits),
    )
    table = first.offsets().reshape(-1, WARP_THREADS) * bits // 8
    touched, ideal = int(sectors(table, wide).sum()), table.size * wide // 8 // SECTOR_BYTES
    adds = plan.body.has_roles or plan.scheduler.split.reduction == "last"
    return [
        Sectors(label, f"{name}.{wide}", op, len(table) * consumers, touched * consumers, ideal * consumers,
                wide, _ACCESS_BYTES * 8, "K split")
        for label, name, op in (
            ("write accumulators", "STG", "st"),
            *([("read accumulators", "LDG", "ld")] if adds else []),
        )
    ]  # fmt: skip


def _boxes(plan: GemmPlan, name: str, label: str, box: TmaBox, problem: Problem | None, per: str) -> Sectors:
    """Return the global-memory cost of loading a tile by TMA.

    TMA requests whole rows of a box. If the load is multicast, each CTA requests its share, and all of it arrives.

    name      name of the matrix, such as "a"
    label     name of the access
    box       extents of the TMA box
    problem   problem that gives strides and extents; None: rows are aligned and far apart
    per       "k-tile" or "tile"
    """
    operand, shape = plan.loaded.matrix(name), tile_shape(plan, name)
    bits, share = operand.dtype.bits, box.multicast
    full = product(shape) * bits // 8
    count = -(-full // SECTOR_BYTES) // share
    boxes = full // box.size_bytes // share
    in_grid, is_torn = None, False
    if problem is not None:
        inner = 0 if operand.major == plan.operands.modes(name)[0] else 1
        steps = strides_of(plan, name, problem)
        kinds = edge_kinds(plan, name, problem)
        arriving = sum(k.count * _row_sectors(k, shape, inner, box.box[0], steps[1 - inner], bits) for k in kinds)
        is_torn = share > 1 and any(_is_torn(k, inner, box, steps[1 - inner]) for k in kinds)
        asked = sum(k.count for k in kinds) * max(1, boxes)
        in_grid = GridSectors(asked, arriving // share, arriving)
    boxes = max(1, boxes)
    return Sectors(label, "TMA", "tma", boxes, count, count, 128, 128, per, in_grid, is_torn=is_torn)


def _is_torn(kind: Kind, inner: int, box: TmaBox, step: int) -> bool:
    """Return True if a multicast TMA load gets more sectors than it touches, because of the alignment of its rows.

    This is so if rows of a box are not whole lines of 128 bytes, or do not start at a multiple of 64 bytes.

    kind    position of the tiles that are loaded, within the matrix and a cache line
    inner   index of the contiguous mode
    box     the TMA box
    step    elements from one row to the next
    """
    bits = box.dtype.bits
    return bool(
        box.box[0] * bits != 8 * CACHE_LINE_BYTES
        or kind.last[inner] % box.box[0]
        or kind.phase % _MULTICAST_BYTES
        or step * bits // 8 % _MULTICAST_BYTES
        or box.dtype is tf32
    )


def _row_sectors(kind: Kind, shape: tuple[int, int], inner: int, width: int, step: int, bits: int) -> int:
    """Return the 32-byte sectors that arrive in a multiprocessor for one tile that is loaded by TMA boxes.

    The bytes inside of the matrix arrive as the sectors that contain them. The bytes outside arrive as zeros, in
    further sectors of 32 bytes (counters of an H100, 2026-11-22).

    kind    position of the tile, within the matrix and a cache line
    shape   extents of the tile
    inner   index of the contiguous mode
    width   elements of a box along the contiguous mode
    step    elements from one row to the next
    bits    bits of an element
    """
    rows = np.arange(shape[1 - inner])[:, None]
    starts = np.arange(0, shape[inner], width)
    inside = np.clip(kind.last[inner] - starts, 0, width) * (rows < kind.last[1 - inner]) * bits // 8
    first = kind.phase + (rows * step + starts) * bits // 8
    touched = np.where(inside > 0, (first + inside - 1) // SECTOR_BYTES - first // SECTOR_BYTES + 1, 0)
    zeros = -(-(width * bits // 8 - inside) // SECTOR_BYTES)
    return int((touched + zeros).sum())


def _stored(plan: GemmPlan, name: str, problem: Problem | None) -> Sectors:
    """Return the cost of storing D, or another result of the epilogue, from registers to global memory.

    name      name of the result, such as "d"
    problem   problem that gives strides and extents; None: rows are aligned and far apart
    """
    operand = plan.operands.matrix(name)
    bits = plan.store.atom.bits if name == "d" else plan.access(name).bits
    elements = stored_by_lanes(plan, operand.major)
    return _sectors(plan, name, f"store {name.upper()}", "st", elements, bits, operand, problem, "tile")


def _sectors(
    plan: GemmPlan,
    operand_name: str,
    label: str,
    op: str,
    elements: np.ndarray,
    bits: int,
    operand: Operand,
    problem: Problem | None,
    per: str,
    rotated: Callable[..., np.ndarray] | None = None,
) -> Sectors:
    """Return the cost of an access to global memory by threads, for one tile and for the whole problem.

    operand_name   name of the matrix, such as "a"
    label          name of the access
    operand        type, majorness and alignment of the matrix
    op             "ld", "ldgsts" or "st"
    elements       array with axes for warps, lanes of a warp and values of a lane: index in the tile of the element
                   that is this value
    bits           bits of a lane per instruction
    per            "k-tile" or "tile"
    rotated        function from the misalignment of a tile in bytes to other `elements`, with which lanes store aligned
                   blocks; None if lanes never change
    """
    count = max(1, bits // operand.dtype.bits)
    memory = global_table(plan, operand_name, problem)
    planned = np.moveaxis(elements[..., ::count], 1, 2).reshape(-1, elements.shape[1])  # (requests, lanes)
    past_l1 = op == "ldgsts" and bits == 8 * _ACCESS_BYTES
    written = _written(plan, operand_name, problem) if past_l1 else None

    def firsts(phase: int) -> np.ndarray:
        """Return the index in the tile of the first element that each lane accesses, for each warp instruction.

        The result is an array with an axis for requests (warp instructions) and one for lanes.

        phase   bytes from the start of a cache line to the tile's first element
        """
        return planned if rotated is None else rotated(planned, memory + phase, plan.d_tile, operand.major)

    def costs(phase: int, inside: np.ndarray | None) -> tuple[int, int, int]:
        """Return the cost of accessing one tile: (warp instructions, 32-byte sectors they touch, sectors sent from L2).

        phase    bytes from the start of a cache line to the tile's first element
        inside   bool over the elements of the tile: True inside of the matrix; None: all are
        """
        first = firsts(phase)
        at, on = memory[first] + phase, None if inside is None else inside[first]
        asked = len(at) if on is None else int(on.any(axis=1).sum())
        if written is not None:
            lines, halves = (torn(at, written, unit, on) for unit in (CACHE_LINE_BYTES, SECTOR_BYTES))
            return asked, lines, halves
        used = at if on is None else at[on]
        own = np.concatenate([used.ravel() // SECTOR_BYTES, (used.ravel() + bits // 8 - 1) // SECTOR_BYTES])
        return asked, int(sectors(at, bits, on).sum()), len(np.unique(own))

    in_grid, active = None, np.ones(planned.shape, bool)
    shown: tuple[int, np.ndarray | None] = (0, None)
    if problem is not None:
        shape = tile_shape(plan, operand_name)
        kinds = edge_kinds(plan, operand_name, problem)
        by_kind = [costs(k.phase, k.inside(shape)) for k in kinds]
        totals = [
            sum(k.count * one for k, one in zip(kinds, counts, strict=True)) for counts in zip(*by_kind, strict=True)
        ]
        in_grid = GridSectors(*totals) if kinds else GridSectors(0, 0, 0)
        if kinds:  # show the fullest kind of tile; of equally full ones, the most frequent
            typical = max(kinds, key=lambda k: (k.elements, k.count))
            inside = typical.inside(shape)
            active = inside[planned]
            shown = (typical.phase, None if active.all() else inside)
    requests, touched, _ = costs(*shown)
    ideal = -(-int(active.sum()) * bits // 8 // SECTOR_BYTES)
    if operand.broadcast:  # several lanes ask for the same bytes
        addresses = memory[planned]
        apart = np.sort(np.where(active, addresses, addresses[:, :1]), axis=1)
        ideal = -(-int(len(apart) + (np.diff(apart) != 0).sum()) * bits // 8 // SECTOR_BYTES)
    mnemonic = {"ld": "LDG", "ldgsts": "LDGSTS", "st": "STG", "tma": "TMA"}[op]
    return Sectors(
        label, f"{mnemonic}.{bits}", op, requests, touched, ideal, bits,
        usable_bits(operand, problem, operand_name), per, in_grid,
    )  # fmt: skip


def _written(plan: GemmPlan, name: str, problem: Problem | None) -> np.ndarray:
    """Return the byte addresses in shared memory that the cp.async copies of A or B write.

    The result is an array with a row for each request (warp instruction) and a column for each lane.

    name      "a" or "b"
    problem   problem that gives the strides of the matrices; None: large compact matrices
    """
    access = next(a for a in shared_accesses(plan, problem) if a.buffer == name and a.op == "cp.async")
    offsets = buffer_layout(plan, name).offsets()
    written = byte_addresses(offsets, access.elements, access.element_bits, access.width(offsets))
    return written.reshape(-1, written.shape[2])


def torn(read: np.ndarray, written: np.ndarray, unit: int, active: np.ndarray | None = None) -> int:
    """Return how many 32-byte sectors cp.async fetches, if a sector is fetched again for each unit it is written to.

    A unit is a line or a sector of shared memory. A sector whose bytes are written to two lines counts twice.

    read      array with a row for each request (warp instruction) and a column for each lane: byte addresses in global
              memory
    written   array of the same shape: byte addresses in shared memory
    unit      bytes of a unit of shared memory
    active    boolean array of the same shape: True for lanes that copy; None: all copy

    >>> read = np.arange(32)[None] * 16
    >>> torn(read, read, 32), torn(read, read + 16, 32)
    (16, 32)
    """
    requests = np.broadcast_to(np.arange(len(read))[:, None], read.shape)
    pairs = np.stack([requests, read // SECTOR_BYTES, written // unit])
    kept = pairs.reshape(3, -1) if active is None else pairs[:, active]
    return len(np.unique(kept, axis=1).T)
