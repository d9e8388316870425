"""Index tables of a plan: its layouts evaluated for all threads.

The simulator moves all data by these tables. An element of a tile is its colexicographic index: element (m, k) of the
(bM, bK) tile of A has the index m + bM * k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cutegemm.errors import UnsupportedError
from cutegemm.layout import Layout
from cutegemm.plan.plan import GemmPlan
from cutegemm.simulator.boxes import box_tables
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.tiled_copy import make_tiled_copy_A, make_tiled_copy_B
from cutegemm.tile.tiled_mma import TiledMma
from cutegemm.tile.tma import TmaBox


@dataclass(frozen=True)
class OperandTables:
    """Index tables of A or B: what each thread copies, its place in shared memory, and what each thread reads.

    An element of a tile is written as the index m + extent * k. The copies of a tile move E elements. The fragments of
    a k-block have F registers in all threads.

    name           "A" or "B"
    modes          modes of its tile, ("m", "k") or ("n", "k")
    extent, bk     extents of its tile
    shared_elems   elements of shared memory
    shared         offset of each element in the layout of shared memory: (extent * bk, stages)
    source         element of the tile that is read: (E,), all of thread 0 first, then of thread 1, and so on; the
                   elements of an access are contiguous
    lead           first element of the same access, which decides whether the access is executed: (E,)
    dest           offset in shared memory that is written: (stages, E)
    copy_vector    elements of an access
    fragment       element of the tile that each fragment register must contain: (k_blocks, F). The F registers are
                   counted over MMA atoms along M or N, registers of an atom and threads, the threads fastest
    read           offset in shared memory that each fragment register is read from: (k_blocks, stages, F)
    accesses       offsets in shared memory that threads read: (thread, accesses, elements of one). If several threads
                   share an instruction, as in ldmatrix, the reading thread may differ from the receiving one
    delivered      elements of the tile that each thread receives by these accesses: (thread, ...)
    copy_threads   number of threads that copy
    mma_threads    number of threads that multiply
    is_async       whether cp.async or TMA copies the operand
    is_direct      whether fragments are read from global memory; then several threads read an element
    """

    name: str
    modes: tuple[str, str]
    extent: int
    bk: int
    shared_elems: int
    shared: np.ndarray
    source: np.ndarray
    lead: np.ndarray
    dest: np.ndarray
    copy_vector: int
    fragment: np.ndarray
    read: np.ndarray
    accesses: np.ndarray
    delivered: np.ndarray
    copy_threads: int
    mma_threads: int
    is_async: bool
    is_direct: bool = False

    def element(self, place: Any) -> str:
        """Return the name of an element of this operand's tile for messages, such as "A(m 2, k 1)".

        place   index of the element in the tile, the first mode fastest

        >>> from cutegemm.build import simt_plan
        >>> plan_tables(simt_plan()).a.element(130)
        'A(m 2, k 1)'
        """
        return f"{self.name}({self.modes[0]} {int(place) % self.extent}, k {int(place) // self.extent})"

    def copying_thread(self, entry: Any) -> int:
        """Return the index of the thread that copies an element of this operand's tile.

        entry   index of the element in `source`, which lists the elements thread by thread
        """
        return int(entry) // (len(self.source) // self.copy_threads)


@dataclass(frozen=True)
class PlanTables:
    """Index tables of a plan: its layouts evaluated for all threads, so that the simulator can move data by them.

    a, b       tables of A and of B
    elements   position in the (bM, bN) tile of each accumulator. Axes: MMA atoms of a thread along M, the same along N,
               registers of an atom, threads
    gather_a   (k of an MMA atom, accumulator) -> index of the register of A that the accumulator is multiplied by.
               Accumulators and registers are numbered value * threads + thread. None: accumulator i is multiplied by
               register i
    gather_b   the corresponding table for B
    """

    a: OperandTables
    b: OperandTables
    elements: np.ndarray
    gather_a: np.ndarray | None
    gather_b: np.ndarray | None


def plan_tables(plan: GemmPlan) -> PlanTables:
    """Return the index tables of a plan whose MMAs read fragments in registers: its layouts evaluated for all threads.

    raises   UnsupportedError if the MMA atom of the plan reads shared memory
    """
    mma = plan.tiled_mma
    if mma.atom.a_source != "register" or mma.atom.b_source != "register":
        raise UnsupportedError(
            f"simulate: {mma.atom.name} reads its operands from shared memory. Only plans whose atoms read registers "
            "have index tables."
        )
    return PlanTables(
        _operand(plan, "a"), _operand(plan, "b"), accumulator_elements(plan), _gather(mma, "a"), _gather(mma, "b")
    )


def accumulator_elements(plan: GemmPlan) -> np.ndarray:
    """Return which element of a CTA's MMA tile each accumulator holds, as the number m + bM * n.

    The axes of the array are: MMA atoms of a thread along M, the same along N, registers of an atom, threads. The MMA
    tile is what the CTA multiplies; if a cluster splits K, it is larger than the CTA's tile of D.

    >>> from cutegemm.build import sm90_plan
    >>> accumulator_elements(sm90_plan()).shape  # 2 x 1 MMAs of 64 x 128 by 128 threads
    (2, 1, 64, 128)
    """
    bm, bn, _ = plan.mma_tile
    return np.ascontiguousarray(plan.tiled_mma.offsets_c(Layout((bm, bn))).transpose(2, 3, 1, 0))


def stored_elements(plan: GemmPlan) -> np.ndarray:
    """Return which element of D's tile each accumulator holds when it is stored, as the number m + bM * n.

    The axes of the array are: MMA atoms of a thread along M, the same along N, registers of an atom, threads.
    """
    table = plan.epilogue_mma.offsets_c(Layout(plan.cta_tile[:2]))
    return np.ascontiguousarray(table.transpose(2, 3, 1, 0))


def _operand(plan: GemmPlan, name: str) -> OperandTables:
    """Return the index tables of A or of B: the layouts of its copies and fragments, evaluated for all threads.

    name   "a" or "b"
    """
    mma, bk = plan.tiled_mma, plan.cta_tile[2]
    extent = plan.mma_tile[0 if name == "a" else 1]
    smem, load = plan.stream(name).smem, plan.stream(name).load
    if plan.stages == 0:  # the tile in global memory takes the role of a single stage
        smem = Layout((extent, bk, 1))
    offsets = mma.offsets_a if name == "a" else mma.offsets_b
    tile = Layout((extent, bk))

    if isinstance(load, TmaBox):
        modes = ("m" if name == "a" else "n", "k")
        inner = 1 if getattr(plan.loaded, name).major == "k" else 0
        boxes = box_tables(name.upper(), modes, load, smem, (extent, bk), inner)
        source, dest, vector = boxes.index[None, :, None, None], boxes.dest[:, None, :, None, None], 1
        is_async = True
    else:
        source = load.offsets_s(tile).transpose(0, 2, 3, 1)  # (thread, rest_mn, rest_k, value)
        dest, vector = load.offsets_d(smem).transpose(4, 0, 2, 3, 1), load.atom.values
        is_async = load.atom.is_async
    first = np.arange(source.shape[3]) // vector * vector
    fragment = offsets(tile).transpose(3, 2, 1, 0)  # (rest_k, rest_mn, value, thread)
    read = offsets(smem).transpose(3, 4, 2, 1, 0)
    shared = smem.offsets().reshape((extent * bk, -1), order="F")
    accesses, delivered = _accesses(plan, name, tile, read, fragment)
    everywhere = [shared, dest, read, accesses]
    low = min(0, *[int(t.min()) for t in everywhere])
    high = max(int(t.max()) for t in everywhere)
    return OperandTables(
        name=name.upper(),
        modes=("m" if name == "a" else "n", "k"),
        extent=extent,
        bk=bk,
        shared_elems=high + 1 - low,
        shared=shared - low,
        source=source.reshape(-1),
        lead=source[..., first].reshape(-1),
        dest=dest.reshape(dest.shape[0], -1) - low,
        copy_vector=vector,
        fragment=fragment.reshape(fragment.shape[0], -1),
        read=read.reshape(*read.shape[:2], -1) - low,
        accesses=accesses - low,
        delivered=delivered,
        copy_threads=source.shape[0],
        mma_threads=mma.threads,
        is_async=is_async,
        is_direct=plan.stages == 0,
    )


def _accesses(
    plan: GemmPlan, name: str, tile: Layout, read: np.ndarray, fragment: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return how threads read fragments of A or B: shared-memory offsets of each access, and what each thread receives.

    name       "a" or "b"
    tile       layout of the operand's tile: coordinates -> position
    read       shared-memory offset of each fragment register. Axes: k-blocks, stages, MMA atoms along M or N, registers
               of an atom, threads
    fragment   position in the tile of each fragment register. Axes: as for `read`, without stages
    returns    (offsets, positions). Offsets in shared memory have the axes threads, accesses, elements of an access.
               Positions in the tile have the axes threads, elements in the order of the accesses
    """
    stream: Any = plan.stream(name)
    atom: CopyAtom = stream.read or stream.load.atom
    threads = plan.tiled_mma.threads
    if atom.threads == 1:
        entries = read.shape[2] * read.shape[3]
        # An access across k-blocks is reported as not contiguous. Fragments from global memory use the copy's accesses.
        vector = 1 if plan.body.slices_k else atom.values if entries % atom.values == 0 else entries
        by_thread = read.transpose(4, 0, 1, 2, 3).reshape(threads, -1, vector)
        return by_thread, fragment.transpose(3, 0, 1, 2).reshape(threads, -1)
    copy = (make_tiled_copy_A if name == "a" else make_tiled_copy_B)(atom, plan.tiled_mma)
    source = copy.offsets_s(plan.stream(name).smem)
    row = atom.aligned_bytes * 8 // atom.dtype.bits
    rows = np.moveaxis(source, 1, -1).reshape(threads, -1, row)
    return rows, copy.offsets_d(tile).reshape(threads, -1)


