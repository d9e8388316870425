"""Runs cases under ncu and compares: one process for all of them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutegemm.analysis import check, device_named
from cutegemm.errors import UnsupportedError
from cutegemm.profile.cases import Case, ProbeCase
from cutegemm.profile.compare import Comparison, compare, compare_probe, metrics_of
from cutegemm.profile.ncu import NcuError, command, known_metrics, parse_csv, unknown_metrics

_ALWAYS = ("launch__", "sm__maximum_warps")  # not listed, but known to every version
_TRIES = 4  # each drops the metrics that ncu says it has not


def profile(
    cases: Sequence[Case | ProbeCase], *, device: str | None = None, ncu: str = "ncu", compiled: bool = True
) -> tuple[list[Comparison], dict[str, Any]]:
    """Predicted beside measured for each case.

    device     of the predictions, for which plans are also compiled in parallel; one that stands for the
               architecture where left out
    compiled   whether the registers are those of the compiled kernel, not the plan's estimate
    returns    the comparisons, and what was run: device, failures, the counters as they came
    raises     UnsupportedError without ncu; NcuError with what it said
    """
    if shutil.which(ncu) is None:
        raise UnsupportedError(
            f"profile: no {ncu} is found. It comes with the CUDA toolkit; name it with --ncu."
        )
    metrics = _known(ncu, metrics_of(cases))
    if compiled and device is not None:
        _compile(cases, device_named(device).arch)
    with tempfile.TemporaryDirectory(prefix="cutegemm-profile-") as name:
        folder = Path(name)
        (folder / "cases.pickle").write_bytes(pickle.dumps(list(cases)))
        counters = _counted(ncu, metrics, folder)
        log = json.loads((folder / "log.json").read_text())
    if len(counters) != len(log["launched"]):
        raise NcuError(
            f"ncu saw {len(counters)} kernels, but {len(log['launched'])} were launched: {log['failed']}."
        )
    found = []
    for number, values in zip(log["launched"], counters, strict=True):
        case = cases[number]
        if isinstance(case, ProbeCase):
            found.append(compare_probe(case, values))
        else:
            report = _report(case, log["arch"]) if compiled else None
            analysis = check(case.plan, case.problem, log["arch"], device, report, search=False)
            found.append(compare(case, analysis, values))
    return found, {**log, "metrics": metrics, "counters": counters}


def _compile(cases: Sequence[Case | ProbeCase], arch: str) -> None:
    """Fills the disk cache in parallel, so that the launcher finds its kernels compiled."""
    from cutegemm.compile import compile_plans

    compile_plans([case.plan for case in cases if isinstance(case, Case)], arch)


def _report(case: Case, arch: str) -> Any:
    from cutegemm.compile import compile_plan

    return compile_plan(case.plan, arch).resources


def _known(ncu: str, wanted: list[str]) -> list[str]:
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False)
    names = known_metrics(listed.stdout)
    if not names:
        return wanted
    return [m for m in wanted if m.startswith(_ALWAYS) or m.split(".")[0] in names]


def _counted(ncu: str, metrics: list[str], folder: Path) -> list[dict[str, float]]:
    target = [
        sys.executable,
        "-m",
        "cutegemm.profile.launch",
        str(folder / "cases.pickle"),
        str(folder / "log.json"),
    ]
    wanted = list(metrics)
    said = ""
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    for _ in range(_TRIES):
        line = command(target, wanted, ncu=ncu, log=str(folder / "ncu.csv"))
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path}
        )
        table = (folder / "ncu.csv").read_text() if (folder / "ncu.csv").exists() else ""
        said = f"{done.stdout}\n{done.stderr}\n{table}"
        missing = unknown_metrics(said) & set(wanted)
        if not missing:
            break
        wanted = [m for m in wanted if m not in missing]
    if not (folder / "log.json").exists():
        raise NcuError(f"the launcher did not finish under ncu.\n{said[-3000:]}")
    return parse_csv(table)
