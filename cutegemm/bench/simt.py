"""f32 GEMMs by SIMT plans beside the library, over squares, unaligned, skinny, deep and batched shapes, in one run.

    python -m cutegemm.bench.simt --json docs/benchmarks/simt.json            all of it, about two minutes
    python -m cutegemm.bench.simt --suite skinny --candidates 12              more plans for fewer shapes

For each shape and layout the plan that `gemm` chooses runs, and those that its model puts next, in turns with
torch.matmul: see `bench.measure`. `bench.fit_simt` finds the rates of `plan.simt_catalog` from the times, and says how
good the choice is.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cutegemm.arch import DEFAULT_ARCH
from cutegemm.bench.gemm import LAYOUTS
from cutegemm.bench.measure import in_turns, machine, need_gpu
from cutegemm.errors import CutegemmError
from cutegemm.plan.choice import H200_MULTIPROCESSORS
from cutegemm.plan.problem import Operands, Problem
from cutegemm.plan.simt_catalog import to_pack
from cutegemm.plan.simt_choice import parse, ranked

Shape = tuple[int, int, int, int]

SUITES: dict[str, tuple[tuple[Shape, ...], tuple[str, ...]]] = {
    "squares": (tuple([(n, n, n, 1) for n in (1024, 2048, 4096, 6144, 8192)]), LAYOUTS),
    "unaligned": (((4097, 4095, 4093, 1),), LAYOUTS),
    "skinny": (tuple([(m, 8192, 8192, 1) for m in (16, 32, 64, 128, 256)]), ("nn", "nt")),
    "deep": (((256, 256, 131072, 1),), ("nn", "nt", "tn")),
    "batch": (((512, 512, 512, 64),), ("nn", "nt")),
}
_LARGE = "simt:block=256x128x16,warp=64x64,thread=16x8,stages=3,unroll=4,pack={pack}"
# Beside what the model ranks, by M: plans that cover more CTAs without splitting K, those that share k-tiles evenly,
# other orders of the tiles, other ways for D to leave. "{pack}" is what packing makes better.
_MORE: dict[int, tuple[str, ...]] = {
    64: (
        "simt_64x256/k8",
        "simt_64x256/s264",
        "simt_64x256+pack/s264",
        "simt_64x128/s396",
        "simt_64x128+pack/k6",
    ),
    128: (
        "simt_128x256/k4",
        "simt_128x256/s132",
        "simt_128x256x16/k4",
        "simt_128x256x16/s132",
        "simt_128x256x16+pack/s132",
        "simt_128x128/s264",
        "simt_128x128+pack/s264",
        "simt_64x256/k4",
    ),
    256: (
        "simt_256x128/k2",
        "simt_256x128/s132",
        "simt_256x128+pack/s132",
        "simt_128x256/s132",
        "simt_128x256x16/s132",
        "simt_256x128/k66",
        "simt_128x256x16/k66",
        "simt_128x256/k66",
    ),
    512: ("simt_256x128", "simt_128x256", "simt_128x256x16"),
    1024: ("simt_64x64", "simt_64x128", "simt_128x64", "simt_128x64/k2", "simt_128x64/k2last", "simt_32x256"),
    4096: ("simt_256x128+pack/s132", "simt_128x256x16+pack", "simt_128x256x16"),
    4097: (
        "simt_256x128+pack/s132",
        "simt_128x256x16+pack",
        "simt_128x128+pack",
        "simt_128x128",
        "simt:block=128x128x16,warp=64x64,thread=8x16,stages=4,unroll=4,mma_order=n,ctas_per_sm=2,pack={pack},"
        "store=direct",
        f"{_LARGE},waves=2,persistent=132",
    ),
    8192: tuple([f"{_LARGE},raster={raster}" for raster in ("grouped_m:4", "grouped_n:8", "grouped_m:16")]),
}
_LEAST_K = 1024  # of a part
_WORTH = 1.6  # times the model's best time
_PLAIN = "simt_128x128"  # beside which the deep shape shows what splitting K brings


def operands_of(shape: Shape, layout: str) -> Operands:
    """Those of compact matrices."""
    m, n, k, batch = shape
    return Operands.of("f32", layout=layout, batched=batch > 1).fitted(m, n, k)


def candidates(shape: Shape, layout: str, count: int) -> list[str]:
    """Names of plans, the one that is chosen first; plans of one tile size are not all of them."""
    operands = operands_of(shape, layout)
    problem = Problem(*shape, operands=operands)
    found: list[str] = []
    by_tile: dict[str, int] = {}
    for name in ranked(operands, problem, DEFAULT_ARCH, H200_MULTIPROCESSORS, within=_WORTH):
        tile = name.split("/")[0]
        if by_tile.get(tile, 0) < 2 and len(found) < count:
            by_tile[tile] = by_tile.get(tile, 0) + 1
            found.append(name)
    more = [name.format(pack=to_pack(operands)) for name in _MORE.get(shape[0], ())]
    is_deep = shape[2] >= 16 * max(shape[:2])
    found += [name for name in more if _fits(name, shape[2]) and ("+pack" not in name or to_pack(operands))]
    return list(dict.fromkeys([*found, *([_PLAIN] if is_deep else [])]))


def _fits(name: str, k: int) -> bool:
    """Whether the parts of a named plan have some k-tiles each."""
    return name.startswith("simt:") or k >= parse(name)[2] * _LEAST_K


def run(
    suites: Sequence[str],
    count: int,
    seconds: float,
    extra: Sequence[str] = (),
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times; `seconds` of measuring for each shape and layout at least."""
    import torch

    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = [(shape, layout) for suite in suites for shape in SUITES[suite][0] for layout in SUITES[suite][1]]
    names = {case: list(dict.fromkeys([*candidates(*case, count), *extra])) for case in cases}
    started = time.perf_counter()
    _compile(names)
    say(f"compiled in {time.perf_counter() - started:.0f} s")
    rows: list[dict[str, Any]] = []
    for shape, layout in cases:
        rows += _measure(shape, layout, names[shape, layout], seconds, say)
    return {"machine": machine(), "seconds": round(time.perf_counter() - started, 1), "rows": rows}


