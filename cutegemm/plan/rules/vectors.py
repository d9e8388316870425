"""Rules for vector accesses: the elements of an access must be adjacent and aligned, in source and destination."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cutegemm.errors import LayoutError, PlanError
from cutegemm.layout import ComposedLayout, Layout, product_each, select, size
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import SMEM_MAX_ALIGN_BYTES
from cutegemm.plan.warp_roles import warp_roles
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_A, make_tiled_copy_B
from cutegemm.tile.tiled_mma import TiledMma

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand
    from cutegemm.plan.shared import SharedLayout
    from cutegemm.plan.warp_roles import WarpRoles
    from cutegemm.tile.atoms import CopyAtom
    from cutegemm.tile.tma import TmaBox


def vector_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each vector access of a plan whose elements are not adjacent and aligned.

    The shapes of the layouts must have been checked before.
    """
    (bm, bn, bk), mma = plan.mma_tile, plan.tiled_mma
    for name, tile, layout, copy, read, operand in (
        ("A", (bm, bk), plan.a.smem, plan.a.load, plan.a.read, plan.loaded.a),
        ("B", (bn, bk), plan.b.smem, plan.b.load, plan.b.read, plan.loaded.b),
    ):
        yield from _of_operand(name, tile, layout, copy, read, operand, mma)
    yield from _in_words("the stores of D", _stored_vector(plan))
    yield from _copied_vector(plan)
    if plan.body.has_roles:
        yield from _in_words("the accesses to epilogue stages", _epi_stage_vectors(plan))
        yield from _in_words("the accumulators of the consumers", _consumed(plan, warp_roles(plan)))


def _in_words(what: str, rules: Iterator[str], instead: str = "") -> Iterator[str]:
    """Yield some violations; if a layout error occurs on the way, yield a sentence for it instead of the rest.

    A LayoutError means that a layout does not divide into the vectors of an access.

    what      the accesses, as the subject of the sentence
    rules     the violations, evaluated lazily
    instead   advice that is added for a LayoutError
    """
    try:
        yield from rules
    except LayoutError as error:
        yield f"{what} do not divide into the vectors of a thread{instead}: {error}"


@lru_cache(maxsize=4096)
def _of_operand(
    name: str,
    tile: tuple[int, int],
    layout: SharedLayout,
    copy: TiledCopy | TmaBox,
    read: CopyAtom | None,
    operand: Operand,
    mma: TiledMma,
) -> tuple[str, ...]:
    """Return a sentence for each access of A or B whose elements are not adjacent and aligned.

    It is cached, because many plans have the same accesses.

    name      "A" or "B"
    tile      extents (M or N, K) of the tile
    layout    layout of the stages in shared memory
    copy      copy of the tile from global to shared memory
    read      copy atom that reads fragments from shared memory; None if the MMA reads shared memory itself
    operand   element type, majorness and alignment of the matrix
    mma       tiled MMA, which says which fragments a thread reads
    """
    rules = _operand_vectors(name, tile, layout, copy, read, operand, mma)
    return tuple(_in_words(f"the accesses to {name}", rules))


def _operand_vectors(
    name: str,
    tile: tuple[int, int],
    layout: SharedLayout,
    copy: TiledCopy | TmaBox,
    read: CopyAtom | None,
    operand: Operand,
    mma: TiledMma,
) -> Iterator[str]:
    """Yield a sentence for each access of A or B whose elements are not adjacent and aligned.

    These are loads from global memory, writes to shared memory and reads of fragments.

    name      "A" or "B"
    tile      extents (M or N, K) of the tile
    layout    layout of its stages in shared memory
    copy      loads the tile from global memory
    read      reads fragments from shared memory; None if no threads do
    operand   majorness and alignment in global memory
    mma       tiled MMA, which says which fragments a thread reads
    """
    modes = (name.replace("A", "m").replace("B", "n"), "k")
    bits = operand.dtype.bits
    if isinstance(copy, TiledCopy):
        yield from _global_vector(name, copy, operand, modes, tile)
        places = copy.offsets_d(layout)  # raises no LayoutError, as the copy divides the layout
        if copy.atom.is_async and copy.atom.bits > bits:
            yield from _shared_vector(f"the copy of {name} writes", places, copy.atom.bits, bits)
    if read is not None:
        yield from _of_fragments(name, layout, read, bits, mma)


