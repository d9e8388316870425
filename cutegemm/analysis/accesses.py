"""Shared-memory accesses of a plan: the elements of a tile that each lane touches with each instruction.

An `Access` names elements by their index in the tile, so it does not depend on the layout of the tile in memory.
The search for a swizzle evaluates one access under many layouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
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
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan.epilogue_access import spread_at_hand
from cutegemm.plan.program.thread_schedule import Read, Store, thread_schedule
from cutegemm.plan.reduction import exchanged
from cutegemm.plan.work.grouped import with_equal_groups
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_A, make_tiled_copy_B
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand, Problem
    from cutegemm.tile.atoms import CopyAtom
    from cutegemm.tile.tiled_mma import TiledMma

ROW_BITS = 128  # ldmatrix, stmatrix and wgmma access rows of 16 bytes
CORE_ROWS = 8  # rows of a core matrix
_SASS = {"load": "LDS", "store": "STS", "ldmatrix": "LDSM", "stmatrix": "STSM", "cp.async": "LDGSTS"}
_AS_NAMED = ("wgmma", "tma", "st.async")


@dataclass(frozen=True, eq=False)
class Access:
    """Describes one kind of shared-memory access of a CTA, such as "read A": which elements each lane accesses.

    From it and a layout of the buffer follow addresses, wavefronts and bank conflicts.

    name           description of the access, such as "read A"
    buffer         "a", "b", "d" or "accumulators"
    op             operation, such as "load", "ldmatrix" or "cp.async"
    elements       integer array with axes for warps, lanes of a warp and values of a lane: the index in the tile of the
                   element that each value is. It has fewer than 32 lanes if only those supply addresses (ldmatrix)
    element_bits   bits of an element
    bits           bits that a lane accesses per instruction; None: the widest vector that the layout allows
    per            "k-tile" or "tile": a CTA executes the access once for each; "ragged tile": once for each tile that
                   reaches past an edge
    sources        for cp.async, array (warps, accesses of a warp, lanes): byte offset that each lane reads in global
                   memory; None for other operations
    times          repetitions of the access: wgmma reads an operand again for each instruction along the other
                   operand
    matrix         name of the matrix in global memory whose ragged or misaligned tiles cost less or more; None if all
                   tiles cost the same
    rotated        function from the misalignment of a tile in bytes to its `elements`; None if they do not depend on it
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
    rotated: Callable[[int], np.ndarray] | None = None

    def width(self, table: np.ndarray) -> int:
        """Return the bits that a lane accesses per instruction: the fixed width of this access, or the widest possible.

        table   offset in shared memory of each index in the tile, in elements
        """
        return self.bits or widest_access(table, self.elements, self.element_bits)

    def addresses(self, layout: Layout | ComposedLayout) -> tuple[np.ndarray, int]:
        """Return the byte addresses of this access for a layout of the tile, and the bits per lane and instruction.

        The addresses are an array with axes for warps, requests of a warp and lanes. A request is one execution of
        the instruction. From the addresses and the bits, bank conflicts are counted.

        layout   layout of the tile in shared memory
        """
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
        """Return the requests (instructions) and wavefronts of this access for a layout of the tile.

        layout   layout of the tile in shared memory; of several stages, the first one counts
        rules    model of shared memory: which groups of lanes are served together
        kind     position of the tile, which may be ragged or misaligned; None: a full tile that starts at a cache
                 line
        shape    extents of a tile of `kind`; not used if `kind` is None
        raises   LayoutError if the elements of a vector are not contiguous in the layout
        """
        if self.rotated is not None:
            placed = replace(self, elements=self.rotated(0 if kind is None else kind.phase), rotated=None)
            return placed.cost(layout, rules, kind, shape)
        addresses, bits = self.addresses(layout)
        active, sources = None, self.sources
        if kind is not None:
            leads = self.elements[..., :: max(1, bits // self.element_bits)]
            if self.op != "cp.async":  # cp.async writes zeros in lanes that read nothing
                active = np.moveaxis(kind.inside(shape)[leads], 1, 2)
            sources = None if sources is None else sources + kind.phase
        once = cost(addresses, bits, op=self.op, sources=sources, rules=rules, active=active)
        if self.times == 1:
            return once
        return Wavefronts(self.times * once.requests, self.times * once.wavefronts, self.times * once.ideal, once.worst)

    def instruction(self, layout: Layout | ComposedLayout) -> str:
        """Return the SASS mnemonic of this access, such as "LDS.128", or `op` if a single mnemonic does not name it.

        layout   layout of the tile in shared memory, which limits the width
        """
        if self.op in _AS_NAMED:
            return self.op
        if self.op in ("ldmatrix", "stmatrix"):
            return f"{_SASS[self.op]}.{self.elements.shape[1] // CORE_ROWS}"
        bits = self.width(layout.offsets())
        return _SASS[self.op] + (f".{bits}" if bits > 32 else "")


def shared_accesses(plan: GemmPlan, problem: Problem | None = None) -> list[Access]:
    """Return every access of a plan to shared memory, in the order of the data flow.

    problem   problem that gives the strides of the matrices that cp.async reads; None: rows lie multiples of 128
              bytes apart

    >>> from cutegemm.build import simt_plan
    >>> [access.name for access in shared_accesses(simt_plan())]
    ['fill A', 'fill B', 'read A', 'read B']
    """
    plan, problem = with_equal_groups(plan, problem)
    (bm, bn, bk), loaded = plan.mma_tile, plan.loaded_tile
    out = []
    for stream in plan.streams:
        if plan.stages:  # without stages, threads load fragments from global memory
            operand, memory = plan.loaded.matrix(stream.name), global_table(plan, stream.name, problem)
            out.append(_fill(stream.name, stream.load, stream.tile, operand, memory))
    mma = plan.tiled_mma
    staged = ("a", "b") if plan.stages else ()
    for name, extent, read, other in (("a", bm, plan.a.read, bn // mma.shape_mnk[1]),
                                      ("b", bn, plan.b.read, bm // mma.shape_mnk[0])):  # fmt: skip
        if name in staged:
            rows = loaded["ab".index(name)]
            out.append(_read(name, read, mma, (rows, bk), extent, getattr(plan.loaded, name), other))
    for access in plan.body.mainloop.accesses(plan):
        bits = plan.operands.matrix(access.buffer).dtype.bits
        out.append(Access(access.label, access.buffer, access.op, access.elements, bits, access.bits, access.per))
    if problem is not None and _is_ragged(plan, problem):
        out += [
            _clear(name, plan, extent)
            for name, extent in (("a", bm), ("b", bn))
            if name in staged and _is_async(plan.stream(name).load)
        ]
    if plan.body.has_roles and plan.cluster_k > 1:
        out += _cluster_accumulators(plan)
    return [*out, *_stored_through_shared(plan, problem)]


def _stored_through_shared(plan: GemmPlan, problem: Problem | None) -> Iterator[Access]:
    """Yield the shared-memory accesses of results that are stored through shared memory, and of C if loaded there.

    They are: registers are written to the buffer, C is read from it, and threads read it to copy D to global memory.

    problem   problem whose D gives the strides, so that the alignment of each row is known; None: rows are aligned
              and far apart
    """
    names, bits = through_shared(plan), plan.operands.d.dtype.bits
    for name in names:
        yield replace(_written(plan), name=f"store {name.upper()}")
    reads_c = plan.store.from_shared
    for buffer in plan.store.buffers(plan):
        times = product(plan.d_tile) // product(buffer.tile)
        if reads_c is not None and plan.fetched_tile in read_always(plan):
            elements, label = by_warps(reads_c.offsets_s(Layout(buffer.tile))), f"read {plan.fetched_tile.upper()}"
            yield Access(label, "d", "load", elements, bits, reads_c.atom.bits, "tile", times=times)
        copy = plan.store.line_copy
        if copy is None:
            continue
        elements = by_warps(copy.offsets_s(Layout(buffer.tile)))
        for name in names:
            rotated = None
            if plan.store.rotates_lines:
                memory = Layout(buffer.tile, strides_of_tile(plan, name, problem)).offsets() * bits // 8
                rotated = partial(_rotated_vectors, plan, buffer.tile, elements, memory)
            label, wide = f"read {name.upper()}", copy.atom.bits
            yield Access(label, "d", "load", elements, bits, wide, "tile", None, times, name, rotated)


def _is_async(copy: TiledCopy | TmaBox) -> bool:
    """Return True if threads copy A or B by cp.async, False if they copy through registers, or TMA copies.

    copy   how the operand is loaded: by threads or by TMA
    """
    return isinstance(copy, TiledCopy) and copy.atom.is_async


def _is_ragged(plan: GemmPlan, problem: Problem) -> bool:
    """Return True if tiles of A or B reach past an edge of the matrix, and threads load them.

    The threads have to fill the rest of such tiles with zeros in shared memory. If TMA loads the tiles, the result is
    False, because TMA does that itself.
    """
    extents = (problem.m, problem.n, problem.k)
    tile = (*plan.d_tile, plan.cta_tile[2])
    return not plan.body.has_roles and any(e % t for e, t in zip(extents, tile, strict=True))


def ragged_tiles(plan: GemmPlan, problem: Problem) -> int:
    """Return the number of work tiles (a tile of D with a range of K) that reach past an edge of the problem.

    Before such a tile, threads write zeros to the shared-memory stages, because their copies skip elements outside of
    the matrices. If bK does not divide K, every work tile counts.

    plan      the plan, whose threads load A and B
    problem   extents of the GEMM
    """
    work = plan.work(problem)
    assignment = work.assignment().work_tile
    if problem.k % plan.cta_tile[2]:
        return int((assignment.splits > 0).sum())
    tile_mn = work.tiles.order()[:, 0]
    last = [extent // tile for extent, tile in zip((problem.m, problem.n), plan.d_tile, strict=True)]
    ragged = (tile_mn[:, 0] >= last[0]) | (tile_mn[:, 1] >= last[1])
    return int((ragged[assignment.tile] & (assignment.splits > 0)).sum())


def _clear(name: str, plan: GemmPlan, extent: int) -> Access:
    """Return the shared-memory access of threads that write zeros to all stages of A or B.

    They do so before a tile that reaches past an edge of the matrix.

    name     "A" or "B"
    extent   rows of A or columns of B of a k-tile
    """
    operand, copy = plan.loaded.matrix(name), plan.stream(name).load
    assert isinstance(copy, TiledCopy)  # TMA fills ragged tiles with zeros
    written = by_warps(copy.offsets_d(Layout((extent, plan.cta_tile[2]))))
    label = f"clear {name.upper()}"
    return Access(label, name, "store", written, operand.dtype.bits, None, "ragged tile", times=plan.stages)


def through_shared(plan: GemmPlan) -> tuple[str, ...]:
    """Return the names of the epilogue results that are stored through shared memory; () if none is."""
    return () if plan.store.layout is None else plan.epi_stage_results or ("d",)


def read_always(plan: GemmPlan) -> tuple[str, ...]:
    """Return the epilogue operands in memory that are read whatever the values of the scalars are.

    C is not one of them, because it is not read if beta is 0.
    """
    return plan.epilogue.acting().tensors


def executions(plan: GemmPlan, access: Access, k_tiles: int) -> float:
    """Return how often a CTA executes an access to shared memory while it multiplies `k_tiles` k-tiles.

    If K is split, this is the average over the K splits of a tile or the CTAs of a cluster. A software pipeline runs a
    few steps beyond the last k-tile: they load nothing from global memory, but their stores and reads of shared memory
    count.

    access    an access of `shared_accesses(plan)`
    k_tiles   number of k-tiles of a tile of D: K divided by bK, rounded up

    >>> from cutegemm.build import simt_plan
    >>> plan = simt_plan(block=(128, 128, 8), stages=2)
    >>> {a.name: executions(plan, a, 64) for a in shared_accesses(plan)}
    {'fill A': 65.0, 'fill B': 64.0, 'read A': 64.125, 'read B': 64.125}
    """
    if access.per == "ragged tile":
        return 1.0  # `ragged_tiles` counts the tiles
    if access.per == "tile":
        return 1.0 / plan.split_k  # one of the CTAs that split a tile's K stores the tile
    if plan.split_k > 1:
        counts = [plan.scheduler.split.k_range(k_split, k_tiles)[1] for k_split in range(plan.split_k)]
        return sum(_executions(plan, access, count) for count in counts) / len(counts)
    if plan.cluster_k > 1:
        counts = [plan.k_range(rank, k_tiles)[1] for rank in range(plan.cluster_k)]
        return sum(_executions(plan, access, count) for count in counts) / len(counts)
    return _executions(plan, access, k_tiles)


def _executions(plan: GemmPlan, access: Access, k_tiles: int) -> float:
    """Return how often a CTA that multiplies `k_tiles` k-tiles executes a shared-memory access.

    The executions are counted for one and for two k-tiles; each further k-tile adds the difference.

    plan     the plan, whose threads execute the access in their mainloop
    access   the access, such as "read A"
    """
    if k_tiles == 0 or plan.body.has_roles:
        return float(k_tiles)
    kind = {"store": Store, "load": Read, "ldmatrix": Read}.get(access.op)
    if kind is None:
        return float(k_tiles)
    once, twice = (Counter(type(step) for _, step in thread_schedule(plan).play(n))[kind] for n in (1, 2))
    steps = once + (k_tiles - 1) * (twice - once)
    return steps / (1 if kind is Store else plan.k_blocks)


def global_table(plan: GemmPlan, name: str, problem: Problem | None) -> np.ndarray:
    """Return, for each element of a tile, its byte offset in global memory from the tile's first element.

    name      name of the matrix, such as "a" or "d"
    problem   problem whose matrix gives the strides; None: those of a large compact matrix
    returns   integer array over the column-major indices of elements in the tile
    """
    plan, problem = with_equal_groups(plan, problem)
    stride = strides_of_tile(plan, name, problem)
    return Layout(tile_shape(plan, name), stride).offsets() * plan.loaded.matrix(name).dtype.bits // 8


def strides_of_tile(plan: GemmPlan, name: str, problem: Problem | None) -> tuple[int, int]:
    """Return the strides of a matrix in global memory along the two modes of its tile, in elements.

    name      name of the matrix, such as "a" or "d"
    problem   problem whose matrix gives the strides; None: those of a large compact matrix
    """
    operand = plan.loaded.matrix(name)
    first = plan.operands.modes(name)[0]
    line = 1024 * operand.align_elems  # the leading stride of a large compact matrix
    if operand.broadcast:
        return int("m" not in operand.broadcast), int("n" not in operand.broadcast)
    if problem is not None:
        stride_m, stride_n = strides_of(plan, name, problem)[:2]
        return stride_m, stride_n
    return (1, line) if operand.major == first else (line, 1)


def _rotated_vectors(
    plan: GemmPlan, tile: tuple[int, int], elements: np.ndarray, memory: np.ndarray, phase: int
) -> np.ndarray:
    """Return which elements of an epilogue tile each lane stores to D, if the rows of D are not aligned.

    In an aligned row, lane i stores vector i of the row. In a row that starts s vectors after an aligned address, the
    vectors are rotated: lane i stores vector i - s, modulo the row's length. So neighbouring lanes store the vectors of
    one aligned block of memory.

    tile       (M, N) of the epilogue tile
    elements   integer array (warps, lanes, values): index in the tile of each element that a lane stores without
               rotation. The values of a lane form one or more vectors
    memory     array with one entry for each element of the tile: its byte offset in D
    phase      bytes from the start of a cache line to the tile's first element
    returns    indices of the elements with rotation, of the shape of `elements`
    """
    assert plan.store.line_copy is not None
    vectors = elements.reshape(*elements.shape[:2], -1, plan.store.line_copy.atom.values)
    leads = plan.store.rotated(vectors[..., :1], memory + phase, tile, plan.operands.d.major)
    return (leads + (vectors - vectors[..., :1])).reshape(elements.shape)


def tile_shape(plan: GemmPlan, name: str) -> tuple[int, int]:
    """Return the extents of the tile of a matrix that a CTA works on.

    name   "a", "b" or another operand that is loaded for MMAs: the tile as it is loaded, e.g. (bM, bK). Any other
           matrix, such as "d": the tile of D
    """
    return {stream.name: stream.tile for stream in plan.streams}.get(name, plan.d_tile)


def by_warps(offsets: np.ndarray) -> np.ndarray:
    """Split the axis of threads of an array into warps and their 32 lanes, and return the array.

    offsets   array of offsets or indices with an axis for threads and one or more for values of a thread
    returns   array with three axes: warps, lanes of a warp, values of a lane. Several axes of values are flattened to
              one, the first of them fastest
    """
    flat = offsets.reshape(offsets.shape[0], -1, order="F")
    return flat.reshape(-1, min(WARP_THREADS, flat.shape[0]), flat.shape[1])


def _fill(name: str, copy: TiledCopy | TmaBox, tile: tuple[int, int], operand: Operand, memory: np.ndarray) -> Access:
    """Return the shared-memory access that writes a k-tile of A or B, loaded from global memory, to a stage.

    name      "A" or "B"
    copy      the copy from global memory: by threads or by TMA
    tile      extents of the k-tile: (M or N, K)
    operand   the operand: its type and majorness
    memory    byte offset of each element of the tile in global memory
    """
    label, bits = f"fill {name.upper()}", operand.dtype.bits
    if isinstance(copy, TmaBox):
        if operand.modes:  # rows of 16 bytes, one after the other: eight at a time, or as many as divide the tile
            wide = ROW_BITS // bits
            rows = np.arange(product(tile)).reshape(-1, gcd(CORE_ROWS, product(tile) // wide), wide)
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
    """Return the shared-memory access that reads a k-tile of A or B from its stage for the MMAs.

    name      "A" or "B"
    atom      copy atom from shared memory to registers; None: wgmma reads shared memory
    mma       the tiled MMA that multiplies the k-tile
    tile      extents of the k-tile in shared memory: (M or N, K)
    extent    rows of A or columns of B that are multiplied
    operand   the operand: its type and majorness
    repeats   number of wgmma instructions along the other operand; each one reads the k-tile
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
    fragments = mma.offsets_a(Layout(tile)) if name == "a" else mma.offsets_b(Layout(tile))
    return Access(label, name, "load", by_warps(fragments), bits, max(atom.bits, bits), "k-tile")


def _cluster_accumulators(plan: GemmPlan) -> list[Access]:
    """Return the two accesses to the buffer of accumulators that CTAs of a cluster exchange, if they split K.

    Each CTA receives the accumulators of its own columns from all CTAs of the cluster, by st.async. These stores are
    counted in the CTA that receives them. Then its threads read the accumulators.
    """
    vector, threads, vectors, ctas, _ = exchanged(plan).shape
    readers, bits = plan.body.readers, plan.operands.acc.bits
    index = np.arange(vector * threads * vectors * ctas * readers)
    by_thread = np.moveaxis(index.reshape(readers, ctas, vectors, threads, vector), 3, 1)
    elements = by_thread.reshape(-1, WARP_THREADS, ctas * vectors * vector)
    return [
        Access(name, "accumulators", op, elements, bits, vector * bits, "tile")
        for name, op in (("send accumulators", "st.async"), ("read accumulators", "load"))
    ]


def _written(plan: GemmPlan) -> Access:
    """Return the shared-memory access that writes a tile of D from registers, before D is stored to global memory.

    The result tells which elements each lane writes, and with which instruction. It serves to count bank conflicts.
    """
    bits, copy = plan.operands.d.dtype.bits, plan.store.stage_copy
    if copy is None:
        return Access("store D", "d", "store", stored_by_lanes(plan), bits, plan.store.atom.bits, "tile")
    (epi_stages,) = plan.store.buffers(plan)
    times = product(plan.d_tile) // product(epi_stages.tile)
    rows = by_warps(copy.offsets_d(Layout(epi_stages.tile)))
    if copy.atom.threads == WARP_THREADS:
        used = rows[:, : copy.atom.address_lanes]
        return Access("store D", "d", "stmatrix", used, bits, ROW_BITS, "tile", times=times)
    return Access("store D", "d", "store", rows, bits, copy.atom.bits, "tile", times=times)


def stored_by_lanes(plan: GemmPlan, major: str | None = None) -> np.ndarray:
    """Return which elements of a tile of D each lane stores from registers.

    The result is an integer array with axes for warps, lanes of a warp and elements of a lane: indices in the tile.

    The elements of a lane are in the order of their addresses, so that a vector consists of neighbours in D, whatever
    the order of the accumulators is.

    major   "m" or "n": majorness of another matrix with D's extents, whose addresses order the elements; None: D's
            own
    """
    bm, bn = plan.d_tile
    along_m = (major or plan.operands.d.major) == "m"
    compact = Layout((bm, bn), (1, bm) if along_m else (bn, 1))
    in_memory = np.sort(compact.offsets()[plan.stored_by_threads], axis=1)
    return by_warps(np.argsort(compact.offsets())[in_memory])


def spread_by_lanes(plan: GemmPlan, name: str) -> np.ndarray:
    """Return which elements of a broadcast epilogue operand, such as a bias, each lane reads.

    A thread reads an element once for all elements of D that it computes together.

    name      name of the operand: a row, a column or a single element
    returns   integer array with axes for warps, lanes and elements of a lane: indices in the tile of D, with
              coordinate 0 along modes that the operand does not depend on
    """
    by_part = spread_at_hand(plan, name)
    elements = np.moveaxis(by_part, 0, 1).reshape(by_part.shape[1], -1)
    if plan.operands.matrix(name).gated:  # the up projection has the same element positions as the gate
        elements = np.concatenate([elements, elements], axis=1)
    return by_warps(elements)


def core_matrices(tile: tuple[int, int], major: str, element_bits: int, extent: int | None = None) -> np.ndarray:
    """Return which elements of a tile form wgmma's core matrices, the blocks of 8 rows of 16 bytes that it reads.

    tile           extents (M, K) or (N, K) of the tile in shared memory
    major          "k": rows lie along K, one for each m or n; "mn": rows lie along M or N, one for each k
    element_bits   bits of an element
    extent         number of rows of A or columns of B, from the first one on, that are read; None: all
    returns        integer array with axes for core matrices, their 8 rows and the elements of a row: the index of each
                   element in the tile

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
    """Return the layout of a buffer of a plan in shared memory, including the mode of its stages.

    buffer   "a", "b", "d" or "accumulators"
    """
    if buffer == "accumulators":
        return exchanged(plan)
    return next(each.layout for each in plan.buffers if each.name == buffer)
