"""Rules for plans with warp roles: TMA boxes, barriers, registers of the roles, epilogue stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cutegemm.dtypes import bf16, f16, f32, s32
from cutegemm.layout import Layout
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import (
    MAX_CLUSTER_CTAS,
    MAX_NAMED_BARRIERS,
    REGISTER_BITS,
    WARP_THREADS,
    WARPGROUP_THREADS,
    Arch,
)
from cutegemm.plan.problem import D_INDEX, INDEX
from cutegemm.plan.rules.registers import register_budget
from cutegemm.plan.warp_roles import WARP_ROLES_KINDS, WarpRoles, warp_roles
from cutegemm.tile.tma import TMA_INNER_ALIGNED_BYTES, TMA_SMEM_ALIGNED_BYTES, TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.role import Role
    from cutegemm.plan.stream import OperandStream

# Allowed register counts: PTX ISA, "setmaxnreg".
SETMAXNREG_STEP, SETMAXNREG_LEAST, SETMAXNREG_MOST = 8, 24, 256
# Registers at launch that ptxas requires in addition to the accumulators of the widest wgmma, whatever setmaxnreg sets:
# with m64n256 and 128 registers it fails with C7602, "needs 154".
WGMMA_REGISTERS_BESIDES = 26
# Registers for addresses and counters of a consumer with an overlapped epilogue (ptxas 13.1).
OVERLAPPED_EXTRA_REGISTERS = 32
WGMMA_ROWS = 64
MIN_STAGES = 2


def arch_rules(plan: GemmPlan, arch: Arch) -> Iterator[str]:
    """Yield a sentence for each rule on warp roles that a plan breaks on an architecture."""
    yield from _features(plan, arch)
    yield from _registers(plan, arch)


def pipeline_rules(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each rule on warp roles that a plan breaks on any architecture."""
    pipeline = warp_roles(plan)
    yield from _consumers(plan, pipeline)
    yield from _cluster(plan)
    yield from _loads(plan)
    yield from _barriers(plan)
    yield from pipeline.mainloop.rules(plan)
    yield from plan.store.rules(plan)
    if plan.operands.scattered:
        yield from _scatters(plan)
    if plan.cluster_k > 1:
        yield from _k_ctas(plan, pipeline)


def _features(plan: GemmPlan, arch: Arch) -> Iterator[str]:
    """Yield a sentence if the plan uses clusters or setmaxnreg and the architecture does not have them."""
    needed = {"cluster": plan.cluster_mn != (1, 1), "setmaxnreg": any(role.registers for role in plan.roles)}
    for feature, is_needed in needed.items():
        if is_needed and not arch.has(feature):
            yield f"the plan uses {feature}; {arch.name} does not have it."


