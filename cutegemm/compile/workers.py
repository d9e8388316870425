"""Run functions in other Python processes, to compile plans in parallel.

A worker is a new interpreter that receives pickled calls on stdin and answers with pickled results. It does not import
the script of its parent, so scripts do not need `if __name__ == "__main__":`, as they do with multiprocessing.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import Any

_SERVE = "import sys; from cutegemm.compile.workers import serve; serve(*sys.argv[1:])"


def processors() -> int:
    """Return the number of processors that this process may use, which `taskset` or a container may limit."""
    return len(os.sched_getaffinity(0))


class WorkerExited(Exception):
    """Raised if a worker process exits before it has returned a result."""


class Worker:
    """A child Python process that runs functions for this one: calling the object runs a function in it.

    A call waits for the result and returns it.

    modules         names of modules that the process imports before the first call
    is_background   whether the process lives on after Ctrl-C, which a terminal sends to all processes of a job
    """

    def __init__(self, *modules: str, is_background: bool = False) -> None:
        path = os.pathsep.join([folder or os.getcwd() for folder in sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=is_background,
        )

    def __call__(self, task: Callable[..., Any], *arguments: Any) -> Any:
        """Run `task(*arguments)` in this worker process and return its result.

        task        function at the top level of a module, so that it can be pickled
        arguments   values that can be pickled
        raises      WorkerExited if the process exits before it answers
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            pickle.dump((task, arguments), stdin)
            stdin.flush()
            return pickle.load(stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise WorkerExited from error

    def end(self) -> None:
        """Close this worker's stdin, so that it exits, and wait for its end."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()

    def kill(self) -> None:
        """Kill this worker process, even while it runs a function, and wait for its end."""
        self.process.kill()
        self.process.wait()


def serve(*modules: str) -> None:
    """Main loop of a worker process: read a pickled call from stdin and write its pickled result, until stdin ends.

    modules   names of modules that are imported first, if they can be
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a compiler prints to stdout goes to stderr, so that it does not mix with the answers
    for module in modules:
        with suppress(ImportError):
            import_module(module)
    while True:
        try:
            task, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(task(*arguments), answers)
        answers.flush()


def map_in_processes(
    task: Callable[..., Any],
    argument_lists: Sequence[tuple[Any, ...]],
    processes: int,
    done: Callable[[], None] = lambda: None,
) -> list[Any]:
    """Call a function with each tuple of arguments, in several worker processes; return the results in order.

    task             function at the top level of a module, so that it can be pickled
    argument_lists   arguments of each call
    processes        number of worker processes
    done             function that is called after each call of `task`, from several threads
    raises           WorkerExited if a worker process exits before it answers

    >>> map_in_processes(abs, [(-1,), (2,), (-3,)], 2)
    [1, 2, 3]
    """
    idle: SimpleQueue[Worker] = SimpleQueue()
    workers = [Worker() for _ in range(processes)]
    for worker in workers:
        idle.put(worker)

    def call(arguments: tuple[Any, ...]) -> Any:
        """Run the task with one tuple of arguments in an idle worker process, and return its result."""
        worker = idle.get()
        try:
            return worker(task, *arguments)
        finally:
            idle.put(worker)
            done()

    try:
        with ThreadPoolExecutor(processes) as threads:
            return list(threads.map(call, argument_lists))
    finally:
        for worker in workers:
            worker.end()
