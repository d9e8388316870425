"""Counters of a recorded run with its machine, and today's predictions next to them.

A model can be developed with such a file without a GPU: `replay` computes every prediction again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cutegemm.analysis import check
from cutegemm.compile.cubin import ResourceReport
from cutegemm.errors import CutegemmError
from cutegemm.machine.device import default_device
from cutegemm.profile import Case, Comparison, compare
from cutegemm.profile.run import Counted, count, median, resources_of
from docs.evidence.counters.probes import ProbeCase
from docs.evidence.files import read_record, write_record
from docs.evidence.machine import asked, this_machine


@dataclass(frozen=True)
class Recorded:
    """Counters of one case.

    what        description of the launch; a case of the same name with another description is skipped
    registers   registers per thread of the compiled kernel; None for a single instruction
    launches    values of each launch, by metric
    """

    what: str
    registers: int | None
    launches: tuple[Mapping[str, float], ...]

    def counters(self) -> dict[str, float]:
        """Return the median of the launches, by metric."""
        return median(self.launches)


@dataclass(frozen=True)
class Evidence:
    """A recorded run.

    machine   date, GPU, driver, versions and the command
    device    key in `analysis.DEVICES`
    cases     by name
    failed    reasons why other cases were not launched
    """

    machine: Mapping[str, str]
    arch: str
    device: str
    cases: Mapping[str, Recorded]
    failed: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write a file with one line per case."""
        metrics = sorted({m for r in self.cases.values() for launch in r.launches for m in launch})
        cases = []
        for name, r in self.cases.items():
            row: dict[str, Any] = {"name": name, "what": r.what}
            row |= {} if r.registers is None else {"registers": r.registers}
            cases.append(row | {"counts": [[_short(launch.get(m)) for m in metrics] for launch in r.launches]})
        head = {"machine": dict(self.machine), "arch": self.arch, "device": self.device, "failed": dict(self.failed)}
        write_record(path, {**head, "metrics": metrics, "cases": cases})

    @staticmethod
    def load(path: Path) -> Evidence:
        """Read what `save` wrote.

        raises   CutegemmError for another file
        """
        try:
            data = read_record(path)
            metrics = data["metrics"]
            cases = {
                row["name"]: Recorded(
                    row["what"], row.get("registers"),
                    tuple([{m: v for m, v in zip(metrics, counts, strict=True) if v is not None}
                           for counts in row["counts"]]),
                )
                for row in data["cases"]
            }  # fmt: skip
            return Evidence(data["machine"], data["arch"], data["device"], cases, data["failed"])
        except (KeyError, TypeError, ValueError) as error:
            raise CutegemmError(f"{path} holds no counters that `profile` recorded: {error!r}.") from error


def _short(value: float | None) -> float | int | None:
    return int(value) if value is not None and float(value).is_integer() else value


def describe(case: Case | ProbeCase) -> str:
    """Return a description of a launch, with everything on which predictions depend."""
    if isinstance(case, ProbeCase):
        return case.instruction
    plan = case.plan
    tile = "x".join(map(str, plan.cta_tile))
    held = sum(plan.smem_bytes().values())
    cluster = "" if plan.cluster_mn == (1, 1) else " cluster {}x{}".format(*plan.cluster_mn)
    ops = plan.operands
    return (
        f"{plan.family} {ops.a.dtype} {ops.a.major}{ops.b.major}{ops.d.major} {tile}, "
        f"{plan.threads} threads, "
        f"{held} bytes shared, {plan.scheduler.raster}{cluster}, {case.problem.m}x{case.problem.n}x{case.problem.k}"
    )


def measure(
    cases: Sequence[Case | ProbeCase],
    *,
    device: str | None = None,
    ncu: str = "ncu",
    said: str = "",
    limit_seconds: float | None = None,
) -> tuple[list[Comparison], Evidence]:
    """Count each case; return predictions next to counters, and the recorded run.

    device          device of the predictions, for which plans are compiled in parallel; None for the one that
                    represents the architecture
    said            the command, for the record
    limit_seconds   time limit of ncu
    raises          UnsupportedError without ncu; NcuError with its output
    """
    found = count(cases, device=device, ncu=ncu, limit_seconds=limit_seconds)
    clocks = "free (--clock-control none); caches flushed before each pass"
    machine = {**this_machine(said), "ncu": asked([ncu, "--version"]), "clocks": clocks, "device": found.gpu}
    used = device or default_device(found.arch).name
    evidence = Evidence(machine, found.arch, used, _recorded(cases, found), found.failed)
    return replay(evidence, cases)[0], evidence


def _recorded(cases: Sequence[Case | ProbeCase], found: Counted) -> dict[str, Recorded]:
    return {
        case.name: Recorded(
            describe(case),
            resources_of(case.plan, found.arch).registers if isinstance(case, Case) else None,
            found.launches[case.name],
        )
        for case in cases
        if case.name in found.launches
    }


def replay(evidence: Evidence, cases: Sequence[Case | ProbeCase]) -> tuple[list[Comparison], list[str]]:
    """Return today's predictions next to recorded counters, and the names of cases that have changed since."""
    found, stale = [], []
    known = {case.name: case for case in cases}
    for name, recorded in evidence.cases.items():
        case = known.get(name)
        if case is None or describe(case) != recorded.what:
            stale.append(name)
        elif isinstance(case, ProbeCase):
            found.append(case.compared(recorded.counters()))
        else:
            report = None
            if recorded.registers is not None:
                report = ResourceReport("recorded", recorded.registers, 0, 0, 0, {})
            analysis = check(
                case.plan, case.problem, evidence.arch, evidence.device, report, search=False
            )  # fmt: skip
            found.append(compare(case, analysis, recorded.counters()))
    return found, stale