def _gather(mma: TiledMma, operand: str) -> np.ndarray | None:
    """Return which register of A or B each accumulator of an MMA atom is multiplied by, for each k of the atom.

    Registers and accumulators of all threads are numbered value * threads + thread.

    mma       the tiled MMA
    operand   "a" or "b"
    returns   array (k of the atom, accumulators) of register numbers; None if accumulator i is multiplied by register i
    """
    atom = mma.atom
    place = {"a": 0, "b": 1}[operand]
    extent, deep = atom.shape_mnk[place], atom.shape_mnk[2]
    lane_of, value_of = _holder(atom, operand)
    in_c = _table(atom, "c")  # (lane, value) -> m + M * n
    row = in_c % atom.shape_mnk[0] if operand == "a" else in_c // atom.shape_mnk[0]

    thread_at = _thread_table(mma)
    lane, m, n, k = (np.asarray(c) for c in mma.thr_coord(np.arange(mma.threads)))
    wanted = row[lane].T  # (value of C, thread)
    out = []
    for step in range(deep):
        element = wanted + extent * step
        threads = thread_at[lane_of[element], m, n, k]
        out.append((value_of[element] * mma.threads + threads).reshape(-1))
    table = np.stack(out)
    return None if deep == 1 and (table[0] == np.arange(table.shape[1])).all() else table