def _compile(names: dict[tuple[Shape, str], list[str]]) -> None:
    from cutegemm.compile import compile_plans
    from cutegemm.plan.catalog import plan_named

    plans: dict[str, Any] = {}
    for (shape, layout), group in names.items():
        for name in group:
            plan = plan_named(name, operands_of(shape, layout))
            plans[plan.key()] = plan
    compile_plans(plans.values())


def _measure(
    shape: Shape, layout: str, names: Sequence[str], seconds: float, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    import torch

    from cutegemm.launch import gemm

    m, n, k, batch = shape
    front = (batch,) if batch > 1 else ()

    def filled(rows: int, columns: int, turned: bool) -> Any:
        if turned:
            return torch.randn((*front, columns, rows), device="cuda").mT
        return torch.randn((*front, rows, columns), device="cuda")

    a, b = filled(m, k, layout[0] == "t"), filled(k, n, layout[1] == "t")
    out = torch.empty((*front, m, n), device="cuda")
    wanted = torch.matmul(a, b)
    scale = wanted.abs().max().item()
    calls: list[Callable[[], Any]] = [lambda: torch.matmul(a, b, out=out)]
    kept: list[tuple[str, float]] = []
    rows: list[dict[str, Any]] = []
    row = {"m": m, "n": n, "k": k, "l": batch, "layout": layout}
    for name in names:
        try:
            out.fill_(float("nan"))
            gemm(a, b, out=out, plan=name)
            error = (out - wanted).abs().max().item() / scale
        except CutegemmError as problem:
            rows.append({**row, "plan": name, "error": str(problem)})
            say(f"{shape} {layout} {name}: {problem}")
            continue
        kept.append((name, error))
        calls.append(lambda name=name: gemm(a, b, out=out, plan=name))  # type: ignore[misc]
    times = in_turns(calls, seconds, warm_seconds=min(0.05, seconds))
    flops, library = 2 * m * n * k * batch, times[0]
    for (name, error), own in zip(kept, times[1:], strict=True):
        rows.append(
            {
                **row, "plan": name, "chosen": name == names[0], "us": round(own * 1e6, 2),
                "tflops": round(flops / own * 1e-12, 2), "library_us": round(library * 1e6, 2),
                "library_tflops": round(flops / library * 1e-12, 2), "ratio": round(library / own, 4),
                "difference": error,
            }
        )  # fmt: skip
    timed: list[dict[str, Any]] = [r for r in rows if "ratio" in r]
    timed.sort(key=lambda r: -float(r["ratio"]))
    told = ", ".join(
        f"{'*' if r['chosen'] else ''}{r['plan'].removeprefix('simt_')} {r['ratio']:.3f}" for r in timed
    )
    wrong = [r["plan"] for r in timed if not r["difference"] < 1e-4]
    mark = f"  WRONG: {wrong}" if wrong else ""
    say(f"{'x'.join(map(str, shape)):>20} {layout} {flops / library * 1e-12:6.1f}  {told}{mark}")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of this module; 1 where a plan was wrong."""
    parser = argparse.ArgumentParser(prog="python -m cutegemm.bench.simt", description=__doc__)
    parser.add_argument(
        "--suite", action="append", choices=SUITES, help="may be repeated; all where left out"
    )
    parser.add_argument("--candidates", type=int, default=7, help="plans for each shape and layout")
    parser.add_argument(
        "--plan", action="append", default=[], help="another plan for every shape; may be repeated"
    )
    parser.add_argument("--seconds", type=float, default=0.25, help="of measuring for each shape and layout")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--compile-only", action="store_true", help="fill the disk cache; needs no GPU")
    given = parser.parse_args(arguments)
    suites = given.suite or list(SUITES)
    if given.compile_only:
        _compile(
            {
                (shape, layout): [*candidates(shape, layout, given.candidates), *given.plan]
                for suite in suites
                for shape in SUITES[suite][0]
                for layout in SUITES[suite][1]
            }
        )
        return 0
    found = run(suites, given.candidates, given.seconds, given.plan, lambda line: print(line, flush=True))
    print(f"{found['seconds']} s; * is the plan that is chosen")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    return 1 if any(not r.get("difference", 0) < 1e-4 for r in found["rows"] if "ratio" in r) else 0


if __name__ == "__main__":
    sys.exit(main())
