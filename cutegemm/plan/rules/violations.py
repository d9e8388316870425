"""All rules for plans in one list, which the constructor, the tuner and the command line use.

A rule is a function that yields a sentence for each violation. All violations are reported, not only the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import TYPE_CHECKING, Any

from cutegemm.dtypes import f32, tf32
from cutegemm.errors import PlanError
from cutegemm.layout import product_each, size
from cutegemm.machine.arch import (
    MAX_THREADS_PER_BLOCK,
    SMEM_RESERVED_BYTES,
    Arch,
)
from cutegemm.plan.epilogue import BROADCAST
from cutegemm.plan.memory.groups import elements_of_stage
from cutegemm.plan.memory.partials import folding
from cutegemm.plan.problem import D_INDEX
from cutegemm.plan.program.thread_schedule import thread_schedule
from cutegemm.plan.rules.boxes import box_rules, overlapping, places
from cutegemm.plan.rules.epilogue import epilogue_rules
from cutegemm.plan.rules.gated import gated_problem_rules, gated_rules
from cutegemm.plan.rules.kinds import kind_rules
from cutegemm.plan.rules.limits import limits
from cutegemm.plan.rules.registers import register_budget
from cutegemm.plan.rules.sliced_k import fragment_rules, sliced_k_rules
from cutegemm.plan.rules.vectors import vector_rules
from cutegemm.plan.rules.warp_roles import arch_rules, pipeline_rules
from cutegemm.plan.store.quantized import quantize_rules
from cutegemm.tile.tiled_copy import TiledCopy
from cutegemm.tile.tma import TmaBox

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Operand, Problem

_REPACKED_FAMILIES = ("simt", "sm90")
_COMPILER_REGISTERS = 23  # for addresses, counters and predicates: the minimum over compiled kernels


def violated_on(plan: GemmPlan, arch: Arch) -> list[str]:
    """Return a sentence for each architecture-dependent rule that a plan breaks on an architecture.

    The plan must meet all other rules.
    """
    out = [*_instructions(plan, arch), *_shared_budget(plan, arch), *_register_budget(plan, arch)]
    return out if not plan.body.has_roles else [*out, *arch_rules(plan, arch)]


def violated_rules(plan: GemmPlan, arch: Arch, problem: Problem | None) -> list[str]:
    """Return a sentence for each rule that a plan breaks on an architecture; [] if none.

    If fields have wrong types or bounds, or a gated epilogue is wrong, only these violations are returned: the other
    rules cannot be evaluated.

    problem   adds the rules for its extents, strides and alignment; None checks the plan alone
    """
    kinds = list(kind_rules(plan)) or list(gated_rules(plan))
    if kinds:
        return kinds
    structure = [*_tiles(plan), *_shared_layouts(plan), *_copies(plan), *sliced_k_rules(plan)]
    out = [
        *_types(plan),
        *epilogue_rules(plan),
        *structure,
        *_threads(plan),
        *_instructions(plan, arch),
        *_schedule(plan),
        *plan.scheduler.rules(plan),
    ]
    if not structure:  # the rules below evaluate layouts, whose shapes must be right
        out += [
            *box_rules(plan),
            *vector_rules(plan),
            *_shared_budget(plan, arch),
            *_register_budget(plan, arch),
            *_reductions(plan),
            *quantize_rules(plan),
            *fragment_rules(plan),
        ]
    if plan.body.has_roles:
        out += [*arch_rules(plan, arch), *pipeline_rules(plan)]
    elif any(isinstance(stream.load, TmaBox) for stream in plan.streams):
        out.append("a TMA load needs warp roles; in a thread schedule all threads load. Use a tiled copy.")
    if problem is not None:
        out += problem_rules(plan, problem)
    return out


def _types(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence if the MMA atom, the mainloop or the rounding does not fit the operands."""
    ops, atom = plan.operands, plan.tiled_mma.atom
    for name, have, want in (
        ("A", ops.a.dtype, atom.a_dtype),
        ("B", ops.b.dtype, atom.b_dtype),
        ("the accumulator", ops.acc, atom.c_dtype),
    ):
        if have != want:
            yield f"{name} is {have}, but the MMA atom {atom.name} takes {want}."
    read = {*plan.body.mainloop.operands(plan), *plan.scheduler.reads, *[stream.index for stream in plan.streams]}
    if ops.scattered and plan.body.has_roles:
        read.add(D_INDEX)
    unread = [name for name in ops.of_mainloop if name not in read]
    if unread:
        yield (
            f"the mainloop of this plan does not read {' and '.join(unread)}. Block scales are read by an sm90_plan, "
            "such as sm90_promoted_2x1, and indices of rows by one for groups."
        )
    by_box = isinstance(plan.a.load, TmaBox)
    roundings = ("rz",) if ops.a.dtype is not tf32 else ("rz", "rne") if by_box else ("rz", "rna")
    if plan.rounding not in roundings:
        known = " or ".join(roundings)
        loader = "TMA loads" if by_box else "threads load"
        yield (f"rounding = {plan.rounding!r}: if {loader} operands of {ops.a.dtype}, it must be {known}.")