def _table(atom: MmaAtom, operand: str) -> np.ndarray:
    """Return the thread-value layout of an MMA atom as an array (lanes, values) of positions in the atom's tile.

    operand   "a", "b" or "c"
    """
    layout = atom.layout_tv(operand)
    return layout.offsets().reshape((layout[0].size(), layout[1].size()), order="F")


def _holder(atom: MmaAtom, operand: str) -> tuple[np.ndarray, np.ndarray]:
    """Invert an MMA atom's thread-value layout: find a lane and a value index that hold each element of its tile.

    operand   "a", "b" or "c"
    returns   (lane of each element, value index of each element): two arrays over the positions in the tile
    """
    table = _table(atom, operand)
    elements = int(table.max()) + 1
    lane, value = np.zeros(elements, np.int64), np.zeros(elements, np.int64)
    lanes, values = np.indices(table.shape)
    lane[table], value[table] = lanes, values
    return lane, value


def _thread_table(mma: TiledMma) -> np.ndarray:
    """Return which thread of a tiled MMA computes each MMA atom: an array with the axes (lane of the atom, m, n, k).

    The threads cover a grid of atoms at once; m, n and k are the coordinates of an atom in that grid.

    mma   the tiled MMA
    """
    layout = mma.thr_layout_vmnk
    return layout.offsets().reshape([layout[mode].size() for mode in range(4)], order="F")
