"""Run `profile.launch` in a child process under a tool such as ncu: command line, environment, output and result."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutegemm.profile.case import Launchable

_ROOT = Path(__file__).resolve().parents[2]


def launcher(folder: Path, cases: Sequence[Launchable], *options: str) -> list[str]:
    """Pickle kernels into `folder` and return the command line of a child process that launches them.

    folder    receives the pickled kernels, and later the child's log of launches
    cases     kernels to launch
    options   more arguments of the child's program, `python -m cutegemm.profile.launch`; e.g. the value of beta
    """
    file = folder / "cases.pickle"
    file.write_bytes(pickle.dumps(list(cases)))
    return [sys.executable, "-m", "cutegemm.profile.launch", str(file), str(_log(folder)), *options]


def launched(folder: Path) -> dict[str, Any] | None:
    """Return the log of the child process that launched kernels, or None if it did not finish.

    folder    the folder that was passed to `launcher`
    returns   "device" and "arch" of the GPU, "launched" (for each launch, the index of its kernel), "failed" (error
              message by kernel index)
    """
    return json.loads(_log(folder).read_text()) if _log(folder).exists() else None


def _log(folder: Path) -> Path:
    """Return the path in `folder` of the JSON file that the child process writes its log of launches to."""
    return folder / "log.json"


def environment() -> dict[str, str]:
    """Return the environment for a child process that imports this package.

    It is that of this process, with the package's parent folder first in PYTHONPATH.
    """
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def printed(command: Sequence[str], within: Mapping[str, str], seconds: float | None) -> str:
    """Run a command and return its stdout, followed by its stderr.

    within    environment variables of the command
    seconds   time limit; None for no limit
    raises    TimeoutError if the command takes longer; it is then killed with all its descendants
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=dict(within)
    )
    try:
        return "\n".join(process.communicate(timeout=seconds))
    except subprocess.TimeoutExpired:
        # The child stays in this process's group, so that a signal to the group also ends the child. Therefore kill its
        # processes one by one.
        for pid in _descendants(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        raise TimeoutError(f"{Path(command[0]).name} took longer than {seconds:.0f} s.") from None


def _descendants(process: int) -> list[int]:
    """Return the ids of a process and all its descendants; only its own id if the system has no /proc.

    process   id of the process
    """
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    family = [process]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family
