"""Checks of the index tables of a plan, before any data are moved.

Each element of a tile is followed from global memory through shared memory and a fragment to the accumulators. All
k-tiles and all CTAs use the same tables, so one k-tile is checked.
"""

from __future__ import annotations

import numpy as np

from cutegemm.plan.plan import GemmPlan
from cutegemm.simulator.report import Report
from cutegemm.simulator.tables import OperandTables, PlanTables


def check_tables(plan: GemmPlan, tables: PlanTables, report: Report) -> None:
    """Report elements of A and B that do not arrive once and at the right place in the MMAs, and misaligned accesses.

    It follows each element from the copy to shared memory and the read of fragments to the multiplication.

    plan     plan whose MMAs read registers, such as mma.sync
    tables   index tables of the plan: its layouts evaluated for all threads
    report   collects the faults
    """
    for operand in (tables.a, tables.b):
        _shared(operand, report)
        _copied(operand, report)
        _fragments(operand, report)
        _copy_accesses(operand, report)
        _read_accesses(operand, report)
    _products(plan, tables, report)
    _sums(plan, tables, report)


def _shared(t: OperandTables, report: Report) -> None:
    """Report pairs of elements of A's or B's tile that have the same offset in shared memory.

    report   collects the faults
    t        index tables of the operand
    """
    elements = t.shared.shape[0]
    offsets = t.shared.T.reshape(-1)
    order = np.argsort(offsets, kind="stable")
    again = np.flatnonzero(offsets[order][1:] == offsets[order][:-1])

    def describe(position: int) -> str:
        first, second = (f"{t.element(i % elements)} of stage {i // elements}" for i in order[position : position + 2])
        return f"{first} and {second} have the same offset {offsets[order[position]]} in shared memory."

    report.add_each("shared", again, describe)


def _copied(t: OperandTables, report: Report) -> None:
    """Report elements that no thread copies, offsets of a stage that are written twice, and writes outside of it.

    report   collects the faults
    t        index tables of A or B
    """
    moved = np.bincount(t.source, minlength=t.extent * t.bk)
    report.add_each(
        "copy",
        np.flatnonzero(moved == 0),
        lambda place: f"{t.element(place)} of a tile is copied by no thread.",
    )
    for stage, dest in enumerate(() if t.is_direct else t.dest):
        times = np.bincount(dest, minlength=t.shared_elems)

        def writers(offset: int, stage: int = stage, dest: np.ndarray = dest) -> str:
            entries = np.flatnonzero(dest == offset)
            who = " and ".join(f"thread {t.copying_thread(e)} with {t.element(t.source[e])}" for e in entries[:4])
            return f"offset {offset} of shared memory is written {len(entries)} times in stage {stage}: by {who}."

        report.add_each("copy", np.flatnonzero(times > 1), writers)
        own = np.zeros(t.shared_elems, bool)
        own[t.shared[:, stage]] = True

        def stray(entry: int, stage: int = stage, dest: np.ndarray = dest) -> str:
            what = f"thread {t.copying_thread(entry)} writes {t.element(t.source[entry])}"
            return f"{what} to offset {dest[entry]}, which is not in stage {stage}."

        report.add_each("copy", np.flatnonzero(~own[dest]), stray)


def _fragments(t: OperandTables, report: Report) -> None:
    """Report fragment registers that a thread fills from a shared-memory offset with another element, or with none.

    report   collects the faults
    t        index tables of A or B
    """
    for stage, dest in enumerate(t.dest):
        labels = np.full(t.shared_elems, -1)
        labels[dest] = t.source
        copied = labels[t.read[:, stage]]  # (k_blocks, F)
        holes, wrong = copied < 0, (copied >= 0) & (copied != t.fragment)

        def describe(at: np.ndarray, stage: int = stage, copied: np.ndarray = copied) -> str:
            k_block, entry = (int(x) for x in at)
            who = f"thread {entry % t.mma_threads} reads offset {t.read[k_block, stage, entry]} of stage {stage}"
            wanted = t.element(t.fragment[k_block, entry])
            holds = "where nothing is copied" if copied[tuple(at)] < 0 else f"where {t.element(copied[tuple(at)])} is"
            return f"{who} for {wanted}, {holds}."

        report.add_each("hole", np.argwhere(_if_any(holes)), describe)
        report.add_each("fragment", np.argwhere(_if_any(wrong)), describe)


