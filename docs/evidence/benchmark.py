"""Benchmarks: plans, cuBLAS and GEMMs of other projects, in alternating order on the same matrices.

Each of them is called once before it is timed, and its result is compared with that of cuBLAS. One that fails, or is
wrong, gets a row with the error and does not affect the others.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.choice.catalog import chosen
from cutegemm.choice.names import recipe_named
from cutegemm.choice.recipe import SWAP_AB
from cutegemm.dtypes import DType, bf16, e4m3, e5m2, f16, f32, f64, s8, tf32
from cutegemm.errors import CutegemmError
from cutegemm.plan.plan import GemmPlan
from cutegemm.plan.problem import Operands, Problem
from docs.evidence import peer
from docs.evidence.files import significant, write_record
from docs.evidence.measure import DEVICE, need_gpu, normal
from docs.evidence.power import Meter
from docs.evidence.rows import without_rates

Row = dict[str, Any]

# What rounding explains, of the largest element of D, by the type that is multiplied: wgmma sums up e4m3 and e5m2 with
# about 14 bits; a k-tile of 128 that is missing in 8192 is 1/8.
_CLOSE = {
    f64: 1e-12,
    f32: 1e-4,
    tf32: 2.0**-6,
    bf16: 2.0**-6,
    f16: 2.0**-6,
    e4m3: 2.0**-4,
    e5m2: 2.0**-4,
    s8: 0.0,
}
_WORTH_PROCESSES = 5  # fewer plans are compiled as they are called
_MESSAGE = 500  # characters of an error


@dataclass(frozen=True)
class Case:
    """A problem, and the plans to time on it: plan objects, names, or None for the plan that `gemm` chooses."""

    problem: Problem
    plans: Sequence[GemmPlan | str | None]


def contests(
    cases: Sequence[Case],
    seconds: float,
    *,
    fast_accum: bool = False,
    peers: Sequence[str] = (),
    meter: Meter | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[list[Row]]:
    """Yield the rows of each case as soon as it is timed.

    A row has the shape, the layout, the plan, and `chosen` if `gemm` chose it. It also has either `error`, or the
    median microseconds and TFLOP/s of the plan and of cuBLAS, `ratio` (time of cuBLAS over time of the plan) and
    `difference` (largest difference of both results, relative to the largest element).

    seconds      least measuring time of each case; at least three rounds are measured
    fast_accum   whether fp8 accumulators may lose bits, in torch._scaled_mm and in the chosen plan
    peers        see `docs.evidence.peer`; each gets rows of its own
    meter        adds `alone` and `library_alone`, see `Meter.alone`
    say          called with each line of the table
    raises       UnsupportedError without a GPU
    """
    need_gpu()
    compile_ahead(cases)
    say(f"{'M x N x K':>20} layout {'plan':44} {'us':>10} {'TFLOP/s':>8} {'library':>8} {'ratio':>6}")
    for case in cases:
        benchmark = Contest(case.problem, fast_accum)
        for plan in case.plans:
            benchmark.enter(plan)
        for given in peers:
            benchmark.enter_peer(given)
        rows = benchmark.rows(seconds, meter)
        for row in rows:
            say(_line(row))
        yield rows


def record(found: dict[str, Any], more: Iterable[list[Row]], path: Path | None) -> None:
    """Append rows to `found["rows"]` and write `found` after each case, so that an interrupted run keeps its rows."""
    for rows in more:
        found["rows"] += rows
        if path is not None:
            write_record(path, {**found, "rows": [*map(without_rates, found["rows"])]})


def times(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return one row per problem with the microseconds of its plans by name.

    >>> row = {"m": 16, "n": 32, "k": 64, "l": 1, "layout": "nt", "dtype": "bf16", "library_us": 8.0}
    >>> rows = [{**row, "plan": "p", "us": 7.0, "chosen": True}, {**row, "plan": "q", "us": 9.0}]
    >>> times(rows)  # doctest: +NORMALIZE_WHITESPACE
    [{'m': 16, 'n': 32, 'k': 64, 'l': 1, 'layout': 'nt', 'dtype': 'bf16', 'library_us': 8.0,
      'us': {'p': 7.0, 'q': 9.0}}]
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if "us" in row:
            where = {name: row[name] for name in (*"mnkl", "layout", "dtype")}
            of = {**where, "library_us": significant(row["library_us"]), "us": {}}
            found.setdefault(tuple(where.values()), of)["us"].setdefault(row["plan"], significant(row["us"]))
    return list(found.values())


def write_times(found: Mapping[str, Any], path: Path) -> None:
    """Write the result of `times`, one problem per line, which is all that a fit of constants needs."""
    write_record(path, {**found, "rows": times(found["rows"])})


def compile_ahead(cases: Sequence[Case]) -> None:
    """Compile the kernels into the disk cache in many processes. A failure is reported when the plan is called."""
    from cutegemm.compile.plans import compile_missing

    plans = []
    for case in cases:
        for given in case.plans:
            with contextlib.suppress(CutegemmError):
                plans.append(_plan(given, case.problem))
    compile_missing(plans, least=_WORTH_PROCESSES)


def _plan(given: GemmPlan | str | None, problem: Problem) -> GemmPlan:
    if isinstance(given, GemmPlan):
        return given
    if given is None:
        recipe, plan = chosen(problem.operands, problem)
    else:
        recipe = recipe_named(given)
        plan = recipe.build(problem.operands)
    return recipe.as_launched(plan)


class Contest:
    """Plans, peers and cuBLAS on the matrices of one problem."""

    def __init__(self, problem: Problem, fast_accum: bool = False) -> None:
        import torch

        from cutegemm.run.on_gpu import library

        operands = problem.operands
        self.kind = operands.a.dtype
        torch.backends.cuda.matmul.allow_tf32 = self.kind is tf32
        self.problem = problem
        self.sums = "fast" if fast_accum else "promoted"  # as exact as the library's
        self.where = {
            **{mode: getattr(problem, mode) for mode in "mnkl"},
            "layout": operands.layout, "dtype": str(self.kind),
        }  # fmt: skip
        self.a, self.b, self.out = _matrices(problem)
        self.library = library(self.a, self.b, self.out, fast_accum)
        self.wanted = self.library().clone()
        self.entered: list[tuple[Row, Callable[[], Any]]] = []
        self.failed: list[Row] = []

    def enter(self, plan: GemmPlan | str | None) -> None:
        """Add a plan, or an error row if it fails or is wrong."""
        from cutegemm.run.gemm import gemm, plan_of

        how: dict[str, Any] = {
            "out": self.out, "plan": plan, "accumulate": self.sums, "allow_tf32": self.kind is tf32
        }  # fmt: skip
        row: Row = {"plan": plan if isinstance(plan, str) else "chosen" if plan is None else plan.name}
        with self._others_go_on(row):
            used = plan_of(self.a, self.b, **how)
            if plan is None:
                is_turned = used.operands.d.major != self.problem.operands.d.major
                row |= {"plan": f"{SWAP_AB if is_turned else ''}{used.name}", "chosen": True}
            self._admit(row, functools.partial(gemm, self.a, self.b, **how), used.operands.a.dtype)

    def enter_peer(self, given: str) -> None:
        """Add a peer, or an error row if it fails or is wrong."""
        row: Row = {"plan": peer.name_of(given), "peer": True}
        with self._others_go_on(row):
            self._admit(row, peer.call_of(given, self.problem, self.a, self.b, self.out))

    @contextlib.contextmanager
    def _others_go_on(self, row: Row) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            kind = "" if isinstance(error, CutegemmError) else f"{type(error).__name__}: "
            self.failed.append({**self.where, **row, "error": f"{kind}{error}"[:_MESSAGE]})

    def _admit(self, row: Row, call: Callable[[], Any], by: DType | None = None) -> None:
        self.out.fill_(float("nan") if self.out.is_floating_point() else -1)
        call()
        off = float((self.out - self.wanted).abs().max() / self.wanted.abs().max())
        most = max(_CLOSE[self.kind], _CLOSE[by or self.kind])
        if not off <= most:
            raise CutegemmError(
                f"D is {off:.2g} of its largest element from the library's, where {most:.2g} is the most that "
                "rounding explains. It is not timed."
            )
        self.entered.append(({**row, "difference": significant(off, 3)}, call))

    def rows(self, seconds: float, meter: Meter | None = None) -> list[Row]:
        """Return the error rows, then the rows of all that were timed in alternating order for `seconds`."""
        from cutegemm.run.on_gpu import alternating

        calls = [self.library, *(call for _, call in self.entered)]
        timed: list[Row] = [
            {"us": round(each * 1e6, 3), "tflops": round(self.problem.flops / each * 1e-12, 3)}
            for each in alternating(calls, seconds)
        ]
        if meter is not None:
            for call, found in zip(calls, timed, strict=True):
                found["alone"] = meter.alone(call, self.problem.flops)
        theirs = {f"library_{key}": value for key, value in timed[0].items()}
        return self.failed + [
            {**self.where, **row, **own, **theirs, "ratio": round(timed[0]["us"] / own["us"], 4)}
            for (row, _), own in zip(self.entered, timed[1:], strict=True)
        ]


def _matrices(problem: Problem) -> tuple[Any, Any, Any]:
    """Return a, b (normally distributed) and out: compact, and batched if the problem is."""
    import torch

    from cutegemm.run.torch_ops import memory_of

    operands, front = problem.operands, (problem.l,) if problem.operands.batched else ()

    def filled(rows: int, columns: int, kind: DType, is_turned: bool) -> Any:
        shape = (columns, rows) if is_turned else (rows, columns)
        values = normal((*front, *shape), memory_of(kind))
        return values.mT if is_turned else values

    a = filled(problem.m, problem.k, operands.a.dtype, operands.layout[0] == "t")
    b = filled(problem.k, problem.n, operands.b.dtype, operands.layout[1] == "t")
    shape = (*front, problem.m, problem.n)
    return a, b, torch.empty(shape, dtype=memory_of(operands.d.dtype), device=DEVICE)


def operands_of(dtype: str, layout: str, m: int, n: int, k: int, *, batched: bool = False) -> Operands:
    """Return the operands of compact matrices, with the result type that `gemm` returns and torch supports.

    >>> str(operands_of("float8_e4m3fn", "nt", 64, 64, 64).d)
    'bf16 n-major, 16-byte aligned'
    """
    kind = DType.parse(dtype)
    out = None if kind.bits > 8 else "bf16" if kind.is_float else "s32"
    return Operands.of(kind, layout=layout, out=out, batched=batched).fitted(m, n, k)


def _line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of the printed table."""
    shape = " x ".join(str(row[mode]) for mode in ("mnkl" if row["l"] > 1 else "mnk"))
    who = f"{shape:>20} {row['layout']:6} {'*' if row.get('chosen') else ''}{row['plan']}"
    if "error" in row:
        return f"{who}: {row['error']}"
    text = f"{who:72} {row['us']:10.1f} {row['tflops']:8.2f} {row['library_tflops']:8.2f} {row['ratio']:6.3f}"
    alone = row.get("alone", {})
    if "clock_mhz" not in alone:
        return text
    why = ", ".join(f"{name} {share:.0%}" for name, share in alone["throttle"].items()) or "no throttling"
    share = f", {alone['share_at_clock']:.3f} of the ceiling at it" if "share_at_clock" in alone else ""
    return f"{text}; alone {alone['tflops']} at {alone['clock_mhz']} MHz{share}, {alone['power_w']} W, {why}"
