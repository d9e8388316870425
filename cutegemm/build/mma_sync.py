"""Builder of mma.sync plans: tensor cores that multiply fragments in registers, from sm_80 on."""

from __future__ import annotations

from math import gcd
from typing import Any

from cutegemm.build.building import LOADS, Builder, Shared, made, takes_epilogue, vector_copy
from cutegemm.errors import PlanError
from cutegemm.layout import ComposedLayout, Layout, Swizzle, tile_to_shape
from cutegemm.machine.arch import ACCESS_BITS, CACHE_LINE_BYTES
from cutegemm.plan.arguments import check_arguments
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operand, Operands
from cutegemm.plan.program.thread_schedule import ThreadSchedule, multistage, single_stage
from cutegemm.plan.shared import SharedLayout
from cutegemm.plan.store import RegisterStore, SharedStore, Store
from cutegemm.plan.stream import OperandStream
from cutegemm.plan.work.grid import grid_of
from cutegemm.plan.work.scheduler import TileScheduler
from cutegemm.plan.work.split import KSplit
from cutegemm.tile.atoms import CopyAtom, MmaAtom
from cutegemm.tile.copy_atoms import CP_ASYNC_BYTES, ldmatrix, universal_copy
from cutegemm.tile.mma_atoms import mma_sync
from cutegemm.tile.raster import Raster
from cutegemm.tile.smem_atoms import SMEM_ATOM_ROWS, smem_atom, widest_smem_kind
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tiled_mma import TiledMma

