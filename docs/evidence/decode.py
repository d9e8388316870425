"""Few rows by many weights, as in decoding: all launches in one CUDA graph, so that no weight is in L2.

python -m docs.evidence decode --json decode.json
python -m docs.evidence decode --seed 1 --count 40 --json decode_random.json     # random rows and weights
python -m docs.evidence decode --rows 1 --shape 4096x4096 --plan swap_ab:gemv_16x8_pdl
python -m docs.evidence decode --table docs/evidence/data/decode.json     # the table of a record

The plan that `gemm` chooses, named plans and cuBLAS are compared; for one row of bf16 also a plain loop in CUDA C++:
one warp per row of the weight, four 16-byte loads of a lane in flight. The graphs are replayed in alternating order.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutegemm.errors import CutegemmError
from cutegemm.plan.problem import Problem
from docs.evidence.benchmark import Case, compile_ahead, operands_of, record
from docs.evidence.choice import distribution
from docs.evidence.files import read_record
from docs.evidence.graphs import Launch, alternating, graph_of
from docs.evidence.measure import machine, need_gpu
from docs.evidence.pages.markdown import table

ROWS = (1, 4, 8, 16)
SHAPES = ("4096x4096", "8192x8192", "28672x8192", "8192x28672")
WEIGHT_BYTES = 2 << 30  # largest size of all weights of a graph
MOST_WEIGHTS = 32
REPLAYS = 15
# Random weights: extents, uniform in their logarithm and multiples of 16; bytes of one weight
DRAWN_EXTENTS, DRAWN_STEP, DRAWN_BYTES = (1024, 32768), 16, (8 << 20, 400 << 20)
DRAWN_ROWS = 64  # at most, alike in their logarithm
LOOP = r"""
extern "C" __global__ void __launch_bounds__(256)
loop(const uint4* __restrict__ weight, const uint4* __restrict__ x, unsigned short* out, int vectors, int rows) {
  int row = (blockIdx.x * 256 + threadIdx.x) / 32, lane = threadIdx.x % 32;
  if (row >= rows) return;
  const uint4* own = weight + (long long)row * vectors;
  float sum = 0;
  for (int k = lane; k < vectors; k += 128) {
    uint4 w[4], v[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(w[i].x), "=r"(w[i].y), "=r"(w[i].z), "=r"(w[i].w) : "l"(own + k + 32 * i));
    #pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = x[k + 32 * i];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
      unsigned a[4] = {w[i].x, w[i].y, w[i].z, w[i].w}, b[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum += __uint_as_float(a[j] << 16) * __uint_as_float(b[j] << 16);
        sum += __uint_as_float(a[j] & 0xffff0000u) * __uint_as_float(b[j] & 0xffff0000u);
      }
    }
  }
  for (int far = 16; far; far /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, far);
  unsigned bits = __float_as_uint(sum);
  if (lane == 0) out[row] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
