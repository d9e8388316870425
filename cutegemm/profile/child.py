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
    """Write kernels to a file and return the command line that launches them in a child process.

    folder    folder for this file and for the result of the child
    cases     the kernels
    options   more arguments of the program `profile.launch`
    """
    file = folder / "cases.pickle"
    file.write_bytes(pickle.dumps(list(cases)))
    return [sys.executable, "-m", "cutegemm.profile.launch", str(file), str(_log(folder)), *options]


def launched(folder: Path) -> dict[str, Any] | None:
    """Return the result of the child process that launched kernels, or None if it did not finish; see `launch_all`.

    folder   the folder that `launcher` wrote to
    """
    return json.loads(_log(folder).read_text()) if _log(folder).exists() else None


def _log(folder: Path) -> Path:
    """Return the path of the file that the child process writes its result to."""
    return folder / "log.json"


def environment() -> dict[str, str]:
    """Return the environment variables of a child: this process's, with the package's folder first in PYTHONPATH."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def printed(command: Sequence[str], within: Mapping[str, str], seconds: float | None) -> str:
    """Run a command and return its stdout, followed by its stderr.

    within    environment variables of the command
    seconds   time limit; None for no limit
    raises    TimeoutError if the command takes longer; the command and its descendants are then killed
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=dict(within)
    )
    try:
        return "\n".join(process.communicate(timeout=seconds))
    except subprocess.TimeoutExpired:
        # The child stays in this process's group, so that a signal to the group also ends the child. Therefore kill its
        # processes one by one.
        for pid in _family(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
        raise TimeoutError(f"{Path(command[0]).name} took longer than {seconds:.0f} s.") from None


def _family(process: int) -> list[int]:
    """Return the ids of a process and its descendants; only the process itself if the system has no /proc."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    family = [process]
    for member in family:
        family += [child for child, parent in parents.items() if parent == member]
    return family
