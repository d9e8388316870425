"""Global memory: the 32-byte sectors that each instruction of a warp touches, against the fewest possible.

The model. One instruction of a warp is one request, whatever its width; it asks for every 32-byte sector that
one of its lanes touches, once. The fewest sectors are the bytes asked for over 32. The same holds for loads,
stores and cp.async. Lanes outside of a matrix that is smaller than a tile ask for nothing.

cp.async of 16 bytes passes L1 by, straight into shared memory, and what it writes counts too: a sector whose
halves go to two lines of 128 bytes is asked for twice, and one whose halves go to two sectors of shared
memory arrives twice. A pad of an odd number of 16 bytes does that. Counters of an H200 show it for pads; rows that
begin within a sector are taken to do the same.

Source: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory"; Nsight Compute, "Memory Tables".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cutegemm.analysis.accesses import (
    buffer_layout,
    by_warps,
    copy_of_d,
    global_table,
    read_always,
    shared_accesses,
    spread_by_lanes,
    stored_by_lanes,
    through_shared,
    tile_shape,
    turned_lines,
)
from cutegemm.analysis.edges import Kind, strides_of
from cutegemm.analysis.edges import kinds_of as edge_kinds
from cutegemm.analysis.shared import byte_addresses
from cutegemm.analysis.split_k import layout_of_partials
from cutegemm.dtypes import tf32
from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import CACHE_LINE_BYTES, SECTOR_BYTES, WARP_THREADS
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand, Problem

_ACCESS_BYTES = 16  # the widest load or store of a lane
_MULTICAST_BYTES = 64
_PAST_L1 = "cp.async.cg"
_NOWHERE = np.iinfo(np.int64).max  # a sector that no lane asks for


@dataclass(frozen=True)
class GridSectors:
    """What an access costs in all tiles of a problem, ragged ones as they are.

    requests   instructions with an active lane
    sectors    that they touch
    arriving   that come to multiprocessors: of a load by way of L1 each once for a CTA and k-tile; of cp.async of 16
               bytes again where it is torn
    """

    requests: int
    sectors: int
    arriving: int


@dataclass(frozen=True)
class Sectors:
    """What an access to global memory costs, of one CTA and a full tile.

    name          "load A", "load B", "store D"
    instruction   LDG, LDGSTS, STG or TMA, with the bits of a lane
    op            "ld", "ldgsts", "st" or "tma": which counter sees it
    requests      instructions, summed over warps
    sectors       that they touch
    ideal         that the bytes fill
    bits          of one lane and instruction
    usable_bits   the widest that majorness and alignment allow
    per           "k-tile", "tile", or "K split": of a tile whose k-tiles several CTAs share
    in_grid       of the whole problem; None without one, and of sums of parts
    by_l1         whether what is loaded is kept in L1 on its way
    is_torn       whether rows of a box that is multicast are no whole lines of 128 bytes from a multiple of 64 on: then
                  more sectors arrive than they touch
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
        """Bytes asked for over bytes of the sectors."""
        return self.ideal / self.sectors if self.sectors else 1.0


def sectors(addresses: Any, bits: int, active: Any = None) -> np.ndarray:
    """Distinct sectors of each request.

    addresses   bytes: (requests, lanes)
    bits        of one lane
    active      bool (requests, lanes): lanes that ask; all where left out

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
    """The widest access along the contiguous mode that keeps every access aligned.

    name   of the operand in the problem, whose strides and extent count too

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
    """Every access of a plan to global memory.

    problem   whose strides count; without one the rows are far apart and aligned
    scalars   of the epilogue, by which its operands are read. Where they are left out, those count that are read
              whatever they are: not C, which is read only where beta is not 0
    """
    bm, bn, bk = plan.mma_tile
    out = []
    for stream in plan.streams:
        name, copy, extent = stream.name, stream.load, bm if stream.mode == "m" else bn
        operand = plan.loaded.matrix(name)
        label = f"load {name.upper()}"
        if isinstance(copy, TmaBox):
            out.append(_boxes(plan, name, label, copy, problem, "k-tile"))
            continue
        elements = by_warps(copy.offsets_s(Layout((extent, bk))))
        kind = "ldgsts" if copy.atom.is_async else "ld"
        found = _sectors(plan, name, label, kind, elements, copy.atom.bits, operand, problem, "k-tile")
        out.append(replace(found, by_l1=not copy.atom.name.startswith(_PAST_L1)))
    read = read_always(plan) if scalars is None else plan.epilogue.tensors_read(scalars)
    out += [_read_by_epilogue(plan, name, problem) for name in read]
    leaving, _ = copy_of_d(plan)
    shared = through_shared(plan)
    if leaving is not None:
        elements, bits = by_warps(leaving.offsets_d(Layout(plan.d_tile))), leaving.atom.bits
        for name in shared:
            label, operand = f"store {name.upper()}", plan.operands.matrix(name)
            turned = plan.epi_stages is not None and plan.epi_stages.rotates_lines
            out.append(_sectors(plan, name, label, "st", elements, bits, operand, problem, "tile", turned))
    out += [_stored(plan, name, problem) for name in plan.epilogue.outputs if name not in shared]
    if plan.split.is_split:
        out += _split_k_partials(plan)
    return out