ATOM_K_BITS = 256  # bits along K of the deepest atom: 16 elements of 16 bits, 8 of tf32
_PAD_ELEMS = 8  # padding of a 32-bit tile along M or N: reads of 8 neighbours for each of 4 k are 8 banks apart
_MATRICES = 4  # 8x8 matrices that one ldmatrix reads
_LEAST_ARCH = "sm_80"  # oldest architecture with cp.async
_FLOAT8_BYTES = 4  # smallest access to float8 operands


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
    """Return a kernel plan for tensor cores that multiply by mma.sync (sm_80 and later), from tile sizes and options.

    operands                        types, majorness and alignment of A to D: f16, bf16, tf32, e4m3 or e5m2; None: bf16
                                    with K-major A, N-major B and D
    name, summary                   name of the plan, and what is special about it
    block                           tile (bM, bN, bK) of a CTA; None: 128 x 256, and 128 bytes along K (64 bytes for
                                    e4m3 and e5m2, for which sm_89 has room for three stages)
    warp                            tile (M, N) of a warp
    atom_k                          elements along K of the MMA instruction; None: the largest possible
    stages                          k-tiles in shared memory at a time; 1: the textbook loop with two barriers per
                                    k-tile
    fragments                       2: fragments of the next k-block are read while one is multiplied; 1: just before
                                    they are multiplied
    load_chunks                     chunks that the copies of a k-tile are divided into; None: one for each k-block
    load                            "cp.async" or "register"; None: cp.async if accesses have at least 4 bytes. For TMA
                                    see `mma_tma_plan`
    load_bytes                      bytes of an access to global memory, at most
    load_run                        for rows that are aligned to single elements of 16 bits: neighbours that a thread
                                    loads one by one, and writes to shared memory at once, at most
    cache                           cache of cp.async of 16 bytes: "cg" bypasses L1, "ca" goes through it
    k_run                           elements along K of a K-major operand that neighbouring threads copy; None: bK
    shared                          layout of A and B in shared memory: "swizzled", without bank conflicts; "padded", by
                                    16 bytes along K or 8 elements along M or N; "plain"; or a `Shared`
    read                            "ldmatrix", if the layout allows it, or "plain"
    store                           "shared": D is stored through shared memory by whole lines; "direct": from
                                    registers; None: "direct" if K is split, else "shared"
    store_elems                     neighbours that a thread stores at once from registers, 1 or 2
    rounding                        rounding of tf32 operands: "rz" (the MMA ignores low bits) or "rna" (to nearest)
    warps_along                     "m" or "n": the mode along which neighbouring warps lie
    raster                          order of the tiles, such as "grouped_m:8": see `Raster.parse`
    mma_order                       "m" or "n": the outer mode in the order of the MMAs of a k-block
    ctas_per_sm                     CTAs that an SM must hold; it limits registers and shared memory
    split_k                         K splits of each tile of D
    split_order, reduction, waves   how K is split, as in `KSplit`: which k-tiles a split takes; who adds ("kernel" or
                                    "last"); waves of stream-K, 0 for none
    persistent                      CTAs of the grid for stream-K, as many as the device runs at a time; None: one CTA
                                    per tile
    arch                            oldest architecture, whose shared memory is the limit; None: sm_80, or sm_89 for
                                    e4m3 and e5m2
    raises                          PlanError with every rule that is broken

    >>> plan = mma_sync_plan()
    >>> plan.threads, plan.cta_tile, plan.stages, plan.a.read.name
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
    if mma is None:  # the tiles are not valid, so the number of threads is unknown
        raise PlanError(builder.subject, builder.violations)
    a, b = [
        builder.operand(which, mma.threads, shared, read, load, load_bytes, cache=cache, k_run=k_run, several=load_run)
        for which in "ab"
    ]
    split = builder.attempt(lambda: KSplit(split_k, split_order, reduction, waves))
    store = store or ("direct" if split is not None and split.is_split else "shared")
    is_async = all(isinstance(each.load, TiledCopy) and each.load.atom.is_async for each in (a, b) if each)
    schedule = builder.attempt(lambda: builder.schedule(deep, fragments, load_chunks if is_async else 1))
    d = builder.attempt(lambda: builder.storing(mma.threads, store, store_elems))
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
        scheduler=TileScheduler(made(order), made(split), grid_of(persistent)),
        body=made(schedule),
        ctas_per_sm=ctas_per_sm,
        mma_order=mma_order,
        rounding=rounding,
    )


def reader(operand: Operand, read: str, shared: SharedLayout) -> CopyAtom:
    """Return the copy atom with which a warp reads fragments of A or B from shared memory for mma.sync.

    It is ldmatrix if `read` asks for it and the layout allows it. Otherwise it is a plain load: of 32 bits that are
    neighbours along K if K is contiguous, else of one element.

    operand   A or B: its element type
    read      "ldmatrix" or "plain"
    shared    layout (extent, bK, stages) of the operand in shared memory
    """
    dtype, along_k = operand.dtype, _runs_along_k(shared)
    if read == "ldmatrix" and (along_k or dtype.bits == 16):
        return ldmatrix(dtype, _MATRICES, transpose=not along_k)
    return universal_copy(dtype, 32 if along_k else dtype.bits)


def _runs_along_k(shared: SharedLayout) -> bool:
    """Return True if K is the contiguous mode of a shared-memory layout (extent, bK, stages)."""
    outer = shared.outer if isinstance(shared, ComposedLayout) else shared
    return bool(outer(0, 1, 0) == 1)


class _MmaBuilder(Builder):
    """Makes the components of an mma.sync plan from its options: tiled MMA, copies, shared-memory layouts and schedule.

    All threads of a CTA load and multiply, i.e. the plan has no warp roles.
    """

    def mma(self, atom: MmaAtom, warp: tuple[int, int], warps_along: str) -> TiledMma:
        """Return the tiled MMA of the CTA: each warp computes a warp tile of D.

        The rows of a warp are consecutive if no 128-byte line of shared memory is divided between warps by this. If one
        would be, each warp has several shorter pieces of rows, and the pieces of the warps alternate.

        atom          MMA instruction of a warp
        warp          (M, N) of a warp tile
        warps_along   "m" or "n": the mode along which warps 0 and 1 are neighbours
        raises        PlanError if the CTA's tile does not divide into warp tiles of whole atoms
        """
        counts, permutation, wrong = [], [], []
        for mode, extent, own, step in zip("MN", self.block[:2], warp, atom.shape_mnk[:2], strict=True):
            if own < 1 or own % step or extent % own:
                wrong.append(
                    f"b{mode} = {extent} does not divide into warp tiles of {own}, which hold whole atoms of {step}."
                )
                continue
            counts.append(extent // own)
            permutation.append(_warp_rows(extent, own, step))
        if wrong:
            raise PlanError(self.subject, wrong)
        strides = (1, counts[0], 0) if warps_along == "m" else (counts[1], 1, 0)
        return TiledMma(atom, Layout((*counts, 1), strides), (permutation[0], permutation[1], None))

    def schedule(self, deep: int, fragments: int, load_chunks: int | None) -> ThreadSchedule:
        """Return the mainloop's schedule: the textbook loop for one stage, else a pipeline of several stages.

        deep          elements along K of the MMA atom
        fragments     2: fragments of the next k-block are read while one is multiplied; 1: just before they are
                      multiplied
        load_chunks   number of parts that the copies of a k-tile are issued in; None: one for each k-block
        raises        PlanError if `deep` does not divide bK, or `load_chunks` is out of range
        """
        k_blocks = self.block[2] // deep
        if k_blocks < 1 or self.block[2] % deep:
            raise PlanError(self.subject, [f"bK = {self.block[2]} is not a multiple of the atom's {deep}."])
        load_chunks = k_blocks if load_chunks is None else load_chunks
        if not 1 <= load_chunks <= k_blocks:
            raise PlanError(
                self.subject, [f"load_chunks = {load_chunks}; use 1 to {k_blocks}, at most one for each k-block."]
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
    ) -> OperandStream | None:
        """Return how tiles of A or B are loaded, laid out in shared memory and read by an mma.sync plan.

        None if an argument breaks a rule; the rule is remembered, and `check` raises the error.

        name               "a" or "b"
        threads            number of threads of the CTA
        shared             "swizzled", "padded", "plain" or a `Shared`: the layout in shared memory
        read               "ldmatrix" or "plain"
        load, load_bytes   "cp.async", "register" or None (as the alignment allows), and bytes of an access at most
        how                further options of the copy to shared memory: `k_run` (elements along K that neighbouring
                           threads copy before the next row), `cache` ("cg" bypasses L1, "ca" does not) and `several`
                           (elements that a thread copies one by one)
        """
        operand: Operand = getattr(self.operands, name)
        first = "ab".index(name)
        extent, bk = self.block[first], self.block[2]
        layout = self.attempt(lambda: _in_shared(operand, extent, bk, max(1, self.stages), shared))
        widest = min(ACCESS_BITS // 8, operand.align_bytes, load_bytes)
        kind = load or ("cp.async" if widest >= min(CP_ASYNC_BYTES["ca"]) else "register")
        vector = max(1, widest * 8 // operand.dtype.bits)
        copy = self.attempt(lambda: self.copy(operand, extent, threads, kind, vector, **how))
        if copy is None or layout is None:
            return None
        return OperandStream(name, "mn"[first], copy, layout, reader(operand, read, layout))

    def storing(self, threads: int, store: str, store_elems: int) -> Store:
        """Return how a tile of D is stored: through swizzled shared memory, without bank conflicts, or from registers.

        threads       number of threads of the CTA
        store         "shared" or "direct"
        store_elems   neighbouring elements that a thread stores at once, 1 or 2
        """
        d = self.operands.d
        atom = vector_copy(d, min(store_elems, d.align_elems) if d.major == "n" else 1)
        return RegisterStore(atom) if store != "shared" else self.shared_store(atom, threads)

    def shared_store(self, atom: CopyAtom, threads: int) -> SharedStore:
        """Return how a tile of D is stored through shared memory, so that global stores are coalesced.

        Threads write fragments to a swizzled tile in shared memory without bank conflicts. Then they copy it to global
        memory row by row, or column by column if D is M-major.

        atom      copy of a thread's neighbouring elements from registers to shared memory
        threads   number of threads of the CTA
        """
        d, (bm, bn, _) = self.operands.d, self.block
        copy = self.copy_of_lines(min(ACCESS_BITS // d.dtype.bits, d.align_elems), threads)
        line = gcd(bn if d.major == "n" else bm, CACHE_LINE_BYTES * 8 // d.dtype.bits)
        # Eight rows of four lanes are written at once: 8 bytes per row for 8-bit elements, 16 for 16-bit, 32 for
        # 32-bit. The elements that one thread copies stay neighbours.
        group = max(_PAD_ELEMS, ACCESS_BITS // d.dtype.bits)
        bits = max(0, (line // group).bit_length() - 1)
        shift = 2 if d.dtype.bits > 16 and d.major == "n" else 3
        if d.major == "n":
            one, panels = Layout((SMEM_ATOM_ROWS, line), (line, 1)), (1, 0)
        else:
            one, panels = Layout((line, SMEM_ATOM_ROWS), (1, line)), (0, 1)
        swizzle = Swizzle(min(bits, shift), group.bit_length() - 1, shift)
        return SharedStore(atom, tile_to_shape(ComposedLayout(swizzle, 0, one), (bm, bn), panels), copy)


def lines_of_d(
    subject: str, operands: Operands, tile: tuple[int, int, int], threads: int, atom: CopyAtom
) -> SharedStore:
    """Return how an mma.sync plan stores a tile of D through shared memory, so that global stores are coalesced.

    Threads write fragments to a swizzled tile in shared memory. Then they copy it to global memory row by row, or
    column by column if D is M-major.

    subject    what an error is about
    operands   type, majorness and alignment of D
    tile       (bM, bN, bK), with the rows and columns of D's tile
    threads    number of threads of the CTA
    atom       copy of a thread's neighbouring elements from registers to shared memory
    """
    return _MmaBuilder(subject, operands, tile, 1).shared_store(atom, threads)


def _warp_rows(extent: int, own: int, step: int) -> Layout:
    """Return the layout that says which rows (or columns) of the CTA's tile each warp multiplies.

    It maps (row within the MMA atom, warp, index of the atom within the warp tile) to a row of the CTA's tile. The rows
    of a warp are consecutive if no 128-byte line of shared memory is then divided between warps. Otherwise they lie in
    pieces, and the pieces of the warps alternate: in the second example, warp 0 has rows 0 to 31, 64 to 95 and 128 to
    159.

    extent   rows of the CTA's tile
    own      rows of a warp tile
    step     rows of the MMA atom

    >>> print(_warp_rows(256, 64, 8), _warp_rows(192, 96, 8))
    (8,4,8):(1,64,8) (8,2,(4,3)):(1,32,(8,64))
    """
    piece = gcd(own, CACHE_LINE_BYTES // 2)
    if own % (CACHE_LINE_BYTES // 2) == 0 or piece == own:
        return Layout((step, extent // own, own // step), (1, own, step))
    warps = extent // own
    return Layout((step, warps, (piece // step, own // piece)), (1, piece, (step, piece * warps)))


def _k_tile(operands: Operands) -> int:
    """Return the default bK of mma.sync plans in elements, e.g. 64 for bf16: as many as 128 bytes hold.

    It is 64 instead of 128 elements for 8-bit types, i.e. 64 bytes.

    operands   operands of the GEMM; the element type of A counts
    """
    bits = operands.a.dtype.bits
    return CACHE_LINE_BYTES * 8 // max(16, bits)


def check_is_multiplied(subject: str, operands: Operands, least_bits: int = 8) -> None:
    """Raise PlanError if mma.sync kernels cannot multiply the types of A and B.

    There are mma.sync atoms for 8-bit integers, but no kernel uses them. Float8 operands must be of one type, K-major
    and aligned to four elements.

    subject      what the error is about
    operands     types, majorness and alignment of A and B
    least_bits   smallest size of an element that the plan can multiply, in bits
    raises       PlanError with every rule that is broken

    >>> check_is_multiplied("mma_sync_plan", Operands.of("s8"))
    Traceback (most recent call last):
        ...
    cutegemm.errors.PlanError: mma_sync_plan: 1 rule is broken.
      - A is of s8, but mma.sync plans multiply floats of 8 to 19 bits. Use an sm90_plan, which multiplies s8 by wgmma.
    """
    kind = operands.a.dtype
    violations = []
    if not kind.is_float or kind.bits < least_bits:
        violations.append(
            f"A is of {kind}, but mma.sync plans multiply floats of {least_bits} to 19 bits. Use an sm90_plan, which "
            f"multiplies {kind} by wgmma."
        )
    elif kind.bits == 8:
        if operands.b.dtype != kind:
            violations.append(
                f"A is of {kind} and B of {operands.b.dtype}, but mma.sync plans multiply float8 of one type. Use an "
                "sm90_plan, which multiplies both types by wgmma."
            )
        for name, operand in (("A", operands.a), ("B", operands.b)):
            if operand.major != "k":
                violations.append(f"{name} is {operand.major}-major; float8 must be k-major, as in layout 'nt'.")
            if operand.align_bytes < _FLOAT8_BYTES:
                violations.append(
                    f"{name} is aligned to {operand.align_bytes} bytes; float8 needs at least {_FLOAT8_BYTES}."
                )
    if violations:
        raise PlanError(subject, violations)


def _in_shared(operand: Operand, extent: int, bk: int, stages: int, shared: Shared | str) -> SharedLayout:
    """Return the shared-memory layout (extent, bK, stages) of the tiles of A or B of an mma.sync plan.

    operand   A or B: its element type, and the contiguous mode in global memory
    extent    rows of A, or columns of B, of a tile
    bk        elements of a tile along K
    stages    number of k-tiles in shared memory
    shared    "swizzled" (fragments are read without bank conflicts), "padded" or "plain"; or a `Shared`
    raises    PlanError for any other text
    """
    dtype, along_k = operand.dtype, operand.major == "k"
    if isinstance(shared, Shared):
        return shared.layout(extent, bk, stages)
    if shared not in ("swizzled", "padded", "plain"):
        raise PlanError(
            "mma_sync_plan", [f"shared = {shared!r}; 'swizzled', 'padded', 'plain' or a Shared is expected."]
        )
    if shared != "swizzled":
        pad = 0 if shared == "plain" else ACCESS_BITS // dtype.bits if along_k else _PAD_ELEMS
        return Shared("k" if along_k else "mn", pad).layout(extent, bk, stages)
    if not along_k and dtype.bits > 16:
        return tile_to_shape(_lines_of_words(extent), (extent, bk, stages), (0, 1, 2))
    atom = smem_atom(dtype, "k" if along_k else "mn", widest_smem_kind(dtype, bk if along_k else extent))
    return tile_to_shape(atom, (extent, bk, stages), (0, 1, 2) if along_k else (1, 0, 2))


def _lines_of_words(extent: int) -> ComposedLayout:
    """Return a swizzled shared-memory layout for 32-bit elements of an M- or N-major tile, without bank conflicts.

    ldmatrix cannot transpose 32-bit elements, so the 32 lanes of a warp read single elements: 8 neighbouring rows for
    each of 4 values of k. Without a swizzle, different k would lie in the same banks. With it, each k has its own 8 of
    the 32 banks, so one wavefront serves the read.

    extent    rows of A, or columns of B, of the tile
    returns   layout (row, k) -> offset for 4 values of k, and for as many rows as 128 bytes hold (fewer if that does
              not divide `extent`). It is repeated over the tile
    """
    row = gcd(extent, CACHE_LINE_BYTES * 8 // 32)
    swizzle = Swizzle(max(0, (row // _PAD_ELEMS).bit_length() - 1), 3, 2)
    return ComposedLayout(swizzle, 0, Layout((row, 4), (1, row)))
