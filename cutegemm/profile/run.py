"""Runs cases under ncu, one process for all of them, and compares."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.analysis import check
from cutegemm.compile.cubin import GEMM_KERNELS, ResourceReport
from cutegemm.errors import UnsupportedError
from cutegemm.machine.device import default_device, device_named
from cutegemm.plan import GemmPlan
from cutegemm.profile.case import Case, Launchable
from cutegemm.profile.child import environment, launched, launcher, printed
from cutegemm.profile.compare import Comparison, compare
from cutegemm.profile.ncu import NcuError, command, known_metrics, parse_csv, unknown_metrics

_ALWAYS = ("launch__", "sm__maximum_warps")  # not listed, but known to every version
_SHOWN = 3000  # characters, of what ncu said
_TRIES = 4  # each drops the metrics that ncu says it has not


@dataclass(frozen=True)
class Counted:
    """What ncu counted.

    gpu        its name
    launches   metric -> value of each launch, by the name of the case
    failed     why others were not launched
    """

    gpu: str
    arch: str
    launches: Mapping[str, tuple[Mapping[str, float], ...]]
    failed: Mapping[str, str]


def median(launches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each metric's median over launches.

    >>> median([{"a": 1.0}, {"a": 3.0, "b": 2.0}, {"a": 10.0}])
    {'a': 3.0, 'b': 2.0}
    """
    names = dict.fromkeys(name for launch in launches for name in launch)
    return {name: statistics.median([launch[name] for launch in launches if name in launch]) for name in names}


def profile(cases: Sequence[Case], *, ncu: str = "ncu") -> tuple[list[Comparison], Mapping[str, str]]:
    """Predicted beside measured for plans of this machine's GPU, and why others were not launched.

    raises   UnsupportedError without ncu; NcuError with what it said
    """
    found = count(cases, ncu=ncu)
    device = default_device(found.arch).name
    comparisons = []
    for case in cases:
        if case.name in found.launches:
            resources = resources_of(case.plan, found.arch)
            analysis = check(case.plan, case.problem, found.arch, device, resources, search=False)
            comparisons.append(compare(case, analysis, median(found.launches[case.name])))
    return comparisons, found.failed


def resources_of(plan: GemmPlan, arch: str) -> ResourceReport:
    """What the compiled kernel takes of the machine."""
    from cutegemm.compile.plans import compile_plan

    return compile_plan(plan, arch).resources


def count(
    cases: Sequence[Launchable],
    *,
    device: str | None = None,
    ncu: str = "ncu",
    limit_seconds: float | None = None,
) -> Counted:
    """The counters of each launch.

    device          for whose architecture plans are first compiled in parallel; None: one by one, as they are launched
    limit_seconds   that ncu may take
    raises          UnsupportedError without ncu; NcuError with what it said
    """
    from cutegemm.compile.plans import compile_missing

    if shutil.which(ncu) is None:
        raise UnsupportedError(f"profile: no {ncu} is found. It comes with the CUDA toolkit; name it with --ncu.")
    metrics = _known(ncu, list(dict.fromkeys([name for case in cases for name in case.metrics])))
    if device is not None:  # in parallel, so that the launcher finds its kernels compiled
        compile_missing([case.plan for case in cases if isinstance(case, Case)], device_named(device).arch)
    with tempfile.TemporaryDirectory(prefix="cutegemm-profile-") as name:
        counters, log = _counted(ncu, metrics, cases, Path(name), limit_seconds)
    if len(counters) != len(log["launched"]):
        raise NcuError(f"ncu saw {len(counters)} kernels, but {len(log['launched'])} were launched: {log['failed']}.")
    launches: dict[str, tuple[dict[str, float], ...]] = {}
    for number, values in zip(log["launched"], counters, strict=True):
        of = cases[number].name
        launches[of] = (*launches.get(of, ()), values)
    failed = {cases[int(number)].name: why for number, why in log["failed"].items()}
    return Counted(log["device"], log["arch"], launches, failed)


def _known(ncu: str, wanted: list[str]) -> list[str]:
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False)
    names = known_metrics(listed.stdout)
    if not names:
        return wanted
    return [m for m in wanted if m.startswith(_ALWAYS) or m.split(".")[0] in names]


def _counted(
    ncu: str, metrics: list[str], cases: Sequence[Launchable], folder: Path, limit_seconds: float | None
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """The counters of each launch, and what the launcher says of them."""
    target, wanted = launcher(folder, cases), list(metrics)
    file, said, table = folder / "ncu.csv", "", ""
    for _ in range(_TRIES):
        try:
            said = printed(command(target, wanted, GEMM_KERNELS, str(file), ncu), environment(), limit_seconds)
        except TimeoutError as error:
            raise NcuError(str(error)) from None
        table = file.read_text() if file.exists() else ""
        missing = unknown_metrics(f"{said}\n{table}") & set(wanted)
        if not missing:
            break
        wanted = [m for m in wanted if m not in missing]
    log = launched(folder)
    if log is None:
        raise NcuError(f"the launcher did not finish under ncu.\n{f'{said}{table}'[-_SHOWN:]}")
    return parse_csv(table) if log["launched"] else [], log
