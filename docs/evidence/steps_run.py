"""Run every measurement of the documentation again: `python -m docs.evidence run`.

A process makes each file of docs/evidence/data. It may fail or be stopped without harm to the others. A file appears
under its name when it is complete; what a stopped step had measured is kept next to its log.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutegemm.errors import UnsupportedError
from cutegemm.profile.child import environment
from docs.evidence.files import read_record
from docs.evidence.steps import GPU, HOPPER, NCU, SANITIZER, STEPS, TWO_GPUS, Step

DONE, FAILED, SKIPPED = "done", "failed", "skipped"
_SHOWN_LINES = 6  # lines of a failed command's output
_GRACE_SECONDS = 3.0  # from the request to stop until the end
_ASK = "from cutegemm.run.torch_ops import device_arch; import torch; print(device_arch(0), torch.cuda.device_count())"


@dataclass(frozen=True)
class Outcome:
    """Result of a step.

    state     DONE, FAILED or SKIPPED
    said      the reason; for a step that is done, what failed in it
    """

    step: Step
    state: str
    seconds: float
    said: str = ""


def named(patterns: Sequence[str], steps: Sequence[Step] = STEPS) -> tuple[Step, ...]:
    """Return the steps whose names match a pattern with `*`, in their order; all steps without a pattern.

    raises   UnsupportedError for a pattern that matches nothing

    >>> [step.name for step in named(["hopper_fp8*", "simt"])]
    ['simt', 'hopper_fp8', 'hopper_fp8_fast']
    """
    idle = [p for p in patterns if not any(fnmatch.fnmatchcase(step.name, p) for step in steps)]
    if idle:
        raise UnsupportedError(
            f"run: {', '.join(map(repr, idle))} fits no step; there are {', '.join(step.name for step in steps)}."
        )
    return tuple([s for s in steps if not patterns or any(fnmatch.fnmatchcase(s.name, p) for p in patterns)])


def machine_has() -> frozenset[str]:
    """Return which of `Step.needs` this machine has. Another process asks, so that this one does not use the GPU."""
    asked = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=False, env=environment())
    found = {tool for tool in (NCU, SANITIZER) if shutil.which(tool)}
    if asked.returncode == 0:
        found.add(GPU)
        arch, count = asked.stdout.split()[-2:]
        found |= {HOPPER} if arch == "sm_90a" else set()
        found |= {TWO_GPUS} if int(count) > 1 else set()
    return frozenset(found)


def run(
    steps: Sequence[Step],
    out: Path,
    has: frozenset[str],
    budget_seconds: float | None = None,
    started: Callable[[Step], None] = lambda _: None,
) -> Iterator[Outcome]:
    """Run steps in order, and yield the outcome of each as soon as it is known.

    out      folder of the files; out/logs/NAME.log has the output of each command
    has      see `machine_has`
    budget_seconds   time for all steps. A step that is expected to take longer than the rest is skipped; one that takes
                     longer is stopped
    started  called with each step before it runs
    raises   OSError if `out` cannot be written
    """
    (out / "logs").mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    for step in steps:
        left = float("inf") if budget_seconds is None else budget_seconds - (time.monotonic() - begun)
        missing = [need for need in step.needs if need not in has]
        if missing:
            yield Outcome(step, SKIPPED, 0.0, f"it needs {' and '.join(missing)}")
        elif step.seconds > left:
            yield Outcome(step, SKIPPED, 0.0, f"it takes about {step.seconds:.0f} s, {max(0.0, left):.0f} s are left")
        else:
            started(step)
            yield _carried_out(step, out, min(step.limit_seconds, left))


def _carried_out(step: Step, out: Path, limit: float) -> Outcome:
    log, begun = out / "logs" / f"{step.name}.log", time.monotonic()
    with tempfile.TemporaryDirectory(prefix=".evidence-", dir=out) as folder:
        file = Path(folder) / f"{step.name}.json"
        status = _status(step, file, log, limit)
        seconds = time.monotonic() - begun
        found, wrong = _read(step, file)
        if status is None:
            wrong = f"stopped after {limit:.0f} s"
        elif status not in step.statuses:
            wrong = f"it ended with status {status}"
        if not wrong:
            os.replace(file, out / file.name)
            return Outcome(step, DONE, seconds, _remark(found))
        if found:
            os.replace(file, log.with_suffix(".json"))
            wrong += f", what it had measured by then is in {log.with_suffix('.json')}"
    lines = log.read_text(errors="replace").rstrip().splitlines()[-_SHOWN_LINES:]
    return Outcome(step, FAILED, seconds, "\n".join([f"{wrong}: {log}", *lines]))


def _status(step: Step, file: Path, log: Path, limit: float) -> int | None:
    """Return the exit status of the command, or None if it was stopped with all its processes."""
    with log.open("wb") as said, contextlib.ExitStack() as opened:
        printed = opened.enter_context(file.open("wb")) if step.prints else said
        process = subprocess.Popen(
            [sys.executable, *step.argv], cwd=file.parent, stdin=subprocess.DEVNULL, stdout=printed,
            stderr=said, env={**environment(), "PYTHONUNBUFFERED": "1"}, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a command and the processes of its session."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)


def _read(step: Step, file: Path) -> tuple[Mapping[str, Any], str]:
    """Return what a step wrote, and what is wrong with it."""
    try:
        found = read_record(file)
    except (OSError, ValueError) as error:
        return {}, f"it left no {file.name} that is JSON ({error})"
    if not found:
        return {}, f"{file.name} holds no measurements"
    if step.needs and "machine" not in found:
        return {}, f"{file.name} does not say on which machine it was made: nothing was measured"
    return found, ""


def _remark(found: Mapping[str, Any]) -> str:
    """Return what failed inside a file that is otherwise complete."""
    rows = [row for row in found.get("rows", ()) if "error" in row]
    parts = []
    if rows:
        plans = ", ".join(dict.fromkeys(str(row.get("plan")) for row in rows))
        parts.append(f"{len(rows)} rows without a time: {plans}")
    if found.get("failed"):
        parts.append(f"not launched: {', '.join(found['failed'])}")
    if found.get("not_counted"):
        parts.append(f"not counted: {found['not_counted']}")
    return "; ".join(parts)
