"""Run a GEMM as plain Python loops over the levels of a plan: grid, CTA, warp, thread, value.

No index is computed from tile sizes: the layouts of the plan give all of them. For a few elements of D, the example
prints what each level adds to the offset of the element. It takes seconds on a CPU.

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
    """Multiply two small matrices, print what each level adds to an offset, and check D."""
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
    """Return A @ B, computed by loops over CTAs, k-tiles, elements of K, warps, lanes and values."""
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)  # row-major memory
    out = np.full(problem.m * problem.n, np.nan, np.float32)
    tiled_a, tiled_b, tiled_d = (tiled(plan, problem, name) for name in "abd")
    tv_layout = plan.tiled_mma.tv_layout_C_tiled  # (thread, value) -> index in the tile of D
    bm, bn, bk = plan.cta_tile
    tiles = plan.work(problem).tiles
    values = range(tv_layout[1].size())
    for cta in range(tiles.count):
        m_tile, n_tile, _ = tiles.tile_mnl(cta)
        accumulator = np.zeros((plan.threads, len(values)), np.float32)
        for k_tile in range(plan.k_tiles(problem)):
            shared_a = {
                plan.a.smem(i, k, 0): flat_a[tiled_a((i, k), (m_tile, k_tile))] for i in range(bm) for k in range(bk)
            }
            shared_b = {
                plan.b.smem(j, k, 0): flat_b[tiled_b((j, k), (n_tile, k_tile))] for j in range(bn) for k in range(bk)
            }
            for k in range(bk):
                for warp in range(plan.threads // WARP_THREADS):
                    for lane in range(WARP_THREADS):
                        thread = lane + WARP_THREADS * warp
                        for value in values:
                            i, j = idx2crd(tv_layout(thread, value), (bm, bn))
                            product = shared_a[plan.a.smem(i, k, 0)] * shared_b[plan.b.smem(j, k, 0)]
                            accumulator[thread, value] += product
        for thread in range(plan.threads):
            for value in values:
                i, j = idx2crd(tv_layout(thread, value), (bm, bn))
                out[tiled_d((i, j), (m_tile, n_tile))] = accumulator[thread, value]
    return out.reshape(problem.m, problem.n)


def tiled(plan: GemmPlan, problem: Problem, name: str) -> Layout:
    """Return the layout of a matrix divided into the tiles of CTAs: ((row, column) in a tile, tile) -> offset.

    name   "a", "b" or "d"
    """
    bm, bn, bk = plan.cta_tile
    matrix = problem.layout(name)
    return zipped_divide(
        Layout(matrix.shape[:2], matrix.stride[:2]), {"a": (bm, bk), "b": (bn, bk), "d": (bm, bn)}[name]
    )


def explain(plan: GemmPlan, problem: Problem, elements: list[tuple[int, int, int]]) -> None:
    """Print what each level adds to the offset of elements of D.

    elements   (CTA, thread, value) of each element
    """
    tiled_d, tv_layout = tiled(plan, problem, "d"), plan.tiled_mma.tv_layout_C_tiled
    tiles = plan.work(problem).tiles
    shape = plan.cta_tile[:2]
    print("  CTA  warp  lane  value  |  CTA adds  warp adds  lane adds  value adds  = offset in D   row  column")
    for cta, thread, value in elements:
        at = tiles.tile_mnl(cta)[:2]
        lane, warp = thread % WARP_THREADS, thread // WARP_THREADS
        levels = ((WARP_THREADS * warp, 0), (lane, 0), (0, value))  # (thread, value) of one level, the others at 0
        terms = [tiled_d((0, 0), at)]
        terms += [tiled_d(idx2crd(tv_layout(*level), shape), (0, 0)) for level in levels]
        offset = tiled_d(idx2crd(tv_layout(thread, value), shape), at)
        assert offset == sum(terms), "the terms of the levels do not add up to the offset"
        row, column = offset // problem.n, offset % problem.n
        print(
            f"{cta:5} {warp:5} {lane:5} {value:6}  |  {terms[0]:8} {terms[1]:10} {terms[2]:10} "
            f"{terms[3]:11}  = {offset:10} "
            f"{row:6} {column:7}"
        )


if __name__ == "__main__":
    main()