"""
LOOP_STEP = 1024  # elements of K that a warp takes at once

Row = dict[str, Any]


def drawn(seed: int, count: int) -> list[tuple[int, int, int]]:
    """Return random problems: rows, N and K.

    >>> drawn(1, 3)
    [(3, 5696, 4864), (15, 15760, 1424), (1, 18544, 4592)]
    """
    rng, found = random.Random(seed), list[tuple[int, int, int]]()
    least, most = (math.log2(extent) for extent in DRAWN_EXTENTS)
    while len(found) < count:
        rows = round(DRAWN_ROWS ** rng.random())
        n, k = (DRAWN_STEP * round(2 ** rng.uniform(least, most) / DRAWN_STEP) for _ in range(2))
        if DRAWN_BYTES[0] <= 2 * n * k <= DRAWN_BYTES[1]:
            found.append((rows, n, k))
    return found


def _compile_ahead(problems: Sequence[tuple[int, int, int]]) -> None:
    """Compile the chosen plans of the problems in many processes."""
    compile_ahead([Case(Problem(*mnk, operands=operands_of("bf16", "nt", *mnk)), [None]) for mnk in problems])


def _launches(x: Any, weights: Sequence[Any], out: Any, plans: Sequence[str]) -> Iterator[tuple[str, Launch]]:
    """Return the launches to compare, by name."""
    import torch

    turned = [weight.t() for weight in weights]
    yield "library", lambda number: torch.mm(x, turned[number], out=out[number])
    for plan in (None, *plans):
        yield plan or "chosen", functools.partial(_product, x, turned, out, plan)
    rows, k = weights[0].shape
    if len(x) == 1 and k % LOOP_STEP == 0:
        loop = torch.cuda._compile_kernel(LOOP, "loop")
        grid = (-(-rows // 8), 1, 1)
        yield (
            "loop",
            lambda number: loop(grid=grid, block=(256, 1, 1), args=(weights[number], x, out[number], k // 8, rows)),
        )


def _product(x: Any, turned: Sequence[Any], out: Any, plan: str | None, number: int) -> None:
    """Multiply x by one weight, as `gemm` does."""
    from cutegemm.run.gemm import gemm

    gemm(x, turned[number], out=out[number], plan=plan)


def timed(rows: int, n: int, k: int, plans: Sequence[str]) -> Row:
    """Return the microseconds of one bf16 problem by contestant, and the name of the chosen plan."""
    import torch

    from cutegemm.run.gemm import plan_of

    count = max(2, min(MOST_WEIGHTS, WEIGHT_BYTES // (2 * n * k)))
    x, *weights = (torch.randn(extent, k, device="cuda").bfloat16() for extent in (rows, *[n] * count))
    out = torch.empty(count, rows, n, device="cuda", dtype=torch.bfloat16)
    want, graphs = x.float() @ weights[-1].float().t(), {}
    for name, launch in _launches(x, weights, out, plans):
        out.fill_(float("nan"))
        graphs[name] = graph_of(launch, count)
        error = ((out[-1].float() - want).norm() / want.norm()).item()
        if not error < 1e-2:
            raise CutegemmError(f"decode: {rows}x{n}x{k} by {name} is off by {error:.2g}.")
    us = alternating(graphs, count, REPLAYS)
    plan = plan_of(x, weights[0].t(), out=out[0]).name
    return {"m": rows, "n": n, "k": k, "weights": count, "plan": plan, "us": us}


def told(row: Row) -> str:
    """Return a row as a sentence.

    >>> print(told({"m": 1, "n": 4096, "k": 4096, "plan": "gemv_16x8", "us": {"library": 12.5, "chosen": 10.0}}))
    1x4096x4096 gemv_16x8: library 12.50, chosen 10.00 us (1.250, 3.36 TB/s)
    """
    us = row["us"]
    times = ", ".join(f"{name} {time:.2f}" for name, time in us.items())
    rate = 2e-6 * row["n"] * row["k"] / us["chosen"]
    ratio = _ratio(row)
    return f"{row['m']}x{row['n']}x{row['k']} {row['plan']}: {times} us ({ratio:.3f}, {rate:.2f} TB/s)"


def rows_of(found: Mapping[str, Any]) -> str:
    """Return the table of a record; for random problems a summary line, then the lowest ratios.

    >>> row = {"m": 1, "n": 4096, "k": 4096, "plan": "gemv_16x8", "us": {"library": 12.5, "chosen": 10.0}}
    >>> print(rows_of({"rows": [row]}).splitlines()[-1])
    | 1 | 4096 x 4096 | `gemv_16x8` | 10.00 | 3.36 | 12.50 | 1.250 |  |
    >>> print(rows_of({"rows": [row], "seed": 1}).splitlines()[0])
    1 of seed 1: 1.250 of the library in the mean, one in ten below 1.250, the least 1.250.
    """
    rows, said = found["rows"], ""
    if "seed" in found:
        rows = sorted(rows, key=_ratio)
        count, mean, tenth, least = distribution([_ratio(row) for row in rows])
        said = (
            f"{count} of seed {found['seed']}: {mean:.3f} of the library in the mean, one in ten below {tenth:.3f}, "
            f"the least {least:.3f}.\n\n"
        )
    lines = []
    for row in rows:
        us, rate = row["us"], 2e-6 * row["n"] * row["k"] / row["us"]["chosen"]
        beside = f"{us['library']:.2f}", f"{_ratio(row):.3f}"
        loop = f"{us['loop']:.2f}" if "loop" in us else ""
        weight = f"{row['n']} x {row['k']}"
        lines.append([str(row["m"]), weight, f"`{row['plan']}`", f"{us['chosen']:.2f}", f"{rate:.2f}", *beside, loop])
    return said + table(["rows", "weight", "plan", "µs", "TB/s", "cuBLAS", "cuBLAS / ours", "loop"], lines)


def _ratio(row: Row) -> float:
    return float(row["us"]["library"] / row["us"]["chosen"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence decode",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, action="append", help=f"of x; {ROWS} if left out")
    parser.add_argument("--shape", action="append", help=f"NxK of the weights; {', '.join(SHAPES)} if left out")
    parser.add_argument("--seed", type=int, help="draw rows and weights by it")
    parser.add_argument("--count", type=int, default=40, help="of the problems that are drawn")
    parser.add_argument("--plan", action="append", default=[], help="the name of a plan to time in addition")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--table", type=Path, help="measure nothing: the table of this record")
    given = parser.parse_args(arguments)
    if given.table:
        print(rows_of(read_record(given.table)))
        return
    need_gpu()
    if given.seed is not None:
        problems = drawn(given.seed, given.count)
    else:
        shapes = [tuple(int(extent) for extent in shape.split("x")) for shape in given.shape or SHAPES]
        problems = [(rows, n, k) for n, k in shapes for rows in given.rows or ROWS]
    _compile_ahead(problems)

    def found() -> Iterator[list[Row]]:
        for problem in problems:
            row = timed(*problem, given.plan)
            print(told(row), flush=True)
            yield [row]

    seed = {} if given.seed is None else {"seed": given.seed}
    record({**machine(), **seed, "rows": []}, found(), given.json)
