"""Random plans and hardware counters: what `python -m docs.evidence proof` writes, the largest misses first.

The file keeps the random plans, every counter of every launch, and the predictions. `again` computes today's
predictions for the same counters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cutegemm.analysis import check
from cutegemm.compile.cubin import ResourceReport
from cutegemm.compile.workers import processors
from cutegemm.errors import CutegemmError, UnsupportedError
from cutegemm.machine.device import default_device
from cutegemm.plan import GemmPlan
from cutegemm.profile import Case, Comparison, compare
from cutegemm.profile.compare import PROMISED_METRICS, Row
from cutegemm.profile.run import count, median, resources_of
from cutegemm.run.executed import executed_accesses
from docs.evidence.counters.random_plans import Drawn, draw
from docs.evidence.files import read_record, write_record
from docs.evidence.machine import asked, this_machine


@dataclass(frozen=True)
class ProofCase(Case):
    """A random plan. Only counters with a promise are requested."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*PROMISED_METRICS, "gpu__time_duration.sum")


@dataclass(frozen=True)
class Counted:
    """A random plan and its counters.

    key                 key of the plan that was measured; today its text may make another plan
    registers, spills   resources of the compiled kernel
    launches            values of each launch, by metric
    """

    drawn: Drawn
    key: str
    registers: int
    spills: int
    launches: tuple[Mapping[str, float], ...]


