"""From a plan to its accesses: which elements of a tile each lane touches with which instruction.

An access does not depend on where the tile lies: it names elements by their index in the tile. So one access
can be held against many layouts, which is what the search for a swizzle does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.analysis.edges import Kind, strides_of
from cutegemm.analysis.shared import (
    DEFAULT_RULES,
    Rules,
    Wavefronts,
    byte_addresses,
    cost,
    widest_access,
)
from cutegemm.layout import ComposedLayout, Layout
from cutegemm.layout.inttuple import product
from cutegemm.layout.modes import size
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.epilogue_access import spread_at_hand
from cutegemm.plan.program.thread_schedule import Read, Store, thread_schedule
from cutegemm.plan.reduction import exchanged
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_A, make_tiled_copy_B
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand, Problem
    from cutegemm.tile.atoms import CopyAtom
    from cutegemm.tile.tiled_mma import TiledMma

ROW_BITS = 128  # ldmatrix, stmatrix and wgmma go by rows of 16 bytes
CORE_ROWS = 8
_SASS = {"load": "LDS", "store": "STS", "ldmatrix": "LDSM", "stmatrix": "STSM", "cp.async": "LDGSTS"}
_AS_NAMED = ("wgmma", "tma", "st.async")


@dataclass(frozen=True, eq=False)
class Access:
    """Instructions of one kind that touch one buffer in shared memory.

    name           what it does, e.g. "read A"
    buffer         "a", "b", "d" or "sums"
    op             see `shared.wavefronts`
    elements       (warps, lanes, values): index in the tile of each value of each lane. Fewer than 32 lanes
                   where the addresses of the others are not used
    element_bits   of an element
    bits           of one lane and instruction; None for the widest that the layout lets through
    per            "k-tile" or "tile": how often a CTA does it; "ragged tile": one that reaches past an edge
    sources        cp.async: bytes in global memory, (warps, accesses of a warp, lanes)
    times          so many times over: wgmma reads an operand again for each instruction of the other one
    matrix         in global memory, outside of which lanes leave the access out; None where all carry it out
    turned         the elements where the tile's first one lies so many bytes behind a cache line; see
                   `EpiStages.turned`
    """

    name: str
    buffer: str
    op: str
    elements: np.ndarray
    element_bits: int
    bits: int | None
    per: str
    sources: np.ndarray | None = None
    times: int = 1
    matrix: str | None = None
    turned: Callable[[int], np.ndarray] | None = None

    def width(self, table: np.ndarray) -> int:
        """Bits of one lane and instruction in a layout, given by its table index -> offset."""
        return self.bits or widest_access(table, self.elements, self.element_bits)

    def addresses(self, layout: Layout | ComposedLayout) -> tuple[np.ndarray, int]:
        """Bytes in a layout of the tile, (warps, requests of a warp, lanes), and bits of a lane; see `cost`."""
        table = layout.offsets()
        bits = self.width(table)
        return byte_addresses(table, self.elements, self.element_bits, bits), bits

    def cost(
        self,
        layout: Layout | ComposedLayout,
        rules: Rules = DEFAULT_RULES,
        kind: Kind | None = None,
        shape: tuple[int, int] = (0, 0),
    ) -> Wavefronts:
        """What it costs in a layout of the tile; of several stages, the first is looked at.

        kind     of tile, of this shape; one that is full and begins a cache line where left out
        raises   LayoutError where the layout tears a vector apart
        """
        if self.turned is not None:
            placed = replace(self, elements=self.turned(0 if kind is None else kind.phase), turned=None)
            return placed.cost(layout, rules, kind, shape)
        addresses, bits = self.addresses(layout)
        active, sources = None, self.sources
        if kind is not None:
            leads = self.elements[..., :: max(1, bits // self.element_bits)]
            if self.op != "cp.async":  # which writes zeros where it reads nothing
                active = np.moveaxis(kind.inside(shape)[leads], 1, 2)
            sources = None if sources is None else sources + kind.phase
        once = cost(addresses, bits, op=self.op, sources=sources, rules=rules, active=active)
        if self.times == 1:
            return once
        return Wavefronts(self.times * once.requests, self.times * once.wavefronts, self.times * once.ideal, once.worst)

    def instruction(self, layout: Layout | ComposedLayout) -> str:
        """Its name in SASS."""
        if self.op in _AS_NAMED:
            return self.op
        if self.op in ("ldmatrix", "stmatrix"):
            return f"{_SASS[self.op]}.{self.elements.shape[1] // CORE_ROWS}"
        bits = self.width(layout.offsets())
        return _SASS[self.op] + (f".{bits}" if bits > 32 else "")


def shared_accesses(plan: GemmPlan, problem: Problem | None = None) -> list[Access]:
    """Every access of a plan to shared memory, in the order in which the data pass.

    problem   whose strides the sources of cp.async have; without one, rows of a multiple of 128 bytes
    """
    (bm, bn, bk), loaded = plan.mma_tile, plan.loaded_tile
    out = []
    held = ("a", "b") if plan.stages else ()  # else straight to the fragments
    for stream in plan.streams:
        if plan.stages:
            operand, memory = plan.loaded.matrix(stream.name), global_table(plan, stream.name, problem)
            out.append(_fill(stream.name, stream.load, stream.tile, operand, memory))
    mma = plan.tiled_mma
    for name, extent, read, other in (("a", bm, plan.a.read, bn // mma.shape_mnk[1]),
                                      ("b", bn, plan.b.read, bm // mma.shape_mnk[0])):  # fmt: skip
        if name in held:
            rows = loaded["ab".index(name)]
            out.append(_read(name, read, mma, (rows, bk), extent, getattr(plan.loaded, name), other))
    for access in plan.body.mainloop.accesses(plan):
        bits = plan.operands.matrix(access.buffer).dtype.bits
        out.append(Access(access.label, access.buffer, access.op, access.elements, bits, access.bits, access.per))
    if problem is not None and _is_ragged(plan, problem):
        out += [
            _clear(name, plan, extent)
            for name, extent in (("a", bm), ("b", bn))
            if name in held and _is_async(plan.stream(name).load)
        ]
    if plan.body.has_roles and plan.cluster_k > 1:
        out += _cluster_accumulators(plan)
    if plan.smem_d is not None:
        out += [replace(_drain(plan, plan.d_tile), name=f"store {name.upper()}") for name in through_shared(plan)]
    copy, part = copy_of_d(plan)
    if plan.epi_stages is not None and plan.fetched_tile in read_always(plan):
        from_slots, epi_tile = plan.epi_stages.from_shared, plan.epi_stages.epi_tile
        assert from_slots is not None
        coming, bits = by_warps(from_slots.offsets_s(Layout(epi_tile))), plan.operands.d.dtype.bits
        label, times = f"read {plan.fetched_tile.upper()}", product(plan.d_tile) // product(epi_tile)
        out.append(Access(label, "d", "load", coming, bits, from_slots.atom.bits, "tile", times=times))
    if copy is not None:
        leaving, bits = by_warps(copy.offsets_s(Layout(part))), plan.operands.d.dtype.bits
        times = product(plan.d_tile) // product(part)
        for name in through_shared(plan):
            label, turned = f"read {name.upper()}", None
            if plan.epi_stages is not None and plan.epi_stages.rotates_lines:
                memory = Layout(part, strides_of_tile(plan, name, problem)).offsets() * bits // 8
                turned = partial(_turned_vectors, plan, leaving, memory)
            out.append(Access(label, "d", "load", leaving, bits, copy.atom.bits, "tile", None, times, name, turned))
    return out


def _is_async(copy: TiledCopy | TmaBox) -> bool:
    return isinstance(copy, TiledCopy) and copy.atom.is_async


def _is_ragged(plan: GemmPlan, problem: Problem) -> bool:
    extents = (problem.m, problem.n, problem.k)
    tile = (*plan.d_tile, plan.cta_tile[2])
    return not plan.body.has_roles and any(e % t for e, t in zip(extents, tile, strict=True))


def ragged_tiles(plan: GemmPlan, problem: Problem) -> int:
    """Work tiles that reach past an edge, whose CTAs clear what their copies leave out: all where K is ragged."""
    work = plan.scheduler.of(problem)
    assignment = work.assignment().work_tile
    if problem.k % plan.cta_tile[2]:
        return int((assignment.splits > 0).sum())
    at = work.tiles.order()[:, 0]
    last = [extent // tile for extent, tile in zip((problem.m, problem.n), plan.d_tile, strict=True)]
    ragged = (at[:, 0] >= last[0]) | (at[:, 1] >= last[1])
    return int((ragged[assignment.tile] & (assignment.splits > 0)).sum())


def _clear(name: str, plan: GemmPlan, extent: int) -> Access:
    """Zeros in all stages, by the threads that copy to them."""
    operand, copy = plan.loaded.matrix(name), plan.stream(name).load
    assert isinstance(copy, TiledCopy)  # boxes are filled with zeros
    written = by_warps(copy.offsets_d(Layout((extent, plan.cta_tile[2]))))
    label = f"clear {name.upper()}"
    return Access(label, name, "store", written, operand.dtype.bits, None, "ragged tile", times=plan.stages)


def through_shared(plan: GemmPlan) -> tuple[str, ...]:
    """The results of the epilogue that pass through the shared memory of D."""
    if plan.smem_d is None:
        return ()
    return plan.epi_stage_results or ("d",)


def read_always(plan: GemmPlan) -> tuple[str, ...]:
    """The operands of the epilogue that are read whatever the scalars are: not C, which beta may leave unread."""
    return plan.epilogue.acting().tensors


def copy_of_d(plan: GemmPlan) -> tuple[TiledCopy | None, tuple[int, int]]:
    """How threads copy D out of shared memory, if they do, and the part of a tile that they do at a time."""
    if plan.epi_stages is None:
        return plan.copy_d, plan.d_tile
    store = plan.epi_stages.store
    return store if isinstance(store, TiledCopy) else None, plan.epi_stages.epi_tile


def executions(plan: GemmPlan, access: Access, k_tiles: int) -> float:
    """How often a CTA does an access to shared memory for so many k-tiles, on average where K is split or shared.

    Steps past the last k-tile fetch nothing, but what is stored and read again is stored and read in vain.

    >>> from cutegemm.build import simt_plan
    >>> plan = simt_plan(block=(128, 128, 8), stages=2)
    >>> {a.name: executions(plan, a, 64) for a in shared_accesses(plan)}
    {'fill A': 65.0, 'fill B': 64.0, 'read A': 64.125, 'read B': 64.125}
    """
    if access.per == "ragged tile":
        return 1.0  # of those
    if access.per == "tile":
        return 1.0 / plan.split_k  # by the CTA of one of the parts
    if plan.split_k > 1:
        parts = [plan.split.k_range(part, k_tiles)[1] for part in range(plan.split_k)]
        return sum(_executions(plan, access, part) for part in parts) / len(parts)
    if plan.cluster_k > 1:
        shares = [plan.k_range(rank, k_tiles)[1] for rank in range(plan.cluster_k)]
        return sum(_executions(plan, access, share) for share in shares) / len(shares)
    return _executions(plan, access, k_tiles)


def _executions(plan: GemmPlan, access: Access, k_tiles: int) -> float:
    if k_tiles == 0 or plan.body.has_roles:
        return float(k_tiles)
    kind = {"store": Store, "load": Read, "ldmatrix": Read}.get(access.op)
    if kind is None:
        return float(k_tiles)
    once, twice = (Counter(type(step) for _, step in thread_schedule(plan).play(n))[kind] for n in (1, 2))
    steps = once + (k_tiles - 1) * (twice - once)
    return steps / (1 if kind is Store else plan.k_blocks)


def global_table(plan: GemmPlan, name: str, problem: Problem | None) -> np.ndarray:
    """Bytes in global memory of the elements of a tile, from its first one on."""
    stride = strides_of_tile(plan, name, problem)
    return Layout(tile_shape(plan, name), stride).offsets() * plan.loaded.matrix(name).dtype.bits // 8


def strides_of_tile(plan: GemmPlan, name: str, problem: Problem | None) -> tuple[int, int]:
    """In global memory, of the elements of a tile."""
    operand = plan.loaded.matrix(name)
    first = plan.operands.modes(name)[0]
    line = 1024 * operand.align_elems  # far apart, and aligned as a compact matrix of many columns is
    if operand.broadcast:
        return int("m" not in operand.broadcast), int("n" not in operand.broadcast)
    if problem is not None:
        of_m, of_n = strides_of(plan, name, problem)[:2]
        return of_m, of_n
    return (1, line) if operand.major == first else (line, 1)


def turned_lines(plan: GemmPlan, elements: np.ndarray, addresses: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    """The first elements of vectors of D as `EpiStages.turned` has them.

    elements    as indices in a tile, where lines are not turned
    addresses   bytes, of each element of the tile
    """
    epi_stages = plan.epi_stages
    assert epi_stages is not None
    assert isinstance(epi_stages.store, TiledCopy)
    along = "mn".index(plan.operands.d.major)
    atom, length = epi_stages.store.atom, epi_stages.epi_tile[along]
    step = 1 if along == 0 else tile[0]  # from one element of a line to the next
    place = elements // step % tile[along] % length
    first = elements - place * step
    run_bytes = size(epi_stages.store.tiler_mn[along]) * atom.dtype.bits // 8
    by = addresses[first] % run_bytes // (atom.bits // 8) * atom.values
    turned: np.ndarray = first + (place - by) % length * step
    return turned


def _turned_vectors(plan: GemmPlan, elements: np.ndarray, memory: np.ndarray, phase: int) -> np.ndarray:
    """The same of whole vectors, (warps, lanes, values), of an epilogue tile."""
    assert plan.epi_stages is not None
    assert isinstance(plan.epi_stages.store, TiledCopy)
    values = plan.epi_stages.store.atom.values
    vectors = elements.reshape(*elements.shape[:2], -1, values)
    leads = turned_lines(plan, vectors[..., :1], memory + phase, plan.epi_stages.epi_tile)
    return (leads + (vectors - vectors[..., :1])).reshape(elements.shape)


def tile_shape(plan: GemmPlan, name: str) -> tuple[int, int]:
    """Return the extents of a tile of an operand stream as a CTA loads it, or of a matrix of D's extents."""
    bm, bn, bk = plan.loaded_tile
    streams = {stream.name: stream.tile for stream in plan.streams[2:]}
    return {"a": (bm, bk), "b": (bn, bk), **streams}.get(name, plan.d_tile)


