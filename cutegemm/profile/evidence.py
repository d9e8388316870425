"""What was counted, kept: counters of a run with the machine that they come from, and the predictions redone.

A model is developed against such a file without a GPU: `replay` computes every prediction anew.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from cutegemm.analysis import check
from cutegemm.errors import CutegemmError
from cutegemm.profile.cases import Case, ProbeCase
from cutegemm.profile.compare import Comparison, compare, compare_probe
from cutegemm.run.cubin import ResourceReport


@dataclass(frozen=True)
class Recorded:
    """What was counted of a case.

    what        was launched; a case of that name which is another by now is passed over
    registers   of a thread of the compiled kernel; None of a single instruction
    launches    metric -> value of each launch, in order
    """

    what: str
    registers: int | None
    launches: tuple[Mapping[str, float], ...]

    def counters(self) -> dict[str, float]:
        """The median of the launches."""
        names = dict.fromkeys(name for launch in self.launches for name in launch)
        return {
            name: statistics.median([launch[name] for launch in self.launches if name in launch])
            for name in names
        }


@dataclass(frozen=True)
class Evidence:
    """A run.

    machine   date, GPU, driver, versions and the command
    device    of `analysis.DEVICES`
    cases     by name
    failed    why others were not launched
    """

    machine: Mapping[str, str]
    arch: str
    device: str
    cases: Mapping[str, Recorded]
    failed: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """A line for each launch."""
        metrics = sorted({m for r in self.cases.values() for launch in r.launches for m in launch})
        head = {"machine": dict(self.machine), "arch": self.arch, "device": self.device}
        lines = [json.dumps(head)[1:-1], f'"failed": {json.dumps(dict(self.failed))}']
        lines.append(f'"metrics": {json.dumps(metrics, indent=1)}')
        rows = []
        for name, r in self.cases.items():
            counts = [[_short(launch.get(m)) for m in metrics] for launch in r.launches]
            row = {"what": r.what, "registers": r.registers, "counts": counts}
            rows.append(f"{json.dumps(name)}: {json.dumps(row)}")
        lines.append('"cases": {\n' + ",\n".join(rows) + "\n}")
        write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")

    @staticmethod
    def load(path: Path) -> Evidence:
        """What `save` wrote.

        raises   CutegemmError for another file
        """
        try:
            data = json.loads(path.read_text())
            metrics = data["metrics"]
            cases = {
                name: Recorded(
                    row["what"], row["registers"],
                    tuple([{m: v for m, v in zip(metrics, counts, strict=True) if v is not None}
                           for counts in row["counts"]]),
                )
                for name, row in data["cases"].items()
            }  # fmt: skip
            return Evidence(data["machine"], data["arch"], data["device"], cases, data["failed"])
        except (KeyError, TypeError, ValueError) as error:
            raise CutegemmError(f"{path} holds no counters that `profile` recorded: {error!r}.") from error


def write_whole(path: Path, text: str) -> None:
    """Writes a file all at once: what is there already stays whole until then.

    raises   OSError where it cannot be written
    """
    staged = path.with_name(f".{path.name}.part")
    staged.write_text(text)
    os.replace(staged, path)


def _short(value: float | None) -> float | int | None:
    return int(value) if value is not None and float(value).is_integer() else value


def describe(case: Case | ProbeCase) -> str:
    """What is launched, as far as predictions depend on it."""
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
        f"{held} bytes shared, {plan.raster}{cluster}, {case.problem.m}x{case.problem.n}x{case.problem.k}"
    )


def replay(evidence: Evidence, cases: Sequence[Case | ProbeCase]) -> tuple[list[Comparison], list[str]]:
    """The predictions of today beside the counters of then; and the names of cases that are others by now."""
    found, stale = [], []
    known = {case.name: case for case in cases}
    for name, recorded in evidence.cases.items():
        case = known.get(name)
        if case is None or describe(case) != recorded.what:
            stale.append(name)
        elif isinstance(case, ProbeCase):
            found.append(compare_probe(case, recorded.counters()))
        else:
            report = None
            if recorded.registers is not None:
                report = ResourceReport("recorded", recorded.registers, 0, 0, 0, {})
            analysis = check(
                case.plan, case.problem, evidence.arch, evidence.device, report, search=False
            )  # fmt: skip
            found.append(compare(case, analysis, recorded.counters()))
    return found, stale


def of_ncu(ncu: str) -> dict[str, str]:
    """Its version, and how it is told to measure."""
    clocks = "free (--clock-control none); caches flushed before each pass"
    return {"ncu": _ask([ncu, "--version"]), "clocks": clocks}


def this_machine(command: str) -> dict[str, str]:
    """Date, GPU, driver, versions and the command, as far as they can be asked for without torch."""
    said = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command,
        "gpu": _ask(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]),
        "driver": _ask(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
        "commit": _ask(["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]),
    }
    for package in ("nvidia-cutlass-dsl", "torch"):
        try:
            said[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            said[package] = ""
    return {key: value for key, value in said.items() if value}


def _ask(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    version = re.search(r"Version (\S+)", done.stdout)
    lines = done.stdout.strip().splitlines()
    return "" if done.returncode or not lines else version[1] if version else lines[0]
