"""Print a plan as text: the hierarchy from the grid to a value, memory, copies, roles and barriers.

Each line is a row of (name, count, shape or unit, details).
"""

from __future__ import annotations

from textwrap import indent
from typing import TYPE_CHECKING

from cutegemm.layout import size
from cutegemm.layout.inttuple import product
from cutegemm.machine.arch import ARCHS, WARP_THREADS
from cutegemm.plan.epilogue import operations
from cutegemm.plan.epilogue_access import registers_at_end
from cutegemm.plan.launches import OVERLAP, launches_of
from cutegemm.plan.memory.partials import folding
from cutegemm.plan.reduction import exchanged
from cutegemm.plan.rows import Row, copy_row
from cutegemm.plan.store.quantized import SHARERS, block_groups

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem


def describe(plan: GemmPlan, problem: Problem | None = None) -> str:
    """Return a plan as text: its name, its operands, and a table from the grid of CTAs down to a single value.

    A line of the table has a level (such as "CTA" or "warp"), a count, a shape and a layout.

    problem   the problem whose tiles are counted; None: the grid is given as a formula in M, N and L
    """
    rows = [*_hierarchy(plan, problem), *_memory(plan), *_pipeline(plan)]
    width = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join((level.ljust(width[0]), count.rjust(width[1]), shape.ljust(width[2]), layout)).rstrip()
        for level, count, shape, layout in rows
    ]
    head = f"{plan.name}: {plan.summary}" if plan.summary else plan.name
    return "\n".join([head, f"  {stated_operands(plan)}", *lines])


def stated_operands(plan: GemmPlan) -> str:
    """Return the types, majorness and alignment of a plan's operands as text, in the user's orientation.

    If the plan swaps A and B, a second line says so.
    """
    if not plan.swap_ab:
        return str(plan.operands)
    return f"{plan.operands.transposed}\n  swap A/B: the plan computes D^T = B^T A^T; its A is B^T, and its B is A^T"


def describe_programs(plan: GemmPlan) -> str:
    r"""Return the programs (lists of steps) of a plan's warp roles as text, each under the name of its role.

    Roles with equal programs are printed once, with all names. A plan without roles has one schedule, under "all
    threads".

    >>> from cutegemm.build import sm90_plan
    >>> print(*describe_programs(sm90_plan()).splitlines()[:5], sep="\n")
    producer
      for tile in work:
        for k in tile.k_tiles:
          acquire  empty[k]
          load     A[k], B[k] -> full[k]
    """
    if not plan.body.has_roles:
        named = {"all threads": str(plan.body)}
    else:
        by_program: dict[str, list[str]] = {}
        for role, program in plan.programs.items():
            by_program.setdefault(str(program), []).append(role)
        named = {_together(roles): text for text, roles in by_program.items()}
    return "\n".join([f"{roles}\n{indent(text, '  ')}" for roles, text in named.items()])


def _together(roles: list[str]) -> str:
    """Return one heading for several roles with equal programs: "consumer 0, 1" for ["consumer 0", "consumer 1"]."""
    first, *others = roles
    return ", ".join([first, *[role.split()[-1] for role in others]])


_LINE: dict[tuple[str, ...], str] = {("n",): "row", ("m",): "column"}  # what a reduction along N or M leaves


def _hierarchy(plan: GemmPlan, problem: Problem | None) -> list[Row]:
    """Return the lines of a plan's printed description from the grid of CTAs down to the MMA atom.

    A line is (level, count, shape, details), such as ("CTA", "1", "128 x 128", ...).

    problem   the problem whose tiles are counted; None: the grid is given as a formula
    """
    bm, bn, bk = plan.cta_tile
    mma, atom = plan.tiled_mma, plan.tiled_mma.atom
    warps = plan.threads // WARP_THREADS
    held = mma if not plan.body.has_roles else plan.epilogue_mma
    values = size(held.tv_layout_C_tiled, mode=[1]) * (bm * bn) // (held.tile_mnk[0] * held.tile_mnk[1])
    rows = [*plan.scheduler.describe(plan, problem)]
    pipeline = plan.body
    if plan.pdl:
        rows.append(("launch", "1", "pdl", "starts before the previous kernel has ended; A is read at once"))
    if plan.cluster_mn != (1, 1):
        rows.append(("cluster", "1", f"{plan.cluster_mn[0]} x {plan.cluster_mn[1]} CTAs", ""))
    if plan.cluster_k > 1:
        together = " x ".join(str(extent) for extent in plan.mma_tile[:2])
        each = f"cluster split-K: each CTA multiplies {together} by its k-tiles, and stores {bm} x {bn}"
        rows.append(("k-tiles", str(plan.cluster_k), "parts", each))
    for repack in plan.repacks:
        rows.append((f"repack {repack.name.upper()}", "1", "x".join(map(str, repack.tile)), str(repack)))
    launches = launches_of(plan)
    if len(launches) > 1:
        least = next(name for name, arch in ARCHS.items() if arch.has(OVERLAP))
        how = f"from {least} on, each is launched while the previous one runs, and waits for its end"
        rows.append(("kernels", str(len(launches)), ", ".join(launches), how))
    rows += [
        ("CTA", "1", f"{bm} x {bn} x {bk}", f"{plan.threads} threads, {_per_sm(plan)}"),
    ]
    if pipeline.has_roles:
        own = " x ".join(str(extent) for extent in plan.consumer_mma_tile)
        whose = "a tile each, in turn" if pipeline.tiles_in_flight > 1 else "of one tile"
        rows.append(("consumer", str(pipeline.consumers), own, f"{plan.consumer_threads} threads, {whose}"))
    rows += [
        ("warp", str(warps), f"{WARP_THREADS} threads", f"threads {mma.thr_layout_vmnk}"),
        ("thread", str(plan.threads), f"{values} of D", f"values {held.tv_layout_C_tiled}"),
        ("atom", "1", " x ".join(str(e) for e in atom.shape_mnk), atom.name),
    ]
    return rows


