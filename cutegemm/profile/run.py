"""Runs cases under ncu and compares: one process for all of them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from cutegemm.analysis.devices import default_device, device_named
from cutegemm.errors import UnsupportedError
from cutegemm.profile.cases import Case, ProbeCase
from cutegemm.profile.compare import Comparison, metrics_of
from cutegemm.profile.evidence import Evidence, Recorded, describe, replay, this_machine
from cutegemm.profile.ncu import NcuError, command, known_metrics, parse_csv, unknown_metrics

_ALWAYS = ("launch__", "sm__maximum_warps")  # not listed, but known to every version
# By the names of their functions: not what packs operands or adds the parts of a split K.
_GEMM_KERNELS = "kernel_cutlass_((part|stream)_)?kernel"
_TRIES = 4  # each drops the metrics that ncu says it has not


def profile(
    cases: Sequence[Case | ProbeCase],
    *,
    device: str | None = None,
    ncu: str = "ncu",
    compiled: bool = True,
    said: str = "",
    limit_seconds: float | None = None,
) -> tuple[list[Comparison], Evidence]:
    """Predicted beside measured for each case.

    device     of the predictions, for which plans are also compiled in parallel; one that stands for the
               architecture where left out
    compiled   whether the registers are those of the compiled kernel, not the plan's estimate
    said       the command, for the record
    limit_seconds   that ncu may take
    returns    the comparisons, and what was counted
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
        counters = _counted(ncu, metrics, folder, limit_seconds)
        log = json.loads((folder / "log.json").read_text())
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
            _registers(cases[number], log["arch"]) if compiled else None,
            tuple(values),
        )
        for number, values in launches.items()
    }
    date = datetime.now(timezone.utc).isoformat(timespec="seconds")
    machine = {**this_machine(said, date, ncu), "device": log["device"]}
    failed = {cases[int(number)].name: why for number, why in log["failed"].items()}
    used = device or default_device(log["arch"]).name
    evidence = Evidence(machine, log["arch"], used, recorded, failed)
    return replay(evidence, cases)[0], evidence


def _compile(cases: Sequence[Case | ProbeCase], arch: str) -> None:
    """Fills the disk cache in parallel, so that the launcher finds its kernels compiled."""
    from cutegemm.compile import compile_plans

    compile_plans([case.plan for case in cases if isinstance(case, Case)], arch)


def _registers(case: Case | ProbeCase, arch: str) -> int | None:
    from cutegemm.compile import compile_plan

    return compile_plan(case.plan, arch).resources.registers if isinstance(case, Case) else None


def _known(ncu: str, wanted: list[str]) -> list[str]:
    listed = subprocess.run([ncu, "--query-metrics"], capture_output=True, text=True, check=False)
    names = known_metrics(listed.stdout)
    if not names:
        return wanted
    return [m for m in wanted if m.startswith(_ALWAYS) or m.split(".")[0] in names]


def _run(line: list[str], environment: dict[str, str], limit_seconds: float | None) -> str:
    """What a command prints; it and its children are ended when their time is up."""
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.communicate(timeout=limit_seconds)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise NcuError(f"ncu took longer than {limit_seconds:.0f} s.") from None


def _counted(
    ncu: str, metrics: list[str], folder: Path, limit_seconds: float | None
) -> list[dict[str, float]]:
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
        line = command(target, wanted, ncu=ncu, log=str(folder / "ncu.csv"), kernel=_GEMM_KERNELS)
        printed = _run(line, {**os.environ, "PYTHONPATH": path}, limit_seconds)
        table = (folder / "ncu.csv").read_text() if (folder / "ncu.csv").exists() else ""
        said = f"{printed}\n{table}"
        missing = unknown_metrics(said) & set(wanted)
        if not missing:
            break
        wanted = [m for m in wanted if m not in missing]
    log = folder / "log.json"
    if not log.exists():
        raise NcuError(f"the launcher did not finish under ncu.\n{said[-3000:]}")
    return parse_csv(table) if json.loads(log.read_text())["launched"] else []
