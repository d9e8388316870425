"""Builder of mma.sync plans: Tensor Cores that multiply fragments in registers, from sm_80 on."""

from __future__ import annotations

from math import gcd
from typing import Any

from cutegemm.build.building import LOADS, Builder, Loading, Shared, Storing, made, takes_epilogue, vector_copy
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, tile_to_shape
from cutegemm.machine.arch import ACCESS_BITS, CACHE_LINE_BYTES
from cutegemm.plan.arguments import check_arguments
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.program.thread_schedule import ThreadSchedule, multistage, single_stage
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.copy_atoms import CP_ASYNC_BYTES, ldmatrix, universal_copy
from cutegemm.tile.mma_atoms import mma_sync
from cutegemm.tile.raster import Raster
from cutegemm.tile.smem_atoms import SMEM_ATOM_ROWS, smem_atom, widest_smem_kind
from cutegemm.tile.tiled_mma import TiledMma

ATOM_K_BITS = 256  # the deepest atom: 16 elements of 16 bits, 8 of tf32
# Rows of a 32-bit tile along M or N, for a read that takes 8 neighbours of each of 4 k: 8 banks apart.
_PAD_ELEMS = 8
_MATRICES = 4  # of an ldmatrix
_LEAST_ARCH = "sm_80"  # with cp.async
_FLOAT8_BYTES = 4  # of an access, at the least


