"""Benchmark of the chosen plans and cuBLAS on random problems that have no part in the fit.

python -m docs.evidence choice --seed 1 --count 300 --tune-below 1.0 --json choice.json
python -m docs.evidence choice --seed 2 --count 160 --first 12 --others 8 --times --json rivals.json    # to fit to
python -m docs.evidence choice --seed 77 --count 900 --small --each 5 --times --json families.json          # to fit to
python -m docs.evidence choice --seed 801 --count 340 --deep --ways 6 --times --json shared.json             # to fit to
python -m docs.evidence choice --layers --seed 1 --count 150 --first 9 --others 5 --times --limit 540 --json layers.json
python -m docs.evidence choice --shape 1536 --shape 777x11008x4096 --layout nt --layout tn --first 60    # your own

Each GPU of the machine takes problems. All plans of one problem, and cuBLAS, run in alternating order on one GPU. The
file is written after each problem, so that an interrupted run keeps its results.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from cutegemm.choice.catalog import candidates, chosen
from cutegemm.dtypes import DType
from cutegemm.errors import CutegemmError
from cutegemm.machine.device import DEFAULT_DEVICE, Device
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Problem
from cutegemm.run.tune import BEST, varied
from docs.evidence.benchmark import Case, Contest, compile_ahead, operands_of, record, times, write_times
from docs.evidence.gemm import LAYOUTS, parse_shape
from docs.evidence.layers import layers
from docs.evidence.measure import machine, need_gpu, this_device
from docs.evidence.random_problems import drawn, is_deep, is_small, of_each_family, of_each_way, rivals

Row = dict[str, Any]
_MESSAGE = 500  # characters of an error


@dataclass(frozen=True)
class Drawn:
    """A random problem, the names of the plans to time in addition to the chosen one, and the accumulation of fp8."""

    problem: Problem
    plans: tuple[str, ...]
    fast_accum: bool

    @property
    def sums(self) -> str:
        """Accumulation of fp8, as the argument `accumulate` of `gemm`."""
        return "fast" if self.fast_accum else "promoted"

    @property
    def where(self) -> tuple[Any, ...]:
        """Key of the problem in its rows: M, N, K, the layout and the type."""
        of, operands = self.problem, self.problem.operands
        return of.m, of.n, of.k, operands.layout, str(operands.a.dtype)


def timed(case: Drawn, seconds: float) -> list[Row]:
    """Return the rows of a problem, or one row with the error if cuBLAS fails."""
    try:
        benchmark = Contest(case.problem, case.fast_accum)
        benchmark.enter(None)
        for plan in case.plans:
            benchmark.enter(plan)
        return benchmark.rows(seconds)
    except Exception as error:  # the library failed: no time of it is recorded
        of, operands = case.problem, case.problem.operands
        where = {"m": of.m, "n": of.n, "k": of.k, "l": of.l, "layout": operands.layout}
        return [{**where, "dtype": str(operands.a.dtype), "error": f"{error}"[:_MESSAGE]}]


def all_timed(cases: Sequence[Drawn], seconds: float, deadline: float = math.inf) -> Iterator[list[Row]]:
    """Yield the rows of each problem as soon as it is timed, on all GPUs of the machine.

    seconds    measuring time of each problem
    deadline   no problem starts after this time, as returned by `time.monotonic`
    """
    import torch

    count = torch.cuda.device_count()
    context = multiprocessing.get_context("spawn")
    numbers: Any = context.Queue()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    for number in seen.split(",") if seen else range(count):
        numbers.put(number)
    with ProcessPoolExecutor(count, mp_context=context, initializer=_takes_gpu, initargs=(numbers,)) as pool:
        for done in as_completed([pool.submit(timed, case, seconds) for case in cases]):
            yield done.result()
            if time.monotonic() > deadline:
                pool.shutdown(wait=False, cancel_futures=True)
                return


def _takes_gpu(numbers: Any) -> None:
    """Assign one GPU to a worker process, before torch is imported."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(numbers.get())


def _chosen(case: Drawn) -> GemmPlan:
    """Return the plan that `gemm` chooses, as it compiles it."""
    problem = case.problem
    recipe, plan = chosen(problem.operands, problem, device=this_device(), accumulate=case.sums)
    return recipe.as_launched(plan)