def _if_any(mask: np.ndarray) -> np.ndarray:
    """Return the mask if it has a true element, else a mask without entries, which is faster to search."""
    return mask if mask.any() else mask[:0]


def _copy_accesses(t: OperandTables, report: Report) -> None:
    """Report vectors of cp.async that are not contiguous and aligned in shared memory.

    A copy through registers is not checked: its stores may be narrower than its loads.

    report   collects the faults
    t        index tables of A or B
    """
    if t.is_async and t.copy_vector > 1:
        for stage, dest in enumerate(t.dest):
            accesses = dest.reshape(-1, t.copy_vector)

            def torn(access: int, stage: int = stage, accesses: np.ndarray = accesses) -> str:
                return (
                    f"thread {t.copying_thread(access * t.copy_vector)} copies {t.copy_vector} elements of "
                    f"{t.name} at once to {_offsets(accesses[access])} of stage {stage}, which are not "
                    f"{t.copy_vector} contiguous, aligned elements."
                )

            report.add_each("alignment", np.flatnonzero(misplaced(accesses)), torn)


def _read_accesses(t: OperandTables, report: Report) -> None:
    """Report fragment reads that are misaligned, or that give a thread other elements than its MMA multiplies.

    report   collects the faults
    t        index tables of A or B
    """
    bad = misplaced(t.accesses)

    def torn(at: np.ndarray) -> str:
        thread, access = (int(x) for x in at)
        places = t.accesses[thread, access]
        return (
            f"thread {thread} reads {len(places)} elements of {t.name} at once from {_offsets(places)}, which "
            f"are not {len(places)} contiguous, aligned elements."
        )

    report.add_each("alignment", np.argwhere(_if_any(bad)), torn)
    wanted = np.sort(t.fragment.reshape(-1, t.mma_threads).T, axis=1)
    delivered = np.sort(t.delivered, axis=1)
    if wanted.shape != delivered.shape:
        report.add(
            "fragment",
            f"a thread reads {delivered.shape[1]} elements of {t.name}, but multiplies {wanted.shape[1]}.",
        )
        return
    wrong = np.flatnonzero((wanted != delivered).any(axis=1))

    def mistaken(thread: int) -> str:
        lost = np.setdiff1d(wanted[thread], delivered[thread])
        what = t.element(lost[0]) if len(lost) else "an element twice"
        return f"thread {thread} multiplies {what}, which it does not read."

    report.add_each("fragment", wrong, mistaken)


def misplaced(accesses: np.ndarray) -> np.ndarray:
    """Return a boolean array (...) that is true for each access whose elements are not contiguous and aligned.

    An access of n elements must have the offsets f, f + 1, ..., f + n - 1, where f is a multiple of n.

    accesses   offsets of the elements of each access: (..., n)

    >>> misplaced(np.array([[4, 5, 6, 7], [2, 3, 4, 5], [0, 2, 4, 6]])).tolist()
    [False, True, True]
    """
    first = accesses[..., 0]
    together: np.ndarray = (accesses - first[..., None] == np.arange(accesses.shape[-1])).all(axis=-1)
    return ~together | (first % accesses.shape[-1] != 0)


def _offsets(offsets: np.ndarray) -> str:
    """Return a list of shared-memory offsets as text for messages, such as "offsets 0, 1, 2"."""
    return "offsets " + ", ".join(str(int(o)) for o in offsets)


