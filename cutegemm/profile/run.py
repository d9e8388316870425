"""Runs cases under ncu and compares: one process for all of them."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutegemm.errors import UnsupportedError
from cutegemm.machine.device import default_device, device_named
from cutegemm.profile.cases import Case, ProbeCase
from cutegemm.profile.child import environment, launched, launcher, printed
from cutegemm.profile.compare import Comparison, metrics_of
from cutegemm.profile.evidence import Evidence, Recorded, describe, of_ncu, replay, this_machine
from cutegemm.profile.ncu import NcuError, command, known_metrics, parse_csv, unknown_metrics
from cutegemm.run.cubin import GEMM_KERNELS

_ALWAYS = ("launch__", "sm__maximum_warps")  # not listed, but known to every version
_SHOWN = 3000  # characters, of what ncu said
_TRIES = 4  # each drops the metrics that ncu says it has not


def profile(
    cases: Sequence[Case | ProbeCase],
    *,
    device: str | None = None,
    ncu: str = "ncu",
    said: str = "",
    limit_seconds: float | None = None,
) -> tuple[list[Comparison], Evidence]:
    """Predicted beside measured for each case.

    device     of the predictions, for which plans are also compiled in parallel; one that stands for the
               architecture where left out
    said       the command, for the record
    limit_seconds   that ncu may take
    returns    the comparisons, and what was counted
    raises     UnsupportedError without ncu; NcuError with what it said
    """
    from cutegemm.run.compile import compile_missing

    if shutil.which(ncu) is None:
        raise UnsupportedError(
            f"profile: no {ncu} is found. It comes with the CUDA toolkit; name it with --ncu."
        )
    metrics = _known(ncu, metrics_of(cases))
    if device is not None:  # in parallel, so that the launcher finds its kernels compiled
        compile_missing([case.plan for case in cases if isinstance(case, Case)], device_named(device).arch)
    with tempfile.TemporaryDirectory(prefix="cutegemm-profile-") as name:
        counters, log = _counted(ncu, metrics, cases, Path(name), limit_seconds)
    if len(counters) != len(log["launched"]):
        raise NcuError(
            f"ncu saw {len(counters)} kernels, but {len(log['launched'])} were launched: {log['failed']}."
        )
    launches: dict[int, list[dict[str, float]]] = {}
    for number, values in zip(log["launched"], counters, strict=True):
        launches.setdefault(number, []).append(values)
    recorded = {
        cases[number].name: Recorded(
            describe(cases[number]),
            _registers(cases[number], log["arch"]),
            tuple(values),
        )
        for number, values in launches.items()
    }
    machine = {**this_machine(said), **of_ncu(ncu), "device": log["device"]}
    failed = {cases[int(number)].name: why for number, why in log["failed"].items()}
    used = device or default_device(log["arch"]).name
    evidence = Evidence(machine, log["arch"], used, recorded, failed)
    return replay(evidence, cases)[0], evidence


def _registers(case: Case | ProbeCase, arch: str) -> int | None:
    from cutegemm.run.compile import compile_plan

    return compile_plan(case.plan, arch).resources.registers if isinstance(case, Case) else None


def _known(ncu: str, wanted: list[str]) -> list[str]:
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False)
    names = known_metrics(listed.stdout)
    if not names:
        return wanted
    return [m for m in wanted if m.startswith(_ALWAYS) or m.split(".")[0] in names]


def _counted(
    ncu: str, metrics: list[str], cases: Sequence[Case | ProbeCase], folder: Path, limit_seconds: float | None
) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """The counters of each launch, and what the launcher says of them."""
    target, wanted = launcher(folder, cases), list(metrics)
    file, said, table = folder / "ncu.csv", "", ""
    for _ in range(_TRIES):
        try:
            said = printed(
                command(target, wanted, GEMM_KERNELS, str(file), ncu), environment(), limit_seconds
            )
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