def with_trials(
    rows: Sequence[Mapping[str, Any]], below: float, cases: Sequence[Drawn], device: Device = DEFAULT_DEVICE
) -> list[Drawn]:
    """Return the cases whose chosen plan has a ratio below a limit, each with the plans that the tuner would time.

    >>> from docs.evidence.benchmark import operands_of
    >>> case = Drawn(Problem(64, 64, 640, operands=operands_of("bf16", "nt", 64, 64, 640)), (), True)
    >>> row = {"m": 64, "n": 64, "k": 640, "layout": "nt", "dtype": "bf16", "chosen": True, "ratio": 0.95}
    >>> [len(one.plans) for one in with_trials([row], 0.97, [case])], with_trials([row], 0.94, [case])
    ([12], [])
    """
    losers = {where_of(row) for row in rows if row.get("chosen") and row.get("ratio", below) < below}
    found = []
    for case in cases:
        of = case.problem
        if case.where in losers:
            ranking = varied(candidates(of.operands, of, device=device, accumulate=case.sums))
            found.append(replace(case, plans=tuple([str(one.recipe) for one in ranking[:BEST]])))
    return found


def tuned(trials: Sequence[Mapping[str, Any]], cases: Sequence[Drawn]) -> list[Drawn]:
    """Return the cases with a faster plan than the chosen one, with that plan.

    >>> from docs.evidence.benchmark import operands_of
    >>> case = Drawn(Problem(64, 64, 640, operands=operands_of("bf16", "nt", 64, 64, 640)), ("p", "q"), True)
    >>> where = {"m": 64, "n": 64, "k": 640, "layout": "nt", "dtype": "bf16"}
    >>> rows = [{**where, "plan": plan, "us": us} for plan, us in (("p", 9.0), ("q", 7.0), ("r", 8.0))]
    >>> [one.plans for one in tuned(rows, [case])], tuned([{**rows[1], "chosen": True}], [case])
    ([('q',)], [])
    """
    fastest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in trials:
        before = fastest.get(where_of(row))
        if "us" in row and (before is None or row["us"] < before["us"]):
            fastest[where_of(row)] = row
    return [
        replace(case, plans=(fastest[case.where]["plan"],))
        for case in cases
        if case.where in fastest and not fastest[case.where].get("chosen")
    ]


def where_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the key of a row's problem: M, N, K, the layout and the type."""
    return tuple([row[name] for name in ("m", "n", "k", "layout", "dtype")])


