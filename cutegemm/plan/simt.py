"""Builder of SIMT plans: from block, warp and thread tiles to layouts, by the algebra."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

from cutegemm.arch import WARP_THREADS
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.plan.arguments import check_arguments
from cutegemm.plan.building import ACCESS_BITS, K_RUN, Builder, Shared, vector_copy
from cutegemm.plan.packing import Packing, make_packing, packed
from cutegemm.plan.plan import Barrier, GemmPlan, Role, SharedLayout
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.schedule import Schedule, direct, multistage, prefetched, single_stage
from cutegemm.plan.split import Split
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import CP_ASYNC_BYTES, universal_copy
from cutegemm.tile.mma_atoms import fma
from cutegemm.tile.raster import Raster
from cutegemm.tile.simt import simt_tiled_mma
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_a, make_tiled_copy_b, make_tiled_copy_tv
from cutegemm.tile.tiled_mma import TiledMma


def simt_plan(
    operands: Operands | None = None,
    *,
    name: str = "simt",
    summary: str = "",
    block: tuple[int, int, int] = (128, 128, 16),
    warp: tuple[int, int] = (64, 32),
    thread: tuple[int, int] = (8, 8),
    quad: tuple[int, int] = (4, 4),
    stages: int = 2,
    unroll: int | None = None,
    load_a: str | None = None,
    load_b: str | None = None,
    shared_a: Shared | None = None,
    shared_b: Shared | None = None,
    lanes_along: str = "m",
    raster: Raster | str = "grouped_m:8",
    mma_order: str = "m",
    ctas_per_sm: int = 1,
    access_bits: int = ACCESS_BITS,
    prefetch: bool = False,
    pack: str = "",
    split_k: int = 1,
    split_order: str = "blocked",
    reduction: str = "kernel",
    waves: int = 0,
    persistent: int | None = None,
    store: str | None = None,
) -> GemmPlan:
    """A SIMT plan from tile sizes.

    operands      element types, majorness, alignment; f32, all rows contiguous, where left out
    block         (bM, bN, bK) elements of a CTA; warp and thread: (M, N) elements of each
    quad          elements of a thread that lie side by side, so that they are read at once
    stages        of shared memory; 1 is the textbook's loop with two barriers a k-tile, 0 has fragments read
                  from global memory
    unroll        k-blocks laid out in the code; see `multistage`
    load_a, _b    "cp.async" or "register"; where left out, by majorness, as a k-major operand is turned round on
                  its way, which takes registers, and by alignment, as cp.async moves 4 bytes or more
    shared_a, _b  how the tiles lie in shared memory; padded by a vector where they are turned round
    raster        see `Raster.parse`
    mma_order     see `GemmPlan`
    ctas_per_sm   that must fit a multiprocessor together
    access_bits   the widest access to any memory
    prefetch      with one stage: the next k-tile is on its way to registers meanwhile
    pack          "a", "b" or "ab": operands that are packed first; see `plan.packing`
    split_k       CTAs that share a tile of D; split_order, reduction and waves: see `Split`
    persistent    CTAs of the grid whose waves of tiles are shared: those that the device holds at a time
    store         "direct": D leaves from registers; "shared": it passes through shared memory, so that
                  neighbouring threads write neighbours. The latter where left out and D is aligned to less than
                  a thread's `quad`, unless K is split
    raises        PlanError with every rule that is broken

    >>> plan = simt_plan(block=(128, 128, 8), warp=(64, 32), thread=(8, 8))
    >>> plan.threads, plan.smem_bytes(), plan.registers()["accumulators"]
    (256, {'a': 8448, 'b': 8192}, 64)
    """
    ops = operands or Operands.of("f32")
    subject = f"simt_plan {name!r}"
    tiles = {"block": (block, 3), "warp": (warp, 2), "thread": (thread, 2), "quad": (quad, 2)}
    check_arguments(subject, ops, tiles, {"stages": stages, "ctas_per_sm": ctas_per_sm, "split_k": split_k})
    given = ops.aligned(max(access_bits // 8, ops.a.dtype.bits // 8)) if access_bits < ACCESS_BITS else ops
    builder = _SimtBuilder(subject, given, block, stages, {"load_a": load_a, "load_b": load_b})
    order = builder.attempt(lambda: Raster.parse(raster) if isinstance(raster, str) else raster)
    packs = builder.attempt(lambda: builder.packings(pack)) or ()
    made: dict[str, Any] = {
        p.name: packed(getattr(ops, p.name), "m" if p.name == "a" else "n") for p in packs
    }
    loaded = replace(given, **made)
    split = builder.attempt(lambda: Split(split_k, split_order, reduction, waves))
    mma = builder.attempt(
        lambda: simt_tiled_mma(
            block[:2], warp, thread, atom=fma(ops.a.dtype, ops.acc), quad_mn=quad, lanes_along=lanes_along
        )
    )
    a = b = None
    if mma is not None:  # its rules are those of the tiles; without one there is no number of threads
        a = builder.operand("A", loaded.a, block[0], mma, load_a, shared_a)
        b = builder.operand("B", loaded.b, block[1], mma, load_b, shared_b)
    schedule = builder.attempt(lambda: builder.schedule(unroll, prefetch))
    held = min(quad[0] if ops.d.major == "m" else quad[1], ACCESS_BITS // ops.d.dtype.bits)
    stored = min(held, given.d.align_elems)
    is_narrow = ops.d.align_elems < held and stages > 0 and split is not None and not split.is_split
    through = None
    if mma is not None and builder.is_shared(store, is_narrow):
        through = builder.attempt(lambda: builder.leaving(stored, quad, mma.threads))
    if builder.broken or mma is None or a is None or b is None or schedule is None:
        raise PlanError(builder.subject, builder.broken)
    assert split is not None
    assert order is not None
    return GemmPlan(
        name=name,
        summary=summary,
        family="simt",
        arch="sm_80",
        operands=ops,
        cta_tile=block,
        tiled_mma=mma,
        smem_a=a[1],
        smem_b=b[1],
        load_a=a[0],
        load_b=b[0],
        read_a=_read(loaded.a, quad[0], a[2], stages, access_bits),
        read_b=_read(loaded.b, quad[1], b[2], stages, access_bits),
        store_d=vector_copy(ops.d, stored),
        raster=order,
        schedule=schedule,
        roles=(Role("all", mma.threads // WARP_THREADS),),
        barriers=(Barrier("cta", "cta", 1, mma.threads),),
        ctas_per_sm=ctas_per_sm,
        mma_order=mma_order,
        split=split,
        persistent=persistent,
        packs=packs,
        smem_d=None if through is None else through[0],
        copy_d=None if through is None else through[1],
    )


def _read(operand: Operand, quad: int, tile: Shared, stages: int, access_bits: int) -> CopyAtom | None:
    """Shared memory to fragments, by vectors along M or N; None where fragments come from global memory."""
    if stages == 0:
        return None
    return vector_copy(operand, min(quad, access_bits // operand.dtype.bits) if tile.major == "mn" else 1)


class _SimtBuilder(Builder):
    """What is decided for SIMT plans alone."""

    least_stages = 0

    def packings(self, names: str) -> tuple[Packing, ...]:
        if not set(names) <= {"a", "b"} or len(set(names)) != len(names):
            raise PlanError(self.subject, [f"pack = {names!r} is none of 'a', 'b' and 'ab'."])
        return tuple([make_packing(self.operands, name) for name in names])

    def is_shared(self, store: str | None, otherwise: bool) -> bool:
        """Whether D passes through shared memory on its way out."""
        if store not in (None, "direct", "shared"):
            self.broken.append(f"store = {store!r} is neither 'direct' nor 'shared'.")
        return otherwise if store is None else store == "shared"

    def leaving(self, vector: int, quad: tuple[int, int], threads: int) -> tuple[SharedLayout, TiledCopy]:
        """D in shared memory, and the copy of whole lines of it to global memory.

        A warp's lanes write vectors that lie a quad apart across the lines as well: the swizzle moves those of
        four neighbouring quads to banks of their own.
        """
        d, (bm, bn, _) = self.operands.d, self.block
        along, across = (bn, quad[0]) if d.major == "n" else (bm, quad[1])
        run = gcd(along // vector, WARP_THREADS)
        if along % vector or threads % run:
            raise PlanError(self.subject, [f"{threads} threads do not store lines of {along} elements of D."])
        outer = Layout((bm, bn), (bn, 1) if d.major == "n" else (1, bm))
        step, low = along * across, vector.bit_length() - 1
        layout: SharedLayout = outer
        if step & (step - 1) == 0 and step >> low >= 4:
            layout = ComposedLayout(Swizzle(2, low, step.bit_length() - 1 - low), 0, outer)
        atom = vector_copy(d, vector)
        if d.major == "n":
            return layout, make_tiled_copy_tv(
                atom, Layout((threads // run, run), (run, 1)), Layout((1, vector))
            )
        return layout, make_tiled_copy_tv(atom, Layout((run, threads // run)), Layout((vector, 1)))

    def schedule(self, unroll: int | None, prefetch: bool) -> Schedule:
        k_blocks = self.block[2]
        if unroll is not None and (unroll < 2 or unroll % 2 or k_blocks % unroll):
            raise PlanError(
                self.subject, [f"unroll = {unroll} is no even divisor of the {k_blocks} k-blocks."]
            )
        if self.stages == 0:
            return direct()
        if self.stages == 1:
            return (prefetched if prefetch else single_stage)(k_blocks, unroll)
        return multistage(self.stages, k_blocks, unroll)

    def operand(
        self, name: str, operand: Operand, extent: int, mma: TiledMma, load: str | None, shared: Shared | None
    ) -> tuple[TiledCopy, SharedLayout, Shared] | None:
        """The copy from global memory, the layout in shared memory and how it was chosen."""
        if self.stages == 0:
            atom = universal_copy(operand.dtype, operand.dtype.bits)
            none = Layout((extent, self.block[2], 0), (1, extent, 0))
            return (
                (make_tiled_copy_a if name == "A" else make_tiled_copy_b)(atom, mma),
                none,
                shared or Shared(),
            )
        threads = mma.threads
        narrow = min(operand.align_bytes, ACCESS_BITS // 8) < min(CP_ASYNC_BYTES["ca"])
        kind = load or ("register" if operand.major == "k" or narrow else "cp.async")
        vector = min(ACCESS_BITS // operand.dtype.bits, operand.align_elems)
        turned = operand.major == "k" and (shared is None or shared.major == "mn")
        tile = shared or Shared(pad=ACCESS_BITS // operand.dtype.bits if turned else 0)
        if kind == "cp.async" and (operand.major == "k") != (tile.major == "k"):
            vector = 1  # an element at a time goes to its own place
        copy = self.attempt(lambda: self.copy(operand, extent, threads, kind, vector, k_run=K_RUN))
        layout = self.attempt(lambda: tile.layout(extent, self.block[2], max(1, self.stages)))
        return None if copy is None or layout is None else (copy, layout, tile)