def _consumers(plan: GemmPlan, pipeline: WarpRoles) -> Iterator[str]:
    """Yield a sentence for each rule on the consumers (the warp roles that multiply) that a plan breaks.

    The rules are about their number, tiles, threads and features.
    """
    bm, bn, _ = plan.cta_tile
    if pipeline.kind not in WARP_ROLES_KINDS:
        yield f"kind = {pipeline.kind!r}; the kinds of warp roles are {', '.join(WARP_ROLES_KINDS)}."
        return
    if pipeline.stages < MIN_STAGES:
        yield f"stages = {pipeline.stages}; a mainloop pipeline has at least {MIN_STAGES}. Take a smaller tile."
    count = pipeline.consumers
    if count < (2 if pipeline.kind == "pingpong" else 1):
        yield f"consumers = {count}; {pipeline.kind} consumers are at least {2 if pipeline.kind == 'pingpong' else 1}."
        return
    if not plan.tiled_mma.atom.is_of_warpgroup:
        yield from _warps(plan, pipeline)
    else:
        want = (bm, bn) if pipeline.kind == "pingpong" else (bm // count, bn)
        if pipeline.consumer_tile != want or want[0] % WGMMA_ROWS or bm % want[0]:
            yield (
                f"each of {count} {pipeline.kind} consumers accumulates {_by(pipeline.consumer_tile)} of a "
                f"tile of {bm} x {bn}; it must be {_by(want)}, in multiples of {WGMMA_ROWS} rows."
            )
        if plan.tiled_mma.atom.a_source == "register":
            yield from _read_a(plan, pipeline)
        columns = plan.tiled_mma.atom.shape_mnk[1]
        if plan.operands.acc == f16 and columns & (columns - 1):
            yield (
                f"wgmma with {columns} columns and accumulators in f16: if the number of columns is not a "
                "power of two, the compiler (DSL 4.8) moves register copies across wgmma.fence. Take 64 or "
                "128 columns, or accumulators in f32."
            )
    threads = pipeline.consumer_threads * pipeline.readers
    if plan.tiled_mma.threads != threads:
        have = plan.tiled_mma.threads
        yield f"the tiled MMA is made for {have} threads, but the consumers of a tile have {threads}."
    warps = [role.warps for role in plan.roles]
    producer = [] if pipeline.kind == "single" else [WARPGROUP_THREADS // WARP_THREADS]
    expected = [*producer, *[pipeline.consumer_warps] * count]
    if warps != expected:
        yield (
            f"the roles have {warps} warps; they must have {expected}: first a producer warpgroup, then the consumers."
        )
    if pipeline.promoted and plan.operands.acc != f32:
        yield f"promoted = True needs accumulators in f32, not {plan.operands.acc}. Leave promoted out."
    if pipeline.promoted and pipeline.kind == "single":
        yield "promoted = True needs a producer. Use another schedule than 'single', or leave promoted out."
    if pipeline.stagger_cycles and pipeline.kind != "cooperative":
        yield "stagger_cycles > 0 needs cooperative consumers. Leave stagger_cycles out."
    if pipeline.overlapped:
        yield from _overlapped(plan, pipeline)


def _overlapped(plan: GemmPlan, pipeline: WarpRoles) -> Iterator[str]:
    """Yield a sentence for each broken rule on the overlapped epilogue: a tile is stored during the next one's MMAs."""
    if pipeline.kind != "cooperative" or not plan.scheduler.grid.is_persistent:
        yield "an overlapped epilogue needs cooperative consumers and a persistent grid. Leave overlapped out."
    if not plan.store.stored_by_tma:
        yield (
            "an overlapped epilogue stores D through epilogue stages by TMA. Use store = 'tma', or leave "
            "overlapped out."
        )
    for is_there, what in (
        (bool(plan.epilogue.tiles), "the epilogue reads C"),
        (pipeline.promoted, "accumulators are promoted"),
    ):
        if is_there:
            yield f"an overlapped epilogue is not possible if {what}. Leave overlapped out."
    threads_bits = 32 * WARPGROUP_THREADS
    held = product(plan.consumer_d_tile) * plan.operands.d.dtype.bits // threads_bits
    accumulators = product(plan.consumer_mma_tile) * plan.operands.acc.bits // threads_bits
    for role in plan.roles[1:]:
        if role.registers is not None and accumulators + held + OVERLAPPED_EXTRA_REGISTERS > role.registers:
            yield (
                f"the role {role.name} has {role.registers} registers; an overlapped epilogue needs "
                f"{accumulators} for accumulators, {held} for the previous tile and "
                f"{OVERLAPPED_EXTRA_REGISTERS} more. Take a smaller tile, or a narrower type of D."
            )


def _read_a(plan: GemmPlan, pipeline: WarpRoles) -> Iterator[str]:
    """Yield a sentence for each rule that a plan with A in registers (for wgmma) breaks.

    The consumers must share a tile, and read A from shared memory.
    """
    name = plan.tiled_mma.atom.name
    if pipeline.kind != "cooperative" or pipeline.overlapped:
        yield (
            f"{name} reads A from registers, because a 32-bit A that is m-major needs it. It works only with "
            "cooperative consumers without an overlapped epilogue. Use schedule = 'cooperative', or append "
            "+repack to the name of the plan."
        )
    if plan.a.read is None:
        yield f"a.read is None; it is needed, because {name} reads A from registers."


def _warps(plan: GemmPlan, pipeline: WarpRoles) -> Iterator[str]:
    """Yield a sentence for each broken rule on consumers that are single warps, which multiply by mma.sync."""
    bm, bn, _ = plan.cta_tile
    (m, n), mma = pipeline.consumer_tile, plan.tiled_mma
    if pipeline.kind != "cooperative" or pipeline.consumer_warps != 1:
        yield (
            f"{mma.atom.name} is an instruction of one warp; it needs cooperative consumers of 1 warp each, "
            f"not {pipeline.kind} ones of {pipeline.consumer_warps} warps."
        )
    elif bm % m or bn % n or bm // m * (bn // n) != pipeline.consumers:
        yield f"{pipeline.consumers} consumers of {m} x {n} each do not fill a tile of {bm} x {bn}."
    if any(not isinstance(p, Layout) or len(p) != 3 for p in mma.permutation_mnk[:2]):
        yield (
            f"the permutation of the tiled MMA, {mma.permutation_mnk[:2]}, is not (atom, consumers, atoms of a "
            "consumer) along M and N."
        )
    if plan.a.read is None or plan.b.read is None:
        yield f"a.read or b.read is None; both are needed, because {mma.atom.name} reads A and B from registers."
    step = mma.tile_mnk[2]
    if plan.cta_tile[2] % (2 * step):
        yield (
            f"bK = {plan.cta_tile[2]}; it must be an even number of k-blocks of {step}, because two sets of "
            "fragments alternate."
        )
    if plan.scheduler.split.is_split or pipeline.promoted or pipeline.overlapped or pipeline.stagger_cycles:
        yield (
            "consumers that are single warps do not support split-K, promoted, overlapped or stagger_cycles. "
            "Leave them out."
        )
    if plan.cluster_mn != (1, 1):
        yield "consumers that are single warps do not support clusters. Leave cluster out."


def _cluster(plan: GemmPlan) -> Iterator[str]:
    """Yield a violation if a cluster has too many CTAs."""
    ctas = product(plan.cluster_mn)
    if ctas > MAX_CLUSTER_CTAS:
        along_m, along_n = plan.multicast_mn
        asked = f"cluster = {(along_m, along_n)}" + (f", cluster_k = {plan.cluster_k}" if plan.cluster_k > 1 else "")
        yield f"a cluster has {ctas} CTAs; at most {MAX_CLUSTER_CTAS} are allowed: {asked}."


def _loads(plan: GemmPlan) -> Iterator[str]:
    """Yield violations of the TMA loads of A, B and further streams: alignment, multicast and boxes."""
    for stream in plan.streams:
        if not isinstance(stream.load, TmaBox):
            yield f"{stream.name.upper()} is not loaded by TMA; a producer loads by TMA only."
    cm, cn = plan.multicast_mn
    by_wgmma = plan.tiled_mma.atom.is_of_warpgroup
    packed = " Or append +repack to the name of the plan." if by_wgmma else ""
    for stream in plan.streams:
        name, box, operand = stream.name.upper(), stream.load, plan.loaded.matrix(stream.name)
        if not isinstance(box, TmaBox):
            continue
        sharers = (cn if stream.mode == "m" else cm) if stream in plan.streams[:2] else box.multicast
        if stream.index:
            sharers = 1
            yield from _gathers(plan, stream)
        extent, bk = stream.tile
        if operand.align_bytes < TMA_INNER_ALIGNED_BYTES:
            yield (
                f"{name} is aligned to {operand.align_bytes} bytes; TMA needs an alignment of "
                f"{TMA_INNER_ALIGNED_BYTES} bytes for the address and for every stride except 1. Align "
                f"it.{packed}"
            )
        if box.direction != "load" or box.dtype != operand.dtype or box.multicast != sharers:
            yield f"{name} is loaded by {box}; expected a load of {operand.dtype} with multicast to {sharers}."
        inner, outer = (bk, extent) if operand.major == "k" else (extent, bk)
        if inner % box.box[0] or (outer // sharers) % box.box[1] or outer % sharers:
            yield (
                f"boxes of {box.box[0]} x {box.box[1]} of {name} do not divide a tile of {inner} x {outer} "
                f"that {sharers} CTAs load together."
            )


def _gathers(plan: GemmPlan, stream: OperandStream) -> Iterator[str]:
    """Yield violations of an operand whose rows are selected by another operand, and loaded one by one."""
    name, box = stream.name.upper(), stream.load
    if stream.name != plan.operands.gathered or stream.index != INDEX:
        yield f"{name} is loaded by rows of {stream.index}; an operand {INDEX} with the index of each row is expected."
    elif (dtype := plan.operands.matrix(INDEX).dtype) is not s32:
        yield f"{INDEX} is of {dtype}, but kernels read indices of rows as s32. Use `with_index` for the operands."
    if plan.operands.groups != stream.mode:
        yield f"rows of {name} are gathered for groups along {stream.mode.upper()} only. Gather them before the GEMM."
    if plan.body.kind == "single" or not plan.tiled_mma.atom.is_of_warpgroup:
        yield f"rows of {name} are loaded by four warps of a producer. Use schedule='pingpong' or 'cooperative'."
    if isinstance(box, TmaBox) and box.box[0] * box.dtype.bits < 8 * TMA_SMEM_ALIGNED_BYTES:
        yield (
            f"{name} is loaded by rows of {box.box[0]} elements; TMA starts boxes at multiples of "
            f"{TMA_SMEM_ALIGNED_BYTES} bytes. Use a multiple of {TMA_SMEM_ALIGNED_BYTES * 8 // box.dtype.bits} as bK."
        )
    warps = plan.roles[0].warps
    if stream.tile[0] % warps:
        yield f"{stream.tile[0]} rows of {name} do not divide into those of {warps} warps."


def _scatters(plan: GemmPlan) -> Iterator[str]:
    """Yield violations of a D whose rows are selected by another operand, and added to one by one."""
    d, index = plan.operands.d, plan.operands.matrix(D_INDEX)
    if index.dtype is not s32:
        yield f"{D_INDEX} is of {index.dtype}, but kernels read indices of rows as s32. Use `with_index`."
    if plan.operands.groups != index.modes[0] or d.major == index.modes[0]:
        rule = f"rows of an {d.major}-major D are added to for groups along its other mode only"
        yield f"{rule}. Add them after the GEMM."
    if d.dtype not in (f16, bf16, f32):
        yield f"D is of {d.dtype}, but TMA adds f16, bf16 and f32. Add rows of it after the GEMM."
    if plan.epilogue.beside or plan.epilogue.tiles or plan.operands.gated:
        yield f"rows are added to a D that is alone, but the epilogue is {plan.epilogue}. Leave gates and matrices out."
    if not plan.store.stored_by_tma or not plan.tiled_mma.atom.is_of_warpgroup:
        yield (
            "rows of D are added by TMA from the tiles of warpgroups. Use an sm90_plan with store='tma' or 'tma_warp', "
            "and with shared_d='swizzled' or 'plain'."
        )
    columns = TMA_SMEM_ALIGNED_BYTES * 8 // d.dtype.bits
    for _, box in plan.store.boxes[:1]:
        if box.box[1] != 1 or box.box[0] * box.dtype.bits != 8 * TMA_SMEM_ALIGNED_BYTES:
            yield (
                f"D is stored by {box}; rows that are added have {TMA_SMEM_ALIGNED_BYTES} bytes, one in each box. Use "
                f"a multiple of {columns} as bN (bM if D is m-major) and as epi_tile_n."
            )


def _registers(plan: GemmPlan, arch: Arch) -> Iterator[str]:
    """Yield violations if wgmma or the roles need more registers than the kernel is launched with."""
    at_launch = register_budget(plan, arch)
    by_wgmma = plan.tiled_mma.atom.is_of_warpgroup
    words = -(-plan.operands.acc.bits * plan.tiled_mma.atom.shape_mnk[1] * WGMMA_ROWS // (32 * WARPGROUP_THREADS))
    if by_wgmma and words + WGMMA_REGISTERS_BESIDES > at_launch:
        yield (
            f"{plan.tiled_mma.atom.name} needs {words} + {WGMMA_REGISTERS_BESIDES} registers, but "
            f"{plan.threads} threads are launched with only {at_launch} each. Take a narrower tile."
        )
    given = [role for role in plan.roles if role.registers is not None]
    if not given:
        return
    for role in given:
        yield from _setmaxnreg(role)
    if plan.threads % WARPGROUP_THREADS:
        yield f"setmaxnreg needs whole warpgroups; {plan.threads} threads are not a multiple of 128."
    asked = sum(WARP_THREADS * role.warps * (role.registers or at_launch) for role in plan.roles)
    if asked > at_launch * plan.threads:
        have = at_launch * plan.threads
        yield f"the roles ask for {asked} registers, but {plan.threads} threads are launched with {have}."


def _setmaxnreg(role: Role) -> Iterator[str]:
    """Yield a violation if setmaxnreg does not accept the register count of a role."""
    count = role.registers or 0
    if count % SETMAXNREG_STEP or not SETMAXNREG_LEAST <= count <= SETMAXNREG_MOST:
        yield (
            f"the role {role.name} has {count} registers; setmaxnreg accepts multiples of {SETMAXNREG_STEP} "
            f"from {SETMAXNREG_LEAST} to {SETMAXNREG_MOST}."
        )


def _barriers(plan: GemmPlan) -> Iterator[str]:
    """Yield a violation if a plan needs more named barriers than a CTA has."""
    named = 1 + sum(b.count for b in plan.barriers if b.kind == "named")
    if named > MAX_NAMED_BARRIERS:
        yield (
            f"the plan needs {named} named barriers, including the one of all threads; a CTA has {MAX_NAMED_BARRIERS}."
        )


def _k_ctas(plan: GemmPlan, pipeline: WarpRoles) -> Iterator[str]:
    """Yield a sentence for each rule on cluster split-K that a plan breaks.

    With it, each CTA of a cluster multiplies the columns of all of them by some of K, and stores its own columns.
    """
    cluster_k, (_, along) = plan.cluster_k, plan.cluster_mn
    if along != cluster_k:
        yield (
            f"cluster_k = {cluster_k}, but the cluster is {plan.cluster_mn}; cluster_k must be the number of its "
            "CTAs along N."
        )
    whole = plan.consumer_mma_tile[1]
    if not plan.tiled_mma.atom.is_of_warpgroup or plan.tiled_mma.tile_mnk[1] != whole:
        yield (
            f"cluster_k > 1 needs one wgmma for all {whole} columns of a tile, not {plan.tiled_mma.atom.name}. "
            "Take a narrower tile, or leave cluster_k out."
        )
    if plan.operands.acc.bits != REGISTER_BITS:
        yield (
            f"cluster_k > 1 needs 32-bit accumulators, not {plan.operands.acc}. Take accumulators in f32, or "
            "leave cluster_k out."
        )
    for is_there, what in (
        (plan.scheduler.split.is_split, "K is also split over CTAs of the grid"),
        (pipeline.kind == "single", "the plan has no producer"),
        (pipeline.overlapped, "the epilogue is overlapped"),
        (bool(plan.operands.gated), "the epilogue is gated"),
    ):
        if is_there:
            yield f"cluster_k > 1 is not possible if {what}. Leave cluster_k out."


def _by(extents: tuple[int, ...]) -> str:
    """Return the text of extents, such as "64 x 32" for (64, 32)."""
    return " x ".join(str(extent) for extent in extents)
