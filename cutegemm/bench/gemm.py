"""GEMM speed beside the vendor library: on the same data, in one process, taking turns.

How calls take turns, and why: see `bench.measure`. Ratios of medians are quoted.

    python -m cutegemm.bench.gemm --shape 4096 --shape 8192 --layout nn --layout nt
    python -m cutegemm.bench.gemm --suite sweep --dtype bfloat16 --layout nt --plan 'sm90_*' --json out.json
    python -m cutegemm.bench.gemm --shape 8192 --dtype bfloat16 --plan mma_256x128 --peer tensorop_gemm.py --power 2
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutegemm.bench import candidates, peer, power
from cutegemm.bench.measure import LIBRARY, in_turns, machine, need_gpu, normal
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError
from cutegemm.plan import GemmPlan, Problem

LAYOUTS = ("nn", "nt", "tn", "tt")

Shape = tuple[int, int, int]

_LLAMA_NK = ((8192, 8192), (28672, 8192), (8192, 28672), (4096, 14336))
# The sweep is that of the pingpong study: 66 x 72 tiles of 128 x 128, 36 for each of 132 multiprocessors.
SUITES: dict[str, tuple[Shape, ...]] = {
    "sweep": tuple([(8448, 9216, k) for k in (64, 128, 256, 512, 1024, 2048)]),
    "squares": tuple([(n, n, n) for n in (2048, 4096, 8192, 16384)]),
    "llama": tuple([(m, n, k) for n, k in _LLAMA_NK for m in (512, 1024, 2048, 4096, 8192)]),
    "small": tuple(
        [(m, n, n) for n in (4096, 8192) for m in (16, 64, 128)] + [(n, n, n) for n in (512, 1024)]
    ),
}

_HOST_CALLS = 300
_COMPILED_BY_ONE = 4  # so few plans are compiled as they are called


def compare(
    plan_names: Sequence[str | None],
    shapes: Iterable[Shape],
    *,
    dtype: str = "float32",
    layouts: Sequence[str] = ("nn",),
    seconds: float = 0.6,
    fast_accum: bool = False,
    peers: Sequence[str] = (),
    power_seconds: float = 0.0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times of named plans and of the library, in turns: torch.matmul, _scaled_mm for float8, _int_mm.

    plan_names   see `cutegemm.plan.catalog`; None is the plan that `gemm` chooses
    shapes       (M, N, K)
    dtype        as torch names it; "tf32" is float32 of which the library may ignore the low bits, as plans for
                 tf32 do
    layouts      two BLAS letters for A and B stored row by row: "t" where the stored one is the transpose
    seconds      of measuring for each shape and layout, at least; three rounds are the fewest
    fast_accum   whether sums of float8 products may lose bits: those of torch._scaled_mm, and of the plan that
                 `gemm` chooses
    peers        see `cutegemm.bench.peer`: they take turns too
    power_seconds   that each contestant then runs alone, while its clock and power are read; 0: not at all
    say          is told each line of the table as it comes
    returns      {"machine": ..., "rows": [...]}: each row has the shape, the layout, the plan, medians in
                 microseconds, TFLOP/s, the library's, and `ratio`, the library's time by the plan's; `peers`,
                 the same of each peer; `alone` and `library_alone`, see `cutegemm.bench.power.alone`; and
                 beside the rows `ceiling`, that of mma.sync without loads
    """
    import torch

    from cutegemm.torch_ops import RESULTS

    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    memory = "float32" if dtype == "tf32" else dtype
    kind = getattr(torch, memory)
    _compile_ahead(plan_names, memory, layouts)
    sensors, of_ceiling = None, None
    if power_seconds:
        sensors = power.sensors_of_torch()
        of_ceiling = _ceiling(dtype, power_seconds, sensors)
    rows = []
    say(f"{'M x N x K':>20} layout {'plan':44} {'us':>10} {'TFLOP/s':>8} {'library':>8} {'ratio':>6}")
    for m, n, k in shapes:
        x, y = normal((m, k), kind), normal((k, n), kind)
        out = torch.empty((m, n), dtype=RESULTS[kind][0], device=x.device)
        for layout in layouts:
            a = x if layout[0] == "n" else x.t().contiguous().t()
            b = y if layout[1] == "n" else y.t().contiguous().t()
            row = {"m": m, "n": n, "k": k, "layout": layout, "dtype": dtype}
            contestants, names, failed = _contestants(plan_names, a, b, out, fast_accum)
            others = _peers(peers, a, b, out, failed)
            rows += [{**row, "plan": name, "error": error} for name, error in failed]
            for name, error in failed:
                say(f"{f'{m} x {n} x {k}':>20} {layout:6} {name}: {error}")
            calls, first_peer = [*contestants, *others.values()], len(contestants)
            flops = 2 * m * n * k
            timed = [_rate(seconds_of_call, flops) for seconds_of_call in in_turns(calls, seconds)]
            if sensors is not None:
                for call, found in zip(calls, timed, strict=True):
                    held = power.alone(call, flops, power_seconds, sensors)
                    found["alone"] = power.with_rate_per_cycle(held, of_ceiling)
            for name, own in zip(names, timed[1:first_peer], strict=True):
                found = {**row, "plan": name, **own, **_beside(own, timed[0], "library_")}
                if others:
                    found["peers"] = {
                        one: {**theirs, "ratio": _ratio(own, theirs)}
                        for one, theirs in zip(others, timed[first_peer:], strict=True)
                    }
                rows.append(found)
                say(_line(found))
    limits = {} if sensors is None else {"limits": sensors.limits(), "ceiling": of_ceiling}
    return {"machine": machine(), **limits, "rows": rows}