def _per_sm(plan: GemmPlan) -> str:
    """Return how many CTAs of this plan share an SM, as text such as "2 CTAs per SM"."""
    return f"{plan.ctas_per_sm} CTA{'s' if plan.ctas_per_sm > 1 else ''} per SM"


def _memory(plan: GemmPlan) -> list[Row]:
    """Return the lines of a plan's printed description for shared memory, copies, epilogue and stores.

    A line is (level, count, shape, details).
    """
    used = plan.smem_bytes()
    rows = [
        (f"shared {stream.name.upper()}", str(plan.stages), f"{used[stream.name]} bytes", str(stream.smem))
        for stream in plan.streams
    ]
    for buffer in plan.store.buffers(plan):
        more = " more" if plan.store.reuses_stages else ""
        stages = str(product(buffer.layout.shape[2:]))
        rows.append((f"shared {buffer.name.upper()}", stages, f"{used[buffer.name]} bytes{more}", str(buffer.layout)))
    if plan.body.slices_k:
        parts = f"{plan.body.k_warps} warps" + (f", {plan.cluster_k} CTAs" if plan.cluster_k > 1 else "")
        rows.append(
            ("shared accumulators", str(plan.body.k_warps), f"{used['accumulators']} bytes", f"K is split by {parts}")
        )
    elif plan.cluster_k > 1:
        of_all = exchanged(plan)
        rows.append(
            ("shared accumulators", str(plan.cluster_k), f"{used['accumulators']} bytes", f"from each CTA {of_all}")
        )
    if "barriers" in used:
        rows.append(("shared barriers", str(used["barriers"] // 8), f"{used['barriers']} bytes", ""))
    if "semaphores" in used:
        rows.append(("shared semaphores", str(used["semaphores"] // 4), f"{used['semaphores']} bytes", ""))
    beside = plan.loaded_tile[1] - plan.mma_tile[1]
    of_next = f", {beside} columns next to the tile" if beside else ""
    for stream in plan.streams:
        more = of_next if stream is plan.b else ""
        rows.append(copy_row(f"load {stream.name.upper()}", stream.load, stream.tile, more))
    for stream in plan.streams:
        if stream.read is not None:
            rows.append((f"read {stream.name.upper()}", "1", f"{stream.read.bits} bits", stream.read.name))
    rows += _epilogue_rows(plan)
    for name, reduction in plan.epilogue.reductions:
        how = folding(plan, reduction.along)
        what = "partial results a tile" if len(how.along) == 2 else f"partial results a {_LINE[how.along]}"
        lanes = ", ".join(map(str, how.lanes)) or "none"
        text = f"lanes at distances of {lanes}; (unit, warp) -> {how.piece_of}"
        rows.append((f"reduce {name}", str(how.pieces), what, text))
    for name in plan.epilogue.scales:
        count, lanes = len(set(block_groups(plan))), ", ".join(map(str, SHARERS))
        rows.append((f"quantize to {name}", str(count), "scales a thread", f"lanes at distances of {lanes}"))
    rows.append(("store D", "1", f"{plan.store.atom.bits} bits", plan.store.atom.name))
    return [*rows, *plan.store.rows(plan)]


def _epilogue_rows(plan: GemmPlan) -> list[Row]:
    """Return the lines of a plan's printed description for its epilogue: instructions, operands, auxiliary outputs.

    A line is (level, count, shape, details). If no values of the scalars make the epilogue need instructions, a single
    line has its formula.
    """
    epilogue, acting = plan.epilogue, plan.epilogue.acting()
    if not acting.steps:
        return [("epilogue", "1", "an element of D", str(epilogue))]
    cost = operations(acting)
    special = f", {cost.special} special" if cost.special else ""
    rows = [("epilogue", str(cost.fp32), f"instructions{special}", str(epilogue))]
    registers = registers_at_end(plan)
    for name in (*acting.tensors, *epilogue.outputs[1:]):
        verb = "store" if name in epilogue.outputs else "load"
        if name == plan.fetched_tile:
            continue  # printed with the epilogue stages
        bits = "through epilogue stages" if name in plan.epi_stage_results else f"{plan.access(name).bits} bits"
        rows.append((f"{verb} {name}", str(registers[name]), f"registers, {bits}", str(plan.operands.matrix(name))))
    return rows


def _pipeline(plan: GemmPlan) -> list[Row]:
    """Return the lines of a plan's printed description for warp roles, barriers and registers.

    A line is (level, count, shape, details).
    """
    rows: list[Row] = []
    for role in plan.roles:
        registers = f"{role.registers} registers" if role.registers else ""
        rows.append((f"role {role.name}", str(role.warps), "warps", registers))
    for barrier in plan.barriers:
        extra = f"{barrier.transaction_bytes} bytes" if barrier.transaction_bytes else ""
        kind = {"named": "named", "mbarrier": "mbarrier"}.get(barrier.kind, "all threads")
        says = ", ".join(part for part in (kind, extra) if part)
        rows.append((f"barrier {barrier.name}", str(barrier.count), f"{barrier.arrivals} arrivals", says))
    needs = ", ".join(f"{count} {what}" for what, count in plan.registers().items())
    rows.append(("registers", str(sum(plan.registers().values())), "a thread", needs))
    return rows
