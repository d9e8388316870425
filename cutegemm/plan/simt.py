"""Builder of SIMT plans: from block, warp and thread tiles to layouts, by the algebra."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cutegemm.arch import WARP_THREADS
from cutegemm.errors import CutegemmError, PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle
from cutegemm.plan.plan import Barrier, GemmPlan, Role, SharedLayout
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.schedule import Schedule, multistage, single_stage
from cutegemm.tile.atoms import CopyAtom
from cutegemm.tile.copy_atoms import CP_ASYNC_BYTES, cp_async, universal_copy
from cutegemm.tile.mma_atoms import fma
from cutegemm.tile.raster import Raster
from cutegemm.tile.simt import simt_tiled_mma
from cutegemm.tile.tiled_copy import TiledCopy, make_tiled_copy_tv

T = TypeVar("T")

ACCESS_BITS = 128  # the widest load and store of one thread
_K_RUN = 8  # elements along K that neighbouring threads fetch of a k-major operand: one 32-byte sector of f32


@dataclass(frozen=True)
class Shared:
    """How a tile lies in shared memory.

    major     "mn": the elements along M or N are neighbours, as the threads read them; "k": those along K
    pad       elements left free after each run of neighbours
    swizzle   of the offsets, in elements, or None
    """

    major: str = "mn"
    pad: int = 0
    swizzle: Swizzle | None = None

    def layout(self, extent: int, bk: int, stages: int) -> SharedLayout:
        """The layout (extent, bK, stages).

        >>> str(Shared(pad=4).layout(128, 8, 3))
        '(128,8,3):(1,132,1056)'
        """
        run = (extent if self.major == "mn" else bk) + self.pad
        runs = bk if self.major == "mn" else extent
        stride = (1, run) if self.major == "mn" else (run, 1)
        outer = Layout((extent, bk, stages), (*stride, run * runs))
        return outer if self.swizzle is None else ComposedLayout(self.swizzle, 0, outer)


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
) -> GemmPlan:
    """A SIMT plan from tile sizes.

    operands      element types, majorness, alignment; f32, all rows contiguous, where left out
    block         (bM, bN, bK) elements of a CTA; warp and thread: (M, N) elements of each
    quad          elements of a thread that lie side by side, so that they are read at once
    stages        of shared memory; 1 is the textbook's loop with two barriers a k-tile
    unroll        k-blocks laid out in the code; see `multistage`
    load_a, _b    "cp.async" or "register"; where left out, by majorness, as a k-major operand is turned round on its
                  way, which takes registers, and by alignment, as cp.async moves 4 bytes or more
    shared_a, _b  how the tiles lie in shared memory; padded by a vector where they are turned round
    raster        see `Raster.parse`
    mma_order     see `GemmPlan`
    ctas_per_sm   that must fit a multiprocessor together
    raises        PlanError with every rule that is broken

    >>> plan = simt_plan(block=(128, 128, 8), warp=(64, 32), thread=(8, 8))
    >>> plan.threads, plan.smem_bytes(), plan.registers()["accumulators"]
    (256, {'a': 8448, 'b': 8192}, 64)
    """
    ops = operands or Operands.of("f32")
    order = Raster.parse(raster) if isinstance(raster, str) else raster
    builder = _Builder(f"simt_plan {name!r}", ops, block, stages, {"load_a": load_a, "load_b": load_b})
    mma = builder.attempt(
        lambda: simt_tiled_mma(
            block[:2], warp, thread, atom=fma(ops.a.dtype, ops.acc), quad_mn=quad, lanes_along=lanes_along
        )
    )
    a = b = None
    if mma is not None:  # its rules are those of the tiles; without one there is no number of threads
        a = builder.operand("A", ops.a, block[0], mma.threads, load_a, shared_a)
        b = builder.operand("B", ops.b, block[1], mma.threads, load_b, shared_b)
    schedule = builder.attempt(lambda: builder.schedule(unroll))
    stored = quad[0] if ops.d.major == "m" else quad[1]
    if builder.broken or mma is None or a is None or b is None or schedule is None:
        raise PlanError(builder.subject, builder.broken)
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
        read_a=_vector(ops.a, quad[0] if a[2].major == "mn" else 1),
        read_b=_vector(ops.b, quad[1] if b[2].major == "mn" else 1),
        store_d=_vector(ops.d, min(stored, ops.d.align_elems)),
        raster=order,
        schedule=schedule,
        roles=(Role("all", mma.threads // WARP_THREADS),),
        barriers=(Barrier("cta", "cta", 1, mma.threads),),
        ctas_per_sm=ctas_per_sm,
        mma_order=mma_order,
    )


def _vector(operand: Operand, elements: int) -> CopyAtom:
    bits = operand.dtype.bits
    return universal_copy(operand.dtype, min(ACCESS_BITS, bits * max(1, elements)))


class _Builder:
    """Collects what is wrong with the parts of a plan, so that all of it can be said at once."""

    def __init__(
        self,
        subject: str,
        operands: Operands,
        block: tuple[int, int, int],
        stages: int,
        loads: dict[str, str | None],
    ) -> None:
        self.subject, self.operands, self.block, self.stages = subject, operands, block, stages
        self.broken: list[str] = []
        if stages < 1:
            self.broken.append(f"stages = {stages}; at least 1 is expected.")
        for name, load in loads.items():
            if load not in (None, "cp.async", "register"):
                self.broken.append(f"{name} = {load!r} is neither 'cp.async' nor 'register'.")

    def attempt(self, make: Callable[[], T]) -> T | None:
        """What `make` returns, or None with its complaint noted."""
        try:
            return make()
        except PlanError as error:
            self.broken += error.violations
        except CutegemmError as error:
            self.broken.append(str(error))
        return None

    def schedule(self, unroll: int | None) -> Schedule:
        k_blocks = self.block[2]
        if unroll is not None and (unroll < 2 or unroll % 2 or k_blocks % unroll):
            raise PlanError(self.subject, [f"unroll = {unroll} is no even divisor of the {k_blocks} k-blocks."])
        return single_stage(k_blocks) if self.stages == 1 else multistage(self.stages, k_blocks, unroll)

    def operand(
        self, name: str, operand: Operand, extent: int, threads: int, load: str | None, shared: Shared | None
    ) -> tuple[TiledCopy, SharedLayout, Shared] | None:
        """The copy from global memory, the layout in shared memory and how it was chosen."""
        narrow = min(operand.align_bytes, ACCESS_BITS // 8) < min(CP_ASYNC_BYTES["ca"])
        kind = load or ("register" if operand.major == "k" or narrow else "cp.async")
        vector = min(ACCESS_BITS // operand.dtype.bits, operand.align_elems)
        turned = operand.major == "k" and (shared is None or shared.major == "mn")
        tile = shared or Shared(pad=ACCESS_BITS // operand.dtype.bits if turned else 0)
        if kind == "cp.async" and (operand.major == "k") != (tile.major == "k"):
            vector = 1  # an element at a time goes to its own place
        copy = self.attempt(lambda: self.copy(name, operand, extent, threads, kind, vector))
        layout = self.attempt(lambda: tile.layout(extent, self.block[2], max(1, self.stages)))
        return None if copy is None or layout is None else (copy, layout, tile)

    def copy(
        self, name: str, operand: Operand, extent: int, threads: int, kind: str, vector: int
    ) -> TiledCopy:
        """Neighbouring threads along the contiguous mode, the others across it."""
        bk, dtype = self.block[2], operand.dtype
        along = min(_K_RUN, bk) if operand.major == "k" else extent
        while vector > 1 and (along % vector or extent * bk < threads * vector):
            vector //= 2
        if kind == "register":
            atom = universal_copy(dtype, vector * dtype.bits)
        else:
            size = vector * dtype.bits // 8
            atom = cp_async(dtype, size, "cg" if size == 16 else "ca")
        run = min(threads, along // vector)
        across = threads // run
        if threads % run:
            raise PlanError(
                self.subject,
                [f"{threads} threads do not divide into runs of {run} along {name}'s {operand.major}."],
            )
        if operand.major != "k":
            return make_tiled_copy_tv(atom, Layout((run, across)), Layout((vector, 1)))
        rows = min(across, extent)
        deep = across // rows  # more threads than rows: further along K
        thr = Layout((rows, (run, deep)), (run, (1, run * rows)))
        return make_tiled_copy_tv(atom, thr, Layout((1, vector)))