def _ceiling(dtype: str, seconds: float, sensors: power.Nvml) -> dict[str, Any] | None:
    """Of mma.sync, for the types that it multiplies by Tensor Cores."""
    kinds = ("bf16", "f16", "tf32")
    kind = DType.parse(dtype)
    return power.ceiling(kind, seconds, sensors) if kind.name in kinds else None


def _rate(seconds: float, flops: int) -> dict[str, Any]:
    return {"us": round(seconds * 1e6, 3), "tflops": round(flops / seconds * 1e-12, 2)}


def _ratio(own: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    return round(float(other["us"] / own["us"]), 4)


def _beside(own: Mapping[str, Any], other: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What is known of the other one, and how many times its speed is reached."""
    return {**{f"{prefix}{key}": value for key, value in other.items()}, "ratio": _ratio(own, other)}


def _line(row: Mapping[str, Any]) -> str:
    """Of the table."""
    text = (
        f"{'{m} x {n} x {k}'.format(**row):>20} {row['layout']:6} {row['plan']:44} {row['us']:10.1f} "
        f"{row['tflops']:8.2f} {row['library_tflops']:8.2f} {row['ratio']:6.3f}"
    )
    for one, theirs in row.get("peers", {}).items():
        text += f" {theirs['ratio']:6.3f} of {one}"
    alone = row.get("alone", {})
    if "clock_mhz" not in alone:
        return text
    why = ", ".join(f"{name} {share:.0%}" for name, share in alone["throttle"].items()) or "no throttling"
    share = f", {alone['share_at_clock']:.3f} of the ceiling at it" if "share_at_clock" in alone else ""
    return f"{text}; alone {alone['tflops']} at {alone['clock_mhz']} MHz{share}, {alone['power_w']} W, {why}"


def _peers(
    given: Sequence[str], a: Any, b: Any, out: Any, failed: list[tuple[str, str]]
) -> dict[str, Callable[[], Any]]:
    """The peers that take the operands, by name; of the others the reason goes to `failed`."""
    found = {}
    for one in given:
        try:
            found[peer.name_of(one)] = peer.contestant(one, a, b, out)
        except CutegemmError as error:
            failed.append((peer.name_of(one), str(error)))
    return found


def _contestants(
    plan_names: Sequence[str | None], a: Any, b: Any, out: Any, fast_accum: bool
) -> tuple[list[Callable[[], Any]], list[str], list[tuple[str, str]]]:
    """The library first, then each plan that compiles; and those that do not, with the reason."""
    from cutegemm.launch import gemm, plan_of

    calls: list[Callable[[], Any]] = [_library(a, b, out, fast_accum)]
    names, failed = [], []
    sums = "fast" if fast_accum else "two_level"  # as exact as the library's
    for given in plan_names:
        call = functools.partial(gemm, a, b, out=out, plan=given, accumulate=sums)
        try:
            call()
        except CutegemmError as error:
            failed.append((str(given), str(error)))
            continue
        names.append(given or f"{plan_of(a, b, out=out, accumulate=sums).name} (chosen)")
        calls.append(call)
    return calls, names, failed


def _library(a: Any, b: Any, out: Any, fast_accum: bool) -> Callable[[], Any]:
    """What torch has for these types."""
    import torch

    if a.dtype == torch.int8:
        return lambda: torch._int_mm(a, b, out=out)
    if a.element_size() == 1:
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(
            a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, use_fast_accum=fast_accum
        )
    return lambda: torch.matmul(a, b, out=out)


def _compile_ahead(plan_names: Sequence[str | None], dtype: str, layouts: Sequence[str]) -> None:
    """Named plans, into the disk cache, by many processes; what does not compile is told when called."""
    from cutegemm.compile import compile_plans
    from cutegemm.plan.catalog import plan_named
    from cutegemm.plan.problem import Operands

    kind = DType.parse(dtype)
    out = None if kind.bits > 8 else "bf16" if kind.is_float else "s32"
    plans = []
    for name in plan_names:
        for layout in layouts:
            with contextlib.suppress(CutegemmError):
                plans.append(plan_named(name or "", Operands.of(kind, layout=layout, out=out)))
    if len(plans) > _COMPILED_BY_ONE:
        compile_plans(plans)


def expand(patterns: Sequence[str]) -> list[str | None]:
    """The names that fit a pattern with `*`; "chosen" is what `gemm` chooses, "@sm90" names `candidates`.

    >>> expand(["chosen", "simt_*6x128"])
    [None, 'simt_256x128', 'simt_16x128']
    """
    from cutegemm.plan.catalog import plans

    found: list[str | None] = []
    for pattern in patterns:
        if pattern in candidates.LISTS:
            found += candidates.LISTS[pattern]
        elif "*" in pattern:
            found += [name for name, _ in plans() if fnmatch.fnmatchcase(name, pattern)]
        else:
            found.append(None if pattern == "chosen" else pattern)
    return found


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Ratios to the library, a line a plan, a column a shape; the best of each; geometric means by suite."""
    shapes: list[Shape] = list(dict.fromkeys((r["m"], r["n"], r["k"]) for r in rows if "ratio" in r))
    ratios: dict[str, dict[Shape, float]] = {}
    for row in rows:
        if "ratio" in row:
            plan = "chosen" if row["plan"].endswith("(chosen)") else f"{row['plan']} {row['layout']}"
            ratios.setdefault(plan, {})[row["m"], row["n"], row["k"]] = row["ratio"]
    suites = {name: [s for s in suite if s in shapes] for name, suite in SUITES.items()}
    suites = {name: suite for name, suite in suites.items() if suite}
    named = [*ratios, "best"]
    ratios["best"] = {s: max(of[s] for of in ratios.values() if s in of) for s in shapes}
    width = max(len(name) for name in named)
    heads = ["x".join(map(str, s)) for s in shapes] + [f"mean {name}" for name in suites]
    lines = [" ".join(["ratio to the library".ljust(width), *(head.rjust(12) for head in heads)])]
    for name in named:
        of = ratios[name]
        cells = [of.get(s) for s in shapes]
        cells += [
            statistics.geometric_mean([of[s] for s in suite]) if all(s in of for s in suite) else None
            for suite in suites.values()
        ]
        lines.append(
            " ".join(
                [name.ljust(width)]
                + [
                    ("-" if cell is None else f"{cell:.3f}").rjust(max(12, len(head)))
                    for cell, head in zip(cells, heads, strict=True)
                ]
            )
        )
    return lines


def time_plan(
    plan: GemmPlan, tensors: Mapping[str, Any], problem: Problem, seconds: float = 0.3
) -> dict[str, float]:
    """A plan beside the library on tensors "a", "b" and "out": see `compare`.

    returns  "us", "tflops"; and "cublas_tflops", "ratio" where the library multiplies these types and shapes
    """
    import torch

    from cutegemm.launch import gemm

    need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = plan.operands.a.dtype.name == "tf32"
    a, b, out = tensors["a"], tensors["b"], tensors["out"]
    is_fast = plan.pipeline is not None and not plan.pipeline.two_level
    library = _library(a, b, out, is_fast)
    if a.element_size() > 1 and out.dtype != a.dtype:
        library = lambda: torch.matmul(a, b)  # noqa: E731
    calls: list[Callable[[], Any]] = [lambda: gemm(a, b, out=out, plan=plan)]
    with contextlib.suppress(RuntimeError, ValueError):  # what torch says of what it does not multiply
        library()
        calls.append(library)
    ours, *theirs = in_turns(calls, seconds)
    found = {"us": ours * 1e6, "tflops": problem.flops / ours * 1e-12}
    if theirs:
        found |= {"cublas_tflops": problem.flops / theirs[0] * 1e-12, "ratio": theirs[0] / ours}
    return found


def host_times(size: int = 256) -> dict[str, float]:
    """Microseconds of host time that one warm call takes, where the device is never waited for."""
    import torch

    need_gpu()
    from cutegemm.compile import compile_plan
    from cutegemm.launch import gemm, plan_of
    from cutegemm.torch_ops import device_arch

    a, b, out = (normal((size, size), torch.float32) for _ in range(3))
    kernel = compile_plan(plan_of(a, b, out=out), device_arch(a.get_device())).function
    calls: dict[str, Callable[[], Any]] = {
        "kernel": lambda: kernel(a, b, out, out, 1.0, 0.0),
        "gemm": lambda: gemm(a, b),
        "gemm, out given": lambda: gemm(a, b, out=out),
        "gemm, c and out given": lambda: gemm(a, b, c=out, beta=1.0, out=out),
        LIBRARY: lambda: torch.matmul(a, b),
        f"{LIBRARY}, out given": lambda: torch.matmul(a, b, out=out),
        "torch.add": lambda: torch.add(a, b),
    }
    found = {}
    for name, call in calls.items():
        runs = []
        for _ in range(5):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(_HOST_CALLS):
                call()
            runs.append((time.perf_counter() - start) / _HOST_CALLS * 1e6)
        torch.cuda.synchronize()
        found[name] = round(statistics.median(runs), 2)
    return found


def parse_shape(text: str) -> Shape:
    """4096, or 4096x2048x512 for M x N x K.

    >>> parse_shape("4096"), parse_shape("16x8192x512")
    ((4096, 4096, 4096), (16, 8192, 512))
    """
    parts = [int(part) for part in text.split("x")]
    if len(parts) not in (1, 3):
        raise ValueError(text)
    m, n, k = parts * 3 if len(parts) == 1 else parts
    return m, n, k


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(prog="python -m cutegemm.bench.gemm", description=__doc__)
    parser.add_argument("--shape", action="append", type=parse_shape, help="4096, or MxNxK; may be repeated")
    parser.add_argument("--suite", action="append", choices=SUITES, help="may be repeated")
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="may be repeated")
    parser.add_argument("--plan", action="append", help="a name, names with *, simt:..., sm90:..., chosen")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=0.6, help="of measuring for each shape and layout")
    parser.add_argument("--fast-accum", action="store_true", help="let torch._scaled_mm lose bits")
    parser.add_argument(
        "--peer", action="append", help="path to CUTLASS's tensorop_gemm.py, or quack; may be repeated"
    )
    parser.add_argument(
        "--power", type=float, default=0.0, metavar="SECONDS",
        help="let each contestant run alone, too, and read clock, power and throttling",
    )  # fmt: skip
    parser.add_argument("--host", action="store_true", help="also the host time of a call")
    parser.add_argument("--json", type=Path, help="write all numbers there")
    given = parser.parse_args(arguments)
    found = compare(
        expand(given.plan or ["chosen"]),
        [*(given.shape or []), *(shape for name in given.suite or [] for shape in SUITES[name])]
        or [parse_shape("4096")],
        dtype=given.dtype,
        layouts=given.layout or LAYOUTS,
        seconds=given.seconds,
        fast_accum=given.fast_accum,
        peers=given.peer or [],
        power_seconds=given.power,
        say=lambda line: print(line, flush=True),
    )
    if given.suite:
        print("\n".join(summary(found["rows"])))
    if given.host:
        found["host_us"] = host_times()
        for name, value in found["host_us"].items():
            print(f"host time of {name}: {value:.2f} us")
    print("\n".join(f"{key}: {value}" for key, value in found["machine"].items()))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