@lru_cache(maxsize=1024)
def _of_fragments(name: str, layout: SharedLayout, read: CopyAtom, bits: int, mma: TiledMma) -> tuple[str, ...]:
    """Return a sentence for each read of fragments of A or B whose elements are not adjacent and aligned.

    It is cached: the result does not depend on the alignment of the matrix, so it serves many plans.

    name     "A" or "B"
    layout   layout of the stages in shared memory
    read     copy atom that reads the fragments
    bits     size of an element
    mma      tiled MMA, which says which fragments a thread reads
    """
    return tuple(_in_words(f"the accesses to {name}", _fragment_vectors(name, layout, read, bits, mma)))


def _fragment_vectors(name: str, layout: SharedLayout, read: CopyAtom, bits: int, mma: TiledMma) -> Iterator[str]:
    """Yield a sentence if threads read fragments of A or B in vectors that are not adjacent and aligned.

    name     "A" or "B"
    layout   layout of the stages in shared memory
    read     copy atom that reads the fragments
    bits     size of an element
    mma      tiled MMA, which says which fragments a thread reads
    """
    try:
        fragments = (make_tiled_copy_A if name == "A" else make_tiled_copy_B)(read, mma)
    except PlanError as error:  # the vectors do not divide the fragments
        yield from (f"{read.name} cannot read {name}: {rule}." for rule in error.violations)
        return
    if not fragments.retiles_in_element_order:
        yield (
            f"{read.name} reads {name} for {mma}, whose permutation reverses the order of a thread's elements; "
            "kernels need fragments in element order."
        )
    if read.threads > 1:
        rows = fragments.offsets_s(layout)
        row_bits = 8 * read.aligned_bytes
        yield from _shared_vector(f"{read.name} reads rows of {name}", rows, row_bits, bits)
    elif read.bits > bits:
        held = mma.offsets_a(layout) if name == "A" else mma.offsets_b(layout)
        yield from _shared_vector(f"the fragments of {name} are read", held, read.bits, bits)


