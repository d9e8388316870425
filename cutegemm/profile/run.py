"""Launch cases under ncu in one process, and compare the counters with the predictions."""

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

_ALWAYS = ("launch__", "sm__maximum_warps")  # prefixes of metrics that every ncu has but does not list
_SHOWN = 3000  # characters of ncu's output in an error message
_TRIES = 4  # runs of ncu; each run leaves out the metrics that ncu reported as unknown


@dataclass(frozen=True)
class Counted:
    """Hardware counters of every kernel launch in one run of Nsight Compute (ncu).

    gpu        name of the GPU
    arch       architecture that the kernels were compiled for, such as sm_90a
    launches   dict from kernel name to a list with one entry per launch of that kernel. An entry is a dict from ncu
               metric to value, e.g. {"dram__bytes_read.sum": 4194304.0}
    failed     dict from the name of each kernel that could not be launched to its error message
    """

    gpu: str
    arch: str
    launches: Mapping[str, tuple[Mapping[str, float], ...]]
    failed: Mapping[str, str]


def median(launches: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each metric over all launches that have it, as a dict from metric to median.

    launches   a dict from metric to value for each launch

    >>> median([{"a": 1.0}, {"a": 3.0, "b": 2.0}, {"a": 10.0}])
    {'a': 3.0, 'b': 2.0}
    """
    names = dict.fromkeys(name for launch in launches for name in launch)
    return {name: statistics.median([launch[name] for launch in launches if name in launch]) for name in names}


def profile(cases: Sequence[Case], *, ncu: str = "ncu") -> tuple[list[Comparison], Mapping[str, str]]:
    """Launch kernel plans on this machine's GPU under Nsight Compute, and compare its counters with the predictions.

    cases     plans with problems; names are unique
    ncu       the ncu executable
    returns   one comparison per case that was launched, and the error message of each case that failed, by name
    raises    UnsupportedError if ncu is not installed; NcuError with ncu's output if it fails
    """
    counted = count(cases, ncu=ncu)
    device = default_device(counted.arch).name
    comparisons = []
    for case in cases:
        if case.name in counted.launches:
            resources = resources_of(case.plan, counted.arch)
            analysis = check(case.plan, case.problem, counted.arch, device, resources, search=False)
            comparisons.append(compare(case, analysis, median(counted.launches[case.name])))
    return comparisons, counted.failed


def resources_of(plan: GemmPlan, arch: str) -> ResourceReport:
    """Compile a kernel plan and return the registers, spills and shared memory that its machine code uses.

    arch   architecture to compile for, such as "sm_90a"
    """
    from cutegemm.compile.plans import compile_plan

    return compile_plan(plan, arch).resources


def count(
    cases: Sequence[Launchable],
    *,
    device: str | None = None,
    ncu: str = "ncu",
    limit_seconds: float | None = None,
) -> Counted:
    """Launch kernels under Nsight Compute (ncu) and return the hardware counters of each launch.

    cases           kernels to launch, such as `Case` objects; names are unique
    device          name of a device, e.g. "h200"; the kernels are compiled for its architecture in parallel before the
                    launches. None: each is compiled when it is launched
    ncu             the ncu executable
    limit_seconds   time limit of a run of ncu; None for no limit
    raises          UnsupportedError if ncu is not installed; NcuError with ncu's output if it fails
    """
    from cutegemm.compile.plans import compile_missing

    if shutil.which(ncu) is None:
        raise UnsupportedError(
            f"profile(ncu={ncu!r}): not found. Install the CUDA toolkit, or name the ncu executable with --ncu."
        )
    metrics = _known(ncu, list(dict.fromkeys([name for case in cases for name in case.metrics])))
    if device is not None:  # in parallel, so that the launcher finds its kernels compiled
        compile_missing([case.plan for case in cases if isinstance(case, Case)], device_named(device).arch)
    with tempfile.TemporaryDirectory(prefix="cutegemm-profile-") as name:
        counters, log = _counted(ncu, metrics, cases, Path(name), limit_seconds)
    if len(counters) != len(log["launched"]):
        raise NcuError(f"ncu saw {len(counters)} kernels, but {len(log['launched'])} were launched: {log['failed']}.")
    launches: dict[str, tuple[dict[str, float], ...]] = {}
    for number, values in zip(log["launched"], counters, strict=True):
        label = cases[number].name
        launches[label] = (*launches.get(label, ()), values)
    failed = {cases[int(number)].name: why for number, why in log["failed"].items()}
    return Counted(log["device"], log["arch"], launches, failed)


def _known(ncu: str, wanted: list[str]) -> list[str]:
    """Return those metrics of `wanted` that the ncu executable supports; all of them if ncu cannot list its metrics.

    ncu   path or name of the executable
    """
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False)
    names = known_metrics(listed.stdout)
    if not names:
        return wanted
    return [m for m in wanted if m.startswith(_ALWAYS) or m.split(".")[0] in names]


def _counted(
    ncu: str, metrics: list[str], cases: Sequence[Launchable], folder: Path, limit_seconds: float | None
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """Run kernels under ncu in a child process; return the metrics of each launch, and the child's log.

    If ncu does not know some metrics, it is run again without them.

    ncu             the ncu executable
    metrics         names of the metrics to collect
    cases           kernels to launch
    folder          folder for the files of the child
    limit_seconds   time limit of each run; None for no limit
    returns         a dict from metric to value for each launch, in order; and the log, a dict with "device", "arch",
                    "launched" (index of the kernel of each launch) and "failed"
    raises          NcuError if ncu exceeds the time limit, or if the child does not finish
    """
    target, wanted = launcher(folder, cases), list(metrics)
    file, output, table = folder / "ncu.csv", "", ""
    for _ in range(_TRIES):
        try:
            output = printed(command(target, wanted, GEMM_KERNELS, str(file), ncu), environment(), limit_seconds)
        except TimeoutError as error:
            raise NcuError(str(error)) from None
        table = file.read_text() if file.exists() else ""
        missing = unknown_metrics(f"{output}\n{table}") & set(wanted)
        if not missing:
            break
        wanted = [m for m in wanted if m not in missing]
    log = launched(folder)
    if log is None:
        raise NcuError(f"the launcher did not finish under ncu.\n{f'{output}{table}'[-_SHOWN:]}")
    return parse_csv(table) if log["launched"] else [], log