def _read_by_epilogue(plan: GemmPlan, name: str, problem: Problem | None) -> Sectors:
    """An operand of the epilogue: a tile by TMA to the epilogue stages that D leaves through, or by the threads to
    where the sums are; what stays the same along a mode is read once for all that a thread computes together."""
    label, operand = f"load {name.upper()}", plan.operands.matrix(name)
    if plan.epi_stages is not None and plan.epi_stages.load_c is not None and name == plan.fetched_tile:
        return _boxes(plan, name, label, plan.epi_stages.load_c, problem, "tile")
    elements = spread_by_lanes(plan, name) if operand.broadcast else stored_by_lanes(plan, operand.major)
    return _sectors(plan, name, label, "ld", elements, plan.access(name).bits, operand, problem, "tile")


def _split_k_partials(plan: GemmPlan) -> list[Sectors]:
    """A part's sums to the workspace and, where the GEMM itself adds them, out of it."""
    layout, consumers = layout_of_partials(plan)
    vector, threads, vectors = layout.shape[:3]
    bits = plan.operands.acc.bits
    wide = min(vector * bits, _ACCESS_BYTES * 8)  # of an access
    first = Layout(
        (WARP_THREADS, threads // WARP_THREADS, vectors, vector * bits // wide),
        (layout.stride[1], WARP_THREADS * layout.stride[1], layout.stride[2], wide // bits),
    )
    table = first.offsets().reshape(-1, WARP_THREADS) * bits // 8
    touched, ideal = int(sectors(table, wide).sum()), table.size * wide // 8 // SECTOR_BYTES
    adds = plan.body.has_roles or plan.split.reduction == "last"
    return [
        Sectors(label, f"{name}.{wide}", op, len(table) * consumers, touched * consumers, ideal * consumers,
                wide, _ACCESS_BYTES * 8, "K split")
        for label, name, op in (
            ("write accumulators", "STG", "st"),
            *([("read accumulators", "LDG", "ld")] if adds else []),
        )
    ]  # fmt: skip


def _boxes(plan: GemmPlan, name: str, label: str, box: TmaBox, problem: Problem | None, per: str) -> Sectors:
    """TMA asks for whole rows of a box; where they are multicast, each CTA asks for its share, and all arrives."""
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
    """Whether the rows of a box are no whole lines of 128 bytes, or begin elsewhere than at a multiple of 64."""
    bits = box.dtype.bits
    return bool(
        box.box[0] * bits != 8 * CACHE_LINE_BYTES
        or kind.last[inner] % box.box[0]
        or kind.phase % _MULTICAST_BYTES
        or step * bits // 8 % _MULTICAST_BYTES
        or box.dtype is tf32
    )


def _row_sectors(kind: Kind, shape: tuple[int, int], inner: int, width: int, step: int, bits: int) -> int:
    """Sectors of the rows of boxes of a tile.

    What is inside of the matrix arrives by the sectors that it touches. What is not is zeros, which arrive too, 32
    bytes at a time behind it: so counters of an H100 say (2026-11-22).

    inner   the contiguous mode; width: of a box along it, elements; step: from one row to the next
    """
    rows = np.arange(shape[1 - inner])[:, None]
    starts = np.arange(0, shape[inner], width)
    inside = np.clip(kind.last[inner] - starts, 0, width) * (rows < kind.last[1 - inner]) * bits // 8
    first = kind.phase + (rows * step + starts) * bits // 8
    touched = np.where(inside > 0, (first + inside - 1) // SECTOR_BYTES - first // SECTOR_BYTES + 1, 0)
    zeros = -(-(width * bits // 8 - inside) // SECTOR_BYTES)
    return int((touched + zeros).sum())


def _stored(plan: GemmPlan, name: str, problem: Problem | None) -> Sectors:
    """D, or a result beside it, straight out of registers."""
    operand = plan.operands.matrix(name)
    bits = plan.store_d.bits if name == "d" else plan.access(name).bits
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
    turned: bool = False,
) -> Sectors:
    """turned   whether lines are, see `EpiStages.turned`"""
    count = max(1, bits // operand.dtype.bits)
    memory = global_table(plan, operand_name, problem)
    planned = np.moveaxis(elements[..., ::count], 1, 2).reshape(-1, elements.shape[1])  # (requests, lanes)
    past_l1 = op == "ldgsts" and bits == 8 * _ACCESS_BYTES
    written = _written(plan, operand_name, problem) if past_l1 else None

    def lanes(phase: int) -> np.ndarray:
        return turned_lines(plan, planned, memory + phase, plan.d_tile) if turned else planned

    def costs(phase: int, inside: np.ndarray | None) -> tuple[int, int, int]:
        """(requests, sectors, arriving)"""
        of = lanes(phase)
        at, on = memory[of] + phase, None if inside is None else inside[of]
        asked = len(at) if on is None else int(on.any(axis=1).sum())
        if written is not None:
            lines, halves = (torn(at, written, unit, on) for unit in (CACHE_LINE_BYTES, SECTOR_BYTES))
            return asked, lines, halves
        used = at if on is None else at[on]
        own = np.concatenate([used.ravel() // SECTOR_BYTES, (used.ravel() + bits // 8 - 1) // SECTOR_BYTES])
        return asked, int(sectors(at, bits, on).sum()), len(np.unique(own))

    in_grid, there = None, np.ones(planned.shape, bool)
    shown: tuple[int, np.ndarray | None] = (0, None)
    if problem is not None:
        shape = tile_shape(plan, operand_name)
        kinds = edge_kinds(plan, operand_name, problem)
        found = [costs(k.phase, k.inside(shape)) for k in kinds]
        totals = [
            sum(k.count * part for k, part in zip(kinds, parts, strict=True)) for parts in zip(*found, strict=True)
        ]
        in_grid = GridSectors(*totals) if kinds else GridSectors(0, 0, 0)
        if kinds:  # the fullest kind of tile, and of these the most frequent
            typical = max(kinds, key=lambda k: (k.elements, k.count))
            inside = typical.inside(shape)
            there = inside[planned]
            shown = (typical.phase, None if there.all() else inside)
    requests, touched, _ = costs(*shown)
    ideal = -(-int(there.sum()) * bits // 8 // SECTOR_BYTES)
    if operand.broadcast:  # lanes ask for the same bytes
        addresses = memory[planned]
        apart = np.sort(np.where(there, addresses, addresses[:, :1]), axis=1)
        ideal = -(-int(len(apart) + (np.diff(apart) != 0).sum()) * bits // 8 // SECTOR_BYTES)
    mnemonic = {"ld": "LDG", "ldgsts": "LDGSTS", "st": "STG", "tma": "TMA"}[op]
    return Sectors(
        label, f"{mnemonic}.{bits}", op, requests, touched, ideal, bits,
        usable_bits(operand, problem, operand_name), per, in_grid,
    )  # fmt: skip


def _written(plan: GemmPlan, name: str, problem: Problem | None) -> np.ndarray:
    """Bytes in shared memory that a cp.async writes: (requests, lanes)."""
    access = next(a for a in shared_accesses(plan, problem) if a.buffer == name and a.op == "cp.async")
    offsets = buffer_layout(plan, name).offsets()
    found = byte_addresses(offsets, access.elements, access.element_bits, access.width(offsets))
    return found.reshape(-1, found.shape[2])


def torn(read: np.ndarray, written: np.ndarray, unit: int, active: np.ndarray | None = None) -> int:
    """Pairs of a sector that is read and a unit of shared memory that it is written to, over all requests.

    read, written   bytes: (requests, lanes); active: which of them copy
    """
    requests = np.broadcast_to(np.arange(len(read))[:, None], read.shape)
    pairs = np.stack([requests, read // SECTOR_BYTES, written // unit])
    kept = pairs.reshape(3, -1) if active is None else pairs[:, active]
    return len(np.unique(kept, axis=1).T)