@takes_epilogue
def mma_sync_plan(
    operands: Operands | None = None,
    *,
    name: str = "mma_sync",
    summary: str = "",
    block: tuple[int, int, int] | None = None,
    warp: tuple[int, int] = (64, 64),
    atom_k: int | None = None,
    stages: int = 3,
    fragments: int = 2,
    load_chunks: int | None = None,
    load: str | None = None,
    load_bytes: int = 16,
    load_run: int = 4,
    cache: str = "cg",
    k_run: int | None = None,
    shared: Shared | str = "swizzled",
    read: str = "ldmatrix",
    store: str | None = None,
    store_elems: int = 2,
    rounding: str = "rz",
    warps_along: str = "m",
    raster: Raster | str = "grouped_m:8",
    mma_order: str = "n",
    ctas_per_sm: int = 1,
    split_k: int = 1,
    split_order: str = "blocked",
    reduction: str = "kernel",
    waves: int = 0,
    persistent: int | None = None,
    arch: str | None = None,
) -> GemmPlan:
    """A plan for mma.sync from tile sizes.

    operands      of f16, bf16, tf32, e4m3 or e5m2; bf16, all rows contiguous, where left out
    block         (bM, bN, bK) elements of a CTA; where left out 128 x 256 and rows of 128 bytes along K, of 64 for e4m3
                  and e5m2, of which sm_89 has room for three stages
    warp          (M, N) elements of a warp
    atom_k        depth of the atom; the deepest where left out
    stages        of shared memory; 1 is the textbook's loop with two barriers a k-tile
    fragments     2: those of the next k-block are read while one is multiplied; 1: just before
    load_chunks   that the copies of a k-tile are cut into; one for each k-block where left out
    load          "cp.async" or "register"; where left out, by alignment, as cp.async moves 4 bytes or more. By TMA: see
                  `mma_tma_plan`
    load_bytes    that a thread moves at once, at most
    load_run      neighbours that it loads by as many accesses, and writes to shared memory at once, where rows are
                  aligned to single elements of 16 bits; at most
    cache         of cp.async of 16 bytes: "cg" goes around L1, "ca" through it
    k_run         elements along K that neighbouring threads copy of a k-major operand; bK where left out
    shared        how A and B lie in shared memory: "swizzled", so that nothing conflicts; "padded", by 16 bytes along K
                  or 8 elements across; "plain"
    read          "ldmatrix", where it serves, or "plain"
    store         "shared": D passes through shared memory and leaves by whole lines; "direct": from registers. The
                  latter where left out and K is split
    store_elems   neighbours that a thread writes at once out of registers, 1 or 2
    rounding      see `GemmPlan`
    warps_along   "m" or "n": in which direction neighbouring warps lie
    split_k       CTAs that share a tile of D; split_order, reduction and waves: see `KSplit`
    persistent    CTAs of the grid whose waves of tiles are shared: those that the device holds at a time
    arch          the least one, whose shared memory is the limit; where left out sm_80, or sm_89 for e4m3 and e5m2
    raises        PlanError with every rule that is broken

    >>> plan = mma_sync_plan()
    >>> plan.threads, plan.cta_tile, plan.stages, plan.read_a.name
    (256, (128, 256, 64), 3, 'ldmatrix.x4.bf16')
    """
    ops = Operands.of("bf16") if operands is None else operands
    subject = f"mma_sync_plan {name!r}"
    tiles: dict[str, tuple[Any, int]] = {"warp": (warp, 2)}
    if block is not None:
        tiles["block"] = (block, 3)
    some = {
        "atom_k": atom_k,
        "load_chunks": load_chunks,
        "k_run": k_run,
        "ctas_per_sm": ctas_per_sm,
    }
    counts = {"stages": stages, "split_k": split_k, "waves": waves, "persistent": persistent or 0}
    always = {"load_bytes": load_bytes, "load_run": load_run}
    typed = {"store_elems": (store_elems, (int,))}
    check_arguments(subject, ops, tiles, counts, some, typed, always)
    check_is_multiplied(subject, ops)
    tile = block or (128, 256, _k_tile(ops))
    builder = _MmaBuilder(subject, ops, tile, stages)
    order = builder.order(raster)
    builder.choices(load=(load, LOADS), read=(read, ("ldmatrix", "plain")), store=(store, (None, "shared", "direct")))
    builder.choices(
        warps_along=(warps_along, ("m", "n")),
        fragments=(fragments, (1, 2)),
        store_elems=(store_elems, (1, 2)),
    )
    deep = ATOM_K_BITS // ops.a.dtype.bits if atom_k is None else atom_k
    atom = builder.attempt(lambda: mma_sync(ops.a.dtype, deep, ops.acc, ops.b.dtype))
    mma = None if atom is None else builder.attempt(lambda: builder.mma(atom, warp, warps_along))
    if mma is None:  # without warps there is no number of threads
        raise PlanError(builder.subject, builder.violations)
    a, b = [
        builder.operand(which, mma.threads, shared, read, load, load_bytes, cache=cache, k_run=k_run, several=load_run)
        for which in "ab"
    ]
    split = builder.attempt(lambda: KSplit(split_k, split_order, reduction, waves))
    leaves = store or ("direct" if split is not None and split.is_split else "shared")
    is_shared_out = all(each.load.atom.is_async for each in (a, b) if each is not None)
    schedule = builder.attempt(lambda: builder.schedule(deep, fragments, load_chunks if is_shared_out else 1))
    d = builder.attempt(lambda: builder.storing(mma.threads, leaves, store_elems))
    builder.check()
    return builder.plan(
        mma,
        made(a),
        made(b),
        made(d),
        name=name,
        summary=summary,
        family="mma_sync",
        arch=arch or max(_LEAST_ARCH, mma.atom.min_arch),
        raster=made(order),
        schedule=made(schedule),
        ctas_per_sm=ctas_per_sm,
        mma_order=mma_order,
        rounding=rounding,
        split=made(split),
        persistent=persistent,
    )


def reader(operand: Operand, read: str, shared: SharedLayout) -> CopyAtom:
    """Shared memory to fragments: by ldmatrix, by the neighbours along K of a register, or one by one."""
    dtype, along_k = operand.dtype, _runs_along_k(shared)
    if read == "ldmatrix" and (along_k or dtype.bits == 16):
        return ldmatrix(dtype, _MATRICES, transpose=not along_k)
    return universal_copy(dtype, 32 if along_k else dtype.bits)


def _runs_along_k(shared: SharedLayout) -> bool:
    outer = shared.outer if isinstance(shared, ComposedLayout) else shared
    return bool(outer(0, 1, 0) == 1)