def _epi_stage_vectors(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each copy between registers and epilogue stages (shared memory) that is not correct.

    It must copy each element of an epilogue tile exactly once, in aligned vectors.
    """
    store, epi_tile, threads = plan.store, plan.store.tile(plan), warp_roles(plan).consumer_threads
    layout, to_shared, from_shared = store.layout, store.stage_copy, store.from_shared
    if layout is None or product_each(layout.shape) != store.smem_extents(plan):
        return  # D is stored from registers, or the rules of the store report it
    for name, copy in (("written", to_shared), ("read", from_shared)):
        if copy is None:
            continue
        if copy.threads != threads:
            yield f"epilogue stages are {name} by {copy.threads} threads, {copy}; a consumer has {threads} threads."
        elif any(extent % size(step) for extent, step in zip(epi_tile, copy.tiler_mn, strict=True)):
            yield f"epilogue stages are {name} by {copy}, which does not divide an epilogue tile of {_by(epi_tile)}."
        else:
            yield from _moved_once(name, copy, epi_tile)
            yield from _aligned_in_epi_stages(name, copy, layout)
    if to_shared is not None and from_shared is not None and from_shared.layout_tv != to_shared.layout_tv:
        yield (
            f"epilogue stages are written by {to_shared}, but C is read from them by {from_shared}. Use the same "
            "layout of threads and values for both."
        )


@lru_cache(maxsize=1024)
def _moved_once(name: str, copy: TiledCopy, epi_tile: tuple[int, int]) -> tuple[str, ...]:
    """Return a sentence if a copy between registers and an epilogue stage does not move each element exactly once.

    Elements are counted in the source and in the destination.

    name       "written" or "read", for the messages
    copy       the tiled copy
    epi_tile   extents of the epilogue tile
    """
    rows, out = epi_tile[0], []
    for what, offsets, space in (
        ("read", copy.offsets_s(Layout(epi_tile)), copy.atom.src),
        ("write", copy.offsets_d(Layout(epi_tile)), copy.atom.dst),
    ):
        if space == "shared":  # in shared memory, only some lanes supply addresses
            by_warps = offsets.reshape(-1, copy.atom.threads, offsets.size // copy.threads)
            offsets = by_warps[:, : copy.atom.address_lanes]
        counted = np.bincount(offsets.reshape(-1).astype(np.intp, copy=False), minlength=product(epi_tile))
        if (counted != 1).any():
            at = int(np.flatnonzero(counted != 1)[0])
            out.append(
                f"epilogue stages are {name} by {copy}; its threads {what} the element ({at % rows}, "
                f"{at // rows}) of an epilogue tile of {_by(epi_tile)} {counted[at]} times instead of once."
            )
    return tuple(out)


@lru_cache(maxsize=1024)
def _aligned_in_epi_stages(name: str, copy: TiledCopy, layout: SharedLayout) -> tuple[str, ...]:
    """Return a sentence if the elements that an instruction copies are not adjacent and aligned in an epilogue stage.

    name     "written" or "read", for the messages
    copy     the tiled copy to or from the stage
    layout   layout of the stages in shared memory
    """
    bits = copy.atom.dtype.bits
    if 8 * copy.atom.aligned_bytes <= bits:
        return ()
    one = _one_epi_stage(layout, bits)
    offsets = copy.offsets_d(one) if name == "written" else copy.offsets_s(one)
    return tuple(
        _shared_vector(f"{copy.atom} accesses epilogue stages in rows of", offsets, 8 * copy.atom.aligned_bytes, bits)
    )


def _copied_vector(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each rule that the vector copies of D from shared to global memory break."""
    for buffer in plan.store.buffers(plan):
        if plan.store.line_copy is not None:
            yield from _of_lines(plan.store.line_copy, plan.operands.d, buffer.tile, buffer.layout)


@lru_cache(maxsize=1024)
def _of_lines(copy: TiledCopy, operand: Operand, tile: tuple[int, int], layout: SharedLayout) -> tuple[str, ...]:
    """Return a sentence if vectors of the copy of D from shared to global memory are not adjacent and aligned; else ().

    It is cached, because many plans have the same copies.

    copy      the tiled copy
    operand   D: its majorness and alignment
    tile      extents of the tile
    layout    layout of the tile in shared memory
    """
    rules = _line_vectors(copy, operand, tile, layout)
    what = "the copies of D from shared to global memory"
    return tuple(_in_words(what, rules, " (store = 'direct' has no such copies)"))


def _line_vectors(copy: TiledCopy, operand: Operand, tile: tuple[int, int], layout: SharedLayout) -> Iterator[str]:
    """Yield a sentence if vectors of the copy of a tile of D from shared to global memory are not adjacent and aligned.

    copy      the tiled copy
    operand   D: its majorness and alignment
    tile      extents of the tile
    layout    layout of the tile in shared memory
    """
    bits = operand.dtype.bits
    yield from _global_vector("D", copy, operand, ("m", "n"), tile, "stored")
    places = copy.offsets_s(layout)  # raises no LayoutError, as the copy divides the layout
    if copy.atom.bits > bits:
        yield from _shared_vector("the copy of D reads", places, copy.atom.bits, bits)


def _stored_vector(plan: GemmPlan) -> Iterator[str]:
    """Yield violations of the vector stores of D from registers.

    The elements of a store must be adjacent along D's contiguous mode and aligned, also in shared memory if D passes
    through it.
    """
    store, operand = plan.store.atom, plan.operands.d
    count = store.bits // operand.dtype.bits
    if plan.store.stage_copy is not None or count <= 1:
        return
    if plan.glu is not None:
        yield from _gates_stored(plan)
        return
    yield from _accumulators_stored(store, operand, plan.cta_tile[:2], plan.epilogue_mma, plan.store.layout)


@lru_cache(maxsize=1024)
def _accumulators_stored(
    store: CopyAtom, operand: Operand, tile: tuple[int, int], mma: TiledMma, layout: SharedLayout | None
) -> tuple[str, ...]:
    """Return a sentence if threads store accumulators in vectors that are not adjacent and aligned. Cached.

    store     copy atom of a vector
    operand   D: its majorness and alignment
    tile      extents of the tile of D
    mma       tiled MMA, which says which accumulators a thread has
    layout    layout of the tile in shared memory; None if the store is to global memory
    """
    bm, bn = tile
    offsets = mma.offsets_c(Layout(tile, (1, bm) if operand.major == "m" else (bn, 1)))
    by_thread = offsets.reshape(offsets.shape[0], -1)
    if layout is None:
        return tuple(_stored_at_once(store, operand, np.sort(by_thread, axis=1), "a thread does not hold"))
    placed = mma.offsets_c(layout).reshape(by_thread.shape)
    in_order = np.take_along_axis(placed, np.argsort(by_thread, axis=1), axis=1)
    return tuple(_shared_vector("the accumulators are written", in_order, store.bits, operand.dtype.bits))


def _gates_stored(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence if a gated D (GLU) is stored in vectors that are not adjacent and aligned.

    An element of D is stored by the thread and register that have its gate.
    """
    store, operand, (bm, bn) = plan.store.atom, plan.operands.d, plan.d_tile
    held = plan.stored_by_threads
    place = np.sort(held if operand.major == "m" else held % bm * bn + held // bm, axis=1)
    if plan.store.layout is not None:
        rows, columns = (place % bm, place // bm) if operand.major == "m" else divmod(place, bn)
        place = plan.store.layout.offsets().reshape(-1)[rows + bm * columns]
        yield from _shared_vector("the accumulators are written", place, store.bits, operand.dtype.bits)
        return
    yield from _stored_at_once(store, operand, place, "a thread's gates are not")


def _stored_at_once(store: CopyAtom, operand: Operand, places: np.ndarray, but: str) -> Iterator[str]:
    """Yield a sentence if the elements of a vector store are not adjacent and aligned in D.

    store     copy atom of a vector
    operand   D: its majorness and alignment
    places    (threads, values): offsets in a compact tile of D, sorted for each thread
    but       subject and verb of the message, such as "a thread does not hold"
    """
    count = store.bits // operand.dtype.bits
    if store.bits > 8 * operand.align_bytes:
        yield (
            f"D is stored {store.bits} bits at a time, but is aligned to {operand.align_bytes} bytes only. "
            f"Store {8 * operand.align_bytes} bits at a time, or align D."
        )
    runs = places.reshape(places.shape[0], -1, count)
    if (runs - runs[:, :, :1] != np.arange(count)).any() or (runs[:, :, 0] % count).any():
        yield (
            f"D, which is {operand.major}-major, is stored {store.bits} bits at a time, but {but} {count} "
            "adjacent, aligned elements of it."
        )


def _consumed(plan: GemmPlan, pipeline: WarpRoles) -> Iterator[str]:
    """Yield a sentence if the tiled MMA does not give each consumer a rectangle of the CTA's tile, in store order.

    Cases that other rules report are skipped.
    """
    mma, (bm, bn, _), (rows, columns) = plan.tiled_mma, plan.cta_tile, pipeline.consumer_tile
    along_n = mma.permutation_mnk[1]
    by_warps = not mma.atom.is_of_warpgroup
    if by_warps and (not isinstance(along_n, Layout) or len(along_n) != 3 or len(along_n[1].flat()[0]) != 1):
        return  # reported by the other rules of warps
    if mma.threads != pipeline.consumer_threads * pipeline.readers or bm % rows or bn % columns:
        return
    if bm // rows * (bn // columns) != pipeline.readers:
        return
    to_shared, epi_tile = plan.store.stage_copy, plan.store.tile(plan)
    if to_shared is not None:
        steps = [size(step) for step in to_shared.tiler_mn]
        fits = [s % t == 0 == o % s for o, s, t in zip(plan.consumer_d_tile, epi_tile, steps, strict=True)]
        if not all(fits) or to_shared.threads != pipeline.consumer_threads:
            return
    own_mma = plan.consumer_mma
    if mma != own_mma or (bm, bn) != (rows, columns):
        yield from _shared_out(mma, own_mma, (bm, bn), (rows, columns), plan.piece_n)
    if to_shared is not None:
        yield from _stored_in_order(plan.consumer_d_mma, plan.consumer_d_tile, to_shared, epi_tile, by_warps)


def _one_epi_stage(layout: SharedLayout, bits: int) -> SharedLayout:
    """Return the layout of the first epilogue stage if all stages are alike, otherwise the layout of all, for checks.

    Stages are alike if each starts at a multiple of 1024 bytes, the longest period of a swizzle.

    layout   layout (rows, columns, stages, consumers) of the epilogue stages
    bits     size of an element
    """
    outer = layout.outer if isinstance(layout, ComposedLayout) else layout
    copies = [stride for mode in range(2, len(outer)) for stride in outer[mode].flat()[1]]
    if any(stride * bits % (8 * SMEM_MAX_ALIGN_BYTES) for stride in copies):
        return layout
    first = select(outer, [0, 1])
    return layout.with_outer(first) if isinstance(layout, ComposedLayout) else first


@lru_cache(maxsize=1024)
def _shared_out(
    mma: TiledMma, own_mma: TiledMma, tile: tuple[int, int], own_tile: tuple[int, int], piece: int
) -> tuple[str, ...]:
    """Return a sentence if the consumers that share a CTA tile do not each accumulate a rectangle of it; () if they do.

    mma, own_mma     the tiled MMA of all consumers together, and of a single one
    tile, own_tile   extents of the tile of the CTA, and of a consumer
    piece            number of a consumer's columns that are adjacent in the CTA tile
    """
    (bm, bn), (rows, columns) = tile, own_tile
    summed = mma.offsets_c(Layout(tile))  # (threads, values, rest_m, rest_n)
    own = own_mma.offsets_c(Layout(own_tile))
    across = bn // columns
    consumer = np.arange(bm // rows * across)[:, None, None, None, None]
    column = own // rows
    of_n = consumer % across * piece + column // piece * (piece * across) + column % piece
    expected = consumer // across * rows + own % rows + bm * of_n
    if expected.size != summed.size or (expected.reshape(summed.shape) != summed).any():
        return (
            f"the consumers of a {bm} x {bn} tile do not each accumulate a rectangle of {rows} x {columns}, as "
            f"{own_mma} does: the tiled MMA is {mma}.",
        )
    return ()


@lru_cache(maxsize=1024)
def _stored_in_order(
    own_mma: TiledMma, own_tile: tuple[int, int], to_epi_stage: TiledCopy, epi_tile: tuple[int, int], by_warps: bool
) -> tuple[str, ...]:
    """Return a sentence if the copy to epilogue stages does not take a consumer's accumulators in register order.

    own_mma, own_tile        tiled MMA of a consumer, and extents of its tile
    to_epi_stage, epi_tile   copy to an epilogue stage (shared memory), and extents of an epilogue tile
    by_warps                 True if a consumer is a warp, whose registers are ordered epilogue tile by epilogue tile
    """
    rows, columns = own_tile
    own = own_mma.offsets_c(Layout(own_tile))  # (threads, values, rest_m, rest_n)
    if by_warps:
        atoms = [
            size(step) // extent for step, extent in zip(to_epi_stage.tiler_mn, own_mma.atom.shape_mnk, strict=False)
        ]
        threads, values, rest_m, rest_n = own.shape
        if rest_m % atoms[0] or rest_n % atoms[1]:
            return (f"{to_epi_stage} does not copy whole atoms of the accumulators of {own_mma}.",)
        split = own.reshape((threads, values, atoms[0], rest_m // atoms[0], atoms[1], -1), order="F")
        own = split.transpose(0, 1, 2, 4, 5, 3)
    held = own.reshape(own.shape[0], -1, order="F")
    stored = to_epi_stage.offsets_s(Layout(epi_tile))
    stored = stored.reshape(stored.shape[0], -1, order="F")
    many = columns // epi_tile[1]
    for i in range(rows // epi_tile[0] * many):
        place = stored % epi_tile[0] + i // many * epi_tile[0]
        place = place + rows * (stored // epi_tile[0] + i % many * epi_tile[1])
        wrong = np.argwhere(held[:, i * stored.shape[1] : (i + 1) * stored.shape[1]] != place)
        if len(wrong):
            thread, register = (int(at) for at in wrong[0])
            have, want = int(held[thread, i * stored.shape[1] + register]), int(place[thread, register])
            return (
                f"epilogue stages are written by {to_epi_stage}; thread {thread} of a consumer would store as "
                f"element ({want % rows}, {want // rows}) of its tile its accumulator of ({have % rows}, "
                f"{have // rows}).",
            )
    return ()


def _by(extents: tuple[int, ...]) -> str:
    """Return the text of extents, such as "64 x 32" for (64, 32)."""
    return " x ".join(str(extent) for extent in extents)


def _global_vector(
    name: str,
    copy: TiledCopy,
    operand: Operand,
    modes: tuple[str, str],
    tile: tuple[int, int],
    moved: str = "loaded",
) -> Iterator[str]:
    """Yield a sentence if a copy accesses global memory in vectors that are not contiguous and aligned.

    A vector of several elements must lie along the contiguous mode of the operand.

    name      name of the operand, for the messages
    copy      the tiled copy
    operand   majorness and alignment
    modes     names of the two modes of the tile
    tile      extents of the tile
    moved     "loaded" or "stored", for the messages
    """
    elements = copy.atom.bits // operand.dtype.bits
    if elements <= 1:
        return
    if copy.atom.bits > 8 * operand.align_bytes:
        yield (
            f"{name} is {moved} {copy.atom.bits} bits at a time, but is aligned to {operand.align_bytes} bytes "
            f"only. Take {8 * operand.align_bytes} bits at a time, or align {name}."
        )
    compact = Layout(tile, (1, tile[0]) if operand.major == modes[0] else (tile[1], 1))
    yield from _shared_vector(
        f"the copy of {name}, which is {operand.major}-major, reads",
        copy.offsets_s(compact),
        copy.atom.bits,
        operand.dtype.bits,
    )


def _shared_vector(what: str, offsets: np.ndarray, bits: int, element_bits: int) -> Iterator[str]:
    """Yield a sentence if accesses of `bits` bits to shared memory are not adjacent and aligned elements.

    what           the access, as the subject and verb of the sentence
    offsets        (threads, values, ...): offsets of the elements that each thread accesses, in the order of its
                   registers
    bits           width of an access
    element_bits   size of an element
    """
    count = bits // element_bits
    flat = offsets.reshape(offsets.shape[0], -1, order="F")
    if flat.shape[1] % count:
        yield f"{what} {count} elements at a time, which does not divide the {flat.shape[1]} elements of a thread."
        return
    runs = flat.reshape(flat.shape[0], -1, count)
    if (runs - runs[:, :, :1] != np.arange(count)).any():
        yield f"{what} {bits} bits at a time, but the {count} elements are not adjacent there."
    elif (runs[:, :, 0] % count).any():
        yield f"{what} {bits} bits at a time, but some accesses are not aligned to {bits // 8} bytes."
