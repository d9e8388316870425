"""The process in which cases are launched, for a tool to run: its command line, its environment, what it leaves."""

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
    """The command line of `profile.launch` on cases, which are written to a folder.

    options   of that module
    """
    file = folder / "cases.pickle"
    file.write_bytes(pickle.dumps(list(cases)))
    return [sys.executable, "-m", "cutegemm.profile.launch", str(file), str(_log(folder)), *options]


def launched(folder: Path) -> dict[str, Any] | None:
    """What `launch_all` returned there; None where it did not come to its end."""
    return json.loads(_log(folder).read_text()) if _log(folder).exists() else None


def _log(folder: Path) -> Path:
    return folder / "log.json"


def environment() -> dict[str, str]:
    """The environment of a child: that of this process, in which this package is found from any folder."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path}


def printed(command: Sequence[str], within: Mapping[str, str], seconds: float | None) -> str:
    """What a command prints, and then what it prints as errors.

    within   its environment
    raises   TimeoutError after so many seconds; it and its children have then been ended
    """
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", env=dict(within)
    )
    try:
        return "\n".join(process.communicate(timeout=seconds))
    except subprocess.TimeoutExpired:
        # One by one: whoever ends this process's group is to end them too, so that they have none of their own.
        for one in _family(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.communicate()
        raise TimeoutError(f"{Path(command[0]).name} took longer than {seconds:.0f} s.") from None


def _family(process: int) -> list[int]:
    """A process and its descendants, as far as the system has /proc."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found = [process]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found
