"""A plan in words: the hierarchy from the grid down to a value, a line a level."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cutegemm.arch import WARP_THREADS
from cutegemm.layout import size

if TYPE_CHECKING:
    from cutegemm.plan.plan import GemmPlan
    from cutegemm.plan.problem import Problem
    from cutegemm.tile.tiled_copy import TiledCopy


def describe(plan: GemmPlan, problem: Problem | None = None) -> str:
    """Rows of (level, count, shape, layout), aligned."""
    rows = [*_hierarchy(plan, problem), *_memory(plan), *_pipeline(plan)]
    width = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [
        "  ".join((level.ljust(width[0]), count.rjust(width[1]), shape.ljust(width[2]), layout)).rstrip()
        for level, count, shape, layout in rows
    ]
    head = f"{plan.name}: {plan.summary}" if plan.summary else plan.name
    return "\n".join([head, f"  {plan.operands}", *lines])


Row = tuple[str, str, str, str]


def _hierarchy(plan: GemmPlan, problem: Problem | None) -> list[Row]:
    bm, bn, bk = plan.cta_tile
    mma, atom = plan.tiled_mma, plan.tiled_mma.atom
    if problem is None:
        grid, tiles = "M/bM x N/bN x L", "-"
    else:
        m, n, l = plan.grid(problem)
        grid, tiles = f"{m} x {n} x {l} tiles", str(m * n * l)
    warps = plan.threads // WARP_THREADS
    values = size(mma.layout_c_tv_tiled, mode=[1]) * (bm * bn) // (mma.tile_mnk[0] * mma.tile_mnk[1])
    rows = [("grid", tiles, grid, f"raster {plan.raster}")]
    if plan.cluster_mn != (1, 1):
        rows.append(("cluster", "1", f"{plan.cluster_mn[0]} x {plan.cluster_mn[1]} CTAs", ""))
    if plan.split_k > 1:
        rows.append(("split", str(plan.split_k), "parts of K", ""))
    rows += [
        ("CTA", "1", f"{bm} x {bn} x {bk}", f"{plan.threads} threads, {plan.ctas_per_sm} a multiprocessor"),
        ("warp", str(warps), f"{WARP_THREADS} threads", f"threads {mma.thr_layout_vmnk}"),
        ("thread", str(plan.threads), f"{values} of D", f"values {mma.layout_c_tv_tiled}"),
        ("atom", "1", " x ".join(str(e) for e in atom.shape_mnk), atom.name),
    ]
    return rows


def _memory(plan: GemmPlan) -> list[Row]:
    used = plan.smem_bytes()
    rows = [
        ("shared A", str(plan.stages), f"{used['a']} bytes", str(plan.smem_a)),
        ("shared B", str(plan.stages), f"{used['b']} bytes", str(plan.smem_b)),
    ]
    if plan.smem_d is not None:
        rows.append(("shared D", "1", f"{used['d']} bytes", str(plan.smem_d)))
    rows += [_copy("load A", plan.load_a), _copy("load B", plan.load_b)]
    rows += [
        ("read A", "1", f"{plan.read_a.bits} bits", plan.read_a.name),
        ("read B", "1", f"{plan.read_b.bits} bits", plan.read_b.name),
        ("store D", "1", f"{plan.store_d.bits} bits", plan.store_d.name),
    ]
    return rows


def _copy(label: str, copy: TiledCopy) -> Row:
    tile = " x ".join(str(size(t)) for t in copy.tiler_mn)
    return (label, "1", tile, f"{copy.atom.name} by {copy.layout_tv}")


def _pipeline(plan: GemmPlan) -> list[Row]:
    rows: list[Row] = []
    for role in plan.roles:
        registers = f"{role.registers} registers" if role.registers else ""
        rows.append((f"role {role.name}", str(role.warps), "warps", registers))
    for barrier in plan.barriers:
        extra = f"{barrier.transaction_bytes} bytes" if barrier.transaction_bytes else ""
        rows.append((f"barrier {barrier.name}", str(barrier.count), f"{barrier.arrivals} arrivals", extra))
    needs = ", ".join(f"{count} {what}" for what, count in plan.registers().items())
    rows.append(("registers", str(sum(plan.registers().values())), "a thread", needs))
    return rows