def _products(plan: GemmPlan, tables: PlanTables, report: Report) -> None:
    """Report accumulators that do not add A(m, k) * B(n, k) exactly once for each k of a k-tile.

    Here m and n are the row and column of the accumulator in the CTA's tile.

    report   collects the faults
    tables   index tables of the plan: its layouts evaluated for all threads
    """
    bm, bn, bk = plan.mma_tile
    a, b = tables.a, tables.b
    rest_m, rest_n, values, threads = tables.elements.shape
    elements = tables.elements.reshape(rest_m, rest_n, values * threads)
    k_of_a, k_of_b = [], []
    for k_block in range(a.fragment.shape[0]):
        ids_a, ids_b = (
            _multiplied(t.fragment[k_block], rest, gather)
            for t, rest, gather in ((a, rest_m, tables.gather_a), (b, rest_n, tables.gather_b))
        )
        for step in range(ids_a.shape[0]):
            factor_a, factor_b = ids_a[step][:, None, :], ids_b[step][None, :, :]
            wrong = (
                (factor_a % bm != elements % bm)
                | (factor_b % bn != elements // bm)
                | (factor_a // bm != factor_b // bn)
            )

            def describe(
                at: np.ndarray,
                k_block: int = k_block,
                a_element: np.ndarray = ids_a[step],
                b_element: np.ndarray = ids_b[step],
            ) -> str:
                m, n, entry = (int(x) for x in at)
                place = int(elements[m, n, entry])
                return (
                    f"thread {entry % threads} adds {a.element(a_element[m, entry])} * "
                    f"{b.element(b_element[n, entry])} to D(m {place % bm}, n {place // bm}) in k-block "
                    f"{k_block}."
                )

            report.add_each("product", np.argwhere(_if_any(wrong)), describe)
        k_of_a.append(ids_a // bm)
        k_of_b.append(ids_b // bn)
    for t, ks in ((a, k_of_a), (b, k_of_b)):
        steps = np.concatenate(ks)  # (k, rest, value * thread)
        if plan.body.slices_k:  # each warp multiplies some of the k
            split = steps.reshape(*steps.shape[:2], values, plan.body.k_warps, -1)
            steps = np.moveaxis(split, 3, 1).reshape(-1, steps.shape[1], values * threads // plan.body.k_warps)
        ordered = np.sort(steps, axis=0)
        complete = steps.shape[0] == bk and (ordered == np.arange(bk)[:, None, None]).all()
        if not complete:
            report.add("product", f"a thread does not multiply each k of {t.name}'s tile, 0 to {bk - 1}, exactly once.")


def _multiplied(fragment: np.ndarray, rest: int, gather: np.ndarray | None) -> np.ndarray:
    """Return which element of A's (or B's) tile each accumulator is multiplied by, for each k of an MMA atom.

    fragment   position in the tile of each fragment register, for one k-block. Axes: MMA atoms of a thread along M (for
               A) or N (for B); registers of an atom; threads
    rest       number of these MMA atoms
    gather     for each k, the index of the register that accumulator i is multiplied by, where registers are numbered
               value * threads + thread; None: register i
    returns    positions in the tile. Axes: k of the atom; MMA atoms; accumulators of an atom in all threads
    """
    entries = fragment.reshape(rest, -1)
    return entries[None] if gather is None else np.stack([entries[:, g] for g in gather])


def _sums(plan: GemmPlan, tables: PlanTables, report: Report) -> None:
    """Report elements of a CTA's tile that are accumulated too rarely or too often.

    Each element needs one accumulator or, if the warps of a CTA split K, one in each of these warps.

    report   collects the faults
    tables   index tables of the plan: its layouts evaluated for all threads
    """
    bm, bn, _ = plan.mma_tile
    expected = plan.body.k_warps
    times = np.bincount(tables.elements.reshape(-1), minlength=bm * bn)

    def describe(place: int) -> str:
        who = np.unique(np.flatnonzero(tables.elements.reshape(-1) == place) % tables.elements.shape[3])
        by = f", by threads {', '.join(str(t) for t in who[:4])}" if len(who) else ""
        return f"D(m {place % bm}, n {place // bm}) of a tile is accumulated {times[place]} times{by}."

    report.add_each("result", np.flatnonzero(times != expected), describe)