def _tiles(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each broken rule on the CTA tile, the repack passes, the K split and the cluster."""
    for name, tile, step in zip(("bM", "bN", "bK"), plan.mma_tile, plan.tiled_mma.tile_mnk, strict=True):
        if tile < 1 or tile % step:
            yield f"{name} = {tile} is not a multiple of {step}, the extent of the tiled MMA."
    if plan.repacks and plan.family not in _REPACKED_FAMILIES:
        yield f"repack passes exist for plans of the families {' and '.join(_REPACKED_FAMILIES)} only."
    of_packs = {repack.name.upper(): repack.threads for repack in plan.repacks}
    if len(set(of_packs.values())) > 1:
        said = ", ".join(f"{name} with {threads} threads" for name, threads in of_packs.items())
        yield f"the repack passes copy {said} in one kernel; use the same number of threads for all."
    if not plan.body.has_roles and plan.stages == 0 and (plan.scheduler.split.is_split or plan.repacks):
        yield (
            "without stages of shared memory K is not split and operands are not repacked. Leave split_k, waves "
            "and repack out."
        )
    if not plan.body.has_roles and plan.stages == 0 and plan.store.layout is not None:
        yield "without stages of shared memory D is stored from registers. Use store = 'direct'."
    if not plan.body.has_roles and plan.scheduler.split.is_split and plan.store.layout is not None:
        yield "if K is split, D is stored from registers. Use store = 'direct'."
    alone = not plan.body.has_roles and plan.stages == 0 and not plan.body.slices_k
    if alone and plan.cta_tile[2] != plan.tiled_mma.tile_mnk[2]:
        step = plan.tiled_mma.tile_mnk[2]
        yield f"bK = {plan.cta_tile[2]}; without shared memory it must be {step}, the K of one MMA."
    if any(c < 1 for c in plan.cluster_mn):
        yield f"the cluster {plan.cluster_mn} has an extent below 1."


def _shared_layouts(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each shared-memory layout that has a wrong shape or overlapping elements."""
    bm, bn, bk = plan.mma_tile
    for stream in plan.streams:
        name, layout = stream.name.upper(), stream.smem
        have = product_each(layout.shape)
        depth = bk if stream in plan.streams[:2] or len(have) < 2 else have[1]
        rows = elements_of_stage(plan.operands, stream.name, bm if stream.mode == "m" else bn)
        want = (rows, depth, plan.stages)
        if name == "B" and _is_by_lines(plan, have[0]):
            want = (have[0], *want[1:])
        if have != want:
            yield (
                f"the shared memory of {name} is {layout}, with extents {have}; the tile and the stages need {want}."
            )
        elif plan.stages:
            yield from overlapping(name, layout)
    yield from plan.store.shape_rules(plan)


def _is_by_lines(plan: GemmPlan, columns: int) -> bool:
    """Return whether shared memory holds the tile's columns of B, rounded up to whole rows of TMA boxes.

    An n-major B that wgmma reads may have such additional columns. wgmma multiplies only the first ones, those of the
    tile.

    plan      the plan
    columns   number of columns of B that a stage of shared memory holds
    """
    box, mma = plan.b.load, plan.tiled_mma
    if not isinstance(box, TmaBox) or not mma.atom.is_of_warpgroup or plan.loaded.b.major != "n":
        return False
    width, multiplied = box.box[0], plan.mma_tile[1]
    return mma.tile_mnk[1] == multiplied and columns == -(-multiplied // width) * width and not plan.operands.gated


def _copies(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each tiled copy that does not divide its tile, or does not copy each element once."""
    bm, bn, bk = plan.mma_tile
    parts: list[tuple[str, tuple[str, str], tuple[int, int], TiledCopy | TmaBox]] = [
        ("A", ("M", "K"), (bm, bk), plan.a.load),
        ("B", ("N", "K"), (bn, bk), plan.b.load),
    ]
    if plan.store.cta_copy is not None:
        parts.append(("D", ("M", "N"), plan.d_tile, plan.store.cta_copy))
    for name, modes, extents, copy in parts:
        if isinstance(copy, TmaBox):
            continue
        for mode, tile, step in zip(modes, extents, copy.tiler_mn, strict=True):
            if tile % size(step):
                yield (
                    f"the copy of {name} moves {size(step)} elements along {mode} at a time, which does not "
                    f"divide the tile's {tile}. Choose {lcm(tile, size(step))} elements along {mode}, or a "
                    f"number of warps with other than {copy.threads} threads."
                )
        held, tile = places(copy.layout_tv.offsets()), size(copy.tiler_mn[0]) * size(copy.tiler_mn[1])
        if held != tile:
            yield f"the copy of {name} moves only {held} of the {tile} elements of its tile {copy.tiler_mn}."
        elif (moved := copy.layout_tv.size()) != tile and (plan.stages or name == "D"):
            yield (
                f"the copy of {name} moves the {tile} elements of its tile {copy.tiler_mn} by {moved} moves "
                "instead of one move each."
            )


def _threads(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence if the tiled copies and MMAs of a plan do not have the same number of threads."""
    threads = plan.threads
    if threads > MAX_THREADS_PER_BLOCK:
        yield f"a CTA has {threads} threads; at most {MAX_THREADS_PER_BLOCK} are allowed."
    loads: list[tuple[str, Any]] = [(f"the copy of {each.name.upper()}", each.load) for each in plan.streams]
    copies = [*loads, ("the copy of D", plan.store.cta_copy)]
    made_for = [(what, copy.threads) for what, copy in copies if isinstance(copy, TiledCopy)]
    if not plan.body.has_roles:
        made_for.insert(0, ("the tiled MMA", plan.tiled_mma.threads))
    for what, have in made_for:
        if have != threads:
            yield f"{what} is made for {have} threads, but the roles have {threads}."


def _instructions(plan: GemmPlan, arch: Arch) -> Iterator[str]:
    """Yield a sentence for each instruction of the plan that the architecture does not have."""
    copies = [stream.load for stream in plan.streams]
    loads = [copy.atom if isinstance(copy, TiledCopy) else copy for copy in copies]
    atoms = (plan.tiled_mma.atom, *loads, *[stream.read for stream in plan.streams], plan.store.atom)
    told = set()
    for atom in atoms:
        if atom is not None and not atom.runs_on(arch.name) and atom.name not in told:
            told.add(atom.name)
            yield f"{atom.name} needs {atom.min_arch}; {arch.name} does not support it."


def _schedule(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each synchronization error of a thread schedule, e.g. a stage that is overwritten too early.

    The schedule is executed for several numbers of k-tiles, around the number of stages.
    """
    if plan.body.has_roles:
        return
    stages = plan.stages
    bk, step_k = plan.cta_tile[2], plan.tiled_mma.tile_mnk[2]
    k_blocks = None if bk < 1 or bk % step_k else plan.k_blocks
    told = set()
    for copy in [stream.load for stream in plan.streams]:
        if isinstance(copy, TmaBox) or copy.atom.is_async in told:
            continue
        told.add(copy.atom.is_async)
        for k_tiles in sorted({1, max(1, stages - 1), stages, max(3, 2 * stages + 1)}):
            found = thread_schedule(plan).hazards(copy.atom.is_async, k_tiles, k_blocks)
            if found:
                yield from (
                    f"the thread schedule with {k_tiles} k-tiles loaded by {copy.atom.name}: {hazard}"
                    for hazard in found
                )
                break


def _shared_budget(plan: GemmPlan, arch: Arch) -> Iterator[str]:
    """Yield a sentence if a CTA, or `ctas_per_sm` of them, need more shared memory than the architecture has."""
    parts = plan.smem_bytes()
    total = sum(parts.values())
    named = [(name.upper() if len(name) == 1 else name, size_bytes) for name, size_bytes in parts.items()]
    text = " + ".join(f"{size_bytes} ({name})" for name, size_bytes in named)
    if total > arch.smem_per_block_bytes:
        yield (
            f"shared memory of {text} = {total} bytes exceeds the {arch.smem_per_block_bytes} bytes of a CTA "
            f"on {arch.name}. Take fewer stages or a smaller tile."
        )
    elif plan.ctas_per_sm * (total + SMEM_RESERVED_BYTES) > arch.smem_per_sm_bytes:
        yield (
            f"{plan.ctas_per_sm} CTAs of {total} bytes of shared memory exceed the {arch.smem_per_sm_bytes} "
            f"bytes of an SM of {arch.name}. Take fewer stages, a smaller tile or fewer CTAs per SM."
        )


def _register_budget(plan: GemmPlan, arch: Arch) -> Iterator[str]:
    """Yield a sentence if a thread needs more registers than its warp role has.

    A role without a register count has as many as each thread gets if `ctas_per_sm` CTAs share an SM.
    """
    parts = plan.registers()
    needed = sum(parts.values()) + _COMPILER_REGISTERS
    text = " + ".join(f"{value} ({name})" for name, value in parts.items())
    budget = register_budget(plan, arch)
    asked = max([role.registers or 0 for role in plan.roles])
    if asked:
        if needed > asked:
            yield (
                f"a consumer thread needs {text} + about {_COMPILER_REGISTERS} = {needed} registers; its role "
                f"has {asked}. Take a smaller tile."
            )
    elif needed > budget:
        yield (
            f"a thread needs {text} + about {_COMPILER_REGISTERS} = {needed} registers; {plan.ctas_per_sm} "
            f"{'CTA' if plan.ctas_per_sm == 1 else 'CTAs'} of {plan.threads} threads leave {budget} each. Take "
            "a smaller tile."
        )


def _reductions(plan: GemmPlan) -> Iterator[str]:
    """Yield a sentence for each error of an epilogue's reductions (sums and maxima over D).

    Errors are wrong types or kinds of their results, and accumulators that warps cannot reduce by shuffles.
    """
    acc = plan.operands.acc
    wide = acc if acc.bits > 32 else f32
    for name, reduction in plan.epilogue.reductions:
        operand = plan.operands.matrix(name)
        if operand.broadcast != BROADCAST[reduction.kind] or operand.dtype != wide:
            kind = reduction.kind.__name__
            yield (
                f"{name} = {reduction} is declared as {operand}, but with accumulators in {acc} it is a {kind} "
                f"of {wide}. Use operands.with_aux({name}=Operand.of_kind({kind}, {wide}))."
            )
        try:
            folding(plan, reduction.along)
        except PlanError as error:
            yield from [f"{name} = {reduction}: {violations}" for violations in error.violations]


def problem_rules(plan: GemmPlan, problem: Problem) -> Iterator[str]:
    """Yield a sentence for each type, extent, stride or alignment of a problem that does not fit the plan."""
    yield from gated_problem_rules(plan, problem)
    for name in _held_against(plan):
        ours, theirs = plan.operands.matrix(name), problem.operands.matrix(name)
        other = _other_operand(name, ours, theirs)
        if other:
            yield other
        elif theirs.align_bytes < ours.align_bytes:
            yield (
                f"{name.upper()} is aligned to {theirs.align_bytes} bytes; the plan needs {ours.align_bytes}. "
                "Make the plan for operands with this alignment, as Operands.fitted does."
            )
        else:
            yield from _strides(name, ours, problem, _by_box(plan, name) or bool(ours.broadcast))
            if ours.broadcast:
                yield from _whole_vectors(plan, name, ours, problem)
    yield from limits(plan, problem)


def other_operands(plan: GemmPlan, problem: Problem) -> Iterator[str]:
    """Yield a sentence for each operand of a problem whose element type or majorness differs from that in the plan."""
    for name in _held_against(plan):
        other = _other_operand(name, plan.operands.matrix(name), problem.operands.matrix(name))
        if other:
            yield other


def _held_against(plan: GemmPlan) -> tuple[str, ...]:
    """Return the names of the operands and results whose type and majorness must agree between problem and plan."""
    return ("a", "b", *plan.operands.of_mainloop, *plan.epilogue.tensors, *plan.epilogue.outputs)


def _other_operand(name: str, ours: Operand, theirs: Operand) -> str:
    """Return a sentence if an operand has another type or majorness in the problem than in the plan; "" if not.

    name           name of the operand
    ours, theirs   the operand of the plan, and that of the problem
    """
    if ours.dtype == theirs.dtype and ours.major == theirs.major:
        return ""
    return f"{name.upper()} is {theirs.dtype} {theirs.major}-major; the plan is made for {ours}."


def _whole_vectors(plan: GemmPlan, name: str, operand: Operand, problem: Problem) -> Iterator[str]:
    """Yield a sentence if a row or column operand of the epilogue does not consist of whole vectors.

    It is loaded in vectors, and the last one must not reach past its end.

    name      name of the operand
    operand   the operand of the plan, with its alignment
    problem   the problem, with the operand's extent
    """
    extent, at_once = problem.layout(name).shape["mn".index(operand.major)], plan.access(name).values
    if len(operand.broadcast) == 1 and extent % at_once:
        have = extent * operand.dtype.bits // 8
        yield (
            f"{name.upper()} has {extent} elements, but is read {at_once} at a time. Make the plan for "
            f"{name.upper()} aligned to {have & -have} bytes."
        )


def _by_box(plan: GemmPlan, name: str) -> bool:
    """Return whether TMA reads the caller's operand, so that its extent need not be a multiple of a vector.

    name   name of the operand, such as "a"
    """
    if any(stream.name == name for stream in plan.streams):
        return isinstance(plan.stream(name).load, TmaBox) and all(p.name != name for p in plan.repacks)
    return name == plan.fetched_tile


def _strides(name: str, operand: Operand, problem: Problem, any_extent: bool) -> Iterator[str]:
    """Yield a sentence for each stride of an operand that is not a multiple of its alignment; also for its extent.

    name         name of the operand
    operand      the operand of the plan, with its alignment
    problem      the problem, with the extents and strides
    any_extent   True if the extent along the contiguous mode is not checked
    """
    layout = problem.layout(name)
    contiguous = 0 if layout.stride[0] == 1 and operand.major == problem.operands.modes(name)[0][0] else 1
    extent = layout.shape[contiguous]
    have = extent * operand.dtype.bits // 8
    if not any_extent and have % operand.align_bytes:
        yield f"{name.upper()} has {extent} elements along {operand.major}, {_misfit(name, have, operand)}"
    for mode, stride in enumerate(layout.stride):
        have = stride * operand.dtype.bits // 8
        if layout.shape[mode] > 1 and stride != 1 and have % operand.align_bytes:
            yield f"{name.upper()} has the stride {stride}, {_misfit(name, have, operand)}"


def _misfit(name: str, have_bytes: int, operand: Operand) -> str:
    """Return the end of a sentence about an extent or stride that is not a multiple of an operand's alignment.

    name         name of the operand
    have_bytes   the extent or stride in bytes
    operand      the operand of the plan, with its alignment
    """
    if operand.modes:
        return f"{have_bytes} bytes, which is not a multiple of {operand.align_bytes}, which TMA needs. Pad its rows."
    return (
        f"{have_bytes} bytes, which is not a multiple of {operand.align_bytes}, the alignment of the plan's "
        f"accesses. Make the plan for {name.upper()} aligned to {have_bytes & -have_bytes}, as Operands.fitted "
        "does."
    )