class _MmaBuilder(Builder):
    """The parts of an mma.sync plan."""

    def mma(self, atom: MmaAtom, warp: tuple[int, int], warps_along: str) -> TiledMma:
        """Warps with a part of the tile each, that lies together."""
        counts, permutation, wrong = [], [], []
        for mode, extent, own, step in zip("MN", self.block[:2], warp, atom.shape_mnk[:2], strict=True):
            if own < 1 or own % step or extent % own:
                wrong.append(
                    f"b{mode} = {extent} does not divide into warp tiles of {own}, which hold whole atoms of {step}."
                )
                continue
            counts.append(extent // own)
            permutation.append(_shared_out(extent, own, step))
        if wrong:
            raise PlanError(self.subject, wrong)
        strides = (1, counts[0], 0) if warps_along == "m" else (counts[1], 1, 0)
        return TiledMma(atom, Layout((*counts, 1), strides), (permutation[0], permutation[1], None))

    def schedule(self, deep: int, fragments: int, load_chunks: int | None) -> ThreadSchedule:
        """One stage, or a ring of them."""
        k_blocks = self.block[2] // deep
        if k_blocks < 1 or self.block[2] % deep:
            raise PlanError(self.subject, [f"bK = {self.block[2]} is no multiple of the atom's {deep}."])
        load_chunks = k_blocks if load_chunks is None else load_chunks
        if not 1 <= load_chunks <= k_blocks:
            raise PlanError(
                self.subject, [f"load_chunks = {load_chunks}; 1 to {k_blocks}, one for each k-block, are possible."]
            )
        if self.stages == 1:
            return single_stage(k_blocks)
        return multistage(max(2, self.stages), k_blocks, load_chunks=load_chunks, fragments=fragments)

    def operand(
        self,
        name: str,
        threads: int,
        shared: Shared | str,
        read: str,
        load: str | None,
        load_bytes: int,
        **how: Any,
    ) -> Loading | None:
        """How the tile of "a" or "b" comes, or None with what is wrong noted.

        how   see `Builder.copy`
        """
        operand: Operand = getattr(self.operands, name)
        extent, bk = self.block["ab".index(name)], self.block[2]
        layout = self.attempt(lambda: _in_shared(operand, extent, bk, max(1, self.stages), shared))
        widest = min(ACCESS_BITS // 8, operand.align_bytes, load_bytes)
        kind = load or ("cp.async" if widest >= min(CP_ASYNC_BYTES["ca"]) else "register")
        vector = max(1, widest * 8 // operand.dtype.bits)
        copy = self.attempt(lambda: self.copy(operand, extent, threads, kind, vector, **how))
        if copy is None or layout is None:
            return None
        return Loading(copy, layout, reader(operand, read, layout))

    def storing(self, threads: int, store: str, store_elems: int) -> Storing:
        """How D leaves: through shared memory that is swizzled for how the sums are held, or out of registers."""
        d, (bm, bn, _) = self.operands.d, self.block
        held = vector_copy(d, min(store_elems, d.align_elems) if d.major == "n" else 1)
        if store != "shared":
            return Storing(held)
        copy = self.copy_of_lines(min(ACCESS_BITS // d.dtype.bits, d.align_elems), threads)
        line = gcd(bn if d.major == "n" else bm, CACHE_LINE_BYTES * 8 // d.dtype.bits)
        # Eight rows of four lanes each are written at once: 8 bytes a row of 8-bit elements, 16 of 16, 32 of 32-bit.
        # What one thread copies stays together.
        group = max(_PAD_ELEMS, ACCESS_BITS // d.dtype.bits)
        bits = max(0, (line // group).bit_length() - 1)
        shift = 2 if d.dtype.bits > 16 and d.major == "n" else 3
        if d.major == "n":
            one, panels = Layout((SMEM_ATOM_ROWS, line), (line, 1)), (1, 0)
        else:
            one, panels = Layout((line, SMEM_ATOM_ROWS), (1, line)), (0, 1)
        swizzle = Swizzle(min(bits, shift), group.bit_length() - 1, shift)
        return Storing(held, tile_to_shape(ComposedLayout(swizzle, 0, one), (bm, bn), panels), copy)


def lines_of_d(subject: str, operands: Operands, tile: tuple[int, int, int], threads: int, store_elems: int) -> Storing:
    """How a tile of D leaves through shared memory, by whole lines."""
    return _MmaBuilder(subject, operands, tile, 1).storing(threads, "shared", store_elems)


def _shared_out(extent: int, own: int, step: int) -> Layout:
    """(an atom, warps, atoms of a warp): each warp's part together, or where lines of 128 bytes would be torn, by
    the greatest pieces of them that it holds whole.

    >>> print(_shared_out(256, 64, 8), _shared_out(192, 96, 8))
    (8,4,8):(1,64,8) (8,2,(4,3)):(1,32,(8,64))
    """
    piece = gcd(own, CACHE_LINE_BYTES // 2)
    if own % (CACHE_LINE_BYTES // 2) == 0 or piece == own:
        return Layout((step, extent // own, own // step), (1, own, step))
    warps = extent // own
    return Layout((step, warps, (piece // step, own // piece)), (1, piece, (step, piece * warps)))


def _k_tile(operands: Operands) -> int:
    """bK, where it is left out."""
    bits = operands.a.dtype.bits
    return CACHE_LINE_BYTES * 8 // max(16, bits)


def check_is_multiplied(subject: str, operands: Operands, least_bits: int = 8) -> None:
    """Checks that kernels multiply the operands by mma.sync.

    least_bits   of an element
    raises       PlanError with every rule that is broken: there are atoms for integers of 8 bits, and no kernel; float8
                 is read and loaded four at a time, along K

    >>> check_is_multiplied("mma_sync_plan", Operands.of("s8"))
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: mma_sync_plan: 1 rule is broken.
      - A is of s8; floats of 8 to 19 bits are multiplied by mma.sync. Take an sm90_plan, which multiplies s8 by wgmma.
    """
    kind = operands.a.dtype
    violations = []
    if not kind.is_float or kind.bits < least_bits:
        violations.append(
            f"A is of {kind}; floats of {least_bits} to 19 bits are multiplied by mma.sync. Take an sm90_plan, which "
            f"multiplies {kind} by wgmma."
        )
    elif kind.bits == 8:
        if operands.b.dtype != kind:
            violations.append(
                f"A is of {kind}, B of {operands.b.dtype}; float8 of one type is multiplied by mma.sync. Take an "
                "sm90_plan, which multiplies both by wgmma."
            )
        for name, operand in (("A", operands.a), ("B", operands.b)):
            if operand.major != "k":
                violations.append(f"{name} is {operand.major}-major; float8 is multiplied k-major alone, as of 'nt'.")
            if operand.align_bytes < _FLOAT8_BYTES:
                violations.append(
                    f"{name} is aligned to {operand.align_bytes} bytes; float8 is loaded by {_FLOAT8_BYTES} or more."
                )
    if violations:
        raise PlanError(subject, violations)


def _in_shared(operand: Operand, extent: int, bk: int, stages: int, shared: Shared | str) -> SharedLayout:
    """(extent, bK, stages) as given, or so that fragments are read without bank conflicts."""
    dtype, along_k = operand.dtype, operand.major == "k"
    if isinstance(shared, Shared):
        return shared.layout(extent, bk, stages)
    if shared not in ("swizzled", "padded", "plain"):
        raise PlanError("mma_sync_plan", [f"shared = {shared!r} is none of swizzled, padded, plain and a Shared."])
    if shared != "swizzled":
        pad = 0 if shared == "plain" else ACCESS_BITS // dtype.bits if along_k else _PAD_ELEMS
        return Shared("k" if along_k else "mn", pad).layout(extent, bk, stages)
    if not along_k and dtype.bits > 16:
        return tile_to_shape(_lines_of_words(extent), (extent, bk, stages), (0, 1, 2))
    atom = smem_atom(dtype, "k" if along_k else "mn", widest_smem_kind(dtype, bk if along_k else extent))
    return tile_to_shape(atom, (extent, bk, stages), (0, 1, 2) if along_k else (1, 0, 2))


def _lines_of_words(extent: int) -> ComposedLayout:
    """32-bit elements along M or N, which no ldmatrix transposes: a plain read takes 8 neighbours of each of 4 k.

    The two low bits of k choose among the four groups of 8 banks: where a row is too short to separate them,
    the row does, and otherwise the swizzle. So a row of 128 bytes is written and each read is served at once.
    """
    row = gcd(extent, CACHE_LINE_BYTES * 8 // 32)
    swizzle = Swizzle(max(0, (row // _PAD_ELEMS).bit_length() - 1), 3, 2)
    return ComposedLayout(swizzle, 0, Layout((row, 4), (1, row)))
