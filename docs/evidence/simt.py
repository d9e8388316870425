"""f32 GEMMs by SIMT plans compared with cuBLAS, in one run: squares, unaligned, small M, long K and batched shapes.

    python -m docs.evidence simt --json docs/evidence/data/simt.json            all of it, about two minutes
    python -m docs.evidence simt --suite skinny --candidates 12              more plans for fewer shapes

For each shape and layout the chosen plan runs, and those with the next lowest predictions, in alternating order with
torch.matmul: see `run.on_gpu`. `fit_simt` fits the constants of the choice to the times, and reports its loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from cutegemm.choice.catalog import ranked
from cutegemm.choice.names import recipe_named
from cutegemm.choice.simt.named import LARGE_REPACKED
from cutegemm.plan.problem import Problem
from docs.evidence.benchmark import Case, compile_ahead, contests, operands_of, record
from docs.evidence.gemm import LAYOUTS
from docs.evidence.measure import machine, need_gpu

Shape = tuple[int, int, int, int]

SUITES: dict[str, tuple[tuple[Shape, ...], tuple[str, ...]]] = {
    "squares": (tuple([(n, n, n, 1) for n in (1024, 2048, 4096, 6144, 8192)]), LAYOUTS),
    "unaligned": (((4097, 4095, 4093, 1),), LAYOUTS),
    "gemv": (tuple([(m, 8192, 8192, 1) for m in (16, 32, 64, 128, 256)]), ("nn", "nt")),
    "deep": (((256, 256, 131072, 1),), ("nn", "nt", "tn")),
    "batch": (((512, 512, 512, 64),), ("nn", "nt")),
}
_LARGE = "simt:block=256x128x16,warp=64x64,thread=16x8,stages=3,unroll=4,repack={repack}"
# In addition to the plans that the model ranks, by M: plans that cover more CTAs without splitting K, those that share
# k-tiles evenly, other orders of the tiles, other ways for D to leave. "{repack}" is what packing makes better.
_MORE: dict[int, tuple[str, ...]] = {
    64: (
        "simt_64x256/k8",
        "simt_64x256/s264",
        "simt_64x256+repack/s264",
        "simt_64x128/s396",
        "simt_64x128+repack/k6",
    ),
    128: (
        "simt_128x256/k4",
        "simt_128x256/s132",
        "simt_128x256x16/k4",
        "simt_128x256x16/s132",
        "simt_128x256x16+repack/s132",
        "simt_128x128/s264",
        "simt_128x128+repack/s264",
        "simt_64x256/k4",
    ),
    256: (
        "simt_256x128/k2",
        "simt_256x128/s132",
        "simt_256x128+repack/s132",
        "simt_128x256/s132",
        "simt_128x256x16/s132",
        "simt_256x128/k66",
        "simt_128x256x16/k66",
        "simt_128x256/k66",
    ),
    512: ("simt_256x128", "simt_128x256", "simt_128x256x16"),
    1024: ("simt_64x64", "simt_64x128", "simt_128x64", "simt_128x64/k2", "simt_128x64/k2last", "simt_32x256"),
    4096: ("simt_256x128+repack/s132", "simt_128x256x16+repack", "simt_128x256x16"),
    4097: (
        "simt_256x128+repack/s132",
        "simt_128x256x16+repack",
        "simt_128x128+repack",
        "simt_128x128",
        "simt:block=128x128x16,warp=64x64,thread=8x16,stages=4,unroll=4,mma_order=n,ctas_per_sm=2,repack={repack},"
        "store=direct",
        f"{_LARGE},waves=2,persistent=132",
    ),
    8192: tuple([f"{_LARGE},raster={raster}" for raster in ("grouped_m:4", "grouped_n:8", "grouped_m:16")]),
}
_LEAST_K = 1024  # K of a K split
_WORTH = 1.6  # times the model's best time
_PLAIN = "simt_128x128"  # the deep shape shows what splitting K gains


def problem_of(shape: Shape, layout: str) -> Problem:
    """Return the problem of compact matrices."""
    *mnk, batch = shape
    return Problem(*shape, operands=operands_of("f32", layout, *mnk, batched=batch > 1))


def candidates(problem: Problem, count: int) -> list[str | None]:
    """Return None for the chosen plan, then names of others, at most two with tiles of one size."""
    operands = problem.operands
    found: list[str] = []
    by_tile: dict[str, int] = {}
    pool = list(ranked(operands, problem))
    for recipe in [one.recipe for one in pool if one.us <= _WORTH * pool[0].us]:
        tile = str(replace(recipe, split=None, ctas=None))
        if by_tile.get(tile, 0) < 2 and len(found) < count:
            by_tile[tile] = by_tile.get(tile, 0) + 1
            found.append(str(recipe))
    repacks = LARGE_REPACKED.to_repack(operands)
    more = [name.format(repack=repacks) for name in _MORE.get(problem.m, ())]
    found += [name for name in more if _fits(name, problem.k, bool(repacks))]
    if problem.k >= 16 * max(problem.m, problem.n):
        found.append(_PLAIN)
    return [None, *list(dict.fromkeys(found))[1:]]


def _fits(name: str, k: int, repacks: bool) -> bool:
    """Return whether each K split of a plan has enough k-tiles, and whether the plan repacks only what needs it."""
    recipe = recipe_named(name)
    parts = 1 if recipe.split is None else recipe.split.splits
    return (repacks or not recipe.is_repacked) and k >= parts * _LEAST_K


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence simt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--suite", action="append", choices=SUITES, help="may be repeated; all if left out")
    parser.add_argument("--candidates", type=int, default=7, help="plans for each shape and layout")
    parser.add_argument("--plan", action="append", default=[], help="another plan for every shape; may be repeated")
    parser.add_argument("--seconds", type=float, default=0.25, help="of measuring for each shape and layout")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--compile-only", action="store_true", help="fill the disk cache; needs no GPU")
    given = parser.parse_args(arguments)
    problems = [
        problem_of(shape, layout) for suite in given.suite or SUITES for shape, layout in product(*SUITES[suite])
    ]
    cases = [Case(problem, [*candidates(problem, given.candidates), *given.plan]) for problem in problems]
    if given.compile_only:
        compile_ahead(cases)
        return
    need_gpu()
    found = {"machine": machine(), "rows": []}
    record(found, contests(cases, given.seconds, say=lambda line: print(line, flush=True)), given.json)
    print("* is the plan that is chosen")
