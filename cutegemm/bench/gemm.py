"""GEMM speed beside the vendor library: on the same data, in one process, taking turns.

The chip throttles by power, so what ran before, and what the numbers are, decides a rate as much as the
kernel does. Therefore every round runs every contestant once, on the same normally distributed data, behind
a write to more memory than the L2 cache holds; medians of the rounds are compared, and the ratio is quoted.

    python -m cutegemm.bench.gemm --shape 4096 --shape 8192 --layout nn --layout nt
    python -m cutegemm.bench.gemm --suite sweep --dtype bfloat16 --layout nt --plan 'sm90_*' --json out.json
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cutegemm import cache
from cutegemm.bench import candidates
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.plan import GemmPlan, Problem

LIBRARY = "torch.matmul"
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

_FLUSH_BYTES = 256 << 20  # more than any L2 cache
_WARM_SECONDS = 0.15
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
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Times of named plans and of the library, in turns: torch.matmul, _scaled_mm for float8, _int_mm.

    plan_names   see `cutegemm.plan.catalog`; None is the plan that `gemm` chooses
    shapes       (M, N, K)
    dtype        as torch names it; "tf32" is float32 of which the library may ignore the low bits, as plans for
                 tf32 do
    layouts      two BLAS letters for A and B stored row by row: "t" where the stored one is the transpose
    seconds      of measuring for each shape and layout, at least; three rounds are the fewest
    fast_accum   of torch._scaled_mm: whether its sums of float8 products may lose bits
    say          is told each line of the table as it comes
    returns      {"machine": ..., "rows": [...]}: each row has the shape, the layout, the plan, medians in
                 microseconds, TFLOP/s, the library's, and `ratio`, the library's time by the plan's
    """
    import torch

    from cutegemm.torch_ops import RESULTS

    _need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    memory = "float32" if dtype == "tf32" else dtype
    kind = getattr(torch, memory)
    _compile_ahead(plan_names, memory, layouts)
    rows = []
    say(f"{'M x N x K':>20} layout {'plan':44} {'us':>10} {'TFLOP/s':>8} {'library':>8} {'ratio':>6}")
    for m, n, k in shapes:
        x, y = _normal((m, k), kind), _normal((k, n), kind)
        out = torch.empty((m, n), dtype=RESULTS[kind][0], device="cuda")
        for layout in layouts:
            a = x if layout[0] == "n" else x.t().contiguous().t()
            b = y if layout[1] == "n" else y.t().contiguous().t()
            row = {"m": m, "n": n, "k": k, "layout": layout, "dtype": dtype}
            contestants, names, failed = _contestants(plan_names, a, b, out, fast_accum)
            rows += [{**row, "plan": name, "error": error} for name, error in failed]
            for name, error in failed:
                say(f"{f'{m} x {n} x {k}':>20} {layout:6} {name}: {error}")
            times = _in_turns(contestants, seconds)
            library, flops = times[0], 2 * m * n * k
            for name, own in zip(names, times[1:], strict=True):
                found = {
                    **row,
                    "plan": name,
                    "us": round(own * 1e6, 3),
                    "tflops": round(flops / own * 1e-12, 2),
                    "library_us": round(library * 1e6, 3),
                    "library_tflops": round(flops / library * 1e-12, 2),
                    "ratio": round(library / own, 4),
                }
                rows.append(found)
                say(
                    f"{f'{m} x {n} x {k}':>20} {layout:6} {name:44} {found['us']:10.1f} "
                    f"{found['tflops']:8.2f} {found['library_tflops']:8.2f} {found['ratio']:6.3f}"
                )
    return {"machine": machine(), "rows": rows}


def _contestants(
    plan_names: Sequence[str | None], a: Any, b: Any, out: Any, fast_accum: bool
) -> tuple[list[Callable[[], Any]], list[str], list[tuple[str, str]]]:
    """The library first, then each plan that compiles; and those that do not, with the reason."""
    from cutegemm.launch import gemm, plan_of

    calls: list[Callable[[], Any]] = [_library(a, b, out, fast_accum)]
    names, failed = [], []
    for given in plan_names:
        try:
            gemm(a, b, out=out, plan=given)
        except CutegemmError as error:
            failed.append((str(given), str(error)))
            continue
        names.append(given or f"{plan_of(a, b, out=out).name} (chosen)")
        calls.append(lambda given=given: gemm(a, b, out=out, plan=given))  # type: ignore[misc]
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
    """A plan beside the library on tensors "a", "b" and "out": see `compare`."""
    import torch

    from cutegemm.launch import gemm

    _need_gpu()
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b, out = tensors["a"], tensors["b"], tensors["out"]
    library: Callable[[], Any] = lambda: torch.matmul(a, b)  # noqa: E731
    if out.dtype == a.dtype:
        library = lambda: torch.matmul(a, b, out=out)  # noqa: E731
    theirs, ours = _in_turns([library, lambda: gemm(a, b, out=out, plan=plan)], seconds)
    return {
        "us": ours * 1e6,
        "tflops": problem.flops / ours * 1e-12,
        "cublas_tflops": problem.flops / theirs * 1e-12,
        "ratio": theirs / ours,
    }


def _in_turns(
    calls: Sequence[Callable[[], Any]],
    seconds: float,
    least_rounds: int = 3,
    warm_seconds: float = _WARM_SECONDS,
) -> list[float]:
    """The median seconds of each call; every round runs each once."""
    import torch

    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def timed(call: Callable[[], Any]) -> tuple[Any, Any]:
        flush.zero_()  # also hides the launch: the device is busy while the host goes on
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        return start, end

    def until(deadline: float, least: int) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in calls]
        while len(found[0]) < least or time.perf_counter() < deadline:
            events = [timed(call) for call in calls]
            torch.cuda.synchronize()
            for times, (start, end) in zip(found, events, strict=True):
                times.append(start.elapsed_time(end) * 1e-3)
        return found

    until(time.perf_counter() + warm_seconds, 1)
    return [statistics.median(times) for times in until(time.perf_counter() + seconds, least_rounds)]


def host_times(size: int = 256) -> dict[str, float]:
    """Microseconds of host time that one warm call takes, where the device is never waited for."""
    import torch

    _need_gpu()
    from cutegemm.compile import compile_plan
    from cutegemm.launch import gemm, plan_of
    from cutegemm.torch_ops import device_arch

    a, b, out = (_normal((size, size), torch.float32) for _ in range(3))
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


def machine() -> dict[str, str]:
    """What the numbers were taken on, when and by what."""
    import torch

    from cutegemm import __version__

    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cutegemm": __version__,
        "nvidia-cutlass-dsl": cache.dsl_version(),
        "python": sys.version.split()[0],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _driver() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    found = re.search(r"\d{3}\.\d+(\.\d+)?", text)
    return found.group() if found else "unknown"


def _normal(shape: tuple[int, ...], kind: Any) -> Any:
    import torch

    values = torch.randn(shape, device="cuda")
    return (values if kind.is_floating_point else values * 20).to(kind)


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError("the benchmark needs a CUDA device; torch sees none here.")


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