def with_tuner(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Return the ratio of each problem with the plan that the tuner selects.

    The ratio comes from a benchmark after the one that selected the plan.

    >>> where = {"m": 16, "n": 16, "k": 16, "layout": "nt", "dtype": "bf16"}
    >>> with_tuner([{**where, "chosen": True, "ratio": 0.9}, {**where, "chosen": True, "ratio": 0.91, "tuner": True},
    ...             {**where, "ratio": 0.98, "tuner": True}])
    {(16, 16, 16, 'nt', 'bf16'): 0.98}
    """
    of_tuner = [row for row in rows if "ratio" in row and row.get("tuner") and not row.get("chosen")]
    return {where_of(row): row["ratio"] for row in (*by_default(rows), *of_tuner)}


def by_default(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows of the plans chosen without the tuner, lowest ratio first."""
    chosen = [row for row in rows if row.get("chosen") and "ratio" in row and not row.get("tuner")]
    return sorted(chosen, key=lambda row: row["ratio"])


def distribution(ratios: Sequence[float]) -> tuple[int, float, float, float]:
    """Return the count, the geometric mean, the 10th percentile and the minimum of sorted ratios.

    >>> distribution([1.0, 2.0, 4.0])
    (3, 2.0, 1.0, 1.0)
    """
    return len(ratios), geometric_mean(ratios), ratios[math.ceil(len(ratios) / 10) - 1], ratios[0]


def summary(rows: Sequence[Mapping[str, Any]], worst: int = 25) -> list[str]:
    """Return lines: the lowest ratios, then their distribution by type, in all, by layout, and with the tuner.

    >>> rows = [{"m": m, "n": 16, "k": 16, "layout": "nt", "dtype": "bf16", "plan": "p", "chosen": True, "us": 2.0,
    ...          "library_us": us, "ratio": us / 2} for m, us in ((16, 2.0), (32, 4.0))]
    >>> print(*summary(rows), sep="\\n")
     1.000  16x16x16 nt bf16 p 2.0 us
     2.000  32x16x16 nt bf16 p 2.0 us
    bf16: 2 problems, mean 1.414, one in ten below 1.000, least 1.000
    all: 2 problems, mean 1.414, one in ten below 1.000, least 1.000
    with the tuner: 2 problems, mean 1.414, one in ten below 1.000, least 1.000
    """
    chosen = by_default(rows)
    lines = [
        f"{row['ratio']:6.3f}  {row['m']}x{row['n']}x{row['k']} {row['layout']} {row['dtype']} {row['plan']} "
        f"{row['us']:.1f} us"
        for row in chosen[:worst]
    ]
    if not chosen:
        return []
    groups = {
        kind: [row["ratio"] for row in chosen if kind in ("all", row["dtype"])]
        for kind in [*sorted({row["dtype"] for row in chosen}), "all"]
    }
    layouts = sorted({row["layout"] for row in chosen})
    if len(layouts) > 1:
        groups |= {of: [row["ratio"] for row in chosen if row["layout"] == of] for of in layouts}
    groups["with the tuner"] = sorted(with_tuner(rows).values())
    return lines + [
        "{}: {} problems, mean {:.3f}, one in ten below {:.3f}, least {:.3f}".format(kind, *distribution(ratios))
        for kind, ratios in groups.items()
    ]


def _drawn(
    seed: int, count: int, dtypes: Sequence[str] | None, kept: Callable[[Problem], bool] = lambda _: True
) -> list[Problem]:
    """Return the problems of `drawn` that have one of the given types, if any are given, and pass the filter `kept`.

    >>> len(_drawn(1, 40, None)), sorted({str(of.operands.a.dtype) for of in _drawn(1, 40, ["float32", "tf32"])})
    (40, ['f32', 'tf32'])
    """
    kinds = {DType.parse(name) for name in dtypes or ()}
    return [of for of in drawn(seed, count) if (not kinds or of.operands.a.dtype in kinds) and kept(of)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.evidence choice",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draw, and of the plans by chance")
    parser.add_argument("--shape", action="append", type=parse_shape, help="instead of a draw; may be repeated")
    parser.add_argument(
        "--layers", action="store_true", help="instead of a draw: linear layers of public models, in bfloat16"
    )
    parser.add_argument("--layout", action="append", choices=LAYOUTS, help="of these shapes; may be repeated")
    parser.add_argument(
        "--dtype",
        action="append",
        help="element type of these shapes, bfloat16 if left out; or of the random problems; may be repeated",
    )
    parser.add_argument("--count", type=int, default=300, help="problems")
    parser.add_argument(
        "--first", type=int, default=0, help="number of further plans, those with the lowest predicted times"
    )
    parser.add_argument(
        "--tune-below",
        type=float,
        default=0.0,
        metavar="RATIO",
        help="tune what is below this ratio to the library, and time the plan that the tuner takes",
    )
    parser.add_argument("--small", action="store_true", help="only small problems among the random ones")
    parser.add_argument("--deep", action="store_true", help="those of few tiles with a deep K alone")
    parser.add_argument("--each", type=int, default=0, help="number of further plans for each family for tensor cores")
    parser.add_argument(
        "--ways", type=int, default=0, help="number of further plans for each way to split K, for wgmma"
    )
    parser.add_argument("--others", type=int, default=0, help="plans beside, by chance")
    parser.add_argument("--seconds", type=float, default=0.1, help="of measuring for each problem")
    parser.add_argument(
        "--limit", type=float, default=math.inf, metavar="SECONDS", help="begin no problem after so long"
    )
    parser.add_argument("--json", type=Path, help="write all numbers there")
    parser.add_argument("--times", action="store_true", help="write times alone, a row for each problem")
    given = parser.parse_args(arguments)
    deadline = time.monotonic() + given.limit
    need_gpu()
    problems = layers(given.seed, given.count) if given.layers else []
    problems += [
        Problem(m, n, k, operands=operands_of(dtype, layout, m, n, k))
        for dtype in given.dtype or ("bfloat16",)
        for m, n, k in given.shape or ()
        for layout in given.layout or LAYOUTS
    ]
    wanted = [of for of, is_asked in ((is_small, given.small), (is_deep, given.deep)) if is_asked]
    cases = []
    for number, of in enumerate(
        problems or _drawn(given.seed, given.count, given.dtype, lambda of: all(is_so(of) for is_so in wanted))
    ):
        case = Drawn(of, (), number % 2 == 0)
        beside = rivals(of, given.first, given.others, given.seed, case.sums)
        beside += of_each_family(of, given.each)
        beside += of_each_way(of, given.ways, case.sums) if given.ways else []
        cases.append(replace(case, plans=tuple(dict.fromkeys(map(str, beside)))))
    compile_ahead([Case(case.problem, [_chosen(case), *case.plans]) for case in cases])
    found: Row = {"machine": machine(), "seed": given.seed, "rows": []}
    record(found, all_timed(cases, given.seconds, deadline), given.json)
    losers = with_trials(found["rows"], given.tune_below, cases, this_device())
    if losers:
        compile_ahead([Case(case.problem, case.plans) for case in losers])
        trials = [row for rows in all_timed(losers, given.seconds) for row in rows]
        found["trials"] = times(trials)
        again = all_timed(tuned(trials, losers), given.seconds)
        record(found, ([{**row, "tuner": True} for row in rows] for rows in again), given.json)
    failed = [row for row in found["rows"] if "error" in row]
    for row in failed:
        print(row)
    lines = summary(found["rows"])
    if not lines:
        raise CutegemmError("choice: nothing was timed.")
    if given.times and given.json is not None:
        write_times(found, given.json)
    print(*lines, sep="\n")