def digest(plan: GemmPlan) -> str:
    """Return a hash of what affects how a plan is carried out."""
    return hashlib.sha256(plan.key().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Proof:
    """A run.

    machine   date, GPU, driver, versions and the command
    device    device of the predictions
    cases     in the order of sampling
    failed    reasons why cases were not launched, by name
    """

    machine: Mapping[str, str]
    arch: str
    device: str
    family: str
    seed: int
    cases: tuple[Counted, ...]
    failed: Mapping[str, str]


def measure(
    family: str, plans: int, seed: int, *, launches: int = 1, device: str | None = None, ncu: str = "ncu",
    said: str = "", limit_seconds: float | None = None,
) -> Proof:  # fmt: skip
    """Count `plans` random plans of a family on the GPU of this machine.

    device   device of the predictions; plans are compiled for it in parallel
    raises   UnsupportedError without ncu; NcuError with its output
    """
    drawn = {d.name: d for d in draw(family, plans, seed)}
    cases = []
    for each in drawn.values():
        made = each.case()
        cases.append(ProofCase(made.name, made.plan, made.problem, launches))
    found = count(cases, device=device or "h200", ncu=ncu, limit_seconds=limit_seconds)
    clocks = "free (--clock-control none); caches flushed before each pass"
    machine = {**this_machine(said), "ncu": asked([ncu, "--version"]), "clocks": clocks, "device": found.gpu}
    counted = []
    for case in cases:
        if case.name in found.launches:
            taken = resources_of(case.plan, found.arch)
            counted.append(
                Counted(
                    drawn[case.name],
                    digest(case.plan),
                    taken.registers,
                    taken.spills,
                    found.launches[case.name],
                )
            )
    used = device or default_device(found.arch).name
    return Proof(machine, found.arch, used, family, seed, tuple(counted), found.failed)


def compared(proof: Proof, workers: int | None = None) -> list[Comparison]:
    """Return today's predictions next to the counters, in the order of the cases."""
    jobs = [(one, proof.arch, proof.device) for one in proof.cases]
    many = workers or processors()
    if many == 1 or len(jobs) < 2:
        return [_compare(job) for job in jobs]
    with ProcessPoolExecutor(many, mp_context=get_context("spawn")) as pool:
        return list(pool.map(_compare, jobs))


def _compare(job: tuple[Counted, str, str]) -> Comparison:
    one, arch, device = job
    case = one.drawn.case()
    stack = {"LDL": one.spills} if one.spills else {}
    report = ResourceReport("recorded", one.registers, 0, 0, 0, stack)
    executed = None
    with suppress(UnsupportedError):  # such as an array in local memory, which the emulator does not support
        executed = executed_accesses(case.plan, case.problem, arch)
    analysis = check(case.plan, case.problem, arch, device, report, search=False, executed=executed)
    return compare(case, analysis, median(one.launches))


def worst(found: Comparison) -> float:
    """Return by how much the worst promise of a case is missed; 0 if all are kept."""
    return max([_excess(row) for row in found.misses], default=0.0)


def _excess(row: Row) -> float:
    return abs(row.error or 0.0)


def save(proof: Proof, found: Sequence[Comparison], path: Path) -> None:
    """Write a file with one line per plan, the largest misses first."""
    metrics = sorted({m for one in proof.cases for launch in one.launches for m in launch})
    head = {
        "machine": dict(proof.machine), "arch": proof.arch, "device": proof.device, "family": proof.family,
        "seed": proof.seed, "failed": dict(proof.failed), "metrics": metrics,
    }  # fmt: skip
    rows = []
    pairs = sorted(zip(proof.cases, found, strict=True), key=lambda pair: -worst(pair[1]))
    for one, comparison in pairs:
        counts = [[_short(launch.get(m)) for m in metrics] for launch in one.launches]
        row = {
            **one.drawn.to_dict(), "key": one.key, "registers": one.registers, "spills": one.spills,
            "missed": [r.name for r in comparison.misses],
            "promised": {r.name: _compared(r) for r in _told(comparison)},
            "time_ns": [_short(v) for r in comparison.rows if r.name == "time, ns" for v in (r.predicted, r.measured)],
            "counts": counts,
        }  # fmt: skip
        rows.append(row)
    write_record(path, {**head, "cases": rows})


def _compared(row: Row) -> list[Any]:
    """Return [predicted value or range, counted value, error], or [value] if the counted value is as predicted."""
    predicted, counted = _promise(row), _short(row.measured)
    return [predicted] if predicted == counted else [predicted, counted, _rounded(row.error)]


def read(path: Path) -> dict[str, Any]:
    """Return a file that `save` wrote, with [predicted, counted, error] of each promise."""
    held = read_record(path)
    for row in held["cases"]:
        row["promised"] = {name: told if told[1:] else [*told, *told, 0.0] for name, told in row["promised"].items()}
    return held


def _told(comparison: Comparison) -> list[Row]:
    """Return the rows that have a promise and a nonzero count."""
    return [r for r in comparison.rows if r.holds is not None and (r.predicted or r.measured)]


def _rounded(error: float | None) -> float | None:
    return None if error is None or error == float("inf") else round(error, 5)


def _promise(row: Row) -> float | int | list[float | int | None] | None:
    """Return the predicted value, or the range."""
    return _short(row.predicted) if row.between is None else [_short(end) for end in row.between]


def _short(value: float | None) -> float | int | None:
    if value is None:
        return None
    return int(value) if float(value).is_integer() else round(value, 3)


def load(path: Path) -> Proof:
    """Read what `save` wrote, without the predictions.

    raises   CutegemmError for another file
    """
    try:
        data = read_record(path)
        metrics = data["metrics"]
        fields = ("name", "plan", "dtype", "layout", "align_bytes", "extents")
        cases = tuple([
            Counted(
                Drawn(**{**{f: row[f] for f in fields}, "extents": tuple(row["extents"])}),
                row.get("key", ""), row["registers"], row["spills"],
                tuple([{m: v for m, v in zip(metrics, values, strict=True) if v is not None}
                       for values in row["counts"]]),
            )
            for row in data["cases"]
        ])  # fmt: skip
        return Proof(
            data["machine"], data["arch"], data["device"], data["family"], data["seed"],
            tuple(sorted(cases, key=lambda one: one.drawn.name)), data["failed"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise CutegemmError(f"{path} holds no counters that `proof` recorded: {error!r}.") from error


def again(path: Path, workers: int | None = None) -> tuple[Proof, list[Comparison]]:
    """Write today's predictions next to the counters of a file."""
    proof = load(path)
    found = compared(proof, workers)
    save(proof, found, path)
    return proof, found


def first(proof: Proof, plans: int) -> Proof:
    """Return the run with its first plans only."""
    return replace(proof, cases=proof.cases[:plans])


def summary(found: Sequence[Comparison]) -> dict[str, tuple[int, int, Any]]:
    """Return, for each counter with a promise, how many cases keep it, of how many, and the worst error."""
    out: dict[str, tuple[int, int, Any]] = {}
    for one in found:
        for row in one.rows:
            if row.holds is None or not (row.predicted or row.measured):
                continue
            kept, total, most = out.get(row.name, (0, 0, 0.0))
            error = row.error or 0.0
            out[row.name] = (kept + bool(row.holds), total + 1, error if abs(error) > abs(most) else most)
    return out