def by_warps(offsets: np.ndarray) -> np.ndarray:
    """(threads, values, ...) as (warps, lanes, values), the values of an instruction first."""
    flat = offsets.reshape(offsets.shape[0], -1, order="F")
    return flat.reshape(-1, min(WARP_THREADS, flat.shape[0]), flat.shape[1])


def _fill(name: str, copy: TiledCopy | TmaBox, tile: tuple[int, int], operand: Operand, memory: np.ndarray) -> Access:
    label, bits = f"fill {name.upper()}", operand.dtype.bits
    if isinstance(copy, TmaBox):
        if operand.modes:  # rows of 16 bytes, one after the other
            rows = np.arange(product(tile)).reshape(-1, CORE_ROWS, ROW_BITS // bits)
        else:
            rows = core_matrices(tile, "k" if operand.major == "k" else "mn", bits)
        return Access(label, name, "tma", rows, bits, ROW_BITS, "k-tile")
    written = by_warps(copy.offsets_d(Layout(tile)))
    if not copy.atom.is_async:
        return Access(label, name, "store", written, bits, None, "k-tile")
    read = by_warps(copy.offsets_s(Layout(tile)))
    sources = np.moveaxis(memory[read[..., :: copy.atom.bits // bits]], 1, 2)
    return Access(label, name, "cp.async", written, bits, copy.atom.bits, "k-tile", sources, matrix=name)


def _read(
    name: str,
    atom: CopyAtom | None,
    mma: TiledMma,
    tile: tuple[int, int],
    extent: int,
    operand: Operand,
    repeats: int,
) -> Access:
    """
    tile     as it lies in shared memory
    extent   rows or columns of it that are multiplied
    """
    label, bits = f"read {name.upper()}", operand.dtype.bits
    if atom is None:
        major = mma.atom.a_major if name == "a" else mma.atom.b_major
        rows = core_matrices(tile, major, bits, extent)
        return Access(label, name, "wgmma", rows, bits, ROW_BITS, "k-tile", times=repeats)
    if atom.threads == WARP_THREADS:
        copy = (make_tiled_copy_A if name == "a" else make_tiled_copy_B)(atom, mma)
        rows = by_warps(copy.offsets_s(Layout(tile)))
        return Access(label, name, "ldmatrix", rows[:, : atom.address_lanes], bits, ROW_BITS, "k-tile")
    held = mma.offsets_a(Layout(tile)) if name == "a" else mma.offsets_b(Layout(tile))
    return Access(label, name, "load", by_warps(held), bits, max(atom.bits, bits), "k-tile")


def _cluster_accumulators(plan: GemmPlan) -> list[Access]:
    """Where CTAs of a cluster share K: the sums of its own columns that come to a CTA from all of them, counted where
    they are written, and that its threads read."""
    vector, threads, vectors, ctas, _ = exchanged(plan).shape
    readers, bits = plan.body.readers, plan.operands.acc.bits
    index = np.arange(vector * threads * vectors * ctas * readers)
    of_threads = np.moveaxis(index.reshape(readers, ctas, vectors, threads, vector), 3, 1)
    elements = of_threads.reshape(-1, WARP_THREADS, ctas * vectors * vector)
    return [
        Access(name, "accumulators", op, elements, bits, vector * bits, "tile")
        for name, op in (("send accumulators", "st.async"), ("read accumulators", "load"))
    ]


def _drain(plan: GemmPlan, tile: tuple[int, int]) -> Access:
    bits = plan.operands.d.dtype.bits
    if plan.epi_stages is None:
        return Access("store D", "d", "store", stored_by_lanes(plan), bits, plan.store_d.bits, "tile")
    copy, part = plan.epi_stages.to_shared, plan.epi_stages.epi_tile
    times = tile[0] * tile[1] // (part[0] * part[1])
    rows = by_warps(copy.offsets_d(Layout(part)))
    if copy.atom.threads == WARP_THREADS:
        used = rows[:, : copy.atom.address_lanes]
        return Access("store D", "d", "stmatrix", used, bits, ROW_BITS, "tile", times=times)
    return Access("store D", "d", "store", rows, bits, copy.atom.bits, "tile", times=times)


def stored_by_lanes(plan: GemmPlan, major: str | None = None) -> np.ndarray:
    """The elements of a tile of D that each lane has the sums of, as (warps, lanes, elements), along D's rows.

    So they leave the registers: a vector is of neighbours in D, in whatever order the sums are held.

    major   of another matrix of D's extents, along whose rows they are to be; D's where left out
    """
    bm, bn = plan.d_tile
    along_m = (major or plan.operands.d.major) == "m"
    compact = Layout((bm, bn), (1, bm) if along_m else (bn, 1))
    held = compact.offsets()[plan.stored_by_threads]
    in_memory = np.sort(held, axis=1)
    return by_warps(np.argsort(compact.offsets())[in_memory])


def spread_by_lanes(plan: GemmPlan, name: str) -> np.ndarray:
    """(warps, lanes, elements) of a row, of a column or of a single element of the epilogue, as threads read it: each
    element once for all that a thread computes of it together, at a place of the tile where it lies."""
    at = spread_at_hand(plan, name)
    held = np.moveaxis(at, 0, 1).reshape(at.shape[1], -1)
    if plan.operands.matrix(name).gated:  # the ups as well, which lie as the gates do
        held = np.concatenate([held, held], axis=1)
    return by_warps(held)


def core_matrices(tile: tuple[int, int], major: str, element_bits: int, extent: int | None = None) -> np.ndarray:
    """The rows that wgmma reads together: (matrices, 8 rows, elements of 16 bytes), as indices in the tile.

    tile     (M, K) or (N, K)
    major    k: rows lie along K, one for each m; mn: along M or N, one for each k
    extent   the first rows or columns of the tile alone; all where left out

    >>> core_matrices((64, 16), "k", 16).shape, core_matrices((64, 16), "k", 16)[0, 1, :2].tolist()
    ((16, 8, 8), [1, 65])
    """
    long = ROW_BITS // element_bits
    index = Layout(tile).offsets().reshape(tile[1], tile[0]).T[:extent]  # (mn, k)
    if major == "mn":
        index = index.T
    rows, columns = index.shape
    blocks = index.reshape(rows // CORE_ROWS, CORE_ROWS, columns // long, long)
    return blocks.transpose(0, 2, 1, 3).reshape(-1, CORE_ROWS, long)


def buffer_layout(plan: GemmPlan, buffer: str) -> Layout | ComposedLayout:
    """Where a buffer's tile lies in shared memory; of several stages, all of them."""
    if buffer == "accumulators":
        return exchanged(plan)
    found: Layout | ComposedLayout | None = {**{stream.name: stream.smem for stream in plan.streams}, "d": plan.smem_d}[
        buffer
    ]
    assert found is not None
    return found
