"""A GEMM in naive Python, level by level: grid, block, warp, thread, value. Runs on a CPU in seconds.

Nothing here multiplies indices by tile sizes: every index is asked of a layout of the plan, and what each
level contributes to it is printed for a few elements of D.

    python examples/naive_hierarchy.py
"""

from __future__ import annotations

import numpy as np

from cutegemm.build import simt_plan
from cutegemm.layout import Layout, idx2crd, zipped_divide
from cutegemm.machine.arch import WARP_THREADS
from cutegemm.plan import GemmPlan, Operands, Problem

M, N, K = 48, 128, 12


def main() -> None:
    """One small problem: the loops, what each level adds to an index, and whether D is right."""
    operands = Operands.of("f32")
    plan = simt_plan(
        operands,
        name="small",
        block=(16, 64, 4),
        warp=(16, 32),
        thread=(4, 4),
        quad=(2, 4),
        stages=1,
        raster="along_n",
    )
    problem = Problem(M, N, K, operands=operands)
    print(plan.describe(problem), end="\n\n")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, size).astype(np.float32) for size in ((M, K), (K, N)))
    d = multiply(plan, problem, a, b)
    explain(plan, problem, [(0, 0, 0), (1, 0, 5), (4, 37, 6), (5, 63, 15)])
    if not np.array_equal(d, a @ b):
        raise SystemExit("D is wrong")
    print(f"\nD is right: {M} x {N} x {K}, {d.size * K} multiply-adds")


def multiply(plan: GemmPlan, problem: Problem, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """D by loops over the levels: a CTA for each tile, k-tiles, then warps, lanes and values of each."""
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)  # in memory, row by row
    out = np.full(problem.m * problem.n, np.nan, np.float32)
    of_a, of_b, of_d = (tiled(plan, problem, name) for name in "abd")
    held = plan.tiled_mma.tv_layout_C_tiled  # (thread, value) -> place in the tile of D
    bm, bn, bk = plan.cta_tile
    tiles = plan.scheduler.of(problem).tiles
    values = range(held[1].size())
    for cta in range(tiles.count):
        m_tile, n_tile, _ = tiles.tile_mnl(cta)
        sums = np.zeros((plan.threads, len(values)), np.float32)
        for k_tile in range(plan.k_tiles(problem)):
            shared_a = {
                plan.a.smem(i, k, 0): flat_a[of_a((i, k), (m_tile, k_tile))] for i in range(bm) for k in range(bk)
            }
            shared_b = {
                plan.b.smem(j, k, 0): flat_b[of_b((j, k), (n_tile, k_tile))] for j in range(bn) for k in range(bk)
            }
            for k in range(bk):
                for warp in range(plan.threads // WARP_THREADS):
                    for lane in range(WARP_THREADS):
                        thread = lane + WARP_THREADS * warp
                        for value in values:
                            i, j = idx2crd(held(thread, value), (bm, bn))
                            sums[thread, value] += shared_a[plan.a.smem(i, k, 0)] * shared_b[plan.b.smem(j, k, 0)]
        for thread in range(plan.threads):
            for value in values:
                i, j = idx2crd(held(thread, value), (bm, bn))
                out[of_d((i, j), (m_tile, n_tile))] = sums[thread, value]
    return out.reshape(problem.m, problem.n)


def tiled(plan: GemmPlan, problem: Problem, name: str) -> Layout:
    """A matrix cut into the CTAs' tiles: ((row, column) in a tile, (row, column) of tiles) -> place in memory."""
    bm, bn, bk = plan.cta_tile
    matrix = problem.layout(name)
    return zipped_divide(
        Layout(matrix.shape[:2], matrix.stride[:2]), {"a": (bm, bk), "b": (bn, bk), "d": (bm, bn)}[name]
    )


def explain(plan: GemmPlan, problem: Problem, elements: list[tuple[int, int, int]]) -> None:
    """What each level contributes to the place of an element of D in memory: (CTA, thread, value)."""
    of_d, held = tiled(plan, problem, "d"), plan.tiled_mma.tv_layout_C_tiled
    tiles = plan.scheduler.of(problem).tiles
    shape = plan.cta_tile[:2]
    print("  CTA  warp  lane  value  |  CTA adds  warp adds  lane adds  value adds  = place in D    row  column")
    for cta, thread, value in elements:
        at = tiles.tile_mnl(cta)[:2]
        lane, warp = thread % WARP_THREADS, thread // WARP_THREADS
        parts = [of_d((0, 0), at)]
        parts += [of_d(idx2crd(held(*who), shape), (0, 0)) for who in ((WARP_THREADS * warp, 0), (lane, 0), (0, value))]
        place = of_d(idx2crd(held(thread, value), shape), at)
        assert place == sum(parts), "levels do not add up"
        row, column = place // problem.n, place % problem.n
        print(
            f"{cta:5} {warp:5} {lane:5} {value:6}  |  {parts[0]:8} {parts[1]:10} {parts[2]:10} "
            f"{parts[3]:11}  = {place:10} "
            f"{row:6} {column:7}"
        )


if __name__ == "__main__":
    main()
