"""Processes that compile plans for this one.

Each is an interpreter of its own, which is sent plans and sends back what came of them: it does not run the script of
the process that started it, so that this script needs no `if __name__ == "__main__":`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

_SERVE = "from cutegemm.compile.workers import serve; serve()"


def processors() -> int:
    """As many as this process may run on, which a container or `taskset` may have limited."""
    return len(os.sched_getaffinity(0))


class Ended(Exception):
    """A process came to an end before it had answered."""


class Worker:
    """One process."""

    def __init__(self) -> None:
        path = os.pathsep.join([folder or os.getcwd() for folder in sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )

    def __call__(self, task: Callable[..., Any], *given: Any) -> Any:
        """What a function of a module returns there.

        raises   Ended
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            pickle.dump((task, given), stdin)
            stdin.flush()
            return pickle.load(stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise Ended from error

    def end(self) -> None:
        """Lets the process end."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()


def serve() -> None:
    """What a worker does: one task after the other, until there are no more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a compiler prints is no answer
    while True:
        try:
            task, given = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(task(*given), answers)
        answers.flush()


def spread(
    task: Callable[..., Any],
    each: Sequence[tuple[Any, ...]],
    processes: int,
    done: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What a function of a module returns for each of some arguments, in their order, by several processes.

    done     is called behind each, by several threads
    raises   Ended where a process came to an end before it had answered

    >>> spread(abs, [(-1,), (2,), (-3,)], 2)
    [1, 2, 3]
    """
    idle: SimpleQueue[Worker] = SimpleQueue()
    workers = [Worker() for _ in range(processes)]
    for worker in workers:
        idle.put(worker)

    def answer(given: tuple[Any, ...]) -> Any:
        worker = idle.get()
        try:
            return worker(task, *given)
        finally:
            idle.put(worker)
            done()

    try:
        with ThreadPoolExecutor(processes) as threads:
            return list(threads.map(answer, each))
    finally:
        for worker in workers:
            worker.end()
